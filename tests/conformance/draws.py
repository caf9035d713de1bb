"""Random engines for every format, small enough to be replayed byte by byte.

For `pairs`, sizes are drawn from few numbers that often divide each other, so that most pairs can exist; the rest are
there to be refused. A pair is a source, a destination, and now and then other parameters for the destination. The
engines of `sides` all exist and convert into each other.
"""

from __future__ import annotations

from collections.abc import Container
from math import lcm
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from oracles.parts import NotLoadable, Page, Side
from oracles.positions import FORMATS
from oracles.sglang import SGLANG_STATE
from oracles.state import STATE as VLLM_STATE

from kvlayout.testing import small

from .harness import Pair

__all__ = ["ATTENTION", "PARAMS", "STATES", "common_span", "page_of", "pairs", "sides"]

Strategy = st.SearchStrategy[dict[str, Any]]

COUNTS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 48])
MANY = st.sampled_from([8, 12, 24, 24, 48, 48, 60])
WIDTHS = st.integers(1, 5)
TP = st.one_of(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.sampled_from([1, 2, 4, 8, 16, 24, 32, 48, 64]), st.integers(1, 64)
)
BLOCKS = st.sampled_from([1, 2, 4, 8, 12, 16, 16, 16, 24, 32, 48])
DTYPES = st.sampled_from(["bfloat16", "float16", "float8_e4m3", "float32"])
STATE_DTYPES = {
    "conv_kernel": st.integers(2, 4),
    "conv_dtype": DTYPES,
    "ssm_dtype": st.sampled_from(["float32", "bfloat16"]),
}
ALIGN = st.sampled_from([1, 7, 64])

PARAMS: dict[str, Strategy] = {
    "gqa": st.fixed_dictionaries(
        {"num_kv_heads": COUNTS, "head_size": WIDTHS, "dtype": DTYPES},
        optional={"head_size_v": WIDTHS, "kv_packing": st.sampled_from(["content", "planes"])},
    ),
    "gqa_cpu_vec": st.fixed_dictionaries({"num_kv_heads": COUNTS, "head_size": WIDTHS, "dtype": DTYPES}),
    "gqa_cpu_amx": st.fixed_dictionaries({"num_kv_heads": COUNTS, "head_size": st.sampled_from([32, 32, 32, 64, 48])}),
    **{
        f"gqa_{x}_per_token_head": st.fixed_dictionaries(
            {"num_kv_heads": COUNTS, "head_size": st.sampled_from(widths)},
            optional={"head_size_v": st.sampled_from(widths)},
        )
        for x, widths in (("int8", [1, 2, 5]), ("fp8", [1, 2, 5]), ("int4", [2, 4, 4, 6, 6, 3]))
    },
    "nvfp4": st.fixed_dictionaries(
        {"num_kv_heads": COUNTS, "head_size": st.sampled_from([64, 64, 64, 128, 16, 48, 24])},
        optional={"scale_layout": st.sampled_from(["linear", "sm100"])},
    ),
    "mla": st.fixed_dictionaries({"kv_lora_rank": WIDTHS, "qk_rope_head_dim": WIDTHS, "dtype": DTYPES}),
    "mla_fp8_ds": st.fixed_dictionaries({}, optional={"kv_lora_rank": st.sampled_from([512, 512, 512, 256])}),
    "mla_nvfp4_ds": st.fixed_dictionaries({}, optional={"qk_rope_head_dim": st.sampled_from([64, 64, 64, 128])}),
    "indexer_fp8": st.fixed_dictionaries(
        {"head_dim": WIDTHS}, optional={"tokens_per_state": st.sampled_from([1, 2, 4]), "align": ALIGN}
    ),
    "indexer_mxfp4": st.fixed_dictionaries(
        {"head_dim": st.sampled_from([32, 64, 64, 20])},
        optional={"tokens_per_state": st.sampled_from([1, 2, 4]), "align": ALIGN},
    ),
    "dsv4_fp8": st.fixed_dictionaries({}, optional={"tokens_per_state": st.sampled_from([1, 2, 4, 16])}),
    "mamba1": st.fixed_dictionaries({"intermediate_size": MANY, "state_size": WIDTHS, **STATE_DTYPES}),
    "mamba2": st.fixed_dictionaries(
        {
            "num_heads": MANY, "head_dim": WIDTHS, "n_groups": st.sampled_from([1, 1, 2, 8, 24, 48]),
            "state_size": WIDTHS, **STATE_DTYPES,
        }
    ),
    **{
        name: st.fixed_dictionaries(
            {"num_k_heads": MANY, "num_v_heads": MANY, "head_k_dim": WIDTHS, "head_v_dim": WIDTHS, **STATE_DTYPES}
        )
        for name in ("gdn", "gdn_cpu")
    },
    "kda": st.fixed_dictionaries({"num_heads": MANY, "head_dim": WIDTHS, **STATE_DTYPES}),
    "short_conv": st.fixed_dictionaries({"conv_dim": MANY, "conv_kernel": st.integers(2, 4), "conv_dtype": DTYPES}),
    "linear": st.fixed_dictionaries({"num_heads": MANY, "head_dim": WIDTHS, "dtype": DTYPES}),
}  # fmt: skip
"""Parameters by format."""

