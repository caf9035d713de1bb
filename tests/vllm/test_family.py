"""What `family=vllm@0.32` computes against what vLLM decides: blocks, pages and the place of every layer in memory.

A spec of kinds of layers, as a person would write it, on an engine of which only the sizes are given; vLLM's own
numbers come from its configuration of the same model, whose cache groups and strides nobody told kvlayout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from architectures import ARCHITECTURES

import kvlayout
from kvlayout.integrations.vllm import check_tensors, read

# Blocks outermost, vLLM packs the unequal pages of Gemma-4's two kinds of layers side by side, and makes them no longer
# of one size; the family computes the sizes of layers outermost, whatever the layout.
CASES = [
    (name, layout) for name in ARCHITECTURES for layout in ("LBHNC", "BLHNC") if (name, layout) != ("gemma4", "BLHNC")
]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_blocks_pages_and_places_are_vllms(name: str, tp: int, layout: str, side: Callable[..., Any]) -> None:
    made = side(name, tp=tp, layout=layout)
    written = read(made.config, kv_cache_specs=made.specs)
    real = read(made.config, made.cache)
    engine = kvlayout.Engine(tp=tp, conv="SD", order=real.engine.order, block=128, family="vllm@0.32")
    table = kvlayout.tensor_table(written.spec, engine, made.cache.num_blocks, packed=layout == "BLHNC")
    assert table.nbytes == (made.cache.kv_cache_tensors[0].size,)
    tables: dict[int, int] = {}
    for layer, (group, index) in written.layers.items():
        of, _ = real.layers[layer]
        page = written.spec.page(written.spec.group(group), engine)
        meant = real.spec.page(real.spec.group(of), real.engine)
        assert (page.nbytes, page.block) == (meant.nbytes, meant.block), layer
        region, place = table.region(group, index), real.placements[layer]
        assert (region.address(index, 0), region.block_stride) == (place.offset, place.stride), layer
        assert tables.setdefault(region.table, real.vllm_groups[of]) == real.vllm_groups[of], layer
    assert check_tensors(real, 0, made.views) == ()
    assert len(set(tables.values())) == len(tables) == len(made.cache.kv_cache_groups)
