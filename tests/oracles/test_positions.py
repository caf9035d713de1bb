"""Sanity of the second oracle: numbers worked out by hand, and laws over a sweep of sizes.

The state sizes, sub-block starts and row widths are those of vLLM 0.32 (MU, flashinfer.py, mla/flashmla_sparse.py,
mla/indexer.py, mla/sparse_swa.py) for public model configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from .positions import (
    FORMATS,
    Field,
    NotConvertible,
    NotLoadable,
    block_counts,
    expected_page,
    name_id,
    page_bytes,
    positions,
    replay,
    shared_rows,
    source_page,
)
from .sglang import SGLANG_STATE
from .state import STATE

BF16 = {"conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "bfloat16"}
FP32 = BF16 | {"ssm_dtype": "float32"}
FALCON_MAMBA = {"intermediate_size": 8192, "state_size": 16} | BF16
NEMOTRON_H = {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128} | FP32
GRANITE = {"num_heads": 128, "head_dim": 64, "n_groups": 1, "state_size": 128} | BF16
ZAMBA2 = {"num_heads": 112, "head_dim": 64, "n_groups": 2, "state_size": 64} | BF16
QWEN3_NEXT = {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128} | BF16
KIMI = {"num_heads": 32, "head_dim": 128} | FP32
LFM2 = {"conv_dim": 2048, "conv_kernel": 3, "conv_dtype": "bfloat16"}


def at(part: Field, **coords: int) -> int:
    """Byte offset of the atom at these global coordinates; of elements inside a head, of the first."""
    want = [coords.get(name, 0) if name in ("kdim", "vdim") else coords[name] for name in part.coords]
    (hit,) = part.where[(part.where[:, :-1] == want).all(axis=1)]
    return int(hit[-1])


def held(part: Field, axis: str) -> list[int]:
    """Global units of one axis that the rank holds."""
    return sorted(set(part.where[:, part.coords.index(axis)].tolist()))


@pytest.mark.parametrize(
    ("format", "params", "tp1", "tp8"),
    [
        ("mamba1", {"intermediate_size": 5120, "state_size": 16} | BF16, 194560, 24320),
        ("mamba1", FALCON_MAMBA, 311296, 38912),
        ("mamba2", NEMOTRON_H | {"ssm_dtype": "bfloat16"}, 2158592, 269824),
        ("mamba2", NEMOTRON_H, 4255744, 531968),
        ("mamba2", NEMOTRON_H | {"head_dim": 80}, 5316608, 664576),
        ("mamba2", GRANITE, 2147840, 269824),
        ("mamba2", {"num_heads": 24, "head_dim": 128, "n_groups": 1, "state_size": 256} | BF16, 1594368, 201984),
        ("mamba2", ZAMBA2, 962048, None),
        ("gdn", QWEN3_NEXT, 1097728, 137216),
        ("gdn", QWEN3_NEXT | {"num_v_heads": 48} | FP32, 3207168, 400896),
        ("gdn", QWEN3_NEXT | {"num_v_heads": 64} | FP32, 4268032, 533504),
        ("kda", KIMI, 2170880, 271360),
        ("linear", {"num_heads": 64, "head_dim": 128, "dtype": "float32"}, 4194304, 524288),
        ("short_conv", LFM2, 8192, 1024),
    ],
)
def test_state_bytes_per_layer(format: str, params: dict[str, Any], tp1: int, tp8: int | None) -> None:
    assert page_bytes(format, params, {}) == tp1
    if tp8 is None:
        with pytest.raises(NotLoadable):
            page_bytes(format, params, {"tp": 8})
    else:
        assert page_bytes(format, params, {"tp": 8}) == tp8


def test_gqa_content_packs_k_and_v_of_a_head_and_token() -> None:
    params = {"num_kv_heads": 8, "head_size": 192, "head_size_v": 128, "dtype": "bfloat16"}
    heads_outer = positions("gqa", params, {"tp": 2, "block": 4}, 1)
    assert at(heads_outer["k"], head=5, token=3) == (1 * 4 + 3) * 640
    assert at(heads_outer["v"], head=5, token=3) == (1 * 4 + 3) * 640 + 384
    tokens_outer = positions("gqa", params, {"tp": 2, "block": 4, "order": "NHD"}, 1)
    assert at(tokens_outer["v"], head=5, token=3) == (3 * 4 + 1) * 640 + 384
    assert page_bytes("gqa", params, {"tp": 2, "block": 4}) == 4 * 4 * 640
    assert at(heads_outer["k"], head=5, token=3, kdim=191) == (1 * 4 + 3) * 640 + 191 * 2
    assert (heads_outer["k"].atom, heads_outer["v"].atom) == (2, 2)


def test_gqa_planes() -> None:
    params = {"num_kv_heads": 2, "head_size": 8, "head_size_v": 4, "dtype": "bfloat16", "kv_packing": "planes"}
    heads_outer = positions("gqa", params, {"block": 4}, 0)
    assert at(heads_outer["k"], head=1, token=2) == (2 * 2 + 1) * 16
    assert at(heads_outer["v"], head=1, token=2) == 4 * 2 * 16 + (2 * 2 + 1) * 8
    tokens_outer = positions("gqa", params, {"block": 4, "order": "LBNHC"}, 0)
    assert at(tokens_outer["k"], head=1, token=2) == 2 * 48 + 16
    assert at(tokens_outer["v"], head=1, token=2) == 2 * 48 + 32 + 8


@pytest.mark.parametrize(("bits", "record"), [("int8", 136), ("fp8", 136), ("int4", 72)])
def test_per_token_head_records(bits: str, record: int) -> None:
    format, params = f"gqa_{bits}_per_token_head", {"num_kv_heads": 2, "head_size": 64}
    fields = positions(format, params, {}, 0)
    assert page_bytes(format, params, {}) == 2 * 16 * record
    assert [at(fields[f], head=1, token=0) - 16 * record for f in ("k_data", "k_scale", "v_data", "v_scale")] == [
        0, record // 2 - 4, record // 2, record - 4,
    ]  # fmt: skip


def test_cpu_planes() -> None:
    """Elements of head 1 worked out by hand from the kernels' two formulas, in a page of 32 tokens."""
    params = {"num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16"}
    plane, head = 32 * 64 * 2, 32 * 64 * 4
    vec = positions("gqa_cpu_vec", params, {"block": 32}, 0)
    assert at(vec["k"], head=1, token=21, kdim=5) == head + (5 * 32 + 21) * 2
    assert at(vec["v"], head=1, token=21, vdim=5) == head + plane + (21 * 64 + 5) * 2
    amx = positions("gqa_cpu_amx", params, {"block": 32}, 0)
    assert at(amx["k"], head=1, token=21, kdim=5) == head + (1024 + 2 * 32 + 5 * 2 + 1) * 2
    assert at(amx["v"], head=1, token=21, vdim=37) == head + plane + (2 * 512 + 10 * 32 + 5 * 2 + 1) * 2
    assert page_bytes("gqa_cpu_amx", params, {"block": 32}) == page_bytes("gqa_cpu_vec", params, {"block": 32}) == 16384
    second = positions("gqa_cpu_amx", params, {"tp": 2, "block": 32}, 1)
    assert at(second["v"], head=1, token=21, vdim=37) == plane + (2 * 512 + 10 * 32 + 5 * 2 + 1) * 2


