"""What the conformance tests share: plans of one format, and their bytes held against the positions oracle.

A page is filled with ids (`oracles.positions`), a plan's runs are replayed over the source pages, and every byte of a
destination page must then hold the id that the oracle says. Nothing here asks the compiler what is right.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from oracles.parts import Ints, Side
from oracles.positions import FORMATS, block_counts, expected_page, name_id, page_bytes, positions, replay, source_page

import kvlayout
from kvlayout.algebra.nests import runs
from kvlayout.emit.tokens import TokenCutter
from kvlayout.plan.transfer import TransferPlan
from kvlayout.spec.formats import find_format
from kvlayout.spec.model import CacheGroup, Spec, spec_of_format

__all__ = [
    "DATA", "Pair", "SourcePages", "assert_rank", "assert_right", "interval_runs", "model_of", "plan", "records",
    "some", "spec_of", "templates", "tokens_of",
]  # fmt: skip

DATA = Path(__file__).parent / "data"

Words = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """Two sides of one format. `dst_params` are the destination's parameters where they differ from `params`."""

    format: str
    params: Words
    src: Words
    dst: Words
    dst_params: Words | None = None

    @property
    def back(self) -> Pair:
        """The way back."""
        return Pair(self.format, self.dst_params or self.params, self.dst, self.src, self.params)

    @property
    def ranks(self) -> range:
        """The destination's ranks."""
        return range(self.dst.get("tp", 1) * self.dst.get("pcp", 1))

    def expected(self, rank: int) -> Ints:
        """What one destination rank must hold; the oracle's NotLoadable or NotConvertible where there is no answer."""
        return expected_page(self.format, self.params, self.src, self.dst, rank, dst_params=self.dst_params)


class SourcePages(dict[int, Ints]):
    """The ids that each source rank holds, made when they are asked for."""

    def __init__(self, format: str, params: Words, engine: Words, blocks: int) -> None:
        super().__init__()
        self.args = format, params, engine, blocks

    def __missing__(self, rank: int) -> Ints:
        format, params, engine, blocks = self.args
        page = self[rank] = source_page(format, params, engine, rank, blocks=blocks)
        return page


def spec_of(format: str, params: Words) -> Spec:
    """A one-layer spec with the group `cache`; one object for equal questions."""
    return _spec(format, json.dumps(params, sort_keys=True))


@lru_cache(maxsize=256)
def _spec(format: str, params: str) -> Spec:
    return spec_of_format(find_format(format, None, "test"), json.loads(params), "test")


def model_of(groups: Mapping[str, tuple[str, Words]]) -> Spec:
    """A model with a layer for each group, given as (format, params)."""
    found = [
        CacheGroup(name, find_format(format, None, "test"), params, (layer,), None, "test")
        for layer, (name, (format, params)) in enumerate(groups.items())
    ]
    return Spec("test", None, len(found), None, tuple(found))


def plan(pair: Pair) -> TransferPlan:
    """The proved plan of the pair, or the compiler's refusal."""
    src, dst = kvlayout.Engine(**pair.src), kvlayout.Engine(**pair.dst)
    other = None if pair.dst_params is None else spec_of(pair.format, pair.dst_params)
    return kvlayout.slice_for_tp_transfer(spec_of(pair.format, pair.params), src, dst, other)


def assert_rank(pair: Pair, found: TransferPlan, rank: int, sources: Mapping[int, Ints], group: str = "cache") -> None:
    """The plan's runs give one destination rank the bytes, the payload and the page that the oracle says."""
    expected = pair.expected(rank)
    rows = found.runs(group, rank)
    held = replay(rows, sources, expected.shape)
    wrong = np.argwhere(held != expected)
    if len(wrong):
        block, offset = wrong[0].tolist()
        fields = positions(pair.format, pair.dst_params or pair.params, pair.dst, rank)
        there, wanted = (name_id(ids[block, offset], fields) for ids in (held, expected))
        raise AssertionError(f"{pair}, rank {rank}, block {block}, byte {offset}: {there}, expected {wanted}")
    assert rows[:, 5].sum() == (expected != -1).sum()


