"""One axis, two sides: cut what both hold into parts on which both addresses are affine in the same loops.

Each side forms its coordinates from digits. A loop over a coordinate interval is a loop over bytes only while no
digit of either side carries; so the interval is cut, from the outermost digit inwards, into a head, a body of equal
units and a tail, and the body is one loop around the cut of its first unit. The number of parts is that of the
misaligned ends, not of the units: 16 tokens against 16 interleaved tokens are one part, 12-token blocks against
16-token blocks are cut at each border, because there no loop is equal on both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from kvlayout.algebra.digits import Digit, reach
from kvlayout.algebra.nests import Loop

__all__ = ["MAX_PARTS", "Part", "TooManyParts", "Work", "align"]

MAX_PARTS = 20_000
"""Parts of one interval. The checker looks at no more boxes of a field, so that a plan above it would not be proved."""


class TooManyParts(Exception):
    """The digits of the two sides share so few loops that there are more than `MAX_PARTS` parts, or cuts to try."""


class Work:
    """How many cuts may still be tried. One is kept for many calls: it bounds time, as `MAX_PARTS` bounds room."""

    def __init__(self, cuts: int) -> None:
        self.left = cuts

    def spend(self) -> None:
        """Count one cut; TooManyParts when there were enough."""
        self.left -= 1
        if self.left < 0:
            raise TooManyParts


class Part(NamedTuple):
    """`units` coordinates of an axis that move by `loops` from byte `src` to byte `dst`, both relative to the leaf."""

    src: int
    dst: int
    loops: tuple[Loop, ...]
    units: int


def align(
    src: Sequence[Digit],
    src_base: int,
    dst: Sequence[Digit],
    dst_base: int,
    lo: int,
    hi: int,
    work: Work | None = None,
) -> list[Part]:
    """The parts of [lo, hi) that both sides hold. Raises TooManyParts, before they take time or memory.

    `src_base`, `dst_base`: the coordinate at which all digits of that side are 0. Digits are outermost first.

    >>> align([Digit(1, 4, 8)], 0, [Digit(1, 4, 32)], 2, 0, 9)
    [Part(src=16, dst=0, loops=((2, 8, 32),), units=2)]
    >>> align([Digit(2, 4, 8)], 1, [Digit(1, 8, 8)], 0, 0, 8)
    [Part(src=0, dst=8, loops=((4, 8, 16),), units=4)]
    """
    parts: list[Part] = []
    _align(tuple(src), src_base, 0, tuple(dst), dst_base, 0, lo, hi, parts, work or Work(MAX_PARTS * 10))
    return parts


def _align(
    src: tuple[Digit, ...],
    src_base: int,
    src_at: int,
    dst: tuple[Digit, ...],
    dst_base: int,
    dst_at: int,
    lo: int,
    hi: int,
    parts: list[Part],
    work: Work,
) -> None:
    work.spend()
    # Enter every digit that does not vary over the interval; clip to what is left below it, since there may be gaps.
    while True:
        lo = max(lo, src_base, dst_base)
        hi = min(hi, src_base + reach(src), dst_base + reach(dst))
        if lo >= hi:
            return
        if src and (lo - src_base) // src[0].weight == (hi - 1 - src_base) // src[0].weight:
            index = (lo - src_base) // src[0].weight
            src_base, src_at, src = src_base + index * src[0].weight, src_at + index * src[0].stride, src[1:]
        elif dst and (lo - dst_base) // dst[0].weight == (hi - 1 - dst_base) // dst[0].weight:
            index = (lo - dst_base) // dst[0].weight
            dst_base, dst_at, dst = dst_base + index * dst[0].weight, dst_at + index * dst[0].stride, dst[1:]
        else:
            break
    if not src or not dst:  # an interval of one unit
        parts.append(Part(src_at, dst_at, (), 1))
        return

    src_weight, dst_weight = src[0].weight, dst[0].weight
    wide, base, below = max((src_weight, src_base, src[1:]), (dst_weight, dst_base, dst[1:]))
    period = lcm(src_weight, dst_weight)
    held = period - wide + reach(below)  # a unit may end in a gap: it is whole when all that it holds is there
    first, last = -(-(lo - base) // period), (hi - base - held) // period + 1
    if last - first < 2:
        # Not two equal units: cut at every border of the wider digit.
        period, first, last = wide, -(-(lo - base) // wide), (hi - base) // wide
        if last - first > MAX_PARTS:
            raise TooManyParts
        cuts = [lo, *(base + k * wide for k in range(first, last + 1) if lo < base + k * wide < hi), hi]
        for a, b in itertools.pairwise(cuts):
            _align(src, src_base, src_at, dst, dst_base, dst_at, a, b, parts, work)
            if len(parts) > MAX_PARTS:
                raise TooManyParts
        return
    begin, end = base + first * period, base + last * period
    _align(src, src_base, src_at, dst, dst_base, dst_at, lo, begin, parts, work)
    unit: list[Part] = []
    _align(src, src_base, src_at, dst, dst_base, dst_at, begin, begin + period, unit, work)
    count = last - first
    step = (count, src[0].stride * (period // src_weight), dst[0].stride * (period // dst_weight))
    parts.extend(Part(part.src, part.dst, (step, *part.loops), part.units * count) for part in unit)
    _align(src, src_base, src_at, dst, dst_base, dst_at, end, hi, parts, work)
