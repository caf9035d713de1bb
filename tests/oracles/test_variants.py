"""Sizes and offsets of particular backends' pages, worked out by hand from vLLM 0.32 and SGLang 0.5.23."""

from __future__ import annotations

from typing import Any

import pytest

from .parts import NotLoadable
from .positions import page_bytes, positions
from .test_positions import FP32, at

ROCM = {"num_kv_heads": 2, "head_size": 32, "dtype": "bfloat16"}
CONV = {"num_heads": 8, "head_dim": 4, "n_groups": 2, "state_size": 6} | FP32


@pytest.mark.parametrize(
    ("format", "params", "block", "nbytes"),
    [
        # turboquant/config.py, slot_size_aligned: key, value data, scale and zero
        ("turboquant", {"head_size": 128, "key_bits": 8, "value_bits": 4}, 1, 128 + 64 + 4),
        ("turboquant", {"head_size": 128, "key_bits": 4, "value_bits": 4}, 1, 64 + 2 + 64 + 4),
        ("turboquant", {"head_size": 128, "key_bits": 3, "value_bits": 4}, 1, 48 + 2 + 64 + 4),
        ("turboquant", {"head_size": 256, "key_bits": 3, "value_bits": 3}, 1, 96 + 2 + 96 + 4),
        ("turboquant", {"head_size": 8, "key_bits": 3, "value_bits": 4}, 1, 14),  # 13, made even
        ("turboquant_soa", {"head_size": 8, "key_bits": 3, "value_bits": 4}, 16, 16 * 14),
        ("ultraquant", {"head_size": 128}, 1, 136),
        ("ultraquant", {"head_size": 256}, 1, 272),
        ("nvfp4_msa", {"head_size": 128}, 128, 2 * 128 * 72),
        ("sglang_mha_mxfp8", {"head_size": 128}, 64, 2 * 64 * (128 + 4)),
        ("sglang_mha_fp4", {"head_size": 128}, 64, 2 * 64 * 72),
    ],
)
def test_bytes_of_a_head(format: str, params: dict[str, Any], block: int, nbytes: int) -> None:
    assert page_bytes(format, {"num_kv_heads": 1, **params}, {"block": block}) == nbytes


@pytest.mark.parametrize(
    ("format", "params", "block", "nbytes"),
    [
        ("mla_fp8_per_token_head", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 64, 64 * 584),
        ("mla_int4_per_token_head", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 64, 64 * 296),
        ("dsv4", {"dtype": "bfloat16"}, 256, 256 * 1024),
        ("dsv4", {"dtype": "float8_e4m3", "tokens_per_state": 4}, 256, 64 * 512),
        ("dsv41_fp8", {}, 32, 33 * 512),  # 32 * 528 = 16896
        ("dsv41_fp8", {"tokens_per_state": 2}, 256, 132 * 512),
        ("dsv41_nvfp4", {"tokens_per_state": 2}, 256, 72 * 512),
        ("dsv41_nvfp4", {"align": 256}, 31, 35 * 256),  # 31 * 288 = 8928
        ("dsv41_fp8", {"scales": "record"}, 31, 31 * 528),
        ("dsv4_compressor", {"ratio": 4}, 4, 57 * 576),  # 4 * 2 * 2 * 512 * 4 = 32768
        ("dsv4_compressor", {"ratio": 128}, 8, 57 * 576),
        ("dsv4_compressor", {"ratio": 4, "align": 512}, 4, 32768),
        ("indexer_fp8", {"head_dim": 128, "tokens_per_state": 4, "align": 576}, 256, 15 * 576),  # 64 * 132 = 8448
        ("indexer_fp8", {"head_dim": 128, "tokens_per_state": 4, "align": 512}, 256, 17 * 512),
        ("sglang_mla_fp4", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 64, 64 * (288 + 36)),
        ("sglang_indexer", {}, 64, 64 * 132),
        ("sglang_indexer_nvfp4", {}, 128, 128 * 72),
        ("sglang_indexer_nvfp4", {"head_dim": 16}, 20, 256 + 128),  # 160 and 20
    ],
)
def test_bytes_of_pages_that_every_rank_holds(format: str, params: dict[str, Any], block: int, nbytes: int) -> None:
    assert page_bytes(format, params, {"block": block, "tp": 4}) == nbytes


