"""How fast tables of descriptors are built, beside numpy that broadcasts runs over blocks. Prints medians and ratios.

    python tests/bench/bench_descriptors.py [--rounds N]

Scattered blocks, so that nothing is joined and each run is a descriptor. The peer is what a connector would write: the
runs of a template and the block tables broadcast against each other, once for each side and layer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir
from kvlayout.emit.describe import Descriptors, Pages, describer

CASES = (
    ("llama-3.1-8b", Engine(tp=2), Engine(tp=1, order="NHD"), 2_000),  # 16 runs a page and rank
    ("llama-3.1-8b", Engine(tp=2), Engine(tp=1), 32_000),  # one
    ("qwen3-next-80b-a3b", Engine(tp=4, block=64), Engine(tp=2, block=16), 4_000),
)


def broadcast(plan: Any, memory: dict[str, Any], blocks: dict[str, Any]) -> dict[int, Descriptors]:
    """The same descriptors by numpy."""
    parts: dict[int, list[tuple[Any, Any]]] = {}
    for group in plan.groups:
        src_ids, dst_ids = (
            np.asarray(ids).reshape(-1, count)
            for ids, count in zip(blocks[group.name], (group.src_blocks, group.dst_blocks), strict=True)
        )
        for entry in plan.entries(group.name, 0):
            runs = entry.runs()
            for rank in np.unique(runs[:, 0]).tolist():
                own = runs[runs[:, 0] == rank]
                for layer in entry.layers:
                    sides = []
                    for pages, ids, block, offset in (
                        (memory["src"][rank][group.name][layer], src_ids, own[:, 1], own[:, 2]),
                        (memory["dst"][group.name][layer], dst_ids, own[:, 3], own[:, 4]),
                    ):
                        table = np.zeros((len(ids), len(own), 3), np.uint64)
                        table[:, :, 0] = pages.address + ids[:, block] * pages.stride + offset
                        table[:, :, 1] = own[:, 5]
                        sides.append(table.reshape(-1, 3))
                    parts.setdefault(rank, []).append((sides[0], sides[1]))
    return {rank: Descriptors(*map(np.concatenate, zip(*found, strict=True))) for rank, found in parts.items()}


def median(work: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print("descriptors of one destination rank           count      ms    M/s   times faster than numpy")
    for name, src, dst, templates in CASES:
        spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
        plan = kvlayout.slice_for_tp_transfer(spec, src, dst)
        rng = np.random.default_rng(0)
        # A gap after each page, so that neighbours cannot be joined.
        memory: dict[str, Any] = {
            "src": {
                rank: {g.name: {n: Pages(n << 40, 1 << 20, g.src.nbytes + 64) for n in g.layers} for g in plan.groups}
                for rank in range(src.tp)
            },
            "dst": {g.name: {n: Pages(n << 40, 1 << 20, g.dst.nbytes + 64) for n in g.layers} for g in plan.groups},
        }
        blocks = {}
        for group in plan.groups:
            many = templates if group.dst.block is not None else 1
            counts = many * group.src_blocks, many * group.dst_blocks
            blocks[group.name] = tuple(rng.permutation(count + 9)[:count] for count in counts)
        made = describer(plan, dst_rank=0, **memory)
        ours, theirs = made(blocks), broadcast(plan, memory, blocks)
        for rank, found in ours.items():
            order = [np.lexsort(each.dst.T[::-1]) for each in (found, theirs[rank])]
            same = zip(found, theirs[rank], strict=True)
            assert all(np.array_equal(a[order[0]], b[order[1]]) for a, b in same), (name, rank)
        taken, peer = median(lambda: made(blocks), rounds), median(lambda: broadcast(plan, memory, blocks), rounds)  # noqa: B023
        count = sum(len(each.src) for each in ours.values())
        sides = f"{src} -> {dst}"
        print(f"{name:20} {sides:30} {count:9,} {1e3 * taken:7.1f} {count / taken / 1e6:6.1f} {peer / taken:8.2f}")


if __name__ == "__main__":
    main()
