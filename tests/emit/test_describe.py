"""Descriptors say what kernels do: carried out one by one they give the pages that the interpreter gives."""

from __future__ import annotations

import ctypes
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout
from kvlayout import Engine, SubmitError
from kvlayout.data import specs_dir
from kvlayout.emit import describe
from kvlayout.emit.describe import Descriptors, Pages, describer
from kvlayout.plan.artifact import Plan
from kvlayout.testing.strategies import plans

from .test_kernels import QUIET, Memory, cut_points, transfer

if TYPE_CHECKING:
    from conftest import Size


def pages(made: Any) -> Any:
    """Buffers as pages, at any depth."""
    if isinstance(made, dict):
        return {key: pages(value) for key, value in made.items()}
    return Pages(made.__array_interface__["data"][0], len(made), made.strides[0])


def carry_out(found: dict[int, Descriptors]) -> None:
    for each in found.values():
        for (src, nbytes, _), (dst, same, _) in zip(each.src.tolist(), each.dst.tolist(), strict=True):
            assert nbytes == same > 0
            ctypes.memmove(dst, src, nbytes)


def test_random_plans_are_described_as_they_move(size: Size) -> None:
    @settings(max_examples=size(150, 3_000, quick=30), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(drawn: Plan, seed: int) -> None:
        rng = Random(seed)
        plan = transfer(drawn)
        rank = rng.randrange(drawn.dst.stage_ranks * max(1, len(drawn.dst.stages)))
        templates = rng.choice([1, 2, 9])
        memory = Memory(plan, rank, rng, templates)
        tokens = cut_points(plan, rng, templates) if rng.random() < 0.5 else None
        made = describer(plan, dst_rank=rank, src=pages(memory.src), dst=pages(memory.dst))
        try:
            wanted = memory.expected(tokens)
        except ValueError:
            with pytest.raises(SubmitError):
                made(memory.blocks, tokens)
        else:
            found = made(memory.blocks, tokens)
            carry_out(found)
            memory.holds(wanted)
            assert set(found) <= set(memory.src)
            moved = kvlayout.bind(plan, dst_rank=rank, src=memory.src, dst=memory.dst)
            sizes = moved.packed_bytes(memory.blocks, tokens)
            assert {source: each.nbytes for source, each in found.items()} == {k: n for k, n in sizes.items() if n}
        memory.arena.close()

    run()


SPEC = """
kvlayout: 1
model: small
source: tests
groups:
  attention: {format: gqa, layers: [0, 1], params: {num_kv_heads: 2, head_size: 4, dtype: bfloat16}}
  state: {format: mamba1, layers: [2], params: {intermediate_size: 8, state_size: 2, conv_kernel: 3,
          conv_dtype: bfloat16, ssm_dtype: float32}}
"""
GPU = 0x7F00_0000_0000
"""An address that this process cannot touch."""


@pytest.fixture
def plan(tmp_path: Path) -> kvlayout.TransferPlan:
    (tmp_path / "small.yaml").write_text(SPEC)
    spec = kvlayout.load(tmp_path / "small.yaml")
    return kvlayout.slice_for_tp_transfer(spec, Engine(tp=2, block=4), Engine(tp=1, block=4))


def sides(plan: kvlayout.TransferPlan, *, gap: int = 0) -> dict[str, Any]:
    """Memory of two devices: layers one behind the other, pages of a layer side by side."""
    sizes = {group.name: (group.src.nbytes, group.dst.nbytes) for group in plan.groups}
    layers = {group.name: group.layers for group in plan.groups}

    def side(at: int, index: int) -> Any:
        made: dict[str, dict[int, Pages]] = {}
        for name, held in layers.items():
            for layer in held:
                stride = sizes[name][index] + gap
                made.setdefault(name, {})[layer] = Pages(at, 8, stride)
                at += 8 * stride
        return made

    return {"src": {0: side(GPU, 0), 1: side(GPU + 0x10000, 0)}, "dst": side(GPU + 0x20000, 1)}


BLOCKS: dict[str, Any] = {"attention": ([3, 4, 5], [0, 1, 2]), "state": ([4], [6])}


def test_memory_of_another_device_is_only_described(plan: kvlayout.TransferPlan) -> None:
    found = describer(plan, dst_rank=0, devices=(1, 3), **sides(plan))(BLOCKS)
    assert sorted(found) == [0, 1]
    for each in found.values():
        assert each.src.dtype == each.dst.dtype == np.uint64 and each.src.flags.c_contiguous
        assert set(each.src[:, 2].tolist()) == {1} and set(each.dst[:, 2].tolist()) == {3}
        assert (each.src[:, 0] >= GPU).all() and (each.src[:, 1] == each.dst[:, 1]).all()


def test_neighbours_are_joined_and_layers_are_not(plan: kvlayout.TransferPlan, tmp_path: Path) -> None:
    spec = kvlayout.load(tmp_path / "small.yaml")
    same = kvlayout.slice_for_tp_transfer(spec, Engine(tp=1, block=4), Engine(tp=1, block=4), group="attention")
    size = same.groups[0].dst.nbytes
    ids = {"attention": ([2, 3, 4, 7], [5, 6, 7, 0])}

    def rows(gap: int) -> list[list[int]]:
        memory = sides(same, gap=gap) | {"src": {0: {"attention": {n: Pages(n << 20, 8, size) for n in (0, 1)}}}}
        return describer(same, dst_rank=0, **memory)(ids)[0].src.tolist()

    assert rows(0) == [[at, n, 0] for layer in (0, 1) for at, n in ((2 * size, 3 * size), (7 * size, size))
                       for at in [(layer << 20) + at]]  # fmt: skip
    assert len(rows(8)) == 8  # gaps between the destination's pages


def test_a_descriptor_for_each_long_run(plan: kvlayout.TransferPlan) -> None:
    """What the plan says that a transport is given for a template is what it is given for scattered blocks."""
    found = describer(plan, dst_rank=0, **sides(plan, gap=8))({"attention": ([1], [2]), "state": ([4], [6])})
    assert sum(len(each.src) for each in found.values()) == plan.cost.descriptors


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (Pages(GPU, 8, 3), "KVL602", "pages overlap"),
        (Pages(-1, 8, 4096), "KVL602", "no pages"),
        (Pages((1 << 63) - 10, 8, 4096), "KVL602", "leave the address space"),
        (np.zeros((8, 64), np.uint8), "KVL602", "no pages"),
        (None, "KVL602", "no pages"),
    ],
)
def test_what_is_no_pages(plan: kvlayout.TransferPlan, wrong: Any, code: str, said: str) -> None:
    memory = sides(plan)
    memory["dst"]["attention"][1] = wrong
    with pytest.raises(SubmitError, match=code) as refused:
        describer(plan, dst_rank=0, **memory)
    assert said in str(refused.value)


