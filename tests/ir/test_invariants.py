"""T1 against brute force: a page without faults is injective, in bounds, and payload and pads fill it.

The converse does not hold and is not claimed: the rule is sufficient. So damaged trees are looked at byte by byte, and
every one that is in fact wrong must have a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
from conftest import Size
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.ir import Array, Axis, Bytes, Node, Page, Struct, page_faults, span
from kvlayout.testing.strategies import pages

Units = tuple[tuple[str, int], ...]


def atoms(node: Node, at: int = 0, units: Units = ()) -> Iterator[tuple[Bytes, int, Units]]:
    """Every atom with its offset and its coordinate, one by one."""
    if isinstance(node, Bytes):
        yield node, at, units
    elif isinstance(node, Array):
        for index in range(node.count):
            where = dict(units)
            where[node.axis] = where.get(node.axis, 0) + index * node.weight
            yield from atoms(node.of, at + index * node.stride, tuple(where.items()))
    else:
        for offset, child in node.members:
            yield from atoms(child, at + offset, units)


def pads(node: Node, at: int = 0) -> Iterator[tuple[int, int]]:
    if isinstance(node, Array):
        for index in range(node.count):
            yield from pads(node.of, at + index * node.stride)
    elif isinstance(node, Struct):
        yield from ((at + offset, nbytes) for offset, nbytes in node.pads)
        for offset, child in node.members:
            yield from pads(child, at + offset)


def really_wrong(page: Page, tp: int) -> str | None:
    """What is wrong with a page, found by writing down every byte of it."""
    total = span(page.tree)
    filled: Counter[int] = Counter()
    for leaf, at, _ in atoms(page.tree):
        if leaf.nbytes < 1:
            return "an atom of no bytes"
        filled.update(range(at, at + leaf.nbytes))
    for at, nbytes in pads(page.tree):
        filled.update(range(at, at + nbytes))
    if filled and (min(filled) < 0 or max(filled) >= total):
        return "out of bounds"
    if any(times > 1 for times in filled.values()):
        return "a byte has two meanings"
    if len(filled) != total:
        return "payload and pads do not fill the page"
    by_field: dict[str, list[dict[str, int]]] = {}
    for leaf, _, units in atoms(page.tree):
        by_field.setdefault(leaf.field, []).append(dict(units))
    for coordinates in by_field.values():
        axes = coordinates[0].keys()
        if not axes <= page.axes.keys():
            return "an unknown axis"
        expected = 1
        for name in axes:
            axis = page.axes[name]
            extent = axis.size // tp if axis.shard == "tp" else axis.size
            if {each.get(name) for each in coordinates} != set(range(extent)):
                return "an axis that its digits do not form"
            expected *= extent
        if len(coordinates) != expected or len({tuple(sorted(each.items())) for each in coordinates}) != expected:
            return "a coordinate twice, or never"
    return None


@given(pages())
def test_a_legal_page_is_injective_and_full(drawn: tuple[Page, int]) -> None:
    page, tp = drawn
    assert page_faults(page, tp) == []
    assert really_wrong(page, tp) is None


NUMBERS = ("nbytes", "weight", "count", "stride", "size")


def nodes(node: Node, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Node]]:
    yield path, node
    if isinstance(node, Array):
        yield from nodes(node.of, (*path, 0))
    elif isinstance(node, Struct):
        for index, (_, child) in enumerate(node.members):
            yield from nodes(child, (*path, index))


def put(node: Node, path: tuple[int, ...], new: Node) -> Node:
    """The tree with one node replaced."""
    if not path:
        return new
    if isinstance(node, Array):
        return msgspec.structs.replace(node, of=put(node.of, path[1:], new))
    assert isinstance(node, Struct)
    members = list(node.members)
    offset, child = members[path[0]]
    members[path[0]] = offset, put(child, path[1:], new)
    return msgspec.structs.replace(node, members=tuple(members))


def damaged(rng: Random, page: Page) -> Page:
    """The page with one thing changed: a number, an offset, a pad, a field's name, an axis, a member left out."""
    path, node = rng.choice(list(nodes(page.tree)))
    by = rng.choice((-2, -1, 1, 2, 5))
    if isinstance(node, Struct):
        kind = rng.randrange(4)
        if kind == 0 and node.pads:
            index = rng.randrange(len(node.pads))
            offset, nbytes = node.pads[index]
            changed = rng.choice([[(offset + by, nbytes)], [(offset, nbytes + by)], []])
            new: Node = msgspec.structs.replace(node, pads=(*node.pads[:index], *changed, *node.pads[index + 1 :]))
        elif kind == 1:
            new = msgspec.structs.replace(node, size=node.size + by)
        elif kind == 2 and len(node.members) > 1:
            index = rng.randrange(len(node.members))
            new = msgspec.structs.replace(node, members=node.members[:index] + node.members[index + 1 :])
        else:
            index = rng.randrange(len(node.members))
            offset, child = node.members[index]
            members = (*node.members[:index], (offset + by, child), *node.members[index + 1 :])
            new = msgspec.structs.replace(node, members=members)
    elif isinstance(node, Array):
        name = rng.choice(("weight", "count", "stride", "axis"))
        if name == "axis":
            new = msgspec.structs.replace(node, axis=rng.choice([*page.axes, "nowhere"]))
        else:
            new = msgspec.structs.replace(node, **{name: getattr(node, name) + by})
    elif rng.random() < 0.5:
        new = msgspec.structs.replace(node, nbytes=node.nbytes + by)
    else:
        new = msgspec.structs.replace(node, field=rng.choice(("a", "b", "c")))
    return msgspec.structs.replace(page, tree=put(page.tree, path, new))


