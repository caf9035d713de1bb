"""Left never imports right.

The stages stand in the order in which a spec becomes moved bytes. Each may use what stands before it and nothing that
stands after. The rule is read off the syntax trees: an import inside a function, or one for type checkers only, is an
import. A stage is one module or a folder.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kvlayout"

# Stages of one line do not import each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("data", "rules"),
    ("errors",),
    ("algebra",),
    ("ir",),
    ("spec",),
    ("plan",),
    ("verify",),
    ("api", "view", "emit"),
    ("connectors",),
    ("store",),
    ("pipeline", "policy"),
    ("integrations",),
    ("testing",),
    ("cli",),
    ("__main__",),
)
PLACE = {stage: place for place, stages in enumerate(ORDER) for stage in stages}

# The document that the planner writes and the checker reads; all that the checker may know of the planner.
ARTIFACT = "kvlayout.plan.artifact"
# A proved plan in the hand of its user: it makes no plan, so that those who move bytes may hold it beside the checker.
IN_HAND = "kvlayout.plan.transfer"
# Rooms that see both planner and checker. A checker that could ask the planner would prove nothing.
SEES_BOTH = {"kvlayout", "api", "testing", "cli"}
# The public names of `kvlayout` come from every stage, so that whoever uses them depends on all of them.
USES_PUBLIC_NAMES = {"testing", "cli"}

# Heavy libraries, and the one stage that pays for each.
HOME = {
    "pydantic": "spec",
    "pydantic_core": "spec",
    "networkx": "plan",
    "jinja2": "emit",
    "numba": "emit",
    "llvmlite": "emit",
}
NEVER_AT_MODULE_LEVEL = {"torch"}


@dataclass(frozen=True, slots=True)
class Import:
    """`target` is as long as the source tells: `from kvlayout.plan import cut` is `kvlayout.plan.cut`."""

    target: str
    line: int
    on_load: bool


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import of a module, relative ones resolved. `on_load`: executed when the module is loaded."""
    yield from _walk(ast.parse(source), module.split(".") if is_package else module.split(".")[:-1], on_load=True)


def _walk(node: ast.AST, package: list[str], *, on_load: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield Import(alias.name, node.lineno, on_load)
        case ast.ImportFrom(module=source, names=names, level=level):
            base = package[: len(package) - level + 1] if level else []
            path = [*base, *([source] if source else [])]
            for alias in names:
                yield Import(".".join([*path, alias.name]), node.lineno, on_load)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(target)), *_],
        ):
            yield Import(target, node.lineno, on_load)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for child in node.body:
                yield from _walk(child, package, on_load=False)
            for child in node.orelse:
                yield from _walk(child, package, on_load=on_load)
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            on_load = False
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, on_load=on_load)


