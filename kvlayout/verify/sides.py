"""What a checker must know of one side, derived anew from the artifact: addresses of fields and ownership of ranks.

Nothing here is shared with `plan`: ownership is stated from the unit's point of view (who holds unit u), digits are
stretched to global units by asking where a unit lies, and offsets are decoded by long division.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from kvlayout.ir import Leaf, Page, Parallel, buffer_starts, leaves

__all__ = ["Address", "SideView", "Vector", "paired_views"]

Vector = tuple[int, ...]
"""One integer a digit, or one an axis."""


@dataclass(frozen=True, slots=True)
class Address:
    """Neighbouring fields of one side as one leaf, whose last digit counts the bytes of its atom.

    Digits by position, greatest stride first: `strides` in bytes, `counts`, `axes` (index into `names`; the byte
    digit has the last), `weights` in global units. `block_weight`: global units of the growing axis that a block
    covers, and `block_axis` its index, or -1.
    """

    base: int
    names: tuple[str, ...]
    strides: Vector
    counts: Vector
    axes: Vector
    weights: Vector
    block_axis: int
    block_weight: int
    steps: dict[int, Vector] = field(default_factory=dict, compare=False)

    def decode(self, offset: int) -> Vector | None:
        """The digits of a byte, or None when it is no byte of these fields."""
        rest = offset - self.base
        if rest < 0:
            return None
        values = []
        for stride, count in zip(self.strides, self.counts, strict=True):
            value, rest = divmod(rest, stride)
            if value >= count:
                return None
            values.append(value)
        return tuple(values)

    def step(self, stride: int) -> Vector:
        """How the digits change over `stride` >= 0 bytes while nothing carries."""
        found = self.steps.get(stride)
        if found is None:
            rest, values = stride, []
            for each in self.strides:
                value, rest = divmod(rest, each)
                values.append(value)
            found = self.steps[stride] = tuple(values)
        return found

    def logical(self, values: Vector, block: int = 0) -> Vector:
        """Global units by axis (the last: byte inside the atom), without the rank's origin."""
        out = [0] * len(self.names)
        for value, axis, weight in zip(values, self.axes, self.weights, strict=True):
            out[axis] += value * weight
        if self.block_axis >= 0:
            out[self.block_axis] += block * self.block_weight
        return tuple(out)


