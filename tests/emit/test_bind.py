"""What a bound move accepts and refuses. A refusal names the offender, and nothing has moved."""

from __future__ import annotations

import functools
import mmap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvlayout
from kvlayout import Engine, SubmitError
from kvlayout.emit import cache, calls, kernels
from kvlayout.emit.interpret import interpret
from kvlayout.emit.submit import block_ids
from kvlayout.emit.tables import SHAPES
from kvlayout.plan.transfer import TransferPlan
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import spec_of_format
from kvlayout.testing.mutators import MUTATORS
from kvlayout.testing.seals import reseal

SPEC = """
kvlayout: 1
model: small
source: tests
groups:
  attention: {format: gqa, layers: [0, 1], params: {num_kv_heads: 2, head_size: 4, dtype: bfloat16}}
  state: {format: mamba1, layers: [2], params: {intermediate_size: 8, state_size: 2, conv_kernel: 3,
          conv_dtype: bfloat16, ssm_dtype: float32}}
"""
BLOCKS = 8


class Refuses:
    def __array__(self, *_: object, **__: object) -> Any:
        raise LookupError("not today")


class Case:
    """A small hybrid model between tp=2 blocks of 4 and tp=1 blocks of 8, on NumPy arrays."""

    def __init__(self, folder: Path) -> None:
        path = folder / "small.yaml"
        path.write_text(SPEC)
        self.spec = kvlayout.load(path)
        self.plan = kvlayout.slice_for_tp_transfer(self.spec, Engine(tp=2, block=4), Engine(tp=1, block=8))
        rng = np.random.default_rng(0)
        sizes = {g.name: (g.src.nbytes, g.dst.nbytes) for g in self.plan.groups}
        self.layers = {"attention": (0, 1), "state": (2,)}
        self.src = {
            rank: {
                name: {n: rng.integers(0, 256, (BLOCKS, sizes[name][0]), np.uint8) for n in layers}
                for name, layers in self.layers.items()
            }
            for rank in (0, 1)
        }
        self.dst = {
            name: {n: np.zeros((BLOCKS, sizes[name][1]), np.uint8) for n in layers}
            for name, layers in self.layers.items()
        }
        self.blocks: dict[str, Any] = {"attention": ([3, 1, 0, 7], [2, 5]), "state": ([4], [6])}

    def bind(self, **words: Any) -> kvlayout.BoundMove:
        return kvlayout.bind(self.plan, **{"dst_rank": 0, "src": self.src, "dst": self.dst, **words})

    def expected(self, tokens: tuple[int, int] | None = None) -> dict[str, dict[int, Any]]:
        wanted = {name: {n: page.copy() for n, page in pages.items()} for name, pages in self.dst.items()}
        for name, pages in wanted.items():
            for layer, page in pages.items():
                sources = {rank: groups[name][layer] for rank, groups in self.src.items()}
                interpret(self.plan, name, 0, sources, page, *self.blocks[name], tokens)
        return wanted

    def untouched(self) -> bool:
        return not any(page.any() for pages in self.dst.values() for page in pages.values())


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def refused(code: str, call: Callable[[], object]) -> str:
    with pytest.raises(SubmitError) as caught:
        call()
    (found,) = caught.value.problems
    assert found.code == code, found
    assert found.expected or found.got, found
    return str(found)


def equal(case: Case, wanted: dict[str, dict[int, Any]]) -> None:
    for name, pages in wanted.items():
        for layer, page in pages.items():
            assert np.array_equal(case.dst[name][layer], page), (name, layer)


