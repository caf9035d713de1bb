"""`kvlayout compare`: may two engines exchange bytes, and at what cost?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kvlayout.cli.output import FORMAT_OPTION, counted, print_json, print_problems

if TYPE_CHECKING:
    from kvlayout.api import Comparison

__all__ = ["compare_command"]


@click.command("compare")
@click.argument("spec", type=click.Path())
@click.option("--src", required=True, metavar="ENGINE", help="Source engine: key=value,... or a YAML file.")
@click.option("--dst", required=True, metavar="ENGINE", help="Destination engine.")
@click.option("--dst-spec", metavar="SPEC", help="The destination's model spec, where it differs.")
@FORMAT_OPTION
def compare_command(spec: str, src: str, dst: str, dst_spec: str | None, output: str) -> int:
    """Say whether the pages of SPEC on two engines are identical, convertible (and at what cost) or refused.

    Identical pages have one layout digest and need no plan. Exit code 1 when the pair is refused.
    """
    from kvlayout.api import compare, load
    from kvlayout.errors import KvLayoutError
    from kvlayout.spec.engine import Engine

    try:
        found = compare(load(spec), Engine.read(src), Engine.read(dst), None if dst_spec is None else load(dst_spec))
    except KvLayoutError as error:
        if output == "json":
            print_json({"verdict": "unreadable", "problems": [each.as_json() for each in error.problems]})
        else:
            print_problems(error.problems)
        return 2
    if output == "json":
        print_json(_plain(found))
    else:
        _print(found)
    return 1 if found.verdict == "refused" else 0


def _plain(found: Comparison) -> dict[str, Any]:
    cost = found.cost
    figures = {} if cost is None else {"bytes_per_run": cost.bytes_per_run, "read_per_byte": cost.read_per_byte}
    return {
        "format_version": 1,
        "verdict": found.verdict,
        "src_digest": found.src_digest,
        "dst_digest": found.dst_digest,
        "reasons": list(found.reasons),
        "cost": None if cost is None else {**asdict(cost), **figures},
        "problems": [each.as_json() for each in found.problems],
    }


def _print(found: Comparison) -> None:
    click.echo(found.verdict)
    for side, digest in (("source", found.src_digest), ("destination", found.dst_digest)):
        if digest is not None:
            click.echo(f"  {side:<11}  {digest}")
    for reason in found.reasons:
        click.echo(f"  {reason}")
    cost = found.cost
    if cost is not None and found.verdict == "convertible":
        click.echo(
            f"for one template of blocks, all ranks and layers: {counted(cost.nbytes, 'byte')} in "
            f"{counted(cost.descriptors, 'run')}, {cost.nbytes / max(1, cost.descriptors):.0f} bytes a run; "
            f"reading whole pages would read {cost.read_per_byte:.2f} bytes for each that is needed"
        )
    print_problems(found.problems)
