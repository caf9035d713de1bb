"""Tensor tables: where the pages of every layer lie in an engine's memory, stage by stage.

A page tree says what is inside a page; between pages lie strides, which plans leave to whoever registers memory. They
follow from the spec all the same: layers outermost (a region of blocks for each layer) or blocks outermost (a block's
pages of all layers side by side). A pipeline stage has a table of its own, because it has other layers: the same layer
lies elsewhere in another cut.

vLLM 0.32 splits the layers of a model into cache groups of equally many, gives each a block table, and lets all of them
share one allocation (v1/core/kv_cache_utils.py: `_get_kv_cache_groups_uniform_page_size`,
`get_kv_cache_config_from_groups`). Without a family every group of the spec has a block table and memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm

from kvlayout.errors import PlanRefused, SpecError, one_of, problem
from kvlayout.ir import Page
from kvlayout.spec.engine import COMPUTING, Engine
from kvlayout.spec.families import kernel_block_of
from kvlayout.spec.model import CacheGroup, Spec, parallel_of

__all__ = ["Region", "TensorTable", "tensor_table"]


@dataclass(frozen=True, slots=True)
class Region:
    """The pages of some layers of a group on a rank of a stage. Offsets and strides are bytes from the stage's memory.

    `table`: which block table indexes it. `page_bytes`: of a page without what lies between it and the next.
    """

    stage: int
    table: int
    group: str
    layers: tuple[int, ...]
    offset: int
    layer_stride: int
    block_stride: int
    page_bytes: int

    def address(self, layer: int, block: int) -> int:
        """Byte offset of a page. ValueError for a layer that is not in this region."""
        return self.offset + self.layers.index(layer) * self.layer_stride + block * self.block_stride


@dataclass(frozen=True, slots=True)
class TensorTable:
    """Every region of an engine. `blocks`: pages of each layer. `nbytes`: memory of a rank, by stage."""

    blocks: int
    regions: tuple[Region, ...]
    nbytes: tuple[int, ...]

    def region(self, group: str, layer: int) -> Region:
        """Where a layer of a group lies, in the stage that has it. LookupError when none has."""
        for region in self.regions:
            if region.group == group and layer in region.layers:
                return region
        raise LookupError(f"no region has layer {layer} of group '{group}'")


def tensor_table(
    spec: Spec, engine: Engine, blocks: int, *, packed: bool = False, align: Mapping[str, int] | None = None
) -> TensorTable:
    """The tensor table of an engine with `blocks` blocks.

    `packed`: blocks outermost (BLHNC, BLNHC), else layers. `align`: by group, bytes that the stride from a page to the
    next is a multiple of; where kernels index smaller blocks it is a multiple of one of these anyhow. Raises SpecError
    for a group that the spec does not have, PlanRefused (unloadable) when no such engine exists, or when pages of
    several sizes cannot share memory.
    """
    spec.check_engine(engine)
    names = [group.name for group in spec.groups]
    for name in align or {}:
        if name not in names:
            raise SpecError(problem("KVL154", "align", f"there is no group '{name}'", expected=one_of(names)))
    pages = {group.name: spec.page(group, engine) for group in spec.groups}
    ends = list(accumulate(parallel_of(spec, engine).stages))
    units = {name: lcm(_tile_bytes(name, page, engine), (align or {}).get(name, 1)) for name, page in pages.items()}
    tables = _tables(spec, pages, engine)
    if engine.family in COMPUTING:
        _refuse_unequal(engine, tables, pages, packed)
    # Tables that share one allocation also share the stride of a packed block: the widest group's.
    regions: list[Region] = []
    nbytes = []
    for stage, (first, last) in enumerate(pairwise((0, *ends))):
        held = [
            [(group, tuple(layer for layer in layers if first <= layer < last)) for group, layers in table]
            for table in tables
        ]
        wide = [sum(pages[group].nbytes * len(layers) for group, layers in table) for table in held]
        unit = lcm(*units.values())
        offset = top = 0
        for index, table in enumerate(held):
            stride = _round_up(max(wide) if engine.family in COMPUTING else wide[index], unit)
            begin = offset
            for group, layers in table:
                page = pages[group].nbytes
                padded = _round_up(page, units[group])
                if layers:
                    strides = (page, stride) if packed else (padded * blocks, padded)
                    regions.append(Region(stage, index, group, layers, offset, *strides, page))
                offset += len(layers) * (page if packed else padded * blocks)
            top = max(top, begin + stride * blocks if packed else offset)
            offset = 0 if engine.family in COMPUTING else top
        nbytes.append(top)
    return TensorTable(blocks, tuple(regions), tuple(nbytes))


def _tables(spec: Spec, pages: Mapping[str, Page], engine: Engine) -> list[list[tuple[str, Sequence[int]]]]:
    """The groups and layers of each block table."""
    if engine.family not in COMPUTING:
        return [[(group.name, group.layers)] for group in spec.groups]
    kinds = {(group.window, pages[group.name].block) for group in spec.groups}
    if len(kinds) == 1 and None not in {block for _, block in kinds}:
        return [[(group.name, group.layers) for group in spec.groups]]  # one type of attention: one block table
    return [[(group.name, layers)] for group in spec.groups for layers in _split(group, spec.groups)]


def _split(group: CacheGroup, groups: Sequence[CacheGroup]) -> list[tuple[int, ...]]:
    """The layers of a group dealt out to block tables of at most as many layers as the smallest group has."""
    counts = [len(each.layers) for each in groups]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    ways = -(-len(group.layers) // size)
    return [group.layers[index::ways] for index in range(ways)]


def _refuse_unequal(
    engine: Engine, tables: Sequence[Sequence[tuple[str, Sequence[int]]]], pages: Mapping[str, Page], packed: bool
) -> None:
    sizes = {pages[group].nbytes for table in tables for group, _ in table}
    if len(sizes) > 1 and len(tables) > 1 and not packed:
        text = f"pages of {', '.join(map(str, sorted(sizes)))} bytes cannot lie over each other, layers outermost"
        raise PlanRefused(
            problem("KVL209", f"engine '{engine}'", text, expected="blocks outermost (packed), or pages of one size"),
            unloadable=True,
        )


def _tile_bytes(name: str, page: Page, engine: Engine) -> int:
    """Bytes of a kernel block of a page that is made of several, else 1."""
    named = engine.for_group(name).get("kernel_block", engine.kernel_block)
    if named is None or page.block is None:
        return 1
    tokens = kernel_block_of(int(named), page.block)
    return page.nbytes * tokens // page.block if tokens < page.block else 1


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
