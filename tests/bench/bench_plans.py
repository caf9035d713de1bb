"""How fast plans are compiled and proved, and how that compares. Prints medians and ratios; asserts nothing about time.

    python tests/bench/bench_plans.py [--repeats N] [--peer PYTHON]

1. Plans a second: every shipped model, every ordered pair of its tensor-parallel sizes, cold (nothing remembered).
2. The same plan over pages of 64 KB and of 64 GB.
3. A deep model between many ranks and few: 94 layers, tp=64 and tp=8, from the spec to the proved plan.
4. `python -m kvlayout verify` over all shipped specs, cold, wall time.
5. A peer: Mooncake's reshard planner on a KV-shaped array, heads tp=8 -> tp=4, beside ours. `--peer` names an
   interpreter that has `mooncake-transfer-engine` (default: this one). The peer plans and has no separate proof. Ours
   plans and proves: once with all layers in one group, which share a plan, and once with each layer in a group of its
   own, which is how the peer sees them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kvlayout
from kvlayout.api import plan_pair
from kvlayout.data import specs_dir
from kvlayout.plan.artifact import Plan
from kvlayout.spec.model import Spec
from kvlayout.verify.check import check_plan

PEER = Path(__file__).with_name("peer_mooncake.py")

KV_SHAPED = """
kvlayout: 1
model: kv-shaped
source: the array (2, 64, 16, 8, 128) of 2-byte elements, in each of 32 layers
groups:
  attention:
    layers: LAYERS
    axes:
      kv: {size: 2}
      page: {size: 64}
      token: {size: 16}
      head: {size: 8, shard: tp}
    page: [{array: [kv, page, token, head], of: {field: kv, bytes: 256, tag: bfloat16}}]
