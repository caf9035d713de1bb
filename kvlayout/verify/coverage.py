"""T2 as code: is every byte of a field written exactly once?

Boxes of all pieces of a field, in the destination's own digits, against the box of all its bytes. Where a piece takes
every m-th value of a digit (context-parallel interleave), that digit is split so that steps become digits of their own;
signed corner sums do the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import prod

from kvlayout.algebra.boxes import Box as CornerBox
from kvlayout.algebra.boxes import Interval, interval_boxes, residual
from kvlayout.verify.resolve import Box
from kvlayout.verify.sides import Vector

__all__ = ["Uncovered", "first_uncovered"]

MAX_POINTS = 20_000
"""Boxes that odd steps may fall into before the checker gives up, saying so."""

MAX_CORNERS = 4_000_000
"""Corners that are summed before the checker gives up; only a forged plan cuts so many digits at once."""


class Uncovered(Exception):
    """Coverage cannot be decided; the message says why."""


def first_uncovered(
    counts: Sequence[int], owned: Iterable[CornerBox], boxes: Iterable[Box]
) -> tuple[Vector, int] | None:
    """The first cell that `boxes` do not cover exactly once, as (digits, excess), or None. Raises `Uncovered`.

    `counts`: values of each digit. `owned`: what must be covered, as boxes over the digits. `boxes`: what is written.
    """
    simple: list[Box] = []
    for box in boxes:
        simple += _along_digits(box)
        if len(simple) > MAX_POINTS:
            raise Uncovered(f"steps across several digits fall into more than {MAX_POINTS} boxes")
    multiples: list[set[int]] = [{1} for _ in counts]
    for box in simple:
        for _, step in box.loops:
            for digit, multiple in enumerate(step):
                if multiple:
                    multiples[digit].add(multiple)
    scales = [_scale(found) for found in multiples]
    pieces: list[CornerBox] = []
    for box in simple:
        per_digit = [_pieces_of_digit(box, digit, scale) for digit, scale in enumerate(scales)]
        pieces += _crossed(per_digit, len(pieces))
    wanted: list[CornerBox] = []
    for region in owned:
        parts = [interval_boxes(lo, hi, _radices(scale)) for (lo, hi), scale in zip(region, scales, strict=True)]
        wanted += _crossed(parts, len(wanted))
    live = sum(1 for intervals in zip(*pieces, *wanted, strict=True) if len(set(intervals)) > 1)
    if (len(pieces) + len(wanted)) << live > MAX_CORNERS:
        raise Uncovered(f"{len(pieces)} boxes are cut along {live} digits at once")
    found = residual(pieces, wanted)
    if found is None:
        return None
    cell, excess = iter(found[0]), found[1]
    return tuple(sum(next(cell) * weight for weight in scale) for scale in scales), excess


def _crossed(per_digit: Sequence[Sequence[tuple[Interval, ...]]], before: int) -> list[CornerBox]:
    """Every choice of one part per digit, as a box; `before` boxes are there already."""
    if before + prod(len(parts) for parts in per_digit) > MAX_POINTS:
        raise Uncovered(f"the pieces fall into more than {MAX_POINTS} boxes")
    return [tuple(interval for part in parts for interval in part) for parts in product(*per_digit)]


def _along_digits(box: Box) -> list[Box]:
    """Unroll loops that step several digits at once: their trace is no box."""
    odd = [loop for loop in box.loops if sum(1 for multiple in loop[1] if multiple) > 1]
    if not odd:
        return [box]
    if prod(count for count, _ in odd) > MAX_POINTS:
        raise Uncovered(f"steps across several digits are taken more than {MAX_POINTS} times")
    rest = tuple(loop for loop in box.loops if loop not in odd)
    starts = [box.start]
    for count, step in odd:
        starts = [tuple(v + i * m for v, m in zip(at, step, strict=True)) for at in starts for i in range(count)]
    return [Box(start, rest) for start in starts]


def _scale(multiples: Iterable[int]) -> list[int]:
    """The weights of the split digit, greatest first: the steps when they nest, else none but 1."""
    scale = sorted(multiples, reverse=True)
    nest = all(wide % narrow == 0 for wide, narrow in pairwise(scale))
    return scale if nest else [1]


def _radices(scale: list[int]) -> list[int]:
    return [wide // narrow for wide, narrow in pairwise(scale)]


def _pieces_of_digit(box: Box, digit: int, scale: list[int]) -> list[tuple[Interval, ...]]:
    """The values that a box takes in one digit, as boxes over the split digit."""
    start = box.start[digit]
    loops = [(step[digit], count) for count, step in box.loops if step[digit]]
    taken = dict(loops)
    if len(taken) == len(loops) and all(weight in scale for weight in taken):
        intervals = [
            (value, value + taken.get(weight, 1)) for value, weight in zip(_values(start, scale), scale, strict=True)
        ]
        if all(hi <= radix for (_, hi), radix in zip(intervals[1:], _radices(scale), strict=True)):
            return [tuple(intervals)]
        if len(loops) == 1:  # one loop that runs over the border of a split digit
            weight, count = loops[0]
            position = scale.index(weight)
            lower = [(value, value + 1) for value in _values(start % weight, scale[position + 1 :])]
            upper = interval_boxes(start // weight, start // weight + count, _radices(scale[: position + 1]))
            return [(*part, *lower) for part in upper]
    if prod(count for _, count in loops) > MAX_POINTS:
        raise Uncovered("steps of one digit that do not nest take too many values to be listed")
    points = (start + sum(steps) for steps in product(*(range(0, w * n, w) for w, n in loops)))
    return [tuple((value, value + 1) for value in _values(point, scale)) for point in points]


def _values(number: int, scale: Sequence[int]) -> list[int]:
    values = []
    for weight in scale:
        value, number = divmod(number, weight)
        values.append(value)
    return values
