"""The artifact: round trips, forged digests and seals, and files that are no artifact."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from conftest import Size
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlayout import api
from kvlayout.errors import ArtifactError
from kvlayout.ir import digest
from kvlayout.plan.artifact import Document, Plan, decode, encode, read, seal_of, sealed
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.testing import reseal
from kvlayout.testing.strategies import plans
from kvlayout.verify.check import check_document

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]
META: dict[str, Any] = {"spec": "a spec", "compiler": "kvlayout 0"}

Path_ = tuple[str | int, ...]


@given(plans())
@settings(suppress_health_check=QUIET)
def test_round_trip_is_identity(plan: Plan) -> None:
    document = sealed(plan, META)
    data = encode(document)
    again = decode(data, "memory")
    assert again == document
    assert encode(again) == data
    assert digest(again.plan) == digest(plan) == document.digest
    assert seal_of(again) == document.seal
    # Plain JSON of any spelling is the same document, with the same digest.
    plain = json.loads(data)
    assert decode(json.dumps(plain, indent=2).encode(), "memory") == document
    assert digest(plain["plan"]) == document.digest
    assert reseal(plain) == plain
    assert reseal(document) == document


def test_the_digest_from_a_file_is_the_one_in_memory(tmp_path: Path, size: Size) -> None:
    path = tmp_path / "plan.json"

    @settings(max_examples=size(20, 300, quick=5), suppress_health_check=QUIET)
    @given(plans())
    def run(plan: Plan) -> None:
        document = sealed(plan, META)
        path.write_bytes(encode(document))
        assert read(path) == document
        assert api.check(path).digest == document.digest == api.check(document).digest
        assert api.load_plan(path, document.digest).digest == document.digest

    run()


def test_the_compiler_stands_outside_digest_and_seal() -> None:
    document = sample()
    other = msgspec.structs.replace(document, meta={**document.meta, "compiler": "kvlayout 99"})
    assert check_document(other).proved
    renamed = msgspec.structs.replace(document, meta={**document.meta, "spec": "another"})
    assert [each.code for each in check_document(renamed).problems] == ["KVL401"]
    assert check_document(reseal(renamed)).proved


def sample() -> Document:
    """The plan of a small model, sealed."""
    params: dict[str, int | str] = {"num_kv_heads": 4, "head_size": 2, "dtype": "float16"}
    group = CacheGroup("g", find_format("gqa", None, "test"), params, (0, 1), None, "test")
    spec = Spec("s", None, 2, None, (group,))
    return sealed(api.plan_pair(spec, Engine.parse("tp=2,order=NHD"), Engine.parse("tp=4,block=8,pp=2")), META)


def test_forged_digests_and_seals_are_found(size: Size) -> None:
    """Any change of the content, a wrong digest, or a wrong seal, that is not signed anew."""
    codes: Counter[str] = Counter()

    @settings(max_examples=size(60, 2_000, quick=10), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(plan: Plan, seed: int) -> None:
        document, rng = sealed(plan, META), Random(seed)
        other = "sha256:" + rng.randbytes(32).hex()
        changed = msgspec.structs.replace(plan, groups=plan.groups + plan.groups[:1])
        for forged, expected in (
            (msgspec.structs.replace(document, seal=other), {"KVL401"}),
            (msgspec.structs.replace(document, digest=other), {"KVL401", "KVL402"}),
            (msgspec.structs.replace(document, plan=changed), {"KVL401", "KVL402"}),
            (msgspec.structs.replace(document, seal="", digest=""), {"KVL401", "KVL402"}),
            (msgspec.structs.replace(document, meta={**META, "extra": 1}), {"KVL401"}),
            (resealed_with(document, other), {"KVL402"}),
        ):
            verdict = check_document(forged)
            assert verdict.status == "refuted"
            assert {each.code for each in verdict.problems} == expected
            codes.update(expected)

    run()
    assert codes["KVL401"] and codes["KVL402"]


def resealed_with(document: Document, forged_digest: str) -> Document:
    """A wrong digest under a right seal."""
    forged = msgspec.structs.replace(document, digest=forged_digest)
    return msgspec.structs.replace(forged, seal=seal_of(forged))


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))


JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 2**31, 2**63, 2**64 + 1, 10**30, -(2**70), 1.5, "", "x", "\x00", "9" * 40, [], [[]],
    {}, [0], [None, None], {"node": "bytes"}, {"node": "array", "axis": "head"}, [1, 2, 3], [[0, 1, 2]],
)  # fmt: skip


def broken(rng: Random, document: dict[str, Any]) -> dict[str, Any]:
    """A JSON document with one thing changed: a value, a key, the length of a list."""
    copied = copy.deepcopy(document)
    path = rng.choice([place for place in places(copied) if place])
    parent = copied
    for step in path[:-1]:
        parent = parent[step]  # type: ignore[index]
    last: Any = path[-1]
    kind = rng.randrange(5)
    if kind == 0:
        del parent[last]
    elif kind == 1 and isinstance(parent, dict):
        parent[last + "_"] = parent.pop(last)
    elif kind == 2 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
    elif kind == 3 and isinstance(parent[last], int) and not isinstance(parent[last], bool):
        parent[last] += rng.choice((-1, 1, 10**6))
    else:
        parent[last] = copy.deepcopy(rng.choice(JUNK))
    return copied


def test_broken_documents_are_errors_and_never_tracebacks(size: Size) -> None:
    """What breaks the schema is an ArtifactError; what does not gets a verdict, re-sealed or not."""
    outcomes: Counter[str] = Counter()
    codes: set[str] = set()

    @settings(max_examples=size(40, 1_500, quick=8), suppress_health_check=QUIET)
    @given(plans(), st.integers(0, 2**32))
    def run(plan: Plan, seed: int) -> None:
        rng = Random(seed)
        plain = json.loads(encode(sealed(plan, META)))
        for _ in range(25):
            forged = broken(rng, plain)
            for each in (forged, reseal(forged)):
                try:
                    document = decode(json.dumps(each).encode(), "memory")
                except ArtifactError as error:
                    outcomes["error"] += 1
                    codes.update(found.code for found in error.problems)
                    continue
                verdict = check_document(document)
                outcomes[verdict.status] += 1

    run()
    assert outcomes["error"] and outcomes["refuted"], outcomes
    assert codes <= {"KVL403", "KVL404"}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"7", b"null", b'"plan"', b"{}", b'{"format_version": "1"}', b'{"format_version": 1}',
        b"\xff\xfe{}", b'{"format_version": 1e400}', b"[" * 100_000, b'{"format_version":' + b"9" * 5_000 + b"}",
        b'{"format_version": 1, "digest": "", "seal": "", "plan": {"src": {}, "dst": {}, "groups": []}, "meta": []}',
    ],
)  # fmt: skip
def test_what_is_no_artifact(data: bytes) -> None:
    with pytest.raises(ArtifactError) as caught:
        decode(data, "file.json")
    assert caught.value.problems[0].code in ("KVL403", "KVL404")
    assert caught.value.problems[0].where == "file.json"


def test_a_tree_as_deep_as_the_file_allows() -> None:
    """Deep nesting is refused, by the reader or by the rules of pages, before anything recurses over it."""
    plain = json.loads(encode(sample()))
    for depth in (50, 150, 400, 5_000):
        tree: str = json.dumps(plain["plan"]["groups"][0]["src"]["tree"])
        deep = '{"node":"struct","size":1,"members":[[0,' * depth + tree + ']],"pads":[]}' * depth
        text = json.dumps(plain).replace(tree, deep, 1)
        try:
            document = decode(text.encode(), "memory")
        except ArtifactError:
            continue
        assert check_document(reseal(document)).status == "refuted"


def test_another_format_version_is_told_apart() -> None:
    plain = json.loads(encode(sample()))
    plain["format_version"] = 2
    with pytest.raises(ArtifactError, match="KVL404"):
        decode(json.dumps(plain).encode(), "memory")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ArtifactError, match="KVL001"):
            read(path)
