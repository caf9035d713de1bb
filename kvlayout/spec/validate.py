"""From YAML data to grammar models, and from pydantic's errors to located problems.

Pydantic puts the tags of unions into error locations, which are no part of the YAML path; walking the data along a
location tells them apart, because a tag holds a colon and no key of the grammar does. Keys that start with `x-` are the
user's own and are dropped before validation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from kvlayout.errors import MAX_PROBLEMS, Problem, SpecError, one_of, problem, shown
from kvlayout.spec.expr_parse import closest

__all__ = ["Located", "Path", "as_data", "validated"]

Path = tuple[str | int, ...]
T = TypeVar("T", bound=BaseModel)

MAX_ENTRIES = 20_000
"""Entries of one list or mapping."""


class Located(Protocol):
    """Anything that knows the place of its values: a source, or a source merged over the one it extends."""

    @property
    def data(self) -> Any: ...

    def where(self, path: Path, key: bool = False) -> str:
        """`file:line:column` of the value at `path`, or of its key."""


def as_data(value: Any) -> Any:
    """The value without `x-` keys, its lists as tuples (so that models can be frozen and strict)."""
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items() if not key.startswith("x-")}
    if isinstance(value, list):
        return tuple(as_data(item) for item in value)
    return value


def validated(model: type[T], located: Located, base: Path = ()) -> T:
    """The data of a source as a grammar model; SpecError with a problem for each error, where it stands."""
    data = as_data(located.data)
    _check_sizes(data, located)
    for step in base:
        data = data[step]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
        problems = [each for found in first for each in _problems(found, data, located, base)]
        raise SpecError(_in_order(problems)) from None


def _check_sizes(data: Any, located: Located) -> None:
    """No list and no mapping is so long that errors about all of its entries would fill the memory."""
    stack: list[tuple[Path, Any]] = [((), data)]
    while stack:
        path, value = stack.pop()
        if not isinstance(value, dict | tuple):
            continue
        if len(value) > MAX_ENTRIES:
            subject = f"the value of '{'.'.join(map(str, path))}'" if path else "the file"
            raise SpecError(
                problem(
                    "KVL012", located.where(path), subject, expected=f"at most {MAX_ENTRIES} entries", got=_got(value)
                )
            )
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        stack += (((*path, key), item) for key, item in inner if isinstance(item, dict | tuple))


def _in_order(problems: list[Problem]) -> list[Problem]:
    """By line and column, and the kinds that a union expects at one place joined."""
    merged: dict[tuple[str, str], Problem] = {}
    for each in problems:
        before = merged.get((each.where, each.message))
        if before is not None and before.expected and each.expected and each.expected not in before.expected:
            each = replace(before, expected=f"{before.expected} or {each.expected}")
        merged[each.where, each.message] = each

    def place(each: Problem) -> tuple[str, int, int]:
        file, line, column = each.where.rsplit(":", 2)
        return file, int(line), int(column)

    return sorted(merged.values(), key=place)


def _problems(error: Mapping[str, Any], data: Any, located: Located, base: Path) -> list[Problem]:
    path, key, missing = list(base), False, None
    for step in error["loc"]:
        if (isinstance(data, dict) and step in data) or (
            isinstance(data, tuple) and isinstance(step, int) and step < len(data)
        ):
            data = data[step]
            path.append(step)
        elif step == "[key]":
            key = True
        elif isinstance(step, str) and ":" not in step:
            missing = step
    kind, ctx = error["type"], error.get("ctx", {})
    make = _KINDS.get(kind)
    if make is not None:
        return make(located, tuple(path), ctx, data)
    where = located.where(tuple(path), key)
    subject = ".".join(str(step) for step in path)
    if kind == "missing":
        named = f"'{subject}'" if path else "the file"
        return [problem("KVL010", where, f"{named} has no key '{missing}'")]
    if key:
        return [problem("KVL012", where, f"'{shown(path[-1])}' cannot be a name here", expected=_NAMES)]
    message = f"the value of '{subject}'" if path else "the file"
    return [problem("KVL012", where, message, expected=_expected(kind, ctx, error["msg"]), got=_got(data))]


_NAMES = "a letter or '_', then letters, digits and '_', at most 64 in all"
_PATTERNS = {
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": "a format's name: letters, digits, '_', '.' and '-'",
    r"^(KVL[0-9]{3}|X[A-Za-z0-9_]{1,31})$": "a code of your own, X and then letters, digits and '_'",
}
_TYPES = {
    "int_type": "an integer",
    "int_parsing_size": "an integer",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than": ("above", "gt", ""),
    "greater_than_equal": ("at least", "ge", ""),
    "less_than_equal": ("at most", "le", ""),
    "string_too_long": ("at most", "max_length", " character(s)"),
    "string_too_short": ("at least", "min_length", " character(s)"),
    "too_long": ("at most", "max_length", " entries"),
    "too_short": ("at least", "min_length", " entry"),
}


def _expected(kind: str, ctx: Mapping[str, Any], message: str) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _BOUNDS:
        words, bound, unit = _BOUNDS[kind]
        return f"{words} {ctx[bound]}{unit}"
    if kind == "kvl_value":
        return str(ctx["expected"])
    if kind == "literal_error":
        return str(ctx["expected"]).replace("'", "")
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(str(ctx.get("pattern")), _NAMES)
    return message[:1].lower() + message[1:]


def _got(value: object) -> str:
    if isinstance(value, tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


_Context = Mapping[str, Any]


def _unknown_keys(located: Located, path: Path, ctx: _Context, data: Any) -> list[Problem]:
    return [
        problem(
            "KVL011",
            located.where((*path, key), key=True),
            f"unknown key '{shown(key)}'{closest(key, ctx['legal'])}",
            expected=one_of(ctx["legal"]),
        )
        for key in ctx["keys"][:MAX_PROBLEMS]
    ]


def _expression(located: Located, path: Path, ctx: _Context, data: Any) -> list[Problem]:
    message = ctx.get("message", "an expression is an integer or a text")
    return [problem("KVL101", _shifted(located.where(path), ctx.get("column", 0)), message)]


def _node(located: Located, path: Path, ctx: _Context, data: Any) -> list[Problem]:
    got = f"a mapping with {', '.join(map(shown, list(data)[:8]))}" if isinstance(data, dict) and data else _got(data)
    return [problem("KVL013", located.where(path), "this is no kind of node", expected=ctx["legal"], got=got)]


def _group(located: Located, path: Path, ctx: _Context, data: Any) -> list[Problem]:
    return [problem("KVL141", located.where(path), "a group has a format, or a page of its own", got=ctx["got"])]


_KINDS: dict[str, Callable[[Located, Path, _Context, Any], list[Problem]]] = {
    "kvl_unknown_key": _unknown_keys,
    "kvl_expression": _expression,
    "kvl_node": _node,
    "kvl_group": _group,
}


def _shifted(where: str, columns: int) -> str:
    head, _, column = where.rpartition(":")
    return f"{head}:{int(column) + columns}"
