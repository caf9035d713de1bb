"""A vLLM engine as a spec and an engine: layers into groups, and what its pages depend on into words.

A spec describes the whole model, while vLLM's cache specs describe a rank: each layer's page is first brought to the
parameters of the model, and at the end the page that the spec gives this engine's ranks is held against vLLM's own
number of bytes. What does not agree is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlayout.errors import PlanRefused, SpecError, one_of, problem
from kvlayout.integrations.vllm.pages import KNOWN, LayerPage, layer_page
from kvlayout.integrations.vllm.side import Side, side_of, vllm_module
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec

__all__ = ["Placement", "VllmCache", "engine_of", "from_vllm", "read"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where vLLM puts a layer in its one backing buffer: page b begins at byte offset + b * stride of `size`."""

    offset: int
    stride: int
    blocks: int
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class VllmCache:
    """One side of a transfer, as read from vLLM: `spec` describes the whole model, `engine` this engine of it.

    `layers`: layer name -> (group, layer of the model).
    `vllm_groups`: group -> index of vLLM's own cache group, whose block table it uses; empty with specs alone.
    `shapes`: group -> head slots, states and content bytes of the tensor that vLLM shows of a page, or of one of the
    kernels' blocks in it; what is inside, its format says.
    `placements`: layer name -> place in the buffer, where vLLM has decided it.
    """

    spec: Spec
    engine: Engine
    layers: Mapping[str, tuple[str, int]]
    vllm_groups: Mapping[str, int]
    shapes: Mapping[str, tuple[int, int, int]]
    placements: Mapping[str, Placement]

    def tiles(self, group: str) -> int:
        """Blocks of the kernels that a page of a group is made of; vLLM's tensors count those."""
        words = self.engine.for_group(group)
        return int(words["block"]) // int(words["kernel_block"]) if "kernel_block" in words else 1

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers per pipeline stage."""
        return self.engine.stage_layers(self.spec.num_layers)


def from_vllm(
    vllm_config: Any,
    kv_cache_config: Any = None,
    *,
    kv_cache_specs: Any = None,
    kernel_blocks: Sequence[int] | None = None,
    backend: str | Mapping[str, str] | None = None,
    known: Mapping[str, int] | None = None,
) -> Spec:
    """The model spec of a vLLM 0.32 engine, from its own objects. `read` says what the arguments are.

    Raises SpecError for what no format is known for, naming the layer, the class and the attribute, and for a rank
    whose numbers are not those of the model's config; KvLayoutError without vLLM, or with another version of it.
    """
    return read(
        vllm_config, kv_cache_config, kv_cache_specs=kv_cache_specs, kernel_blocks=kernel_blocks, backend=backend,
        known=known,
    ).spec  # fmt: skip


def engine_of(
    vllm_config: Any,
    kv_cache_config: Any = None,
    *,
    kv_cache_specs: Any = None,
    kernel_blocks: Sequence[int] | None = None,
    backend: str | Mapping[str, str] | None = None,
    known: Mapping[str, int] | None = None,
) -> Engine:
    """The engine that goes with `from_vllm`: parallel sizes, orders, and each group's block and page. Raises as it."""
    return read(
        vllm_config, kv_cache_config, kv_cache_specs=kv_cache_specs, kernel_blocks=kernel_blocks, backend=backend,
        known=known,
    ).engine  # fmt: skip


