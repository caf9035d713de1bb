"""A Hugging Face config as a place to read facts from: JSON that is bounded, and values that know where they stood.

A config is text of a stranger. It is parsed as data, never executed, nothing that it names is imported or opened, and
its size, depth and numbers are bounded before they are used. What nobody reads may be anything: real configs hold
`Infinity`, floats and lists of quantised modules. What is read must be of its kind, and a problem says where it stands
as a JSON pointer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from kvlayout.errors import SpecError, one_of, problem, shown

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_LAYERS", "Config", "Fact", "read_config"]

MAX_BYTES = 16 * 1024 * 1024
"""The largest config. Quantisers write lists of the layers that they leave out, of 3 MB in one that is published."""
MAX_DEPTH = 64
MAX_LAYERS = 100_000
MAX_NUMBER = 2**31
MAX_DIGITS = 20

T = TypeVar("T")

_TOKENS = re.compile(r'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_LINE_END = re.compile("\r\n|\r|\n")

# Fields that say much about a cache; a problem lists those that the config has.
_TELLING = (
    "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "kv_lora_rank", "qk_rope_head_dim", "sliding_window", "torch_dtype", "dtype",
)  # fmt: skip


class Fact(NamedTuple, Generic[T]):
    """A value and, in a few words, the fields of the config that it comes from."""

    value: T
    origin: str


class _Twice(dict[str, Any]):
    """An object in which a key stands twice. JSON readers keep one value, and not all the same."""

    key: str = ""


class _Long(str):
    """An integer of more digits than any size has."""


@dataclass(frozen=True, slots=True)
class Config:
    """One JSON object of a config.

    `defaults`: what the model type's config class sets where a field is absent (and not where it is null).
    `outer`: the object around it, which may hold what the two have in common, as the dtype.
    `used`: the fields that were read, in order, those of inner objects with dots.
    """

    given: Mapping[str, Any]
    file: str
    pointer: str = ""
    outer: Config | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)

    def where(self, *path: str | int) -> str:
        """`file#/json/pointer` of a field, or of an entry in it."""
        steps = "".join(f"/{shown(step).replace('~', '~0').replace('/', '~1')}" for step in path)
        return f"{self.file}#{self.pointer}{steps}" if self.pointer or steps else self.file

    def has(self, name: str) -> bool:
        """Whether a field is given, and not as null."""
        return self.given.get(name) is not None

    def inner(self, name: str) -> Config | None:
        """The object in a field, if there is one."""
        value = self.given.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._wrong((name,), "an object", value)
        return Config(value, self.file, f"{self.pointer}/{name}", self, used=self.used)

    def objects(self, name: str) -> list[Config] | None:
        """The objects in a list, if it is given."""
        entries = self._list(name)
        if entries is None:
            return None
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                self._wrong((name, index), "an object", entry)
        return [
            Config(entry, self.file, f"{self.pointer}/{name}/{index}", self, used={})
            for index, entry in enumerate(entries)
        ]

    def number(self, *names: str, low: int = 1, high: int = MAX_NUMBER) -> Fact[int]:
        """The first of these fields that is given, as an integer within bounds. SpecError without one."""
        found = self.maybe_number(*names, low=low, high=high)
        return found if found is not None else self.missing(names[0], "an integer", *names[1:])

    def maybe_number(self, *names: str, low: int = 1, high: int = MAX_NUMBER) -> Fact[int] | None:
        """As `number`; None without one."""
        found = self._find(names)
        if found is None:
            return None
        name, value, origin = found
        return Fact(self._integer((name,), value, low, high), origin)

    def word(self, *names: str) -> Fact[str] | None:
        """The first of these fields that is given, as a text."""
        found = self._find(names)
        if found is None:
            return None
        name, value, origin = found
        if not isinstance(value, str) or isinstance(value, _Long):
            self._wrong((name,), "a text", value)
        return Fact(value, origin)

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        found = self._find((name,))
        if found is None:
            return default
        if not isinstance(found[1], bool):
            self._wrong((name,), "true or false", found[1])
        return found[1]

    def numbers(self, name: str, *, low: int = 0, high: int = MAX_LAYERS) -> list[int] | None:
        """A list of integers, if it is given."""
        entries = self._list(name)
        if entries is None:
            return None
        return [self._integer((name, index), entry, low, high) for index, entry in enumerate(entries)]

    def words(self, name: str) -> list[str] | None:
        """A list of texts, if it is given."""
        entries = self._list(name)
        if entries is None:
            return None
        for index, entry in enumerate(entries):
            if not isinstance(entry, str) or isinstance(entry, _Long):
                self._wrong((name, index), "a text", entry)
        return entries

    def known(self) -> str:
        """What the config does say, for a problem about what it does not."""
        said = [f"{name} {shown(self.given[name])}" for name in _TELLING if self.has(name)]
        return "known are " + ", ".join(said) if said else "none of the usual fields is given"

    def missing(self, name: str, expected: str, *others: str) -> NoReturn:
        """SpecError: a field is needed and neither given nor set by the model type's config class."""
        also = f" (or {', '.join(others)})" if others else ""
        text = f"field '{name}'{also} is missing, and model_type '{shown(self.given.get('model_type', ''))}' sets none"
        raise SpecError(problem("KVL163", self.where(), text, expected=expected, got=self.known()))

    def refuse(self, path: Iterable[str | int], message: str, **more: str) -> NoReturn:
        """SpecError: fields that contradict each other, or say what no format here describes."""
        raise SpecError(problem("KVL164", self.where(*path), message, **more))

    def not_one_of(self, path: Iterable[str | int], names: Iterable[object], got: object) -> NoReturn:
        """SpecError: a word that has no meaning in its field."""
        self._wrong(tuple(path), one_of(names), got)

    def _find(self, names: Iterable[str]) -> tuple[str, Any, str] | None:
        for name in names:
            if self.has(name):
                self.used[".".join([*self.pointer.split("/")[1:], name])] = None
                return name, self.given[name], name
        for name in names:
            if name not in self.given and self.defaults.get(name) is not None:
                return name, self.defaults[name], f"{name}, absent: the config class's default"
        return None

    def _list(self, name: str) -> list[Any] | None:
        found = self._find((name,))
        if found is None:
            return None
        if not isinstance(found[1], list | tuple):
            self._wrong((name,), "a list", found[1])
        if len(found[1]) > MAX_LAYERS:
            self._wrong((name,), f"at most {MAX_LAYERS} entries", found[1])
        return list(found[1])

    def _integer(self, path: tuple[str | int, ...], value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._wrong(path, f"an integer from {low} to {high}", value)
        return value

    def _wrong(self, path: tuple[str | int, ...], expected: str, got: Any) -> NoReturn:
        text = f"the value of '{'.'.join(shown(step) for step in path)}'"
        raise SpecError(problem("KVL162", self.where(*path), text, expected=expected, got=_got(got)))


def read_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> Config:
    """A config from a dict, a file, or the `config.json` of a folder. SpecError; never reads more than `MAX_BYTES`."""
    if isinstance(config, dict):
        return Config(config, "config")
    if not isinstance(config, str | os.PathLike):
        got = f"an object of type {type(config).__name__}"
        raise SpecError(
            problem("KVL162", "config", "a config", expected="a dict, or the path of a config.json", got=got)
        )
    path = Path(config)
    with contextlib.suppress(OSError, ValueError):  # opening it says what is wrong
        path = path / "config.json" if path.is_dir() else path
    return _parsed(_text(path), str(path))


def _text(path: Path) -> str:
    name = str(path)
    try:
        with open(name, "rb", opener=lambda file, flags: os.open(file, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(problem("KVL001", name, "not a regular file"))
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a possible file name"
        raise SpecError(problem("KVL001", shown(name), f"the config cannot be read: {reason}")) from None
    if len(content) > MAX_BYTES:
        raise SpecError(problem("KVL002", name, "the config is too large", expected=f"at most {MAX_BYTES} bytes"))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _place(content[: error.start].decode("utf-8", "replace"), name)
        raise SpecError(
            problem("KVL001", where, "the config is not UTF-8", got=f"byte 0x{content[error.start]:02x}")
        ) from None


def _parsed(text: str, name: str) -> Config:
    _check_depth(text, name)
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_int=_number)
    except json.JSONDecodeError as error:
        where = f"{name}:{error.lineno}:{error.colno}"
        raise SpecError(problem("KVL161", where, f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}")) from None
    if not isinstance(data, dict):
        raise SpecError(problem("KVL161", f"{name}:1:1", "the config is not a JSON object", got=_got(data)))
    for pointer, twice in _doubled(data):
        found = f"key '{shown(twice)}' is given twice in one object"
        raise SpecError(problem("KVL161", f"{name}#{pointer}" if pointer else name, found))
    return Config(data, name)


def _check_depth(text: str, name: str) -> None:
    """Before parsing: the parser recurses."""
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            where = _place(text[: token.start()], name)
            raise SpecError(problem("KVL002", where, "nested too deep", expected=f"at most {MAX_DEPTH} levels"))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    doubled = _Twice(found)
    doubled.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return doubled


def _number(text: str) -> int | str:
    return int(text) if len(text) <= MAX_DIGITS else _Long(text)


def _doubled(data: Any) -> Iterator[tuple[str, str]]:
    stack: list[tuple[str, Any]] = [("", data)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, _Twice):
            yield pointer, value.key
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        stack += ((f"{pointer}/{shown(key)}", item) for key, item in inner if isinstance(item, dict | list))


def _place(before: str, name: str) -> str:
    lines = _LINE_END.split(before)
    return f"{name}:{len(lines)}:{len(lines[-1]) + 1}"


def _got(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
        case _Long():
            return f"an integer of {len(value.lstrip('-'))} digits"
        case str():
            return f"'{shown(value)}'"
        case int() | float():
            return shown(value)
    return f"an object of type {type(value).__name__}"
