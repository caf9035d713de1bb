"""Tensor tables: where layers lie in the memory of a stage, and plans between stages cut otherwise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused, SpecError
from kvlayout.spec.model import Spec
from kvlayout.spec.tables import TensorTable


def load(name: str) -> Spec:
    return kvlayout.load(specs_dir() / "models" / f"{name}.yaml")


QWEN, LLAMA, V32 = load("qwen3-next-80b-a3b"), load("llama-3.1-8b"), load("deepseek-v3.2")


def spans(table: TensorTable, stage: int, block_table: int) -> list[tuple[int, int]]:
    """Every page of a block table in a stage, ascending."""
    return sorted(
        (region.address(layer, block), region.address(layer, block) + region.page_bytes)
        for region in table.regions
        if (region.stage, region.table) == (stage, block_table)
        for layer in region.layers
        for block in range(table.blocks)
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (QWEN, {"tp": 2, "family": "vllm@0.32"}),
        (QWEN, {"tp": 2, "family": "vllm@0.32", "stages": "30+18"}),
        (QWEN, {"tp": 2, "stages": "1+46+1"}),
        (V32, {"tp": 8, "family": "vllm@0.32", "pp": 4}),
        (LLAMA, {"tp": 4, "block": 96, "kernel_block": 32}),
        (LLAMA, {"tp": 4, "family": "vllm@0.32", "kernel_block": 64, "block": 96, "order": "NHD"}),
    ],
)
def test_pages_of_a_block_table_lie_apart_and_inside(spec: Spec, words: dict[str, Any], packed: bool) -> None:
    table = kvlayout.tensor_table(spec, Engine(**words), 5, packed=packed)
    held = [(region.group, layer) for region in table.regions for layer in region.layers]
    assert sorted(held) == sorted((group.name, layer) for group in spec.groups for layer in group.layers)
    for stage, nbytes in enumerate(table.nbytes):
        tables = {region.table for region in table.regions if region.stage == stage}
        everything = []
        for block_table in tables:
            found = spans(table, stage, block_table)
            assert found[0][0] >= 0 and found[-1][1] <= nbytes
            assert all(end <= begin for (_, end), (begin, _) in pairwise(found))
            everything += found
        if "family" not in words:  # nothing is shared, so neither do two tables
            everything.sort()
            assert all(end <= begin for (_, end), (begin, _) in pairwise(everything))


def test_vllm_deals_layers_out_to_tables_of_equally_many() -> None:
    table = kvlayout.tensor_table(QWEN, Engine(tp=2, family="vllm@0.32"), 10)
    assert [(region.group, len(region.layers)) for region in table.regions] == [
        ("attention", 12), ("state", 12), ("state", 12), ("state", 12),
    ]  # fmt: skip
    assert table.regions[2].layers[:3] == (1, 5, 9)  # layers i, i + 3, ... of 36 states
    assert {region.offset for region in table.regions} == {0}  # one allocation
    page = 544 * 1024
    assert table.nbytes == (12 * 10 * page,)
    assert {(region.layer_stride, region.block_stride) for region in table.regions} == {(10 * page, page)}
    packed = kvlayout.tensor_table(QWEN, Engine(tp=2, family="vllm@0.32"), 10, packed=True)
    assert {(region.layer_stride, region.block_stride) for region in packed.regions} == {(page, 12 * page)}


def test_pages_of_several_sizes_lie_side_by_side() -> None:
    """MLA and its indexer are one type of attention: one block table, one after the other in memory."""
    table = kvlayout.tensor_table(V32, Engine(family="vllm@0.32"), 10)
    mla, index = table.regions
    assert (mla.table, index.table) == (0, 0)
    assert index.offset == 61 * mla.layer_stride
    packed = kvlayout.tensor_table(V32, Engine(family="vllm@0.32"), 10, packed=True)
    assert packed.region("indexer", 0).offset == 61 * 16 * 656
    assert packed.region("attention", 0).block_stride == 61 * 16 * (656 + 132)


def test_strides_are_aligned() -> None:
    table = kvlayout.tensor_table(V32, Engine(), 10, align={"attention": 576})
    assert table.region("attention", 0).block_stride == 10944  # 16 * 656, rounded up
    assert table.region("indexer", 0).block_stride == 16 * 132
    tiles = kvlayout.tensor_table(LLAMA, Engine(block=96, kernel_block=32, order="NHD"), 4, packed=True)
    assert tiles.region("attention", 0).block_stride % (32 * 8 * 512) == 0
    with pytest.raises(SpecError, match="KVL154"):
        kvlayout.tensor_table(V32, Engine(), 10, align={"cache": 576})


def test_unequal_pages_of_two_tables_need_blocks_outermost(tmp_path: Any) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(
        "kvlayout: 1\nmodel: m\nsource: a test\nnum_layers: 2\ngroups:\n"
        "  full: {format: mla, layers: [0], block: 64, params: {kv_lora_rank: 64, qk_rope_head_dim: 8, dtype: int8}}\n"
        "  ring: {format: mla, layers: [1], block: 4, window: 8, params: {kv_lora_rank: 64, qk_rope_head_dim: 8, "
        "dtype: float32}}\n"
    )
    spec, engine = kvlayout.load(path), Engine(family="vllm@0.32")
    with pytest.raises(PlanRefused, match="KVL209"):
        kvlayout.tensor_table(spec, engine, 3)
    packed = kvlayout.tensor_table(spec, engine, 3, packed=True)
    assert [(region.offset, region.block_stride) for region in packed.regions] == [(0, 64 * 72), (0, 64 * 72)]


def test_no_such_layer() -> None:
    table = kvlayout.tensor_table(QWEN, Engine(), 3)
    with pytest.raises(LookupError, match="layer 0 of group 'attention'"):
        table.region("attention", 0)
    with pytest.raises(PlanRefused, match="KVL205"):
        kvlayout.tensor_table(QWEN, Engine(pp=64), 3)


def buffers(table: TensorTable, memory: dict[int, Any], per_stage: int, rank: int) -> dict[str, dict[int, Any]]:
    """A rank's memory as the buffers that `bind` takes: a row is a page, a stride lies between rows."""
    found: dict[str, dict[int, Any]] = {}
    for region in table.regions:
        if region.stage == rank // per_stage:
            for layer in region.layers:
                at = memory[rank][region.address(layer, 0) :]
                found.setdefault(region.group, {})[layer] = np.lib.stride_tricks.as_strided(
                    at, (table.blocks, region.page_bytes), (region.block_stride, 1)
                )
    return found


