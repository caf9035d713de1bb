"""Expansion: a format, its parameters and the words of an engine become the page tree of a rank.

Arrays are built from inside: each stride is the span of what it repeats, so that a gap can only be a declared pad. All
extents are those of one rank. What comes out satisfies the invariants of the IR, or a located problem says why not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from kvlayout.errors import MAX_PROBLEMS, PlanRefused, SpecError, one_of, problem
from kvlayout.ir import Array, Axis, Bytes, Node, Page, Struct, leaves, page_faults, span
from kvlayout.ir.invariants import MAX_BYTES, extent_on_rank
from kvlayout.spec.expr import Expr, canonical_tag
from kvlayout.spec.grammar import (
    ArrayNode,
    AxisDecl,
    Buffers,
    ChooseNode,
    FieldNode,
    NodeModel,
    OpaqueNode,
    PadNode,
    StructNode,
)
from kvlayout.spec.scope import Scope

__all__ = ["expand"]

_At = tuple[str | int, ...]


def expand(scope: Scope, tp: int, tiles: int, page_bytes: int | None, page_where: str) -> Page:
    """The page of one rank.

    `tiles`: kernel blocks that the page is made of, one after the other, each laid out as a page of `scope`'s block.
    `page_bytes`: final size that an engine asks for, None for the tree's own; `page_where` speaks of it in errors.
    Raises SpecError for a wrong spec and PlanRefused (unloadable) for a side that cannot exist.
    """
    builder = _Builder(scope, tp)
    page = scope.format.file.page
    buffers: tuple[tuple[str, int], ...] = ()
    if isinstance(page, Buffers):
        parts = [(name, builder.node(node, ("page", "buffers", name))) for name, node in page.buffers.items()]
        buffers = tuple((name, span(part)) for name, part in parts)
        tree = _packed([part for _, part in parts])
    else:
        tree = builder.node(page, ("page",))
    axes, block = builder.axes, None
    if any(axis.grows for axis in axes.values()):
        block = int(scope.values["block"]) * tiles
        if tiles > 1:
            if page_bytes not in (None, span(tree) * tiles):
                raise _no_tiles(page_where, "a padded page")
            tree, axes = _tiled(tree, axes, tiles, page_where, bool(buffers))
    if page_bytes is not None:
        tree = _padded(scope, tree, page_bytes, page_where, bool(buffers))
    built = Page(tree, axes, block, buffers)
    faults = page_faults(built, tp)
    if faults:
        raise SpecError(
            [
                problem(
                    fault.code,
                    scope.format.where(*builder.places.get(fault.subject, ("page",))),
                    f"'{fault.subject}': {fault.message}",
                )
                for fault in faults[:MAX_PROBLEMS]
            ]
        )
    return built


def _tiled(tree: Node, axes: dict[str, Axis], tiles: int, where: str, buffers: bool) -> tuple[Node, dict[str, Axis]]:
    """A page of kernel blocks: a manager's block is so many pages of the kernel's block, one after the other.

    Where tokens are outermost anyway, the two digits of the token are one: such a page is the same bytes.
    """
    growing = [name for name, axis in axes.items() if axis.grows]
    whole = [leaf.field for leaf in leaves(tree) if not set(growing) & {*leaf.axes}]
    if buffers:
        raise _no_tiles(where, "a page in several buffers")
    if whole or len(growing) != 1:
        raise _no_tiles(where, f"a page whose field '{whole[0]}' no token cuts" if whole else "a page that grows twice")
    name = growing[0]
    axis = axes[name]
    axes = {**axes, name: replace(axis, size=axis.size * tiles)}
    if isinstance(tree, Array) and tree.axis == name and tree.weight * tree.count == axis.size:
        return replace(tree, count=tree.count * tiles), axes
    return Array(name, axis.size, tiles, span(tree), tree), axes


def _no_tiles(where: str, what: str) -> PlanRefused:
    return PlanRefused(
        problem("KVL208", where, f"{what} is not made of kernel blocks", expected="no kernel_block"), unloadable=True
    )


def _padded(scope: Scope, tree: Node, page_bytes: int, where: str, buffers: bool) -> Node:
    need = span(tree)
    if buffers:
        raise PlanRefused(
            problem("KVL206", where, "a page in several buffers has no final size of its own"), unloadable=True
        )
    if page_bytes < need:
        raise PlanRefused(
            problem(
                "KVL206",
                where,
                f"a page of format '{scope.format.name}' does not fit into the page that the engine names",
                expected=f"at least {need} bytes",
                got=f"{page_bytes} bytes",
            ),
            unloadable=True,
        )
    if page_bytes == need:
        return tree
    return Struct(page_bytes, ((0, tree),), ((need, page_bytes - need),))


def _packed(parts: list[Node | int], align: int = 1) -> Node:
    """Members one after the other; an integer is a pad of so many bytes."""
    members: list[tuple[int, Node]] = []
    pads: list[tuple[int, int]] = []
    end = 0
    for part in parts:
        if isinstance(part, int):
            pads.append((end, part))
            end += part
        else:
            members.append((end, part))
            end += span(part)
    size = -(-end // align) * align
    if size > end:
        pads.append((end, size - end))
    if len(members) == 1 and not pads:
        return members[0][1]
    return Struct(size, tuple(members), tuple(pads))


@dataclass(frozen=True, slots=True)
class _Digit:
    axis: str
    weight: int
    count: int


@dataclass(slots=True)
class _Builder:
    scope: Scope
    tp: int
    axes: dict[str, Axis] = field(default_factory=dict)
    places: dict[str, _At] = field(default_factory=dict)
    _digits: dict[str, _Digit] = field(default_factory=dict)
    _factored: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, decl in self.scope.format.file.axes.items():
            self.axes[name] = self._axis(name, decl)
            self.places[name] = ("axes", name)
            if name in self.scope.values:
                raise SpecError(
                    problem(
                        "KVL114",
                        self.scope.format.where("axes", name),
                        f"the name '{name}' is already an engine word, a parameter or a let name",
                    )
                )

    def _axis(self, name: str, decl: AxisDecl) -> Axis:
        scope, at = self.scope, ("axes", name)
        size = scope.number(decl.size, *at, "size")
        granule = 1 if decl.granule is None else scope.number(decl.granule, *at, "granule")
        grows = decl.grows is not None
        if (decl.shard == "cp" and not grows) or (decl.common and (decl.shard or grows)):
            raise SpecError(
                problem(
                    "KVL118",
                    scope.format.where(*at),
                    f"the words of axis '{name}' exclude each other",
                    expected="'shard: cp' on a growing axis only, 'common' on an axis that nobody shares out",
                )
            )
        if extent_on_rank(size, decl.shard, decl.few, self.tp) is None:
            code = "KVL201" if self.tp % size == 0 else "KVL202"
            expected = f"a tp that divides {size}" + (f", or that {size} divides" if decl.few == "replicate" else "")
            raise PlanRefused(
                problem(
                    code,
                    scope.format.where(*at),
                    f"axis '{name}' of {size} units cannot be shared by {self.tp} ranks",
                    expected=expected,
                    got=f"tp={self.tp}",
                ),
                unloadable=True,
            )
        return Axis(size, decl.shard, decl.few, grows, granule, decl.common)

    def node(self, model: NodeModel, at: _At) -> Node:
        """The tree of a node that is no pad."""
        built = self._node(model, at)
        if isinstance(built, int):
            raise SpecError(
                problem("KVL119", self.scope.format.where(*at), "a pad stands between the members of a list, not alone")
            )
        return built

    def _node(self, model: NodeModel, at: _At) -> Node | int:
        node = model.root
        if isinstance(node, FieldNode):
            return self._field(node.field, node.bytes, canonical_tag(self.scope.word(node.tag, *at, "tag")), at)
        if isinstance(node, OpaqueNode):
            # Opaque atoms pair with opaque atoms only: the mark is part of the tag.
            return self._field(node.opaque, node.bytes, "opaque:" + self.scope.word(node.tag, *at, "tag"), at)
        if isinstance(node, PadNode):
            return self._bounded(self.scope.number(node.pad, *at, "pad", low=0), at)
        if isinstance(node, tuple):
            return self._members(node, at, 1)
        if isinstance(node, StructNode):
            entered = self._enter(node, at)
            align = 1 if node.align is None else self._bounded(self.scope.number(node.align, *at, "align"), at)
            built = self._members(node.struct, (*at, "struct"), align)
        elif isinstance(node, ChooseNode):
            entered = self._enter(node, at)
            case = self._case(node, at)
            built_case = self._node(node.cases[case], (*at, "cases", case))
            self._leave(entered)
            return built_case
        else:
            entered = self._enter(node, at)
            built = self._array(node, at)
        self._leave(entered)
        return built

    def _field(self, name: str, size: Expr, tag: str, at: _At) -> Bytes:
        self.places[name] = at
        return Bytes(name, self._bounded(self.scope.number(size, *at, "bytes"), at), tag)

    def _members(self, nodes: tuple[NodeModel, ...], at: _At, align: int) -> Node:
        parts = [self._node(node, (*at, index)) for index, node in enumerate(nodes)]
        parts = [part for part in parts if part != 0]
        if all(isinstance(part, int) for part in parts):
            raise SpecError(
                problem("KVL119", self.scope.format.where(*at), "a list without a field has no bytes to move")
            )
        built = _packed(parts, align)
        self._bounded(span(built), at)
        return built

    def _array(self, node: ArrayNode, at: _At) -> Node:
        names = node.array if isinstance(node.array, tuple) else (node.array,)
        steps: list[tuple[str, int, int]] = []
        for index, name in enumerate(names):
            place = (*at, "array", index) if isinstance(node.array, tuple) else (*at, "array")
            spliced = {"HN": ("head", "token"), "NH": ("token", "head")}[str(self.scope.values["order"])]
            if name == "order" and not all(each in self.axes for each in spliced):
                raise SpecError(
                    problem("KVL121", self.scope.format.where(*place), "'order' stands for the axes head and token",
                            expected="both of them", got=", ".join(self.axes) or "no axes")
                )  # fmt: skip
            steps += (self._step(each, place) for each in (spliced if name == "order" else (name,)))
        if not steps:
            raise SpecError(
                problem("KVL130", self.scope.format.where(*at, "array"), "the array names no axis",
                        expected="at least one axis or digit")
            )  # fmt: skip
        tree = self.node(node.of, (*at, "of"))
        for axis, weight, count in reversed(steps):
            tree = Array(axis, weight, count, span(tree), tree)
            self._bounded(span(tree), (*at, "array"))
        return tree

    def _step(self, name: str, at: _At) -> tuple[str, int, int]:
        digit = self._digits.get(name)
        if digit is not None:
            return digit.axis, digit.weight, digit.count
        axis = self.axes.get(name)
        if axis is None:
            legal = [*self.axes, *self._digits, "order"]
            raise SpecError(
                problem(
                    "KVL121",
                    self.scope.format.where(*at),
                    f"'{name}' is no axis and no digit here",
                    expected=one_of(legal),
                )
            )
        if self._factored.get(name):
            digits = ", ".join(d for d, each in reversed(self._digits.items()) if each.axis == name)
            raise SpecError(
                problem("KVL121", self.scope.format.where(*at), f"axis '{name}' is factored here",
                        expected=f"its digits {digits}")
            )  # fmt: skip
        return name, 1, extent_on_rank(axis.size, axis.shard, axis.few, self.tp) or 1

    def _case(self, node: ChooseNode, at: _At) -> str:
        if node.choose not in self.scope.format.file.params and node.choose not in ("order", "conv", "family"):
            raise SpecError(
                problem(
                    "KVL127",
                    self.scope.format.where(*at, "choose"),
                    f"'{node.choose}' is neither a parameter nor order, conv or family",
                )
            )
        value = str(self.scope.values[node.choose])
        legal = self.scope.enums.get(node.choose, tuple(node.cases))
        for case in node.cases:
            if case not in legal:
                raise SpecError(
                    problem(
                        "KVL127",
                        self.scope.format.where(*at, "cases", case),
                        f"'{node.choose}' is never '{case}'",
                        expected=one_of(legal),
                    )
                )
        if value not in node.cases:
            raise SpecError(
                problem(
                    "KVL127",
                    self.scope.format.where(*at, "cases"),
                    f"there is no case for {node.choose} = {value}",
                    expected=f"a case for each of {', '.join(legal)}" if legal else "a case",
                )
            )
        return value

    def _enter(self, node: ArrayNode | StructNode | ChooseNode, at: _At) -> list[tuple[str, list[str]]]:
        """Take the digits of a node into scope; `_leave` takes them out again."""
        entered: list[tuple[str, list[str]]] = []
        for axis_name, declared in (node.digits or {}).items():
            place = (*at, "digits", axis_name)
            axis = self.axes.get(axis_name)
            if axis is None or self._factored.get(axis_name):
                raise SpecError(
                    problem(
                        "KVL121",
                        self.scope.format.where(*place),
                        f"'{axis_name}' is no axis that can be factored here",
                        expected=one_of(each for each in self.axes if not self._factored.get(each)),
                    )
                )
            extent = extent_on_rank(axis.size, axis.shard, axis.few, self.tp) or 1
            weight, names = 1, []
            for index in reversed(range(len(declared))):
                digit = declared[index]
                if isinstance(digit, str):
                    if index:
                        raise SpecError(
                            problem(
                                "KVL128",
                                self.scope.format.where(*place, index),
                                "only the first digit may be open",
                                expected=f"{{{digit}: count}}",
                            )
                        )
                    name, count = digit, extent // weight
                else:
                    if len(digit) != 1:
                        raise SpecError(
                            problem(
                                "KVL128",
                                self.scope.format.where(*place, index),
                                "a digit is one name with its count",
                                got=f"{len(digit)} names",
                            )
                        )
                    ((name, expr),) = digit.items()
                    count = self._bounded(self.scope.number(expr, *place, index, name), place)
                if name in self.axes or name in self._digits or name == "order":
                    raise SpecError(
                        problem(
                            "KVL114",
                            self.scope.format.where(*place, index),
                            f"the name '{name}' is already an axis, or a digit here",
                        )
                    )
                self._digits[name] = _Digit(axis_name, weight, count)
                names.append(name)
                weight *= count
            if weight != extent:
                found = problem(
                    "KVL128",
                    self.scope.format.where(*place),
                    f"the digits of axis '{axis_name}' multiply to {weight}",
                    expected=f"{extent} units on a rank",
                )
                if axis.grows or axis.shard:
                    raise PlanRefused(found, unloadable=True)
                raise self.scope.error(self.scope.format.file.axes[axis_name].size, found)
            self._factored[axis_name] = 1
            entered.append((axis_name, names))
        return entered

    def _leave(self, entered: list[tuple[str, list[str]]]) -> None:
        for axis_name, names in entered:
            self._factored.pop(axis_name)
            for name in names:
                self._digits.pop(name)

    def _bounded(self, size: int, at: _At) -> int:
        if size > MAX_BYTES:
            raise SpecError(
                problem("KVL124", self.scope.format.where(*at), "no page is so large", expected="at most 2**62 bytes",
                        got=f"{size} bytes")
            )  # fmt: skip
        return size