def test_rocm_planes() -> None:
    """Of 2 heads of 32 in 16 tokens, x = 8: K at h * 512 + d // 8 * 128 + t * 8 + d % 8 elements, V at a plane more."""
    plain, shuffled = (positions(format, ROCM, {}, 0) for format in ("gqa_rocm", "gqa_aiter"))
    for fields in (plain, shuffled):
        assert at(fields["k"], head=1, token=3, kdim=21) == (512 + 2 * 128 + 3 * 8 + 5) * 2
    plane = 2 * 512 * 2
    assert at(plain["v"], head=1, token=11, vdim=21) == plane + (512 + 21 * 16 + 11) * 2
    assert at(shuffled["v"], head=1, token=11, vdim=21) == plane + (512 + 8 * 32 + 21 * 8 + 3) * 2


def test_turboquant_records_and_metadata() -> None:
    params = {"num_kv_heads": 2, "head_size": 16, "key_bits": 3, "value_bits": 4}
    names = ("k_data", "k_norm", "v_data", "v_scale", "v_zero")
    records = positions("turboquant", params, {"block": 4}, 0)  # 6 + 2 + 8 + 4 bytes
    assert [at(records[name], head=1, token=2) for name in names] == [120, 126, 128, 136, 138]
    split = positions("turboquant_soa", params, {"block": 4}, 0)  # data 4 * 2 * 14, then [2 heads, 3 fields, 4 tokens]
    assert [at(split[name], head=1, token=2) for name in names] == [70, 140, 76, 148, 156]


def test_slots_of_a_head() -> None:
    fields = positions("nvfp4_msa", {"num_kv_heads": 4, "head_size": 128}, {"tp": 2, "block": 128}, 1)
    assert at(fields["k_data"], head=3, token=5) == 2 * 9216 + 5 * 64
    assert at(fields["v_scale"], head=3, token=5, scale=7) == 3 * 9216 + 8192 + 5 * 8 + 7


def test_chunks_of_mxfp8_scales() -> None:
    """mxfp8_interleave_sf.py: (page_offset % 32) * 16 + (page_offset // 32) * 4 + scale_idx, per head of 128."""
    params = {"num_kv_heads": 2, "head_size": 128, "scale_layout": "chunks"}
    fields = positions("sglang_mha_mxfp8", params, {"block": 128}, 0)
    data, scales = 2 * 128 * 128, 2 * 128 * 4
    assert at(fields["k_scale"], head=1, token=70, kscale=3) == 2 * data + 512 + 6 * 16 + 2 * 4 + 3
    assert at(fields["v_scale"], head=0, token=70, vscale=3) == 2 * data + scales + 6 * 16 + 2 * 4 + 3
    assert at(fields["v_data"], head=1, token=70) == data + (70 * 2 + 1) * 128


def test_rows_of_slots() -> None:
    params = {"num_kv_heads": 4, "head_size": 8, "head_size_v": 4, "dtype": "bfloat16"}
    tokens = positions("sglang_mha", params, {"tp": 2, "order": "NHD"}, 1)
    assert at(tokens["k"], head=3, token=2, kdim=1) == ((2 * 2 + 1) * 8 + 1) * 2
    assert at(tokens["v"], head=3, token=2, vdim=1) == 16 * 2 * 16 + ((2 * 2 + 1) * 4 + 1) * 2
    heads = positions("sglang_mha", params, {"tp": 2, "order": "HND"}, 1)
    assert at(heads["k"], head=3, token=2, kdim=1) == ((16 + 2) * 8 + 1) * 2