@pytest.mark.parametrize("tokens", [None, (0, 16), (3, 13), (5, 6), (8, 16), (0, 11), (4, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_call_moves_all_groups_and_layers(case: Case, tokens: tuple[int, int] | None, threads: int) -> None:
    wanted = case.expected(tokens)
    case.bind(threads=threads)(case.blocks, tokens=tokens)
    equal(case, wanted)


@pytest.mark.parametrize("tokens", [None, (3, 13)])
def test_packing_and_unpacking_is_moving(case: Case, tokens: tuple[int, int] | None) -> None:
    """Each source rank packs what it has; the destination unpacks what arrives, without the sources' memory."""
    wanted = case.expected(tokens)
    arrived = {}
    for rank in (0, 1):
        sender = case.bind(src={rank: case.src[rank]}, dst=None)
        out = {rank: bytearray(sender.packed_bytes(case.blocks, tokens)[rank])}
        ours = {name: (src, None) for name, (src, _) in case.blocks.items()}
        assert sender.pack(ours, tokens, out=out)[rank] is out[rank]
        arrived[rank] = bytes(out[rank])
    assert case.untouched()
    theirs = {name: (None, dst) for name, (_, dst) in case.blocks.items()}
    case.bind(src=None).unpack(arrived, theirs, tokens)
    equal(case, wanted)
    assert sum(map(len, arrived.values())) == case.bind().packed_bytes(case.blocks, tokens)[0] * 2


def test_a_kernel_moves_one_layer(case: Case) -> None:
    wanted = case.expected((3, 13))
    kernel = kvlayout.kernel(case.plan, "attention", dst_rank=0)
    for layer in case.layers["attention"]:
        sources = {rank: groups["attention"][layer] for rank, groups in case.src.items()}
        kernel(sources, case.dst["attention"][layer], *case.blocks["attention"], tokens=(3, 13))
        assert np.array_equal(case.dst["attention"][layer], wanted["attention"][layer])


@pytest.mark.parametrize("of", [list, lambda ids: np.array(ids, np.uint64)])
def test_ids_before_and_behind_an_interval_are_not_looked_at(case: Case, of: Callable[[list[int]], Any]) -> None:
    """Nor changed: the tables are the caller's."""
    wanted = case.expected((8, 11))
    src, dst = of([2**60, 2**60, 0, 2**60]), of([2**60, 5, 2**60])
    before = list(src), list(dst)
    case.bind()({**case.blocks, "attention": (src, dst)}, tokens=(8, 11))
    equal(case, wanted)
    assert (list(src), list(dst)) == before


def test_a_reader_decides_which_stores_are_taken() -> None:
    most = calls._streaming_from()
    assert [calls.streams("any", nbytes) for nbytes in (0, most - 1, most, 1 << 40)] == [False, False, True, True]
    assert calls.streams("device", 0) and not calls.streams("cpu", 1 << 40)


def test_tables_need_only_cover_the_tokens(case: Case) -> None:
    case.bind()({"attention": ([3, 1, 0], [2, 5]), "state": ([], [])}, tokens=(0, 10))
    short = {"attention": ([3, 1], [2, 5]), "state": ([], [])}
    assert "at least 3" in refused("KVL604", lambda: case.bind()(short, tokens=(0, 10)))


def test_other_kinds_of_memory(case: Case) -> None:
    """memoryviews, mmaps, bytes as a source, arrays of other types, and rows further apart than a page."""
    wanted = case.expected()
    for groups in case.src.values():
        groups["attention"] = {0: bytes(groups["attention"][0].reshape(-1)), 1: groups["attention"][1].view(np.uint16)}
    before = case.dst["attention"]
    area = mmap.mmap(-1, before[0].size)
    wide = np.zeros((BLOCKS, 2, before[1].shape[1]), np.uint8)
    case.dst["attention"] = {0: area, 1: wide[:, 1]}
    case.bind()(case.blocks)
    assert area[:] == wanted["attention"][0].tobytes()
    assert np.array_equal(wide[:, 1], wanted["attention"][1]) and not wide[:, 0].any()


def test_torch_tensors(case: Case) -> None:
    import torch

    wanted = case.expected()
    for groups in (*case.src.values(), case.dst):
        for pages in groups.values():
            for layer in pages:
                pages[layer] = torch.from_numpy(pages[layer])
    case.bind()({name: tuple(map(torch.tensor, pair)) for name, pair in case.blocks.items()})
    for name, pages in wanted.items():
        for layer, page in pages.items():
            assert np.array_equal(case.dst[name][layer].numpy(), page)
    case.dst["state"][2] = torch.empty(8, 4, device="meta")
    assert "meta" in refused("KVL602", case.bind)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.src.pop(1), "no buffer for 1, attention, 0"),
        (lambda c: c.src[1].pop("state"), "no buffer for 1, state, 2"),
        (lambda c: c.dst["attention"].pop(1), "no buffer for attention, 1"),
    ],
)
def test_kvl601_a_missing_buffer(case: Case, change: Callable[[Case], object], said: str) -> None:
    change(case)
    assert said in refused("KVL601", case.bind)
    refused("KVL601", lambda: kvlayout.bind(case.plan, dst_rank=0))


