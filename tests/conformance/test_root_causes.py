"""The sixteen places where vLLM 0.32's transfer arithmetic is wrong, one test each: the right plan, or the refusal.

Each was found by reading vLLM's connectors and driving them on small cases. Names and numbers are those of the case:
P sends, D receives, K is the number of KV heads of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.positions import page_bytes, positions

import kvlayout
from kvlayout.emit.interpret import interpret
from kvlayout.plan.transfer import TransferPlan
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import Spec, spec_of_format

from .harness import DATA, Pair, assert_right, model_of, plan, spec_of

Words = Mapping[str, Any]

STATE = {"conv_kernel": 4, "conv_dtype": "bfloat16", "ssm_dtype": "float32"}
GDN = {"num_k_heads": 4, "num_v_heads": 8, "head_k_dim": 3, "head_v_dim": 2, **STATE}
MLA = {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}


def gqa(heads: int, size: int = 2, **params: Any) -> dict[str, Any]:
    return {"num_kv_heads": heads, "head_size": size, "dtype": "bfloat16", **params}


def hybrid(attention: Words, state: Words, src: Words, dst: Words) -> TransferPlan:
    """The proved plan of a model with both kinds of page, every byte of both checked."""
    groups = {"attention": ("gqa", attention), "state": ("gdn", state)}
    found = kvlayout.slice_for_tp_transfer(model_of(groups), kvlayout.Engine(**src), kvlayout.Engine(**dst))
    for name, (format, params) in groups.items():
        assert_right(Pair(format, params, src, dst), found=found, name=name)
    return found


def codes(error: kvlayout.PlanRefused) -> set[str]:
    return {each.code for each in error.problems}


def test_w_a1_one_group_is_on_every_rank() -> None:
    """NIXL scales the offsets of B and C by the sizes' ratio although one group is on every rank.

    Granite, P1 -> D2: x of 3072 channels, B and C of 128 each, three rows of two bytes. C begins at 19200; NIXL reads
    it at 19968, where the temporal state begins.
    """
    params = {"num_heads": 48, "head_dim": 64, "n_groups": 1, "state_size": 128, **STATE}
    pair = Pair("mamba2", params, {"tp": 1}, {"tp": 2})
    found = assert_right(pair)
    channel = 3 * 2
    b, c, temporal = 3072 * channel, 3200 * channel, 3328 * channel
    assert (c, temporal) == (19200, 19968)
    for rank in range(2):
        place = np.full(page_bytes("mamba2", params, pair.dst), -1)
        for _, _, at, _, to, nbytes in found.runs("cache", rank).tolist():
            place[to : to + nbytes] = np.arange(at, at + nbytes)
        assert place[b // 2 : b // 2 + 2 * 128 * channel].tolist() == list(range(b, temporal))
        assert place[b // 2 + c - b] == c
    for src, dst in ((2, 1), (2, 4), (4, 2)):
        assert_right(Pair("mamba2", params, {"tp": src}, {"tp": dst}))


@pytest.mark.parametrize("conv", ["DS", "SD"])
@pytest.mark.parametrize("tokens", [(0, 1), (1, 0), (1, 3), (3, 1)])
def test_w_a2_windows_of_unequal_length(tokens: tuple[int, int], conv: str) -> None:
    """Speculative tokens lengthen the convolution windows, and their number is in no hash: windows are cut wrongly.

    The rows that both sides have move, none is written twice, the others are left as they were; and the two sides know
    that they differ, since no two of the pages are the same.
    """
    src, dst = ({"tp": tp, "conv": conv, "spec_tokens": n} for tp, n in zip((2, 4), tokens, strict=True))
    pair = Pair("gdn", GDN, src, dst)
    found = assert_right(pair)
    rows = {name: 3 + n for name, n in zip(("src", "dst"), tokens, strict=True)}
    group = found.group("cache")
    assert {"src": group.src.axes["row"].size, "dst": group.dst.axes["row"].size} == rows
    assert group.src.axes["row"].common
    page = page_bytes("gdn", GDN, dst)
    channels = (2 * 4 * 3 + 8 * 2) // 4
    temporal = 8 // 4 * 3 * 2 * 4
    written = found.runs("cache", 3)[:, 5].sum()
    assert (written, page) == (channels * min(rows.values()) * 2 + temporal, channels * rows["dst"] * 2 + temporal)
    equal = [plan(Pair("gdn", GDN, {**src, "spec_tokens": n}, {**dst, "spec_tokens": n})).digest for n in tokens]
    assert len({found.digest, *equal}) == 3


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (2, 2)])
def test_w_a3_temporal_states_of_another_dtype(sizes: tuple[int, int]) -> None:
    """`mamba_ssm_cache_dtype` is in no hash: half of a state is read then, or two. No byte copy converts it."""
    src, dst = sizes
    for there, here in (("float32", "bfloat16"), ("bfloat16", "float32")):
        engines = (
            kvlayout.Engine(tp=src, **{"cache.ssm_dtype": there}),
            kvlayout.Engine(tp=dst, **{"cache.ssm_dtype": here}),
        )
        with pytest.raises(kvlayout.PlanRefused) as refused:
            kvlayout.slice_for_tp_transfer(spec_of("gdn", GDN), *engines)
        assert codes(refused.value) == {"KVL502"} and not refused.value.unloadable
        assert there in str(refused.value) and here in str(refused.value) and "temporal" in str(refused.value)


def test_w_a4_a_pushed_hybrid_reaches_every_rank() -> None:
    """Qwen3-Next, K=2, P2 -> D4: of two ranks with the same head one got no keys and values, since the list of targets
    was deduplicated for reading."""
    found = hybrid(gqa(2), GDN, {"tp": 2}, {"tp": 4})
    assert [found.sources(rank) for rank in range(4)] == [
        {"attention": (source,), "state": (source,)} for source in (0, 0, 1, 1)
    ]


def test_w_a5_states_beyond_the_first_two_move_or_are_refused(tmp_path: Path) -> None:
    """A state with a ring of recent inputs has a third array, which NIXL leaves behind and MoRIIO refuses."""
    path = tmp_path / "replay.yaml"
    path.write_text(
        "kvlayout: 1\nformat: replay\nsource: a state with a ring behind it\nextends: linear\n"
        "axes: {slot: {size: 5}}\n"
        "page:\n"
        "  - {array: [head], of: {field: temporal, bytes: head_dim * head_dim * size(dtype), tag: dtype}}\n"
        "  - {array: [head, slot], of: {field: ring, bytes: head_dim * size(dtype), tag: dtype}}\n",
        encoding="utf-8",
    )
    params = {"num_heads": 4, "head_dim": 3, "dtype": "bfloat16"}
    spec, plain = spec_of_format(load_format(path), params, "test"), spec_of("linear", params)
    found = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(tp=1), kvlayout.Engine(tp=2))
    temporal, ring = 3 * 3 * 2, 5 * 3 * 2
    for rank in range(2):
        assert found.runs("cache", rank)[:, 2:].tolist() == [
            [rank * 2 * temporal, 0, 0, 2 * temporal],
            [4 * temporal + rank * 2 * ring, 0, 2 * temporal, 2 * ring],
        ]
    for ours, theirs in ((spec, plain), (plain, spec)):
        with pytest.raises(kvlayout.PlanRefused, match="'ring'") as refused:
            kvlayout.slice_for_tp_transfer(ours, kvlayout.Engine(), kvlayout.Engine(), theirs)
        assert codes(refused.value) == {"KVL501"}


@pytest.mark.parametrize("order", ["HND", "NHD"])
def test_w_b1_each_plane_is_cut(order: str) -> None:
    """Half of a page with a plane of keys and a plane of values is all keys: D rank 0 got no values."""
    params, engine = gqa(4, kv_packing="planes"), {"block": 16, "order": order}
    pair = Pair("gqa", params, {"tp": 1, **engine}, {"tp": 2, **engine})
    found = assert_right(pair)
    fields = positions("gqa", params, pair.src, 0)
    values = set(fields["v"].where[:, -1].tolist())
    for rank in range(2):
        read = found.runs("cache", rank)
        assert sum(at in values for at in read[:, 2].tolist()) == len(read) // 2


def test_w_b2_four_runs_of_scaled_four_bit_heads() -> None:
    """A head of an NVFP4 page is four runs, of data and scales of each side; NIXL takes one span of the page."""
    for tps, runs in (((2, 4), 4), ((4, 2), 8), ((1, 8), 4)):
        pair = Pair("nvfp4", {"num_kv_heads": 8, "head_size": 64}, *({"tp": tp} for tp in tps))
        found = assert_right(pair)
        assert {len(found.runs("cache", rank)) for rank in pair.ranks} == {runs}


def test_w_b3_heads_are_not_counted_in_padded_pages() -> None:
    """K=4, 16 tokens, P1 -> D2: heads lie 128 bytes apart; in a page of 1024 with half of it pad, NIXL cut at 512."""
    spec = spec_of("gqa", gqa(4))
    for src_page, dst_page in ((1024, 512), (1024, None), (None, 512), (520, 300)):
        engines = kvlayout.Engine(tp=1, page=src_page), kvlayout.Engine(tp=2, page=dst_page)
        found = kvlayout.slice_for_tp_transfer(spec, *engines)
        entries = list(found.entries("cache"))
        assert [entry.page_bytes for entry in entries] == [dst_page or 256] * 2
        assert [entry.runs().tolist() for entry in entries] == [[[0, 0, rank * 256, 0, 0, 256]] for rank in range(2)]
        assert [entry.payload_bytes for entry in entries] == [256, 256]
    assert_right(Pair("gqa", gqa(4), {"tp": 1}, {"tp": 2}))


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 4), (4, 2), (8, 2)])
def test_w_c1_a_hybrids_state_is_no_opaque_span(sizes: tuple[int, int]) -> None:
    """Mooncake copies a state page as one span wherever the padded sizes happen to have the ratio of the ranks."""
    src, dst = sizes
    state = {**GDN, "num_k_heads": 8}
    found = hybrid(gqa(2), state, {"tp": src}, {"tp": dst})
    pages = {tp: (page_bytes("gdn", state, {"tp": 1}) + 64) // tp for tp in sizes}
    assert pages[src] * src == pages[dst] * dst  # what Mooncake compares
    padded = kvlayout.slice_for_tp_transfer(
        model_of({"attention": ("gqa", gqa(2)), "state": ("gdn", state)}),
        *(kvlayout.Engine(tp=tp, **{"state.page": pages[tp]}) for tp in sizes),
    )
    for entry in padded.entries("state"):
        assert entry.page_bytes == pages[dst]
        assert entry.runs().tolist() == found.runs("state", entry.rank).tolist()
        assert len(entry.runs()) == max(4, 4 * src // dst)  # q, k, v and the temporal state, of each source


@pytest.mark.parametrize("orders", [("NHD", "NHD"), ("HND", "NHD"), ("NHD", "HND")])
def test_w_c2_tokens_outside_heads(orders: tuple[str, str]) -> None:
    """Mooncake never looks at the order: one span of a page with tokens outside holds all heads of half the tokens."""
    pair = Pair("gqa", gqa(4), {"tp": 1, "order": orders[0]}, {"tp": 2, "order": orders[1]})
    found = assert_right(pair)
    if orders == ("NHD", "NHD"):
        for rank in range(2):
            wanted = [[0, 0, token * 32 + rank * 16, 0, token * 16, 16] for token in range(16)]
            assert found.runs("cache", rank).tolist() == wanted
    else:
        assert {len(found.runs("cache", rank)) for rank in range(2)} == {32}


@pytest.mark.parametrize("blocks", [(16, 32), (32, 16), (48, 32)])
def test_w_c3_blocks_of_latents_are_compared(blocks: tuple[int, int]) -> None:
    """Mooncake compares no block sizes of latents: P 16 and D 32 left half of each page as it was."""
    src, dst = blocks
    found = assert_right(Pair("mla", MLA, {"tp": 2, "block": src}, {"tp": 1, "block": dst}))
    span = int(np.lcm(src, dst))
    assert (found.group("cache").src_blocks, found.group("cache").dst_blocks) == (span // src, span // dst)
    assert found.runs("cache", 0)[:, 5].sum() == span * 6


def test_w_d1_every_rank_is_written_by_its_own_page_size() -> None:
    """MoRIIO's writes take the local page size for both sides, and leave out ranks where D has more than P."""
    for format, params in (("mla", MLA), ("gqa", gqa(2))):
        for src, dst in ((1, 2), (1, 4), (2, 8), (4, 1), (4, 2)):
            found = assert_right(Pair(format, params, {"tp": src}, {"tp": dst}))
            assert all(found.sources(rank)["cache"] for rank in range(dst))
            ends = [runs[:, 4] + runs[:, 5] for runs in (found.runs("cache", rank) for rank in range(dst))]
            assert {int(end.max()) for end in ends} == {found.group("cache").dst.nbytes}


