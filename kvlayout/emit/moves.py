"""The moves of one group of one destination rank, as tables for kernels.

A call moves whole templates by one set of rows, and the first and the last template of a token interval by others,
cut from the same pieces. With one side *dense* (a packed buffer) the nests stay what they are, and the dense side's
offsets count the bytes of a source rank in the order of the pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from kvlayout.algebra.nests import Loop, Nest, fold, run_count
from kvlayout.emit.kernels import Kernel, kernel_of
from kvlayout.emit.tables import Move, Table, rows_of, shape_of, table
from kvlayout.emit.tokens import TokenCutter
from kvlayout.errors import SubmitError, problem
from kvlayout.ir import Page, Parallel, span
from kvlayout.plan.transfer import Entry
from kvlayout.verify.sides import SideView

__all__ = ["Interval", "Mode", "Moves", "Section", "buffers_of"]

Mode = Literal["move", "pack", "unpack"]

Interval = tuple[int, int] | None
"""Tokens of a template, or all that it has."""


class Section(NamedTuple):
    """`templates` of them from the `first` on, of which `interval` moves."""

    interval: Interval
    first: int
    templates: int


def buffers_of(page: Page) -> tuple[tuple[str, int], ...]:
    """Name and bytes of each buffer that a page lies in; one without a name where it lies in one piece."""
    return page.buffers or (("", span(page.tree)),)


class Moves:
    """What one destination rank receives from one source stage of a group.

    `ranks`: the source ranks that it reads and that take part (`only`). `src_slots`: (rank, buffer index), and
    `dst_slots` buffer indices, in the order of the bases.
    """

    def __init__(
        self, where: str, entry: Entry, src: Parallel, dst: Parallel, only: frozenset[int] | None = None
    ) -> None:
        self.where, self.entry, self.group = where, entry, entry.group
        self.src, self.dst = SideView(self.group.src, src), SideView(self.group.dst, dst)
        self.stage_rank = entry.rank % dst.stage_ranks
        self.pieces = [p for p in entry.pieces if only is None or entry.first_src_rank + p.src_rank in only]
        self.ranks = sorted({entry.first_src_rank + piece.src_rank for piece in self.pieces})
        self._ends = [_ends(page) for page in (self.group.src, self.group.dst)]
        self.src_slots = [(rank, index) for rank in self.ranks for index in range(len(self._ends[0]) - 1)]
        self.dst_slots = list(range(len(self._ends[1]) - 1))
        self.cutter = TokenCutter(self.group, self.src, self.dst)
        self.located = lru_cache(maxsize=256)(self._located)
        self.kernels = lru_cache(maxsize=512)(self._kernels)
        self.dense_bytes = lru_cache(maxsize=256)(self._dense_bytes)
        self.payload = lru_cache(maxsize=256)(lambda interval: sum(self.dense_bytes(interval).values()))

    @property
    def tokens(self) -> int | None:
        """Tokens of a template; None where pages have none."""
        return self.cutter.tokens

    def sections(self, templates: int, tokens: tuple[int, int] | None) -> list[Section]:
        """The sections of a call. `templates` counts where no interval is given, or where pages have no tokens."""
        size = self.tokens
        if tokens is None or size is None:
            return [Section(None, 0, templates)] if templates else []
        found: list[Section] = []
        (first, head), (last, tail) = divmod(tokens[0], size), divmod(tokens[1], size)
        if tokens[0] >= tokens[1]:
            return found
        if first == last:
            return [Section((head, tail), first, 1)]
        if head:
            found.append(Section((head, size), first, 1))
            first += 1
        if first < last:
            found.append(Section(None, first, last - first))
        if tail:
            found.append(Section((0, tail), last, 1))
        return found

    def _located(self, interval: Interval) -> tuple[tuple[int, Move], ...]:
        """(source rank, move) of every nest."""
        found = []
        for piece in self.pieces:
            rank = self.entry.first_src_rank + piece.src_rank
            if interval is None:
                nests = [fold(piece.src_offset, piece.dst_offset, piece.nbytes, piece.loops)]
            else:
                nests = self.cutter.cut(self.where, self.stage_rank, piece, *interval)
            for nest in nests:
                (src_index, src), (dst_index, dst) = (self._inside(side, nest) for side in (0, 1))
                src_slot = self.src_slots.index((rank, src_index))
                inside = Nest(src, dst, nest.nbytes, nest.loops)
                found.append((rank, Move(src_slot, piece.src_block, dst_index, piece.dst_block, inside)))
        return tuple(found)

    def _inside(self, side: int, nest: Nest) -> tuple[int, int]:
        """The buffer that a nest lies in, and its offset there."""
        begin = (nest.src, nest.dst)[side]
        end = begin + nest.nbytes + sum((loop[0] - 1) * loop[1 + side] for loop in nest.loops)
        for index, (low, high) in enumerate(pairwise(self._ends[side])):
            if low <= begin and end <= high:
                return index, begin - low
        text = f"a piece reaches over several buffers: bytes {begin} to {end} of a page"
        raise SubmitError(problem("KVL602", self.where, text, expected="each piece in one buffer"))

    def _dense_bytes(self, interval: Interval) -> dict[int, int]:
        """Bytes of a template by source rank."""
        sizes: dict[int, int] = defaultdict(int)
        for rank, move in self.located(interval):
            sizes[rank] += _payload(move)
        return dict(sizes)

    def _kernels(self, mode: Mode, interval: Interval, streaming: bool, aligned: bool) -> list[tuple[Kernel, Table]]:
        """Kernels with their rows, those of one shape together."""
        moves = [move for _, move in self.located(interval)] if mode == "move" else self._dense(mode, interval)
        by_shape: dict[object, list[Move]] = defaultdict(list)
        shapes = {}
        for move in moves:
            shape = shape_of(move, streaming=streaming, aligned=aligned)
            shapes[shape] = shape
            by_shape[shape].append(move)
        return [(kernel_of(shape), table(rows_of(by_shape[shape]))) for shape in shapes]

    def _dense(self, mode: Mode, interval: Interval) -> list[Move]:
        """The moves with one side packed: a slot for each rank, one block for each template."""
        ends: dict[int, int] = defaultdict(int)
        dense = []
        for rank, move in self.located(interval):
            at, slot, nest = ends[rank], self.ranks.index(rank), move.nest
            ends[rank] += _payload(move)
            strides, reach = [], nest.nbytes
            for count, _, _ in reversed(nest.loops):
                strides.append(reach)
                reach *= count
            loops: list[Loop] = []
            for (count, ss, ds), stride in zip(nest.loops, reversed(strides), strict=True):
                loops.append((count, ss, stride) if mode == "pack" else (count, stride, ds))
            if mode == "pack":
                packed = fold(nest.src, at, nest.nbytes, loops)
                dense.append(move._replace(dst_slot=slot, dst_block=0, nest=packed))
            else:
                packed = fold(at, nest.dst, nest.nbytes, loops)
                dense.append(move._replace(src_slot=slot, src_block=0, nest=packed))
        return dense


def _payload(move: Move) -> int:
    return move.nest.nbytes * run_count(move.nest)


def _ends(page: Page) -> Sequence[int]:
    ends = [0]
    for _, nbytes in buffers_of(page):
        ends.append(ends[-1] + nbytes)
    return ends
