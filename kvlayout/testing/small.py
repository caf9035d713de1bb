"""Small parameters for every shipped format: pages of some hundred bytes that still have all that the format has."""

from __future__ import annotations

__all__ = ["OVERRIDES", "PARAMS"]

_HEADS = (1, 2, 3, 4, 6, 8, 12)
_DTYPES = ("bfloat16", "float8_e4m3", "float32")
_CONV = {"conv_kernel": (2, 3, 4), "conv_dtype": ("bfloat16", "float16"), "ssm_dtype": ("float32", "bfloat16")}

PARAMS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "dsv4_fp8": {"tokens_per_state": (1, 2, 4)},
    "gdn": {"num_k_heads": _HEADS, "num_v_heads": _HEADS, "head_k_dim": (1, 3), "head_v_dim": (1, 2), **_CONV},
    "gdn_cpu": {"num_k_heads": _HEADS, "num_v_heads": _HEADS, "head_k_dim": (1, 3), "head_v_dim": (1, 2), **_CONV},
    "gqa": {"num_kv_heads": _HEADS, "head_size": (1, 2, 3), "head_size_v": (1, 2, 3), "dtype": _DTYPES,
            "kv_packing": ("content", "planes")},
    "gqa_cpu_amx": {"num_kv_heads": _HEADS, "head_size": (32,), "dtype": ("bfloat16", "float8_e4m3")},
    "gqa_cpu_vec": {"num_kv_heads": _HEADS, "head_size": (1, 2, 3), "dtype": _DTYPES},
    "gqa_fp8_per_token_head": {"num_kv_heads": _HEADS, "head_size": (2, 3), "head_size_v": (2, 5)},
    "gqa_int4_per_token_head": {"num_kv_heads": _HEADS, "head_size": (2, 4), "head_size_v": (2, 4)},
    "gqa_int8_per_token_head": {"num_kv_heads": _HEADS, "head_size": (2, 3), "head_size_v": (2, 5)},
    "indexer_fp8": {"head_dim": (1, 3, 4), "tokens_per_state": (1, 2, 4)},
    "indexer_mxfp4": {"head_dim": (32,), "tokens_per_state": (1, 2, 4)},
    "kda": {"num_heads": _HEADS, "head_dim": (1, 3), **_CONV},
    "linear": {"num_heads": _HEADS, "head_dim": (1, 3), "dtype": _DTYPES},
    "mamba1": {"intermediate_size": (*_HEADS, 24), "state_size": (1, 2), **_CONV},
    "mamba2": {"num_heads": _HEADS, "head_dim": (1, 2), "n_groups": (1, 2, 4, 6), "state_size": (1, 3), **_CONV},
    "mla": {"kv_lora_rank": (1, 4), "qk_rope_head_dim": (1, 2), "dtype": _DTYPES},
    "mla_fp8_ds": {},
    "mla_nvfp4_ds": {},
    "nvfp4": {"num_kv_heads": _HEADS, "head_size": (16, 64), "scale_layout": ("linear", "sm100")},
    "short_conv": {"conv_dim": (*_HEADS, 24), "conv_kernel": (2, 4), "conv_dtype": ("bfloat16", "float16")},
    "dsv4": {"dtype": ("bfloat16", "float8_e4m3"), "tokens_per_state": (1, 2, 4)},
    "dsv41_compressor": {"head_dim": (1, 3), "least": (8, 2)},
    "dsv41_fp8": {"tokens_per_state": (1, 2, 4), "scales": ("page", "record")},
    "dsv41_nvfp4": {"tokens_per_state": (1, 2, 4), "scales": ("page", "record")},
    "dsv4_compressor": {"ratio": (4, 128), "head_dim": (1, 3), "align": (1, 7)},
    "gqa_aiter": {"num_kv_heads": _HEADS, "head_size": (16,), "dtype": _DTYPES},
    "gqa_rocm": {"num_kv_heads": _HEADS, "head_size": (16,), "dtype": _DTYPES},
    "indexer_m3": {"head_dim": (1, 3), "dtype": _DTYPES, "tokens_per_state": (1, 2, 4)},
    "kda_recover": {"num_heads": _HEADS, "head_dim": (1, 3), **_CONV},
    "kpool_ring": {"head_dim": (1, 3), "kpool": (2, 3, 4)},
    "mamba2_replay": {"num_heads": _HEADS, "head_dim": (1, 2), "n_groups": (1, 2, 4, 6), "state_size": (1, 3),
                      "window": (1, 3), "lookahead": (0, 1), **_CONV},
    "mla_fp8_per_token_head": {"kv_lora_rank": (1, 4), "qk_rope_head_dim": (1, 2)},
    "mla_int4_per_token_head": {"kv_lora_rank": (2, 4), "qk_rope_head_dim": (2, 4)},
    "mla_int8_per_token_head": {"kv_lora_rank": (1, 4), "qk_rope_head_dim": (1, 2)},
    "nvfp4_msa": {"num_kv_heads": (1, 2, 4), "head_size": (128,)},
    "ple_conv": {"conv_dim": (1, 4, 5), "conv_kernel": (2, 4), "dilation": (1, 3),
                 "conv_dtype": ("bfloat16", "float16")},
    "qsa_ring": {"head_dim": (1, 4), "ratio": (1, 2, 4), "positions": ("none", "mrope")},
    "sglang_gdn": {"num_k_heads": _HEADS, "num_v_heads": _HEADS, "head_k_dim": (1, 3), "head_v_dim": (1, 2), **_CONV},
    "sglang_indexer": {"tokens_per_state": (1, 2, 4)},
    "sglang_indexer_nvfp4": {"head_dim": (16, 32)},
    "sglang_kda": {"num_heads": _HEADS, "head_dim": (1, 3), **_CONV},
    "sglang_mamba1": {"intermediate_size": (*_HEADS, 24), "state_size": (1, 2), **_CONV},
    "sglang_mamba2": {"num_heads": _HEADS, "head_dim": (1, 2), "n_groups": (1, 2, 4, 6), "state_size": (1, 3), **_CONV},
    "sglang_mha": {"num_kv_heads": _HEADS, "head_size": (1, 2, 3), "head_size_v": (1, 2, 3), "dtype": _DTYPES},
    "sglang_mha_aiter": {"num_kv_heads": (1, 2, 4), "head_size": (16,), "head_size_v": (3, 16), "dtype": _DTYPES},
    "sglang_mha_fp4": {"num_kv_heads": _HEADS, "head_size": (64,), "recipe": ("nvfp4",),
                       "scale_layout": ("linear", "native"), "scale_unit": ("checkpoint", "six")},
    "sglang_mha_mxfp8": {"num_kv_heads": (1, 2, 4), "head_size": (32, 64), "head_size_v": (32,)},
    "sglang_mla": {"kv_lora_rank": (1, 4), "qk_rope_head_dim": (1, 2), "dtype": _DTYPES},
    "sglang_mla_fp4": {"kv_lora_rank": (12, 28), "qk_rope_head_dim": (4,)},
    "turboquant": {"num_kv_heads": _HEADS, "head_size": (8, 16), "key_bits": (8, 4, 3), "value_bits": (4,)},
    "turboquant_soa": {"num_kv_heads": _HEADS, "head_size": (8, 16), "key_bits": (8, 4, 3), "value_bits": (4,)},
    "ultraquant": {"num_kv_heads": _HEADS, "head_size": (32,)},
}  # fmt: skip
"""Choices by format and parameter."""

OVERRIDES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "gqa": {"kv_packing": ("content", "planes")},
    "nvfp4": {"scale_layout": ("linear", "sm100")},
    "dsv41_fp8": {"scales": ("page", "record")},
    "dsv41_nvfp4": {"scales": ("page", "record")},
    "sglang_mha_fp4": {"scale_layout": ("linear", "native")},
}
"""What a side may choose for itself and still convert."""
