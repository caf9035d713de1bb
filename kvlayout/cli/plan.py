"""`kvlayout plan`: compile and prove one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvlayout.cli.output import FORMAT_OPTION, print_json, print_problems

if TYPE_CHECKING:
    from kvlayout.plan.transfer import TransferPlan

__all__ = ["plan_command"]

MAX_RUNS = 2_000_000
"""Runs that `--runs` prints; more would take gigabytes of memory and text."""


@click.command("plan")
@click.argument("spec", type=click.Path())
@click.option("--src", required=True, metavar="ENGINE", help="Source engine: key=value,... or a YAML file.")
@click.option("--dst", required=True, metavar="ENGINE", help="Destination engine.")
@click.option("--dst-spec", metavar="SPEC", help="The destination's model spec, where it differs.")
@click.option("--group", metavar="NAME", help="Plan only this group.")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write the artifact here.")
@click.option("--runs", is_flag=True, help="Expand the plan into runs.")
@FORMAT_OPTION
def plan_command(
    spec: str, src: str, dst: str, dst_spec: str | None, group: str | None, out: str | None, runs: bool, output: str
) -> int:
    """Compile and prove one plan from SPEC and print it."""
    from kvlayout.api import load, slice_for_tp_transfer
    from kvlayout.errors import KvLayoutError, PlanRefused
    from kvlayout.spec.engine import Engine

    try:
        model = load(spec)
        other = None if dst_spec is None else load(dst_spec)
        plan = slice_for_tp_transfer(model, Engine.read(src), Engine.read(dst), other, group=group)
    except KvLayoutError as error:
        refused = isinstance(error, PlanRefused)
        if output == "json":
            verdict = "refused" if refused else "unreadable"
            print_json({"verdict": verdict, "problems": [each.as_json() for each in error.problems]})
        else:
            print_problems(error.problems)
        return 1 if refused else 2
    if runs and plan.run_count > MAX_RUNS:
        raise click.UsageError(
            f"--runs would print {plan.run_count} runs, more than {MAX_RUNS}; leave --runs away, or name a --group"
        )
    if out is not None:
        plan.save(out)
    if output == "json":
        print_json(plan.as_json(runs=runs))
    else:
        click.echo(str(plan))
        if runs:
            _print_runs(plan)
    return 0


def _print_runs(plan: TransferPlan) -> None:
    for group in plan.groups:
        for entry in plan.entries(group.name):
            layers = f", layers {entry.layers[0]}..{entry.layers[-1]}" if plan.staged else ""
            click.echo(f"\ngroup {group.name}, rank {entry.rank}{layers}")
            click.echo("  src_rank  src_block  src_offset  dst_block  dst_offset  nbytes")
            for row in entry.runs().tolist():
                click.echo("  {:>8}  {:>9}  {:>10}  {:>9}  {:>10}  {:>6}".format(*row))