def test_pages_that_share_memory(plan: kvlayout.TransferPlan) -> None:
    memory = sides(plan)
    memory["dst"]["attention"][1] = memory["dst"]["attention"][0]
    with pytest.raises(SubmitError, match="KVL603"):
        describer(plan, dst_rank=0, **memory)
    memory = sides(plan)
    memory["src"][0] = memory["dst"] | memory["src"][0]  # another machine's addresses may be the same
    memory["src"][0]["attention"] = {0: Pages(memory["dst"]["attention"][0].address, 8, 4096), 1: Pages(0, 8, 4096)}
    assert describer(plan, dst_rank=0, **memory)(BLOCKS)


def test_ids_are_checked_before_anything_is_described(plan: kvlayout.TransferPlan) -> None:
    made = describer(plan, dst_rank=0, null_blocks=(0, None), **sides(plan))
    for ids, code in (
        (([3, 4, 8], [0, 1, 2]), "KVL605"), (([3, 4, 5], [0, 1, 1]), "KVL606"), (([0, 4, 5], [0, 1, 2]), "KVL610"),
        (([3, 4], [0]), "KVL604"),
    ):  # fmt: skip
        with pytest.raises(SubmitError, match=code):
            made(BLOCKS | {"attention": ids})
    with pytest.raises(ValueError, match="devices"):
        describer(plan, dst_rank=0, devices=(0, -1), **sides(plan))


def test_kvl611_more_than_a_transport_should_have(plan: kvlayout.TransferPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    made = describer(plan, dst_rank=0, **sides(plan))
    monkeypatch.setattr(describe, "MAX_DESCRIPTORS", 2)
    with pytest.raises(SubmitError, match=r"KVL611.*pack them"):
        made(BLOCKS)
    assert made({"attention": ([], []), "state": ([], [])}) == {}


def test_of_one_source_rank(plan: kvlayout.TransferPlan) -> None:
    memory = sides(plan)
    both = describer(plan, dst_rank=0, **memory)(BLOCKS)
    alone = describer(plan, dst_rank=0, src={1: memory["src"][1]}, dst=memory["dst"])(BLOCKS)
    assert list(alone) == [1] and np.array_equal(alone[1].dst, both[1].dst)


def test_shipped_models_are_described(size: Size) -> None:
    for name in ("qwen3-next-80b-a3b", "llama-3.1-8b-nvfp4", "deepseek-v3.2")[: size(3, 3, quick=1)]:
        spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
        plan = kvlayout.slice_for_tp_transfer(spec, Engine(tp=4), Engine(tp=2, order="NHD"))

        def side(index: int, plan: Any = plan) -> Any:
            return {
                g.name: {n: Pages(k << 40 | n << 32, 4, (g.src, g.dst)[index].nbytes) for n in g.layers}
                for k, g in enumerate(plan.groups)  # a layer may have pages of several groups
            }

        for rank in range(2):
            blocks = {group.name: ([2], [1]) for group in plan.groups}
            found = describer(plan, dst_rank=rank, src=dict.fromkeys(range(4), side(0)), dst=side(1))(blocks)
            nbytes = sum(e.payload_bytes * len(e.layers) for g in plan.groups for e in plan.entries(g.name, rank))
            assert sum(each.nbytes for each in found.values()) == nbytes
