"""Byte positions of the state page formats: convolution state first, then the temporal state, no padding (MU, AB).

A convolution state has D channels on the rank and R rows of history. DS stores channel by channel, R elements each; SD
stores row by row, D channels each. Local channel c, row i: (c * R + i) * e in DS, (i * D + c) * e in SD. The blocks of
one convolution (x, B, C or Q, K, V) are ranges of local channels, so each formula below only numbers its channels.
The temporal state looks the same in both orientations. State pages are not sharded over context-parallel ranks (KI).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .parts import SIZES, Axis, Field, Ints, Page, PageFunction, Side, field, need, rows, split, whole

Params = Mapping[str, Any]


def _element(side: Side, channel: Ints, row: Ints, channels: int, length: int, size: int) -> Ints:
    """Byte offset of one element of a convolution state."""
    return (channel * length + row if side.dim_outer else row * channels + channel) * size


def _temporal(units: Axis, start: int, atom: int, dtype: str) -> Field:
    return field(atom, dtype, [units], start + np.arange(len(units.units)) * atom)


def mamba1(p: Params, side: Side) -> Page:
    """mamba, falcon_mamba, jamba: x of inter/T channels and k-1 rows (none speculative), then [inter/T, state]."""
    channels, R = split("channel", p["intermediate_size"], side), p["conv_kernel"] - 1
    D, ce = len(channels.units), SIZES[p["conv_dtype"]]
    c, i = np.ogrid[:D, :R]
    atom = p["state_size"] * SIZES[p["ssm_dtype"]]
    fields = {
        "conv_x": field(ce, p["conv_dtype"], [channels, rows(R)], _element(side, c, i, D, R, ce)),
        "temporal": _temporal(channels, D * R * ce, atom, p["ssm_dtype"]),
    }
    return Page(fields, D * R * ce + D * atom, rows=R)


def mamba2(p: Params, side: Side) -> Page:
    """codestral, nemotron_h, granite-h, falcon_h1, zamba2: [x | B | C] of (inter + 2 * ng' * state)/T channels.

    x is sharded by heads; B and C by groups, except that a single group is whole on every rank. Several groups that tp
    does not divide are refused by the mixer. Local starts: x 0, B inter/T, C after B's groups. Temporal: [nh/T, hd, n].
    """
    nh, hd, ng, n = p["num_heads"], p["head_dim"], p["n_groups"], p["state_size"]
    need(ng == 1 or ng % side.tp == 0, f"{ng} groups over tp {side.tp}")
    heads = split("head", nh, side)
    groups = whole("group", 1) if ng == 1 else split("group", ng, side)
    R, ce = p["conv_kernel"] - 1 + side.spec_tokens, SIZES[p["conv_dtype"]]
    H, G = len(heads.units), len(groups.units)
    D = H * hd + 2 * G * n
    h, d, i = np.ogrid[:H, :hd, :R]
    g, s, j = np.ogrid[:G, :n, :R]
    x, b, c = h * hd + d, H * hd + g * n + s, H * hd + G * n + g * n + s
    x_axes, g_axes = [heads, whole("hdim", hd), rows(R)], [groups, whole("state", n), rows(R)]
    atom = hd * n * SIZES[p["ssm_dtype"]]
    fields = {
        "conv_x": field(ce, p["conv_dtype"], x_axes, _element(side, x, i, D, R, ce)),
        "conv_b": field(ce, p["conv_dtype"], g_axes, _element(side, b, j, D, R, ce)),
        "conv_c": field(ce, p["conv_dtype"], g_axes, _element(side, c, j, D, R, ce)),
        "temporal": _temporal(heads, D * R * ce, atom, p["ssm_dtype"]),
    }
    return Page(fields, D * R * ce + H * atom, rows=R)


def gdn(p: Params, side: Side) -> Page:
    """qwen3_next, qwen3_5, olmo_hybrid: [Q | K | V] of (2 * kh * kd + vh * vd)/T channels, then [vh/T, vd, kd].

    Q and K are sharded by key heads, V and the temporal state by value heads; tp divides both.
    """
    keys, values = split("k_head", p["num_k_heads"], side), split("v_head", p["num_v_heads"], side)
    return _qkv(p, side, keys, p["head_k_dim"], values, p["head_v_dim"])


def gdn_cpu(p: Params, side: Side) -> Page:
    """ops/cpu/gdn_attention.py: as gdn, but the state is viewed, and kept, as [vh/T, kd, vd]."""
    page = gdn(p, side)
    values, kd, vd, e = split("v_head", p["num_v_heads"], side), p["head_k_dim"], p["head_v_dim"], SIZES[p["ssm_dtype"]]
    u, i, j = np.ogrid[: len(values.units), :kd, :vd]
    start = page.size - len(values.units) * kd * vd * e
    axes = [values, whole("k_dim", kd), whole("v_dim", vd)]
    return replace(
        page, fields=page.fields | {"temporal": field(e, p["ssm_dtype"], axes, start + ((u * kd + i) * vd + j) * e)}
    )


def kda(p: Params, side: Side) -> Page:
    """kimi_linear, kimi_k3: one fused [Q | K | V] convolution by heads, then [nh/T, hd, hd]."""
    heads = split("head", p["num_heads"], side)
    return _qkv(p, side, heads, p["head_dim"], heads, p["head_dim"])


def _qkv(p: Params, side: Side, keys: Axis, kd: int, values: Axis, vd: int) -> Page:
    """Local channel starts: Q 0, K kh * kd / T, V 2 * kh * kd / T."""
    R, ce = p["conv_kernel"] - 1 + side.spec_tokens, SIZES[p["conv_dtype"]]
    K, V = len(keys.units), len(values.units)
    D = 2 * K * kd + V * vd
    h, d, i = np.ogrid[:K, :kd, :R]
    u, w, j = np.ogrid[:V, :vd, :R]
    q, k, v = h * kd + d, K * kd + h * kd + d, 2 * K * kd + u * vd + w
    k_axes, v_axes = [keys, whole("k_dim", kd), rows(R)], [values, whole("v_dim", vd), rows(R)]
    atom = vd * kd * SIZES[p["ssm_dtype"]]
    fields = {
        "conv_q": field(ce, p["conv_dtype"], k_axes, _element(side, q, i, D, R, ce)),
        "conv_k": field(ce, p["conv_dtype"], k_axes, _element(side, k, i, D, R, ce)),
        "conv_v": field(ce, p["conv_dtype"], v_axes, _element(side, v, j, D, R, ce)),
        "temporal": _temporal(values, D * R * ce, atom, p["ssm_dtype"]),
    }
    return Page(fields, D * R * ce + V * atom, rows=R)


def short_conv(p: Params, side: Side) -> Page:
    """lfm2, lfm2_moe (short_conv.py): conv_dim/T channels of L_cache - 1 rows, speculative rows included."""
    channels, R = split("channel", p["conv_dim"], side), p["conv_kernel"] - 1 + side.spec_tokens
    D, ce = len(channels.units), SIZES[p["conv_dtype"]]
    c, i = np.ogrid[:D, :R]
    fields = {"conv_x": field(ce, p["conv_dtype"], [channels, rows(R)], _element(side, c, i, D, R, ce))}
    return Page(fields, D * R * ce, rows=R)


def linear(p: Params, side: Side) -> Page:
    """minimax text-01 and M1, bailing linear: only the recurrent state [heads/T, hd, hd]."""
    heads = split("head", p["num_heads"], side)
    atom = p["head_dim"] ** 2 * SIZES[p["dtype"]]
    return Page({"temporal": _temporal(heads, 0, atom, p["dtype"])}, len(heads.units) * atom)


def ple_conv(p: Params, side: Side) -> Page:
    """qwen4_exp (get_ple_mamba_state_shape_from_config): (K - 1) * dilation rows, all channels on every rank."""
    channels, R = whole("channel", p["conv_dim"]), (p["conv_kernel"] - 1) * p["dilation"] + side.spec_tokens
    D, ce = len(channels.units), SIZES[p["conv_dtype"]]
    c, i = np.ogrid[:D, :R]
    fields = {"conv_x": field(ce, p["conv_dtype"], [channels, rows(R)], _element(side, c, i, D, R, ce))}
    return Page(fields, D * R * ce, rows=R)


def _behind(page: Page, parts: list[tuple[str, str, Axis, Axis, int]]) -> Page:
    """States (unit, slot, atom) one after the other behind a page's last byte: name, tag, units, slots, atom bytes."""
    fields, size = dict(page.fields), page.size
    for name, tag, units, slots, atom in parts:
        u, s = np.ogrid[: len(units.units), : len(slots.units)]
        fields[name] = field(atom, tag, [units, slots], size + (u * len(slots.units) + s) * atom)
        size += len(units.units) * len(slots.units) * atom
    return Page(fields, size, rows=page.rows)


def mamba2_replay(p: Params, side: Side) -> Page:
    """append_replayssm_ring: behind mamba2's states x (nh/T, Lr, hd), dt fp32 (nh/T, Lr), B (ng/T, Lr, state)."""
    need(p["n_groups"] % side.tp == 0, f"{p['n_groups']} groups over tp {side.tp}")
    slots = whole("slot", p["window"] + p.get("lookahead", 0) * (1 + side.spec_tokens))
    heads, groups = split("head", p["num_heads"], side), split("group", p["n_groups"], side)
    dtype = p.get("ring_dtype", p["conv_dtype"])
    rings = [
        ("ring_x", dtype, heads, slots, p["head_dim"] * SIZES[dtype]),
        ("ring_dt", "float32", heads, slots, 4),
        ("ring_b", dtype, groups, slots, p["state_size"] * SIZES[dtype]),
    ]
    return _behind(mamba2(p, side), rings)


def kda_recover(p: Params, side: Side) -> Page:
    """append_kda_recoverssm_record: behind kda's states (nh/T, qlen, hd) fp32 and (nh/T, qlen, 2 hd)."""
    heads, steps = split("head", p["num_heads"], side), whole("step", 1 + side.spec_tokens)
    dtype, hd = p.get("record_dtype", p["conv_dtype"]), p["head_dim"]
    records = [
        ("correction", "float32", heads, steps, hd * 4),
        ("key_gate", dtype, heads, steps, 2 * hd * SIZES[dtype]),
    ]
    return _behind(kda(p, side), records)


def kpool_ring(p: Params, side: Side) -> Page:
    """glm5next/common/attention.py: head slots [key, gate] of bf16 rows; whole pools, as many as a power of 2."""
    pools = 1
    while pools * p["kpool"] < p["kpool"] + side.spec_tokens:
        pools *= 2
    need(pools <= 16, f"{side.spec_tokens} speculative tokens")
    slots, row = whole("slot", pools * p["kpool"]), p["head_dim"] * 2
    n = len(slots.units)
    fields = {
        name: field(row, "bfloat16", [slots], (half * n + np.arange(n)) * row)
        for half, name in enumerate(("key", "gate"))
    }
    return Page(fields, 2 * n * row)


def dsv41_compressor(p: Params, side: Side) -> Page:
    """deepseek_v41/compressor.py: max(8, 1 << (s + 1).bit_length()) rows [kv, score] in fp32; SGLang from 2 on."""
    n = max(p.get("least", 8), 1 << (side.spec_tokens + 1).bit_length())
    need(n <= 32, f"{side.spec_tokens} speculative tokens")
    slots, half = whole("slot", n), p.get("head_dim", 512) * 4
    fields = {
        name: field(half, "float32", [slots], np.arange(n) * 2 * half + at * half)
        for at, name in enumerate(("kv_state", "score_state"))
    }
    return Page(fields, n * 2 * half)


def qsa_ring(p: Params, side: Side) -> Page:
    """qwen4_exp/common/qsa_cache.py: bf16 keys; with positions, three int64 at the next multiple of 4 elements."""
    n = -(-(p["ratio"] + side.spec_tokens) // p["ratio"]) * p["ratio"]
    slots, key = whole("slot", n), p["head_dim"] * 2
    mrope = p.get("positions", "none") == "mrope"
    offset = -(-p["head_dim"] // 4) * 4 * 2
    row = offset + 24 if mrope else key
    fields = {"key": field(key, "bfloat16", [slots], np.arange(n) * row)}
    if mrope:
        fields["positions"] = field(24, "int64", [slots], np.arange(n) * row + offset)
    return Page(fields, n * row)


STATE: dict[str, PageFunction] = {
    "mamba1": mamba1,
    "mamba2": mamba2,
    "gdn": gdn,
    "gdn_cpu": gdn_cpu,
    "kda": kda,
    "short_conv": short_conv,
    "linear": linear,
    "ple_conv": ple_conv,
    "mamba2_replay": mamba2_replay,
    "kda_recover": kda_recover,
    "kpool_ring": kpool_ring,
    "qsa_ring": qsa_ring,
    "dsv41_compressor": dsv41_compressor,
}
