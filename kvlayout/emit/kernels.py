"""Kernels by shape: rendered from the template, compiled by numba once a machine, loaded once a process."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Lock

from kvlayout.data import templates_dir
from kvlayout.emit.tables import JOB, LANES, ROW, Shape

__all__ = ["TEMPLATE", "Kernel", "kernel_of", "render"]

TEMPLATE = "kernel.py.j2"

Kernel = Callable[[int, int, int], None]
"""`kernel(job, first, last)`: executes the job at an address for units [first, last), without the GIL."""

_LOOPS = {"1": "one loop", "2": "two loops", "deep": "three loops or more"}
_JOB_WORDS = ("rows", "rows_end", "row_bytes")
_ROW_WORDS = ("nbytes", "count", "src_step", "dst_step", "outer", "outer_src_step", "outer_dst_step", "rounds")
_USED = {"1": 4, "2": 7, "deep": 8}


_loaded: dict[Shape, Kernel] = {}
_loading = Lock()


def kernel_of(shape: Shape) -> Kernel:
    """The compiled kernel of a shape. Threads that ask at once wait for one of them."""
    from kvlayout.emit.cache import load

    if shape not in _loaded:
        with _loading:
            if shape not in _loaded:
                _loaded[shape] = load(shape.name, _key(shape), lambda: render(shape))
    return _loaded[shape]


def render(shape: Shape) -> str:
    """The source of the kernel of a shape."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    describes = shape.run == "describe"
    words = [(name.upper(), JOB.index(name)) for name in (*_JOB_WORDS, *(["out"] if describes else []))]
    words += [(name.upper(), ROW.index(name)) for name in _ROW_WORDS[: _USED[shape.depth]]]
    deep = ["begin"] if shape.depth == "deep" else []
    imports = sorted(["place", "scratch", "word", *deep, *(["fence"] * shape.streams), *(["describe"] * describes)])
    return environment.get_template(TEMPLATE).render(
        shape=shape,
        streams=shape.streams,
        describes=describes,
        loops=_LOOPS[shape.depth],
        lanes=LANES,
        words=words,
        imports=imports,
    )


def _key(shape: Shape) -> str:
    """SHA-256 of all that decides the machine code: what is rendered, what it calls, who compiles it, and for which
    CPU."""
    digest = hashlib.sha256(repr((shape, _compiler())).encode())
    digest.update(_sources())
    return digest.hexdigest()


@cache
def _compiler() -> tuple[str, ...]:
    from numba import config

    from kvlayout.emit.target import host_name

    settings = (f"{name} {getattr(config, name, None)}" for name in ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT"))
    versions = (f"{name} {metadata.version(name)}" for name in ("numba", "llvmlite", "jinja2"))
    return (*versions, *settings, platform.python_implementation(), platform.python_version(), *host_name())


@cache
def _sources() -> bytes:
    here, names = Path(__file__).parent, ("cache", "kernels", "lines", "primitives", "tables", "target")
    files = [templates_dir() / TEMPLATE, *(here / f"{name}.py" for name in names)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).digest()