class SideView:
    """One side of a group: its leaves by field, and where each rank's share of an axis begins.

    `rows`: how many innermost axes of a field are read as bytes of its atom (see `paired_views`).
    """

    def __init__(self, page: Page, parallel: Parallel, rows: Mapping[str, int] | None = None) -> None:
        self.page = page
        self.parallel = parallel
        self.leaves: dict[str, Leaf] = {}
        for leaf in leaves(page.tree):
            if rows is not None and leaf.field in rows:
                taken = list(self.solid(leaf))[: rows[leaf.field]]
                names = {name for name, _ in taken}
                leaf = replace(
                    leaf,
                    nbytes=leaf.nbytes * prod(count for _, count in taken),
                    axes=tuple(name for name in leaf.axes if name not in names),
                    digits=tuple(digit for digit in leaf.digits if digit[0] not in names),
                )
            self.leaves[leaf.field] = leaf
        self._addresses: dict[tuple[str, ...], Address | None] = {}
        self._read_as: dict[tuple[tuple[str, int], ...], SideView] = {}

    def solid(self, leaf: Leaf) -> Iterator[tuple[str, int]]:
        """The axes of which a leaf's atoms are dense rows, innermost first: (axis, units).

        A row is solid when each unit of the axis, in ascending order, begins where the one before it ends, and every
        rank has all of them; then byte `b` of unit `u` is byte `u * atom + b` of the row.
        """
        end = leaf.nbytes
        yield from ((name, 1) for name in sorted(leaf.axes) if self._unshared(name) and self.page.axes[name].size == 1)
        for name, weight, count, stride in sorted(leaf.digits, key=lambda digit: digit[3]):
            if not self._unshared(name) or (weight, count, stride) != (1, self.page.axes[name].size, end):
                return
            yield name, count
            end *= count

    def _unshared(self, name: str) -> bool:
        axis = self.page.axes[name]
        return axis.shard is None and not axis.grows and not axis.common

    def reading(self, rows: dict[str, int]) -> SideView:
        """This side with so many solid axes of each field read as bytes of its atom. Views are remembered."""
        if not rows:
            return self
        key = tuple(sorted(rows.items()))
        if key not in self._read_as:
            self._read_as[key] = SideView(self.page, self.parallel, rows)
        return self._read_as[key]

    @property
    def tokens(self) -> int | None:
        """Tokens that one block covers over all cp ranks; None for a state page."""
        growing = [axis for axis in self.page.axes.values() if axis.grows]
        if not growing or self.page.block is None:
            return None
        return self.page.block * (self.parallel.cp if any(axis.shard == "cp" for axis in growing) else 1)

    def origin(self, rank: int, axis_name: str) -> int:
        """The least global unit of an axis that a rank (inside its stage) holds.

        Unit u of n is held by tensor-parallel rank r exactly when u * tp <= r * n + n - 1 and r * n <= u * tp + tp - 1
        (shard) or u = r * n // tp (replica): both have the same least unit.
        """
        axis, parallel = self.page.axes[axis_name], self.parallel
        pcp_rank, tp_rank = divmod(rank, parallel.tp)
        if axis.shard == "tp":
            return (tp_rank * axis.size) // parallel.tp
        if axis.shard == "cp":
            cp_rank = pcp_rank * parallel.dcp + tp_rank % parallel.dcp
            return cp_rank * self._interleave(axis.size) if parallel.cp > 1 else 0
        return 0

    def uneven(self, axis_name: str) -> int | None:
        """The length of a share, block or run of an axis that is no multiple of its granule, or None."""
        axis, parallel = self.page.axes[axis_name], self.parallel
        lengths = []
        if axis.grows:
            lengths.append(axis.size)
        if axis.shard == "tp" and parallel.tp > 1 and axis.size > 1:
            lengths.append(max(1, axis.size // parallel.tp))
        if axis.shard == "cp" and parallel.cp > 1:
            lengths.append(self._interleave(axis.size))
        return next((length for length in lengths if length % axis.granule), None)

    def _interleave(self, block_units: int) -> int:
        tokens = self.page.block or block_units
        units, rest = divmod(self.parallel.interleave * block_units, tokens)
        return 0 if rest else units

    def address(self, fields: tuple[str, ...]) -> Address | None:
        """The address of fields that lie beside each other under equal digits; None when they do not."""
        if fields not in self._addresses:
            self._addresses[fields] = self._make(fields)
        return self._addresses[fields]

    def _make(self, fields: tuple[str, ...]) -> Address | None:
        if not fields or any(name not in self.leaves for name in fields):
            return None
        first, end, starts = self.leaves[fields[0]], 0, buffer_starts(self.page)
        for name in fields:
            leaf = self.leaves[name]
            if (leaf.digits, leaf.axes) != (first.digits, first.axes) or leaf.base != first.base + end:
                return None
            if end and leaf.base in starts:
                return None  # beside each other in the page, but in two buffers
            end += leaf.nbytes
        names = (*sorted(first.axes), "byte")
        rows: list[tuple[int, int, int, int]] = [(1, end, len(names) - 1, 1)]
        for axis_name, weight, count, stride in first.digits:
            index = names.index(axis_name)
            for part in self._global_digits(axis_name, weight, count, stride):
                if part is None:
                    return None
                rows.append((part[2], part[1], index, part[0]))
        rows.sort(key=lambda row: (-row[0], row[2]))  # the byte digit, whose axis is last, stays last
        block_axis, block_weight = -1, 0
        for index, axis_name in enumerate(names[:-1]):
            axis = self.page.axes[axis_name]
            if axis.grows:
                block_axis = index
                block_weight = axis.size * (self.parallel.cp if axis.shard == "cp" else 1)
        return Address(
            first.base,
            names,
            tuple(row[0] for row in rows),
            tuple(row[1] for row in rows),
            tuple(row[2] for row in rows),
            tuple(row[3] for row in rows),
            block_axis,
            block_weight,
        )

    def _global_digits(self, axis_name: str, weight: int, count: int, stride: int) -> list[tuple[int, int, int] | None]:
        axis = self.page.axes[axis_name]
        if axis.shard != "cp" or self.parallel.cp == 1:
            return [(weight, count, stride)]
        run = self._interleave(axis.size)
        if run == 0 or axis.size % run:
            return [None]

        def place(unit: int) -> int:
            return unit // run * run * self.parallel.cp + unit % run

        low = min(count, max(1, run // weight))
        if (weight < run and (run % weight or count % low)) or (weight >= run and weight % run):
            return [None]
        parts: list[tuple[int, int, int] | None] = []
        if low > 1:
            parts.append((place(weight), low, stride))
        if count > low:
            parts.append((place(weight * low), count // low, stride * low))
        return parts


def paired_views(src: SideView, dst: SideView) -> tuple[SideView, SideView]:
    """Both sides with those rows of atoms read as one atom that are solid, and alike, on both.

    Both sides then number the bytes of a row alike, so that moving byte k of it to byte k of it moves every atom to its
    own place; and neighbouring fields of different element axes may be named by one piece.
    """
    rows: dict[str, int] = {}
    for name, ours in dst.leaves.items():
        theirs = src.leaves.get(name)
        if theirs is None or theirs.nbytes != ours.nbytes:
            continue
        for a, b in zip(src.solid(theirs), dst.solid(ours), strict=False):
            if a != b:
                break
            rows[name] = rows.get(name, 0) + 1
    return src.reading(rows), dst.reading(rows)
