"""The identity of a side's layout, and the answer that two peers need: identical, convertible or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvlayout.api.plans import slice_for_tp_transfer
from kvlayout.errors import PlanRefused, Problem
from kvlayout.plan.identity import Layout, differences, layout_of_groups
from kvlayout.plan.transfer import Cost, TransferPlan

if TYPE_CHECKING:
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.model import Spec

__all__ = ["Comparison", "compare", "layout_of"]


def layout_of(spec: Spec, engine: Engine) -> Layout:
    """The layout of a model's pages on an engine: its digest is another's exactly when bytes need no plan between them.

    Raises PlanRefused (unloadable) when no such engine exists, SpecError when the engine names what the spec lacks.
    """
    from kvlayout.spec.model import parallel_of

    spec.check_engine(engine)
    parallel = parallel_of(spec, engine)
    return layout_of_groups(((group.name, group.layers, spec.page(group, engine)) for group in spec.groups), parallel)


@dataclass(frozen=True)
class Comparison:
    """Whether two sides may exchange bytes, and at what cost.

    `verdict`: `identical` (page for page and rank for rank, without a plan), `convertible` (by `plan`, at `cost`) or
    `refused` (`problems`, with codes and help). `reasons`: what is not the same, one line each. `src_digest`,
    `dst_digest`: of the two layouts, None where such an engine does not exist.
    """

    verdict: Literal["identical", "convertible", "refused"]
    src_digest: str | None = None
    dst_digest: str | None = None
    reasons: tuple[str, ...] = ()
    plan: TransferPlan | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def cost(self) -> Cost | None:
        """What the plan costs; None where there is none."""
        return None if self.plan is None else self.plan.cost


def compare(spec: Spec, src: Engine, dst: Engine, dst_spec: Spec | None = None) -> Comparison:
    """Whether engine `dst` can take what engine `src` has, and how: the answer that two peers need at their handshake.

    Raises SpecError when an engine names what the spec does not have; everything else is an answer.
    """
    layouts: list[Layout | None] = []
    for side, engine in ((spec, src), (spec if dst_spec is None else dst_spec, dst)):
        try:
            layouts.append(layout_of(side, engine))
        except PlanRefused:
            layouts.append(None)  # the plan says why, for both sides
    ours, theirs = layouts
    digest_of_src, digest_of_dst = (None if each is None else each.digest for each in layouts)
    reasons = () if ours is None or theirs is None else tuple(differences(ours, theirs))
    try:
        plan = slice_for_tp_transfer(spec, src, dst, dst_spec)
    except PlanRefused as error:
        return Comparison("refused", digest_of_src, digest_of_dst, reasons, problems=error.problems)
    return Comparison("convertible" if reasons else "identical", digest_of_src, digest_of_dst, reasons, plan)
