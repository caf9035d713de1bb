"""The stable text form of a page tree: one node a line, offsets inside the parent. Made to be read and diffed."""

from __future__ import annotations

from collections.abc import Iterator

from kvlayout.ir.tree import Array, Bytes, Node, span

__all__ = ["tree_text"]


def tree_text(node: Node) -> str:
    """The tree as indented lines; equal trees have equal texts and unequal trees unequal ones.

    >>> print(tree_text(Array("head", 1, 2, 6, Bytes("k", 6, "bfloat16"))))
    head: 2 x 6 bytes = 12
      k: 6 bytes bfloat16
    """
    return "\n".join(_lines(node, "", ""))


def _lines(node: Node, indent: str, offset: str) -> Iterator[str]:
    if isinstance(node, Bytes):
        yield f"{indent}{offset}{node.field}: {node.nbytes} bytes {node.tag}"
    elif isinstance(node, Array):
        weight = "" if node.weight == 1 else f", steps of {node.weight}"
        yield f"{indent}{offset}{node.axis}: {node.count} x {node.stride} bytes = {span(node)}{weight}"
        yield from _lines(node.of, indent + "  ", "")
    else:
        yield f"{indent}{offset}struct: {node.size} bytes"
        parts: list[tuple[int, Node | int]] = [*node.members, *node.pads]
        for at, part in sorted(parts, key=lambda each: each[0]):
            if isinstance(part, int):
                yield f"{indent}  @{at} pad: {part} bytes"
            else:
                yield from _lines(part, indent + "  ", f"@{at} ")
