"""The moves of one group of one destination rank, as tables for kernels.

A call moves whole templates by one set of rows, and the first and the last template of a token interval by others,
cut from the same pieces. With one side *dense* (a packed buffer) the nests stay what they are, and the dense side's
offsets count the bytes of a source rank in the order of the pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from kvlayout.algebra.nests import Loop, Nest, fold, run_count
from kvlayout.emit.kernels import Kernel, kernel_of
from kvlayout.emit.tables import Move, Shape, Table, depth_of, rows_of, shape_of, table
from kvlayout.emit.tokens import TokenCutter
from kvlayout.errors import SubmitError, problem
from kvlayout.ir import Page, Parallel
from kvlayout.plan.artifact import Piece
from kvlayout.plan.transfer import Entry

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
    return page.buffers or (("", page.nbytes),)


class Moves:
    """What one destination rank receives from one source stage of a group: `pieces` of an entry.

    `ranks`: the source ranks of the pieces, ascending; each buffer of each of them is a source slot, in this order.
    """

    def __init__(self, entry: Entry, src: Parallel, dst: Parallel, pieces: tuple[Piece, ...]) -> None:
        self.entry, self.group, self.pieces = entry, entry.group, pieces
        self._parallel = src, dst
        self.ranks = sorted({entry.first_src_rank + piece.src_rank for piece in pieces})
        self._ends = [_ends(page) for page in (self.group.src, self.group.dst)]
        self._cutter = TokenCutter(self.group, src, dst, entry.rank % dst.stage_ranks)
        self.located = lru_cache(maxsize=256)(self._located)
        self.kernels = lru_cache(maxsize=512)(self._kernels)
        self.dense_bytes = lru_cache(maxsize=256)(self._dense_bytes)
        self.describers = lru_cache(maxsize=256)(self._describers)
        self.payload = lru_cache(maxsize=256)(lambda interval: sum(self.dense_bytes(interval).values()))

    def of_ranks(self, ranks: Container[int]) -> Moves:
        """Only what these source ranks give."""
        first = self.entry.first_src_rank
        return Moves(self.entry, *self._parallel, tuple(p for p in self.pieces if first + p.src_rank in ranks))

    @property
    def tokens(self) -> int | None:
        """Tokens of a template; None where pages have none."""
        return self._cutter.tokens

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
                nests = self._cutter.cut(piece, *interval)
            for nest in nests:
                (src_index, src), (dst_index, dst) = (self._inside(side, nest) for side in (0, 1))
                src_slot = self.ranks.index(rank) * (len(self._ends[0]) - 1) + src_index
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
        raise SubmitError(problem("KVL602", f"group '{self.group.name}'", text, expected="each piece in one buffer"))

    def _dense_bytes(self, interval: Interval) -> dict[int, int]:
        """Bytes of a template by source rank."""
        sizes: dict[int, int] = defaultdict(int)
        for rank, move in self.located(interval):
            sizes[rank] += _payload(move)
        return dict(sizes)

    def _kernels(self, mode: Mode, interval: Interval, streaming: bool, aligned: bool) -> list[tuple[Kernel, Table]]:
        """Kernels with their rows, those of one shape together."""
        moves = [move for _, move in self.located(interval)] if mode == "move" else self._dense(mode, interval)
        by_shape: dict[Shape, list[Move]] = defaultdict(list)
        for move in moves:
            by_shape[shape_of(move, streaming=streaming, aligned=aligned)].append(move)
        return [(kernel_of(shape), table(rows_of(same))) for shape, same in by_shape.items()]

    def _describers(self, interval: Interval) -> dict[int, tuple[int, list[tuple[Kernel, Table]]]]:
        """By source rank: runs of a template, and the kernels that describe them with their rows, in the order of the
        destination's bytes as far as loops of one depth follow each other."""
        by_rank: dict[int, list[Move]] = defaultdict(list)
        for rank, move in self.located(interval):
            by_rank[rank].append(move)
        found = {}
        for rank, moves in by_rank.items():
            moves.sort(key=lambda move: (move.dst_slot, move.dst_block, move.nest.dst))
            kernels = [
                (kernel_of(Shape(depth, "describe")), table(rows_of(list(same))))
                for depth, same in groupby(moves, depth_of)
            ]
            found[rank] = sum(run_count(move.nest) for move in moves), kernels
        return found

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
