"""Importing kvlayout is cheap: it loads no heavy library before one is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "torch", "numba", "llvmlite", "networkx")

IMPORT = "import kvlayout"
HELP = """
from kvlayout.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code, stop.code
"""
REPORT = f"""
import sys
print("loaded:", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def loaded_by(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program + REPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    label, *names = done.stdout.splitlines()[-1].split()
    assert label == "loaded:"
    return names


@pytest.mark.parametrize("program", [IMPORT, HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded(program: str) -> None:
    assert loaded_by(program + "\n") == []


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_by("import kvlayout, numpy, networkx\n") == ["networkx", "numpy"]


def test_every_public_name_exists() -> None:
    import kvlayout

    assert kvlayout.__all__
    missing = [name for name in kvlayout.__all__ if not hasattr(kvlayout, name)]
    assert missing == []
    assert set(kvlayout.__all__) <= set(dir(kvlayout))


WITHOUT_VLLM = """
import sys
sys.modules["vllm"] = None
import kvlayout
try:
    kvlayout.from_vllm(object(), kv_cache_specs={})
except kvlayout.KvLayoutError as error:
    (problem,) = error.problems
    print(problem.code, problem.expected, problem.help, sep=" | ")
"""


def test_without_vllm_its_importer_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_VLLM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("KVL700 | vLLM 0.32") and "pip install 'kvlayout[vllm]'" in done.stdout


def test_the_importer_of_vllm_is_cheap() -> None:
    assert set(loaded_by("import kvlayout.integrations.vllm\n")) <= {"numpy"}
