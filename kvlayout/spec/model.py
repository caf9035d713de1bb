"""Model specs: cache groups with their formats and layers, and a rank's page of each group on a given engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from kvlayout.errors import PlanRefused, Problem, SpecError, one_of, problem, shown
from kvlayout.ir import Page, Parallel, canonical_json
from kvlayout.spec.engine import COMPUTING, DEFAULT_BLOCK, OVERRIDABLE, Engine
from kvlayout.spec.expand import expand
from kvlayout.spec.expr import DTYPES
from kvlayout.spec.families import GroupFacts, Sizing, kernel_block_of, stored_format, vllm_sizing
from kvlayout.spec.formats import Format, check_names, find_format
from kvlayout.spec.grammar import ENGINE_WORDS, FormatFile, GroupDecl, LayerRange, ModelFile, ParamDecl
from kvlayout.spec.kv_dtypes import resolve_kv_dtype
from kvlayout.spec.scope import Scope
from kvlayout.spec.source import Source, read_source
from kvlayout.spec.validate import validated

__all__ = ["CacheGroup", "Spec", "load_spec", "parallel_of", "spec_of_format", "spec_of_source"]

MAX_LAYERS = 100_000
"""Layers of a model, and of all its groups together, since each group keeps its own."""

INLINE = "(page of its own)"


@dataclass(frozen=True, eq=False, slots=True)
class CacheGroup:
    """A cache group: `layers` are global indices, `params` are as the spec gives them, at `places` under `where`.

    `window`: tokens that a sliding window or an attention chunk keeps alive; None where all are.
    """

    name: str
    format: Format
    params: Mapping[str, int | str]
    layers: tuple[int, ...]
    block: int | None
    where: str
    places: Mapping[str, str] = field(default_factory=dict)
    window: int | None = None


class _Settled(NamedTuple):
    """What a group is on one engine, after its cache dtype and its overrides; `places` say where the params stand."""

    format: Format
    params: dict[str, int | str]
    words: dict[str, int | str]
    tiles: int
    page_bytes: int | None
    places: dict[str, str]


@dataclass(frozen=True, eq=False, slots=True)
class Spec:
    """A model spec ready to be planned. `path` is None for a spec that was made in memory."""

    name: str
    path: Path | None
    num_layers: int
    tp: tuple[int, ...] | None
    groups: tuple[CacheGroup, ...]
    _pages: dict[object, Page] = field(default_factory=dict, repr=False)
    _sizes: dict[str, dict[str, Sizing]] = field(default_factory=dict, repr=False)

    def group(self, name: str) -> CacheGroup:
        """The group of that name; SpecError with the names there are."""
        for group in self.groups:
            if group.name == name:
                return group
        names = one_of(group.name for group in self.groups)
        raise SpecError(problem("KVL154", f"spec {self.name}", f"there is no group '{shown(name)}'", expected=names))

    def page(self, group: CacheGroup, engine: Engine) -> Page:
        """A rank's page of a group on an engine. Pages are remembered: equal questions give one object.

        Raises SpecError for wrong overrides or a wrong spec, PlanRefused (unloadable) when no such engine exists.
        """
        sizes = self._sizing(engine) if engine.family in COMPUTING else {}
        return self._page(group, engine, self._settled(group, engine, sizes.get(group.name)))

    def _page(self, group: CacheGroup, engine: Engine, settled: _Settled) -> Page:
        fmt, params, words, tiles, page_bytes, places = settled
        key = fmt, tuple(sorted(params.items())), tuple(words.items()), tiles, page_bytes
        page = self._pages.get(key)
        if page is None:
            where = f"engine '{engine}', group '{group.name}'"
            try:
                scope = Scope(fmt, params, words, group.where if fmt is group.format else where, places)
                page = expand(scope, engine.tp, tiles, page_bytes, where)
            except PlanRefused as error:
                side = f"group '{group.name}' on '{engine}': "
                raise PlanRefused(
                    (
                        each if each.where == where else replace(each, message=side + each.message)
                        for each in error.problems
                    ),
                    unloadable=True,
                ) from None
            # Equal pages become one object (an order that a page does not read), so that plans are shared.
            page = self._pages[key] = self._pages.setdefault(canonical_json(page), page)
        return page

    def format_name(self, group: CacheGroup, engine: Engine) -> str:
        """The format of a group on an engine, after its cache dtype and overrides."""
        return self._settled(group, engine).format.name

    def _sizing(self, engine: Engine) -> dict[str, Sizing]:
        """Blocks and pages that the engine's family computes, by group."""
        key = str(engine)
        if key not in self._sizes:
            facts = []
            base = engine.block or DEFAULT_BLOCK
            for group in self.groups:
                page = self._page(group, engine, self._settled(group, engine, Sizing(group.block or base)))
                latent = not any(axis.shard == "tp" for axis in page.axes.values())
                own = {"format", "dtype"} & set(engine.for_group(group.name))
                unquantized = page.block is not None and engine.kv_dtype != "auto" and bool(own)
                fixed = group.block is not None
                facts.append(GroupFacts(group.name, page.nbytes, page.block, fixed, latent, group.window, unquantized))
            self._sizes[key] = vllm_sizing(f"engine '{engine}'", base, facts)
        return self._sizes[key]

    def _settled(self, group: CacheGroup, engine: Engine, sizing: Sizing | None = None) -> _Settled:
        overrides = engine.for_group(group.name)
        where = f"engine '{engine}', group '{group.name}'"
        fmt, params, places = group.format, dict(group.params), dict(group.places)
        name = overrides.pop("format", None)
        stored = stored_format(engine.family, fmt.name, where) if name is None else None
        if stored is not None:
            fmt, params = _changed(fmt, params, stored.format, dict(stored.params), self.path, where)
            places.update(dict.fromkeys(stored.params, where))
        if engine.kv_dtype != "auto":
            change = resolve_kv_dtype(fmt, engine.kv_dtype, where)
            if change is not None:
                fmt, params = _changed(fmt, params, change.format, dict(change.params), self.path, where)
                places.update(dict.fromkeys(change.params, where))
        words: dict[str, int | str] = {
            "block": group.block or engine.block or DEFAULT_BLOCK,
            "tp": engine.tp,
            "dcp": engine.dcp,
            "spec_tokens": engine.spec_tokens,
            "order": engine.order,
            "conv": engine.conv,
            "family": engine.family,
        }
        own = {key: value for key, value in overrides.items() if key not in OVERRIDABLE}
        if name is not None or own:
            fmt, params = _changed(fmt, params, None if name is None else str(name), own, self.path, where)
            places.update(dict.fromkeys(own, where))
        words.update({key: value for key, value in overrides.items() if key in words and key in OVERRIDABLE})
        words["order"] = {"LBHNC": "HN", "LBNHC": "NH"}[str(words["order"])]
        page = overrides.get("page", engine.page)
        tiles = 1
        kernel_block = overrides.get("kernel_block", engine.kernel_block)
        if sizing is not None:
            words["block"], page = sizing
            kernel_block = None if kernel_block is None else kernel_block_of(int(kernel_block), sizing.block)
        if kernel_block is not None and any(axis.grows for axis in fmt.file.axes.values()):
            words["block"], tiles = _tiles(where, int(words["block"]), int(kernel_block))
        return _Settled(fmt, params, words, tiles, None if page is None else int(page), places)

    def check_engine(self, engine: Engine) -> None:
        """SpecError when the engine overrides a group that this spec does not have."""
        names = [group.name for group in self.groups]
        for name in engine.groups:
            if name not in names:
                raise SpecError(
                    problem(
                        "KVL154", f"engine '{engine}'", f"{self.name} has no group '{name}'", expected=one_of(names)
                    )
                )


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Load a model spec. Raises SpecError with located problems."""
    source = read_source(path)
    return spec_of_source(source, Path(source.path))


def spec_of_format(fmt: Format, params: Mapping[str, int | str], where: str) -> Spec:
    """A spec of one layer in one group `cache`, for a format's example."""
    return Spec(fmt.name, None, 1, None, (CacheGroup("cache", fmt, params, (0,), None, where),))


