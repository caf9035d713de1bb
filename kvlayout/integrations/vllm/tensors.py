"""Live cache tensors held against the spec, before anything moves.

A plan is proved for pages; that the memory holds such pages is checked here, layer by layer: dtype, shape, strides, the
place in the storage, and that no two layers of a group share bytes. Works on anything with the methods of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kvlayout.errors import Problem, SubmitError, problem
from kvlayout.integrations.vllm.importer import VllmCache
from kvlayout.integrations.vllm.side import dtype_name
from kvlayout.ir import Leaf, Page, leaves
from kvlayout.spec.engine import Engine

__all__ = ["check_tensors", "page_rows"]

BYTES = ("int8", "uint8")
"""What vLLM keeps pages in whose elements it does not name: states, scales, packed records, fp8."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The pages of a layer in memory: first byte, bytes from page to page, pages."""

    layer: str
    start: int
    stride: int
    blocks: int
    nbytes: int


def check_tensors(cache: VllmCache, rank: int, kv_caches: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Everything in which a rank's tensors are not what the spec says, as problems; none when they may be moved.

    `kv_caches`: {layer name: tensor}, as `register_kv_caches` gets them: [blocks, head slots, states, content] of
    attention, int8 [blocks, 1, 1, bytes] of a state, or the list of a state's views that its layer holds. Layers that
    share the memory of another are let pass under further names. `rank` counts through the engine's stages.

    Raises SubmitError for a rank that the engine does not have.
    """
    engine = cache.engine
    ranks = engine.tp * engine.pp
    if not 0 <= rank < ranks:
        raise SubmitError(
            problem("KVL711", f"vllm: rank {rank}", "there is no such rank", expected=f"0 to {ranks - 1}")
        )
    stages = cache.stage_layers
    stage = rank // engine.tp
    first = sum(stages[:stage])
    ours = {name for name, (_, index) in cache.layers.items() if first <= index < first + stages[stage]}
    found: list[Problem] = []
    spans: dict[object, list[_Span]] = {}
    for name in sorted(ours):
        if name not in kv_caches:
            wanted = "one for every layer of the rank"
            found.append(problem("KVL711", _where(name), "no tensor of the layer is given", expected=wanted))
            continue
        group = cache.layers[name][0]
        page = cache.spec.page(cache.spec.group(group), engine)
        views = _views(kv_caches[name])
        layer = _Layer(name, page, cache.shapes[group], cache.tiles(group), engine)
        problems = list(layer.states(views) if isinstance(kv_caches[name], Sequence) else layer.pages(views[0]))
        found += problems
        if not problems:
            span = layer.span(views)
            # Groups of one block table are one here; without vLLM's groups, each is taken for itself.
            spans.setdefault(cache.vllm_groups.get(group, group), []).append(span)
            found += _placed(cache, span, views[0])
    shared = {_address(view) for name in ours & set(kv_caches) for view in _views(kv_caches[name])}
    found += [
        problem("KVL711", _where(name), "the spec has no such layer, and no other layer has its memory")
        for name in sorted(set(kv_caches) - set(cache.layers))
        if not {_address(view) for view in _views(kv_caches[name])} <= shared
    ]
    for block_table in spans.values():
        found += _overlaps(block_table)
    return tuple(found)


def page_rows(cache: VllmCache, rank: int, kv_caches: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """A rank's pages as moves take them: {group: {layer of the model: uint8 tensor (blocks, page bytes)}}.

    Over the same memory. Arguments as of `check_tensors`; SubmitError with its problems when there are any.

    vLLM's groups lie over each other in one buffer, and a block belongs to one of them at a time: bind a plan of one
    group (`slice_for_tp_transfer(..., group=...)`), or use its `kernel`, for each group.
    """
    import torch

    problems = check_tensors(cache, rank, kv_caches)
    if problems:
        raise SubmitError(problems)
    rows: dict[str, dict[int, Any]] = {group.name: {} for group in cache.spec.groups}
    for name, (group, index) in cache.layers.items():
        if name not in kv_caches:
            continue  # of another stage
        view = _views(kv_caches[name])[0]
        size, page = view.element_size(), cache.spec.page(cache.spec.group(group), cache.engine)
        every = torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())
        tiles = cache.tiles(group)
        shape, stride = (int(view.shape[0]) // tiles, page.nbytes), int(view.stride(0)) * size * tiles
        rows[group][index] = torch.as_strided(every, shape, (stride, 1), int(view.storage_offset()) * size)
    return {group: layers for group, layers in rows.items() if layers}


def _views(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) else [given]


def _where(layer: str) -> str:
    return f"vllm: tensor of layer '{layer}'"


def _address(view: Any) -> int:
    return int(view.data_ptr())


class _Layer:
    """The tensors of one layer, and the page that they must hold."""

    def __init__(self, name: str, page: Page, shape: tuple[int, int, int], tiles: int, engine: Engine) -> None:
        self.where, self.name, self.page, self.shape, self.tiles = _where(name), name, page, shape, tiles
        self.heads_outer, self.rows_inner = engine.order == "LBHNC", engine.conv == "DS"
        self.fields = {leaf.field: leaf for leaf in leaves(page.tree)}
        # A page ends with the padding that the engine adds; its payload ends with the last field.
        self.payload = max(_end(leaf) for leaf in self.fields.values())

    def span(self, views: Sequence[Any]) -> _Span:
        """Where the pages lie, once they have been checked."""
        view = views[0]
        stride = view.stride(0) * view.element_size() * self.tiles
        return _Span(self.name, _address(view), stride, int(view.shape[0]) // self.tiles, self.payload)

    def pages(self, view: Any) -> Iterator[Problem]:
        """One tensor [blocks, head slots, states, content]; the indexers' and MLA's may lack the head axis."""
        size, dtype = view.element_size(), dtype_name(view.dtype)
        tags = {leaf.tag for leaf in self.fields.values()}
        plain = self.page.block is not None and len(tags) == 1
        legal = [*tags] if plain else []
        if not plain or legal[0].startswith("float8"):
            legal += BYTES
        if dtype not in legal:
            yield problem("KVL712", self.where, "another dtype than the spec's", expected=" or ".join(legal), got=dtype)
        shape = [int(extent) for extent in view.shape]
        strides = [int(view.stride(axis)) * size for axis in range(len(shape))]
        slots, states, content = self.shape
        if len(shape) == 3 and slots == 1:
            shape.insert(1, 1)
            strides.insert(1, 0)
        if len(shape) != 4 or (shape[1], shape[2], shape[3] * size) != self.shape or shape[0] % self.tiles:
            yield problem("KVL713", self.where, "another shape than the spec's",
                          expected=f"[blocks, {slots}, {states}, {content} bytes]",
                          got=f"{list(view.shape)} of {size} bytes")  # fmt: skip
            return
        wanted = {1: states * content, 2: content, 3: size}
        if not self.heads_outer:
            wanted |= {1: content, 2: slots * content}
        wrong = [axis for axis, stride in wanted.items() if shape[axis] > 1 and strides[axis] != stride]
        least, tile = self.page.nbytes // self.tiles, slots * states * content
        apart = strides[0] < least if self.tiles == 1 else strides[0] != tile
        if wrong or (shape[0] > 1 and apart):
            blocks = f"at least {least}" if self.tiles == 1 else str(tile)
            expected = f"[{blocks}, {wanted[1]}, {wanted[2]}, {size}]"
            yield problem("KVL714", self.where, "other strides than the spec's", expected=expected, got=str(strides))
            return
        yield from self._inside(view, strides[0] * (shape[0] - 1) + tile)

    def _inside(self, view: Any, nbytes: int) -> Iterator[Problem]:
        end = int(view.storage_offset()) * view.element_size() + nbytes
        held = int(view.untyped_storage().nbytes())
        if end > held:
            yield problem("KVL715", self.where, "its last page ends outside its storage",
                          expected=f"at most {held} bytes", got=f"{end}")  # fmt: skip

    def states(self, views: Sequence[Any]) -> Iterator[Problem]:
        """A state's views: the convolution window, then the temporal state, inside one page each block."""
        if self.page.block is not None:
            yield problem("KVL713", self.where, f"a list of {len(views)} tensors", expected="one tensor of all blocks")
            return
        temporal = self.fields.get("temporal")
        starts = [0] if temporal is None or temporal.base == 0 else [0, temporal.base]
        if len(views) != len(starts):
            yield problem("KVL713", self.where, f"{len(views)} states", expected=str(len(starts)))
            return
        for place, (view, start) in enumerate(zip(views, starts, strict=True)):
            end = starts[place + 1] if place + 1 < len(starts) else self.payload
            yield from self._state(view, place, start, end, _address(views[0]))

    def _state(self, view: Any, place: int, start: int, end: int, page: int) -> Iterator[Problem]:
        where = f"{self.where}, state {place}"
        size, dtype = view.element_size(), dtype_name(view.dtype)
        tags = {leaf.tag for leaf in self.fields.values() if start <= leaf.base < end}
        if {dtype} != tags:
            yield problem(
                "KVL712", where, "another dtype than the spec's", expected=" or ".join(sorted(tags)), got=dtype
            )
        inner = [int(extent) for extent in view.shape][1:]
        rows = self._rows() if place == 0 else None
        shaped = rows is None or (len(inner) == 2 and inner[1 if self.rows_inner else 0] == rows)
        if prod(inner) * size != end - start or not shaped:
            wanted = f"{end - start} bytes a block" + ("" if rows is None else f", {rows} rows")
            yield problem("KVL713", where, "another shape than the spec's", expected=wanted, got=str(list(view.shape)))
            return
        dense: list[int] = []
        step = 1
        for extent in reversed(inner):
            dense.insert(0, step)
            step *= extent
        strides = [int(view.stride(axis)) for axis in range(len(view.shape))]
        wrong = [axis for axis, extent in enumerate(inner) if extent > 1 and strides[axis + 1] != dense[axis]]
        if wrong or (view.shape[0] > 1 and strides[0] * size < self.page.nbytes):
            yield problem("KVL714", where, "other strides than the spec's",
                          expected=f"at least {self.page.nbytes} bytes a block, then {dense} elements",
                          got=f"{strides} of {size} bytes")  # fmt: skip
            return
        if _address(view) - page != start:
            yield problem("KVL715", where, "it does not begin where the spec says",
                          expected=f"byte {start} of the page", got=f"byte {_address(view) - page}")  # fmt: skip
            return
        yield from self._inside(view, strides[0] * size * (int(view.shape[0]) - 1) + end - start)

    def _rows(self) -> int | None:
        for leaf in self.fields.values():
            if "row" in leaf.axes:
                return prod(count for axis, _, count, _ in leaf.digits if axis == "row")
        return None


def _end(leaf: Leaf) -> int:
    return leaf.base + sum((count - 1) * stride for _, _, count, stride in leaf.digits) + leaf.nbytes


def _placed(cache: VllmCache, span: _Span, view: Any) -> Iterator[Problem]:
    """The layer's place in its storage against what vLLM decided."""
    placement = cache.placements.get(span.layer)
    if placement is None:
        return
    offset = int(view.storage_offset()) * view.element_size()
    got = offset, span.stride, span.blocks
    wanted = placement.offset, placement.stride, placement.blocks
    if got[::2] != wanted[::2] or (span.blocks > 1 and got != wanted):
        yield problem("KVL715", _where(span.layer), "it does not lie where vLLM's KVCacheConfig puts it",
                      expected="first page at byte {}, a page every {} bytes, {} blocks".format(*wanted),
                      got="byte {}, every {} bytes, {} blocks".format(*got))  # fmt: skip


def _overlaps(spans: list[_Span]) -> Iterator[Problem]:
    """Two layers of one block table whose pages share bytes: a block id would mean both of them."""
    ordered = sorted(spans, key=lambda span: span.start)
    for place, one in enumerate(ordered):
        for other in ordered[place + 1 :]:
            if other.start >= one.start + one.stride * (one.blocks - 1) + one.nbytes:
                break
            if _meet(one, other):
                message = f"its pages overlap with those of layer '{one.layer}'"
                yield problem("KVL716", _where(other.layer), message, expected="memory of its own for each layer")


def _meet(one: _Span, other: _Span) -> bool:
    """Whether a page of `one` shares bytes with a page of `other`, which starts behind it."""
    if one.stride != other.stride or one.stride <= 0:
        return True  # pages that are dealt out at two paces meet somewhere; vLLM gives one stride to a group
    behind = (other.start - one.start) % one.stride
    return behind < one.nbytes or behind + other.nbytes > one.stride
