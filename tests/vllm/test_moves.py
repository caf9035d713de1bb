"""Pages of one engine moved into the buffers of another: each rank then holds what vLLM itself would have written.

Values are made for the whole model. Every rank's share of them is cut by vLLM's rules, written here, and stored by
vLLM's kernels and views; the moved pages of the other engine must then be the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from vllm import _custom_ops as ops
from vllm_side import orient

import kvlayout
from kvlayout.integrations.vllm import VllmCache, page_rows, read

BLOCKS = [3, 1]
"""Ids of the source's blocks; the destination's are these and 4 more."""


def share(whole: torch.Tensor, rank: int, tp: int, axis: int = 0) -> torch.Tensor:
    """Equal shares; of fewer units than ranks, the one that consecutive ranks have together."""
    if whole.shape[axis] < tp:
        return whole.narrow(axis, rank * whole.shape[axis] // tp, 1)
    return whole.chunk(tp, axis)[rank]


def conv_and_state(cache: VllmCache, group: str, whole: dict[str, torch.Tensor], rank: int) -> list[torch.Tensor]:
    """A rank's convolution, as [channels, rows], and its temporal state."""
    tp, params = cache.engine.tp, cache.spec.group(group).params
    parts = []
    for name, part in whole.items():
        if name == "temporal":
            continue
        alone = name in ("conv_b", "conv_c") and params["n_groups"] == 1
        parts.append(part if alone else share(part, rank, tp))
    states = [torch.cat(parts)]
    return [*states, share(whole["temporal"], rank, tp)] if "temporal" in whole else states


def whole_state(cache: VllmCache, group: str, seed: int) -> dict[str, torch.Tensor]:
    """Random bits of the state of a whole model, part by part, channels first."""
    random = np.random.default_rng(seed)

    def bits(dtype: str, *shape: int) -> torch.Tensor:
        size = {"bfloat16": np.int16, "float32": np.int32}[dtype]
        return torch.from_numpy(random.integers(0, 1 << 15, shape).astype(size))

    fmt, p = cache.spec.group(group).format.name, dict(cache.spec.group(group).params)
    rows, conv = int(p["conv_kernel"]) - 1, str(p["conv_dtype"])
    match fmt:
        case "mamba1":
            channels = {"conv_x": p["intermediate_size"]}
            temporal = p["intermediate_size"], p["state_size"]
        case "mamba2":
            inner, b = p["num_heads"] * p["head_dim"], p["n_groups"] * p["state_size"]
            channels = {"conv_x": inner, "conv_b": b, "conv_c": b}
            temporal = p["num_heads"], p["head_dim"], p["state_size"]
        case "gdn_cpu":
            keys, values = p["num_k_heads"] * p["head_k_dim"], p["num_v_heads"] * p["head_v_dim"]
            channels = {"conv_q": keys, "conv_k": keys, "conv_v": values}
            temporal = p["num_v_heads"], p["head_v_dim"], p["head_k_dim"]
        case "kda":
            inner = p["num_heads"] * p["head_dim"]
            channels = {"conv_q": inner, "conv_k": inner, "conv_v": inner}
            temporal = p["num_heads"], p["head_dim"], p["head_dim"]
        case _:
            channels, temporal = {"conv_x": p["conv_dim"]}, ()
    whole = {name: bits(conv, int(count), rows) for name, count in channels.items()}
    return whole | ({"temporal": bits(str(p["ssm_dtype"]), *map(int, temporal))} if temporal else {})