def test_nvfp4_is_four_runs_over_all_heads() -> None:
    H, N, hs = 4, 16, 128
    params = {"num_kv_heads": 8, "head_size": hs}
    fields = positions("nvfp4", params, {"tp": 2}, 1)
    assert page_bytes("nvfp4", params, {"tp": 2}) == 2 * H * N * 72
    h, t, s = 2, 5, 3
    assert at(fields["k_data"], head=6, token=t) == (h * N + t) * 64
    assert at(fields["k_scale"], head=6, token=t, scale=s) == H * N * 64 + (h * N + t) * 8 + s
    assert at(fields["v_data"], head=6, token=t) == H * N * 72 + (h * N + t) * 64
    assert at(fields["v_scale"], head=6, token=t, scale=s) == H * N * (72 + 64) + (h * N + t) * 8 + s
    tokens_outer = positions("nvfp4", params, {"tp": 2, "order": "NHD"}, 1)
    assert at(tokens_outer["k_scale"], head=6, token=t, scale=s) == H * N * 64 + (t * H + h) * 8 + s


def test_nvfp4_swizzle_of_v_scales() -> None:
    params = {"num_kv_heads": 1, "head_size": 128, "scale_layout": "sm100"}
    start = 4 * (64 + 8 + 64)
    stored = positions("nvfp4", params, {"block": 4}, 0)["v_scale"]
    tile = np.empty((4, 8), object)
    for _, token, scale, offset in stored.where.tolist():
        tile[divmod(offset - start, 8)] = f"{token}{scale}"
    assert tile.tolist() == [
        ["00", "10", "20", "30", "01", "11", "21", "31"],
        ["02", "12", "22", "32", "03", "13", "23", "33"],
        ["04", "14", "24", "34", "05", "15", "25", "35"],
        ["06", "16", "26", "36", "07", "17", "27", "37"],
    ]
    two = positions("nvfp4", params | {"num_kv_heads": 2}, {"order": "NHD"}, 0)["v_scale"]
    row, column = 4 + 3 // 2, 4 * (3 % 2) + 1
    assert at(two, head=1, token=5, scale=3) == 2 * 16 * 136 + (row * 2 + 1) * 8 + column


