"""Context-parallel ranks, which deal out tokens and hold heads in common, and stages, which share out layers."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.positions import block_counts, page_bytes

import kvlayout
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec

from .harness import Pair, assert_right, plan, some

if TYPE_CHECKING:
    from conftest import Size

MOST_BYTES = 30_000


@st.composite
def dealing(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    """An engine that deals out tokens to any number of ranks in runs of any length, and every head to each of them."""
    block = draw(st.sampled_from([1, 2, 4, 6, 8, 12, 16]))
    dcp = draw(st.integers(1, 4))
    return {
        "tp": dcp * heads * draw(st.integers(1, 2)),
        "dcp": dcp,
        "pcp": draw(st.sampled_from([1, 1, 2, 3])),
        "interleave": draw(st.sampled_from([n for n in range(1, block + 1) if block % n == 0])),
        "block": block,
        "order": draw(st.sampled_from(["HND", "NHD"])),
    }


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_any_number_of_dealing_ranks_to_any_other(heads: int, size: Size) -> None:
    params = {"num_kv_heads": heads, "head_size": 1, "dtype": "float8_e4m3"}
    seen = set()

    @settings(max_examples=size(60, 2000, 10))
    @given(dealing(heads), dealing(heads), st.sampled_from(["content", "planes"]))
    def right(src: dict[str, Any], dst: dict[str, Any], packing: str) -> None:
        pair = Pair("gqa", {**params, "kv_packing": packing}, src, dst)
        src_blocks, dst_blocks = block_counts("gqa", params, src, dst)
        assume(
            max(page_bytes("gqa", params, src) * src_blocks, page_bytes("gqa", params, dst) * dst_blocks) < MOST_BYTES
        )
        assert_right(pair, some(pair.ranks, size(4, 16, 3)))
        seen.add((src["dcp"] * src["pcp"], dst["dcp"] * dst["pcp"]))

    right()
    assert len(seen) > size(10, 30, 2)


@pytest.mark.parametrize("side", ["src", "dst"])
def test_what_cannot_be_dealt_out_is_refused(side: str) -> None:
    """Runs that do not fill a block, ranks that would hold other tokens of other heads, groups that do not fill tp."""
    params = {"num_kv_heads": 2, "head_size": 1, "dtype": "float8_e4m3"}
    for words, code in (
        ({"tp": 4, "dcp": 2, "interleave": 32}, "KVL204"),
        ({"tp": 4, "dcp": 2, "interleave": 3}, "KVL204"),
        ({"tp": 2, "dcp": 2}, "KVL207"),
        ({"tp": 4, "dcp": 3}, "KVL203"),
    ):
        sides = (words, {"tp": 1}) if side == "src" else ({"tp": 1}, words)
        with pytest.raises(kvlayout.PlanRefused) as refused:
            plan(Pair("gqa", params, *sides))
        assert code in {each.code for each in refused.value.problems}
        assert refused.value.unloadable


ATTENTION = {"num_kv_heads": 2, "head_size": 1, "dtype": "bfloat16"}
STATE = {"num_heads": 12, "head_dim": 1, "dtype": "bfloat16"}


@st.composite
def cut(draw: st.DrawFn, layers: int) -> tuple[int, ...]:
    """Layers per stage, of any length each."""
    ends = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=min(4, layers - 1))))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, layers], strict=True))


def model(layers: int, attention: tuple[int, ...]) -> Spec:
    others = tuple(each for each in range(layers) if each not in attention)
    groups = [("attention", "gqa", ATTENTION, attention), ("state", "linear", STATE, others)]
    return Spec("test", None, layers, None, tuple(
        CacheGroup(name, find_format(format, None, "test"), params, held, None, "test")
        for name, format, params, held in groups if held
    ))  # fmt: skip


@given(st.data())
def test_stages_may_cut_the_layers_anywhere(data: st.DataObject) -> None:
    """Each layer comes from the stage that has it to the one that wants it, by the runs of the plan without stages."""
    layers = data.draw(st.integers(2, 9), "layers")
    ours, theirs = data.draw(cut(layers), "source stages"), data.draw(cut(layers), "destination stages")
    attention = data.draw(st.sets(st.integers(0, layers - 1), min_size=1), "attention layers")
    words = [
        {"tp": data.draw(st.sampled_from([1, 2, 4])), "pcp": data.draw(st.sampled_from([1, 1, 2])), "interleave": 4}
        for _ in range(2)
    ]
    spec = model(layers, tuple(sorted(attention)))
    flat = kvlayout.slice_for_tp_transfer(spec, *(kvlayout.Engine(**each) for each in words))
    found = kvlayout.slice_for_tp_transfer(
        spec,
        *(
            kvlayout.Engine(**each, pp=len(stages), stages="+".join(map(str, stages)))
            for each, stages in zip(words, (ours, theirs), strict=True)
        ),
    )
    ends = [list(accumulate(stages)) for stages in (ours, theirs)]
    src_ranks, dst_ranks = (each["tp"] * each["pcp"] for each in words)
    for group in found.groups:
        seen = []
        for entry in found.entries(group.name):
            for layer in entry.layers:
                src_stage, dst_stage = (bisect_right(each, layer) for each in ends)
                rank = entry.rank - dst_stage * dst_ranks
                wanted = flat.runs(group.name, rank)
                wanted[:, 0] += src_stage * src_ranks
                assert (entry.runs() == wanted).all() and len(wanted)
                assert (found.runs(group.name, entry.rank, layer) == wanted).all()
                seen.append((layer, rank))
        assert sorted(seen) == [(layer, rank) for layer in group.layers for rank in range(dst_ranks)]


@pytest.mark.parametrize("tps", [(1, 1), (2, 4), (4, 1)])
def test_what_stages_are_made_of_is_right(tps: tuple[int, int]) -> None:
    """The bytes of the plan without stages, which the one with stages repeats."""
    flat = kvlayout.slice_for_tp_transfer(model(3, (0, 2)), *(kvlayout.Engine(tp=tp) for tp in tps))
    sides = [{"tp": tp} for tp in tps]
    assert_right(Pair("gqa", ATTENTION, *sides), found=flat, name="attention")
    assert_right(Pair("linear", STATE, *sides), found=flat, name="state")


def test_stages_are_even_and_the_first_take_the_remainder() -> None:
    spec = model(8, tuple(range(8)))
    even, said = (
        kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(pp=3, **words), kvlayout.Engine())
        for words in ({}, {"stages": "3+3+2"})
    )
    assert even.digest == said.digest
    layers = [(entry.first_src_rank, entry.layers) for entry in even.entries("attention")]
    assert layers == [(0, (0, 1, 2)), (1, (3, 4, 5)), (2, (6, 7))]
