"""`kvlayout bench`: what this machine does with memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvlayout.cli.output import FORMAT_OPTION, print_json

if TYPE_CHECKING:
    from kvlayout.emit.bench import Measured
    from kvlayout.plan.transfer import TransferPlan

__all__ = ["bench_command", "interleaving", "page_bytes"]

PLOTS = (".png", ".svg")
PAGE = 64 * 1024


@click.group("bench")
def bench_command() -> None:
    """Measure this machine."""


@bench_command.command("copy")
@click.option("--run", "runs", multiple=True, type=click.IntRange(4, 1 << 30), metavar="BYTES",
              help="Length of a run, a multiple of 4; repeatable. Default: 128 bytes to 1 MiB.")  # fmt: skip
@click.option("--mib", default=256, show_default=True, type=click.IntRange(1, 1 << 16), help="MiB of the destination.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 1000), help="Rounds to take medians of.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 256), help="Threads of a bound move.")
@click.option("--plot", "plots", multiple=True, type=click.Path(dir_okay=False), metavar="FILE",
              help="Draw GB/s against run length into FILE (.png or .svg); repeatable.")  # fmt: skip
@FORMAT_OPTION
def copy_command(
    runs: tuple[int, ...], mib: int, rounds: int, threads: int, plots: tuple[str, ...], output: str
) -> int:
    """GB/s of copying runs between permuted pages, beside numpy, numba and, where installed, torch and MPI.

    Runs from two source ranks land at every second place of a destination page, as when heads of two ranks meet in a
    token-major page. numpy.copyto is one contiguous copy of as many bytes, and the yardstick. Take a destination
    several times larger than the caches; below that, what is measured is the caches and, for small ones, the call.
    """
    for run in runs:
        if run % 4:
            raise click.BadParameter(f"{run} is no multiple of 4", param_hint="--run")
        if 2 * run > mib << 20:
            raise click.BadParameter(f"{run} bytes do not fit twice into {mib} MiB", param_hint="--run")
    for path in plots:
        if Path(path).suffix not in PLOTS:
            raise click.BadParameter(f"{path} ends in none of {', '.join(PLOTS)}", param_hint="--plot")
        if not Path(path).absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {Path(path).parent}", param_hint="--plot")
    pyplot = _pyplot() if plots else None
    from kvlayout.emit.bench import RUNS, Work, measured

    found: list[Measured] = []
    for run in runs or (each for each in RUNS if 2 * each <= mib << 20):
        try:
            work = Work(interleaving(run, page_bytes(run, mib << 20)), mib << 20, threads)
            found.append(measured(work, dict(work.candidates()), rounds))
        except MemoryError:
            raise click.UsageError(f"there is no memory for three times {mib} MiB; give a smaller --mib") from None
        if output == "text":
            if len(found) == 1:
                click.echo(_header(found[0]))
            click.echo(_row(found[-1]))
    if output == "json":
        print_json([_plain(each) for each in found])
    for path in plots:
        _draw(pyplot, found, path)
    return 0


def page_bytes(run: int, nbytes: int) -> int:
    """64 KiB, less where there would be fewer than 16 pages, and more where two runs need it."""
    return max(2 * run, min(PAGE, nbytes // 16))


def interleaving(run: int, page: int) -> TransferPlan:
    """A plan of two ranks of one head each, token-major pages, into one rank of both: runs of `run` bytes land at every
    second place of a page of about `page` bytes."""
    from kvlayout.api import slice_for_tp_transfer
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.formats import find_format
    from kvlayout.spec.model import spec_of_format

    params: dict[str, int | str] = {"num_kv_heads": 2, "head_size": run // 4, "dtype": "bfloat16"}
    words: dict[str, Any] = {"order": "NHD", "block": page // (2 * run)}
    spec = spec_of_format(find_format("gqa", None, "bench"), params, "bench")
    return slice_for_tp_transfer(spec, Engine(tp=2, **words), Engine(tp=1, **words))


def _header(first: Measured) -> str:
    from kvlayout.emit.bench import OURS

    others = "".join(f"{name:>28}" for name in first.seconds if name != OURS)
    return f"run bytes{OURS:>10}{others}\n{'':9}{'GB/s':>10}" + f"{'GB/s (ours: times)':>28}" * (len(first.seconds) - 1)


def _row(each: Measured) -> str:
    from kvlayout.emit.bench import OURS

    others = (f"{each.speed(name):.2f} ({each.ratio(OURS, name):.2f})" for name in each.seconds if name != OURS)
    return f"{each.run:9}{each.speed(OURS):10.2f}" + "".join(f"{text:>28}" for text in others)


def _plain(each: Measured) -> dict[str, Any]:
    from kvlayout.emit.bench import OURS

    return {
        "run": each.run,
        "payload": each.payload,
        "gb_per_s": {name: round(each.speed(name), 3) for name in each.seconds},
        "times_faster_than": {name: round(each.ratio(OURS, name), 3) for name in each.seconds if name != OURS},
    }


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise click.UsageError("--plot needs matplotlib: pip install 'kvlayout[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _draw(pyplot: Any, found: list[Measured], path: str) -> None:
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name in found[0].seconds:
        axes.plot([each.run for each in found], [each.speed(name) for each in found], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("run length, bytes")
    axes.set_ylabel("payload, GB/s")
    axes.set_title(f"copying runs between permuted pages, {found[0].payload >> 20} MiB")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
