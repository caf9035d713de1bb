"""Families that keep states: Mamba, delta-net, linear attention, short convolutions, most of them beside attention."""

from __future__ import annotations

from kvlayout.spec.importers.document import Config, Fact
from kvlayout.spec.importers.groups import (
    ATTENTION,
    Group,
    Kinds,
    chosen_layers,
    dtype_of,
    every,
    gqa,
    head_size,
    hidden_size,
    kinds_of,
    latent,
    layer_count,
    numbered_kinds,
    of_kind,
    query_heads,
    ssm_dtype_of,
    times,
)

__all__ = [
    "bailing_hybrid",
    "bailing_linear",
    "bamba",
    "falcon_h1",
    "granite_hybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "mamba1_only",
    "mamba2_only",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen_gdn",
    "zamba2",
]

STATE = "state"
Params = dict[str, Fact[int] | Fact[str]]


def _state(c: Config, format: str, kinds: Kinds, params: Params, *ssm: str, of: tuple[str, ...] = (STATE,)) -> Group:
    """A group of states whose convolution has the model's dtype, and whose recurrent part that of a field in `ssm`."""
    dtypes: Params = {"conv_dtype": dtype_of(c), "ssm_dtype": ssm_dtype_of(c, *ssm) if ssm else dtype_of(c)}
    return Group(STATE, format, kinds.layers(*of), kinds.origin, {**params, **dtypes})


def mamba1_only(c: Config) -> list[Group]:
    """Mamba1 in every layer. A given intermediate size counts; `expand` may contradict it, as in Falcon-Mamba."""
    sizes: Params = {
        "intermediate_size": c.maybe_number("intermediate_size") or times(c, "expand"),
        "state_size": c.number("state_size"),
        "conv_kernel": c.number("conv_kernel", low=2),
    }
    return [_state(c, "mamba1", every(c), sizes, of=(ATTENTION,))]


def jamba(c: Config) -> list[Group]:
    """Mamba1 beside attention in one layer of a period."""
    period = c.number("attn_layer_period")
    offset = c.number("attn_layer_offset", low=0, high=period.value - 1)
    origin = "attn_layer_period, attn_layer_offset"
    kinds = of_kind(c, lambda layer: ATTENTION if layer % period.value == offset.value else STATE, origin)
    sizes: Params = {
        "intermediate_size": times(c, "mamba_expand"),
        "state_size": c.number("mamba_d_state"),
        "conv_kernel": c.number("mamba_d_conv", low=2),
    }
    return [gqa(c, kinds), _state(c, "mamba1", kinds, sizes)]


def _mamba2(heads: Fact[int], size: Fact[int], groups: Fact[int], state: Fact[int], kernel: Fact[int]) -> Params:
    return {"num_heads": heads, "head_dim": size, "n_groups": groups, "state_size": state, "conv_kernel": kernel}


def _heads(c: Config, inner: Fact[int], heads: str, size: str) -> tuple[Fact[int], Fact[int]]:
    """Heads of a state of width `inner`, and their width, from two fields of which one may be absent or `auto`."""
    count = c.maybe_number(heads)
    width = None if c.given.get(size) == "auto" else c.maybe_number(size)
    if count is None and width is None:
        c.missing(heads, "an integer", size)
    if width is None:
        assert count is not None
        width = _share(c, inner, count)
    if count is None or (heads not in c.given and size in c.given):
        count = _share(c, inner, width)
    if count.value * width.value != inner.value:
        text = f"'{heads}' times '{size}' is not the width of the state, {inner.origin}"
        c.refuse((heads,), text, expected=f"{inner.value}", got=f"{count.value} * {width.value}")
    return count, width


