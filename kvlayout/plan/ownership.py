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

__all__ = ["Shares", "shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """An axis of a leaf on all ranks of a stage: common digits in global units, one origin a rank.

    `block_units`: global units that one block covers on a growing axis, else 0.
    """

    digits: tuple[Digit, ...]
    reach: int
    origins: tuple[int, ...]
    block_units: int


def shares(where: str, leaf: Leaf, name: str, axis: Axis, block: int | None, parallel: Parallel) -> Shares:
    """The shares of axis `name` of a leaf; PlanRefused (unloadable) when an interleave cuts through a digit."""
    digits = sorted((Digit(*rest) for digit_axis, *rest in leaf.digits if digit_axis == name), reverse=True)
    ranks = range(parallel.stage_ranks)
    tp = parallel.tp
    if axis.shard == "tp":
        if axis.size % tp == 0:
            share = axis.size // tp
            origins = tuple(rank % tp * share for rank in ranks)
        else:
            origins = tuple(rank % tp * axis.size // tp for rank in ranks)
        if extent_on_rank(axis.size, axis.shard, axis.few, tp) is None:
            raise ValueError(f"axis '{name}' of {axis.size} units cannot be shared by {tp} ranks")
        return Shares(tuple(digits), reach(digits), origins, 0)
    if axis.shard == "cp" and parallel.cp > 1:
        run = parallel.interleave * axis.size // (block or axis.size)
        try:
            if run * (block or axis.size) != parallel.interleave * axis.size or axis.size % run:
                raise ValueError(f"an interleave of {parallel.interleave} tokens does not divide a block into runs")
            dealt = tuple(spread(digits, run, parallel.cp))
        except (ValueError, ZeroDivisionError) as error:
            raise PlanRefused(problem("KVL204", where, f"axis '{name}': {error}"), unloadable=True) from None
        origins = tuple((rank // tp * parallel.dcp + rank % tp % parallel.dcp) * run for rank in ranks)
        return Shares(dealt, reach(dealt), origins, axis.size * parallel.cp if axis.grows else 0)
    return Shares(tuple(digits), reach(digits), (0,) * parallel.stage_ranks, axis.size if axis.grows else 0)
