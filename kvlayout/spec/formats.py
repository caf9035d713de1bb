"""Formats: finding them by name, and merging what one `extends`.

A name is looked up beside the file that uses it, then in `../formats` of that file, then among the shipped ones; a
local name that is also a shipped one is an error, so that nobody reads a page by another layout than the name
promises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvlayout.data import specs_dir
from kvlayout.errors import SpecError, one_of, problem, shown
from kvlayout.rules import RULES
from kvlayout.spec.grammar import EXPRESSION_WORDS, ArrayNode, Buffers, ChooseNode, FormatFile, NodeModel, StructNode
from kvlayout.spec.source import Source, read_source
from kvlayout.spec.validate import Located, validated
from kvlayout.spec.validate import Path as KeyPath

__all__ = ["Format", "check_names", "find_format", "load_format", "shipped_formats"]

MAX_EXTENDS = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, eq=False, slots=True)
class Format:
    """A format ready to be expanded, and the places of its parts. Compared by identity: each is loaded once.

    `parents`: the formats that it extends, nearest first.
    """

    name: str
    located: Located
    file: FormatFile
    base: KeyPath = ()
    parents: tuple[str, ...] = ()

    def where(self, *path: str | int) -> str:
        """The place of a part of the format."""
        return self.located.where((*self.base, *path))


@dataclass(frozen=True, slots=True)
class _Merged:
    """A source over the one that it extends: mappings merge by key, everything else is replaced."""

    data: Any
    own: Source
    parent: Located

    def where(self, path: KeyPath, key: bool = False) -> str:
        """In the file that gives the value."""
        here = self.own.data
        for step in path:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                return self.parent.where(path, key)
        return self.own.where(path, key)


def shipped_formats() -> dict[str, Path]:
    """The formats that travel with the package, by name."""
    return {path.stem: path for path in sorted((specs_dir() / "formats").glob("*.yaml"))}


def load_format(path: str | Path) -> Format:
    """A format file, with what it extends. Raises SpecError."""
    file = Path(path)
    if file == specs_dir() / "formats" / f"{file.stem}.yaml":
        return _shipped(file.stem)
    return _load(file)


def find_format(name: str, used_in: Path | None, where: str) -> Format:
    """The format that `name` means in the file `used_in`; `where` is the place that an error speaks of."""
    found = load_format(_find(name, used_in, where))
    if found.name != name:
        raise SpecError(
            problem(
                "KVL111",
                found.where("format"),
                "a format is looked up by its file's name, so the two must agree",
                expected=name,
                got=found.name,
            )
        )
    return found


@lru_cache(maxsize=256)
def _shipped(name: str) -> Format:
    return _load(specs_dir() / "formats" / f"{name}.yaml")


def _load(path: Path) -> Format:
    located = _merge(path, read_source(path), ())
    file = validated(FormatFile, located)
    loaded = Format(file.format, located, file, parents=tuple(_parents(located)))
    check_names(loaded)
    return loaded


def _merge(path: Path, source: Source, seen: tuple[Path, ...]) -> Located:
    name = source.data.get("extends")
    if name is None:
        return source
    where = source.where(("extends",))
    if not isinstance(name, str):
        raise SpecError(problem("KVL012", where, "'extends' names one format", got=type(name).__name__))
    chain = (*seen, path.resolve())
    if len(chain) > MAX_EXTENDS:
        raise SpecError(
            problem("KVL112", where, "the chain of formats that extend each other is too long",
                    expected=f"at most {MAX_EXTENDS} deep")
        )  # fmt: skip
    parent_path = _find(name, path, where)
    if parent_path.resolve() in chain:
        circle = [path.stem for path in chain[chain.index(parent_path.resolve()) :]]
        raise SpecError(problem("KVL112", where, f"a circle of formats: {' extends '.join((*circle, circle[0]))}"))
    parent = _merge(parent_path, read_source(parent_path), chain)
    data = _over({k: v for k, v in parent.data.items() if k != "extends"}, source.data, ())
    return _Merged(data, source, parent)


def _parents(located: Located) -> Iterator[str]:
    while isinstance(located, _Merged):
        located = located.parent
        yield str(located.data["format"])


def _over(parent: Any, own: Any, path: KeyPath) -> Any:
    if not isinstance(parent, dict) or not isinstance(own, dict) or path == ("page",):
        return own
    merged = dict(parent)
    for key, value in own.items():
        merged[key] = _over(parent[key], value, (*path, key)) if key in parent else value
    return merged


def _find(name: str, used_in: Path | None, where: str) -> Path:
    if not _NAME.fullmatch(name):  # a name, never a path: `extends: ../../x` must not leave the folders
        raise SpecError(
            problem("KVL110", where, "this is no format's name", expected="a name, not a path", got=f"'{shown(name)}'")
        )
    shipped = specs_dir() / "formats" / f"{name}.yaml"
    places = []
    if used_in is not None:
        places = [used_in.parent / f"{name}.yaml", used_in.parent.parent / "formats" / f"{name}.yaml"]
    # A model may have the name of a format: only files that say they are formats count.
    local = [place for place in places if place.is_file() and "format" in read_source(place).data]
    # A checkout beside an installed copy holds the very files that the copy was made from.
    local = [place for place in local if not (shipped.is_file() and place.read_bytes() == shipped.read_bytes())]
    if local and shipped.is_file():
        raise SpecError(problem("KVL113", where, f"'{name}' is a shipped format, and {local[0]} is another one"))
    if local:
        return local[0]
    if shipped.is_file():
        return shipped
    raise SpecError(problem("KVL110", where, f"there is no format '{name}'", expected=one_of(shipped_formats())))


def check_names(loaded: Format) -> None:
    """No name means two things: engine words, parameters, `let` names and axes keep apart, and so do rule codes."""
    taken = dict.fromkeys(EXPRESSION_WORDS, "an engine word")
    for section, names in (("params", loaded.file.params), ("let", loaded.file.let)):
        for name in names:
            if name in taken:
                raise SpecError(
                    problem(
                        "KVL114",
                        loaded.located.where((*loaded.base, section, name), key=True),
                        f"the name '{name}' is already {taken[name]}",
                    )
                )
            taken[name] = "a parameter" if section == "params" else "a let name"
    used = set(_axes_of(loaded.file.page))
    inherited = loaded.located.parent.data.get("axes", {}) if isinstance(loaded.located, _Merged) else {}
    for name, axis in loaded.file.axes.items():
        # An axis that is only a number harms nobody; one that ranks share and no field has was forgotten.
        if axis.shard is not None and name not in used and name not in inherited:
            where = loaded.located.where((*loaded.base, "axes", name), key=True)
            raise SpecError(problem("KVL134", where, f"no field lies along axis '{name}'"))
    for index, requirement in enumerate(loaded.file.require):
        rule = RULES.get(requirement.code)
        if rule is not None:
            raise SpecError(
                problem("KVL132", loaded.where("require", index, "code"), f"the code means: {rule.title}",
                        expected="a code that starts with X", got=requirement.code)
            )  # fmt: skip


def _axes_of(page: Buffers | NodeModel) -> Iterator[str]:
    """The axes that any case of a page lies along or factors; `order` means head and token."""
    stack = list(page.buffers.values()) if isinstance(page, Buffers) else [page]
    while stack:
        node = stack.pop().root
        if isinstance(node, tuple):
            stack += node
        elif isinstance(node, ArrayNode | StructNode | ChooseNode):
            yield from node.digits or ()
            if isinstance(node, ArrayNode):
                names = node.array if isinstance(node.array, tuple) else (node.array,)
                yield from ("head", "token") if "order" in names else ()
                yield from names
                stack.append(node.of)
            else:
                stack += node.struct if isinstance(node, StructNode) else node.cases.values()
