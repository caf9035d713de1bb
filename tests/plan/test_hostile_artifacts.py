"""Hostile artifacts: an edited, absurd or broken plan file is proved or refused; nothing crashes, hangs or grows.

An edit is resealed, so that it reaches the checker. Whether wrong plans are refuted is asked elsewhere; here it is
enough that whatever passes can be shown, counted and expanded.
"""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hostile import refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlayout
from kvlayout import ArtifactError, Engine, KvLayoutError
from kvlayout.data import specs_dir
from kvlayout.testing import reseal

# All examples of a test may write to one folder.
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, -1, 4096, 2**31, 2**61, 2**62, 2**62 + 1, 2**64, 10**19])


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Plans as plain JSON: attention and state with unequal blocks, and dealt-out tokens."""
    file = tmp_path_factory.mktemp("artifacts") / "plan.json"
    found = []
    for name, src, dst in (
        ("qwen3-next-80b-a3b", "tp=2,block=4", "tp=1,block=6,order=NHD"),
        ("deepseek-v3", "tp=2,dcp=2,interleave=2,block=4", "tp=1,block=8"),
    ):
        spec = kvlayout.load(specs_dir() / "models" / f"{name}.yaml")
        kvlayout.slice_for_tp_transfer(spec, Engine.parse(src), Engine.parse(dst)).save(file)
        found.append(json.loads(file.read_text()))
    return found


JSON_VALUES = NUMBERS | st.sampled_from(
    [
        2**63,
        -(2**63),
        10**30,
        1.0,
        0.5,
        True,
        None,
        "",
        "x",
        "tp",
        "cp",
        "any",
        "k",
        [],
        {},
        [1],
        {"a": 1},
        [[2**40, 0, 1]],
    ]
)
JSON_EDITS = st.lists(
    st.tuples(st.sampled_from(["set", "step", "delete", "double", "add"]), st.floats(0, 1), JSON_VALUES),
    min_size=1,
    max_size=3,
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(below for key, item in inner for below in paths_of(item, (*path, key)))]


def edit_json(plan: Any, edits: list[tuple[str, float, Any]]) -> None:
    for kind, where, value in edits:
        paths = paths_of(plan)
        if not paths:
            return
        path = paths[min(int(where * len(paths)), len(paths) - 1)]
        inside = plan
        for key in path[:-1]:
            inside = inside[key]
        key = path[-1]
        if kind == "step" and isinstance(inside[key], int):
            inside[key] += 1
        elif kind == "delete":
            del inside[key]
        elif kind == "double" and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif kind == "add" and isinstance(inside, dict):
            inside["more"] = copy.deepcopy(value)
        else:
            inside[key] = copy.deepcopy(value)


def load_artifact(folder: Path, content: bytes) -> KvLayoutError | None:
    file = folder / "plan.json"
    file.write_bytes(content)

    def use() -> None:
        plan = kvlayout.load_plan(file)
        assert str(plan) and plan.cost.pieces
        for group in plan.groups:
            for entry in plan.entries(group.name):
                entry.runs()

    return refusal(use)


@fuzz
@given(st.integers(0, 1), JSON_EDITS)
def test_an_edited_artifact_is_proved_or_refused(
    tmp_path: Path, artifacts: list[dict[str, Any]], which: int, edits: list[tuple[str, float, Any]]
) -> None:
    document = copy.deepcopy(artifacts[which])
    edit_json(document["plan"], edits)
    with contextlib.suppress(OverflowError):  # a number that has no canonical text: the seal is wrong then
        document = reseal(document)
    load_artifact(tmp_path, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        pytest.param(path, value, code, id=f"{'.'.join(map(str, path))}={str(value)[:20]}")
        for path, value, code in [
            *(
                ((side, word), value, None)
                for side in ("src", "dst")
                for word in ("tp", "pcp", "dcp", "interleave")
                for value in (0, -1, 2**40, 2**63 - 1)
            ),
            (("src", "tp"), 2**62, "KVL309"),
            (("src", "stages"), [1] * 10**6, "KVL309"),
            (("dst", "stages"), [2**62] * 1000, "KVL309"),
            (("groups", 0, "src_blocks"), 2**62, "KVL307"),
            (("groups", 0, "dst_blocks"), -1, "KVL307"),
            (("groups", 0, "layers"), list(range(10**6)), "KVL309"),
            (("groups", 0, "src", "block"), -4, "KVL126"),
            (("groups", 0, "src", "block"), None, "KVL126"),
            (("groups", 0, "src", "axes", "token", "grows"), False, "KVL126"),
            (("groups", 0, "src", "axes", "token", "size"), 2**62, "KVL122"),
            (("groups", 0, "src", "axes", "token", "granule"), 0, "KVL124"),
            (("groups", 0, "ranks", 0, "rank"), 2**62, "KVL306"),
            (("groups", 0, "ranks", 0, "pieces", 0, 0), 2**62, "KVL305"),
            (("groups", 0, "ranks", 0, "pieces", 0, 4), -(2**62), "KVL305"),
            (("groups", 0, "ranks", 0, "pieces", 0, 5), 2**62, "KVL304"),
            (("groups", 0, "ranks", 0, "pieces", 0, 6), 2**62, "KVL304"),
            (("groups", 0, "ranks", 0, "pieces", 0, 6), -1, "KVL302"),
            (("groups", 0, "ranks", 0, "pieces", 0, 7), [[2**62, 0, 0]], "KVL301"),
            (("groups", 0, "ranks", 0, "pieces", 0, 7), [[2, 1, 1]] * 20_000, "KVL390"),
            (("groups", 0, "ranks", 0, "pieces", 0, 7), [[2**31, 1, 0], [2**31, 0, 1]], "KVL301"),
        ]
    ],
)  # fmt: skip
def test_an_artifact_with_one_absurd_value(
    path: tuple[Any, ...], value: Any, code: str | None, artifacts: list[dict[str, Any]], tmp_path: Path
) -> None:
    document = copy.deepcopy(artifacts[1])
    inside = document["plan"]
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    error = load_artifact(tmp_path, json.dumps(reseal(document)).encode())
    if code is not None:
        assert error is not None
        assert code in [each.code for each in error.problems]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("empty", "KVL403"), ("null", "KVL403"), ("nul bytes", "KVL403"), ("utf-16", "KVL403"), ("trailing", "KVL403"),
        ("nan", "KVL403"), ("infinity", "KVL403"), ("float version", "KVL403"), ("long version", "KVL403"),
        ("other version", "KVL404"), ("deep", "KVL403"), ("deep member", "KVL403"), ("deep meta", "KVL403"),
        ("surrogate", "KVL403"), ("big meta", "KVL401"), ("large meta number", "KVL403"), ("meta changed", "KVL401"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_artifact(name: str, code: str, artifacts: list[dict[str, Any]], tmp_path: Path) -> None:
    good = json.dumps(artifacts[1])
    version, meta = '"format_version": 1', '"meta": {'
    assert version in good and meta in good
    texts: dict[str, str | bytes] = {
        "empty": "",
        "null": "null",
        "nul bytes": "\0" * 10**6,
        "utf-16": good.encode("utf-16"),
        "trailing": good + "{}",
        "nan": good.replace(version, '"format_version": NaN'),
        "infinity": good.replace(version, '"format_version": 1e400'),
        "float version": good.replace(version, '"format_version": 1.5'),
        "long version": good.replace(version, '"format_version": ' + "9" * 10**6),
        "other version": good.replace(version, '"format_version": 2'),
        "deep": "[" * 10**6,
        "deep member": good[:-1] + ', "more": ' + "[" * 10**5 + "]" * 10**5 + "}",
        "deep meta": good.replace(meta, meta + '"a": ' + "[" * 10**5 + "]" * 10**5 + ", "),
        "surrogate": good.replace(meta, meta + '"a": "\\ud800", '),
        "big meta": good.replace(meta, meta + f'"a": "{"x" * 10**6}", '),
        "large meta number": good.replace(meta, meta + '"a": 1e400, '),
        "meta changed": good.replace(meta, meta + '"a": 1, '),
    }
    text = texts[name]
    error = load_artifact(tmp_path, text if isinstance(text, bytes) else text.encode())
    assert isinstance(error, ArtifactError)
    assert [each.code for each in error.problems] == [code]


@pytest.mark.parametrize(("old", "new"), [('"tp": 2', '"tp": 4, "tp": 2'), ('"tp": 2', '"tp": 2, "tp": 4')])
def test_of_a_key_given_twice_the_digest_covers_what_is_read(
    old: str, new: str, artifacts: list[dict[str, Any]], tmp_path: Path
) -> None:
    good = json.dumps(artifacts[1])
    assert old in good
    file = tmp_path / "plan.json"
    file.write_text(good.replace(old, new, 1))
    error = refusal(lambda: kvlayout.load_plan(file))
    assert error is not None or kvlayout.load_plan(file).digest == artifacts[1]["digest"]


def test_an_artifact_of_many_pieces_is_refused_soon(artifacts: list[dict[str, Any]], tmp_path: Path) -> None:
    for member, code in (("ranks", "KVL306"), ("pieces", "KVL391")):
        document = copy.deepcopy(artifacts[1])
        group = document["plan"]["groups"][0]
        inside = group if member == "ranks" else group["ranks"][0]
        inside[member] = inside[member] * 20_000
        error = load_artifact(tmp_path, json.dumps(reseal(document)).encode())
        assert error is not None
        assert code in [each.code for each in error.problems]
