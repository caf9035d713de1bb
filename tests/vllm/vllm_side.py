"""One rank of a vLLM engine as far as its cache: real config, real layers without weights, real cache and views.

Nothing is loaded and nothing runs. The layers are made on the meta device by vLLM's own model classes, with stand-ins
for the process groups, so that any rank of any size can be looked at in one process; the cache specs, groups, placement
and views come from the functions that vLLM's worker and engine core call.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import vllm.distributed.parallel_state as groups
import vllm.envs
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.mamba.mamba_utils import get_conv_state_layout
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend
from vllm.v1.worker.utils import allocate_kv_cache, bind_kv_cache_to_layers

MEMORY = 16 << 20


@dataclass
class Side:
    """`specs` as the worker reports them, `cache` as the engine core places them, `views` as a connector gets them."""

    config: Any
    specs: dict[str, Any]
    cache: Any
    views: dict[str, torch.Tensor]

    @property
    def layers(self) -> Mapping[str, Any]:
        """vLLM's own modules by layer name."""
        layers: Mapping[str, Any] = self.config.compilation_config.static_forward_context
        return layers


class _Handle:
    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = lambda: size, lambda: rank


class _Group:
    """What layers ask of a process group when they are made."""

    def __init__(self, size: int, rank: int) -> None:
        self.device_group = self.cpu_group = _Handle(size, rank)
        self.world_size, self.rank, self.rank_in_group, self.local_rank = size, rank, rank, rank
        self.ranks, self.first_rank, self.last_rank = list(range(size)), 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1


@contextlib.contextmanager
def _ranks(config: Any, rank: int, stage: int) -> Iterator[None]:
    tp, pp = config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size
    made = {"_WORLD": (tp, rank), "_TP": (tp, rank), "_PP": (pp, stage), "_EP": (tp, rank)}
    names = ("_WORLD", "_TP", "_PP", "_DP", "_EP", "_DCP", "_PCP")
    before = {name: getattr(groups, name, None) for name in names}
    try:
        for name in names:
            setattr(groups, name, _Group(*made.get(name, (1, 0))))
        yield
    finally:
        for name, group in before.items():
            setattr(groups, name, group)


def make_config(architecture: Mapping[str, Any], folder: Path, **engine: Any) -> Any:
    """vLLM's config of an engine of a model that is nothing but a `config.json`."""
    (folder / "config.json").write_text(json.dumps(architecture))
    many = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1) > 1
    args = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=engine.pop("max_model_len", 2048),
        distributed_executor_backend="mp" if many else "uni",
        **engine,
    )
    return args.create_engine_config()


def orient(conv: str) -> None:
    """The orientation of convolution states, which vLLM keeps for a whole process."""
    vllm.envs.environment_variables["VLLM_SSM_CONV_STATE_LAYOUT"] = lambda: conv
    get_conv_state_layout.cache_clear()


def make_side(
    architecture: Mapping[str, Any],
    *,
    rank: int = 0,
    stage: int = 0,
    conv: str = "SD",
    layout: str | None = None,
    **engine: Any,
) -> Side:
    """A rank of an engine with these `EngineArgs`, its cache allocated and bound to its layers.

    `layout`: of the cache, also one that the backends of this machine would not choose.
    """
    orient(conv)
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(architecture, Path(folder), **engine)
        with set_current_vllm_config(config), _ranks(config, rank, stage):
            without_gpu = mock.patch("torch.cuda.Stream")  # which Kimi-Linear makes whatever the platform
            with without_gpu, torch.device("meta"), set_default_torch_dtype(config.model_config.dtype):
                initialize_model(config)
            current_platform.update_block_size_for_backend(config)
            specs = get_kv_cache_spec(config)
            layers = config.compilation_config.static_forward_context
            backends = {layers[name].get_attn_backend() for name in specs}
            config.cache_config.kv_cache_layout = layout  # None: what the backends prefer
            layouts = [each.name for each in get_supported_kv_cache_layouts(backends)]
            resolved = resolve_kv_cache_layout(config, [layouts], specs.values())
            (cache,) = get_kv_cache_configs(config, [specs], [MEMORY])
            cache.kv_cache_layout = resolved.name
            _, _, kernel_blocks = init_attn_backend(cache, config, torch.device("cpu"))
            views = allocate_kv_cache(cache, torch.device("cpu"), resolved, kernel_blocks)
            bind_kv_cache_to_layers(views, layers, kv_cache_groups=cache.kv_cache_groups)
    return Side(config, specs, cache, views)
