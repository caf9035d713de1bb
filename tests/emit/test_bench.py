"""What `kvlayout bench copy` compares does the same work."""

from __future__ import annotations

import numpy as np
import pytest

from kvlayout.emit.bench import CONTIGUOUS, OURS, Work, measure, measured


@pytest.mark.parametrize(("run", "page"), [(4, None), (128, None), (65536, None), (512, 1 << 20)])
def test_every_candidate_moves_the_same_bytes(run: int, page: int | None) -> None:
    work = Work(run, 1 << 20, page=page)
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
    found = measure(4096, 1 << 20, rounds=3)
    assert all(len(seconds) == 3 for seconds in found.seconds.values())
    found.seconds = {"a": [1.0, 4.0, 1.0], "b": [2.0, 4.0, 6.0]}
    assert found.ratio("a", "b") == 2 and found.speed("a") == found.payload / 1e9
    work = Work(4096, 1 << 20)
    assert list(measured(work, {"one": lambda: None}, 2).seconds) == ["one"]
