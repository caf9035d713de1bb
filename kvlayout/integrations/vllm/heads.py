"""How many KV heads the whole model has, from what one rank says.

A rank of tp holds max(1, K // tp) of K heads. More than one tells K; one may be all that is left of any K that divides
tp, and then the model's config must tell it. Some models have layers with different numbers of heads, so that a number
that fits is believed only where no other number in the config fits as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvlayout.errors import SpecError, problem
from kvlayout.integrations.vllm.side import Side

__all__ = ["kv_heads", "share"]

_NAMES = re.compile(r"(kv|key_value)_heads$|_head_kv$|(query|attention)_groups?(_num)?$")
"""How configs call numbers of KV heads: num_key_value_heads, swa_num_key_value_heads, n_head_kv, num_kv_heads,
multi_query_group_num, num_attention_groups."""


def share(total: int, tp: int) -> int | None:
    """Units that a rank holds of `total`, where equal or replicated shares exist.

    >>> share(8, 2), share(2, 8), share(6, 4)
    (4, 1, None)
    """
    if total % tp == 0:
        return total // tp
    return None if tp % total else 1


def kv_heads(layer: str, spec: Any, side: Side, kind: str) -> int:
    """KV heads of the whole model in a layer of this kind of group. SpecError where rank and model do not tell."""
    local, where = int(spec.num_kv_heads), f"vllm: layer '{layer}'"
    given = side.known.get(f"{kind}.num_kv_heads")
    named = _named(layer, side, kind) if given is None else {given}
    fitting = {total for total in named if total >= 1 and share(total, side.tp) == local}
    if not fitting:
        raise SpecError(
            problem("KVL704", where, f"a rank of tp={side.tp} has {local} KV heads",
                    expected=f"a share of what the model's config says: {', '.join(map(str, sorted(named)))} heads",
                    got=f"{type(spec).__name__}.num_kv_heads={local}")
        )  # fmt: skip
    if len(fitting) > 1:
        names = " or ".join(map(str, sorted(fitting)))
        raise SpecError(
            problem("KVL705", where, f"a rank of tp={side.tp} has 1 KV head of {names} in the model",
                    expected=f"known={{'{kind}.num_kv_heads': ...}}")
        )  # fmt: skip
    return fitting.pop()


def _named(layer: str, side: Side, kind: str) -> set[int]:
    """The numbers of KV heads that the layer may have: vLLM's own for each layer, or all that the config names."""
    model = side.config.model_config.model_arch_config
    overrides = model.per_layer_overrides
    index = side.index(layer, is_state=False)
    if overrides is not None and index < len(overrides):
        return {int(model[index].total_num_kv_heads)}
    total, sliding = int(model.total_num_kv_heads), side.field("swa_num_key_value_heads")
    if sliding is not None and kind in ("attention", "sliding"):  # MiMo
        return {sliding if kind == "sliding" else total}
    return {total, *_integers(side.hf.to_dict())}


def _integers(values: Any, name: str = "") -> Iterator[int]:
    """Every number that a config names as one of KV heads, in nested parts too."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _integers(value, str(key))
    elif isinstance(values, list):
        for value in values:
            yield from _integers(value, name)
    elif isinstance(values, int) and not isinstance(values, bool) and _NAMES.search(name):
        yield values
