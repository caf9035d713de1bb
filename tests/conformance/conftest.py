"""How much was compared with engines' own answers, counted and printed at the end of a run.

A count lives in the properties of the test that compared, which travel with its report: so the lines at the end are
the same with pytest-xdist (`-n auto`), and speak of the tests that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LINES = ("NIXL geometries compared", "source ranks compared", "MoRIIO projections compared")
PROPERTY = "compared with engines"

Compare = Callable[[object, object, object], None]
"""`compare(ours, theirs, where)`."""

Tally = Callable[[str], Any]
"""`with tally(line) as compare:`."""


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Counts comparisons under one of `LINES`, and fails at the end of the block with those that did not agree."""

    @contextmanager
    def counted(line: str) -> Iterator[Compare]:
        assert line in LINES
        wrong: list[str] = []
        count = [line, 0, 0]
        request.node.user_properties.append((PROPERTY, count))

        def compare(ours: object, theirs: object, where: object) -> None:
            count[1] += 1
            if ours != theirs:
                count[2] += 1
                wrong.append(f"{where}: {ours}, expected {theirs}")

        yield compare
        assert count[1], f"nothing was compared under '{line}'"
        assert not wrong, "\n".join([f"{len(wrong)} of {count[1]} do not agree", *wrong[:10]])

    return counted


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a count, when any test of this run has counted."""
    totals = {line: [0, 0] for line in LINES}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, value in report.user_properties:
                if name == PROPERTY:
                    line, compared, mismatches = value
                    totals[line][0] += compared
                    totals[line][1] += mismatches
    if any(compared for compared, _ in totals.values()):
        terminalreporter.section("compared with engines' own answers")
        for line, (compared, mismatches) in totals.items():
            terminalreporter.write_line(f"{line}: {compared}, mismatches {mismatches}")
