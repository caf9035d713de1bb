"""Kernels move what the interpreter moves, byte for byte, and touch nothing else."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlayout
from kvlayout.api import check
from kvlayout.emit import cache, kernels
from kvlayout.emit.interpret import interpret
from kvlayout.emit.moves import buffers_of
from kvlayout.emit.tables import DESCRIBING, SHAPES
from kvlayout.plan.artifact import Plan, sealed
from kvlayout.plan.transfer import TransferPlan
from kvlayout.testing.strategies import plans

from .memory import Arena

if TYPE_CHECKING:
    from conftest import Size

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


class Memory:
    """All pages of one destination rank's transfer in guarded memory, and what the interpreter makes of them."""

    def __init__(self, plan: TransferPlan, rank: int, rng: Random, templates: int) -> None:
        self.arena, self.plan, self.rank = Arena(), plan, rank
        fill = np.random.default_rng(rng.randrange(2**32))
        self.src: dict[int, dict[str, dict[int, Any]]] = {}
        self.dst: dict[str, dict[int, Any]] = {}
        self.blocks: dict[str, tuple[Any, Any]] = {}
        for group in plan.groups:
            entries = [entry for entry in plan.entries(group.name) if entry.rank == rank]
            ids = []
            for count in (templates * group.src_blocks, templates * group.dst_blocks):
                ids.append(np.array(rng.sample(range(count + 2), count), rng.choice([np.int64, np.int32, np.uint16])))
            self.blocks[group.name] = ids[0], ids[1]
            gap, offset, at_end = rng.choice([0, 0, 5, 64]), rng.choice([0, 0, 1, 20]), rng.random() < 0.5
            for entry in entries:
                for layer in entry.layers:
                    for source in {entry.first_src_rank + piece.src_rank for piece in entry.pieces}:
                        pages = self._pages(group.src, len(ids[0]) + 2, gap, offset, at_end, fill)
                        self.src.setdefault(source, {}).setdefault(group.name, {})[layer] = pages
                    pages = self._pages(group.dst, len(ids[1]) + 2, gap, offset, at_end, fill)
                    self.dst.setdefault(group.name, {})[layer] = pages

    def _pages(self, page: Any, rows: int, gap: int, offset: int, at_end: bool, fill: np.random.Generator) -> Any:
        made = {}
        for name, nbytes in buffers_of(page):
            made[name] = self.arena.rows(rows, nbytes, gap=gap, offset=offset, at_end=at_end)
            made[name][:] = fill.integers(0, 256, made[name].shape, np.uint8)
        return made if page.buffers else made[""]

    def expected(self, tokens: tuple[int, int] | None = None) -> dict[tuple[str, int], Any]:
        """What each destination layer must hold, its buffers side by side."""
        wanted = {}
        for group in self.plan.groups:
            for entry in self.plan.entries(group.name):
                if entry.rank != self.rank:
                    continue
                for layer in entry.layers:
                    sources = {
                        rank: whole(groups[group.name][layer])
                        for rank, groups in self.src.items()
                        if layer in groups.get(group.name, {})
                    }
                    page = whole(self.dst[group.name][layer])
                    interpret(self.plan, group.name, self.rank, sources, page, *self.blocks[group.name], tokens, layer)
                    wanted[group.name, layer] = page
        return wanted

    def holds(self, wanted: dict[tuple[str, int], Any]) -> None:
        """Assert that the destination holds just that, and that nothing beside a page has changed."""
        assert self.arena.untouched()
        for (name, layer), page in wanted.items():
            assert np.array_equal(whole(self.dst[name][layer]), page), (name, layer)


def whole(pages: Any) -> Any:
    """A copy of a page's buffers side by side."""
    return np.concatenate(list(pages.values()), axis=1) if isinstance(pages, dict) else pages.copy()


def transfer(plan: Plan) -> TransferPlan:
    found = TransferPlan(sealed(plan, {}))
    assert check(found).proved
    return found


