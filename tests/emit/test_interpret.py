"""The interpreter against a plan's runs copied byte by byte, and its tokens against those of the source's bytes."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.harness import Pair, plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kvlayout
from kvlayout.emit.interpret import interpret
from kvlayout.ir import Array, Axis, Bytes, Page, Parallel, Struct, span
from kvlayout.plan.artifact import Plan, sealed
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.plan.transfer import Entry, TransferPlan
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.testing.strategies import plans
from kvlayout.verify.replay import token_bytes

if TYPE_CHECKING:
    from conftest import Size

TEMPLATES = 3
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]

GQA: dict[str, int | str] = {"num_kv_heads": 2, "head_size": 3, "head_size_v": 2, "dtype": "bfloat16"}
NVFP4 = {"num_kv_heads": 2, "head_size": 16}
GDN = {"num_k_heads": 4, "num_v_heads": 4, "head_k_dim": 1, "head_v_dim": 2,
       "conv_kernel": 3, "conv_dtype": "bfloat16", "ssm_dtype": "float32"}  # fmt: skip
MLA = {"kv_lora_rank": 4, "qk_rope_head_dim": 2, "dtype": "bfloat16"}
FP8 = {"num_kv_heads": 4, "head_size": 2, "head_size_v": 5}

# (pair, tokens of one unit of the growing axis)
TOKENS = {
    "unequal blocks and orders": (
        Pair("gqa", GQA, {"tp": 2, "block": 4, "order": "LBHNC"}, {"tp": 1, "block": 6, "order": "LBNHC"}), 1),
    "more ranks": (Pair("gqa", GQA, {"tp": 1, "block": 8}, {"tp": 4, "block": 4, "order": "LBNHC"}), 1),
    "scales of their own": (
        Pair("gqa_fp8_per_token_head", FP8, {"tp": 4, "block": 4}, {"tp": 2, "block": 8, "order": "LBNHC"}), 1),
    "nvfp4": (Pair("nvfp4", NVFP4, {"tp": 1, "block": 4}, {"tp": 2, "block": 8}), 1),
    "replicas": (Pair("mla", MLA, {"tp": 2, "block": 12}, {"tp": 4, "block": 8}), 1),
    "four tokens a state": (
        Pair("dsv4_fp8", {"tokens_per_state": 4}, {"tp": 2, "block": 8}, {"tp": 1, "block": 12}), 4),
    "two tokens a state, dealt": (
        Pair("indexer_fp8", {"head_dim": 3, "tokens_per_state": 2},
             {"tp": 2, "dcp": 2, "interleave": 2, "block": 4}, {"tp": 1, "block": 12}), 2),
    "dealt to dealt": (
        Pair("gqa", GQA, {"tp": 4, "dcp": 2, "interleave": 1, "block": 4},
             {"tp": 4, "dcp": 2, "interleave": 4, "block": 8, "order": "LBNHC"}), 1),
    "undealt to dealt": (
        Pair("mla", MLA, {"tp": 1, "block": 6}, {"tp": 2, "dcp": 2, "pcp": 2, "interleave": 2, "block": 4}), 1),
}  # fmt: skip
STATE = Pair("gdn", GDN, {"tp": 4, "conv": "DS"}, {"tp": 2, "conv": "SD"})
BY_TOKENS = pytest.mark.parametrize(("pair", "unit"), TOKENS.values(), ids=TOKENS)


class Moves:
    """One entry on random pages, under random block tables with blocks to spare."""

    def __init__(self, found: TransferPlan, entry: Entry, seed: int = 0) -> None:
        self.plan, self.entry, rng, fill = found, entry, Random(seed), np.random.default_rng(seed)
        self.group, self.sides = entry.group, found.document.plan
        counts = TEMPLATES * self.group.src_blocks, TEMPLATES * self.group.dst_blocks
        self.src_ids, self.dst_ids = (rng.sample(range(count + 2), count) for count in counts)
        self.sources = {
            entry.first_src_rank + rank: fill.integers(0, 256, (counts[0] + 2, span(self.group.src.tree)), np.uint8)
            for rank in range(self.sides.src.stage_ranks)
        }
        self.before = fill.integers(0, 256, (counts[1] + 2, span(self.group.dst.tree)), np.uint8)

    def interpreted(self, *intervals: tuple[int, int] | None) -> NDArray[np.uint8]:
        """The destination after one call for each interval."""
        held = self.before.copy()
        for tokens in intervals:
            name, rank, layer = self.group.name, self.entry.rank, self.entry.layers[0]
            interpret(self.plan, name, rank, self.sources, held, self.src_ids, self.dst_ids, tokens, layer)
        return held

    def copied(self, tokens: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """The destination after the plan's runs, each byte chosen by the token that it has in its source page."""
        held, each = self.before.copy(), self.tokens_each if tokens else 0
        of_source: dict[int, Any] = {}
        for k, row in itertools.product(range(TEMPLATES), self.entry.runs().tolist()):
            rank, src_block, src, dst_block, dst, nbytes = row
            chosen = np.ones(nbytes, bool)
            if tokens is not None:
                if rank not in of_source:
                    of_source[rank] = self.source_tokens(rank)
                first, end, _ = of_source[rank]
                at = np.s_[src_block, src : src + nbytes]
                chosen = (first[at] + k * each >= tokens[0]) & (end[at] + k * each <= tokens[1])
            page = self.sources[rank][self.src_ids[k * self.group.src_blocks + src_block]]
            to = held[self.dst_ids[k * self.group.dst_blocks + dst_block]]
            to[dst : dst + nbytes][chosen] = page[src : src + nbytes][chosen]
        return held

    def source_tokens(self, rank: int) -> Any:
        side = self.sides.src
        return token_bytes(self.group.src, side, rank % side.stage_ranks, self.group.src_blocks)

    def destination_tokens(self) -> Any:
        side = self.sides.dst
        return token_bytes(self.group.dst, side, self.entry.rank % side.stage_ranks, self.group.dst_blocks)

    @property
    def tokens_each(self) -> int:
        """Tokens of a template, over all context-parallel ranks: of both sides."""
        src, dst = self.source_tokens(0)[2], self.destination_tokens()[2]
        assert src == dst
        return int(dst)


