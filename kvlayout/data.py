"""Where the data that travels with the package lies.

The formats, models and engines are files, not modules: people read them, copy them and write more of them. In the
repository they stand beside the package (`specs/`); a wheel carries them inside it (`kvlayout/_data/specs/`). Which of
the two holds is decided here and nowhere else, from the place of this very file, so that a wheel, an editable install
and a checkout that is merely on `sys.path` all give the same answer.

Two places and no more. The checkout is looked at first: an editable install runs from it and has no copy inside.
`importlib.resources` would not find it there, and a folder beside the package proves nothing in `site-packages`, where
anyone may install one; hence the look at whose `pyproject.toml` it is. Cost: one small file read, once per process.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

__all__ = ["specs_dir", "templates_dir"]


@functools.cache
def specs_dir() -> Path:
    """The folder with the shipped `formats/`, `models/` and `engines/`.

    Raises `FileNotFoundError` when this copy of kvlayout came without them.

    >>> (specs_dir() / "formats").is_dir()
    True
    """
    return _folder("specs")


@functools.cache
def templates_dir() -> Path:
    """The folder with the Jinja2 templates of generated files. Raises `FileNotFoundError` as `specs_dir` does.

    >>> (templates_dir() / "rules.md.j2").is_file()
    True
    """
    return _folder("codegen") / "templates"


def _folder(name: str) -> Path:
    package = Path(__file__).resolve().parent
    places = [package / "_data" / name]
    if _is_checkout(package.parent):
        places.insert(0, package.parent / name)
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places)
    raise FileNotFoundError(f"this copy of kvlayout has no {name} folder (looked at {looked}); install it again")


def _is_checkout(folder: Path) -> bool:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    match project:
        case {"project": {"name": "kvlayout"}}:
            return True
    return False
