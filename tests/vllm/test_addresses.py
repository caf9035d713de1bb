"""Every element that vLLM writes lies where the page says: its own views and kernels write ids, and the bytes are read.

Attention pages are written by the kernels that vLLM's CPU backends call, states through the views that its layers
hold; then each field of the spec's page is looked up in the raw buffer. What the bytes of a page are is thus asked of
vLLM, and where they are of kvlayout, with nothing in common but the element's coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from vllm import _custom_ops as ops

from kvlayout.integrations.vllm import VllmCache, read
from kvlayout.ir import Leaf, Page, leaves
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import spec_of_format

BITS = 7
"""Bits of an id that one pass writes: bfloat16 holds all integers up to 256."""


def places(leaf: Leaf, axes: Sequence[str], extents: Sequence[int]) -> np.ndarray[Any, Any]:
    """Byte offset in the page of every atom of a field, along `axes`."""
    at = np.full(tuple(extents), leaf.base)
    for axis, weight, count, stride in leaf.digits:
        along = np.arange(extents[axes.index(axis)]) // weight % count * stride
        at += along.reshape([-1 if name == axis else 1 for name in axes])
    return at


def extents(leaf: Leaf, axes: Sequence[str]) -> list[int]:
    return [prod(count for axis, _, count, _ in leaf.digits if axis == name) for name in axes]


def raw(view: torch.Tensor) -> np.ndarray[Any, Any]:
    """All bytes of the storage that a view lies in."""
    flat = torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())
    return flat.numpy()


def elements(memory: np.ndarray[Any, Any], at: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The elements that begin at these bytes."""
    size = dtype.itemsize
    gathered = memory[np.add.outer(at, np.arange(size))]
    return torch.from_numpy(np.ascontiguousarray(gathered)).view(dtype).reshape(at.shape)


def fields(page: Page) -> dict[str, Leaf]:
    return {leaf.field: leaf for leaf in leaves(page.tree)}


