"""State pages: from the shapes that a rank keeps to the parameters of the whole model.

The shapes of one rank tell nearly all: heads and channels are never replicated, so that the whole model has tp times as
many. Two things they do not tell are read from the model's config: whether one group of B and C is the only one, and
whether a gated delta layer is one of Kimi's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

from kvlayout.errors import SpecError, one_of, problem
from kvlayout.integrations.vllm.heads import share
from kvlayout.integrations.vllm.side import Side, dtype_name

__all__ = ["state_page"]

Params = dict[str, int | str]

KERNELS = ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache", "short_conv_kernel_size")
"""What models call the width of their convolution."""


class _State:
    """One `MambaSpec`, taken apart as one side stores it."""

    def __init__(self, layer: str, spec: Any, side: Side) -> None:
        self.layer, self.spec, self.side = layer, spec, side
        self.shapes = [tuple(int(extent) for extent in shape) for shape in spec.shapes]
        self.dtypes = [dtype_name(dtype) for dtype in spec.dtypes]

    def refuse(self, code: str, message: str, expected: str, attribute: str) -> NoReturn:
        """This state is none that a format is known for."""
        kind, value = self.spec.mamba_type.name, getattr(self.spec, attribute)
        raise SpecError(
            problem(code, f"vllm: layer '{self.layer}'", f"a state of kind {kind}: {message}", expected=expected,
                    got=f"MambaSpec.{attribute}={value}")
        )  # fmt: skip

    def need(self, *extents: int) -> None:
        """As many states with as many extents; more of them are rings of ReplaySSM or RecoverSSM."""
        if tuple(len(shape) for shape in self.shapes) != extents:
            self.refuse("KVL703", "it keeps other states than the known ones",
                        f"{len(extents)} states of {' and '.join(map(str, extents))} extents", "shapes")  # fmt: skip

    def conv(self, *, speculative: bool = True) -> tuple[int, int]:
        """Channels of a rank, and the width of the convolution: rows are width - 1 and the speculative ones."""
        first, second = self.shapes[0]
        channels, rows = (first, second) if self.side.conv == "DS" else (second, first)
        width = rows + 1 - (self.side.spec_tokens if speculative else 0)
        linear = getattr(self.side.hf, "linear_attn_config", None)
        named = linear.get("short_conv_kernel_size") if isinstance(linear, dict) else self.side.field(*KERNELS)
        if width < 2 or (named is not None and named != width):
            self.refuse("KVL704", f"a convolution of {rows} rows with {self.side.spec_tokens} speculative tokens",
                        f"the {named} of the model's config", "shapes")  # fmt: skip
        return channels, width

    def exact(self, value: int, by: int, what: str) -> int:
        """A quotient that must have no remainder."""
        if value <= 0 or value % by:
            self.refuse("KVL704", f"its shapes give no whole number of {what}", f"a multiple of {by}", "shapes")
        return value // by


def state_page(layer: str, spec: Any, side: Side) -> tuple[str, Params]:
    """Format and parameters of a state's page. SpecError for a kind that is not known here."""
    state = _State(layer, spec, side)
    kind = spec.mamba_type.name
    if spec.tp_replicated:
        state.refuse("KVL703", "every rank holds it whole", "False", "tp_replicated")
    if kind not in _READERS:
        state.refuse("KVL703", "no format is known for it", one_of(_READERS), "mamba_type")
    format, params = _READERS[kind](state)
    if prod(state.shapes[-1]) < 1:
        state.refuse("KVL703", "it has no elements", "extents of 1 or more", "shapes")
    return format, params


def _mamba1(state: _State) -> tuple[str, Params]:
    state.need(2, 2)
    channels, width = state.conv(speculative=False)
    local, size = state.shapes[1]
    if channels != local:
        state.refuse("KVL704", "its two states differ in channels", "one number", "shapes")
    sizes: Params = {"intermediate_size": local * state.side.tp, "state_size": size, "conv_kernel": width}
    return "mamba1", sizes | _dtypes(state)


