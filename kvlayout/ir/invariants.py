"""T1 as code: what makes a page tree legal. Run after every pass that makes or changes a tree.

span(Bytes n) = n. span(Array) = n * span(child), its stride being that span: a gap is a pad in a Struct and repeats
with it. A Struct is legal when its sorted children and pads tile [0, size) without overlap and without a byte left
over. A legal tree is injective and in bounds, and payload + declared pads = size (proof in `docs/theory.md`). Each
axis of a leaf must be formed densely by its digits: then coordinates and positions are in bijection.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlayout.algebra.digits import Digit, dense
from kvlayout.ir.tree import Array, Bytes, Node, Page, Struct, leaves, span

__all__ = ["MAX_BYTES", "MAX_NODES", "Fault", "extent_on_rank", "page_faults"]

MAX_BYTES = 2**62
"""No page is larger; it keeps every offset and every sum of offsets inside 64-bit integers."""

MAX_NODES = 1_000_000
MAX_DEPTH = 100
"""Levels of a tree; keeps every recursion over it (equality, hashing, JSON) far from the end of the stack."""


class Fault(NamedTuple):
    """`code` of the rule, the field or axis it speaks of, and what is wrong in one sentence."""

    code: str
    subject: str
    message: str


def extent_on_rank(size: int, shard: str | None, few: str, tp: int) -> int | None:
    """Units of an axis on one rank, or None when no engine can share it out so.

    >>> extent_on_rank(8, "tp", "refuse", 4), extent_on_rank(2, "tp", "replicate", 8)
    (2, 1)
    >>> extent_on_rank(6, "tp", "refuse", 4) is None
    True
    """
    if shard != "tp":
        return size
    if size % tp == 0:
        return size // tp
    return 1 if few == "replicate" and tp % size == 0 else None


def page_faults(page: Page, tp: int) -> list[Fault]:
    """Everything that makes the page illegal, in tree order; empty for a legal page. Costs the number of nodes."""
    faults: list[Fault] = []
    _node_faults(page.tree, faults)
    if faults:
        return faults
    seen: set[str] = set()
    for leaf in leaves(page.tree):
        if leaf.field in seen:
            faults.append(Fault("KVL123", leaf.field, "the field stands in the page twice"))
        seen.add(leaf.field)
        by_axis: dict[str, list[Digit]] = {axis: [] for axis in leaf.axes}
        for axis, weight, count, stride in leaf.digits:
            by_axis[axis].append(Digit(weight, count, stride))
        growing = [axis for axis in leaf.axes if axis in page.axes and page.axes[axis].grows]
        if len(growing) > 1:
            faults.append(Fault("KVL131", leaf.field, f"axes {' and '.join(growing)} both grow with the blocks"))
        for axis, digits in by_axis.items():
            if axis not in page.axes:
                faults.append(
                    Fault("KVL121", leaf.field, f"it is repeated along '{axis}', which is no axis of the page")
                )
                continue
            declared = page.axes[axis]
            extent = extent_on_rank(declared.size, declared.shard, declared.few, tp)
            if extent is None or not dense(sorted(digits, reverse=True), extent):
                counts = " * ".join(str(d.size) for d in digits)
                faults.append(
                    Fault("KVL122", leaf.field, f"its digits {counts} do not form axis '{axis}' of {extent} units")
                )
    shards = {axis.shard for axis in page.axes.values() if axis.grows}
    if len(shards) > 1:
        grown = ", ".join(name for name, axis in page.axes.items() if axis.grows)
        faults.append(Fault("KVL133", grown, "a block id would cover unequal tokens of the growing axes"))
    if page.buffers:
        faults += _buffer_faults(page)
    return faults


def _buffer_faults(page: Page) -> list[Fault]:
    """Buffers follow each other without a rest, and no field lies across a border."""
    starts, end = [], 0
    for name, size in page.buffers:
        if size < 1:
            return [Fault("KVL124", name, f"a buffer of {size} bytes")]
        starts.append(end)
        end += size
    if end != span(page.tree):
        return [Fault("KVL120", "buffers", f"the buffers have {end} bytes together, the page {span(page.tree)}")]
    if len(starts) == 1:
        return []
    parts = {offset for offset, _ in (*page.tree.members, *page.tree.pads)} if isinstance(page.tree, Struct) else set()
    return [Fault("KVL120", "buffers", f"a member lies across {at}") for at in starts if at not in parts]


def _node_faults(root: Node, faults: list[Fault]) -> None:
    stack = [(root, 1)]
    nodes = 0
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            faults.append(Fault("KVL125", "page", f"the tree has more than {MAX_DEPTH} levels"))
            return
        if nodes > MAX_NODES:
            faults.append(Fault("KVL125", "page", f"the tree has more than {MAX_NODES} nodes"))
            return
        if isinstance(node, Bytes):
            if not 0 < node.nbytes <= MAX_BYTES:
                faults.append(Fault("KVL124", node.field, f"an atom of {node.nbytes} bytes"))
        elif isinstance(node, Array):
            if node.count < 1 or node.weight < 1:
                faults.append(Fault("KVL124", node.axis, f"{node.count} steps of weight {node.weight}"))
            elif node.stride != span(node.of):
                faults.append(
                    Fault("KVL120", node.axis, f"a stride of {node.stride} bytes repeats {span(node.of)} bytes")
                )
            elif span(node) > MAX_BYTES:
                faults.append(Fault("KVL124", node.axis, f"{span(node)} bytes"))
            stack.append((node.of, depth + 1))
        else:
            _struct_faults(node, faults)
            stack.extend((child, depth + 1) for _, child in reversed(node.members))


def _struct_faults(node: Struct, faults: list[Fault]) -> None:
    parts = [(offset, span(child), _name(child)) for offset, child in node.members]
    parts += [(offset, nbytes, "pad") for offset, nbytes in node.pads]
    end, before = 0, "the start"
    for offset, nbytes, name in sorted(parts):
        if nbytes <= 0:
            faults.append(Fault("KVL124", name, f"{nbytes} bytes at {offset}"))
        if offset < end:
            faults.append(
                Fault("KVL120", name, f"[{offset}, {offset + nbytes}) overlaps {before} by {end - offset} bytes")
            )
        elif offset > end:
            faults.append(Fault("KVL120", name, f"{offset - end} bytes after {before} are neither payload nor pad"))
        end, before = offset + nbytes, f"'{name}'"
    if end != node.size:
        faults.append(Fault("KVL120", "struct", f"its parts end at {end}, its size is {node.size}"))
    if node.size > MAX_BYTES:
        faults.append(Fault("KVL124", "struct", f"{node.size} bytes"))


def _name(node: Node) -> str:
    while not isinstance(node, Bytes):
        if isinstance(node, Array):
            node = node.of
        elif node.members:
            node = node.members[0][1]
        else:
            return "struct"
    return node.field
