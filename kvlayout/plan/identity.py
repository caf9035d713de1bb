"""The identity of a layout: a digest that two sides share exactly when they may exchange bytes without a plan.

A layout says, for every rank, layer and field, which byte of a page holds which logical coordinate. Different words may
say the same (a token-major page of kernel blocks, one head a rank under either order), so what is hashed is not the
tree but the map in its normal form: the digits of every axis in global units, those that continue each other joined,
and where each rank's share begins. Such a form is unique: the least digit of an axis ends at the first unit whose
address is not the next multiple of its stride, and so on outwards. Everything that changes bytes is in it (parallel
sizes, blocks, orders, packings, dtypes, rows, padding, pipeline stages), and nothing else is: no name of a format, no
window, no word that is only about what may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from kvlayout.algebra.digits import Digit
from kvlayout.ir import Leaf, Page, Parallel, digest, leaves
from kvlayout.plan.ownership import shares

__all__ = ["Layout", "differences", "layout_of_groups"]


@dataclass(frozen=True)
class Layout:
    """The layout of one side in its normal form. Equal layouts have equal digests, and only they.

    `groups`: the normal form of each group, by name. `stages`: the layers of each pipeline stage, by group.
    """

    groups: dict[str, dict[str, Any]]
    stages: dict[str, list[list[int]]]

    @cached_property
    def digest(self) -> str:
        """`sha256:...` of the whole side."""
        return digest({"groups": self.groups, "stages": self.stages})

    def group_digest(self, name: str) -> str:
        """`sha256:...` of one group's pages on the ranks of a stage, whichever layers have them. KeyError."""
        return digest(self.groups[name])


def layout_of_groups(groups: Iterable[tuple[str, Sequence[int], Page]], parallel: Parallel) -> Layout:
    """The layout of a side: (name, layers, page) of each group. PlanRefused (unloadable) when no engine is such."""
    forms: dict[str, dict[str, Any]] = {}
    stages: dict[str, list[list[int]]] = {}
    ends = list(accumulate(parallel.stages))
    for name, layers, page in groups:
        forms[name] = _group(f"layout, group '{name}'", page, parallel)
        stages[name] = [[layer for layer in layers if a <= layer < b] for a, b in pairwise((0, *ends))]
    return Layout(forms, stages)


def _group(where: str, page: Page, parallel: Parallel) -> dict[str, Any]:
    origins: dict[str, tuple[int, ...]] = {}
    extents: dict[str, tuple[int, int]] = {}
    fields = {}
    for leaf in leaves(page.tree):
        places = {}
        for name in sorted(leaf.axes):
            axis = page.axes[name]
            share = shares(where, leaf, name, axis, page.block, parallel)
            origins[name] = share.origins
            # Of a growing axis, how many units a block has; of any other, how many there are.
            extents[name] = (share.block_units, page.block or 0) if axis.grows else (axis.size, 0)
            places[name] = [list(digit) for digit in _joined(share.digits)]
        fields[leaf.field] = _field(leaf, places)
    return {
        "page": page.nbytes,
        "buffers": [size for _, size in page.buffers],
        "ranks": parallel.stage_ranks,
        "axes": {name: {"extent": list(extents[name]), "origins": list(origins[name])} for name in extents},
        "fields": fields,
    }


def _field(leaf: Leaf, places: dict[str, list[list[int]]]) -> dict[str, Any]:
    return {"base": leaf.base, "bytes": leaf.nbytes, "tag": leaf.tag, "digits": places}


def _joined(digits: Sequence[Digit]) -> list[Digit]:
    """The digits of an axis, outermost first, with those that only continue the one below joined to it."""
    joined: list[Digit] = []  # innermost first
    for weight, size, stride in reversed(digits):
        if joined:
            inner = joined[-1]
            if (weight, stride) == (inner.weight * inner.size, inner.stride * inner.size):
                joined[-1] = Digit(inner.weight, inner.size * size, inner.stride)
                continue
        joined.append(Digit(weight, size, stride))
    return joined[::-1]


def differences(src: Layout, dst: Layout) -> list[str]:
    """What is not the same in two layouts, one line each; empty exactly when their digests are equal."""
    found = []
    for name in dict.fromkeys((*src.groups, *dst.groups)):
        ours, theirs = src.groups.get(name), dst.groups.get(name)
        if ours is None or theirs is None:
            found.append(f"group '{name}' is on the {'destination' if ours is None else 'source'} only")
            continue
        found += [f"group '{name}': {text}" for text in _group_differences(ours, theirs)]
        if src.stages[name] != dst.stages[name]:
            counts = (" + ".join(str(len(stage)) for stage in side.stages[name]) for side in (src, dst))
            found.append(f"group '{name}': pipeline stages have {' -> '.join(counts)} of its layers")
    return found


def _group_differences(src: dict[str, Any], dst: dict[str, Any]) -> list[str]:
    found = [
        f"{text} {src[key]} -> {dst[key]}"
        for key, text in (
            ("page", "bytes of a page"),
            ("buffers", "bytes of its buffers"),
            ("ranks", "ranks of a stage"),
        )
        if src[key] != dst[key]
    ]
    for name in dict.fromkeys((*src["axes"], *dst["axes"])):
        a, b = src["axes"].get(name), dst["axes"].get(name)
        if a is None or b is None:
            found.append(f"axis '{name}' is on the {'destination' if a is None else 'source'} only")
        elif a["extent"] != b["extent"]:
            found.append(
                f"axis '{name}': {a['extent'][0]} -> {b['extent'][0]} units{' a block' if a['extent'][1] else ''}"
            )
        elif a["origins"] != b["origins"] and len(a["origins"]) == len(b["origins"]):
            rank = next(r for r, (x, y) in enumerate(zip(a["origins"], b["origins"], strict=True)) if x != y)
            found.append(f"axis '{name}': rank {rank} begins at unit {a['origins'][rank]} -> {b['origins'][rank]}")
    for name in dict.fromkeys((*src["fields"], *dst["fields"])):
        a, b = src["fields"].get(name), dst["fields"].get(name)
        if a is None or b is None:
            found.append(f"field '{name}' is on the {'destination' if a is None else 'source'} only")
        elif (a["bytes"], a["tag"]) != (b["bytes"], b["tag"]):
            found.append(
                f"field '{name}': {a['bytes']}-byte atoms of {a['tag']} -> {b['bytes']}-byte ones of {b['tag']}"
            )
        elif a["base"] != b["base"]:
            found.append(f"field '{name}' begins at byte {a['base']} -> {b['base']}")
        elif a["digits"] != b["digits"]:
            axis = next(axis for axis in a["digits"] if a["digits"][axis] != b["digits"].get(axis))
            text = (
                ", ".join(f"{n} x {s}" for _, n, s in side["digits"].get(axis, ())) or "one unit" for side in (a, b)
            )
            found.append(f"field '{name}' repeats along '{axis}': {' -> '.join(text)} bytes")
    return found
