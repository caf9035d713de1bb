"""Which fields of two pages convert into each other, and what stands in the way.

Two fields convert when name, atom bytes and tag agree; `any` bytes move when the other side has the same name and
bytes, and are left alone otherwise. Everything else that one side lacks is refused by name, because a page that is
filled only in part is a wrong page. Elements that both sides keep in one order, without a gap, are widened into one
atom, and fields that lie beside each other on both sides, under the same digits, are coalesced into one: then they move
in one run, however finely a spec declares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm

from kvlayout.errors import PlanRefused, Problem, problem
from kvlayout.ir import Axis, Leaf, Page, Parallel, buffer_starts, leaves

__all__ = ["MAX_TEMPLATE_BLOCKS", "Pair", "PairedField", "pair_pages"]

MAX_TEMPLATE_BLOCKS = 65_536
"""Blocks of one side in the smallest common token span; above it a plan would not fit where plans are used."""


@dataclass(frozen=True, slots=True)
class PairedField:
    """Neighbouring fields that move as one: their names, and their address on each side."""

    names: tuple[str, ...]
    nbytes: int
    src: Leaf
    dst: Leaf


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pages that convert: fields, axes by name (source, destination), blocks of the common token span."""

    fields: tuple[PairedField, ...]
    axes: dict[str, tuple[Axis, Axis]]
    src_blocks: int
    dst_blocks: int


def pair_pages(where: str, src: Page, src_parallel: Parallel, dst: Page, dst_parallel: Parallel) -> Pair:
    """Pair the fields of two pages; PlanRefused with every reason when they do not convert."""
    problems: list[Problem] = []
    src_leaves = {leaf.field: leaf for leaf in leaves(src.tree)}
    dst_leaves = {leaf.field: leaf for leaf in leaves(dst.tree)}
    for ours, theirs, side in ((dst_leaves, src_leaves, "source"), (src_leaves, dst_leaves, "destination")):
        for name, leaf in ours.items():
            if name not in theirs and leaf.tag != "any":
                problems.append(problem("KVL501", where, f"the {side} has no field '{name}'", expected=_atom(leaf)))
    pairs: list[tuple[Leaf, Leaf]] = []
    for name, dst_leaf in dst_leaves.items():
        src_leaf = src_leaves.get(name)
        if src_leaf is None:
            continue
        fits = src_leaf.nbytes == dst_leaf.nbytes and set(src_leaf.axes) == set(dst_leaf.axes)
        if fits and _is_any(src_leaf, dst_leaf):
            pairs.append((src_leaf, dst_leaf))
        elif src_leaf.tag == dst_leaf.tag == "any":
            continue  # bytes that mean nothing on either side are left alone
        elif (src_leaf.nbytes, src_leaf.tag) != (dst_leaf.nbytes, dst_leaf.tag):
            problems.append(
                problem(
                    "KVL502",
                    where,
                    f"field '{name}' has different atoms on the two sides, and copying converts no values",
                    expected=_atom(dst_leaf),
                    got=_atom(src_leaf),
                )
            )
        else:
            pairs.append((src_leaf, dst_leaf))
    axes: dict[str, tuple[Axis, Axis]] = {}
    for src_leaf, dst_leaf in pairs:
        if set(src_leaf.axes) != set(dst_leaf.axes):
            problems.append(
                problem(
                    "KVL503",
                    where,
                    f"field '{src_leaf.field}' lies along different axes on the two sides",
                    expected=", ".join(dst_leaf.axes) or "no axis",
                    got=", ".join(src_leaf.axes) or "no axis",
                )
            )
            continue
        axes.update({name: (src.axes[name], dst.axes[name]) for name in src_leaf.axes if name not in axes})
    for name, (a, b) in axes.items():
        problems += _axis_problems(where, name, a, src.block, b, dst.block)
    if problems:
        raise PlanRefused(problems)
    if not pairs:
        raise PlanRefused(problem("KVL501", where, "the two pages have no field in common"))
    src_blocks, dst_blocks = _template(where, pairs, src, src_parallel, dst, dst_parallel)
    widened = [_widened(ours, theirs, axes) for ours, theirs in pairs]
    return Pair(_coalesced(widened, buffer_starts(src), buffer_starts(dst)), axes, src_blocks, dst_blocks)


def _is_any(a: Leaf, b: Leaf) -> bool:
    """Whether one of two fields is bytes without a meaning. Opaque bytes have one, if an unknown one."""
    return "any" in (a.tag, b.tag) and not any(leaf.tag.startswith("opaque:") for leaf in (a, b))


def _atom(leaf: Leaf) -> str:
    return f"{leaf.nbytes}-byte atoms of {leaf.tag}"