def store(made: Any, cache: VllmCache, layer: str, rank: int, blocks: list[int], seed: int) -> None:
    """A layer's pages of a rank, by vLLM: what the whole model has in these blocks, cut for the rank."""
    group = cache.layers[layer][0]
    fmt, module, view = cache.spec.group(group).format.name, made.layers[layer], made.views[layer]
    params = cache.spec.group(group).params
    for place, block in enumerate(blocks):
        number = seed * 100 + place
        random = torch.Generator().manual_seed(number)
        if fmt.startswith("gqa_cpu"):
            tokens = view.shape[2]
            shape = tokens, int(params["num_kv_heads"]), int(params["head_size"])
            k, v = (share(torch.randn(shape, generator=random).to(view.dtype), rank, cache.engine.tp, 1) for _ in "kv")
            planes = view.view(view.shape[0], view.shape[1], 2 * tokens, -1).chunk(2, dim=2)
            slots = block * tokens + torch.arange(tokens)
            ops.cpu_attn_reshape_and_cache(k.contiguous(), v.contiguous(), *planes, slots, module.isa)
        elif fmt == "mla":
            tokens = view.shape[2]
            latent, rope = (torch.randn((tokens, n), generator=random).to(view.dtype) for n in (512, 64))
            ops.amx_mla_concat_and_cache(latent, rope, view.squeeze(1), block * tokens + torch.arange(tokens))
        else:
            states = conv_and_state(cache, group, whole_state(cache, group, number), rank)
            held = module.kv_cache
            conv = held[0].view(states[0].dtype)[block]
            conv.copy_(states[0] if cache.engine.conv == "DS" else states[0].T)
            if len(states) > 1:
                held[1].view(states[1].dtype)[block] = states[1]


def buffer(made: Any) -> torch.Tensor:
    view = next(iter(made.views.values()))
    return torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())


@pytest.mark.parametrize(("src_tp", "dst_tp"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(("src_conv", "dst_conv"), [("SD", "SD"), ("SD", "DS")])
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "gemma3",
        "gemma4",
        "deepseek_v3",
        "mamba",
        "granitemoehybrid",
        "nemotron_h",
        "qwen3_next",
        "lfm2",
        "kimi_linear",
    ],
)
def test_moved_pages_are_those_that_vllm_would_write(
    name: str, src_tp: int, dst_tp: int, src_conv: str, dst_conv: str, side: Callable[..., Any]
) -> None:
    # Another length, so that equal engines are two with memory of their own.
    sources = [side(name, tp=src_tp, rank=rank, conv=src_conv, max_model_len=1024) for rank in range(src_tp)]
    targets = [side(name, tp=dst_tp, rank=rank, conv=dst_conv) for rank in range(dst_tp)]
    orient(src_conv)
    src = read(sources[0].config, sources[0].cache)
    orient(dst_conv)
    dst = read(targets[0].config, targets[0].cache)
    to = [block + 4 for block in BLOCKS]
    for group in src.spec.groups:  # one at a time, so that equal block ids do
        plan = kvlayout.slice_for_tp_transfer(src.spec, src.engine, dst.engine, dst_spec=dst.spec, group=group.name)
        if plan.group(group.name).src_blocks != plan.group(group.name).dst_blocks:
            assert name == "gemma4" and group.name.startswith("sliding"), "whose block depends on tp; see below"
            continue
        layers = [layer for layer, (of, _) in src.layers.items() if of == group.name]
        meant = {}
        for rank, made in enumerate(targets):
            buffer(made)[:] = 0
            for seed, layer in enumerate(layers):
                store(made, dst, layer, rank, to, seed)
            meant[rank] = buffer(made).clone()
            buffer(made)[:] = 0
        rows = {}
        for rank, made in enumerate(sources):
            buffer(made)[:] = 0
            for seed, layer in enumerate(layers):
                store(made, src, layer, rank, BLOCKS, seed)
            rows[rank] = {group.name: page_rows(src, rank, made.views)[group.name]}
        for rank, made in enumerate(targets):
            into = {group.name: page_rows(dst, rank, made.views)[group.name]}
            kvlayout.bind(plan, dst_rank=rank, src=rows, dst=into)({group.name: (np.array(BLOCKS), np.array(to))})
            assert torch.equal(buffer(made), meant[rank]), (group.name, rank)
            assert meant[rank].any()


