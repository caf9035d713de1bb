"""Which blocks pair up between two context-parallel sizes, held against vLLM 0.32's own lists.

A rank's block j holds the tokens of block `j * dcp + rank` of the whole request, since ranks take whole blocks in turn.
vLLM numbers blocks by that place; a plan says the same in source rank and block inside its template.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.plan.transfer import TransferPlan

from .harness import Pair, assert_right, plan, records, templates

if TYPE_CHECKING:
    from comparisons import Tally

CASES = records("dcp_blocks.jsonl")
BLOCK = 16
MLA = {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}
SIZES = sorted({(case["inputs"]["remote_dcp"], case["inputs"]["local_dcp"]) for case in CASES})


def pair_of(remote: int, local: int) -> Pair:
    """vLLM has context parallelism over all ranks or none."""
    src, dst = ({"tp": dcp, "dcp": dcp, "interleave": BLOCK, "block": BLOCK} for dcp in (remote, local))
    return Pair("mla", MLA, src, dst)


@lru_cache
def plan_of(remote: int, local: int) -> TransferPlan:
    return plan(pair_of(remote, local))


def pairs_of(case: dict[str, Any]) -> dict[int, list[int]]:
    """Positions of the blocks that a rank takes, by source rank, in ascending order. Source and destination agree."""
    words = case["inputs"]
    remote, local, rank = words["remote_dcp"], words["local_dcp"], words["local_dcp_rank"]
    found = plan_of(remote, local)
    group, page = found.group("cache"), next(found.entries("cache", rank)).page_bytes
    wanted = range(rank, words["global_blocks"], local)[words["local_computed_blocks"] :]
    paired: dict[int, list[int]] = defaultdict(list)
    count = -(-words["global_blocks"] // (group.dst_blocks * local))
    for source, src, at, dst, to, nbytes in templates(found, "cache", rank, count * group.src_blocks):
        assert (at, to, nbytes) == (0, 0, page)  # blocks move whole
        position = dst * local + rank
        assert position == src * remote + source
        if position in wanted:
            paired[source].append(position)
    return paired


def test_the_file_is_whole() -> None:
    assert len(CASES) == len({case["id"] for case in CASES}) == 229
    assert all(case["vllm_correct"] for case in CASES)
    assert list(product((1, 2, 4, 8), repeat=2)) == SIZES


def test_the_same_blocks_pair_up(tally: Tally) -> None:
    """Also of prefixes that the destination has already; a source that gives nothing is listed with no pair."""
    with tally("NIXL geometries compared") as compare:
        for case in CASES:
            paired, answers = pairs_of(case), case["expected"]["pairs_by_remote_rank"]
            for answer in answers:
                theirs = sorted(zip(answer["local"], answer["remote"], strict=True))
                ours = [(position, position) for position in sorted(paired[answer["remote_rank"]])]
                compare(ours, theirs, f"{case['id']}, source rank {answer['remote_rank']}")
            assert sorted(chain(*paired.values())) == case["inputs"]["local_positions"]
            assert set(paired) == {answer["remote_rank"] for answer in answers}


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"dcp{sizes[0]}-dcp{sizes[1]}")
def test_bytes(sizes: tuple[int, int]) -> None:
    assert_right(pair_of(*sizes))
