"""How many KV heads the whole model has, from what one rank says.

A rank of tp holds max(1, K // tp) of K heads. More than one tells K; one may be all that is left of any K that divides
tp, and then the model's config must tell it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvlayout.errors import SpecError, problem
from kvlayout.integrations.vllm.side import Side

__all__ = ["kv_heads", "share"]


def share(total: int, tp: int) -> int | None:
    """Units that a rank holds of `total`, where equal or replicated shares exist.

    >>> share(8, 2), share(2, 8), share(6, 4)
    (4, 1, None)
    """
    if total % tp == 0:
        return total // tp
    return None if tp % total else 1


def kv_heads(layer: str, spec: Any, side: Side) -> int:
    """KV heads of the whole model in a layer. SpecError where rank and model disagree, or do not tell."""
    local, where = int(spec.num_kv_heads), f"vllm: layer '{layer}'"
    given = side.known.get("num_kv_heads")
    model = int(side.config.model_config.get_total_num_kv_heads())
    fields: set[int] = {model, *_integers(side.hf), *(() if given is None else (given,))}
    fitting = {total for total in fields if total >= 1 and share(total, side.tp) == local}
    if given is not None and given in fitting:
        return given
    if not fitting:
        raise SpecError(
            problem("KVL704", where, f"a rank of tp={side.tp} has {local} KV heads",
                    expected=f"a share of what the model's config says: {', '.join(map(str, sorted(fields)))} heads",
                    got=f"{type(spec).__name__}.num_kv_heads={local}")
        )  # fmt: skip
    if len(fitting) > 1:
        names = " or ".join(map(str, sorted(fitting)))
        raise SpecError(
            problem("KVL705", where, f"a rank of tp={side.tp} has 1 KV head of {names} in the model",
                    expected="known={'num_kv_heads': ...}")
        )  # fmt: skip
    return fitting.pop()


def _integers(hf: Any) -> Iterable[int]:
    """Every number of KV heads that a model's config names; some models have two kinds of attention layers."""
    for name, value in hf.to_dict().items():
        if name.endswith(("key_value_heads", "kv_heads")) and isinstance(value, int) and not isinstance(value, bool):
            yield value
