"""Families of models that keep attention pages alone: plain, windowed, and latent attention."""

from __future__ import annotations

from kvlayout.spec.importers.document import Config, Fact
from kvlayout.spec.importers.groups import (
    ATTENTION,
    Group,
    Kinds,
    check_length,
    every,
    gqa,
    head_size,
    kinds_of,
    kv_heads,
    latent,
    numbered_kinds,
    of_kind,
    query_heads,
    windowed,
)

__all__ = [
    "falcon",
    "gemma4",
    "gpt_bigcode",
    "latent_only",
    "llama4",
    "mimo_v2",
    "nemotron_nas",
    "plain",
    "qwen",
    "striped",
]


def plain(c: Config) -> list[Group]:
    """One kind of attention, all of it in a window when the config has one."""
    if c.has("layer_types"):
        return windowed(c, kinds_of(c))
    return [gqa(c, every(c), window=c.maybe_number("sliding_window"))]


def qwen(c: Config) -> list[Group]:
    """Qwen2 and Qwen3: `sliding_window` holds only with `use_sliding_window`, from layer `max_window_layers` on."""
    if not c.flag("use_sliding_window", False):
        return [gqa(c, every(c))]
    first = c.number("max_window_layers", low=0)
    return windowed(c, kinds_of(c, default=lambda: _from(c, first)))


def _from(c: Config, first: Fact[int]) -> Kinds:
    return of_kind(c, lambda layer: "sliding" if layer >= first.value else ATTENTION, first.origin)


def striped(c: Config) -> list[Group]:
    """A full layer after every so many with a window."""

    def default() -> Kinds:
        every_nth = c.number("sliding_window_pattern", "_sliding_window_pattern")
        return of_kind(c, lambda i: "sliding" if (i + 1) % every_nth.value else ATTENTION, every_nth.origin)

    return windowed(c, kinds_of(c, default=default))


def llama4(c: Config) -> list[Group]:
    """Layers without rotary positions are whole, the others keep a chunk."""

    def default() -> Kinds:
        if c.maybe_number("attention_chunk_size") is None:
            return every(c)
        kinds = {0: ATTENTION, 1: "chunked"}
        if c.given.get("no_rope_layers"):  # an empty list means the default, too
            given = numbered_kinds(c, "no_rope_layers", kinds)
            assert given is not None
            return given
        step = c.number("no_rope_layer_interval")
        return of_kind(c, lambda layer: kinds[int((layer + 1) % step.value != 0)], step.origin)

    return windowed(c, kinds_of(c, default=default))


def gemma4(c: Config) -> list[Group]:
    """Full layers have heads of their own. The last `num_kv_shared_layers` read earlier layers' pages and keep none."""

    def default() -> Kinds:
        return of_kind(c, lambda layer: "sliding" if (layer + 1) % 6 else ATTENTION, "every sixth is full by default")

    given = kinds_of(c, default=default)
    shared = c.maybe_number("num_kv_shared_layers", low=0, high=len(given.kinds) - 1)
    # the class makes the last layer a full one, whatever the list says
    kinds = [*given.kinds[:-1], ATTENTION]
    own = len(kinds) - shared.value if shared is not None else len(kinds)
    layers = Kinds([kind if index < own else "" for index, kind in enumerate(kinds)], given.origin)
    if shared is not None and shared.value:
        layers = layers._replace(origin=f"{given.origin}, without the last {shared.value} (num_kv_shared_layers)")
    heads, size = _gemma4_full(c, kinds)
    full = gqa(c, layers, heads=heads, size=size)
    return [full, gqa(c, layers, "sliding", window=c.maybe_number("sliding_window"))]


