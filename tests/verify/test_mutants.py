"""The checker on mutants: what is wrong is refuted by a rule of proof with a witness, what is right is proved.

Every mutant is re-sealed, so that no seal saves the checker from thinking. The byte replay, which shares nothing with
the proof, says whether a mutant is still right (another replica gives the bytes, a run is told as two). Mutants that
lie only in a label, or in the number of blocks, have tests of their own: their bytes may be right, and they still must
not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from conftest import Size
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvlayout.plan.artifact import Document, Plan, sealed
from kvlayout.testing import reseal
from kvlayout.testing.mutators import MUTATORS, RELABELLED, TEMPLATE
from kvlayout.testing.strategies import plans
from kvlayout.verify.check import check_document
from kvlayout.verify.replay import Discrepancy, Replayer, confirms
from kvlayout.verify.verdict import Verdict

PROOF_RULES = ("KVL301", "KVL302", "KVL303", "KVL304", "KVL305")

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def mutated(document: Document, mutator: str, rng: Random) -> Document | None:
    """The re-sealed mutant, or None when there is nothing to mutate."""
    plan = MUTATORS[mutator](rng, document.plan)
    return None if plan is None or plan == document.plan else reseal(replace(document, plan=plan))


def refuted_by(verdict: Verdict, found: set[Discrepancy]) -> str:
    """The rule that refutes a wrong plan; every witness it names must be one that the replay found."""
    assert verdict.status == "refuted", verdict
    refuting = [each for each in verdict.findings if each.status == "refuted"]
    for finding in refuting:
        assert finding.problem.code in PROOF_RULES, finding.problem
        assert finding.witness is not None, finding.problem
        assert confirms(found, finding.witness), finding.problem
    return refuting[0].problem.code


def table(tally: Counter[tuple[str, str]]) -> Iterator[str]:
    """Counts by class of mutant and by what became of it."""
    columns = ("proved", *PROOF_RULES)
    yield f"{'mutants':<22}" + "".join(f"{name:>9}" for name in ("all", "right", *columns))
    for name in (*MUTATORS, "total"):
        row = [sum(n for (kind, what), n in tally.items() if name in (kind, "total") and what == column)
               for column in ("all", "right", *columns)]  # fmt: skip
        yield f"{name:<22}" + "".join(f"{number:>9}" for number in row)


def test_wrong_mutants_are_refuted_and_right_ones_proved(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = size(600, 20_000, quick=100)
    tally: Counter[tuple[str, str]] = Counter()

    # Every plan has at least 8 mutants: none of the example budget is wasted on looking for them.
    @settings(max_examples=wanted // 8, suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(plan: Plan, seed: int) -> None:
        document, replayer = sealed(plan, {}), Replayer()
        for name in MUTATORS:
            mutant = mutated(document, name, Random(f"{seed} {name}"))
            if mutant is None:
                continue
            verdict, found = check_document(mutant), set(replayer.replay(mutant.plan))
            tally[name, "all"] += 1
            if found:
                tally[name, refuted_by(verdict, found)] += 1
            else:
                assert verdict.proved, verdict
                tally[name, "right"] += 1
                tally[name, "proved"] += 1

    run()
    with capsys.disabled():
        print("", *table(tally), sep="\n")
    total = sum(n for (_, what), n in tally.items() if what == "all")
    assert total >= wanted
    assert {name for name, what in tally if what == "all"} == set(MUTATORS) or size.name != "full"


def test_a_lie_in_a_label_is_not_proved(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    """The fields that a piece names are part of the plan: other bytes than theirs are foreign, to the replay as well.

    A label that still covers the bytes (fields in another order, or not side by side) moves the right ones; such a
    plan is refuted all the same, since people and tools read the label.
    """
    tally: Counter[str] = Counter()

    @settings(max_examples=size(100, 3_000, quick=20), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(plan: Plan, seed: int) -> None:
        mutant = RELABELLED(Random(seed), plan)
        if mutant is None or mutant == plan:
            return
        verdict = check_document(sealed(mutant, {}))
        found = set(Replayer().replay(mutant))
        if found:
            assert verdict.status == "refuted", verdict
            assert {each.problem.code for each in verdict.findings} <= set(PROOF_RULES)
            tally["foreign bytes"] += 1
        elif verdict.proved:  # a narrower or wider label that is still true
            tally["true"] += 1
        else:
            assert verdict.status == "refuted" and {each.problem.code for each in verdict.findings} == {"KVL304"}
            assert all(each.witness is None for each in verdict.findings)
            tally["label only"] += 1

    run()
    with capsys.disabled():
        print(f"\nlabels: {dict(tally)}")
    assert tally["foreign bytes"]


def test_another_template_is_refused(size: Size) -> None:
    """Numbers of blocks, and the destination ranks, are not free: no piece is looked at, so there is no witness."""

    @settings(max_examples=size(100, 3_000, quick=20), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(plan: Plan, seed: int) -> None:
        mutant = TEMPLATE(Random(seed), plan)
        if mutant is None or mutant == plan:
            return
        verdict = check_document(sealed(mutant, {}))
        assert verdict.status == "refuted", verdict
        assert {each.problem.code for each in verdict.findings} & {"KVL306", "KVL307"}, verdict

    run()


def test_right_plans_are_proved_and_the_replay_agrees(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    tally: Counter[str] = Counter()

    @settings(max_examples=size(300, 20_000, quick=50), suppress_health_check=QUIET)
    @given(plans())
    def run(plan: Plan) -> None:
        verdict = check_document(sealed(plan, {}))
        assert verdict.proved, verdict
        assert Replayer().replay(plan) == []
        tally["plans"] += 1
        tally["pieces"] += verdict.pieces
        tally["fields of ranks"] += verdict.fields
        tally["with unequal blocks"] += any(group.src_blocks != group.dst_blocks for group in plan.groups)
        tally["with context parallelism"] += max(plan.src.cp, plan.dst.cp) > 1
        tally["of shipped formats"] += plan.groups[0].name != "cache"
        tally["between unequal tp"] += plan.src.tp != plan.dst.tp
        tally["with tp not dividing"] += bool(plan.src.tp % plan.dst.tp and plan.dst.tp % plan.src.tp)

    run()
    with capsys.disabled():
        print("\nright plans, all proved, none wrong to the replay: " + ", ".join(f"{n} {k}" for k, n in tally.items()))
    assert tally["plans"] >= size(300, 20_000, quick=50) * 9 // 10
