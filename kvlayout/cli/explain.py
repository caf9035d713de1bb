"""`kvlayout explain`: the page of a rule."""

from __future__ import annotations

import click

__all__ = ["explain_command"]


@click.command("explain")
@click.argument("code")
@click.argument("files", nargs=-1, type=click.Path())
def explain_command(code: str, files: tuple[str, ...]) -> int:
    """Print what rule CODE means and what to change.

    Rules that your own formats declare are looked up in FILES.
    """
    from kvlayout.cli.sweep import files_of, kind_of
    from kvlayout.spec.explain import explain
    from kvlayout.spec.formats import load_format
    from kvlayout.spec.model import load_spec

    formats = []
    for path in files_of(files) if files else []:
        if kind_of(path) == "format":
            formats.append(load_format(path))
        elif kind_of(path) == "model":
            formats += (group.format for group in load_spec(path).groups)
    text = explain(code.upper() if code[:3].upper() == "KVL" else code, formats)
    if text is None:
        hint = "" if files else f"; a code of your own: kvlayout explain {code} FILE, with the file that declares it"
        raise click.UsageError(f"there is no rule {code}{hint}")
    click.echo(text)
    return 0
