"""How many kernels there are, and how many of them the shipped models need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir
from kvlayout.emit.moves import Moves
from kvlayout.emit.tables import SHAPES, Shape, shape_of

if TYPE_CHECKING:
    from conftest import Size

PAIRS = [(4, 2), (2, 4), (8, 8), (1, 2), (2, 1), (1, 8), (8, 1), (1, 1), (4, 8)]


def test_shipped_models_need_a_dozen_kernels(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    """All shipped models between tensor-parallel sizes, equal and unequal orders and blocks; aligned buffers."""
    used: set[Shape] = set()
    plans = 0
    for path in sorted((specs_dir() / "models").glob("*.yaml")):
        spec = kvlayout.load(path)
        for a, b in PAIRS[: size(3, 9, quick=1)]:
            for words in ({}, {"order": "NHD", "block": 32}):
                try:
                    plan = kvlayout.slice_for_tp_transfer(spec, Engine(tp=a, **words), Engine(tp=b, order="NHD"))
                except kvlayout.PlanRefused as error:
                    if not error.unloadable:  # a size that this model does not have is no failure
                        raise
                    continue
                plans += 1
                for group in plan.groups:
                    for entry in plan.entries(group.name):
                        moves = Moves(entry, plan.document.plan.src, plan.document.plan.dst, entry.pieces)
                        used |= {
                            shape_of(move, streaming=streaming, aligned=True)
                            for _, move in moves.located(None)
                            for streaming in (False, True)
                        }
    with capsys.disabled():
        print(f"\nshipped models: {len(used)} kernels of {len(SHAPES)}: {', '.join(sorted(s.name for s in used))}")
    assert plans >= 32
    assert used < set(SHAPES)
    assert len(used) <= 16
