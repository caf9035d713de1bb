"""What engine families decide by themselves: vLLM's block sizes and page padding, and what SGLang stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused, SpecError
from kvlayout.spec.families import GroupFacts, Sizing, vllm_sizing
from kvlayout.spec.model import Spec

# Tokens of a block and pad bytes of a state page at tp 1, 2, 4 and 8, worked out from vLLM 0.32's
# platforms/interface.py (_align_hybrid_block_size) for 2-byte caches and models' own state dtypes.
WORKED: dict[str, list[tuple[int, int]]] = {
    "qwen3-next-80b-a3b": [(544, 16384), (544, 8192), (272, 4096), (144, 10240)],
    "qwen3.5-27b": [(784, 4096), (784, 2048), (784, 1024), (400, 8704)],
    "qwen3.5-397b-a17b": [(2096, 24576), (2096, 12288), (1056, 14336), (528, 7168)],
    "nemotron-nano-9b-v2": [(1312, 57344), (1312, 28672), (1312, 14336), (1312, 7168)],
    "nemotron-h-8b": [(1040, 4096), (1040, 2048), (1040, 1024), (1040, 512)],
    "nemotron-3-nano-30b-a3b": [(2096, 12288), (2096, 6144), (1056, 7168), (528, 3584)],
    "falcon-h1-7b": [(1568, 11264), (1568, 4096), (784, 512), (400, 2816)],
    "granite-4.0-h-small": [(528, 14848), (528, 6656), (528, 2560), (528, 512)],
    "kimi-linear-48b-a3b": [(1920, 40960), (1024, 94208), (512, 47104), (256, 23552)],
}


def pages(spec: Spec, **words: Any) -> dict[str, tuple[int | None, int]]:
    """Tokens of a block and bytes of a page, by group."""
    engine = kvlayout.Engine(family="vllm@0.32", **words)
    found = {group.name: spec.page(group, engine) for group in spec.groups}
    return {name: (page.block, page.nbytes) for name, page in found.items()}


@pytest.mark.parametrize("name", WORKED)
def test_hybrid_blocks_and_pads_are_those_of_the_worked_table(name: str) -> None:
    spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
    for tp, (block, pad) in zip((1, 2, 4, 8), WORKED[name], strict=True):
        found = pages(spec, tp=tp)
        states = [group for group in spec.groups if found[group.name][0] is None]
        (attention,) = (group for group in spec.groups if group not in states)
        assert found[attention.name][0] == block
        for state in states:
            assert found[state.name][1] == found[attention.name][1]
            assert found[state.name][1] - spec.page(state, kvlayout.Engine(tp=tp)).nbytes == pad


def test_engines_of_two_sizes_have_other_blocks_and_still_convert() -> None:
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    plan = kvlayout.slice_for_tp_transfer(
        spec, kvlayout.Engine(tp=8, family="vllm@0.32"), kvlayout.Engine(tp=1, family="vllm@0.32")
    )
    attention, state = plan.groups
    assert (attention.src.block, attention.dst.block) == (144, 544)
    assert (attention.src_blocks, attention.dst_blocks) == (34, 9)
    assert (state.src_blocks, state.dst_blocks) == (1, 1)


def test_a_configured_block_that_is_larger_stays() -> None:
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    assert pages(spec, block=1024)["attention"][0] == 1024
    assert pages(spec, block=64)["attention"][0] == 576  # a multiple of the configured block, not of 16


FULL, WINDOW = GroupFacts("full", 131072, 16), GroupFacts("local", 262144, 16, window=1024)


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        # one type of attention: pages keep their sizes, whatever they are
        ([FULL, GroupFacts("wide", 262144, 16)], {"full": Sizing(16), "wide": Sizing(16)}),
        # a page that divides the largest gets more tokens
        ([FULL, WINDOW], {"full": Sizing(32), "local": Sizing(16)}),
        # one that does not is padded
        ([FULL._replace(nbytes=98304), WINDOW], {"full": Sizing(16, 262144), "local": Sizing(16)}),
        # MLA has no pad; beside a sliding window vLLM then allocates all as full attention
        (
            [GroupFacts("mla", 18432, 16, latent=True), GroupFacts("local", 32768, 16, window=128)],
            {"mla": Sizing(16), "local": Sizing(16)},
        ),
        # a state takes the attention's page, and a smaller group of attention gets more tokens
        (
            [GroupFacts("full", 16 * 2048, 16), GroupFacts("local", 16 * 1024, 16, window=128),
             GroupFacts("state", 1_000_000, None)],
            {"full": Sizing(496), "local": Sizing(992), "state": Sizing(496, 496 * 2048)},
        ),
        # blocks of the groups' own: pages lie side by side
        (
            [GroupFacts("mla", 37376, 64, fixed=True, latent=True), GroupFacts("ring", 4096, None),
             GroupFacts("index", 2112, 16)],
            {"mla": Sizing(64), "ring": Sizing(16), "index": Sizing(16)},
        ),
        # layers left out of quantization: the quantized page grows until it covers a kernel block of theirs
        (
            [GroupFacts("full", 16 * 1152, 16), GroupFacts("first", 16 * 2048, 16, unquantized=True)],
            {"full": Sizing(32), "first": Sizing(16, 32 * 1152)},
        ),
    ],
)  # fmt: skip
def test_pages_become_equal_as_vllm_makes_them(groups: list[GroupFacts], wanted: dict[str, Sizing]) -> None:
    assert vllm_sizing("engine", 16, groups) == wanted


def test_mla_that_does_not_divide_is_refused() -> None:
    groups = [
        GroupFacts("mla", 16 * 1152, 16, latent=True), GroupFacts("index", 16 * 132, 16, latent=True),
        GroupFacts("state", 30000, None),
    ]  # fmt: skip
    with pytest.raises(PlanRefused) as caught:
        vllm_sizing("engine", 16, groups)
    assert caught.value.unloadable and [each.code for each in caught.value.problems] == ["KVL209"]
    with pytest.raises(PlanRefused, match="KVL209"):
        vllm_sizing("engine", 16, [GroupFacts("a", 17, 16), GroupFacts("b", 16, None)])


def test_kernel_blocks_follow_the_computed_block() -> None:
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    for tp, tile in ((1, 32), (4, 16), (8, 16)):
        found = spec.page(spec.group("attention"), kvlayout.Engine(tp=tp, family="vllm@0.32", kernel_block=64))
        plain = kvlayout.Engine(tp=tp, block=found.block, kernel_block=tile)
        assert found is spec.page(spec.group("attention"), plain)


@pytest.mark.parametrize(
    "words",
    [
        {"page": 65536},
        {"attention.block": 64},
        {"attention.page": 65536},
    ],
)
def test_what_a_family_computes_nobody_names(words: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="KVL153"):
        kvlayout.Engine(family="vllm@0.32", **words)


def test_a_window_stands_in_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(
        "kvlayout: 1\nmodel: m\nsource: a test\nnum_layers: 4\ngroups:\n"
        "  full: {format: gqa, layers: [3], params: {num_kv_heads: 4, head_size: 64, dtype: bfloat16}}\n"
        "  local: {format: gqa, layers: 3, window: 128, params: {num_kv_heads: 8, head_size: 64, dtype: bfloat16}}\n"
    )
    spec = kvlayout.load(path)
    assert spec.group("local").window == 128 and spec.group("full").window is None
    assert pages(spec) == {"full": (32, 32 * 1024), "local": (16, 32 * 1024)}
    assert pages(spec, tp=8) == {"full": (16, 16 * 256), "local": (16, 16 * 256)}


SGLANG = {
    "qwen3-next-80b-a3b": {"attention": "sglang_mha", "state": "sglang_gdn"},
    "nemotron-h-8b": {"attention": "sglang_mha", "state": "sglang_mamba2"},
    "jamba-v0.1": {"attention": "sglang_mha", "state": "sglang_mamba1"},
    "kimi-linear-48b-a3b": {"attention": "sglang_mla", "state": "sglang_kda"},
    "deepseek-v3.2": {"attention": "mla_fp8_ds", "indexer": "sglang_indexer"},
    "llama-3.1-8b-nvfp4": {"attention": "sglang_mha_fp4"},
    "gemma-3-27b": {"attention": "sglang_mha", "sliding": "sglang_mha"},
}


@pytest.mark.parametrize("name", SGLANG)
def test_sglang_keeps_its_own_pages(name: str) -> None:
    """The family is the overrides that one would write, and vLLM's pages convert into them."""
    spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
    sglang = kvlayout.Engine(tp=2, block=64, family="sglang@0.5")
    assert {group.name: spec.format_name(group, sglang) for group in spec.groups} == SGLANG[name]
    recipe = ",attention.recipe=nvfp4" if "nvfp4" in name else ""
    formats = ",".join(f"{group}.format={format}" for group, format in SGLANG[name].items())
    named = kvlayout.Engine.parse(f"tp=2,block=64,order=NHD,{formats}{recipe}")
    for group in spec.groups:
        assert spec.page(group, sglang) == spec.page(group, named)
    vllm = kvlayout.Engine(tp=4, family="vllm@0.32")
    for src, dst in ((vllm, sglang), (sglang, vllm)):
        assert kvlayout.check(kvlayout.slice_for_tp_transfer(spec, src, dst)).proved


