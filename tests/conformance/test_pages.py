"""The judged page cases: right bytes on every rank, in no more runs than an independent planner needs."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from oracles.positions import NotLoadable, replay

import kvlayout

from .harness import Pair, SourcePages, assert_rank, plan, records

if TYPE_CHECKING:
    from comparisons import Tally
    from conftest import Size

CASES = records("pages.jsonl")
SHARDABLE = [case for case in CASES if "dst_ranks" in case]
NOT_SHARDABLE = [case for case in CASES if "not_shardable" in case]
FORMATS = sorted({case["format"] for case in CASES})
LARGE = 100_000
"""Bytes of payload of a rank above which a quick run replays only the first case of each kind."""


def pair_of(case: dict[str, Any]) -> Pair:
    return Pair(case["format"], case["params"], case["src"], case["dst"])


def kind_of(case: dict[str, Any]) -> str:
    """Cases of one kind differ in sizes, not in structure."""
    src, dst = case["src"], case["dst"]
    words = {key: value for key, value in case["params"].items() if isinstance(value, str)}
    grows = (src["tp"] > dst["tp"]) - (src["tp"] < dst["tp"])
    return f"{case['format']} {words} {src.get('order')} {dst.get('order')} {grows} {case['params'].get('n_groups')}"


def test_the_file_is_whole() -> None:
    assert (len(SHARDABLE), len(NOT_SHARDABLE), len(CASES)) == (299, 12, 311)
    assert len({case["id"] for case in CASES}) == 311
    for case in SHARDABLE:
        assert [each["rank"] for each in case["dst_ranks"]] == list(range(case["dst"]["tp"]))


@pytest.mark.parametrize("case", SHARDABLE, ids=lambda case: case["id"])
def test_no_more_runs_than_needed(case: dict[str, Any]) -> None:
    found = plan(pair_of(case))
    for each in case["dst_ranks"]:
        runs = found.runs("cache", each["rank"])
        assert len(runs) <= len(each["runs"])
        assert runs[:, 5].sum() == each["payload_bytes"]
        assert not runs[:, [1, 3]].any()


def test_where_nixl_is_right_the_runs_are_the_same(tally: Tally) -> None:
    """Run for run, source ranks included, wherever vLLM 0.32's NIXL connector pulls or pushes the right bytes.

    There the case's runs are NIXL's, but for bytes that NIXL's replicas write twice.
    """
    cases = [
        case for case in SHARDABLE if "right" in (case["vllm_0_32"].get(f"nixl_{way}") for way in ("pull", "push"))
    ]
    assert len(cases) == 211
    with tally("NIXL geometries compared") as compare:
        for case in cases:
            found = plan(pair_of(case))
            for each in case["dst_ranks"]:
                ours = found.runs("cache", each["rank"])[:, [0, 2, 4, 5]].tolist()
                compare(ours, each["runs"], f"{case['id']}, rank {each['rank']}")


@pytest.mark.parametrize("format", FORMATS)
def test_bytes(format: str, size: Size) -> None:
    """Replayed ids are right on every rank, by the plan and by the case's own runs, which cross-checks the oracle."""
    kept: OrderedDict[str, SourcePages] = OrderedDict()
    seen: set[str] = set()
    for case in SHARDABLE:
        if case["format"] != format:
            continue
        large = max(each["payload_bytes"] for each in case["dst_ranks"]) > LARGE
        if size(False, False, quick=large) and kind_of(case) in seen:
            continue
        seen.add(kind_of(case))
        pair = pair_of(case)
        key = f"{pair.params} {pair.src}"
        sources = kept.setdefault(key, SourcePages(pair.format, pair.params, pair.src, 1))
        if len(kept) > 4:
            kept.popitem(last=False)
        found = plan(pair)
        for each in case["dst_ranks"]:
            assert_rank(pair, found, each["rank"], sources)
            expected = pair.expected(each["rank"])
            theirs = [[rank, 0, src, 0, dst, nbytes] for rank, src, dst, nbytes in each["runs"]]
            assert (replay(theirs, sources, expected.shape) == expected).all()
    assert seen


@pytest.mark.parametrize("case", NOT_SHARDABLE, ids=lambda case: case["id"])
def test_not_shardable(case: dict[str, Any]) -> None:
    with pytest.raises(kvlayout.PlanRefused) as refused:
        plan(pair_of(case))
    assert refused.value.unloadable
    assert {each.code for each in refused.value.problems} == {"KVL219"}
    with pytest.raises(NotLoadable):
        pair_of(case).expected(0)
