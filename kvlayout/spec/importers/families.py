"""Which family a model type belongs to. A type that is not here is refused: a page that is nearly right is wrong.

A model of a known family needs one line in `FAMILIES`, and one in `defaults` where its config class has defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvlayout.spec.importers import attention, compressed, hybrid, sparse
from kvlayout.spec.importers.document import Config
from kvlayout.spec.importers.groups import Group

__all__ = ["FAMILIES", "Family", "family_name"]

Family = Callable[[Config], list[Group]]

_PLAIN = (
    "apertus", "arcee", "cohere", "ernie4_5", "ernie4_5_moe", "gemma", "glm", "glm4", "glm4_moe", "gpt_neox",
    "granite", "granitemoe", "internlm3", "llama", "minimax_m2", "ministral3", "mistral", "mixtral", "olmo",
    "olmo2", "olmoe", "phi", "phi3", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(_PLAIN, attention.plain),
    **dict.fromkeys(("mimo", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), attention.qwen),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), attention.qwen),
    **dict.fromkeys(("cohere2", "gemma2", "gemma3_text", "gpt_oss", "olmo3", "step3p7"), attention.striped),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), attention.latent_only),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), sparse.sparse_mla),
    "deepseek_v4": compressed.deepseek_v4,
    "falcon": attention.falcon,
    "gemma4_text": attention.gemma4,
    "gpt_bigcode": attention.gpt_bigcode,
    "llama4_text": attention.llama4,
    **dict.fromkeys(("mimo_v2", "mimo_v2_flash"), attention.mimo_v2),
    "minimax_m3": sparse.minimax_m3,
    "nemotron-nas": attention.nemotron_nas,
    **dict.fromkeys(("mamba", "falcon_mamba"), hybrid.mamba1_only),
    "mamba2": hybrid.mamba2_only,
    "jamba": hybrid.jamba,
    "nemotron_h": hybrid.nemotron_h,
    "granitemoehybrid": hybrid.granite_hybrid,
    "bamba": hybrid.bamba,
    "falcon_h1": hybrid.falcon_h1,
    "zamba2": hybrid.zamba2,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), hybrid.qwen_gdn),
    "olmo_hybrid": hybrid.olmo_hybrid,
    "kimi_linear": hybrid.kimi_linear,
    **dict.fromkeys(("lfm2", "lfm2_moe"), hybrid.lfm2),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), hybrid.minimax),
    "bailing_moe_linear": hybrid.bailing_linear,
    "bailing_hybrid": hybrid.bailing_hybrid,
}

# Older spellings, and names under which a text model is found alone or without a type of its own.
_SAME = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "bailing_moe_v2_5": "bailing_hybrid",
    "minimax_m1_text": "minimax_m1",
    "minimax_m3_vl": "minimax_m3",
    "MiniMaxText01": "minimax_text_01",
    "MiniMaxM1": "minimax_m1",
}


def family_name(model_type: str) -> str:
    """The one name of a model type.

    >>> family_name("gemma3")
    'gemma3_text'
    """
    return _SAME.get(model_type, model_type)
