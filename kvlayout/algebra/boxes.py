"""Boxes (half-open intervals per axis) and exactly-once coverage by signed corner sums.

Why corners: to ask whether pieces cover an owned region exactly once, cell by cell, costs the volume. The indicator
of a box is the multi-dimensional running sum of its signed corners, and running sums are injective; so two
collections of boxes cover every cell equally often exactly when their corner sums agree (theorem T2 of
`docs/theory.md`). The cost is 2**axes dictionary updates a box, whatever the box holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

__all__ = ["Box", "Interval", "interval_boxes", "residual"]

Interval = tuple[int, int]
"""`(lo, hi)`, half open."""

Box = tuple[Interval, ...]
"""One interval per axis, axes by position."""


def residual(pieces: Iterable[Box], owned: Iterable[Box]) -> tuple[tuple[int, ...], int] | None:
    """The first cell that `pieces` do not cover exactly as often as `owned` does, or None.

    Returns `(cell, excess)`: the least such cell in lexicographic order, and how often more (positive: written twice)
    or less (negative: missing) it is covered. Empty boxes are refused with ValueError, since two inverted axes would
    give the corners of a proper box.

    >>> residual([((0, 2),), ((2, 4),)], [((0, 4),)]) is None
    True
    >>> residual([((0, 2),), ((3, 4),)], [((0, 4),)])
    ((2,), -1)
    >>> residual([((0, 3),), ((2, 4),)], [((0, 4),)])
    ((2,), 1)
    """
    pieces, owned = list(pieces), list(owned)
    for box in (*pieces, *owned):
        for lo, hi in box:
            if lo >= hi:
                raise ValueError(f"empty interval [{lo}, {hi})")
    # An axis that every box spans with the same interval takes part in no decision.
    first = (*pieces, *owned)[0] if pieces or owned else ()
    live = [a for a in range(len(first)) if any(b[a] != first[a] for b in (*pieces, *owned))]
    sums: dict[tuple[int, ...], int] = {}
    for boxes, weight in ((pieces, 1), (owned, -1)):
        for box in boxes:
            for corner in product(*(((box[a][0], 1), (box[a][1], -1)) for a in live)):
                sign = weight
                for _, side in corner:
                    sign *= side
                key = tuple(c for c, _ in corner)
                sums[key] = sums.get(key, 0) + sign
    wrong = [key for key, value in sums.items() if value]
    if not wrong:
        return None
    least = min(wrong)
    cell = [lo for lo, _ in first]
    for a, value in zip(live, least, strict=True):
        cell[a] = value
    return tuple(cell), sums[least]


def interval_boxes(lo: int, hi: int, radices: Sequence[int]) -> list[Box]:
    """The interval [lo, hi) of mixed-radix numbers as disjoint boxes over their digits, outermost digit first.

    `radices` are the counts of the digits below the first, outermost first; the first digit is open.

    >>> interval_boxes(2, 7, [4])
    [((0, 1), (2, 4)), ((1, 2), (0, 3))]
    >>> interval_boxes(0, 8, [4])
    [((0, 2), (0, 4))]
    """
    if lo >= hi:
        return []
    if not radices:
        return [((lo, hi),)]
    unit = 1
    for radix in radices:
        unit *= radix
    full: Box = tuple((0, radix) for radix in radices)
    boxes: list[Box] = []
    start, stop = -(-lo // unit), hi // unit
    if start > stop:  # both ends inside one outer unit
        return [((stop, start), *rest) for rest in interval_boxes(lo % unit, hi - stop * unit, radices[1:])]
    if lo % unit:
        boxes += [((start - 1, start), *rest) for rest in interval_boxes(lo % unit, unit, radices[1:])]
    if start < stop:
        boxes.append(((start, stop), *full))
    if hi % unit:
        boxes += [((stop, stop + 1), *rest) for rest in interval_boxes(0, hi % unit, radices[1:])]
    return boxes
