"""Compiled kernels on disk: what is kept, what is refused, and what is made anew."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numba
import pytest

from kvlayout.emit import cache, kernels, target
from kvlayout.emit.tables import Shape
from kvlayout.errors import KvLayoutError

KEY = "ab" * 32
SOURCE = """
from numba import types

SIGNATURE = types.void(types.int64, types.int64, types.int64)


def move(job, first, last):
    pass
"""
SCRIPT = f"""
from kvlayout.emit import cache, kernels, target
from kvlayout.emit.tables import Shape
def render():
    print("rendered")
    return {SOURCE!r}
cache.load("k", {KEY!r}, render)(0, 0, 0)
print("compiled", len(cache.compiled))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "a" / "cache"
    monkeypatch.setenv("KVLAYOUT_CACHE", str(folder))
    return folder


def start(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def run(**environment: str) -> str:
    out, err = start(**environment).communicate(timeout=120)
    assert not err, err
    return out


def load() -> Callable[..., None]:
    return cache.load("k", KEY, lambda: SOURCE)


def entry(root: Path) -> Path:
    return root / f"k-{KEY[:32]}"


def test_a_kernel_is_compiled_once_a_machine(root: Path) -> None:
    assert run() == "rendered\ncompiled 1\n"
    assert run() == "compiled 0\n"
    assert root.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in root.iterdir()] == [entry(root).name]
    assert not list(root.rglob("*.pyc"))


def test_settings_of_numba_do_not_move_it(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert run(NUMBA_CACHE_DIR=str(elsewhere)) == "rendered\ncompiled 1\n"
    assert run(NUMBA_CACHE_DIR=str(elsewhere)) == "compiled 0\n"
    assert not elsewhere.exists()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("pattern", ["kernel.py", "__pycache__/*.nbi", "__pycache__/*.nbc", "manifest.json"])
@pytest.mark.parametrize("how", ["forged", "cut", "gone", "link"])
def test_what_does_not_match_the_manifest_is_made_anew(root: Path, tmp_path: Path, pattern: str, how: str) -> None:
    load()
    (path,) = entry(root).glob(pattern)
    exploded = tmp_path / "exploded"
    whole = path.read_bytes()
    path.unlink()
    if how == "forged":
        path.write_bytes(pickle.dumps(Bomb(exploded)))
    elif how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "link":
        (tmp_path / "target").write_bytes(whole)
        path.symlink_to(tmp_path / "target")
    before = len(cache.compiled)
    load()
    assert len(cache.compiled) == before + 1
    assert not exploded.exists()
    assert cache._checked(entry(root), KEY) == SOURCE
    assert [found.name for found in root.iterdir()] == [entry(root).name]
    load()
    assert len(cache.compiled) == before + 1


def test_a_file_too_many_or_another_key_is_made_anew(root: Path) -> None:
    load()
    (entry(root) / "__pycache__" / "more.nbi").write_bytes(b"")
    assert cache._checked(entry(root), KEY) is None
    load()
    assert cache._checked(entry(root), KEY) == SOURCE
    assert cache._checked(entry(root), "cd" * 32) is None
    manifest = entry(root) / "manifest.json"
    for wrong in ("[]", "7", json.dumps({"key": KEY}), "[" * 100_000, json.dumps({"key": KEY, "files": []})):
        manifest.write_text(wrong)
        assert cache._checked(entry(root), KEY) is None


def test_kvl651_a_folder_of_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True)
    for mode in (0o770, 0o707, 0o1777):
        root.chmod(mode)
        with pytest.raises(KvLayoutError, match=r"KVL651: others may write"):
            load()
    root.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(root).st_uid + 1)
    with pytest.raises(KvLayoutError, match=r"KVL651: the kernel cache belongs to another user"):
        load()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_kvl651_a_symlink_on_the_way(root: Path, tmp_path: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True, mode=0o700)
    link = tmp_path.resolve() / "link"
    link.symlink_to(root)
    monkeypatch.setenv("KVLAYOUT_CACHE", str(link / below))
    with pytest.raises(KvLayoutError, match=r"KVL651.*symlink.*expected .*cache"):
        load()
    assert list(root.iterdir()) == []


