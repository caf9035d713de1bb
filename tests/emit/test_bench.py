"""What `kvlayout bench copy` compares does the same work."""

from __future__ import annotations

import numpy as np
import pytest

from kvlayout.cli.bench import interleaving, page_bytes
from kvlayout.emit.bench import CONTIGUOUS, OURS, Work, measured


@pytest.mark.parametrize(("run", "page"), [(4, 65536), (128, 65536), (65536, 131072), (512, 1 << 20)])
def test_every_candidate_moves_the_same_bytes(run: int, page: int) -> None:
    work = Work(interleaving(run, page), 1 << 20)
    assert (work.run, work.payload) == (run, 1 << 20)
    candidates = dict(work.candidates())
    assert {CONTIGUOUS, OURS, "numpy fancy indexing", "numba byte loop", "torch strided copy_"} <= set(candidates)
    expected = None
    for name, call in [*candidates.items(), ("kernels alone", work.kernels_alone())]:
        if name == CONTIGUOUS:
            continue
        work.destination[:] = 0
        call()
        expected = work.destination.copy() if expected is None else expected
        assert np.array_equal(work.destination, expected), name
    assert expected is not None and len(np.unique(expected)) > 2


def test_ratios_are_medians_over_rounds() -> None:
    work = Work(interleaving(4096, 65536), 1 << 20)
    found = measured(work, {"one": lambda: None, "two": lambda: None}, 3)
    assert [len(seconds) for seconds in found.seconds.values()] == [3, 3]
    found.seconds = {"a": [1.0, 4.0, 1.0], "b": [2.0, 4.0, 6.0]}
    assert found.ratio("a", "b") == 2 and found.speed("a") == found.payload / 1e9


def test_pages_are_of_fair_size() -> None:
    assert page_bytes(128, 256 << 20) == 65536 and page_bytes(128, 1 << 20) == 65536
    assert page_bytes(128, 65536) == 4096 and page_bytes(1 << 20, 1 << 22) == 1 << 21
