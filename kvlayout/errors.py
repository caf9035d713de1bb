"""Problems and the exceptions that carry them.

Everything that can be wrong with an input (a spec, an engine, a plan, a block table, a file) is a `Problem`: a stable
code, a place, what was expected, what was found, and one sentence that says what to change. Exceptions only carry
problems; the command line prints the same objects. The sentence comes from the rule that owns the code
(`kvlayout.rules`), so that it is written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvlayout import rules

__all__ = [
    "MAX_PROBLEMS",
    "ArtifactError",
    "KvLayoutError",
    "PlanRefused",
    "Problem",
    "SpecError",
    "SubmitError",
    "one_of",
    "problem",
    "shown",
]

MAX_PROBLEMS = 20
"""Problems of one input, after which looking on helps nobody."""

MAX_LISTED = 24
"""Names that a message lists before it stops: nobody reads more, and a file may hold thousands."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding.

    `code`: a rule's code, `KVL...` when shipped, `X...` when a user's format declares it.
    `severity`: `error`, `warning` or `note`.
    `where`: `path:line:column` in a file, or a path in words (`plan tp8->tp4: rank 1, field 'k'`).
    `witness`: the smallest piece of evidence that anyone can check by hand, if there is one.
    """

    code: str
    severity: str
    where: str
    message: str
    expected: str | None = None
    got: str | None = None
    help: str | None = None
    witness: str | None = None

    def __str__(self) -> str:
        text = f"{self.where}: {self.code}: {self.message}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.got is not None:
            text += f"; got {self.got}"
        if self.witness is not None:
            text += f"; witness: {self.witness}"
        return text

    def as_json(self) -> dict[str, Any]:
        """The shape of the contract: every key present, absent values null."""
        return {name: getattr(self, name) for name in self.__slots__}


def problem(
    code: str,
    where: str,
    message: str,
    *,
    expected: str | None = None,
    got: str | None = None,
    help: str | None = None,
    witness: str | None = None,
    severity: str = "error",
) -> Problem:
    """A `Problem` whose `help` is that of the rule that owns `code`, unless one is given."""
    rule = rules.RULES.get(code)
    if help is None and rule is not None:
        help = rule.help
    return Problem(code, severity, where, message, expected, got, help, witness)


def one_of(names: Iterable[object]) -> str:
    """The legal names as a message lists them, and not without end.

    >>> one_of(["DS", "SD"])
    'one of DS, SD'
    """
    listed = [str(name) for name in names]
    more = f", ... ({len(listed)} in all)" if len(listed) > MAX_LISTED else ""
    return f"one of {', '.join(listed[:MAX_LISTED])}{more}"


def shown(value: object) -> str:
    """A value of a stranger as messages show it: on one line, and not without end.

    >>> shown("a" * 100 + "b")[-8:], shown("a\\nb"), shown(10**5000)
    ('aaaaa...', 'a\\\\nb', 'a number of more than 4300 digits')
    """
    try:
        text = str(value)
    except ValueError:
        return "a number of more than 4300 digits"
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class KvLayoutError(Exception):
    """Base of every error that a user can meet; `problems` says what is wrong and what to change."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class SpecError(KvLayoutError):
    """A spec, format or engine that cannot be read or does not mean anything."""


class PlanRefused(KvLayoutError):
    """Two sides between which no plan exists.

    `unloadable` is true when one side cannot exist at all (no engine can load that way), false when both exist but
    their bytes cannot be converted into each other by copying.
    """

    def __init__(self, problems: Problem | Iterable[Problem], *, unloadable: bool = False) -> None:
        super().__init__(problems)
        self.unloadable = unloadable


class ArtifactError(KvLayoutError):
    """A plan artifact that is unreadable, forged, of another format version, or not proved."""


class SubmitError(KvLayoutError):
    """Buffers or block tables that a proved plan may not be applied to; nothing has moved."""