def stage_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What one module may not do, one line each."""
    stage = stage_of(module)
    if stage not in PLACE and stage != "kvlayout":
        return [f"{module}: stage {stage!r} has no place in the order"]
    found = []
    for item in imports_of(module, source, is_package=is_package):
        if said := _verdict(module, stage, item):
            found.append(f"{module}:{item.line}: {said}")
    return found


def _verdict(module: str, stage: str, item: Import) -> str | None:
    top, _, rest = item.target.partition(".")
    if top in NEVER_AT_MODULE_LEVEL and item.on_load:
        return f"{top} is imported at module level"
    if top in HOME and stage != HOME[top]:
        return f"{top} belongs in {HOME[top]} alone"
    if top != "kvlayout" or stage == "kvlayout":
        return None
    target = rest.split(".")[0]
    if target not in PLACE:
        allowed = stage in USES_PUBLIC_NAMES or target == "__version__"
        return None if allowed else f"imports from the public surface ({item.target}), which stands after every stage"
    if target != stage and PLACE[target] >= PLACE[stage]:
        return f"{stage} imports {target} ({item.target}), which does not stand before it"
    if stage == "verify" and _is_planner(item.target):
        return f"verify imports {item.target}; of plan it may see {ARTIFACT} alone"
    if _within(module, ARTIFACT) and _is_planner(item.target):
        return f"the artifact imports {item.target}, which the checker would then share with the planner"
    return None


def _within(target: str, module: str) -> bool:
    return target == module or target.startswith(module + ".")


def _is_planner(target: str) -> bool:
    return _within(target, "kvlayout.plan") and not _within(target, ARTIFACT)


def rooms_that_see_both(modules: list[tuple[str, str, bool]]) -> list[str]:
    """The stages that import the planner and the checker and may not."""
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for module, source, is_package in modules:
        for item in imports_of(module, source, is_package=is_package):
            if _is_planner(item.target) and not _within(item.target, IN_HAND):
                seen[stage_of(module)].add("plan")
            if _within(item.target, "kvlayout.verify"):
                seen[stage_of(module)].add("verify")
    return sorted(stage for stage, both in seen.items() if len(both) == 2 and stage not in SEES_BOTH)


def tree() -> list[tuple[str, str, bool]]:
    """(module, source, is a package) of every module that ships."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [*path.relative_to(PACKAGE.parent).parts[:-1], path.stem]
        is_package = parts[-1] == "__init__"
        found.append((".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package))
    return found


def test_the_tree_keeps_the_order() -> None:
    modules = tree()
    assert "kvlayout.errors" in {module for module, _, _ in modules}
    assert [line for module, source, pkg in modules for line in violations(module, source, is_package=pkg)] == []


def test_only_the_named_rooms_see_planner_and_checker() -> None:
    assert rooms_that_see_both(tree()) == []


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("kvlayout.algebra.box", "from kvlayout.ir import Page", "algebra imports ir"),
        ("kvlayout.ir", "import kvlayout.spec.load", "ir imports spec"),
        ("kvlayout.ir.node", "from kvlayout import plan", "ir imports plan"),
        ("kvlayout.ir.node", "from ..verify import rules", "ir imports verify"),
        ("kvlayout.ir", "from .store import get", "ir imports store"),
        ("kvlayout.plan.cut", "def f():\n    from kvlayout.verify import check", "plan imports verify"),
        ("kvlayout.plan.cut", "if TYPE_CHECKING:\n    import kvlayout.cli", "plan imports cli"),
        ("kvlayout.plan.cut", "import_module('kvlayout.emit')", "plan imports emit"),
        ("kvlayout.view", "import kvlayout.api", "view imports api"),
        ("kvlayout.emit.bind", "from kvlayout.api import check", "emit imports api"),
        ("kvlayout.errors", "import kvlayout.algebra", "errors imports algebra"),
        ("kvlayout.verify.proof", "from kvlayout.plan.cut import cut", "of plan it may see"),
        ("kvlayout.verify.proof", "from kvlayout.plan import cut", "of plan it may see"),
        ("kvlayout.verify.proof", "import kvlayout.plan", "of plan it may see"),
        ("kvlayout.plan.artifact", "from kvlayout.plan.cut import Piece", "share with the planner"),
        ("kvlayout.plan.artifact", "from .cut import Piece", "share with the planner"),
        ("kvlayout.emit.kernel", "from kvlayout import Engine", "public surface"),
        ("kvlayout.emit.kernel", "import kvlayout", "public surface"),
        ("kvlayout.plan.cut", "import pydantic", "pydantic belongs in spec"),
        ("kvlayout.verify", "def f():\n    import networkx as nx", "networkx belongs in plan"),
        ("kvlayout.verify", "from numba import njit", "numba belongs in emit"),
        ("kvlayout.cli.show", "import jinja2", "jinja2 belongs in emit"),
        ("kvlayout.emit.copy", "import torch", "torch is imported at module level"),
        ("kvlayout.emit.copy", "try:\n    from torch import Tensor\nexcept ImportError:\n    pass", "at module level"),
        ("kvlayout", "import numba", "numba belongs in emit"),
        ("kvlayout.helpers", "", "has no place in the order"),
    ],
)
def test_a_breach_is_found(module: str, source: str, said: str) -> None:
    (line,) = violations(module, source)
    assert said in line


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kvlayout.plan.cut", "from kvlayout.spec.load import load\nfrom kvlayout import algebra, errors\nimport math"),
        ("kvlayout.plan.cut", "from .owner import owner\nfrom kvlayout.plan import schedule\nimport networkx"),
        ("kvlayout.verify.proof", "from kvlayout.plan.artifact import Piece\nfrom kvlayout.plan import artifact"),
        ("kvlayout.errors", "from kvlayout import rules"),
        ("kvlayout.plan.artifact", "from kvlayout import __version__\nfrom kvlayout.ir import Page"),
        ("kvlayout.testing.strategies", "from kvlayout import Engine\nfrom kvlayout.integrations import vllm"),
        ("kvlayout.emit.copy", "def f():\n    import torch"),
        ("kvlayout.emit.copy", "if TYPE_CHECKING:\n    import torch"),
        ("kvlayout", "from kvlayout.api import load"),
    ],
)
def test_a_lawful_import_is_let_through(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_package_resolves_relative_imports_in_itself() -> None:
    (line,) = violations("kvlayout.ir", "from ..plan import cut", is_package=True)
    assert "ir imports plan" in line
    assert violations("kvlayout.ir", "from .node import Page", is_package=True) == []


def test_a_room_that_sees_both_is_found() -> None:
    planner, checker = "from kvlayout.plan.cut import cut", "from kvlayout.verify import check"
    both = [("kvlayout.store.a", planner, False), ("kvlayout.store.b", checker, False)]
    assert rooms_that_see_both(both) == ["store"]
    assert rooms_that_see_both(both[:1]) == []
    in_hand = "from kvlayout.plan.transfer import TransferPlan"
    assert rooms_that_see_both([("kvlayout.emit.a", in_hand, False), ("kvlayout.emit.b", checker, False)]) == []
    assert rooms_that_see_both([("kvlayout.api", f"{planner}\n{checker}", False)]) == []
