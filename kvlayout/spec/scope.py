"""The names that a format's expressions read: parameters, `let` names and engine words, with their values.

Values are computed once for each set of parameters and engine words: given parameters, defaults in the order in which
they are declared, then `let` in file order. What reads an engine word, directly or through another name, is remembered:
a requirement that fails because of it speaks of a side that cannot exist, any other one of a wrong spec.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvlayout.errors import MAX_PROBLEMS, KvLayoutError, PlanRefused, Problem, SpecError, one_of, problem, shown
from kvlayout.spec.engine import FAMILIES
from kvlayout.spec.expr import DTYPES, Expr, ExprError, ExprValueError, Value, evaluate, unknown_name
from kvlayout.spec.formats import Format
from kvlayout.spec.grammar import EXPRESSION_WORDS, ParamDecl

__all__ = ["Scope"]

MAX_VALUE = 2**62

_ENGINE_ENUMS: dict[str, tuple[str, ...]] = {"order": ("HN", "NH"), "conv": ("DS", "SD"), "family": tuple(FAMILIES)}


class Scope:
    """Evaluates the expressions of one format for one set of parameters and engine words."""

    def __init__(
        self,
        fmt: Format,
        params: Mapping[str, int | str],
        words: Mapping[str, int | str],
        where: str,
        places: Mapping[str, str],
    ) -> None:
        """`where`: the place that gave the parameters; `places`: those of single ones, where known.

        Raises SpecError, or PlanRefused (unloadable).
        """
        self.format = fmt
        self.values: dict[str, Value] = dict(words)
        self.enums: dict[str, tuple[str, ...]] = dict(_ENGINE_ENUMS)
        self._reads_engine: set[str] = set(EXPRESSION_WORDS)
        self._params(params, where, places)
        for name, expr in fmt.file.let.items():
            self._bind(name, expr, ("let", name))
        self._require()

    def number(self, expr: Expr, *path: str | int, low: int = 1) -> int:
        """The integer value of an expression at `path`, at least `low`."""
        value = self.value(expr, *path)
        if isinstance(value, bool) or not isinstance(value, int):
            if isinstance(value, str) and value == expr.text and value not in self.values:
                raise SpecError(problem("KVL104", self._at(expr, path), unknown_name(value, self.values)))
            raise SpecError(
                problem("KVL102", self._at(expr, path), "a number is needed here", got=_result(expr, value))
            )
        if value < low:
            found = problem(
                "KVL103", self._at(expr, path), "the number is too small", expected=f"at least {low}",
                got=_result(expr, value),
            )  # fmt: skip
            raise self.error(expr, found)
        return value

    def word(self, expr: Expr, *path: str | int) -> str:
        """The word that an expression at `path` is or names."""
        value = self.value(expr, *path)
        if not isinstance(value, str):
            raise SpecError(problem("KVL102", self._at(expr, path), "a word is needed here", got=_result(expr, value)))
        return value

    def value(self, expr: Expr, *path: str | int) -> Value:
        """The value of an expression at `path`."""
        try:
            return evaluate(expr, self.values, enums=self.enums)
        except ExprError as error:
            found = problem("KVL104", self._at(expr, path, error.column), f"in '{shown(expr.text)}': {error.message}")
            raise (self.error(expr, found) if isinstance(error, ExprValueError) else SpecError(found)) from None

    def error(self, expr: Expr, found: Problem) -> KvLayoutError:
        """A failure of `expr`: unloadable when it reads the engine, else a fault of the spec."""
        if expr.names & self._reads_engine:
            return PlanRefused(found, unloadable=True)
        return SpecError(found)

    def _at(self, expr: Expr, path: tuple[str | int, ...], column: int = 0) -> str:
        head, _, first = self.format.where(*path).rpartition(":")
        return f"{head}:{int(first) + column}"

    def _bind(self, name: str, expr: Expr, path: tuple[str | int, ...]) -> None:
        self.values[name] = self.value(expr, *path)
        if expr.names & self._reads_engine:
            self._reads_engine.add(name)

    def _params(self, given: Mapping[str, int | str], where: str, places: Mapping[str, str]) -> None:
        declared = self.format.file.params
        problems: list[Problem] = []
        for name in given:
            if name not in declared and len(problems) < MAX_PROBLEMS:
                problems.append(
                    problem(
                        "KVL115",
                        places.get(name, where),
                        f"format '{self.format.name}' has no parameter '{name}'",
                        expected=one_of(declared) if declared else "no parameters",
                    )
                )
        for name, decl in declared.items():
            if decl.enum is not None:
                self.enums[name] = tuple(str(value) for value in decl.enum)
            elif decl.type == "dtype":
                self.enums[name] = tuple(DTYPES)
            if name in given:
                self.values[name] = given[name]
        if problems:
            raise SpecError(problems)
        wrong: set[str] = set()  # what reads a wrong parameter is not looked at
        for name, decl in declared.items():
            if len(problems) == MAX_PROBLEMS:
                break
            if name not in given:
                if decl.default is not None and decl.default.names & wrong:
                    wrong.add(name)
                    continue
                if decl.default is None:
                    problems.append(
                        problem(
                            "KVL116",
                            where,
                            f"format '{self.format.name}' needs a value for '{name}'",
                            expected=_wanted(decl),
                        )
                    )
                    wrong.add(name)
                    continue
                self._bind(name, decl.default, ("params", name, "default"))
            value = self.values[name]
            if not _fits(decl, value):
                wrong.add(name)
                problems.append(
                    problem(
                        "KVL117",
                        places.get(name, where),
                        f"the value of parameter '{name}' of format '{self.format.name}'",
                        expected=_wanted(decl),
                        got=shown(value),
                    )
                )
        if problems:
            raise SpecError(problems)

    def _require(self) -> None:
        for index, requirement in enumerate(self.format.file.require):
            value = self.value(requirement.that, "require", index, "that")
            if not isinstance(value, bool):
                raise SpecError(
                    problem(
                        "KVL102",
                        self._at(requirement.that, ("require", index, "that")),
                        "a requirement is true or false",
                        got=_result(requirement.that, value),
                    )
                )
            if not value:
                read = sorted(name for name in requirement.that.names if name in self.values)
                found = problem(
                    requirement.code,
                    self._at(requirement.that, ("require", index, "that")),
                    f"format '{self.format.name}': {requirement.say}",
                    expected=requirement.that.text,
                    got=", ".join(f"{name}={shown(self.values[name])}" for name in read) or None,
                    help="Change a parameter or the engine so that the requirement holds.",
                )
                raise self.error(requirement.that, found)


def _result(expr: Expr, value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text == expr.text else f"{shown(expr.text)} = {shown(text)}"


def _fits(decl: ParamDecl, value: Value) -> bool:
    if decl.enum is not None:
        return value in decl.enum
    if decl.type == "dtype":
        return value in DTYPES
    if decl.type == "str":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_VALUE:
        return False
    return (decl.min is None or value >= decl.min) and (decl.max is None or value <= decl.max)


def _wanted(decl: ParamDecl) -> str:
    if decl.enum is not None:
        return one_of(decl.enum)
    if decl.type == "dtype":
        return one_of(DTYPES)
    if decl.type == "str":
        return "a word"
    if decl.min is not None and decl.max is not None:
        return f"an integer from {decl.min} to {decl.max}"
    if decl.min is None and decl.max is None:
        return "an integer within 2**62"
    return f"an integer of at least {decl.min}" if decl.max is None else f"an integer of at most {decl.max}"
