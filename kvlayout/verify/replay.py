"""The byte-id replay: a second opinion to the proof, that believes neither planner nor checker.

Every payload byte gets an id made of (field, global coordinates, byte in atom). The pages of all source ranks are
filled with them, the nests of a destination rank are run over them as copies, and what arrives is compared with what
the rank must hold. Nothing of the algebra is used: trees are walked node by node, the holder of a unit is found by
handing out units one at a time, and a nest is every one of its bytes. It therefore costs the number of bytes, which is
why it is a witness in tests and for small pages, and never the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlayout.ir import Array, Axis, Bytes, Node, Page, Parallel, span
from kvlayout.plan.artifact import Group, Piece, Plan
from kvlayout.verify.verdict import Witness

__all__ = ["Discrepancy", "GroupPages", "ReplayRefused", "Replayer", "confirms", "replay", "token_bytes"]

Ints = NDArray[np.int64]
Kind = Literal["missing", "twice", "wrong", "outside", "source"]

BUDGET = 64 * 1024 * 1024
NOTHING = -1
_INT64 = 2**62


class ReplayRefused(ValueError):
    """The plan is too large to be replayed, or its two pages do not say what the destination must hold."""


class Discrepancy(NamedTuple):
    """One byte that a plan gets wrong; the same words as `kvlayout.verify.verdict.Witness`."""

    kind: Kind
    group: str
    rank: int
    block: int
    offset: int


def replay(plan: Plan, budget: int = BUDGET) -> list[Discrepancy]:
    """Everything that a plan gets wrong, byte by byte; empty when it is right.

    `budget`: bytes of page that may be held at once. Raises ReplayRefused for a plan above it, and for one whose pages
    do not pair.
    """
    return Replayer(budget).replay(plan)


def confirms(found: Iterable[Discrepancy], witness: Witness) -> bool:
    """Whether a replay found the very byte that a witness names, wrong in the way it says."""
    return any(each == (witness.kind, witness.group, witness.rank, witness.block, witness.offset) for each in found)


def token_bytes(page: Page, parallel: Parallel, rank: int, blocks: int) -> tuple[Ints, Ints, int] | None:
    """The tokens that each byte of a template belongs to: first, and one past the last, int64 (blocks, page bytes);
    and how many tokens the template has over all context-parallel ranks.

    Bytes of a field along no growing axis belong to all tokens of their block; pads to none, (-1, -1). None for a page
    without tokens. `rank` is one inside its stage.
    """
    grows = {name for name, axis in page.axes.items() if axis.grows}
    if not grows or page.block is None:
        return None
    first, end = (np.full((blocks, span(page.tree)), NOTHING, np.int64) for _ in range(2))
    dealt = any(page.axes[name].shard == "cp" for name in grows)
    per_block = page.block * (parallel.cp if dealt else 1)
    for leaf, offsets, units in _walk(page.tree):
        at = offsets[:, None] + np.arange(leaf.nbytes)
        name = next((axis for axis in units if axis in grows), None)
        for block in range(blocks):
            if name is None:
                first[block, at], end[block, at] = block * per_block, (block + 1) * per_block
                continue
            axis = page.axes[name]
            unit = _held(axis, page.block, parallel, rank, blocks)[block][units[name]][:, None]
            first[block, at] = unit * page.block // axis.size
            end[block, at] = -(-(unit + 1) * page.block // axis.size)
    return first, end, per_block * blocks


class Replayer:
    """Replays plans; remembers filled pages, and ranks that it has already run, by identity."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self._groups: dict[tuple[object, ...], tuple[Group, GroupPages]] = {}

    def replay(self, plan: Plan) -> list[Discrepancy]:
        """See the function `replay`."""
        found: list[Discrepancy] = []
        for group in plan.groups:
            key = group.name, id(group.src), id(group.dst), group.src_blocks, group.dst_blocks, plan.src, plan.dst
            if key not in self._groups:
                self._groups[key] = group, GroupPages(group, plan.src, plan.dst, self.budget)
            found += self._groups[key][1].discrepancies(group)
        return found


class _Atoms(NamedTuple):
    """Every atom of one field in one block: local byte offsets, and local units by axis."""

    leaf: Bytes
    offsets: Ints
    units: dict[str, Ints]


