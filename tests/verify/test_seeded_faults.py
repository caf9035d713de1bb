"""Faults seeded into slicing and lowering, each of a kind that real connectors have had: the checker finds every one.

Each fault is put into the planner's own modules, so that what planner and checker share stays as it is. A fault need
not break every plan; it must be refuted on every plan whose bytes it breaks, and the replay must confirm the witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kvlayout.algebra.digits import Digit
from kvlayout.algebra.nests import Loop, Nest, fold
from kvlayout.api import plan_pair
from kvlayout.errors import PlanRefused
from kvlayout.plan import ownership, pairing, planner, slicing
from kvlayout.plan.align import Part, align
from kvlayout.plan.artifact import Plan, sealed
from kvlayout.plan.ownership import Shares, shares
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec
from kvlayout.verify.check import check_document
from kvlayout.verify.replay import confirms, replay

MAMBA = {"num_heads": 12, "head_dim": 1, "n_groups": 1, "state_size": 3, "conv_kernel": 3, "conv_dtype": "float16",
         "ssm_dtype": "float32"}  # fmt: skip
CASES: list[tuple[dict[str, dict[str, int | str]], str, str]] = [
    ({"gqa": {"num_kv_heads": 4, "head_size": 3, "dtype": "float16"}}, "tp=1", "tp=2,order=NHD"),
    ({"gqa": {"num_kv_heads": 4, "head_size": 3, "head_size_v": 2, "dtype": "int8"}}, "tp=8,block=4", "tp=2,block=8"),
    ({"gqa": {"num_kv_heads": 2, "head_size": 2, "dtype": "float16"}}, "tp=2", "tp=8"),
    ({"gqa": {"num_kv_heads": 12, "head_size": 2, "dtype": "float16"}}, "tp=6,block=12", "tp=4,block=16"),
    ({"gqa": {"num_kv_heads": 4, "head_size": 2, "dtype": "float16", "kv_packing": "planes"}}, "tp=2,order=NHD",
     "tp=1,cache.kv_packing=content"),
    ({"mla": {"kv_lora_rank": 4, "qk_rope_head_dim": 2, "dtype": "float16"}}, "tp=4,dcp=2,interleave=2,block=8",
     "tp=2,dcp=2,block=4"),
    ({"nvfp4": {"num_kv_heads": 2, "head_size": 64}}, "tp=2,block=8", "tp=1,block=8,cache.scale_layout=sm100"),
    ({"mamba2": MAMBA}, "tp=3,conv=SD,spec_tokens=1", "tp=2,conv=DS"),
    ({"mla_fp8_ds": {}}, "tp=1,block=4", "tp=2,block=12"),
]  # fmt: skip


def spec_of(formats: dict[str, dict[str, int | str]]) -> Spec:
    groups = [
        CacheGroup("cache", find_format(name, None, "test"), params, (0,), None, "test")
        for name, params in formats.items()
    ]
    return Spec("test", None, 1, None, tuple(groups))


def planned() -> Iterator[Plan]:
    """The plan of every case that the planner, as it now is, still makes."""
    for formats, src, dst in CASES:
        try:
            yield plan_pair(spec_of(formats), Engine.parse(src), Engine.parse(dst))
        except (PlanRefused, ZeroDivisionError, IndexError, KeyError):
            continue


def each_part(change: Callable[[list[Part]], list[Part]]) -> Callable[..., list[Part]]:
    def changed(*args: Any) -> list[Part]:
        return change(align(*args))

    return changed


def each_share(change: Callable[[Any, Any, Shares], Sequence[int]]) -> Callable[..., Shares]:
    """Ownership with other origins; `change` sees the axis and the parallel sizes."""

    def changed(where: str, leaf: Any, name: str, axis: Any, block: Any, parallel: Any) -> Shares:
        found = shares(where, leaf, name, axis, block, parallel)
        origins = tuple(change(axis, parallel, found))
        return Shares(found.digits, found.reach, origins, found.block_units)

    return changed


def each_nest(change: Callable[[Loop, int], Loop]) -> Callable[..., Nest]:
    def changed(src: int, dst: int, nbytes: int, loops: list[Loop]) -> Nest:
        return fold(src, dst, nbytes, [change(loop, nbytes) for loop in loops])

    return changed


def modulo_for_floor(axis: Any, parallel: Any, found: Shares) -> Sequence[int]:
    """Round-robin heads where contiguous shares are meant."""
    if axis.shard != "tp" or axis.size % parallel.tp:
        return found.origins
    return [rank % parallel.tp % axis.size for rank in range(len(found.origins))]


def wrong_replica_origin(axis: Any, parallel: Any, found: Shares) -> Sequence[int]:
    """Replicas dealt out in turn instead of beside each other."""
    if axis.shard != "tp" or axis.size % parallel.tp == 0:
        return found.origins
    return [rank % axis.size for rank in range(len(found.origins))]


def rank_forgotten(axis: Any, parallel: Any, found: Shares) -> Sequence[int]:
    """Every rank is taken for rank 0."""
    return [0] * len(found.origins)


def interleave_forgotten(digits: Sequence[Digit], run: int, ways: int) -> list[Digit]:
    """Context-parallel shares taken for contiguous ones."""
    return list(digits)


def block_forgotten(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, *args: Any) -> Iterator[Any]:
        for _, j, part in original(self, *args):
            yield 0, j, part

    return changed


def coalesced_blindly(pairs: Any, *_: Any) -> Any:
    """Neighbours at the destination are taken for neighbours at the source."""
    merged: list[Any] = []
    for src, dst in sorted(pairs, key=lambda pair: pair[1].base):
        last = merged[-1] if merged else None
        if last and last.dst.digits == dst.digits and dst.base == last.dst.base + last.nbytes:
            merged[-1] = pairing.PairedField((*last.names, src.field), last.nbytes + src.nbytes, last.src, last.dst)
        else:
            merged.append(pairing.PairedField((src.field,), src.nbytes, src, dst))
    return tuple(merged)


def first_source(slicers: Any, weights: Any, src_ranks: int, dst_ranks: int) -> Any:
    """A replicated rank is believed to hold the whole page."""
    return [[[(need, 0) for need in slicer.needs(rank)] for rank in range(dst_ranks)] for slicer in slicers]


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "modulo for floor in ownership": (slicing, "shares", lambda _: each_share(modulo_for_floor)),
    "wrong replica origin": (slicing, "shares", lambda _: each_share(wrong_replica_origin)),
    "the rank is forgotten": (slicing, "shares", lambda _: each_share(rank_forgotten)),
    "the interleave is forgotten": (ownership, "spread", lambda _: interleave_forgotten),
    "off by one in align": (
        slicing,
        "align",
        lambda _: lambda src, a, dst, b, lo, hi, work: align(src, a, dst, b, lo, hi - 1, work) if hi - lo > 1 else [],
    ),
    "align begins one unit late at the source": (
        slicing,
        "align",
        lambda _: each_part(lambda parts: [p._replace(src=p.src + (p.loops[-1][1] if p.loops else 1)) for p in parts]),
    ),
    "a dropped tail": (
        slicing, "align", lambda _: each_part(lambda parts: parts[:-1] if len(parts) > 1 else parts)
    ),
    "the source block is forgotten": (slicing.GroupSlicer, "_cut", block_forgotten),
    "length for stride": (slicing, "fold", lambda _: each_nest(lambda loop, nbytes: (loop[0], nbytes, loop[2]))),
    "swapped strides in fold": (slicing, "fold", lambda _: each_nest(lambda loop, _: (loop[0], loop[2], loop[1]))),
    "a count one short": (
        slicing, "fold", lambda _: each_nest(lambda loop, _: (max(1, loop[0] - 1), loop[1], loop[2]))
    ),
    "fields coalesced by the destination alone": (pairing, "_coalesced", lambda _: coalesced_blindly),
    "every source is rank 0": (planner, "choose_sources", lambda _: first_source),
}  # fmt: skip
"""Module, name in it, and what to put there (given what is there)."""


def test_without_a_fault_every_case_is_proved() -> None:
    plans = list(planned())
    assert len(plans) == len(CASES)
    for plan in plans:
        assert check_document(sealed(plan, {})).proved
        assert replay(plan) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_refuted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, make = FAULTS[fault]
    monkeypatch.setattr(module, name, make(getattr(module, name)))
    refuted = 0
    for plan in planned():
        verdict, found = check_document(sealed(plan, {})), replay(plan)
        assert verdict.status == ("refuted" if found else "proved"), verdict
        for finding in verdict.findings:
            # Without a witness only where a piece names fields that are not side by side.
            assert finding.witness is not None or finding.problem.code == "KVL304", finding
            assert finding.witness is None or confirms(found, finding.witness), finding
        refuted += bool(found)
    assert refuted


def test_a_rank_without_moves_is_refuted() -> None:
    """B01 of the kind that an empty plan is: nothing is moved, and nothing is wrong with what is moved."""
    for plan in planned():
        groups = tuple(
            replace(group, ranks=tuple(replace(moves, pieces=()) for moves in group.ranks)) for group in plan.groups
        )
        assert check_document(sealed(replace(plan, groups=groups), {})).status == "refuted"