def test_k_scales_are_never_swizzled() -> None:
    params = {"num_kv_heads": 2, "head_size": 64}
    linear, swizzled = (positions("nvfp4", params | {"scale_layout": x}, {}, 0) for x in ("linear", "sm100"))
    assert (linear["k_scale"].where == swizzled["k_scale"].where).all()
    assert (linear["v_scale"].where != swizzled["v_scale"].where).any()


def test_mla_rows() -> None:
    mla = positions("mla", {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}, {"tp": 8}, 7)
    assert (at(mla["latent"], token=2), at(mla["rope"], token=2)) == (2304, 2304 + 1024)
    fp8 = positions("mla_fp8_ds", {}, {}, 0)
    assert page_bytes("mla_fp8_ds", {}, {"block": 64}) == 64 * 656
    assert [at(fp8["latent"], token=1), at(fp8["latent_scale"], token=1, scale=3), at(fp8["rope"], token=1)] == [
        656, 656 + 524, 656 + 528,
    ]  # fmt: skip
    fp4 = positions("mla_nvfp4_ds", {}, {}, 0)
    assert page_bytes("mla_nvfp4_ds", {}, {"block": 64}) == 64 * 352
    assert [at(fp4["rope"], token=1), at(fp4["latent_scale"], token=1, scale=5)] == [352 + 256, 352 + 320 + 9]


def test_indexer_pages_hold_values_then_scales() -> None:
    assert page_bytes("indexer_fp8", {"head_dim": 128}, {"block": 64}) == 64 * 132
    assert page_bytes("indexer_mxfp4", {"head_dim": 128}, {"block": 64}) == 64 * 68
    packed = {"head_dim": 128, "tokens_per_state": 4}
    assert page_bytes("indexer_fp8", packed, {"block": 256}) == 64 * 132
    fp8, fp4 = (positions(f"indexer_{x}", packed, {"block": 256}, 0) for x in ("fp8", "mxfp4"))
    assert (at(fp8["key"], token=3), at(fp8["key_scale"], token=3)) == (384, 64 * 128 + 12)
    assert (at(fp4["key"], token=3), at(fp4["key_scale"], token=3, scale=2)) == (192, 64 * 64 + 14)


def test_dsv4_page_is_data_rows_then_scale_rows_then_padding() -> None:
    fields = positions("dsv4_fp8", {}, {"block": 64}, 0)
    assert page_bytes("dsv4_fp8", {}, {"block": 64}) == 65 * 576 == 37440  # 64 * 584 = 37376 payload
    assert [at(fields["rope"], token=2), at(fields["scale"], token=2, scale=6), at(fields["scale_pad"], token=2)] == [
        2 * 576 + 448, 64 * 576 + 22, 64 * 576 + 23,
    ]  # fmt: skip
    assert (source_page("dsv4_fp8", {}, {"block": 64}, 0)[0, 37376:] == -1).all()
    assert page_bytes("dsv4_fp8", {"tokens_per_state": 4}, {"block": 256}) == 37440


def channel(part: Field, rows: int) -> int:
    """First local channel of a convolution block in DS, from its lowest offset."""
    return int(part.where[:, -1].min()) // (rows * part.atom)


def test_mamba2_sub_blocks() -> None:
    nemotron = positions("mamba2", NEMOTRON_H, {"tp": 4}, 3)
    assert [channel(nemotron[f], 3) for f in ("conv_x", "conv_b", "conv_c")] == [0, 2048, 2048 + 256]
    assert held(nemotron["conv_x"], "head") == list(range(96, 128))
    assert held(nemotron["conv_b"], "group") == [6, 7]
    assert at(nemotron["temporal"], head=97) == 2560 * 3 * 2 + 64 * 128 * 4
    element = positions("mamba2", NEMOTRON_H, {"tp": 4, "conv": "SD", "spec_tokens": 2}, 3)
    assert at(element["conv_c"], group=7, state=5, row=4) == (4 * 2560 + 2304 + 128 + 5) * 2
    assert at(element["temporal"], head=96) == 2560 * 5 * 2


