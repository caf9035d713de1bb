"""Two formats of one model: a page of one engine becomes a page of another, wherever the bytes hold the same values.

Fields of two formats that convert are called alike and lie along the same axes, so the ids that the oracle gives them
are the same, and what the destination must hold is the oracle's own page of its format. Where values differ, however
equal the bytes look, the plan is refused and both encodings are named.
"""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
import pytest
from oracles.parts import Side
from oracles.positions import FORMATS, page_bytes, replay, source_page

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir

from .harness import spec_of

One = tuple[str, dict[str, Any], dict[str, Any]]
"""Format, parameters, engine."""

HEADS = {"num_kv_heads": 4, "head_size": 16, "dtype": "bfloat16"}
UNEQUAL = {"num_kv_heads": 4, "head_size": 24, "head_size_v": 16, "dtype": "bfloat16"}
FP4 = {"num_kv_heads": 4, "head_size": 64}
MSA = {"num_kv_heads": 2, "head_size": 128}
MXFP8 = {"num_kv_heads": 2, "head_size": 64, "head_size_v": 32}
MLA = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "dtype": "bfloat16"}
BITS = {"num_kv_heads": 4, "head_size": 8, "value_bits": 4}
CONV = {"conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "float32"}
MAMBA1 = {"intermediate_size": 24, "state_size": 2} | CONV
MAMBA2 = {"num_heads": 8, "head_dim": 2, "n_groups": 1, "state_size": 3} | CONV
GROUPS = MAMBA2 | {"n_groups": 4}
GDN = {"num_k_heads": 4, "num_v_heads": 8, "head_k_dim": 3, "head_v_dim": 2} | CONV
KDA = {"num_heads": 4, "head_dim": 3} | CONV
TWO, FOUR = {"tp": 2}, {"tp": 4}
TOKENS = {"order": "NHD"}

CASES: list[tuple[One, One]] = [
    # vLLM's packed heads to SGLang's two buffers, in either order of either, with heads of unequal sides and few heads
    (("gqa", HEADS, TWO), ("sglang_mha", HEADS, FOUR | TOKENS)),
    (("gqa", HEADS, TWO | TOKENS), ("sglang_mha", HEADS, {"tp": 8} | TOKENS)),
    (("gqa", UNEQUAL, {"tp": 1, "block": 16}), ("sglang_mha", UNEQUAL, TWO | TOKENS | {"block": 64})),
    (("gqa", UNEQUAL | {"kv_packing": "planes"}, TWO), ("sglang_mha", UNEQUAL, {"tp": 1, "order": "HND"})),
    # interiors of ROCm backends
    (("gqa", HEADS, TWO | TOKENS), ("gqa_rocm", HEADS, FOUR)),
    (("gqa", HEADS, {"tp": 1, "block": 32}), ("gqa_aiter", HEADS, TWO | {"block": 16})),
    (("gqa_rocm", HEADS, TWO), ("gqa_aiter", HEADS, FOUR | {"block": 48})),
    (("gqa_aiter", HEADS, TWO), ("sglang_mha_aiter", HEADS, {"tp": 1} | TOKENS)),
    (("sglang_mha_aiter", UNEQUAL, TWO), ("sglang_mha", UNEQUAL, FOUR | TOKENS)),
    # NVFP4 in four runs, in slots of a head, and in four buffers with plain or with the kernels' own scales
    (("nvfp4", MSA, TWO | TOKENS), ("nvfp4_msa", MSA, {"tp": 1})),
    (("nvfp4", FP4 | {"scale_layout": "sm100"}, TWO), ("sglang_mha_fp4", FP4 | {"recipe": "nvfp4"}, FOUR | TOKENS)),
    (
        ("nvfp4", FP4, TWO),
        ("sglang_mha_fp4", FP4 | {"recipe": "nvfp4", "scale_layout": "native"}, FOUR | TOKENS | {"block": 32}),
    ),
    # scales in rows and in the kernels' chunks, which pages of 128 tokens have
    (
        ("sglang_mha_mxfp8", MXFP8, TWO | {"block": 64}),
        ("sglang_mha_mxfp8", MXFP8 | {"scale_layout": "chunks"}, {"tp": 1, "block": 128}),
    ),
    (("turboquant", BITS | {"key_bits": 8}, TWO), ("turboquant_soa", BITS | {"key_bits": 8}, FOUR | {"block": 32})),
    (("dsv41_fp8", {}, TWO | {"block": 32}), ("dsv41_fp8", {"scales": "record"}, {"tp": 1, "block": 64})),
    (("mla", MLA, TWO), ("sglang_mla", MLA, {"tp": 1, "block": 64})),
    (("indexer_fp8", {"head_dim": 128}, {"block": 64}), ("sglang_indexer", {}, TWO | {"block": 64})),
    # states: one slot of two buffers, windows always channels outside, but KDA's
    (
        ("dsv41_compressor", {"head_dim": 3}, {"spec_tokens": 4}),
        ("dsv41_compressor", {"head_dim": 3, "least": 2}, TWO | {"spec_tokens": 3}),
    ),
    (("mamba1", MAMBA1, TWO | {"conv": "SD"}), ("sglang_mamba1", MAMBA1, FOUR)),
    (("mamba2", MAMBA2, TWO | {"conv": "DS"}), ("sglang_mamba2", MAMBA2, FOUR)),
    (("mamba2", GROUPS, {"tp": 4, "conv": "SD", "spec_tokens": 2}), ("sglang_mamba2", GROUPS, {"tp": 1, "conv": "SD"})),
    (("gdn", GDN, {"tp": 1, "conv": "DS"}), ("sglang_gdn", GDN, TWO)),
    (("gdn", GDN, {"tp": 4, "conv": "SD", "spec_tokens": 1}), ("sglang_gdn", GDN, TWO)),
    (("kda", KDA, TWO | {"conv": "DS"}), ("sglang_kda", KDA, FOUR)),
    (("kda", KDA, TWO | {"conv": "SD", "spec_tokens": 1}), ("sglang_kda", KDA, {"tp": 1})),
]


def name(case: tuple[One, One]) -> str:
    return f"{case[0][0]}-{case[1][0]}"


def held(side: One, rank: int, blocks: int, rows: int | None) -> Any:
    """The oracle's page, without the convolution rows that the other side lacks."""
    format, params, engine = side
    page = source_page(format, params, engine, rank, blocks=blocks)
    if rows is not None:
        own = FORMATS[format](params, Side.of(engine, rank))
        for part in own.fields.values():
            if "row" in part.coords:
                late = part.where[part.where[:, part.coords.index("row")] >= rows]
                page[0, late[:, -1:] + np.arange(part.atom)] = -1
    return page


@pytest.mark.parametrize("case", [*CASES, *[(b, a) for a, b in CASES]], ids=name)
def test_every_byte_arrives(case: tuple[One, One]) -> None:
    src, dst = case
    pages = [FORMATS[format](params, Side.of(engine, 0)) for format, params, engine in case]
    span = lcm(pages[0].span, pages[1].span)
    src_blocks, dst_blocks = [span // page.span if span else 1 for page in pages]
    rows = None if pages[0].rows is None else min(page.rows or 0 for page in pages)
    plan = kvlayout.slice_for_tp_transfer(spec_of(*src[:2]), Engine(**src[2]), Engine(**dst[2]), spec_of(*dst[:2]))
    assert kvlayout.check(plan).proved
    group = plan.group("cache")
    assert (group.src_blocks, group.dst_blocks) == (src_blocks, dst_blocks)
    assert [group.src.nbytes, group.dst.nbytes] == [page_bytes(*side) for side in case]
    sources = {rank: source_page(*src, rank, blocks=src_blocks) for rank in range(src[2].get("tp", 1))}
    for rank in range(dst[2].get("tp", 1)):
        wanted = held(dst, rank, dst_blocks, rows)
        assert (replay(plan.runs("cache", rank), sources, wanted.shape) == wanted).all(), rank


MOVED = [
    case for case in CASES if case[1][0] in ("sglang_mha", "gqa_aiter", "sglang_mha_fp4", "sglang_gdn", "sglang_kda")
]


@pytest.mark.parametrize("case", [*MOVED, *[(b, a) for a, b in MOVED]], ids=name)
def test_bound_memory_holds_what_the_runs_say(case: tuple[One, One]) -> None:
    """Buffers of a page are arrays of their own, and a move writes each where the plan's page has it."""
    src, dst = case
    plan = kvlayout.slice_for_tp_transfer(spec_of(*src[:2]), Engine(**src[2]), Engine(**dst[2]), spec_of(*dst[:2]))
    group, rank, random = plan.group("cache"), dst[2].get("tp", 1) - 1, np.random.default_rng(7)
    pages = {
        each: random.integers(0, 256, (group.src_blocks, group.src.nbytes), np.uint8)
        for each in range(src[2].get("tp", 1))
    }
    target = np.full((group.dst_blocks, group.dst.nbytes), 0xAA, np.uint8)
    wanted = target.copy()
    for source, a, at, b, to, size in plan.runs("cache", rank).tolist():
        wanted[b, to : to + size] = pages[source][a, at : at + size]

    def parts(page: Any, buffers: tuple[tuple[str, int], ...]) -> Any:
        ends = np.cumsum([size for _, size in buffers])
        cut = {label: page[:, end - size : end].copy() for (label, size), end in zip(buffers, ends, strict=True)}
        return cut or page

    into = parts(target, group.dst.buffers)
    sources = {each: {"cache": {0: parts(page, group.src.buffers)}} for each, page in pages.items()}
    move = kvlayout.bind(plan, dst_rank=rank, src=sources, dst={"cache": {0: into}})
    move({"cache": (list(range(group.src_blocks)), list(range(group.dst_blocks)))})
    held = np.concatenate(list(into.values()), axis=1) if group.dst.buffers else into
    assert (held == wanted).all()


def test_a_side_of_a_model_stores_another_format() -> None:
    """The override of a group's format keeps its parameters."""
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    other = {"attention.format": "sglang_mha", "state.format": "sglang_gdn"}
    vllm, sglang = Engine(tp=2, conv="DS"), Engine(tp=4, order="NHD", **other)
    for sides in ((vllm, sglang), (sglang, vllm)):
        plan = kvlayout.slice_for_tp_transfer(spec, *sides)
        assert kvlayout.check(plan).proved
        for group in plan.groups:
            buffers = {name for page in (group.src, group.dst) for name, _ in page.buffers}
            assert buffers == ({"k", "v"} if group.name == "attention" else {"conv", "temporal"})


FP8 = {"num_kv_heads": 4, "head_size": 32}
MX16 = FP4 | {"recipe": "fp4_mx_block16"}
NVFP4 = FP4 | {"recipe": "nvfp4"}
ROW = {"kv_lora_rank": 28, "qk_rope_head_dim": 4}

REFUSED: list[tuple[One, One, str, list[str]]] = [
    # rotated before quantisation, or not
    (("gqa_int4_per_token_head", FP8, {}), ("gqa_int8_per_token_head", FP8, {}), "k_data", ["int4x2", "int8"]),
    (("ultraquant", FP4, {}), ("nvfp4", FP4, {}), "k_data", ["e2m1x2_rotated", "e2m1x2"]),
    (("ultraquant", FP4, {}), ("sglang_mha_fp4", MX16, {}), "k_data", ["e2m1x2_rotated", "e2m1x2"]),
    (("mla_int4_per_token_head", ROW, {}), ("sglang_mla_fp4", ROW, {}), "latent", ["int4x2", "e2m1x2"]),
    # codes of another width, norms divided by another norm, fp8 of another bias
    (("turboquant", BITS | {"key_bits": 4}, {}), ("turboquant", BITS | {"key_bits": 3}, {}), "k_data",
     ["turboquant_k4", "turboquant_k3"]),
    (("turboquant", BITS | {"key_bits": 4}, {}), ("turboquant_soa", BITS | {"key_bits": 4}, {}), "k_norm",
     ["float16", "float16_by_code_norm"]),
    (("turboquant", BITS | {"key_bits": 8}, {}), ("turboquant", BITS | {"key_bits": 8, "fp8_keys": "e4b15"}, {}),
     "k_data", ["float8_e4m3", "e4b15"]),
    (("turboquant", BITS | {"key_bits": 3}, {}),
     ("turboquant", BITS | {"key_bits": 3, "value_bits": 3}, {}), "v_data", ["turboquant_v4", "turboquant_v3"]),
    (("gqa", HEADS | {"dtype": "float8_e4m3"}, {}),
     ("gqa_rocm", HEADS | {"dtype": "float8_e4m3", "encoding": "float8_e4m3fnuz"}, {}), "k",
     ["float8_e4m3", "float8_e4m3fnuz"]),
    # the same e4m3 under scales of another kind
    (("gqa_fp8_per_token_head", FP8, {}), ("sglang_mha_mxfp8", FP8, {}), "k_scale", ["float32", "ue8m0"]),
    (("mla_fp8_per_token_head", ROW, {}), ("mla_int8_per_token_head", ROW, {}), "latent", ["float8_e4m3", "int8"]),
    # two recipes of four bits, and scales in another unit
    (("sglang_mha_fp4", MX16, {}), ("sglang_mha_fp4", NVFP4, {}), "k_scale", ["ue8m0", "float8_e4m3"]),
    (("nvfp4", FP4, {}), ("sglang_mha_fp4", MX16, {}), "v_scale", ["float8_e4m3", "ue8m0"]),
    (("nvfp4", FP4, {}), ("sglang_mha_fp4", NVFP4 | {"scale_unit": "six"}, {}), "k_scale",
     ["float8_e4m3", "e4m3_over_six"]),
    (("indexer_mxfp4", {"head_dim": 128}, {}), ("sglang_indexer_nvfp4", {}, {}), "key_scale", ["ue8m0", "float8_e4m3"]),
    (("dsv41_fp8", {}, {}), ("dsv41_nvfp4", {}, {}), "row", ["float8_e4m3", "e2m1x2"]),
    (("dsv4", {"dtype": "bfloat16"}, {}), ("dsv4", {"dtype": "float8_e4m3"}, {}), "row", ["bfloat16", "float8_e4m3"]),
    (("indexer_m3", {"head_dim": 64, "dtype": "bfloat16"}, {}), ("indexer_fp8", {"head_dim": 128}, {}), "key",
     ["bfloat16", "float8_e4m3"]),
]  # fmt: skip


@pytest.mark.parametrize(("src", "dst", "field", "tags"), REFUSED)
def test_other_values_are_refused(src: One, dst: One, field: str, tags: list[str]) -> None:
    for a, b, order in ((src, dst, tags[::-1]), (dst, src, tags)):
        with pytest.raises(kvlayout.PlanRefused) as refused:
            kvlayout.slice_for_tp_transfer(spec_of(*a[:2]), Engine(**a[2]), Engine(**b[2]), spec_of(*b[:2]))
        assert not refused.value.unloadable
        (said,) = [each for each in refused.value.problems if each.code == "KVL502" and f"'{field}'" in each.message]
        assert [str(text).rsplit(maxsplit=1)[1] for text in (said.expected, said.got)] == order


@pytest.mark.parametrize(
    ("src", "dst", "field"),
    [
        (("dsv4", {"dtype": "float8_e4m3"}, {}), ("dsv41_fp8", {}, {}), "row_scale"),
        (("dsv4_fp8", {}, {}), ("dsv41_fp8", {}, {}), "nope"),
        (("mla", ROW | {"dtype": "float8_e4m3"}, {}), ("mla_fp8_per_token_head", ROW, {}), "rope"),
        (("gqa", HEADS, {}), ("turboquant", HEADS | {"head_size": 16, "key_bits": 8, "value_bits": 4}, {}), "v_scale"),
        (("mamba2", GROUPS, {}), ("mamba2_replay", GROUPS | {"window": 2}, {}), "ring_x"),
        (("kda", KDA, {}), ("kda_recover", KDA, {}), "correction"),
    ],
)
def test_what_one_side_lacks_is_refused(src: One, dst: One, field: str) -> None:
    """Pages without scales, rings or records are not those with them."""
    dst = dst[0], {key: value for key, value in dst[1].items() if dst[0] != "turboquant" or key != "dtype"}, dst[2]
    for a, b in ((src, dst), (dst, src)):
        with pytest.raises(kvlayout.PlanRefused, match=f"KVL501.*'{field}'") as refused:
            kvlayout.slice_for_tp_transfer(spec_of(*a[:2]), Engine(**a[2]), Engine(**b[2]), spec_of(*b[:2]))
        assert not refused.value.unloadable


@pytest.mark.parametrize(
    ("format", "params", "tokens"),
    [
        ("kpool_ring", {"head_dim": 2, "kpool": 4}, (0, 1)),
        ("kpool_ring", {"head_dim": 2, "kpool": 4}, (4, 5)),
        ("qsa_ring", {"head_dim": 2, "ratio": 4}, (0, 1)),
        ("dsv41_compressor", {"head_dim": 2}, (6, 7)),
        ("kda_recover", KDA, (1, 2)),
        ("mamba2_replay", GROUPS | {"window": 2, "lookahead": 1}, (0, 1)),
    ],
)
def test_rings_of_two_lengths_are_refused(format: str, params: dict[str, Any], tokens: tuple[int, int]) -> None:
    """Position p is in slot p % length: one length's slots are not another's."""
    short, long = (Engine(spec_tokens=count) for count in tokens)
    for sides in ((short, long), (long, short)):
        with pytest.raises(kvlayout.PlanRefused, match=r"KVL503.*(slot|step)") as refused:
            kvlayout.slice_for_tp_transfer(spec_of(format, params), *sides)
        assert not refused.value.unloadable


def test_rings_of_one_length_convert_though_the_speculative_tokens_differ() -> None:
    spec = spec_of("kpool_ring", {"head_dim": 2, "kpool": 4})
    assert kvlayout.check(kvlayout.slice_for_tp_transfer(spec, Engine(spec_tokens=1), Engine(spec_tokens=4))).proved


UNLOADABLE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("KVL222", "gqa_rocm", HEADS, TOKENS),
    ("KVL222", "turboquant", BITS | {"key_bits": 8}, TOKENS),
    ("KVL222", "ultraquant", FP4, TOKENS),
    ("KVL222", "nvfp4_msa", MSA, TOKENS),
    ("KVL224", "gqa_aiter", HEADS, {"block": 24}),
    ("KVL225", "sglang_mha_aiter", HEADS, {"block": 12}),
    ("KVL228", "kpool_ring", {"head_dim": 2, "kpool": 2}, {"spec_tokens": 31}),
    ("KVL235", "dsv41_compressor", {"head_dim": 2}, {"spec_tokens": 31}),
    ("KVL229", "mamba2_replay", MAMBA2 | {"window": 2}, TWO),
    ("KVL230", "sglang_mha_mxfp8", MXFP8, {"block": 128}),
    ("KVL230", "sglang_mha_mxfp8", MXFP8 | {"scale_layout": "chunks"}, {"block": 64}),
    ("KVL231", "sglang_mha_mxfp8", MXFP8, {"tp": 8, "dcp": 2}),
    ("KVL211", "sglang_mha_fp4", NVFP4 | {"scale_layout": "native"}, {"block": 6}),
]
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("KVL221", "gqa_aiter", HEADS | {"head_size_v": 32}),
    ("KVL221", "ultraquant", FP4 | {"head_size_v": 32}),
    ("KVL223", "gqa_rocm", HEADS | {"head_size": 12}),
    ("KVL226", "turboquant", BITS | {"key_bits": 3, "head_size": 4}),
    ("KVL227", "turboquant_soa", BITS | {"key_bits": 8, "value_bits": 3}),
    ("KVL232", "sglang_indexer", {"head_dim": 64}),
    ("KVL233", "nvfp4_msa", FP4),
    ("KVL234", "sglang_mha_fp4", FP4 | {"scale_layout": "native"}),
    ("KVL212", "sglang_mha_fp4", {"num_kv_heads": 2, "head_size": 16, "recipe": "nvfp4", "scale_layout": "native"}),
    ("KVL213", "mla_int4_per_token_head", {"kv_lora_rank": 4, "qk_rope_head_dim": 1}),
    ("KVL216", "sglang_mha_mxfp8", MXFP8 | {"head_size_v": 16}),
    ("KVL210", "sglang_mla_fp4", {"kv_lora_rank": 4, "qk_rope_head_dim": 4}),
    ("KVL220", "kda_recover", KDA | {"ssm_dtype": "float16"}),
]


