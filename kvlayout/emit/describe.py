"""Descriptors: a proved plan as lists of (address, bytes, device) that a transport is given.

The same tables that make kernels copy make them write down where the runs are, so that descriptors and copies cannot
differ, and no Python loop sees a block. A run that goes on where the last one ended, on both sides, makes it longer:
neighbouring blocks become one descriptor. Nothing is read or written but the tables, so that the memory may be that of
a device, or of another machine.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlayout.emit.bind import pools_of, proved, received_by
from kvlayout.emit.calls import Call, Nulls, Part, Tokens
from kvlayout.emit.regions import Region
from kvlayout.emit.submit import block_tables, interval, one_group_each
from kvlayout.emit.tables import OUT
from kvlayout.errors import SubmitError, problem, shown
from kvlayout.plan.transfer import TransferPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MAX_DESCRIPTORS", "Describer", "Descriptors", "Pages", "describer"]

MAX_DESCRIPTORS = 16_000_000
"""Runs of one call and source rank, before any are joined: 768 MB of tables. More of them are packed, not described."""

_END = (1 << 63) - 1


class Pages(NamedTuple):
    """Pages in memory that this process need not be able to touch: block i is at `address + i * stride`."""

    address: int
    blocks: int
    stride: int


class Descriptors(NamedTuple):
    """Runs between two sides: row i of `src` goes to row i of `dst`. uint64 (n, 3) each: address, bytes, device."""

    src: NDArray[np.uint64]
    dst: NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        return int(self.src[:, 1].sum())


def describer(
    plan: TransferPlan,
    *,
    dst_rank: int,
    src: Mapping[int, Mapping[str, Mapping[int, Any]]],
    dst: Mapping[str, Mapping[int, Any]],
    devices: tuple[int, int] = (0, 0),
    null_blocks: Nulls = (None, None),
) -> Describer:
    """A plan on addresses: what gives descriptors for block tables.

    `src`: {source rank: {group: {layer: Pages}}} of the ranks that are asked about, `dst`: {group: {layer: Pages}};
    where a page lies in several buffers, {name: Pages}. `devices`: what the third column holds, the source's and the
    destination's. The rest is as for `kvlayout.bind`, and so are the errors.
    """
    proved(plan)
    received = received_by(plan, dst_rank, src, null_blocks)
    parts = [Part(moves, src, dst, null_blocks, by_layer=True, take=_taken) for moves in received]
    if not all(type(each) is int and 0 <= each <= _END for each in devices) or len(devices) != 2:
        raise ValueError(f"devices={devices!r}; expected (source device, destination device)")
    return Describer(parts, tuple(dict.fromkeys(moves.group.name for moves in received)), devices)


class Describer:
    """A plan on addresses; made by `describer`. May be called from several threads at once."""

    def __init__(self, parts: list[Part], groups: tuple[str, ...], devices: tuple[int, int]) -> None:
        self._parts, self._groups, self._devices = parts, groups, devices
        self._pools = pools_of(parts, one_space=False)

    def __call__(self, blocks: Mapping[str, tuple[Any, Any]], tokens: Tokens = None) -> dict[int, Descriptors]:
        """Descriptors by source rank; block tables and tokens as for `BoundMove`. Raises SubmitError."""
        import numpy as np

        pairs, span = block_tables(blocks, self._groups, self._groups), interval(tokens)
        calls = [part.call("move", *pairs[part.moves.group.name], span) for part in self._parts]
        for pair in self._pools:
            one, other = (calls[index] for index in pair)
            one_group_each(one.group, one.written, other.group, other.written)
        room: Counter[int] = Counter()
        for call in calls:
            room.update(call.runs())
        if room and max(room.values()) > MAX_DESCRIPTORS:
            text = f"{max(room.values())} runs from one rank"
            raise SubmitError(problem("KVL611", "blocks", text, expected=f"at most {MAX_DESCRIPTORS}; pack them"))
        tables = {rank: [np.empty((runs, 3), np.uint64) for _ in range(2)] for rank, runs in sorted(room.items())}
        outs = {rank: array("q", (*map(_address, pair), -1, -1, *self._devices)) for rank, pair in tables.items()}
        for call in calls:
            _run(call, outs)
        return {
            rank: Descriptors(*(each[: (outs[rank][0] - _address(pair[0])) // 24] for each in pair))
            for rank, pair in tables.items()
        }


def _run(call: Call, outs: Mapping[int, array[int]]) -> None:
    ends = OUT.index("src_end")
    for rank in call.describe(outs):
        outs[rank][ends] = -1  # nothing goes on from what was described before


def _address(words: NDArray[np.uint64]) -> int:
    address: int = words.__array_interface__["data"][0]
    return address


def _taken(pages: object, nbytes: int, where: str, *, writable: bool) -> Region:
    """The region of described pages."""
    expected = f"Pages(address, blocks, stride) with a stride of {nbytes} bytes or more"
    if not isinstance(pages, Pages) or not all(type(each) is int and each >= 0 for each in pages):
        raise SubmitError(problem("KVL602", where, "no pages", expected=expected, got=shown(pages)))
    end = pages.address + pages.blocks * max(pages.stride, nbytes)
    if end > _END or (pages.blocks > 1 and pages.stride < nbytes):
        raise SubmitError(problem("KVL602", where, "pages overlap or leave the address space", expected=expected,
                                  got=shown(pages)))  # fmt: skip
    return Region(pages.address, pages.blocks, pages.stride if pages.blocks > 1 else nbytes, nbytes, None)
