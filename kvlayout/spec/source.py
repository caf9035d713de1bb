"""YAML text with positions: the only door through which a spec comes in.

A spec is read into plain values (dict, list, str, int, bool, None) beside a tree of places of the same shape, so that
every later stage can say `file:line:column` of a value, or of its key, from the path alone.

The language is a small part of YAML, and each thing left out has a reason. Anchors, aliases and merge keys let a short
file mean a huge one, tags and directives let it mean something else, duplicate keys lose one of two values without a
word, and numbers in the style of YAML 1.1 (`012`, `1_000`, `0x10`, `1e3`) or its `on` and `yes` change meaning between
readers. So plain text is a decimal integer, true, false, null, or a string; anything else is refused with its place.
Characters that do not show, or that reorder what shows, are refused also as escapes: names of a spec reach terminals.

Cost: one pass over the events of PyYAML's C parser, with a stack of our own instead of recursion. Size, depth and
number of nodes are bounded, and bytes are never read from anything but a regular file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import yaml

from kvlayout.errors import MAX_PROBLEMS, Problem, SpecError, problem

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_DIGITS", "MAX_NODES", "Source", "parse_source", "read_source"]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DIGITS = 20

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
# Controls, line separators that editors do not count as lines, direction overrides, marks of byte order, surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
_DIRECTIVE = re.compile(r"(?:\A|[\r\n])%")

# What the C parser says, and what a reader of the spec needs to hear; `{opened}` is where the construct began.
_SYNTAX: dict[str, str] = {
    "could not find expected ':'": "a key is not followed by ': '",
    "mapping values are not allowed in this context": "a second ': ' stands here; quote the text, or check indentation",
    "found character that cannot start any token": "a value cannot start with this character; quote it (no tabs)",
    "did not find expected key": "this line fits no key above it; check indentation and closing quotes or brackets",
    "did not find expected '-' indicator": "this line fits no list item above it; check indentation",
    "did not find expected ',' or ']'": "a ',' or a closing ']' is missing{opened}",
    "did not find expected ',' or '}'": "a ',' or a closing '}}' is missing{opened}",
    "did not find expected <document start>": "text stands after the end of the document",
    "found unexpected end of stream": "a quoted text is not closed{opened}",
    "found unexpected document indicator": "a quoted text is not closed{opened}",
    "found unknown escape character": "an unknown '\\' escape in a quoted text; use single quotes for plain text",
    "did not find expected node content": "a value is missing",
    "block sequence entries are not allowed in this context": "a list item cannot start here; put it on its own line",
    "did not find expected alphabetic or numeric character": "'&' and '*' have a meaning in YAML; quote the text",
    "found undefined tag handle": "'!' has a meaning in YAML; quote the text",
    "mapping keys are not allowed in this context": "a key cannot start here; put it on its own line",
}


class _Place(NamedTuple):
    """Where a value and its key start (1-based); `inner` holds the places of what the value contains."""

    line: int
    column: int
    key_line: int
    key_column: int
    inner: Mapping[str | int, _Place]


_NOTHING: Mapping[str | int, _Place] = {}


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed YAML mapping that knows the place of every value.

    `path`: the file's name as shown to the user.
    `data`: plain dict, list, str, int, bool and None; the top level is a dict.
    """

    path: str
    data: Any
    _root: _Place = field(repr=False, compare=False)

    def where(self, path: tuple[str | int, ...], key: bool = False) -> str:
        """`file:line:column` of the value at `path` (of its key with `key`), or of the nearest ancestor that exists.

        >>> parse_source("tp: [1, 2]", "x.yaml").where(("tp", 1))
        'x.yaml:1:9'
        """
        place = self._root
        for step in path:
            if step not in place.inner:
                break
            place = place.inner[step]
        line, column = (place.key_line, place.key_column) if key else (place.line, place.column)
        return f"{self.path}:{line}:{column}"


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read and parse one regular file. Raises `SpecError`, never reads more than the size limit, never blocks."""
    name = os.fspath(path)
    try:
        # Not to block on a fifo without a writer; the kind is asked of the very file that would be read.
        with open(name, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(problem("KVL001", name, "not a regular file"))
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a possible file name"
        raise SpecError(problem("KVL001", name, f"the file cannot be read: {reason}")) from None
    return parse_source(content, name)


def parse_source(text: bytes | str, name: str) -> Source:
    """Parse one YAML mapping; `name` is what problems call the file. Raises `SpecError` with located problems."""
    plain = _checked_text(text, name)
    builder = _Builder(name)
    try:
        # Events, not nodes: PyYAML's composer is recursive and follows aliases.
        for event in yaml.parse(plain, Loader=yaml.CSafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        builder.fail(_syntax_problem(error, name))
    except (yaml.YAMLError, UnicodeError):
        # An escape inside a tag can name bytes that are no text; PyYAML gives no place for it.
        line, column = builder.last
        builder.fail(problem("KVL003", f"{name}:{line}:{column}", "not valid YAML after this place"))
    return builder.result()


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _checked_text(text: bytes | str, name: str) -> str:
    """Size, encoding and characters, before the parser sees anything."""
    size = len(text)
    if isinstance(text, str) and size <= MAX_BYTES:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise SpecError(
            problem("KVL002", f"{name}:1:1", "the file is too large", expected=f"at most {MAX_BYTES} bytes")
        )
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        where = _where_after(error.object[: error.start].decode("utf-8"), name)
        got = f"byte 0x{error.object[error.start]:02x}"
        raise SpecError(problem("KVL001", where, "the file is not UTF-8", got=got)) from None
    text = text.removeprefix("\ufeff")
    if hidden := _HIDDEN.search(text):
        raise SpecError(_hidden_problem(hidden[0], _where_after(text[: hidden.start()], name)))
    if directive := _DIRECTIVE.search(text):
        # Refused here: the parser compares every %TAG with all earlier ones, which takes quadratic time.
        where = _where_after(text[: directive.end() - 1], name)
        raise SpecError(problem("KVL007", where, "a line starts with '%'", expected="no YAML directives"))
    return text


def _where_after(before: str, name: str) -> str:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"{name}:{len(lines)}:{len(lines[-1]) + 1}"


def _hidden_problem(character: str, where: str) -> Problem:
    return problem("KVL004", where, "a character that does not show", got=f"U+{ord(character):04X}")


def _syntax_problem(error: yaml.MarkedYAMLError, name: str) -> Problem:
    mark, opening = error.problem_mark, error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    if error.problem == "exceeded maximum nesting depth":
        # Met while the parser looks ahead in the line, before we have counted the levels.
        return problem("KVL002", f"{name}:{line}:{column}", "nested too deep", expected=f"at most {MAX_DEPTH} levels")
    opened = f"; it was opened at line {opening.line + 1}, column {opening.column + 1}" if opening else ""
    message = _SYNTAX.get(error.problem or "", "not valid YAML").format(opened=opened)
    return problem("KVL003", f"{name}:{line}:{column}", message)


class _Frame:
    """A container being built; `key` is the key that waits for its value, with its place."""

    __slots__ = ("column", "data", "key", "key_column", "key_line", "keyed", "line", "places")

    def __init__(self, data: dict[str, Any] | list[Any], line: int, column: int) -> None:
        self.data: Any = data
        self.places: dict[str | int, _Place] = {}
        self.line, self.column = line, column
        self.keyed = False
        self.key: str | None = None  # None while `keyed`: a refused key, whose value is dropped
        self.key_line, self.key_column = line, column


class _Builder:
    """Builds values and places from parser events; goes on after a problem while the structure is still certain."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.frames: list[_Frame] = []
        self.nodes = 0
        self.documents = 0
        self.root: tuple[Any, _Place] | None = None
        self.last = (1, 1)

    def result(self) -> Source:
        if self.documents == 0:
            self._report("KVL008", 1, 1, "the document is empty", expected="a mapping of keys to values")
        if self.problems or self.root is None:
            raise SpecError(self.problems)
        data, place = self.root
        return Source(self.name, data, place)

    def fail(self, last: Problem) -> NoReturn:
        raise SpecError([*self.problems, last]) from None

    def take(self, event: Any) -> None:
        mark = event.start_mark
        line, column = self.last = (mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.NodeEvent):
            self._node(event, line, column)
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self.frames.pop()
            self._attach(frame.data, frame.line, frame.column, frame.places)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self._stop("KVL008", line, column, "a second document starts", expected="one document in a file")

    def _node(self, event: Any, line: int, column: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._stop("KVL002", line, column, "too many values", expected=f"at most {MAX_NODES} keys and values")
        if isinstance(event, yaml.AliasEvent):
            self._stop("KVL007", line, column, f"an alias {_shown(f'*{event.anchor}')}", expected="the value itself")
        if event.anchor is not None:
            self._report("KVL007", line, column, f"an anchor {_shown('&' + event.anchor)}", expected="the value alone")
        if event.tag is not None:
            self._report("KVL007", line, column, f"a tag {_shown(event.tag)}", expected="the value alone")
        scalar = isinstance(event, yaml.ScalarEvent)
        if not self.frames and not isinstance(event, yaml.MappingStartEvent):
            empty = scalar and not event.style and not event.value
            message = "the document is empty" if empty else "the top level is not a mapping"
            self._stop("KVL008", line, column, message, expected="a mapping of keys to values")
        expects_key = bool(self.frames) and isinstance(self.frames[-1].data, dict) and not self.frames[-1].keyed
        if expects_key:
            if not scalar:
                self._stop("KVL006", line, column, "a key is a list or a mapping", expected="a text")
            self._key(event, line, column)
        elif scalar:
            self._attach(self._value(event, line, column), line, column, _NOTHING)
        else:
            if len(self.frames) == MAX_DEPTH:
                self._stop("KVL002", line, column, "nested too deep", expected=f"at most {MAX_DEPTH} levels")
            self.frames.append(_Frame({} if isinstance(event, yaml.MappingStartEvent) else [], line, column))

    def _key(self, event: Any, line: int, column: int) -> None:
        frame = self.frames[-1]
        frame.keyed, frame.key = True, None
        frame.key_line, frame.key_column = line, column
        key = self._value(event, line, column)
        if not isinstance(key, str):
            got = _shown(event.value) if event.value else "nothing"
            self._report("KVL006", line, column, "a key is not a text", expected="a text; quote it", got=got)
        elif key == "<<" and not event.style:
            self._report("KVL007", line, column, "a merge key '<<'", expected="the keys themselves")
        elif key in frame.places:
            first = frame.places[key]
            at = f"{self.name}:{first.key_line}:{first.key_column}"
            self._report("KVL005", line, column, f"key {_shown(key)} is given twice, first at {at}")
        else:
            frame.key = key

    def _value(self, event: Any, line: int, column: int) -> str | int | bool | None:
        text: str = event.value
        if event.style:
            if hidden := _HIDDEN.search(text):
                self._add(_hidden_problem(hidden[0], f"{self.name}:{line}:{column}"))
            return text
        if text in _WORDS:
            return _WORDS[text]
        if not _INTEGER.fullmatch(text):
            return text
        if len(text.removeprefix("-")) > MAX_DIGITS:
            expected = f"at most {MAX_DIGITS} digits, or a quoted text"
            self._report("KVL009", line, column, "an integer is too long", expected=expected, got=_shown(text))
            return None
        return int(text)

    def _attach(self, value: Any, line: int, column: int, inner: Mapping[str | int, _Place]) -> None:
        if not self.frames:
            self.root = (value, _Place(line, column, line, column, inner))
            return
        frame = self.frames[-1]
        if isinstance(frame.data, list):
            frame.places[len(frame.data)] = _Place(line, column, line, column, inner)
            frame.data.append(value)
            return
        frame.keyed = False
        if frame.key is not None:
            frame.data[frame.key] = value
            frame.places[frame.key] = _Place(line, column, frame.key_line, frame.key_column, inner)

    def _report(self, code: str, line: int, column: int, message: str, **more: str) -> None:
        self._add(problem(code, f"{self.name}:{line}:{column}", message, **more))

    def _add(self, found: Problem) -> None:
        self.problems.append(found)
        if len(self.problems) >= MAX_PROBLEMS:
            raise SpecError(self.problems)

    def _stop(self, code: str, line: int, column: int, message: str, **more: str) -> NoReturn:
        self.fail(problem(code, f"{self.name}:{line}:{column}", message, **more))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
