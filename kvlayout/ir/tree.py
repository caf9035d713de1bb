"""Page trees: what one block id addresses on one rank, for one layer.

Three kinds of node are enough. `Bytes` is an atom, the smallest sliceable unit with whole bytes; `Array` repeats a
child along one axis, or along one digit of it; `Struct` puts children at offsets, with declared pads between them.
Everything that engines do to a page (head-major or token-major order, K and V planes, swizzled scales, vectorised
interiors, interleaved conv rows) is a different nesting of these. All ranks of a side share one tree, since equal
shares have equal extents; what differs between ranks is only where a share begins (`Axis`, `Parallel`).

The nodes are frozen msgspec structs, so that the artifact's JSON is the tree itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

__all__ = ["Array", "Axis", "Bytes", "Leaf", "Node", "Page", "Parallel", "Struct", "buffer_starts", "leaves", "span"]


class Bytes(msgspec.Struct, frozen=True, tag="bytes", tag_field="node", forbid_unknown_fields=True):
    """An atom of `nbytes` bytes of the field named `field`; `tag` names its encoding."""

    field: str
    nbytes: int
    tag: str


class Array(msgspec.Struct, frozen=True, tag="array", tag_field="node", forbid_unknown_fields=True):
    """`count` children, `stride` bytes apart, along `axis`; one step is `weight` units of the axis on this rank."""

    axis: str
    weight: int
    count: int
    stride: int
    of: Node


class Struct(msgspec.Struct, frozen=True, tag="struct", tag_field="node", forbid_unknown_fields=True):
    """Children at byte offsets, and the pads `(offset, nbytes)` that hold no payload; `size` bytes in all."""

    size: int
    members: tuple[tuple[int, Node], ...]
    pads: tuple[tuple[int, int], ...] = ()


Node = Bytes | Array | Struct


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an axis is shared out, in the words of the spec language.

    `size`: units in the whole model; for a growing axis, units in one block of one rank.
    `shard`: `tp` (contiguous equal shares), `cp` (context parallel, growing axes only) or None (every rank whole).
    `few`: what holds when there are more ranks than units.
    `grows`: the extent grows with the number of blocks.
    `granule`: cuts only at multiples of so many units.
    `common`: the sides may differ; only units below the smaller size are owned and moved.
    """

    size: int
    shard: Literal["tp", "cp"] | None = None
    few: Literal["refuse", "replicate"] = "refuse"
    grows: bool = False
    granule: int = 1
    common: bool = False


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's page: its tree, the axes that the tree names, and the tokens of a block (None: a state page).

    `buffers`: names and sizes where the page lies in several buffers; offsets count through them in this order.
    """

    tree: Node
    axes: dict[str, Axis]
    block: int | None
    buffers: tuple[tuple[str, int], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a page, all its buffers together."""
        return span(self.tree)


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many ranks a side has, and how layers and tokens are dealt out to them.

    Rank = (pp_rank * pcp + pcp_rank) * tp + tp_rank; cp rank = pcp_rank * dcp + tp_rank % dcp.
    `stages`: layers per pipeline stage. `interleave`: consecutive tokens that one cp rank takes.
    """

    tp: int = 1
    pcp: int = 1
    dcp: int = 1
    interleave: int = 1
    stages: tuple[int, ...] = ()

    @property
    def cp(self) -> int:
        """Ranks that deal out tokens among themselves."""
        return self.pcp * self.dcp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.pcp * self.tp


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field of a page as an address: `offset = base + sum(stride * value)` over its digits, outermost first.

    `axes`: every axis on the path, outermost first. `digits`: (axis, weight, count, stride), those of one value left
    out.
    """

    field: str
    nbytes: int
    tag: str
    base: int
    axes: tuple[str, ...]
    digits: tuple[tuple[str, int, int, int], ...]


def span(node: Node) -> int:
    """Bytes from the first to one past the last byte of a node."""
    if isinstance(node, Bytes):
        return node.nbytes
    if isinstance(node, Array):
        return node.count * node.stride
    return node.size


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves of a tree in tree order. Costs the number of nodes."""
    stack: list[tuple[Node, int, tuple[str, ...], tuple[tuple[str, int, int, int], ...]]] = [(node, 0, (), ())]
    while stack:
        node, base, axes, digits = stack.pop()
        if isinstance(node, Bytes):
            yield Leaf(node.field, node.nbytes, node.tag, base, axes, digits)
        elif isinstance(node, Array):
            if node.axis not in axes:
                axes = (*axes, node.axis)
            if node.count != 1:
                digits = (*digits, (node.axis, node.weight, node.count, node.stride))
            stack.append((node.of, base, axes, digits))
        else:
            stack.extend((child, base + offset, axes, digits) for offset, child in reversed(node.members))


def buffer_starts(page: Page) -> frozenset[int]:
    """Where a page's buffers begin, counted through all of them: no run goes on across one."""
    starts, end = set(), 0
    for _, size in page.buffers:
        starts.add(end)
        end += size
    return frozenset(starts)
