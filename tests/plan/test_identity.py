"""A layout's digest is another's exactly when bytes may be exchanged without a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.ir import leaves
from kvlayout.plan.artifact import Plan
from kvlayout.plan.identity import Layout, differences, layout_of_groups
from kvlayout.plan.transfer import TransferPlan
from kvlayout.testing.strategies import plans

QWEN = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
NVFP4 = kvlayout.load(specs_dir() / "models" / "llama-3.1-8b-nvfp4.yaml")
MLA = kvlayout.load(specs_dir() / "models" / "deepseek-v3.yaml")


def sides(plan: Plan) -> tuple[Layout, Layout]:
    return (
        layout_of_groups(((group.name, group.layers, group.src) for group in plan.groups), plan.src),
        layout_of_groups(((group.name, group.layers, group.dst) for group in plan.groups), plan.dst),
    )


def copies_nothing_but_itself(plan: Plan) -> bool:
    """Every rank could have kept its own pages: same ranks and stages, and each run goes to where it was."""
    if (plan.src.stage_ranks, plan.src.stages) != (plan.dst.stage_ranks, plan.dst.stages):
        return False
    for group in plan.groups:
        a, b = group.src, group.dst
        if (a.nbytes, [size for _, size in a.buffers]) != (b.nbytes, [size for _, size in b.buffers]):
            return False
        if {leaf.field for leaf in leaves(a.tree)} != {leaf.field for leaf in leaves(b.tree)}:
            return False
        if any(a.axes[name].size != b.axes[name].size for leaf in leaves(b.tree) for name in leaf.axes):
            return False
        for moves in group.ranks:
            for piece in moves.pieces:
                there = piece.src_rank, piece.src_block, piece.src_offset, [ss for _, ss, _ in piece.loops]
                if there != (moves.rank, piece.dst_block, piece.dst_offset, [ds for _, _, ds in piece.loops]):
                    return False
    return True


@given(st.data(), plans())
def test_equal_digests_mean_that_no_byte_moves(data: st.DataObject, plan: Plan) -> None:
    src, dst = sides(plan)
    same = copies_nothing_but_itself(plan)
    event(f"identical: {same}")
    assert (src.digest == dst.digest) is same
    assert (not differences(src, dst)) is same
    assert src.digest == sides(plan)[0].digest  # and nothing depends on an object's identity


OMITTED: list[tuple[str, kvlayout.Spec, dict[str, Any]]] = [
    ("tp", QWEN, {"tp": 4}),
    ("block size", QWEN, {"block": 32}),
    ("layout", QWEN, {"tp": 1, "order": "NHD"}),
    ("mamba_cache_dtype", QWEN, {"state.conv_dtype": "float32"}),
    ("mamba_ssm_cache_dtype", QWEN, {"state.ssm_dtype": "float32"}),
    ("conv state layout", QWEN, {"conv": "SD"}),
    ("speculative tokens, also of an ngram", QWEN, {"spec_tokens": 1}),
    ("more speculative tokens", QWEN, {"spec_tokens": 3}),
    ("num_head_slots", QWEN, {"tp": 1, "attention.kv_packing": "planes"}),
    ("padding", QWEN, {"state.page": 1 << 20}),
    ("kernel blocks under a padded page", QWEN, {"tp": 1, "block": 64, "kernel_block": 16}),
    ("pages made equal", QWEN, {"family": "vllm@0.32"}),
    ("GPU architecture, by its scale layout", NVFP4, {"attention.scale_layout": "sm100"}),
    ("pipeline stages", QWEN, {"pp": 2}),
    ("dcp", MLA, {"dcp": 2}),
    ("interleave", MLA, {"dcp": 2, "interleave": 16}),
    ("pcp", MLA, {"pcp": 2}),
    ("cache dtype", MLA, {"kv_dtype": "fp8_ds_mla"}),
]


@pytest.mark.parametrize(("what", "spec", "words"), OMITTED, ids=[what for what, _, _ in OMITTED])
def test_what_changes_bytes_changes_the_digest(what: str, spec: kvlayout.Spec, words: dict[str, Any]) -> None:
    """Most of these are not in the hash that vLLM 0.32's NIXL connector compares (nixl/metadata.py)."""
    base = kvlayout.Engine(tp=int(words.get("tp", 2)) if len(words) > 1 else 2)
    assert (
        kvlayout.layout_of(spec, base).digest != kvlayout.layout_of(spec, kvlayout.Engine(**{"tp": 2, **words})).digest
    )


