"""Nests: a move of equal runs, written as loops over byte strides.

A nest says: for every index vector of its loops, copy `nbytes` bytes from `src + sum(i * src_stride)` to
`dst + sum(i * dst_stride)`. Its canonical form has no loop of count 1, is sorted by destination stride (outermost
first) and is folded from inside: a loop that continues the run, or the loop below it, on both sides is absorbed. It
is unique for a set of byte moves whose destination strides are nested (each larger than all that smaller strides and
the run reach), as those of a page tree are; so equal plans have equal digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

__all__ = ["Loop", "Nest", "fold", "run_count", "runs"]

Loop = tuple[int, int, int]
"""`(count, src_stride, dst_stride)`, strides in bytes."""


class Nest(NamedTuple):
    """`src`, `dst`: byte offsets of the first run; `nbytes`: bytes of each run; `loops`: outermost first."""

    src: int
    dst: int
    nbytes: int
    loops: tuple[Loop, ...]


def fold(src: int, dst: int, nbytes: int, loops: Iterable[Loop]) -> Nest:
    """The canonical nest of the same byte moves.

    >>> fold(0, 64, 4, [(2, 32, 32), (8, 4, 4)])
    Nest(src=0, dst=64, nbytes=64, loops=())
    >>> fold(0, 0, 4, [(8, 4, 16), (2, 32, 4)])
    Nest(src=0, dst=0, nbytes=4, loops=((8, 4, 16), (2, 32, 4)))
    """
    kept: list[Loop] = []  # innermost first
    for count, ss, ds in sorted((loop for loop in loops if loop[0] != 1), key=lambda loop: loop[2]):
        if kept:
            c, s, d = kept[-1]
            if ss == c * s and ds == c * d:
                kept[-1] = (c * count, s, d)
                continue
        elif ss == nbytes and ds == nbytes:
            nbytes *= count
            continue
        kept.append((count, ss, ds))
    return Nest(src, dst, nbytes, tuple(reversed(kept)))


def run_count(nest: Nest) -> int:
    """How many runs the nest has."""
    total = 1
    for count, _, _ in nest.loops:
        total *= count
    return total


def runs(nest: Nest) -> Iterator[tuple[int, int, int]]:
    """Every run as `(src, dst, nbytes)`, in loop order. For oracles and small cases; costs the number of runs."""
    for index in product(*(range(count) for count, _, _ in nest.loops)):
        yield (
            nest.src + sum(i * loop[1] for i, loop in zip(index, nest.loops, strict=True)),
            nest.dst + sum(i * loop[2] for i, loop in zip(index, nest.loops, strict=True)),
            nest.nbytes,
        )
