"""`TransferPlan`: a proved plan in the hand of its user."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlayout.algebra.nests import Nest, run_count
from kvlayout.errors import ArtifactError, problem
from kvlayout.ir import Parallel, buffer_starts, span
from kvlayout.plan.artifact import Document, Group, Piece, encode
from kvlayout.plan.text import plan_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Cost", "Entry", "TransferPlan", "expand_runs"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one destination rank receives from one source stage, for every layer in `layers`.

    `rank` and the ranks in `runs()` count over the whole side: (pp_rank * pcp + pcp_rank) * tp + tp_rank.
    """

    group: Group
    rank: int
    layers: tuple[int, ...]
    first_src_rank: int
    pieces: tuple[Piece, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of a destination page."""
        return span(self.group.dst.tree)

    @property
    def payload_bytes(self) -> int:
        """Bytes written in all destination blocks of one template."""
        return sum(piece.nbytes * _run_count(piece) for piece in self.pieces)

    def runs(self) -> NDArray[np.int64]:
        """int64 (n, 6): source rank, source block, source offset, destination block, destination offset, bytes."""
        return expand_runs(
            self.pieces, self.first_src_rank, buffer_starts(self.group.src), buffer_starts(self.group.dst)
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan costs for one template of each group in every layer, all destination ranks together.

    `runs`: contiguous copies, before neighbours from different pieces are merged. `nbytes`: bytes moved, which is also
    bytes read: a plan reads nothing that it does not need. `pieces`: nests, that is what a kernel or a descriptor table
    is made from. `descriptors`: contiguous copies after merging, that is what a transport is given for one template of
    blocks (of a rank and layer with more than a million runs, before merging). `touched`: bytes of the source pages
    that are read from, each once for each destination rank.
    """

    runs: int
    nbytes: int
    pieces: int
    descriptors: int
    touched: int

    @property
    def bytes_per_run(self) -> float:
        """Mean length of a run; long runs are what makes a plan cheap."""
        return self.nbytes / self.runs if self.runs else 0.0

    @property
    def read_per_byte(self) -> float:
        """Bytes that are read for a byte that is needed, where source pages are read whole instead of by this plan."""
        return self.touched / self.nbytes if self.nbytes else 0.0


_MAX_MERGED = 1_000_000
"""Runs of an entry that are expanded to see which neighbours merge."""


class TransferPlan:
    """Which bytes of which source rank's page go where in each destination rank's page; proved.

    Made by `kvlayout.slice_for_tp_transfer` and `kvlayout.load_plan`, both of which only return proved plans.
    `print(plan)` is the table.
    """

    def __init__(self, document: Document) -> None:
        self.document = document

    @property
    def digest(self) -> str:
        """`sha256:...` over trees, ownership, chosen sources and nests."""
        return self.document.digest

    @property
    def groups(self) -> tuple[Group, ...]:
        """The planned groups, in the order of the spec."""
        return self.document.plan.groups

    def group(self, name: str) -> Group:
        """The group of that name; KeyError with the names there are."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group '{name}'; the plan has {', '.join(g.name for g in self.groups)}")

    def entries(self, name: str, rank: int | None = None, layer: int | None = None) -> Iterator[Entry]:
        """Every (destination rank, source stage) of a group that shares layers, in ascending order.

        `rank`, `layer`: only those of this destination rank, and that have this layer.
        """
        group = self.group(name)
        src, dst = self.document.plan.src, self.document.plan.dst
        shared: dict[int, dict[int, list[int]]] = {}  # layers by destination stage and source stage, all ascending
        for held, a, b in zip(group.layers, _stage_of_layers(src, group), _stage_of_layers(dst, group), strict=True):
            shared.setdefault(b, {}).setdefault(a, []).append(held)
        for dst_stage, sources in shared.items():
            for moves in group.ranks:
                to = dst_stage * dst.stage_ranks + moves.rank
                if rank is not None and rank != to:
                    continue
                for src_stage, layers in sources.items():
                    if layer is None or layer in layers:
                        yield Entry(group, to, tuple(layers), src_stage * src.stage_ranks, moves.pieces)

    @property
    def staged(self) -> bool:
        """Whether a side has pipeline stages, so that entries speak of some layers only."""
        return len(self.document.plan.src.stages) > 1 or len(self.document.plan.dst.stages) > 1

    def runs(self, group: str, dst_rank: int, layer: int | None = None) -> NDArray[np.int64]:
        """The runs of one destination rank: int64 (n, 6), see `Entry.runs`.

        `layer` picks the entry where pipeline stages make several. LookupError when there is no such entry, or several.
        """
        found = list(self.entries(group, dst_rank, layer))
        if len(found) == 1:
            return found[0].runs()
        if found:
            raise LookupError(f"rank {dst_rank} reads group '{group}' from {len(found)} stages; name a layer")
        raise LookupError(
            f"no entry of group '{group}' for rank {dst_rank}" + ("" if layer is None else f", layer {layer}")
        )

    def sources(self, dst_rank: int, layer: int | None = None) -> dict[str, tuple[int, ...]]:
        """The source ranks that a destination rank reads, ascending, by group; of one layer, or of all that it has.

        With pipeline stages a layer comes from the ranks of the stage that has it. LookupError for no rank of the side.
        """
        dst = self.document.plan.dst
        if not 0 <= dst_rank < dst.stage_ranks * max(1, len(dst.stages)):
            raise LookupError(f"the destination has no rank {dst_rank}")
        read: dict[str, tuple[int, ...]] = {}
        for group in self.groups:
            ranks = {
                entry.first_src_rank + piece.src_rank
                for entry in self.entries(group.name, dst_rank, layer)
                for piece in entry.pieces
            }
            if ranks:
                read[group.name] = tuple(sorted(ranks))
        return read

    @property
    def run_count(self) -> int:
        """How many rows `runs()` has for all entries together, before neighbours are merged."""
        return sum(
            _run_count(piece) for group in self.groups for entry in self.entries(group.name) for piece in entry.pieces
        )

    @property
    def cost(self) -> Cost:
        """What the whole plan costs: all ranks and layers, one template of blocks."""
        runs = nbytes = pieces = descriptors = touched = 0
        for group in self.groups:
            for entry in self.entries(group.name):
                layers = len(entry.layers)
                count = sum(_run_count(piece) for piece in entry.pieces)
                runs += layers * count
                descriptors += layers * (count if count > _MAX_MERGED else len(entry.runs()))
                nbytes += layers * entry.payload_bytes
                pieces += layers * len(entry.pieces)
                read = {(piece.src_rank, piece.src_block) for piece in entry.pieces}
                touched += layers * len(read) * group.src.nbytes
        return Cost(runs, nbytes, pieces, descriptors, touched)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact: to a temporary file beside it first, so that a reader never sees half of one.

        Raises ArtifactError when that cannot be done; then what stood there before still does.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(encode(self.document))
            os.replace(partial, target)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArtifactError(problem("KVL406", str(target), f"cannot write the artifact: {reason}")) from None
        finally:
            partial.unlink(missing_ok=True)

    def as_json(self, *, runs: bool = False, only: str | None = None) -> dict[str, Any]:
        """The shape that `kvlayout plan --format json` prints; with `runs` the expanded one."""
        groups = []
        for group in self.groups:
            if only is not None and group.name != only:
                continue
            shown: list[dict[str, Any]] = []
            for entry in self.entries(group.name):
                item: dict[str, Any] = {"rank": entry.rank}
                if self.staged:
                    item["layers"] = list(entry.layers)
                item["page_bytes"] = entry.page_bytes
                item["payload_bytes"] = entry.payload_bytes
                if group.dst.buffers:
                    item["buffers"] = dict(group.dst.buffers)
                if runs:
                    item["runs"] = entry.runs().tolist()
                else:
                    item["pieces"] = len(entry.pieces)
                    item["sources"] = sorted({entry.first_src_rank + piece.src_rank for piece in entry.pieces})
                shown.append(item)
            item = {"name": group.name, "src_blocks": group.src_blocks, "dst_blocks": group.dst_blocks}
            if group.src.buffers:
                item["src_buffers"] = dict(group.src.buffers)
            groups.append({**item, "dst": shown})
        return {
            "format_version": self.document.format_version,
            "verdict": "proved",
            "digest": self.digest,
            "groups": groups,
        }

    def __str__(self) -> str:
        return plan_text(self.document)

    def __repr__(self) -> str:
        return f"<TransferPlan {', '.join(group.name for group in self.groups)}: {self.digest}>"


def expand_runs(
    pieces: tuple[Piece, ...],
    first_src_rank: int = 0,
    src_starts: frozenset[int] = frozenset(),
    dst_starts: frozenset[int] = frozenset(),
) -> NDArray[np.int64]:
    """Every run of the pieces, sorted by destination, neighbours merged where both sides are contiguous.

    `src_starts`, `dst_starts`: offsets at which a buffer begins, so that no run goes on there.
    """
    import numpy as np

    tables = []
    for piece in pieces:
        src = np.array([piece.src_offset], dtype=np.int64)
        dst = np.array([piece.dst_offset], dtype=np.int64)
        for count, src_stride, dst_stride in piece.loops:
            steps = np.arange(count, dtype=np.int64)
            src = (src[:, None] + steps * src_stride).ravel()
            dst = (dst[:, None] + steps * dst_stride).ravel()
        table = np.empty((len(src), 6), dtype=np.int64)
        table[:, 0] = first_src_rank + piece.src_rank
        table[:, 1] = piece.src_block
        table[:, 2] = src
        table[:, 3] = piece.dst_block
        table[:, 4] = dst
        table[:, 5] = piece.nbytes
        tables.append(table)
    if not tables:
        return np.empty((0, 6), dtype=np.int64)
    rows = np.concatenate(tables)
    rows = rows[np.lexsort((rows[:, 4], rows[:, 3]))]
    ends = rows[:-1] + rows[:-1, 5:6] * np.array([0, 0, 1, 0, 1, 0])
    joined = (ends[:, :5] == rows[1:, :5]).all(axis=1)
    for column, borders in ((2, src_starts), (4, dst_starts)):
        if borders:
            joined &= ~np.isin(rows[1:, column], sorted(borders))
    starts = np.flatnonzero(np.concatenate(([True], ~joined)))
    merged = rows[starts]
    merged[:, 5] = np.add.reduceat(rows[:, 5], starts)
    return merged


def _run_count(piece: Piece) -> int:
    return run_count(Nest(0, 0, piece.nbytes, piece.loops))


def _stage_of_layers(parallel: Parallel, group: Group) -> list[int]:
    if len(parallel.stages) < 2:
        return [0] * len(group.layers)
    ends = list(accumulate(parallel.stages))
    return [bisect_right(ends, layer) for layer in group.layers]
