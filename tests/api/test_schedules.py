"""Schedules: every move once, no rank in two transfers at a time, replicas in turn; and what is not so is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest
from conftest import Size
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout
from kvlayout import Engine, Schedule, TransferPlan
from kvlayout.api import schedules
from kvlayout.data import specs_dir
from kvlayout.plan.artifact import sealed
from kvlayout.plan.schedule import MAX_TURNS, _matchings, rotated, turns_of
from kvlayout.testing.strategies import plans
from kvlayout.verify.schedule import Sent, check_schedule


def plan_of(model: str, src: Engine, dst: Engine) -> TransferPlan:
    return kvlayout.slice_for_tp_transfer(kvlayout.load(specs_dir() / "models" / f"{model}.yaml"), src, dst)


def sent(made: Schedule) -> list[list[Sent]]:
    return [[(each.src, each.dst, each.group, each.layers, each.turn) for each in sends] for sends in made.rounds]


def faults(made: Schedule, rounds: Any = None, turns: Any = None) -> str:
    found = check_schedule([each.document.plan for each in made.plans], turns or made.turns, rounds or sent(made))
    assert {each.code for each in found} <= {"KVL310"}
    return "; ".join(each.message for each in found)


MIXES = [
    ("deepseek-v3", Engine(tp=8), Engine(tp=2)),
    ("deepseek-v3", Engine(tp=2), Engine(tp=8)),
    ("deepseek-v3", Engine(tp=4, dcp=2, interleave=16), Engine(tp=2)),
    ("qwen3-next-80b-a3b", Engine(tp=8), Engine(tp=2)),
    ("qwen3-next-80b-a3b", Engine(tp=4, pp=2), Engine(tp=4, pp=3)),
    ("qwen3-235b-a22b", Engine(tp=64), Engine(tp=8)),
    ("kimi-k3", Engine(tp=6), Engine(tp=4)),
]


@pytest.mark.parametrize(("model", "src", "dst"), MIXES)
@pytest.mark.parametrize("rotate", [True, False])
def test_every_move_once_in_as_few_rounds_as_can_be(model: str, src: Engine, dst: Engine, rotate: bool) -> None:
    plan = plan_of(model, src, dst)
    made = kvlayout.schedule(plan, rotate=rotate)
    assert made.plans[0] is plan and all(kvlayout.check(each).proved for each in made.plans)
    moves: Counter[tuple[str, int, int]] = Counter()
    peers: dict[tuple[str, int], set[int]] = {}
    for sends in made.rounds:
        pairs = {(each.src, each.dst) for each in sends}
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) > 0
        for each in sends:
            peers.setdefault(("src", each.src), set()).add(each.dst)
            peers.setdefault(("dst", each.dst), set()).add(each.src)
            moves.update((each.group, layer, each.dst) for layer in each.layers)
    assert len(made.rounds) == max(map(len, peers.values()))
    for rank in {rank for _, _, rank in moves}:
        read = {group.name: set[int]() for group in plan.groups}
        for group in plan.groups:
            for layer in group.layers:
                sources = made.plan_of(group.name, layer).sources(rank, layer).get(group.name, ())
                assert moves[group.name, layer, rank] == len(sources)
                read[group.name].update(sources)
        assert made.expected(rank) == {(source, name) for name, sources in read.items() for source in sources}
    assert sum(made.sent.values()) == plan.cost.nbytes
    assert kvlayout.schedule(plan, rotate=rotate).as_json() == made.as_json()


@pytest.mark.parametrize(("ranks", "dst"), [(8, 1), (8, 2), (8, 8), (3, 2), (64, 8)])
def test_replicas_send_alike(ranks: int, dst: int) -> None:
    """Each rank sends its share of the layers, give or take one for each destination rank."""
    plan = plan_of("deepseek-v3", Engine(tp=ranks), Engine(tp=dst))
    alone, turned = (kvlayout.schedule(plan, rotate=rotate) for rotate in (False, True))
    page = plan.groups[0].dst.nbytes
    assert set(alone.sent.values()) == {61 * page * max(1, ceil(dst / ranks))}
    used = min(ranks, 61)
    assert len(turned.plans) == used
    assert len(turned.sent) == (ranks if dst > 1 else used)
    assert all(abs(nbytes - 61 * page * dst / ranks) <= dst * page for nbytes in turned.sent.values())
    for layer in range(61):  # as many sources at a layer as destinations, or all of them
        sources = {turned.plan_of("attention", layer).sources(rank)["attention"] for rank in range(dst)}
        assert len(sources) == min(ranks, dst)


def test_what_is_held_once_is_not_turned() -> None:
    plan = plan_of("llama-3.1-8b", Engine(tp=8), Engine(tp=2))
    assert len(kvlayout.schedule(plan).plans) == 1
    assert kvlayout.schedule(plan).as_json()["expected"]["1"] == [[rank, "attention"] for rank in range(4, 8)]


def test_no_more_turns_than_layers_or_than_are_kept() -> None:
    assert turns_of(plan_of("deepseek-v3", Engine(tp=64), Engine(tp=1)).document.plan) == 61 < MAX_TURNS


def test_a_layer_that_is_not_there() -> None:
    made = kvlayout.schedule(plan_of("llama-3.1-8b", Engine(tp=8), Engine(tp=2)))
    with pytest.raises(LookupError, match="no layer 32"):
        made.plan_of("attention", 32)


def test_rotated_plans_are_proved(size: Size) -> None:
    @settings(max_examples=size(60, 2000, 15))
    @given(plans(), st.integers(1, 5))
    def law(plan: Any, turn: int) -> None:
        other = rotated(plan, turn)
        assert kvlayout.check(sealed(other, {})).proved
        back = rotated(other, -turn)
        assert back == plan

    law()


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1))
def test_rounds_are_as_few_as_the_busiest_rank_has_peers(pairs: set[tuple[int, int]]) -> None:
    rounds = list(_matchings(sorted(pairs)))
    assert Counter(pair for each in rounds for pair in each) == Counter(pairs)
    for side in (0, 1):
        assert all(len({pair[side] for pair in each}) == len(each) for each in rounds)
    degrees = [Counter(pair[side] for pair in pairs).most_common(1)[0][1] for side in (0, 1)]
    assert len(rounds) == max(degrees)


def _lost(rounds: list[list[Sent]]) -> None:
    rounds[0].pop()


def _doubled(rounds: list[list[Sent]]) -> None:
    rounds[-1].append(rounds[-1][0])


def _one_layer_less(rounds: list[list[Sent]]) -> None:
    src, dst, group, layers, turn = rounds[0][0]
    rounds[0][0] = src, dst, group, layers[1:], turn


def _another_source(rounds: list[list[Sent]]) -> None:
    src, dst, group, layers, turn = rounds[0][0]
    rounds[0][0] = (src + 1) % 8, dst, group, layers, turn


def _another_turn(rounds: list[list[Sent]]) -> None:
    src, dst, group, layers, turn = rounds[0][0]
    rounds[0][0] = src, dst, group, layers, turn + 1


def _all_at_once(rounds: list[list[Sent]]) -> None:
    rounds[:] = [[each for sends in rounds for each in sends]]


def _a_stranger(rounds: list[list[Sent]]) -> None:
    rounds.append([(0, 0, "nobody", (0,), 0)])


def _a_layer_that_is_not_there(rounds: list[list[Sent]]) -> None:
    rounds.append([(0, 0, "attention", (61,), 0)])


MUTANTS: dict[Callable[[list[list[Sent]]], None], str] = {
    _lost: "is never sent",
    _doubled: "is sent twice",
    _one_layer_less: "is never sent",
    _another_source: "is no move of turn",
    _another_turn: "is no move of turn",
    _all_at_once: "in one round",
    _a_stranger: "of group 'nobody' is no move",
    _a_layer_that_is_not_there: "layer 61 of group 'attention' is no move",
}


@pytest.fixture(scope="module")
def made() -> Schedule:
    return kvlayout.schedule(plan_of("deepseek-v3", Engine(tp=8), Engine(tp=2)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_kvl310_a_schedule_that_was_changed(made: Schedule, mutant: Callable[[list[list[Sent]]], None]) -> None:
    rounds = sent(made)
    assert faults(made, rounds) == ""
    mutant(rounds)
    assert MUTANTS[mutant] in faults(made, rounds)


def test_kvl310_other_plans_and_turns(made: Schedule) -> None:
    documents = [each.document.plan for each in made.plans]
    other = plan_of("deepseek-v3", Engine(tp=8), Engine(tp=1)).document.plan
    for wrong, turns, said in (
        ([], made.turns, "no plan"),
        ([*documents[:-1], other], made.turns, "of other sides"),
        (documents, {"attention": made.turns["attention"][1:]}, "not those of the layers"),
        (documents, {}, "not those of the layers"),
        (documents, {"attention": (8,) * 61}, "a turn that no plan has"),
        (documents, {"attention": (0,) * 61}, "is no move of turn"),
    ):
        found = check_schedule(wrong, turns, sent(made))
        assert any(said in each.message for each in found)


def test_what_is_not_proved_is_not_given_out(made: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = made.plans[0]
    with monkeypatch.context() as patched:
        patched.setattr(schedules, "rotated", lambda plan, turn: _from_rank_0(plan))
        with pytest.raises(kvlayout.PlanRefused, match="KVL3"):
            kvlayout.schedule(plan_of("llama-3.1-8b", Engine(tp=16), Engine(tp=8)))
    monkeypatch.setattr(schedules, "make_schedule", lambda plans: Schedule(tuple(plans), made.turns, made.rounds[1:]))
    with pytest.raises(kvlayout.PlanRefused, match="KVL310"):
        kvlayout.schedule(plan)


def _from_rank_0(plan: Any) -> Any:
    import msgspec

    zero = msgspec.structs.replace
    return zero(plan, groups=tuple(zero(group, ranks=tuple(
        zero(each, pieces=tuple(zero(piece, src_rank=0) for piece in each.pieces)) for each in group.ranks
    )) for group in plan.groups))  # fmt: skip
