"""Byte positions of what SGLang 0.5.23 keeps: every tensor in a buffer of its own, buffers counted one after the other.

A page here is the part of each buffer that one page of the pool (attention) or one slot (states) has. Tensors are those
of srt/mem_cache/memory_pool.py; N is the page's tokens, H the rank's heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .attention import indexer_fp8, mla
from .parts import SIZES, Axis, Field, Ints, Page, PageFunction, Side, field, kv_heads, need, rows, split, states, whole
from .variants import key_pieces, value_pieces

Params = Mapping[str, Any]


def sglang_mha(p: Params, side: Side) -> Page:
    """_kv_buffer_shapes: K (slots, H, D) or, HND, (pages, H, page, D); V the same in its own width."""
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    H, N, size = len(heads.units), len(tokens.units), SIZES[p["dtype"]]
    h, t = np.ogrid[:H, :N]
    row = (h * N + t if side.heads_outer else t * H + h)[:, :, None]
    fields, start = {}, 0
    for name, axis, hs in (("k", "kdim", p["head_size"]), ("v", "vdim", p.get("head_size_v", p["head_size"]))):
        at = start + (row * hs + np.arange(hs)) * size
        fields[name] = field(size, p.get("encoding", p["dtype"]), [heads, tokens, whole(axis, hs)], at)
        start += H * N * hs * size
    return Page(fields, start, span)


def sglang_mha_aiter(p: Params, side: Side) -> Page:
    """vectorized_5d: K (pages, H, D_k / X, page, X), V (pages, H, page / X, D_v, X), whatever the order."""
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    H, N, size = len(heads.units), len(tokens.units), SIZES[p["dtype"]]
    x, hs_k, hs_v = 16 // size, p["head_size"], p.get("head_size_v", p["head_size"])
    need(hs_k % x == 0 and side.block % x == 0, f"pieces of {x} elements or tokens, {hs_k} and {side.block}")
    h, t, k, v = *np.ogrid[:H, :N, :1][:2], np.arange(hs_k), np.arange(hs_v)
    tag = p.get("encoding", p["dtype"])
    keys, values = key_pieces(h, t, k, N, hs_k, x) * size, value_pieces(h, t, v, N, hs_v, x) * size
    fields = {
        "k": field(size, tag, [heads, tokens, whole("kdim", hs_k)], keys),
        "v": field(size, tag, [heads, tokens, whole("vdim", hs_v)], H * N * hs_k * size + values),
    }
    return Page(fields, H * N * (hs_k + hs_v) * size, span)


def sglang_mha_fp4(p: Params, side: Side) -> Page:
    """fp4_kv_cache_quant_method.py: data (slots, H, D / 2), scales (slots, H, D / 16), native (pages, H, page, D / 16).

    Native V scales (nvfp4_kv_cache.py): scale b of token t in row 4 * (t div 4) + b div (S/4), column
    4 * (b mod (S/4)) + t mod 4.
    """
    hs, recipe = p["head_size"], p.get("recipe", "fp4_mx_block16")
    native, six = p.get("scale_layout", "linear") == "native", p.get("scale_unit", "checkpoint") == "six"
    need(p.get("head_size_v", hs) == hs, "keys and values have one width")
    need(hs % 16 == 0, f"a scale covers 16 elements, head size {hs}")
    need(recipe == "nvfp4" or (not native and not six), "only nvfp4 has scales of a kernel's own")
    need(not native or (side.block % 4 == 0 and hs % 64 == 0), f"the swizzle, block {side.block}, head size {hs}")
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    H, N, S = len(heads.units), len(tokens.units), hs // 16
    h, t, b = np.ogrid[:H, :N, :S]
    plain = (t * H + h) * S + b
    k_scale = (h * N + t) * S + b if native else plain
    v_scale = (h * N + 4 * (t // 4) + b // (S // 4)) * S + 4 * (b % (S // 4)) + t % 4 if native else plain
    tag = "ue8m0" if recipe != "nvfp4" else "e4m3_over_six" if six else "float8_e4m3"
    data, scale = H * N * hs // 2, H * N * S
    row = ((t * H + h) * (hs // 2))[:, :, 0]
    axes = [heads, tokens, whole("scale", S)]
    fields = {
        "k_data": field(hs // 2, "e2m1x2", axes[:2], row),
        "v_data": field(hs // 2, "e2m1x2", axes[:2], data + row),
        "k_scale": field(1, tag, axes, 2 * data + k_scale),
        "v_scale": field(1, tag, axes, 2 * data + scale + v_scale),
    }
    return Page(fields, 2 * (data + scale), span)


def sglang_mha_mxfp8(p: Params, side: Side) -> Page:
    """MHATokenToKVPoolMXFP8: data (slots, H, D); scales (slots, H, D / 32), at 128 tokens (pages, H, 32, 4, D / 32).

    kernels/ops/kvcache/mxfp8_interleave_sf.py: token t of a page has its scales at [t % 32, t // 32].
    """
    widths = p["head_size"], p.get("head_size_v", p["head_size"])
    need(all(hs % 32 == 0 for hs in widths), f"a scale covers 32 elements, head sizes {widths}")
    chunks = p.get("scale_layout", "rows") == "chunks"
    need(chunks == (side.block == 128), f"scales of a page of {side.block} tokens")
    need(side.dcp == 1, "no context parallelism")
    heads = kv_heads(p["num_kv_heads"], side)
    H, N = len(heads.units), side.block
    tokens = Axis("token", np.arange(N), 0)
    h, t = np.ogrid[:H, :N]
    fields: dict[str, Field] = {}
    start = 0
    for name, hs in zip("kv", widths, strict=True):
        fields[f"{name}_data"] = field(hs, "float8_e4m3", [heads, tokens], start + (t * H + h) * hs)
        start += H * N * hs
    for name, hs in zip("kv", widths, strict=True):
        s = hs // 32
        row = (h * 32 + t % 32) * 4 + t // 32 if chunks else t * H + h
        at = start + (row * s)[:, :, None] + np.arange(s)
        fields[f"{name}_scale"] = field(1, "ue8m0", [heads, tokens, whole(f"{name}scale", s)], at)
        start += H * N * s
    return Page(fields, start, N)


def sglang_mla_fp4(p: Params, side: Side) -> Page:
    """MLATokenToKVPoolFP4: (slots, 1, D / 2) and (slots, D / 16), D the latent and rotary values together."""
    values = p["kv_lora_rank"] + p["qk_rope_head_dim"]
    need(values % 16 == 0, f"a scale covers 16 elements, {values}")
    tokens, span = states(side)
    N = len(tokens.units)
    t = np.arange(N)
    fields = {
        "latent": field(values // 2, "e2m1x2", [tokens], t * (values // 2)),
        "latent_scale": field(values // 16, "ue8m0", [tokens], N * (values // 2) + t * (values // 16)),
    }
    return Page(fields, N * (values // 2 + values // 16), span)


def sglang_indexer(p: Params, side: Side) -> Page:
    """index_key_cache.py: key bytes of the page, then its scales; index_head_dim is 128."""
    p = {"head_dim": 128, **p}
    need(p["head_dim"] == 128, f"a key has 128 elements, not {p['head_dim']}")
    return indexer_fp8(p, side)


def sglang_indexer_nvfp4(p: Params, side: Side) -> Page:
    """minimax_m3_nvfp4_pool.py: K (page, D / 2), then scales (page, D / 16), each from a multiple of 128 bytes on."""
    d = p.get("head_dim", 128)
    need(d % 16 == 0, f"a scale covers 16 elements, head dim {d}")
    tokens, span = states(side)
    N = len(tokens.units)
    t, start = np.arange(N), -(-N * d // 2 // 128) * 128
    fields = {
        "key": field(d // 2, "e2m1x2", [tokens], t * (d // 2)),
        "key_scale": field(d // 16, "float8_e4m3", [tokens], start + t * (d // 16)),
    }
    return Page(fields, start + -(-N * d // 16 // 128) * 128, span)


def _state(window: list[tuple[str, list[Axis]]], p: Params, temporal: tuple[list[Axis], int], dims_outer: bool) -> Page:
    """MambaPool: conv [layers, slots, dim, K - 1] (KDA: K - 1, dim) and temporal [layers, slots, ...]."""
    length, size = p["conv_kernel"] - 1, SIZES[p["conv_dtype"]]
    counts = [int(np.prod([len(axis.units) for axis in axes])) for _, axes in window]
    fields: dict[str, Field] = {}
    for place, (name, axes) in enumerate(window):
        shape = [len(axis.units) for axis in axes]
        channel = sum(counts[:place]) + np.arange(counts[place]).reshape(*shape, 1)
        row = np.arange(length)
        at: Ints = (channel * length + row if dims_outer else row * sum(counts) + channel) * size
        fields[name] = field(size, p["conv_dtype"], [*axes, rows(length)], at)
    start, (units, atom) = sum(counts) * length * size, temporal
    n = len(units[0].units)
    fields["temporal"] = field(atom, p["ssm_dtype"], units, start + np.arange(n) * atom)
    return Page(fields, start + n * atom, rows=length)


def sglang_mamba1(p: Params, side: Side) -> Page:
    """create_full_rank: conv (inter / T, K - 1), temporal (inter / T, 1, state)."""
    channels = [split("channel", p["intermediate_size"], side)]
    atom = p["state_size"] * SIZES[p["ssm_dtype"]]
    return _state([("conv_x", channels)], p, (channels, atom), dims_outer=True)


def sglang_mamba2(p: Params, side: Side) -> Page:
    """create: conv ((inter + 2 * ng' * state) / T, K - 1) of x, B, C; temporal (nh / T, hd, state)."""
    ng, n, hd = p["n_groups"], p["state_size"], p["head_dim"]
    need(ng == 1 or ng % side.tp == 0, f"{ng} groups over tp {side.tp}")
    heads = split("head", p["num_heads"], side)
    groups = [whole("group", 1) if ng == 1 else split("group", ng, side), whole("state", n)]
    window = [("conv_x", [heads, whole("hdim", hd)]), ("conv_b", groups), ("conv_c", groups)]
    return _state(window, p, ([heads], hd * n * SIZES[p["ssm_dtype"]]), dims_outer=True)


def sglang_gdn(p: Params, side: Side) -> Page:
    """create with conv_shard_groups [q, k, v]: conv (dim / T, K - 1), temporal (HV / T, V, K) (gdn_triton.py)."""
    kd, vd = p["head_k_dim"], p["head_v_dim"]
    keys = [split("k_head", p["num_k_heads"], side), whole("k_dim", kd)]
    values = [split("v_head", p["num_v_heads"], side), whole("v_dim", vd)]
    window = [("conv_q", keys), ("conv_k", keys), ("conv_v", values)]
    return _state(window, p, (values[:1], kd * vd * SIZES[p["ssm_dtype"]]), dims_outer=True)


def sglang_kda(p: Params, side: Side) -> Page:
    """KimiLinearStateShape: conv (K - 1, dim / T), rows outside; temporal (nh / T, hd, hd). As kda, V has own names."""
    heads, hd = split("head", p["num_heads"], side), p["head_dim"]
    keys, values = [heads, whole("k_dim", hd)], [heads, whole("v_dim", hd)]
    window = [("conv_q", keys), ("conv_k", keys), ("conv_v", values)]
    return _state(window, p, ([heads], hd * hd * SIZES[p["ssm_dtype"]]), dims_outer=False)


SGLANG: dict[str, PageFunction] = {
    "sglang_mha": sglang_mha,
    "sglang_mha_aiter": sglang_mha_aiter,
    "sglang_mha_fp4": sglang_mha_fp4,
    "sglang_mha_mxfp8": sglang_mha_mxfp8,
    "sglang_mla": mla,
    "sglang_mla_fp4": sglang_mla_fp4,
    "sglang_indexer": sglang_indexer,
    "sglang_indexer_nvfp4": sglang_indexer_nvfp4,
}

SGLANG_STATE: dict[str, PageFunction] = {
    "sglang_mamba1": sglang_mamba1,
    "sglang_mamba2": sglang_mamba2,
    "sglang_gdn": sglang_gdn,
    "sglang_kda": sglang_kda,
}
