"""Which source serves a need: the rules in their order, and that nothing but the plan decides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import Size
from hypothesis import given, settings

from kvlayout.plan.artifact import Plan
from kvlayout.plan.slicing import Need
from kvlayout.plan.sources import choose_sources
from kvlayout.testing.strategies import plans
from kvlayout.verify.sides import SideView


@dataclass
class Wants:
    """A group of which only the needs are known: (destination rank, holders, bytes)."""

    wants: list[tuple[int, tuple[int, ...], int]]

    def needs(self, dst_rank: int) -> Iterator[Need]:
        for index, (rank, holders, nbytes) in enumerate(self.wants):
            if rank == dst_rank:
                yield Need(index, (), holders, nbytes)


def chosen(
    groups: list[Wants], src_ranks: int, dst_ranks: int, weights: list[int] | None = None
) -> list[list[list[int]]]:
    """The source of each need, by group and destination rank."""
    choice = choose_sources(groups, weights or [1] * len(groups), src_ranks, dst_ranks)  # type: ignore[arg-type]
    return [[[source for _, source in wanted] for wanted in per_rank] for per_rank in choice]


@pytest.mark.parametrize(("src_ranks", "dst_ranks"), [(8, 2), (2, 8), (4, 4), (6, 4), (3, 8), (8, 3), (16, 1)])
def test_a_replica_alone_comes_from_the_first_holder_at_or_after_its_place(src_ranks: int, dst_ranks: int) -> None:
    everyone = tuple(range(src_ranks))
    (found,) = chosen([Wants([(rank, everyone, 64) for rank in range(dst_ranks)])], src_ranks, dst_ranks)
    assert found == [[rank * src_ranks // dst_ranks] for rank in range(dst_ranks)]


def test_the_search_for_a_holder_goes_round() -> None:
    """Rank 3 begins to look at source 3, which does not hold what it needs."""
    (found,) = chosen([Wants([(0, (1, 2), 8), (1, (3,), 8), (3, (0, 2), 8)])], 4, 4)
    assert found == [[1], [3], [], [0]]


def test_a_need_is_never_cut() -> None:
    """However uneven the load, one source gives all of a need."""
    (found,) = chosen([Wants([(0, (0, 1, 2, 3), 1_000_000), (1, (0, 1), 1), (1, (2, 3), 1)])], 4, 2)
    assert [len(sources) for sources in found] == [1, 2]


def test_a_source_that_is_read_anyway_is_preferred() -> None:
    """Group a leaves no choice: rank r reads source 3 - r. Group b can come from anyone, and does from there."""
    only = Wants([(rank, (3 - rank,), 100) for rank in range(4)])
    anyone = Wants([(rank, (0, 1, 2, 3), 100) for rank in range(4)])
    assert chosen([only, anyone], 4, 4)[1] == [[3], [2], [1], [0]]
    assert chosen([anyone, only], 4, 4)[0] == [[3], [2], [1], [0]]


def test_a_peer_is_kept_although_it_is_loaded() -> None:
    """Fewest peers comes before even load."""
    heavy = Wants([(0, (1,), 1_000), (1, (1,), 1_000)])
    light = Wants([(0, (0, 1), 10), (1, (0, 1), 10)])
    assert chosen([heavy, light], 2, 2)[1] == [[1], [1]]


def test_the_load_is_even_over_all_ranks() -> None:
    everyone = tuple(range(4))
    (found,) = chosen([Wants([(rank, everyone, 64) for rank in range(8)])], 4, 8)
    assert sorted(source for sources in found for source in sources) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_busy_sender_is_passed_over() -> None:
    """Source 0 already sends to rank 2 more than its share of what 0 and 1 must give."""
    busy = Wants([(2, (0,), 1_000)])
    free = Wants([(0, (0, 1), 100), (1, (0, 1), 100)])
    assert chosen([busy, free], 2, 3)[1][:2] == [[1], [1]]


def test_load_counts_layers() -> None:
    """What source 0 must give anyway is little in one layer and much in a hundred."""
    must = Wants([(1, (0,), 10)])
    free = Wants([(0, (0, 1), 100), (2, (0, 1), 100)])
    assert chosen([must, free], 2, 3, [1, 1])[1] == [[0], [], [1]]
    assert chosen([must, free], 2, 3, [100, 1])[1] == [[1], [], [1]]


def test_of_the_ranks_that_hold_the_same_one_gives_all(size: Size) -> None:
    """On whole plans: a destination rank reads a field from one member of each class of equal source ranks."""

    @settings(max_examples=size(50, 1_000, quick=10))
    @given(plans())
    def run(plan: Plan) -> None:
        for group in plan.groups:
            side = SideView(group.src, plan.src)
            for moves in group.ranks:
                given_by: dict[tuple[object, ...], int] = {}
                for piece in moves.pieces:
                    axes = sorted(side.leaves[piece.fields[0]].axes)
                    share = piece.fields, tuple(side.origin(piece.src_rank, axis) for axis in axes)
                    assert given_by.setdefault(share, piece.src_rank) == piece.src_rank

    run()


SCRIPT = """
import sys
import kvlayout
spec = kvlayout.load(sys.argv[1])
for src, dst in (("tp=8", "tp=2"), ("tp=2", "tp=8"), ("tp=4,pp=2", "tp=8,order=NHD")):
    plan = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine.parse(src), kvlayout.Engine.parse(dst))
    print(plan.digest)
"""


def test_plans_do_not_depend_on_the_hash_seed(size: Size, pytestconfig: pytest.Config) -> None:
    """Models with several groups and replicas, in interpreters of other hash seeds."""
    root = pytestconfig.rootpath
    for model in size(("qwen3-next-80b-a3b",), ("qwen3-next-80b-a3b", "granite-4.0-h-small", "deepseek-v3.2")):
        printed = {
            subprocess.run(
                [sys.executable, "-c", SCRIPT, str(root / "specs" / "models" / f"{model}.yaml")],
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(root)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for hash_seed in (0, 1, 4242)
        }
        assert len(printed) == 1
        assert printed.pop().count("sha256:") == 3
