"""Expressions, first half: from text to a program.

The text becomes a postfix program: a flat tuple of instructions for a stack. Operator precedence is resolved with two
explicit stacks instead of recursion, so that no nesting can run out of Python's stack, and programs are cached by text,
because the same few formats are expanded for hundreds of engines. Which instructions there are, and why, is said where
they are defined; `kvlayout.spec.expr` runs them and is the module to import from.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = [
    "MAX_NESTING",
    "MAX_RESULT",
    "MAX_TEXT",
    "Expr",
    "ExprError",
    "ExprValueError",
    "closest",
    "parse",
    "shorten",
]

MAX_TEXT = 1000
MAX_NESTING = 50
MAX_RESULT = 2**62


class ExprError(ValueError):
    """What is wrong with an expression; `column` is the 0-based offset in its text. Callers add the place."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


class ExprValueError(ExprError):
    """An expression that is well formed but has no value for these names' values; it may have one for others."""


# An instruction is (operation, argument, column). The operations, with what they take from the stack:
INT = 0  # push the argument
NAME = 1  # push the value of a name; an unknown name is an error
APPLY = 2  # two numbers; (symbol, function)
EQUAL = 3  # two values of one kind, or a name and a word; Equal
WORD = 4  # push the value of a name, or the word itself
SIZE = 5  # push the bytes of a dtype, given as a name or a word
NOT = 6  # one truth value
SKIP = 7  # one truth value; (`and` or `or`, the value that decides, how many instructions it then skips)
TRUTH = 8  # nothing, but the top must be a truth value; the symbol that asks

Instruction = tuple[int, Any, int]
Program = tuple[Instruction, ...]


class Equal(NamedTuple):
    """An equality; a side that is a lone name has its name and column here, another side None."""

    symbol: str
    left: str | None
    left_column: int
    right: str | None
    right_column: int


@dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression; equal when the texts are.

    `names`: every identifier that it reads, words included, functions not.
    """

    text: str
    names: frozenset[str] = field(compare=False)
    program: Program = field(compare=False, repr=False)


def _ceil_div(a: int, b: int) -> int:
    if b <= 0:
        raise ZeroDivisionError
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil_div(a, b) * b


_LEVELS: tuple[tuple[str, ...], ...] = (
    ("or",),
    ("and",),
    ("not",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "//", "%"),
    ("unary -",),
)
_LEVEL = {symbol: level for level, symbols in enumerate(_LEVELS) for symbol in symbols}
_COMPARISON = _LEVEL["=="]
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "min": min,
    "max": max,
    "ceil_div": _ceil_div,
    "round_up": _round_up,
}
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_TOKEN = re.compile(r"[ \t\r\n]*(?:([0-9]+)|([A-Za-z_][A-Za-z0-9_]*)|(==|!=|<=|>=|//|[-+*%<>(),])|(\Z))")
_HINTS = {"/": "; whole division is '//'", "=": "; equality is '=='", "!": "; negation is 'not'"}
_HINTS |= {"&": "; use 'and'", "|": "; use 'or'", ".": "; numbers are whole", '"': "; words stand without quotes"}
_HINTS["'"] = _HINTS['"']


def parse(text: str | int) -> Expr:
    """Parse an expression; texts are cached. Raises `ExprError`.

    >>> sorted(parse("ceil_div(head_size, 16) * size(dtype)").names)
    ['dtype', 'head_size']
    """
    if type(text) is str or (type(text) is int and -MAX_RESULT <= text <= MAX_RESULT):
        return _parse(str(text))
    raise ExprError("an expression is an integer within 2**62 or a text", 0)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Expr:
    if len(text) > MAX_TEXT:
        raise ExprError(f"an expression has at most {MAX_TEXT} characters, this one has {len(text)}", MAX_TEXT)
    parser = _Parser(text)
    program = parser.run()
    return Expr(text, frozenset(parser.names), program)


class _Pending(NamedTuple):
    """On the operator stack: an operator, or `(` with the function that it calls."""

    symbol: str
    level: int
    column: int
    function: str | None = None
    operands: int = 0  # how many complete operands stood below, for a call


class _Parser:
    """Operator precedence over two stacks: pending operators, and programs of the operands that are complete."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self.pending: list[_Pending] = []
        self.operands: list[Program] = []
        self.nesting = 0

    def run(self) -> Program:
        at, operand_next = 0, True
        while True:
            symbol, kind, column, at = self._token(at)
            if kind == "end":
                break
            if operand_next:
                if kind == "name" and symbol not in _LEVEL and self._token(at)[0] == "(":
                    at = self._token(at)[3]
                    self._open(column, symbol)
                elif symbol == "(":
                    self._open(column, None)
                elif symbol in ("not", "-"):
                    self._prefix("not" if symbol == "not" else "unary -", column)
                else:
                    self.operands.append((self._operand(symbol, kind, column),))
                    operand_next = False
            elif symbol == ")":
                self._close(column)
            elif symbol == ",":
                self._reduce(-1)
                if not self.pending or self.pending[-1].function is None:
                    raise ExprError("',' outside a function's arguments", column)
                operand_next = True
            else:
                self._infix(symbol, column)
                operand_next = True
        if operand_next:
            raise ExprError(
                "a value is missing at the end" if self.operands or self.pending else "the expression is empty", column
            )
        self._reduce(-1)
        if self.pending:
            raise ExprError(
                "'(' is not closed; inside { } quote an expression that holds a comma", self.pending[-1].column
            )
        program = self.operands.pop()
        if len(program) == 1 and program[0][0] == NAME:
            return ((WORD, *program[0][1:]),)
        return program

    def _token(self, at: int) -> tuple[str, str, int, int]:
        match = _TOKEN.match(self.text, at)
        if match is None:
            column = len(self.text) - len(self.text[at:].lstrip(" \t\r\n"))
            found = self.text[column]
            raise ExprError(f"{found!r} does not belong in an expression{_HINTS.get(found, '')}", column)
        kind = ("int", "name", "symbol", "end")[(match.lastindex or 0) - 1]
        return match[match.lastindex or 0], kind, match.start(match.lastindex or 0), match.end()

    def _operand(self, symbol: str, kind: str, column: int) -> Instruction:
        if kind == "int":
            after = self.text[column + len(symbol) : column + len(symbol) + 1]
            if after.isalpha() or after in ("_", ".") or (symbol[0] == "0" and len(symbol) > 1):
                raise ExprError("a number is decimal digits only, without leading zeros", column)
            if len(symbol) > 19 or int(symbol) > MAX_RESULT:
                raise ExprError(f"the number {shorten(symbol)} is above 2**62", column)
            return (INT, int(symbol), column)
        if kind == "name" and symbol not in _LEVEL:
            self.names.add(symbol)
            return (NAME, symbol, column)
        raise ExprError(f"{symbol!r} stands where a value is expected", column)

    def _open(self, column: int, function: str | None) -> None:
        if function is not None and function not in _FUNCTIONS and function != "size":
            hint = closest(function, (*_FUNCTIONS, "size"))
            raise ExprError(f"there is no function {shorten(function)!r}{hint}", column)
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise ExprError(f"parentheses nest at most {MAX_NESTING} deep", column)
        self.pending.append(_Pending("(", -1, column, function, len(self.operands)))

    def _prefix(self, symbol: str, column: int) -> None:
        level = _LEVEL[symbol]
        if self.pending and self.pending[-1].level > level:
            raise ExprError(f"'not' after {self.pending[-1].symbol!r} needs parentheses", column)
        self.pending.append(_Pending(symbol, level, column))

    def _infix(self, symbol: str, column: int) -> None:
        level = _LEVEL.get(symbol)
        if level is None or symbol in ("not", "unary -"):
            raise ExprError(f"{shorten(symbol)!r} stands where an operator is expected", column)
        self._reduce(level + (level == _COMPARISON))
        if level == _COMPARISON and self.pending and self.pending[-1].level == level:
            raise ExprError("comparisons do not chain; join two with 'and'", column)
        self.pending.append(_Pending(symbol, level, column))

    def _close(self, column: int) -> None:
        self._reduce(-1)
        if not self.pending:
            raise ExprError("')' without '('", column)
        opening = self.pending.pop()
        self.nesting -= 1
        if opening.function is not None:
            arguments = self.operands[opening.operands :]
            del self.operands[opening.operands :]
            self.operands.append(_call(opening.function, arguments, opening.column))

    def _reduce(self, level: int) -> None:
        """Apply pending operators that bind at least as tight as `level`, down to the nearest parenthesis."""
        while self.pending and self.pending[-1].level >= max(level, 0):
            symbol, _, column, *_ = self.pending.pop()
            right = self.operands.pop()
            if symbol == "unary -":
                self.operands.append(((INT, 0, column), *right, (APPLY, ("-", operator.sub), column)))
            elif symbol == "not":
                self.operands.append((*right, (NOT, None, column)))
            else:
                self.operands.append(_binary(symbol, self.operands.pop(), right, column))


def _binary(symbol: str, left: Program, right: Program, column: int) -> Program:
    if symbol in ("and", "or"):
        skip = (SKIP, (symbol, symbol == "or", len(right) + 1), column)
        return (*left, skip, *right, (TRUTH, symbol, column))
    if symbol in _OPERATORS:
        return (*left, *right, (APPLY, (symbol, _OPERATORS[symbol]), column))
    sides: list[Any] = []
    programs: list[Program] = []
    for side in (left, right):
        lone = len(side) == 1 and side[0][0] == NAME
        sides += [side[0][1] if lone else None, side[0][2]]
        programs.append(((WORD, *side[0][1:]),) if lone else side)
    return (*programs[0], *programs[1], (EQUAL, Equal(symbol, *sides), column))


def _call(function: str, arguments: list[Program], column: int) -> Program:
    if function == "size":
        if len(arguments) != 1 or len(arguments[0]) != 1 or arguments[0][0][0] != NAME:
            raise ExprError("size() takes one dtype", column)
        return ((SIZE, *arguments[0][0][1:]),)
    if len(arguments) < 2 or (len(arguments) > 2 and function not in ("min", "max")):
        raise ExprError(f"{function}() does not take {len(arguments)} arguments", column)
    apply = (APPLY, (f"{function}()", _FUNCTIONS[function]), column)
    return (*arguments[0], *(instruction for other in arguments[1:] for instruction in (*other, apply)))


def shorten(text: str) -> str:
    """A text of a stranger, as messages show it."""
    return text if len(text) <= 40 else text[:37] + "..."


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that it resembles most, if any."""
    if len(name) > 64:  # comparing long names takes quadratic time
        return ""
    match = difflib.get_close_matches(name, [other for other in known if len(other) <= 64], n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