def read(
    vllm_config: Any,
    kv_cache_config: Any = None,
    *,
    kv_cache_specs: Any = None,
    kernel_blocks: Sequence[int] | None = None,
    backend: str | Mapping[str, str] | None = None,
    known: Mapping[str, int] | None = None,
) -> VllmCache:
    """Read one side from vLLM 0.32.

    `vllm_config`: a `VllmConfig`. `kv_cache_config`: the `KVCacheConfig` of a worker, or those of one worker of
    each pipeline stage; each of vLLM's groups becomes a group, since each has a block table of its own.
    `kv_cache_specs`: instead, {layer name: KVCacheSpec}, or such mappings of the stages. With neither, the layers
    that this process has made are asked. `kernel_blocks`: for each of vLLM's groups the tokens of the blocks that
    its kernels use, where they split those of the block tables (`kernel_block` of the engine). `backend`: the name
    of the attention backend, or names by kind of group, in a process that has not made the layers. `known`: numbers
    of the whole model that a rank does not tell, by kind of group, as {"attention.num_kv_heads": 4,
    "sliding.num_kv_heads": 8, "state.n_groups": 1}.

    Raises SpecError and KvLayoutError as `from_vllm` does, TypeError for arguments that exclude each other, and
    ValueError for another name in `known`.
    """
    for name in known or {}:
        if name not in KNOWN:
            raise ValueError(f"'{name}' is nothing that may be known; expected {one_of(KNOWN)}")
    configs = _many(kv_cache_config)
    if configs and kv_cache_specs is not None:
        raise TypeError("give kv_cache_config or kv_cache_specs, not both")
    if kernel_blocks is not None and not configs:
        raise TypeError("kernel_blocks are those of the groups of a kv_cache_config, which is not given")
    layout = next((each.kv_cache_layout for each in configs if each.kv_cache_layout is not None), None)
    side = side_of(vllm_config, layout, known)
    if kv_cache_specs is None and not configs:
        kv_cache_specs = vllm_module("v1.worker.gpu.attn_utils").get_kv_cache_spec(vllm_config)
    found: list[tuple[LayerPage, int | None]] = []
    for layer, spec, group in _specs(configs, _many(kv_cache_specs)):
        page = layer_page(layer, spec, side, backend)
        if kernel_blocks is not None and group is not None and page.block is not None:
            page = _tiled(page, kernel_blocks, group)
        found.append((page, group))
    if not found:
        raise SpecError(problem("KVL707", "vllm", "vLLM names no layer with a cache", expected="at least one"))
    return _assembled(side, found, _placements(configs))


def _many(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]


def _specs(configs: list[Any], specs: list[Any]) -> Iterator[tuple[str, Any, int | None]]:
    """(layer, its own spec, index of vLLM's group) of all stages, each layer once."""
    seen: dict[str, Any] = {}
    for each in specs:
        for layer, spec in each.items():
            if _new(seen, layer, spec):
                yield layer, spec, None
    # Layers that use the cache of another one join its group when vLLM initialises it; they have no pages of theirs.
    placed = {layer for config in configs for tensor in config.kv_cache_tensors for layer in tensor.layers}
    for config in configs:
        for index, group in enumerate(config.kv_cache_groups):
            if not group.enable_kv_transfer:
                continue  # an accelerator's copy of another group, made again after a load
            if group.host_resident:
                raise SpecError(
                    problem("KVL701", f"vllm: group {index}", "a group whose pages lie in host memory",
                            expected="host_resident=False")
                )  # fmt: skip
            own = getattr(group.kv_cache_spec, "kv_cache_specs", None)
            for layer in group.layer_names:
                if layer not in placed:
                    continue
                spec = group.kv_cache_spec if own is None else own[layer]
                if _new(seen, layer, spec):
                    yield layer, spec, index


def _new(seen: dict[str, Any], layer: str, spec: Any) -> bool:
    """Whether a layer is met for the first time; ranks of one stage repeat it, and must agree."""
    if layer in seen and seen[layer] != spec:
        raise SpecError(
            problem("KVL708", f"vllm: layer '{layer}'", "two workers give the layer different specs",
                    expected=str(seen[layer]), got=str(spec))
        )  # fmt: skip
    new = layer not in seen
    seen[layer] = spec
    return new


