"""Scheduling: which replica serves which layer, and who sends to whom at a time, as data that a connector follows.

A plan names one source for every move, the same in all layers. Where several ranks hold the same bytes (MLA latents,
more ranks than heads), all but one of them then send nothing. Rotation deals the layers out to them: layer i of a
group is read from the i-th replica after the plan's own, so that sources which stood idle send, and ranks that shared a
source no longer do at the same layer. A rotated plan is a plan, and is proved like any other.

Rounds are sets of transfers in which no rank sends twice and none receives twice. There are as many as the busiest rank
has peers, and no fewer would do (König's edge colouring theorem for bipartite graphs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import msgspec

from kvlayout.ir import leaves
from kvlayout.plan.artifact import Group, Piece, Plan
from kvlayout.plan.ownership import origins_of
from kvlayout.plan.transfer import TransferPlan

__all__ = ["MAX_TURNS", "Schedule", "Send", "make_schedule", "rotated", "turns_of"]

MAX_TURNS = 64
"""Rotated plans of one schedule: more replicas than that are not all used."""


class Send(msgspec.Struct, frozen=True):
    """Layers of a group that one source rank sends to one destination rank, by the plan of `turn`.

    Ranks count over the whole side. `nbytes`: payload of one template of blocks in all these layers.
    """

    src: int
    dst: int
    group: str
    layers: tuple[int, ...]
    turn: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a connector follows for a pair of engines. Both sides make the same one from the same plan.

    `plans`: the plan of each turn; the first is the plan that was given. `turns`: by group, the turn of each of its
    layers. `rounds`: transfers that may go at the same time; the sends of one pair of ranks stand in one round.
    """

    plans: tuple[TransferPlan, ...]
    turns: dict[str, tuple[int, ...]]
    rounds: tuple[tuple[Send, ...], ...]

    def plan_of(self, group: str, layer: int) -> TransferPlan:
        """The plan that a layer is moved by. LookupError for no such group or layer."""
        layers = self.plans[0].group(group).layers
        if layer not in layers:
            raise LookupError(f"group '{group}' has no layer {layer}")
        return self.plans[self.turns[group][layers.index(layer)]]

    def expected(self, dst_rank: int) -> frozenset[tuple[int, str]]:
        """What completes a destination rank: (source rank, group) of everything that it receives, once each."""
        return frozenset((send.src, send.group) for sends in self.rounds for send in sends if send.dst == dst_rank)

    @property
    def sent(self) -> dict[int, int]:
        """Bytes that each source rank sends for one template of blocks of each group, by rank."""
        total: Counter[int] = Counter()
        for sends in self.rounds:
            for send in sends:
                total[send.src] += send.nbytes
        return dict(sorted(total.items()))

    def as_json(self) -> dict[str, Any]:
        """Plain data: digests instead of plans."""
        ranks = sorted({send.dst for sends in self.rounds for send in sends})
        return {
            "plans": [plan.digest for plan in self.plans],
            "turns": {group: list(turns) for group, turns in self.turns.items()},
            "rounds": [[msgspec.to_builtins(send) for send in sends] for sends in self.rounds],
            "expected": {str(rank): sorted(map(list, self.expected(rank))) for rank in ranks},
        }


def turns_of(plan: Plan) -> int:
    """How many turns it takes until each replica has served each move, at most `MAX_TURNS` and the number of layers."""
    sizes = {len(replicas[piece.src_rank]) for _, piece, replicas in _pieces(plan)}
    layers = max((len(group.layers) for group in plan.groups), default=1)
    return min(lcm(*sizes), MAX_TURNS, layers)


def rotated(plan: Plan, turn: int) -> Plan:
    """The plan in which every move is served by the replica `turn` places after the one that it names, going round."""
    moved: dict[tuple[str, int], list[Piece]] = {}
    for (name, rank), piece, replicas in _pieces(plan):
        holders = replicas[piece.src_rank]
        source = holders[(holders.index(piece.src_rank) + turn) % len(holders)]
        moved.setdefault((name, rank), []).append(msgspec.structs.replace(piece, src_rank=source))
    groups = tuple(
        msgspec.structs.replace(
            group,
            ranks=tuple(
                msgspec.structs.replace(each, pieces=tuple(moved.get((group.name, each.rank), ())))
                for each in group.ranks
            ),
        )
        for group in plan.groups
    )
    return Plan(plan.src, plan.dst, groups)


