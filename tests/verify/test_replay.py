"""The replay itself: each kind of discrepancy on a plan small enough to see, its pages against the position oracle."""

from __future__ import annotations

import re
import subprocess
import sys
from random import Random

import pytest
from conftest import Size
from msgspec.structs import replace
from oracles import positions

from kvlayout.api import plan_pair
from kvlayout.errors import KvLayoutError
from kvlayout.ir import Array, Axis, Bytes, Page, Parallel, Struct
from kvlayout.plan.artifact import Group, Piece, Plan, RankMoves, sealed
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.testing.small import PARAMS
from kvlayout.verify.check import check_document
from kvlayout.verify.replay import Discrepancy, GroupPages, Replayer, ReplayRefused, confirms, replay
from kvlayout.verify.verdict import Witness


def page(*, gap: int = 0) -> Page:
    """Two heads of k (2 bytes) and v (1 byte), with a gap after each head."""
    record = Struct(3 + gap, ((0, Bytes("k", 2, "float16")), (2, Bytes("v", 1, "int8"))), ((3, gap),) if gap else ())
    return Page(Array("head", 1, 2, 3 + gap, record), {"head": Axis(2)}, None)


def plan_of(*pieces: Piece) -> Plan:
    group = Group("g", (0,), page(), page(gap=1), 1, 1, (RankMoves(0, pieces),))
    side = Parallel(stages=(1,))
    return Plan(side, side, (group,))


BOTH = ("k", "v")
RIGHT = Piece(0, BOTH, 0, 0, 0, 0, 3, ((2, 3, 4),))


def kinds(*pieces: Piece) -> set[tuple[str, int, int]]:
    """(kind, block, offset) of everything found."""
    return {(each.kind, each.block, each.offset) for each in replay(plan_of(*pieces))}


def test_a_right_plan_has_nothing_wrong() -> None:
    assert replay(plan_of(RIGHT)) == []


def test_every_kind_is_found_at_its_byte() -> None:
    first, second = replace(RIGHT, loops=()), replace(RIGHT, loops=(), src_offset=3, dst_offset=4)
    assert kinds(first) == {("missing", 0, offset) for offset in (4, 5, 6)}
    assert kinds(RIGHT, second) == {("twice", 0, offset) for offset in (4, 5, 6)}
    assert kinds(first, replace(second, src_offset=0)) == {("wrong", 0, offset) for offset in (4, 5, 6)}
    assert kinds(RIGHT, Piece(0, BOTH, 0, 0, 2, 3, 1)) == {("outside", 0, 3)}
    assert kinds(RIGHT, Piece(0, BOTH, 0, 0, 2, 8, 1)) == {("outside", 0, 8)}
    assert kinds(RIGHT, Piece(0, BOTH, 0, 0, 2, -1, 1)) == {("outside", 0, -1)}
    assert kinds(RIGHT, Piece(0, BOTH, 0, 1, 2, 2, 1)) == {("outside", 1, 2)}
    assert kinds(first, replace(second, src_offset=4, nbytes=3)) == {
        ("wrong", 0, 4), ("wrong", 0, 5), ("source", 0, 6),
    }  # fmt: skip
    assert kinds(first, replace(second, src_rank=1)) == {("source", 0, offset) for offset in (4, 5, 6)}
    assert kinds(first, replace(second, src_block=1)) == {("source", 0, offset) for offset in (4, 5, 6)}


def test_bytes_of_other_fields_are_foreign() -> None:
    only_k = Piece(0, ("k",), 0, 0, 0, 0, 3, ((2, 3, 4),))
    assert {kind for kind, _, _ in kinds(only_k)} == {"outside", "source"}


def test_a_rank_without_moves_and_one_that_is_none() -> None:
    plan = plan_of(RIGHT)
    group = plan.groups[0]
    without = replace(plan, groups=(replace(group, ranks=()),))
    assert {(each.kind, each.rank) for each in replay(without)} == {("missing", 0)}
    more = replace(plan, groups=(replace(group, ranks=(*group.ranks, RankMoves(1, (RIGHT,)))),))
    assert {(each.kind, each.rank) for each in replay(more)} == {("outside", 1)}


def test_a_witness_is_confirmed_by_the_very_byte() -> None:
    found = [Discrepancy("twice", "g", 0, 0, 4)]
    assert confirms(found, Witness("twice", "g", 0, 0, 4))
    for other in (
        Witness("wrong", "g", 0, 0, 4), Witness("twice", "h", 0, 0, 4), Witness("twice", "g", 1, 0, 4),
        Witness("twice", "g", 0, 1, 4), Witness("twice", "g", 0, 0, 5),
    ):  # fmt: skip
        assert not confirms(found, other)


