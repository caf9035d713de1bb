"""A real config of vLLM with other values in it, for what no engine of this machine has."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

Words = Mapping[str, Any]


def changed(
    made: Any, *, parallel: Words | None = None, cache: Words | None = None, hf: Words | None = None, tokens: int = 0
) -> Any:
    """A side's config with other values, in a process that has not made the layers."""
    config = made.config
    text = copy.copy(config.model_config.hf_text_config)
    for name, value in (hf or {}).items():
        object.__setattr__(text, name, value)
    parts = {"parallel_config": parallel or {}, "cache_config": cache or {}, "model_config": {"hf_text_config": text}}
    copies = {}
    for part, values in parts.items():
        copies[part] = copy.copy(getattr(config, part))
        for name, value in values.items():
            object.__setattr__(copies[part], name, value)
    return SimpleNamespace(
        **copies, num_speculative_tokens=tokens, compilation_config=SimpleNamespace(static_forward_context={})
    )
