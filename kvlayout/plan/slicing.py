"""Slicing and lowering: for a destination rank, which source ranks hold what it needs, and by which nests it moves.

Ranks of one side that hold the same box of a field form a class; classes are disjoint, because shares are equal. So a
destination rank needs one move from each class that meets its box, whatever member of the class gives it (`sources`
decides), and a piece that one source can give whole is never cut. The nests of a move depend only on where the two
shares lie relative to each other: they are computed once for each such distance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from kvlayout.algebra.nests import Loop, fold
from kvlayout.errors import PlanRefused, problem
from kvlayout.ir import Axis, Page, Parallel, leaves
from kvlayout.plan.align import MAX_PARTS, Part, TooManyParts, Work, align
from kvlayout.plan.artifact import Piece
from kvlayout.plan.ownership import Shares, origins_of, shares
from kvlayout.plan.pairing import PairedField, pair_pages

__all__ = ["MAX_PIECES", "GroupSlicer", "Need", "Origins"]

MAX_PIECES = 200_000
"""Pieces of one group, of all ranks together; above it a plan takes more room and time than it is worth."""

MAX_CUTS = 500_000
"""Cuts that are tried for one group: about a second. Sides that share no digit could be cut for minutes."""

Origins = tuple[int, ...]
"""Where the shares of a rank begin: one number for each axis of a field."""

_BlockPart = tuple[int, int, Part]
_Move = tuple[tuple[str, ...], int, int, int, int, int, tuple[Loop, ...]]


@dataclass(frozen=True, slots=True)
class Need:
    """A destination rank needs what the holders of `origins` hold of the fields that lie along one set of axes.

    `index`: which set of axes. `holders`: the source ranks, ascending. `nbytes`: bytes of all those fields together.
    """

    index: int
    origins: Origins
    holders: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Field:
    """A paired field with the shares of its axes on both sides, axes by position."""

    paired: PairedField
    src: tuple[Shares, ...]
    dst: tuple[Shares, ...]


@dataclass(frozen=True, slots=True)
class _Family:
    """The fields along one set of axes: they are owned alike, so they share classes and needs."""

    axes: tuple[str, ...]
    fields: tuple[_Field, ...]
    dst_origins: tuple[Origins, ...]
    classes: dict[Origins, tuple[int, ...]]
    begins: tuple[tuple[int, ...], ...]

    def near(self, here: Origins) -> list[Origins]:
        """The classes that may hold something of a destination rank's box, by their first rank.

        `begins` has the source's origins on each axis, ascending, so that shares which end before the box or begin
        after it are not looked at: many ranks times many ranks would take minutes. Shares of a growing axis lie all
        over it.
        """
        close = []
        for position, (begins, origin) in enumerate(zip(self.begins, here, strict=True)):
            src, dst = self.fields[0].src[position], self.fields[0].dst[position]
            if not src.block_units:
                begins = begins[bisect_right(begins, origin - src.reach) : bisect_left(begins, origin + dst.reach)]
            close.append(begins)
        found = [origins for origins in product(*close) if origins in self.classes]
        return sorted(found, key=lambda origins: self.classes[origins])


class GroupSlicer:
    """Slices one group between two sides; remembers what it cut. `where`: what its refusals speak of."""

    def __init__(self, where: str, src: Page, src_parallel: Parallel, dst: Page, dst_parallel: Parallel) -> None:
        self.where = where
        _check_side(where, "source", src, src_parallel)
        _check_side(where, "destination", dst, dst_parallel)
        self._pair = pair_pages(where, src, src_parallel, dst, dst_parallel)
        self.src_blocks, self.dst_blocks = self._pair.src_blocks, self._pair.dst_blocks
        by_axes: dict[tuple[str, ...], list[_Field]] = {}
        for paired in self._pair.fields:
            axes = tuple(sorted(paired.dst.axes))
            ours = tuple(shares(where, paired.src, a, src.axes[a], src.block, src_parallel) for a in axes)
            theirs = tuple(shares(where, paired.dst, a, dst.axes[a], dst.block, dst_parallel) for a in axes)
            by_axes.setdefault(axes, []).append(_Field(paired, ours, theirs))
        self._families = [
            _family(axes, tuple(fields), src_parallel.stage_ranks, dst_parallel.stage_ranks)
            for axes, fields in by_axes.items()
        ]
        self._needs: dict[tuple[int, Origins], tuple[Need, ...]] = {}
        self._parts: dict[object, tuple[_BlockPart, ...]] = {}
        self._cuts = 0  # parts that were made, of all axes
        self._work = Work(MAX_CUTS)
        self._moves: dict[tuple[int, Origins, Origins], tuple[_Move, ...]] = {}

    def needs(self, dst_rank: int) -> Iterator[Need]:
        """What a destination rank needs; together the needs cover each of its fields exactly once."""
        for index, family in enumerate(self._families):
            here = family.dst_origins[dst_rank]
            found = self._needs.get((index, here))
            if found is None:
                sizes = ((origins, self._nbytes(family, origins, here)) for origins in family.near(here))
                found = tuple(Need(index, origins, family.classes[origins], size) for origins, size in sizes if size)
                self._needs[index, here] = found
            yield from found

    def pieces(self, dst_rank: int, need: Need, src_rank: int) -> list[Piece]:
        """The moves by which `src_rank`, a holder, serves a need of `dst_rank`."""
        family = self._families[need.index]
        here = family.dst_origins[dst_rank]
        key = need.index, need.origins, here
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = tuple(self._lowered(family, need.origins, here))
        return [Piece(src_rank, *move) for move in moves]

    def _nbytes(self, family: _Family, theirs: Origins, here: Origins) -> int:
        total = 0
        for field in family.fields:
            nbytes = field.paired.nbytes
            for parts in self._axis_parts(family, field, theirs, here):
                nbytes *= sum(part.units for _, _, part in parts)
            if not nbytes:
                return 0  # the fields of a family are owned alike: the shares are disjoint
            total += nbytes
        return total

    def _lowered(self, family: _Family, theirs: Origins, here: Origins) -> Iterator[_Move]:
        for field in family.fields:
            paired = field.paired
            by_axis = list(self._axis_parts(family, field, theirs, here))
            if prod(len(parts) for parts in by_axis) > MAX_PARTS:
                raise self._too_many(f"field '{paired.names[0]}'")
            for parts in product(*by_axis):
                src_block = dst_block = 0
                src_at, dst_at = paired.src.base, paired.dst.base
                loops: list[Loop] = []
                for a, b, part in parts:  # at most one axis of a field grows
                    src_block += a
                    dst_block += b
                    src_at += part.src
                    dst_at += part.dst
                    loops += part.loops
                nest = fold(src_at, dst_at, paired.nbytes, loops)
                yield paired.names, src_block, dst_block, nest.src, nest.dst, nest.nbytes, nest.loops

    def _axis_parts(
        self, family: _Family, field: _Field, theirs: Origins, here: Origins
    ) -> Iterator[tuple[_BlockPart, ...]]:
        for name, src, dst, src_origin, dst_origin in zip(family.axes, field.src, field.dst, theirs, here, strict=True):
            a, b = self._pair.axes[name]
            if a.grows:
                key: object = (name, src.digits, dst.digits, src_origin, dst_origin)
            elif a.common or b.common:
                key = (name, src.digits, dst.digits)
            else:
                key = (name, src.digits, dst.digits, src_origin - dst_origin)
            parts = self._parts.get(key)
            if parts is None:
                cut = self._cut(name, (a, b), src, dst, src_origin, dst_origin)
                try:
                    parts = tuple(islice(cut, MAX_PARTS + 1))
                except TooManyParts:
                    raise self._too_many(f"axis '{name}'") from None
                self._cuts += len(parts)
                if len(parts) > MAX_PARTS or self._cuts > MAX_PIECES:
                    raise self._too_many(f"axis '{name}'")
                self._parts[key] = parts
            yield parts

    def _too_many(self, subject: str) -> PlanRefused:
        return PlanRefused(
            problem("KVL507", self.where, f"{subject} would be cut into more than {MAX_PARTS} pieces for one rank, or "
                    f"{MAX_PIECES} in all", expected="blocks and interleaves that divide each other")
        )  # fmt: skip

    def _cut(
        self, name: str, axes: tuple[Axis, Axis], src: Shares, dst: Shares, src_origin: int, dst_origin: int
    ) -> Iterator[_BlockPart]:
        a, b = axes
        lo, hi = max(src_origin, dst_origin), min(src_origin + src.reach, dst_origin + dst.reach)
        if not a.grows:
            if a.common or b.common:
                hi = min(hi, a.size, b.size)
            if lo < hi:
                self._check_granule(name, axes, lo, hi)
                for part in align(src.digits, src_origin, dst.digits, dst_origin, lo, hi, self._work):
                    yield 0, 0, part
            return
        for i in range(self.src_blocks):
            begin = i * src.block_units
            for j in range(begin // dst.block_units, -(-(begin + src.block_units) // dst.block_units)):
                self._work.spend()
                from_, to = src_origin + begin, dst_origin + j * dst.block_units
                lo, hi = max(from_, to), min(from_ + src.reach, to + dst.reach)
                if lo < hi:
                    self._check_granule(name, axes, lo, hi)
                    for part in align(src.digits, from_, dst.digits, to, lo, hi, self._work):
                        yield i, j, part

    def _check_granule(self, name: str, axes: tuple[Axis, Axis], lo: int, hi: int) -> None:
        for axis in axes:
            if lo % axis.granule or (hi % axis.granule and (axis.grows or hi != axis.size)):
                raise PlanRefused(
                    problem(
                        "KVL505",
                        self.where,
                        f"axis '{name}' would be cut at [{lo}, {hi})",
                        expected=f"multiples of {axis.granule}",
                    )
                )


def _check_side(where: str, side: str, page: Page, parallel: Parallel) -> None:
    """PlanRefused (unloadable) unless the ranks of a side together hold all of each field of its page."""
    for axes, field in {tuple(sorted(leaf.axes)): leaf.field for leaf in leaves(page.tree)}.items():
        begins = {name: origins_of(where, name, page.axes[name], page.block, parallel) for name in axes}
        dealt = {name: each for name, each in begins.items() if len(set(each)) > 1}
        found, needed = len(set(zip(*dealt.values(), strict=True))), prod(len(set(each)) for each in dealt.values())
        if dealt and found != needed:
            raise PlanRefused(
                problem(
                    "KVL207",
                    where,
                    f"no rank of the {side} holds some of field '{field}'",
                    expected="each share of one axis together with each share of the other",
                    got=f"{found} different shares on {parallel.stage_ranks} ranks, of axes {', '.join(dealt)}",
                ),
                unloadable=True,
            )


def _family(axes: tuple[str, ...], fields: tuple[_Field, ...], src_ranks: int, dst_ranks: int) -> _Family:
    src_origins = [tuple(share.origins[rank] for share in fields[0].src) for rank in range(src_ranks)]
    dst_origins = [tuple(share.origins[rank] for share in fields[0].dst) for rank in range(dst_ranks)]
    classes: dict[Origins, list[int]] = {}
    for rank, begin in enumerate(src_origins):
        classes.setdefault(begin, []).append(rank)
    holders = {begin: tuple(ranks) for begin, ranks in classes.items()}
    begins = tuple(tuple(sorted(set(share.origins))) for share in fields[0].src)
    return _Family(axes, fields, tuple(dst_origins), holders, begins)