def test_kvl651_a_file(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("")
    with pytest.raises(KvLayoutError, match="KVL651"):
        load()


def test_kvl652_numba_switched_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(KvLayoutError, match="KVL652"):
        load()


def test_several_processes_at_once(root: Path) -> None:
    started = [start() for _ in range(4)]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and not err, err
        assert "compiled" in out
    assert [path.name for path in root.iterdir()] == [entry(root).name]
    assert run() == "compiled 0\n"


@pytest.mark.parametrize("call", ["mkdtemp", "write", "rename", "mkdir"])
def test_a_full_or_read_only_disk(
    root: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel works all the same, for this process, and what cannot be kept leaves nothing behind."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if call == "mkdtemp":
        monkeypatch.setattr(tempfile, "mkdtemp", full)
    elif call == "write":
        monkeypatch.setattr(Path, "write_text", full)
    elif call == "rename":
        monkeypatch.setattr(os, "rename", full)
    else:
        monkeypatch.setattr(Path, "mkdir", full)
    load()(0, 0, 0)
    assert "not kept" in caplog.text
    monkeypatch.undo()
    assert not root.exists() or list(root.iterdir()) == []


def test_the_users_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLAYOUT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache.cache_dir() == tmp_path.resolve() / "kvlayout"


def made_here() -> bool:
    """Load and call; whether it was compiled in this process."""
    before = len(cache.compiled)
    load()(0, 0, 0)
    return len(cache.compiled) > before


def test_types_of_another_signature_are_neither_looked_up_nor_kept(root: Path) -> None:
    kernel = load()
    with pytest.raises(TypeError, match="No matching definition"):
        kernel("a", "b", "c")
    assert not made_here()


@pytest.mark.parametrize("foreign", ["more.py", "__pycache__/kernel.cpython-311.pyc", "folder/more", "empty/"])
def test_what_does_not_belong_to_an_entry_makes_it_anew(root: Path, foreign: str) -> None:
    load()
    path = entry(root) / foreign
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if foreign.endswith("/") else path.write_text("")
    assert made_here()
    assert not path.exists()
    assert not made_here()


def test_a_linked_folder_of_numba_makes_an_entry_anew(root: Path, tmp_path: Path) -> None:
    load()
    numba_files = entry(root) / "__pycache__"
    shutil.move(numba_files, tmp_path / "moved")
    numba_files.symlink_to(tmp_path / "moved")
    assert made_here()
    assert not numba_files.is_symlink()


def test_an_entry_of_a_key_that_begins_alike_is_replaced(root: Path) -> None:
    load()
    other = KEY[:32] + "0" * 32
    cache.load("k", other, lambda: SOURCE)
    assert cache._checked(entry(root), other) == SOURCE
    assert made_here()


def test_what_numba_compiles_again_is_published_anew(root: Path) -> None:
    """A valid entry whose index numba passes over, here because it is the index of other source."""
    load()
    cache.load("k", "1" * 64, lambda: SOURCE.replace("pass", "return"))
    (index,), (foreign,) = entry(root).rglob("*.nbi"), (root / f"k-{'1' * 32}").rglob("*.nbi")
    index.write_bytes(foreign.read_bytes())
    manifest = json.loads((entry(root) / "manifest.json").read_text())
    manifest["files"][f"__pycache__/{index.name}"] = hashlib.sha256(index.read_bytes()).hexdigest()
    (entry(root) / "manifest.json").write_text(json.dumps(manifest))
    assert cache._checked(entry(root), KEY) == SOURCE
    assert made_here()
    assert run() == "compiled 0\n"


def test_kvl651_an_entry_that_is_a_link(root: Path, tmp_path: Path) -> None:
    load()
    shutil.move(entry(root), tmp_path / "entry")
    entry(root).symlink_to(tmp_path / "entry")
    with pytest.raises(KvLayoutError, match="KVL651"):
        load()


@pytest.mark.parametrize("broken", [False, True])
def test_an_entry_that_came_meanwhile_stays_if_it_is_whole(root: Path, tmp_path: Path, broken: bool) -> None:
    load()
    other = tmp_path / "other"
    shutil.move(entry(root), other)
    if broken:
        (other / "manifest.json").unlink()
    inode = other.stat().st_ino

    def render() -> str:
        shutil.move(other, entry(root))
        return SOURCE

    cache.load("k", KEY, render)
    assert (entry(root).stat().st_ino == inode) is not broken
    assert [path.name for path in root.iterdir()] == [entry(root).name]
    assert not made_here()


def test_a_full_disk_is_reported_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it is numba that meets it; nothing is counted twice."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    before = len(cache.compiled)
    assert made_here() and made_here()
    assert len(cache.compiled) == before + 2
    assert len(caplog.records) == 1


def test_an_error_of_the_template_is_none_of_the_disk(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def render() -> str:
        raise FileNotFoundError("template")

    with pytest.raises(FileNotFoundError, match="template"):
        cache.load("k", KEY, render)
    assert not caplog.records


def test_files_that_numba_would_put_elsewhere_are_neither_read_nor_made(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Should a numba choose its folder by another rule, nothing is kept at all."""
    from numba import config

    monkeypatch.setattr(cache, "_numba_keeps_beside_source", nullcontext)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "other"))
    assert made_here() and made_here()
    assert "not kept" in caplog.text
    assert list(root.iterdir()) == [] and not list((tmp_path / "other").rglob("*.nb?"))


def test_leftovers_of_a_day_are_removed(root: Path) -> None:
    root.mkdir(mode=0o700, parents=True)
    leftovers = [root / ".kvlayout-building-old", root / ".kvlayout-trash-old"]
    others = [root / name for name in (".vscode-server", ".aws-sam", "a-b", ".building-x")]
    new = root / ".kvlayout-building-new"
    for folder in (*leftovers, *others, new):
        (folder / "__pycache__").mkdir(parents=True)
    for folder in (*leftovers, *others):
        os.utime(folder, (time.time() - 25 * 3600,) * 2)
    load()
    assert not any(folder.exists() for folder in leftovers)
    assert new.exists() and all(folder.exists() for folder in others), "a user's own folders are not ours to remove"


def test_the_users_cache_directory_may_lie_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.delenv("KVLAYOUT_CACHE", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, appauthor: str(tmp_path / "link" / name))
    assert made_here() and not made_here()
    assert len(list((tmp_path / "home" / "kvlayout").iterdir())) == 1


def test_a_key_is_that_of_everything_that_decides_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another template, primitive, compiler or CPU is another kernel."""
    shape, read = Shape("1", "lines"), Path.read_bytes
    keys = [kernels._key(shape), kernels._key(Shape("2", "lines"))]
    for name in ("kernel.py.j2", "cache.py", "kernels.py", "lines.py", "primitives.py", "tables.py", "target.py"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b" " * (path.name == name))
            kernels._sources.cache_clear()
            keys.append(kernels._key(shape))
    kernels._sources.cache_clear()
    for owner, name, value in (
        (target, "host_name", lambda: ("triple", "cpu", "+more")),
        (kernels.metadata, "version", lambda name: "0"),
        (numba.config, "OPT", "0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            kernels._compiler.cache_clear()
            keys.append(kernels._key(shape))
    kernels._compiler.cache_clear()
    assert len(set(keys)) == len(keys) == 12
    assert kernels._key(shape) == keys[0]
