"""Kernel blocks inside manager blocks: a manager's page is a row of pages of the kernel's block.

The oracle knows no kernel blocks. It fills pages of the kernel's block with ids, and so many of them, end to end, are
a manager's page: that is how vLLM makes kernel block ids `b * K ... b * K + K - 1` of a block `b`.
"""

from __future__ import annotations

from typing import Any

import pytest
from oracles.positions import expected_page, replay, source_page

import kvlayout
from kvlayout.errors import PlanRefused

from .harness import spec_of

GQA = {"num_kv_heads": 4, "head_size": 8, "dtype": "bfloat16"}
PLANES = {**GQA, "kv_packing": "planes"}
NVFP4 = {"num_kv_heads": 4, "head_size": 64}
SWIZZLED = {**NVFP4, "scale_layout": "sm100"}
MLA = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "dtype": "bfloat16"}
INDEXER = {"head_dim": 128}

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("gqa", GQA, {"tp": 2, "block": 64, "kernel_block": 16}, {"tp": 4, "block": 64}),
    ("gqa", GQA, {"tp": 4, "block": 64}, {"tp": 2, "block": 48, "kernel_block": 16}),
    ("gqa", GQA, {"tp": 1, "block": 544, "kernel_block": 32}, {"tp": 2, "block": 144, "kernel_block": 16}),
    (
        "gqa",
        GQA,
        {"tp": 8, "block": 64, "kernel_block": 16, "order": "NHD"},
        {"tp": 2, "block": 64, "kernel_block": 32},
    ),
    ("gqa", PLANES, {"tp": 2, "block": 64, "kernel_block": 16}, {"tp": 4, "block": 32, "kernel_block": 32}),
    ("nvfp4", NVFP4, {"tp": 2, "block": 64, "kernel_block": 16}, {"tp": 4, "block": 64}),
    ("nvfp4", NVFP4, {"tp": 4, "block": 64, "kernel_block": 32}, {"tp": 1, "block": 96, "kernel_block": 16}),
    ("nvfp4", SWIZZLED, {"tp": 2, "block": 64, "kernel_block": 16}, {"tp": 4, "block": 64, "kernel_block": 4}),
    ("mla", MLA, {"tp": 2, "block": 64, "kernel_block": 16}, {"tp": 4, "block": 64}),
    ("mla", MLA, {"tp": 4, "dcp": 2, "interleave": 8, "block": 64, "kernel_block": 16}, {"tp": 1, "block": 64}),
    ("indexer_fp8", INDEXER, {"tp": 1, "block": 256, "kernel_block": 64}, {"tp": 2, "block": 192, "kernel_block": 64}),
]


def tiled(words: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The words of an engine whose block is the kernel's, and how many of these make a block."""
    words = dict(words)
    kernel_block = words.pop("kernel_block", words["block"])
    return {**words, "block": kernel_block}, words["block"] // kernel_block


@pytest.mark.parametrize(("format", "params", "src", "dst"), CASES)
def test_a_managers_page_is_a_row_of_kernel_pages(
    format: str, params: dict[str, Any], src: dict[str, Any], dst: dict[str, Any]
) -> None:
    for here, there in ((src, dst), (dst, src)):
        plan = kvlayout.slice_for_tp_transfer(
            spec_of(format, params), kvlayout.Engine(**here), kvlayout.Engine(**there)
        )
        group = plan.group("cache")
        # Context-parallel tokens are dealt out over the block, not over its tiles: the oracle's own block does that.
        if here.get("dcp", 1) > 1 or there.get("dcp", 1) > 1:
            here = {word: value for word, value in here.items() if word != "kernel_block"}
            there = {word: value for word, value in there.items() if word != "kernel_block"}
        (here, here_tiles), (there, there_tiles) = tiled(here), tiled(there)
        blocks, wanted = group.src_blocks * here_tiles, group.dst_blocks * there_tiles
        ranks = range(here.get("tp", 1) * here.get("pcp", 1))
        sources = {
            rank: source_page(format, params, here, rank, blocks=blocks).reshape(group.src_blocks, -1) for rank in ranks
        }
        for rank in range(there.get("tp", 1)):
            expected = expected_page(format, params, here, there, rank, src_blocks=blocks, dst_blocks=wanted)
            expected = expected.reshape(group.dst_blocks, -1)
            assert (replay(plan.runs("cache", rank), sources, expected.shape) == expected).all()


def test_tiles_with_tokens_outside_are_the_page_itself() -> None:
    spec = spec_of("gqa", GQA)
    (cache,) = spec.groups
    for order, same in (("NHD", True), ("HND", False)):
        whole, tiles = (
            spec.page(cache, kvlayout.Engine(order=order, block=64, kernel_block=size)) for size in (None, 16)
        )
        assert (whole == tiles) is same and whole.nbytes == tiles.nbytes


@pytest.mark.parametrize(
    ("format", "params", "words"),
    [
        ("gqa", GQA, {"block": 64, "kernel_block": 48}),
        ("gqa", GQA, {"block": 64, "kernel_block": 128}),
        ("gqa", GQA, {"block": 64, "kernel_block": 16, "page": 16384}),
        ("nvfp4", SWIZZLED, {"block": 64, "kernel_block": 2}),
    ],
)
def test_what_is_no_row_of_tiles_is_unloadable(format: str, params: dict[str, Any], words: dict[str, Any]) -> None:
    spec = spec_of(format, params)
    with pytest.raises(PlanRefused) as caught:
        spec.page(spec.groups[0], kvlayout.Engine(**words))
    assert caught.value.unloadable
    assert caught.value.problems[0].code == ("KVL211" if format == "nvfp4" else "KVL208")


def test_a_state_page_has_no_tiles() -> None:
    spec = spec_of("linear", {"num_heads": 4, "head_dim": 8, "dtype": "float32"})
    plain, tiles = (spec.page(spec.groups[0], kvlayout.Engine(block=64, kernel_block=size)) for size in (None, 48))
    assert plain is tiles
