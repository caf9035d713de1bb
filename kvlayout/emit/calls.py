"""Calls of a bound move: block tables checked, tables of addresses made, kernels run."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvlayout.emit.kernels import Kernel
from kvlayout.emit.moves import Mode, Moves, Section, buffers_of
from kvlayout.emit.regions import Region, region
from kvlayout.emit.submit import block_ids
from kvlayout.emit.tables import LANES, Table, table
from kvlayout.emit.target import LINE, host
from kvlayout.errors import SubmitError, one_of, problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Call", "Nulls", "Part", "Reader", "Take", "Tokens", "run", "streams"]

Reader = Literal["any", "cpu", "device"]
"""Who reads the destination next: this CPU soon (stores stay in its caches), a device or another CPU (they go past
them), or anyone, in which case the size of the call decides."""

Tokens = tuple[int, int] | None

Nulls = tuple[int | None, int | None]
"""The ids of both sides, source first, that mark a block nobody wrote; None where there is none."""

Take = Callable[..., Region]
"""`take(buffer, nbytes, where, writable=...)`: the region of a buffer whose pages have `nbytes` bytes. SubmitError."""

_Job = tuple[Kernel, int, int, object]
"""A kernel, the address of its words, how many units it has, and what keeps all tables alive."""


class _Bases(NamedTuple):
    """The buffers of one side: (address, page stride) by layer and slot; pages that each of them has."""

    regions: list[tuple[str, Region]]
    words: NDArray[np.int64]
    at: Table
    rows: int


class Part:
    """The moves of one entry with its buffers. `src`, `dst`: None where that side is not bound. `take`: what makes a
    region of a buffer."""

    def __init__(
        self, moves: Moves, src: Any, dst: Any, nulls: Nulls = (None, None), *, by_layer: bool, take: Take = region
    ) -> None:
        self.moves, self._nulls = moves, nulls
        group, where = moves.group, f"group '{moves.group.name}'"
        layers = moves.entry.layers if by_layer else (None,)
        self.layers = len(layers)
        self.src = self.dst = None
        if src is not None:
            found = []
            for layer in layers:
                for rank in moves.ranks:
                    path = (rank, group.name, layer) if by_layer else (rank,)
                    found += _buffers(src, path, group.src, f"{where}, source rank {rank}", take, writable=False)
            self.src = _bases(found, self.layers)
        if dst is not None:
            found = []
            for layer in layers:
                at = (group.name, layer) if by_layer else ()
                found += _buffers(dst, at, group.dst, f"{where}, destination", take, writable=True)
            self.dst = _bases(found, self.layers)
        self.aligned = self.dst is not None and not (self.dst.words % LINE).any()
        self._called = f"group '{group.name}', source ids", f"group '{group.name}', destination ids"

    def need(self, mode: Mode) -> None:
        """SubmitError when the sides that a mode needs are not bound."""
        if self.src is None and mode != "unpack":
            raise _not_bound(mode, "source", "src")
        if self.dst is None and mode != "pack":
            raise _not_bound(mode, "destination", "dst")

    def call(self, mode: Mode, src_ids: Any, dst_ids: Any, tokens: Tokens) -> Call:
        """A call with its block tables checked."""
        group, size = self.moves.group, self.moves.tokens
        cut = tokens if size is not None else None
        a, b = group.src_blocks, group.dst_blocks
        src = dst = reached = None
        if mode != "unpack":
            assert self.src is not None
            used = None if cut is None else _used(cut, (size or 0) // a)
            src = block_ids(src_ids, self._called[0], self.src.rows, used, a, distinct=False, null=self._nulls[0])
        if mode != "pack":
            assert self.dst is not None
            reached = None if cut is None else _used(cut, (size or 0) // b)
            dst = block_ids(dst_ids, self._called[1], self.dst.rows, reached, b, distinct=True, null=self._nulls[1])
        if cut is None and src is not None and dst is not None and src.entries // a != dst.entries // b:
            text = "the two block tables hold different numbers of templates"
            expected = f"{b} destination ids for every {a} source ids"
            got = f"{src.entries} and {dst.entries}"
            raise SubmitError(problem("KVL604", f"group '{group.name}'", text, expected=expected, got=got))
        templates = src.entries // a if src is not None else dst.entries // b if dst is not None else 0
        return Call(self, mode, src, dst, reached, self.moves.sections(templates, cut))


class Call:
    """A call of one part with checked block tables. `reached`: the part of the destination's that is written, None for
    all of it. `room`: (offset, bytes of a layer) of its packed bytes by source rank. Its size is asked for before it
    runs, and raises SubmitError where pages cannot be cut."""

    def __init__(
        self,
        part: Part,
        mode: Mode,
        src: Table | None,
        dst: Table | None,
        reached: slice | None,
        sections: list[Section],
    ) -> None:
        self.part, self.mode, self.src, self.dst, self.sections = part, mode, src, dst, sections
        self.group, self._reached = part.moves.group.name, reached
        self.room: dict[int, tuple[int, int]] = {}

    @property
    def written(self) -> NDArray[np.int64]:
        """The destination ids that are written."""
        import numpy as np

        assert self.dst is not None
        ids: NDArray[np.int64] = np.asarray(self.dst.owner)
        return ids if self._reached is None else ids[self._reached]

    @property
    def nbytes(self) -> int:
        """Bytes that move."""
        total = 0
        for section in self.sections:
            total += section.templates * self.part.moves.payload(section.interval)
        return total * self.part.layers

    def take_room(self, offsets: dict[int, int]) -> None:
        """Lay the packed bytes of this call behind those of the calls before."""
        sizes = dict.fromkeys(self.part.moves.ranks, 0)
        for section in self.sections:
            for rank, nbytes in self.part.moves.dense_bytes(section.interval).items():
                sizes[rank] += nbytes * section.templates
        for rank, nbytes in sizes.items():
            begin = offsets.get(rank, 0)
            self.room[rank] = begin, nbytes
            offsets[rank] = begin + nbytes * self.part.layers

    def jobs(self, streaming: bool, dense: Mapping[int, Region] | None = None) -> list[_Job]:
        """The kernel calls of all sections; `dense` are the packed buffers by rank."""
        part, group = self.part, self.part.moves.group
        jobs: list[_Job] = []
        behind: dict[int, int] = {}  # packed bytes of the sections before, in each layer
        for section in self.sections:
            src_bases, dst_bases, aligned = part.src and part.src.at, part.dst and part.dst.at, part.aligned
            src_ids, src_blocks, dst_ids, dst_blocks = self.src, group.src_blocks, self.dst, group.dst_blocks
            first_src, first_dst = 8 * section.first * src_blocks, 8 * section.first * dst_blocks
            if dense is not None:
                packed, in_order = self._packed(section, dense, behind)
                if self.mode == "pack":
                    dst_bases, aligned = table(packed), not (packed % LINE).any()
                    dst_ids, dst_blocks, first_dst = in_order, 1, 0
                else:
                    src_bases = table(packed)
                    src_ids, src_blocks, first_src = in_order, 1, 0
            assert src_bases and dst_bases and src_ids and dst_ids
            for kernel, rows in part.moves.kernels(self.mode, section.interval, streaming, aligned):
                words = array("q", (
                    rows.address, rows.address + rows.entries * rows.nbytes, rows.nbytes,
                    src_bases.address, src_bases.nbytes >> 4, dst_bases.address, dst_bases.nbytes >> 4,
                    src_ids.address + first_src, src_blocks, dst_ids.address + first_dst, dst_blocks,
                    section.templates, 0,
                ))  # fmt: skip
                alive = words, rows, src_bases, dst_bases, src_ids, dst_ids, part, dense
                jobs.append((kernel, words.buffer_info()[0], section.templates * part.layers, alive))
        return jobs

    def runs(self) -> Counter[int]:
        """Runs that are described, by source rank, before any are joined."""
        total: Counter[int] = Counter()
        for section in self.sections:
            for rank, (runs, _) in self.part.moves.describers(section.interval).items():
                total[rank] += runs * section.templates * self.part.layers
        return total

    def describe(self, outs: Mapping[int, array[int]]) -> Iterator[int]:
        """Write the runs of every source rank to where its `OUT` words say, layer by layer; yields before each, so
        that runs of two layers, whose memory may be registered apart, are not joined."""
        part, group = self.part, self.part.moves.group
        assert part.src and part.dst and self.src and self.dst
        for section in self.sections:
            at = 8 * section.first
            for rank, (_, kernels) in part.moves.describers(section.interval).items():
                jobs = [
                    (kernel, array("q", (
                        rows.address, rows.address + rows.entries * rows.nbytes, rows.nbytes,
                        part.src.at.address, part.src.at.nbytes >> 4, part.dst.at.address, part.dst.at.nbytes >> 4,
                        self.src.address + at * group.src_blocks, group.src_blocks,
                        self.dst.address + at * group.dst_blocks, group.dst_blocks,
                        section.templates, outs[rank].buffer_info()[0],
                    )))
                    for kernel, rows in kernels
                ]  # fmt: skip
                for layer in range(part.layers):
                    for kernel, words in jobs:
                        yield rank
                        kernel(words.buffer_info()[0], layer * section.templates, (layer + 1) * section.templates)

    def _packed(
        self, section: Section, dense: Mapping[int, Region], behind: dict[int, int]
    ) -> tuple[NDArray[np.int64], Table]:
        """The bases of a packed section by layer and rank, and the ids of its templates; counts on `behind`."""
        import numpy as np

        ranks, sizes = self.part.moves.ranks, self.part.moves.dense_bytes(section.interval)
        packed = np.empty((self.part.layers, len(ranks), 2), np.int64)
        for slot, rank in enumerate(ranks):
            begin, layer_bytes = self.room[rank]
            first = dense[rank].address + begin + behind.get(rank, 0)
            packed[:, slot, 0] = first + layer_bytes * np.arange(self.part.layers)
            packed[:, slot, 1] = sizes.get(rank, 0)
            behind[rank] = behind.get(rank, 0) + sizes.get(rank, 0) * section.templates
        return packed, table(np.arange(section.templates))


def run(jobs: list[_Job], threads: int) -> None:
    """Execute jobs, each thread a share of the units of every job. Nothing is written any more when it returns."""
    if threads > 1:
        threads = min(threads, max((units for _, _, units, _ in jobs), default=1))
    if threads == 1:
        for kernel, words, units, _ in jobs:
            kernel(words, 0, units)
        return

    def share(index: int) -> None:
        for kernel, words, units, _ in jobs:
            together = LANES if units >= LANES * threads else 1
            groups = -(-units // together)  # lanes stay together
            first, last = (min(units, together * (groups * part // threads)) for part in (index, index + 1))
            if first < last:
                kernel(words, first, last)

    started: list[Thread] = []
    try:
        for index in range(1, threads):
            thread = Thread(target=share, args=(index,))
            try:
                thread.start()
            except RuntimeError:  # no more threads to be had: this one takes the share
                share(index)
            else:
                started.append(thread)
        share(0)
    finally:
        _join(started)


def _join(threads: list[Thread]) -> None:
    """Wait for all, whatever interrupts it; the interrupt is raised when none of them writes any more."""
    interrupt: BaseException | None = None
    while threads:
        try:
            threads[-1].join()
            threads.pop()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


@cache
def _streaming_from() -> int:
    """Bytes from which on a call goes past the caches: four times the second-level cache, where that is known."""
    try:
        level2 = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, OSError, ValueError):  # not POSIX; not told; no such name
        level2 = 0
    return 4 * level2 if level2 > 0 else 8 << 20


def streams(reader: Reader, nbytes: int) -> bool:
    """Whether a call of so many bytes stores past the caches."""
    if reader == "any" and nbytes < _streaming_from():
        return False
    return reader != "cpu" and host().streams


def _not_bound(mode: Mode, side: str, word: str) -> SubmitError:
    advice = f"Give {word}= to bind for a {mode}, or pack on the source's side and unpack on the destination's."
    return SubmitError(problem("KVL601", mode, f"no {side} buffers are bound", expected=f"{word}=", help=advice))


def _used(tokens: tuple[int, int], per_block: int) -> slice:
    """The blocks that an interval reaches."""
    if tokens[0] >= tokens[1]:
        return slice(0, 0)
    return slice(tokens[0] // per_block, -(-tokens[1] // per_block))


def _buffers(
    side: Any, path: tuple[Any, ...], page: Any, where: str, take: Take, *, writable: bool
) -> list[tuple[str, Region]]:
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
        found.append((called, take(buffer, nbytes, called, writable=writable)))
    return found


def _bases(found: list[tuple[str, Region]], layers: int) -> _Bases:
    import numpy as np

    words = np.array([(each.address, each.stride) for _, each in found], np.int64).reshape(layers, -1, 2)
    return _Bases(found, words, table(words), min((each.rows for _, each in found), default=0))
