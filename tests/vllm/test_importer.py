"""Specs and engines read from vLLM's own objects, for models of many architectures, as every rank of two sizes says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from architectures import ARCHITECTURES

import kvlayout
from kvlayout.integrations.vllm import engine_of, read
from kvlayout.spec.model import Spec

GQA = {"num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16"}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}
MAMBA1 = {
    "intermediate_size": 512,
    "state_size": 16,
    "conv_kernel": 4,
    "conv_dtype": "bfloat16",
    "ssm_dtype": "float32",
}
MAMBA2 = {
    "num_heads": 8, "head_dim": 64, "n_groups": 1, "state_size": 64, "conv_kernel": 4, "conv_dtype": "bfloat16",
    "ssm_dtype": "float32",
}  # fmt: skip
GDN = {
    "num_k_heads": 4, "num_v_heads": 8, "head_k_dim": 64, "head_v_dim": 64, "conv_kernel": 4, "conv_dtype": "bfloat16",
    "ssm_dtype": "float32",
}  # fmt: skip
KDA = {"num_heads": 4, "head_dim": 64, "conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "float32"}
ALL, EVEN, ODD = (0, 1, 2, 3), (0, 2), (1, 3)

MEANT: dict[str, dict[str, tuple[str, dict[str, Any], tuple[int, ...]]]] = {
    "llama": {"attention": ("gqa_cpu", GQA, ALL)},
    "qwen3": {"attention": ("gqa_cpu", GQA, ALL)},
    "gpt_oss": {"sliding": ("gqa_cpu", GQA, EVEN), "attention": ("gqa_cpu", GQA, ODD)},
    "gemma3": {
        "sliding_0": ("gqa_cpu", GQA, (0, 3)),
        "sliding_1": ("gqa_cpu", GQA, (1, 4)),
        "attention": ("gqa_cpu", GQA, (2, 5)),
    },
    "gemma4": {
        "sliding_0": ("gqa_cpu", GQA, (0, 3)),
        "sliding_1": ("gqa_cpu", GQA, (1, 4)),
        "attention": ("gqa_cpu", GQA | {"num_kv_heads": 1, "head_size": 128}, (2, 5)),
    },
    "gemma3n": {
        "sliding_0": ("gqa_cpu", GQA, (0,)),
        "sliding_1": ("gqa_cpu", GQA, (1,)),
        "sliding_2": ("gqa_cpu", GQA, (3,)),
        "attention": ("gqa_cpu", GQA, (2,)),
    },
    "llama4": {
        "chunked_0": ("gqa_cpu", GQA, (0,)),
        "chunked_1": ("gqa_cpu", GQA, (1,)),
        "chunked_2": ("gqa_cpu", GQA, (2,)),
        "attention": ("gqa_cpu", GQA, (3,)),
    },
    "deepseek_v3": {"attention": ("mla", MLA, ALL)},
    "mamba": {"state": ("mamba1", MAMBA1, ALL)},
    "falcon_mamba": {"state": ("mamba1", MAMBA1, ALL)},
    "mamba2": {"state": ("mamba2", MAMBA2 | {"n_groups": 2}, ALL)},
    "jamba": {
        "state_0": ("mamba1", MAMBA1, (0,)),
        "state_1": ("mamba1", MAMBA1, (1,)),
        "state_2": ("mamba1", MAMBA1, (3,)),
        "attention": ("gqa_cpu", GQA, (2,)),
    },
    "granitemoehybrid": {"state": ("mamba2", MAMBA2, EVEN), "attention": ("gqa_cpu", GQA, ODD)},
    "falcon_h1": {"attention": ("gqa_cpu", GQA, ALL), "state": ("mamba2", MAMBA2, ALL)},
    "nemotron_h": {
        "state_0": ("mamba2", MAMBA2 | {"n_groups": 2}, (0,)),
        "state_1": ("mamba2", MAMBA2 | {"n_groups": 2}, (2,)),
        "attention": ("gqa_cpu", GQA, (1,)),
    },
    "zamba2": {
        "attention": ("gqa_cpu", GQA | {"num_kv_heads": 4, "head_size": 128}, ODD),
        "state_0": ("mamba2", MAMBA2 | {"n_groups": 2}, EVEN),
        "state_1": ("mamba2", MAMBA2 | {"n_groups": 2}, ODD),
    },
    "qwen3_next": {"state": ("gdn_cpu", GDN, EVEN), "attention": ("gqa_cpu", GQA, ODD)},
    "lfm2": {
        "state": ("short_conv", {"conv_dim": 256, "conv_kernel": 3, "conv_dtype": "bfloat16"}, EVEN),
        "attention": ("gqa_cpu", GQA, ODD),
    },
    "kimi_linear": {"state": ("kda", KDA, EVEN), "attention": ("mla", MLA, ODD)},
}
"""Format, parameters of the whole model and layers of each group, read off the architectures' configs."""


