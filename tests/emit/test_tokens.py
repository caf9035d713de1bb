"""Token intervals, cut out of loops: against all steps looked at one by one, and against the interpreter."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import kvlayout
from kvlayout import Engine
from kvlayout.algebra.nests import Nest, runs
from kvlayout.emit.interpret import interpret
from kvlayout.emit.tokens import _cut
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import spec_of_format

COUNTS = st.integers(1, 5)


@given(st.lists(st.tuples(COUNTS, st.integers(1, 9)), max_size=4), st.integers(-3, 9), st.integers(-5, 60), st.data())
def test_a_cut_keeps_the_steps_of_the_interval(
    loops: list[tuple[int, int]], first: int, lo: int, data: st.DataObject
) -> None:
    """Weights may nest, repeat or overlap. Source and destination count steps, so that each shows up by itself."""
    hi = lo + data.draw(st.integers(0, 40))
    ordered = sorted(loops, key=lambda loop: -loop[1])
    strided, stride = [], 1
    for count, weight in reversed(ordered):
        strided.insert(0, (count, 3 * stride, stride, weight))
        stride *= count
    expected = sorted(
        sum(i * loop[2] for i, loop in zip(index, strided, strict=True))
        for index in product(*(range(loop[0]) for loop in strided))
        if lo <= first + sum(i * loop[3] for i, loop in zip(index, strided, strict=True)) < hi
    )
    parts = list(_cut(0, 0, first, strided, lo, hi))
    found = [(a, b) for src, dst, kept in parts for a, b, _ in runs(Nest(src, dst, 1, tuple(kept)))]
    assert sorted(b for _, b in found) == expected
    assert all(a == 3 * b for a, b in found)


def test_context_parallel_ranks_take_their_tokens() -> None:
    """Each of four destination ranks holds every fourth pair of tokens; each moves those of the interval that are its
    own, from pages that two ranks hold in runs of four."""
    spec = spec_of_format(
        find_format("mla", None, "test"), {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}, "t"
    )
    src = Engine(tp=2, dcp=2, interleave=4, block=16)
    dst = Engine(tp=4, dcp=4, interleave=2, block=8)
    plan = kvlayout.slice_for_tp_transfer(spec, src, dst)
    (group,) = plan.groups
    rng = np.random.default_rng(0)
    sources = {rank: rng.integers(1, 256, (6, group.src.nbytes), np.uint8) for rank in (0, 1)}
    src_ids, dst_ids = [4, 0, 5, 2], [1, 3, 0, 5]
    for rank in range(4):
        kernel = kvlayout.kernel(plan, "cache", dst_rank=rank)
        for tokens in ((0, 64), (3, 61), (17, 18), (30, 41), (64, 100), (5, 5)):
            held, wanted = (np.zeros((6, group.dst.nbytes), np.uint8) for _ in range(2))
            kernel(sources, held, src_ids, dst_ids, tokens=tokens)
            interpret(plan, "cache", rank, sources, wanted, src_ids, dst_ids, tokens)
            assert np.array_equal(held, wanted), (rank, tokens)