@pytest.mark.parametrize("packed", [(False, True), (True, False), (True, True)])
def test_layers_come_from_the_stage_that_has_them(tmp_path: Any, packed: tuple[bool, bool]) -> None:
    """Two cuts of 8 layers, packed in blocks: every page arrives, whatever stage had its layer."""
    path = tmp_path / "model.yaml"
    path.write_text(
        "kvlayout: 1\nmodel: m\nsource: a test\nnum_layers: 8\ngroups:\n"
        "  attention: {format: gqa, layers: [1, 3, 5, 7], params: {num_kv_heads: 2, head_size: 4, dtype: bfloat16}}\n"
        "  state: {format: linear, layers: 4, params: {num_heads: 2, head_dim: 4, dtype: float32}}\n"
    )
    spec = kvlayout.load(path)
    src, dst = Engine(tp=2, stages="5+3"), Engine(tp=1, stages="2+4+2")
    plan = kvlayout.slice_for_tp_transfer(spec, src, dst)
    assert plan.sources(1) == {"attention": (0, 1, 2, 3), "state": (0, 1)}  # layers 2 to 5: both stages of the source
    assert [plan.sources(1, layer=layer) for layer in (2, 3, 5)] == [
        {"state": (0, 1)}, {"attention": (0, 1)}, {"attention": (2, 3)},
    ]  # fmt: skip
    assert plan.sources(1, layer=7) == {}
    ours, theirs = (kvlayout.tensor_table(spec, e, 3, packed=p) for e, p in zip((src, dst), packed, strict=True))
    random = np.random.default_rng(0)
    sent = {rank: random.integers(0, 256, ours.nbytes[rank // 2], np.uint8) for rank in range(4)}
    taken = {rank: np.zeros(theirs.nbytes[rank], np.uint8) for rank in range(3)}
    sources = {rank: buffers(ours, sent, 2, rank) for rank in range(4)}
    moved = []
    for rank in range(3):
        table = buffers(theirs, taken, 1, rank)
        move = kvlayout.bind(plan, dst_rank=rank, src=sources, dst=table)
        move({name: ([2, 0], [0, 1]) for name in table})
        for name, layers in table.items():
            for layer, pages in layers.items():
                moved.append(layer)
                stage = 0 if layer < 5 else 1
                for to, at in ((0, 2), (1, 0)):
                    whole = np.zeros(pages.shape[1], np.uint8)
                    for s, _, a, _, b, n in plan.runs(name, rank, layer).tolist():
                        assert s // 2 == stage
                        whole[b : b + n] = sources[s][name][layer][at, a : a + n]
                    assert np.array_equal(pages[to], whole) and whole.any()
                assert not pages[2].any()
    assert sorted(moved) == list(range(8))