def test_a_large_plan_is_refused_before_anything_is_filled() -> None:
    with pytest.raises(ReplayRefused, match="14 bytes; at most 10 are replayed"):
        replay(plan_of(RIGHT), budget=10)
    huge = replace(RIGHT, loops=((2**40, 3, 4),))
    with pytest.raises(ReplayRefused, match=re.escape(f"a piece moves {3 * 2**40} bytes")):
        replay(plan_of(huge))
    with pytest.raises(ReplayRefused, match="leave 64 bits"):
        replay(plan_of(replace(RIGHT, loops=((2, 2**70, 4),))))


def test_pages_that_do_not_pair_are_refused() -> None:
    plan = plan_of(RIGHT)
    lone = Page(Array("head", 1, 2, 2, Bytes("k", 2, "float16")), {"head": Axis(2)}, None)
    with pytest.raises(ReplayRefused, match="field 'v' is on one side only"):
        replay(replace(plan, groups=(replace(plan.groups[0], dst=lone),)))


def test_no_run_crosses_from_one_buffer_into_the_next() -> None:
    """k and v lie side by side on both sides, but in two buffers at the destination: two moves, never one."""
    tree = Struct(6, ((0, Bytes("k", 4, "float16")), (4, Bytes("v", 2, "int8"))))
    one, two = Page(tree, {}, None), Page(tree, {}, None, (("k", 4), ("v", 2)))
    side = Parallel(stages=(1,))
    for src, dst in ((one, two), (two, one), (two, two)):
        plan = Planner().plan("plan", [PlannedGroup("g", (0,), src, dst)], side, side)
        assert check_document(sealed(plan, {})).proved and replay(plan) == []
        assert len(plan.groups[0].ranks[0].pieces) == 2

        joined = RankMoves(0, (Piece(0, BOTH, 0, 0, 0, 0, 6),))
        forged = replace(plan, groups=(replace(plan.groups[0], ranks=(joined,)),))
        assert check_document(sealed(forged, {})).status == "refuted"
        assert {each.offset for each in replay(forged)} == {4, 5}
    plan = Planner().plan("plan", [PlannedGroup("g", (0,), one, one)], side, side)
    assert len(plan.groups[0].ranks[0].pieces) == 1


def test_a_replayer_that_is_kept_answers_alike() -> None:
    kept = Replayer()
    for pieces in ((RIGHT,), (), (RIGHT, RIGHT), (RIGHT,)):
        plan = plan_of(*pieces)
        assert kept.replay(plan) == replay(plan)


def test_the_proof_is_not_used() -> None:
    """The replay loads neither the planner nor the algebra, nor the proof."""
    script = (
        "import sys; before = set(sys.modules); import kvlayout.verify.replay; "
        "print(*sorted(name for name in sys.modules if name.startswith('kvlayout.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in loaded if name.startswith("kvlayout.verify.")} == {
        "kvlayout.verify.replay", "kvlayout.verify.verdict",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("kvlayout.plan.")} == {"kvlayout.plan.artifact"}


def test_filled_pages_are_those_of_the_oracle(size: Size) -> None:
    """Ids of source and destination pages against `oracles.positions`: one to one, over all ranks and both sides."""
    compared = 0
    for seed in range(size(120, 3_000, quick=30)):
        rng = Random(seed)
        name = rng.choice(sorted(PARAMS))
        params = {key: rng.choice(choices) for key, choices in PARAMS[name].items()}
        engines = [
            {
                "tp": rng.choice((1, 2, 3, 4, 8)), "block": rng.choice((4, 8)), "order": rng.choice(("LBHNC", "LBNHC")),
                "conv": rng.choice(("DS", "SD")), "spec_tokens": rng.choice((0, 2)),
            }
            for _ in range(2)
        ]  # fmt: skip
        if rng.random() < 0.4:
            engines[0] |= {"dcp": engines[0]["tp"], "interleave": rng.choice((1, 2))}
        spec = Spec("test", None, 1, None, (CacheGroup("g", find_format(name, None, ""), params, (0,), None, ""),))
        try:
            plan = plan_pair(spec, *(Engine(**engine) for engine in engines))
        except KvLayoutError:
            continue
        (group,) = plan.groups
        pages = GroupPages(group, plan.src, plan.dst, 2**22)
        same: dict[int, int] = {}
        sides = []
        for rank in range(plan.src.tp):
            mine = pages.sources[rank]
            sides.append((positions.source_page(name, params, engines[0], rank, blocks=group.src_blocks), mine))
        for rank in range(plan.dst.tp):
            sides.append((positions.expected_page(name, params, *engines, rank), pages.wanted(rank)[1]))
        for theirs, mine in sides:
            assert theirs.shape == mine.shape
            for a, b in zip(theirs.ravel().tolist(), mine.ravel().tolist(), strict=True):
                assert (a == positions.UNTOUCHED) == (b == -1), (name, params, engines)
                assert same.setdefault(a, b) == b, (name, params, engines)
        assert len(set(same.values())) == len(same)
        compared += 1
    assert compared > size(40, 1_000, quick=8)