def parallel_of(spec: Spec, engine: Engine) -> Parallel:
    """The parallel sizes of a side. PlanRefused (unloadable) when this model's layers or ranks do not divide so."""
    where = f"engine '{engine}'"
    stages = engine.stage_layers(spec.num_layers)
    if sum(stages) != spec.num_layers or 0 in stages:
        raise PlanRefused(
            problem(
                "KVL205",
                where,
                f"the pipeline stages hold {shown('+'.join(str(count) for count in stages))} layers",
                expected=f"{spec.num_layers} layers in {engine.pp} stages, none empty",
            ),
            unloadable=True,
        )
    if engine.tp % engine.dcp:
        raise PlanRefused(
            problem("KVL203", where, "context-parallel ranks lie inside the tensor-parallel group",
                    expected=f"a dcp that divides tp={engine.tp}", got=f"dcp={engine.dcp}"),
            unloadable=True,
        )  # fmt: skip
    return Parallel(engine.tp, engine.pcp, engine.dcp, engine.interleave, stages)


def _tiles(where: str, block: int, kernel_block: int) -> tuple[int, int]:
    """Tokens of a kernel block, and how many make a block. PlanRefused (unloadable) when no whole number does."""
    tiles, rest = divmod(block, kernel_block)
    if rest or not tiles:
        raise PlanRefused(
            problem("KVL208", where, "a block is not a whole number of kernel blocks",
                    expected=f"a kernel_block that divides {block} tokens", got=f"kernel_block={kernel_block}"),
            unloadable=True,
        )  # fmt: skip
    return kernel_block, tiles


