"""The planner: groups of two sides in, the plan that the artifact carries out.

The passes, in order: pair fields, share axes, find needs (`GroupSlicer`), choose sources (`choose_sources`), lower to
nests. A `Planner` may be kept over many pairs of engines: what two pairs have in common is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.errors import PlanRefused, Problem, problem
from kvlayout.ir import Page, Parallel
from kvlayout.plan.artifact import Group, Plan, RankMoves
from kvlayout.plan.slicing import MAX_PIECES, GroupSlicer
from kvlayout.plan.sources import Choice, choose_sources

__all__ = ["PlannedGroup", "Planner"]


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A cache group to plan: its name, its layers (global indices), and a rank's page on each side.

    `formats`: what people call the two pages, for refusals.
    """

    name: str
    layers: tuple[int, ...]
    src: Page
    dst: Page
    formats: str = ""


class Planner:
    """Makes plans; remembers slicers and lowered groups by the pages' identity."""

    def __init__(self) -> None:
        self._slicers: dict[tuple[int, int, Parallel, Parallel], tuple[PlannedGroup, GroupSlicer]] = {}
        self._lowered: dict[tuple[str, tuple[int, ...], int, tuple[int, ...]], Group] = {}

    def plan(self, where: str, groups: Sequence[PlannedGroup], src: Parallel, dst: Parallel) -> Plan:
        """The plan of all groups together; PlanRefused with the problems of every group that does not convert."""
        slicers: list[GroupSlicer] = []
        problems: list[Problem] = []
        unloadable = False
        for group in groups:
            try:
                slicers.append(self._slicer(f"{where}: group '{group.name}'{group.formats}", group, src, dst))
            except PlanRefused as error:
                problems += error.problems
                unloadable |= error.unloadable
        if problems:
            raise PlanRefused(problems, unloadable=unloadable)
        choices = choose_sources(slicers, [len(group.layers) for group in groups], src.stage_ranks, dst.stage_ranks)
        planned = []
        for group, slicer, choice in zip(groups, slicers, choices, strict=True):
            key = group.name, group.layers, id(slicer), tuple(source for wanted in choice for _, source in wanted)
            if key not in self._lowered:
                self._lowered[key] = _lowered(f"{where}: group '{group.name}'", group, slicer, choice)
            planned.append(self._lowered[key])
        return Plan(src, dst, tuple(planned))

    def _slicer(self, where: str, group: PlannedGroup, src: Parallel, dst: Parallel) -> GroupSlicer:
        key = id(group.src), id(group.dst), src, dst
        kept = self._slicers.get(key)  # keeps the pages alive, so that an id stays theirs
        if kept is None:
            kept = self._slicers[key] = group, GroupSlicer(where, group.src, src, group.dst, dst)
        kept[1].where = where
        return kept[1]


def _lowered(where: str, group: PlannedGroup, slicer: GroupSlicer, choice: Choice) -> Group:
    ranks: list[RankMoves] = []
    total = 0
    for rank, wanted in enumerate(choice):
        pieces = tuple(piece for need, source in wanted for piece in slicer.pieces(rank, need, source))
        ranks.append(RankMoves(rank, pieces))
        total += len(pieces)
        if total > MAX_PIECES:
            raise PlanRefused(
                problem("KVL507", where, f"the plan would have more than {MAX_PIECES} pieces",
                        expected="blocks and interleaves that divide each other, or fewer ranks")
            )  # fmt: skip
    return Group(group.name, group.layers, group.src, group.dst, slicer.src_blocks, slicer.dst_blocks, tuple(ranks))