def _gemma4_full(c: Config, kinds: list[str]) -> tuple[Fact[int], Fact[int]]:
    """KV heads and head size of the full layers."""
    overrides = c.inner("per_layer_config")
    if overrides is None:
        size = c.number("global_head_dim")
        heads = c.maybe_number("num_global_key_value_heads") if c.flag("attention_k_eq_v", False) else None
        return heads or kv_heads(c), size
    found = set()
    for layer, kind in enumerate(kinds):
        own = overrides.inner(str(layer)) if kind == ATTENTION else None
        heads = (own and own.maybe_number("num_key_value_heads")) or kv_heads(c)
        size = (own and own.maybe_number("head_dim")) or head_size(c)
        if kind == ATTENTION:
            found.add((heads.value, size.value))
        elif overrides.has(str(layer)):
            c.refuse(
                ("per_layer_config", str(layer)), "a sliding layer has heads of its own", expected="only full ones"
            )
    if len(found) != 1:
        c.refuse(("per_layer_config",), "full layers differ from each other", expected="one head count and width")
    count, width = found.pop()
    return Fact(count, "per_layer_config"), Fact(width, "per_layer_config")


def mimo_v2(c: Config) -> list[Group]:
    """k and v of different widths, and other heads in sliding layers than in full ones."""
    kinds = numbered_kinds(c, "hybrid_layer_pattern", {0: ATTENTION, 1: "sliding"})
    kinds = kinds or kinds_of(c)
    window = c.maybe_number("sliding_window_size", "sliding_window")
    size = head_size(c)
    return [
        gqa(c, kinds, size=size, size_v=c.maybe_number("v_head_dim")),
        gqa(c, kinds, "sliding", heads=c.number("swa_num_key_value_heads"), size=c.number("swa_head_dim"),
            size_v=c.maybe_number("swa_v_head_dim"), window=window),
    ]  # fmt: skip


def falcon(c: Config) -> list[Group]:
    """`num_kv_heads` holds only in the new architecture; before, one head or one for each query head."""
    if c.flag("new_decoder_architecture", False):
        heads = c.maybe_number("num_kv_heads", "n_head_kv") or query_heads(c)
    elif c.flag("multi_query", True):
        heads = Fact(1, "multi_query")
    else:
        heads = query_heads(c)
    return [gqa(c, every(c), heads=heads)]


def gpt_bigcode(c: Config) -> list[Group]:
    """One KV head, or one for each query head."""
    heads = Fact(1, "multi_query") if c.flag("multi_query", True) else query_heads(c)
    return [gqa(c, every(c), heads=heads)]


def latent_only(c: Config) -> list[Group]:
    """Multi-head latent attention in every layer."""
    return [latent(c, every(c))]


def nemotron_nas(c: Config) -> list[Group]:
    """Each layer of a searched model has as many KV heads as suited it, or none: such layers keep nothing."""
    heads, size = query_heads(c), head_size(c)
    blocks = c.objects("block_configs")
    if blocks is None:
        c.missing("block_configs", "a list with an object for each layer")
    check_length(c, "block_configs", len(blocks))
    kinds = []
    for block in blocks:
        own = block.inner("attention")
        if own is None:
            block.missing("attention", "an object")
        if own.flag("no_op", False) or own.flag("replace_with_linear", False):
            kinds.append("")
            continue
        shared, given = own.number("n_heads_in_group", high=heads.value), own.maybe_number("window_length")
        if heads.value % shared.value:
            own.refuse(("n_heads_in_group",), f"{heads.value} heads do not make whole groups of {shared.value}")
        kinds.append(f"heads_{heads.value // shared.value}" + (f"_{given.value}" if given is not None else ""))
    layers, origin = Kinds(kinds, "block_configs"), "num_attention_heads / n_heads_in_group"
    found = []
    for name in dict.fromkeys(kind for kind in kinds if kind):
        kv, *width = map(int, name.split("_")[1:])
        window = Fact(width[0], "window_length") if width else None
        found.append(gqa(c, layers, name, heads=Fact(kv, origin), size=size, window=window))
    return found if len(found) != 1 else [found[0]._replace(name=ATTENTION)]
