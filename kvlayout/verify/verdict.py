"""Verdicts: proved, refuted with a witness, or unproved with a reason. Only proved plans move bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvlayout.errors import Problem

__all__ = ["Finding", "Status", "Verdict", "Witness", "verdict_of"]

Status = Literal["proved", "refuted", "unproved"]


@dataclass(frozen=True, slots=True)
class Witness:
    """One byte that a refuted plan gets wrong: anyone can look at it with a byte replay.

    `kind`: `missing` (never written), `twice`, `wrong` (written with another byte than the logical one), `outside` (a
    byte that is no payload of the named field is written), `source` (what is read is no byte of the field, or no such
    page). `rank`: destination rank inside its pipeline stage; `block`, `offset`: where in its pages.
    """

    kind: Literal["missing", "twice", "wrong", "outside", "source"]
    group: str
    rank: int
    block: int
    offset: int

    def __str__(self) -> str:
        return f"group '{self.group}', rank {self.rank}, block {self.block}, byte {self.offset} ({self.offset:#x})"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: `refuted` with a witness where bytes are wrong, or `unproved`."""

    status: Literal["refuted", "unproved"]
    problem: Problem
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checker's answer. `pieces` and `fields` count what was proved."""

    status: Status
    digest: str
    findings: tuple[Finding, ...] = ()
    pieces: int = 0
    fields: int = 0

    @property
    def proved(self) -> bool:
        """Whether the plan may move bytes."""
        return self.status == "proved"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The findings as problems, in the order found."""
        return tuple(finding.problem for finding in self.findings)

    def __str__(self) -> str:
        if self.proved:
            return f"proved: {self.pieces} pieces put every byte of {self.fields} fields where it belongs"
        return "\n".join([self.status, *(f"  {finding.problem}" for finding in self.findings)])


def verdict_of(digest: str, findings: list[Finding], pieces: int, fields: int) -> Verdict:
    """Refuted as soon as one finding is; else unproved as soon as there is one; else proved."""
    status: Status = "proved"
    if findings:
        status = "refuted" if any(finding.status == "refuted" for finding in findings) else "unproved"
    return Verdict(status, digest, tuple(findings), pieces, fields)
