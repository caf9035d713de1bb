"""The configs of the shipped models give the shipped specs: the same layers, the same page trees on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused
from kvlayout.ir import canonical_json
from kvlayout.spec.model import Spec

CONFIGS = Path(__file__).parent / "configs"
SHIPPED = sorted(
    path.stem for path in CONFIGS.glob("*.json") if (specs_dir() / "models" / f"{path.stem}.yaml").is_file()
)

# What a config cannot say and the shipped spec does: the cache dtype that the engine is given.
SERVED = {
    "llama-3.1-8b-nvfp4": {"kv_dtype": "nvfp4"},
    "llama-3.1-70b-nvfp4-sm100": {"kv_dtype": "nvfp4", "attention.scale_layout": "sm100"},
}
ENGINES = [
    {"tp": 1}, {"tp": 2, "order": "NHD"}, {"tp": 4, "block": 64}, {"tp": 8, "conv": "SD"}, {"tp": 16, "spec_tokens": 2},
]  # fmt: skip


def pages(spec: Spec, **words: object) -> dict[str, str] | None:
    """The page trees of all groups as canonical JSON; None where no such engine loads."""
    try:
        return {group.name: canonical_json(spec.page(group, Engine(**words))) for group in spec.groups}  # type: ignore[arg-type]
    except PlanRefused:
        return None


def test_every_shipped_model_has_a_config() -> None:
    models = {path.stem for path in (specs_dir() / "models").glob("*.yaml")}
    assert sorted(models - set(SHIPPED)) == []


@pytest.mark.parametrize("stem", SHIPPED)
def test_a_config_gives_the_shipped_spec(stem: str) -> None:
    shipped = kvlayout.load(specs_dir() / "models" / f"{stem}.yaml")
    imported = kvlayout.from_hf(CONFIGS / f"{stem}.json")
    assert {group.name: group.layers for group in imported.groups} == {
        group.name: group.layers for group in shipped.groups
    }
    assert imported.num_layers == shipped.num_layers
    loaded = 0
    for words in ENGINES:
        expected = pages(shipped, **words)
        assert pages(imported, **words, **SERVED.get(stem, {})) == expected
        loaded += expected is not None
    assert loaded >= 3
