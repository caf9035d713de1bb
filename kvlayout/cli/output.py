"""What all commands print alike: problems, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from kvlayout.errors import Problem

__all__ = ["FORMAT_OPTION", "print_json", "print_problems"]

FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    click.echo(json.dumps(value, indent=2))


def print_problems(problems: Iterable[Problem], *, to_stderr: bool = True) -> None:
    """Each problem with its help; a sentence that several share is printed once, below them."""
    helps: dict[str, str] = {}
    for problem in problems:
        click.echo(str(problem), err=to_stderr)
        if problem.help:
            helps.setdefault(problem.code, problem.help)
    for code, text in helps.items():
        click.echo(f"  {code}: {text}", err=to_stderr)
