"""Every shipped format: the names and defaults that others script against, its pages, and its examples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from oracles.parts import Ints
from oracles.positions import FORMATS, NotLoadable, page_bytes, positions

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.ir import Leaf, leaves, span
from kvlayout.spec.formats import Format, load_format, shipped_formats
from kvlayout.spec.grammar import KvDtypesFile
from kvlayout.spec.model import spec_of_format
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

from .draws import STATES
from .harness import Pair, assert_right, spec_of

NEEDED = None

CONTRACT: dict[str, tuple[dict[str, Any], str]] = {
    "gqa": (
        {
            "num_kv_heads": NEEDED, "head_size": NEEDED, "head_size_v": "head_size", "dtype": NEEDED,
            "kv_packing": "content",
        },
        "k v",
    ),
    "gqa_cpu_vec": (dict.fromkeys(("num_kv_heads", "head_size", "dtype")), "k v"),
    "gqa_cpu_amx": ({"num_kv_heads": NEEDED, "head_size": NEEDED, "dtype": "bfloat16"}, "k v"),
    **{
        f"gqa_{x}_per_token_head": (
            {"num_kv_heads": NEEDED, "head_size": NEEDED, "head_size_v": "head_size"}, "k_data k_scale v_data v_scale",
        )
        for x in ("int8", "fp8", "int4")
    },
    "nvfp4": (
        {"num_kv_heads": NEEDED, "head_size": NEEDED, "scale_layout": "linear"}, "k_data k_scale v_data v_scale",
    ),
    "mla": ({"kv_lora_rank": NEEDED, "qk_rope_head_dim": NEEDED, "dtype": NEEDED}, "latent rope"),
    "mla_fp8_ds": ({"kv_lora_rank": "512", "qk_rope_head_dim": "64"}, "latent latent_scale rope"),
    "mla_nvfp4_ds": ({"kv_lora_rank": "512", "qk_rope_head_dim": "64"}, "latent latent_scale rope"),
    "indexer_fp8": ({"head_dim": NEEDED, "tokens_per_state": "1", "align": "1"}, "key key_scale"),
    "indexer_mxfp4": ({"head_dim": NEEDED, "tokens_per_state": "1", "align": "1"}, "key key_scale"),
    "dsv4_fp8": ({"tokens_per_state": "1"}, "nope rope scale scale_pad"),
    "mamba1": (
        dict.fromkeys(("intermediate_size", "state_size", "conv_kernel", "conv_dtype", "ssm_dtype")), "conv_x temporal",
    ),
    "mamba2": (
        dict.fromkeys(("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "conv_dtype", "ssm_dtype")),
        "conv_x conv_b conv_c temporal",
    ),
    **{
        name: (
            dict.fromkeys(
                ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel", "conv_dtype", "ssm_dtype")
            ),
            "conv_q conv_k conv_v temporal",
        )
        for name in ("gdn", "gdn_cpu")
    },
    "kda": (
        dict.fromkeys(("num_heads", "head_dim", "conv_kernel", "conv_dtype", "ssm_dtype")),
        "conv_q conv_k conv_v temporal",
    ),
    "short_conv": (dict.fromkeys(("conv_dim", "conv_kernel", "conv_dtype")), "conv_x"),
    "linear": (dict.fromkeys(("num_heads", "head_dim", "dtype")), "temporal"),
    **{
        name: (
            {
                "num_kv_heads": NEEDED, "head_size": NEEDED, "head_size_v": "head_size", "dtype": NEEDED,
                "encoding": "dtype",
            },
            "k v",
        )
        for name in ("gqa_rocm", "gqa_aiter", "sglang_mha", "sglang_mha_aiter")
    },
    **{
        name: (
            {
                "num_kv_heads": NEEDED, "head_size": NEEDED, "head_size_v": "head_size", "key_bits": NEEDED,
                "value_bits": NEEDED, "fp8_keys": "e4m3",
            },
            "k_data v_data v_scale v_zero",
        )
        for name in ("turboquant", "turboquant_soa")
    },
    **{
        name: (
            {"num_kv_heads": NEEDED, "head_size": NEEDED, "head_size_v": "head_size"}, "k_data k_scale v_data v_scale",
        )
        for name in ("ultraquant", "nvfp4_msa", "sglang_mha_fp4", "sglang_mha_mxfp8")
    },
    **{
        f"mla_{x}_per_token_head": ({"kv_lora_rank": NEEDED, "qk_rope_head_dim": NEEDED}, "latent latent_scale")
        for x in ("int8", "fp8", "int4")
    },
    "dsv4": ({"dtype": NEEDED, "tokens_per_state": "1"}, "row"),
    "dsv41_fp8": ({"tokens_per_state": "1", "scales": "page", "align": "512"}, "row row_scale"),
    "dsv41_nvfp4": ({"tokens_per_state": "1", "scales": "page", "align": "512"}, "row row_scale"),
    "dsv4_compressor": ({"ratio": NEEDED, "head_dim": "512", "align": "576"}, "kv_state score_state"),
    "indexer_m3": ({"head_dim": NEEDED, "dtype": NEEDED, "tokens_per_state": "1"}, "key"),
    "kpool_ring": ({"head_dim": NEEDED, "kpool": NEEDED}, "key gate"),
    "qsa_ring": ({"head_dim": NEEDED, "ratio": NEEDED, "positions": "none"}, "key"),
    "sglang_indexer_nvfp4": ({"head_dim": "128"}, "key key_scale"),
    "dsv41_compressor": ({"head_dim": "512", "least": "8"}, "kv_state score_state"),
    "ple_conv": (dict.fromkeys(("conv_dim", "conv_kernel", "dilation", "conv_dtype")), "conv_x"),
    "sglang_mla_fp4": ({"kv_lora_rank": NEEDED, "qk_rope_head_dim": NEEDED}, "latent latent_scale"),
    "sglang_indexer": ({"head_dim": "128", "tokens_per_state": "1", "align": "1"}, "key key_scale"),
}  # fmt: skip
"""Parameters with their defaults, and fields, of each format; a format may have more parameters, with defaults."""

CONTRACT |= {f"sglang_{name}": CONTRACT[name] for name in ("mla", "mamba1", "mamba2", "gdn", "kda")}
CONTRACT["mamba2_replay"] = (
    CONTRACT["mamba2"][0] | {"window": NEEDED, "lookahead": "0", "ring_dtype": "conv_dtype"},
    CONTRACT["mamba2"][1] + " ring_x ring_dt ring_b",
)
CONTRACT["kda_recover"] = (
    CONTRACT["kda"][0] | {"record_dtype": "conv_dtype"}, CONTRACT["kda"][1] + " correction key_gate",
)  # fmt: skip

WHOLE = {
    "dsv4_fp8", "dsv4", "dsv41_fp8", "dsv41_nvfp4", "dsv4_compressor", "sglang_mha_mxfp8", "gqa_cpu_vec", "gqa_cpu_amx"
}  # fmt: skip
"""Formats of tokens that context-parallel ranks do not share out."""

CONTEXT_PARALLEL = {name for name in CONTRACT if name not in STATES} - WHOLE
ENUMS: dict[tuple[str, str], tuple[str | int, ...]] = {
    ("gqa", "kv_packing"): ("content", "planes"),
    ("nvfp4", "scale_layout"): ("linear", "sm100"),
    ("turboquant", "key_bits"): (8, 4, 3),
    ("turboquant", "value_bits"): (4, 3),
    ("turboquant", "fp8_keys"): ("e4m3", "e4b15"),
    ("dsv4_compressor", "ratio"): (4, 128),
    ("dsv41_fp8", "scales"): ("page", "record"),
    ("dsv41_nvfp4", "scales"): ("page", "record"),
    ("dsv41_compressor", "least"): (8, 2),
    ("qsa_ring", "positions"): ("none", "mrope"),
    ("mamba2_replay", "lookahead"): (0, 1),
    ("sglang_mha_fp4", "recipe"): ("fp4_mx_block16", "nvfp4"),
    ("sglang_mha_fp4", "scale_layout"): ("linear", "native"),
    ("sglang_mha_fp4", "scale_unit"): ("checkpoint", "six"),
    ("sglang_mha_mxfp8", "scale_layout"): ("rows", "chunks"),
}
ENUMS |= {("turboquant_soa", name): ENUMS["turboquant", name] for name in ("key_bits", "value_bits", "fp8_keys")}

SHIPPED = {name: load_format(path) for name, path in shipped_formats().items()}
EXAMPLES = [(name, dict(example)) for name, fmt in SHIPPED.items() for example in fmt.file.examples]


def sides(format: str) -> list[dict[str, Any]]:
    """Engines of a format: what its page may depend on, at sizes that most examples load."""
    if format in STATES:
        return [
            {"tp": tp, "conv": conv, "spec_tokens": rows} for tp, conv, rows in product((1, 2, 8), ("DS", "SD"), (0, 2))
        ]
    return [
        {"tp": tp, "order": order, "block": block}
        for tp, order, block in product((1, 2, 3, 8), ("LBHNC", "LBNHC"), (16, 48))
    ]


def size_and_fields(format: str, params: dict[str, Any], side: dict[str, Any]) -> tuple[int, set[str]]:
    spec = spec_of(format, params)
    tree = spec.page(spec.group("cache"), kvlayout.Engine(**side)).tree
    return span(tree), {leaf.field for leaf in leaves(tree)}


def test_the_shipped_formats_are_those_of_the_contract() -> None:
    assert set(SHIPPED) == set(CONTRACT) == set(FORMATS)
    assert len(EXAMPLES) >= len(SHIPPED)


@pytest.mark.parametrize("format", CONTRACT)
def test_parameters_and_defaults(format: str) -> None:
    declared = SHIPPED[format].file.params
    defaults = {name: None if decl.default is None else decl.default.text for name, decl in declared.items()}
    contract, _ = CONTRACT[format]
    assert {name: default for name, default in defaults.items() if name in contract} == contract
    assert all(default is not None for name, default in defaults.items() if name not in contract)
    for name, decl in declared.items():
        assert decl.enum == ENUMS.get((format, name))
        assert (decl.type == "dtype") == name.endswith("dtype")


@pytest.mark.parametrize("format", CONTRACT)
def test_a_source_is_named_and_examples_are_given(format: str) -> None:
    file = SHIPPED[format].file
    assert file.source.strip() and file.examples
    text = shipped_formats()[format].read_text(encoding="utf-8")
    assert text.startswith("#"), "a format says in prose what its page is"


@pytest.mark.parametrize("format", CONTRACT)
def test_context_parallel_formats(format: str) -> None:
    sharded = {axis.shard for axis in SHIPPED[format].file.axes.values()}
    assert ("cp" in sharded) == (format in CONTEXT_PARALLEL)
    assert any(axis.grows for axis in SHIPPED[format].file.axes.values()) == (format not in STATES)


def fields_of(params: dict[str, Any]) -> set[str]:
    """Fields that only some parameters of a format bring."""
    norm = {"k_norm"} if params.get("key_bits", 8) < 8 else set[str]()
    return norm | {"positions"} if params.get("positions") == "mrope" else norm


@pytest.mark.parametrize(("format", "params"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_examples_expand_to_the_oracles_pages(format: str, params: dict[str, Any]) -> None:
    """Page bytes and fields at every size and orientation; an example loads on one rank at least."""
    fields = set(CONTRACT[format][1].split()) | fields_of(params)
    loaded = set()
    for side in sides(format):
        try:
            wanted = page_bytes(format, params, side)
        except NotLoadable:
            with pytest.raises(kvlayout.PlanRefused) as refused:
                size_and_fields(format, params, side)
            assert refused.value.unloadable
            continue
        assert size_and_fields(format, params, side) == (wanted, fields)
        loaded.add(side["tp"])
    assert loaded >= {1, 2}


ALSO_CALLED = {
    "khead": ("k_head",), "kdim": ("k_dim", "kdim"), "vhead": ("v_head",), "vdim": ("v_dim", "vdim"),
    "hdim": ("hdim", "k_dim", "v_dim"), "state": ("state", "token"),
}  # fmt: skip
"""What the oracle calls an axis, where it has another name for it."""


def offsets(leaf: Leaf, axes: Sequence[str], extents: Sequence[int]) -> Ints:
    """Byte offset of every atom of a leaf, as an array along `axes`."""
    at = np.full(extents, leaf.base)
    for axis, weight, count, stride in leaf.digits:
        place = axes.index(axis)
        along = np.arange(extents[place]) // weight % count * stride
        at += along.reshape([-1 if i == place else 1 for i in range(len(extents))])
    return at


@pytest.mark.parametrize(("format", "params"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_atom_lies_where_the_oracle_says(format: str, params: dict[str, Any]) -> None:
    """Also what no pair of engines shows, because both sides permute it alike, as the scales of an NVFP4 MLA row."""
    spec = spec_of(format, params)
    loaded = 0
    for side in sides(format)[:4]:
        try:
            found = positions(format, params, side, 0)
        except NotLoadable:
            continue
        loaded += 1
        tree = spec.page(spec.group("cache"), kvlayout.Engine(**side)).tree
        for leaf in leaves(tree):
            part = found[leaf.field]
            assert canonical(leaf.tag) == canonical(part.tag)
            names = {next(n for n in ALSO_CALLED.get(axis, (axis,)) if n in part.coords): axis for axis in leaf.axes}
            columns = [part.coords.index(name) for name in names]
            extents = [int(part.where[:, column].max()) + 1 for column in columns]
            inner = [column for column in range(len(part.coords)) if column not in columns]
            atoms = np.zeros(len(part.where), np.int64)  # atoms of the oracle inside one atom of the leaf
            for column in inner:
                atoms = atoms * part.extent[column] + part.where[:, column]
            assert leaf.nbytes == part.atom * prod(part.extent[column] for column in inner)
            begins = offsets(leaf, list(names.values()), extents)
            assert begins.size * leaf.nbytes == len(part.where) * part.atom
            at = begins[tuple(part.where[:, column] for column in columns)] + atoms * part.atom
            assert (at == part.where[:, -1]).all(), leaf.field
    assert loaded >= 2


def canonical(tag: str) -> str:
    return {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}.get(tag, tag)


@pytest.mark.parametrize(("format", "params"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_examples_plan(format: str, params: dict[str, Any]) -> None:
    """From one rank to two and back, oriented otherwise on the other side; big examples by their proof alone."""
    other = {"conv": "SD"} if format in STATES else {"order": "LBNHC"}
    try:
        page_bytes(format, params, other)
    except NotLoadable:
        other = {}
    pair = Pair(format, params, {"tp": 1}, {"tp": 2, **other})
    small = page_bytes(format, params, pair.src) <= 100_000
    for each in (pair, pair.back):
        found = assert_right(each, each.ranks if small else [])
        assert kvlayout.check(found).proved


KV_DTYPES = validated(KvDtypesFile, read_source(specs_dir() / "kv_dtypes.yaml")).kv_dtypes
TOKEN_BYTES = {
    "bfloat16": 512, "float16": 512, "fp8": 256, "fp8_e4m3": 256, "fp8_e5m2": 256, "int8_per_token_head": 264,
    "fp8_per_token_head": 264, "int4_per_token_head": 136, "nvfp4": 144, "nvfp4_4over6": 144, "turboquant_k8v4": 196,
    "turboquant_4bit_nc": 134, "turboquant_k3v4_nc": 118, "turboquant_3bit_nc": 102, "ultraquant_4bit": 136,
    "bf16": 512, "fp4_e2m1": 144,
}  # fmt: skip
"""Bytes of one head of 128 of one token under vLLM's cache dtype words, and SGLang's."""
ROW_BYTES = {
    "bfloat16": 1152, "float16": 1152, "fp8": 576, "fp8_e4m3": 576, "fp8_e5m2": 576, "fp8_ds_mla": 656,
    "nvfp4_ds_mla": 352, "int8_per_token_head": 584, "fp8_per_token_head": 584, "int4_per_token_head": 296,
    "bf16": 1152, "fp4_e2m1": 324,
}  # fmt: skip
"""Bytes of one MLA row of 512 + 64."""
V4_BYTES = {
    ("dsv4_fp8", "bfloat16"): 16384, ("dsv4_fp8", "fp8"): 17 * 576, ("dsv4", "bfloat16"): 16384, ("dsv4", "fp8"): 8192,
    ("dsv4", "fp8_ds_mla"): 17 * 576, ("dsv41_fp8", "bfloat16"): 16384, ("dsv41_fp8", "fp8"): 17 * 512,
    ("dsv41_nvfp4", "bfloat16"): 16384, ("dsv41_nvfp4", "fp8"): 17 * 512, ("dsv41_nvfp4", "nvfp4_ds_mla"): 9 * 512,
}  # fmt: skip
"""Bytes of 16 states of DeepSeek-V4 and V4.1 under a word; fp8_e4m3 is fp8, and so is fp8_ds_mla unless it is here."""


@pytest.mark.parametrize(("format", "word"), [(name, word) for name, words in KV_DTYPES.items() for word in words])
def test_kv_dtype_words(format: str, word: str) -> None:
    """Each entry's target loads, and has the bytes that the word means whatever the model's own format was."""
    fmt: Format = SHIPPED[format]
    spec = spec_of_format(fmt, dict(fmt.file.examples[0]), "test")
    engine = kvlayout.Engine(kv_dtype=word)
    found = kvlayout.slice_for_tp_transfer(spec, engine, kvlayout.Engine(tp=2, kv_dtype=word))
    nbytes = span(spec.page(spec.group("cache"), engine).tree)
    if "mla" in format:
        meant = ROW_BYTES[word]
        if format in ("mla_fp8_ds", "mla_nvfp4_ds") and word in ("fp8", "fp8_e4m3"):
            meant = ROW_BYTES["fp8_ds_mla"]  # sparse MLA knows no plain fp8
        assert nbytes == 16 * meant
    elif format.startswith("dsv4"):
        assert nbytes == V4_BYTES.get((format, word), V4_BYTES[format, "fp8"])
    else:
        assert nbytes == 16 * fmt.file.examples[0]["num_kv_heads"] * TOKEN_BYTES[word]
    assert found.group("cache").dst_blocks == 1


def test_words_that_a_format_does_not_know_are_refused() -> None:
    assert set(KV_DTYPES) <= CONTEXT_PARALLEL | WHOLE - {"dsv4_compressor", "sglang_mha_mxfp8"}
    for format, words in KV_DTYPES.items():
        fmt = SHIPPED[format]
        spec = spec_of_format(fmt, dict(fmt.file.examples[0]), "test")
        for word in ({*TOKEN_BYTES, *ROW_BYTES} - set(words)) | {"no_such_word"}:
            with pytest.raises(kvlayout.PlanRefused, match="KVL156"):
                spec.page(spec.group("cache"), kvlayout.Engine(kv_dtype=word))


@pytest.mark.parametrize("format", [*STATES, "indexer_fp8", "indexer_mxfp4"])
def test_a_cache_dtype_leaves_other_groups_alone(format: str) -> None:
    spec = spec_of_format(SHIPPED[format], dict(SHIPPED[format].file.examples[0]), "test")
    plain, other = (spec.page(spec.group("cache"), kvlayout.Engine(kv_dtype=word)) for word in ("auto", "fp8"))
    assert plain == other


QWEN_CPU = {"num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16"}


@pytest.mark.parametrize("format", ["gqa_cpu_vec", "gqa_cpu_amx"])
def test_cpu_heads_move_as_one_run(format: str) -> None:
    """A head is closed in its own 2 * N * hs elements: 98304 bytes at the 384 tokens of a CPU engine of Qwen3-Next."""
    pair = Pair(format, QWEN_CPU, {"tp": 2, "block": 384}, {"tp": 1, "block": 384})
    assert assert_right(pair).runs("cache", 0).tolist() == [[0, 0, 0, 0, 0, 98304], [1, 0, 0, 0, 98304, 98304]]


@pytest.mark.parametrize(("format", "runs"), [("gqa_cpu_vec", (64, 64, 1, 4096)), ("gqa_cpu_amx", (1, 4096, 4, 1024))])
def test_cpu_blocks_of_other_sizes_convert(format: str, runs: tuple[int, int, int, int]) -> None:
    """Two blocks of 32 tokens into one of 64, where copying bytes in order gives other numbers without an error.

    Of each block and head: k in runs of 32 tokens of an element (vec) or of two tiles of 16 tokens (amx); v in one run
    of 32 rows (vec) or a run for each tile of 16 elements (amx).
    """
    pair = Pair(format, QWEN_CPU | {"num_kv_heads": 1}, {"block": 32}, {"block": 64})
    lengths = assert_right(pair).runs("cache", 0)[:, -1].tolist()
    k_runs, k_bytes, v_runs, v_bytes = runs
    assert sorted(lengths) == sorted([k_bytes] * (2 * k_runs) + [v_bytes] * (2 * v_runs))


CPU = ("gqa_cpu_vec", "gqa_cpu_amx")


@pytest.mark.parametrize(
    "way", [CPU, CPU[::-1], ("gqa", CPU[0]), (CPU[1], "gqa")], ids=lambda way: f"{way[0]}-{way[1]}"
)
def test_kinds_of_kernels_convert_into_each_other(way: tuple[str, str]) -> None:
    """Between machines with and without AMX, or with a GPU, element by element: the same values in another order."""
    src, dst = way
    params = QWEN_CPU | {"head_size": 32}
    engine = kvlayout.Engine(block=32, groups={"cache": {"format": dst}})
    found = kvlayout.slice_for_tp_transfer(spec_of(src, params), kvlayout.Engine(block=32), engine)
    places = [positions(name, params, {"block": 32}, 0) for name in way]
    moved = {}
    for _, _, at, _, to, nbytes in found.runs("cache", 0).tolist():
        moved.update((to + byte, at + byte) for byte in range(0, nbytes, 2))
    for name in ("k", "v"):
        came, went = (each[name].where for each in places)
        assert (came[:, :-1] == went[:, :-1]).all()
        assert [moved[to] for to in went[:, -1].tolist()] == came[:, -1].tolist()


def test_states_of_cpu_and_gpu_kernels_do_not_mix() -> None:
    """Equal shapes, but each head's matrix is the transposed one."""
    params = {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 4, "head_v_dim": 4, "conv_kernel": 4,
              "conv_dtype": "bfloat16", "ssm_dtype": "float32"}  # fmt: skip
    spec, cpu = spec_of("gdn", params), kvlayout.Engine(groups={"cache": {"format": "gdn_cpu"}})
    with pytest.raises(kvlayout.PlanRefused, match=r"KVL50[23]") as refused:
        kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(), cpu)
    assert not refused.value.unloadable and "temporal" in str(refused.value)
