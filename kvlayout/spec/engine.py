"""Engines: one side of a transfer, as a string, a YAML file or keywords.

An engine is a handful of words (parallel sizes, block size, order, orientation, cache dtype) and overrides of single
groups. Words have one canonical spelling, so that equal engines print alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvlayout.errors import Problem, SpecError, problem

__all__ = ["FAMILIES", "ORDERS", "Engine"]

ORDERS: dict[str, str] = {
    "LBHNC": "LBHNC", "BLHNC": "LBHNC", "HND": "LBHNC", "LBNHC": "LBNHC", "BLNHC": "LBNHC", "NHD": "LBNHC",
}  # fmt: skip
"""What each order is printed as: the layer and block axes lie in strides, not in pages."""

FAMILIES = ("plain",)

_INTEGERS = {"tp": 1, "pp": 1, "dcp": 1, "pcp": 1, "interleave": 1, "block": 1, "spec_tokens": 0, "page": 1}
_LIMITS = {"tp": 4096, "pp": 4096, "dcp": 4096, "pcp": 4096, "spec_tokens": 2**20}
MAX_INTEGER = 2**40
OVERRIDABLE = ("format", "block", "order", "conv", "page", "spec_tokens")


@dataclass(frozen=True)
class Engine:
    """One side of a transfer.

    `tp`, `pp`, `dcp`, `pcp`: parallel sizes. `interleave`: consecutive tokens that one context-parallel rank takes.
    `stages`: layers per pipeline stage (`12+12+8`). `block`: tokens per block; None means 16, or what a group says.
    `order`: LBHNC (heads outside tokens) or LBNHC. `conv`: DS or SD. `spec_tokens`: speculative tokens, which
    lengthen convolution windows. `page`: final bytes of a page on a rank. `family`: an engine family's own size
    rules. `kv_dtype`: the engine's cache dtype word. `groups`: overrides by group, as `{"attention": {"block": 64}}`;
    a keyword with a dot, `Engine(**{"attention.block": 64})`, is the same.

    Raises SpecError for a word or a value that no engine has.
    """

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    interleave: int = 1
    stages: str | None = None
    block: int | None = None
    order: str = "LBHNC"
    conv: str = "DS"
    spec_tokens: int = 0
    page: int | None = None
    family: str = "plain"
    kv_dtype: str = "auto"
    groups: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)

    def __init__(self, **words: Any) -> None:
        groups: dict[str, dict[str, int | str]] = {
            name: dict(overrides) for name, overrides in dict(words.pop("groups", None) or {}).items()
        }
        where = words.pop("where", "engine")
        known = {each.name: each.default for each in fields(self) if each.name != "groups"}
        problems: list[Problem] = []
        for word, value in words.items():
            if "." in word:
                group, _, name = word.partition(".")
                groups.setdefault(group, {})[name] = value
            elif word not in known:
                problems.append(
                    problem("KVL151", where, f"an engine has no word '{word}'", expected=f"one of {', '.join(known)}")
                )
            else:
                known[word] = value
        _canonical(known, where, problems)
        for group, overrides in groups.items():
            _canonical_overrides(group, overrides, where, problems)
        if problems:
            raise SpecError(problems)
        for name, value in known.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "groups", groups)

    def __hash__(self) -> int:
        return hash(str(self))

    @classmethod
    def parse(cls, text: str) -> Engine:
        """An engine from `key=value,...`, as `tp=4,order=NHD,attention.block=64`."""
        words: dict[str, int | str] = {}
        for part in text.split(",") if text.strip() else []:
            key, equals, value = part.strip().partition("=")
            if not equals or not key or not value:
                raise SpecError(
                    problem(
                        "KVL152", f"engine '{text}'", f"'{part.strip()}' is no word", expected="key=value,key=value"
                    )
                )
            if key in words or key in ("groups", "where"):
                raise SpecError(
                    problem("KVL152", f"engine '{text}'", f"'{key}' cannot be given here, or is given twice")
                )
            words[key] = _scalar(value)
        return cls(where=f"engine '{text}'", **words)

    @classmethod
    def read(cls, argument: str | os.PathLike[str]) -> Engine:
        """An engine from an argument of the command line: a string when it holds `=`, otherwise the path of a file."""
        text = os.fspath(argument)
        return cls.parse(text) if "=" in text else cls.load(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Engine:
        """An engine from a YAML file."""
        from kvlayout.spec.grammar import EngineFile
        from kvlayout.spec.source import read_source
        from kvlayout.spec.validate import validated

        source = read_source(Path(path))
        file = validated(EngineFile, source)
        words: dict[str, Any] = {
            name: value
            for name, value in file.model_dump().items()
            if name not in ("kvlayout", "engine") and value is not None
        }
        words["groups"] = {name: words.pop(name) for name in file.model_extra or {}}
        if isinstance(words.get("stages"), int):
            words["stages"] = str(words["stages"])
        return cls(where=source.path, **words)

    def for_group(self, name: str) -> dict[str, int | str]:
        """What this engine overrides of a group."""
        return dict(self.groups.get(name, {}))

    def stage_layers(self, num_layers: int) -> tuple[int, ...]:
        """Layers per pipeline stage; the default is even, with the remainder to the first stages."""
        if self.stages is not None:
            return tuple(int(part) for part in self.stages.split("+"))
        share, rest = divmod(num_layers, self.pp)
        return tuple(share + (stage < rest) for stage in range(self.pp))

    def __str__(self) -> str:
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "groups" and (each.name == "tp" or value != each.default):
                words.append(f"{each.name}={value}")
        for group in sorted(self.groups):
            words += [f"{group}.{name}={value}" for name, value in sorted(self.groups[group].items())]
        return ",".join(words)


def _scalar(text: str) -> int | str:
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= 20
    return int(text) if plain and (digits == "0" or digits[0] != "0") else text


def _canonical(words: dict[str, Any], where: str, problems: list[Problem]) -> None:
    """Check the values of all words in place and bring them to their canonical spelling."""
    for name, low in _INTEGERS.items():
        value, high = words[name], _LIMITS.get(name, MAX_INTEGER)
        if value is None and name in ("block", "page"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            problems.append(_value(where, name, value, f"an integer from {low} to {high}"))
    for name, legal in (("order", ORDERS), ("conv", {"DS": "DS", "SD": "SD"}), ("family", dict.fromkeys(FAMILIES))):
        value = words[name]
        if not isinstance(value, str) or value not in legal:
            extra = " (others put heads outside the page)" if name == "order" else ""
            problems.append(_value(where, name, value, f"one of {', '.join(legal)}{extra}"))
        elif name == "order":
            words[name] = ORDERS[value]
    if not isinstance(words["kv_dtype"], str):
        problems.append(_value(where, "kv_dtype", words["kv_dtype"], "a cache dtype word"))
    _canonical_stages(words, where, problems)


def _canonical_stages(words: dict[str, Any], where: str, problems: list[Problem]) -> None:
    stages = words["stages"]
    if stages is None:
        return
    parts = str(stages).split("+")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= 6 and int(part) > 0 for part in parts):
        problems.append(_value(where, "stages", stages, "layers per stage, as 12+12+8"))
        return
    words["stages"] = "+".join(str(int(part)) for part in parts)
    if words["pp"] == 1:
        words["pp"] = len(parts)
    elif words["pp"] != len(parts):
        problems.append(_value(where, "stages", stages, f"{words['pp']} stages, as pp says"))


def _canonical_overrides(group: str, overrides: dict[str, int | str], where: str, problems: list[Problem]) -> None:
    for name, value in overrides.items():
        subject = f"{group}.{name}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            problems.append(_value(where, subject, value, "an integer or a word"))
        elif name in _INTEGERS and name in OVERRIDABLE:
            if not isinstance(value, int) or not _INTEGERS[name] <= value <= MAX_INTEGER:
                problems.append(_value(where, subject, value, f"an integer from {_INTEGERS[name]}"))
        elif name == "order":
            if value not in ORDERS:
                problems.append(_value(where, subject, value, f"one of {', '.join(ORDERS)}"))
            else:
                overrides[name] = ORDERS[str(value)]
        elif name == "conv" and value not in ("DS", "SD"):
            problems.append(_value(where, subject, value, "DS or SD"))


def _value(where: str, name: str, value: object, expected: str) -> Problem:
    shown = str(value)
    return problem(
        "KVL153", where, f"'{name}'", expected=expected, got=shown if len(shown) <= 60 else shown[:57] + "..."
    )
