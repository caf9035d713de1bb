"""The configs of the shipped models give the shipped specs: the same layers, the same page trees on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvlayout
from kvlayout import Engine
from kvlayout.data import specs_dir
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
WORDS: list[dict[str, object]] = [{}, {"order": "NHD"}, {"block": 64}, {"conv": "SD"}, {"spec_tokens": 2}]
"""Of engines, one after the other of the sizes that a spec names."""


def pages(spec: Spec, **words: object) -> dict[str, str]:
    """The page trees of all groups as canonical JSON."""
    return {group.name: canonical_json(spec.page(group, Engine(**words))) for group in spec.groups}  # type: ignore[arg-type]


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
    served = {"kv_dtype": "fp8"} if stem.endswith("-fp8-kv") else SERVED.get(stem, {})
    for index, tp in enumerate(shipped.tp or (1, 2, 4, 8)):
        words = {"tp": tp, **WORDS[index % len(WORDS)]}
        assert pages(imported, **words, **served) == pages(shipped, **words)