class _Side:
    """The pages of all ranks of a side."""

    def __init__(self, page: Page, parallel: Parallel, blocks: int) -> None:
        self.page, self.parallel, self.blocks = page, parallel, blocks
        self.nbytes = span(page.tree)
        self.ranks = parallel.pcp * parallel.tp
        self.atoms = {atoms.leaf.field: atoms for atoms in _walk(page.tree)}

    def extent(self, name: str) -> int:
        """Units of an axis in the whole template."""
        axis = self.page.axes[name]
        if not axis.grows:
            return axis.size
        return axis.size * self.blocks * (self.parallel.cp if axis.shard == "cp" else 1)

    def reaches(self, begin: int, offsets: Ints) -> NDArray[np.bool_]:
        """Which bytes a piece that begins at `begin` can reach: those of the page, and of the same buffer of it."""
        low, high = 0, self.nbytes
        for _, size in self.page.buffers:
            if low + size > begin:
                high = low + size
                break
            low += size
        return np.asarray((low <= offsets) & (offsets < high))

    def ids(self, rank: int, numbering: dict[str, _Numbers], limits: dict[str, int]) -> Ints:
        """(blocks, page bytes) of ids; a coordinate at or above its axis's limit holds nothing."""
        filled = np.full((self.blocks, self.nbytes), NOTHING, np.int64)
        for name, numbers in numbering.items():
            leaf, offsets, units = self.atoms[name]
            held = {axis: _held(self.page.axes[axis], self.page.block, self.parallel, rank, self.blocks)
                    for axis in units}  # fmt: skip
            grows = any(self.page.axes[axis].grows for axis in units)
            for block in range(self.blocks):
                # What does not grow is another thing in each block.
                linear = np.full(len(offsets), 0 if grows else block, np.int64)
                owned = np.ones(len(offsets), bool)
                for axis, extent in numbers.axes:
                    unit = held[axis][block][units[axis]]
                    linear = linear * extent + unit
                    owned &= unit < limits.get(axis, extent)
                atom = np.arange(leaf.nbytes)
                at = offsets[owned, None] + atom
                filled[block, at] = numbers.first + linear[owned, None] * leaf.nbytes + atom
        return filled


class _Numbers(NamedTuple):
    """The ids of a field: [first, last), by its axes and their extents."""

    first: int
    last: int
    axes: tuple[tuple[str, int], ...]


