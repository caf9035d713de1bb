"""Engines: one side of a transfer, as a string, a YAML file or keywords.

An engine is a handful of words (parallel sizes, block size, order, orientation, cache dtype) and overrides of single
groups. Words have one canonical spelling, so that equal engines print alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvlayout.errors import Problem, SpecError, one_of, problem, shown

__all__ = ["FAMILIES", "ORDERS", "Engine"]

ORDERS: dict[str, str] = {
    "LBHNC": "LBHNC", "BLHNC": "LBHNC", "HND": "LBHNC", "LBNHC": "LBNHC", "BLNHC": "LBNHC", "NHD": "LBNHC",
}  # fmt: skip
"""What each order is printed as: the layer and block axes lie in strides, not in pages."""

FAMILIES: dict[str, dict[str, str]] = {"plain": {}, "vllm@0.32": {}, "sglang@0.5": {"order": "LBNHC"}}
"""The families, and the words whose default is another one than that of `Engine`."""

COMPUTING = ("vllm@0.32",)
"""Families that compute blocks and pages, so that nobody may name them."""

_INTEGERS = {
    "tp": 1, "pp": 1, "dcp": 1, "pcp": 1, "interleave": 1, "block": 1, "kernel_block": 1, "spec_tokens": 0,
    "page": 1,
}  # fmt: skip
_OPTIONAL = ("block", "kernel_block", "page")
MAX_INTEGER = 2**40
MAX_RANKS = 4096
"""Ranks of one pipeline stage (tp * pcp), which all have moves of their own in a plan."""

MAX_CP = 256
"""Ranks that deal out tokens among themselves (pcp * dcp): each may hold tokens that each of the other side needs."""

MAX_TEXT = 10_000
_LIMITS = {"tp": 4096, "pp": 4096, "dcp": MAX_CP, "pcp": MAX_CP, "spec_tokens": 2**20}
_MAX_VALUE = 2**62
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
DEFAULT_BLOCK = 16
"""Tokens a block where neither the engine nor the group says so."""

OVERRIDABLE = ("format", "block", "kernel_block", "order", "conv", "page", "spec_tokens")
_CHOICES: dict[str, dict[str, str]] = {
    "order": ORDERS, "conv": {"DS": "DS", "SD": "SD"}, "family": {name: name for name in FAMILIES},
}  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """One side of a transfer.

    `tp`, `pp`, `dcp`, `pcp`: parallel sizes. `interleave`: consecutive tokens that one context-parallel rank takes.
    `stages`: layers per pipeline stage (`12+12+8`). `block`: tokens per block; None means 16, or what a group says.
    `kernel_block`: tokens of the tiles that a block's page is made of, where kernels index smaller blocks than the
    block manager; None means the block itself.
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
    kernel_block: int | None = None
    order: str = "LBHNC"
    conv: str = "DS"
    spec_tokens: int = 0
    page: int | None = None
    family: str = "plain"
    kv_dtype: str = "auto"
    groups: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)

    def __init__(self, /, **words: Any) -> None:
        where = words.pop("where", "engine")
        check = _Check(where if callable(where) else lambda _: str(where))
        groups = check.groups(words.pop("groups", None))
        known = {each.name: each.default for each in fields(self) if each.name != "groups"}
        for word, value in words.items():
            group, dot, name = word.partition(".")
            if dot:
                groups.setdefault(group, {})[name] = value
            elif word not in known:
                check.unknown(word, known)
            else:
                known[word] = value
        check.words(known, words)
        for group, overrides in groups.items():
            check.overrides(group, overrides, known["family"])
        problems = check.problems
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
        where = f"engine '{shown(text)}'"
        if len(text) > MAX_TEXT:
            found = f"{len(text)} characters"
            raise SpecError(
                problem("KVL152", where, "the text is too long", expected=f"at most {MAX_TEXT} characters", got=found)
            )
        words: dict[str, int | str] = {}
        for part in text.split(",") if text.strip() else []:
            key, equals, value = part.strip().partition("=")
            if not equals or not key or not value:
                raise SpecError(
                    problem("KVL152", where, "a part is no word with a value", expected="key=value,key=value",
                            got=f"'{shown(part.strip())}'")
                )  # fmt: skip
            if key in words:
                raise SpecError(problem("KVL152", where, f"'{shown(key)}' is given twice"))
            if key in ("groups", "where"):  # keywords of the constructor, and no words
                raise SpecError(problem("KVL151", where, f"an engine has no word '{key}'", expected=_legal()))
            words[key] = _scalar(value)
        return cls(where=where, **words)

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
        return cls(where=lambda word: source.where(tuple(word.split("."))), **words)

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
        defaults = FAMILIES[self.family]
        for each in fields(self):
            value = getattr(self, each.name)
            default = defaults.get(each.name, each.default)
            said = value not in (None, DEFAULT_BLOCK) if each.name == "block" else value != default
            if each.name != "groups" and (each.name == "tp" or said):
                words.append(f"{each.name}={value}")
        for group in sorted(self.groups):
            words += [f"{group}.{name}={value}" for name, value in sorted(self.groups[group].items())]
        return ",".join(words)


def _scalar(text: str) -> int | str:
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= 20
    return int(text) if plain and (digits == "0" or digits[0] != "0") else text


def _legal() -> str:
    return one_of(each.name for each in fields(Engine) if each.name != "groups")


