"""Hostile input: whatever is read is understood, or refused with located problems; nothing crashes, hangs or grows.

Three ways: shipped specs with tokens inserted, deleted and replaced; data trees over the grammar's own words, which get
past the reading and into expansion and planning; and bombs, each small to write and huge to take at its word. Every
refusal must be a `KvLayoutError` whose problems have a rule, a place and a message that a terminal can show.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import refusal
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import kvlayout
from kvlayout import ArtifactError, Engine, KvLayoutError, PlanRefused
from kvlayout.data import specs_dir
from kvlayout.spec.formats import find_format, load_format, shipped_formats
from kvlayout.spec.model import spec_of_format

# All examples of a test may write to one folder.
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)

MODELS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((specs_dir() / "models").glob("*.yaml"))}
FORMATS = {name: path.read_text(encoding="utf-8") for name, path in shipped_formats().items()}
ENGINES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((specs_dir() / "engines").glob("*.yaml"))}
PAIRS = ((Engine(tp=2), Engine(tp=4, order="NHD")), (Engine(tp=1, block=8), Engine(tp=1, block=12, conv="SD")))


def use_model(path: Path) -> None:
    """Everything that a model spec is for."""
    spec = kvlayout.load(path)
    refused: list[PlanRefused] = []
    for src, dst in PAIRS:
        try:
            str(kvlayout.slice_for_tp_transfer(spec, src, dst))
        except PlanRefused as error:
            refused.append(error)
    if refused:
        raise refused[0]


def use_format(path: Path) -> None:
    """Everything that a format is for: its examples on every engine."""
    loaded = load_format(path)
    for index, parameters in enumerate(loaded.file.examples):
        spec = spec_of_format(loaded, parameters, loaded.where("examples", index))
        for src, dst in PAIRS:
            kvlayout.slice_for_tp_transfer(spec, src, dst)


def use_engine(path: Path) -> None:
    """Everything that an engine file is for."""
    engine = Engine.load(path)
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    kvlayout.slice_for_tp_transfer(spec, engine, engine)


USES: dict[str, Callable[[Path], None]] = {"model": use_model, "format": use_format, "engine": use_engine}


def listed(words: str) -> list[str]:
    return words.split()


TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|[0-9]+|\s+|.", re.DOTALL)
WORDS = st.sampled_from(
    [
        *"[]{}:,-#&*!|>'\"%@`?~ \n\t+",
        *("", "  ", ": ", "\n  ", "---\n", "\u202e", "\0", "é", "\u0664", "size(dtype)", "min(1, 2)"),
        *(str(number) for number in (0, 1, -1, 2, 3, 4096, 2**62, 2**63, 10**12, 10**20 - 1)),
        *listed("1e3 null true x-y // not tp cp block order spec_tokens any all size shard grows few common granule"),
        *listed("replicate head token field array of bytes tag pad opaque choose cases struct align digits page"),
        *listed("buffers axes let params require extends gqa mla nvfp4 format model groups layers from every count"),
    ]
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "replace", "double", "swap"]), st.floats(0, 1), WORDS),
    min_size=1,
    max_size=4,
)


def edited(text: str, edits: list[tuple[str, float, str]]) -> str:
    tokens = TOKEN.findall(text)
    for kind, where, word in edits:
        at = min(int(where * len(tokens)), len(tokens) - 1)
        if kind == "insert":
            tokens.insert(at, word)
        elif kind == "delete":
            del tokens[at]
        elif kind == "replace":
            tokens[at] = word
        elif kind == "double":
            tokens.insert(at, tokens[at])
        else:
            other = (at + 2) % len(tokens)
            tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


@fuzz
@given(st.sampled_from(sorted(MODELS)), EDITS)
def test_an_edited_model_is_read_or_refused(tmp_path: Path, name: str, edits: list[tuple[str, float, str]]) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(edited(MODELS[name], edits), encoding="utf-8")
    refusal(lambda: use_model(file))


@fuzz
@given(st.sampled_from(sorted(FORMATS)), EDITS)
def test_an_edited_format_is_read_or_refused(tmp_path: Path, name: str, edits: list[tuple[str, float, str]]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(edited(FORMATS[name], edits), encoding="utf-8")
    refusal(lambda: use_format(file))


@fuzz
@given(st.sampled_from(sorted(ENGINES)), EDITS)
def test_an_edited_engine_is_read_or_refused(tmp_path: Path, name: str, edits: list[tuple[str, float, str]]) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(edited(ENGINES[name], edits), encoding="utf-8")
    refusal(lambda: use_engine(file))


@fuzz
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    for use in USES.values():
        assert refusal(lambda use=use: use(file)) is not None  # type: ignore[misc]
    assert isinstance(refusal(lambda: kvlayout.load_plan(file)), ArtifactError)


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, -1, 4096, 2**31, 2**61, 2**62, 2**62 + 1, 2**64, 10**19])
NAMES = st.sampled_from(["a", "b", "head", "token", "row", "n", "order", "tp", "k", "v", "t_hi", ""])
EXPRESSIONS = NUMBERS | st.sampled_from(
    [
        "n",
        "block",
        "tp",
        "n * 2",
        "block // n",
        "8 // (tp - 2)",
        "n % tp",
        "size(d)",
        "-n",
        "1 == 1",
        "linear",
        "n *",
        "(",
        "d",
    ]
)
AXES = st.fixed_dictionaries(
    {"size": EXPRESSIONS},
    optional={
        "shard": st.sampled_from(["tp", "cp", "x"]),
        "few": st.sampled_from(["refuse", "replicate"]),
        "grows": st.sampled_from(["block", "x"]),
        "granule": EXPRESSIONS,
        "common": st.booleans(),
    },
)
DIGITS = st.dictionaries(
    NAMES, st.lists(NAMES | st.dictionaries(NAMES, EXPRESSIONS, max_size=2), max_size=3), max_size=2
)
TAGS = st.sampled_from(["int8", "any", "d", "e4m3", "bfloat16"])
LEAVES = (
    st.fixed_dictionaries({"field": NAMES, "bytes": EXPRESSIONS, "tag": TAGS})
    | st.fixed_dictionaries({"opaque": NAMES, "bytes": EXPRESSIONS, "tag": TAGS})
    | st.fixed_dictionaries({"pad": EXPRESSIONS})
)


def node_over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    optional = {"digits": DIGITS}
    return (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({"array": NAMES | st.lists(NAMES, max_size=3), "of": inner}, optional=optional)
        | st.fixed_dictionaries(
            {"struct": st.lists(inner, max_size=3)}, optional={"align": EXPRESSIONS, "digits": DIGITS}
        )
        | st.fixed_dictionaries(
            {
                "choose": st.sampled_from(["order", "conv", "family", "layout", "n"]),
                "cases": st.dictionaries(
                    st.sampled_from(["HN", "NH", "DS", "SD", "a", "b", "plain"]), inner, max_size=2
                ),
            },
            optional=optional,
        )
    )


NODES = st.recursive(LEAVES, node_over, max_leaves=8)
PAGES = NODES | st.fixed_dictionaries({"buffers": st.dictionaries(NAMES, NODES, max_size=2)})


def document_of(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fixed = {"kvlayout": st.just(1), "source": st.just("a test"), **more}
    return st.fixed_dictionaries(fixed)


PARAMS = st.fixed_dictionaries(
    {"n": st.fixed_dictionaries({}, optional={"min": NUMBERS, "max": NUMBERS, "default": EXPRESSIONS})},
    optional={
        "d": st.just({"type": "dtype", "default": "int8"}),
        "layout": st.just({"enum": ["a", "b"], "default": "a"}),
    },
)


@fuzz
@given(
    document_of(
        format=st.just("mine"),
        params=PARAMS,
        let=st.dictionaries(NAMES, EXPRESSIONS, max_size=2),
        axes=st.dictionaries(NAMES, AXES, max_size=3),
        examples=st.lists(
            st.dictionaries(st.sampled_from(["n", "d", "layout"]), NUMBERS | TAGS, max_size=2), max_size=2
        ),
        page=PAGES,
    )
)
def test_a_format_over_the_grammars_words_is_read_or_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    refusal(lambda: use_format(file))


LAYERS = (
    NUMBERS
    | st.lists(NUMBERS, max_size=3)
    | st.just("all")
    | st.fixed_dictionaries({"from": NUMBERS, "count": NUMBERS}, optional={"every": NUMBERS})
)
GROUPS = st.fixed_dictionaries(
    {"layers": LAYERS},
    optional={
        "format": st.sampled_from(sorted(FORMATS)),
        "block": NUMBERS,
        "params": st.dictionaries(
            st.sampled_from(["num_kv_heads", "head_size", "dtype", "n", "head_dim"]), NUMBERS | TAGS, max_size=4
        ),
        "page": PAGES,
        "axes": st.dictionaries(NAMES, AXES, max_size=3),
        "let": st.dictionaries(NAMES, EXPRESSIONS, max_size=2),
    },
)


@fuzz
@given(document_of(model=st.just("mine"), num_layers=NUMBERS, groups=st.dictionaries(NAMES, GROUPS, max_size=3)))
def test_a_model_over_the_grammars_words_is_read_or_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    refusal(lambda: use_model(file))


ENGINE_WORDS = st.sampled_from(
    [
        *listed("tp pp dcp pcp interleave stages block kernel_block order conv spec_tokens page family kv_dtype"),
        *listed("groups where self"),
        *listed("attention.block attention.format attention.dtype state.ssm_dtype a.b.c . a. .b x-y é"),
        "",
    ]
)
ENGINE_VALUES = st.sampled_from(
    [
        *listed("1 2 0 -1 4 1e3 0x10 HND NHD LHBNC SD 12+12 1+ fp8 nvfp4 mla ../x float32 plain ="),
        *("9" * 30, "a" * 5000, "\0", "\x1b[31m", "\u202e", "\u0664", ""),
    ]
)


@fuzz
@given(st.lists(st.tuples(ENGINE_WORDS, ENGINE_VALUES), max_size=5) | st.text(max_size=40))
@example("tp=4," * 5000)
@example("stages=" + "+".join(["1"] * 100_000))
@example("block=" + "9" * 10_000)
@example(",")
def test_an_engines_text_is_read_or_refused(words: list[tuple[str, str]] | str) -> None:
    text = words if isinstance(words, str) else ",".join(f"{word}={value}" for word, value in words)
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")

    def use() -> None:
        engine = Engine.parse(text)
        assert Engine.parse(str(engine)) == engine
        assert hash(Engine.parse(str(engine))) == hash(engine)
        kvlayout.slice_for_tp_transfer(spec, engine, Engine())

    refusal(use)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4) | NUMBERS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=2),
    max_leaves=4,
)


@fuzz
@given(st.dictionaries(ENGINE_WORDS, ANYTHING, max_size=4))
@example({"tp": 10**5000})
@example({"attention.block": 10**5000})
@example({"groups": {"attention": {"order": ["HND"]}}})
@example({"groups": {"attention": {"tag": "x" * 10**6}}})
@example({"stages": "1+" * 10**6})
@example({"x" * 10**6: 1})
@example({"tp": 4096, "pcp": 256})
def test_an_engines_keywords_are_taken_or_refused(words: dict[str, Any]) -> None:
    words.pop("where", None)
    error = refusal(lambda: str(Engine(**words)))
    assert error is None or {each.code for each in error.problems} <= {"KVL151", "KVL153"}


@pytest.mark.parametrize(
    "path", ["", "missing", "a\0b", "\ud800", "/dev/null", "/dev/zero", ".", "fifo", "loop", "x" * 5000, "x/" * 3000]
)
def test_what_is_no_file_is_refused(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    place = path if path in ("", "\ud800") or path.startswith("/") else f"{tmp_path}/{path}"
    for use in (kvlayout.load, load_format, Engine.load, kvlayout.load_plan, kvlayout.check):
        with pytest.raises(KvLayoutError) as caught:
            use(place)
        assert [each.code for each in caught.value.problems] == ["KVL001"]


@pytest.mark.parametrize(
    "name", ["fifo", "loop", "folder", "zero", "x" * 64, "x" * 5000, "../gqa", "/etc/passwd", "a\0b", "", "."]
)
def test_a_format_is_looked_up_among_files_by_a_name(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    error = refusal(lambda: find_format(name, tmp_path / "model.yaml", "model.yaml:1:1"))
    assert error is not None
    assert [(each.code, each.where) for each in error.problems] == [("KVL110", "model.yaml:1:1")]


def test_a_format_through_a_symlink_is_the_format(tmp_path: Path) -> None:
    (tmp_path / "gqa.yaml").symlink_to(specs_dir() / "formats" / "gqa.yaml")
    assert find_format("gqa", tmp_path / "model.yaml", "model.yaml:1:1").name == "gqa"


FORMAT = "kvlayout: 1\nformat: {name}\nsource: a test\n{more}page: {{field: k, bytes: 1, tag: int8}}\n"


@pytest.mark.parametrize(
    ("count", "close"), [(1, True), (2, True), (8, True), (9, False), (10, False), (40, True), (40, False)]
)
def test_formats_that_extend_each_other(count: int, close: bool, tmp_path: Path) -> None:
    for index in range(count):
        parent = (index + 1) % count
        more = f"extends: f{parent}\n" if parent or close else ""
        (tmp_path / f"f{index}.yaml").write_text(FORMAT.format(name=f"f{index}", more=more))
    error = refusal(lambda: load_format(tmp_path / "f0.yaml"))
    assert (error is None) == (not close and count <= 9)
    if error is not None:
        assert [each.code for each in error.problems] == ["KVL112"]


def test_a_chain_of_large_files(tmp_path: Path) -> None:
    for index in range(9):
        more = f"extends: f{index + 1}\n" if index < 8 else ""
        more += "params: {" + ", ".join(f"p{index}_{n}: {{}}" for n in range(2200)) + "}\n"
        (tmp_path / f"f{index}.yaml").write_text(FORMAT.format(name=f"f{index}", more=more))
    assert refusal(lambda: load_format(tmp_path / "f0.yaml")) is None
    assert len(load_format(tmp_path / "f0.yaml").file.params) == 9 * 2200