def test_kvl601_a_side_that_is_not_bound(case: Case) -> None:
    kernel = kvlayout.kernel(case.plan, "attention", dst_rank=0)
    sources = {rank: groups["attention"][0] for rank, groups in case.src.items()}
    refused("KVL601", lambda: kernel(None, case.dst["attention"][0], [], []))  # type: ignore[arg-type]
    refused("KVL601", lambda: kernel(sources, None, [], []))
    for wrong in (5, [[1]], {}, {7: {}}):
        refused("KVL601", lambda wrong=wrong: case.bind(src=wrong, dst=None))  # type: ignore[misc]
    refused("KVL601", lambda: case.bind(src=None)(case.blocks))
    refused("KVL601", lambda: case.bind(dst=None).unpack({}, case.blocks))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda page: page[:, :-1].copy(),
        lambda page: page[:, ::-1],
        lambda page: page[::-1],
        lambda page: np.broadcast_to(page[:1], page.shape),
        lambda page: page.reshape(-1)[:-1].copy(),
        lambda page: page.astype(object),
        lambda page: page.tolist(),
        lambda page: bytes(page.reshape(-1)),
        lambda page: None,
        lambda page: np.uint8(3),
    ],
)
def test_kvl602_what_holds_no_pages(case: Case, wrong: Callable[[Any], Any]) -> None:
    case.dst["attention"][1] = wrong(case.dst["attention"][1])
    assert "group 'attention', destination, layer 1" in refused("KVL602", case.bind)


def test_kvl603_shared_memory(case: Case) -> None:
    case.dst["attention"][1] = case.dst["attention"][0][1:]
    assert "layer" in refused("KVL603", case.bind)
    case.dst["attention"][1] = np.zeros_like(case.dst["attention"][0])
    case.src[1]["attention"][0] = case.dst["attention"][1].reshape(-1)[: case.src[1]["attention"][0].size]
    refused("KVL603", case.bind)
    bound = Case.bind(case, src=None)
    size = bound.packed_bytes(case.blocks)[0]
    inside = case.dst["state"][2].reshape(-1)[:size]
    refused("KVL603", lambda: bound.unpack({0: inside, 1: np.zeros(size, np.uint8)}, case.blocks))


def test_layers_that_alternate_in_one_allocation(case: Case) -> None:
    wanted = case.expected()
    pool = np.zeros((BLOCKS, 2, case.dst["attention"][0].shape[1]), np.uint8)
    case.dst["attention"] = {0: pool[:, 0], 1: pool[:, 1]}
    case.bind()(case.blocks)
    equal(case, wanted)


def pooled(case: Case, at: int = 0) -> np.ndarray[Any, Any]:
    """One pool for both groups, a cell of it a block: both layers of attention side by side, or the state `at`."""
    attention, state = case.dst["attention"][0].shape[1], case.dst["state"][2].shape[1]
    pool = np.zeros((BLOCKS, 2 * max(attention, state)), np.uint8)
    case.dst["attention"] = {0: pool[:, :attention], 1: pool[:, attention : 2 * attention]}
    cells = BLOCKS if at + state <= pool.shape[1] else BLOCKS - 1
    flat = pool.reshape(-1)[at:]
    case.dst["state"] = {2: np.lib.stride_tricks.as_strided(flat, (cells, state), (pool.shape[1], 1))}
    return pool