class _Check:
    """Checks the values of words and brings them to their canonical spelling, in place; gathers the problems.

    `where`: the place of a word, or of `group.word`.
    """

    def __init__(self, where: Callable[[str], str]) -> None:
        self.where = where
        self.problems: list[Problem] = []

    def groups(self, given: object) -> dict[str, dict[str, Any]]:
        """The overrides of each group, copied."""
        groups: dict[str, dict[str, Any]] = {}
        if given is None:
            return groups
        if not isinstance(given, Mapping):
            self._value("groups", given, "overrides by group, as {'attention': {'block': 64}}")
            return groups
        for name, overrides in given.items():
            if isinstance(name, str) and isinstance(overrides, Mapping):
                groups[name] = dict(overrides)
            else:
                self._value(f"groups.{shown(name)}", overrides, "a group's overrides, as {'block': 64}")
        return groups

    def unknown(self, word: str, legal: Mapping[str, object]) -> None:
        """A word that no engine has."""
        self.problems.append(
            problem("KVL151", self.where(word), f"an engine has no word '{shown(word)}'", expected=one_of(legal))
        )

    def words(self, words: dict[str, Any], given: Mapping[str, object]) -> None:
        """The words of the whole engine; `given` are those that somebody said."""
        if isinstance(words["family"], str):
            for name, default in FAMILIES.get(words["family"], {}).items():
                if name not in given:
                    words[name] = default
        for name in _INTEGERS:
            if words[name] is not None or name not in _OPTIONAL:
                self._integer(name, name, words[name])
        for name in _CHOICES:
            words[name] = self._choice(name, name, words[name])
        if not isinstance(words["kv_dtype"], str) or not _WORD.fullmatch(words["kv_dtype"]):
            self._value("kv_dtype", words["kv_dtype"], "a cache dtype word")
        self._stages(words)
        if words["family"] in COMPUTING and words["page"] is not None:
            self._value("page", words["page"], f"no page, since {words['family']} computes it")
        if words["family"] == "sglang@0.5" and words["conv"] == "SD":
            self._value("conv", "SD", "DS, since SGLang keeps convolution windows with rows inside channels")
        if not self.problems and words["tp"] * words["pcp"] > MAX_RANKS:
            self._value("pcp", words["pcp"], f"at most {MAX_RANKS} ranks in a stage, which has tp * pcp")
        if not self.problems and words["pcp"] * words["dcp"] > MAX_CP:
            self._value("dcp", words["dcp"], f"at most {MAX_CP} ranks that share tokens, pcp * dcp")

    def overrides(self, group: str, overrides: dict[Any, Any], family: object) -> None:
        """The overrides of one group."""
        for name, value in overrides.items():
            subject = f"{group}.{name}"
            if family in COMPUTING and name in ("block", "page"):
                self._value(subject, value, f"no {name} of a group, since {family} computes it")
                continue
            if not _NAME.fullmatch(group) or not isinstance(name, str) or not _NAME.fullmatch(name):
                self.problems.append(
                    problem("KVL151", self.where(subject), f"'{shown(subject)}' names no word of a group",
                            expected="a group's name, a dot and a word, as attention.block")
                )  # fmt: skip
            elif isinstance(value, bool) or not isinstance(value, int | str):
                self._value(subject, value, "an integer or a word")
            elif name in _INTEGERS and name in OVERRIDABLE:
                self._integer(subject, name, value)
            elif name in _CHOICES and name in OVERRIDABLE:
                overrides[name] = self._choice(subject, name, value)
            elif isinstance(value, int) and abs(value) > _MAX_VALUE:
                self._value(subject, value, "an integer within 2**62")
            elif isinstance(value, str) and not _WORD.fullmatch(value):
                self._value(subject, value, "a word of letters, digits, '_', '.', '+' and '-', at most 64 in all")

    def _integer(self, subject: str, name: str, value: object) -> None:
        low, high = _INTEGERS[name], _LIMITS.get(name, MAX_INTEGER)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._value(subject, value, f"an integer from {low} to {high}")

    def _choice(self, subject: str, name: str, value: object) -> object:
        legal = _CHOICES[name]
        if isinstance(value, str) and value in legal:
            return legal[value]
        more = " (others put heads outside the page)" if name == "order" else ""
        self._value(subject, value, one_of(legal) + more)
        return value

    def _stages(self, words: dict[str, Any]) -> None:
        stages = words["stages"]
        if stages is None:
            return
        text = str(stages) if isinstance(stages, int) and 0 < stages < 10**6 else stages
        parts = text.split("+") if isinstance(text, str) and len(text) <= MAX_TEXT else []
        if not parts or not all(re.fullmatch("[0-9]{1,6}", part) and int(part) for part in parts):
            self._value("stages", stages, "layers per stage, as 12+12+8")
            return
        words["stages"] = "+".join(str(int(part)) for part in parts)
        if words["pp"] == 1 and len(parts) <= _LIMITS["pp"]:
            words["pp"] = len(parts)
        elif words["pp"] != len(parts):
            most = f"at most {_LIMITS['pp']} stages" if words["pp"] == 1 else f"{words['pp']} stages, as pp says"
            self._value("stages", f"{len(parts)} stages", most)

    def _value(self, subject: str, value: object, expected: str) -> None:
        message = f"the value of '{shown(subject)}'"
        self.problems.append(problem("KVL153", self.where(subject), message, expected=expected, got=shown(value)))
