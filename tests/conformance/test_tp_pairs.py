"""Pairs of tensor-parallel sizes, judged by arrays of a whole model that are cut by hand.

State pages are cut here in a third way, that neither the compiler nor the positions oracle knows: the whole model's
convolution windows and temporal state are arrays of random bytes, a rank's page is slices of them laid one after the
other, and runs are plain copies. All other formats go through the positions oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from oracles.positions import page_bytes

import kvlayout
from kvlayout.plan.transfer import TransferPlan

from .harness import Pair, assert_right, plan

if TYPE_CHECKING:
    from conftest import Size

Bytes = NDArray[np.uint8]
Cut = Callable[[int, int, str], Bytes]
"""A rank's page: (rank, tp, conv) -> bytes."""

NINE = list(product((1, 2, 4), repeat=2))
UNEVEN = [(2, 3), (3, 2), (4, 6), (6, 4)]
CONVS = list(product(("DS", "SD"), repeat=2))
ROWS = {"conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "float32"}
ROW_COUNT, ELEMENT, SSM = 3, 2, 4


def random_bytes(*shape: int) -> Bytes:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def mine(whole: Bytes, rank: int, tp: int) -> Bytes:
    """A rank's equal share of the first axis."""
    share = len(whole) // tp
    return whole[rank * share : (rank + 1) * share]


def window(parts: Sequence[Bytes], conv: str) -> Bytes:
    """A convolution state from parts [channels, rows, bytes]: channel by channel, or row by row over all channels."""
    channels = np.concatenate(parts)
    return channels.ravel() if conv == "DS" else channels.transpose(1, 0, 2).ravel()


def mamba1() -> tuple[dict[str, Any], Cut]:
    channels, state = 24, 5
    x, temporal = random_bytes(channels, ROW_COUNT, ELEMENT), random_bytes(channels, state * SSM)

    def cut(rank: int, tp: int, conv: str) -> Bytes:
        return np.concatenate([window([mine(x, rank, tp)], conv), mine(temporal, rank, tp).ravel()])

    return {"intermediate_size": channels, "state_size": state, **ROWS}, cut


def mamba2(groups: int) -> tuple[dict[str, Any], Cut]:
    heads, dim, state = 12, 3, 5
    x = random_bytes(heads * dim, ROW_COUNT, ELEMENT)
    b, c = random_bytes(groups * state, ROW_COUNT, ELEMENT), random_bytes(groups * state, ROW_COUNT, ELEMENT)[::-1]
    temporal = random_bytes(heads, dim * state * SSM)

    def cut(rank: int, tp: int, conv: str) -> Bytes:
        b_and_c = [b, c] if groups == 1 else [mine(b, rank, tp), mine(c, rank, tp)]
        return np.concatenate([window([mine(x, rank, tp), *b_and_c], conv), mine(temporal, rank, tp).ravel()])

    return {"num_heads": heads, "head_dim": dim, "n_groups": groups, "state_size": state, **ROWS}, cut


def gdn() -> tuple[dict[str, Any], Cut]:
    k_heads, v_heads, k_dim, v_dim = 12, 24, 3, 2
    q = random_bytes(k_heads * k_dim, ROW_COUNT, ELEMENT)
    k, v = q[::-1] ^ 0x55, random_bytes(v_heads * v_dim, ROW_COUNT, ELEMENT)
    temporal = random_bytes(v_heads, v_dim * k_dim * SSM)

    def cut(rank: int, tp: int, conv: str) -> Bytes:
        parts = [mine(part, rank, tp) for part in (q, k, v)]
        return np.concatenate([window(parts, conv), mine(temporal, rank, tp).ravel()])

    sizes = {"num_k_heads": k_heads, "num_v_heads": v_heads, "head_k_dim": k_dim, "head_v_dim": v_dim}
    return sizes | ROWS, cut


MODELS: dict[str, tuple[str, tuple[dict[str, Any], Cut]]] = {
    "mamba1": ("mamba1", mamba1()),
    "mamba2": ("mamba2", mamba2(12)),
    "mamba2-one-group": ("mamba2", mamba2(1)),
    "gdn": ("gdn", gdn()),
}


def moved(found: TransferPlan, sources: Sequence[Bytes], pages: int, size: int) -> list[Bytes]:
    """The pages of all destination ranks after the plan's runs; what nobody writes stays 0xAA."""
    out = []
    for rank in range(pages):
        page = np.full(size, 0xAA, np.uint8)
        for source, _, src, _, dst, nbytes in found.runs("cache", rank).tolist():
            page[dst : dst + nbytes] = sources[source][src : src + nbytes]
        out.append(page)
    return out


@pytest.mark.parametrize("tps", [*NINE, *UNEVEN], ids=lambda tps: f"tp{tps[0]}-tp{tps[1]}")
@pytest.mark.parametrize("model", MODELS)
def test_states_are_those_of_the_whole_model(model: str, tps: tuple[int, int]) -> None:
    """Every destination page is the cut of the whole model, and A -> B -> A restores every byte of A."""
    format, (params, cut) = MODELS[model]
    a, b = tps
    for src, dst in CONVS:
        pair = Pair(format, params, {"tp": a, "conv": src}, {"tp": b, "conv": dst})
        ours = [cut(rank, a, src) for rank in range(a)]
        theirs = [cut(rank, b, dst) for rank in range(b)]
        there = moved(plan(pair), ours, b, len(theirs[0]))
        assert all((x == y).all() for x, y in zip(there, theirs, strict=True))
        home = moved(plan(pair.back), there, a, len(ours[0]))
        assert all((x == y).all() for x, y in zip(home, ours, strict=True))


OTHERS: dict[str, list[dict[str, Any]]] = {
    "gqa": [
        {"num_kv_heads": heads, "head_size": 3, "head_size_v": 2, "dtype": "bfloat16", "kv_packing": packing}
        for heads, packing in product((1, 2, 12), ("content", "planes"))
    ],
    "gqa_cpu_vec": [{"num_kv_heads": heads, "head_size": 3, "dtype": "float32"} for heads in (2, 12)],
    "gqa_cpu_amx": [{"num_kv_heads": heads, "head_size": 32} for heads in (2, 12)],
    "gqa_int8_per_token_head": [{"num_kv_heads": heads, "head_size": 3} for heads in (2, 12)],
    "gqa_fp8_per_token_head": [{"num_kv_heads": heads, "head_size": 3} for heads in (1, 12)],
    "gqa_int4_per_token_head": [{"num_kv_heads": heads, "head_size": 6, "head_size_v": 4} for heads in (2, 12)],
    "nvfp4": [
        {"num_kv_heads": heads, "head_size": 64, "scale_layout": layout}
        for heads, layout in product((2, 12), ("linear", "sm100"))
    ],
    "mla": [{"kv_lora_rank": 5, "qk_rope_head_dim": 2, "dtype": "float8_e4m3"}],
    "mla_fp8_ds": [{}],
    "mla_nvfp4_ds": [{}],
    "indexer_fp8": [{"head_dim": 5}, {"head_dim": 5, "tokens_per_state": 4}],
    "indexer_mxfp4": [{"head_dim": 32}],
    "dsv4_fp8": [{}, {"tokens_per_state": 4}],
    "gdn_cpu": [{"num_k_heads": 12, "num_v_heads": 24, "head_k_dim": 2, "head_v_dim": 3, **ROWS}],
    "kda": [{"num_heads": 12, "head_dim": 3, **ROWS}],
    "short_conv": [{"conv_dim": 24, "conv_kernel": 3, "conv_dtype": "float16"}],
    "linear": [{"num_heads": 12, "head_dim": 3, "dtype": "bfloat16"}],
}
STATES = ("gdn_cpu", "kda", "short_conv", "linear")


@pytest.mark.parametrize("tps", [*NINE, *UNEVEN], ids=lambda tps: f"tp{tps[0]}-tp{tps[1]}")
@pytest.mark.parametrize("format", OTHERS)
def test_all_other_formats(format: str, tps: tuple[int, int], size: Size) -> None:
    """Both ways and in both orders, wherever both sides exist; fewer heads than ranks are replicated."""
    word, values = ("conv", ("DS", "SD")) if format in STATES else ("order", ("LBHNC", "LBNHC"))
    choices = list(product(values, repeat=2))
    for params, (src, dst) in product(OTHERS[format], size(choices[:3:2], choices)):
        pair = Pair(format, params, {"tp": tps[0], word: src}, {"tp": tps[1], word: dst})
        if params.get("num_kv_heads") == 2 and 3 in tps:
            with pytest.raises(kvlayout.PlanRefused, match="KVL202") as refused:
                plan(pair)
            assert refused.value.unloadable
            continue
        pages = [page_bytes(format, params, side) for side in (pair.src, pair.dst)]
        there, home = assert_right(pair), assert_right(pair.back)
        assert [next(found.entries("cache")).page_bytes for found in (home, there)] == pages
        assert sum(entry.payload_bytes for entry in home.entries("cache")) > 0