_STATES_OF = {"tokens_per_state": st.sampled_from([1, 2, 4])}
_SCALES_OF = {"scales": st.sampled_from(["page", "record"]), "align": st.sampled_from([256, 512])}


def _heads(*widths: int, two: bool = False, **more: st.SearchStrategy[Any]) -> Strategy:
    """KV heads of one of these widths; with `two`, values may have another one."""
    width = st.sampled_from(widths)
    needed = {"num_kv_heads": COUNTS, "head_size": width, **more}
    return st.fixed_dictionaries(needed, optional={"head_size_v": width} if two else {})


_PIECES = {"dtype": DTYPES, "encoding": st.sampled_from(["bfloat16", "float8_e4m3fnuz"])}
PARAMS |= {
    "gqa_rocm": _heads(16, 16, 32, 8, **_PIECES),
    "gqa_aiter": _heads(16, 16, 32, 8, **_PIECES),
    **{
        name: _heads(
            8, 8, 16, 4, key_bits=st.sampled_from([8, 4, 3]), value_bits=st.sampled_from([4, 4, 3]),
            fp8_keys=st.sampled_from(["e4m3", "e4b15"]),
        )
        for name in ("turboquant", "turboquant_soa")
    },
    "ultraquant": _heads(32, 32, 64, 48),
    "nvfp4_msa": _heads(128, 128, 64),
    **{
        f"mla_{x}_per_token_head": st.fixed_dictionaries({"kv_lora_rank": WIDTHS, "qk_rope_head_dim": WIDTHS})
        for x in ("int8", "fp8", "int4")
    },
    "dsv4": st.fixed_dictionaries({"dtype": DTYPES}, optional=_STATES_OF),
    "dsv41_fp8": st.fixed_dictionaries({}, optional=_STATES_OF | _SCALES_OF),
    "dsv41_nvfp4": st.fixed_dictionaries({}, optional=_STATES_OF | _SCALES_OF),
    "dsv4_compressor": st.fixed_dictionaries(
        {"ratio": st.sampled_from([4, 128]), "head_dim": WIDTHS}, optional={"align": ALIGN}
    ),
    "indexer_m3": st.fixed_dictionaries({"head_dim": WIDTHS, "dtype": DTYPES}, optional=_STATES_OF),
    "sglang_mha": _heads(1, 3, 4, two=True, **_PIECES),
    "sglang_mha_aiter": _heads(16, 16, 16, 32, 8, two=True, **_PIECES),
    "sglang_mha_fp4": _heads(
        64, 64, 64, 128, 16, recipe=st.sampled_from(["nvfp4"] * 5 + ["fp4_mx_block16"]),
        scale_layout=st.sampled_from(["linear", "linear", "native"]), scale_unit=st.sampled_from(["checkpoint", "six"]),
    ),
    "sglang_mha_mxfp8": _heads(32, 32, 64, 16, two=True),
    "sglang_mla": PARAMS["mla"],
    "sglang_mla_fp4": st.fixed_dictionaries(
        {"kv_lora_rank": st.sampled_from([12, 28]), "qk_rope_head_dim": st.sampled_from([4, 4, 20, 3])}
    ),
    "sglang_indexer": st.fixed_dictionaries({}, optional=_STATES_OF | {"head_dim": st.sampled_from([128, 64])}),
    **{f"sglang_{name}": PARAMS[name] for name in ("mamba1", "mamba2", "gdn", "kda")},
    "ple_conv": st.fixed_dictionaries(
        {"conv_dim": MANY, "conv_kernel": st.integers(2, 4), "dilation": WIDTHS, "conv_dtype": DTYPES}
    ),
    "mamba2_replay": st.fixed_dictionaries(
        {
            "num_heads": MANY, "head_dim": WIDTHS, "n_groups": st.sampled_from([1, 2, 8, 24, 48]),
            "state_size": WIDTHS, "window": WIDTHS, "lookahead": st.sampled_from([0, 0, 1]), **STATE_DTYPES,
        }
    ),
    "kda_recover": PARAMS["kda"],
    "kpool_ring": st.fixed_dictionaries({"head_dim": WIDTHS, "kpool": st.integers(2, 5)}),
    "sglang_indexer_nvfp4": st.fixed_dictionaries({"head_dim": st.sampled_from([16, 32, 128, 24])}),
    "dsv41_compressor": st.fixed_dictionaries({"head_dim": WIDTHS}, optional={"least": st.sampled_from([8, 2])}),
    "qsa_ring": st.fixed_dictionaries(
        {"head_dim": WIDTHS, "ratio": WIDTHS}, optional={"positions": st.sampled_from(["none", "mrope"])}
    ),
}  # fmt: skip