def moves_of(pair: Pair) -> list[Moves]:
    found = plan(pair)
    return [Moves(found, entry, entry.rank) for entry in found.entries("cache")]


def transfer(drawn: Plan) -> TransferPlan:
    return TransferPlan(sealed(drawn, {}))


@pytest.mark.parametrize("pair", [*(pair for pair, _ in TOKENS.values()), STATE], ids=[*TOKENS, "state"])
def test_a_whole_move_is_the_runs_of_the_plan(pair: Pair) -> None:
    for moves in moves_of(pair):
        held = moves.interpreted(None)
        assert np.array_equal(held, moves.copied())
        assert not np.array_equal(held, moves.before)


@BY_TOKENS
def test_source_and_destination_name_the_same_tokens(pair: Pair, unit: int) -> None:
    for moves in moves_of(pair):
        first, end, _ = moves.destination_tokens()
        for rank, src_block, src, dst_block, dst, nbytes in moves.entry.runs().tolist():
            src_first, src_end, _ = moves.source_tokens(rank)
            there, here = np.s_[src_block, src : src + nbytes], np.s_[dst_block, dst : dst + nbytes]
            assert np.array_equal(src_first[there], first[here]) and np.array_equal(src_end[there], end[here])
            assert (end[here] - first[here] == unit).all() and (first[here] % unit == 0).all()


