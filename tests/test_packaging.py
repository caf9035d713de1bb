"""However kvlayout is installed, it finds the same data.

Built with the backend of this environment and without isolation; each way of installing gets a bare environment of its
own, without kvlayout's dependencies, which finding the data does not need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STEM = f"{PROJECT['name']}-{PROJECT['version']}"

PROBE = """
import json, kvlayout, kvlayout.data
specs = kvlayout.data.specs_dir()
templates = kvlayout.data.templates_dir()
files = sorted(p.relative_to(specs).as_posix() for p in specs.rglob("*") if p.is_file())
shapes = sorted(p.relative_to(templates).as_posix() for p in templates.rglob("*") if p.is_file())
print(json.dumps({"package": kvlayout.__file__, "specs": str(specs), "files": files, "templates": shapes}))
"""


def files_under(folder: Path) -> list[str]:
    files = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(p.relative_to(folder).as_posix() for p in files)


def build(hook: str, source: Path, out: Path) -> Path:
    """Runs one hook of the build backend (`build_sdist`, `build_wheel`, `build_editable`) in a source tree."""
    out.mkdir(parents=True, exist_ok=True)
    program = f"import hatchling.build as backend; print(backend.{hook}({str(out)!r}))"
    return out / run([sys.executable, "-c", program], cwd=source).splitlines()[-1]


def run(command: list[str], cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / STEM


@pytest.fixture(scope="module")
def wheel_from_sdist(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_wheel", unpacked, tmp_path_factory.mktemp("wheel-from-sdist"))


@pytest.fixture
def found_after_install(tmp_path: Path) -> Callable[[Path | None], dict[str, object]]:
    """Installs a wheel, or puts the checkout on the path, in an empty environment; tells what is found there."""

    def look(distribution: Path | None) -> dict[str, object]:
        home = tmp_path / "venv"
        venv.create(home, with_pip=False)
        python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        program = PROBE
        if distribution is None:
            program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROBE}"
        else:
            pip = [sys.executable, "-m", "pip", "--python", str(python)]
            run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(distribution)], cwd=tmp_path)
        found: dict[str, object] = json.loads(run([str(python), "-c", program], cwd=tmp_path))
        found["inside"] = str(found["package"]).startswith(str(home))
        return found

    return look


def test_a_wheel_finds_its_own_copy(found_after_install, wheel: Path) -> None:
    found = found_after_install(wheel)
    assert found["inside"]
    assert found["files"] == files_under(ROOT / "specs")
    assert found["templates"] == files_under(ROOT / "codegen" / "templates")
    assert "formats/gqa.yaml" in found["files"]
    assert "rules.md.j2" in found["templates"]


def test_a_wheel_from_the_sdist_finds_its_own_copy(found_after_install, wheel_from_sdist: Path) -> None:
    found = found_after_install(wheel_from_sdist)
    assert found["inside"]
    assert found["files"] == files_under(ROOT / "specs")
    assert found["templates"] == files_under(ROOT / "codegen" / "templates")


def test_an_editable_install_finds_the_checkout(found_after_install, tmp_path: Path) -> None:
    found = found_after_install(build("build_editable", ROOT, tmp_path / "editable"))
    assert not found["inside"]
    assert found["specs"] == str(ROOT / "specs")
    assert found["files"] == files_under(ROOT / "specs")
    assert found["templates"] == files_under(ROOT / "codegen" / "templates")


def test_a_plain_checkout_finds_itself(found_after_install) -> None:
    found = found_after_install(None)
    assert not found["inside"]
    assert found["specs"] == str(ROOT / "specs")
    assert found["files"] == files_under(ROOT / "specs")
    assert found["templates"] == files_under(ROOT / "codegen" / "templates")


def test_a_strangers_folder_beside_the_package_is_not_taken(tmp_path: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "specs").mkdir()
    for project in ('[project]\nname = "other"\n', "project = 1\n", "not toml at all ["):
        (tmp_path / "pyproject.toml").write_text(project)
        found = json.loads(run([sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{PROBE}"], cwd=tmp_path))
        assert found["specs"] == str(tmp_path / "kvlayout" / "_data" / "specs")


def test_a_copy_without_data_says_so(tmp_path: Path) -> None:
    (tmp_path / "kvlayout").mkdir()
    (tmp_path / "kvlayout" / "data.py").write_bytes((ROOT / "kvlayout" / "data.py").read_bytes())
    program = "import sys; sys.path.insert(0, 'kvlayout'); import data; data.specs_dir()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FileNotFoundError: this copy of kvlayout has no specs folder" in done.stderr


def test_the_wheel_holds_the_package_and_its_data_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = {f"kvlayout/_data/{top}/{name}" for top in ("specs", "codegen") for name in files_under(ROOT / top)}
    assert data <= names
    assert {"kvlayout/py.typed", f"{STEM}.dist-info/licenses/LICENSE"} <= names
    assert {name.split("/")[0] for name in names} == {"kvlayout", f"{STEM}.dist-info"}
    modules = {f"kvlayout/{p.relative_to(ROOT / 'kvlayout').as_posix()}" for p in (ROOT / "kvlayout").rglob("*.py")}
    assert {name for name in names if name.startswith("kvlayout/") and name.endswith(".py")} - data == modules


def test_the_sdist_holds_all_that_a_developer_needs(sdist: Path, unpacked: Path) -> None:
    assert sdist.name == f"{STEM}.tar.gz"
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", ".ci/run"):
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes()
    for top in ("specs", "codegen", "docs", "examples"):
        assert files_under(unpacked / top) == files_under(ROOT / top)
    assert (unpacked / "tests" / Path(__file__).name).is_file()


def test_the_base_install_is_small_and_every_extra_brings_something() -> None:
    names = {"".join(c for c in requirement.split(">")[0] if c.isalnum()) for requirement in PROJECT["dependencies"]}
    assert names == {
        "click",
        "jinja2",
        "msgspec",
        "networkx",
        "numba",
        "numpy",
        "platformdirs",
        "pydantic",
        "pyyaml",
        "rich",
    }
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"torch", "nixl", "mooncake", "store", "vllm", "sign", "bench", "docs", "test"}
    assert all(extras.values())
