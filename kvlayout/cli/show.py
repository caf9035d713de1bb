"""`kvlayout show`: a rank's page as text, of each group of a model or each example of a format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvlayout.cli.output import print_problems

if TYPE_CHECKING:
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.model import Spec

__all__ = ["pages_of", "show_command"]


@click.command("show")
@click.argument("spec", type=click.Path())
@click.option("--engine", default="tp=1", show_default=True, metavar="ENGINE", help="The engine whose pages to show.")
@click.option("--group", metavar="NAME", help="Show only this group.")
def show_command(spec: str, engine: str, group: str | None) -> int:
    """Show a rank's pages: fields, offsets, who holds what, padding.

    SPEC is a model spec, of which each group is shown, or a format, of which each example is.
    """
    from kvlayout.cli.sweep import kind_of
    from kvlayout.errors import PlanRefused
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.formats import load_format
    from kvlayout.spec.model import load_spec, spec_of_format

    side, path = Engine.read(engine), Path(spec)
    if kind_of(path) == "format":
        fmt = load_format(path)
        examples = enumerate(fmt.file.examples)
        models = [spec_of_format(fmt, example, fmt.where("examples", index)) for index, example in examples]
    else:
        models = [load_spec(path)]
    code = 0
    for model in models:
        try:
            for line in pages_of(model, side, group, example=model.path is None):
                click.echo(line)
        except PlanRefused as error:
            print_problems(error.problems)
            code = 1
    return code


def pages_of(model: Spec, side: Engine, group: str | None = None, *, example: bool = False) -> Iterator[str]:
    """The pages of a rank, of all groups or of one, line by line. `example`: the model is an example of a format.

    Raises PlanRefused when no such engine exists.
    """
    from kvlayout.api import plan_pair
    from kvlayout.spec.model import parallel_of
    from kvlayout.view import page_text

    model.check_engine(side)
    plan_pair(model, side, side)  # refused when no engine can hold these pages
    shown = model.groups if group is None else (model.group(group),)
    parallel = parallel_of(model, side)
    pages = [(each, model.page(each, side)) for each in shown]
    params = ""
    if example and model.groups[0].params:
        params = " with " + ", ".join(f"{name}={value}" for name, value in model.groups[0].params.items())
    yield f"{model.name}{params} on {side}"
    for each, page in pages:
        layers = "1 layer" if len(each.layers) == 1 else f"{len(each.layers)} layers"
        yield from f"\n{page_text(each.name, page, parallel)}\n  in {layers}".split("\n")
