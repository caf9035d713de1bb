"""Expressions of formats: a small bounded calculator over integers and words.

A size, an offset or a requirement of a format is an expression over its parameters, its `let` names and the words of an
engine. The language has integers, words and truth values, and nothing that loops or grows: a text has at most 1000
characters and every result stays within 2**62, so that no expression of a stranger's spec costs more than
microseconds. Truth values are no numbers, words are no numbers, and comparisons do not chain, because each of these
slips has a meaning in Python that nobody intends in a format.

A name that the environment does not know is a word (an enum value, a dtype). It is legal only where a word makes
sense: alone, beside a name that holds a word in `==` or `!=`, and in `size()`. Everywhere else it is a misspelled name.
This is checked in the operands too that `and` and `or` skip, so that a typo cannot hide behind a rare condition.

A parsed expression (`kvlayout.spec.expr_parse`) is a postfix program. Neither parsing nor evaluation recurses, so
neither can run out of stack; an evaluation costs about a third of a microsecond per operand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kvlayout.spec.expr_parse import (
    APPLY,
    EQUAL,
    INT,
    MAX_RESULT,
    NAME,
    NOT,
    SIZE,
    SKIP,
    WORD,
    Equal,
    Expr,
    ExprError,
    ExprValueError,
    Program,
    closest,
    parse,
    shorten,
)

__all__ = [
    "DTYPES",
    "Expr",
    "ExprError",
    "ExprValueError",
    "Value",
    "canonical_tag",
    "evaluate",
    "parse",
    "unknown_name",
]

Value = int | bool | str

DTYPES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Bytes of one element of each dtype."""

_TAG_ALIASES = {"e4m3": "float8_e4m3", "e5m2": "float8_e5m2"}


def canonical_tag(tag: str) -> str:
    """The name under which tags are compared: a dtype's short name and its full name are one tag.

    >>> canonical_tag("e4m3"), canonical_tag("e2m1x2")
    ('float8_e4m3', 'e2m1x2')
    """
    return _TAG_ALIASES.get(tag, tag)


_NO_ENUMS: Mapping[str, Collection[str]] = MappingProxyType({})


def evaluate(expr: Expr, env: Mapping[str, Value], *, enums: Mapping[str, Collection[str]] = _NO_ENUMS) -> Value:
    """The value of `expr`, where `env` gives the names that are known. Raises `ExprError`.

    `enums`: the words that a name may hold; a word compared with that name must be one of them.

    >>> evaluate(parse("scale_layout == linear or block % 4 == 0"), {"scale_layout": "sm100", "block": 16})
    True
    """
    program = expr.program
    stack: list[Any] = []
    at, end = 0, len(program)
    while at < end:
        operation, argument, column = program[at]
        at += 1
        if operation == INT:
            stack.append(argument)
        elif operation == NAME:
            if argument not in env:
                raise ExprError(unknown_name(argument, env), column)
            stack.append(env[argument])
        elif operation == APPLY:
            b = stack.pop()
            a = stack[-1]
            if type(a) is not int or type(b) is not int:
                raise ExprError(f"{argument[0]!r} needs two numbers, got {_kind(a)} and {_kind(b)}", column)
            try:
                stack[-1] = a = argument[1](a, b)
            except ZeroDivisionError:
                raise ExprValueError(f"{argument[0]!r} divides by {b}", column) from None
            if not -MAX_RESULT <= a <= MAX_RESULT:
                raise ExprValueError(f"the result of {argument[0]!r} is beyond 2**62", column)
        elif operation == EQUAL:
            b = stack.pop()
            a = stack[-1]
            symbol, left, _, right, _ = argument
            if (left is not None and left not in env) or (right is not None and right not in env):
                _check_word(argument, env, enums)
            elif type(a) is not type(b):
                raise ExprError(f"{symbol!r} compares {_kind(a)} with {_kind(b)}", column)
            stack[-1] = (a == b) is (symbol == "==")
        elif operation == WORD:
            stack.append(env.get(argument, argument))
        elif operation == SIZE:
            stack.append(_size(argument, env, column))
        elif operation == NOT:
            stack[-1] = not _truth(stack[-1], "not", column)
        elif operation == SKIP:
            symbol, decides, count = argument
            if _truth(stack[-1], symbol, column) is decides:
                _check_skipped(program[at : at + count], env, enums)
                at += count
            else:
                stack.pop()
        else:
            _truth(stack[-1], argument, column)
    result: Value = stack[0]
    if type(result) is int and not -MAX_RESULT <= result <= MAX_RESULT:
        raise ExprValueError("the value is beyond 2**62", 0)
    return result


def unknown_name(name: str, known: Iterable[str]) -> str:
    """The sentence about a name that is not known, with the closest known one.

    >>> unknown_name("head_sise", ["block", "head_size"])
    "unknown name 'head_sise'; did you mean 'head_size'?"
    """
    return f"unknown name {shorten(name)!r}{closest(name, known)}"


def _check_word(sides: Equal, env: Mapping[str, Value], enums: Mapping[str, Collection[str]]) -> None:
    """A side of an equality that is no known name must be a word that the other side's name may hold."""
    if sides.left is not None and sides.left not in env:
        word, column, name = sides.left, sides.left_column, sides.right
    elif sides.right is not None and sides.right not in env:
        word, column, name = sides.right, sides.right_column, sides.left
    else:
        return
    if name is None or name not in env or type(env[name]) is not str:
        raise ExprError(unknown_name(word, env), column)
    legal = enums.get(name)
    if legal is not None and word not in legal:
        shown = ", ".join(sorted(legal)[:12]) + (", ..." if len(legal) > 12 else "")
        raise ExprError(f"{shorten(word)!r} is not one of {shown}, the words of {shorten(name)!r}", column)


def _check_skipped(program: Program, env: Mapping[str, Value], enums: Mapping[str, Collection[str]]) -> None:
    """Names and words of an operand that is not evaluated; its values are not looked at, for it may be guarded."""
    for operation, argument, column in program:
        if operation == NAME and argument not in env:
            raise ExprError(unknown_name(argument, env), column)
        if operation == EQUAL:
            _check_word(argument, env, enums)
        elif operation == SIZE and argument not in env:
            _size(argument, env, column)


def _size(name: str, env: Mapping[str, Value], column: int) -> int:
    dtype = env.get(name, name)
    size = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if size is None:
        known = (*(key for key, value in env.items() if isinstance(value, str)), *DTYPES)
        hint = closest(name, known) if name not in env else ""
        raise ExprError(f"size() of {shorten(str(dtype))!r}, which is no dtype{hint}", column)
    return size


def _truth(value: Any, symbol: str, column: int) -> bool:
    if value is True or value is False:
        return bool(value)
    raise ExprError(f"{symbol!r} needs true or false, got {_kind(value)}", column)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the word {shorten(value)!r}" if isinstance(value, str) else str(value)
