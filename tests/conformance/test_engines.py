"""Random engines of every format: a plan exists exactly where the oracle has an answer, and then every byte agrees."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from oracles.parts import SIZES
from oracles.positions import FORMATS, NotConvertible, NotLoadable, expected_page

import kvlayout
from kvlayout.ir import span
from kvlayout.plan.transfer import TransferPlan

from .draws import PARAMS, pairs
from .harness import Pair, assert_right, plan, some

if TYPE_CHECKING:
    from conftest import Size

MOST_BYTES = 200_000
"""Bytes of the common token span on a rank above which a pair is planned and proved, but not replayed."""


def oracle(pair: Pair) -> str:
    """What the oracle says about a pair."""
    try:
        expected_page(
            pair.format, pair.params, pair.src, pair.dst, 0, dst_params=pair.dst_params, src_blocks=1, dst_blocks=1
        )
    except NotLoadable:
        return "unloadable"
    except NotConvertible:
        return "refused"
    return "proved"


def compiler(pair: Pair) -> tuple[str, TransferPlan | None]:
    """What the compiler says about a pair. A wrong parameter is a side that cannot exist, whatever the engine is."""
    try:
        return "proved", plan(pair)
    except kvlayout.SpecError:
        return "unloadable", None
    except kvlayout.PlanRefused as error:
        return "unloadable" if error.unloadable else "refused", None


def span_bytes(found: TransferPlan) -> int:
    """Bytes of the larger side's blocks of one template."""
    group = found.group("cache")
    return max(span(group.src.tree) * group.src_blocks, span(group.dst.tree) * group.dst_blocks)


def swizzle_cut(pair: Pair) -> bool:
    """Whether a side deals out tokens in runs that cut its page's groups of tokens: then addresses are no digits."""
    sides = (pair.params, pair.src), (pair.dst_params or pair.params, pair.dst)
    return any(
        engine.get("dcp", 1) * engine.get("pcp", 1) > 1
        and group_of(pair.format, params) % engine["interleave"] != 0
        and engine["interleave"] % group_of(pair.format, params) != 0
        for params, engine in sides
    )


def group_of(format: str, params: dict[str, Any]) -> int:
    """Tokens that a page keeps together in another order than the one they come in."""
    if "aiter" in format:
        return 16 // SIZES[params["dtype"]]
    return 4 if params.get("scale_layout") in ("sm100", "native") else 1


def test_every_format_is_drawn() -> None:
    assert set(PARAMS) == set(FORMATS)


def test_an_interleave_that_cuts_the_swizzle_is_refused() -> None:
    """Both engines exist, and the oracle can write the page down; the compiler says that it cannot analyse it."""
    params = {"num_kv_heads": 1, "head_size": 64, "scale_layout": "sm100"}
    pair = Pair("nvfp4", params, {"tp": 2, "dcp": 2, "block": 12, "interleave": 3}, {"tp": 1, "block": 24})
    assert swizzle_cut(pair) and oracle(pair) == "proved"
    with pytest.raises(kvlayout.PlanRefused) as refused:
        plan(pair)
    assert not refused.value.unloadable
    assert [each.code for each in refused.value.problems] == ["KVL509"]


@pytest.mark.parametrize("format", FORMATS)
def test_compiler_and_oracle_agree(format: str, size: Size) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=size(150, 3000, 20))
    @given(pairs(format))
    def agree(pair: Pair) -> None:
        answer = oracle(pair)
        verdict, found = compiler(pair)
        if answer == "proved" and swizzle_cut(pair):
            answer = "refused"
        assert verdict == answer, f"{pair}: the compiler says {verdict}, the oracle {answer}"
        seen[verdict] += 1
        if found is not None and span_bytes(found) <= MOST_BYTES:
            assert_right(pair, some(pair.ranks, size(4, 16, 3)), found=found)
            seen["replayed"] += 1

    agree()
    assert seen["replayed"] >= seen.total() // 8
