"""Bound moves: a proved plan on real memory.

`bind` checks once all that needs no block table: that every buffer is there, holds pages of the right size, lies in
CPU memory, and that nothing that is written is read or written by another name. A call then checks ids, in time of
the blocks (also that no two groups of one pool name a block), and moves all groups and layers without the GIL. What a
check finds is raised before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary

from kvlayout.emit.calls import Call, Nulls, Part, Reader, Tokens, run, streams
from kvlayout.emit.moves import Mode, Moves
from kvlayout.emit.regions import Named, Region, clashes, flat, lines_of, same_cells
from kvlayout.emit.submit import block_tables, interval, one_group_each
from kvlayout.errors import PlanRefused, SubmitError, one_of, problem, shown
from kvlayout.plan.artifact import Document, Group
from kvlayout.plan.transfer import TransferPlan
from kvlayout.verify.check import check_document

__all__ = ["BoundMove", "Kernel", "bind", "kernel", "pools_of", "proved", "received_by"]

_proved: WeakValueDictionary[int, Document] = WeakValueDictionary()
"""Documents that were proved here, by identity: they are immutable, and what holds one may not be."""

MAX_THREADS = 1024

Pools = tuple[tuple[int, int], ...]
"""Pairs of parts, by number, whose destination pages are cells of one pool."""


def bind(
    plan: TransferPlan,
    *,
    dst_rank: int,
    src: Mapping[int, Mapping[str, Mapping[int, Any]]] | None = None,
    dst: Mapping[str, Mapping[int, Any]] | None = None,
    threads: int = 1,
    reader: Reader = "any",
    null_blocks: Nulls = (None, None),
) -> BoundMove:
    """A plan bound to the memory of one destination rank and of the source ranks that it reads.

    `src`: {source rank: {group: {layer: buffer}}}, `dst`: {group: {layer: buffer}}. A buffer is a NumPy array, a torch
    CPU tensor or anything with the buffer protocol; its first axis counts blocks, the rest of it is one page, bytes in
    order. Where a page lies in several buffers, give {name: buffer}. Destination groups may share one pool, as vLLM's
    do, where a block is a cell of it that belongs to one group at a time: calls then refuse ids that two groups name.
    Ranks, groups and layers that the plan does not
    name are ignored. With `src` alone the result can only `pack`, for the ranks that are given; with `dst` alone only
    `unpack`. `threads`: how many threads share a call. `null_blocks`: the ids, source's and destination's, that an
    engine puts into a table for a block that nobody wrote (vLLM: 0); a call that would touch one is refused.

    Raises SubmitError for buffers that the plan may not be applied to, PlanRefused for a plan that is not proved,
    ValueError for another reader, number of threads or null blocks.
    """
    proved(plan)
    if reader not in get_args(Reader):
        raise ValueError(f"no reader {reader!r}; there are {', '.join(get_args(Reader))}")
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads={threads!r}; expected 1 to {MAX_THREADS}")
    if src is None and dst is None:
        raise SubmitError(problem("KVL601", "bind", "no buffers", expected="src, dst or both"))
    received = received_by(plan, dst_rank, src if dst is None else None, null_blocks)
    groups = tuple(group.name for group in plan.groups if next(plan.entries(group.name, dst_rank), None) is not None)
    parts = [Part(moves, src, dst, null_blocks, by_layer=True) for moves in received]
    return BoundMove(parts, groups, pools_of(parts), threads, reader)


def received_by(plan: TransferPlan, dst_rank: int, given: Any, null_blocks: Nulls) -> list[Moves]:
    """The moves to a destination rank; `given`: from these source ranks alone. SubmitError for no such rank, or where
    nothing is left; ValueError for other null blocks."""
    _check_nulls(null_blocks)
    received = [moves for group in plan.groups for moves in _moves(plan, group, dst_rank)]
    if given is None:
        return received
    read = sorted({rank for moves in received for rank in moves.ranks})
    ranks = given if isinstance(given, Mapping) else {}
    found = [part for moves in received if (part := moves.of_ranks(ranks)).pieces]
    if not found:
        expected = f"one of the source ranks that rank {dst_rank} reads: {', '.join(map(str, read))}"
        raise SubmitError(problem("KVL601", "bind", "no buffer of the plan is given", expected=expected))
    return found


def kernel(
    plan: TransferPlan, group: str, dst_rank: int, layer: int | None = None, *, null_blocks: Nulls = (None, None)
) -> Kernel:
    """One group of a plan, for calls of one layer each: `kernel(sources, destination, src_ids, dst_ids, tokens=None)`.

    `layer` picks the entry where pipeline stages make several; `null_blocks` as for `bind`. Raises SubmitError for no
    such group, rank or layer, or several entries, PlanRefused for a plan that is not proved, ValueError for other null
    blocks.
    """
    proved(plan)
    _check_nulls(null_blocks)
    named = [each for each in plan.groups if each.name == group]
    if not named:
        expected = one_of(each.name for each in plan.groups)
        raise SubmitError(problem("KVL609", "group", "no such group", expected=expected, got=shown(group)))
    received = _moves(plan, named[0], dst_rank)
    found = [moves for moves in received if layer is None or layer in moves.entry.layers]
    if len(found) != 1:
        layers = [each for moves in received for each in moves.entry.layers]
        expected = f"a layer of rank {dst_rank} in group '{group}': {one_of(layers)}" if layers else "another rank"
        text = "rank {} reads the group from {} stages; name a layer" if found else "rank {} has no such layer of it"
        raise SubmitError(
            problem("KVL609", "layer", text.format(dst_rank, len(found)), expected=expected, got=f"{layer}")
        )
    return Kernel(found[0], null_blocks)


class BoundMove:
    """A plan on memory; made by `kvlayout.bind`. May be called from several threads at once.

    `blocks`: {group: (source ids, destination ids)} with every bound group, 1-D integers each; id i * src_blocks + j
    is block j of template i. `tokens=(a, b)`: only tokens a to b - 1, counted from the first token of both first
    blocks; the tables need only cover b, and groups without tokens ignore it.
    """

    def __init__(self, parts: list[Part], groups: tuple[str, ...], pools: Pools, threads: int, reader: Reader) -> None:
        self.parts, self._pools, self._threads, self._reader = parts, pools, threads, reader
        self._known, self._needed = groups, tuple(dict.fromkeys(part.moves.group.name for part in parts))

    def __call__(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Move. Raises SubmitError, and then nothing has moved."""
        self._run(self._calls("move", blocks, tokens))

    def packed_bytes(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> dict[int, int]:
        """Bytes that `pack` writes and `unpack` reads for these tables, by source rank. Of the tables, those of the
        source are read, or those of the destination where no source is bound."""
        calls = self._calls("pack" if self.parts[0].src is not None else "unpack", blocks, tokens)
        return _packed_sizes(calls)

    def pack(
        self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None, out: Mapping[int, Any] | None = None
    ) -> dict[int, Any]:
        """Gather the payload of each source rank into one dense buffer, and return the buffers by rank.

        Destination ids are not read and may be None. `out`: {rank: writable contiguous buffer}; made where absent.
        Bytes lie by group, layer, template and piece in the order of the plan. Raises SubmitError.
        """
        calls = self._calls("pack", blocks, tokens)
        sizes = _packed_sizes(calls)
        given = {rank: lines_of(1, size)[0] for rank, size in sizes.items()} if out is None else out
        packed = _packed_regions(given, sizes, writable=True)
        _refuse_clash(_named(packed), [*_regions(self.parts, "src"), *_regions(self.parts, "dst")])
        self._run(calls, packed)
        return {rank: given[rank] for rank in sizes}

    def unpack(self, packed: Mapping[int, Any], blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Scatter what `pack` wrote for the same plan, tables and tokens. Source ids are not read and may be None.
        Raises SubmitError, and then nothing has moved."""
        calls = self._calls("unpack", blocks, tokens)
        regions = _packed_regions(packed, _packed_sizes(calls), writable=False)
        _refuse_clash(_regions(self.parts, "dst"), _named(regions), pools=self._pools)
        self._run(calls, regions)

    def _calls(self, mode: Mode, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens) -> list[Call]:
        for part in self.parts:
            part.need(mode)
        pairs, span = block_tables(blocks, self._needed, self._known), interval(tokens)
        calls = []
        offsets: dict[int, int] = {}
        for part in self.parts:
            call = part.call(mode, *pairs[part.moves.group.name], span)
            if mode != "move":
                call.take_room(offsets)
            calls.append(call)
        if mode != "pack":
            for pair in self._pools:
                one, other = (calls[index] for index in pair)
                one_group_each(one.group, one.written, other.group, other.written)
        return calls

    def _run(self, calls: list[Call], packed: Mapping[int, Region] | None = None) -> None:
        nbytes = 0
        for call in calls:
            nbytes += call.nbytes
        streaming = streams(self._reader, nbytes)
        jobs = []
        for call in calls:
            jobs += call.jobs(streaming, packed)
        run(jobs, self._threads)


class Kernel:
    """One group of a plan and one destination rank; made by `kvlayout.kernel`."""

    def __init__(self, moves: Moves, nulls: Nulls) -> None:
        self._moves, self._nulls = moves, nulls

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
        part = Part(self._moves, sources, destination, self._nulls, by_layer=False)
        part.need("move")
        _refuse_clash(_regions([part], "dst"), _regions([part], "src"))
        call = part.call("move", src_ids, dst_ids, interval(tokens))
        run(call.jobs(streams("any", call.nbytes)), 1)


def _check_nulls(null_blocks: Any) -> None:
    pair = isinstance(null_blocks, tuple) and len(null_blocks) == 2
    if not pair or not all(each is None or (type(each) is int and each >= 0) for each in null_blocks):
        raise ValueError(f"null_blocks={null_blocks!r}; expected (source id or None, destination id or None)")


def proved(plan: Any) -> None:
    """Only what is proved moves bytes, whoever made the object."""
    if not isinstance(plan, TransferPlan):
        raise TypeError(f"expected a TransferPlan, as kvlayout.load_plan gives one; got {type(plan).__name__}")
    document = plan.document
    if _proved.get(id(document)) is document:
        return
    verdict = check_document(document)
    if not verdict.proved:
        raise PlanRefused(verdict.problems)
    _proved[id(document)] = document


def _moves(plan: TransferPlan, group: Group, dst_rank: int) -> list[Moves]:
    """The moves of a group to a rank: one for each source stage that it reads."""
    document = plan.document.plan
    ranks = document.dst.stage_ranks * max(1, len(document.dst.stages))
    if dst_rank not in range(ranks):
        expected = f"a rank from 0 to {ranks - 1}"
        raise SubmitError(
            problem("KVL609", "dst_rank", "no such destination rank", expected=expected, got=shown(dst_rank))
        )
    found = plan.entries(group.name, dst_rank)
    return [Moves(entry, document.src, document.dst, entry.pieces) for entry in found]


def _regions(parts: list[Part], side: Literal["src", "dst"]) -> list[Named]:
    bases = (part.src if side == "src" else part.dst for part in parts)
    return [each for found in bases if found is not None for each in found.regions]


def _named(packed: Mapping[int, Region]) -> list[Named]:
    return [(f"packed bytes of source rank {rank}", each) for rank, each in packed.items()]


def pools_of(parts: list[Part], *, one_space: bool = True) -> Pools:
    """Pairs of parts whose destination pages lie in the cells of one pool. SubmitError where a page that is written
    shares bytes in another way. `one_space`: source and destination addresses are of one memory."""
    owners = {id(each): index for index, part in enumerate(parts) if part.dst for each in part.dst.regions}
    found = set()
    for one, other, both in clashes(_regions(parts, "dst"), _regions(parts, "src") if one_space else []):
        pair = owners[id(one)], owners.get(id(other), -1)
        groups = [parts[index].moves.group.name for index in pair]
        if not both or groups[0] == groups[1] or not same_cells(one[1], other[1]):
            raise _shares(one[0], other[0])
        found.add((min(pair), max(pair)))
    return tuple(sorted(found))


def _refuse_clash(written: list[Named], read: list[Named], pools: Pools = ()) -> None:
    """`pools`: what is written was looked at before and shares memory as these say."""
    for one, other, both in clashes(written, read):
        if not (pools and both):
            raise _shares(one[0], other[0])


def _shares(one: str, other: str) -> SubmitError:
    return SubmitError(problem("KVL603", one, f"shares memory with {other}", expected="memory of its own"))


def _packed_sizes(calls: list[Call]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for call in calls:
        for rank, (begin, nbytes) in call.room.items():
            sizes[rank] = begin + nbytes * call.part.layers
    return dict(sorted(sizes.items()))


def _packed_regions(given: Any, sizes: Mapping[int, int], *, writable: bool) -> dict[int, Region]:
    found = {}
    for rank, nbytes in sizes.items():
        where = f"packed bytes of source rank {rank}"
        if not isinstance(given, Mapping) or rank not in given:
            raise SubmitError(problem("KVL608", where, "no buffer", expected=f"{{{rank}: {nbytes} bytes}}"))
        found[rank] = flat(given[rank], where, writable=writable)
        if found[rank].nbytes < nbytes:
            got = f"{found[rank].nbytes} bytes"
            text = "the buffer is too short"
            raise SubmitError(problem("KVL608", where, text, expected=f"{nbytes} bytes or more", got=got))
    return found