@pytest.mark.parametrize(("src_tp", "dst_tp"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("name", ["gemma3", "granitemoehybrid", "qwen3_next", "kimi_linear"])
def test_all_groups_move_at_once_through_one_pool(
    name: str, src_tp: int, dst_tp: int, side: Callable[..., Any]
) -> None:
    """In vLLM's buffer the pages of all groups lie over each other: a block is one group's. A call moves them all."""
    sources = [side(name, tp=src_tp, rank=rank, max_model_len=1024) for rank in range(src_tp)]
    targets = [side(name, tp=dst_tp, rank=rank) for rank in range(dst_tp)]
    src, dst = read(sources[0].config, sources[0].cache), read(targets[0].config, targets[0].cache)
    plan = kvlayout.slice_for_tp_transfer(src.spec, src.engine, dst.engine, dst_spec=dst.spec)
    blocks = {}
    for made in (*sources, *targets):
        buffer(made)[:] = 0
    for number, group in enumerate(plan.groups):
        first = 1 + number * max(group.src_blocks, group.dst_blocks)
        ids = tuple(np.arange(first, first + count) for count in (group.src_blocks, group.dst_blocks))
        blocks[group.name] = ids
        layers = [layer for layer, (of, _) in src.layers.items() if of == group.name]
        for cache, side_, numbers in ((src, sources, ids[0]), (dst, targets, ids[1])):
            if group.src_blocks == group.dst_blocks:
                for rank, made in enumerate(side_):
                    for seed, layer in enumerate(layers):
                        store(made, cache, layer, rank, numbers.tolist(), seed)
    meant = [buffer(made).clone() for made in targets]
    rows = {rank: page_rows(src, rank, made.views) for rank, made in enumerate(sources)}
    for rank, made in enumerate(targets):
        buffer(made)[:] = 0
        move = kvlayout.bind(plan, dst_rank=rank, src=rows, dst=page_rows(dst, rank, made.views), null_blocks=(0, 0))
        move(blocks)
        assert torch.equal(buffer(made), meant[rank]) and meant[rank].any()
        one, other, *_ = blocks
        with pytest.raises(kvlayout.SubmitError, match="KVL606"):
            move({**blocks, one: (blocks[one][0], blocks[other][1][: len(blocks[one][1])])})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("src_block", "dst_block"), [(128, 64), (64, 128), (32, 96)])
def test_blocks_of_other_sizes(src_block: int, dst_block: int, dtype: str, side: Callable[..., Any]) -> None:
    """Tokens keep their values where a CPU page mixes them, which copying blocks in order would not do."""
    source = side("qwen3", tp=1, block_size=src_block, dtype=dtype)
    targets = [side("qwen3", tp=2, rank=rank, block_size=dst_block, dtype=dtype) for rank in range(2)]
    src, dst = read(source.config, source.cache), read(targets[0].config, targets[0].cache)
    plan = kvlayout.slice_for_tp_transfer(src.spec, src.engine, dst.engine, dst_spec=dst.spec)
    tokens = int(np.lcm(src_block, dst_block))
    from_ids, to_ids = (2 + np.arange(tokens // block)[::-1] for block in (src_block, dst_block))

    def write(made: Any, ids: np.ndarray[Any, Any], rank: int, tp: int) -> None:
        buffer(made)[:] = 0
        for layer, view in made.views.items():
            random = torch.Generator().manual_seed(len(layer) + int(layer.split(".")[2]))
            k, v = (share(torch.randn((tokens, 2, 64), generator=random).to(view.dtype), rank, tp, 1) for _ in "kv")
            block = view.shape[2]
            slots = torch.from_numpy(np.repeat(ids, block) * block + np.tile(np.arange(block), len(ids)))
            planes = view.view(view.shape[0], view.shape[1], 2 * block, -1).chunk(2, dim=2)
            ops.cpu_attn_reshape_and_cache(k.contiguous(), v.contiguous(), *planes, slots, made.layers[layer].isa)

    write(source, from_ids, 0, 1)
    for rank, made in enumerate(targets):
        write(made, to_ids, rank, 2)
        meant = buffer(made).clone()
        buffer(made)[:] = 0
        rows = page_rows(src, 0, source.views), page_rows(dst, rank, made.views)
        kvlayout.bind(plan, dst_rank=rank, src={0: rows[0]}, dst=rows[1])({"attention": (from_ids, to_ids)})
        assert torch.equal(buffer(made), meant) and meant.any()