@pytest.mark.parametrize("blocks", [(8, 16), (16, 8), (12, 16)])
def test_w_d2_block_sizes_are_compared(blocks: tuple[int, int]) -> None:
    """MoRIIO reads blocks of its own size from a peer whose blocks are smaller: the rest is the peer's next block."""
    for order in ("HND", "NHD"):
        src, dst = ({"tp": 1, "block": block, "order": order} for block in blocks)
        found = assert_right(Pair("gqa", gqa(2), src, dst))
        runs = found.runs("cache", 0)
        assert (runs[:, 2] + runs[:, 5]).max() == found.group("cache").src.nbytes


def test_w_e1_planes_with_two_heads_are_not_content() -> None:
    """With two heads on a rank, planes `[B, 2, N, H * D]` have the shape of packed content, and were certified as such.

    Here how a page is packed is said, and not guessed: as many bytes, another layout, another digest, and the plan from
    one to the other moves each byte to its place.
    """
    planes, content = gqa(4, kv_packing="planes"), gqa(4)
    rank, whole = {"tp": 2}, {"tp": 1}
    assert page_bytes("gqa", planes, rank) == page_bytes("gqa", content, rank)
    pairs = [Pair("gqa", one, rank, whole, other) for one in (planes, content) for other in (planes, content)]
    digests = {assert_right(pair).digest for pair in pairs}
    assert len(digests) == 4
    split = spec_of_format(load_format(DATA / "split_planes.yaml"), gqa(4), "test")
    nhd = kvlayout.Engine(tp=2, order="NHD"), kvlayout.Engine(tp=1, order="NHD")
    (entry,) = kvlayout.slice_for_tp_transfer(split, *nhd).entries("cache")
    plane = 16 * 4 * 4
    for source, _, at, _, to, nbytes in entry.runs().tolist():
        side, place = divmod(to, plane)
        token, head = divmod(place, 4 * 4)
        assert (at, nbytes) == (side * plane // 2 + token * 2 * 4, 2 * 4) and head == source * 2 * 4


@pytest.mark.parametrize(("window", "chunk"), [(33, 16), (17, 16), (65, 16), (65, 32), (257, 64), (128, 16), (100, 64)])
def test_w_e2_a_window_reaches_back_no_further_than_its_tokens(window: int, chunk: int) -> None:
    """A window of k chunks and one token, at the end of a chunk: vLLM stores k chunks, looks for k + 1, and never hits.

    The tokens that the next one attends to are the last `window - 1`. Taken as an interval, they touch exactly the
    chunks that they lie in, and no byte of another.
    """
    found = plan(Pair("gqa", gqa(1), {"block": chunk}, {"block": chunk}))
    end = 8 * chunk
    start = end - (window - 1)
    source = np.full((8, chunk * 8), 7, np.uint8)
    destination = np.zeros_like(source)
    interpret(found, "cache", 0, {0: source}, destination, list(range(8)), list(range(8)), tokens=(start, end))
    needed = -(-(window - 1) // chunk)
    assert np.flatnonzero(destination.any(axis=1)).tolist() == list(range(8 - needed, 8))
    assert (destination == 7).sum() == (window - 1) * 8


def test_w_f1_what_stored_bytes_are_is_in_their_identity() -> None:
    """A store's keys name the model and the rank, and neither the number of ranks nor order, dtype, block or heads.

    The digest of a plan to one common page is equal for equal sides only, whatever the model is called.
    """
    common = kvlayout.Engine(tp=1, block=64)
    base: dict[str, Any] = {"tp": 2, "block": 16, "order": "HND"}

    def identity(spec: Spec, **words: Any) -> str:
        return kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(**{**base, **words}), common).digest

    spec = spec_of("gqa", gqa(4))
    other_name = model_of({"cache": ("gqa", gqa(4))})
    assert spec.name != other_name.name
    assert identity(spec) == identity(spec) == identity(other_name)
    others = [
        identity(spec, tp=4), identity(spec, order="NHD"), identity(spec, block=32), identity(spec, page=4096),
        identity(spec_of("gqa", gqa(4) | {"dtype": "float16"})), identity(spec_of("gqa", gqa(8, 1))),
        identity(spec_of("gqa", gqa(4, kv_packing="planes"))), identity(spec_of("mla", MLA)),
    ]  # fmt: skip
    assert len({identity(spec), *others}) == len(others) + 1
