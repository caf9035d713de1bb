"""Writes the tables of docs/formats.md, which stand between two comments, from the shipped formats.

`python tests/golden/formats_page.py` rewrites them in place; a test compares. The text around them is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvlayout.errors import PlanRefused
from kvlayout.ir import leaves
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import Format, load_format, shipped_formats
from kvlayout.spec.model import spec_of_format

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "formats.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
HEAD = "| format | is | fields | split by | source |\n| --- | --- | --- | --- | --- |\n"
FIRST_SENTENCE = re.compile(r"(?<=[a-z0-9)])\.(?: |$)")


def tables() -> str:
    """vLLM's pages of tokens, its states and rings, and SGLang's, a table each."""
    formats = [load_format(path) for _, path in sorted(shipped_formats().items())]
    sglang = [fmt for fmt in formats if fmt.file.source.startswith("SGLang")]
    grows = {fmt.name for fmt in formats if any(axis.grows for axis in fmt.file.axes.values())}
    rest = [fmt for fmt in formats if fmt not in sglang]
    parts = [
        ("vLLM: pages of tokens", [fmt for fmt in rest if fmt.name in grows]),
        ("vLLM: states and rings", [fmt for fmt in rest if fmt.name not in grows]),
        ("SGLang", sglang),
    ]
    return "\n".join(f"### {title}\n\n{HEAD}" + "".join(map(_row, found)) for title, found in parts)


def page(text: str) -> str:
    """The page with its tables written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _row(fmt: Format) -> str:
    text = shipped_formats()[fmt.name].read_text(encoding="utf-8").split("kvlayout: 1")[0]
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines())
    axes = fmt.file.axes.items()
    split = [f"{shard}: {', '.join(names)}" for shard in ("tp", "cp")
             if (names := [name for name, axis in axes if axis.shard == shard])]  # fmt: skip
    cells = [
        f"[`{fmt.name}`](../specs/formats/{fmt.name}.yaml)",
        FIRST_SENTENCE.split(comment, 1)[0],
        ", ".join(_fields(fmt)),
        "; ".join(split) or "nothing",
        fmt.file.source,
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _fields(fmt: Format) -> list[str]:
    """The fields of all examples, in the order of their bytes."""
    found: dict[str, None] = {}
    for example in fmt.file.examples:
        spec = spec_of_format(fmt, example, fmt.name)
        try:
            tree = spec.page(spec.groups[0], Engine()).tree
        except PlanRefused:
            continue
        found |= dict.fromkeys(leaf.field for leaf in leaves(tree))
    return list(found)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
