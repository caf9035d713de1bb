"""`kvlayout compile`: artifacts for many specs and engine pairs, and an index of them."""

from __future__ import annotations

import json
import os
import re
from itertools import product
from pathlib import Path

import click

from kvlayout.cli.output import counted, print_problems

__all__ = ["compile_command"]


@click.command("compile")
@click.argument("specs", nargs=-1, required=True, type=click.Path())
@click.option("--src", "sources", required=True, multiple=True, metavar="ENGINE", help="Source engine; repeatable.")
@click.option("--dst", "destinations", required=True, multiple=True, metavar="ENGINE", help="Destination; repeatable.")
@click.option("--out", required=True, type=click.Path(file_okay=False), metavar="DIR", help="Where artifacts go.")
def compile_command(specs: tuple[str, ...], sources: tuple[str, ...], destinations: tuple[str, ...], out: str) -> int:
    """Compile and prove every pair of engines for SPECS; write the artifacts and index.json into DIR."""
    from kvlayout.api import load, slice_for_tp_transfer
    from kvlayout.errors import PlanRefused
    from kvlayout.plan.artifact import FORMAT_VERSION
    from kvlayout.spec.engine import Engine

    folder = Path(out)
    plans, refused = [], False
    loaded = [load(path) for path in dict.fromkeys(specs)]
    pairs = list(product(map(Engine.read, dict.fromkeys(sources)), map(Engine.read, dict.fromkeys(destinations))))
    for spec in loaded:  # before anything is written
        for engine in dict.fromkeys(engine for pair in pairs for engine in pair):
            spec.check_engine(engine)
    folder.mkdir(parents=True, exist_ok=True)
    for spec in loaded:
        for src, dst in pairs:
            try:
                plan = slice_for_tp_transfer(spec, src, dst)
            except PlanRefused as error:
                print_problems(error.problems)
                refused = True
                continue
            name = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', spec.name)}-{plan.digest.removeprefix('sha256:')[:16]}.json"
            plan.save(folder / name)
            plans.append({"spec": spec.name, "src": str(src), "dst": str(dst), "digest": plan.digest, "file": name})
    index = folder / "index.json"
    partial = folder / f".index.{os.getpid()}.partial"
    partial.write_text(json.dumps({"format_version": FORMAT_VERSION, "plans": plans}, indent=2) + "\n")
    os.replace(partial, index)
    click.echo(f"{counted(len(plans), 'plan')} proved, written to {folder}")
    return 1 if refused else 0
