"""Byte positions of the attention page formats: one function per format, one formula per field.

In every formula H and N are the KV heads and states that the rank holds, h and t local indices, and ``cell`` numbers
(head, token) in the engine's order: h * N + t with heads outside (HND), t * H + h with tokens outside (NHD) (KL, BU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .parts import SIZES, Axis, Ints, Page, PageFunction, Side, field, kv_heads, need, states, whole

Params = Mapping[str, Any]
ElementIndex = Callable[[int, int, Ints, Ints], Ints]
"""Index of element d of token t in a plane of N tokens of hs elements."""


def _local(heads: Axis, tokens: Axis, side: Side) -> tuple[int, int, Ints, Ints, Ints]:
    """H, N, the open grids h and t, and their cell number."""
    H, N = len(heads.units), len(tokens.units)
    h, t = np.ogrid[:H, :N]
    return H, N, h, t, h * N + t if side.heads_outer else t * H + h


def gqa(p: Params, side: Side) -> Page:
    """KI, flash_attn.py: K then V in the content axis of each (head, token); unequal halves as in flash_attn_diffkv.py.

    Planes (b12x.py, rocm_attn.py: num_head_slots 2, content H * hs * e): the head slot is K or V. With head slots
    outside, a whole K plane of [token, head] precedes the V plane, else each token has all K heads, then all V heads.
    """
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    H, N, h, t, cell = _local(heads, tokens, side)
    size, hs_k, hs_v = SIZES[p["dtype"]], p["head_size"], p.get("head_size_v", p["head_size"])
    kb, vb = hs_k * size, hs_v * size
    match p.get("kv_packing", "content"), side.heads_outer:
        case "content", _:
            k, v = cell * (kb + vb), cell * (kb + vb) + kb
        case "planes", True:
            k, v = (t * H + h) * kb, N * H * kb + (t * H + h) * vb
        case "planes", False:
            k, v = t * H * (kb + vb) + h * kb, t * H * (kb + vb) + H * kb + h * vb
        case packing, _:
            raise ValueError(f"kv_packing {packing}")
    fields = {
        name: field(size, p["dtype"], [heads, tokens, whole(axis, hs)], at[:, :, None] + np.arange(hs) * size)
        for name, axis, hs, at in (("k", "kdim", hs_k, k), ("v", "vdim", hs_v, v))
    }
    return Page(fields, H * N * (kb + vb), span)


def gqa_cpu_vec(p: Params, side: Side) -> Page:
    """cpu_attn.py, isa vec: 2 * N * hs elements a head, K as [hs, N] and then V as [N, hs]; no context parallelism."""
    return _cpu_planes(p, side, lambda N, hs, t, d: d * N + t, lambda N, hs, t, d: t * hs + d)


def gqa_cpu_amx(p: Params, side: Side) -> Page:
    """cpu_attn.py, isa amx: 2 * N * hs elements a head, K and then V in VNNI pairs.

    K index: (t div 16) * 16 * hs + (d div 2) * 32 + (t mod 16) * 2 + d mod 2.
    V index: (d div 16) * 16 * N + (t div 2) * 32 + (d mod 16) * 2 + t mod 2.
    """
    need(p.get("dtype", "bfloat16") in ("bfloat16", "float8_e4m3", "float8_e5m2"), "no dtype of the AMX kernels")
    need(p["head_size"] % 32 == 0, f"head size {p['head_size']} is no multiple of 32")
    need(side.block % 16 == 0, f"block {side.block} is no multiple of 16")
    return _cpu_planes(
        {"dtype": "bfloat16"} | dict(p),
        side,
        lambda N, hs, t, d: t // 16 * 16 * hs + d // 2 * 32 + t % 16 * 2 + d % 2,
        lambda N, hs, t, d: d // 16 * 16 * N + t // 2 * 32 + d % 16 * 2 + t % 2,
    )


def _cpu_planes(p: Params, side: Side, k: ElementIndex, v: ElementIndex) -> Page:
    need(side.dcp == 1, "the CPU kernels do not share out tokens")
    heads, hs, e = kv_heads(p["num_kv_heads"], side), p["head_size"], SIZES[p["dtype"]]
    H, N = len(heads.units), side.block
    tokens = Axis("token", np.arange(N), 0)
    h, t, d = np.ogrid[:H, :N, :hs]
    fields = {
        "k": field(e, p["dtype"], [heads, tokens, whole("kdim", hs)], (h * 2 * N * hs + k(N, hs, t, d)) * e),
        "v": field(e, p["dtype"], [heads, tokens, whole("vdim", hs)], ((h * 2 + 1) * N * hs + v(N, hs, t, d)) * e),
    }
    return Page(fields, H * 2 * N * hs * e, N)


def _per_token_head(tag: str, per_byte: int) -> PageFunction:
    """triton_attn.py, ops/int4_per_token_head.py: per (head, token) K data, fp32 K scale, V data, fp32 V scale."""

    def page(p: Params, side: Side) -> Page:
        hs_k, hs_v = p["head_size"], p.get("head_size_v", p["head_size"])
        need(hs_k % per_byte == 0 and hs_v % per_byte == 0, f"{per_byte} elements a byte, head sizes {hs_k}, {hs_v}")
        heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
        H, N, _, _, cell = _local(heads, tokens, side)
        kb, vb = hs_k // per_byte, hs_v // per_byte
        record = cell * (kb + 4 + vb + 4)
        fields = {
            "k_data": field(kb, tag, [heads, tokens], record),
            "k_scale": field(4, "float32", [heads, tokens], record + kb),
            "v_data": field(vb, tag, [heads, tokens], record + kb + 4),
            "v_scale": field(4, "float32", [heads, tokens], record + kb + 4 + vb),
        }
        return Page(fields, H * N * (kb + 4 + vb + 4), span)

    return page


def nvfp4(p: Params, side: Side) -> Page:
    """flashinfer.py, utils/torch_utils.py nvfp4_*: four runs over all local heads: K data, K scales, V data, V scales.

    K data at cell * hs/2, K scales behind H * N * hs/2 at cell * hs/16, V the same behind H * N * (hs/2 + hs/16).
    On SM10x the V scales of each head's [N, S = hs/16] tile are swizzled (csrc nvfp4_kv_cache_kernels): scale b of
    token t is stored in row 4 * (t div 4) + b div (S/4), column 4 * (b mod (S/4)) + t mod 4. Elsewhere they are linear.
    """
    hs, layout = p["head_size"], p.get("scale_layout", "linear")
    need(hs % 16 == 0, f"head size {hs} is no multiple of 16")
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    H, N, _, _, cell = _local(heads, tokens, side)
    S = hs // 16
    scales = whole("scale", S)
    h3, t3, b = np.ogrid[:H, :N, :S]
    linear = (h3 * N + t3 if side.heads_outer else t3 * H + h3) * S + b
    v_scale = linear
    if layout == "sm100":
        need(N % 4 == 0, f"the swizzle works on groups of 4 tokens, block {N}")
        need(hs % 64 == 0, f"the swizzle needs a multiple of 4 scales, head size {hs}")
        row, column = 4 * (t3 // 4) + b // (S // 4), 4 * (b % (S // 4)) + t3 % 4
        v_scale = (h3 * N + row if side.heads_outer else row * H + h3) * S + column
    elif layout != "linear":
        raise ValueError(f"scale_layout {layout}")
    data, scale = H * N * hs // 2, H * N * hs // 16
    fields = {
        "k_data": field(hs // 2, "e2m1x2", [heads, tokens], cell * (hs // 2)),
        "k_scale": field(1, "float8_e4m3", [heads, tokens, scales], data + linear),
        "v_data": field(hs // 2, "e2m1x2", [heads, tokens], data + scale + cell * (hs // 2)),
        "v_scale": field(1, "float8_e4m3", [heads, tokens, scales], data + scale + data + v_scale),
    }
    return Page(fields, 2 * (data + scale), span)


def mla(p: Params, side: Side) -> Page:
    """KI, attention/backends/mla: one head of latent then rope per token, a full copy on every tp rank."""
    tokens, span = states(side)
    t = np.arange(len(tokens.units))
    latent, rope = p["kv_lora_rank"] * SIZES[p["dtype"]], p["qk_rope_head_dim"] * SIZES[p["dtype"]]
    fields = {
        "latent": field(latent, p["dtype"], [tokens], t * (latent + rope)),
        "rope": field(rope, p["dtype"], [tokens], t * (latent + rope) + latent),
    }
    return Page(fields, len(t) * (latent + rope), span)


def _ds_dims(p: Params) -> None:
    dims = p.get("kv_lora_rank", 512), p.get("qk_rope_head_dim", 64)
    need(dims == (512, 64), f"the row is defined for 512 and 64 only, not {dims}")


def mla_fp8_ds(p: Params, side: Side) -> Page:
    """mla/flashmla_sparse.py: 656-byte rows: 512 e4m3 latent, 4 fp32 scales (one per 128), 64 bf16 rope."""
    _ds_dims(p)
    tokens, span = states(side)
    t, (t2, b) = np.arange(len(tokens.units)), np.ogrid[: len(tokens.units), :4]
    fields = {
        "latent": field(512, "float8_e4m3", [tokens], t * 656),
        "latent_scale": field(4, "float32", [tokens, whole("scale", 4)], t2 * 656 + 512 + 4 * b),
        "rope": field(128, "bfloat16", [tokens], t * 656 + 528),
    }
    return Page(fields, len(t) * 656, span)


def mla_nvfp4_ds(p: Params, side: Side) -> Page:
    """mla/flashmla_sparse.py: 352-byte rows: 256 bytes of e2m1, 64 e4m3 rope, 32 e4m3 scales.

    Scale b of a row is stored at byte 8 * (b mod 4) + b div 4 of its 32.
    """
    _ds_dims(p)
    tokens, span = states(side)
    t, (t2, b) = np.arange(len(tokens.units)), np.ogrid[: len(tokens.units), :32]
    scale = t2 * 352 + 320 + 8 * (b % 4) + b // 4
    fields = {
        "latent": field(256, "e2m1x2", [tokens], t * 352),
        "rope": field(64, "float8_e4m3", [tokens], t * 352 + 256),
        "latent_scale": field(1, "float8_e4m3", [tokens, whole("scale", 32)], scale),
    }
    return Page(fields, len(t) * 352, span)


def _padded(nbytes: int, p: Params) -> int:
    """models/deepseek_v4/attention.py: V4's indexer pages are padded to 576 or 512 as the cache beside them."""
    return -(-nbytes // p.get("align", 1)) * int(p.get("align", 1))


def indexer_fp8(p: Params, side: Side) -> Page:
    """mla/indexer.py: all N * head_dim e4m3 values of the page, then N fp32 scales."""
    tokens, span = states(side, p.get("tokens_per_state", 1))
    N, d = len(tokens.units), p["head_dim"]
    t = np.arange(N)
    fields = {
        "key": field(d, "float8_e4m3", [tokens], t * d),
        "key_scale": field(4, "float32", [tokens], N * d + t * 4),
    }
    return Page(fields, _padded(N * (d + 4), p), span)


def indexer_mxfp4(p: Params, side: Side) -> Page:
    """mla/indexer.py, rocm_paged_mxfp4_indexer.py: N rows of e2m1 pairs, then N rows of one ue8m0 scale per 32."""
    d = p["head_dim"]
    need(d % 32 == 0, f"a scale covers 32 elements, head dim {d}")
    tokens, span = states(side, p.get("tokens_per_state", 1))
    N = len(tokens.units)
    t, (t2, b) = np.arange(N), np.ogrid[:N, : d // 32]
    fields = {
        "key": field(d // 2, "e2m1x2", [tokens], t * (d // 2)),
        "key_scale": field(1, "ue8m0", [tokens, whole("scale", d // 32)], N * (d // 2) + t2 * (d // 32) + b),
    }
    return Page(fields, _padded(N * (d // 2 + d // 32), p), span)


def dsv4_fp8(p: Params, side: Side) -> Page:
    """models/deepseek_v4, mla/sparse_swa.py: N data rows of 576 bytes, then N scale rows of 8, up to a multiple of 576.

    Data: 448 e4m3 nope and 64 bf16 rope. Scales: 7 ue8m0, one per 64, and a byte of no meaning. Every rank holds all of
    it: the V4 caches are replicated over tensor and context parallelism, so a block covers its own tokens only.
    """
    per_state = p.get("tokens_per_state", 1)
    need(side.block % per_state == 0, f"block {side.block} cuts a state of {per_state} tokens")
    N = side.block // per_state
    tokens = Axis("token", np.arange(N), 0)
    t, (t2, b) = np.arange(N), np.ogrid[:N, :7]
    fields = {
        "nope": field(448, "float8_e4m3", [tokens], t * 576),
        "rope": field(128, "bfloat16", [tokens], t * 576 + 448),
        "scale": field(1, "ue8m0", [tokens, whole("scale", 7)], N * 576 + t2 * 8 + b),
        "scale_pad": field(1, "any", [tokens], N * 576 + t * 8 + 7),
    }
    return Page(fields, -(-N * 584 // 576) * 576, N)


ATTENTION: dict[str, PageFunction] = {
    "gqa": gqa,
    "gqa_cpu_vec": gqa_cpu_vec,
    "gqa_cpu_amx": gqa_cpu_amx,
    "gqa_int8_per_token_head": _per_token_head("int8", 1),
    "gqa_fp8_per_token_head": _per_token_head("float8_e4m3", 1),
    "gqa_int4_per_token_head": _per_token_head("int4x2", 2),
    "nvfp4": nvfp4,
    "mla": mla,
    "mla_fp8_ds": mla_fp8_ds,
    "mla_nvfp4_ds": mla_nvfp4_ds,
    "indexer_fp8": indexer_fp8,
    "indexer_mxfp4": indexer_mxfp4,
    "dsv4_fp8": dsv4_fp8,
}
