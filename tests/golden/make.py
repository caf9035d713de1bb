"""Writes the goldens: the page of every shipped format and model as text, to be reviewed like code, the sources of
kernels (codegen/golden), and docs/rules.md.

A format's golden is the page tree of each of its examples on a few engines; a model's is what `kvlayout show` prints;
the page of rules is rendered from the registry. `python tests/golden/make.py` rewrites all of them; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import jinja2

from kvlayout.data import specs_dir, templates_dir
from kvlayout.emit.kernels import render
from kvlayout.emit.tables import DESCRIBING, SHAPES
from kvlayout.errors import PlanRefused
from kvlayout.ir import tree_text
from kvlayout.rules import RULES
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import load_spec, parallel_of, spec_of_format
from kvlayout.view import page_text

HERE = Path(__file__).parent
RULES_PAGE = HERE.parent.parent / "docs" / "rules.md"
KERNEL_RUNS = ("lines", "stream")
"""One kind of run with ordinary stores, and one that streams; a kernel of another kind differs in the name alone. Those
that describe runs stand for themselves."""
KERNELS = HERE.parent.parent / "codegen" / "golden"
RANGES = {
    "KVL0": "Files and YAML",
    "KVL1": "Specs: expressions, axes, pages, models, engines",
    "KVL2": "Sides that no engine can load",
    "KVL3": "Proofs",
    "KVL4": "Artifacts",
    "KVL5": "Pairs that do not convert",
    "KVL6": "Moves: buffers, block tables and kernels",
    "KVL7": "Engines that are read from their own objects",
}
FORMAT_ENGINES = ("tp=1", "tp=2,order=LBNHC,conv=SD,spec_tokens=2")


def goldens() -> Iterator[tuple[Path, str]]:
    """Every golden as (file, text)."""
    for path in sorted((specs_dir() / "formats").glob("*.yaml")):
        yield HERE / "formats" / f"{path.stem}.txt", format_golden(path)
    for path in sorted((specs_dir() / "models").glob("*.yaml")):
        yield HERE / "models" / f"{path.stem}.txt", model_golden(path)
    for run in KERNEL_RUNS:
        for shape in SHAPES:
            if shape.run == run:
                yield KERNELS / f"{shape.name}.py", render(shape)
    for shape in DESCRIBING:
        yield KERNELS / f"{shape.name}.py", render(shape)
    yield RULES_PAGE, rules_page()


def rules_page() -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    formats = [load_format(path) for path in sorted((specs_dir() / "formats").glob("*.yaml"))]
    requirements = {
        (each.code, fmt.name): {"code": each.code, "format": fmt.name, "say": each.say, "that": each.that.text}
        for fmt in formats
        for each in fmt.file.require
    }
    return environment.get_template("rules.md.j2").render(
        ranges=[
            {"title": title, "rules": [rule for code, rule in RULES.items() if code.startswith(prefix)]}
            for prefix, title in RANGES.items()
        ],
        requirements=[requirements[key] for key in sorted(requirements)],
    )


def format_golden(path: Path) -> str:
    fmt = load_format(path)
    parts = []
    for example in fmt.file.examples:
        spec = spec_of_format(fmt, example, path.name)
        for engine in map(Engine.parse, FORMAT_ENGINES):
            params = " ".join(f"{name}={value}" for name, value in example.items())
            try:
                shown = tree_text(spec.page(spec.groups[0], engine).tree)
            except PlanRefused as refused:
                shown = f"unloadable: {refused.problems[0].code}"
            parts.append(f"# {params}\n# on {engine}\n{shown}\n")
    return "\n".join(parts)


def model_golden(path: Path) -> str:
    spec = load_spec(path)
    sizes = spec.tp or (1, 8)
    parts = [f"{spec.name}, {spec.num_layers} layers\n"]
    for engine in (Engine(tp=sizes[0]), Engine(tp=sizes[-1], order="LBNHC")):
        parallel = parallel_of(spec, engine)
        parts.append(f"# on {engine}")
        parts += (
            f"{page_text(group.name, spec.page(group, engine), parallel)}\n  layers {_layers(group.layers)}\n"
            for group in spec.groups
        )
    return "\n".join(parts)


def _layers(layers: tuple[int, ...]) -> str:
    """Layers in a line: equal steps as `first, second ... last`, others one by one, neighbours as `first-last`."""
    steps = {later - layer for layer, later in pairwise(layers)}
    if len(layers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{layers[0]}, {layers[1]} ... {layers[-1]}"
    rows = [list(row) for _, row in groupby(enumerate(layers), lambda each: each[1] - each[0])]
    return ", ".join(str(row[0][1]) if len(row) == 1 else f"{row[0][1]}-{row[-1][1]}" for row in rows)


if __name__ == "__main__":
    for target, text in goldens():
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
