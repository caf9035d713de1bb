"""What a rule is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`title` names what is wrong; `help` says what to change; `why` tells what would happen otherwise."""

    code: str
    title: str
    help: str
    why: str