def _share(c: Config, whole: Fact[int], parts: Fact[int]) -> Fact[int]:
    name = parts.origin.split(",")[0]
    if whole.value % parts.value:
        c.refuse((name,), f"the state's width {whole.value} is no multiple of {parts.value}")
    return Fact(whole.value // parts.value, f"{whole.origin.split(',')[0]} / {name}".replace(" * ", "*"))


def mamba2_only(c: Config) -> list[Group]:
    """Mamba2 in every layer."""
    heads, size = _heads(c, times(c, "expand"), "num_heads", "head_dim")
    groups, state, kernel = c.number("n_groups"), c.number("state_size"), c.number("conv_kernel", low=2)
    return [_state(c, "mamba2", every(c), _mamba2(heads, size, groups, state, kernel), of=(ATTENTION,))]


def _granite_mamba(c: Config, inner: Fact[int]) -> Params:
    """Mamba2 under the names that Granite, Bamba and Falcon-H1 share."""
    heads, size = _heads(c, inner, "mamba_n_heads", "mamba_d_head")
    groups, state, kernel = c.number("mamba_n_groups"), c.number("mamba_d_state"), c.number("mamba_d_conv", low=2)
    return _mamba2(heads, size, groups, state, kernel)


def granite_hybrid(c: Config) -> list[Group]:
    """Granite 4: Mamba2 beside attention, or attention alone."""
    kinds = kinds_of(c, "layer_types" if c.has("layer_types") else "layers_block_type")
    found = [gqa(c, kinds)]
    if kinds.layers(STATE):
        found.append(_state(c, "mamba2", kinds, _granite_mamba(c, times(c, "mamba_expand"))))
    return found


def bamba(c: Config) -> list[Group]:
    """Mamba2, and attention in the layers of a list."""
    attention = chosen_layers(c, "attn_layer_indices")
    if attention is None:
        return granite_hybrid(c)
    chosen = set(attention)
    kinds = of_kind(c, lambda layer: ATTENTION if layer in chosen else STATE, "attn_layer_indices")
    return [gqa(c, kinds), _state(c, "mamba2", kinds, _granite_mamba(c, times(c, "mamba_expand")))]


def falcon_h1(c: Config) -> list[Group]:
    """Attention and Mamba2 side by side in every layer."""
    kinds = every(c)
    inner = c.maybe_number("mamba_d_ssm") or times(c, "mamba_expand")
    return [gqa(c, kinds), _state(c, "mamba2", kinds, _granite_mamba(c, inner), of=(ATTENTION,))]


def zamba2(c: Config) -> list[Group]:
    """Mamba2 in every layer; hybrid layers have attention as well, twice as wide as the model over its heads."""
    hybrid = chosen_layers(c, "hybrid_layer_ids")
    if c.has("layers_block_type") or hybrid is None:
        kinds = kinds_of(c, "layers_block_type")
        if hybrid is not None and kinds.layers("hybrid") != hybrid:
            c.refuse(("hybrid_layer_ids",), "'hybrid_layer_ids' and 'layers_block_type' name other layers")
    else:
        chosen = set(hybrid)
        kinds = of_kind(c, lambda layer: "hybrid" if layer in chosen else STATE, "hybrid_layer_ids")
    size = c.maybe_number("attention_head_dim")
    if size is None:
        half = head_size(c, "attention_head_dim")
        size = Fact(2 * half.value, f"2 * {half.origin}")
    heads, width = _heads(c, times(c, "mamba_expand"), "n_mamba_heads", "mamba_headdim")
    groups, state, kernel = c.number("mamba_ngroups"), c.number("mamba_d_state"), c.number("mamba_d_conv", low=2)
    sizes = _mamba2(heads, width, groups, state, kernel)
    return [gqa(c, kinds, size=size, of=("hybrid",)), _state(c, "mamba2", kinds, sizes, of=(STATE, "hybrid"))]


def nemotron_h(c: Config) -> list[Group]:
    """Mamba2 and attention between MLPs or experts, which keep nothing. States are float32 unless a field says else."""
    name = next((each for each in ("layers_block_type", "layer_types") if c.has(each)), None)
    kinds = kinds_of(c, name) if name is not None else _pattern(c)
    sizes = _mamba2(
        c.number("mamba_num_heads"), c.number("mamba_head_dim"), c.number("n_groups", "mamba_n_groups"),
        c.number("ssm_state_size"), c.number("conv_kernel", "mamba_d_conv", low=2),
    )  # fmt: skip
    attention = gqa(c, kinds, size=head_size(c, "head_dim", "attention_head_dim"))
    return [attention, _state(c, "mamba2", kinds, sizes, "mamba_ssm_cache_dtype")]


def _pattern(c: Config) -> Kinds:
    """Layers as letters: M is Mamba2, * attention, - an MLP, E experts."""
    letters = {"M": STATE, "*": ATTENTION, "-": "", "E": ""}
    found = c.word("hybrid_override_pattern")
    if found is None:
        c.missing("hybrid_override_pattern", "a letter for each layer: M, *, - or E", "layers_block_type")
    for letter in found.value:
        if letter not in letters:
            c.not_one_of(("hybrid_override_pattern",), letters, letter)
    count = c.maybe_number("num_hidden_layers")
    if count is not None and count.value != len(found.value):
        text = "'hybrid_override_pattern' speaks of another number of layers than 'num_hidden_layers'"
        c.refuse(("hybrid_override_pattern",), text, expected=f"{count.value} letters", got=f"{len(found.value)}")
    return Kinds([letters[letter] for letter in found.value], found.origin)


def _every_nth(c: Config, name: str) -> Kinds:
    """The last of every so many layers is attention, the others are states."""
    step = c.number(name)
    return of_kind(c, lambda layer: STATE if (layer + 1) % step.value else ATTENTION, step.origin)


def qwen_gdn(c: Config) -> list[Group]:
    """Gated delta-net layers beside attention: Qwen3-Next and Qwen3.5."""
    kinds = kinds_of(c, default=lambda: _every_nth(c, "full_attention_interval"))
    sizes: Params = {
        "num_k_heads": c.number("linear_num_key_heads"),
        "num_v_heads": c.number("linear_num_value_heads"),
        "head_k_dim": c.number("linear_key_head_dim"),
        "head_v_dim": c.number("linear_value_head_dim"),
        "conv_kernel": c.number("linear_conv_kernel_dim", low=2),
    }
    return [gqa(c, kinds), _state(c, "gdn", kinds, sizes, "mamba_ssm_dtype")]


def olmo_hybrid(c: Config) -> list[Group]:
    """Gated delta-net layers whose heads follow from the model's where the config does not give them."""
    kinds = kinds_of(c, default=lambda: _olmo_layers(c))
    key_heads = c.maybe_number("linear_num_key_heads") or query_heads(c)
    key_dim = c.maybe_number("linear_key_head_dim") or Fact(
        max(1, 3 * hidden_size(c).value // (4 * key_heads.value)), "3/4 * hidden_size / linear_num_key_heads"
    )
    sizes: Params = {
        "num_k_heads": key_heads,
        "num_v_heads": c.maybe_number("linear_num_value_heads") or query_heads(c),
        "head_k_dim": key_dim,
        "head_v_dim": c.maybe_number("linear_value_head_dim") or Fact(2 * key_dim.value, "2 * linear_key_head_dim"),
        "conv_kernel": c.number("linear_conv_kernel_dim", low=2),
    }
    return [gqa(c, kinds), _state(c, "gdn", kinds, sizes)]


def _olmo_layers(c: Config) -> Kinds:
    last = layer_count(c).value - 1
    full = last if last < 3 else -1  # one layer at least is full
    return of_kind(c, lambda i: ATTENTION if i % 4 == 3 or i == full else STATE, "every fourth is full by default")


def kimi_linear(c: Config) -> list[Group]:
    """Kimi delta attention beside latent attention. The config counts layers from 1; states are float32 in vLLM."""
    inner = c.inner("linear_attn_config")
    kinds = kinds_of(c) if inner is None or c.has("layer_types") else _kimi_layers(c, inner)
    heads = (inner and inner.maybe_number("num_heads")) or c.number("linear_num_heads")
    width = (inner and inner.maybe_number("head_dim")) or c.number("linear_head_dim")
    kernel = (inner and inner.maybe_number("short_conv_kernel_size", low=2)) or c.number(
        "linear_conv_kernel_dim", low=2
    )
    return [latent(c, kinds), _kda(c, kinds, heads, width, kernel)]


def _kda(c: Config, kinds: Kinds, heads: Fact[int], width: Fact[int], kernel: Fact[int]) -> Group:
    sizes: Params = {"num_heads": heads, "head_dim": width, "conv_kernel": kernel}
    state = _state(c, "kda", kinds, sizes)
    return state._replace(
        params={**state.params, "ssm_dtype": Fact("float32", "vLLM keeps it so unless told otherwise")}
    )


def _kimi_layers(c: Config, inner: Config) -> Kinds:
    count = layer_count(c).value
    full = chosen_layers(inner, "full_attn_layers", first=1)
    states = chosen_layers(inner, "kda_layers", first=1)
    if full is None and states is None:
        inner.missing("full_attn_layers", "a list of layers that counts from 1", "kda_layers")
    if full is None:
        full = tuple(sorted(set(range(count)) - set(states or ())))
    if states is not None and (set(full) & set(states) or len(full) + len(states) != count):
        text = "'full_attn_layers' and 'kda_layers' do not share out the layers"
        inner.refuse(("kda_layers",), text, expected=f"each of 1 to {count} in one of them")
    chosen = set(full)
    return of_kind(c, lambda layer: ATTENTION if layer in chosen else STATE, "linear_attn_config, which counts from 1")


def lfm2(c: Config) -> list[Group]:
    """Short convolutions beside attention."""

    def listed() -> Kinds:
        chosen = set(
            chosen_layers(c, "full_attn_idxs") or c.missing("layer_types", "a word for each layer", "full_attn_idxs")
        )
        return of_kind(c, lambda layer: ATTENTION if layer in chosen else STATE, "full_attn_idxs")

    kinds = kinds_of(c, default=listed)
    params: Params = {
        "conv_dim": c.maybe_number("conv_dim") or hidden_size(c),
        "conv_kernel": c.number("conv_L_cache", low=2),
        "conv_dtype": dtype_of(c),
    }
    return [gqa(c, kinds), Group(STATE, "short_conv", kinds.layers(STATE), kinds.origin, params)]


def _linear(c: Config, kinds: Kinds) -> Group:
    params: Params = {"num_heads": query_heads(c), "head_dim": head_size(c), "dtype": dtype_of(c)}
    return Group(STATE, "linear", kinds.layers(STATE), kinds.origin, params)


def minimax(c: Config) -> list[Group]:
    """Lightning attention beside full attention: MiniMax-Text-01, M1, and the family's own class."""
    kinds = numbered_kinds(c, "attn_type_list", {0: STATE, 1: ATTENTION}) or kinds_of(
        c, default=lambda: _alternating(c)
    )
    return [gqa(c, kinds), _linear(c, kinds)]


def _alternating(c: Config) -> Kinds:
    if c.given.get("model_type") != "minimax":
        c.missing("attn_type_list", "a list with 0 or 1 for each layer")
    return of_kind(c, lambda layer: STATE if layer % 2 else ATTENTION, "every other layer by default")


def bailing_linear(c: Config) -> list[Group]:
    """Ling and Ring linear: the last layer of each group is full attention, and so are layers beyond the last group."""
    kinds = _grouped(c, rest=True)
    return [gqa(c, kinds), _linear(c, kinds)]


def bailing_hybrid(c: Config) -> list[Group]:
    """Ling 2.5 and 3: latent attention beside linear attention (2.5) or Kimi delta attention (3)."""
    named = c.words("architectures") or []
    third = any(name.startswith("BailingMoeV3") for name in named)
    if not third and not any(name.startswith("BailingMoeV2_5") for name in named):
        c.refuse(("architectures",), "which generation of the family this is, is not said",
                 expected="BailingMoeV2_5ForCausalLM or BailingMoeV3ForCausalLM")  # fmt: skip
    kinds = _grouped(c, rest=third)
    if not third:
        return [latent(c, kinds), _linear(c, kinds)]
    kernel = c.number("short_conv_kernel_size", low=2)
    return [latent(c, kinds), _kda(c, kinds, query_heads(c), head_size(c), kernel)]


def _grouped(c: Config, *, rest: bool) -> Kinds:
    size = c.number("layer_group_size")
    count = layer_count(c).value
    last = count // size.value * size.value if rest else count
    return of_kind(c, lambda i: STATE if (i + 1) % size.value and i < last else ATTENTION, size.origin)
