"""One layer's page: from a `KVCacheSpec` of a rank to a format with the parameters of the whole model.

Every class, packing and backend that is read here is named; what is not named is refused. vLLM's spec says how many
bytes a page has and not always what lies where: that is the backend's, and two backends may keep the same spec
differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kvlayout.errors import SpecError, one_of, problem, shown
from kvlayout.integrations.vllm.heads import kv_heads
from kvlayout.integrations.vllm.side import Side, dtype_name, vllm_module
from kvlayout.integrations.vllm.states import state_page

__all__ = ["KNOWN", "LayerPage", "layer_page"]

GQA = {
    "FullAttentionSpec": "attention",
    "SinkFullAttentionSpec": "attention",
    "RSWASpec": "attention",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "CrossAttentionSpec": "cross",
}
MLA = {"MLAAttentionSpec": "attention", "SlidingWindowMLASpec": "sliding"}
"""Classes of specs, and the name that a group of each gets. A subclass is another class: it may keep other bytes."""

KNOWN = (*(f"{kind}.num_kv_heads" for kind in dict.fromkeys(GQA.values())), "state.n_groups")
"""Numbers of the whole model that a user may give, by kind of group."""

CONTENT = (
    "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "FLASHINFER", "FLEX_ATTENTION",
)  # fmt: skip
"""Backends that keep k and then v in the content of each head and token."""

ROWS = (
    "FLASHMLA", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE",
    "CUTLASS_MLA", "TRITON_MLA", "CPU_MLA", "AMX_MLA",
)  # fmt: skip
"""Backends that keep a row for each token: latent, then rope."""

PER_TOKEN_HEAD = {
    "INT8_PER_TOKEN_HEAD": ("gqa_int8_per_token_head", 1),
    "FP8_PER_TOKEN_HEAD": ("gqa_fp8_per_token_head", 1),
    "INT4_PER_TOKEN_HEAD": ("gqa_int4_per_token_head", 2),
}
"""Quantization modes with scales in the page: format, and elements a byte."""

FP8 = {"fp8": "float8_e4m3", "fp8_e4m3": "float8_e4m3", "fp8_e5m2": "float8_e5m2"}


@dataclass(frozen=True, slots=True)
class LayerPage:
    """A layer's page. `block`: tokens of a rank's block, None for a state.

    `payload`, `nbytes`: bytes without and with padding. `shape`: head slots, states and content bytes of vLLM's tensor.
    `window`: tokens that a sliding window or a chunk keeps; layers that keep others have block tables of their own.
    `kernel_block`: tokens of the blocks that the page is made of, where kernels split it.
    """

    layer: str
    kind: str
    format: str
    params: Mapping[str, int | str]
    block: int | None
    payload: int
    nbytes: int
    shape: tuple[int, int, int]
    window: int | None = None
    kernel_block: int | None = None


def layer_page(layer: str, spec: Any, side: Side, backend: str | Mapping[str, str] | None) -> LayerPage:
    """The page of a layer. SpecError for a class, a packing or a backend that is not known here."""
    name = _class_name(spec)
    if name == "MambaSpec":
        format, params = state_page(layer, spec, side)
        return LayerPage(layer, "state", format, params, None, *_sizes(spec))
    if name not in GQA and name not in MLA:
        raise SpecError(
            problem("KVL701", _where(layer), "no format is known for a cache spec of this class",
                    expected=one_of([*GQA, *MLA, "MambaSpec", "UniformTypeKVCacheSpecs"]), got=_full_name(spec))
        )  # fmt: skip
    if side.dcp > 1 and not spec.dcp_sharded:
        _refuse(layer, spec, "dcp_sharded", "True, since context-parallel ranks deal out the tokens of every group")
    is_indexer = getattr(getattr(spec, "cache_role", None), "name", "") == "INDEXER"
    kind = "indexer" if is_indexer else (GQA | MLA)[name]
    named = _backend(layer, spec, side, backend.get(kind) if isinstance(backend, Mapping) else backend)
    if is_indexer:
        format, params = _indexer(layer, spec, side, named)
    elif name in MLA:
        format, params = _mla(layer, spec, side, named)
    else:
        format, params = _gqa(layer, spec, side, named, kv_heads(layer, spec, side, kind))
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return LayerPage(layer, kind, format, params, int(spec.block_size), *_sizes(spec), window)


def _sizes(spec: Any) -> tuple[int, int, tuple[int, int, int]]:
    shape = int(spec.num_heads), int(spec.num_states), int(spec.state_content_size_bytes)
    return int(spec.real_page_size_bytes), int(spec.page_size_bytes), shape


def _class_name(spec: Any) -> str:
    """The name of a spec's class where it is vLLM's own."""
    known = getattr(vllm_module("v1.kv_cache_interface"), type(spec).__name__, None)
    return type(spec).__name__ if known is type(spec) else ""


def _full_name(spec: Any) -> str:
    return f"{type(spec).__module__}.{type(spec).__name__}"


def _where(layer: str) -> str:
    return f"vllm: layer '{layer}'"


def _refuse(layer: str, spec: Any, attribute: str, expected: str, value: object = None) -> NoReturn:
    got = getattr(spec, attribute) if value is None else value
    raise SpecError(
        problem("KVL702", _where(layer), f"{type(spec).__name__}.{attribute} is not known here", expected=expected,
                got=shown(getattr(got, "name", got)))
    )  # fmt: skip


def _backend(layer: str, spec: Any, side: Side, given: str | None) -> str:
    """The attention backend of a layer: as its module says, as the user says, or the only one of the platform."""
    module = side.layers.get(layer)
    if module is not None:
        cls = module.get_attn_backend()
        name = str(cls.get_name())
        return f"ROCM:{name}" if "rocm" in cls.__module__ else name
    if given is not None:
        return given
    if side.is_cpu:
        if type(spec).__name__ not in MLA:
            return "CPU_ATTN"
        return "AMX_MLA" if dtype_name(spec.dtype) == "bfloat16" else "CPU_MLA"
    raise SpecError(
        problem("KVL702", _where(layer), "this process has no module of the layer, which would tell its backend",
                expected="backend=..., the name of vLLM's attention backend")
    )  # fmt: skip


def _cache_dtype(layer: str, spec: Any, side: Side) -> str:
    """The dtype of a page's elements; an fp8 page says only that it holds bytes."""
    dtype = dtype_name(spec.dtype)
    if spec.kv_quant_mode.name == "NONE":
        return dtype
    module = side.layers.get(layer)
    for word in (getattr(module, "kv_cache_dtype", None), getattr(spec, "cache_dtype_str", None),
                 side.config.cache_config.cache_dtype):  # fmt: skip
        if word in FP8:
            return FP8[word]
    if dtype.startswith("float8"):
        return dtype
    _refuse(layer, spec, "dtype", "an fp8 dtype, or a cache_dtype that names one", dtype)