def cut_points(plan: TransferPlan, rng: Random, templates: int) -> tuple[int, int] | None:
    """A token interval that every group can be cut at; None where that is not simple to say."""
    sizes = []
    for group in plan.groups:
        grows = [axis for axis in group.dst.axes.values() if axis.grows]
        if not grows or group.dst.block is None:
            continue
        ways = plan.document.plan.dst.cp if any(axis.shard == "cp" for axis in grows) else 1
        step = max(max(1, group.dst.block // axis.size) for axis in grows)
        if any(group.dst.block % axis.size and axis.size % group.dst.block for axis in grows):
            return None
        sizes.append((group.dst.block * ways * group.dst_blocks * templates, step))
    if not sizes:
        return rng.randrange(50), rng.randrange(50, 99)
    total, step = min(size for size, _ in sizes), max(step for _, step in sizes)
    if any(step % other for _, other in sizes):
        return None
    a, b = sorted(step * rng.randrange(total // step + 1) for _ in "ab")
    return a, b


def test_random_plans_move_what_the_interpreter_moves(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    """Random layouts, engines, block tables, paddings and misalignments; guard pages around every buffer. The number
    of kernels does not grow with the number of plans."""
    tally: Counter[str] = Counter()
    wanted = size(250, 5_000, quick=40)
    for shape in SHAPES:
        kernels.kernel_of(shape)
    before = len(cache.compiled)

    @settings(max_examples=wanted, suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(drawn: Plan, seed: int) -> None:
        rng = Random(seed)
        plan = transfer(drawn)
        rank = rng.randrange(drawn.dst.stage_ranks * max(1, len(drawn.dst.stages)))
        templates = rng.choice([1, 2, 9, 19])
        memory = Memory(plan, rank, rng, templates)
        reader: Any = rng.choice(["any", "cpu", "device"])
        move = kvlayout.bind(
            plan, dst_rank=rank, src=memory.src, dst=memory.dst, reader=reader, threads=rng.choice([1, 1, 2, 3])
        )
        tokens = cut_points(plan, rng, templates) if rng.random() < 0.5 else None
        try:
            wanted = memory.expected(tokens)
        except ValueError:  # fields without tokens, or the interval cuts what moves as one
            with pytest.raises(kvlayout.SubmitError) as refused:
                move(memory.blocks, tokens)
            assert refused.value.problems[0].code == "KVL607"
            tally["refused to cut"] += 1
            memory.arena.close()
            return
        if rng.random() < 0.4:
            before = {key: whole(memory.dst[key[0]][key[1]]) for key in wanted}
            packed = {}
            for source in memory.src:  # each sender has its own memory alone
                sender = kvlayout.bind(plan, dst_rank=rank, src={source: memory.src[source]}, reader=reader)
                packed |= sender.pack({name: (src, None) for name, (src, _) in memory.blocks.items()}, tokens)
            memory.holds(before)
            assert {source: len(each) for source, each in packed.items()} == move.packed_bytes(memory.blocks, tokens)
            receiver = kvlayout.bind(plan, dst_rank=rank, dst=memory.dst, reader=reader)
            receiver.unpack(packed, {name: (None, dst) for name, (_, dst) in memory.blocks.items()}, tokens)
            tally["packed"] += 1
        else:
            move(memory.blocks, tokens)
        memory.holds(wanted)
        tally["plans"] += 1
        tally[reader] += 1
        tally["with tokens"] += tokens is not None
        memory.arena.close()

    run()
    with capsys.disabled():
        print(f"\n{len(SHAPES)} kernels, {len(cache.compiled) - before} more compiled for {dict(tally)}")
    assert len(cache.compiled) == before
    assert set(kernels._loaded) - set(DESCRIBING) == set(SHAPES)
    assert tally["plans"] + tally["refused to cut"] >= wanted * 9 // 10
    assert min(tally[each] for each in ("packed", "with tokens", "any", "cpu", "device")) >= wanted // 20
