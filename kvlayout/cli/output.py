"""What all commands print alike: problems, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import click

from kvlayout.errors import Problem

__all__ = ["FORMAT_OPTION", "counted", "print_json", "print_problems"]

FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)


def counted(number: int, noun: str) -> str:
    """`1 spec`, `2 specs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(value: Any) -> None:
    """Indented JSON on standard output; a list of numbers (a run, layers) stays on one line."""
    click.echo("".join(_json(value, "\n")))


def _json(value: Any, newline: str) -> Iterator[str]:
    inner = newline + "  "
    if isinstance(value, dict) and value:
        for index, (key, item) in enumerate(value.items()):
            yield ("," if index else "{") + inner + json.dumps(key) + ": "
            yield from _json(item, inner)
        yield newline + "}"
    elif isinstance(value, list) and value and not all(isinstance(item, int | str) for item in value):
        for index, item in enumerate(value):
            yield ("," if index else "[") + inner
            yield from _json(item, inner)
        yield newline + "]"
    else:
        yield json.dumps(value)


def print_problems(problems: Iterable[Problem], *, to_stderr: bool = True) -> None:
    """Each problem with its help; a sentence that several share is printed once, below them."""
    helps: dict[str, str] = {}
    for problem in problems:
        click.echo(str(problem), err=to_stderr)
        if problem.help:
            helps.setdefault(problem.code, problem.help)
    for code, text in helps.items():
        click.echo(f"  {code}: {text}", err=to_stderr)
