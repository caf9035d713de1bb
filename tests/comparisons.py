"""How much was compared with engines' own answers: counted by tests, and printed at the end of a run.

A count lives in the properties of the test that compared, which travel with its report: so the lines at the end are
the same with pytest-xdist (`-n auto`), and speak of the tests that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["LINES", "Compare", "Properties", "Tally", "counting", "totals"]

LINES = ("NIXL geometries compared", "source ranks compared", "MoRIIO projections compared")
PROPERTY = "compared with engines"

Compare = Callable[[object, object, object], None]
"""`compare(ours, theirs, where)`."""

Tally = Callable[[str], AbstractContextManager[Compare]]
"""`with tally(line) as compare:`."""

Properties = list[tuple[str, Any]]


@contextmanager
def counting(properties: Properties, line: str) -> Iterator[Compare]:
    """Counts comparisons under one of `LINES`, and fails at the end of the block with those that did not agree."""
    assert line in LINES
    wrong: list[str] = []
    count = [line, 0, 0]
    properties.append((PROPERTY, count))

    def compare(ours: object, theirs: object, where: object) -> None:
        count[1] += 1
        if ours != theirs:
            count[2] += 1
            wrong.append(f"{where}: {ours}, expected {theirs}")

    yield compare
    assert count[1], f"nothing was compared under '{line}'"
    assert not wrong, "\n".join([f"{len(wrong)} of {count[1]} do not agree", *wrong[:10]])


def totals(properties: Iterable[tuple[str, Any]]) -> dict[str, tuple[int, int]]:
    """Comparisons and mismatches of each line."""
    found = dict.fromkeys(LINES, (0, 0))
    for name, value in properties:
        if name == PROPERTY:
            line, compared, mismatches = value
            found[line] = found[line][0] + compared, found[line][1] + mismatches
    return found