def test_groups_of_one_pool(case: Case) -> None:
    wanted = case.expected()
    pooled(case)
    move = case.bind()
    move(case.blocks)
    for name, (_, ids) in case.blocks.items():
        for layer, pages in case.dst[name].items():
            assert (pages[ids] == wanted[name][layer][ids]).all()
    packed = move.pack(case.blocks | {"state": ([4], None)})
    case.bind().unpack(packed, case.blocks)


def test_kvl606_a_block_of_two_groups(case: Case) -> None:
    pool = pooled(case)
    move, blocks = case.bind(), case.blocks | {"state": ([4], [5])}
    assert "group 'state'" in refused("KVL606", lambda: move(blocks))
    assert "block 5" in refused("KVL606", lambda: move.unpack({}, blocks))
    assert "block 5" in refused("KVL606", lambda: move(blocks, (8, 16)))
    assert not pool.any()
    move(blocks, (0, 8))  # block 5 of attention is not reached
    assert pool[2].any() and pool[5].any()
    move.pack(blocks)


def test_kvl603_a_pool_of_other_cells(case: Case) -> None:
    pool = pooled(case, at=case.dst["attention"][0].shape[1] * 2 - 1)  # one byte of a cell, and then of the next one
    refused("KVL603", case.bind)
    case.dst["state"] = {2: pool.reshape(-1)[: 3 * case.dst["state"][2].shape[1]]}  # of another stride
    refused("KVL603", case.bind)
    assert not pool.any()


