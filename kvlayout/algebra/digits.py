"""Mixed-radix digits: how a coordinate of one axis becomes a byte offset.

A digit stands for one array level of a page. `coordinate = sum(weight * value)` and `offset = sum(stride * value)`,
each value in [0, size). Paths, blocks, context-parallel interleave, swizzles and vectorised interiors are all
digits, which is why there is no other kind of address in this project. An axis may have gaps (a context-parallel rank
holds every other run of tokens): then the weights jump further than the digits below them reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Digit", "dense", "reach", "spread"]


class Digit(NamedTuple):
    """`weight`: axis units per step; `size`: how many values; `stride`: bytes per step."""

    weight: int
    size: int
    stride: int


def reach(digits: Sequence[Digit]) -> int:
    """One more than the greatest coordinate that the digits can form.

    >>> reach([Digit(4, 3, 0), Digit(1, 2, 0)])
    10
    """
    return 1 + sum((digit.size - 1) * digit.weight for digit in digits)


def dense(digits: Sequence[Digit], extent: int) -> bool:
    """Whether the digits, outermost first, form each coordinate of [0, extent) exactly once.

    >>> dense([Digit(4, 3, 0), Digit(1, 4, 0)], 12)
    True
    >>> dense([Digit(4, 3, 0), Digit(1, 2, 0)], 10)
    False
    """
    unit = 1
    for digit in reversed(digits):
        if digit.weight != unit:
            return False
        unit *= digit.size
    return unit == extent


def spread(digits: Sequence[Digit], run: int, ways: int) -> list[Digit]:
    """The digits of an axis whose runs of `run` units are dealt out to `ways` holders in turn.

    Local unit `t` of one holder becomes `(t // run) * run * ways + t % run`, counted from the holder's first unit. A
    digit that straddles the border of a run is split there. ValueError when a digit's weight and the run do not nest,
    since the holder's units are then no digits at all.

    >>> spread([Digit(1, 8, 32)], 2, 4)
    [Digit(weight=8, size=4, stride=64), Digit(weight=1, size=2, stride=32)]
    """
    if ways == 1:
        return list(digits)
    out: list[Digit] = []
    for weight, size, stride in digits:
        if weight >= run:
            if weight % run:
                raise ValueError(f"an interleave of {run} does not nest with a digit of weight {weight}")
            out.append(Digit(weight * ways, size, stride))
        elif weight * size <= run:
            out.append(Digit(weight, size, stride))
        else:
            inner = run // weight
            if run % weight or size % inner:
                raise ValueError(f"an interleave of {run} does not nest with {size} digits of weight {weight}")
            out.append(Digit(run * ways, size // inner, stride * inner))
            if inner > 1:
                out.append(Digit(weight, inner, stride))
    return out