def _tiled(page: LayerPage, kernel_blocks: Sequence[int], group: int) -> LayerPage:
    """A page as the blocks of its kernels, end to end."""
    whole, part = page.block or 1, int(kernel_blocks[group]) if group < len(kernel_blocks) else 0
    if part == whole:
        return page
    if part < 1 or whole % part or page.nbytes != page.payload:
        raise SpecError(
            problem("KVL706", f"vllm: layer '{page.layer}'", f"a block is not made of kernels' blocks of {part} tokens",
                    expected=f"a divisor of {whole}, of a page without padding")
        )  # fmt: skip
    slots, states, content = page.shape
    return replace(page, kernel_block=part, shape=(slots, states * part // whole, content))


def _placements(configs: list[Any]) -> dict[str, Placement]:
    return {
        layer: Placement(
            tensor.offset + place * tensor.layer_stride, tensor.block_stride, config.num_blocks, tensor.size
        )
        for config in configs
        for tensor in config.kv_cache_tensors
        for place, layer in enumerate(tensor.layers)
    }


def _assembled(
    side: Side,
    found: list[tuple[LayerPage, int | None]],
    placements: Mapping[str, Placement],
) -> VllmCache:
    grouped: dict[object, list[LayerPage]] = {}
    vllm_group: dict[object, int | None] = {}
    for page, group in found:
        params = tuple(sorted(page.params.items()))
        key: object = (group, page.kind, page.format, params, page.block, page.nbytes, page.window)
        grouped.setdefault(key, []).append(page)
        vllm_group[key] = group
    indices = {page.layer: side.index(page.layer, is_state=page.block is None) for page, _ in found}
    num_layers = max(sum(side.stages), 1 + max(indices.values()))
    _all_stages(side, set(indices.values()))
    kinds = [pages[0].kind for pages in grouped.values()]
    groups: list[CacheGroup] = []
    overrides: dict[str, dict[str, int | str]] = {}
    layers: dict[str, tuple[str, int]] = {}
    vllm_groups: dict[str, int] = {}
    shapes: dict[str, tuple[int, int, int]] = {}
    order = sorted(grouped, key=lambda key: (vllm_group[key] or 0, min(indices[page.layer] for page in grouped[key])))
    for key in order:
        pages = grouped[key]
        kind, first = pages[0].kind, pages[0]
        number = sum(group.name == kind or group.name.startswith(f"{kind}_") for group in groups)
        name = kind if kinds.count(kind) == 1 else f"{kind}_{number}"
        where = f"vllm: group '{name}'"
        by_index: dict[int, str] = {}
        for page in pages:
            other = by_index.setdefault(indices[page.layer], page.layer)
            if other != page.layer:
                raise SpecError(
                    problem(
                        "KVL708", where, f"layers '{other}' and '{page.layer}' are both layer {indices[page.layer]}"
                    )
                )
            layers[page.layer] = name, indices[page.layer]
        fmt = find_format(first.format, None, where)
        groups.append(CacheGroup(name, fmt, first.params, tuple(sorted(by_index)), None, where, window=first.window))
        overrides[name] = {} if first.block is None else {"block": first.block}
        if first.kernel_block is not None:
            overrides[name]["kernel_block"] = first.kernel_block
        shapes[name] = first.shape
        own = vllm_group[key]
        if own is not None:
            vllm_groups[name] = own
    name = str(side.config.model_config.model)
    spec = Spec(name, None, num_layers, None, tuple(groups))
    words = _words(side, num_layers)
    for key, cache_group in zip(order, groups, strict=True):
        engine = Engine(**words, groups=overrides)
        overrides[cache_group.name] |= _page_word(spec, cache_group, engine, grouped[key][0])
    return VllmCache(spec, Engine(**words, groups=overrides), layers, vllm_groups, shapes, placements)


def _all_stages(side: Side, indices: set[int]) -> None:
    start = 0
    for stage, count in enumerate(side.stages):
        last = stage == len(side.stages) - 1
        if not any(start <= index and (last or index < start + count) for index in indices):
            raise SpecError(
                problem("KVL707", "vllm", f"no layer of pipeline stage {stage} is given",
                        expected=f"what a worker of each of the {len(side.stages)} stages has",
                        got=f"layers {one_of(sorted(indices)).removeprefix('one of ')}")
            )  # fmt: skip
        start += count


def _words(side: Side, num_layers: int) -> dict[str, Any]:
    words: dict[str, Any] = {"tp": side.tp, "order": side.order, "conv": side.conv, "spec_tokens": side.spec_tokens}
    if side.dcp > 1:
        words |= {"dcp": side.dcp, "interleave": side.interleave}
    if len(side.stages) > 1:
        # Layers of a draft model are counted behind those of the model, and run with its last stage.
        stages = [*side.stages[:-1], side.stages[-1] + num_layers - sum(side.stages)]
        words["stages"] = "+".join(map(str, stages))
    return words


def _page_word(spec: Spec, group: CacheGroup, engine: Engine, layer: LayerPage) -> dict[str, int | str]:
    """The padding that vLLM gives a page, once both agree on what is in it."""
    try:
        nbytes = spec.page(group, engine).nbytes
    except PlanRefused as error:
        raise SpecError(error.problems) from None
    if nbytes != layer.payload:
        raise SpecError(
            problem("KVL706", f"vllm: layer '{layer.layer}'", f"its page as format '{layer.format}' has {nbytes} bytes",
                    expected=f"the {layer.payload} that vLLM counts without padding")
        )  # fmt: skip
    return {} if nbytes == layer.nbytes else {"page": layer.nbytes}
