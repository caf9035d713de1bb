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
}  # fmt: skip
"""Choices by format and parameter."""

OVERRIDES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "gqa": {"kv_packing": ("content", "planes")},
    "nvfp4": {"scale_layout": ("linear", "sm100")},
}
"""What a side may choose for itself and still convert."""
