"""Byte positions of attention pages that only some backends of vLLM 0.32 keep: one function per format.

In every formula H and N are the KV heads and states that the rank holds, h and t local indices; cells (h, t) count
h * N + t, since these backends keep heads outside tokens. x is how many elements 16 bytes have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .parts import SIZES, Axis, Field, Ints, Page, PageFunction, Side, field, kv_heads, need, states, whole

Params = Mapping[str, Any]


def _one_width(p: Params) -> int:
    width: int = p["head_size"]
    need(p.get("head_size_v", width) == width, "keys and values have one width")
    return width


def _heads_outside(p: Params, side: Side) -> tuple[Axis, Axis, int, Ints, Ints, int, int]:
    """Heads and tokens of the rank, the states of a block, the open grids h and t, H and N."""
    need(side.heads_outer, "the backend keeps heads outside tokens")
    heads, (tokens, span) = kv_heads(p["num_kv_heads"], side), states(side)
    h, t = np.ogrid[: len(heads.units), : len(tokens.units)]
    return heads, tokens, span, h, t, len(heads.units), len(tokens.units)


def key_pieces(h: Ints, t: Ints, d: Ints, N: int, hs: int, x: int) -> Ints:
    """Element of K in (heads, hs / x, tokens, x): rocm_aiter_fa.py, head * hs * N + d // x * N * x + t * x + d % x."""
    return h * hs * N + d // x * N * x + t * x + d % x


def value_pieces(h: Ints, t: Ints, d: Ints, N: int, hs: int, x: int) -> Ints:
    """Element of V in (heads, tokens / x, hs, x): rocm_aiter_fa.py, head * hs * N + t // x * hs * x + d * x + t % x."""
    return h * hs * N + t // x * hs * x + d * x + t % x


def _rocm(shuffled: bool) -> PageFunction:
    def page(p: Params, side: Side) -> Page:
        """rocm_attn.py, ops/paged_attn.py: a K plane, then a V plane (H, hs, N); rocm_aiter_fa.py for shuffled V."""
        hs, size = _one_width(p), SIZES[p["dtype"]]
        x = 16 // size
        need(hs % x == 0, f"{hs} elements in pieces of {x}")
        need(not shuffled or side.block % 16 == 0, f"the kernels gather 16 tokens, block {side.block}")
        heads, tokens, span, h, t, H, N = _heads_outside(p, side)
        h3, t3, d = h[:, :, None], t[:, :, None], np.arange(hs)
        v = value_pieces(h3, t3, d, N, hs, x) if shuffled else (h3 * hs + d) * N + t3
        tag, plane = p.get("encoding", p["dtype"]), H * N * hs * size
        fields = {
            "k": field(size, tag, [heads, tokens, whole("kdim", hs)], key_pieces(h3, t3, d, N, hs, x) * size),
            "v": field(size, tag, [heads, tokens, whole("vdim", hs)], plane + v * size),
        }
        return Page(fields, 2 * plane, span)

    return page


def _turboquant(soa: bool) -> PageFunction:
    """ops/triton_turboquant_store.py, turboquant/config.py; SoA, ops/turboquant_soa/triton_turboquant_store.py.

    A slot is key_packed_size + value_packed_size bytes, made even. Key: hs bytes of fp8, or ceil(hs * b / 8) bytes of
    codes and an fp16 norm. Value: ceil(hs * b / 8) bytes, fp16 scale, fp16 zero. SoA keeps the page's bytes: data at
    (t * H + h) * (key + value data), and behind all data fp16 field f of head h at ((h * fields + f) * N + t) * 2.
    """

    def page(p: Params, side: Side) -> Page:
        hs, kb, vb = _one_width(p), p["key_bits"], p["value_bits"]
        need(hs * kb % 8 == 0 and hs * vb % 8 == 0, f"codes of {kb} and {vb} bits, head size {hs}")
        need((kb, vb) in ((8, 4), (4, 4), (3, 4), (3, 3)), f"no preset of {kb} and {vb} bits")
        heads, tokens, span, h, t, H, N = _heads_outside(p, side)
        k, v, norm = hs * kb // 8, hs * vb // 8, 0 if kb == 8 else 2
        slot = k + norm + v + 4
        slot += slot % 2
        names = ["k_norm"] * (norm > 0) + ["v_scale", "v_zero"]
        if soa:
            data = (t * H + h) * (k + v)
            meta = H * N * (k + v)
            places = {name: meta + ((h * len(names) + f) * N + t) * 2 for f, name in enumerate(names)}
            places |= {"k_data": data, "v_data": data + k}
        else:
            base = (h * N + t) * slot
            places = {"k_data": base, "v_data": base + k + norm}
            places |= {"k_norm": base + k, "v_scale": base + k + norm + v, "v_zero": base + k + norm + v + 2}
        tags = {
            "k_data": p.get("fp8_keys", "e4m3") if kb == 8 else f"turboquant_k{kb}", "v_data": f"turboquant_v{vb}",
            "k_norm": "float16_by_code_norm" if soa else "float16",
        }  # fmt: skip
        fields = {
            name: field(
                {"k_data": k, "v_data": v}.get(name, 2), tags.get(name, "float16"), [heads, tokens], places[name]
            )
            for name in ["k_data", "v_data", *names]
        }
        return Page(fields, H * N * slot, span)

    return page