def test_mamba2_with_one_group_repeats_b_and_c_on_every_rank() -> None:
    ranks = [positions("mamba2", GRANITE, {"tp": 8}, r) for r in range(8)]
    assert [channel(ranks[0][f], 3) for f in ("conv_x", "conv_b", "conv_c")] == [0, 1024, 1024 + 128]
    for fields in ranks:
        assert (fields["conv_b"].where == ranks[0]["conv_b"].where).all()
        assert (fields["conv_c"].where == ranks[0]["conv_c"].where).all()
    assert held(ranks[7]["conv_x"], "head") == list(range(112, 128))
    # From tp 1 to tp 2, B of both ranks is channel 8192 and C channel 8320 of the one source: nothing scales with tp.
    source = source_page("mamba2", GRANITE, {}, 0)[0]
    for rank in range(2):
        page = expected_page("mamba2", GRANITE, {}, {"tp": 2}, rank)[0]
        assert (page[4096 * 6 : (4096 + 256) * 6] == source[8192 * 6 : 8448 * 6]).all()


def test_gdn_and_kda_sub_blocks() -> None:
    gdn = positions("gdn", QWEN3_NEXT, {"tp": 4}, 2)
    assert [channel(gdn[f], 3) for f in ("conv_q", "conv_k", "conv_v")] == [0, 512, 1024]
    assert (held(gdn["conv_k"], "k_head"), held(gdn["conv_v"], "v_head")) == ([8, 9, 10, 11], list(range(16, 24)))
    kda = positions("kda", KIMI, {"tp": 2}, 1)
    assert [channel(kda[f], 3) for f in ("conv_q", "conv_k", "conv_v")] == [0, 2048, 4096]
    assert at(kda["temporal"], head=17) == 6144 * 3 * 2 + 128 * 128 * 4


def test_conv_orientation_and_speculative_rows() -> None:
    ds, sd = (positions("short_conv", LFM2, {"tp": 2, "conv": c, "spec_tokens": 1}, 1)["conv_x"] for c in ("DS", "SD"))
    assert at(ds, channel=1030, row=2) == (6 * 3 + 2) * 2
    assert at(sd, channel=1030, row=2) == (2 * 1024 + 6) * 2
    assert page_bytes("mamba1", FALCON_MAMBA, {"spec_tokens": 3}) == page_bytes("mamba1", FALCON_MAMBA, {})


@pytest.mark.parametrize(
    ("format", "params", "engine"),
    [
        ("gqa", {"num_kv_heads": 4, "head_size": 8, "dtype": "bfloat16"}, {"tp": 3}),
        ("gqa", {"num_kv_heads": 6, "head_size": 8, "dtype": "bfloat16"}, {"tp": 8}),
        ("gqa", {"num_kv_heads": 8, "head_size": 8, "dtype": "bfloat16"}, {"tp": 8, "dcp": 2}),
        ("gqa_int4_per_token_head", {"num_kv_heads": 1, "head_size": 7}, {}),
        ("gqa_cpu_vec", {"num_kv_heads": 1, "head_size": 8, "dtype": "float32"}, {"tp": 2, "dcp": 2}),
        ("gqa_cpu_amx", {"num_kv_heads": 1, "head_size": 48}, {}),
        ("gqa_cpu_amx", {"num_kv_heads": 1, "head_size": 32}, {"block": 24}),
        ("gqa_cpu_amx", {"num_kv_heads": 1, "head_size": 32, "dtype": "float16"}, {}),
        ("nvfp4", {"num_kv_heads": 1, "head_size": 24}, {}),
        ("nvfp4", {"num_kv_heads": 1, "head_size": 48, "scale_layout": "sm100"}, {}),
        ("nvfp4", {"num_kv_heads": 1, "head_size": 64, "scale_layout": "sm100"}, {"block": 6}),
        ("mla", {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "dtype": "bfloat16"}, {"tp": 4, "dcp": 3}),
        ("mla", {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "dtype": "bfloat16"}, {"tp": 2, "dcp": 2, "interleave": 3}),
        ("mla_fp8_ds", {"kv_lora_rank": 256}, {}),
        ("mla_nvfp4_ds", {"qk_rope_head_dim": 128}, {}),
        ("indexer_fp8", {"head_dim": 128, "tokens_per_state": 4}, {"block": 18}),
        ("indexer_fp8", {"head_dim": 128, "tokens_per_state": 4}, {"tp": 2, "dcp": 2, "interleave": 2}),
        ("dsv4_fp8", {"tokens_per_state": 128}, {"block": 64}),
        ("mamba1", FALCON_MAMBA, {"tp": 3}),
        ("mamba1", FALCON_MAMBA, {"tp": 4, "dcp": 3}),
        ("mamba2", ZAMBA2, {"tp": 4}),
        ("mamba2", ZAMBA2, {"tp": 8}),
        ("mamba2", GRANITE | {"num_heads": 24}, {"tp": 16}),
        ("gdn", QWEN3_NEXT, {"tp": 32}),
        ("kda", KIMI, {"tp": 64}),
        ("short_conv", LFM2, {"tp": 3}),
        ("linear", {"num_heads": 8, "head_dim": 4, "dtype": "float32"}, {"tp": 16}),
    ],
)
def test_not_loadable(format: str, params: dict[str, Any], engine: dict[str, Any]) -> None:
    with pytest.raises(NotLoadable):
        positions(format, params, engine, 0)
    with pytest.raises(NotLoadable):
        expected_page(format, params, {}, engine, 0)
    with pytest.raises(NotLoadable):
        expected_page(format, params, engine, {}, 0)