def make_schedule(plans: Sequence[TransferPlan]) -> Schedule:
    """The schedule of a plan and its rotations."""
    first = plans[0]
    turns = {group.name: tuple(i % len(plans) for i in range(len(group.layers))) for group in first.groups}
    sends = sorted(_sends(plans, turns), key=lambda send: (send.src, send.dst))
    by_pair: dict[tuple[int, int], list[Send]] = {}
    for send in sends:
        by_pair.setdefault((send.src, send.dst), []).append(send)
    rounds = [tuple(send for pair in pairs for send in by_pair[pair]) for pairs in _matchings(sorted(by_pair))]
    # The longest first: what a round waits for is its longest transfer, and late rounds should be short.
    rounds.sort(key=lambda each: -max(_nbytes(each).values()))
    return Schedule(tuple(plans), turns, tuple(rounds))


def _nbytes(sends: Sequence[Send]) -> Counter[tuple[int, int]]:
    total: Counter[tuple[int, int]] = Counter()
    for send in sends:
        total[send.src, send.dst] += send.nbytes
    return total


def _sends(plans: Sequence[TransferPlan], turns: dict[str, tuple[int, ...]]) -> Iterator[Send]:
    for turn, plan in enumerate(plans):
        for group in plan.groups:
            now = {layer for layer, its in zip(group.layers, turns[group.name], strict=True) if its == turn}
            for entry in plan.entries(group.name):
                layers = tuple(layer for layer in entry.layers if layer in now)
                nbytes: Counter[int] = Counter()
                for piece in entry.pieces:
                    count = piece.nbytes
                    for loop in piece.loops:
                        count *= loop[0]
                    nbytes[entry.first_src_rank + piece.src_rank] += count
                for source in sorted(nbytes) if layers else ():
                    yield Send(source, entry.rank, group.name, layers, turn, nbytes[source] * len(layers))


def _pieces(plan: Plan) -> Iterator[tuple[tuple[str, int], Piece, list[tuple[int, ...]]]]:
    """((group, destination rank), piece, for each source rank of a stage the ranks that hold the same fields of it)."""
    for group in plan.groups:
        axes_of = {leaf.field: leaf.axes for leaf in leaves(group.src.tree)}
        known: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
        for each in group.ranks:
            for piece in each.pieces:
                axes = tuple(sorted({axis for field in piece.fields for axis in axes_of[field]}))
                if axes not in known:
                    known[axes] = _replicas(plan, group, axes)
                yield (group.name, each.rank), piece, known[axes]


def _replicas(plan: Plan, group: Group, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
    page = group.src
    begins = [origins_of(f"group '{group.name}'", name, page.axes[name], page.block, plan.src) for name in axes]
    boxes = [tuple(each[rank] for each in begins) for rank in range(plan.src.stage_ranks)]
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank, box in enumerate(boxes):
        holders.setdefault(box, []).append(rank)
    return [tuple(holders[box]) for box in boxes]


def _matchings(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Pairs (source, destination) dealt out into as few sets as possible in which no rank stands twice.

    Made regular by pairs that stand for nothing, a bipartite graph has a perfect matching; without it, one degree less.
    """
    import networkx as nx

    sources, destinations = ({pair[side] for pair in pairs} for side in (0, 1))
    size = max(len(sources), len(destinations))
    number = [{rank: at for at, rank in enumerate(sorted(ranks))} for ranks in (sources, destinations)]
    edges = Counter((number[0][src], size + number[1][dst]) for src, dst in pairs)
    names = {(number[0][src], size + number[1][dst]): (src, dst) for src, dst in pairs}
    degree = Counter(end for edge in edges for end in edge)
    rounds = max(degree.values(), default=0)
    missing = ([(at, rounds - degree[at]) for at in range(side * size, (side + 1) * size)] for side in (0, 1))
    lacking, spare = (iter([at for at, count in each for _ in range(count)]) for each in missing)
    edges.update(zip(lacking, spare, strict=True))
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(2 * size))
    graph.add_edges_from(sorted(edges))
    real = Counter(names)
    for _ in range(rounds):
        matching = nx.bipartite.hopcroft_karp_matching(graph, range(size))
        taken = []
        for src in range(size):
            edge = src, matching[src]
            if real[edge]:
                real[edge] = 0
                taken.append(names[edge])
            edges[edge] -= 1
            if not edges[edge]:
                graph.remove_edge(*edge)
        yield taken
