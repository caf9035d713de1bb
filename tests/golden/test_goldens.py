"""The pages of everything shipped are what was last reviewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden import formats_page, models_page
from golden.make import HERE, KERNEL_RUNS, KERNELS, RULES_PAGE, goldens

from kvlayout.emit.kernels import render
from kvlayout.emit.tables import SHAPES, Shape
from kvlayout.rules import RULES

ALL = list(goldens())


@pytest.mark.parametrize(("path", "text"), ALL, ids=[f"{path.parent.name}/{path.stem}" for path, _ in ALL])
def test_page_is_the_reviewed_one(path: Path, text: str) -> None:
    assert path.is_file(), "a new format or model needs its golden: run .ci/regenerate and review what it writes"
    assert text == path.read_text(), "run .ci/regenerate and review the difference"


@pytest.mark.parametrize(
    ("made", "row"),
    [
        (formats_page, "[`sglang_mha`](../specs/formats/sglang_mha.yaml) | SGLang's grouped-query attention"),
        (models_page, "[Qwen/Qwen3-8B](../specs/models/qwen3-8b.yaml) | `attention`: all 36, `gqa`: num_kv_heads 8, "),
    ],
)
def test_a_page_of_tables_is_that_of_the_specs(made: Any, row: str) -> None:
    text = made.PAGE.read_text(encoding="utf-8")
    assert made.page(text) == text, "run .ci/regenerate and review the difference"
    assert row in text


def test_no_golden_is_left_behind() -> None:
    assert {path for path, _ in ALL} - {RULES_PAGE} == {*HERE.glob("*/*.txt"), *KERNELS.glob("*")}


def test_every_rule_has_its_place_on_the_page() -> None:
    text = RULES_PAGE.read_text()
    assert [code for code in RULES if f"### {code}: " not in text] == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_kernel_is_a_reviewed_one_but_for_the_name_of_its_copy(shape: Shape) -> None:
    reviewed = KERNEL_RUNS[shape.streams]
    text = render(shape)
    for word in ("copy_{} ", "kind {} "):
        text = text.replace(word.format(shape.run), word.format(reviewed))
    assert text == (KERNELS / f"{reviewed}_{shape.depth}.py").read_text()
