from __future__ import annotations

from functools import partial

import pytest
from comparisons import Tally, counting


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """`with tally(line) as compare:` counts comparisons, and fails with those that did not agree."""
    return partial(counting, request.node.user_properties)