def assert_right(
    pair: Pair, ranks: Iterable[int] | None = None, *, found: TransferPlan | None = None, name: str = "cache"
) -> TransferPlan:
    """The whole plan of a pair is right: template, page sizes, and the bytes of the given ranks (all by default).

    `found`, `name`: a plan that is already made, and its group that is the pair.
    """
    found = plan(pair) if found is None else found
    group = found.group(name)
    counts = block_counts(pair.format, pair.params, pair.src, pair.dst, dst_params=pair.dst_params)
    assert (group.src_blocks, group.dst_blocks) == counts
    size = page_bytes(pair.format, pair.dst_params or pair.params, pair.dst)
    entries = {entry.rank: entry for entry in found.entries(name)}
    assert list(entries) == list(pair.ranks)
    sources = SourcePages(pair.format, pair.params, pair.src, counts[0])
    for rank in pair.ranks if ranks is None else ranks:
        assert entries[rank].page_bytes == size
        assert_rank(pair, found, rank, sources, name)
        assert entries[rank].payload_bytes == entries[rank].runs()[:, 5].sum()
    return found


def templates(found: TransferPlan, group: str, rank: int, src_blocks: int) -> list[list[int]]:
    """The runs of a rank for tables that are longer than one template, as far as there are source blocks."""
    per = found.group(group)
    template = found.runs(group, rank).tolist()
    return [
        [run[0], run[1] + n * per.src_blocks, run[2], run[3] + n * per.dst_blocks, *run[4:]]
        for n in range(-(-src_blocks // per.src_blocks))
        for run in template
        if run[1] + n * per.src_blocks < src_blocks
    ]


def interval_runs(found: TransferPlan, name: str, rank: int, tokens: tuple[int, int]) -> list[list[int]]:
    """The runs of a rank for tokens [a, b), counted from the first token of the first blocks; as `Entry.runs`."""
    group, parallel, rows = found.group(name), found.document.plan, []
    (moves,) = (moves for moves in group.ranks if moves.rank == rank)
    cutter = TokenCutter(group, parallel.src, parallel.dst, rank)
    assert cutter.tokens is not None
    for n in range(-(-tokens[1] // cutter.tokens)):
        lo, hi = (min(max(bound - n * cutter.tokens, 0), cutter.tokens) for bound in tokens)
        for piece in moves.pieces if lo < hi else ():
            src, dst = n * group.src_blocks + piece.src_block, n * group.dst_blocks + piece.dst_block
            for nest in cutter.cut(piece, lo, hi):
                rows += [[piece.src_rank, src, at, dst, to, nbytes] for at, to, nbytes in runs(nest)]
    return rows


def tokens_of(format: str, params: Words, engine: Words, rank: int, blocks: int = 1) -> Ints:
    """The first token that each byte of a rank's blocks belongs to; -1 for pads."""
    page, per_state = FORMATS[format](params, Side.of(engine, rank)), params.get("tokens_per_state", 1)
    found = np.full((blocks, page.size), -1, np.int64)
    for part in page.fields.values():
        state = part.where[:, part.coords.index("token")]
        at = part.where[:, -1:] + np.arange(part.atom)
        for block in range(blocks):
            found[block, at] = ((state + block * page.span) * per_state)[:, None]
    return found


def some(ranks: range, most: int) -> list[int]:
    """At most about `most` of the ranks: the first, the last and those between at equal steps."""
    return sorted({*ranks[:: -(-len(ranks) // most)], ranks[-1]})


def records(name: str) -> list[dict[str, Any]]:
    """The records of a data file, one JSON object a line; of a large one, `name` + `.gz` is kept."""
    path, packed = DATA / name, DATA / f"{name}.gz"
    text = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    found = [json.loads(line) for line in text.splitlines() if line]
    assert found, f"{name} has no records"
    return found