def groups(spec: Spec) -> dict[str, tuple[str, dict[str, Any], tuple[int, ...]]]:
    found = {}
    for group in spec.groups:
        name = group.format.name
        name = "gqa_cpu" if name in ("gqa_cpu_vec", "gqa_cpu_amx") else name  # which of them is the machine's
        found[group.name] = name, dict(group.params), group.layers
    return found


def test_every_architecture_is_asked_about() -> None:
    assert set(MEANT) == set(ARCHITECTURES) and len(MEANT) >= 12


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_whole_model_is_read_from_any_rank(name: str, tp: int, side: Callable[..., Any]) -> None:
    for rank in range(tp):
        made = side(name, tp=tp, rank=rank)
        cache = read(made.config, made.cache)
        assert groups(cache.spec) == MEANT[name]
        assert set(cache.layers) == set(made.specs)
        assert cache.engine.tp == tp and cache.spec.num_layers == ARCHITECTURES[name]["num_hidden_layers"]
        assert set(cache.placements) == set(made.specs)
        named = {layer for group in made.cache.kv_cache_groups for layer in group.layer_names}
        for group, index in cache.vllm_groups.items():
            layers = {layer for layer, (of, _) in cache.layers.items() if of == group}
            assert layers <= set(made.cache.kv_cache_groups[index].layer_names) and layers <= named
        for group in cache.spec.groups:
            page = cache.spec.page(group, cache.engine)
            (nbytes,) = {
                made_spec(made, layer).page_size_bytes for layer, (of, _) in cache.layers.items() if of == group.name
            }
            assert page.nbytes == nbytes


def made_spec(made: Any, layer: str) -> Any:
    """vLLM's spec of a layer, as placed."""
    (spec,) = (group.kv_cache_spec for group in made.cache.kv_cache_groups if layer in group.layer_names)
    return getattr(spec, "kv_cache_specs", {layer: spec})[layer]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_plan_between_two_sizes_of_an_engine_is_proved(name: str, side: Callable[..., Any]) -> None:
    one, two = (read(made.config, made.cache) for made in (side(name), side(name, tp=2)))
    for ours, theirs in ((one, two), (two, one)):
        plan = kvlayout.slice_for_tp_transfer(ours.spec, ours.engine, theirs.engine, dst_spec=theirs.spec)
        assert kvlayout.check(plan).proved
        assert [group.name for group in plan.groups] == list(MEANT[name])


@pytest.mark.parametrize("conv", ["DS", "SD"])
def test_orientation_and_block_of_a_hybrid(conv: str, side: Callable[..., Any]) -> None:
    made = side("qwen3_next", tp=2, conv=conv)
    engine = engine_of(made.config, made.cache)
    word = "" if conv == "DS" else ",conv=SD"
    assert str(engine) == f"tp=2{word},attention.block=384,state.page=98304"


def test_specs_alone_give_groups_of_like_pages(side: Callable[..., Any]) -> None:
    """As the layers of this process say, with or without being named: one group for all windows of one width."""
    made = side("gemma3")
    for cache in (read(made.config, kv_cache_specs=made.specs), read(made.config)):
        assert {name: layers for name, (_, _, layers) in groups(cache.spec).items()} == {
            "sliding": (0, 1, 3, 4), "attention": (2, 5),
        }  # fmt: skip
        assert cache.vllm_groups == {} and cache.placements == {}
    assert kvlayout.from_vllm(made.config, made.cache).num_layers == 6


def test_speculative_tokens_and_float32(side: Callable[..., Any]) -> None:
    made = side("granitemoehybrid", tp=2, dtype="float32")
    spec = read(made.config, made.cache).spec
    state, attention = spec.groups
    assert state.params["conv_dtype"] == state.params["ssm_dtype"] == attention.params["dtype"] == "float32"
    assert attention.format.name == "gqa_cpu_vec"