def test_states_in_two_buffers() -> None:
    gdn = {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 3, "head_v_dim": 2} | FP32
    fields = positions("sglang_gdn", gdn, {"conv": "SD"}, 0)  # 6 + 6 + 8 channels of 3 rows
    assert at(fields["conv_v"], v_head=1, v_dim=1, row=2) == ((12 + 3) * 3 + 2) * 2
    assert at(fields["temporal"], v_head=1) == 20 * 3 * 2 + 3 * 2 * 4
    kda = positions("sglang_kda", {"num_heads": 2, "head_dim": 3} | FP32, {"conv": "DS"}, 0)
    assert at(kda["conv_k"], head=1, k_dim=2, row=2) == (2 * 18 + 6 + 5) * 2


def test_rings_lie_behind_the_states() -> None:
    plain = page_bytes("mamba2", CONV, {"tp": 2})
    fields = positions("mamba2_replay", CONV | {"window": 3, "lookahead": 1}, {"tp": 2}, 1)
    assert at(fields["ring_x"], head=5, slot=3) == plain + (4 + 3) * 8
    assert at(fields["ring_dt"], head=5, slot=3) == plain + 4 * 4 * 8 + (4 + 3) * 4
    assert at(fields["ring_b"], group=1, slot=1) == plain + 4 * 4 * 8 + 4 * 4 * 4 + 12
    kda = {"num_heads": 4, "head_dim": 3} | FP32
    records = positions("kda_recover", kda, {"spec_tokens": 2}, 0)
    start = page_bytes("kda", kda, {"spec_tokens": 2})
    assert at(records["key_gate"], head=1, step=2) == start + 4 * 3 * 12 + (3 + 2) * 12
    with pytest.raises(NotLoadable):
        positions("mamba2_replay", CONV | {"n_groups": 1, "window": 3}, {"tp": 2}, 0)


@pytest.mark.parametrize(("tokens", "slots"), [(0, 4), (1, 8), (4, 8), (5, 16), (12, 16), (13, 32), (60, 64)])
def test_slots_of_the_pooled_ring(tokens: int, slots: int) -> None:
    """glm5next: kpool * next_power_of_2(cdiv(kpool + speculative, kpool)), of 4."""
    assert page_bytes("kpool_ring", {"head_dim": 128, "kpool": 4}, {"spec_tokens": tokens}) == 2 * slots * 256


@pytest.mark.parametrize(("tokens", "vllm", "sglang"), [(0, 8, 2), (1, 8, 4), (2, 8, 4), (3, 8, 8), (7, 16, 16)])
def test_slots_of_the_pair_ring(tokens: int, vllm: int, sglang: int) -> None:
    """deepseek_v41/compressor.py: drafts, a token and the row before them, a power of 2; at least 8, or 2 in SGLang."""
    sizes = [page_bytes("dsv41_compressor", {"least": n}, {"spec_tokens": tokens}) for n in (8, 2)]
    assert sizes == [vllm * 4096, sglang * 4096]


def test_positions_beside_raw_keys() -> None:
    """qsa_cache.py: rope_position_offset is the key's elements rounded up to 4; capacity is whole groups."""
    fields = positions("qsa_ring", {"head_dim": 6, "ratio": 4, "positions": "mrope"}, {"spec_tokens": 1}, 0)
    assert page_bytes("qsa_ring", {"head_dim": 6, "ratio": 4, "positions": "mrope"}, {"spec_tokens": 1}) == 8 * 40
    assert (at(fields["key"], slot=2), at(fields["positions"], slot=2)) == (80, 96)
    assert page_bytes("qsa_ring", {"head_dim": 128, "ratio": 4}, {}) == 4 * 256


def test_windows_with_dilation() -> None:
    params = {"conv_dim": 5, "conv_kernel": 4, "dilation": 3, "conv_dtype": "bfloat16"}
    assert page_bytes("ple_conv", params, {"tp": 4, "spec_tokens": 1}) == 5 * 10 * 2
