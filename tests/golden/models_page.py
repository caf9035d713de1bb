"""Writes the table of docs/models.md, which stands between two comments, from the shipped models and their configs.

`python tests/golden/models_page.py` rewrites it in place; a test compares. The text around it is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvlayout.data import specs_dir
from kvlayout.ir import canonical_json
from kvlayout.spec.engine import Engine
from kvlayout.spec.model import CacheGroup, Spec, load_spec

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "models.md"
CONFIGS = ROOT / "tests" / "importers" / "configs"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
HEAD = "| model | groups: layers, format, parameters | bytes a layer | tp | numbers from |\n" + "| --- " * 5 + "|\n"
MODELS = sorted((specs_dir() / "models").glob("*.yaml"))


def trees(paths: list[Path]) -> set[str]:
    """The distinct page trees of models on one rank."""
    specs = [load_spec(path) for path in paths]
    return {canonical_json(spec.page(group, _engine(spec)).tree) for spec in specs for group in spec.groups}


def table() -> str:
    found = f"{len(MODELS)} models with {len(trees(MODELS))} different page trees.\n\n"
    return found + HEAD + "".join(_row(path, load_spec(path)) for path in MODELS)


def page(text: str) -> str:
    """The page with its table written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _engine(spec: Spec) -> Engine:
    return Engine(tp=spec.tp[0] if spec.tp else 1)


def _row(path: Path, spec: Spec) -> str:
    config = json.loads((CONFIGS / f"{path.stem}.json").read_text(encoding="utf-8"))
    said = str(config["_source"]).split(";")[0].removeprefix("restated from ")
    cells = [
        f"[{spec.name}](../specs/models/{path.name})",
        "<br>".join(_group(group, spec.num_layers) for group in spec.groups),
        "<br>".join(_nbytes(spec, group) for group in spec.groups),
        ", ".join(map(str, spec.tp or (1, 2, 4, 8))),
        said,
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _group(group: CacheGroup, num_layers: int) -> str:
    layers = f"all {num_layers}" if len(group.layers) == num_layers else f"{len(group.layers)} of {num_layers}"
    params = ", ".join(f"{name} {value}" for name, value in group.params.items())
    window = "" if group.window is None else f"; window {group.window}"
    return f"`{group.name}`: {layers}, `{group.format.name}`{': ' if params else ''}{params}{window}"


def _nbytes(spec: Spec, group: CacheGroup) -> str:
    """Bytes of a token where tokens have bytes of their own, else of a page."""
    page = spec.page(group, _engine(spec))
    if page.block is None:
        return f"{page.nbytes}"
    per_token, rest = divmod(page.nbytes, page.block)
    return f"{page.nbytes} for {page.block} tokens" if rest else f"{per_token} a token"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