def _mamba2(state: _State) -> tuple[str, Params]:
    state.need(2, 3)
    channels, width = state.conv()
    heads, dim, size = state.shapes[1]
    local = state.exact(channels - heads * dim, 2 * size, "groups")
    fields = [state.side.known.get("state.n_groups")]
    if fields == [None]:
        fields = [state.side.field(name) for name in ("n_groups", "mamba_n_groups", "mamba_ngroups")]
    tp = state.side.tp
    # Several groups are shared out, one is on every rank; nothing else loads (Mamba2's mixer refuses it).
    fitting = {n for n in fields if n is not None and (n == 1 or n % tp == 0) and share(n, tp) == local}
    if not fitting and (tp == 1 or local > 1) and fields == [None] * len(fields):
        fitting = {local * tp}
    if len(fitting) != 1:
        named = ", ".join(str(n) for n in fields if n is not None) or "no n_groups"
        state.refuse("KVL705" if len(fitting) > 1 or named == "no n_groups" else "KVL704",
                     f"{local} groups of B and C on a rank of tp={tp}, where the model's config says {named}",
                     "known={'state.n_groups': ...}", "shapes")  # fmt: skip
    sizes: Params = {
        "num_heads": heads * tp, "head_dim": dim, "n_groups": fitting.pop(), "state_size": size, "conv_kernel": width,
    }  # fmt: skip
    return "mamba2", sizes | _dtypes(state)


def _delta(state: _State) -> tuple[str, Params]:
    """Gated delta net and Kimi's delta attention, which vLLM gives one kind."""
    state.need(2, 3)
    channels, width = state.conv()
    heads, v, k = state.shapes[1]
    tp, hf = state.side.tp, state.side.hf
    if isinstance(getattr(hf, "linear_attn_config", None), dict):
        if (channels, v) != (3 * heads * k, k):
            state.refuse("KVL703", "q, k and v of unequal widths", "a convolution of three times the heads", "shapes")
        sizes: Params = {"num_heads": heads * tp, "head_dim": k, "conv_kernel": width}
        return "kda", sizes | _dtypes(state)
    if state.side.field("linear_num_key_heads") is None:
        state.refuse("KVL703", "the model's config tells neither a gated delta net nor Kimi's delta attention",
                     "linear_num_key_heads or linear_attn_config", "mamba_type")  # fmt: skip
    keys = state.exact(channels - heads * v, 2 * k, "key heads")
    found = {
        "num_k_heads": keys * tp, "num_v_heads": heads * tp, "head_k_dim": k, "head_v_dim": v, "conv_kernel": width,
    }  # fmt: skip
    named = {
        "num_k_heads": "linear_num_key_heads", "num_v_heads": "linear_num_value_heads",
        "head_k_dim": "linear_key_head_dim", "head_v_dim": "linear_value_head_dim",
    }  # fmt: skip
    for name, field in named.items():
        if state.side.field(field) not in (None, found[name]):
            state.refuse("KVL704", f"its shapes give {name}={found[name]}",
                         f"{field}={state.side.field(field)} of the model's config", "shapes")  # fmt: skip
    # The CPU kernels keep each head's matrix the other way round, whatever the shape says.
    return "gdn_cpu" if state.side.is_cpu else "gdn", {**found, **_dtypes(state)}


def _short_conv(state: _State) -> tuple[str, Params]:
    state.need(2)
    channels, width = state.conv()
    return "short_conv", {"conv_dim": channels * state.side.tp, "conv_kernel": width, "conv_dtype": state.dtypes[0]}


def _linear(state: _State) -> tuple[str, Params]:
    state.need(3)
    heads, dim, other = state.shapes[0]
    if dim != other:
        state.refuse("KVL703", "its matrix is not square", "head_dim x head_dim", "shapes")
    return "linear", {"num_heads": heads * state.side.tp, "head_dim": dim, "dtype": state.dtypes[0]}


def _dtypes(state: _State) -> Params:
    return {"conv_dtype": state.dtypes[0], "ssm_dtype": state.dtypes[1]}


_READERS: dict[str, Callable[[_State], tuple[str, Params]]] = {
    "MAMBA1": _mamba1,
    "MAMBA2": _mamba2,
    "GDN_ATTN": _delta,
    "SHORT_CONV": _short_conv,
    "LINEAR": _linear,
}
