"""What is not known is refused by name: real objects of vLLM, changed in one thing that a page depends on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from altered import changed
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SparseCacheRole,
)

from kvlayout.errors import KvLayoutError, Problem
from kvlayout.integrations.vllm import read

LAYER = "model.layers.1.self_attn.attn"
STATE = "model.layers.0.linear_attn"


def refused(config: Any, specs: Any, **words: Any) -> Problem:
    with pytest.raises(KvLayoutError) as found:
        read(config, kv_cache_specs=specs, **words)
    (problem,) = found.value.problems
    assert problem.help and problem.where.startswith("vllm")
    return problem


FULL = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
ROWS = {"block_size": 128, "num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16}
MINE = type("FullAttentionSpec", (FullAttentionSpec,), {"__module__": "mine"})


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        (CircularBufferSpec(**FULL), "KVL701", "CircularBufferSpec"),
        (HiddenStateCacheSpec(**ROWS), "KVL701", "HiddenStateCacheSpec"),
        (MINE(**FULL), "KVL701", "mine.FullAttentionSpec"),
        (FullAttentionSpec(**FULL, tokens_per_state=Fraction(1, 4)), "KVL702", "tokens_per_state"),
        (FullAttentionSpec(**FULL, kv_quant_mode=KVQuantMode.TURBOQUANT_K8V4), "KVL702", "TURBOQUANT_K8V4"),
        (FullAttentionSpec(**FULL, kv_quant_mode=KVQuantMode.NVFP4), "KVL702", "NVFP4"),
        (FullAttentionSpec(**FULL, kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD), "KVL702", "of CPU_ATTN"),
        (FullAttentionSpec(**FULL, head_size_v=32), "KVL702", "head_size_v"),
        (FullAttentionSpec(**FULL | {"num_kv_heads": 3}), "KVL704", "num_kv_heads=3"),
        (FullAttentionSpec(**FULL, state_content_bytes=100), "KVL706", "12800"),
        (FullAttentionSpec(**FULL, state_content_bytes=300), "KVL706", "38400"),
        (MLAAttentionSpec(**ROWS), "KVL704", "kv_lora_rank"),
        (SlidingWindowMLASpec(**ROWS, sliding_window=64, model_version="deepseek_v4"), "KVL702", "model_version"),
        (MLAAttentionSpec(**ROWS, cache_role=SparseCacheRole.INDEXER), "KVL702", "indexer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention(spec: Any, code: str, named: str, side: Callable[..., Any]) -> None:
    problem = refused(changed(side("qwen3_next", tp=2)), {LAYER: spec})
    assert problem.code == code and named in str(problem) and LAYER in problem.where


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"mamba_type": MambaAttentionBackendEnum.CUSTOM}, "KVL703", "CUSTOM"),
        ({"tp_replicated": True}, "KVL703", "tp_replicated"),
        ({"shapes": ((3, 512), (4, 64, 64), (4, 8, 64))}, "KVL703", "shapes"),
        ({"shapes": ((3, 500), (4, 64, 64))}, "KVL704", "key heads"),
        ({"shapes": ((4, 512), (4, 64, 64))}, "KVL704", "convolution of 4 rows"),
        ({"shapes": ((3, 512), (8, 32, 64))}, "KVL704", "linear_num_value_heads"),
        ({"mamba_type": MambaAttentionBackendEnum.LINEAR, "shapes": ((4, 64, 32),)}, "KVL703", "square"),
        ({"mamba_type": MambaAttentionBackendEnum.MAMBA1, "shapes": ((3, 64), (32, 16))}, "KVL704", "channels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states(change: dict[str, Any], code: str, named: str, side: Callable[..., Any]) -> None:
    made = side("qwen3_next", tp=2)
    problem = refused(changed(made), {STATE: replace(made.specs[STATE], **change)})
    assert problem.code == code and named in str(problem) and STATE in problem.where


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"parallel": {"prefill_context_parallel_size": 2}}, "KVL709", "prefill_context_parallel_size"),
        ({"cache": {"kv_cache_layout": None}}, "KVL709", "has not chosen"),
        ({"cache": {"kv_cache_layout": "BHLNC"}}, "KVL709", "BHLNC"),
        ({"cache": {"use_replayssm": True}}, "KVL703", "ReplaySSM"),
        ({"hf": {"linear_num_key_heads": None}}, "KVL703", "linear_num_key_heads"),
        ({"hf": {"linear_attn_config": {"short_conv_kernel_size": 4}}, "parallel": {}}, "KVL703", "q, k and v"),
        ({"hf": {"linear_conv_kernel_dim": 3}}, "KVL704", "the 3 of the model's config"),
        ({"tokens": 2}, "KVL704", "2 speculative tokens"),
        ({"parallel": {"pipeline_parallel_size": 4}}, "KVL707", "stage"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sides(change: dict[str, Any], code: str, named: str, side: Callable[..., Any]) -> None:
    made = side("qwen3_next", tp=2)
    specs = {STATE: made.specs[STATE]}
    if "linear_attn_config" in change.get("hf", {}):
        specs = {STATE: replace(made.specs[STATE], shapes=((3, 768), (4, 128, 64)))}
    problem = refused(changed(made, **change), specs)
    assert problem.code == code and named in str(problem)


def test_no_layer_and_layers_without_a_place(side: Callable[..., Any]) -> None:
    made = side("qwen3_next", tp=2)
    assert refused(changed(made), {}).code == "KVL707"
    assert refused(changed(made), {"model.self_attn.attn": made.specs[LAYER]}).code == "KVL708"
    twice = {LAYER: made.specs[LAYER], LAYER.replace("self_attn", "other_attn"): made.specs[LAYER]}
    problem = refused(changed(made), twice)
    assert problem.code == "KVL708" and "are both layer 1" in problem.message
    other = replace(made.specs[LAYER], block_size=64)
    assert refused(changed(made), [made.specs, {LAYER: other}]).code == "KVL708"


def test_a_backend_that_nobody_names_is_asked_for(side: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU several backends keep equal specs differently; here the platform is told to be one."""
    made = side("llama", tp=2)
    monkeypatch.setattr("vllm.platforms.cpu.CpuPlatform.is_cpu", lambda self: False)
    problem = refused(changed(made), made.specs)
    assert problem.code == "KVL702" and "backend=" in str(problem)
    assert refused(changed(made), made.specs, backend="HPC_ATTN").code == "KVL702"
    for backend, packing in (("FLASH_ATTN", None), ("B12X", "planes")):
        specs = dict(made.specs)
        if packing:
            specs = {name: replace(spec, num_head_slots=2, state_content_bytes=128) for name, spec in specs.items()}
        (group,) = read(changed(made), kv_cache_specs=specs, backend=backend).spec.groups
        assert group.format.name == "gqa" and group.params.get("kv_packing") == packing


