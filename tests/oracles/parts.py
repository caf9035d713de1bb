"""What the formulas of the second oracle share: one side of a transfer, the units a rank holds, fields and pages.

Nothing here knows a page layout. A page function (in ``attention`` and ``state``) asks this module which global units
the rank holds, states one closed formula per field over *local* indices, and gets back rows of global coordinates.

File names in docstrings are those of vLLM 0.32. Short forms: KI v1/kv_cache_interface.py, KL v1/kv_cache_layout.py, BU
v1/attention/backends/utils.py, CM distributed/kv_transfer/kv_connector/v1/offloading/canonical_mapping.py, MU
model_executor/layers/mamba/mamba_utils.py, AB model_executor/layers/mamba/abstract.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1}
HEADS_OUTER = {"LBHNC": True, "BLHNC": True, "HND": True, "LBNHC": False, "BLNHC": False, "NHD": False}


class NotLoadable(Exception):
    """No engine can load this format at these sizes: nothing to convert on that side."""


class Axis(NamedTuple):
    """The units of one global axis that a rank holds, in local order; extent 0 marks an open axis (token, row)."""

    name: str
    units: Ints
    extent: int


@dataclass(frozen=True)
class Field:
    """Every atom of one field on one rank.

    ``where`` has one row per atom: its global coordinates in the order of ``coords``, then its byte offset in the page.
    ``extent`` is the global size per coordinate, 0 for open axes (token counts over blocks, row differs per side).
    """

    atom: int
    tag: str
    coords: tuple[str, ...]
    where: Ints
    extent: tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """One rank's page: fields, total bytes, the states one block id covers over all context-parallel ranks, conv rows.

    ``span`` is 0 for a page that does not grow with tokens, ``rows`` is None where there is no convolution state.
    """

    fields: dict[str, Field]
    size: int
    span: int = 0
    rows: int | None = None


PageFunction = Callable[[Mapping[str, Any], "Side"], Page]


@dataclass(frozen=True)
class Side:
    """One engine seen from one of its ranks; ranks count (pcp rank, tp rank), tp innermost."""

    tp: int
    dcp: int
    pcp: int
    interleave: int
    block: int
    heads_outer: bool
    dim_outer: bool
    spec_tokens: int
    rank: int

    @classmethod
    def of(cls, engine: Mapping[str, Any], rank: int) -> Side:
        """Reads engine words, refusing any that this oracle does not model; context-parallel ranks divide tp's."""
        words: dict[str, Any] = {
            "tp": 1, "dcp": 1, "pcp": 1, "interleave": 1, "block": 16, "order": "LBHNC", "conv": "DS", "spec_tokens": 0,
        }  # fmt: skip
        if unknown := set(engine) - set(words):
            raise ValueError(f"engine words {sorted(unknown)} are not modelled; legal: {sorted(words)}")
        words.update(engine)
        heads_outer = HEADS_OUTER[words.pop("order")]
        dim_outer = {"DS": True, "SD": False}[words.pop("conv")]
        side = cls(heads_outer=heads_outer, dim_outer=dim_outer, rank=rank, **words)
        if not 0 <= rank < side.tp * side.pcp:
            raise ValueError(f"rank {rank} of an engine with {side.tp * side.pcp} ranks")
        need(side.tp % side.dcp == 0, f"dcp {side.dcp} does not divide tp {side.tp}")
        return side

    @property
    def tp_rank(self) -> int:
        """Place in the tensor-parallel group; ranks of one pcp rank are neighbours."""
        return self.rank % self.tp

    @property
    def cp_size(self) -> int:
        """W: over how many ranks one block spreads its tokens (CM counts dcp * pcp)."""
        return self.dcp * self.pcp

    @property
    def cp_rank(self) -> int:
        """CM: pcp_rank * dcp + tp_rank mod dcp."""
        return self.rank // self.tp * self.dcp + self.tp_rank % self.dcp


def need(condition: bool, why: str) -> None:
    """Raises NotLoadable unless the condition holds."""
    if not condition:
        raise NotLoadable(why)


def whole(name: str, count: int) -> Axis:
    """An axis that every rank holds entirely."""
    return Axis(name, np.arange(count), count)


def rows(count: int) -> Axis:
    """Rows of a convolution state; open, because two sides may keep different numbers of speculative rows."""
    return Axis("row", np.arange(count), 0)


def split(name: str, count: int, side: Side, *, few: str = "refuse") -> Axis:
    """Contiguous equal shares per tp rank; with fewer units than ranks, unit r * n // tp or no such engine."""
    r, tp = side.tp_rank, side.tp
    if count % tp == 0:
        return Axis(name, np.arange(r * count // tp, (r + 1) * count // tp), count)
    need(tp % count == 0, f"{count} units of {name} over tp {tp}: neither divides")
    need(few == "replicate", f"{count} units of {name} are fewer than tp {tp}")
    return Axis(name, np.array([r * count // tp]), count)


def kv_heads(count: int, side: Side) -> Axis:
    """KV heads; context-parallel ranks hold the same head, so dcp must fit into its replicas (config/model.py)."""
    need(side.dcp == 1 or side.tp >= side.dcp * count, f"dcp {side.dcp} with {count} KV heads over tp {side.tp}")
    return split("head", count, side, few="replicate")


def states(side: Side, tokens_per_state: int = 1) -> tuple[Axis, int]:
    """The states a rank keeps in block 0, in slot order, and the states the block covers over all ranks.

    CM, attention/backends/utils.py: token o of a virtual block of block * W tokens belongs to rank (o div I) mod W, in
    slot (o div (I * W)) * I + o mod I. Here the inverse: slot j of rank c holds token (j div I) * I * W + c * I + j mod
    I. Compressed caches count states: block and I are divided by tokens_per_state (KI).
    """
    need(side.block % tokens_per_state == 0, f"block {side.block} cuts a state of {tokens_per_state} tokens")
    slot, w = np.arange(side.block // tokens_per_state), side.cp_size
    if w == 1:
        return Axis("token", slot, 0), len(slot)
    need(side.block % side.interleave == 0, f"interleave {side.interleave} does not divide block {side.block}")
    need(side.interleave % tokens_per_state == 0, f"interleave {side.interleave} cuts a state of {tokens_per_state}")
    i = side.interleave // tokens_per_state
    return Axis("token", slot // i * i * w + side.cp_rank * i + slot % i, 0), len(slot) * w


def field(atom: int, tag: str, axes: Sequence[Axis], offset: Ints) -> Field:
    """Rows (global coordinates, offset) from the axes and offsets that broadcast over their local indices."""
    shape = tuple(len(axis.units) for axis in axes)
    columns = [*np.meshgrid(*(axis.units for axis in axes), indexing="ij"), np.broadcast_to(offset, shape)]
    where = np.stack([column.ravel() for column in columns], axis=1).astype(np.int64)
    return Field(atom, tag, tuple(axis.name for axis in axes), where, tuple(axis.extent for axis in axes))