def test_a_cache_dtype_is_a_word_of_the_family() -> None:
    spec = kvlayout.load(specs_dir() / "models" / "llama-3.1-8b.yaml")
    group = spec.group("attention")
    sglang, vllm = (
        kvlayout.Engine(family=family, kv_dtype=word)
        for family, word in (("sglang@0.5", "fp4_e2m1"), ("vllm@0.32", "nvfp4"))
    )
    assert (spec.format_name(group, sglang), spec.format_name(group, vllm)) == ("sglang_mha_fp4", "nvfp4")
    for family, word in (("sglang@0.5", "nvfp4"), ("vllm@0.32", "fp4_e2m1")):
        with pytest.raises(PlanRefused, match="KVL156"):
            spec.page(group, kvlayout.Engine(family=family, kv_dtype=word))


def test_an_override_of_the_format_is_what_sglang_keeps() -> None:
    """What a family does not know an override names, and what it does know an override may change."""
    spec = kvlayout.load(specs_dir() / "models" / "llama-3.1-8b.yaml")
    engine = kvlayout.Engine.parse("family=sglang@0.5,block=128,attention.format=sglang_mha_mxfp8")
    assert spec.format_name(spec.group("attention"), engine) == "sglang_mha_mxfp8"
    native = kvlayout.Engine.parse(
        "family=sglang@0.5,attention.format=sglang_mha_fp4,attention.recipe=nvfp4,attention.scale_layout=native"
    )
    assert spec.page(spec.group("attention"), native).buffers
