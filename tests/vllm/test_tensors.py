"""Live tensors of vLLM against the spec: right ones are let pass in every form that vLLM has, others are named."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES
from vllm import _custom_ops as ops
from vllm.v1.worker.utils import allocate_kv_cache

import kvlayout
from kvlayout.errors import Problem
from kvlayout.integrations.vllm import VllmCache, check_tensors, page_rows, read

LAYER, STATE = "model.layers.1.self_attn.attn", "model.layers.0.linear_attn"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_vllm_allocates_is_what_the_spec_says(name: str, tp: int, side: Callable[..., Any]) -> None:
    """As a connector gets them, and as the layers hold them: pages of bytes, or the views of each state."""
    made = side(name, tp=tp, rank=tp - 1)
    cache = read(made.config, made.cache)
    assert check_tensors(cache, tp - 1, made.views) == ()
    assert check_tensors(cache, tp - 1, {name: made.layers[name].kv_cache for name in made.views}) == ()


@pytest.fixture
def hybrid(side: Callable[..., Any]) -> tuple[VllmCache, dict[str, Any], dict[str, Any]]:
    """Of Qwen3-Next: what is read, the tensors that a connector gets, and those that the layers hold."""
    made = side("qwen3_next", tp=2)
    views = dict(made.views)
    return read(made.config, made.cache), views, {name: made.layers[name].kv_cache for name in views}


def found(cache: VllmCache, tensors: dict[str, Any], name: str, tensor: Any) -> Problem:
    """The one problem that another tensor for a layer makes."""
    problems = check_tensors(cache, 0, {**tensors, name: tensor})
    assert len(problems) == 1, problems
    assert name in str(problems[0]) and problems[0].help
    return problems[0]


def other(view: torch.Tensor, **change: Any) -> torch.Tensor:
    """A view of the same memory with another size, stride or offset."""
    words = {"size": view.shape, "stride": view.stride(), "storage_offset": view.storage_offset()} | change
    return torch.as_strided(view, words["size"], words["stride"], words["storage_offset"])


Hybrid = tuple[VllmCache, dict[str, Any], dict[str, Any]]


def test_attention_tensors(hybrid: Hybrid) -> None:
    cache, views, _ = hybrid
    view = views[LAYER]
    blocks, heads, tokens, content = view.shape
    page = view.stride(0)
    assert found(cache, views, LAYER, view.view(torch.float16)).code == "KVL712"
    assert found(cache, views, LAYER, view.view(torch.int8)).code == "KVL712"
    assert found(cache, views, LAYER, other(view, size=(blocks, heads, tokens // 2, content))).code == "KVL713"
    split = view.view(blocks * 3, heads, tokens // 3, content)  # kernels with smaller blocks than the block tables
    assert found(cache, views, LAYER, split).code == "KVL713"
    assert found(cache, views, LAYER, [view]).code == "KVL713"
    assert found(cache, views, LAYER, other(view, stride=(page, page, content + 2, 1))).code == "KVL714"
    assert found(cache, views, LAYER, other(view, stride=(page - 2, page, content, 1))).code == "KVL714"
    few = (9, *view.shape[1:])  # so that it ends before the next layer begins
    assert found(cache, views, LAYER, other(view, stride=(page + 2, page, content, 1), size=few)).code == "KVL715"
    late = other(view, storage_offset=view.storage_offset() + 64, size=few)
    assert found(cache, views, LAYER, late).code == "KVL715"


def test_a_tensor_that_ends_outside_its_storage(hybrid: Hybrid) -> None:
    """torch makes no such view; a storage that was shrunk afterwards leaves one behind."""
    cache, views, _ = hybrid
    view = torch.empty_strided(views[LAYER].shape, views[LAYER].stride(), dtype=torch.bfloat16)
    view.untyped_storage().resize_(view.untyped_storage().nbytes() - 2)
    problems = check_tensors(cache, 0, {**views, LAYER: view})
    assert {each.code for each in problems} == {"KVL715"} and "outside its storage" in str(problems[0])


def test_state_tensors(hybrid: Hybrid) -> None:
    cache, views, held = hybrid
    conv, temporal = held[STATE]
    assert found(cache, views, STATE, views[STATE].view(torch.int16)).code == "KVL712"
    assert found(cache, views, STATE, views[STATE][..., :-2]).code == "KVL713"
    assert found(cache, views, STATE, [conv]).code == "KVL713"
    assert found(cache, views, STATE, [conv.view(torch.float16), temporal]).code == "KVL712"
    assert found(cache, views, STATE, [conv.transpose(1, 2), temporal]).code == "KVL713"
    rows = conv.view(conv.shape[0], 1, -1)  # as many bytes, and no window of so many rows
    assert found(cache, views, STATE, [rows, temporal]).code == "KVL713"
    apart = other(conv, stride=(conv.stride(0), conv.stride(1) + 2, 1))
    assert found(cache, views, STATE, [apart, temporal]).code == "KVL714"
    late = other(temporal, storage_offset=temporal.storage_offset() + 4, size=(9, *temporal.shape[1:]))
    assert found(cache, views, STATE, [conv, late]).code == "KVL715"


def test_layers_that_are_missing_or_of_another_model(hybrid: Hybrid) -> None:
    cache, views, _ = hybrid
    without = {name: view for name, view in views.items() if name != LAYER}
    (problem,) = check_tensors(cache, 0, without)
    assert problem.code == "KVL711" and LAYER in problem.where
    assert check_tensors(cache, 0, {**views, "model.layers.9.attn": views[LAYER]}) == ()  # shares the memory of another
    (problem,) = check_tensors(cache, 0, {**views, "model.layers.9.attn": views[LAYER].clone()})
    assert problem.code == "KVL711" and "model.layers.9.attn" in problem.where
    for rank in (-1, 2):
        with pytest.raises(kvlayout.SubmitError, match="KVL711"):
            check_tensors(cache, rank, views)


def test_blocks_that_kernels_split(side: Callable[..., Any]) -> None:
    """Kernels of 32 tokens under block tables of 128: a page is four of their blocks, end to end."""
    made = side("llama", tp=2)
    layout = made.config.cache_config.get_resolved_kv_cache_layout()
    views = allocate_kv_cache(made.cache, torch.device("cpu"), layout, [32])
    assert {each.code for each in check_tensors(read(made.config, made.cache), 0, views)} == {"KVL713"}
    cache = read(made.config, made.cache, kernel_blocks=[32])
    assert check_tensors(cache, 0, views) == ()
    assert str(cache.engine) == "tp=2,conv=SD,attention.block=128,attention.kernel_block=32"
    (rows,) = page_rows(cache, 0, views).values()
    assert {tuple(each.shape) for each in rows.values()} == {(made.cache.num_blocks, 128 * 64 * 2 * 2)}
    name, view = next(iter(views.items()))
    apart = other(view, size=(8, *view.shape[1:]), stride=(view.stride(0) + 64, *view.stride()[1:]))
    assert found(cache, views, name, apart).code == "KVL714"
    assert found(cache, views, name, view[:-1]).code == "KVL713"
    for blocks in ([48], []):
        with pytest.raises(kvlayout.SpecError, match="KVL706"):
            read(made.config, made.cache, kernel_blocks=blocks)
    for words in ({"kv_cache_config": made.cache}, {"kernel_blocks": [32]}):
        with pytest.raises(TypeError):
            read(made.config, kv_cache_specs=made.specs, **words)


def test_a_page_of_kernel_blocks_holds_what_each_kernel_writes(side: Callable[..., Any]) -> None:
    """Blocks of 128 tokens as four of 32, whose elements are then to be found in the page of 128."""
    made = side("llama")
    layout = made.config.cache_config.get_resolved_kv_cache_layout()
    views = allocate_kv_cache(made.cache, torch.device("cpu"), layout, [32])
    cache = read(made.config, made.cache, kernel_blocks=[32])
    whole = read(made.config, made.cache)
    plan = kvlayout.slice_for_tp_transfer(cache.spec, cache.engine, whole.engine)
    target = side("llama", max_model_len=1024)
    name, view = next(iter(views.items()))
    module, values = made.layers[name], torch.randn((128, 2, 64)).to(view.dtype)
    for tensor, tokens in ((view, 32), (target.views[name], 128)):
        planes = tensor.view(tensor.shape[0], 2, 2 * tokens, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(values, -values, *planes, 128 * 3 + torch.arange(128), module.isa)
    meant = target.views[name][3].clone()
    rows, into = page_rows(cache, 0, views), page_rows(whole, 0, target.views)
    kvlayout.bind(plan, dst_rank=0, src={0: rows}, dst=into)({"attention": ([3], [3])})
    assert torch.equal(target.views[name][3], meant) and meant.any()


def test_padded_pages_are_not_split(side: Callable[..., Any]) -> None:
    made = side("qwen3_next", tp=2)
    cache = read(made.config, made.cache, kernel_blocks=[384, 128])
    assert [cache.tiles(group.name) for group in cache.spec.groups] == [1, 3]
    padded = copy.deepcopy(made.cache)
    object.__setattr__(padded.kv_cache_groups[1].kv_cache_spec, "page_size_padded", 1 << 20)
    with pytest.raises(kvlayout.SpecError, match=r"KVL706.*without padding"):
        read(made.config, padded, kernel_blocks=[384, 128])


def test_layers_that_use_the_cache_of_another_one(side: Callable[..., Any]) -> None:
    """Gemma-3n: vLLM hands the shared tensor to connectors under both names, and its groups name both."""
    made = side("gemma3n")
    cache = read(made.config, made.cache)
    sharing = {
        name: made.views[module.kv_sharing_target_layer_name]
        for name, module in made.layers.items()
        if getattr(module, "kv_sharing_target_layer_name", None)
    }
    named = {layer for group in made.cache.kv_cache_groups for layer in group.layer_names}
    assert len(sharing) == 2 and set(sharing) <= named and not set(sharing) & set(cache.layers)
    assert check_tensors(cache, 0, {**made.views, **sharing}) == ()


def test_layers_of_one_group_in_one_place(side: Callable[..., Any]) -> None:
    made = side("llama")
    cache = read(made.config, kv_cache_specs=made.specs)
    first, second, *_ = sorted(made.views)
    (problem,) = check_tensors(cache, 0, {**made.views, second: made.views[first]})
    assert problem.code == "KVL716" and first in str(problem) and second in str(problem)
    view = made.views[second]
    (problem,) = check_tensors(cache, 0, {**made.views, second: other(view, storage_offset=view.storage_offset() - 64)})
    assert problem.code == "KVL716"


def test_pages_of_layers_side_by_side(side: Callable[..., Any]) -> None:
    """Block outermost: layers take turns inside a block, and may not reach into each other's turn."""
    made = side("llama")
    cache = read(made.config, kv_cache_specs=made.specs)
    shape = (8, *next(iter(made.views.values())).shape[1:])
    page = torch.Size(shape[1:]).numel()
    buffer = torch.zeros(8 * 4 * page, dtype=torch.bfloat16)
    views = {
        name: torch.as_strided(buffer, shape, (4 * page, page // shape[1], shape[3], 1), index * page)
        for index, name in enumerate(sorted(made.views))
    }
    assert check_tensors(cache, 0, views) == ()
    *_, last = sorted(views)
    moved = torch.as_strided(buffer, shape, views[last].stride(), 3 * page - 64)
    (problem,) = check_tensors(cache, 0, {**views, last: moved})
    assert problem.code == "KVL716" and last in str(problem)
    onward = torch.as_strided(buffer, (7, *shape[1:]), views[last].stride(), 3 * page + 64)  # into the next block
    (problem,) = check_tensors(cache, 0, {**views, last: onward})
    assert problem.code == "KVL716" and last in str(problem)


def test_tokens_outside_heads(side: Callable[..., Any]) -> None:
    """The other order inside a page, in which no kernels of this machine keep it."""
    made, other_order = side("llama", layout="LBNHC"), side("llama")
    cache = read(made.config, made.cache)
    assert cache.engine.order == "LBNHC" and check_tensors(cache, 0, made.views) == ()
    assert {each.code for each in check_tensors(cache, 0, other_order.views)} == {"KVL714"}


def test_rows_are_whole_pages_of_checked_tensors(hybrid: Hybrid) -> None:
    cache, views, held = hybrid
    for tensors in (views, held):
        rows = page_rows(cache, 0, tensors)
        assert {group: sorted(layers) for group, layers in rows.items()} == {"state": [0, 2], "attention": [1, 3]}
        assert {row.shape[1] for layers in rows.values() for row in layers.values()} == {98304}
        assert rows["state"][2].data_ptr() == views["model.layers.2.linear_attn"].data_ptr()
    with pytest.raises(kvlayout.SubmitError, match="KVL712"):
        page_rows(cache, 0, {**views, LAYER: views[LAYER].view(torch.float16)})


def test_the_documentations_worker(side: Callable[..., Any]) -> None:
    """The class of docs/vllm.md at work, and what its table says of it."""
    text = DOCS.read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    one, two = side("qwen3_next"), side("qwen3_next", tp=2)
    source, target = names["Worker"](one.config, one.cache, 0), names["Worker"](two.config, two.cache, 0)
    target.register_kv_caches(two.views)
    with pytest.raises(kvlayout.SubmitError, match="KVL713"):
        target.register_kv_caches(one.views)
    assert source.plan_to(target).digest.startswith("sha256:")
    assert f"`{target.cache.engine}`" in text
    assert f"`{target.cache.vllm_groups}`" in text
    assert str(dict(list(target.cache.layers.items())[:1]))[:-1] in text
    parameters = ", ".join(str(each) for each in inspect.signature(names["Worker"].plan_to).parameters)
    assert parameters == "self, other"
