"""Ownership: where a rank's share of an axis begins, and how its local digits count global units.

Shard: equal contiguous shares of tensor-parallel ranks, or runs of tokens dealt out to context-parallel ranks in turn.
Replica: more ranks than units hold a unit several times, `rank * units // ranks` at a time. An axis without `shard` is
whole on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.algebra.digits import Digit, reach, spread
from kvlayout.errors import PlanRefused, problem
from kvlayout.ir import Axis, Leaf, Parallel
from kvlayout.ir.invariants import extent_on_rank

__all__ = ["Shares", "origins_of", "shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """An axis of a leaf on all ranks of a stage: common digits in global units, one origin a rank.

    `block_units`: global units that one block covers on a growing axis, else 0.
    """

    digits: tuple[Digit, ...]
    reach: int
    origins: tuple[int, ...]
    block_units: int


def origins_of(where: str, name: str, axis: Axis, block: int | None, parallel: Parallel) -> tuple[int, ...]:
    """Where each rank's share of axis `name` begins; PlanRefused (unloadable) when no engine deals tokens out so."""
    ranks = range(parallel.stage_ranks)
    tp = parallel.tp
    if axis.shard == "tp":
        if extent_on_rank(axis.size, axis.shard, axis.few, tp) is None:
            raise ValueError(f"axis '{name}' of {axis.size} units cannot be shared by {tp} ranks")
        if axis.size % tp == 0:
            share = axis.size // tp
            return tuple(rank % tp * share for rank in ranks)
        return tuple(rank % tp * axis.size // tp for rank in ranks)
    if axis.shard == "cp" and parallel.cp > 1:
        run = _run(axis, block, parallel)
        if run == 0 or run * (block or axis.size) != parallel.interleave * axis.size or axis.size % run:
            raise PlanRefused(
                problem(
                    "KVL204",
                    where,
                    f"axis '{name}': an interleave of {parallel.interleave} tokens does not divide a block into runs",
                ),
                unloadable=True,
            )
        return tuple((rank // tp * parallel.dcp + rank % tp % parallel.dcp) * run for rank in ranks)
    return (0,) * parallel.stage_ranks


def shares(where: str, leaf: Leaf, name: str, axis: Axis, block: int | None, parallel: Parallel) -> Shares:
    """The shares of axis `name` of a leaf; PlanRefused when an interleave cuts through one of its digits."""
    begins = origins_of(where, name, axis, block, parallel)
    digits = sorted((Digit(*rest) for digit_axis, *rest in leaf.digits if digit_axis == name), reverse=True)
    if axis.shard == "cp" and parallel.cp > 1:
        try:
            digits = spread(digits, _run(axis, block, parallel), parallel.cp)
        except ValueError as error:
            raise PlanRefused(problem("KVL509", where, f"axis '{name}' of field '{leaf.field}': {error}")) from None
    block_units = axis.size * (parallel.cp if axis.shard == "cp" else 1) if axis.grows else 0
    return Shares(tuple(digits), reach(digits), begins, block_units)


def _run(axis: Axis, block: int | None, parallel: Parallel) -> int:
    """Units that one context-parallel rank takes before the next one's turn."""
    return parallel.interleave * axis.size // (block or axis.size)
