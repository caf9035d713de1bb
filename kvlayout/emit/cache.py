"""Compiled kernels on disk, by content.

numba's `cache=True` refuses source that was executed from a string, so a generated module is written to a file first;
numba then keeps machine code beside it. Its index files are pickles: whoever can write one can run code here. So the
folder belongs to this user alone, and a manifest with the SHA-256 of every file is checked before numba opens one. An
entry is built in a folder of its own and published by one rename; what does not match its manifest is made anew.
Where nothing can be written, a kernel is compiled for this process only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from kvlayout.errors import KvLayoutError, problem

__all__ = ["cache_dir", "compiled", "load"]

compiled: list[str] = []
"""Names of the kernels that this process compiled; those that came from the cache are not in it."""

_SOURCE, _MANIFEST, _NUMBA = "kernel.py", "manifest.json", "__pycache__"
_BUILDING, _TRASH = ".kvlayout-building-", ".kvlayout-trash-"
_DAY = 24 * 3600
_MAX_FILE = 16 * 1024 * 1024
_decorating = threading.Lock()
_log = logging.getLogger("kvlayout")


def cache_dir() -> Path:
    """Where kernels are kept: `KVLAYOUT_CACHE`, or the user's cache directory."""
    given = os.environ.get("KVLAYOUT_CACHE")
    if given:
        return Path(os.path.abspath(given))
    import platformdirs

    return Path(os.path.realpath(platformdirs.user_cache_dir("kvlayout", appauthor=False)))


def load(name: str, key: str, render: Callable[[], str]) -> Callable[..., None]:
    """The compiled function `move` of the module that `render()` gives.

    `key`: hex SHA-256 of all that decides the machine code. Raises KvLayoutError for a folder that others could write
    to (KVL651) and where numba is told to compile nothing (KVL652).
    """
    import numba

    config: Any = numba.config
    if config.DISABLE_JIT:
        raise KvLayoutError(problem("KVL652", "NUMBA_DISABLE_JIT", "numba is told to compile nothing"))
    root = cache_dir()
    entry = root / f"{name}-{key[:32]}"
    owned = _own(root)
    found = _kept(name, key, entry) if owned else None
    if found is None:
        source = render()
        compiled.append(name)
        found = (owned and _publish(name, key, source, entry)) or _compile(name, key, source, None)
    function: Callable[..., None] = found
    return function


@cache
def _not_kept(root: Path, reason: str | None) -> None:
    """Warn, once for a folder and reason: a full disk would otherwise be reported for every kernel."""
    _log.warning("compiled kernels are not kept in %s: %s", root, reason or "it cannot be written to")


def _own(root: Path) -> bool:
    """Make the folder, or see that it is this user's alone. False where it cannot be made."""
    try:
        for part in (*reversed(root.parents), root):
            if part.is_symlink():
                real = f"KVLAYOUT_CACHE={os.path.realpath(root)}"
                raise _refused(root, "the kernel cache is reached through a symlink", real, str(part))
        root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        _mine(root)
    except OSError as error:
        _not_kept(root, error.strerror)
        return False
    return True


def _mine(path: Path) -> None:
    found = os.lstat(path)
    text, expected, got = "", "", str(path)
    if not stat.S_ISDIR(found.st_mode):
        text, expected = "the kernel cache is no folder", "a folder"
    elif hasattr(os, "getuid") and found.st_uid != os.getuid():
        text, expected = "the kernel cache belongs to another user", f"a folder of user {os.getuid()}"
        got += f" of user {found.st_uid}"
    elif hasattr(os, "getuid") and found.st_mode & 0o022:
        text, expected = "others may write to the kernel cache", "mode 0700 (chmod 700)"
        got += f" with mode {stat.S_IMODE(found.st_mode):04o}"
    if text:
        raise _refused(path, text, expected, got)


def _refused(path: Path, text: str, expected: str, got: str) -> KvLayoutError:
    return KvLayoutError(problem("KVL651", str(path), text, expected=expected, got=got))