@BY_TOKENS
def test_disjoint_intervals_make_the_whole_move(pair: Pair, unit: int) -> None:
    for moves in moves_of(pair):
        units = TEMPLATES * moves.tokens_each // unit
        cuts = [0, *sorted(Random(moves.entry.rank).sample(range(1, units), 4)), units]
        intervals = [(a * unit, b * unit) for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(moves.interpreted(*intervals), moves.interpreted(None))


@BY_TOKENS
def test_an_interval_moves_the_bytes_of_its_tokens(pair: Pair, unit: int) -> None:
    for moves in moves_of(pair):
        last, rng = TEMPLATES * moves.tokens_each // unit, Random(moves.entry.rank)
        for _ in range(6):
            a, b = sorted((rng.randint(0, last), rng.randint(0, last)))
            tokens = a * unit, b * unit
            assert np.array_equal(moves.interpreted(tokens), moves.copied(tokens))
        assert np.array_equal(moves.interpreted((3 * unit, 3 * unit)), moves.before)


@BY_TOKENS
def test_tables_need_only_reach_the_last_token(pair: Pair, unit: int) -> None:
    for moves in moves_of(pair):
        each = moves.tokens_each
        blocks = [each // count for count in (moves.group.src_blocks, moves.group.dst_blocks)]
        tokens = unit, each + unit  # one unit of the second template
        wanted = moves.interpreted(tokens)
        moves.src_ids, moves.dst_ids = (
            ids[: -(-tokens[1] // block)] for ids, block in zip((moves.src_ids, moves.dst_ids), blocks, strict=True)
        )
        assert np.array_equal(moves.interpreted(tokens), wanted)


def test_a_cut_through_a_unit_is_refused() -> None:
    pair, _ = TOKENS["four tokens a state"]
    (moves,) = moves_of(pair)
    for tokens in ((0, 2), (2, 8), (5, 7), (24, 26)):
        with pytest.raises(ValueError, match="cut through"):
            moves.interpreted(tokens)
    assert np.array_equal(moves.interpreted((4, 28)), moves.copied((4, 28)))


def test_a_state_has_no_tokens() -> None:
    for moves in moves_of(STATE):
        assert moves.destination_tokens() is None
        assert np.array_equal(moves.interpreted((1, 2)), moves.copied())


def test_what_has_no_tokens_moves_with_its_block() -> None:
    """A page of two tokens of 3 bytes, a checksum of 2 bytes and a pad of 1, dealt to two ranks."""
    sums = Struct(9, ((0, Array("token", 1, 2, 3, Bytes("k", 3, "int8"))), (6, Bytes("sum", 2, "any"))), ((8, 1),))
    page = Page(sums, {"token": Axis(2, "cp", grows=True)}, 2)
    side = Parallel(tp=2, dcp=2, stages=(1,))
    first, end, tokens = token_bytes(page, side, 1, 2) or pytest.fail("no tokens")
    assert tokens == 8
    assert first.tolist() == [[1, 1, 1, 3, 3, 3, 0, 0, -1], [5, 5, 5, 7, 7, 7, 4, 4, -1]]
    assert end.tolist() == [[2, 2, 2, 4, 4, 4, 4, 4, -1], [6, 6, 6, 8, 8, 8, 8, 8, -1]]
    found = transfer(Planner().plan("test", [PlannedGroup("cache", (0,), page, page)], side, side))
    for entry in found.entries("cache"):
        moves = Moves(found, entry)
        for tokens_cut in ((0, 3), (1, 4), (2, 9), (5, 6)):
            with pytest.raises(ValueError, match="cut through"):
                moves.interpreted(tokens_cut)
        for whole in ((0, 4), (4, 12), (8, 8)):
            assert np.array_equal(moves.interpreted(whole), moves.copied(whole))
        assert np.array_equal(moves.interpreted((0, 4), (4, 12)), moves.interpreted(None))


def test_a_layer_picks_the_stage() -> None:
    group = CacheGroup("cache", find_format("gqa", None, "test"), GQA, (0, 1), None, "test")
    spec = Spec("two layers", None, 2, None, (group,))
    found = kvlayout.slice_for_tp_transfer(spec, kvlayout.Engine(pp=2, block=4), kvlayout.Engine(block=4))
    entries = list(found.entries("cache"))
    assert [(entry.layers, entry.first_src_rank) for entry in entries] == [((0,), 0), ((1,), 1)]
    for entry in entries:
        moves = Moves(found, entry)
        assert np.array_equal(moves.interpreted(None), moves.copied())
    moves = Moves(found, entries[0])
    for rank, layer in ((0, None), (0, 2), (1, 0)):
        with pytest.raises(LookupError):
            interpret(found, "cache", rank, moves.sources, moves.before, moves.src_ids, moves.dst_ids, layer=layer)


def test_random_plans(size: Size) -> None:
    """Whatever is drawn: the whole move is that of the runs, and intervals of whole templates or units make it up."""

    @settings(max_examples=size(40, 1_000, quick=10), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(drawn: Plan, seed: int) -> None:
        found, rng = transfer(drawn), Random(seed)
        entry = rng.choice([entry for group in found.groups for entry in found.entries(group.name)])
        moves = Moves(found, entry, seed)
        whole = moves.copied()
        assert np.array_equal(moves.interpreted(None), whole)
        if moves.destination_tokens() is None:
            return
        last = TEMPLATES * moves.tokens_each
        for a, b in (sorted((rng.randint(0, last), rng.randint(0, last))) for _ in range(2)):
            intervals = [(0, a), (a, b), (b, last)]
            try:
                held = moves.interpreted(*intervals)
            except ValueError:  # cuts what belongs to several tokens
                intervals = [(k * moves.tokens_each, (k + 1) * moves.tokens_each) for k in range(TEMPLATES)]
                held = moves.interpreted(*intervals)
            assert np.array_equal(held, whole)
            assert np.array_equal(moves.interpreted(intervals[1]), moves.copied(intervals[1]))

    run()
