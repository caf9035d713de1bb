"""Writes the goldens: the page of every shipped format and model as text, to be reviewed like code.

A format's golden is the page tree of each of its examples on a few engines; a model's is what `kvlayout show` prints.
`python tests/golden/make.py` rewrites all of them; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused
from kvlayout.ir import tree_text
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import load_spec, parallel_of, spec_of_format
from kvlayout.view import page_text

HERE = Path(__file__).parent
FORMAT_ENGINES = ("tp=1", "tp=2,order=LBNHC,conv=SD,spec_tokens=2")


def goldens() -> Iterator[tuple[Path, str]]:
    """Every golden as (file, text)."""
    for path in sorted((specs_dir() / "formats").glob("*.yaml")):
        yield HERE / "formats" / f"{path.stem}.txt", format_golden(path)
    for path in sorted((specs_dir() / "models").glob("*.yaml")):
        yield HERE / "models" / f"{path.stem}.txt", model_golden(path)


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
    return ", ".join(str(layer) for layer in layers)


if __name__ == "__main__":
    for target, text in goldens():
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
