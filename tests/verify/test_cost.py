"""What a proof costs is the number of pieces: neither bytes nor tokens count. Operations are counted, not seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvlayout.algebra.boxes import residual
from kvlayout.api import plan_pair
from kvlayout.ir import span
from kvlayout.plan.artifact import Plan, sealed
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.verify import check, coverage
from kvlayout.verify.check import check_document
from kvlayout.verify.resolve import resolve


def plan(name: str, params: dict[str, int | str], src: str, dst: str) -> Plan:
    group = CacheGroup("g", find_format(name, None, "test"), params, (0,), None, "test")
    return plan_pair(Spec("test", None, 1, None, (group,)), Engine.parse(src), Engine.parse(dst))


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what the checker does: pieces resolved, boxes they fall into, boxes that are summed."""
    counted: Counter[str] = Counter()

    def counting_resolve(*args: Any) -> Any:
        outcome = resolve(*args)
        counted["pieces"] += 1
        counted["boxes"] += len(outcome) if isinstance(outcome, list) else 0
        return outcome

    def counting_residual(pieces: Any, owned: Any) -> Any:
        counted["summed"] += len(pieces) + len(owned)
        return residual(pieces, owned)

    monkeypatch.setattr(check, "resolve", counting_resolve)
    monkeypatch.setattr(coverage, "residual", counting_residual)
    return counted


def spent(cost: Counter[str], each: Plan) -> dict[str, int]:
    cost.clear()
    assert check_document(sealed(each, {})).proved
    return dict(cost)


GQA = {"num_kv_heads": 8, "head_size": 4, "dtype": "float16"}


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ({}, {"head_size": 4 * 2**22}),
        ({"kv_packing": "planes"}, {"kv_packing": "planes", "head_size": 4 * 2**22}),
    ],
)
@pytest.mark.parametrize("engines", [("tp=4", "tp=2"), ("tp=8,order=NHD", "tp=2"), ("tp=1", "tp=4,order=NHD,block=32")])
def test_a_page_of_gigabytes_is_proved_like_one_of_kilobytes(
    cost: Counter[str], small: dict[str, int | str], large: dict[str, int | str], engines: tuple[str, str]
) -> None:
    little, much = plan("gqa", GQA | small, *engines), plan("gqa", GQA | large, *engines)
    assert span(much.groups[0].src.tree) >= 2**20 * span(little.groups[0].src.tree)
    assert spent(cost, little) == spent(cost, much)


@pytest.mark.parametrize("engines", [("tp=4", "tp=2"), ("tp=8,order=NHD", "tp=2"), ("tp=4,dcp=2", "tp=4,order=NHD")])
def test_a_block_of_a_million_tokens_is_proved_like_one_of_sixteen(
    cost: Counter[str], engines: tuple[str, str]
) -> None:
    params = {**GQA, "num_kv_heads": 2} if "dcp" in engines[0] else GQA
    sixteen = [f"{engine},block={32 if 'dcp' in engines[0] and 'dcp' not in engine else 16}" for engine in engines]
    million = [
        f"{engine},block={2**21 if 'dcp' in engines[0] and 'dcp' not in engine else 2**20}" for engine in engines
    ]
    assert spent(cost, plan("gqa", params, *sixteen)) == spent(cost, plan("gqa", params, *million))


def test_equal_ranks_are_proved_once(cost: Counter[str]) -> None:
    """Where shares lie alike relative to each other, the proof is looked up: 64 ranks cost what two do."""
    few = spent(cost, plan("gqa", {**GQA, "num_kv_heads": 64}, "tp=2", "tp=2"))
    many = spent(cost, plan("gqa", {**GQA, "num_kv_heads": 64}, "tp=64", "tp=64"))
    assert many == few


def test_swizzled_scales_cost_a_bounded_number_of_boxes(cost: Counter[str]) -> None:
    """Every order of scales is told by digits, so the boxes do not grow with the tokens."""
    params: dict[str, int | str] = {"num_kv_heads": 2, "head_size": 128}
    spends = [
        spent(cost, plan("nvfp4", params, f"tp=2,block={block}", f"tp=1,block={block},g.scale_layout=sm100"))
        for block in (16, 4096)
    ]
    assert spends[0] == spends[1]
