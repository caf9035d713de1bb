"""Every kernel on nests of its own shape, run by run: lengths at every border, loops of any depth, lanes that reach
over layers, and several buffers, in guarded memory."""

from __future__ import annotations

from array import array
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvlayout.algebra.nests import Loop, Nest, fold, runs
from kvlayout.emit.kernels import kernel_of
from kvlayout.emit.tables import LANES, SHAPES, SHORT, Move, Shape, rows_of, shape_of, table
from kvlayout.emit.target import LINE

from .memory import Arena

if TYPE_CHECKING:
    from conftest import Size

LENGTHS = {
    "small": [3, 5, 6, 7, 9, 15, 17, 31, 33, 47, 63],
    "lines": [64, 65, 100, 127, 128, 129, 192, 1000, SHORT - 1],
    "memcpy": [SHORT, SHORT + 1, 2 * SHORT + 17],
    "stream": [LINE * n for n in (1, 2, 3, 4, 5, 17)],
    "ragged": [SHORT, SHORT + 1, SHORT + 63, SHORT + 64, SHORT + 65, 2 * SHORT - 1],
}


def draw(shape: Shape, rng: Random) -> Move:
    """A move of a shape whose destination strides are nested, as those of every page are."""
    nbytes = rng.choice(LENGTHS.get(shape.run) or [int(shape.run.removeprefix("unit"))])
    step = LINE if shape.run == "stream" else 1
    loops: list[Loop] = []
    src_reach, dst_reach = nbytes, nbytes
    for _ in range({"1": rng.choice((0, 1)), "2": 2, "deep": rng.choice((3, 4, 5))}[shape.depth]):
        count = rng.choice((2, 3, 4) if len(loops) < 3 else (2,))
        ss, ds = src_reach + rng.randrange(1, 40), -(-(dst_reach + rng.randrange(1, 40)) // step) * step
        loops.append((count, ss, ds))
        src_reach, dst_reach = src_reach + (count - 1) * ss, dst_reach + (count - 1) * ds
    if rng.random() < 0.5:  # the source in another order
        strides = [ss for _, ss, _ in loops]
        rng.shuffle(strides)
        counts = {count for count, _, _ in loops}
        if len(counts) == 1:
            loops = [(count, ss, ds) for (count, _, ds), ss in zip(loops, strides, strict=True)]
    nest = fold(rng.randrange(50), step * rng.randrange(4), nbytes, loops)
    return Move(rng.randrange(2), rng.randrange(2), rng.randrange(2), rng.randrange(3), nest)


def reach(move: Move, side: int) -> int:
    nest = move.nest
    return (nest.src, nest.dst)[side] + nest.nbytes + sum((loop[0] - 1) * loop[1 + side] for loop in nest.loops)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_kernel_moves_the_runs_of_its_nests(shape: Shape, size: Size) -> None:
    kernel = kernel_of(shape)
    done = 0
    for seed in range(size(30, 300, quick=15)):
        rng = Random(f"{shape.name} {seed}")
        move = draw(shape, rng)
        aligned = shape.run == "stream"
        if shape_of(move, streaming=shape.streams, aligned=aligned) != shape:
            continue  # folded into another one
        arena, fill = Arena(), np.random.default_rng(seed)
        layers, templates = rng.choice([(1, 1), (1, LANES), (2, 5), (3, LANES + 1), (5, 3)])
        src_page, dst_page = reach(move, 0) + rng.randrange(3), reach(move, 1)
        gap = -dst_page % LINE if aligned else rng.randrange(3)
        src_ids, dst_ids = (np.array(rng.sample(range(n * templates + 1), n * templates)) for n in (2, 3))

        begin = 0 if aligned else rng.randrange(5)
        sources = [arena.rows(len(src_ids) + 1, src_page, gap=1, offset=rng.randrange(5)) for _ in range(2 * layers)]
        targets = [
            arena.rows(len(dst_ids) + 1, dst_page, gap=gap, offset=begin, at_end=not aligned) for _ in range(2 * layers)
        ]
        for each in (*sources, *targets):
            each[:] = fill.integers(0, 256, each.shape, np.uint8)
        wanted = [each.copy() for each in targets]
        for layer in range(layers):
            source, target = sources[2 * layer + move.src_slot], wanted[2 * layer + move.dst_slot]
            for k in range(templates):
                page, to = source[src_ids[2 * k + move.src_block]], target[dst_ids[3 * k + move.dst_block]]
                for a, b, nbytes in runs(move.nest):
                    to[b : b + nbytes] = page[a : a + nbytes]
        bases = [
            table(np.array([(p.__array_interface__["data"][0], p.strides[0]) for p in each]).reshape(layers, 2, 2))
            for each in (sources, targets)
        ]
        rows, ids = table(rows_of([move])), [table(src_ids), table(dst_ids)]
        words = array("q", (rows.address, rows.address + rows.nbytes, rows.nbytes, bases[0].address, 2,
                            bases[1].address, 2, ids[0].address, 2, ids[1].address, 3, templates))  # fmt: skip
        first = rng.choice([0, 0, 1]) if layers * templates > 1 else 0
        kernel(words.buffer_info()[0], 0, first)
        kernel(words.buffer_info()[0], first, layers * templates)
        assert all(np.array_equal(a, b) for a, b in zip(targets, wanted, strict=True)), move
        assert arena.untouched()
        arena.close()
        done += 1
    assert done >= size(15, 150, quick=7)


def test_rows_of_unlike_depth_share_a_table() -> None:
    moves = [Move(0, 0, 0, 0, Nest(0, 0, 1, tuple((2, 10**n, 10**n) for n in range(deep, 0, -1)))) for deep in (5, 3)]
    rows = rows_of(moves)
    assert rows[0, 13:].tolist() == [8, 3, 2, 1000, 1000, 2, 10**4, 10**4, 2, 10**5, 10**5]
    assert rows[1, 13:].tolist() == [2, 1, 2, 1000, 1000, *[0] * 6]