class GroupPages:
    """The filled pages of a group, and what was found on ranks already run."""

    def __init__(self, group: Group, src: Parallel, dst: Parallel, budget: int) -> None:
        if min(group.src_blocks, group.dst_blocks) < 1:
            raise ReplayRefused(f"group '{group.name}': a template has at least one block of each side")
        need = span(group.src.tree) * group.src_blocks * src.pcp * src.tp + span(group.dst.tree) * group.dst_blocks
        if need > budget:
            raise ReplayRefused(f"group '{group.name}': its pages have {need} bytes; at most {budget} are replayed")
        self.name, self.budget = group.name, budget
        self.src = _Side(group.src, src, group.src_blocks)
        self.dst = _Side(group.dst, dst, group.dst_blocks)
        self.numbering = _number(group.name, self.src, self.dst)
        common = [name for name, axis in group.dst.axes.items() if axis.common or _is_common(group.src, name)]
        self.limits = {name: min(group.src.axes[name].size, group.dst.axes[name].size)
                       for name in common if name in group.src.axes}  # fmt: skip
        self.sources = [self.src.ids(rank, self.numbering, {}) for rank in range(self.src.ranks)]
        self._done: dict[tuple[int, ...], tuple[object, list[Discrepancy]]] = {}
        self._wanted: dict[int, tuple[Ints, Ints]] = {}

    def discrepancies(self, group: Group) -> list[Discrepancy]:
        """Everything wrong on every destination rank."""
        by_rank: dict[int, list[tuple[Piece, ...]]] = {rank: [] for rank in range(self.dst.ranks)}
        for moves in group.ranks:
            by_rank.setdefault(moves.rank, []).append(moves.pieces)
        found: list[Discrepancy] = []
        for rank, parts in by_rank.items():
            key = rank, *(id(part) for part in parts)
            if key not in self._done:  # keeps the pieces alive, so that an id stays theirs
                pieces = [piece for part in parts for piece in part]
                self._done[key] = parts, sorted(set(self._run(rank, pieces)))
            found += self._done[key][1]
        return found

    def wanted(self, rank: int) -> tuple[Ints, Ints]:
        """What a destination rank has room for, and what of it must arrive."""
        if rank not in self._wanted:
            room = self.dst.ids(rank, self.numbering, {})
            self._wanted[rank] = room, self.dst.ids(rank, self.numbering, self.limits)
        return self._wanted[rank]

    def _run(self, rank: int, pieces: list[Piece]) -> Iterator[Discrepancy]:
        known = 0 <= rank < self.dst.ranks
        if known:
            room, owed = self.wanted(rank)
            content = np.full_like(room, NOTHING)
            writes = np.zeros_like(room)
        for piece in pieces:
            src_at, dst_at = self._bytes(piece)
            if not known or not 0 <= piece.dst_block < self.dst.blocks:
                yield from self._at("outside", rank, piece.dst_block, dst_at)
                continue
            there = self.dst.reaches(piece.dst_offset, dst_at)
            yield from self._at("outside", rank, piece.dst_block, dst_at[~there])
            from_ = self._read(piece, src_at)
            yield from self._at("source", rank, piece.dst_block, dst_at[from_ == NOTHING])
            dst_at, from_ = dst_at[there], from_[there]
            payload = self._named(room[piece.dst_block, dst_at], piece.fields) != NOTHING
            yield from self._at("outside", rank, piece.dst_block, dst_at[~payload])
            content[piece.dst_block, dst_at] = from_
            np.add.at(writes[piece.dst_block], dst_at, 1)
            other = payload & (from_ != NOTHING) & (from_ != room[piece.dst_block, dst_at])
            yield from self._at("wrong", rank, piece.dst_block, dst_at[other])
        if known:
            for block in range(self.dst.blocks):
                must = owed[block] != NOTHING
                yield from self._at("missing", rank, block, np.flatnonzero(must & (writes[block] == 0)))
                yield from self._at("twice", rank, block, np.flatnonzero(writes[block] > 1))
                stray = must & (writes[block] > 0) & (content[block] != owed[block]) & (content[block] != NOTHING)
                yield from self._at("wrong", rank, block, np.flatnonzero(stray))

    def _bytes(self, piece: Piece) -> tuple[Ints, Ints]:
        """Source and destination offset of every byte that a piece moves."""
        total = 1
        for count in (piece.nbytes, *(loop[0] for loop in piece.loops)):
            total *= max(0, count)
        if total > self.budget:
            raise ReplayRefused(f"group '{self.name}': a piece moves {total} bytes; at most {self.budget} are replayed")
        loops = (*piece.loops, (piece.nbytes, 1, 1))
        if any(sum(abs(loop[0] * loop[k]) for loop in loops) > _INT64 for k in (1, 2)) or (
            max(abs(piece.src_offset), abs(piece.dst_offset)) > _INT64
        ):
            raise ReplayRefused(f"group '{self.name}': the offsets of a piece leave 64 bits")
        src, dst = np.array([piece.src_offset], np.int64), np.array([piece.dst_offset], np.int64)
        for count, src_stride, dst_stride in loops:
            steps = np.arange(max(0, count), dtype=np.int64)
            src, dst = (src[:, None] + steps * src_stride).ravel(), (dst[:, None] + steps * dst_stride).ravel()
        return src, dst

    def _read(self, piece: Piece, src_at: Ints) -> Ints:
        """The ids that a piece reads; nothing where there is no such page, no payload, or none of its fields."""
        ids = np.full(len(src_at), NOTHING, np.int64)
        if 0 <= piece.src_rank < self.src.ranks and 0 <= piece.src_block < self.src.blocks:
            inside = self.src.reaches(piece.src_offset, src_at)
            ids[inside] = self.sources[piece.src_rank][piece.src_block, src_at[inside]]
        return self._named(ids, piece.fields)

    def _named(self, ids: Ints, fields: tuple[str, ...]) -> Ints:
        """Only the ids of these fields."""
        keep = np.zeros(len(ids), bool)
        for name in fields:
            numbers = self.numbering.get(name)
            if numbers is not None:
                keep |= (numbers.first <= ids) & (ids < numbers.last)
        return np.where(keep, ids, NOTHING)

    def _at(self, kind: Kind, rank: int, block: int, offsets: Ints) -> Iterator[Discrepancy]:
        for offset in offsets.tolist():
            yield Discrepancy(kind, self.name, rank, block, offset)


