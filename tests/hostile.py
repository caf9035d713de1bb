"""What every test of hostile input asks: understood, or refused with problems that a person can use, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvlayout import ArtifactError, KvLayoutError, PlanRefused, SpecError
from kvlayout.rules import RULES
from kvlayout.spec.formats import load_format, shipped_formats

SECONDS = 2.0
"""Processor time of one input; a machine with nothing else to do needs less than half of it."""

REQUIRED = {each.code for path in shipped_formats().values() for each in load_format(path).file.require}


def refusal(attempt: Callable[[], object]) -> KvLayoutError | None:
    """The error of an attempt, checked; None when it succeeds. Anything but a `KvLayoutError` fails the test."""
    started = time.process_time()
    try:
        attempt()
    except KvLayoutError as error:
        refused = error
    else:
        return None
    finally:
        assert time.process_time() - started < SECONDS
    assert refused.problems
    assert isinstance(refused, SpecError | PlanRefused | ArtifactError)
    for each in refused.problems:
        assert each.code in RULES or each.code in REQUIRED or each.code.startswith("X"), each
        assert each.where and each.message and each.severity == "error"
        assert len(str(each)) < 3000
        assert str(each).isprintable(), each
    return refused
