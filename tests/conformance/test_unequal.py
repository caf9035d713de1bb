"""Two sides that differ in more than their ranks: rows, block sizes, and dtypes, which no copy of bytes converts."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.positions import positions, replay, shared_rows

import kvlayout
from kvlayout.testing import small

from .draws import sides
from .harness import Pair, SourcePages, assert_right, interval_runs, plan, some, tokens_of

if TYPE_CHECKING:
    from conftest import Size

One = tuple[dict[str, Any], dict[str, Any]]


@pytest.mark.parametrize("format", ["mamba2", "gdn", "kda", "short_conv"])
def test_common_rows_move_and_others_are_left(format: str, size: Size) -> None:
    """Whatever the numbers of speculative tokens: rows that both sides have move, and nothing else of a window."""
    lengths = set()

    @settings(max_examples=size(40, 1500, 8))
    @given(sides(format, 2, rows=True))
    def right(both: list[One]) -> None:
        (src, params), (dst, _) = both
        pair = Pair(format, params, src, dst)
        found = assert_right(pair, some(pair.ranks, 4))
        rows = shared_rows(format, params, src, dst)
        kernel = params["conv_kernel"] - 1
        assert rows == kernel + min(src["spec_tokens"], dst["spec_tokens"])
        sources, rank = SourcePages(format, params, src, 1), pair.ranks[-1]
        held = replay(found.runs("cache", rank), sources, (1, next(found.entries("cache")).page_bytes))[0]
        for part in positions(format, params, dst, rank).values():
            at = part.where[:, -1]
            row = part.where[:, part.coords.index("row")] if "row" in part.coords else np.zeros(len(at), np.int64)
            assert ((held[at] >= 0) == (row < rows)).all()
        lengths.add((src["spec_tokens"] > dst["spec_tokens"]) - (src["spec_tokens"] < dst["spec_tokens"]))

    right()
    assert len(lengths) >= size(3, 3, 1)


FORMATS: dict[str, dict[str, Any]] = {
    "gqa": {"num_kv_heads": 2, "head_size": 1, "dtype": "float8_e4m3"},
    "mla": {"kv_lora_rank": 1, "qk_rope_head_dim": 1, "dtype": "float8_e4m3"},
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("blocks", [(16, 64), (12, 16), (544, 144), (1056, 4176)])
def test_blocks_need_not_divide_each_other(blocks: tuple[int, int], format: str) -> None:
    """Both ways, in both orders, with another number of ranks, and cut where neither side's blocks end."""
    params = FORMATS[format]
    for (one, other), order in zip(permutations(blocks), ("HND", "NHD"), strict=True):
        pair = Pair(format, params, {"tp": 2, "block": one, "order": order}, {"tp": 1, "block": other, "order": "HND"})
        found = assert_right(pair)
        group, expected = found.group("cache"), pair.expected(0)
        assert group.src_blocks * one == group.dst_blocks * other == np.lcm(one, other)
        sources = SourcePages(format, params, pair.src, group.src_blocks)
        token = tokens_of(format, params, pair.dst, 0, group.dst_blocks)
        span = int(token.max()) + 1
        for begin, over in ((1, span - 1), (one - 1, one + 1), (span // 2, span), (other // 2, other + 1)):
            end = min(over, span)
            held = replay(interval_runs(found, "cache", 0, (begin, end)), sources, expected.shape)
            assert (held == np.where((begin <= token) & (token < end), expected, -1)).all()


STATE_DTYPES = {
    name: [word for word in words if word.endswith("dtype")]
    for name, words in small.PARAMS.items()
    if name in ("mamba1", "mamba2", "gdn", "kda", "short_conv", "linear")
}


@pytest.mark.parametrize("format", STATE_DTYPES)
@given(data=st.data())
def test_states_of_unequal_dtypes_are_refused(format: str, data: st.DataObject) -> None:
    """Also where both have as many bytes: bfloat16 is no float16. The fields are named, and both dtypes."""
    (src, params), (dst, _) = data.draw(sides(format, 2))
    word = data.draw(st.sampled_from(STATE_DTYPES[format]))
    other = data.draw(st.sampled_from([each for each in small.PARAMS[format][word] if each != params[word]]))
    with pytest.raises(kvlayout.PlanRefused) as refused:
        plan(Pair(format, params, src, dst, {**params, word: other}))
    assert not refused.value.unloadable
    assert {each.code for each in refused.value.problems} == {"KVL502"}
    assert str(params[word]) in str(refused.value) and other in str(refused.value)
