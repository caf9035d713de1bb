"""Pages that no engine of this machine has: the cache specs that vLLM makes for GPUs, and its sizes in many dimensions.

The objects are vLLM's own; only what they are made from is given here, and the platform is told not to be a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from altered import changed
from architectures import ARCHITECTURES
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    SparseCacheRole,
)
from vllm.v1.worker.utils import allocate_kv_cache

import kvlayout
from kvlayout.errors import SpecError
from kvlayout.integrations.vllm import check_tensors, engine_of, read

LAYER = "model.layers.0.self_attn.attn"
FULL = {"block_size": 64, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
ROWS = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16}
BYTES = {"dtype": torch.uint8}
HEADS = {"num_kv_heads": 2, "head_size": 64}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.fixture
def elsewhere(side: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`side`, made here, in a process that then takes itself for one with a GPU."""

    def made(*args: Any, **words: Any) -> Any:
        here = side(*args, **words)
        monkeypatch.setattr("vllm.platforms.cpu.CpuPlatform.is_cpu", lambda self: False)
        return here

    return made


PAGES: list[tuple[str, Any, str, str, dict[str, Any]]] = [
    ("FLASH_ATTN", FullAttentionSpec(**FULL), "attention", "gqa", HEADS | {"dtype": "bfloat16"}),
    ("FLASHINFER", SlidingWindowSpec(**FULL, sliding_window=128), "sliding", "gqa", HEADS | {"dtype": "bfloat16"}),
    ("TRITON_ATTN", ChunkedLocalAttentionSpec(**FULL, attention_chunk_size=128), "chunked", "gqa",
     HEADS | {"dtype": "bfloat16"}),
    ("FLASH_ATTN_DIFFKV", FullAttentionSpec(**FULL, head_size_v=32), "attention", "gqa",
     HEADS | {"head_size_v": 32, "dtype": "bfloat16"}),
    ("FLASHINFER", FullAttentionSpec(**FULL | BYTES, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR), "attention", "gqa",
     HEADS | {"dtype": "float8_e5m2"}),
    ("TRITON_ATTN",
     FullAttentionSpec(**FULL | BYTES, kv_quant_mode=KVQuantMode.FP8_PER_TOKEN_HEAD, state_content_bytes=136),
     "attention", "gqa_fp8_per_token_head", HEADS),
    ("TRITON_ATTN",
     FullAttentionSpec(**FULL | BYTES, kv_quant_mode=KVQuantMode.INT4_PER_TOKEN_HEAD, state_content_bytes=72),
     "attention", "gqa_int4_per_token_head", HEADS),
    ("FLASHMLA", MLAAttentionSpec(**ROWS), "attention", "mla", LATENT | {"dtype": "bfloat16"}),
    ("FLASHMLA", SlidingWindowMLASpec(**ROWS, sliding_window=128), "sliding", "mla", LATENT | {"dtype": "bfloat16"}),
    ("CUTLASS_MLA",
     MLAAttentionSpec(**ROWS | BYTES, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR, cache_dtype_str="fp8_e4m3"),
     "attention", "mla", LATENT | {"dtype": "float8_e4m3"}),
    ("FLASHMLA_SPARSE",
     MLAAttentionSpec(**ROWS | BYTES, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR, cache_dtype_str="fp8_ds_mla",
                      state_content_bytes=656),
     "attention", "mla_fp8_ds", LATENT),
    ("FLASHMLA_SPARSE",
     MLAAttentionSpec(**ROWS | BYTES, kv_quant_mode=KVQuantMode.NVFP4_DS_MLA, cache_dtype_str="nvfp4_ds_mla",
                      state_content_bytes=352),
     "attention", "mla_nvfp4_ds", LATENT),
    ("DEEPSEEK_V32_INDEXER", MLAAttentionSpec(**ROWS | BYTES | {"head_size": 132}, cache_role=SparseCacheRole.INDEXER),
     "indexer", "indexer_fp8", {"head_dim": 128}),
    ("DEEPSEEK_V32_INDEXER", MLAAttentionSpec(**ROWS | BYTES | {"head_size": 68}, cache_role=SparseCacheRole.INDEXER),
     "indexer", "indexer_mxfp4", {"head_dim": 128}),
]  # fmt: skip
"""Backend, spec of a rank of 2; kind, format and parameters of the whole model."""


@pytest.mark.parametrize(("backend", "spec", "kind", "format", "params"), PAGES, ids=lambda value: str(value)[:20])
def test_attention_pages(
    backend: str, spec: Any, kind: str, format: str, params: dict[str, Any], elsewhere: Callable[..., Any]
) -> None:
    hf = LATENT | {"index_head_dim": 128}
    config = changed(elsewhere("llama", tp=2), cache={"kv_cache_layout": "NHD", "cache_dtype": "fp8_e5m2"}, hf=hf)
    cache = read(config, kv_cache_specs={LAYER: spec}, backend=backend)
    (group,) = cache.spec.groups
    assert (group.name, group.format.name, dict(group.params)) == (kind, format, params)
    assert str(cache.engine) == f"tp=2,order=LBNHC,conv=SD,{kind}.block=64"
    assert cache.spec.page(group, cache.engine).nbytes == spec.page_size_bytes


