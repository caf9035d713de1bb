"""Hypothesis strategies: legal pages, pairs of sides that hold the same fields in other nestings, engines and plans.

Pages come from two places. `format_plans` takes shipped formats with small parameters between random engines: what
users meet. `page_pairs` nests random fields over random axes, with digits, pads, packings and shares of their own on
each side: what the algebra allows and no engine has yet. Drawn cases that no engine could load, or that do not
convert, are rejected by `assume`, so that every value drawn is a right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import assume
from hypothesis import strategies as st

from kvlayout.api import plan_pair
from kvlayout.errors import KvLayoutError, PlanRefused
from kvlayout.ir import Array, Axis, Bytes, Node, Page, Parallel, Struct, span
from kvlayout.ir.invariants import extent_on_rank
from kvlayout.plan.artifact import Plan
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.testing.small import OVERRIDES, PARAMS

__all__ = [
    "PagePair", "digits", "engines", "format_plans", "page_pairs", "page_plans", "pages", "plans", "specs",
]  # fmt: skip

MAX_BYTES = 48 * 1024
"""Of all source pages and one destination page together: what a replay takes in a moment."""

_TP = (1, 2, 3, 4, 6, 8)
_Digits = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class PagePair:
    """Two legal sides of the same logical fields."""

    src: Page
    dst: Page
    src_parallel: Parallel
    dst_parallel: Parallel


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    nbytes: int
    tag: str
    axes: tuple[str, ...]


@st.composite
def digits(draw: st.DrawFn, extent: int) -> list[tuple[int, int]]:
    """(weight, count) of mixed-radix digits that form an extent, innermost first."""
    found, weight = [], 1
    while weight < extent:
        rest = extent // weight
        factors = [k for k in range(2, rest + 1) if rest % k == 0]
        count = draw(st.sampled_from([rest, *factors]))
        found.append((weight, count))
        weight *= count
    return found or [(1, 1)]


@st.composite
def pages(draw: st.DrawFn) -> tuple[Page, int]:
    """A legal page, and the tensor-parallel size that it is for."""
    tp = draw(st.sampled_from((1, 2, 4)))
    axes = {
        "head": Axis(draw(st.sampled_from([n for n in range(1, 13) if n % tp == 0])), "tp"),
        "token": Axis(draw(st.integers(1, 8)), grows=True),
        "chan": Axis(draw(st.integers(1, 6))),
    }
    fields = [
        _Field(name, draw(st.integers(1, 4)), "float32", tuple(draw(st.sets(st.sampled_from(sorted(axes))))))
        for name in ("a", "b", "c")[: draw(st.integers(1, 3))]
    ]
    page = _page(draw, fields, axes, tp, axes["token"].size)
    assume(span(page.tree) <= MAX_BYTES)
    return page, tp


@st.composite
def page_pairs(draw: st.DrawFn) -> PagePair:
    """Two sides of the same fields: other nestings, digits, pads, shares, blocks and rows. Most of them convert."""
    grows = draw(st.booleans())
    units, deal = draw(st.sampled_from((1, 1, 2))), draw(st.booleans())
    src_parallel, dst_parallel = draw(_parallels(grows and deal)), draw(_parallels(grows and deal))
    sizes = src_parallel.tp, dst_parallel.tp
    shared = {name: draw(_shared_axis(sizes)) for name in ("head", "group")}
    fields = draw(_fields(("head", "group", "chan", "row"), grows))
    whole = any("token" not in each.axes for each in fields)
    same = {"chan": Axis(draw(st.sampled_from((1, 2, 3, 5, 6))))}
    block = draw(st.sampled_from((1, 2, 3, 4, 6, 8)))
    built = []
    for side, parallel in enumerate((src_parallel, dst_parallel)):
        cp = (src_parallel.cp, dst_parallel.cp) if deal else (1, 1)
        # Pages that only move whole need blocks of equal spans.
        own = block * cp[1 - side] if whole else draw(st.sampled_from((block, block, 1, 2, 4, 6)))
        axes = {**shared, **same, "row": Axis(draw(st.integers(1, 4)), common=True)}
        if grows:
            shared_out = not deal and own * units % parallel.tp == 0 and draw(st.integers(0, 4)) == 4
            granule = 2 if draw(st.integers(0, 9)) == 9 else 1
            shard: Literal["tp", "cp"] | None = "cp" if deal else "tp" if shared_out else None
            axes["token"] = Axis(own * units, shard, grows=True, granule=granule)
        present = [each for each in fields if each.tag != "any" or draw(st.integers(0, 3)) < 3]
        assume(present)
        built.append(_page(draw, present, axes, parallel.tp, own if grows else None))
    return PagePair(built[0], built[1], src_parallel, dst_parallel)


@st.composite
def page_plans(draw: st.DrawFn) -> Plan:
    """A plan between two random sides."""
    pair = draw(page_pairs())
    assume(span(pair.src.tree) * pair.src_parallel.stage_ranks <= MAX_BYTES and span(pair.dst.tree) <= MAX_BYTES)
    group = PlannedGroup("cache", (0,), pair.src, pair.dst)
    try:
        plan = Planner().plan("plan", [group], pair.src_parallel, pair.dst_parallel)
    except PlanRefused:
        assume(False)
    return _of_fair_size(plan)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A model of one or two groups of shipped formats."""
    layers = draw(st.integers(1, 3))
    names = draw(st.lists(st.sampled_from(sorted(PARAMS)), min_size=1, max_size=2))
    groups = []
    for index, name in enumerate(names):
        params = {key: draw(st.sampled_from(choices)) for key, choices in PARAMS[name].items()}
        fmt = find_format(name, None, "strategies")
        groups.append(CacheGroup(f"{name}_{index}", fmt, params, tuple(range(layers)), None, "strategies"))
    return Spec("drawn", None, layers, None, tuple(groups))


