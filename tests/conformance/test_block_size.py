"""Block sizes that differ: vLLM's own answers where it gives one, and plans where it refuses.

vLLM copies raw runs and rearranges the received blocks afterwards; a plan moves each byte to its place at once. So the
final blocks are compared, and not the runs.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from oracles.parts import Ints
from oracles.positions import expected_page, replay

from .harness import Pair, SourcePages, assert_right, plan, records, templates

if TYPE_CHECKING:
    from comparisons import Tally

CASES = records("block_size.jsonl")
ANSWERED = [case for case in CASES if "expected" in case]
REFUSED = [case for case in CASES if "refused" in case]
ELEMENT = 2
REASONS = {
    "AssertionError: Local block size": 115,
    "AssertionError: Different local/remote block sizes": 19,
    "AssertionError:": 35,
    "RuntimeError: Heterogeneous TP expects same kv_cache_layout": 124,
    "RuntimeError: Heterogeneous TP head-dimension split": 31,
}
"""Why vLLM refuses, by how its message begins: sizes that do not divide, a split with unequal sizes or of a replicated
peer (no message), unequal orders, heads inside tokens."""


def pair_of(case: dict[str, Any]) -> Pair:
    words = case["inputs"]
    src = {"tp": words["p_tp"], "block": words["p_block_tokens"], "order": words["p_layout"]}
    dst = {"tp": words["d_tp"], "block": words["d_block_tokens"], "order": words["d_layout"]}
    if words["is_mla"]:
        params = {"kv_lora_rank": words["head_size"] - 2, "qk_rope_head_dim": 2, "dtype": "bfloat16"}
        return Pair("mla", params, src, dst)
    params = {"num_kv_heads": words["num_kv_heads"], "head_size": words["head_size"], "dtype": "bfloat16"}
    return Pair("gqa", params, src, dst)


@lru_cache(maxsize=1)
def distinct() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """One case of each pair with the ids of all that ask for it; cases of one pair differ in the number of blocks."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for case in CASES:
        found.setdefault(str(pair_of(case)), (case, []))[1].append(case["id"])
    return found


def rearranged(blocks: Ints, case: dict[str, Any]) -> Ints:
    """What vLLM does to received blocks: merge `ratio` tiles of [head, token] into one, turn [head, token], or both."""
    words, expected = case["inputs"], case["expected"]
    kind, ratio, tokens = expected["post_process"], expected["block_size_ratio"], words["d_block_tokens"]
    if kind == "none" or words["p_layout"] == words["d_layout"] == "LBNHC":
        return blocks  # tiles of [token, head] already lie one after the other
    heads = 1 if words["is_mla"] else max(1, words["num_kv_heads"] // words["d_tp"])
    content = words["head_size"] * ELEMENT * (1 if words["is_mla"] else 2)
    tiles = blocks.reshape(len(blocks), ratio, heads, tokens // ratio, content)
    axes = (0, 2, 1, 3, 4) if kind == "blocksize" else (0, 1, 3, 2, 4)
    return tiles.transpose(axes).reshape(blocks.shape)


def test_the_file_is_whole() -> None:
    assert (len(ANSWERED), len(REFUSED), len(CASES)) == (127, 324, 451)
    assert len({case["id"] for case in CASES}) == 451
    kinds = Counter(case["expected"]["post_process"] for case in ANSWERED)
    assert set(kinds) == {"none", "blocksize", "permute_layout", "permute_layout_and_blocksize"}
    assert {case["expected"]["block_size_ratio"] for case in ANSWERED} == {1, 2, 4}
    assert all(case["vllm_correct"] for case in ANSWERED)
    begins = [max((each for each in REASONS if case["refused"].startswith(each)), key=len) for case in REFUSED]
    assert Counter(begins) == REASONS


def test_where_vllm_converts_the_blocks_are_the_same(tally: Tally) -> None:
    """Also with a number of source blocks that does not fill the last destination block: its tail stays unwritten."""
    with tally("NIXL geometries compared") as compare:
        for case in ANSWERED:
            pair, words = pair_of(case), case["inputs"]
            found, src_blocks = plan(pair), words["n_src_blocks"]
            dst_blocks = -(-src_blocks * words["p_block_tokens"] // words["d_block_tokens"])
            sources = SourcePages(pair.format, pair.params, pair.src, src_blocks)
            assert [each["rank"] for each in case["expected"]["dst"]] == list(pair.ranks)
            for each in case["expected"]["dst"]:
                expected = expected_page(
                    pair.format, pair.params, pair.src, pair.dst, each["rank"],
                    src_blocks=src_blocks, dst_blocks=dst_blocks,
                )  # fmt: skip
                ours = replay(templates(found, "cache", each["rank"], src_blocks), sources, expected.shape)
                theirs = rearranged(replay(each["raw_runs"], sources, expected.shape), case)
                assert (theirs == expected).all(), case["id"]
                compare(ours.tobytes(), theirs.tobytes(), f"{case['id']}, rank {each['rank']}")


def test_every_case_converts_and_back() -> None:
    """All 451 in both directions, byte for byte: ratio and order are no reason to refuse, on neither side."""
    cases = distinct()
    assert sum(len(ids) for _, ids in cases.values()) == 451
    for case, _ in cases.values():
        pair = pair_of(case)
        assert_right(pair)
        assert_right(pair.back)


@pytest.mark.parametrize("tokens", [(16, 64), (544, 144), (48, 32), (1, 7), (12, 16)])
def test_the_common_refinement_of_two_block_sizes(tokens: tuple[int, int]) -> None:
    """Blocks need not divide each other: 9 blocks of 544 tokens are 34 of 144."""
    src, dst = tokens
    span = int(np.lcm(src, dst))
    params = {"num_kv_heads": 2, "head_size": 1, "dtype": "float8_e4m3"}
    for order in ("LBHNC", "LBNHC"):
        pair = Pair("gqa", params, {"tp": 2, "block": src, "order": order}, {"tp": 1, "block": dst})
        for each in (pair, pair.back):
            there = [side["block"] for side in (each.src, each.dst)]
            group = assert_right(each).group("cache")
            assert [group.src_blocks, group.dst_blocks] == [span // block for block in there]


@pytest.mark.parametrize(("order", "runs"), [("HND", 8), ("NHD", 1)])
def test_sixteen_tokens_into_sixty_four(order: str, runs: int) -> None:
    """Head h, token t of a page of 64 is head h, token t % 16 of block t // 16: eight runs of a block, or all of it."""
    params = {"num_kv_heads": 8, "head_size": 4, "dtype": "bfloat16"}
    pair = Pair("gqa", params, {"block": 16, "order": order}, {"block": 64, "order": order})
    nbytes = 8 * 16 * 16 // runs
    wanted = [
        [0, block, head * nbytes, 0, (head * 64 + block * 16) * 16 if runs == 8 else block * nbytes, nbytes]
        for block in range(4)
        for head in range(runs)
    ]
    assert sorted(assert_right(pair).runs("cache", 0).tolist()) == sorted(wanted)
    back = [[0, dst, to, src, at, nbytes] for _, src, at, dst, to, nbytes in wanted]
    assert sorted(assert_right(pair.back).runs("cache", 0).tolist()) == sorted(back)


def test_a_state_page_moves_whole_at_any_block_size() -> None:
    params = {"num_heads": 4, "head_dim": 2, "dtype": "bfloat16"}
    group = plan(Pair("linear", params, {"tp": 1}, {"tp": 2})).group("cache")
    assert (group.src_blocks, group.dst_blocks) == (1, 1)
