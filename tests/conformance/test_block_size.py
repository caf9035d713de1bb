"""Block sizes that differ: vLLM's own answers where it gives one, and plans where it refuses.

vLLM copies raw runs and rearranges the received blocks afterwards; a plan moves each byte to its place at once. So the
final blocks are compared, and not the runs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from oracles.parts import Ints
from oracles.positions import expected_page, replay

from .harness import Pair, SourcePages, assert_right, plan, records

CASES = records("block_size.jsonl")
ANSWERED = [case for case in CASES if "raw_runs" in case]
REFUSED = [case for case in CASES if "refused" in case]
ELEMENT = 2


def pair_of(case: dict[str, Any]) -> Pair:
    src = {"tp": case["p_tp"], "block": case["p_block_tokens"], "order": case["p_layout"]}
    dst = {"tp": case["d_tp"], "block": case["d_block_tokens"], "order": case["d_layout"]}
    if case["is_mla"]:
        params = {"kv_lora_rank": case["head_size"] - 2, "qk_rope_head_dim": 2, "dtype": "bfloat16"}
        return Pair("mla", params, src, dst)
    params = {"num_kv_heads": case["num_kv_heads"], "head_size": case["head_size"], "dtype": "bfloat16"}
    return Pair("gqa", params, src, dst)


def rearranged(blocks: Ints, case: dict[str, Any]) -> Ints:
    """What vLLM does to received blocks: merge `ratio` tiles of [head, token] into one, turn [head, token], or both."""
    kind, ratio, tokens = case["post_process"], case["ratio"], case["d_block_tokens"]
    if kind == "none" or case["p_layout"] == case["d_layout"] == "LBNHC":
        return blocks  # tiles of [token, head] already lie one after the other
    heads = 1 if case["is_mla"] else max(1, case["num_kv_heads"] // case["d_tp"])
    content = case["head_size"] * ELEMENT * (1 if case["is_mla"] else 2)
    tiles = blocks.reshape(len(blocks), ratio, heads, tokens // ratio, content)
    axes = (0, 2, 1, 3, 4) if kind == "blocksize" else (0, 1, 3, 2, 4)
    return tiles.transpose(axes).reshape(blocks.shape)


def test_the_file_is_whole() -> None:
    assert (len(ANSWERED), len(REFUSED)) == (32, 38)
    kinds = Counter(case["post_process"] for case in ANSWERED)
    assert set(kinds) == {"none", "blocksize", "permute_layout", "permute_layout_and_blocksize"}
    assert {case["ratio"] for case in ANSWERED} == {1, 2, 4}


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: case["id"])
def test_where_vllm_converts_the_blocks_are_the_same(case: dict[str, Any]) -> None:
    """Also with a number of source blocks that does not fill the last destination block: its tail stays unwritten."""
    pair = pair_of(case)
    found = assert_right(pair)
    group = found.group("cache")
    src_blocks = case["n_src_blocks"]
    dst_blocks = -(-src_blocks * case["p_block_tokens"] // case["d_block_tokens"])
    sources = SourcePages(pair.format, pair.params, pair.src, src_blocks)
    assert len(case["raw_runs"]) == case["d_tp"]
    for rank, raw in enumerate(case["raw_runs"]):
        expected = expected_page(
            pair.format, pair.params, pair.src, pair.dst, rank, src_blocks=src_blocks, dst_blocks=dst_blocks
        )
        template = found.runs("cache", rank)
        ours = [
            [run[0], run[1] + n * group.src_blocks, run[2], run[3] + n * group.dst_blocks, run[4], run[5]]
            for n in range(-(-src_blocks // group.src_blocks))
            for run in template.tolist()
            if run[1] + n * group.src_blocks < src_blocks
        ]
        assert (replay(ours, sources, expected.shape) == expected).all()
        assert (rearranged(replay(raw, sources, expected.shape), case) == expected).all()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_where_vllm_refuses_a_plan_converts(case: dict[str, Any]) -> None:
    pair = pair_of(case)
    assert_right(pair)
    assert_right(pair.back)


@pytest.mark.parametrize("tokens", [(16, 64), (544, 144), (48, 32), (1, 7)])
def test_the_common_refinement_of_two_block_sizes(tokens: tuple[int, int]) -> None:
    """Blocks need not divide each other: 9 blocks of 544 tokens are 34 of 144."""
    src, dst = tokens
    span = int(np.lcm(src, dst))
    params = {"num_kv_heads": 2, "head_size": 1, "dtype": "float8_e4m3"}
    for order in ("LBHNC", "LBNHC"):
        pair = Pair("gqa", params, {"tp": 2, "block": src, "order": order}, {"tp": 1, "block": dst})
        group = assert_right(pair).group("cache")
        assert (group.src_blocks, group.dst_blocks) == (span // src, span // dst)


def test_a_state_page_moves_whole_at_any_block_size() -> None:
    params = {"num_heads": 4, "head_dim": 2, "dtype": "bfloat16"}
    group = plan(Pair("linear", params, {"tp": 1}, {"tp": 2})).group("cache")
    assert (group.src_blocks, group.dst_blocks) == (1, 1)