def _gqa(layer: str, spec: Any, side: Side, backend: str, heads: int) -> tuple[str, dict[str, int | str]]:
    mode, content, slots = spec.kv_quant_mode.name, spec.state_content_bytes, spec.num_head_slots
    if spec.tokens_per_state != 1:
        _refuse(layer, spec, "tokens_per_state", "1")
    k, v = int(spec.head_size), int(spec.head_size_v)
    params: dict[str, int | str] = {"num_kv_heads": heads, "head_size": k}
    if backend != "CPU_ATTN" and v != k:
        params["head_size_v"] = v
    if mode in PER_TOKEN_HEAD:
        format, per_byte = PER_TOKEN_HEAD[mode]
        if backend != "TRITON_ATTN" or slots is not None:
            _refuse(layer, spec, "kv_quant_mode", f"{mode} of TRITON_ATTN, one slot a head", f"{mode} of {backend}")
        if content != k // per_byte + v // per_byte + 8:
            _refuse(layer, spec, "state_content_bytes", str(k // per_byte + v // per_byte + 8))
        return format, params
    if mode == "NVFP4":
        return "nvfp4", params | _nvfp4(layer, spec, side, backend)
    if mode not in ("NONE", "FP8_PER_TENSOR"):
        _refuse(layer, spec, "kv_quant_mode", one_of(["NONE", "FP8_PER_TENSOR", *PER_TOKEN_HEAD, "NVFP4"]))
    params["dtype"] = _cache_dtype(layer, spec, side)
    if backend == "CPU_ATTN":
        if v != k:
            _refuse(layer, spec, "head_size_v", f"head_size = {k}")
        return _cpu_format(layer, spec, side), params
    if backend == "B12X" and slots == 2:
        return "gqa", params | {"kv_packing": "planes"}
    if backend not in CONTENT:
        raise SpecError(
            problem("KVL702", _where(layer), "how this attention backend keeps its pages is not known here",
                    expected=one_of([*CONTENT, "B12X", "CPU_ATTN"]), got=shown(backend))
        )  # fmt: skip
    if slots is not None:
        _refuse(layer, spec, "num_head_slots", "None, one slot a head")
    if content is not None:
        _refuse(layer, spec, "state_content_bytes", "None, k and v of a head and token")
    return "gqa", params


def _cpu_format(layer: str, spec: Any, side: Side) -> str:
    """The kernels of vLLM's CPU backend, chosen by machine, dtype and sizes, decide what a page is."""
    isa = getattr(side.layers.get(layer), "isa", None)
    if isa is None:
        isa = vllm_module("v1.attention.backends.cpu_attn")._get_attn_isa(
            side.config.model_config.dtype, spec.block_size, spec.head_size, side.config.cache_config.cache_dtype
        )
    formats = {"vec": "gqa_cpu_vec", "vec16": "gqa_cpu_vec", "amx": "gqa_cpu_amx"}
    if isa not in formats:
        raise SpecError(
            problem("KVL702", _where(layer), "how these CPU kernels keep their pages is not known here",
                    expected=f"isa {one_of(formats)}", got=shown(isa))
        )  # fmt: skip
    return formats[isa]


def _nvfp4(layer: str, spec: Any, side: Side, backend: str) -> dict[str, int | str]:
    if backend != "FLASHINFER":
        _refuse(layer, spec, "kv_quant_mode", "NVFP4 of FLASHINFER", f"NVFP4 of {backend}")
    platform = vllm_module("platforms").current_platform
    if layer not in side.layers or not platform.is_cuda():
        _refuse(layer, spec, "kv_quant_mode", "NVFP4 in a process that has the GPU, whose kind decides how scales lie")
    return {"scale_layout": "sm100" if platform.is_device_capability_family(100) else "linear"}


def _mla(layer: str, spec: Any, side: Side, backend: str) -> tuple[str, dict[str, int | str]]:
    word, content, version = spec.cache_dtype_str, spec.state_content_bytes, spec.model_version
    if version is not None:
        _refuse(layer, spec, "model_version", "None")
    if spec.num_head_slots is not None:
        _refuse(layer, spec, "num_head_slots", "None")
    if spec.tokens_per_state != 1:
        _refuse(layer, spec, "tokens_per_state", "1")
    if backend not in ROWS:
        raise SpecError(
            problem("KVL702", _where(layer), "how this MLA backend keeps its pages is not known here",
                    expected=one_of(ROWS), got=shown(backend))
        )  # fmt: skip
    packed = {"fp8_ds_mla": ("mla_fp8_ds", 656), "nvfp4_ds_mla": ("mla_nvfp4_ds", 352)}
    lora, rope = side.field("kv_lora_rank"), side.field("qk_rope_head_dim")
    if lora is None or rope is None or lora + rope != spec.head_size:
        raise SpecError(
            problem("KVL704", _where(layer), "kv_lora_rank and qk_rope_head_dim of the model's config are not its row",
                    expected=f"{spec.head_size} elements together", got=f"{lora} and {rope}")
        )  # fmt: skip
    params: dict[str, int | str] = {"kv_lora_rank": lora, "qk_rope_head_dim": rope}
    if word in packed:
        format, nbytes = packed[word]
        if content != nbytes:
            _refuse(layer, spec, "state_content_bytes", str(nbytes))
        return format, params
    if content is not None:
        _refuse(layer, spec, "state_content_bytes", "None")
    if spec.kv_quant_mode.name not in ("NONE", "FP8_PER_TENSOR"):
        _refuse(layer, spec, "kv_quant_mode", "one of NONE, FP8_PER_TENSOR")
    return "mla", params | {"dtype": _cache_dtype(layer, spec, side)}


def _indexer(layer: str, spec: Any, side: Side, backend: str) -> tuple[str, dict[str, int | str]]:
    module = side.layers.get(layer)
    if backend != "DEEPSEEK_V32_INDEXER" or getattr(module, "uses_shuffled_layout", False):
        raise SpecError(
            problem("KVL702", _where(layer), "how this indexer keeps its pages is not known here",
                    expected="DEEPSEEK_V32_INDEXER, not shuffled", got=shown(backend))
        )  # fmt: skip
    dim, width = side.field("index_head_dim"), int(spec.head_size)
    if dtype_name(spec.dtype) != "uint8" or spec.tokens_per_state != 1 or spec.state_content_bytes is not None:
        _refuse(layer, spec, "dtype", "uint8, a state for each token, no packing of its own")
    if dim is not None and width == dim + 4:
        return "indexer_fp8", {"head_dim": dim}
    if dim is not None and width == dim // 2 + dim // 32:
        return "indexer_mxfp4", {"head_dim": dim}
    _refuse(layer, spec, "head_size", f"the bytes of a key of index_head_dim = {dim} and its scales")
