"""Faults that were really shipped, as small cases: the right plan, or the right refusal.

Each test names the public report that it comes from. The numbers are the report's, and right answers are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from oracles.positions import page_bytes, positions

import kvlayout
from kvlayout.spec.model import Spec
from kvlayout.testing import reseal

from .harness import Pair, assert_right, plan

Loader = Callable[[str], Spec]


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Loads a model spec from its text, which lacks only the first lines that are the same for all."""

    def load(text: str) -> Spec:
        path = tmp_path / "model.yaml"
        path.write_text(f"kvlayout: 1\nmodel: small\nsource: a public report\n{text}", encoding="utf-8")
        return kvlayout.load(path)

    return load


def gqa(heads: int, size: int = 2, **params: Any) -> dict[str, Any]:
    return {"num_kv_heads": heads, "head_size": size, "dtype": "bfloat16", **params}


def heads_read(pair: Pair, rank: int) -> list[tuple[int, int]]:
    """(source rank, global head) of each run of a content-packed page with heads outside, by destination."""
    share = max(1, pair.params["num_kv_heads"] // pair.src["tp"])
    token = 2 * pair.params["head_size"] * 2
    head = pair.src.get("block", 16) * token
    pairs = []
    for source, _, offset, _, _, nbytes in plan(pair).runs("cache", rank).tolist():
        assert offset % head == nbytes % head == 0
        first = source * pair.params["num_kv_heads"] // pair.src["tp"] + offset // head
        assert offset + nbytes <= share * head
        pairs += [(source, unit) for unit in range(first, first + nbytes // head)]
    return pairs


def test_b01_replicated_ranks_do_not_hold_the_whole_page() -> None:
    """vllm#52516: 4 heads on 8 ranks to one rank takes four sources, one a head; not one, and not all eight."""
    pair = Pair("gqa", gqa(4), {"tp": 8}, {"tp": 1})
    found = assert_right(pair)
    sources = found.sources(0)["cache"]
    assert len(sources) == 4
    assert [rank // 2 for rank in sources] == [0, 1, 2, 3]
    runs = found.runs("cache", 0)
    assert sorted(runs[:, 0].tolist()) == list(sources)
    assert runs[:, 5].sum() == page_bytes("gqa", pair.params, pair.dst)


def test_b02_replicas_share_heads_by_floor_and_not_by_modulo() -> None:
    """sglang#23746, #30997: 2 heads on 4 ranks are heads 0, 0, 1, 1; modulo would give 0, 1, 0, 1."""
    pair = Pair("gqa", gqa(2), {"tp": 1}, {"tp": 4})
    assert_right(pair)
    assert [heads_read(pair, rank) for rank in range(4)] == [[(0, 0)], [(0, 0)], [(0, 1)], [(0, 1)]]


def test_b03_conv_parts_are_cut_on_their_own() -> None:
    """sglang#23746, #30997: parts of 8, 8 and 16 channels on 4 ranks: rank 1 holds 2,3, 10,11 and 20..23."""
    params = {
        "num_k_heads": 8, "num_v_heads": 16, "head_k_dim": 1, "head_v_dim": 1, "conv_kernel": 2,
        "conv_dtype": "bfloat16", "ssm_dtype": "bfloat16",
    }  # fmt: skip
    pair = Pair("gdn", params, {"tp": 1}, {"tp": 4})
    runs = assert_right(pair).runs("cache", 1)
    channels = [
        offset // 2 + step
        for _, _, offset, _, _, nbytes in runs.tolist()
        if offset < 32 * 2
        for step in range(nbytes // 2)
    ]
    assert channels == [2, 3, 10, 11, 20, 21, 22, 23]


def test_b04_source_addresses_stay_inside_the_page() -> None:
    """sglang#31295: 2 heads to 4 ranks: two head groups exist, and nothing is read where a third would begin."""
    pair = Pair("gqa", gqa(2), {"tp": 1}, {"tp": 4})
    found = assert_right(pair)
    ends = [int((runs[:, 2] + runs[:, 5]).max()) for runs in (found.runs("cache", rank) for rank in range(4))]
    page = page_bytes("gqa", pair.params, pair.src)
    assert ends == [page // 2, page // 2, page, page]


def test_b07_the_order_decides_the_runs() -> None:
    """TensorRT-LLM#6507, #6917: 4 heads, 4 tokens, size 2, 2 ranks to 1: a run a head range, or a run a token."""
    for order, runs_of_a_source in (("LBHNC", 1), ("LBNHC", 4)):
        engine = {"block": 4, "order": order}
        pair = Pair("gqa", gqa(4), {"tp": 2, **engine}, {"tp": 1, **engine})
        runs = assert_right(pair).runs("cache", 0)
        assert np.bincount(runs[:, 0]).tolist() == [runs_of_a_source] * 2


def test_b08_unequal_orders_convert_by_plan() -> None:
    """vllm#46204, TensorRT-LLM#17011: a forced order is another layout: each byte is moved to its place."""
    digests = set()
    for src in ("HND", "NHD"):
        for dst in ("HND", "NHD"):
            pair = Pair("gqa", gqa(4), {"tp": 2, "order": src}, {"tp": 4, "order": dst})
            digests.add(assert_right(pair).digest)
    assert len(digests) == 4
    equal, unequal = (
        plan(Pair("gqa", gqa(4), {"order": order}, {"order": "NHD"})).runs("cache", 0) for order in ("NHD", "HND")
    )
    assert (len(equal), len(unequal)) == (1, 4 * 16)


def test_b13_each_rank_reads_its_own_peer() -> None:
    """LMCache#2405: between equal sizes the source rank is one's own, not rank 0."""
    found = assert_right(Pair("gqa", gqa(4), {"tp": 2}, {"tp": 2}))
    assert [found.sources(rank)["cache"] for rank in range(2)] == [(0,), (1,)]


def test_b15_one_model_has_pages_of_different_shape(load: Loader) -> None:
    """LMCache#4358: local layers of head size 256 beside global layers of head size 512."""
    spec = load(
        "num_layers: 6\ngroups:\n"
        "  global: {format: gqa, layers: [5], params: {num_kv_heads: 4, head_size: 512, dtype: bfloat16}}\n"
        "  local: {format: gqa, layers: 5, params: {num_kv_heads: 16, head_size: 256, dtype: bfloat16}}\n"
    )
    found = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(tp=2), kvlayout.Engine(tp=4))
    pages = {
        group.name: ({entry.page_bytes for entry in found.entries(group.name)}, group.layers) for group in found.groups
    }
    assert pages == {"global": ({1 * 16 * 2048}, (5,)), "local": ({4 * 16 * 1024}, (0, 1, 2, 3, 4))}
    for name, heads, size in (("global", 4, 512), ("local", 16, 256)):
        alone = assert_right(Pair("gqa", gqa(heads, size), {"tp": 2}, {"tp": 4}))
        for rank in range(4):
            assert (found.runs(name, rank) == alone.runs("cache", rank)).all()


def test_b17_each_group_keeps_its_own_block(load: Loader) -> None:
    """vllm#50714: groups of 256 and of 4 tokens a block in one model; neither takes the other's block size."""
    params = "params: {num_kv_heads: 2, head_size: 2, dtype: bfloat16}"
    spec = load(
        "num_layers: 2\ngroups:\n"
        f"  wide: {{format: gqa, layers: [0], block: 256, {params}}}\n"
        f"  narrow: {{format: gqa, layers: [1], block: 4, {params}}}\n"
    )
    for block in (None, 16):
        engines = kvlayout.Engine(tp=1, block=block), kvlayout.Engine(tp=2, block=block)
        found = kvlayout.slice_for_tp_transfer(spec, *engines)
        for name, tokens in (("wide", 256), ("narrow", 4)):
            alone = assert_right(Pair("gqa", gqa(2), {"tp": 1, "block": tokens}, {"tp": 2, "block": tokens}))
            assert (found.group(name).src_blocks, found.group(name).dst_blocks) == (1, 1)
            for entry in found.entries(name):
                assert entry.page_bytes == tokens * 8
                assert (entry.runs() == alone.runs("cache", entry.rank)).all()


def test_b22_nvfp4_scales_travel_and_swizzles_convert() -> None:
    """vllm#49012: 64 bytes of data and 8 of scales a side, head and token; the swizzle runs along tokens, not heads."""
    linear = {"num_kv_heads": 4, "head_size": 128}
    swizzled = {**linear, "scale_layout": "sm100"}
    assert page_bytes("nvfp4", linear, {"block": 16}) == 4 * 16 * 2 * (64 + 8)
    fields = positions("nvfp4", linear, {}, 0)
    assert [len(part.where) * part.atom // 64 for part in fields.values()] == [64, 8, 64, 8]
    for params, other in ((linear, swizzled), (swizzled, linear), (linear, linear), (swizzled, swizzled)):
        for order in ("HND", "NHD"):
            pair = Pair("nvfp4", params, {"tp": 1, "order": order}, {"tp": 2}, other)
            found = assert_right(pair)
            assert {field for piece in found.group("cache").ranks[0].pieces for field in piece.fields} == set(fields)
            assert next(found.entries("cache")).payload_bytes == 2 * 16 * 144
    straight, permuted = (plan(Pair("nvfp4", linear, {}, {}, other)) for other in (linear, swizzled))
    assert len(straight.runs("cache", 0)) == 1
    assert len(permuted.runs("cache", 0)) > 1
    assert straight.digest != permuted.digest


def test_b23_rows_of_656_and_576_bytes_have_no_byte_copy(load: Loader) -> None:
    """pegainfer#756: 512 fp8 + 16 scale + 128 bf16 rope against 512 + 64 fp8 rope: refused, and both sides named."""
    spec = load(
        "num_layers: 1\ngroups:\n"
        "  attention: {format: mla_fp8_ds, layers: all, params: {kv_lora_rank: 512, qk_rope_head_dim: 64}}\n"
    )
    packed = kvlayout.Engine()
    plain = kvlayout.Engine(groups={"attention": {"format": "mla", "dtype": "float8_e4m3"}})
    rows = [next(kvlayout.slice_for_tp_transfer(spec, one, one).entries("attention")) for one in (packed, plain)]
    assert [row.page_bytes // 16 for row in rows] == [656, 576]
    for src, dst in ((packed, plain), (plain, packed)):
        with pytest.raises(kvlayout.PlanRefused) as refused:
            kvlayout.slice_for_tp_transfer(spec, src, dst)
        assert not refused.value.unloadable
        assert {each.code for each in refused.value.problems} == {"KVL501", "KVL502"}
        text = str(refused.value)
        assert "'latent_scale'" in text and "'rope'" in text
        assert "128 bytes of bfloat16" in text and "64 bytes of float8_e4m3" in text


def test_b31_exchanged_sender_ids_are_refuted() -> None:
    """tpu-inference#3379: every destination byte written once, in bounds, and half of them from the wrong sender."""
    found = plan(Pair("gqa", gqa(4), {"tp": 4}, {"tp": 2}))
    document = found.document
    (group,) = document.plan.groups
    exchanged = {0: 2, 2: 0, 1: 3, 3: 1}
    ranks = tuple(
        msgspec.structs.replace(
            moves,
            pieces=tuple(msgspec.structs.replace(piece, src_rank=exchanged[piece.src_rank]) for piece in moves.pieces),
        )
        for moves in group.ranks
    )
    moved = msgspec.structs.replace(document.plan, groups=(msgspec.structs.replace(group, ranks=ranks),))
    forged = reseal(msgspec.structs.replace(document, plan=moved))
    assert kvlayout.check(document).proved
    verdict = kvlayout.check(forged)
    assert verdict.status == "refuted"
    assert verdict.problems and all(each.code for each in verdict.problems)


@pytest.mark.parametrize(
    ("interleave", "tokens"),
    [(16, [list(range(16)), list(range(16, 32))]), (1, [list(range(0, 32, 2)), list(range(1, 32, 2))])],
)
def test_b32_context_parallel_ranks_hold_other_tokens(interleave: int, tokens: list[list[int]]) -> None:
    """sglang#32837, vllm#34975: blocks of 16 from 2 context-parallel ranks to 1, in runs of 16 tokens and of one."""
    params = {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}
    pair = Pair("mla", params, {"tp": 2, "dcp": 2, "interleave": interleave}, {"tp": 1})
    runs = assert_right(pair).runs("cache", 0)
    token = np.concatenate([np.arange(n // 6) + (16 * block + at // 6) for _, _, _, block, at, n in runs.tolist()])
    source = np.concatenate([np.full(n // 6, rank) for rank, _, _, _, _, n in runs.tolist()])
    assert [token[source == rank].tolist() for rank in range(2)] == tokens
    assert set(runs[:, 5].tolist()) == {6 * interleave}


def test_b35_one_group_of_mamba2_is_never_sliced() -> None:
    """vllm#55208: inner size 8192, state 128, one group, 1 rank to 2: x halves, B and C stay whole."""
    params = {
        "num_heads": 128, "head_dim": 64, "n_groups": 1, "state_size": 128, "conv_kernel": 4,
        "conv_dtype": "bfloat16", "ssm_dtype": "bfloat16",
    }  # fmt: skip
    pair = Pair("mamba2", params, {"tp": 1}, {"tp": 2})
    found = assert_right(pair)
    channel = 3 * 2
    for rank in range(2):
        read = np.concatenate(
            [np.arange(src, src + nbytes, channel) for _, _, src, _, _, nbytes in found.runs("cache", rank).tolist()]
        )
        conv = read[read < 8448 * channel] // channel
        assert conv.tolist() == [*range(rank * 4096, (rank + 1) * 4096), *range(8192, 8448)]


def test_b36_an_nvfp4_page_is_cut_in_four() -> None:
    """Read off vLLM 0.32: a page of 8 heads of 128 is four runs over all heads, so half of it is four runs."""
    pair = Pair("nvfp4", {"num_kv_heads": 8, "head_size": 128}, {"tp": 2}, {"tp": 4})
    found = assert_right(pair)
    data, scale, local = 16 * 64, 16 * 8, 2
    for rank in range(4):
        first = rank % 2 * local
        starts = 0, 4 * data, 4 * (data + scale), 4 * (2 * data + scale)
        wanted = [
            [rank // 2, 0, start + first * unit, 0, start // 2, local * unit]
            for start, unit in zip(starts, (data, scale, data, scale), strict=True)
        ]
        assert found.runs("cache", rank).tolist() == wanted


@pytest.mark.parametrize("order", ["HND", "NHD"])
def test_b37_planes_are_cut_each_on_its_own(order: str) -> None:
    """Read off vLLM 0.32: K and V planes of 4 heads, 16 tokens, 1 rank to 2: 32 runs, never one half page."""
    engine = {"block": 16, "order": order}
    pair = Pair("gqa", gqa(4, kv_packing="planes"), {"tp": 1, **engine}, {"tp": 2, **engine})
    found = assert_right(pair)
    for rank in range(2):
        runs = found.runs("cache", rank)
        assert len(runs) == 32
        assert set(runs[:, 5].tolist()) == {2 * 4}


def test_b38_ratios_that_do_not_divide() -> None:
    """SGLang's formula, run: 6 heads, 2 ranks to 3: rank 1 takes head 2 from source 0 and head 3 from source 1."""
    pair = Pair("gqa", gqa(6), {"tp": 2}, {"tp": 3})
    assert_right(pair)
    assert [heads_read(pair, rank) for rank in range(3)] == [[(0, 0), (0, 1)], [(0, 2), (1, 3)], [(1, 4), (1, 5)]]


def test_cases_also_hold_on_the_way_back() -> None:
    """What one engine can send, the other can send back."""
    pairs = [
        Pair("gqa", gqa(4), {"tp": 8}, {"tp": 1}),
        Pair("gqa", gqa(6), {"tp": 2}, {"tp": 3}),
        Pair("nvfp4", {"num_kv_heads": 8, "head_size": 64}, {"tp": 2}, {"tp": 4}),
        Pair("gqa", gqa(4, kv_packing="planes"), {"tp": 1}, {"tp": 2}),
    ]
    for pair in pairs:
        assert_right(pair)
        assert_right(pair.back)