def digits(ids: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Ids in passes of values that every dtype holds."""
    passes = -(-int(ids.max() + 1).bit_length() // BITS)
    return [((ids >> (BITS * each)) & (2**BITS - 1)).to(dtype) for each in range(passes)]


def attention(cache: VllmCache, layer: str, module: Any, view: torch.Tensor) -> None:
    """Whole blocks of tokens through the kernel that stores k and v, at shuffled slots."""
    page = cache.spec.page(cache.spec.group(cache.layers[layer][0]), cache.engine)
    place, leaf = cache.placements[layer], fields(page)
    blocks = [1, 2, place.blocks - 1]
    heads, tokens, dim = extents(leaf["k"], ("head", "token", "kdim"))
    slots = torch.tensor(blocks).repeat_interleave(tokens) * tokens + torch.arange(tokens).repeat(len(blocks))
    ids = torch.arange(len(slots) * heads * dim).reshape(len(slots), heads, dim)
    kv = view.view(view.shape[0], view.shape[1], view.shape[2] * 2, -1)
    shuffled = torch.randperm(len(slots), generator=torch.Generator().manual_seed(1))
    for k in digits(ids, view.dtype):
        v = -k
        planes = kv.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(k[shuffled], v[shuffled], *planes, slots[shuffled], module.isa)
        for name, wanted in (("k", k), ("v", v)):
            at = places(leaf[name], ("head", "token", f"{name}dim"), (heads, tokens, dim))
            for index, block in enumerate(blocks):
                found = elements(raw(view), place.offset + block * place.stride + at, view.dtype)
                mine = wanted[index * tokens : (index + 1) * tokens].permute(1, 0, 2)
                assert torch.equal(found, mine), (layer, name, block)


def latent(cache: VllmCache, layer: str, view: torch.Tensor) -> None:
    """Rows of latent and rope through the kernel that joins them."""
    page = cache.spec.page(cache.spec.group(cache.layers[layer][0]), cache.engine)
    place, leaf = cache.placements[layer], fields(page)
    widths = {name: leaf[name].nbytes // view.element_size() for name in ("latent", "rope")}
    tokens, blocks = extents(leaf["latent"], ("token",))[0], [1, place.blocks - 1]
    slots = torch.tensor(blocks).repeat_interleave(tokens) * tokens + torch.arange(tokens).repeat(len(blocks))
    ids = torch.arange(len(slots) * sum(widths.values())).reshape(len(slots), -1)
    for row in digits(ids, view.dtype):
        parts = dict(zip(widths, row.split(list(widths.values()), dim=1), strict=True))
        ops.amx_mla_concat_and_cache(parts["latent"].contiguous(), parts["rope"].contiguous(), view.squeeze(1), slots)
        for name, width in widths.items():
            rows = places(leaf[name], ("token",), (tokens,))
            at = np.add.outer(rows, np.arange(width) * view.element_size())
            for index, block in enumerate(blocks):
                found = elements(raw(view), place.offset + block * place.stride + at, view.dtype)
                assert torch.equal(found, parts[name][index * tokens : (index + 1) * tokens]), (layer, name, block)


CHANNELS = {
    "conv_x": ("channel", "head", "hdim"), "conv_b": ("group", "state"), "conv_c": ("group", "state"),
    "conv_q": ("khead", "kdim", "head", "hdim"), "conv_k": ("khead", "kdim", "head", "hdim"),
    "conv_v": ("vhead", "vdim", "head", "hdim"),
}  # fmt: skip
"""Axes of each part of a convolution, outer to inner, in every format; vLLM numbers their channels through."""


def state(cache: VllmCache, layer: str, module: Any, view: torch.Tensor) -> None:
    """Bit patterns through the layer's own views of its states."""
    page = cache.spec.page(cache.spec.group(cache.layers[layer][0]), cache.engine)
    place, leaf = cache.placements[layer], fields(page)
    first_state, temporal = module.kv_cache[0], module.kv_cache[-1]
    for block in (0, 1, place.blocks - 1):
        start, base, rows = place.offset + block * place.stride, 0, 0
        if "temporal" in leaf:
            pattern = torch.arange(1, temporal[block].numel() + 1, dtype=torch.int32) + (block << 20)
            bits = {2: torch.int16, 4: torch.int32}[temporal.element_size()]
            temporal.view(bits)[block] = pattern.to(bits).view(temporal.shape[1:])
            inner = temporal[block].numel() * temporal.element_size()
            first = leaf["temporal"].base
            assert raw(view)[start + first : start + first + inner].tobytes() == pattern.to(bits).numpy().tobytes()
        for name, axes in CHANNELS.items():
            if name not in leaf:
                continue
            present = [axis for axis in axes if axis in leaf[name].axes]
            sizes = extents(leaf[name], ["row", *present])
            rows, channels = sizes[0], prod(sizes[1:])
            conv = first_state.view(torch.int16)[block]
            part = conv[base : base + channels] if cache.engine.conv == "DS" else conv[:, base : base + channels].T
            ids = torch.arange(channels * rows, dtype=torch.int16).view(channels, rows) + base
            part.copy_(ids)
            at = places(leaf[name], ["row", *present], sizes).reshape(rows, channels)
            found = elements(raw(view), start + at, torch.int16)
            assert torch.equal(found.T, ids), (layer, name, block)
            base += channels
        assert first_state[block].numel() == base * rows, "the parts are all of the convolution"


@pytest.mark.parametrize(("tp", "conv"), [(1, "SD"), (2, "SD"), (2, "DS")])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_element_lies_where_the_page_says(name: str, tp: int, conv: str, side: Callable[..., Any]) -> None:
    made = side(name, tp=tp, rank=tp - 1, conv=conv)
    cache = read(made.config, made.cache)
    kinds = set()
    for layer, view in made.views.items():
        module = made.layers[layer]
        raw(view)[:] = 0  # vLLM's groups share one buffer
        format = cache.spec.group(cache.layers[layer][0]).format.name
        if format.startswith("gqa_cpu"):
            kinds.add("attention")
            attention(cache, layer, module, view)
        elif format == "mla":
            kinds.add("mla")
            latent(cache, layer, view)
        else:
            kinds.add("state")
            state(cache, layer, module, view)
    assert kinds


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    "name", ["falcon_mamba", "mamba2", "granitemoehybrid", "falcon_h1", "qwen3_next", "kimi_linear"]
)
def test_parts_of_a_convolution_begin_where_vllms_own_connector_reads_them(
    name: str, tp: int, side: Callable[..., Any]
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import derive_mamba_conv_split

    made = side(name, tp=tp, conv="DS")
    cache = read(made.config, made.cache)
    for layer, spec in made.specs.items():
        if type(spec).__name__ != "MambaSpec":
            continue
        leaf = fields(cache.spec.page(cache.spec.group(cache.layers[layer][0]), cache.engine))
        parts = [leaf[part] for part in CHANNELS if part in leaf]
        ours = [(part.base, part.nbytes * prod(count for _, _, count, _ in part.digits)) for part in parts]
        split = derive_mamba_conv_split(spec, tp)
        assert ours == split.local_conv_offsets
        assert leaf["temporal"].base == split.ssm_sizes[0]


AUTO = [
    ("vec", torch.float32, 64, 32), ("vec", torch.bfloat16, 128, 96), ("vec", torch.float16, 32, 64),
    ("vec16", torch.bfloat16, 80, 32), ("vec16", torch.float32, 112, 48), ("amx", torch.bfloat16, 64, 32),
    ("amx", torch.bfloat16, 96, 64), ("amx", torch.bfloat16, 128, 384),
]  # fmt: skip
FP8 = [("vec", torch.float32, 64, 32), ("vec", torch.bfloat16, 128, 96), ("amx", torch.bfloat16, 96, 64)]
KERNELS = [*((*case, "auto") for case in AUTO), *((*case, "fp8_e5m2") for case in FP8)]
"""Kind of kernel, dtype of keys, head size, tokens, cache dtype; fp8 as far as the kernels take it."""


@pytest.mark.parametrize(("isa", "dtype", "dim", "tokens", "cache_dtype"), KERNELS)
def test_cpu_kernels_keep_the_pages_of_their_formats(
    isa: str, dtype: torch.dtype, dim: int, tokens: int, cache_dtype: str
) -> None:
    """Each kind of kernel, whatever this machine would choose, in pages of its own dtype and of fp8."""
    if isa == "amx" and not torch.cpu._is_amx_tile_supported():
        pytest.skip("this CPU has no AMX, whose kernels would be run")
    kept = dtype if cache_dtype == "auto" else torch.float8_e5m2
    params = {"num_kv_heads": 2, "head_size": dim, "dtype": str(kept).removeprefix("torch.")}
    format = find_format("gqa_cpu_amx" if isa == "amx" else "gqa_cpu_vec", None, "test")
    spec = spec_of_format(format, params, "test")
    page = spec.page(spec.groups[0], Engine(block=tokens))
    view = torch.zeros((2, 2, tokens, 2 * dim), dtype=kept if cache_dtype == "auto" else torch.uint8)
    planes = view.view(2, 2, tokens * 2, dim).chunk(2, dim=2)
    slots = torch.randperm(2 * tokens, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(len(slots) * 2 * dim).reshape(len(slots), 2, dim)
    values = digits(ids, dtype) if cache_dtype == "auto" else [((ids >> each) & 1).to(dtype) for each in range(16)]
    for k in values:
        ops.cpu_attn_reshape_and_cache(k, 2 * k, *planes, slots, isa, 1.0, 1.0, cache_dtype)
        for name, wanted in (("k", k), ("v", 2 * k)):
            at = places(fields(page)[name], ("head", "token", f"{name}dim"), (2, tokens, dim))
            for block in (0, 1):
                found = elements(raw(view), block * page.nbytes + at, kept).to(dtype)
                mine = torch.empty(tokens, 2, dim, dtype=dtype)
                here = slots // tokens == block
                mine[slots[here] % tokens] = wanted[here]
                assert torch.equal(found, mine.permute(1, 0, 2)), (name, block)
