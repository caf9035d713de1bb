"""`kvlayout schema`: the JSON schemas of what people and scripts read and write."""

from __future__ import annotations

from typing import Any

import click

from kvlayout.cli.output import print_json

__all__ = ["SCHEMAS", "schema_command", "schema_of"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = ("format", "model", "engine", "plan", "verify")


@click.command("schema")
@click.argument("name", required=False, type=click.Choice(SCHEMAS))
def schema_command(name: str | None) -> int:
    """Print a JSON schema: of spec files (format, model, engine), of the artifact (plan), or of `verify --format json`.

    Without a name, all of them in one object.
    """
    print_json(schema_of(name) if name else {each: schema_of(each) for each in SCHEMAS})
    return 0


def schema_of(name: str) -> dict[str, Any]:
    """The schema of that name, generated from the models that validate."""
    if name in ("format", "model", "engine"):
        from kvlayout.spec.grammar import file_schema

        made = file_schema(name)
    else:
        import msgspec

        from kvlayout.cli.report import Report
        from kvlayout.plan.artifact import Document

        made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Document if name == "plan" else Report)))
    return {"$schema": DIALECT, "title": f"kvlayout {name}", **{k: v for k, v in made.items() if k != "title"}}
