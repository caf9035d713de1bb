"""From YAML data to grammar models, and from pydantic's errors to located problems.

Pydantic puts the tags of unions into error locations, which are no part of the YAML path; walking the data along a
location tells them apart, because a tag holds a colon and no key of the grammar does. Keys that start with `x-` are the
user's own and are dropped before validation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from kvlayout.errors import Problem, SpecError, problem, shown

__all__ = ["Located", "Path", "as_data", "validated"]

Path = tuple[str | int, ...]
T = TypeVar("T", bound=BaseModel)

MAX_PROBLEMS = 20


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
    for step in base:
        data = data[step]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError([_problem(each, data, located, base) for each in error.errors()[:MAX_PROBLEMS]]) from None


def _problem(error: Mapping[str, Any], data: Any, located: Located, base: Path) -> Problem:
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
        return make(located, tuple(path), ctx)
    where = located.where(tuple(path), key)
    subject = ".".join(str(step) for step in path)
    if kind == "missing":
        named = f"'{subject}'" if path else "the file"
        return problem("KVL010", where, f"{named} has no key '{missing}'", expected=f"a key '{missing}'")
    if key:
        return problem("KVL012", where, f"'{shown(path[-1])}' cannot be a name here", expected=_NAMES)
    return problem(
        "KVL012", where, f"the value of '{subject}'", expected=_expected(kind, ctx, error["msg"]), got=_got(data)
    )


_NAMES = "a letter or '_', then letters, digits and '_', at most 64 in all"
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
    "string_too_long": ("at most", "max_length", " characters"),
    "string_too_short": ("at least", "min_length", " characters"),
    "too_long": ("at most", "max_length", " entries"),
    "too_short": ("at least", "min_length", " entries"),
}


def _expected(kind: str, ctx: Mapping[str, Any], message: str) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _BOUNDS:
        words, bound, unit = _BOUNDS[kind]
        return f"{words} {ctx[bound]}{unit}"
    if kind == "literal_error":
        return str(ctx["expected"]).replace("'", "")
    if kind == "string_pattern_mismatch":
        return "a name: letters, digits and '_', and '.' and '-' in the name of a format"
    return message[:1].lower() + message[1:]


def _got(value: object) -> str:
    if isinstance(value, tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


def _unknown_key(located: Located, path: Path, ctx: Mapping[str, Any]) -> Problem:
    where = located.where((*path, ctx["key"]), key=True)
    return problem("KVL011", where, f"unknown key '{shown(ctx['key'])}'", expected=f"one of {ctx['legal']}")


def _expression(located: Located, path: Path, ctx: Mapping[str, Any]) -> Problem:
    message = ctx.get("message", "an expression is an integer or a text")
    return problem("KVL101", _shifted(located.where(path), ctx.get("column", 0)), message)


def _node(located: Located, path: Path, ctx: Mapping[str, Any]) -> Problem:
    return problem("KVL013", located.where(path), "this is no kind of node", expected=ctx["legal"])


def _group(located: Located, path: Path, ctx: Mapping[str, Any]) -> Problem:
    return problem(
        "KVL141", located.where(path), ctx.get("message", "a group has either a format or a page of its own")
    )


_KINDS: dict[str, Callable[[Located, Path, Mapping[str, Any]], Problem]] = {
    "kvl_unknown_key": _unknown_key,
    "kvl_expression": _expression,
    "kvl_node": _node,
    "kvl_group": _group,
}


def _shifted(where: str, columns: int) -> str:
    head, _, column = where.rpartition(":")
    return f"{head}:{int(column) + columns}"