def _changed(
    fmt: Format,
    params: dict[str, int | str],
    name: str | None,
    changes: dict[str, int | str],
    used_in: Path | None,
    where: str,
) -> tuple[Format, dict[str, int | str]]:
    if name is not None and name != fmt.name:
        fmt = find_format(name, used_in, where)
        params = {key: value for key, value in params.items() if key in fmt.file.params}
    for key in changes:
        if key not in fmt.file.params:
            legal = [*OVERRIDABLE, *fmt.file.params]
            raise SpecError(
                problem(
                    "KVL155",
                    where,
                    f"nothing named '{key}' can be overridden; format '{fmt.name}' has no such parameter",
                    expected=one_of(legal),
                )
            )
    return fmt, {**params, **changes}


def spec_of_source(source: Source, path: Path | None = None) -> Spec:
    """The spec of a parsed source; formats are looked up beside `path`, without it among the shipped ones alone."""
    file = validated(ModelFile, source)
    named = _named_layers(file, source)
    num_layers = file.num_layers
    groups = []
    kept = 0
    for name, decl in file.groups.items():
        at = ("groups", name)
        if name in ENGINE_WORDS:
            raise SpecError(
                problem("KVL142", source.where(at, key=True), f"'{name}' is an engine word, so no group's name")
            )
        layers = named.get(name)
        if decl.layers == "all":
            layers = tuple(range(_needed(file, source, name)))
        elif isinstance(decl.layers, int):
            layers, num_layers = _counted(file, source, name, named, decl.layers)
        assert layers is not None
        kept += len(layers)
        if kept > MAX_LAYERS:
            raise SpecError(_too_many(source, name))
        fmt = (
            _inline(decl, source, name)
            if decl.format is None
            else find_format(decl.format, path, source.where((*at, "format")))
        )
        places = {param: source.where((*at, "params", param)) for param in decl.params}
        where = source.where((*at, "params"))
        groups.append(CacheGroup(name, fmt, dict(decl.params), layers, decl.block, where, places, decl.window))
    if num_layers is None:
        num_layers = 1 + max(layer for group in groups for layer in group.layers)
    for group in groups:
        if group.layers[-1] >= num_layers:
            raise SpecError(
                problem(
                    "KVL143",
                    source.where(("groups", group.name, "layers")),
                    f"group '{group.name}' names layer {group.layers[-1]}",
                    expected=f"layers below num_layers = {num_layers}",
                )
            )
    return Spec(file.model, path, num_layers, file.tp, tuple(groups))


