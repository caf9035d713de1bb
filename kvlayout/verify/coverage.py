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
        pieces += (tuple(i for part in parts for i in part) for parts in product(*per_digit))
        if len(pieces) > MAX_POINTS:
            raise Uncovered(f"the pieces fall into more than {MAX_POINTS} boxes")
    wanted: list[CornerBox] = []
    for region in owned:
        parts = [interval_boxes(lo, hi, _radices(scale)) for (lo, hi), scale in zip(region, scales, strict=True)]
        wanted += (tuple(i for part in each for i in part) for each in product(*parts))
    found = residual(pieces, wanted)
    if found is None:
        return None
    cell, excess = iter(found[0]), found[1]
    return tuple(sum(next(cell) * weight for weight in scale) for scale in scales), excess


def _along_digits(box: Box) -> list[Box]:
    """Unroll loops that step several digits at once: their trace is no box."""
    for index, (count, step) in enumerate(box.loops):
        if sum(1 for multiple in step if multiple) > 1:
            if count > MAX_POINTS:
                raise Uncovered(f"a step across several digits is taken {count} times")
            rest = box.loops[:index] + box.loops[index + 1 :]
            starts = (tuple(v + i * m for v, m in zip(box.start, step, strict=True)) for i in range(count))
            return [simple for start in starts for simple in _along_digits(Box(start, rest))]
    return [box]


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