def _axis_problems(where: str, name: str, a: Axis, a_block: int | None, b: Axis, b_block: int | None) -> list[Problem]:
    if a.grows != b.grows:
        return [problem("KVL503", where, f"axis '{name}' grows with the blocks on one side only")]
    if a.common and b.common:
        return []
    if a.grows:
        if a.size * (b_block or 0) == b.size * (a_block or 0):
            return []
        return [
            problem(
                "KVL503",
                where,
                f"axis '{name}' has different numbers of units in a token on the two sides",
                expected=f"{b.size} in {b_block} tokens",
                got=f"{a.size} in {a_block} tokens",
            )
        ]
    if a.size == b.size:
        return []
    return [
        problem(
            "KVL503",
            where,
            f"axis '{name}' has different sizes on the two sides",
            expected=str(b.size),
            got=str(a.size),
        )
    ]


def tokens_per_block(page: Page, parallel: Parallel) -> int:
    """Tokens that one block id covers: those of all cp ranks together where the growing axis is dealt out to them."""
    dealt = any(axis.grows and axis.shard == "cp" for axis in page.axes.values())
    return (page.block or 1) * (parallel.cp if dealt else 1)


def _template(
    where: str,
    pairs: list[tuple[Leaf, Leaf]],
    src: Page,
    src_parallel: Parallel,
    dst: Page,
    dst_parallel: Parallel,
) -> tuple[int, int]:
    if not any(src.axes[axis].grows for leaf, _ in pairs for axis in leaf.axes):
        return 1, 1
    src_tokens, dst_tokens = tokens_per_block(src, src_parallel), tokens_per_block(dst, dst_parallel)
    if src_tokens == dst_tokens:
        return 1, 1
    for leaf, _ in pairs:
        if not any(src.axes[axis].grows for axis in leaf.axes):
            raise PlanRefused(
                problem(
                    "KVL504",
                    where,
                    f"field '{leaf.field}' does not grow with the tokens, so a block can only move whole",
                    expected=f"{dst_tokens} tokens a block",
                    got=f"{src_tokens}",
                )
            )
    span = lcm(src_tokens, dst_tokens)
    if max(span // src_tokens, span // dst_tokens) > MAX_TEMPLATE_BLOCKS:
        raise PlanRefused(
            problem(
                "KVL506",
                where,
                f"blocks of {src_tokens} and {dst_tokens} tokens meet again only after {span} tokens",
                expected=f"at most {MAX_TEMPLATE_BLOCKS} blocks of either side",
            )
        )
    return span // src_tokens, span // dst_tokens


def _widened(src: Leaf, dst: Leaf, axes: Mapping[str, tuple[Axis, Axis]]) -> tuple[Leaf, Leaf]:
    """The two leaves with every innermost axis that is a dense row of atoms on both sides made part of the atom.

    Such an axis is whole on every rank, in its own order, and the atoms lie side by side: nothing will ever cut it.
    """
    whole = {
        name: axes[name][0].size
        for name in dst.axes
        if not any(axis.shard or axis.grows or axis.common for axis in axes[name])
    }
    gone = {name for name, size in whole.items() if size == 1}
    src_digits, dst_digits, nbytes = src.digits, dst.digits, dst.nbytes
    while src_digits and dst_digits and src_digits[-1] == dst_digits[-1]:
        name, weight, count, stride = dst_digits[-1]
        if (weight, count, stride) != (1, whole.get(name), nbytes):
            break
        src_digits, dst_digits, nbytes = src_digits[:-1], dst_digits[:-1], nbytes * count
        gone.add(name)
    return (
        replace(src, nbytes=nbytes, axes=tuple(name for name in src.axes if name not in gone), digits=src_digits),
        replace(dst, nbytes=nbytes, axes=tuple(name for name in dst.axes if name not in gone), digits=dst_digits),
    )


def _coalesced(
    pairs: list[tuple[Leaf, Leaf]], src_starts: frozenset[int], dst_starts: frozenset[int]
) -> tuple[PairedField, ...]:
    merged: list[PairedField] = []
    for src, dst in sorted(pairs, key=lambda pair: pair[1].base):
        if merged:
            last = merged[-1]
            if (
                (last.src.digits, last.dst.digits) == (src.digits, dst.digits)
                and (last.src.axes, last.dst.axes) == (src.axes, dst.axes)
                and src.base == last.src.base + last.nbytes
                and dst.base == last.dst.base + last.nbytes
                and src.base not in src_starts
                and dst.base not in dst_starts
            ):
                merged[-1] = PairedField((*last.names, src.field), last.nbytes + src.nbytes, last.src, last.dst)
                continue
        merged.append(PairedField((src.field,), src.nbytes, src, dst))
    return tuple(merged)
