"""Schedules, composed of planning and proving."""

from __future__ import annotations

from kvlayout.errors import PlanRefused
from kvlayout.plan.artifact import sealed
from kvlayout.plan.schedule import Schedule, make_schedule, rotated, turns_of
from kvlayout.plan.transfer import TransferPlan
from kvlayout.verify.check import check_document
from kvlayout.verify.schedule import check_schedule

__all__ = ["schedule"]


def schedule(plan: TransferPlan, *, rotate: bool = True) -> Schedule:
    """Which plan moves each layer, and who sends to whom at the same time.

    `rotate`: deal the layers out to all ranks that hold the same bytes, so that no source sends more than its share;
    each destination rank then reads more peers. Without it, every layer comes from the sources that the plan names.
    Every plan of the schedule is proved, and so is that the schedule delivers them. Both sides of a transfer make the
    same schedule from the same plan. Raises PlanRefused where something is not proved.
    """
    document = plan.document
    plans = [plan]
    for turn in range(1, turns_of(document.plan) if rotate else 1):
        other = sealed(rotated(document.plan, turn), document.meta)
        verdict = check_document(other, f"turn {turn}")
        if not verdict.proved:
            raise PlanRefused(verdict.problems)
        plans.append(TransferPlan(other))
    made = make_schedule(plans)
    sent = ([(each.src, each.dst, each.group, each.layers, each.turn) for each in sends] for sends in made.rounds)
    problems = check_schedule([each.document.plan for each in plans], made.turns, sent)
    if problems:
        raise PlanRefused(problems)
    return made
