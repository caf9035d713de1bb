"""Every shipped model: it says where it comes from, its listed sizes load, and its state pages have the known bytes."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from golden.models_page import trees

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.ir import leaves, span
from kvlayout.spec.engine import Engine
from kvlayout.spec.source import read_source

from .draws import STATES

if TYPE_CHECKING:
    from conftest import Size

MODELS = sorted((specs_dir() / "models").glob("*.yaml"))
ENGINES = sorted((specs_dir() / "engines").glob("*.yaml"))
NAMES = [path.stem for path in MODELS]

STATE_BYTES: dict[str, tuple[int, int]] = {
    "falcon-mamba-7b": (311296, 38912),
    "mamba-codestral-7b": (2158592, 269824),
    "nemotron-h-8b": (4255744, 531968),
    "nemotron-nano-9b-v2": (5316608, 664576),
    "granite-4.0-h-small": (2147840, 269824),
    "falcon-h1-7b": (1594368, 201984),
    "qwen3-next-80b-a3b": (1097728, 137216),
    "qwen3.5-27b": (3207168, 400896),
    "qwen3.5-397b-a17b": (4268032, 533504),
    "kimi-linear-48b-a3b": (2170880, 271360),
    "minimax-m1": (4194304 // 2, 524288 // 2),
    "lfm2-2.6b": (8192, 1024),
}
"""State bytes of a layer on one rank of 1 and of 8, without speculative rows, from the state shapes of vLLM 0.32.

Files model_executor/layers/mamba/mamba_utils.py and abstract.py, with each model's config.json. Convolutions are bf16.
MiniMax-M1's state is bf16 as the model is; float32 would be twice as much.
"""

TOKEN_BYTES = {
    ("llama-3.1-8b", "attention"): 8 * 512,
    ("llama-3.1-8b-nvfp4", "attention"): 8 * 144,
    ("llama-3.1-70b-nvfp4-sm100", "attention"): 8 * 144,
    ("mimo-v2-flash", "attention"): 4 * 2 * (192 + 128),
    ("mimo-v2-flash", "sliding"): 8 * 2 * (192 + 128),
    ("gpt-oss-120b", "attention"): 8 * 256,
    ("gemma-4-31b", "attention"): 4 * 2048,
    ("gemma-4-31b", "sliding"): 16 * 1024,
    ("qwen3-next-80b-a3b", "attention"): 2 * 1024,
    ("deepseek-v3", "attention"): 1152,
    ("deepseek-v3.2", "attention"): 656,
    ("deepseek-v3.2", "indexer"): 132,
    ("kimi-linear-48b-a3b", "attention"): 1152,
}
"""Bytes of a token in a layer on one rank: KV heads times K and V sizes, or the row, of each model's config.json."""


def test_there_are_many_models_of_many_shapes() -> None:
    assert len(MODELS) >= 60
    assert len(trees(MODELS)) >= 40


@pytest.mark.parametrize("path", MODELS, ids=NAMES)
def test_a_model_loads_and_names_its_source(path: Path) -> None:
    source = read_source(path)
    assert "config.json" in source.data["source"]
    spec = kvlayout.load(path)
    assert spec.name and spec.groups
    layers = {layer for group in spec.groups for layer in group.layers}
    assert max(layers) < spec.num_layers


@pytest.mark.parametrize("path", MODELS, ids=NAMES)
def test_every_listed_size_loads_in_both_orders(path: Path) -> None:
    spec = kvlayout.load(path)
    for tp, order, conv in product(spec.tp or (1, 2), ("LBHNC", "LBNHC"), ("DS", "SD")):
        for group in spec.groups:
            assert span(spec.page(group, Engine(tp=tp, order=order, conv=conv)).tree) > 0


@pytest.mark.parametrize("path", MODELS, ids=NAMES)
def test_every_listed_pair_is_proved(path: Path, size: Size) -> None:
    """All ordered pairs of sizes with equal orders, and the outermost ones with unequal orders."""
    spec = kvlayout.load(path)
    sizes = spec.tp or (1, 2)
    every = list(product(sizes, repeat=2))
    outer = [(sizes[0], sizes[-1]), (sizes[-1], sizes[0])]
    for src, dst in size(outer, every):
        for order in size(("LBNHC",), ("LBHNC", "LBNHC")):
            found = kvlayout.slice_for_tp_transfer(spec, Engine(tp=src), Engine(tp=dst, order=order))
            assert [group.name for group in found.groups] == [group.name for group in spec.groups]
            for group in found.groups:
                entries = list(found.entries(group.name))
                assert [entry.rank for entry in entries] == list(range(dst))
                counts = ((leaf.nbytes, *(digit[2] for digit in leaf.digits)) for leaf in leaves(group.dst.tree))
                payload = sum(map(prod, counts))
                assert {entry.payload_bytes for entry in entries} == {payload}


@pytest.mark.parametrize("name", STATE_BYTES)
def test_state_bytes(name: str) -> None:
    spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
    group = spec.group("state")
    assert group.format.name in STATES
    assert tuple(span(spec.page(group, Engine(tp=tp)).tree) for tp in (1, 8)) == STATE_BYTES[name]


@pytest.mark.parametrize(("name", "group"), TOKEN_BYTES)
def test_token_bytes(name: str, group: str) -> None:
    spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
    for block in (16, 64):
        page = spec.page(spec.group(group), Engine(block=block))
        assert span(page.tree) == block * TOKEN_BYTES[name, group]


def test_the_state_table_misses_no_family() -> None:
    loaded = {path.stem: kvlayout.load(path) for path in MODELS}
    shipped = {group.format.name for spec in loaded.values() for group in spec.groups} & set(STATES)
    checked = {loaded[name].group("state").format.name for name in STATE_BYTES}
    assert checked == shipped


@pytest.mark.parametrize("path", ENGINES, ids=[path.stem for path in ENGINES])
def test_a_shipped_engine_loads_and_prints_canonically(path: Path) -> None:
    engine = Engine.load(path)
    assert Engine.parse(str(engine)) == engine


def test_something_is_shipped() -> None:
    assert len(MODELS) >= 32
    assert len(ENGINES) >= 8
