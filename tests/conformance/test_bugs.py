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
from numpy.typing import NDArray
from oracles.positions import page_bytes, positions, replay

import kvlayout
from kvlayout.spec.model import Spec
from kvlayout.testing import reseal

from .harness import Pair, SourcePages, assert_right, interval_runs, model_of, plan, tokens_of

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


def random_pages(blocks: int, nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes that are nowhere zero, so that what was not written shows."""
    return np.random.default_rng(seed).integers(1, 256, (blocks, nbytes), np.uint8)


STATE = {
    "num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 3, "head_v_dim": 2, "conv_kernel": 4, "conv_dtype": "bfloat16",
    "ssm_dtype": "float32",
}  # fmt: skip


def test_b09_a_hit_inside_a_block_takes_tokens_by_range_and_states_whole() -> None:
    """LMCache#4247: a shared prefix of 40 tokens ends inside the third block of 16.

    Attention bytes of exactly these tokens move and none of the other eight of that block, or only those of the
    eight. A state has no tokens: it moves whole where one was stored at the boundary, and not where no table names it.
    """
    found = kvlayout.slice_for_tp_transfer(
        model_of({"attention": ("gqa", gqa(2)), "state": ("gdn", STATE)}), kvlayout.Engine(tp=2), kvlayout.Engine(tp=1)
    )
    layers = {group.name: group.layers[0] for group in found.groups}
    src = {
        rank: {name: {layers[name]: random_pages(4, found.group(name).src.nbytes, rank)} for name in layers}
        for rank in range(2)
    }
    tables = [3, 0, 2], [1, 3, 0]
    token = tokens_of("gqa", gqa(2), {"tp": 1}, 0, blocks=3)
    for state, (begin, end) in ((([2], [1]), (0, 40)), (([], []), (0, 40)), (([], []), (40, 48))):
        whole, part = (
            {name: {layers[name]: np.zeros((4, found.group(name).dst.nbytes), np.uint8)} for name in layers}
            for _ in range(2)
        )
        for dst, tokens in ((whole, None), (part, (begin, end))):
            move = kvlayout.bind(found, dst_rank=0, src=src, dst=dst)
            move({"attention": tables, "state": state}, tokens=tokens)
        moved, full = (side["attention"][layers["attention"]] for side in (part, whole))
        assert (moved[tables[1]] == np.where((begin <= token) & (token < end), full[tables[1]], 0)).all()
        assert full[tables[1]].all() and not moved[2].any()
        states = part["state"][layers["state"]]
        assert (states == whole["state"][layers["state"]]).all()
        assert np.flatnonzero(states.any(axis=1)).tolist() == state[1]
        assert states[state[1]].all()


def test_b12_a_chunk_is_cut_where_the_hit_ends() -> None:
    """LMCache#2206: a hit ends 228 tokens into a chunk of 256: these move, the live tail of 28 stays as it is.

    The tail that is recomputed is the rest, exactly: both intervals together are the whole chunk, and share no byte.
    """
    params = gqa(2)
    for order in ("HND", "NHD"):
        pair = Pair("gqa", params, {"tp": 2, "block": 256, "order": order}, {"tp": 1, "block": 16, "order": "HND"})
        found = assert_right(pair)
        sources = SourcePages(pair.format, params, pair.src, 1)
        expected, token = pair.expected(0), tokens_of("gqa", params, pair.dst, 0, blocks=16)
        hit, tail = (replay(interval_runs(found, "cache", 0, each), sources, expected.shape) for each in CUT_AT_228)
        assert (hit == np.where(token < 228, expected, -1)).all()
        assert (tail == np.where(token >= 228, expected, -1)).all()
        assert ((hit >= 0) != (tail >= 0)).all()


CUT_AT_228 = (0, 228), (228, 256)


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
        assert "128-byte atoms of bfloat16" in text and "64-byte atoms of float8_e4m3" in text


def test_b25_how_ids_of_two_sides_relate_belongs_to_the_group(load: Loader) -> None:
    """vllm-ascend#13934: one factor of ids for two caches of a layer, 8 of one and 1 of the other: ids left the region.

    A layer has a cache in blocks of 16 tokens there and 128 here, and an index in blocks of 128 on both sides. Each
    group has tables of its own, and those of the other are refused.
    """
    spec = load(
        "num_layers: 1\ngroups:\n"
        "  cache: {format: gqa, layers: all, params: {num_kv_heads: 2, head_size: 2, dtype: bfloat16}}\n"
        "  index: {format: indexer_fp8, layers: all, params: {head_dim: 4}}\n"
    )
    engines = kvlayout.Engine.parse("cache.block=16,index.block=128"), kvlayout.Engine(block=128)
    found = kvlayout.slice_for_tp_transfer(spec, *engines)
    counts = {group.name: (group.src_blocks, group.dst_blocks) for group in found.groups}
    assert counts == {"cache": (8, 1), "index": (1, 1)}
    pages = {group.name: (group.src.nbytes, group.dst.nbytes) for group in found.groups}
    blocks = {"cache": 24, "index": 3}
    src = {0: {name: {0: random_pages(blocks[name], pages[name][0])} for name in blocks}}
    dst = {name: {0: np.zeros((3, pages[name][1]), np.uint8)} for name in blocks}
    tables = {"cache": ([*range(8, 24)], [2, 0]), "index": ([1, 2], [2, 0])}
    move = kvlayout.bind(found, dst_rank=0, src=src, dst=dst)
    move(tables)
    for name, (format, params) in {"cache": ("gqa", gqa(2)), "index": ("indexer_fp8", {"head_dim": 4})}.items():
        pair = Pair(format, params, {"block": 128 // counts[name][0]}, {"block": 128})
        assert_right(pair, found=found, name=name)
        for n, block in enumerate(tables[name][1]):
            for _, src_block, at, _, to, nbytes in found.runs(name, 0).tolist():
                page = src[0][name][0][tables[name][0][n * counts[name][0] + src_block]]
                assert (dst[name][0][block, to : to + nbytes] == page[at : at + nbytes]).all()
        assert dst[name][0][[0, 2]].all() and not dst[name][0][1].any()
    for wrong, code in (
        ({**tables, "index": tables["cache"]}, "KVL605"),
        ({**tables, "index": ([0, 1, 2], [2, 0])}, "KVL604"),
        ({**tables, "cache": tables["index"]}, "KVL604"),
    ):
        with pytest.raises(kvlayout.SubmitError) as refused:
            move(wrong)
        assert {each.code for each in refused.value.problems} == {code}


def test_b30_a_plan_tells_how_many_copies_it_takes(load: Loader) -> None:
    """vllm#55434: 101 regions of 1109 blocks gave 112 thousand descriptors of 45 KB; posting took half of the time.

    Whole pages cost a copy a layer and block. With heads inside tokens it is one a token: the cost says so before
    anything moves, and that the order is the reason.
    """
    spec = load(
        "num_layers: 101\ngroups:\n"
        "  cache: {format: gqa, layers: all, params: {num_kv_heads: 4, head_size: 176, dtype: bfloat16}}\n"
    )
    words = {"tp": 1, "order": "LBHNC"}
    equal = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(**words), kvlayout.Engine(**words))
    assert (equal.cost.runs, equal.cost.nbytes, equal.cost.pieces) == (101, 101 * 45056, 101)
    assert (equal.cost.runs * 1109, equal.cost.bytes_per_run) == (112_009, 45056.0)
    costs = {
        order: kvlayout.slice_for_tp_transfer(
            spec, kvlayout.Engine(tp=2, order=order), kvlayout.Engine(tp=1, order=order)
        ).cost
        for order in ("LBHNC", "LBNHC")
    }
    assert {order: cost.runs for order, cost in costs.items()} == {"LBHNC": 101 * 2, "LBNHC": 101 * 2 * 16}
    assert {order: cost.bytes_per_run for order, cost in costs.items()} == {"LBHNC": 22528.0, "LBNHC": 1408.0}
    assert {cost.pieces for cost in costs.values()} == {101 * 2}
    assert {cost.nbytes for cost in costs.values()} == {101 * 45056}


def test_b30_packed_there_is_one_buffer_a_peer() -> None:
    pair = Pair("gqa", gqa(4), {"tp": 2, "order": "NHD"}, {"tp": 1, "order": "NHD"})
    found = assert_right(pair)
    src = {rank: {"cache": {0: random_pages(5, found.group("cache").src.nbytes, rank)}} for rank in range(2)}
    there, packed = ({"cache": {0: np.zeros((5, found.group("cache").dst.nbytes), np.uint8)}} for _ in range(2))
    blocks = {"cache": ([4, 0, 2], [1, 2, 3])}
    kvlayout.bind(found, dst_rank=0, src=src, dst=there)(blocks)
    sender, receiver = (kvlayout.bind(found, dst_rank=0, **side) for side in ({"src": src}, {"dst": packed}))
    assert len(found.runs("cache", 0)) * 3 == 96
    assert sender.packed_bytes(blocks) == {0: 3 * 256, 1: 3 * 256}
    receiver.unpack(sender.pack(blocks), blocks)
    assert (packed["cache"][0] == there["cache"][0]).all() and there["cache"][0][1:4].all()


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


@pytest.mark.parametrize("blocks", [(1056, 4176), (4176, 1056)])
def test_a_hybrids_two_sides_have_attention_blocks_of_their_own(blocks: tuple[int, int]) -> None:
    """The block size of a hybrid follows from its page sizes, and so from the number of ranks: 1056 tokens on one side
    and 4176 on the other meet again after 91872. Attention is cut anywhere, the tails included; states move whole."""
    one, other = blocks
    params = {"num_kv_heads": 2, "head_size": 1, "dtype": "float8_e4m3"}
    src, dst = ({"tp": tp, "block": block} for tp, block in ((2, one), (1, other)))
    spec = model_of({"attention": ("gqa", params), "state": ("gdn", STATE)})
    found = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(**src), kvlayout.Engine(**dst))
    group, pair = found.group("attention"), Pair("gqa", params, src, dst)
    assert (group.src_blocks * one, group.dst_blocks * other) == (91872, 91872)
    assert_right(pair, found=found, name="attention")
    assert_right(Pair("gdn", STATE, {"tp": 2}, {"tp": 1}), found=found, name="state")
    sources = SourcePages("gqa", params, src, group.src_blocks)
    expected, token = pair.expected(0), tokens_of("gqa", params, dst, 0, group.dst_blocks)
    for begin, end in ((0, 10_000), (0, 1056), (4175, 4177), (5280, 91_871), (91_871, 91_872)):
        held = replay(interval_runs(found, "attention", 0, (begin, end)), sources, expected.shape)
        assert (held == np.where((begin <= token) & (token < end), expected, -1)).all()


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
