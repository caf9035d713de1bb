"""Copies beyond the table of `kvlayout bench copy`: in cache beside C, on two threads, and one page alone.

Also what a first compile and a cached load cost beside an empty function of numba, what one small call costs, and a
whole request of a hybrid model. Ratios are medians over rounds in which the candidates take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

import kvlayout
from kvlayout import Engine
from kvlayout.cli.bench import interleaving, page_bytes
from kvlayout.data import specs_dir
from kvlayout.emit.bench import OURS, RUNS, Work, measured
from kvlayout.emit.regions import lines_of

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="destination of the large copies")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ["KVLAYOUT_CACHE"] = os.path.realpath(tempfile.mkdtemp()) + "/cache"
    cached(options.rounds)
    two_threads(options.mib, options.rounds)
    one_page(options.rounds)
    small_call()
    hybrid(options.rounds)
    compiling()


def work_of(run: int, nbytes: int, threads: int = 1) -> Work:
    return Work(interleaving(run, page_bytes(run, nbytes)), nbytes, threads)


def cached(rounds: int) -> None:
    library = compiled_c()
    if library is None:
        print("destinations in cache: skipped, there is no C compiler for the memcpy loop")
        return

    def memcpy_loop(work: Work) -> tuple[str, Callable[[], object]]:
        src = (ctypes.c_void_p * 2)(*(each.ctypes.data for each in work.sources.values()))
        arguments = (
            ctypes.c_void_p(work.destination.ctypes.data), src, ctypes.c_void_p(work.dst_ids.ctypes.data),
            ctypes.c_void_p(work.src_ids.ctypes.data),
            *(ctypes.c_int64(n) for n in (work.pages, work.tokens, work.run)),
        )  # fmt: skip
        return "memcpy loop in C", lambda: library.copy_runs(*arguments)

    print("one thread, destinations in cache: kernels GB/s, and how many times faster than a memcpy loop in C")
    for kib in (256, 1024):
        for run in (r for r in RUNS if 4 * r <= kib << 10):
            work = work_of(run, kib << 10)
            (name, theirs), ours = memcpy_loop(work), work.kernels_alone()
            found = measured(work, {OURS: ours, name: theirs}, rounds)
            print(f"  {kib:5} KiB, runs of {run:7}: {found.speed(OURS):6.2f} {found.ratio(OURS, name):6.2f}")


def compiled_c() -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    target = Path(tempfile.mkdtemp()) / "loop.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", target, HERE / "memcpy_loop.c"], check=True)
    return ctypes.CDLL(str(target))


def two_threads(mib: int, rounds: int) -> None:
    print(f"two threads, destination of {mib} MiB: kvlayout GB/s, the machine's own two-thread copy, ratio")
    for run in (512, 4096, 131072):
        work = work_of(run, mib << 20, threads=2)
        found = measured(work, {OURS: lambda work=work: work.move(work.blocks), "own": both_halves(work)}, rounds)
        print(
            f"  {run:9} {found.speed(OURS):6.2f} {found.speed('own'):6.2f} {found.ratio(OURS, 'own'):6.2f}", flush=True
        )


def both_halves(work: Work) -> Callable[[], None]:
    """One contiguous copy on each of two threads."""
    target, half = work.destination.reshape(-1), work.payload // 2
    source = np.ones(work.payload, np.uint8)

    def copy() -> None:
        other = Thread(target=np.copyto, args=(target[half:], source[half:]))
        other.start()
        np.copyto(target[:half], source[:half])
        other.join()

    return copy


def one_page(rounds: int) -> None:
    """A call of one page alone has nothing to move beside it."""
    work = Work(interleaving(16384, 64 << 20), 64 << 20)
    found = measured(work, {OURS: lambda: work.move(work.blocks), "numpy.copyto": work.contiguous()}, rounds)
    print(f"one page of 64 MiB alone, runs of 16384: {found.ratio(OURS, 'numpy.copyto'):.2f} of one contiguous copy")


def small_call() -> None:
    """One small page through a bound move: the time of a call."""
    work = work_of(128, 4096)
    blocks = {name: (src[:1], dst[:1]) for name, (src, dst) in work.blocks.items()}
    for _ in range(1000):
        work.move(blocks)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(1000):
            work.move(blocks)
        times.append((time.perf_counter() - begin) / 1000)
    nbytes = work.payload // work.pages
    print(f"a bound call that moves one page of {nbytes} bytes: {statistics.median(times) * 1e6:.2f} us")


def hybrid(rounds: int) -> None:
    """A request of 512 attention blocks and one state, packed on four ranks and unpacked on each of two."""
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    plan = kvlayout.slice_for_tp_transfer(spec, Engine(tp=4), Engine(tp=2))
    rng, blocks, rows = np.random.default_rng(0), {}, {"attention": 512, "state": 4}
    for name, count in (("attention", 512), ("state", 1)):
        blocks[name] = rng.permutation(rows[name])[:count], rng.permutation(rows[name])[:count]

    def pool(group: Any, page: Any) -> dict[int, Any]:
        made = {layer: lines_of(rows[group.name], page.nbytes) for layer in group.layers}
        for each in made.values():
            each[:] = 1
        return made

    src = {rank: {group.name: pool(group, group.src) for group in plan.groups} for rank in (0, 1)}
    dst = {group.name: pool(group, group.dst) for group in plan.groups}
    move = kvlayout.bind(plan, dst_rank=0, src=src, dst=dst)
    packed = move.pack(blocks)
    nbytes = sum(len(each) for each in packed.values())
    from_, to = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "numpy.copyto": lambda: np.copyto(to, from_),
        "pack": lambda: move.pack(blocks, out=packed),
        "unpack": lambda: move.unpack(packed, blocks),
        "move": lambda: move(blocks),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(max(rounds, 9)):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    print(f"Qwen3-Next, 48 layers, 512 blocks, tp=4 -> rank 0 of tp=2: {nbytes / 2**20:.1f} MiB in one call each")
    for name, seconds in times.items():
        part = statistics.median(a / b for a, b in zip(times["numpy.copyto"], seconds, strict=True))
        middle = statistics.median(seconds)
        print(
            f"  {name:14} {middle * 1e3:7.2f} ms {nbytes / middle / 1e9:6.2f} GB/s, {part:.2f} of one contiguous copy"
        )


EMPTY = """
import numba
@numba.njit("void()", cache=True)
def empty(): pass
empty()
"""
FIRST = """
from kvlayout.emit.kernels import kernel_of
from kvlayout.emit.tables import Shape
kernel_of(Shape("1", "lines"))
"""


def compiling() -> None:
    """New processes: numba's import alone, then an empty function and a kernel of ours, first and from the cache."""
    print("a new process, seconds beyond the import of numba and in all (median of 7)")
    results: dict[tuple[str, str], tuple[float, float]] = {}
    for name, text in (("empty function", EMPTY), ("kernel", FIRST)):
        for when in ("first", "cached"):
            samples = []
            for _ in range(7):
                with tempfile.TemporaryDirectory() as folder:
                    real = os.path.realpath(folder)
                    script = Path(real) / "script.py"
                    script.write_text(text)
                    environment = {**os.environ, "KVLAYOUT_CACHE": real + "/cache", "NUMBA_CACHE_DIR": real + "/numba"}
                    for _ in range(1 if when == "first" else 2):
                        sample = timed(script, environment)
                    samples.append(sample)
            results[name, when] = tuple(statistics.median(each) for each in zip(*samples, strict=True))  # type: ignore[assignment]
            beyond, whole = results[name, when]
            print(f"  {name:15} {when:7} {beyond:6.3f} {whole:6.3f}")
    for when in ("first", "cached"):
        ratios = (a / b for a, b in zip(results["kernel", when], results["empty function", when], strict=True))
        print("  kernel : empty function, {:7} {:.2f} {:.2f}".format(when, *ratios))


def timed(script: Path, environment: dict[str, str]) -> tuple[float, float]:
    code = (
        "import time, runpy, sys; a = time.perf_counter(); import numba; b = time.perf_counter(); "
        f"runpy.run_path({str(script)!r}); print(time.perf_counter() - b, time.perf_counter() - a)"
    )
    out = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    beyond, whole = map(float, out.stdout.split())
    return beyond, whole


if __name__ == "__main__":
    main()