@pytest.mark.parametrize(("code", "format", "params", "words"), UNLOADABLE)
def test_engines_that_keep_no_such_page(code: str, format: str, params: dict[str, Any], words: dict[str, Any]) -> None:
    spec = spec_of(format, params)
    with pytest.raises(kvlayout.PlanRefused, match=code) as refused:
        spec.page(spec.groups[0], Engine(**words))
    assert refused.value.unloadable


@pytest.mark.parametrize(("code", "format", "params"), WRONG)
def test_parameters_that_no_engine_has(code: str, format: str, params: dict[str, Any]) -> None:
    spec = spec_of(format, params)
    with pytest.raises(kvlayout.SpecError, match=code):
        spec.page(spec.groups[0], Engine())


def test_only_the_indexer_is_padded_as_its_cache_is() -> None:
    """DeepSeek-V4: 64 keys of 132 bytes, up to 576 beside the packed cache and to 512 beside the plain one."""
    pages = [
        spec_of("indexer_fp8", {"head_dim": 128, "tokens_per_state": 4, "align": align}) for align in (1, 512, 576)
    ]
    sizes = [spec.page(spec.groups[0], Engine(block=256)).nbytes for spec in pages]
    assert sizes == [8448, 8704, 8640]
    plan = kvlayout.slice_for_tp_transfer(pages[1], Engine(block=256), Engine(block=256), pages[2])
    assert sum(plan.runs("cache", 0)[:, 5]) == 8448
