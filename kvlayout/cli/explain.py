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
    from kvlayout.spec.explain import explain
    from kvlayout.spec.formats import load_format

    text = explain(code.upper() if code[:3].upper() == "KVL" else code, [load_format(file) for file in files])
    if text is None:
        raise click.UsageError(f"there is no rule {code}; codes look like KVL301, or X... in a format of your own")
    click.echo(text)
    return 0
