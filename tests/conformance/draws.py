"""Random engines for every format, small enough to be replayed byte by byte.

For `pairs`, sizes are drawn from few numbers that often divide each other, so that most pairs can exist; the rest are
there to be refused. A pair is a source, a destination, and now and then other parameters for the destination. The
engines of `sides` all exist and convert into each other.
"""

from __future__ import annotations

from math import lcm
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from oracles.parts import NotLoadable, Side
from oracles.positions import FORMATS

from kvlayout.testing import small

from .harness import Pair

__all__ = ["ATTENTION", "PARAMS", "STATES", "common_span", "pairs", "sides"]

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
        {"head_dim": WIDTHS}, optional={"tokens_per_state": st.sampled_from([1, 2, 4])}
    ),
    "indexer_mxfp4": st.fixed_dictionaries(
        {"head_dim": st.sampled_from([32, 64, 64, 20])}, optional={"tokens_per_state": st.sampled_from([1, 2, 4])}
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

ATTENTION = [name for name in FORMATS if name.startswith(("gqa", "nvfp4", "mla", "indexer", "dsv4"))]
STATES = [name for name in FORMATS if name not in ATTENTION]

FREE: dict[str, Strategy] = {
    "gqa": st.fixed_dictionaries({"kv_packing": st.sampled_from(["content", "planes"])}),
    "nvfp4": st.fixed_dictionaries({"scale_layout": st.sampled_from(["linear", "sm100"])}),
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


ORDERS = st.sampled_from(["LBHNC", "LBNHC"])
GROWING = st.fixed_dictionaries({"tp": TP, "order": ORDERS, "block": BLOCKS})
TILES = st.fixed_dictionaries({"tp": TP, "order": ORDERS, "block": st.sampled_from([16, 16, 32, 32, 48, 24])})
STATE = st.fixed_dictionaries(
    {"tp": TP, "conv": st.sampled_from(["DS", "SD"]), "spec_tokens": st.sampled_from([0, 0, 1, 3])}
)


@st.composite
def pairs(draw: st.DrawFn, format: str) -> Pair:
    """Two sides of a format: equal parameters, free ones that differ, or (one in eight) any that differ."""
    params = draw(PARAMS[format])
    words = TILES if format == "gqa_cpu_amx" else GROWING if format in ATTENTION else STATE
    engines = words.flatmap(context_parallel)
    src, dst = draw(engines), draw(engines)
    if "block" in src and draw(st.booleans()):
        dst["block"] = src["block"]
    change: dict[str, Any] = {}
    if draw(st.integers(0, 7)) == 7:
        change = draw(PARAMS[format])
    elif format in FREE and draw(st.booleans()):
        change = draw(FREE[format])
    return Pair(format, params, src, dst, {**params, **change} if change else None)


MOST_BYTES = 12_000
"""Of the blocks of one rank that make the common token span of all sides."""

SMALL_TP = (1, 2, 3, 4, 6, 8)
CONVS = st.sampled_from(["DS", "SD"])


@st.composite
def sides(
    draw: st.DrawFn, format: str, count: int, *, rows: bool = False
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """So many (engine, parameters) of one model, which all exist and convert into each other.

    `rows`: with unequal numbers of speculative tokens.
    """
    params = {name: draw(st.sampled_from(choices)) for name, choices in small.PARAMS[format].items()}
    spec_tokens = draw(st.integers(0, 2))
    found = []
    for _ in range(count):
        if format in ATTENTION:
            blocks = [16, 16, 32] if format == "gqa_cpu_amx" else [4, 8, 8, 16, 16, 12]
            engine = {"block": draw(st.sampled_from(blocks)), "order": draw(ORDERS)}
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
        found.append(({**engine, "tp": draw(st.sampled_from(fitting))}, own))
    span = common_span(format, found)
    for engine, own in found:
        page = FORMATS[format](own, Side.of(engine, 0))
        assume(page.size * (span // page.span if span else 1) <= MOST_BYTES)
    return found


def common_span(format: str, found: list[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """The states that whole blocks of every side make up; 0 for pages that do not grow."""
    return lcm(*(FORMATS[format](own, Side.of(engine, 0)).span for engine, own in found))


def _exists(format: str, engine: dict[str, Any], params: dict[str, Any]) -> bool:
    try:
        FORMATS[format](params, Side.of(engine, 0))
    except NotLoadable:
        return False
    return True