def test_fewer_heads_than_ranks_are_replicated() -> None:
    params = {"num_kv_heads": 4, "head_size": 8, "dtype": "bfloat16"}
    assert [held(positions("gqa", params, {"tp": 8}, r)["k"], "head") for r in range(8)] == [
        [0], [0], [1], [1], [2], [2], [3], [3],
    ]  # fmt: skip
    assert held(positions("gqa", params, {"tp": 64}, 63)["k"], "head") == [3]


def test_context_parallel_tokens() -> None:
    params = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "dtype": "bfloat16"}
    engine = {"tp": 2, "dcp": 2, "block": 4, "interleave": 2}
    assert [positions("mla", params, engine, r)["latent"].where[:, 0].tolist() for r in range(2)] == [
        [0, 1, 4, 5], [2, 3, 6, 7],
    ]  # fmt: skip
    wide = {"tp": 4, "dcp": 2, "pcp": 2, "block": 16, "interleave": 4}
    for rank in range(8):
        cp_rank = rank // 4 * 2 + rank % 4 % 2
        token = positions("mla", params, wide, rank)["rope"].where[:, 0]
        assert (token // 4 % 4 == cp_rank).all()
        assert (token // 16 * 4 + token % 4 == np.arange(16)).all()
    coarse = {"head_dim": 128, "tokens_per_state": 4}
    states = positions("indexer_fp8", coarse, {"tp": 2, "dcp": 2, "block": 16, "interleave": 8}, 1)["key"].where[:, 0]
    assert states.tolist() == [2, 3, 6, 7]


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
def test_block_16_to_block_64(order: str) -> None:
    """16-token blocks into 64-token ones: H runs of 16 tokens per source page with heads outside, else whole pages."""
    H, C = 2, 32
    params = {"num_kv_heads": H, "head_size": 8, "dtype": "bfloat16"}
    src, dst = {"block": 16, "order": order}, {"block": 64, "order": order}
    if order == "LBHNC":
        runs = [[0, b, h * 16 * C, 0, (h * 64 + b * 16) * C, 16 * C] for b in range(4) for h in range(H)]
    else:
        runs = [[0, b, 0, 0, b * 16 * H * C, 16 * H * C] for b in range(4)]
    assert block_counts("gqa", params, src, dst) == (4, 1)
    expected = expected_page("gqa", params, src, dst, 0)
    sources = {0: source_page("gqa", params, src, 0, blocks=4)}
    assert (replay(runs, sources, expected.shape) == expected).all()
    assert (expected_page("gqa", params, src, dst, 0, src_blocks=3, dst_blocks=1) == -1).sum() == 16 * H * C
    assert block_counts("gqa", params, {"block": 544}, {"block": 144}) == (9, 34)


def test_replay_catches_what_ids_alone_would_not() -> None:
    sources = {0: source_page("dsv4_fp8", {}, {}, 0)}
    shape = sources[0].shape
    with pytest.raises(AssertionError, match="no payload"):
        replay([[0, 0, 16 * 584, 0, 16 * 584, 8]], sources, shape)
    with pytest.raises(AssertionError, match="already written"):
        replay([[0, 0, 0, 0, 0, 8], [0, 0, 0, 0, 7, 8]], sources, shape)
    with pytest.raises(AssertionError, match="leaves a page"):
        replay([[0, 0, shape[1] - 4, 0, 0, 8]], sources, shape)


@pytest.mark.parametrize("conv", ["DS", "SD"])
@pytest.mark.parametrize(("few", "many"), [(0, 2), (1, 3)])
def test_rows_beyond_the_shorter_side_are_left_alone(conv: str, few: int, many: int) -> None:
    small, large = {"conv": conv, "spec_tokens": few}, {"tp": 2, "conv": conv, "spec_tokens": many}
    assert shared_rows("gdn", QWEN3_NEXT, small, large) == shared_rows("gdn", QWEN3_NEXT, large, small) == 3 + few
    assert shared_rows("mamba1", FALCON_MAMBA, small, large) == 3
    assert shared_rows("linear", {"num_heads": 2, "head_dim": 4, "dtype": "float32"}, small, large) is None
    grown = expected_page("gdn", QWEN3_NEXT, small, large, 1)[0]
    assert (grown == -1).sum() == 4096 * (many - few) * 2
    assert not np.isin(grown[grown != -1], source_page("gdn", QWEN3_NEXT, small, 0), invert=True).any()
    shrunk = expected_page("gdn", QWEN3_NEXT, large, small, 0)[0]
    assert (shrunk == source_page("gdn", QWEN3_NEXT, small, 0)[0]).all()


def test_pairs_that_no_copy_converts() -> None:
    params = {"num_kv_heads": 4, "head_size": 8, "dtype": "bfloat16"}
    for change in ({"dtype": "float16"}, {"dtype": "float32"}, {"head_size_v": 4}, {"num_kv_heads": 8}):
        with pytest.raises(NotConvertible):
            expected_page("gqa", params, {}, {}, 0, dst_params=params | change)
    expected_page("gqa", params, {}, {}, 0, dst_params=params | {"kv_packing": "planes"})


@pytest.mark.parametrize(
    ("format", "params", "src", "dst"),
    [
        ("mla", {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "dtype": "bfloat16"},
         {"tp": 4, "dcp": 4, "interleave": 4}, {"tp": 6, "dcp": 3, "block": 32}),
        ("nvfp4", {"num_kv_heads": 2, "head_size": 64, "scale_layout": "sm100"},
         {"tp": 8, "dcp": 4, "interleave": 2}, {"tp": 1, "block": 64, "order": "NHD"}),
        ("gqa", {"num_kv_heads": 12, "head_size": 8, "dtype": "bfloat16"},
         {"tp": 6, "block": 24}, {"tp": 4, "pcp": 2, "order": "NHD"}),
        ("mamba2", NEMOTRON_H | {"head_dim": 4, "state_size": 6}, {"tp": 8, "conv": "SD"}, {"tp": 2}),
    ],
)  # fmt: skip
def test_a_destination_is_full_and_its_ids_are_those_of_the_sources(
    format: str, params: dict[str, Any], src: dict[str, Any], dst: dict[str, Any]
) -> None:
    src_blocks, dst_blocks = block_counts(format, params, src, dst)
    sources = [source_page(format, params, src, r, blocks=src_blocks) for r in range(src["tp"])]
    available = np.unique(np.concatenate([page.ravel() for page in sources]))
    for rank in range(dst["tp"] * dst.get("pcp", 1)):
        page = expected_page(format, params, src, dst, rank)
        assert page.shape == (dst_blocks, page_bytes(format, params, dst))
        assert len(np.unique(page)) == page.size
        assert np.isin(page, available).all()


def test_ids_read_back() -> None:
    params = {"num_kv_heads": 4, "head_size": 64}
    fields, page = positions("nvfp4", params, {"tp": 2}, 1), source_page("nvfp4", params, {"tp": 2}, 1, blocks=2)
    offset = at(fields["v_scale"], head=3, token=5, scale=2)
    assert name_id(page[1, offset], fields) == "v_scale head=3 token=21 scale=2 byte 0"
    assert name_id(-1, fields) == "nothing"


SWEPT: dict[str, list[dict[str, Any]]] = {
    "gqa": [
        {"num_kv_heads": h, "head_size": 8, "head_size_v": v, "dtype": d, "kv_packing": p}
        for h, v, d, p in product((1, 2, 6, 8), (4, 8), ("bfloat16", "float8_e4m3"), ("content", "planes"))
    ],
    **{
        f"gqa_{x}_per_token_head": [{"num_kv_heads": h, "head_size": 8, "head_size_v": 6} for h in (1, 2, 6)]
        for x in ("int8", "fp8", "int4")
    },
    "gqa_cpu_vec": [{"num_kv_heads": h, "head_size": 3, "dtype": d} for h in (1, 6) for d in ("bfloat16", "float32")],
    "gqa_cpu_amx": [{"num_kv_heads": h, "head_size": 32} for h in (1, 6)],
    "nvfp4": [
        {"num_kv_heads": h, "head_size": s, "scale_layout": x}
        for h, s, x in product((1, 2, 6), (64, 128, 192), ("linear", "sm100"))
    ],
    "mla": [{"kv_lora_rank": 16, "qk_rope_head_dim": 4, "dtype": d} for d in ("bfloat16", "float8_e4m3")],
    "mla_fp8_ds": [{}],
    "mla_nvfp4_ds": [{}],
    "indexer_fp8": [{"head_dim": 128, "tokens_per_state": s} for s in (1, 4)],
    "indexer_mxfp4": [{"head_dim": 128, "tokens_per_state": s} for s in (1, 4)],
    "dsv4_fp8": [{"tokens_per_state": s} for s in (1, 4)],
    "mamba1": [{"intermediate_size": c, "state_size": 4} | FP32 for c in (24, 64)],
    "mamba2": [
        {"num_heads": h, "head_dim": 4, "n_groups": g, "state_size": 6} | FP32 for h, g in ((24, 1), (24, 6), (64, 8))
    ],
    "gdn": [{"num_k_heads": k, "num_v_heads": 2 * k, "head_k_dim": 4, "head_v_dim": 6} | FP32 for k in (6, 16)],
    "gdn_cpu": [{"num_k_heads": k, "num_v_heads": 2 * k, "head_k_dim": 4, "head_v_dim": 6} | FP32 for k in (6, 16)],
    "kda": [{"num_heads": h, "head_dim": 4} | FP32 for h in (6, 64)],
    "short_conv": [{"conv_dim": c, "conv_kernel": 3, "conv_dtype": "bfloat16"} for c in (24, 64)],
    "linear": [{"num_heads": h, "head_dim": 4, "dtype": "bfloat16"} for h in (6, 64)],
}
SWEPT |= {
    "gqa_rocm": [{"num_kv_heads": h, "head_size": 16, "dtype": d} for h, d in product((2, 6), ("bfloat16", "float32"))],
    "gqa_aiter": [{"num_kv_heads": h, "head_size": 32, "dtype": d} for h, d in product((2, 6), ("int8", "float32"))],
    **{
        f"turboquant{x}": [
            {"num_kv_heads": h, "head_size": s, "key_bits": k, "value_bits": v}
            for h, s, (k, v) in product((2, 6), (8, 64), ((8, 4), (4, 4), (3, 4), (3, 3)))
        ]
        for x in ("", "_soa")
    },
    "ultraquant": [{"num_kv_heads": h, "head_size": 64} for h in (2, 6)],
    "nvfp4_msa": [{"num_kv_heads": h, "head_size": 128} for h in (2, 6)],
    **{f"mla_{x}_per_token_head": [{"kv_lora_rank": 16, "qk_rope_head_dim": 4}] for x in ("int8", "fp8", "int4")},
    "dsv4": [{"dtype": d, "tokens_per_state": s} for d, s in product(("bfloat16", "float8_e4m3"), (1, 4))],
    "dsv41_fp8": [{"tokens_per_state": s, "scales": x} for s, x in ((1, "page"), (4, "record"))],
    "dsv41_nvfp4": [{"tokens_per_state": s} for s in (1, 4)],
    "dsv4_compressor": [{"ratio": r, "align": a} for r, a in product((4, 128), (576, 512))],
    "indexer_m3": [{"head_dim": 128, "dtype": "bfloat16", "tokens_per_state": s} for s in (1, 4)],
    "kpool_ring": [{"head_dim": 8, "kpool": k} for k in (2, 4)],
    "dsv41_compressor": [{"head_dim": 8, "least": n} for n in (2, 8)],
    "qsa_ring": [{"head_dim": d, "ratio": 4, "positions": p} for d, p in product((6, 8), ("none", "mrope"))],
    "ple_conv": [{"conv_dim": 5, "conv_kernel": 4, "dilation": 3, "conv_dtype": "bfloat16"}],
    "mamba2_replay": [
        {"num_heads": 24, "head_dim": 4, "n_groups": g, "state_size": 6, "window": 3, "lookahead": x} | FP32
        for g, x in ((6, 0), (12, 1))
    ],
    "kda_recover": [{"num_heads": h, "head_dim": 4} | FP32 for h in (6, 64)],
    "sglang_mha": [
        {"num_kv_heads": h, "head_size": 8, "head_size_v": v, "dtype": "bfloat16"} for h, v in product((1, 6), (4, 8))
    ],
    "sglang_mha_aiter": [
        {"num_kv_heads": h, "head_size": 16, "head_size_v": v, "dtype": "float32"} for h, v in product((1, 6), (5, 16))
    ],
    "sglang_mha_fp4": [
        {"num_kv_heads": h, "head_size": 64, "recipe": r, "scale_layout": x}
        for h, (r, x) in product((2, 6), (("fp4_mx_block16", "linear"), ("nvfp4", "linear"), ("nvfp4", "native")))
    ],
    "sglang_mha_mxfp8": [{"num_kv_heads": h, "head_size": 64, "head_size_v": 32} for h in (2, 6)],
    "sglang_mla": [{"kv_lora_rank": 16, "qk_rope_head_dim": 4, "dtype": "bfloat16"}],
    "sglang_mla_fp4": [{"kv_lora_rank": 28, "qk_rope_head_dim": 4}],
    "sglang_indexer_nvfp4": [{"head_dim": d} for d in (16, 128)],
    "sglang_indexer": [{"tokens_per_state": s} for s in (1, 4)],
    **{f"sglang_{name}": SWEPT[name] for name in ("mamba1", "mamba2", "gdn", "kda")},
}
TPS = (1, 2, 3, 4, 6, 8, 12, 16, 64)
PADDED = {"dsv4_fp8": 576, "dsv4": 512, "dsv41_fp8": 512, "dsv41_nvfp4": 512, "dsv4_compressor": 576,
          "sglang_indexer_nvfp4": 256}  # fmt: skip
WHOLE = {*(name for name in PADDED if name.startswith("dsv4")), "sglang_mha_mxfp8", "gqa_cpu_vec", "gqa_cpu_amx"}
"""Formats whose tokens every context-parallel rank holds, or that know no such ranks."""


def engines(format: str) -> Iterator[dict[str, Any]]:
    """Engines worth trying for a format: orientations where it has any, context parallelism where it grows."""
    if format in STATE | SGLANG_STATE:
        for tp, conv, spec in product(TPS, ("DS", "SD"), (0, 2)):
            yield {"tp": tp, "conv": conv, "spec_tokens": spec}
        return
    for tp, order, block in product(TPS, ("LBHNC", "LBNHC"), (4, 16)):
        yield {"tp": tp, "order": order, "block": block}
    for (tp, dcp, pcp), order, interleave in product(
        ((4, 2, 1), (8, 4, 1), (12, 2, 1), (2, 1, 2), (4, 2, 2)), ("LBHNC", "LBNHC"), (1, 4, 16)
    ):
        yield {"tp": tp, "dcp": dcp, "pcp": pcp, "order": order, "interleave": interleave, "block": 16}


@pytest.mark.parametrize("format", FORMATS)
def test_atoms_are_disjoint_inside_the_page_and_cover_the_tensor(format: str) -> None:
    """Per rank no byte belongs to two atoms; over all ranks every global atom is held, equally often without cp."""
    loaded = 0
    for params, engine in product(SWEPT[format], engines(format)):
        try:
            size = page_bytes(format, params, engine)
        except NotLoadable:
            continue
        loaded += 1
        ranks = [positions(format, params, engine, r) for r in range(engine["tp"] * engine.get("pcp", 1))]
        for fields in ranks:
            start = np.concatenate([f.where[:, -1] for f in fields.values()])
            length = np.concatenate([np.full(len(f.where), f.atom) for f in fields.values()])
            by_offset = np.argsort(start)
            end = (start + length)[by_offset]
            assert (end[:-1] <= start[by_offset][1:]).all()
            assert 0 <= start.min() < end[-1] <= size
            pad = size - int(length.sum())
            rounded = len(fields["k_data"].where) if format.startswith("turboquant") else 0  # a byte of each record
            assert pad in (0, rounded) or pad < PADDED.get(format, 0) or format == "qsa_ring"
        cp = engine.get("dcp", 1) * engine.get("pcp", 1)
        opened = {"token": engine.get("block", 0) * (1 if format in WHOLE else cp), "row": 0}
        opened["token"] //= params.get("tokens_per_state", 1)
        spec = engine.get("spec_tokens", 0) * (format != "mamba1" and not format.startswith("sglang"))
        opened["row"] = (params.get("conv_kernel", 0) - 1) * params.get("dilation", 1) + spec
        for name, part in ranks[0].items():
            everywhere = np.concatenate([fields[name].where[:, :-1] for fields in ranks])
            extent = [e or opened[axis] for axis, e in zip(part.coords, part.extent, strict=True)]
            holders = np.bincount(np.ravel_multi_index(tuple(everywhere.T), extent), minlength=prod(extent))
            assert holders.min() > 0
            assert cp > 1 or holders.min() == holders.max()
    assert loaded >= 8
