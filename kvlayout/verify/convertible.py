"""Before any piece is looked at: are the sides possible, both pages legal (T1), and can their fields convert at all?

These rules speak of what the pieces will be measured against. They have no witness byte: a plan between such pages
means nothing, whatever its pieces are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from kvlayout.errors import Problem, problem
from kvlayout.ir import Leaf, Page, Parallel, page_faults
from kvlayout.plan.artifact import Group, Plan
from kvlayout.verify.sides import SideView

__all__ = ["layer_problems", "page_problems", "paired_fields", "pairing_problems"]

MAX_RANKS = 65_536
"""Ranks of a stage, above which nothing that walks over the ranks of a plan would end soon."""


def layer_problems(plan: Plan, where: str) -> Iterator[Problem]:
    """Parallel sizes, pipeline stages and layers that no pair of sides has."""
    for name, side in (("source", plan.src), ("destination", plan.dst)):
        if min(side.tp, side.pcp, side.dcp, side.interleave, *side.stages) < 1:
            yield problem("KVL309", where, f"a parallel size of the {name} is below 1")
        elif side.stage_ranks > MAX_RANKS:
            text = f"the {name} has {side.stage_ranks} ranks in a stage"
            yield problem("KVL309", where, text, expected=f"at most {MAX_RANKS}")
    layers = [sum(side.stages) for side in (plan.src, plan.dst)]
    if layers[0] != layers[1]:
        text = "the pipeline stages of the two sides hold another number of layers"
        yield problem("KVL309", where, text, got=f"{layers[0]} and {layers[1]}")
    for group in plan.groups:
        ascending = sorted(set(group.layers)) == list(group.layers)
        if not ascending or not group.layers or group.layers[0] < 0 or group.layers[-1] >= layers[0]:
            yield problem("KVL309", where, f"the layers of group '{group.name}' are not ascending layers of the stages")
    if not plan.groups:
        yield problem("KVL309", where, "the plan has no groups, so there is nothing to prove")
    if len({group.name for group in plan.groups}) != len(plan.groups):
        yield problem("KVL309", where, "two groups have one name")


def page_problems(where: str, page: Page, parallel: Parallel) -> Iterator[Problem]:
    """T1: the tree is injective and in bounds, and the axis words make sense together."""
    for name, axis in page.axes.items():
        if axis.size < 1 or axis.granule < 1:
            yield problem("KVL124", where, f"axis '{name}' has {axis.size} units and a granule of {axis.granule}")
            return
        if (axis.grows or axis.shard == "cp") and page.block is None:
            yield problem("KVL126", where, f"axis '{name}' counts tokens, but the page has no block")
        if axis.shard == "cp" and not axis.grows:
            yield problem("KVL126", where, f"axis '{name}' is dealt out to cp ranks but does not grow")
        if axis.common and (axis.shard is not None or axis.grows):
            yield problem("KVL126", where, f"axis '{name}' is common, and shared out or growing too")
    if page.block is not None and page.block < 1:
        yield problem("KVL126", where, f"a block of {page.block} tokens")
    for fault in page_faults(page, parallel.tp):
        yield problem(fault.code, where, f"'{fault.subject}': {fault.message}")


def paired_fields(src: SideView, dst: SideView) -> list[str]:
    """The fields that must arrive: those on both sides, but for bytes that are `any` on both and do not match."""
    return [
        name
        for name, ours in dst.leaves.items()
        if (theirs := src.leaves.get(name)) is not None
        and (ours.tag != "any" or theirs.tag != "any" or _match(ours, theirs))
    ]


def pairing_problems(where: str, group: Group, src: SideView, dst: SideView) -> Iterator[Problem]:
    """Whatever forbids that the two pages convert by copying bytes."""
    for name in dict.fromkeys((*dst.leaves, *src.leaves)):
        text = _unequal_atoms(name, src.leaves.get(name), dst.leaves.get(name))
        if text is not None:
            yield problem("KVL307", where, text)
    paired = paired_fields(src, dst)
    for name in paired:
        if sorted(src.leaves[name].axes) != sorted(dst.leaves[name].axes):
            yield problem("KVL307", where, f"field '{name}' lies along other axes on the two sides")
            continue
        for axis_name in dst.leaves[name].axes:
            a, b = group.src.axes[axis_name], group.dst.axes[axis_name]
            # Growing axes are compared by their units per token, everything else by its size.
            a_size, b_size = a.size, b.size
            if a.grows and b.grows:
                a_size, b_size = a_size * (group.dst.block or 0), b_size * (group.src.block or 0)
            if a.grows != b.grows or (a_size != b_size and not (a.common and b.common)):
                yield problem(
                    "KVL307", where, f"axis '{axis_name}' of field '{name}' has another size on the two sides"
                )
    if not paired:
        yield problem("KVL307", where, "the two pages have no field in common")
    text = _template(group, src, dst, paired)
    if text is not None:
        yield problem("KVL307", where, text)
    for view, side in ((src, "source"), (dst, "destination")):
        for axis_name in dict.fromkeys(axis for name in paired for axis in view.leaves[name].axes):
            cut = view.uneven(axis_name)
            if cut is not None:
                yield problem(
                    "KVL308",
                    where,
                    f"axis '{axis_name}' of the {side} is cut every {cut} units",
                    expected=f"multiples of {view.page.axes[axis_name].granule}",
                )


def _match(a: Leaf, b: Leaf) -> bool:
    """Whether two leaves have atoms of one size along the same axes."""
    return a.nbytes == b.nbytes and {*a.axes} == {*b.axes}


def _unequal_atoms(name: str, a: Leaf | None, b: Leaf | None) -> str | None:
    if a is None or b is None:
        lone = a or b
        return None if lone is None or lone.tag == "any" else f"field '{name}' is on one side only"
    if (a.tag, a.nbytes) == (b.tag, b.nbytes) or a.tag == b.tag == "any":
        return None
    if _match(a, b) and "any" in (a.tag, b.tag) and not any(leaf.tag.startswith("opaque:") for leaf in (a, b)):
        return None  # bytes without a meaning take any others of their size; opaque ones pair with their like only
    return f"field '{name}' has {a.nbytes}-byte atoms of {a.tag} and {b.nbytes}-byte ones of {b.tag}"


def _template(group: Group, src: SideView, dst: SideView, paired: list[str]) -> str | None:
    """What is wrong with the numbers of blocks: both sides' blocks must span the same tokens."""
    a, b = group.src_blocks, group.dst_blocks
    whole = [name for name in paired if not any(group.dst.axes[axis].grows for axis in dst.leaves[name].axes)]
    if min(a, b) < 1:
        return "a template has at least one block of each side"
    if len(whole) == len(paired) or src.tokens is None or dst.tokens is None:
        return None if (a, b) == (1, 1) else "pages without a growing axis move one block at a time"
    if a * src.tokens != b * dst.tokens:
        return f"{a} blocks of {src.tokens} tokens are not {b} blocks of {dst.tokens} tokens"
    if gcd(a, b) != 1:
        return f"{a} and {b} blocks are not the smallest common token span"
    if whole and src.tokens != dst.tokens:
        return f"field '{whole[0]}' does not grow with the tokens, so blocks of unequal tokens do not convert"
    return None
