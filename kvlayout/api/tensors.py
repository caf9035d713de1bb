"""The tensor form of a plan: what a source tensor gives to a destination, as strided views.

vLLM's RFC "Standardize KV-cache Layouts" (#42082) states tensor-parallel slicing as a method of the source's spec: from
a source tensor, often one on the meta device, and both tensor-parallel sizes and ranks, it makes the narrowed views
that this source gives to that destination. Here the same question is answered from a proved plan, so that the answer is
right for every format, and each byte of a destination comes from exactly one source.

A view speaks of every block of the tensor at once: its first dimension counts blocks, its last the elements of a run,
those between are the loops of the plan. `received_by_tp_transfer` gives the destination's views in the same order and
shapes, so that `there.copy_(here)` moves the bytes of a pair of blocks, whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvlayout.errors import PlanRefused, SubmitError, problem
from kvlayout.ir import Array, Bytes, Node, Page, Parallel, Struct, leaves, span
from kvlayout.plan.artifact import Group, Piece, Plan, RankMoves
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.plan.slicing import GroupSlicer
from kvlayout.verify.check import check_plan

if TYPE_CHECKING:
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.model import Spec

__all__ = ["TensorSpec"]


@dataclass(frozen=True, slots=True)
class _Transfer:
    """What every destination rank receives, field by field: its pieces, in the order of the destination's page."""

    src: Page
    dst: Page
    pieces: tuple[tuple[Piece, ...], ...]


class TensorSpec:
    """One cache group of a spec on an engine, tensor-parallel sizes left open.

    `engine` says everything but `tp`: order, block, cache dtype, overrides of the group. A tensor's first dimension
    counts blocks and the rest is one page, in any shape and order of dimensions, and of any dtype whose elements no run
    cuts (uint8 always does). A page in several buffers (SGLang's K and V) takes a sequence of tensors, one a buffer.
    """

    def __init__(self, spec: Spec, group: str, engine: Engine | None = None) -> None:
        """Raises SpecError when the spec has no such group."""
        from kvlayout.spec.engine import Engine

        self.spec, self.group = spec, spec.group(group)
        self.engine = replace(Engine() if engine is None else engine, pp=1, stages=None)
        self._transfers: dict[tuple[int, TensorSpec, int], _Transfer] = {}

    def slice_for_tp_transfer(
        self, src_tensor: Any, src_tp: int, src_rank: int, dst_spec: TensorSpec, dst_tp: int, dst_rank: int
    ) -> list[Any]:
        """Views of `src_tensor` that rank `src_rank` of `src_tp` gives to rank `dst_rank` of `dst_tp`.

        One for each field, in the order of the destination's page (more where one strided view cannot say it); empty
        when this source gives none. Torch tensors (the meta device too) and NumPy arrays; nothing is copied. Raises
        PlanRefused when the two sides do not convert, SubmitError when the tensor does not hold pages of this spec.
        """
        transfer = self._transfer(src_tp, src_rank, dst_spec, dst_tp, dst_rank)
        return _views(src_tensor, transfer.src, transfer.pieces[dst_rank], src_rank, source=True)

    def received_by_tp_transfer(
        self, dst_tensor: Any, dst_tp: int, dst_rank: int, src_spec: TensorSpec, src_tp: int, src_rank: int
    ) -> list[Any]:
        """Views of `dst_tensor` that take what `src_spec.slice_for_tp_transfer` gives, in its order and shapes."""
        transfer = src_spec._transfer(src_tp, src_rank, self, dst_tp, dst_rank)
        return _views(dst_tensor, transfer.dst, transfer.pieces[dst_rank], src_rank, source=False)

    def _transfer(self, src_tp: int, src_rank: int, dst: TensorSpec, dst_tp: int, dst_rank: int) -> _Transfer:
        key = src_tp, dst, dst_tp
        found = self._transfers.get(key)
        if found is None:
            found = self._transfers[key] = _transfer(*self._side(src_tp), *dst._side(dst_tp), self.group.name)
        for side, rank, tp in (("source", src_rank, src_tp), ("destination", dst_rank, dst_tp)):
            if not 0 <= rank < tp * (self if side == "source" else dst).engine.pcp:
                text = f"the {side} has no rank {rank}"
                raise SubmitError(problem("KVL609", f"group '{self.group.name}'", text, got=f"tp={tp}"))
        return found

    def _side(self, tp: int) -> tuple[Page, Parallel]:
        from kvlayout.spec.model import parallel_of

        engine = replace(self.engine, tp=tp)
        parallel = parallel_of(self.spec, engine)
        page = self.spec.page(self.group, engine)
        return page, Parallel(parallel.tp, parallel.pcp, parallel.dcp, parallel.interleave, (1,))


def _transfer(src: Page, src_parallel: Parallel, dst: Page, dst_parallel: Parallel, name: str) -> _Transfer:
    where = f"tensors of group '{name}'"
    whole = Planner().plan(where, [PlannedGroup(name, (0,), src, dst)], src_parallel, dst_parallel)
    (group,) = whole.groups
    if (group.src_blocks, group.dst_blocks) != (1, 1):
        text = f"blocks of {src.block} and {dst.block} tokens do not pair up one by one, as tensors of blocks do"
        raise PlanRefused(problem("KVL510", where, text, expected="equal blocks, or a plan"))
    _prove(where, whole)
    by_rank: list[list[Piece]] = [[] for _ in group.ranks]
    for leaf in sorted(leaves(dst.tree), key=lambda leaf: leaf.base):
        field = _field_alone(where, group, leaf.field, src_parallel, dst_parallel)
        if field is not None:
            _prove(where, Plan(src_parallel, dst_parallel, (field,)))
            for moves in field.ranks:
                by_rank[moves.rank] += moves.pieces
    return _Transfer(src, dst, tuple(map(tuple, by_rank)))


