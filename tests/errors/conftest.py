"""The option that writes the expected messages anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-errors", action="store_true", help="write the messages at the top of the error corpus")
