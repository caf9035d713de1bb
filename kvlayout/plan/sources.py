"""Source choice: which of the ranks that hold the same bytes gives them.

The rule, in this order (it belongs to the artifact's format version):

1. A piece that one source can give whole is never cut: a need is served by one holder.
2. A source that the rank reads anyway, for another field or group of the pair: fewest peers.
3. The least loaded sender: a holder is passed over only when it already sends an even share of what this set of holders
   must give, over all groups of the pair.
4. The first holder at or after `d * S // D`, going round.

Needs with one holder are settled first, since they leave no choice and count as load. Destination ranks follow in
ascending order, groups in the order of the spec; nothing depends on hashing. For a single replicated group the last
rule decides alone, and gives vLLM's source ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlayout.plan.slicing import GroupSlicer, Need

__all__ = ["Choice", "choose_sources"]

Choice = list[list[tuple[Need, int]]]
"""For each destination rank, its needs and the source that serves each."""


def choose_sources(
    slicers: Sequence[GroupSlicer], weights: Sequence[int], src_ranks: int, dst_ranks: int
) -> list[Choice]:
    """One `Choice` a group. `weights`: layers of each group, by which its bytes count as load."""
    chosen: list[list[dict[int, int]]] = [[{} for _ in range(dst_ranks)] for _ in slicers]
    needs = [[list(slicer.needs(rank)) for rank in range(dst_ranks)] for slicer in slicers]
    peers: list[set[int]] = [set() for _ in range(dst_ranks)]
    load = [0] * src_ranks
    asked: dict[tuple[int, ...], int] = {}
    for g, per_rank in enumerate(needs):
        for rank, wanted in enumerate(per_rank):
            for k, need in enumerate(wanted):
                size = need.nbytes * weights[g]
                if len(need.holders) == 1:
                    chosen[g][rank][k] = need.holders[0]
                    peers[rank].add(need.holders[0])
                    load[need.holders[0]] += size
                else:
                    asked[need.holders] = asked.get(need.holders, 0) + size
    fair = {holders: size + sum(load[h] for h in holders) for holders, size in asked.items()}
    for rank in range(dst_ranks):
        start = rank * src_ranks // dst_ranks
        for g, per_rank in enumerate(needs):
            for k, need in enumerate(per_rank[rank]):
                if k in chosen[g][rank]:
                    continue
                size = need.nbytes * weights[g]
                source = _pick(need.holders, peers[rank], load, fair[need.holders], start)
                chosen[g][rank][k] = source
                peers[rank].add(source)
                load[source] += size
    return [
        [[(need, chosen[g][rank][k]) for k, need in enumerate(wanted)] for rank, wanted in enumerate(per_rank)]
        for g, per_rank in enumerate(needs)
    ]


def _pick(holders: tuple[int, ...], peers: set[int], load: list[int], fair: int, start: int) -> int:
    known = [h for h in holders if h in peers]
    candidates = known or holders
    around = [h for h in candidates if h >= start] + [h for h in candidates if h < start]
    for h in around:
        if load[h] * len(holders) < fair:
            return h
    return min(around, key=lambda h: load[h])
