"""A rank's page as text: fields with offsets and repetition, who holds what, and padding."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kvlayout.ir import Axis, Page, Parallel, leaves, span
from kvlayout.ir.invariants import extent_on_rank
from kvlayout.ir.tree import Array, Bytes, Node

__all__ = ["page_text"]

_Repeats = tuple[tuple[str, int, int], ...]
"""(axis, count, stride in bytes), outermost first."""


def page_text(name: str, page: Page, parallel: Parallel) -> str:
    """The page of a group: stable lines, offsets in bytes.

    Each field gives its first byte, its atom, and how the atom repeats, outermost first, as `axis count x stride`.
    """
    size = span(page.tree)
    pads = list(_pads(page.tree, 0, ()))
    padding = sum(nbytes * prod(count for _, count, _ in repeats) for _, nbytes, repeats in pads)
    tokens = "" if page.block is None else f", {page.block} tokens a block"
    lines = [f"group {name}: page of {size} bytes, {size - padding} payload, {padding} padding{tokens}"]
    if page.buffers:
        lines.append("  buffers: " + ", ".join(f"{buffer} {nbytes} bytes" for buffer, nbytes in page.buffers))
    rows = [("field", "first byte", "atom", "tag", "repeats")]
    for leaf in leaves(page.tree):
        digits = tuple((axis, count, stride) for axis, _, count, stride in leaf.digits)
        rows.append((leaf.field, str(leaf.base), str(leaf.nbytes), leaf.tag, _shown(digits)))
    rows += (("(pad)", str(offset), str(nbytes), "", _shown(repeats)) for offset, nbytes, repeats in pads)
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append(("  " + "  ".join(cells) + "  " + row[4]).rstrip())
    used = dict.fromkeys(axis for leaf in leaves(page.tree) for axis in leaf.axes)
    lines += (f"  {axis}: {_owners(page.axes[axis], parallel)}" for axis in used)
    return "\n".join(lines)


def _shown(repeats: _Repeats) -> str:
    return ", ".join(f"{axis} {count} x {stride}" for axis, count, stride in repeats)


def _owners(axis: Axis, parallel: Parallel) -> str:
    units = "1 unit" if axis.size == 1 else f"{axis.size} units"
    if axis.grows:
        ways = parallel.cp if axis.shard == "cp" else 1
        dealt = f", dealt out to {ways} cp ranks, {parallel.interleave} tokens at a time" if ways > 1 else ""
        return f"{units} a block, grows with the blocks{dealt}"
    if axis.shard == "tp" and parallel.tp > 1:
        share = extent_on_rank(axis.size, axis.shard, axis.few, parallel.tp) or 1
        if axis.size >= parallel.tp:
            return (
                f"{units}, rank r holds [{share} * r, {share} * r + {share})"
                if share > 1
                else f"{units}, rank r holds r"
            )
        return f"{units}, rank r holds unit r // {parallel.tp // axis.size}"
    common = ", as many as both sides have are moved" if axis.common else ""
    return f"{units}, whole on every rank{common}"


def _pads(node: Node, base: int, repeats: _Repeats) -> Iterator[tuple[int, int, _Repeats]]:
    if isinstance(node, Bytes):
        return
    if isinstance(node, Array):
        step = () if node.count == 1 else ((node.axis, node.count, node.stride),)
        yield from _pads(node.of, base, (*repeats, *step))
        return
    yield from ((base + offset, nbytes, repeats) for offset, nbytes in node.pads)
    for offset, child in node.members:
        yield from _pads(child, base + offset, repeats)
