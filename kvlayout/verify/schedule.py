"""That a schedule delivers what its plans move: each move once, by its turn's plan, in rounds without contention.

The plans are proved apart from this, one by one. What is asked here of the schedule alone: that the plans are one plan
but for the sources that they chose, that every layer of every destination rank is sent exactly once by each source that
its plan names, and nothing else is, and that in a round no rank sends to two others or receives from two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from kvlayout.errors import Problem, problem, shown
from kvlayout.ir import Parallel, canonical_json
from kvlayout.plan.artifact import Plan

__all__ = ["Sent", "check_schedule"]

Sent = tuple[int, int, str, tuple[int, ...], int]
"""Source rank, destination rank (over the whole side), group, layers, turn."""

_Move = tuple[str, int, int, int]
"""Group, layer, source rank, destination rank."""


def check_schedule(
    plans: Sequence[Plan], turns: Mapping[str, Sequence[int]], rounds: Iterable[Iterable[Sent]]
) -> tuple[Problem, ...]:
    """What is wrong with a schedule, nothing if it is right. `turns`: by group, for each layer which plan moves it."""
    faults = list(_one_plan(plans))
    if faults:
        return tuple(faults)
    first = plans[0]
    if {name: len(each) for name, each in turns.items()} != {g.name: len(g.layers) for g in first.groups}:
        return (_fault("turns", "the turns are not those of the layers of the plan's groups"),)
    if any(not 0 <= turn < len(plans) for each in turns.values() for turn in each):
        return (_fault("turns", f"a turn that no plan has; there are {len(plans)}"),)
    needed = {move: turn for turn, plan in enumerate(plans) for move in _moves(plan, turn, turns)}
    seen: set[_Move] = set()
    for number, sends in enumerate(rounds):
        peer_of: tuple[dict[int, int], dict[int, int]] = {}, {}
        for src, dst, group, layers, turn in sends:
            where = f"round {number}, rank {src} to rank {dst}"
            for rank, peer, known, does in (
                (src, dst, peer_of[0], "sends to"),
                (dst, src, peer_of[1], "receives from"),
            ):
                if known.setdefault(rank, peer) != peer:
                    faults.append(_fault(where, f"rank {rank} {does} ranks {known[rank]} and {peer} in one round"))
            for layer in layers:
                move = group, layer, src, dst
                if needed.get(move) != turn:
                    faults.append(_fault(where, f"layer {layer} of group '{shown(group)}' is no move of turn {turn}"))
                elif move in seen:
                    faults.append(_fault(where, f"layer {layer} of group '{group}' is sent twice"))
                seen.add(move)
    faults += (
        _fault(f"rank {src} to rank {dst}", f"layer {layer} of group '{group}' is never sent")
        for group, layer, src, dst in sorted(set(needed) - seen)
    )
    return tuple(faults)


def _one_plan(plans: Sequence[Plan]) -> Iterator[Problem]:
    """The plans move the same pages between the same sides."""
    if not plans:
        yield _fault("plans", "a schedule of no plan")
        return
    first = _sides(plans[0])
    for turn, plan in enumerate(plans):
        if _sides(plan) != first:
            yield _fault(f"turn {turn}", "its plan is of other sides, groups or pages than the first one")


def _sides(plan: Plan) -> bytes:
    groups = [[g.name, g.layers, g.src, g.dst, g.src_blocks, g.dst_blocks] for g in plan.groups]
    return canonical_json([plan.src, plan.dst, groups])


def _moves(plan: Plan, turn: int, turns: Mapping[str, Sequence[int]]) -> Iterator[_Move]:
    """Every move of the layers whose turn it is."""
    for group in plan.groups:
        read = [(each.rank, sorted({piece.src_rank for piece in each.pieces})) for each in group.ranks]
        for layer, its in zip(group.layers, turns[group.name], strict=True):
            if its != turn:
                continue
            from_, to = (_stage(side, layer) * side.stage_ranks for side in (plan.src, plan.dst))
            for rank, sources in read:
                for source in sources:
                    yield group.name, layer, from_ + source, to + rank


def _stage(side: Parallel, layer: int) -> int:
    """The pipeline stage that has a layer."""
    return next((stage for stage, end in enumerate(accumulate(side.stages)) if layer < end), 0)


def _fault(where: str, text: str) -> Problem:
    return problem("KVL310", where, text)