def _named_layers(file: ModelFile, source: Source) -> dict[str, tuple[int, ...]]:
    """The layers of the groups that name them."""
    named: dict[str, tuple[int, ...]] = {}
    kept = 0
    for name, decl in file.groups.items():
        layers = decl.layers
        if isinstance(layers, LayerRange):
            kept += layers.count
            if kept > MAX_LAYERS or layers.start + layers.every * (layers.count - 1) >= MAX_LAYERS:
                raise SpecError(_too_many(source, name))
            named[name] = tuple(range(layers.start, layers.start + layers.every * layers.count, layers.every))
        elif isinstance(layers, tuple):
            seen: dict[int, int] = {}
            for index, layer in enumerate(layers):
                if seen.setdefault(layer, index) != index:
                    where = source.where(("groups", name, "layers", index))
                    first = source.where(("groups", name, "layers", seen[layer]))
                    raise SpecError(problem("KVL147", where, f"layer {layer} is named twice, first at {first}"))
            if max(layers) >= MAX_LAYERS:
                raise SpecError(_too_many(source, name))
            named[name] = tuple(sorted(layers))
    return named


def _too_many(source: Source, group: str) -> Problem:
    where, most = source.where(("groups", group, "layers")), f"at most {MAX_LAYERS}, in all groups together"
    return problem("KVL148", where, "no model has so many layers", expected=most)


def _needed(file: ModelFile, source: Source, group: str) -> int:
    if file.num_layers is None:
        raise SpecError(
            problem(
                "KVL144",
                source.where(("groups", group, "layers")),
                f"the layers of group '{group}' depend on the number of layers of the model",
                expected="num_layers at the top of the file",
            )
        )
    return file.num_layers


def _counted(
    file: ModelFile, source: Source, name: str, named: Mapping[str, tuple[int, ...]], count: int
) -> tuple[tuple[int, ...], int]:
    """The layers of a group that gives a count: those that no other group names."""
    where = source.where(("groups", name, "layers"))
    counting = [other for other, decl in file.groups.items() if isinstance(decl.layers, int)]
    if len(counting) > 1:
        raise SpecError(
            problem(
                "KVL145",
                where,
                f"groups {', '.join(counting)} all give a count",
                expected="a count in one group at most",
            )
        )
    if len(file.groups) == 1 and file.num_layers is None:
        if count > MAX_LAYERS:
            raise SpecError(_too_many(source, name))
        return tuple(range(count)), count
    total = _needed(file, source, name)
    taken = {layer for layers in named.values() for layer in layers}
    free = tuple(layer for layer in range(total) if layer not in taken)
    if len(free) != count:
        raise SpecError(
            problem(
                "KVL146",
                where,
                f"group '{name}' counts {count} layers",
                expected=f"the {len(free)} of {total} layers that no other group names",
            )
        )
    return free, total


def _inline(decl: GroupDecl, source: Source, name: str) -> Format:
    """The page of a group's own as a format: its params are plain values, declared by being given."""
    file = FormatFile.model_construct(
        kvlayout=1,
        format=INLINE,
        source=source.path,
        extends=None,
        params={key: _declared(value) for key, value in decl.params.items()},
        let=decl.let or {},
        require=decl.require or (),
        axes=decl.axes or {},
        examples=(),
        page=decl.page,
    )
    loaded = Format(INLINE, source, file, ("groups", name))
    check_names(loaded)
    return loaded


def _declared(value: int | str) -> ParamDecl:
    if isinstance(value, int):
        return ParamDecl(type="int")
    return ParamDecl(type="dtype" if value in DTYPES else "str")
