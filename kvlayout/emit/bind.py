"""Bound moves: a proved plan on real memory.

`bind` checks once all that needs no block table: that every buffer is there, holds pages of the right size, lies in
CPU memory, and that nothing that is written is read or written by another name. A call then checks ids, in time of
the blocks, and moves all groups and layers without the GIL. What a check finds is raised before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args
from weakref import WeakSet

from kvlayout.api import check
from kvlayout.emit.calls import Call, Part, Reader, Tokens, run, streams
from kvlayout.emit.moves import Mode, Moves
from kvlayout.emit.regions import Region, clash, flat
from kvlayout.emit.submit import interval, tables
from kvlayout.errors import PlanRefused, SubmitError, one_of, problem, shown
from kvlayout.plan.transfer import TransferPlan

__all__ = ["BoundMove", "Kernel", "bind", "kernel"]

_proved: WeakSet[TransferPlan] = WeakSet()


def bind(
    plan: TransferPlan,
    *,
    dst_rank: int,
    src: Mapping[int, Mapping[str, Mapping[int, Any]]] | None = None,
    dst: Mapping[str, Mapping[int, Any]] | None = None,
    threads: int = 1,
    reader: Reader = "any",
) -> BoundMove:
    """A plan bound to the memory of one destination rank and of the source ranks that it reads.

    `src`: {source rank: {group: {layer: buffer}}}, `dst`: {group: {layer: buffer}}. A buffer is a NumPy array, a torch
    CPU tensor or anything with the buffer protocol; its first axis counts blocks, the rest of it is one page, bytes in
    order. Where a page lies in several buffers, give {name: buffer}. Ranks, groups and layers that the plan does not
    name are ignored. With `src` alone the result can only `pack`, for the ranks that are given; with `dst` alone only
    `unpack`. `threads`: how many threads share a call.

    Raises SubmitError for buffers that the plan may not be applied to, PlanRefused for a plan that is not proved,
    ValueError for another reader or no thread.
    """
    _prove(plan)
    if reader not in get_args(Reader):
        raise ValueError(f"no reader {reader!r}; there are {', '.join(get_args(Reader))}")
    if threads < 1:
        raise ValueError(f"{threads} threads move nothing")
    if src is None and dst is None:
        raise SubmitError(problem("KVL601", "bind", "no buffers", expected="src, dst or both"))
    parts: list[Part] = []
    for group in plan.groups:
        for moves in _moves(plan, group.name, dst_rank, None, None if dst is not None else frozenset(src or {})):
            parts.append(Part(moves, src, dst, by_layer=True))
    if not parts:
        raise SubmitError(problem("KVL601", "bind", "no buffer of a source rank that the plan reads is given",
                                  expected=one_of(_read_ranks(plan, dst_rank))))  # fmt: skip
    _no_clash(parts)
    return BoundMove(parts, threads, reader)


def kernel(plan: TransferPlan, group: str, dst_rank: int, layer: int | None = None) -> Kernel:
    """One group of a plan, for calls of one layer each: `kernel(sources, destination, src_ids, dst_ids, tokens=None)`.

    `layer` picks the entry where pipeline stages make several. Raises LookupError for no such group, rank or layer,
    PlanRefused for a plan that is not proved.
    """
    _prove(plan)
    found = _moves(plan, group, dst_rank, layer, None)
    if len(found) > 1:
        raise LookupError(f"rank {dst_rank} reads group '{group}' from {len(found)} stages; name a layer")
    return Kernel(found[0])


class BoundMove:
    """A plan on memory; made by `kvlayout.bind`. May be called from several threads at once.

    `blocks`: {group: (source ids, destination ids)} with every bound group, 1-D integers each; id i * src_blocks + j
    is block j of template i. `tokens=(a, b)`: only tokens a to b - 1, counted from the first token of both first
    blocks; the tables need only cover b, and groups without tokens ignore it.
    """

    def __init__(self, parts: list[Part], threads: int, reader: Reader) -> None:
        self.parts, self._threads, self._reader = parts, threads, reader
        self._groups = tuple(dict.fromkeys(part.moves.group.name for part in parts))

    def __call__(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Move. Raises SubmitError, and then nothing has moved."""
        calls = self._calls("move", blocks, tokens)
        nbytes = 0
        for call in calls:
            nbytes += call.nbytes
        streaming = streams(self._reader, nbytes)
        jobs = []
        for call in calls:
            jobs += call.jobs(streaming)
        run(jobs, self._threads)

    def packed_bytes(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> dict[int, int]:
        """Bytes that `pack` writes and `unpack` reads for these tables, by source rank."""
        mode: Mode = "unpack" if self.parts[0].src is None else "pack"
        return _dense_sizes(self._calls(mode, blocks, tokens))

    def pack(
        self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None, out: Mapping[int, Any] | None = None
    ) -> dict[int, Any]:
        """Gather the payload of each source rank into one dense buffer, and return the buffers by rank.

        Destination ids are not read and may be None. `out`: {rank: writable contiguous buffer}; made where absent.
        Bytes lie by group, layer, template and piece in the order of the plan.
        """
        import numpy as np

        calls = self._calls("pack", blocks, tokens)
        sizes = _dense_sizes(calls)
        given = {rank: np.empty(size, np.uint8) for rank, size in sizes.items()} if out is None else out
        dense = _dense_regions(given, sizes, writable=True)
        _no_dense_clash(dense, self.parts, written=True)
        streaming = streams(self._reader, sum(sizes.values()))
        run([job for call in calls for job in call.jobs(streaming, dense)], self._threads)
        return {rank: given[rank] for rank in sizes}

    def unpack(self, packed: Mapping[int, Any], blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Scatter what `pack` wrote for the same plan, tables and tokens. Source ids are not read and may be None."""
        calls = self._calls("unpack", blocks, tokens)
        sizes = _dense_sizes(calls)
        dense = _dense_regions(packed, sizes, writable=False)
        _no_dense_clash(dense, self.parts, written=False)
        streaming = streams(self._reader, sum(sizes.values()))
        run([job for call in calls for job in call.jobs(streaming, dense)], self._threads)

    def _calls(self, mode: Mode, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens) -> list[Call]:
        for part in self.parts:
            part.need(mode)
        pairs, span = tables(blocks, self._groups), interval(tokens)
        calls = []
        offsets: dict[int, int] = {}
        for part in self.parts:
            call = part.call(mode, *pairs[part.moves.group.name], span)
            if mode != "move":
                call.take_room(offsets)
            calls.append(call)
        return calls


class Kernel:
    """One group of a plan and one destination rank; made by `kvlayout.kernel`."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def __call__(
        self,
        sources: Mapping[int, Any],
        destination: Any,
        src_ids: Any,
        dst_ids: Any,
        tokens: Tokens = None,
    ) -> None:
        """Move one layer. `sources`: {rank: buffer}, `destination`: buffer, as for `bind`. Raises SubmitError, and then
        nothing has moved."""
        part = Part(self._moves, sources, destination, by_layer=False)
        _no_clash([part])
        call = part.call("move", src_ids, dst_ids, interval(tokens))
        run(call.jobs(streams("any", call.nbytes)), 1)


def _prove(plan: TransferPlan) -> None:
    """Only what is proved moves bytes, whoever made the object."""
    if plan in _proved:
        return
    verdict = check(plan)
    if not verdict.proved:
        raise PlanRefused(verdict.problems)
    _proved.add(plan)


def _moves(
    plan: TransferPlan, group: str, dst_rank: int, layer: int | None, only: frozenset[int] | None
) -> list[Moves]:
    document = plan.document.plan
    found = [
        Moves(f"group '{group}'", entry, document.src, document.dst, only)
        for entry in plan.entries(group)
        if entry.rank == dst_rank and (layer is None or layer in entry.layers)
    ]
    if not found and not 0 <= dst_rank < document.dst.stage_ranks * max(1, len(document.dst.stages)):
        ranks = document.dst.stage_ranks * max(1, len(document.dst.stages))
        expected = f"a rank from 0 to {ranks - 1}"
        raise SubmitError(
            problem("KVL609", "dst_rank", "no such destination rank", expected=expected, got=shown(dst_rank))
        )
    if not found and layer is not None:
        raise SubmitError(
            problem("KVL609", "layer", f"rank {dst_rank} has no such layer in group '{group}'", got=shown(layer))
        )
    return [moves for moves in found if moves.pieces]


def _read_ranks(plan: TransferPlan, dst_rank: int) -> list[int]:
    return sorted({rank for ranks in plan.sources(dst_rank).values() for rank in ranks})


def _regions(side: Any) -> list[tuple[str, Region]]:
    return [] if side is None else side.regions


def _no_clash(parts: list[Part]) -> None:
    met = clash(
        [each for part in parts for each in _regions(part.dst)], [each for part in parts for each in _regions(part.src)]
    )
    if met is not None:
        raise SubmitError(problem("KVL603", met[0], f"shares memory with {met[1]}", expected="memory of its own"))


def _dense_sizes(calls: list[Call]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for call in calls:
        for rank, (begin, nbytes) in call.room.items():
            sizes[rank] = begin + nbytes * call.part.layers
    return dict(sorted(sizes.items()))


def _dense_regions(given: Any, sizes: Mapping[int, int], *, writable: bool) -> dict[int, Region]:
    found = {}
    for rank, nbytes in sizes.items():
        where = f"packed bytes of source rank {rank}"
        if not isinstance(given, Mapping) or rank not in given:
            raise SubmitError(problem("KVL608", where, "no buffer", expected=f"{{{rank}: {nbytes} bytes}}"))
        found[rank] = flat(given[rank], where, writable=writable)
        if found[rank].nbytes < nbytes:
            raise SubmitError(problem("KVL608", where, "the buffer is too short", expected=f"{nbytes} bytes or more",
                                      got=f"{found[rank].nbytes} bytes"))  # fmt: skip
    return found


def _no_dense_clash(dense: Mapping[int, Region], parts: list[Part], *, written: bool) -> None:
    named = [(f"packed bytes of source rank {rank}", each) for rank, each in dense.items()]
    if written:
        met = clash(named, [each for part in parts for each in _regions(part.src)])
    else:
        met = clash([each for part in parts for each in _regions(part.dst)], named)
    if met is not None:
        raise SubmitError(problem("KVL603", met[0], f"shares memory with {met[1]}", expected="memory of its own"))
