"""What a kernel reads: tables of 64-bit words that say where bytes come from and go to.

A *unit* is one template of one layer: units are counted through all templates of the first layer, then the next. A
*row* is one nest; every unit executes every row. A *base* is (address, page stride) of one buffer of one layer. A
*job* is all that one call of a kernel needs. Kernels are specialised on shapes only; every number stands here.

Deep rows end with their outer loops, outermost last, as (count, source step, destination step).

Where a job's runs are described and not copied, `out` is the address of words that say where the next descriptor of
each side goes, and where the last one ended: a run that goes on there on both sides makes it longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.nests import Nest
from kvlayout.emit.target import LINE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "DESCRIBING", "JOB", "LANES", "OUT", "ROW", "SHAPES", "Move", "Shape", "Table", "depth_of", "rows_of", "shape_of",
    "table",
]  # fmt: skip

JOB = ("rows", "rows_end", "row_bytes", "src_bases", "src_slots", "dst_bases", "dst_slots", "src_ids", "src_blocks",
       "dst_ids", "dst_blocks", "templates", "out")  # fmt: skip
OUT = ("src_row", "dst_row", "src_end", "dst_end", "src_device", "dst_device")
ROW = ("src_slot", "src_block", "src_offset", "dst_slot", "dst_block", "dst_offset", "nbytes", "count", "src_step",
       "dst_step", "outer", "outer_src_step", "outer_dst_step", "rounds", "loops")  # fmt: skip

LANES = 8
"""Units that a streaming kernel moves side by side. One page alone keeps too few memory banks busy: with eight,
scattered pages move as fast as one contiguous copy."""

UNITS = (1, 2, 4, 8, 16, 32)
SHORT = 4096
"""Runs from here on are worth a call of memcpy, and unaligned ones a streaming store."""


class Move(NamedTuple):
    """A nest between a block of a source slot and a block of a destination slot; a slot is a buffer of a rank."""

    src_slot: int
    src_block: int
    dst_slot: int
    dst_block: int
    nest: Nest


class Table(NamedTuple):
    """64-bit words in memory: where they begin, how many entries and bytes of each entry, and what keeps them alive."""

    address: int
    entries: int
    nbytes: int
    owner: object


def table(words: NDArray[np.int64]) -> Table:
    """A contiguous array as a table; its first axis counts entries."""
    return Table(words.__array_interface__["data"][0], len(words), words.strides[0], words)


class Shape(NamedTuple):
    """What a kernel is specialised on. `depth`: 1, 2 or `deep`. `run`: how a run is copied, or `describe`."""

    depth: str
    run: str

    @property
    def name(self) -> str:
        """A name for files and messages."""
        return f"{self.run}_{self.depth}"

    @property
    def streams(self) -> bool:
        """Whether it stores past the caches."""
        return self.run in ("stream", "ragged")


SHAPES = tuple(
    Shape(depth, run)
    for run in (*(f"unit{nbytes}" for nbytes in UNITS), "small", "lines", "memcpy", "stream", "ragged")
    for depth in ("1", "2", "deep")
)
"""Every shape that copies."""

DESCRIBING = tuple(Shape(depth, "describe") for depth in ("1", "2", "deep"))
"""Every shape that writes down where its runs are."""


def depth_of(move: Move) -> str:
    """How many loops a kernel has for a move."""
    return "1" if len(move.nest.loops) < 2 else "2" if len(move.nest.loops) == 2 else "deep"


def shape_of(move: Move, *, streaming: bool, aligned: bool) -> Shape:
    """The shape of a move. `streaming`: stores should go past the caches; `aligned`: every destination page begins at a
    cache line."""
    nest, depth = move.nest, depth_of(move)
    lines = aligned and not any(n % LINE for n in (nest.dst, nest.nbytes, *(loop[2] for loop in nest.loops)))
    if streaming and lines:
        return Shape(depth, "stream")
    if streaming and nest.nbytes >= SHORT:
        return Shape(depth, "ragged")
    if nest.nbytes in UNITS:
        return Shape(depth, f"unit{nest.nbytes}")
    if nest.nbytes < LINE:
        return Shape(depth, "small")
    return Shape(depth, "lines" if nest.nbytes < SHORT else "memcpy")


def rows_of(moves: Sequence[Move]) -> NDArray[np.int64]:
    """int64 (moves, words): the rows of moves of one shape."""
    import numpy as np

    deep = max((len(move.nest.loops) - 2 for move in moves), default=0)
    rows = np.zeros((len(moves), len(ROW) + 3 * max(0, deep)), np.int64)
    for row, move in zip(rows, moves, strict=True):
        nest = move.nest
        inner, above, *others = [*reversed(nest.loops), (1, 0, 0), (1, 0, 0)][: max(2, len(nest.loops))]
        words = [
            move.src_slot, move.src_block, nest.src, move.dst_slot, move.dst_block, nest.dst, nest.nbytes,
            *inner, *above, prod(loop[0] for loop in others), len(others), *(word for loop in others for word in loop),
        ]  # fmt: skip
        row[: len(words)] = words
    return rows
