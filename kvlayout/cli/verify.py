"""`kvlayout verify`: prove specs between engines, and check artifacts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kvlayout.cli.output import FORMAT_OPTION, counted, print_json, print_problems

if TYPE_CHECKING:
    from kvlayout.cli.report import Report
    from kvlayout.cli.sweep import Sweep

__all__ = ["summary_of", "verify_command"]


@click.command("verify")
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--src", "sources", multiple=True, metavar="ENGINE", help="Source engine; repeatable.")
@click.option("--dst", "destinations", multiple=True, metavar="ENGINE", help="Destination engine; repeatable.")
@click.option("--tp", "sizes", metavar="1,2,16", help="Tensor-parallel sizes of the default engines.")
@click.option("-q", "--quiet", is_flag=True, help="Print findings only.")
@click.option("-v", "--verbose", is_flag=True, help="List unloadable and refused pairs too.")
@FORMAT_OPTION
def verify_command(
    paths: tuple[str, ...],
    sources: tuple[str, ...],
    destinations: tuple[str, ...],
    sizes: str | None,
    quiet: bool,
    verbose: bool,
    output: str,
) -> int:
    """Prove model specs and formats between engines, and check plan artifacts.

    PATHS are model specs, formats (their examples), artifacts, or folders of them; without one, the shipped specs.
    Engines are `key=value,...` or YAML files; where none is given, each tp of the spec in both orders is one, and the
    shipped models also meet the shipped engines.
    """
    from kvlayout.cli.sweep import Sweep, files_of, shipped_engines
    from kvlayout.spec.engine import Engine

    started = time.monotonic()
    sweep = Sweep(
        tuple(Engine.read(each) for each in sources), tuple(Engine.read(each) for each in destinations), _sizes(sizes)
    )
    files = files_of(paths)
    if not (paths or sources or destinations or sizes):
        sweep.besides = shipped_engines()
    if not files:
        raise click.UsageError("there is nothing to verify in " + ", ".join(paths))
    if sources and destinations and sizes is not None:
        raise click.UsageError("--tp gives the sizes of default engines, but both sides are named")
    jobs = sweep.jobs(files)
    if sweep.engines_only and not sweep.unreadable:
        raise click.UsageError("these are engine files, which prove nothing alone; give them as --src and --dst")
    with _progress(sum(job.pairs for job in jobs), hidden=quiet or output == "json") as advance:
        for job in jobs:
            sweep.run(job, advance)
    if output == "json":
        if verbose:
            sweep.report.add(tuple(dict.fromkeys(sweep.skipped)))
        print_json(sweep.report.as_json())
    else:
        _print_text(sweep, quiet, verbose, time.monotonic() - started)
    return 2 if sweep.unreadable else 1 if sweep.findings else 0


def summary_of(report: Report) -> str:
    """What was proved, in one line."""
    counts = ", ".join(
        f"{getattr(report, name)} {name}" for name in ("proved", "refuted", "unproved", "refused", "unloadable")
    )
    specs, pairs, plans = (
        counted(report.specs, "spec"), counted(report.pairs, "engine pair"),
        counted(report.plans - report.identities, "different plan"),
    )  # fmt: skip
    same = f"{report.identities} identit{'y' if report.identities == 1 else 'ies'}"
    return f"{specs}, {pairs}, {plans} and {same}: {counts}"


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= 4096 and len(part) <= 4 for part in parts):
        raise click.BadParameter("give sizes from 1 to 4096, as 1,2,16", param_hint="--tp")
    return tuple(dict.fromkeys(int(part) for part in parts))


@contextmanager
def _progress(total: int, *, hidden: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal when there is enough to wait for; else nothing."""
    if hidden or total < 200 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("proving", total=total)
        yield lambda: bar.advance(task)


def _print_text(sweep: Sweep, quiet: bool, verbose: bool, seconds: float) -> None:
    from kvlayout.errors import Problem

    report = sweep.report
    found = [Problem(**{name: getattr(each, name) for name in each.__struct_fields__}) for each in report.problems]
    print_problems(found, to_stderr=False)
    if verbose:
        for skipped in dict.fromkeys(sweep.skipped):
            click.echo(str(skipped))
    if quiet:
        return
    for artifact in report.artifacts:
        click.echo(f"{artifact.path}: {artifact.verdict} {artifact.digest}")
    if report.specs:
        click.echo(summary_of(report))
        click.echo(f"in {seconds:.1f} s")
