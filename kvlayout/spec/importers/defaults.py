"""What the config class of a model type sets where config.json says nothing: configs are saved without their defaults.

Facts read off the config classes of transformers 5.24, of the fields that decide a cache page and of no others. A field
that is given as null is not absent: there the families say what holds.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULTS"]

Defaults = Mapping[str, int | str | bool]


def _sizes(hidden: int, layers: int, heads: int, **more: int | str | bool) -> Defaults:
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, **more}


def _mla(hidden: int, layers: int, heads: int, **more: int | str | bool) -> Defaults:
    return _sizes(hidden, layers, heads, kv_lora_rank=512, qk_rope_head_dim=64, **more)


_MAMBA: Defaults = {"hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, "expand": 2, "conv_kernel": 4}
_GDN: Defaults = {
    "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
_MAMBA2_NAMES: Defaults = {
    "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip

DEFAULTS: Mapping[str, Defaults] = {
    "apertus": _sizes(4096, 32, 32),
    "arcee": _sizes(2560, 32, 32),
    "bailing_hybrid": _mla(2560, 42, 32, head_dim=128, short_conv_kernel_size=4, layer_group_size=6),
    "bamba": _sizes(4096, 32, 32, num_key_value_heads=8, **_MAMBA2_NAMES),
    "cohere": _sizes(8192, 40, 64),
    "cohere2": _sizes(8192, 40, 64, sliding_window=4096, sliding_window_pattern=4),
    "deepseek_v2": _mla(4096, 32, 32),
    "deepseek_v3": _mla(7168, 61, 128),
    "deepseek_v32": _mla(7168, 61, 128, index_head_dim=128),
    "deepseek_v4": _sizes(4096, 43, 64, head_dim=512, sliding_window=128, index_head_dim=128),
    "ernie4_5": _sizes(1024, 18, 16, num_key_value_heads=2, head_dim=128),
    "ernie4_5_moe": _sizes(2560, 28, 20, num_key_value_heads=4),
    "falcon": _sizes(4544, 32, 71),
    "falcon_h1": _sizes(4096, 32, 32, num_key_value_heads=8, mamba_d_ssm=1024, **_MAMBA2_NAMES),
    "falcon_mamba": _MAMBA,
    "gemma": _sizes(3072, 28, 16, num_key_value_heads=16, head_dim=256),
    "gemma2": _sizes(2304, 26, 8, num_key_value_heads=4, head_dim=256, sliding_window=4096, sliding_window_pattern=2),
    "gemma3_text": _sizes(2304, 26, 8, num_key_value_heads=4, head_dim=256, sliding_window=4096,
                          sliding_window_pattern=6),
    "gemma4_text": _sizes(2304, 30, 8, num_key_value_heads=4, head_dim=256, sliding_window=512, global_head_dim=512),
    "glm": _sizes(4096, 40, 32, num_key_value_heads=2, head_dim=128),
    "glm4": _sizes(4096, 40, 32, num_key_value_heads=2, head_dim=128),
    "glm4_moe": _sizes(4096, 46, 96, num_key_value_heads=8),
    "glm4_moe_lite": _mla(2048, 47, 20),
    "glm_moe_dsa": _mla(6144, 78, 64, index_head_dim=128),
    "gpt_bigcode": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_oss": _sizes(2880, 36, 64, num_key_value_heads=8, head_dim=64, sliding_window=128, sliding_window_pattern=2),
    "granite": _sizes(4096, 32, 32),
    "granitemoe": _sizes(4096, 32, 32),
    "granitemoehybrid": _sizes(4096, 32, 32, **_MAMBA2_NAMES),
    "internlm3": _sizes(4096, 48, 32, num_key_value_heads=2, head_dim=128),
    "jamba": _sizes(4096, 32, 32, num_key_value_heads=8, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16,
                    mamba_d_conv=4, mamba_expand=2),
    "kimi_linear": _mla(2304, 27, 32, linear_num_heads=32, linear_head_dim=128, linear_conv_kernel_dim=4),
    "lfm2": _sizes(2560, 32, 32, num_key_value_heads=8, conv_L_cache=3),
    "lfm2_moe": _sizes(2048, 32, 32, num_key_value_heads=8, conv_L_cache=3),
    "llama": _sizes(4096, 32, 32),
    "llama4_text": _sizes(5120, 48, 40, num_key_value_heads=8, head_dim=128, attention_chunk_size=8192,
                          no_rope_layer_interval=4),
    "mamba": _MAMBA,
    "mamba2": {"hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128,
               "expand": 2, "conv_kernel": 4, "n_groups": 8},
    "mimo_v2_flash": _sizes(4096, 48, 64, num_key_value_heads=4, head_dim=192, v_head_dim=128, sliding_window=129),
    "minimax": _sizes(4096, 32, 32, num_key_value_heads=8),
    "minimax_m2": _sizes(3072, 62, 48, num_key_value_heads=8, head_dim=128),
    "mistral": _sizes(4096, 32, 32, num_key_value_heads=8, sliding_window=4096),
    "ministral3": _sizes(4096, 34, 32, num_key_value_heads=8, head_dim=128),
    "mixtral": _sizes(4096, 32, 32, num_key_value_heads=8),
    "nemotron_h": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                   "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
                   "mamba_ssm_cache_dtype": "float32"},
    "olmo": _sizes(4096, 32, 32),
    "olmo2": _sizes(4096, 32, 32),
    "olmo3": _sizes(4096, 32, 32, sliding_window=4096, sliding_window_pattern=4),
    "olmoe": _sizes(2048, 16, 16),
    "olmo_hybrid": _sizes(3840, 32, 30, linear_conv_kernel_dim=4),
    "phi": _sizes(2048, 24, 32),
    "phi3": _sizes(3072, 32, 32),
    "qwen2": _sizes(4096, 32, 32, num_key_value_heads=32, sliding_window=4096, max_window_layers=28),
    "qwen2_moe": _sizes(2048, 24, 16, num_key_value_heads=16, sliding_window=4096, max_window_layers=28),
    "qwen2_vl_text": _sizes(8192, 80, 64, num_key_value_heads=8, sliding_window=4096, max_window_layers=80),
    "qwen2_5_vl_text": _sizes(8192, 80, 64, num_key_value_heads=8, sliding_window=4096, max_window_layers=80),
    "qwen3": _sizes(4096, 32, 32, num_key_value_heads=32, head_dim=128, sliding_window=4096, max_window_layers=28),
    "qwen3_moe": _sizes(2048, 24, 32, num_key_value_heads=4, sliding_window=4096, max_window_layers=0),
    "qwen3_next": _sizes(2048, 48, 16, num_key_value_heads=2, **_GDN),
    "qwen3_5_text": _sizes(4096, 32, 16, num_key_value_heads=4, **_GDN),
    "qwen3_5_moe_text": _sizes(2048, 40, 16, num_key_value_heads=2, **_GDN),
    "qwen3_vl_text": _sizes(4096, 32, 32, num_key_value_heads=32, head_dim=128),
    "qwen3_vl_moe_text": _sizes(2048, 24, 16, num_key_value_heads=16),
    "seed_oss": _sizes(4096, 64, 80, num_key_value_heads=8, head_dim=128),
    "smollm3": _sizes(2048, 36, 16, num_key_value_heads=4),
    "starcoder2": _sizes(3072, 30, 24, num_key_value_heads=2),
    "zamba2": _sizes(2560, 54, 32, mamba_d_state=64, mamba_d_conv=4, mamba_expand=2, mamba_ngroups=1, n_mamba_heads=8),
}  # fmt: skip