@st.composite
def engines(draw: st.DrawFn, spec: Spec) -> Engine:
    """An engine for a spec; not every one can load it."""
    words: dict[str, int | str] = {
        "tp": draw(st.sampled_from(_TP)),
        "block": draw(st.sampled_from((4, 4, 8, 12, 16))),
        "order": draw(st.sampled_from(("LBHNC", "LBNHC"))),
        "conv": draw(st.sampled_from(("DS", "SD"))),
        "spec_tokens": draw(st.sampled_from((0, 0, 1, 3))),
    }
    if draw(st.booleans()):
        words["dcp"] = draw(st.sampled_from([n for n in (1, 2, 3, 4) if int(words["tp"]) % n == 0]))
        words["pcp"] = draw(st.sampled_from((1, 1, 2)))
        words["interleave"] = draw(st.sampled_from((1, 1, 2, 4)))
    if spec.num_layers > 1:
        words["pp"] = draw(st.sampled_from((1, 1, 2)))
    for group in spec.groups:
        for name, choices in OVERRIDES.get(group.format.name, {}).items():
            words[f"{group.name}.{name}"] = draw(st.sampled_from(choices))
    engine = Engine(**words)
    if draw(st.integers(0, 5)) == 5:  # pages that end in a pad
        for group in spec.groups:
            try:
                need = span(spec.page(group, engine).tree)
            except KvLayoutError:
                assume(False)
            words[f"{group.name}.page"] = need + draw(st.integers(0, 9))
        engine = Engine(**words)
    return engine


@st.composite
def format_plans(draw: st.DrawFn) -> Plan:
    """A plan of shipped formats between two random engines that both exist and convert."""
    spec = draw(specs())
    src, dst = draw(engines(spec)), draw(engines(spec))
    try:
        plan = plan_pair(spec, src, dst)
    except KvLayoutError:
        assume(False)
    return _of_fair_size(plan)


def plans() -> st.SearchStrategy[Plan]:
    """Right plans from both places."""
    return st.one_of(format_plans(), page_plans())


def _of_fair_size(plan: Plan) -> Plan:
    for group in plan.groups:
        assume(span(group.src.tree) * group.src_blocks * plan.src.stage_ranks <= MAX_BYTES)
        assume(span(group.dst.tree) * group.dst_blocks * plan.dst.stage_ranks <= MAX_BYTES)
        assume(sum(len(moves.pieces) for moves in group.ranks) <= 2_000)
    return plan


@st.composite
def _parallels(draw: st.DrawFn, deals: bool) -> Parallel:
    tp = draw(st.sampled_from((1, 2, 3, 4, 6)))
    if not deals:
        return Parallel(tp=tp, stages=(1,))
    dcp = draw(st.sampled_from([1, *(n for n in (2, 3, 4) if tp % n == 0)]))
    return Parallel(tp, draw(st.sampled_from((1, 1, 2, 3))), dcp, draw(st.sampled_from((1, 1, 2, 4))), (1,))