def _field_alone(where: str, group: Group, field: str, src: Parallel, dst: Parallel) -> Group | None:
    """One field of a planned group as a group of its own, from the sources that the group's plan chose."""
    chosen = [{p.src_rank for p in moves.pieces if field in p.fields} for moves in group.ranks]
    if not any(chosen):
        return None  # bytes without a meaning, which only one side has
    pages = [
        Page(_alone(page.tree, field) or page.tree, page.axes, page.block, page.buffers)
        for page in (group.src, group.dst)
    ]
    slicer = GroupSlicer(where, pages[0], src, pages[1], dst)
    ranks = []
    for rank, sources in enumerate(chosen):
        pieces: list[Piece] = []
        for need in slicer.needs(rank):
            (source,) = sources & set(need.holders)
            pieces += slicer.pieces(rank, need, source)
        ranks.append(RankMoves(rank, tuple(pieces)))
    return Group(group.name, group.layers, pages[0], pages[1], 1, 1, tuple(ranks))


def _alone(node: Node, field: str) -> Node | None:
    """A tree with one field; what else it had is padding. None where the field is not below."""
    if isinstance(node, Bytes):
        return node if node.field == field else None
    if isinstance(node, Array):
        inner = _alone(node.of, field)
        return None if inner is None else Array(node.axis, node.weight, node.count, node.stride, inner)
    kept = [(at, inner) for at, member in node.members if (inner := _alone(member, field)) is not None]
    if not kept:
        return None
    pads = [*node.pads, *((at, span(member)) for at, member in node.members if _alone(member, field) is None)]
    return Struct(node.size, tuple(kept), tuple(sorted(pads)))


def _prove(where: str, plan: Plan) -> None:
    verdict = check_plan(plan, where)
    if not verdict.proved:
        raise PlanRefused(verdict.problems)


def _views(tensors: Any, page: Page, pieces: Sequence[Piece], src_rank: int, *, source: bool) -> list[Any]:
    buffers = _buffers(tensors, page)
    views = []
    for piece in pieces:
        if piece.src_rank != src_rank:
            continue
        offset = piece.src_offset if source else piece.dst_offset
        strides = [ss if source else ds for _, ss, ds in piece.loops]
        for tensor, begin, end in buffers:
            if begin <= offset < end:
                counts = [count for count, _, _ in piece.loops]
                views.append(_view(tensor, offset - begin, counts, strides, piece.nbytes, piece.fields[0]))
    return views


def _buffers(tensors: Any, page: Page) -> list[tuple[Any, int, int]]:
    """Each tensor with the bytes of the page that are in it; SubmitError unless rows are pages."""
    sizes = [size for _, size in page.buffers] or [page.nbytes]
    given = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    if len(given) != len(sizes):
        text = f"a page lies in {len(sizes)} buffers"
        raise SubmitError(problem("KVL602", "tensors", text, expected="a tensor for each", got=str(len(given))))
    ends = [
        leaf.base + leaf.nbytes + sum((count - 1) * stride for _, _, count, stride in leaf.digits)
        for leaf in leaves(page.tree)
    ]
    found, begin = [], 0
    for tensor, size in zip(given, sizes, strict=True):
        item, _, shape, strides = _geometry(tensor)
        payload = max((end - begin for end in ends if begin < end <= begin + size), default=0)
        extent = item * (1 + sum((count - 1) * stride for count, stride in zip(shape[1:], strides[1:], strict=True)))
        row = strides[0] * item if shape and shape[0] > 1 else size
        if not shape or min(strides) < 0 or not payload <= extent <= size <= row:
            text = "the tensor does not count blocks in its first dimension and hold a page in the rest"
            raise SubmitError(
                problem("KVL602", "tensors", text, expected=f"pages of {size} bytes",
                        got=f"{extent} bytes in rows of {row}")
            )  # fmt: skip
        found.append((tensor, begin, begin + size))
        begin += size
    return found


def _geometry(tensor: Any) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Bytes of an element, storage offset, shape and strides in elements; of a torch tensor or a NumPy array."""
    if hasattr(tensor, "storage_offset"):
        return tensor.element_size(), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    item = int(tensor.itemsize)
    if any(stride % item for stride in tensor.strides):
        text = "the array's strides are no multiples of its elements"
        raise SubmitError(problem("KVL602", "tensors", text, got=str(tensor.strides)))
    return item, 0, tuple(tensor.shape), tuple(stride // item for stride in tensor.strides)


def _view(tensor: Any, offset: int, counts: list[int], strides: list[int], nbytes: int, name: str) -> Any:
    item, begin, shape, rows = _geometry(tensor)
    if any(each % item for each in (offset, nbytes, *strides)):
        text = f"runs of {'field' if '+' not in name else 'fields'} '{name}' cut through elements of {item} bytes"
        raise SubmitError(
            problem("KVL602", "tensors", text, expected="a tensor of bytes (uint8)", got=str(tensor.dtype))
        )
    size = (shape[0], *counts, nbytes // item)
    stride = (rows[0], *(each // item for each in strides), 1)
    if hasattr(tensor, "storage_offset"):
        return tensor.as_strided(size, stride, begin + offset // item)
    import numpy as np

    at = np.lib.stride_tricks.as_strided(tensor, (offset // item + 1,), (item,))[offset // item :]
    return np.lib.stride_tricks.as_strided(at, size, [each * item for each in stride])