def test_states_of_gpu_kernels(elsewhere: Callable[..., Any]) -> None:
    """The delta-net states that a CPU keeps the other way round; and the one kind that no small model here has."""
    made = elsewhere("qwen3_next", tp=2)
    state = "model.layers.0.linear_attn"
    (group,) = read(changed(made), kv_cache_specs={state: made.specs[state]}).spec.groups
    assert group.format.name == "gdn"
    linear = MambaSpec(
        block_size=64, shapes=((4, 64, 64),), dtypes=(torch.float32,), mamba_type=MambaAttentionBackendEnum.LINEAR
    )
    (group,) = read(changed(made), kv_cache_specs={state: linear}).spec.groups
    assert group.format.name == "linear"
    assert dict(group.params) == {"num_heads": 8, "head_dim": 64, "dtype": "float32"}


def test_speculative_tokens_lengthen_the_window(elsewhere: Callable[..., Any]) -> None:
    made = elsewhere("qwen3_next", tp=2)
    state = "model.layers.0.linear_attn"
    spec = replace(made.specs[state], shapes=((5, 512), (4, 64, 64)))
    cache = read(changed(made, tokens=2), kv_cache_specs={state: spec})
    assert cache.engine.spec_tokens == 2 and cache.spec.groups[0].params["conv_kernel"] == 4


def test_context_parallel_ranks(elsewhere: Callable[..., Any]) -> None:
    made = elsewhere("llama", tp=2)
    words = {"decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 16}
    config = changed(made, parallel=words, hf=LATENT)
    engine = engine_of(config, kv_cache_specs={LAYER: MLAAttentionSpec(**ROWS)}, backend="FLASHMLA")
    assert str(engine) == "tp=2,dcp=2,interleave=16,conv=SD,attention.block=64"
    whole = MLAAttentionSpec(**ROWS, dcp_sharded=False)
    with pytest.raises(SpecError, match=r"KVL702.*dcp_sharded"):
        read(config, kv_cache_specs={LAYER: whole}, backend="FLASHMLA")


def test_pipeline_stages_are_vllms_own(side: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five layers in four stages: vLLM gives the third one two, where an even division gives the first one two."""
    monkeypatch.setitem(ARCHITECTURES, "llama5", ARCHITECTURES["llama"] | {"num_hidden_layers": 5})
    stages = [side("llama5", tp=2, stage=stage, pipeline_parallel_size=4) for stage in range(4)]
    config = stages[0].config
    configs = get_kv_cache_configs(config, [stage.specs for stage in stages], [1 << 24] * 4)
    cache = read(config, configs)
    assert cache.engine.stages == "1+1+2+1" and cache.spec.groups[0].layers == (0, 1, 2, 3, 4)
    assert str(cache.engine) == "tp=2,pp=4,stages=1+1+2+1,conv=SD,attention.block=128"
    layout = config.cache_config.get_resolved_kv_cache_layout()
    for stage, placed in enumerate(configs):
        views = allocate_kv_cache(placed, torch.device("cpu"), layout, [128])
        assert check_tensors(cache, 2 * stage + 1, views) == ()
        assert {each.code for each in check_tensors(cache, (2 * stage + 2) % 8, views)} == {"KVL711"}
    with pytest.raises(SpecError, match="KVL707"):
        read(config, configs[:3])
    one = side("llama5")
    alone = read(one.config, one.cache)
    plan = kvlayout.slice_for_tp_transfer(cache.spec, cache.engine, alone.engine, dst_spec=alone.spec)
    assert {rank for ranks in plan.sources(0).values() for rank in ranks} == set(range(8))


def test_two_groups_under_one_block_table(elsewhere: Callable[..., Any]) -> None:
    """DeepSeek-V3.2: vLLM keeps the pages of attention and indexer in one group, which for a spec are two formats."""
    made = elsewhere("deepseek_v3", tp=2)
    sparse = MLAAttentionSpec(
        **ROWS | BYTES, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR, cache_dtype_str="fp8_ds_mla", state_content_bytes=656
    )
    indexer = MLAAttentionSpec(**ROWS | BYTES | {"head_size": 132}, cache_role=SparseCacheRole.INDEXER)
    specs: dict[str, Any] = {f"model.layers.{layer}.self_attn.attn": sparse for layer in range(4)}
    specs |= {f"model.layers.{layer}.self_attn.indexer.k_cache": indexer for layer in range(4)}
    (placed,) = get_kv_cache_configs(made.config, [specs], [1 << 24])
    (group,) = placed.kv_cache_groups
    assert type(group.kv_cache_spec).__name__ == "UniformTypeKVCacheSpecs"
    config = changed(made, hf={"index_head_dim": 128})
    names = {"attention": "FLASHMLA_SPARSE", "indexer": "DEEPSEEK_V32_INDEXER"}
    cache = read(config, placed, backend=names)
    assert {group.name: group.format.name for group in cache.spec.groups} == {
        "attention": "mla_fp8_ds", "indexer": "indexer_fp8",
    }  # fmt: skip
    assert cache.vllm_groups == {"attention": 0, "indexer": 0}
    layout = made.config.cache_config.get_resolved_kv_cache_layout()
    views = allocate_kv_cache(placed, torch.device("cpu"), layout, [64])
    assert check_tensors(cache, 0, views) == ()
    one, other = "model.layers.0.self_attn.attn", "model.layers.3.self_attn.indexer.k_cache"
    moved = views[one].storage_offset() + 656
    views[other] = torch.as_strided(views[other], views[other].shape, views[other].stride(), moved)
    cache = read(config, placed, backend=names)
    assert {each.code for each in check_tensors(cache, 0, views)} == {"KVL715", "KVL716"}