def ultraquant(p: Params, side: Side) -> Page:
    """ops/ultraquant/format.py: K codes, K scales (one per 32), V codes, V scales of a (head, token); K is rotated."""
    hs = _one_width(p)
    need(hs % 32 == 0, f"a scale covers 32 elements, head size {hs}")
    heads, tokens, span, h, t, H, N = _heads_outside(p, side)
    base, groups = (h * N + t) * (hs + hs // 16), hs // 32
    fields = {
        "k_data": field(hs // 2, "e2m1x2_rotated", [heads, tokens], base),
        "k_scale": field(groups, "ue8m0", [heads, tokens], base + hs // 2),
        "v_data": field(hs // 2, "e2m1x2", [heads, tokens], base + hs // 2 + groups),
        "v_scale": field(groups, "ue8m0", [heads, tokens], base + hs + groups),
    }
    return Page(fields, H * N * (hs + 2 * groups), span)


def nvfp4_msa(p: Params, side: Side) -> Page:
    """fmha_sm100/nvfp4_kv.py: slot 2h is head h's K, slot 2h + 1 its V; a slot is N rows of hs / 2, then of hs / 16."""
    hs = _one_width(p)
    need(hs == 128, f"the kernels read heads of 128, head size {hs}")
    heads, tokens, span, h, t, H, N = _heads_outside(p, side)
    slot, scales = N * 72, whole("scale", 8)
    fields: dict[str, Field] = {}
    for at, name in enumerate("kv"):
        start = (2 * h + at) * slot
        fields[f"{name}_data"] = field(64, "e2m1x2", [heads, tokens], start + t * 64)
        rows = (start + N * 64 + t * 8)[:, :, None] + np.arange(8)
        fields[f"{name}_scale"] = field(1, "float8_e4m3", [heads, tokens, scales], rows)
    return Page(fields, 2 * H * slot, span)


def _mla_per_token_head(tag: str, per_byte: int) -> PageFunction:
    """layers/attention/mla_attention.py: the row as one vector, then two fp32; 4 bits halve the row."""

    def page(p: Params, side: Side) -> Page:
        values = p["kv_lora_rank"] + p["qk_rope_head_dim"]
        need(values % per_byte == 0, f"{per_byte} values a byte, {values} of them")
        tokens, span = states(side)
        t, row = np.arange(len(tokens.units)), values // per_byte
        fields = {
            "latent": field(row, tag, [tokens], t * (row + 8)),
            "latent_scale": field(8, "float32", [tokens], t * (row + 8) + row),
        }
        return Page(fields, len(t) * (row + 8), span)

    return page


def _whole_states(p: Params, side: Side) -> tuple[Axis, Ints, int]:
    """States of caches that every rank holds whole, over tensor and context parallelism."""
    per_state = p.get("tokens_per_state", 1)
    need(side.block % per_state == 0, f"block {side.block} cuts a state of {per_state} tokens")
    N = side.block // per_state
    return Axis("token", np.arange(N), 0), np.arange(N), N


def _up(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align


def dsv4(p: Params, side: Side) -> Page:
    """models/deepseek_v4/attention.py: plain rows of 512 values, the page up to a multiple of 512."""
    tokens, t, N = _whole_states(p, side)
    row = 512 * SIZES[p["dtype"]]
    return Page({"row": field(row, p["dtype"], [tokens], t * row)}, _up(N * row, 512), N)


def _dsv41(row: int, tag: str, scales: int, scale_tag: str) -> PageFunction:
    """deepseek_v41/common/ops/fused_compress_quant_cache.py: values at slot * row, scales behind all rows.

    Records (SGLang's kv_layout.py, row_addressing): slot * (row + scales), and row bytes behind that.
    """

    def page(p: Params, side: Side) -> Page:
        tokens, t, N = _whole_states(p, side)
        record = p.get("scales", "page") == "record"
        fields = {
            "row": field(row, tag, [tokens], t * (row + scales if record else row)),
            "row_scale": field(
                scales, scale_tag, [tokens], t * (row + scales) + row if record else N * row + t * scales
            ),
        }
        return Page(fields, _up(N * (row + scales), 1 if record else p.get("align", 512)), N)

    return page


def dsv4_compressor(p: Params, side: Side) -> Page:
    """deepseek_v4/compressor.py, ops/save_partial_states.py: fp32 [kv_state, score_state], 2 vectors each at C4."""
    tokens, t, N = _whole_states(p, side)
    width = {4: 2, 128: 1}[p["ratio"]] * p.get("head_dim", 512) * 4
    fields = {
        "kv_state": field(width, "float32", [tokens], t * 2 * width),
        "score_state": field(width, "float32", [tokens], t * 2 * width + width),
    }
    return Page(fields, _up(N * 2 * width, p.get("align", 576)), N)


def indexer_m3(p: Params, side: Side) -> Page:
    """minimax_m3/common/indexer.py, qwen4_exp/common/qsa_cache.py: keys and nothing else."""
    tokens, span = states(side, p.get("tokens_per_state", 1))
    key = p["head_dim"] * SIZES[p["dtype"]]
    N = len(tokens.units)
    return Page({"key": field(key, p["dtype"], [tokens], np.arange(N) * key)}, N * key, span)


VARIANTS: dict[str, PageFunction] = {
    "gqa_rocm": _rocm(shuffled=False),
    "gqa_aiter": _rocm(shuffled=True),
    "turboquant": _turboquant(soa=False),
    "turboquant_soa": _turboquant(soa=True),
    "ultraquant": ultraquant,
    "nvfp4_msa": nvfp4_msa,
    "mla_int8_per_token_head": _mla_per_token_head("int8", 1),
    "mla_fp8_per_token_head": _mla_per_token_head("float8_e4m3", 1),
    "mla_int4_per_token_head": _mla_per_token_head("int4x2", 2),
    "dsv4": dsv4,
    "dsv41_fp8": _dsv41(512, "float8_e4m3", 16, "ue8m0"),
    "dsv41_nvfp4": _dsv41(256, "e2m1x2", 32, "float8_e4m3"),
    "dsv4_compressor": dsv4_compressor,
    "indexer_m3": indexer_m3,
}