@st.composite
def _shared_axis(draw: st.DrawFn, sizes: Sequence[int]) -> Axis:
    few: Literal["refuse", "replicate"] = "replicate" if draw(st.integers(0, 2)) < 2 else "refuse"
    fitting = [n for n in range(1, 13) if all(extent_on_rank(n, "tp", few, tp) is not None for tp in sizes)]
    if draw(st.integers(0, 5)) == 5:
        return Axis(draw(st.integers(1, 5)))
    return Axis(draw(st.sampled_from(fitting or [12])), "tp", few)


@st.composite
def _fields(draw: st.DrawFn, axes: Sequence[str], grows: bool) -> list[_Field]:
    fields = []
    for name in ("a", "b", "c", "d")[: draw(st.integers(1, 4))]:
        along = set(draw(st.lists(st.sampled_from(axes), max_size=3)))
        if {"head", "group"} <= along:  # two axes shared by tp leave shares that no rank holds
            along.remove(draw(st.sampled_from(("head", "group"))))
        if grows and draw(st.integers(0, 7)) < 7:
            along.add("token")
        tag = draw(st.sampled_from(("float16", "float16", "e4m3", "any")))
        fields.append(_Field(name, draw(st.integers(1, 4)), tag, tuple(sorted(along))))
    return fields


def _page(draw: st.DrawFn, fields: Sequence[_Field], axes: dict[str, Axis], tp: int, block: int | None) -> Page:
    extents = {name: extent_on_rank(each.size, each.shard, each.few, tp) for name, each in axes.items()}
    assume(all(extents.values()))
    factored = {name: draw(digits(extent or 1)) for name, extent in extents.items()}
    parts = []
    for each in fields:
        own: list[tuple[str, int, int]] = []
        for name in each.axes:
            chosen = factored[name] if draw(st.integers(0, 3)) < 3 else draw(digits(extents[name] or 1))
            own += ((name, *digit) for digit in chosen)
        parts.append((each, tuple(own)))
    tree = _nest(draw, parts)
    buffers: tuple[tuple[str, int], ...] = ()
    if len(parts) > 1 and draw(st.integers(0, 9)) == 9:
        cut = draw(st.integers(1, len(parts) - 1))
        k, v = _nest(draw, parts[:cut]), _nest(draw, parts[cut:])
        tree, buffers = Struct(span(k) + span(v), ((0, k), (span(k), v))), (("first", span(k)), ("second", span(v)))
    grows = any(axes[name].grows for each in fields for name in each.axes)
    used = {name for each in fields for name in each.axes}
    return Page(tree, {name: axis for name, axis in axes.items() if name in used}, block if grows else None, buffers)


def _nest(draw: st.DrawFn, parts: list[tuple[_Field, _Digits]], padded: bool = False) -> Node:
    """Random nesting: repeat what all parts share along one digit, or put groups of them side by side, or pad."""
    shared = [digit for digit in parts[0][1] if all(digit in own for _, own in parts)]
    if not padded and draw(st.integers(0, 9)) == 9:
        return _struct(draw, [_nest(draw, parts, padded=True)], pads=True)
    if shared and (len(parts) == 1 or draw(st.integers(0, 2)) < 2):
        digit = draw(st.sampled_from(shared))
        child = _nest(draw, [(each, tuple(d for d in own if d != digit)) for each, own in parts])
        return Array(*digit, span(child), child)
    if len(parts) == 1:
        each, _ = parts[0]
        return Bytes(each.name, each.nbytes, each.tag)
    order = draw(st.permutations(parts))
    cut = draw(st.integers(1, len(parts) - 1))
    return _struct(draw, [_nest(draw, order[:cut]), _nest(draw, order[cut:])], pads=draw(st.integers(0, 3)) == 3)


def _struct(draw: st.DrawFn, children: list[Node], pads: bool) -> Struct:
    members, gaps, end = [], [], 0
    for index in range(len(children) + 1):
        gap = draw(st.integers(0, 3)) if pads else 0
        if gap:
            gaps.append((end, gap))
            end += gap
        if index < len(children):
            members.append((end, children[index]))
            end += span(children[index])
    return Struct(end, tuple(members), tuple(gaps))