STATES = [*VLLM_STATE, *SGLANG_STATE]
ATTENTION = [name for name in FORMATS if name not in STATES]

FREE: dict[str, Strategy] = {
    "gqa": st.fixed_dictionaries({"kv_packing": st.sampled_from(["content", "planes"])}),
    "nvfp4": st.fixed_dictionaries({"scale_layout": st.sampled_from(["linear", "sm100"])}),
    "sglang_mha_fp4": st.fixed_dictionaries({"scale_layout": st.sampled_from(["linear", "native"])}),
    "dsv41_fp8": st.fixed_dictionaries(_SCALES_OF),
    "dsv41_nvfp4": st.fixed_dictionaries(_SCALES_OF),
}
"""Parameters that may differ between two sides that convert."""


@st.composite
def context_parallel(draw: st.DrawFn, engine: dict[str, Any]) -> dict[str, Any]:
    """The engine as it is, or in a third of cases with context parallelism; `dcp` rarely does not divide `tp`."""
    if draw(st.integers(0, 2)):
        return engine
    dividing = [n for n in (1, 2, 3, 4) if engine["tp"] % n == 0]
    interleaves = [1, 1, 2, 3, 4, 6, engine.get("block", 1)]
    return engine | {
        "pcp": draw(st.sampled_from([1, 1, 2, 3])),
        "dcp": draw(st.sampled_from([*dividing * 4, 3])),
        "interleave": draw(st.sampled_from(interleaves)),
    }


HEADS_OUTSIDE = ("gqa_rocm", "gqa_aiter", "turboquant", "turboquant_soa", "ultraquant", "nvfp4_msa")
"""Formats of backends that know no other order; another is drawn rarely, to be refused."""


def growing(format: str) -> Strategy:
    """Engines of an attention format, with the orders and blocks that its backends mostly know."""
    orders = ["LBHNC"] * 9 + ["LBNHC"] if format in HEADS_OUTSIDE else ["LBHNC", "LBNHC"]
    blocks = st.sampled_from([16, 16, 16, 32, 48, 64, 8]) if "aiter" in format or "amx" in format else BLOCKS
    return st.fixed_dictionaries({"tp": TP, "order": st.sampled_from(orders), "block": blocks})


ORDERS = st.sampled_from(["LBHNC", "LBNHC"])
STATE = st.fixed_dictionaries(
    {"tp": TP, "conv": st.sampled_from(["DS", "SD"]), "spec_tokens": st.sampled_from([0, 0, 1, 3])}
)


