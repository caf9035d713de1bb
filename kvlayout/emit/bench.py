"""How fast this machine copies runs between permuted pages, beside what else could do the same.

The work is that of a real plan, which the caller gives: runs of two source ranks that land at every second place of a
destination page. All candidates move the same bytes between the same
pages; the yardstick is one contiguous `numpy.copyto` of the payload. Candidates take turns within a round, and ratios
are medians over rounds, since a shared machine drifts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from kvlayout.emit.bind import BoundMove, bind
from kvlayout.emit.calls import run
from kvlayout.emit.regions import lines_of
from kvlayout.plan.transfer import TransferPlan

if TYPE_CHECKING:
    pass

__all__ = ["CONTIGUOUS", "OURS", "RUNS", "Measured", "Work", "measured"]

CONTIGUOUS, OURS = "numpy.copyto", "kvlayout"
RUNS = (128, 256, 512, 1024, 4096, 16384, 131072, 1048576)
"""Bytes of a run, by default."""


Candidate = tuple[str, Callable[[], object]]
"""A name, and a call that moves all pages once."""


@dataclass
class Measured:
    """Seconds of each round by candidate, for one run length."""

    run: int
    payload: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def speed(self, name: str) -> float:
        """Payload GB/s, the median of the rounds."""
        return self.payload / median(self.seconds[name]) / 1e9

    def ratio(self, name: str, to: str) -> float:
        """How many times faster `name` is than `to`: the median over rounds."""
        return median(b / a for a, b in zip(self.seconds[name], self.seconds[to], strict=True))


class Work:
    """The pages of one run length, and everything that can move them."""

    def __init__(self, plan: TransferPlan, nbytes: int, threads: int = 1) -> None:
        """`plan`: one group of one layer, whose pieces are equal runs at every second place of a destination page, one
        piece for each of two source ranks. `nbytes`: of the destination, rounded down to whole pages."""
        import numpy as np

        (group,) = plan.groups
        (layer,) = group.layers
        self.run = group.ranks[0].pieces[0].nbytes
        self.tokens = group.dst.nbytes // (2 * self.run)
        self.pages = max(1, nbytes // group.dst.nbytes)
        self.payload = self.pages * group.dst.nbytes
        rng = np.random.default_rng(0)
        self.sources = {rank: lines_of(self.pages, group.src.nbytes) for rank in (0, 1)}
        for each in self.sources.values():
            each[:] = rng.integers(0, 256, each.shape[1], np.uint8)  # all pages alike: drawing more would take seconds
            each[:, 0] = np.arange(self.pages)
        self.destination = lines_of(self.pages, group.dst.nbytes)
        self.destination[:] = 0
        self.src_ids, self.dst_ids = rng.permutation(self.pages), rng.permutation(self.pages)
        self.blocks = {group.name: (self.src_ids, self.dst_ids)}
        self.move: BoundMove = bind(
            plan,
            dst_rank=0,
            src={rank: {group.name: {layer: each}} for rank, each in self.sources.items()},
            dst={group.name: {layer: self.destination}},
            threads=threads,
        )

    def kernels_alone(self) -> Callable[[], None]:
        """The kernels of one call with its checks done, ordinary stores: what a call costs beside them is left out."""
        (part,) = self.move.parts
        jobs = part.call("move", self.src_ids, self.dst_ids, None).jobs(streaming=False)
        return lambda: run(jobs, 1)

    def contiguous(self) -> Callable[[], None]:
        """One contiguous copy of as many bytes."""
        import numpy as np

        source, target = np.ones(self.payload, np.uint8), self.destination.reshape(-1)
        return lambda: np.copyto(target, source)

    def candidates(self) -> Iterator[Candidate]:
        """What can be timed here: ours, NumPy, numba, and torch and MPI where they are installed."""
        yield CONTIGUOUS, self.contiguous()
        yield OURS, lambda: self.move(self.blocks)
        heads = self.destination.reshape(self.pages, self.tokens, 2, self.run)
        shares = {rank: each.reshape(self.pages, self.tokens, self.run) for rank, each in self.sources.items()}

        def fancy() -> None:
            for rank, share in shares.items():
                heads[self.dst_ids, :, rank] = share[self.src_ids]

        yield "numpy fancy indexing", fancy
        byte_loop = _byte_loop()
        yield "numba byte loop", lambda: byte_loop(heads, shares[0], shares[1], self.src_ids, self.dst_ids)
        pairs = list(zip(self.src_ids.tolist(), self.dst_ids.tolist(), strict=True))
        yield from self._torch(heads, shares, pairs)
        yield from self._mpi(pairs)

    def _torch(self, heads: Any, shares: Mapping[int, Any], pairs: list[tuple[int, int]]) -> Iterator[Candidate]:
        try:
            import torch
        except ImportError:
            return
        to, from_ = torch.from_numpy(heads), {rank: torch.from_numpy(share) for rank, share in shares.items()}

        def strided() -> None:
            for rank, share in from_.items():
                for src, dst in pairs:
                    to[dst, :, rank].copy_(share[src])

        yield "torch strided copy_", strided

    def _mpi(self, pairs: list[tuple[int, int]]) -> Iterator[Candidate]:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError):  # no mpi4py; mpi4py without an MPI library
            return
        vector = MPI.BYTE.Create_vector(self.tokens, self.run, 2 * self.run).Commit()

        def unpack() -> None:
            for rank, source in self.sources.items():
                for src, dst in pairs:
                    vector.Unpack(source[src], 0, self.destination[dst, rank * self.run :], MPI.COMM_SELF)

        yield "MPI vector unpack", unpack


def measured(work: Work, chosen: Mapping[str, Callable[[], object]], rounds: int) -> Measured:
    """Time these on the pages of `work`, in turns. Small destinations are repeated within a round."""
    repeats = max(1, (64 << 20) // work.payload)
    found = Measured(work.run, work.payload, {name: [] for name in chosen})
    for call in chosen.values():
        call()
    for _ in range(rounds):
        for name, call in chosen.items():
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            found.seconds[name].append((time.perf_counter() - begin) / repeats)
    return found


def _byte_loop() -> Callable[..., None]:
    import numba

    def copy(heads: Any, first: Any, second: Any, src_ids: Any, dst_ids: Any) -> None:
        for k in range(len(src_ids)):
            for token in range(heads.shape[1]):
                for byte in range(heads.shape[3]):
                    heads[dst_ids[k], token, 0, byte] = first[src_ids[k], token, byte]
                    heads[dst_ids[k], token, 1, byte] = second[src_ids[k], token, byte]

    compiled: Callable[..., None] = numba.njit(nogil=True)(copy)
    return compiled
