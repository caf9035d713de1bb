"""Who reads whom: source ranks, head slots, offsets and readers, held against vLLM 0.32's own mapping.

Where vLLM maps and then refuses at the handshake, kvlayout converts. A state is here one temporal array, which every
rank shares out, as all states of a hybrid are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from kvlayout.plan.transfer import TransferPlan

from .harness import Pair, assert_right, model_of, records, some

if TYPE_CHECKING:
    from comparisons import Tally

CASES = records("tp_mapping.jsonl")
MAPPED = [case for case in CASES if "ranks" in case.get("expected", {}) and case.get("loadable", 1)]
UNLOADABLE = [case for case in CASES if case.get("loadable") == 0]
REFUSED = [case for case in CASES if "refused" in case]
PUSHED = [case for case in CASES if case["id"].startswith("push-coverage")]
LINE = "source ranks compared"
STATE = {"num_heads": 96, "head_dim": 1, "dtype": "bfloat16"}
"""96 heads: every tensor-parallel size of the file divides them."""


def formats_of(words: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    mla = {"kv_lora_rank": 2, "qk_rope_head_dim": 1, "dtype": "bfloat16"}
    gqa = {"num_kv_heads": words["num_kv_heads"], "head_size": 1, "dtype": "bfloat16"}
    groups = {"attention": ("mla", mla) if words["is_mla"] else ("gqa", gqa)}
    return groups | {"state": ("linear", STATE)} if words["has_ssm"] else groups


def sides_of(words: dict[str, Any]) -> list[dict[str, int]]:
    """Context-parallel ranks take whole blocks in turn, as they do in vLLM's pairing of blocks."""
    return [{"tp": words[f"{p}_tp"], "dcp": words.get(f"{p}_dcp", 1), "interleave": 16} for p in "pd"]


def plan_of(words: dict[str, Any]) -> TransferPlan:
    src, dst = (kvlayout.Engine(**side) for side in sides_of(words))
    return kvlayout.slice_for_tp_transfer(model_of(formats_of(words)), src, dst)


def sources(found: TransferPlan, rank: int, group: str) -> list[int] | None:
    read = found.sources(rank).get(group)
    return None if read is None else list(read)


def readers(found: TransferPlan, words: dict[str, Any]) -> Counter[int]:
    """How many destination ranks read a source rank."""
    return Counter(
        rank for dst in range(words["d_tp"]) for rank in {r for each in found.sources(dst).values() for r in each}
    )


def slots(found: TransferPlan, rank: int, words: dict[str, Any]) -> dict[int, int]:
    """The place of each source's heads in the destination page; of a rank that gives only states, that of its head."""

    def head(source: int) -> int:
        return source * words["effective_kv_heads"] // words["p_tp"]

    runs = found.runs("attention", rank)
    heads = [head(source) for source in runs[runs[:, 4].argsort(), 0].tolist()]
    return {source: heads.index(head(source)) for each in found.sources(rank).values() for source in each}


def test_the_file_is_whole() -> None:
    assert (len(MAPPED), len(UNLOADABLE), len(REFUSED), len(PUSHED)) == (98, 55, 51, 28)
    assert len({case["id"] for case in CASES}) == len(CASES) == 232
    assert sum("handshake_refuses" in case for case in MAPPED) == 12
    assert Counter(case["vllm_correct"] for case in PUSHED) == {True: 21, False: 7}


def test_source_ranks(tally: Tally) -> None:
    """Attention and states come from the ranks that vLLM names, the ones it refuses at the handshake included.

    One difference is meant: where a hybrid's context-parallel sizes differ, vLLM's mapping takes the ranks of the
    attention for the states too, refuses at the handshake, and a plan reads the states from those that hold them.
    """
    meant = []
    with tally(LINE) as compare:
        for case in MAPPED:
            words, found = case["inputs"], plan_of(case["inputs"])
            assert [each["dst_rank"] for each in case["expected"]["ranks"]] == list(range(words["d_tp"]))
            for each in case["expected"]["ranks"]:
                rank, where = each["dst_rank"], f"{case['id']}, rank {each['dst_rank']}"
                attention, state = (sources(found, rank, group) for group in ("attention", "state"))
                ours = attention, state, sorted({*attention, *(state or ())})
                theirs = each["attn_source_ranks"], each["ssm_source_ranks"], each["all_source_ranks"]
                if ours != theirs and "requires matching DCP" in case.get("handshake_refuses", ""):
                    meant.append(where)
                    assert attention == theirs[0] and set(state) < set(theirs[1])
                    continue
                compare(ours, theirs, where)
                assert {*attention, *(state or ())} <= set(each["handshake_ranks"])
    assert len(meant) == 8


