"""What every test here needs: vLLM quiet, offline and with its own warnings, and sides that are made once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Before vLLM is imported, which reads them once. The last two would ask for a GPU.
os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_KIMI_K3_GEMM_AR="0",
    VLLM_ENABLE_GEMM_RS="0",
    OMP_NUM_THREADS="1",  # threads that wait for each other by spinning are of no use to pages so small
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say while they are imported is not ours to mend
    from architectures import ARCHITECTURES
    from vllm_side import Side, make_side, orient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # nor what they say later


@pytest.fixture(scope="session")
def side() -> Callable[..., Side]:
    """`side("qwen3_next", tp=2, rank=1, conv="DS")`: a rank of an engine, the last few are kept."""

    @lru_cache(maxsize=8)
    def kept(name: str, tp: int = 1, rank: int = 0, conv: str = "SD", **engine: Any) -> Side:
        return make_side(ARCHITECTURES[name], rank=rank, conv=conv, tensor_parallel_size=tp, **engine)

    def made(*args: Any, conv: str = "SD", **words: Any) -> Side:
        orient(conv)  # also for one that is kept
        return kept(*args, conv=conv, **words)

    return made
