"""vLLM's tensor-parallel-independent page, as a plan between a worker's pages and a page of one rank.

A canonical page holds all heads and all tokens that one block id stands for on all ranks, in the worker's own order:
that is the page of an engine with one rank and blocks of `block * dcp * pcp` tokens. vLLM works the two-sided runs out
anew, and falls back to an opaque page, which only an equal engine reads, where it cannot certify them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvlayout
from kvlayout.plan.transfer import TransferPlan
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import Spec, spec_of_format

from .harness import DATA, records, spec_of

CASES = records("canonical_pages.jsonl")
CERTIFIED = [case for case in CASES if case["expected"]["certified"]]
OPAQUE = [case for case in CASES if not case["expected"]["certified"]]
SPLIT = load_format(DATA / "split_planes.yaml")
ORDERS = {"SPLIT_HND": "HND", "SPLIT_NHD": "NHD"}
PAD = 4096


def spec_for(words: dict[str, Any]) -> Spec:
    assert words["elem"] == 2
    if words["kind"] == "mla":
        return spec_of("mla", {"kv_lora_rank": words["head_size"] - 8, "qk_rope_head_dim": 8, "dtype": "bfloat16"})
    params = {"num_kv_heads": words["num_kv_heads"], "head_size": words["head_size"], "dtype": "bfloat16"}
    return spec_of_format(SPLIT, params, "test") if words["layout"] in ORDERS else spec_of("gqa", params)


def plans_of(case: dict[str, Any]) -> tuple[TransferPlan, TransferPlan]:
    """Storing (worker to canonical) and loading (canonical to worker)."""
    words = case["inputs"]
    order, spread = ORDERS.get(words["layout"], words["layout"]), words["dcp"] * words["pcp"]
    sizes = {word: words[word] for word in ("tp", "dcp", "pcp", "interleave")}
    pad = {"page": case["expected"]["ranks"][0]["local_page_bytes"] + PAD} if words["kind"] == "padded" else {}
    worker = kvlayout.Engine(block=words["block_size"], order=order, **sizes, **pad)
    canonical = kvlayout.Engine(block=words["block_size"] * spread, order=order)
    spec = spec_for(words)
    return tuple(kvlayout.slice_for_tp_transfer(spec, *pair) for pair in ((worker, canonical), (canonical, worker)))


def expanded(runs: list[list[int]]) -> list[list[int]]:
    """[local, canonical, bytes] of runs [local, canonical, bytes, count, local stride, canonical stride], merged."""
    found: list[list[int]] = []
    for local, canonical, nbytes in sorted(
        (local + k * step, canonical + k * stride, nbytes)
        for local, canonical, nbytes, count, step, stride in runs
        for k in range(count)
    ):
        if found and [found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]] == [local, canonical]:
            found[-1][2] += nbytes
        else:
            found.append([local, canonical, nbytes])
    return found


def canonical_of(runs: list[list[int]], size: int) -> NDArray[np.int64]:
    """The canonical offset of each byte of a local page."""
    places = np.full(size, -1)
    for local, canonical, nbytes in runs:
        places[local : local + nbytes] = np.arange(canonical, canonical + nbytes)
    return places


def test_the_file_is_whole() -> None:
    assert (len(CERTIFIED), len(OPAQUE), len(CASES)) == (66, 39, 105)
    assert len({case["id"] for case in CASES}) == 105
    assert Counter(case["inputs"]["kind"] for case in CERTIFIED) == {"dense": 54, "mla": 9, "padded": 2, "swa": 1}


@pytest.mark.parametrize("case", CERTIFIED, ids=lambda case: case["id"])
def test_a_plan_gives_the_certified_runs(case: dict[str, Any]) -> None:
    """Loading gives each rank vLLM's runs; storing takes each byte once, from a rank that has it, to the same place."""
    store, load = plans_of(case)
    ranks = case["expected"]["ranks"]
    assert len(ranks) == case["inputs"]["tp"] * case["inputs"]["pcp"]
    pad = PAD if case["inputs"]["kind"] == "padded" else 0
    loaded, places = [], []
    for rank, each in enumerate(ranks):
        runs = load.runs("cache", rank)
        assert not runs[:, [0, 1, 3]].any()  # one canonical page to one page
        loaded.append(runs[:, [4, 2, 5]].tolist())
        assert loaded[-1] == expanded(each["runs"])
        assert next(load.entries("cache", rank)).page_bytes == each["local_page_bytes"] + pad
        places.append(canonical_of(loaded[-1], each["local_page_bytes"] + pad))
    (entry,) = store.entries("cache")
    assert {each["canonical_page_bytes"] for each in ranks} == {entry.page_bytes}
    seen = np.zeros(entry.page_bytes, np.int64)
    for source, _, at, _, to, nbytes in entry.runs().tolist():
        assert (places[source][at : at + nbytes] == np.arange(to, to + nbytes)).all()
        seen[to : to + nbytes] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("case", CERTIFIED, ids=lambda case: case["id"])
def test_replicas_are_vllms_writers(case: dict[str, Any]) -> None:
    """Ranks whose pages hold the same bytes are those that vLLM elects a writer from, in the same sequence."""
    _, load = plans_of(case)
    ranks = case["expected"]["ranks"]
    runs = [load.runs("cache", rank).tobytes() for rank in range(len(ranks))]
    for rank, each in enumerate(ranks):
        same = [other for other in range(len(ranks)) if runs[other] == runs[rank]]
        assert (len(same), same.index(rank)) == (each["num_writers"], each["writer_index"])


def reason(words: dict[str, Any]) -> str:
    """Why no plan exists: heads outside of pages, heads that cannot be shared out, runs that do not fill a block,
    or ranks that share out heads and tokens at once, so that nobody holds one share of both.
    """
    if words["layout"] == "LHBNC":
        return "KVL153"
    if not words.get("model_loadable", 1):
        return "KVL202"
    return "KVL204" if words["block_size"] % words["interleave"] else "KVL207"


def test_where_vllm_falls_back_a_plan_is_refused() -> None:
    """Its opaque page serves an equal engine only; none of these converts, and each refusal has its code."""
    reasons = Counter[str]()
    for case in OPAQUE:
        with pytest.raises((kvlayout.PlanRefused, kvlayout.SpecError)) as refused:
            plans_of(case)
        assert {each.code for each in refused.value.problems} == {reason(case["inputs"])}, case["id"]
        reasons[reason(case["inputs"])] += 1
    assert reasons == {"KVL153": 1, "KVL202": 7, "KVL204": 18, "KVL207": 13}
