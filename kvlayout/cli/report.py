"""The report of `kvlayout verify`, as the contract shapes it."""

from __future__ import annotations

from typing import Any

import msgspec

from kvlayout.errors import Problem

__all__ = ["ArtifactResult", "Finding", "Report"]


class ArtifactResult(msgspec.Struct):
    """The verdict on one artifact file."""

    path: str
    verdict: str
    digest: str


class Finding(msgspec.Struct):
    """A problem; absent values are null."""

    code: str
    severity: str
    where: str
    message: str
    expected: str | None
    got: str | None
    help: str | None
    witness: str | None


class Report(msgspec.Struct):
    """Counts of what was verified. `pairs`: spec x ordered engine pair; `plans`: distinct digests; `identities`: those
    of `plans` that leave every byte where it is, in the same rank."""

    format_version: int = 1
    specs: int = 0
    pairs: int = 0
    plans: int = 0
    identities: int = 0
    proved: int = 0
    refuted: int = 0
    unproved: int = 0
    refused: int = 0
    unloadable: int = 0
    artifacts: list[ArtifactResult] = []
    problems: list[Finding] = []

    def add(self, problems: tuple[Problem, ...]) -> None:
        """List problems as findings."""
        self.problems += (Finding(**each.as_json()) for each in problems)

    def as_json(self) -> Any:
        """Plain values."""
        return msgspec.to_builtins(self)
