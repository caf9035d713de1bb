"""The parts that families of models are put together from: groups, layers by kind, and what the generic fields say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvlayout.spec.importers.document import MAX_LAYERS, Config, Fact

__all__ = [
    "ATTENTION",
    "Group",
    "Kinds",
    "check_length",
    "chosen_layers",
    "dtype_of",
    "every",
    "gqa",
    "head_size",
    "hidden_size",
    "kinds_of",
    "kv_heads",
    "latent",
    "layer_count",
    "numbered_kinds",
    "of_kind",
    "query_heads",
    "ssm_dtype_of",
    "times",
    "windowed",
]

DTYPES = ("bfloat16", "float16")

ATTENTION = "attention"

# What configs call a kind of layer, older and newer names of one thing together. Empty: such a layer keeps nothing.
_KINDS = {
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "indexed_attention": ATTENTION,
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "hybrid": "hybrid",
    "mlp": "",
    "moe": "",
}


class Group(NamedTuple):
    """A cache group to be written. `kinds`: what told its layers. `note`: a sentence above the group."""

    name: str
    format: str
    layers: tuple[int, ...]
    kinds: str
    params: Mapping[str, Fact[int] | Fact[str]]
    window: Fact[int] | None = None
    block: Fact[int] | None = None
    note: str = ""


class Kinds(NamedTuple):
    """The kind of every layer, and the fields that told it."""

    kinds: Sequence[str]
    origin: str

    def layers(self, *kinds: str) -> tuple[int, ...]:
        """The layers of these kinds."""
        return tuple(index for index, kind in enumerate(self.kinds) if kind in kinds)


def layer_count(c: Config) -> Fact[int]:
    """The number of layers, draft layers (multi-token prediction) not counted."""
    return c.number("num_hidden_layers", "n_layer", "n_layers", "num_layers", high=MAX_LAYERS)


def every(c: Config) -> Kinds:
    """All layers alike."""
    count = layer_count(c)
    return Kinds((ATTENTION,) * count.value, count.origin)


def of_kind(c: Config, rule: Callable[[int], str], origin: str) -> Kinds:
    """Layers by a rule of their number."""
    return Kinds([rule(layer) for layer in range(layer_count(c).value)], origin)


def kinds_of(c: Config, name: str = "layer_types", *, default: Callable[[], Kinds] | None = None) -> Kinds:
    """The kinds that a list of words gives, one for each layer; without the list what `default` says."""
    words = c.words(name)
    if words is None:
        return default() if default is not None else c.missing(name, "a list with a word for each layer")
    for index, word in enumerate(words):
        if word not in _KINDS:
            c.not_one_of((name, index), _KINDS, word)
    check_length(c, name, len(words))
    return Kinds([_KINDS[word] for word in words], name)


def numbered_kinds(c: Config, name: str, kinds: Mapping[int, str]) -> Kinds | None:
    """The kinds that a list of numbers gives, one for each layer; None without the list."""
    numbers = c.numbers(name)
    if numbers is None:
        return None
    for index, number in enumerate(numbers):
        if number not in kinds:
            c.not_one_of((name, index), kinds, number)
    check_length(c, name, len(numbers))
    return Kinds([kinds[number] for number in numbers], name)


def chosen_layers(c: Config, name: str, *, first: int = 0) -> tuple[int, ...] | None:
    """A list of layer numbers that count from `first`, as numbers that count from 0; None without the list."""
    numbers = c.numbers(name, low=first, high=layer_count_outside(c) - 1 + first)
    if numbers is None:
        return None
    seen: dict[int, int] = {}
    for index, number in enumerate(numbers):
        if seen.setdefault(number, index) != index:
            c.refuse((name, index), f"layer {number} stands twice in '{name}'")
    return tuple(sorted(number - first for number in numbers))


def layer_count_outside(c: Config) -> int:
    """The number of layers, also for an object inside the config."""
    return layer_count(c if c.outer is None or c.has("num_hidden_layers") else c.outer).value


def check_length(c: Config, name: str, length: int) -> None:
    """SpecError unless a list has an entry for each layer."""
    count = layer_count(c if c.outer is None or c.has("num_hidden_layers") else c.outer)
    if length != count.value:
        text = f"'{name}' speaks of another number of layers than '{count.origin.split(',')[0]}'"
        c.refuse((name,), text, expected=f"{count.value} entries", got=f"{length}")


def kv_heads(c: Config) -> Fact[int]:
    """KV heads of the model: any of the names that mean them, else one for each query head."""
    found = c.maybe_number(
        "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"
    )
    return found or query_heads(c)


def query_heads(c: Config) -> Fact[int]:
    """Query heads of the model."""
    return c.number("num_attention_heads", "n_head", "n_heads")


def hidden_size(c: Config) -> Fact[int]:
    """Width of the model."""
    return c.number("hidden_size", "n_embd", "n_embed")


def head_size(c: Config, *names: str) -> Fact[int]:
    """Width of a head; the model's width over its query heads where no field says it."""
    found = c.maybe_number(*(names or ("head_dim", "hidden_size_per_head")))
    if found is not None:
        return found
    width, heads = hidden_size(c), query_heads(c)
    if width.value % heads.value:
        text = f"{width.value} cannot be shared by {heads.value} heads, and no field says how wide a head is"
        c.refuse((width.origin.split(",")[0],), text, expected="head_dim, or a multiple of the heads")
    return Fact(width.value // heads.value, f"{_bare(width)} / {_bare(heads)}")


def times(c: Config, name: str) -> Fact[int]:
    """The model's width times a field, as states are wider than the model."""
    factor, width = c.number(name), hidden_size(c)
    return Fact(factor.value * width.value, f"{_bare(factor)} * {_bare(width)}")


def _bare(fact: Fact[int]) -> str:
    return fact.origin.split(",")[0]


def dtype_of(c: Config) -> Fact[str]:
    """The dtype that the model is served in, as engines choose it: never float32, which they serve in bfloat16."""
    at: Config | None = c
    while at is not None:
        found = at.word("torch_dtype", "dtype")
        if found is not None:
            return _served(at, found)
        at = at.outer
    return Fact("bfloat16", "no torch_dtype in the config: check it")


def _served(c: Config, found: Fact[str]) -> Fact[str]:
    word = found.value.removeprefix("torch.")
    if word == "float32":
        return Fact("bfloat16", f"{found.origin} float32, served in bfloat16")
    if word not in DTYPES:
        c.not_one_of((found.origin,), (*DTYPES, "float32"), found.value)
    return Fact(word, found.origin)


def ssm_dtype_of(c: Config, *names: str) -> Fact[str]:
    """The dtype of a recurrent state: a field of its own, else that of the model."""
    found = c.word(*names)
    if found is None:
        return dtype_of(c)
    word = found.value.removeprefix("torch.")
    if word not in (*DTYPES, "float32"):
        c.not_one_of((names[0],), (*DTYPES, "float32"), found.value)
    return Fact(word, found.origin)


def gqa(
    c: Config,
    layers: Kinds,
    name: str = ATTENTION,
    *,
    heads: Fact[int] | None = None,
    size: Fact[int] | None = None,
    size_v: Fact[int] | None = None,
    window: Fact[int] | None = None,
    of: Sequence[str] | None = None,
) -> Group:
    """Plain attention in the layers of kind `name` (of the kinds `of`), from the generic fields unless given."""
    params: dict[str, Fact[int] | Fact[str]] = {
        "num_kv_heads": heads or kv_heads(c),
        "head_size": size or head_size(c),
    }
    if size_v is not None and size_v.value != params["head_size"].value:
        params["head_size_v"] = size_v
    params["dtype"] = dtype_of(c)
    return Group(name, "gqa", layers.layers(*(of or (name,))), layers.origin, params, window)


def windowed(c: Config, kinds: Kinds) -> list[Group]:
    """Attention whose layers differ only in how long tokens live: whole, in a window, or in a chunk."""
    window = c.maybe_number("sliding_window", "sliding_window_size")
    found = [gqa(c, kinds)]
    if kinds.layers("sliding"):
        found.append(gqa(c, kinds, "sliding", window=window))
    if kinds.layers("chunked"):
        found.append(gqa(c, kinds, "chunked", window=c.maybe_number("attention_chunk_size")))
    return found


def latent(c: Config, layers: Kinds) -> Group:
    """Multi-head latent attention."""
    params: dict[str, Fact[int] | Fact[str]] = {
        "kv_lora_rank": c.number("kv_lora_rank"),
        "qk_rope_head_dim": c.number("qk_rope_head_dim"),
        "dtype": dtype_of(c),
    }
    return Group(ATTENTION, "mla", layers.layers(ATTENTION), layers.origin, params)
