"""The intermediate representation: page trees, the sides that hold them, their invariants, text and canonical form."""

from kvlayout.ir.canonical import canonical_json, digest
from kvlayout.ir.invariants import Fault, page_faults
from kvlayout.ir.text import tree_text
from kvlayout.ir.tree import Array, Axis, Bytes, Leaf, Node, Page, Parallel, Struct, buffer_starts, leaves, span

__all__ = [
    "Array",
    "Axis",
    "Bytes",
    "Fault",
    "Leaf",
    "Node",
    "Page",
    "Parallel",
    "Struct",
    "buffer_starts",
    "canonical_json",
    "digest",
    "leaves",
    "page_faults",
    "span",
    "tree_text",
]