@st.composite
def pairs(draw: st.DrawFn, format: str) -> Pair:
    """Two sides of a format: equal parameters, free ones that differ, or (one in eight) any that differ."""
    params = draw(PARAMS[format])
    engines = (growing(format) if format in ATTENTION else STATE).flatmap(context_parallel)
    src, dst = draw(engines), draw(engines)
    if "block" in src and draw(st.booleans()):
        dst["block"] = src["block"]
    change: dict[str, Any] = {}
    if draw(st.integers(0, 7)) == 7:
        change = draw(PARAMS[format])
    elif format in FREE and draw(st.booleans()):
        change = draw(FREE[format])
    return Pair(format, params, src, dst, {**params, **change} if change else None)


BUFFERS = {name for name in FORMATS if name.startswith("sglang_")}
"""Formats whose pages lie in several buffers, which no kernel block cuts."""

MOST_BYTES = 12_000
"""Of the blocks of one rank that make the common token span of all sides."""

SMALL_TP = (1, 2, 3, 4, 6, 8)
CONVS = st.sampled_from(["DS", "SD"])


@st.composite
def sides(
    draw: st.DrawFn, format: str, count: int, *, rows: bool = False, tiled: Container[int] = ()
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """So many (engine, parameters) of one model, which all exist and convert into each other.

    `rows`: with unequal numbers of speculative tokens. `tiled`: the sides that may be made of kernel blocks, which the
    oracle does not know.
    """
    params = {name: draw(st.sampled_from(choices)) for name, choices in small.PARAMS[format].items()}
    spec_tokens = draw(st.integers(0, 2))
    found = []
    for index in range(count):
        if format in ATTENTION:
            blocks = [16, 16, 32] if "aiter" in format or "amx" in format else [4, 8, 8, 16, 16, 12]
            engine = {"block": draw(st.sampled_from(blocks)), "order": draw(ORDERS)}
            if not _exists(format, engine, params):
                engine["order"] = "LBHNC"  # some backends know no other
        else:
            engine = {"conv": draw(CONVS), "spec_tokens": draw(st.integers(0, 3)) if rows else spec_tokens}
        own = params | {
            name: draw(st.sampled_from([word for word in words if _exists(format, engine, {**params, name: word})]))
            for name, words in small.OVERRIDES.get(format, {}).items()
        }
        if draw(st.integers(0, 2)) == 0:
            block, per_state = engine.get("block", 1), params.get("tokens_per_state", 1)
            runs = [n for n in (1, 2, 4, 8, block) if block % n == n % per_state == 0]
            cp = {"pcp": draw(st.sampled_from([1, 2, 2, 3])), "dcp": draw(st.sampled_from([1, 2, 2, 3, 4]))}
            cp["interleave"] = draw(st.sampled_from(runs))
            engine |= cp if any(_exists(format, {**engine, **cp, "tp": tp}, own) for tp in SMALL_TP) else {}
        fitting = [tp for tp in SMALL_TP if _exists(format, {**engine, "tp": tp}, own)]
        engine["tp"] = draw(st.sampled_from(fitting))
        if index in tiled and format in ATTENTION and format not in BUFFERS and draw(st.booleans()):
            divisors = [n for n in (1, 2, 4, 8) if engine["block"] % n == 0 and _exists(format, {"block": n}, own)]
            engine["kernel_block"] = draw(st.sampled_from(divisors or [engine["block"]]))
        found.append((engine, own))
    span = common_span(format, found)
    for engine, own in found:
        page = page_of(format, engine, own)
        assume(page.size * (span // page.span if span else 1) <= MOST_BYTES)
    return found


def page_of(format: str, engine: dict[str, Any], params: dict[str, Any]) -> Page:
    """The oracle's page on rank 0, without regard to kernel blocks."""
    return FORMATS[format](params, Side.of({word: n for word, n in engine.items() if word != "kernel_block"}, 0))


def common_span(format: str, found: list[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """The states that whole blocks of every side make up; 0 for pages that do not grow."""
    return lcm(*(page_of(format, engine, own).span for engine, own in found))


def _exists(format: str, engine: dict[str, Any], params: dict[str, Any]) -> bool:
    try:
        page_of(format, engine, params)
    except NotLoadable:
        return False
    return True
