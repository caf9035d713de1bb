"""Reading YAML: values and places of what is legal, a located problem for everything else, and no way to hurt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout.errors
from kvlayout.errors import SpecError
from kvlayout.rules import RULES
from kvlayout.spec.source import MAX_BYTES, MAX_DEPTH, Source, parse_source, read_source

GOOD = """\
# a comment
kvlayout: 1
groups:
  attention: {format: gqa, layers: [0, 3]}
  "quoted key":
  - one
  - two: 2
    three:
empty:
"""


def problems(text: bytes | str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_source(text, "f.yaml")
    return [(p.code, p.where) for p in caught.value.problems]


def message(text: bytes | str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_source(text, "f.yaml")
    return str(caught.value)


def test_values_and_places() -> None:
    source = parse_source(GOOD, "dir/f.yaml")
    assert source.path == "dir/f.yaml"
    assert source.data == {
        "kvlayout": 1,
        "groups": {
            "attention": {"format": "gqa", "layers": [0, 3]},
            "quoted key": ["one", {"two": 2, "three": None}],
        },
        "empty": None,
    }
    assert source.where(()) == "dir/f.yaml:2:1"
    assert source.where(("kvlayout",)) == "dir/f.yaml:2:11"
    assert source.where(("kvlayout",), key=True) == "dir/f.yaml:2:1"
    assert source.where(("groups",)) == "dir/f.yaml:4:3"
    assert source.where(("groups",), key=True) == "dir/f.yaml:3:1"
    assert source.where(("groups", "attention", "layers", 1)) == "dir/f.yaml:4:40"
    assert source.where(("groups", "attention", "layers"), key=True) == "dir/f.yaml:4:28"
    assert source.where(("groups", "quoted key", 1, "two")) == "dir/f.yaml:7:10"
    assert source.where(("groups", "quoted key", 1), key=True) == "dir/f.yaml:7:5"
    assert source.where(("empty",), key=True) == "dir/f.yaml:9:1"


@pytest.mark.parametrize(
    "path",
    [
        ("groups", "attention", "missing"),
        ("groups", "attention", "format", "deeper", 1),
        ("groups", "attention", 0),
    ],
)
def test_places_fall_back_to_the_nearest_ancestor(path: tuple[str | int, ...]) -> None:
    source = parse_source(GOOD, "f")
    ancestor = path[:3] if path[2] == "format" else path[:2]
    assert source.where(path) == source.where(ancestor)
    assert source.where(path, key=True) == source.where(ancestor, key=True)


@pytest.mark.parametrize("path", [("groups", "quoted key", 2), ("groups", "quoted key", -1)])
def test_places_outside_a_list_fall_back(path: tuple[str | int, ...]) -> None:
    assert parse_source(GOOD, "f").where(path) == "f:6:3"


def test_sources_are_frozen_and_compare_by_content() -> None:
    source = parse_source("a: 1", "f")
    assert source == parse_source("a:  1", "f") != parse_source("a: 1", "g")
    with pytest.raises(AttributeError):
        source.path = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-0", 0),
        ("16", 16),
        ("-7", -7),
        ("9" * 20, int("9" * 20)),
        ("-" + "9" * 20, -int("9" * 20)),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        *((word, word) for word in ["on", "off", "yes", "no", "True", "FALSE", "Null", "NULL", "y", "n"]),
        *((word, word) for word in ["1e3", "0x10", "0o7", "1_000", "012", "+1", "1.5", ".inf", "2020-01-01", "12:30"]),
        ("'16'", "16"),
        ('"true"', "true"),
        ("''", ""),
        ("'~'", "~"),
        ("|\n  16\n", "16\n"),
        (">-\n  a\n  b\n", "a b"),
        ("head_size // 2", "head_size // 2"),
        ("scale_layout == linear or block % 4 == 0", "scale_layout == linear or block % 4 == 0"),
        ('"tab\\tline\\n"', "tab\tline\n"),
        ("é \U0001f600", "é \U0001f600"),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_scalars(text: str, expected: object) -> None:
    got = parse_source(f"a: {text}", "f").data["a"]
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize("key", ["on", "yes", "True", "012", "1e3", "'1'", '"null"', "'<<'", "? a"])
def test_keys_are_texts(key: str) -> None:
    assert list(parse_source(f"{key}\n: 1" if key == "? a" else f"{key}: 1", "f").data) == [key.strip("'\"? ")]


@pytest.mark.parametrize("text", ["\ufeffa: 1", "---\na: 1\n...\n", "a: 1\r\nb: 2\r\n", b"\xef\xbb\xbfa: 1", "{a: 1}"])
def test_other_forms_of_one_document(text: bytes | str) -> None:
    assert parse_source(text, "f").data["a"] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # encoding and characters
        (b"a: 1\nb: \xe9", [("KVL001", "f.yaml:2:4")]),
        ("a: 1".encode("utf-16"), [("KVL001", "f.yaml:1:1")]),
        ("é: \0", [("KVL004", "f.yaml:1:4")]),
        ("a: \x1b[31m", [("KVL004", "f.yaml:1:4")]),
        ("a: 1\r\nb: x\x85y", [("KVL004", "f.yaml:2:5")]),
        ("a: \ud800", [("KVL004", "f.yaml:1:4")]),
        ("a: \u202e1", [("KVL004", "f.yaml:1:4")]),
        ('a: "\\x1b"', [("KVL004", "f.yaml:1:4")]),
        ('"\\0": 1', [("KVL004", "f.yaml:1:1")]),
        # limits
        ("a" * (MAX_BYTES + 1), [("KVL002", "f.yaml:1:1")]),
        ("é" * (MAX_BYTES // 2 + 1), [("KVL002", "f.yaml:1:1")]),
        ("a: " + "[" * MAX_DEPTH, [("KVL002", f"f.yaml:1:{3 + MAX_DEPTH}")]),
        ("a: [" + "a," * 110_000 + "]", [("KVL002", "f.yaml:1:199999")]),
        # syntax
        ("a: b: c", [("KVL003", "f.yaml:1:5")]),
        ("a: 'b\nc: 1\n", [("KVL003", "f.yaml:3:1")]),
        ("a: [1, 2\nb: 3\n", [("KVL003", "f.yaml:2:2")]),
        ("a:\n\tb: 1", [("KVL003", "f.yaml:2:1")]),
        ("a:\n    b: 2\n  c: 3\n", [("KVL003", "f.yaml:3:3")]),
        ("a: !<%ed%a0%80> x", [("KVL003", "f.yaml:1:1")]),
        ('a: "\\ud800"', [("KVL003", "f.yaml:1:7")]),
        # keys
        ("a: 1\nb: 2\na: 3", [("KVL005", "f.yaml:3:1")]),
        ("x: {b: 2, 'b': 3}", [("KVL005", "f.yaml:1:11")]),
        ("1: a", [("KVL006", "f.yaml:1:1")]),
        ("x: {true: a, ~: b, ok: c}", [("KVL006", "f.yaml:1:5"), ("KVL006", "f.yaml:1:14")]),
        ("ok: 1\n?\n: 2", [("KVL006", "f.yaml:2:2")]),
        ("[a]: b", [("KVL006", "f.yaml:1:1")]),
        ("? {a: b}\n: c", [("KVL006", "f.yaml:1:3")]),
        ("<<: {a: 1}", [("KVL007", "f.yaml:1:1")]),
        # what lets a text mean something else
        ("a: &x 1", [("KVL007", "f.yaml:1:4")]),
        ("a: &x 1\nb: *x", [("KVL007", "f.yaml:1:4"), ("KVL007", "f.yaml:2:4")]),
        ("&x a: 1", [("KVL007", "f.yaml:1:1")]),
        ("a: !!str 1\nb: !x [1]", [("KVL007", "f.yaml:1:4"), ("KVL007", "f.yaml:2:4")]),
        ("a: !!python/object/apply:os.system ['true']", [("KVL007", "f.yaml:1:4")]),
        ("%YAML 1.1\n---\na: 1", [("KVL007", "f.yaml:1:1")]),
        ("a: 1\n...\n%TAG ! x\n---\n", [("KVL007", "f.yaml:3:1")]),
        # one mapping
        ("", [("KVL008", "f.yaml:1:1")]),
        ("# nothing\n", [("KVL008", "f.yaml:1:1")]),
        ("---\n", [("KVL008", "f.yaml:2:1")]),
        ("- a", [("KVL008", "f.yaml:1:1")]),
        ("text", [("KVL008", "f.yaml:1:1")]),
        ("a: 1\n---\nb: 2", [("KVL008", "f.yaml:2:1")]),
        # integers
        ("a: " + "9" * 21, [("KVL009", "f.yaml:1:4")]),
        ("a: 1\nb: [-" + "1" * 200_000 + "]", [("KVL009", "f.yaml:2:5")]),
    ],
    ids=lambda part: repr(part)[:40] if isinstance(part, (str, bytes)) else "",
)
def test_problems_have_a_code_and_a_place(text: bytes | str, expected: list[tuple[str, str]]) -> None:
    assert problems(text) == expected


def test_messages_name_what_a_person_needs() -> None:
    assert "key 'a' is given twice, first at f.yaml:1:1" in message("a: 1\na: 2")
    assert "a quoted text is not closed; it was opened at line 1, column 4" in message("a: 'b\nc: 1\n")
    assert "a closing '}' is missing; it was opened at line 1, column 4" in message("a: {b: 1\nc: 2\n")
    assert "an alias '*x'" in message("a: *x")
    assert "got '1'" in message("1: a")
    assert len(message("a: " + "9" * 100_000)) < 300


def test_several_problems_are_reported_at_once_but_not_without_end() -> None:
    assert len(problems("a: 1\na: 2\n3: 4\nb: &x 1\n")) == 3
    assert len(problems("a: 1\n" * 1000)) == 20


def test_every_code_has_a_rule() -> None:
    source = Path(sys.modules[Source.__module__].__file__ or "").read_text(encoding="utf-8")
    assert set(re.findall(r"KVL\d{3}", source)) == {f"KVL00{n}" for n in range(1, 10)} <= set(RULES)


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: é\n", encoding="utf-8")
    assert read_source(file).data == read_source(str(file)).data == {"a": "é"}
    assert read_source(file).where(("a",)) == f"{file}:1:4"
    (tmp_path / "link.yaml").symlink_to(file)
    assert read_source(tmp_path / "link.yaml").data == {"a": "é"}


def test_refuses_what_is_no_readable_file(tmp_path: Path) -> None:
    fifo, large, exact = tmp_path / "fifo", tmp_path / "large", tmp_path / "exact"
    os.mkfifo(fifo)
    large.write_bytes(b"a: 1\n" + b"#" * MAX_BYTES)
    exact.write_bytes(b"a: 1\n" + b"#" * (MAX_BYTES - 5))
    assert read_source(exact).data == {"a": 1}
    cases: list[tuple[str | Path, str]] = [
        (fifo, "KVL001"),
        (tmp_path, "KVL001"),
        (tmp_path / "missing", "KVL001"),
        ("/dev/zero", "KVL001"),
        ("/dev/null", "KVL001"),
        ("a\0b", "KVL001"),
        ("\ud800", "KVL001"),
        ("", "KVL001"),
        (large, "KVL002"),
    ]
    for path, code in cases:
        with pytest.raises(SpecError) as caught:
            read_source(path)
        assert [p.code for p in caught.value.problems] == [code], path


def test_reads_no_more_than_the_limit(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 27)
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match="too large"):
            read_source(huge)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def fill(pattern: str, start: str = "", end: str = "") -> str:
    room = MAX_BYTES - len(start) - len(end)
    return start + (pattern * (room // len(pattern) + 1))[:room] + end


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
BOMBS = {
    "brackets": fill("["),
    "braces": fill("{"),
    "brackets below a key": fill("[", "a: "),
    "brackets on lines": fill("[\n", "a: "),
    "brackets and keys": fill("[{a: "),
    "dashes": fill("- ", "a:\n"),
    "questions": fill("? "),
    "indentation": "\n".join(" " * n + "a:" for n in range(700)),
    "laughs": LAUGHS,
    "anchors": "\n".join(f"k{n}: &a{n} x" for n in range(15_000)),
    "tag directives": fill("%TAG !a! b\n"),
    "late tag directives": fill("%TAG !a! b\n", "a: 1\n...\n"),
    "tag": fill("a%41", "a: !"),
    "items": fill("a,", "a: [", "]"),
    "short items": fill("- \n", "a:\n"),
    "keys without values": "{" + "".join(f"{n:x}a," for n in range(43_000)) + "}",
    "many keys": "\n".join(f"{n:x}a: {n}" for n in range(17_000)),
    "equal keys": fill("k: 1\n"),
    "long integer": fill("9", "a: "),
    "long key": fill("a", "", ": 1"),
    "long explicit key": fill("a", "? "),
    "escapes": fill("\\n", 'a: "', '"'),
    "folded text": fill("x\n\n ", "a: >\n "),
    "plain lines": fill("x\n ", "a: "),
    "documents": fill("---\n"),
    "document ends": fill("...\n"),
    "comments": fill("#\n"),
    "blank": fill(" "),
    "lines": fill("\n"),
    "quotes": fill('"'),
    "colons": fill("a: "),
    "zeros": "\0" * MAX_BYTES,
    "over the limit": "[" * 20_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_soon(name: str) -> None:
    started = time.monotonic()
    try:
        shown = repr(parse_source(BOMBS[name], "f").path)
    except SpecError as error:
        shown = str(error)
    assert len(shown) < 10_000
    assert time.monotonic() - started < 5


@pytest.mark.peak_memory
def test_bombs_stay_small(tmp_path: Path) -> None:
    for number, text in enumerate(BOMBS.values()):
        (tmp_path / f"{number}.yaml").write_text(text[: MAX_BYTES + 1], encoding="utf-8")
    script = """
