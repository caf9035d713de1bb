"""The YAML of an imported model: what a person would have written, with the field behind every value beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap

from kvlayout.spec.importers.document import Fact
from kvlayout.spec.importers.groups import Group

__all__ = ["model_text"]

WIDTH = 120
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def model_text(
    name: str,
    model_type: str,
    num_layers: Fact[int],
    groups: Sequence[Group],
    used: Sequence[str],
    notes: Sequence[str],
) -> str:
    """A model spec as text. `used`: the fields of the config; `notes`: sentences at the top."""
    fields = f"config.json of model_type {model_type}, fields {', '.join(used)}"
    lines = ["# Written by `kvlayout init` from a config.json. A comment names the field that a value comes from."]
    lines += [f"# {line}" for note in notes for line in wrap(note, WIDTH - 2)]
    lines += ["kvlayout: 1", f"model: {_quoted(name)}", "source: >-"]
    lines += [f"  {line}" for line in wrap(fields, WIDTH - 2, break_long_words=False, break_on_hyphens=False)]
    lines += _aligned([(f"num_layers: {num_layers.value}", num_layers.origin)])
    lines.append("groups:")
    counted = _counted(groups, num_layers.value)
    for group in groups:
        lines += _group(group, num_layers.value, group.name == counted)
    return "\n".join(lines) + "\n"


def _group(group: Group, total: int, counted: bool) -> list[str]:
    layers = str(len(group.layers)) if counted else _layers(group.layers, total)
    rows: list[tuple[str, str]] = [(f"    format: {group.format}", "")]
    if len(layers) <= 60:
        rows.append((f"    layers: {layers}", group.kinds))
    else:
        rows += [(f"    layers:  # {group.kinds}", "")]
        rows += [(f"      {line}", "") for line in wrap(layers, WIDTH - 6)]
    for word, fact in (("block", group.block), ("window", group.window)):
        if fact is not None:
            rows.append((f"    {word}: {fact.value}", fact.origin))
    if group.params:
        rows.append(("    params:", ""))
    rows += [(f"      {key}: {fact.value}", fact.origin) for key, fact in group.params.items()]
    head = [f"  # {line}" for line in wrap(group.note, WIDTH - 4)]
    return [*head, f"  {group.name}:", *_aligned(rows)]


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Comments in one column."""
    column = max((len(text) for text, comment in rows if comment), default=0)
    return [f"{text:{column}}  # {comment}" if comment else text for text, comment in rows]


def _layers(layers: tuple[int, ...], total: int) -> str:
    """Layers as short as they can be said.

    >>> _layers((3, 7, 11), 12), _layers((0, 1), 2), _layers((0, 1, 5), 9)
    ('{from: 3, every: 4, count: 3}', 'all', '[0, 1, 5]')
    """
    if len(layers) == total:
        return "all"
    steps = {later - layer for layer, later in pairwise(layers)}
    if len(layers) > 2 and len(steps) == 1:
        every = steps.pop()
        step = f"every: {every}, " if every > 1 else ""
        return f"{{from: {layers[0]}, {step}count: {len(layers)}}}"
    return f"[{', '.join(map(str, layers))}]"


def _counted(groups: Sequence[Group], total: int) -> str | None:
    """The group whose layers are said by their number: the largest, where groups share out all layers."""
    layers = [layer for group in groups for layer in group.layers]
    if len(groups) < 2 or len(layers) != total or len(set(layers)) != total:
        return None
    largest = max(groups, key=lambda group: len(group.layers))
    return None if _layers(largest.layers, total).startswith("{") else largest.name


def _quoted(text: str) -> str:
    plain = _PLAIN_TEXT.fullmatch(text) and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