def _kept(name: str, key: str, entry: Path) -> Any:
    """The dispatcher of an entry; None where there is none, or not one that numba takes."""
    source = _checked(entry, key)
    if source is None:
        return None
    try:
        found = _compile(name, key, source, entry / _SOURCE)
    except OSError:  # another process is replacing the entry
        return None
    return found if found.stats.cache_hits else None


def _checked(entry: Path, key: str) -> str | None:
    """The source of an entry whose every file is as its manifest says; None for anything else."""
    try:
        _mine(entry)
        files = _files(entry)
        if json.loads(files.pop(_MANIFEST)) != _manifest(key, files):
            return None
        return files[_SOURCE].decode()
    except (OSError, ValueError, KeyError, RecursionError):
        return None


def _manifest(key: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {"key": key, "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}}


def _files(entry: Path) -> dict[str, bytes]:
    """What an entry holds, by relative path. OSError for anything but plain files in the folders that belong there."""
    held = {}
    for path in (*entry.iterdir(), *(entry / _NUMBA).iterdir()):
        found = os.lstat(path)
        if path == entry / _NUMBA and stat.S_ISDIR(found.st_mode):
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE:
            raise OSError(0, "not a plain file", str(path))
        held[path.relative_to(entry).as_posix()] = path.read_bytes()
    return held


def _publish(name: str, key: str, source: str, entry: Path) -> Any:
    """Compile in a folder of our own and rename it into place. None where nothing can be written."""
    dispatcher = building = None
    try:
        _sweep(entry.parent)
        building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=entry.parent))  # mode 0700
        (building / _SOURCE).write_bytes(source.encode())
        dispatcher = _compile(name, key, source, building / _SOURCE)
        manifest = _manifest(key, _files(building))
        (building / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        _rename(building, entry, key)
    except OSError as error:
        _not_kept(entry.parent, error.strerror)
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
    return dispatcher


def _rename(building: Path, entry: Path, key: str) -> None:
    """Put a finished entry in its place, unless another process was first; what is broken there is moved away."""
    for _ in range(8):
        try:
            os.rename(building, entry)
            return
        except OSError:
            if not os.path.lexists(entry):
                raise
        if _checked(entry, key) is not None:
            return
        trash = entry.parent / f"{_TRASH}{uuid4().hex}"
        with suppress(FileNotFoundError):  # another process moved it away
            os.rename(entry, trash)
        shutil.rmtree(trash, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes left that ended while they were building; the folder may hold other things of its user."""
    for path in (*root.glob(f"{_BUILDING}*"), *root.glob(f"{_TRASH}*")):
        with suppress(FileNotFoundError):
            if time.time() - os.lstat(path).st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)


def _compile(name: str, key: str, source: str, path: Path | None) -> Any:
    """numba's dispatcher of a module's `move`, compiled or loaded. With a path, numba keeps machine code beside it.

    The source is executed from memory, so that no bytecode file is ever read. Machine code names its module and asks
    for it when it is loaded, so the module is made known; the key keeps two kernels from having symbols in common.
    """
    import numba

    module = ModuleType(f"kvlayout_kernel_{name}_{key[:32]}")
    sys.modules[module.__name__] = module
    scope = module.__dict__
    exec(compile(source, str(path or f"<kvlayout kernel {name}>"), "exec"), scope)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    dispatcher = None
    if path is not None:
        with _numba_keeps_beside_source(), suppress(RuntimeError):  # numba found no place that it may write to
            dispatcher = numba.njit(cache=True, **options)(scope["move"])
    # Elsewhere there may be files that no manifest covers.
    if dispatcher is None or path is None or Path(dispatcher.stats.cache_path) != path.parent / _NUMBA:
        dispatcher = numba.njit(**options)(scope["move"])
    dispatcher.compile(scope["SIGNATURE"])
    dispatcher.disable_compile()  # a call with other types would look for them in files unchecked, and add some
    return dispatcher


@contextmanager
def _numba_keeps_beside_source() -> Iterator[None]:
    """No setting of the user moves numba's files to a folder that is not checked."""
    from numba import config

    names = ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")
    with _decorating:
        before = {name: getattr(config, name) for name in names if hasattr(config, name)}
        for name in before:
            setattr(config, name, "InTreeCacheLocator" if name == "CACHE_LOCATOR_CLASSES" else "")
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(config, name, value)