def test_the_digests_of_one_model_are_all_different() -> None:
    engines = [{}, *(words for _, spec, words in OMITTED if spec is QWEN)]
    digests = Counter(kvlayout.layout_of(QWEN, kvlayout.Engine(**{"tp": 2, **words})).digest for words in engines)
    assert max(digests.values()) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("tp=2", "tp=2,order=NHD"),  # one head a rank: head-major and token-major are one
        ("tp=4,order=NHD,block=64", "tp=4,order=NHD,block=64,kernel_block=16"),
        ("tp=2,order=LBHNC", "tp=2,order=BLHNC"),
        ("tp=2", "tp=2,interleave=4"),
        ("tp=1,family=vllm@0.32", "tp=1,block=544,state.page=1114112"),
        ("tp=2,pp=2", "tp=2,stages=24+24"),
    ],
)
def test_other_words_for_the_same_bytes_have_the_same_digest(a: str, b: str) -> None:
    found = kvlayout.compare(QWEN, kvlayout.Engine.parse(a), kvlayout.Engine.parse(b))
    assert found.verdict == "identical" and not found.reasons


def test_an_answer_has_its_reasons_and_its_cost() -> None:
    found = kvlayout.compare(QWEN, kvlayout.Engine(tp=2), kvlayout.Engine(tp=1, order="NHD"))
    assert found.verdict == "convertible" and found.plan is not None and found.cost is not None
    assert any("ranks of a stage 2 -> 1" in reason for reason in found.reasons)
    assert found.cost.descriptors == sum(
        len(entry.runs()) * len(entry.layers) for name in ("attention", "state") for entry in found.plan.entries(name)
    )
    assert found.cost.nbytes == 12 * 32768 + 36 * QWEN.page(QWEN.group("state"), kvlayout.Engine()).nbytes
    assert found.cost.read_per_byte == 1.0
    half = kvlayout.compare(QWEN, kvlayout.Engine(), kvlayout.Engine(tp=2))
    assert half.cost is not None and half.cost.read_per_byte == 2.0  # each rank needs half of every page it reads


def test_a_refusal_has_codes_and_help() -> None:
    found = kvlayout.compare(QWEN, kvlayout.Engine(), kvlayout.Engine(**{"state.ssm_dtype": "float32"}))
    assert (found.verdict, found.cost, found.plan) == ("refused", None, None)
    assert [each.code for each in found.problems] == ["KVL502"] and found.problems[0].help
    assert kvlayout.compare(QWEN, kvlayout.Engine(tp=3), kvlayout.Engine()).verdict == "refused"


def test_a_group_has_a_digest_of_its_own() -> None:
    plain = kvlayout.layout_of(QWEN, kvlayout.Engine(tp=2))
    staged = kvlayout.layout_of(QWEN, kvlayout.Engine(tp=2, pp=2))
    other = kvlayout.layout_of(QWEN, kvlayout.Engine(tp=2, conv="SD"))
    assert plain.group_digest("state") == staged.group_digest("state") != other.group_digest("state")
    assert plain.group_digest("attention") == other.group_digest("attention")
    with pytest.raises(KeyError):
        plain.group_digest("cache")


def test_the_digest_does_not_change_between_versions() -> None:
    """Stored objects and peers of another version name layouts by it; a change here is a change of format."""
    assert kvlayout.layout_of(QWEN, kvlayout.Engine(tp=2)).digest == (
        "sha256:5d0b3e02eae6ba646d2a109d1aaa78ecd9763254752e2badb5251d1a83a286e1"
    )
    assert isinstance(kvlayout.compare(QWEN, kvlayout.Engine(), kvlayout.Engine()).plan, TransferPlan)