def test_damage_is_found(size: Size) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=size(150, 5_000, quick=30))
    @given(pages(), st.integers(0, 2**32))
    def run(drawn: tuple[Page, int], seed: int) -> None:
        page, tp = drawn
        rng = Random(seed)
        for _ in range(6):
            wrecked = damaged(rng, page)
            wrong = really_wrong(wrecked, tp)
            if wrong is not None:
                assert page_faults(wrecked, tp), (wrong, wrecked)
                seen[wrong] += 1

    run()
    assert sum(seen.values()) > size(100, 5_000, quick=20), seen


def test_faults_name_what_they_speak_of() -> None:
    atom = Bytes("k", 4, "float32")
    axes = {"head": Axis(2)}
    overlapping = Struct(6, ((0, atom), (2, Bytes("v", 4, "float32"))))
    assert [(fault.code, fault.subject) for fault in page_faults(Page(overlapping, axes, None), 1)] == [("KVL120", "v")]
    short = Array("head", 1, 2, 3, atom)
    assert [fault.code for fault in page_faults(Page(short, axes, None), 1)] == ["KVL120"]
    twice = Struct(8, ((0, atom), (4, atom)))
    assert [fault.code for fault in page_faults(Page(twice, axes, None), 1)] == ["KVL123"]
    unknown = Array("row", 1, 2, 4, atom)
    assert [fault.code for fault in page_faults(Page(unknown, axes, None), 1)] == ["KVL121"]
    half = Array("head", 2, 1, 4, Array("head", 1, 1, 4, atom))
    assert [fault.code for fault in page_faults(Page(half, axes, None), 1)] == ["KVL122"]
    assert page_faults(Page(Array("head", 1, 2, 4, atom), axes, None), 1) == []


def test_size_of_a_page_does_not_matter() -> None:
    """A page of 2**61 bytes is judged like one of eight."""
    tree = Array("head", 1, 2**59, 4, Bytes("k", 4, "float32"))
    assert page_faults(Page(tree, {"head": Axis(2**59)}, None), 1) == []
    tree = Array("head", 1, 2**61, 4, Bytes("k", 4, "float32"))
    assert page_faults(Page(tree, {"head": Axis(2**61)}, None), 1) != []
