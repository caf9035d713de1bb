"""The judged page cases, moved by kernels: every destination byte is the one that the oracle says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.harness import Pair, SourcePages, plan, records

import kvlayout

if TYPE_CHECKING:
    from conftest import Size

CASES = [case for case in records("pages.jsonl") if "dst_ranks" in case]
FORMATS = sorted({case["format"] for case in CASES})
STEP = 7


@pytest.mark.parametrize("format", FORMATS)
def test_kernels_put_every_byte_where_the_oracle_says(format: str, size: Size) -> None:
    """A source byte holds its id modulo 251, and a destination byte must hold that of the id it should get."""
    cases = [case for case in CASES if case["format"] == format]
    moved = 0
    for index, case in enumerate(cases[:: size(3, 1, quick=STEP)]):
        pair = Pair(case["format"], case["params"], case["src"], case["dst"])
        found = plan(pair)
        ids = SourcePages(pair.format, pair.params, pair.src, 1)
        ranks = range(pair.src["tp"])
        src: dict[int, Any] = {rank: {"cache": {0: content(ids[rank])}} for rank in ranks}
        for rank in pair.ranks:
            wanted = pair.expected(rank)
            page = np.full((3, wanted.shape[-1]), 255, np.uint8)
            move = kvlayout.bind(
                found, dst_rank=rank, src=src, dst={"cache": {0: page}}, reader=("cpu", "device")[index % 2]
            )
            move({"cache": ([0], [1])})
            payload = wanted.reshape(-1) >= 0
            assert np.array_equal(page[1][payload], content(wanted).reshape(-1)[payload])
            assert (page[1][~payload] == 255).all() and (page[[0, 2]] == 255).all()
            moved += 1
    assert moved


def content(ids: Any) -> Any:
    return np.ascontiguousarray((ids % 251).astype(np.uint8).reshape(1, -1))
