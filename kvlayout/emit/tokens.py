"""A proved piece, cut down to a token interval.

The checker's resolution writes a piece as parts on which no digit carries, so that the token of a byte is affine in
the loops: `first + sum(index * weight)`. Cutting an interval out of that is one division per loop, from the greatest
weight inwards: a head, a body of whole steps, a tail. What is moved is a subset of the moves that were proved; no
address is computed that the piece does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import NoReturn

from kvlayout.algebra.nests import Nest, fold
from kvlayout.errors import SubmitError, problem
from kvlayout.ir import Parallel
from kvlayout.plan.artifact import Group, Piece
from kvlayout.verify.resolve import Fault, resolve
from kvlayout.verify.sides import SideView, paired_views

__all__ = ["TokenCutter"]

_Loop = tuple[int, int, int, int]
"""Count, source stride, destination stride, units of the growing axis per step."""


class TokenCutter:
    """Cuts the pieces of one group that a destination rank (inside its stage) receives.

    `tokens`: those of a template, over all context-parallel ranks; None for a group that has no tokens.
    """

    def __init__(self, group: Group, src: Parallel, dst: Parallel, rank: int) -> None:
        self.group, self.rank = group, rank
        self.src, self.dst = paired_views(SideView(group.src, src), SideView(group.dst, dst))
        per_block = self.dst.tokens
        self.tokens = None if per_block is None else per_block * group.dst_blocks
        self._whole = any(
            not any(self.dst.page.axes[axis].grows for axis in leaf.axes) for leaf in self.dst.leaves.values()
        )

    def cut(self, piece: Piece, lo: int, hi: int) -> list[Nest]:
        """The nests of a piece for tokens [lo, hi) of its template. SubmitError when its units cannot be cut there."""
        src, dst = self.src.address(piece.fields), self.dst.address(piece.fields)
        assert src is not None and dst is not None and self.tokens is not None
        if self._whole:
            self._refuse(piece, self.tokens)
        axis_name = dst.names[dst.block_axis]
        granule = lcm(*(side.page.axes[axis_name].granule for side in (self.src, self.dst)))
        units = dst.block_weight * self.group.dst_blocks
        bounds = []
        for token in (lo, hi):
            unit, rest = divmod(token * units, self.tokens)
            if rest or unit % granule:
                self._refuse(piece, granule * max(1, self.tokens // units))
            bounds.append(unit)
        shift = tuple(
            self.src.origin(piece.src_rank, name) - self.dst.origin(self.rank, name) for name in dst.names[:-1]
        )
        boxes = resolve(piece, src, dst, (*shift, 0))
        assert not isinstance(boxes, Fault)
        nests: list[Nest] = []
        for box in boxes:
            first = dst.logical(box.start, piece.dst_block)[dst.block_axis] + self.dst.origin(self.rank, axis_name)
            loops = [
                (count, *strides, dst.logical(steps)[dst.block_axis])
                for (count, steps), strides in zip(box.loops, box.strides, strict=True)
            ]
            moving = sorted((loop for loop in loops if loop[3]), key=lambda loop: -loop[3])
            still = [loop[:3] for loop in loops if not loop[3]]
            for src_at, dst_at, kept in _cut(*box.at, first, moving, *bounds):
                nests.append(fold(src_at, dst_at, 1, [*kept, *still]))
        return nests

    def _refuse(self, piece: Piece, step: int) -> NoReturn:
        text = f"the interval cuts through what moves as one of {'+'.join(piece.fields)}"
        where = f"group '{self.group.name}', tokens"
        raise SubmitError(problem("KVL607", where, text, expected=f"bounds that are multiples of {step} tokens"))


def _cut(
    src: int, dst: int, first: int, loops: list[_Loop], lo: int, hi: int
) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """(source, destination, loops) of the steps whose unit lies in [lo, hi)."""
    if not loops:
        if lo <= first < hi:
            yield src, dst, []
        return
    (count, ss, ds, weight), *inner = loops
    reach = sum((loop[0] - 1) * loop[3] for loop in inner)  # the last unit of a step, from its first
    # Steps that touch the interval, and of these the ones that lie in it.
    begin, end = max(0, -(-(lo - first - reach) // weight)), min(count, -(-(hi - first) // weight))
    whole_begin, whole_end = max(begin, -(-(lo - first) // weight)), min(end, (hi - 1 - first - reach) // weight + 1)
    if whole_begin < whole_end:
        body = [(whole_end - whole_begin, ss, ds), *(loop[:3] for loop in inner)]
        yield src + whole_begin * ss, dst + whole_begin * ds, body
    else:
        whole_begin = whole_end = end
    for index in (*range(begin, whole_begin), *range(whole_end, end)):
        yield from _cut(src + index * ss, dst + index * ds, first + index * weight, inner, lo, hi)
