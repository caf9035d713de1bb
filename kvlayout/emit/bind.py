"""Bound moves: a proved plan on real memory.

`bind` checks once all that needs no block table: that every buffer is there, holds pages of the right size, lies in
CPU memory, and that nothing that is written is read or written by another name. A call then checks ids, in time of
the blocks, and moves all groups and layers without the GIL. What a check finds is raised before the first byte moves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ctypes import addressof, c_int64
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from weakref import WeakSet

from kvlayout.api import check
from kvlayout.emit.kernels import Kernel as CompiledKernel
from kvlayout.emit.moves import Mode, Moves, Section, buffers_of
from kvlayout.emit.regions import Region, clash, flat, region
from kvlayout.emit.submit import block_ids, interval, tables
from kvlayout.emit.tables import LANES
from kvlayout.emit.target import LINE, host
from kvlayout.errors import PlanRefused, SubmitError, one_of, problem, shown
from kvlayout.plan.transfer import TransferPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BoundMove", "Kernel", "Reader", "bind", "kernel"]

Reader = Literal["any", "cpu", "device"]
"""Who reads the destination next: this CPU soon (stores stay in its caches), a device or another CPU (they go past
them), or anyone, in which case the size of the call decides."""

Tokens = tuple[int, int] | None

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
    parts: list[_Part] = []
    for group in plan.groups:
        for moves in _moves(plan, group.name, dst_rank, None, None if dst is not None else frozenset(src or {})):
            parts.append(_Part(moves, src, dst, by_layer=True))
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

    def __init__(self, parts: list[_Part], threads: int, reader: Reader) -> None:
        self._parts, self._threads, self._reader = parts, threads, reader
        self._groups = tuple(dict.fromkeys(part.moves.group.name for part in parts))

    def __call__(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Move. Raises SubmitError, and then nothing has moved."""
        for part in self._parts:
            part.need("move")
        calls = self._calls("move", blocks, tokens)
        streaming = _streams(self._reader, sum(call.nbytes for call in calls))
        _run([job for call in calls for job in call.jobs(streaming)], self._threads)

    def packed_bytes(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> dict[int, int]:
        """Bytes that `pack` writes and `unpack` reads for these tables, by source rank."""
        mode: Mode = "unpack" if self._parts[0].src is None else "pack"
        return _dense_sizes(self._calls(mode, blocks, tokens))

    def pack(
        self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None, out: Mapping[int, Any] | None = None
    ) -> dict[int, Any]:
        """Gather the payload of each source rank into one dense buffer, and return the buffers by rank.

        Destination ids are not read and may be None. `out`: {rank: writable contiguous buffer}; made where absent.
        Bytes lie by group, layer, template and piece in the order of the plan.
        """
        import numpy as np

        for part in self._parts:
            part.need("pack")
        calls = self._calls("pack", blocks, tokens)
        sizes = _dense_sizes(calls)
        given = {rank: np.empty(size, np.uint8) for rank, size in sizes.items()} if out is None else out
        dense = _dense_regions(given, sizes, writable=True)
        _no_dense_clash(dense, self._parts, written=True)
        streaming = _streams(self._reader, sum(sizes.values()))
        _run([job for call in calls for job in call.jobs(streaming, dense)], self._threads)
        return {rank: given[rank] for rank in sizes}

    def unpack(self, packed: Mapping[int, Any], blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> None:
        """Scatter what `pack` wrote for the same plan, tables and tokens. Source ids are not read and may be None."""
        for part in self._parts:
            part.need("unpack")
        calls = self._calls("unpack", blocks, tokens)
        sizes = _dense_sizes(calls)
        dense = _dense_regions(packed, sizes, writable=False)
        _no_dense_clash(dense, self._parts, written=False)
        streaming = _streams(self._reader, sum(sizes.values()))
        _run([job for call in calls for job in call.jobs(streaming, dense)], self._threads)

    def _calls(self, mode: Mode, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens) -> list[_Call]:
        pairs, span = tables(blocks, self._groups), interval(tokens)
        calls = []
        offsets: dict[int, int] = {}
        for part in self._parts:
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
        part = _Part(self._moves, sources, destination, by_layer=False)
        _no_clash([part])
        call = part.call("move", src_ids, dst_ids, interval(tokens))
        _run(call.jobs(_streams("any", call.nbytes)), 1)


class _Part:
    """The moves of one entry with the bases of its buffers. `src`, `dst`: None where that side is not bound."""

    def __init__(self, moves: Moves, src: Any, dst: Any, *, by_layer: bool) -> None:
        self.moves = moves
        self.layers = moves.entry.layers if by_layer else (None,)
        self.written: list[tuple[str, Region]] = []
        self.read: list[tuple[str, Region]] = []
        self.src = self.dst = None
        self.src_rows = self.dst_rows = 0
        group, where = moves.group, moves.where
        if src is not None:
            found = []
            for layer in self.layers:
                for rank in moves.ranks:
                    at = f"{where}, source rank {rank}"
                    found += _buffers(src, (rank, group.name, layer) if by_layer else (rank,), group.src, at, False)
            self.src, self.src_rows, self.read = _bases(found, len(self.layers)), _rows(found), found
        if dst is not None:
            found = []
            for layer in self.layers:
                at = f"{where}, destination"
                found += _buffers(dst, (group.name, layer) if by_layer else (), group.dst, at, True)
            self.dst, self.dst_rows, self.written = _bases(found, len(self.layers)), _rows(found), found
        self.aligned = self.dst is not None and not (self.dst % LINE).any()

    def need(self, mode: Mode) -> None:
        """SubmitError when the sides that a mode needs are not bound."""
        for side, bound in (("src", self.src), ("dst", self.dst)):
            if bound is None and mode in ("move", "pack" if side == "src" else "unpack"):
                raise SubmitError(problem("KVL601", f"bind: {mode}", f"no {side} buffers are bound", expected=side))

    def call(self, mode: Mode, src_ids: Any, dst_ids: Any, tokens: Tokens) -> _Call:
        """The checked block tables of one call."""
        moves, group = self.moves, self.moves.group
        size = moves.tokens
        found = {}
        for side, ids, blocks in (("src", src_ids, group.src_blocks), ("dst", dst_ids, group.dst_blocks)):
            if mode == ("unpack" if side == "src" else "pack"):
                continue
            used = None
            if tokens is not None and size is not None:
                per_block = size // blocks
                used = (
                    slice(tokens[0] // per_block, -(-tokens[1] // per_block)) if tokens[0] < tokens[1] else slice(0, 0)
                )
            name = "source" if side == "src" else "destination"
            rows = self.src_rows if side == "src" else self.dst_rows
            where = f"group '{group.name}', {name} ids"
            found[side] = block_ids(ids, where, rows, used, blocks, distinct=side == "dst"), blocks
        templates = {len(ids) // blocks for ids, blocks in found.values()}
        if (tokens is None or size is None) and len(templates) > 1:
            (src, a), (dst, b) = found["src"], found["dst"]
            raise SubmitError(
                problem("KVL604", f"group '{group.name}'", "the two block tables hold different numbers of templates",
                        expected=f"{b} destination ids for every {a} source ids", got=f"{len(src)} and {len(dst)}")
            )  # fmt: skip
        sections = moves.sections(templates.pop(), tokens)
        for section in sections:
            moves.located(section.interval)  # raises where pages cannot be cut
        return _Call(self, mode, {side: ids for side, (ids, _) in found.items()}, sections)


class _Job(NamedTuple):
    """One call of one kernel; `alive` are the tables that `words` points into."""

    kernel: CompiledKernel
    words: Any
    units: int
    streaming: bool
    alive: tuple[Any, ...]


class _Call:
    """A checked call of one part."""

    def __init__(self, part: _Part, mode: Mode, ids: dict[str, NDArray[np.int64]], sections: list[Section]) -> None:
        self.part, self.mode, self.ids, self.sections = part, mode, ids, sections
        self.room: dict[int, tuple[int, int]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that move."""
        return len(self.part.layers) * sum(self._layer_bytes().values())

    def _layer_bytes(self) -> dict[int, int]:
        sizes = dict.fromkeys(self.part.moves.ranks, 0)
        for section in self.sections:
            for rank, nbytes in self.part.moves.dense_bytes(section.interval).items():
                sizes[rank] += nbytes * section.templates
        return sizes

    def take_room(self, offsets: dict[int, int]) -> None:
        """Lay the packed bytes of this call behind those of the calls before: (offset, bytes of a layer) by rank."""
        for rank, nbytes in self._layer_bytes().items():
            begin = offsets.get(rank, 0)
            self.room[rank] = begin, nbytes
            offsets[rank] = begin + nbytes * len(self.part.layers)

    def jobs(self, streaming: bool, dense: Mapping[int, Region] | None = None) -> list[_Job]:
        """The kernel calls of all sections."""
        import numpy as np

        moves, group, jobs = self.part.moves, self.part.moves.group, []
        behind = dict.fromkeys(moves.ranks, 0)  # packed bytes of the sections before, in each layer
        for section in self.sections:
            src_bases, dst_bases, aligned = self.part.src, self.part.dst, self.part.aligned
            ids = {side: (table, group.src_blocks if side == "src" else group.dst_blocks)
                   for side, table in self.ids.items()}  # fmt: skip
            if dense is not None:
                sizes = moves.dense_bytes(section.interval)
                packed = np.empty((len(self.part.layers), len(moves.ranks), 2), np.int64)
                for slot, rank in enumerate(moves.ranks):
                    begin, layer_bytes = self.room[rank]
                    first = dense[rank].address + begin + behind[rank]
                    packed[:, slot, 0] = first + layer_bytes * np.arange(len(self.part.layers))
                    packed[:, slot, 1] = sizes.get(rank, 0)
                    behind[rank] += sizes.get(rank, 0) * section.templates
                side = "dst" if self.mode == "pack" else "src"
                ids[side] = np.arange(-section.first, section.templates), 1
                if side == "dst":
                    dst_bases, aligned = packed, not (packed % LINE).any()
                else:
                    src_bases = packed
            assert src_bases is not None and dst_bases is not None
            for compiled, rows in moves.kernels(self.mode, section.interval, streaming, aligned):
                (src_ids, src_blocks), (dst_ids, dst_blocks) = ids["src"], ids["dst"]
                begin = _address(rows)
                words = (c_int64 * 12)(
                    begin, begin + rows.nbytes, rows.strides[0],
                    _address(src_bases), src_bases.shape[1], _address(dst_bases), dst_bases.shape[1],
                    _address(src_ids) + 8 * section.first * src_blocks, src_blocks,
                    _address(dst_ids) + 8 * section.first * dst_blocks, dst_blocks,
                    section.templates,
                )  # fmt: skip
                alive = rows, src_bases, dst_bases, src_ids, dst_ids
                jobs.append(_Job(compiled, words, section.templates * len(self.part.layers), streaming, alive))
        return jobs


def _run(jobs: list[_Job], threads: int) -> None:
    """Execute jobs, each thread a share of the units of every job."""
    if threads == 1 or sum(job.units for job in jobs) < 2:
        for job in jobs:
            job.kernel(addressof(job.words), 0, job.units)
        return
    failed: list[BaseException] = []

    def share(index: int) -> None:
        try:
            for job in jobs:
                groups = -(-job.units // LANES)  # lanes stay together
                first, last = (min(job.units, LANES * (groups * part // threads)) for part in (index, index + 1))
                if groups < threads:
                    first, last = job.units * index // threads, job.units * (index + 1) // threads
                if first < last:
                    job.kernel(addressof(job.words), first, last)
        except BaseException as error:
            failed.append(error)

    others = [Thread(target=share, args=(index,)) for index in range(1, threads)]
    for thread in others:
        thread.start()
    share(0)
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]


@cache
def _streaming_from() -> int:
    """Bytes from which on a call goes past the caches: four times the second-level cache, where that is known."""
    try:
        level2 = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, OSError, ValueError):
        level2 = 0
    return 4 * level2 if level2 > 0 else 8 << 20


def _streams(reader: Reader, nbytes: int) -> bool:
    if reader == "cpu" or not host().streams:
        return False
    return reader == "device" or nbytes >= _streaming_from()


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


def _buffers(side: Any, path: tuple[Any, ...], page: Any, where: str, writable: bool) -> list[tuple[str, Region]]:
    """The regions of one page, found by rank, group and layer."""
    at = side
    for key in path:
        if not isinstance(at, Mapping) or key not in at:
            given = one_of(at) if isinstance(at, Mapping) else type(at).__name__
            said = ", ".join(f"{key}" for key in path)
            raise SubmitError(problem("KVL601", where, f"no buffer for {said}", expected=f"a key {key}", got=given))
        at = at[key]
    label = f"{where}, layer {path[-1]}" if len(path) > 1 else where
    found = []
    for name, nbytes in buffers_of(page):
        buffer = at
        if name:
            if not isinstance(at, Mapping) or name not in at:
                expected = f"a buffer for each of {', '.join(name for name, _ in page.buffers)}"
                raise SubmitError(problem("KVL601", label, f"no buffer '{name}'", expected=expected))
            buffer = at[name]
        called = f"{label}, buffer '{name}'" if name else label
        found.append((called, region(buffer, nbytes, called, writable=writable)))
    return found


def _bases(found: list[tuple[str, Region]], layers: int) -> NDArray[np.int64]:
    """int64 (layers, slots, 2): address and page stride."""
    import numpy as np

    return np.array([(each.address, each.stride) for _, each in found], np.int64).reshape(layers, -1, 2)


def _rows(found: list[tuple[str, Region]]) -> int:
    return min((each.rows for _, each in found), default=0)


def _no_clash(parts: list[_Part]) -> None:
    met = clash([each for part in parts for each in part.written], [each for part in parts for each in part.read])
    if met is not None:
        raise SubmitError(problem("KVL603", met[0], f"shares memory with {met[1]}", expected="memory of its own"))


def _dense_sizes(calls: list[_Call]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for call in calls:
        for rank, (begin, nbytes) in call.room.items():
            sizes[rank] = begin + nbytes * len(call.part.layers)
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


def _no_dense_clash(dense: Mapping[int, Region], parts: list[_Part], *, written: bool) -> None:
    named = [(f"packed bytes of source rank {rank}", each) for rank, each in dense.items()]
    if written:
        met = clash(named, [each for part in parts for each in part.read])
    else:
        met = clash([each for part in parts for each in part.written], named)
    if met is not None:
        raise SubmitError(problem("KVL603", met[0], f"shares memory with {met[1]}", expected="memory of its own"))


def _address(array: NDArray[np.int64]) -> int:
    return int(array.__array_interface__["data"][0])