"""


def kv_shaped(folder: str, groups: int) -> Path:
    """A spec of that array: 32 layers in one group, or each in a group of its own, so that no layer shares a plan."""
    head, _, body = KV_SHAPED.partition("  attention:\n")
    layers = range(32)
    blocks = {"attention": "32"} if groups == 1 else {f"layer{n}": f"[{n}]" for n in layers}
    text = head + "".join(f"  {name}:\n{body.replace('LAYERS', which)}" for name, which in blocks.items())
    path = Path(folder) / f"kv-shaped-{groups}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def plans_per_second(repeats: int) -> None:
    paths = sorted((specs_dir() / "models").glob("*.yaml"))

    def pairs(spec: Spec) -> list[tuple[kvlayout.Engine, kvlayout.Engine]]:
        engines = [kvlayout.Engine(tp=tp) for tp in spec.tp or (1, 2, 4, 8)]
        return [(a, b) for a in engines for b in engines]

    def compiled() -> list[Plan]:
        made = []
        for spec in (kvlayout.load(path) for path in paths):
            for src, dst in pairs(spec):
                try:
                    made.append(plan_pair(spec, src, dst))
                except kvlayout.PlanRefused:
                    refused.add((spec.name, str(src), str(dst)))
        return made

    refused: set[tuple[str, str, str]] = set()
    load = seconds(lambda: [kvlayout.load(path) for path in paths], repeats)
    made = compiled()
    compile_ = seconds(compiled, repeats) - load
    proved = seconds(lambda: [check_plan(plan) for plan in made], repeats)
    assert all(check_plan(plan).proved for plan in made)
    pieces = sum(len(moves.pieces) for plan in made for group in plan.groups for moves in group.ranks)
    print(f"{len(paths)} models, {len(made)} plans ({len(refused)} refused), {pieces} pieces")
    print(f"  load      {1e3 * load:8.1f} ms for all specs")
    print(f"  compile   {1e3 * compile_:8.1f} ms, {len(made) / compile_:8.0f} plans/s (pages expanded anew)")
    print(f"  prove     {1e3 * proved:8.1f} ms, {len(made) / proved:8.0f} plans/s (nothing remembered between plans)")


def page_sizes(repeats: int) -> None:
    spec = kvlayout.load(specs_dir() / "models" / "llama-3.1-8b.yaml")
    blocks = {"64 KB": 16, "64 GB": 2**24}
    sides = {
        name: (kvlayout.Engine(tp=1, block=block), kvlayout.Engine(tp=2, block=block, order="NHD"))
        for name, block in blocks.items()
    }
    plans = {name: plan_pair(spec, *pair) for name, pair in sides.items()}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in blocks}
    for _ in range(repeats):  # interleaved
        for name, pair in sides.items():
            times[name][0].append(seconds(lambda pair=pair: plan_pair(spec, *pair), 1))
            times[name][1].append(seconds(lambda name=name: check_plan(plans[name]), 1))
    medians = {name: [statistics.median(each) for each in taken] for name, taken in times.items()}
    print(f"one plan, tp=1 HND -> tp=2 NHD, by page size (median of {repeats}; pages kept, as the planner does)")
    for name, (compile_, prove) in medians.items():
        print(f"  {name}  compile {1e6 * compile_:7.0f} us   prove {1e6 * prove:7.0f} us")
    ratios = [b / a for a, b in zip(*medians.values(), strict=True)]
    print(f"  64 GB : 64 KB  compile {ratios[0]:.2f}, prove {ratios[1]:.2f}")


def many_ranks(repeats: int) -> None:
    path = specs_dir() / "models" / "qwen3-235b-a22b.yaml"
    layers = kvlayout.load(path).num_layers
    print(f"{layers} layers, spec read, plan compiled and proved (median of {repeats}, nothing remembered)")
    for src, dst in ((64, 8), (8, 64)):
        sides = kvlayout.Engine(tp=src), kvlayout.Engine(tp=dst, order="NHD")
        taken = seconds(lambda sides=sides: check_plan(plan_pair(kvlayout.load(path), *sides)), repeats)
        print(f"  tp={src} -> tp={dst}  {1e3 * taken:6.1f} ms")


def command_line(repeats: int) -> None:
    command = [sys.executable, "-m", "kvlayout", "verify"]
    times, last = [], ""
    for _ in range(repeats):
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - begin)
        last = done.stdout.strip().replace("\n", "\n    ") + f"\n    exit code {done.returncode}"
    print(f"kvlayout verify, all shipped specs: {statistics.median(times):.2f} s (median of {repeats} cold runs)")
    print(f"    {last}")


def peer(interpreter: str, repeats: int) -> None:
    print("KV-shaped array (2, 64, 16, 8, 128) x 32 layers, heads tp=8 -> tp=4")
    with tempfile.TemporaryDirectory() as folder:
        path, apart = kv_shaped(folder, 1), kv_shaped(folder, 32)
        src, dst = kvlayout.Engine(tp=8), kvlayout.Engine(tp=4)

        def cold(path: Path = path) -> kvlayout.TransferPlan:
            return kvlayout.slice_for_tp_transfer(kvlayout.load(path), src, dst)

        spec = kvlayout.load(path)
        whole, alone = seconds(cold, repeats), seconds(lambda: cold(apart), repeats)
        compile_ = seconds(lambda: plan_pair(spec, src, dst), repeats)
        split = kvlayout.load(apart)
        split_plan = plan_pair(split, src, dst)
        each = seconds(lambda: check_plan(plan_pair(split, src, dst)), repeats)
        assert check_plan(split_plan).proved
        plan = cold()
        prove = seconds(lambda: check_plan(plan.document.plan), repeats)
        entries = [entry for entry in plan.entries("attention") for _ in entry.layers]
        expand = seconds(lambda: [entry.runs() for entry in entries], repeats)
        segments = sum(len(entry.runs()) for entry in entries)
    print(f"  kvlayout, from YAML to proved plan       {1e3 * whole:9.2f} ms")
    print(f"  kvlayout, the same, 32 groups of 1 layer {1e3 * alone:9.2f} ms")
    print(f"  kvlayout, compile                        {1e3 * compile_:9.2f} ms")
    print(f"  kvlayout, prove                          {1e3 * prove:9.2f} ms")
    print(f"  kvlayout, compile + prove, 32 groups     {1e3 * each:9.2f} ms")
    print(f"  kvlayout, expand {segments} segments          {1e3 * expand:9.2f} ms, {segments / expand / 1e6:.2f} M/s")
    done = subprocess.run([interpreter, str(PEER), str(repeats)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        print(f"  peer skipped: {reason}")
        return
    theirs = json.loads(done.stdout)
    print(f"  mooncake {theirs['version']}, describe placements {1e3 * theirs['describe']:9.2f} ms")
    print(f"  mooncake, plan {theirs['regions']} regions                {1e3 * theirs['plan']:9.2f} ms")
    print(f"  mooncake, expand {theirs['segments']} segments          {1e3 * theirs['expand']:9.2f} ms, "
          f"{theirs['segments'] / theirs['expand'] / 1e6:.2f} M/s")  # fmt: skip
    print("  ratios, peer : kvlayout")
    print(f"    plan : compile + prove                  {theirs['plan'] / (compile_ + prove):7.1f}")
    print(f"    the same, ours in 32 groups             {theirs['plan'] / each:7.1f}")
    print(f"    describe + plan : YAML to proved plan   {(theirs['describe'] + theirs['plan']) / whole:7.1f}")
    print(f"    the same, ours in 32 groups             {(theirs['describe'] + theirs['plan']) / alone:7.1f}")
    print(f"    expand                                  {theirs['expand'] / expand:7.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON")
    arguments = parser.parse_args()
    plans_per_second(arguments.repeats)
    print()
    page_sizes(200 * arguments.repeats)
    print()
    many_ranks(20 * arguments.repeats)
    print()
    command_line(max(3, arguments.repeats))
    print()
    peer(arguments.peer, arguments.repeats)


if __name__ == "__main__":
    main()