import pathlib, re, sys
from kvlayout.errors import SpecError
from kvlayout.spec.source import read_source
kept = []
for path in pathlib.Path(sys.argv[1]).iterdir():
    try:
        read_source(path)
    except SpecError as error:
        kept.append(str(error))
print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""
    root = str(Path(kvlayout.errors.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(ran.stdout) < 200_000


TEXTS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=20)
SCALARS = TEXTS | st.integers(-(10**19), 10**19) | st.booleans() | st.none()
TREES = st.dictionaries(
    TEXTS,
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(TREES, st.sampled_from([None, 2]))
def test_json_is_read_as_it_is_and_places_point_at_it(tree: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(tree, ensure_ascii=False, indent=indent)
    source = parse_source(text, "f")
    assert source.data == tree
    lines = text.split("\n")
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), tree)]
    while stack:
        path, value = stack.pop()
        line, column = map(int, source.where(path).split(":")[1:])
        written = json.dumps(value, ensure_ascii=False) if not isinstance(value, (dict, list)) else "{["
        at = lines[line - 1][column - 1 :]
        assert at.startswith(written) or (at[0] in written and isinstance(value, (dict, list)))
        if path and isinstance(path[-1], str):
            line, column = map(int, source.where(path, key=True).split(":")[1:])
            assert lines[line - 1][column - 1 :].startswith(json.dumps(path[-1], ensure_ascii=False))
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        stack += [((*path, step), below) for step, below in inner]


YAMLISH = st.lists(st.sampled_from([*"ab01:-?[]{},&*!|>'\"%@`#~<.\\ \n\t", ": ", "- ", "\n  "]), max_size=60).map(
    "".join
)


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=80) | YAMLISH | YAMLISH.map("a: ".__add__))
def test_garbage_is_a_source_or_a_located_problem(text: bytes | str) -> None:
    result: Source | SpecError
    try:
        result = parse_source(text, "f")
    except SpecError as error:
        result = error
    if isinstance(result, Source):
        assert isinstance(result.data, dict) and all(isinstance(key, str) for key in result.data)
    else:
        assert result.problems
        assert all(re.fullmatch(r"f:[1-9]\d*:[1-9]\d*", p.where) and p.code in RULES for p in result.problems)
