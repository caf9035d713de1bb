"""A plan costs its pieces; their number must not grow with tokens, channels or bytes where it need not."""

from __future__ import annotations

from typing import Any

import pytest

from kvlayout.api import plan_pair
from kvlayout.plan.artifact import Plan
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import spec_of_format
from kvlayout.verify.check import check_plan

GQA = {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
NVFP4 = {"num_kv_heads": 8, "head_size": 128}
GDN = {
    "num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128,
    "conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "float32",
}  # fmt: skip
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}


def plan_of(fmt: str, params: dict[str, Any], src: dict[str, Any], dst: dict[str, Any]) -> Plan:
    spec = spec_of_format(find_format(fmt, None, "test"), params, "test")
    plan = plan_pair(spec, Engine(**src), Engine(**dst))
    verdict = check_plan(plan)
    assert verdict.proved, verdict
    return plan


def pieces(plan: Plan) -> int:
    return sum(len(moves.pieces) for group in plan.groups for moves in group.ranks)


@pytest.mark.parametrize(
    ("fmt", "params", "src", "dst"),
    [
        pytest.param("gqa", GQA, {"tp": 4, "order": "NHD"}, {"tp": 2, "order": "NHD"}, id="NHD"),
        pytest.param("gqa", GQA, {"tp": 4, "order": "HND"}, {"tp": 2, "order": "NHD"}, id="HND-NHD"),
        pytest.param(
            "gqa", GQA, {"tp": 2, "order": "NHD", "groups": {"cache": {"kv_packing": "planes"}}}, {"tp": 1}, id="planes"
        ),
        pytest.param(
            "nvfp4", NVFP4, {"tp": 2}, {"tp": 4, "groups": {"cache": {"scale_layout": "sm100"}}}, id="linear-sm100"
        ),
        pytest.param("mla", MLA, {"tp": 4, "dcp": 4, "interleave": 1}, {"tp": 2}, id="interleave-1"),
        pytest.param("mla", MLA, {"tp": 4, "dcp": 2, "interleave": 4}, {"tp": 4, "dcp": 4, "interleave": 1}, id="N-M"),
    ],
)
def test_pieces_do_not_grow_with_tokens(
    fmt: str, params: dict[str, Any], src: dict[str, Any], dst: dict[str, Any]
) -> None:
    counts = {pieces(plan_of(fmt, params, {**src, "block": block}, {**dst, "block": block})) for block in (32, 4096)}
    assert len(counts) == 1


def test_elements_cost_no_pieces() -> None:
    """K and V of a record lie along axes of their own, and are one piece where nothing comes between them."""
    whole = plan_of("gqa", GQA, {"tp": 2}, {"tp": 2})
    assert [(p.fields, p.nbytes, p.loops) for p in whole.groups[0].ranks[0].pieces] == [(("k", "v"), 4 * 16 * 512, ())]
    for head_size in (1, 2, 128):
        order = plan_of("gqa", {**GQA, "head_size": head_size}, {"tp": 2, "order": "NHD"}, {"tp": 4})
        assert {(p.fields, p.nbytes) for p in order.groups[0].ranks[0].pieces} == {(("k", "v"), 4 * head_size)}


def test_pieces_do_not_grow_with_channels() -> None:
    counts = set()
    for width in (64, 4096):
        params = {**GDN, "head_k_dim": width, "head_v_dim": width}
        counts.add(pieces(plan_of("gdn", params, {"tp": 2, "conv": "DS"}, {"tp": 4, "conv": "SD", "spec_tokens": 2})))
    assert len(counts) == 1


def test_a_page_of_64_gb_costs_what_one_of_64_kb_does() -> None:
    kilobytes, gigabytes = (
        plan_of("gqa", GQA, {"tp": 2, "block": 32 * scale}, {"tp": 4, "block": 32 * scale, "order": "NHD"})
        for scale in (1, 2**20)
    )
    assert pieces(kilobytes) == pieces(gigabytes)
