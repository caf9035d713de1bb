"""What must hold of plans whatever the layouts are: there and back, by way of a third side, and for part of the tokens.

Laws need no right answer to compare with, only plans of the same model. Pages are filled with ids, equal ones where
ranks hold the same bytes, and a plan is its runs, replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracles.parts import Ints
from oracles.positions import FORMATS, replay

import kvlayout
from kvlayout.ir import buffer_starts, span
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.plan.transfer import expand_runs
from kvlayout.testing.strategies import MAX_BYTES, PagePair, page_pairs
from kvlayout.verify.replay import GroupPages

from .draws import ATTENTION, common_span, page_of, sides
from .harness import Pair, SourcePages, interval_runs, plan, some, templates, tokens_of

if TYPE_CHECKING:
    from conftest import Size

One = tuple[dict[str, Any], dict[str, Any]]
"""An engine and the parameters of the format there."""


def pair_of(format: str, src: One, dst: One) -> Pair:
    return Pair(format, src[1], src[0], dst[0], dst[1])


def blocks_of(format: str, side: One, span: int) -> int:
    return span // page_of(format, *side).span if span else 1


def held(format: str, side: One, span: int) -> SourcePages:
    """The ids that a side of no kernel blocks holds."""
    return SourcePages(format, side[1], side[0], blocks_of(format, side, span))


def moved(format: str, src: One, dst: One, sources: Mapping[int, Ints], span: int) -> dict[int, Ints]:
    """What every rank of `dst` holds after the transfer of so many tokens."""
    pair = pair_of(format, src, dst)
    found, blocks = plan(pair), blocks_of(format, src, span)
    assert found.group("cache").dst.block == dst[0].get("block")
    shape = blocks_of(format, dst, span), next(found.entries("cache")).page_bytes
    return {rank: replay(templates(found, "cache", rank, blocks), sources, shape) for rank in pair.ranks}


@pytest.mark.parametrize("format", FORMATS)
def test_there_and_back_restores_every_byte(format: str, size: Size) -> None:
    @settings(max_examples=size(25, 1000, 5))
    @given(sides(format, 2, tiled=[1]))
    def law(both: list[One]) -> None:
        a, b = both
        span = common_span(format, both)
        before = held(format, a, span)
        there = moved(format, a, b, before, span)
        home = moved(format, b, a, there, span)
        for rank, pages in home.items():
            assert (pages == before[rank]).all(), f"{both}, rank {rank}"

    law()


@pytest.mark.parametrize("format", FORMATS)
def test_equal_sides_keep_their_places(format: str, size: Size) -> None:
    """Between equal engines each rank reads its own pages, each byte from where it belongs, in the fewest runs."""

    @settings(max_examples=size(15, 500, 5))
    @given(sides(format, 1, tiled=[0]))
    def law(alone: list[One]) -> None:
        found = plan(pair_of(format, alone[0], alone[0]))
        for entry in found.entries("cache"):
            runs = entry.runs()
            assert (runs[:, 0] == entry.rank).all()
            assert (runs[:, 1:3] == runs[:, 3:5]).all()
            apart = runs[1:, 2] > runs[:-1, 2] + runs[:-1, 5]  # only a pad stands between two runs, or the next buffer
            assert (apart | np.isin(runs[1:, 2], list(buffer_starts(found.group("cache").dst)))).all()

    law()


@pytest.mark.parametrize("format", FORMATS)
def test_by_way_of_a_third_side_is_the_same(format: str, size: Size) -> None:
    @settings(max_examples=size(25, 1000, 5))
    @given(sides(format, 3, tiled=[1]))
    def law(three: list[One]) -> None:
        a, b, c = three
        span = common_span(format, three)
        start = held(format, a, span)
        straight = moved(format, a, c, start, span)
        around = moved(format, b, c, moved(format, a, b, start, span), span)
        for rank, pages in straight.items():
            assert (pages == around[rank]).all(), f"{three}, rank {rank}"
            assert (pages == held(format, c, span)[rank]).all()

    law()


def test_there_and_back_between_pages_that_no_engine_has(size: Size) -> None:
    """Any nesting of any axes, with digits, pads, buffers, packings, shares and rows that only one side has."""
    seen = Counter[str]()

    @settings(max_examples=size(150, 4000, 20), suppress_health_check=[HealthCheck.filter_too_much])
    @given(page_pairs())
    def law(pair: PagePair) -> None:
        assume(span(pair.src.tree) * pair.src_parallel.stage_ranks <= MAX_BYTES)
        assume(span(pair.dst.tree) * pair.dst_parallel.stage_ranks <= MAX_BYTES)
        parallels = pair.src_parallel, pair.dst_parallel
        try:
            there = Planner().plan("there", [PlannedGroup("cache", (0,), pair.src, pair.dst)], *parallels)
        except kvlayout.PlanRefused:
            with pytest.raises(kvlayout.PlanRefused):  # what cannot be converted cannot be converted back
                Planner().plan("back", [PlannedGroup("cache", (0,), pair.dst, pair.src)], *parallels[::-1])
            seen["refused"] += 1
            return
        back = Planner().plan("back", [PlannedGroup("cache", (0,), pair.dst, pair.src)], *parallels[::-1])
        ours, theirs = (GroupPages(each.groups[0], each.src, each.dst, 1 << 24) for each in (there, back))
        pages = dict(enumerate(ours.sources))
        for way in (there, back):
            group = way.groups[0]
            shape = group.dst_blocks, span(group.dst.tree)
            pages = {moves.rank: replay(expand_runs(moves.pieces), pages, shape) for moves in group.ranks}
        for rank, held in pages.items():
            assert (held == np.where(theirs.wanted(rank)[1] >= 0, ours.sources[rank], -1)).all()
            seen["rows left"] += bool((held != ours.sources[rank]).any())
        seen["there and back"] += 1

    law()
    assert seen["there and back"] >= size(30, 800, 1) and (size.name == "quick" or seen["rows left"])


@pytest.mark.parametrize("format", ATTENTION)
def test_an_interval_is_the_restriction_of_the_whole(format: str, size: Size) -> None:
    """The tokens of the interval move, to where the whole plan puts them, and none of the others."""

    @settings(max_examples=size(25, 1000, 5))
    @given(sides(format, 3, tiled=[1, 2]), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
    def law(three: list[One], one: int, other: int) -> None:
        plain, src, dst = three
        per_state = plain[1].get("tokens_per_state", 1)
        span = common_span(format, three)
        begin, end = sorted(per_state * (each % (span + 1)) for each in (one, other))
        start = held(format, plain, span)
        before, pair = moved(format, plain, src, start, span), pair_of(format, src, dst)
        found, whole = plan(pair), moved(format, src, dst, before, span)
        token = {-1: -1}  # by id
        for rank in range(plain[0]["tp"] * plain[0].get("pcp", 1)):
            pages = start[rank]
            tokens = tokens_of(format, plain[1], plain[0], rank, len(pages))
            token |= dict(zip(pages.ravel().tolist(), tokens.ravel().tolist(), strict=True))
        for rank in some(pair.ranks, 3):
            tokens = np.vectorize(token.__getitem__)(whole[rank])
            part = replay(interval_runs(found, "cache", rank, (begin, end)), before, whole[rank].shape)
            inside = (begin <= tokens) & (tokens < end)
            assert (part == np.where(inside, whole[rank], -1)).all(), f"{three}, rank {rank}, tokens {begin}:{end}"

    law()
