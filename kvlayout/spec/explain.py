"""The page of a rule: what a code means, why it is a rule, and what to change.

Codes of the package come from the registry. Codes of requirements come from the formats that declare them, so that a
new format needs no Python; one code may stand in several formats that extend each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvlayout.rules import RULES
from kvlayout.spec.formats import Format, load_format, shipped_formats

__all__ = ["explain"]


def explain(code: str, extra_formats: Iterable[Format] = ()) -> str | None:
    """The page of rule `code`, or None when there is no such rule. `extra_formats`: a user's own, beside the shipped.

    >>> print(explain("KVL005"))
    KVL005: a key is given twice
    <BLANKLINE>
    Why: YAML readers keep one value and drop the other silently, and not all keep the same one.
    Change: Remove one of the two, or rename it.
    """
    rule = RULES.get(code)
    if rule is not None:
        return f"{code}: {rule.title}\n\nWhy: {rule.why}\nChange: {rule.help}"
    found: dict[str, list[str]] = {}
    for fmt in (*(load_format(path) for path in shipped_formats().values()), *extra_formats):
        for text, where in _requirements(fmt, code):
            found.setdefault(text, []).append(f"  format '{fmt.name}' at {where}")
    if not found:
        return None
    pages = ["\n".join([f"{code}: {text}", "Required by:", *dict.fromkeys(places)]) for text, places in found.items()]
    return "\n\n".join(pages)


def _requirements(fmt: Format, code: str) -> Iterator[tuple[str, str]]:
    """Sentence and condition of each requirement of that code, and its place."""
    reads = set(fmt.file.params)
    for index, each in enumerate(fmt.file.require):
        if each.code == code:
            names = ", ".join(sorted(each.that.names & reads)) or "the engine"
            text = f"{each.say}\n\nCondition: {each.that.text}\nChange: Set {names} so that the condition holds."
            yield text, fmt.where("require", index)
