"""MoRIIO's rank maps, acknowledgements, geometry and offsets, as projections of plans.

A projection is what a plan becomes for two block tables and the places of both sides' buffers: offsets and sizes, in
ascending order of the local side, neighbours merged. Where MoRIIO refuses or is wrong, the plan's bytes are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvlayout
from kvlayout.ir import leaves
from kvlayout.plan.transfer import TransferPlan
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import spec_of_format

from .harness import DATA, Pair, assert_right, plan, records, spec_of

if TYPE_CHECKING:
    from comparisons import Tally

LINE = "MoRIIO projections compared"
CASES = records("moriio.jsonl")
BY_FN = {fn: [case for case in CASES if case["inputs"]["fn"] == fn] for fn in (
    "rank", "kv_heads_rule", "transfer", "geometry", "merge", "state_offsets",
)}  # fmt: skip
MLA = {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}
SPLIT, BUFFERS = (load_format(DATA / f"{name}.yaml") for name in ("split_planes", "kv_buffers"))

Segments = list[tuple[int, int, int]]
"""(local offset, remote offset, bytes)."""


def merged(segments: Iterable[tuple[int, int, int]]) -> Segments:
    """In ascending order of the local side, neighbours on both sides joined."""
    found: Segments = []
    for local, remote, nbytes in sorted(segments):
        if found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (local, remote):
            found[-1] = *found[-1][:2], found[-1][2] + nbytes
        else:
            found.append((local, remote, nbytes))
    return found


def columns(segments: Segments) -> list[list[int]]:
    """As MoRIIO gives them: local offsets, remote offsets, sizes."""
    return [list(column) for column in zip(*segments, strict=True)] if segments else [[], [], []]


def pages_at(stride: int) -> Callable[[int, int], int]:
    """Where byte `at` of block `id` lies in a region of pages `stride` bytes apart."""
    return lambda block, at: block * stride + at


def planes_at(unit: int, stride: int, blocks: int) -> Callable[[int, int], int]:
    """The same for pages of two times `unit` bytes, in a buffer each: so many blocks of the first, then the second."""
    return lambda block, at: at // unit * blocks * stride + block * stride + at % unit


def project(
    found: TransferPlan, rank: int, ids: tuple[list[int], list[int]], src: Callable[[int, int], int],
    dst: Callable[[int, int], int], *, local: str,
) -> dict[int, list[tuple[int, int, int]]]:  # fmt: skip
    """The segments of a destination rank by source rank, one for each run of each template."""
    group, segments = found.group("cache"), {}
    for n in range(len(ids[0]) // group.src_blocks):
        for source, src_block, at, dst_block, to, nbytes in found.runs("cache", rank).tolist():
            ends = (
                dst(ids[1][n * group.dst_blocks + dst_block], to),
                src(ids[0][n * group.src_blocks + src_block], at),
            )
            segments.setdefault(source, []).append((*(ends if local == "dst" else ends[::-1]), nbytes))
    return segments


@lru_cache
def mla_plan(src: int, dst: int) -> TransferPlan:
    return plan(Pair("mla", MLA, {"tp": src}, {"tp": dst}))


def pair_of(words: dict[str, Any], src: int, dst: int) -> Pair:
    sides = [
        {"tp": tp, "block": words.get("block_tokens", 16), "order": words.get("layout", "HND")} for tp in (src, dst)
    ]
    size = words.get("head_size", 4)
    if words["is_mla"]:
        return Pair("mla", {"kv_lora_rank": size - 2, "qk_rope_head_dim": 2, "dtype": "bfloat16"}, *sides)
    return Pair("gqa", {"num_kv_heads": words["num_kv_heads"], "head_size": size, "dtype": "bfloat16"}, *sides)


def exists(words: dict[str, Any], *sizes: int) -> bool:
    heads = words["num_kv_heads"]
    return bool(words["is_mla"]) or all(heads % tp == 0 or tp % heads == 0 for tp in sizes)


def test_the_file_is_whole() -> None:
    assert len(CASES) == len({case["id"] for case in CASES}) == 470
    sizes = {"rank": 26, "kv_heads_rule": 242, "transfer": 166, "geometry": 21, "merge": 4, "state_offsets": 11}
    assert {fn: len(cases) for fn, cases in BY_FN.items()} == sizes
    assert Counter(case.get("vllm_correct") for case in BY_FN["transfer"]) == {True: 87, False: 46, None: 33}
    assert sum("refused" in case for case in CASES) == 6 + 75 + 33 + 2 + 7


def test_rank_maps_and_acknowledgements(tally: Tally) -> None:
    """A consumer of latents reads the rank that MoRIIO maps it to, and a producer is read as often as it waits for.

    Sizes that do not divide each other are refused there and converted here.
    """
    with tally(LINE) as compare:
        for case in BY_FN["rank"]:
            words = case["inputs"]
            found = mla_plan(words["remote_tp"], words["local_tp"])
            read = [found.sources(rank)["cache"] for rank in range(words["local_tp"])]
            assert {len(each) for each in read} == {1}
            if "refused" in case:
                assert "must be a multiple" in case["refused"]
                assert_right(Pair("mla", MLA, {"tp": words["remote_tp"]}, {"tp": words["local_tp"]}))
                continue
            expected = case["expected"]
            compare([rank for (rank,) in read], expected["remote_rank_of_local"], case["id"])
            readers = set(Counter(rank for (rank,) in read).values())
            compare(readers, {expected["acks_expected_by_producer"]}, f"{case['id']}: acknowledgements")


def test_heads_rule(tally: Tally) -> None:
    """MoRIIO takes a pair exactly where the plan copies whole pages, each from one rank. All others convert too."""
    converted = 0
    with tally(LINE) as compare:
        for case in BY_FN["kv_heads_rule"]:
            words = case["inputs"]
            pair = pair_of(words, words["remote_tp"], words["local_tp"])
            if not exists(words, words["remote_tp"], words["local_tp"]):
                with pytest.raises(kvlayout.PlanRefused, match="KVL202"):
                    plan(pair)
                continue
            found = plan(pair)
            pages = [page.nbytes for group in found.groups for page in (group.src, group.dst)]
            whole = all(
                len(runs) == 1 and set(pages) == {runs[0, 5]}
                for runs in (found.runs("cache", rank) for rank in pair.ranks)
            )
            compare(whole, "expected" in case, case["id"])
            if not whole:
                assert "requires replicated KV heads" in case["refused"]
                assert_right(pair, found=found)
                converted += 1
    assert converted == 46


def test_reads(tally: Tally) -> None:
    """Peers, offsets and sizes of every read that MoRIIO makes; the reads that it refuses convert."""
    refused = 0
    with tally(LINE) as compare:
        for case in BY_FN["transfer"]:
            words = case["inputs"]
            if words["mode"] != "read":
                continue
            pair = pair_of(words, words["p_tp"], words["d_tp"])
            found = assert_right(pair)
            if "refused" in case:
                refused += 1
                continue
            expected, ids = case["expected"], (words["src_blocks"], words["dst_blocks"])
            src, dst = (page.nbytes for page in (found.group("cache").src, found.group("cache").dst))
            assert (src, dst) == (expected["p_page_bytes"], expected["d_page_bytes"])
            assert {int(rank) for rank in expected["per_rank"]} == set(pair.ranks)
            for rank, theirs in expected["per_rank"].items():
                ours = project(found, int(rank), ids, pages_at(src), pages_at(dst), local="dst")
                wanted = {theirs["peer_rank"]: [theirs[key] for key in ("local_offsets", "remote_offsets", "sizes")]}
                compare({peer: columns(merged(each)) for peer, each in ours.items()}, wanted, f"{case['id']}/{rank}")
    assert refused == 33


def test_writes(tally: Tally) -> None:
    """The write that reaches a destination rank is MoRIIO's where MoRIIO writes the right bytes.

    Of replicas, all of which write there, one does. Where MoRIIO leaves ranks unwritten, cuts pages by the wrong side
    or leaves the registered region, the plan's bytes are right.
    """
    wrong = 0
    with tally(LINE) as compare:
        for case in BY_FN["transfer"]:
            words = case["inputs"]
            if words["mode"] != "write":
                continue
            pair = pair_of(words, words["p_tp"], words["d_tp"])
            found = assert_right(pair)
            if not case["vllm_correct"]:
                assert case["wrong"] and words["p_tp"] != words["d_tp"]
                wrong += 1
                continue
            ids, group = (words["src_blocks"], words["dst_blocks"]), found.group("cache")
            per_rank = case["expected"]["per_rank"]
            for rank in pair.ranks:
                ours = project(found, rank, ids, pages_at(group.src.nbytes), pages_at(group.dst.nbytes), local="src")
                ((source, segments),) = ours.items()
                theirs = per_rank[str(source)]
                wanted = [rank, *(theirs[key] for key in ("local_offsets", "remote_offsets", "sizes"))]
                compare([theirs["peer_rank"], *columns(merged(segments))], wanted, f"{case['id']}/{rank}")
    assert wrong == 46


@pytest.mark.parametrize("case", BY_FN["merge"], ids=lambda case: case["id"])
def test_segments_merge_as_moriios_do(case: dict[str, Any]) -> None:
    """What the projections of this file are merged by."""
    words, expected = case["inputs"], case["expected"]
    segments = zip(words["local"], words["remote"], words["sizes"], strict=True)
    assert columns(merged(segments)) == [expected["local"], expected["remote"], expected["sizes"]]


GEOMETRY = [case for case in BY_FN["geometry"] if "expected" in case]
GEOMETRY_REFUSED = [case for case in BY_FN["geometry"] if "refused" in case]


def geometry(case: dict[str, Any]) -> list[object]:
    """Bytes of a transfer unit, lengths of the regions, merged and unmerged offsets and sizes, from a plan.

    A tensor [B, H, N, C] is a page a block. One that begins with 2 keeps keys and values in regions of their own; in
    one [B, 2, ...] a page is a plane of keys and a plane of values. Where a kernel's blocks are smaller than the
    engine's, a block is several of them, end to end.
    """
    words = case["inputs"]
    shape, strides = words["shape"], [each * words["elem"] for each in words["stride"]]
    heads, size, tokens = words["num_kv_heads"], words["head_size"], words["block_size"]
    params = {"num_kv_heads": heads, "head_size": size, "dtype": "bfloat16"}
    kernel_blocks = shape[1] if shape[0] == 2 else shape[0]
    kernel_block = prod(shape) // (kernel_blocks * heads * size) // (1 if words["is_mla"] else 2)
    factor = tokens // kernel_block
    blocks, order = kernel_blocks // factor, "HND" if "/hnd" in case["id"] else "NHD"
    if len(shape) == 4:
        spec = spec_of("mla", MLA | {"kv_lora_rank": size - 1}) if words["is_mla"] else spec_of("gqa", params)
    else:
        spec = spec_of_format(BUFFERS if shape[0] == 2 else SPLIT, params, "test")
    # with tokens outermost, kernel blocks of a buffer are the tokens of one block; and buffers have no tiles
    tiles = {"kernel_block": kernel_block} if factor > 1 and shape[0] != 2 else {}
    engine = kvlayout.Engine(block=tokens, order=order, **tiles)
    found = kvlayout.slice_for_tp_transfer(spec, engine, engine)
    page = found.group("cache").dst
    tables = [words[side][: len(words["local_blocks"])] for side in ("remote_blocks", "local_blocks")]
    if page.buffers:
        unit, stride = dict(page.buffers)["k"], strides[1] * factor
        places = [planes_at(unit, stride, count) for count in (words["remote_num_blocks"] or blocks, blocks)]
        regions = [(blocks - 1) * stride + unit] * 2
    else:
        stride = strides[0] * factor
        # MoRIIO counts the planes of a page that is not tiled, a plan the page
        unit = page.nbytes // (2 if len(shape) == 5 and factor == 1 else 1)
        places = [pages_at(stride)] * 2
        regions = [(blocks - 1) * stride + page.nbytes]
    ((_, segments),) = project(found, 0, (tables[0], tables[1]), *places, local="dst").items()
    apart = columns(segments) if unit == segments[0][2] else None
    return [unit, regions, columns(merged(segments)), apart]


def test_the_file_has_geometries() -> None:
    assert (len(GEOMETRY), len(GEOMETRY_REFUSED)) == (19, 2)


def test_geometry(tally: Tally) -> None:
    with tally(LINE) as compare:
        for case in GEOMETRY:
            expected = case["expected"]
            block_len, regions, together, apart = geometry(case)
            theirs = [expected[key] for key in ("local_offsets", "remote_offsets", "sizes")]
            compare(
                [block_len, regions, together], [expected["block_len"], expected["region_lens"], theirs], case["id"]
            )
            if apart is not None:
                compare(apart, expected["unmerged"], f"{case['id']}: unmerged")


def test_what_is_no_page_and_what_is_no_block_is_refused() -> None:
    """A tensor whose rows are no pages of the block size, and an id that the region does not have, are refused."""
    params = {"num_kv_heads": 8, "head_size": 64, "dtype": "bfloat16"}
    one = kvlayout.Engine(order="NHD")
    words = {case["id"].split("/")[-1]: case["inputs"] for case in GEOMETRY_REFUSED}
    planes = kvlayout.slice_for_tp_transfer(spec_of_format(BUFFERS, params, "test"), one, one)
    rows = np.zeros((words["5d-block"]["shape"]), np.uint16)
    with pytest.raises(kvlayout.SubmitError) as refused:
        kvlayout.kernel(planes, "cache", 0)(
            {0: {"k": rows[0], "v": rows[1]}}, {"k": rows[0].copy(), "v": rows[1].copy()}, [0, 2], [1, 3]
        )
    assert {each.code for each in refused.value.problems} == {"KVL602"}
    found = plan(Pair("gqa", params, {}, {}))
    src, dst = (np.zeros(words["local-oob"]["shape"], np.uint16) for _ in range(2))
    with pytest.raises(kvlayout.SubmitError) as refused:
        kvlayout.kernel(found, "cache", 0)(
            {0: src}, dst, words["local-oob"]["remote_blocks"], words["local-oob"]["local_blocks"]
        )
    assert {each.code for each in refused.value.problems} == {"KVL605"}


STATE_PARAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "kda/32x128": ("kda", {"num_heads": 32, "head_dim": 128}),
    "gdn/16-32": ("gdn", {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128}),
    "mamba2/g8": ("mamba2", {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128}),
    "mamba2/g1": ("mamba2", {"num_heads": 128, "head_dim": 64, "n_groups": 1, "state_size": 128}),
    "mamba1": ("mamba1", {"intermediate_size": 8192, "state_size": 16}),
}


def state_plan(case: dict[str, Any]) -> TransferPlan:
    words = case["inputs"]
    dtypes = {2: "bfloat16", 4: "float32"}
    ((format, params),) = (value for name, value in STATE_PARAMS.items() if f"/{name}/" in case["id"])
    rows = {"conv_kernel": words["conv_shape"][1] + 1, "conv_dtype": dtypes[words["conv_elem"]]}
    params = params | rows | {"ssm_dtype": dtypes[words["ssm_elem"]]}
    tp, ratio = words["tp"], words["tp_ratio"]
    if ratio == 1:
        side = kvlayout.Engine(tp=tp, page=words["page_bytes"])
        return kvlayout.slice_for_tp_transfer(spec_of(format, params), side, side)
    remote = tp // ratio if ratio > 0 else tp * -ratio
    return assert_right(Pair(format, params, {"tp": remote}, {"tp": tp}), [0])


def test_state_offsets(tally: Tally) -> None:
    """At equal sizes the offsets are MoRIIO's, field by field; unequal sizes, all of which it refuses, convert.

    MoRIIO has two regions: one begins with the slots, the other with the first temporal state.
    """
    unequal = 0
    with tally(LINE) as compare:
        for case in BY_FN["state_offsets"]:
            found = state_plan(case)
            if "refused" in case:
                assert "heterogeneous-TP" in case["refused"]
                unequal += 1
                continue
            words, expected, page = case["inputs"], case["expected"], found.group("cache").dst
            assert page.nbytes == words["page_bytes"]
            fields = {
                leaf.field: (leaf.base, leaf.nbytes * prod(count for _, _, count, _ in leaf.digits))
                for leaf in leaves(page.tree)
            }
            start, slot = fields["temporal"]
            for rank in range(words["tp"]):
                ((source, _, src, _, dst, nbytes),) = found.runs("cache", rank).tolist()
                assert (source, src, dst, nbytes) == (rank, 0, 0, start + slot)
            slots = list(zip(words["local_slots"], words["remote_slots"], strict=True))
            conv = [
                (local * page.nbytes + at, remote * page.nbytes + at, nbytes)
                for local, remote in slots
                for name, (at, nbytes) in fields.items()
                if name != "temporal"
            ]
            temporal = [(local * page.nbytes, remote * page.nbytes, slot) for local, remote in slots]
            region = words["num_slots"] * page.nbytes
            compare(
                [region, region - start, slot, start, len(conv), *columns(conv + temporal)],
                [expected[key] for key in (
                    "conv_region_len", "ssm_region_len", "ssm_slot_bytes", "ssm_region_start_in_page", "conv_entries",
                    "local_offsets", "remote_offsets", "sizes",
                )],
                case["id"],
            )  # fmt: skip
    assert unequal == 7