def _walk(node: Node) -> Iterator[_Atoms]:
    if isinstance(node, Bytes):
        yield _Atoms(node, np.zeros(1, np.int64), {})
    elif isinstance(node, Array):
        steps = np.arange(node.count, dtype=np.int64)[:, None]
        for leaf, offsets, units in _walk(node.of):
            repeated = {axis: np.tile(unit, node.count) for axis, unit in units.items()}
            below = units.get(node.axis, np.zeros(len(offsets), np.int64))
            repeated[node.axis] = (steps * node.weight + below).ravel()
            yield _Atoms(leaf, (steps * node.stride + offsets).ravel(), repeated)
    else:
        for offset, child in node.members:
            for leaf, offsets, units in _walk(child):
                yield _Atoms(leaf, offsets + offset, units)


def _held(axis: Axis, block: int | None, parallel: Parallel, rank: int, blocks: int) -> Ints:
    """(blocks, units of a rank): the global unit that each local unit is."""
    tp_rank = rank % parallel.tp
    if axis.shard == "cp" and parallel.cp > 1:
        cp_rank = rank // parallel.tp * parallel.dcp + tp_rank % parallel.dcp
        owners = _dealt(axis.size, block or axis.size, parallel.cp, parallel.interleave, blocks)
        mine = np.flatnonzero(owners == cp_rank)
        if len(mine) != axis.size * blocks:
            raise ReplayRefused(f"an interleave of {parallel.interleave} does not fill the blocks of a rank")
        return mine.reshape(blocks, axis.size)
    units = range(axis.size)
    if axis.shard == "tp":
        if axis.size % parallel.tp == 0:
            share = axis.size // parallel.tp
            units_held = [unit for unit in units if unit // share == tp_rank]
        else:
            units_held = [tp_rank * axis.size // parallel.tp]
    else:
        units_held = list(units)
    first = np.arange(blocks)[:, None] * (axis.size if axis.grows else 0)
    return np.asarray(first + np.array(units_held), np.int64)


@lru_cache(maxsize=1024)
def _dealt(size: int, block: int, ways: int, interleave: int, blocks: int) -> Ints:
    """The cp rank that holds each unit: tokens are dealt out one by one, `interleave` to each rank in turn."""
    hands, holder, left = [], 0, interleave
    for _ in range(block * ways * blocks):
        hands.append(holder)
        left -= 1
        if left == 0:
            holder, left = (holder + 1) % ways, interleave
    owners = []
    for unit in range(size * ways * blocks):
        tokens = hands[unit * block // size : -(-(unit + 1) * block // size)]
        if len(set(tokens)) != 1:
            raise ReplayRefused(f"an interleave of {interleave} tokens cuts through a unit of the axis")
        owners.append(tokens[0])
    return np.array(owners, np.int64)


def _is_common(page: Page, name: str) -> bool:
    return name in page.axes and page.axes[name].common


def _number(group: str, src: _Side, dst: _Side) -> dict[str, _Numbers]:
    """Ids for every field that must arrive; both sides agree on them."""
    numbering: dict[str, _Numbers] = {}
    first = 0
    for name in sorted(src.atoms.keys() | dst.atoms.keys()):
        a, b = src.atoms.get(name), dst.atoms.get(name)
        if a is None or b is None:
            lone = a or b
            if lone is not None and lone.leaf.tag != "any":
                raise ReplayRefused(f"group '{group}': field '{name}' is on one side only")
            continue
        tags = a.leaf.tag, b.leaf.tag
        fits = a.leaf.nbytes == b.leaf.nbytes and a.units.keys() == b.units.keys()
        if tags == ("any", "any") and not fits:
            continue
        loose = "any" in tags and not any(tag.startswith("opaque:") for tag in tags)
        if not fits or (tags[0] != tags[1] and not loose):
            raise ReplayRefused(f"group '{group}': field '{name}' has other atoms or axes on the two sides")
        axes = tuple((axis, max(src.extent(axis), dst.extent(axis))) for axis in sorted(a.units))
        size = a.leaf.nbytes * max(src.blocks, dst.blocks)
        for _, extent in axes:
            size *= extent
        numbering[name] = _Numbers(first, first + size, axes)
        first += size
    return numbering
