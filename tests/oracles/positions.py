"""The second oracle: where every atom of a page lies, and what a destination page must hold after a transfer.

``positions`` states byte positions per format from closed formulas over index grids (``attention``, ``variants``,
``state``, ``sglang``). It reads no spec and shares no code with the compiler. ``source_page`` and ``expected_page``
write one id per payload byte, made of (field, global coordinates, byte in atom), so that a test fills source pages with
ids, replays a plan's runs over them and compares::

    expected = expected_page("nvfp4", params, src, dst, dst_rank, src_blocks=s, dst_blocks=d)
    sources = {r: source_page("nvfp4", params, src, r, blocks=s) for r in source_ranks}
    assert (replay(runs, sources, expected.shape) == expected).all()

Pages are arrays (blocks, page bytes). Token coordinates count from the first token of block 0 in units of states and
run on over blocks. Replicas carry the same ids, so any legal choice of source ranks compares equal.

Convolution rows are common to both sides: of a state with R rows here and R' there, rows 0 to min - 1 move.
``source_page`` carries all rows of its side, ``expected_page`` the shared ones; the rest of a destination stays -1,
like padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from typing import Any

import numpy as np

from .attention import ATTENTION
from .parts import Field, Ints, NotLoadable, Page, PageFunction, Side
from .sglang import SGLANG, SGLANG_STATE
from .state import STATE
from .variants import VARIANTS

__all__ = [
    "FORMATS", "Field", "NotConvertible", "NotLoadable", "block_counts", "expected_page", "name_id", "page_bytes",
    "positions", "replay", "shared_rows", "source_page",
]  # fmt: skip

Params = Mapping[str, Any]
Engine = Mapping[str, Any]

FORMATS: dict[str, PageFunction] = ATTENTION | VARIANTS | SGLANG | STATE | SGLANG_STATE
NAMES = (
    "k", "v", "k_data", "k_scale", "v_data", "v_scale", "latent", "latent_scale", "rope", "key", "key_scale", "nope",
    "scale", "scale_pad", "conv_x", "conv_b", "conv_c", "conv_q", "conv_k", "conv_v", "temporal",
    "k_norm", "v_zero", "row", "row_scale", "kv_state", "score_state", "gate", "positions", "ring_x", "ring_dt",
    "ring_b", "correction", "key_gate",
)  # fmt: skip
OPEN = {"token": 1 << 20, "row": 1 << 8}
UNTOUCHED = -1


class NotConvertible(Exception):
    """Both sides exist, but a field differs in atom bytes, tag or global extent: no byte copy converts the pair."""


def _page(format: str, params: Params, engine: Engine, rank: int) -> Page:
    return FORMATS[format](params, Side.of(engine, rank))


def positions(format: str, params: Params, engine: Engine, rank: int) -> dict[str, Field]:
    """Every atom that the rank holds in block 0, by field. Raises NotLoadable where no such engine exists."""
    return _page(format, params, engine, rank).fields


def page_bytes(format: str, params: Params, engine: Engine) -> int:
    """Bytes of one page on any rank: payload and the padding that the format itself asks for."""
    return _page(format, params, engine, 0).size


def shared_rows(
    format: str, params: Params, src_engine: Engine, dst_engine: Engine, *, dst_params: Params | None = None
) -> int | None:
    """How many convolution rows both sides have, and therefore move; None for a format without convolution rows."""
    src = _page(format, params, src_engine, 0).rows
    dst = _page(format, dst_params or params, dst_engine, 0).rows
    return None if src is None or dst is None else min(src, dst)


def block_counts(
    format: str, params: Params, src_engine: Engine, dst_engine: Engine, *, dst_params: Params | None = None
) -> tuple[int, int]:
    """Consecutive blocks of each side that make their smallest common token span; (1, 1) for state pages."""
    src = _page(format, params, src_engine, 0).span
    dst = _page(format, dst_params or params, dst_engine, 0).span
    return (lcm(src, dst) // src, lcm(src, dst) // dst) if src else (1, 1)


def source_page(format: str, params: Params, engine: Engine, rank: int, *, blocks: int = 1) -> Ints:
    """The ids that one rank holds before the transfer, as (blocks, page bytes); -1 where there is no payload."""
    return _fill(_page(format, params, engine, rank), blocks, limits={})


def expected_page(
    format: str,
    params: Params,
    src_engine: Engine,
    dst_engine: Engine,
    dst_rank: int,
    *,
    dst_params: Params | None = None,
    src_blocks: int | None = None,
    dst_blocks: int | None = None,
) -> Ints:
    """The ids that one destination rank must hold after the transfer, as (blocks, page bytes); -1 where nothing moves.

    Block counts default to ``block_counts``. With given counts whose spans differ, tokens that one side lacks stay -1.
    Raises NotLoadable if either engine cannot exist and NotConvertible if the two cannot exchange bytes.
    """
    src = _page(format, params, src_engine, 0)
    dst = _page(format, dst_params or params, dst_engine, dst_rank)
    counts = block_counts(format, params, src_engine, dst_engine, dst_params=dst_params)
    src_blocks, dst_blocks = src_blocks or counts[0], dst_blocks or counts[1]
    if params.get("tokens_per_state", 1) != (dst_params or params).get("tokens_per_state", 1):
        raise NotConvertible("tokens_per_state differs: a state is not made of the same tokens")
    for name in src.fields.keys() | dst.fields.keys():
        a, b = src.fields.get(name), dst.fields.get(name)
        if a is None or b is None or (a.atom, a.tag, a.coords, a.extent) != (b.atom, b.tag, b.coords, b.extent):
            raise NotConvertible(f"field {name} differs")
    limits: dict[str, int] = {}
    if src.span:
        limits["token"] = src_blocks * src.span
    if src.rows is not None:
        limits["row"] = src.rows
    return _fill(dst, dst_blocks, limits)


def replay(runs: Iterable[Sequence[int]], sources: Mapping[int, Ints], shape: tuple[int, ...]) -> Ints:
    """Destination blocks after runs [src rank, src block, src offset, dst block, dst offset, bytes]; -1 is unwritten.

    Raises AssertionError for what a comparison of ids alone would not show: a byte written twice, a run that leaves a
    page, a read of bytes that are no payload.
    """
    pages = np.full(shape, UNTOUCHED, np.int64)
    for run in runs:
        src_rank, src_block, src_offset, dst_block, dst_offset, size = map(int, run)
        read = sources[src_rank][src_block, src_offset : src_offset + size]
        written = pages[dst_block, dst_offset : dst_offset + size]
        inside = min(src_offset, dst_offset) >= 0 and read.size == written.size == size > 0
        assert inside, f"run {run} leaves a page"
        assert (read != UNTOUCHED).all(), f"run {run} reads bytes that are no payload"
        assert (written == UNTOUCHED).all(), f"run {run} writes a byte that was already written"
        written[:] = read
    return pages


def name_id(ident: int, fields: Mapping[str, Field]) -> str:
    """An id in words, for messages: ``k_scale head=1 token=5 scale=0 byte 0``."""
    if ident == UNTOUCHED:
        return "nothing"
    rest, number = divmod(int(ident), len(NAMES))
    part = fields[NAMES[number]]
    rest, byte = divmod(rest, part.atom)
    words: list[str] = []
    for name, extent in reversed(list(zip(part.coords, part.extent, strict=True))):
        rest, unit = divmod(rest, extent or OPEN[name])
        words.insert(0, f"{name}={unit}")
    return " ".join([NAMES[number], *words, "byte", str(byte)])


def _fill(page: Page, blocks: int, limits: Mapping[str, int]) -> Ints:
    """Pages of ids; atoms with a coordinate at or above its axis' limit are left out."""
    if not page.span and blocks != 1:
        raise ValueError("a state page does not grow with blocks")
    pages = np.full((blocks, page.size), UNTOUCHED, np.int64)
    for name, part in page.fields.items():
        for block in range(blocks):
            where = part.where.copy()
            if "token" in part.coords:
                where[:, part.coords.index("token")] += block * page.span
            for axis in limits.keys() & set(part.coords):
                where = where[where[:, part.coords.index(axis)] < limits[axis]]
            linear = np.zeros(len(where), np.int64)
            for column, (axis, extent) in enumerate(zip(part.coords, part.extent, strict=True)):
                linear = linear * (extent or OPEN[axis]) + where[:, column]
            bytes_ = np.arange(part.atom)
            at = where[:, -1:] + bytes_
            assert (pages[block, at] == UNTOUCHED).all(), f"{name} overlaps another field"
            pages[block, at] = (linear[:, None] * part.atom + bytes_) * len(NAMES) + NAMES.index(name)
    return pages