@pytest.mark.parametrize(
    ("blocks", "code", "said"),
    [
        (None, "KVL604", "no block tables"),
        ({"attention": ([0, 1], [0])}, "KVL604", "group 'state'"),
        ({"attention": ([0, 1], [0]), "state": ([0], [0]), "x": ([], [])}, "KVL604", "no group 'x'"),
        ({"attention": [0, 1], "state": ([0], [0]), }, "KVL604", "attention"),
        ({"attention": ([0], [0]), "state": ([0], [0])}, "KVL604", "multiple of 2"),
        ({"attention": ([0, 1], [0, 1]), "state": ([0], [0])}, "KVL604", "different numbers"),
        ({"attention": ([0, 1.5], [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": ([[0, 1]], [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": ([True, False], [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": (np.ma.array([0, 1], mask=[1, 0]), [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": (np.ma.array([0] * 99, mask=True), [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": ([True, 2], [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": (np.array([0.0, 1.0]), [0]), "state": ([0], [0])}, "KVL604", "float64"),
        ({"attention": (np.array([False, True]), [0]), "state": ([0], [0])}, "KVL604", "bool"),
        ({"attention": (Refuses(), [0]), "state": ([0], [0])}, "KVL604", "not today"),
        ({"attention": ([0, 1], [0]), "state": ([8], [0])}, "KVL605", "source ids[0]"),
        ({"attention": ([0, 1], [-1]), "state": ([0], [0])}, "KVL605", "destination ids[0]"),
        ({"attention": ([0, 2**70], [0]), "state": ([0], [0])}, "KVL604", "integers"),
        ({"attention": (np.array([0, 2**64 - 1], np.uint64), [0]), "state": ([0], [0])}, "KVL605", "source ids[1]"),
        ({"attention": ([0, 1, 2, 3], [4, 4]), "state": ([0], [0])}, "KVL606", "block 4 is named twice, at 0 and 1"),
    ],
)  # fmt: skip
def test_kvl604_to_606_block_tables(case: Case, blocks: Any, code: str, said: str) -> None:
    bound = case.bind()
    assert said in refused(code, lambda: bound(blocks))
    assert case.untouched()


def test_many_ids_are_checked_like_few(case: Case) -> None:
    small = kvlayout.slice_for_tp_transfer(case.spec, Engine(), Engine(), group="state")
    size = small.groups[0].src.nbytes
    src, dst = np.ones((300, size), np.uint8), np.zeros((300, size), np.uint8)
    bound = kvlayout.bind(small, dst_rank=0, src={0: {"state": {2: src}}}, dst={"state": {2: dst}})
    ids = np.arange(200)
    for place, value, code in ((150, 151, "KVL606"), (199, 300, "KVL605"), (0, -1, "KVL605")):
        wrong = ids.copy()
        wrong[place] = value
        refused(code, lambda wrong=wrong: bound({"state": (ids, wrong)}))  # type: ignore[misc]
    assert not dst.any()
    bound({"state": (ids[::-1], ids)})
    assert dst[:200].all() and not dst[200:].any()


def test_kvl610_null_blocks(case: Case) -> None:
    """Real faults: a state slot that the engine marks null was taken as written (LMCache#4984)."""
    move = case.bind(null_blocks=(0, 5))
    for blocks, said in (
        ({"attention": ([3, 1, 0, 7], [2, 4]), "state": ([4], [6])}, r"source ids\[2\]: KVL610"),
        ({"attention": ([3, 1, 2, 7], [2, 5]), "state": ([4], [6])}, r"destination ids\[1\]: KVL610"),
        ({"attention": ([3, 1, 2, 7], [2, 4]), "state": ([0], [6])}, r"'state', source ids\[0\]: KVL610"),
        (
            {"attention": ([3, 1, 2, 7], [2, 4]), "state": (np.array([4]), np.array([5]))},
            r"destination ids\[0\]: KVL610",
        ),
    ):
        with pytest.raises(SubmitError, match=said):
            move(blocks)
        with pytest.raises(SubmitError, match="KVL610"):
            move.unpack({0: b"", 1: b""}, blocks) if "destination" in said else move.pack(blocks)
    assert not any(array.any() for layers in case.dst.values() for array in layers.values())
    # a window has passed over the first block of each side: null, and outside of the interval
    move({"attention": ([0, 0, 2, 7], [5, 4]), "state": ([4], [6])}, tokens=(8, 16))
    with pytest.raises(SubmitError, match=r"source ids\[1\]: KVL610"):
        move({"attention": ([0, 0, 2, 7], [1, 4]), "state": ([4], [6])}, tokens=(7, 16))
    many = np.arange(1, 200)
    many[150] = 0
    with pytest.raises(SubmitError, match=r"KVL610"):
        block_ids(many, "ids", 300, None, 1, distinct=False, null=0)
    assert block_ids(many, "ids", 300, None, 1, distinct=False).entries == 199


@pytest.mark.parametrize("tokens", [(3,), (5, 2), (-1, 4), (0.0, 4), "ab", 7, (0, 1 << 80), (True, 4)])
def test_kvl607_no_interval(case: Case, tokens: Any) -> None:
    refused("KVL607", lambda: case.bind()(case.blocks, tokens=tokens))
    assert case.untouched()


def test_bounds_may_be_integers_of_numpy(case: Case) -> None:
    wanted = case.expected((3, 13))
    case.bind()(case.blocks, tokens=(np.int64(3), np.int32(13)))
    equal(case, wanted)


def test_kvl607_units_of_several_tokens() -> None:
    spec = spec_of_format(find_format("dsv4_fp8", None, "test"), {"tokens_per_state": 4}, "test")
    plan = kvlayout.slice_for_tp_transfer(spec, Engine(), Engine())
    (group,) = plan.groups
    size = group.dst.nbytes
    src, dst = np.ones((4, size), np.uint8), np.zeros((4, size), np.uint8)
    kernel = kvlayout.kernel(plan, group.name, dst_rank=0)
    assert "multiples of" in refused("KVL607", lambda: kernel({0: src}, dst, [0], [1], tokens=(0, 1)))
    assert not dst.any()


def test_kvl608_packed_buffers(case: Case) -> None:
    bound = case.bind()
    sizes = bound.packed_bytes(case.blocks)
    for wrong in ({0: bytearray(sizes[0])}, {0: bytearray(sizes[0] - 1), 1: bytearray(sizes[1])}, 7,
                  {0: bytes(sizes[0]), 1: bytearray(sizes[1])},
                  {0: np.zeros((sizes[0], 2), np.uint8)[:, 0], 1: bytearray(sizes[1])}):  # fmt: skip
        refused("KVL608", lambda wrong=wrong: bound.pack(case.blocks, out=wrong))  # type: ignore[misc]
    assert case.untouched()


def test_kvl609_no_such_rank_or_layer(case: Case) -> None:
    refused("KVL609", lambda: case.bind(dst_rank=1))
    refused("KVL609", lambda: kvlayout.kernel(case.plan, "attention", dst_rank=-1))
    refused("KVL609", lambda: kvlayout.kernel(case.plan, "attention", dst_rank=0, layer=2))
    assert "one of attention, state" in refused("KVL609", lambda: kvlayout.kernel(case.plan, "x", dst_rank=0))
    for rank in ("0", None, 0.5):
        refused("KVL609", lambda rank=rank: case.bind(dst_rank=rank))  # type: ignore[misc]


def test_only_what_is_proved_moves(case: Case) -> None:
    from random import Random

    from msgspec.structs import replace

    document = case.plan.document
    wrong = MUTATORS["dropped"](Random(0), document.plan)
    assert wrong is not None
    forged = TransferPlan(reseal(replace(document, plan=wrong)))
    with pytest.raises(kvlayout.PlanRefused):
        kvlayout.bind(forged, dst_rank=0, src=case.src, dst=case.dst)
    with pytest.raises(kvlayout.PlanRefused):
        kvlayout.kernel(forged, "attention", dst_rank=0)
    case.bind()
    case.plan.document = forged.document  # what was proved is the document, and not the object that holds one
    with pytest.raises(kvlayout.PlanRefused):
        case.bind()
    for plan in (document, "plan.json", None):
        with pytest.raises(TypeError, match="load_plan"):
            kvlayout.bind(plan, dst_rank=0, src=case.src, dst=case.dst)  # type: ignore[arg-type]


def test_pipeline_stages(tmp_path: Path) -> None:
    """Two source stages into two destination stages that are cut elsewhere: each layer from the stage that has it."""
    path = tmp_path / "stages.yaml"
    path.write_text(SPEC[: SPEC.index("  state")].replace("[0, 1]", "[0, 1, 2, 3]"))
    src, dst = Engine(pp=2, stages="1+3"), Engine(pp=2, stages="2+2")
    plan = kvlayout.slice_for_tp_transfer(kvlayout.load(path), src, dst)
    size = plan.groups[0].src.nbytes
    held = {0: (0,), 1: (1, 2, 3)}
    (tmp_path / "other.yaml").write_text(SPEC.replace("layers: [2]", "layers: [2, 3]"))
    late = kvlayout.slice_for_tp_transfer(kvlayout.load(tmp_path / "other.yaml"), Engine(), Engine(pp=2, stages="2+2"))
    refused("KVL609", lambda: kvlayout.kernel(late, "state", dst_rank=0))
    assert "name a layer" in refused("KVL609", lambda: kvlayout.kernel(plan, "attention", dst_rank=0))
    pages = {
        rank: {"attention": {n: np.full((2, size), n + 1, np.uint8) for n in layers}} for rank, layers in held.items()
    }
    for rank, layers in ((0, (0, 1)), (1, (2, 3))):
        to = {n: np.zeros((2, size), np.uint8) for n in layers}
        kvlayout.bind(plan, dst_rank=rank, src=pages, dst={"attention": to})({"attention": ([0], [1])})
        assert all((to[n][1] == n + 1).all() and not to[n][0].any() for n in layers)


def test_a_sender_may_give_nothing_for_a_group(tmp_path: Path) -> None:
    """Replicated heads: of four ranks, rank 1 sends its share of the states and no attention; it is handed the same
    tables as all others."""
    path = tmp_path / "hybrid.yaml"
    path.write_text(SPEC)
    plan = kvlayout.slice_for_tp_transfer(kvlayout.load(path), Engine(tp=4), Engine(tp=2))
    assert plan.sources(0) == {"attention": (0,), "state": (0, 1)}
    layers = {"attention": (0, 1), "state": (2,)}
    src = {
        rank: {g.name: {n: np.full((2, g.src.nbytes), rank + n, np.uint8) for n in layers[g.name]} for g in plan.groups}
        for rank in (0, 1)
    }
    dst = {g.name: {n: np.zeros((2, g.dst.nbytes), np.uint8) for n in layers[g.name]} for g in plan.groups}
    tables = {"attention": ([0], None), "state": ([1], None)}
    sent = {}
    for rank in (0, 1):
        sender = kvlayout.bind(plan, dst_rank=0, src={rank: src[rank]})
        sent |= sender.pack(tables)
        refused("KVL604", lambda sender=sender: sender.pack({**tables, "x": ([], [])}))  # type: ignore[misc]
    kvlayout.bind(plan, dst_rank=0, dst=dst).unpack(sent, {"attention": (None, [1]), "state": (None, [0])})
    whole = {name: {n: page.copy() for n, page in pages.items()} for name, pages in dst.items()}
    for pages in dst.values():
        for page in pages.values():
            page[:] = 0
    kvlayout.bind(plan, dst_rank=0, src=src, dst=dst)({"attention": ([0], [1]), "state": ([1], [0])})
    for name, pages in whole.items():
        assert all(np.array_equal(dst[name][n], page) for n, page in pages.items())
    assert "source ranks that rank 0 reads: 0, 1" in refused(
        "KVL601", lambda: kvlayout.bind(plan, dst_rank=0, src={2: {}})
    )


def test_a_swizzle_is_cut_at_any_token_and_a_granule_is_not(tmp_path: Path) -> None:
    """Scales that are permuted among 4 tokens are digits like others; what a spec calls a granule moves whole."""
    words = {"cache.scale_layout": "sm100"}
    swizzled = spec_of_format(find_format("nvfp4", None, "test"), {"num_kv_heads": 1, "head_size": 64}, "test")
    plan = kvlayout.slice_for_tp_transfer(swizzled, Engine(**words), Engine(**words))
    src, dst, wanted = (np.zeros((1, plan.groups[0].src.nbytes), np.uint8) for _ in range(3))
    src[:] = np.arange(src.size) % 251 + 1
    kvlayout.kernel(plan, "cache", dst_rank=0)({0: src}, dst, [0], [0], tokens=(1, 6))
    interpret(plan, "cache", 0, {0: src}, wanted, [0], [0], (1, 6))
    assert np.array_equal(dst, wanted) and np.count_nonzero(dst) == 5 * 2 * (32 + 4)
    path = tmp_path / "granule.yaml"
    path.write_text(
        "{kvlayout: 1, model: m, source: tests, groups: {cache: {layers: 1, "
        "axes: {token: {size: block, grows: block, granule: 4}}, "
        "page: [{array: token, of: {field: k, bytes: 2, tag: bfloat16}}]}}}"
    )
    whole = kvlayout.load(path)
    path.write_text(path.read_text().replace("granule: 4", "granule: 1"))
    for a, b in ((whole, whole), (whole, kvlayout.load(path)), (kvlayout.load(path), whole)):  # on either side
        plan = kvlayout.slice_for_tp_transfer(a, Engine(), Engine(), b)
        src, dst = np.ones((1, 32), np.uint8), np.zeros((1, 32), np.uint8)
        kernel = kvlayout.kernel(plan, "cache", dst_rank=0)
        cut = functools.partial(kernel, {0: src}, dst, [0], [0], tokens=(0, 6))
        assert "multiples of 4 tokens" in refused("KVL607", cut)
        with pytest.raises(ValueError, match="granule of 4"):
            interpret(plan, "cache", 0, {0: src}, dst, [0], [0], (0, 6))
        assert not dst.any()
        kernel({0: src}, dst, [0], [0], tokens=(4, 12))
        assert dst.tolist() == [[0] * 8 + [1] * 16 + [0] * 8]


def test_long_tables_are_copied_before_they_are_checked() -> None:
    """What another thread writes into a table after the check names no other page."""
    for ids in (np.arange(100), np.arange(10), list(range(100)), np.arange(200)[::2] % 100):
        found = block_ids(ids, "here", 100, None, 1, distinct=False)
        assert not isinstance(ids, np.ndarray) or not np.shares_memory(np.asarray(found.owner), ids)


def test_ids_reach_no_further_than_the_shortest_buffer(case: Case) -> None:
    case.dst["attention"][1] = case.dst["attention"][1][:5].copy()
    assert "ids from 0 to 4" in refused("KVL605", lambda: case.bind()(case.blocks))
    case.src[1]["attention"][0] = case.src[1]["attention"][0][:7].copy()
    blocks = {**case.blocks, "attention": ([3, 1, 0, 7], [2, 3])}
    assert "ids from 0 to 6" in refused("KVL605", lambda: case.bind()(blocks))
    assert case.untouched()


@pytest.mark.parametrize("offset", [0, 1, 32])
def test_packing_into_memory_at_any_address(case: Case, offset: int) -> None:
    """Past the caches, too: a vector that is stored there without its alignment would end the process."""
    wanted = case.expected()
    bound = case.bind(reader="device")
    out = {}
    for rank, nbytes in bound.packed_bytes(case.blocks).items():
        room = np.zeros(nbytes + 128, np.uint8)
        begin = -room.__array_interface__["data"][0] % 64 + offset
        out[rank] = room[begin : begin + nbytes]
    bound.unpack(bound.pack(case.blocks, out=out), case.blocks)
    equal(case, wanted)


def test_kvl603_packing_into_the_source(case: Case) -> None:
    bound = case.bind(dst=None)
    sizes = bound.packed_bytes(case.blocks)
    pool = np.ones((BLOCKS, sizes[0]), np.uint8)
    case.src[1]["attention"][0] = pool[:, : case.src[1]["attention"][0].shape[1]]
    bound, inside = case.bind(dst=None), pool[2]
    apart, whole = np.zeros(sizes[0] + sizes[1], np.uint8), inside.copy()
    refused("KVL603", lambda: case.bind().pack(case.blocks, out={0: case.dst["attention"][0], 1: bytearray(sizes[1])}))
    for out in ({0: inside, 1: bytearray(sizes[1])}, {0: apart[: sizes[0]], 1: apart[sizes[0] - 1 :][: sizes[1]]}):
        refused("KVL603", lambda out=out: bound.pack(case.blocks, out=out))  # type: ignore[misc]
    assert np.array_equal(inside, whole) and not apart.any()


def test_threads_that_cannot_be_had(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    wanted = case.expected()
    monkeypatch.setattr(threading.Thread, "start", none_left)
    case.bind(threads=4)(case.blocks)
    equal(case, wanted)


class Interrupted(threading.Thread):
    """Is joined by somebody who is interrupted, twice, while it still has work to do."""

    finished = 0

    def run(self) -> None:
        time.sleep(0.2)
        super().run()
        Interrupted.finished += 1

    def join(self, timeout: float | None = None) -> None:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked < 3:
            raise KeyboardInterrupt
        super().join(timeout)


def test_an_interrupt_waits_for_all_threads(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches it may give the memory back: nobody may be writing to it any more."""
    wanted = case.expected()
    monkeypatch.setattr(calls, "Thread", Interrupted)
    bound = case.bind(threads=2)
    with pytest.raises(KeyboardInterrupt):
        bound(case.blocks)
    assert Interrupted.finished == 1
    equal(case, wanted)


def test_no_more_threads_than_there_is_to_share(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(calls, "Thread", lambda **words: started.append(words) or threading.Thread(**words))
    wanted = case.expected()
    case.bind(threads=1000)(case.blocks)
    equal(case, wanted)
    assert len(started) == 3  # two layers of two templates


def test_threads_that_meet_a_new_kernel_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(cache, "load", lambda name, *_: time.sleep(0.05) or loaded.append(name) or name)
    threads = [threading.Thread(target=kernels.kernel_of, args=(SHAPES[0],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == [SHAPES[0].name]


@pytest.mark.parametrize(
    "words",
    [
        {"reader": "nobody"},
        {"threads": 0},
        {"threads": 1.5},
        {"threads": "4"},
        {"threads": True},
        {"threads": 10**9},
        {"null_blocks": 0},
        {"null_blocks": (0, -1)},
        {"null_blocks": (True, 0)},
    ],
)
def test_wrong_words(case: Case, words: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"reader|threads|null_blocks"):
        case.bind(**words)
