"""The tensor form: views that a source gives to a destination, for every format, copied and held against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused, SubmitError
from kvlayout.spec.formats import load_format, shipped_formats
from kvlayout.spec.model import spec_of_format
from kvlayout.testing.small import PARAMS

FORMATS = sorted(shipped_formats())
PAIRS = [(1, 2), (2, 1), (2, 4), (4, 2), (2, 2), (2, 3), (3, 2), (8, 2), (1, 8)]


def specs(name: str) -> list[kvlayout.Spec]:
    """A format with the first and the last choice of small parameters."""
    fmt, choices = load_format(shipped_formats()[name]), PARAMS[name]
    params = [{key: values[at] for key, values in choices.items()} for at in (-1, 0)]
    return [spec_of_format(fmt, each, "test") for each in params]


def pool(rows: int, nbytes: int, seed: int) -> torch.Tensor:
    """Pages of random bytes, rows a little longer than a page."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, 256, (rows, nbytes + 24), np.uint8))[:, :nbytes]


def split(page: Any, row: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
    """A page's tensor, or those of its buffers."""
    if not page.buffers:
        return row
    return list(row.split([size for _, size in page.buffers], dim=1))


@pytest.mark.parametrize("name", FORMATS)
def test_views_move_what_the_plan_moves(name: str) -> None:
    """Copying every source's views into the destination's gives the bytes that the plan's runs give."""
    moved = 0
    for spec in specs(name):
        group = spec.groups[0]
        for src_words, dst_words in (({}, {}), ({"order": "NHD"}, {"conv": "SD"})):
            ours, theirs = (
                kvlayout.TensorSpec(spec, "cache", kvlayout.Engine(**words)) for words in (src_words, dst_words)
            )
            for src_tp, dst_tp in PAIRS:
                src, dst = kvlayout.Engine(tp=src_tp, **src_words), kvlayout.Engine(tp=dst_tp, **dst_words)
                try:
                    plan = kvlayout.slice_for_tp_transfer(spec, src, dst)
                except PlanRefused:
                    with pytest.raises(PlanRefused):
                        ours.slice_for_tp_transfer(torch.empty(1), src_tp, 0, theirs, dst_tp, 0)
                    continue
                moved += 1
                pages = spec.page(group, src), spec.page(group, dst)
                sources = [pool(3, pages[0].nbytes, rank) for rank in range(src_tp)]
                for rank in range(dst_tp):
                    payload = 0
                    wanted, found = (torch.zeros((3, pages[1].nbytes), dtype=torch.uint8) for _ in range(2))
                    for s, _, a, _, b, n in plan.runs("cache", rank).tolist():
                        wanted[:, b : b + n] = sources[s][:, a : a + n]
                    for source, rows in enumerate(sources):
                        given = ours.slice_for_tp_transfer(split(pages[0], rows), src_tp, source, theirs, dst_tp, rank)
                        taken = theirs.received_by_tp_transfer(
                            split(pages[1], found), dst_tp, rank, ours, src_tp, source
                        )
                        assert [each.shape for each in given] == [each.shape for each in taken]
                        assert all(
                            here.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr() for here in given
                        )
                        for here, there in zip(given, taken, strict=True):
                            there.copy_(here)
                        payload += sum(each.numel() for each in given)
                    assert torch.equal(found, wanted)
                    assert payload == 3 * plan.runs("cache", rank)[:, 5].sum()  # no byte is given twice
    assert moved


QWEN = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
LLAMA = kvlayout.load(specs_dir() / "models" / "llama-3.1-8b.yaml")


def of(spec: kvlayout.Spec, group: str = "attention", **words: Any) -> kvlayout.TensorSpec:
    return kvlayout.TensorSpec(spec, group, kvlayout.Engine(**words))


def test_a_head_range_of_a_tensor_as_vllm_shapes_it() -> None:
    """[blocks, heads, tokens, content] on the meta device, content being K and V of a head and token."""
    llama, tensor = of(LLAMA), torch.empty((10, 4, 16, 256), dtype=torch.bfloat16, device="meta")
    k, v = llama.slice_for_tp_transfer(tensor, 2, 1, llama, 4, 3)  # heads 4 to 7 there, 6 and 7 here
    half = tensor[:, 2:4]
    for view, begin in ((k, 0), (v, 128)):
        assert view.device.type == "meta" and view.dtype == torch.bfloat16
        assert view.shape == (10, 2 * 16, 128)
        assert view.storage_offset() == half.storage_offset() + begin
        assert view.stride() == (tensor.stride(0), 256, 1)
    assert llama.slice_for_tp_transfer(tensor, 2, 0, llama, 4, 3) == []


def test_a_token_major_tensor_is_seen_through_its_strides() -> None:
    """vLLM's logical [B, H, N, C] over NHD memory: the dimensions are permuted, the block still is a page."""
    memory = torch.arange(10 * 16 * 4 * 256, dtype=torch.int16).reshape(10, 16, 4, 256)
    tensor, nhd = memory.permute(0, 2, 1, 3), of(LLAMA, order="NHD")
    k, v = nhd.slice_for_tp_transfer(tensor, 2, 1, nhd, 4, 3)
    assert torch.equal(k.reshape(10, 16, 2, 128), memory[:, :, 2:4, :128])
    assert torch.equal(v.reshape(10, 16, 2, 128), memory[:, :, 2:4, 128:])


def test_replicated_heads_come_from_one_source() -> None:
    spec, tensor = of(QWEN), torch.empty((4, 16 * 1024), dtype=torch.uint8)  # 2 heads on 8 ranks
    givers = [rank for rank in range(8) if spec.slice_for_tp_transfer(tensor, 8, rank, spec, 2, 1)]
    assert givers == [4]


def test_every_part_of_a_state_is_a_view_of_its_own() -> None:
    spec = of(QWEN, "state")
    page = QWEN.page(QWEN.group("state"), kvlayout.Engine())
    tensor = torch.empty((2, page.nbytes), dtype=torch.uint8, device="meta")
    views = spec.slice_for_tp_transfer(tensor, 1, 0, spec, 4, 3)
    assert [view.numel() // 2 for view in views] == [3072, 3072, 6144, 262144]  # q, k and v of the window; temporal
    assert [view.storage_offset() for view in views] == [
        3 * 3072, 12288 + 3 * 3072, 24576 + 3 * 6144, 49152 + 3 * 262144,
    ]  # fmt: skip


def test_numpy_arrays_have_views_too() -> None:
    llama, array = of(LLAMA), np.arange(3 * 4 * 16 * 256, dtype=np.uint16).reshape(3, 4, 16, 256)
    k, v = llama.slice_for_tp_transfer(array, 2, 1, llama, 4, 2)
    assert np.shares_memory(k, array)
    assert np.array_equal(k.reshape(3, 2, 16, 128), array[:, :2, :, :128])
    assert np.array_equal(v.reshape(3, 2, 16, 128), array[:, :2, :, 128:])


@pytest.mark.parametrize(
    ("code", "tensor", "ranks", "words"),
    [
        ("KVL602", torch.empty((4, 8, 16, 256), dtype=torch.bfloat16), (2, 0, 4, 0), {}),  # a page of one rank
        ("KVL602", torch.empty((4, 4, 16, 128), dtype=torch.bfloat16), (2, 0, 4, 0), {}),  # half a page
        ("KVL602", torch.empty((), dtype=torch.bfloat16), (2, 0, 4, 0), {}),
        ("KVL602", [torch.empty((4, 4, 16, 256), dtype=torch.bfloat16)] * 2, (2, 0, 4, 0), {}),
        ("KVL602", torch.empty((4, 64), dtype=torch.complex128), (2, 0, 4, 0), {}),
        ("KVL609", torch.empty((4, 4, 16, 256), dtype=torch.bfloat16), (2, 2, 4, 0), {}),
        ("KVL609", torch.empty((4, 4, 16, 256), dtype=torch.bfloat16), (2, 0, 4, -1), {}),
        ("KVL510", torch.empty((4, 4, 16, 256), dtype=torch.bfloat16), (2, 0, 4, 0), {"block": 32}),
        ("KVL202", torch.empty((4, 4, 16, 256), dtype=torch.bfloat16), (3, 0, 4, 0), {}),
        ("KVL502", torch.empty((4, 4, 16, 256), dtype=torch.bfloat16), (2, 0, 4, 0), {"kv_dtype": "fp8"}),
    ],
)
def test_what_is_no_page_of_the_spec_has_no_views(
    code: str, tensor: Any, ranks: tuple[int, int, int, int], words: dict[str, Any]
) -> None:
    src_tp, src_rank, dst_tp, dst_rank = ranks
    with pytest.raises(PlanRefused if code in ("KVL510", "KVL202", "KVL502") else SubmitError, match=code):
        of(LLAMA).slice_for_tp_transfer(tensor, src_tp, src_rank, of(LLAMA, **words), dst_tp, dst_rank)


def test_a_run_that_cuts_elements_needs_bytes() -> None:
    src, dst = of(QWEN, "state", conv="SD"), of(QWEN, "state")
    page = QWEN.page(QWEN.group("state"), kvlayout.Engine(tp=2))
    with pytest.raises(SubmitError, match="uint8"):  # a channel's row of two bytes
        src.slice_for_tp_transfer(torch.empty((2, page.nbytes // 4), dtype=torch.int32), 2, 0, dst, 2, 0)
