"""`kvlayout init`: a model spec from a Hugging Face config, verified and shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvlayout.cli.output import print_problems

if TYPE_CHECKING:
    from kvlayout.spec.model import Spec

__all__ = ["init_command"]


@click.command("init")
@click.option("--from", "config", required=True, type=click.Path(), help="A config.json, or the folder that holds one.")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Where to write; without it, print.")
@click.option("--name", metavar="NAME", help="The model's name, as owner/model.")
@click.option("--force", is_flag=True, help="Write over an existing FILE.")
def init_command(config: str, out: str | None, name: str | None, force: bool) -> int:
    """Write a model spec from a Hugging Face config, prove it between the default engines and show its pages.

    Printed, the YAML comes first and all the rest as comments below it, so that the whole may go into a file.
    """
    from kvlayout.spec.importers import import_hf
    from kvlayout.spec.model import load_spec

    imported = import_hf(config, name=name)
    if out is None:
        click.echo(imported.text)
        return _verified(imported.spec, Path(config), lambda line: click.echo(f"# {line}".rstrip()))
    _write(Path(out), imported.text, Path(config), force)
    click.echo(f"{out} is written")
    return _verified(load_spec(out), Path(out), click.echo)


def _write(path: Path, text: str, config: Path, force: bool) -> None:
    if path.exists() and path.samefile(config / "config.json" if config.is_dir() else config):
        raise click.UsageError(f"{path} is the config itself")
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} exists; --force writes over it") from None


def _verified(spec: Spec, path: Path, echo: Callable[[str], object]) -> int:
    """Prove the spec between the default engines and show its pages; the exit code."""
    from kvlayout.cli.show import pages_of
    from kvlayout.cli.sweep import Sweep
    from kvlayout.cli.verify import summary_of
    from kvlayout.errors import PlanRefused, Problem
    from kvlayout.spec.engine import Engine

    sweep = Sweep()
    sweep.report.specs = 1
    sweep.run(sweep.job(path, spec), lambda: None)
    found = sweep.report.problems
    print_problems(Problem(**{name: getattr(each, name) for name in each.__struct_fields__}) for each in found)
    echo(summary_of(sweep.report))
    echo("")
    if not sweep.unreadable:
        try:
            for line in pages_of(spec, Engine()):
                echo(line)
        except PlanRefused as error:
            print_problems(error.problems)
            return 1
    return 2 if sweep.unreadable else 1 if sweep.findings else 0