def test_slots_offsets_and_readers() -> None:
    """Where a source's heads lie, where a rank's heads begin in the source's page, how many readers a source has."""
    checked = Counter[str]()
    for case in MAPPED:
        words, found = case["inputs"], plan_of(case["inputs"])
        read = readers(found, words)
        for each in case["expected"]["ranks"]:
            rank, where = each["dst_rank"], f"{case['id']}, rank {each['dst_rank']}"
            if words["p_dcp"] == words["d_dcp"] == 1:  # else every source has some tokens of the one head
                their_slots = {int(source): slot for source, slot in each["attn_slot_of_rank"].items()}
                assert slots(found, rank, words) == their_slots, where
                starts = found.runs("attention", rank)[:, 2].tolist()
                page = next(found.entries("attention", rank)).page_bytes
                begin = each["rank_offset_factor"] * page
                assert starts == [begin] or (begin == 0 and not any(starts)), where
                checked["places"] += 1
            if "requires matching DCP" not in case.get("handshake_refuses", ""):
                ours = {read[source] for sources in found.sources(rank).values() for source in sources}
                assert ours == {each["local_consumers"]}, where
                checked["readers"] += 1
    assert checked == {"places": 749, "readers": 767}


def test_bytes() -> None:
    """The plans of the file, those refused at the handshake included, give every rank its bytes."""
    for case in MAPPED:
        words, found = case["inputs"], plan_of(case["inputs"])
        src, dst = sides_of(words)
        for name, (format, params) in formats_of(words).items():
            pair = Pair(format, params, src, dst)
            assert_right(pair, some(pair.ranks, 4), found=found, name=name)


@pytest.mark.parametrize("case", UNLOADABLE, ids=lambda case: case["id"])
def test_what_no_model_can_load_is_refused(case: dict[str, Any]) -> None:
    """Numbers of heads and ranks that do not divide: vLLM's mapping answers nevertheless."""
    with pytest.raises(kvlayout.PlanRefused) as refused:
        plan_of(case["inputs"])
    assert refused.value.unloadable
    assert {each.code for each in refused.value.problems} == {"KVL202"}


def test_sizes_that_do_not_divide_convert_where_both_sides_exist() -> None:
    """vLLM refuses 3 ranks to 2 in any case; a plan is refused only where one side's heads cannot be shared out."""
    converted = 0
    for case in REFUSED:
        assert "is not divisible by" in case["refused"]
        words = case["inputs"]
        heads = words["num_kv_heads"]
        exist = all(words["is_mla"] or heads % tp == 0 or tp % heads == 0 for tp in (words["p_tp"], words["d_tp"]))
        if not exist:
            with pytest.raises(kvlayout.PlanRefused, match="KVL202"):
                plan_of(words)
            continue
        found, (src, dst) = plan_of(words), sides_of(words)
        format, params = formats_of(words)["attention"]
        assert_right(Pair(format, params, src, dst), found=found, name="attention")
        converted += 1
    assert converted == 17


def test_a_pushing_source_reaches_every_reader(tally: Tally) -> None:
    """Which ranks a sender writes: those that vLLM names where none is left out, else all that hold one of its heads.

    With fewer heads than ranks vLLM takes the list that was deduplicated for reading, and leaves ranks without keys
    and values: silently in a hybrid (`vllm_correct: false`), elsewhere it refuses at the handshake.
    """
    left_out = 0
    with tally(LINE) as compare:
        for case in PUSHED:
            words, expected = {**case["inputs"], "p_dcp": 1, "d_dcp": 1}, case["expected"]
            found = plan_of(words)
            for group, key in (("attention", "targets_per_p_rank"), ("state", "ssm_targets_per_p_rank")):
                if expected[key] is None:
                    continue
                for rank, targets in enumerate(expected[key]):
                    ours = [dst for dst in range(words["d_tp"]) if rank in (sources(found, dst, group) or ())]
                    share = words["d_tp"] // words["p_tp"]
                    if group == "attention" and expected["d_ranks_without_attention_kv"]:
                        left_out += 1
                        assert set(targets) < set(ours), f"{case['id']}, {group}, rank {rank}"
                        assert ours == list(range(rank * share, (rank + 1) * share))
                        continue
                    compare(ours, targets, f"{case['id']}, {group}, rank {rank}")
            for dst in range(words["d_tp"]):
                assert sources(found, dst, "attention")
    assert left_out == 92
