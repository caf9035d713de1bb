"""The count of comparisons: what disagrees fails the test and is counted, and so does a block that compares nothing."""

from __future__ import annotations

import pytest
from comparisons import LINES, Properties, counting, totals


def count(properties: Properties, *pairs: tuple[int, int]) -> None:
    with counting(properties, LINES[0]) as compare:
        for ours, theirs in pairs:
            compare(ours, theirs, "there")


def test_a_mismatch_fails_and_is_counted() -> None:
    properties: Properties = []
    count(properties, (1, 1))
    with pytest.raises(AssertionError, match=r"1 of 2 do not agree\s+there: 1, expected 2"):
        count(properties, (1, 2), (1, 1))
    assert totals(properties) == {LINES[0]: (3, 1), LINES[1]: (0, 0), LINES[2]: (0, 0)}


def test_nothing_compared_fails() -> None:
    with pytest.raises(AssertionError, match="nothing was compared"):
        count([])