@pytest.mark.parametrize(
    ("spec", "backend", "named"),
    [
        (FullAttentionSpec(**FULL, num_head_slots=2), "FLASH_ATTN", "num_head_slots"),
        (FullAttentionSpec(**FULL, state_content_bytes=256), "FLASH_ATTN", "state_content_bytes"),
        (MLAAttentionSpec(**ROWS, num_head_slots=2), "FLASHMLA", "num_head_slots"),
        (MLAAttentionSpec(**ROWS, state_content_bytes=1152), "FLASHMLA", "state_content_bytes"),
        (MLAAttentionSpec(**ROWS, cache_dtype_str="fp8_ds_mla", state_content_bytes=600), "FLASHMLA_SPARSE", "600"),
        (MLAAttentionSpec(**ROWS, kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD), "FLASHMLA", "INT8_PER_TOKEN_HEAD"),
        (MLAAttentionSpec(**ROWS), "ROCM_AITER_MLA", "ROCM_AITER_MLA"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_packings_that_a_backend_does_not_say_it_has(
    spec: Any, backend: str, named: str, side: Callable[..., Any]
) -> None:
    """Also of the bytes of a known packing: who says where they are is the backend, and it does not."""
    config = changed(side("llama", tp=2), hf={"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    problem = refused(config, {LAYER: spec}, backend=backend)
    assert problem.code == "KVL702" and named in str(problem)


def test_backends_of_one_name_on_two_platforms(side: Callable[..., Any]) -> None:
    """ROCm's AITER backend calls itself FLASH_ATTN, and keeps k and v in planes of its own."""
    made = side("llama", tp=2)
    for home, code in (
        ("vllm.v1.attention.backends.flash_attn", None),
        ("vllm.v1.attention.backends.rocm_aiter_fa", "KVL702"),
    ):
        backend = type("Backend", (), {"__module__": home, "get_name": staticmethod(lambda: "FLASH_ATTN")})
        config = changed(made)
        module = SimpleNamespace(get_attn_backend=lambda backend=backend: backend)
        config.compilation_config.static_forward_context.update(dict.fromkeys(made.specs, module))
        if code is None:
            assert read(config, kv_cache_specs=made.specs).spec.groups[0].format.name == "gqa"
        else:
            assert refused(config, made.specs).code == code


def test_heads_that_a_rank_does_not_tell(side: Callable[..., Any]) -> None:
    """One KV head on each of 4 ranks: the only one, or a half of two; other models name both."""
    made = side("llama", tp=2)
    config = changed(made, parallel={"tensor_parallel_size": 4}, hf={"num_global_key_value_heads": 1})
    problem = refused(config, made.specs)
    assert problem.code == "KVL705" and "1 KV head of 1 or 2" in problem.message
    (group,) = read(config, kv_cache_specs=made.specs, known={"attention.num_kv_heads": 1}).spec.groups
    assert group.params["num_kv_heads"] == 1
    assert refused(config, made.specs, known={"attention.num_kv_heads": 8}).code == "KVL704"
    with pytest.raises(ValueError, match=r"expected one of attention\.num_kv_heads"):
        read(config, kv_cache_specs=made.specs, known={"num_kv_heads": 1})
    nested = changed(made, parallel={"tensor_parallel_size": 4}, hf={"other": {"num_attention_groups": 1}})
    assert refused(nested, made.specs).code == "KVL705"
    listed = changed(
        made, parallel={"tensor_parallel_size": 4}, hf={"block_configs": [{"attention": {"n_kv_heads": 1}}]}
    )
    assert refused(listed, made.specs).code == "KVL705"
    config = changed(made, parallel={"tensor_parallel_size": 4})
    assert read(config, kv_cache_specs=made.specs).spec.groups[0].params["num_kv_heads"] == 2


def test_windows_with_heads_of_their_own(side: Callable[..., Any]) -> None:
    """MiMo: 4 KV heads in full layers and 8 in sliding ones, of which a rank of 8 has one in both."""
    made = side("gpt_oss", tp=2)
    config = changed(made, parallel={"tensor_parallel_size": 8}, hf={"swa_num_key_value_heads": 8})
    object.__setattr__(config.model_config, "model_arch_config", replace(
        made.config.model_config.model_arch_config, total_num_kv_heads=4
    ))  # fmt: skip
    found = read(config, kv_cache_specs=made.specs).spec.groups
    assert {group.name: group.params["num_kv_heads"] for group in found} == {"attention": 4, "sliding": 8}


def test_groups_that_a_rank_does_not_tell(side: Callable[..., Any]) -> None:
    """One group of B and C on each of 2 ranks: the only one, or one of two."""
    made = side("granitemoehybrid", tp=2)
    specs = {name: spec for name, spec in made.specs.items() if name.endswith("mixer")}
    assert refused(changed(made, hf={"mamba_n_groups": None}), specs).code == "KVL705"
    assert refused(changed(made, hf={"mamba_n_groups": 4}), specs).code == "KVL704"
    four = changed(made, parallel={"tensor_parallel_size": 4}, hf={"mamba_n_groups": 2})
    assert refused(four, specs).code == "KVL704"  # two groups over four ranks, which no Mamba2 layer takes
    for known in (1, 2):
        config = changed(made, hf={"mamba_n_groups": None})
        cache = read(config, kv_cache_specs=specs, known={"state.n_groups": known})
        assert cache.spec.groups[0].params["n_groups"] == known


def test_another_version_of_vllm(side: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = side("llama")
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    problem = refused(made.config, made.specs)
    assert problem.code == "KVL700" and "0.33.1" in str(problem)
    monkeypatch.setattr(vllm, "__version__", "0.32.7+cpu")
    assert read(made.config, kv_cache_specs=made.specs).spec.groups


def test_host_memory_is_refused_and_copies_of_other_groups_are_left_out(side: Callable[..., Any]) -> None:
    made = side("gpt_oss")
    groups = [copy.copy(group) for group in made.cache.kv_cache_groups]
    cache = copy.copy(made.cache)
    cache.kv_cache_groups = groups
    groups[0].enable_kv_transfer = False
    assert [group.name for group in read(made.config, cache).spec.groups] == ["attention"]
    groups[1].host_resident = True
    with pytest.raises(KvLayoutError) as found:
        read(made.config, cache)
    assert found.value.problems[0].code == "KVL701"
