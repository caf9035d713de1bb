"""Kernels of the tests are kept in a folder of the run, and not among the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvlayout.emit import kernels


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVLAYOUT_CACHE", str(tmp_path_factory.mktemp("kernels").resolve() / "cache"))
        kernels.kernel_of.cache_clear()
        yield
    kernels.kernel_of.cache_clear()
