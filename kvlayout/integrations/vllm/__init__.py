"""vLLM: specs and engines from its own config and cache objects, and live tensors checked against them.

`read` does all of it at once and keeps what a connector needs (which layer is in which group, which of vLLM's groups
that is); `from_vllm` and `engine_of` give the two halves of a side. Nothing here moves bytes.
"""

from __future__ import annotations

from kvlayout.integrations.vllm.importer import VllmCache, engine_of, from_vllm, read
from kvlayout.integrations.vllm.tensors import check_tensors, page_rows

__all__ = ["VllmCache", "check_tensors", "engine_of", "from_vllm", "page_rows", "read"]
