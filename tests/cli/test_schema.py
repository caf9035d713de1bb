"""The committed JSON schemas are what the code generates, and they accept what is shipped."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from kvlayout.cli.schema import SCHEMAS, schema_of
from kvlayout.data import specs_dir

SPECS = sorted(path for kind in ("formats", "models", "engines") for path in (specs_dir() / kind).glob("*.yaml"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_committed_schema_is_generated(name: str) -> None:
    committed = json.loads((specs_dir() / "schema" / f"{name}.json").read_text())
    assert committed == schema_of(name), "run .ci/regenerate"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_schema_accepts_shipped_specs(path: Path) -> None:
    schema = schema_of(path.parent.name.removesuffix("s"))
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("format", {"kvlayout": 1, "format": "f", "source": "s", "page": {"feld": "k"}}),
        ("format", {"kvlayout": 1, "format": "f", "source": "s"}),
        ("model", {"kvlayout": 1, "model": "m", "source": "s", "groups": {"a": {"layers": "some", "format": "gqa"}}}),
        ("engine", {"kvlayout": 1, "engine": "e", "tp": "two"}),
    ],
)
def test_schema_refuses_what_the_loader_refuses(kind: str, broken: dict[str, object]) -> None:
    assert not jsonschema.Draft202012Validator(schema_of(kind)).is_valid(broken)
