"""The reference interpreter: a plan executed run by run, as obviously as it can be written.

It is the oracle of every kernel, and slow. Tokens are not cut out of nests here: each byte of a destination page is
asked which tokens it belongs to, by a walk over the page tree, and moves or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvlayout.algebra.nests import Nest, runs
from kvlayout.plan.transfer import Entry, TransferPlan
from kvlayout.verify.replay import token_bytes

__all__ = ["interpret"]


def interpret(
    plan: TransferPlan,
    group: str,
    dst_rank: int,
    sources: Mapping[int, NDArray[np.uint8]],
    destination: NDArray[np.uint8],
    src_ids: Sequence[int] | NDArray[np.integer],
    dst_ids: Sequence[int] | NDArray[np.integer],
    tokens: tuple[int, int] | None = None,
    layer: int | None = None,
) -> None:
    """Move one layer of a group. `sources`: {rank: uint8 (blocks, page)}, `destination`: uint8 (blocks, page).

    `tokens`: only tokens [a, b), counted from the first token of both first blocks. Raises LookupError for no such
    entry, ValueError where the interval cuts through bytes that belong to several tokens.
    """
    found = list(plan.entries(group, dst_rank, layer))
    if len(found) != 1:
        raise LookupError(f"{len(found)} entries of group '{group}' for rank {dst_rank}")
    (entry,) = found
    keep = None if tokens is None else _kept(plan, entry, tokens)
    templates = len(src_ids) // entry.group.src_blocks if keep is None else len(keep)
    for k in range(templates):
        for piece in entry.pieces:
            nest = Nest(piece.src_offset, piece.dst_offset, piece.nbytes, piece.loops)
            for src, dst, nbytes in runs(nest):
                chosen = np.ones(nbytes, bool) if keep is None else keep[k][piece.dst_block, dst : dst + nbytes]
                if not chosen.any():
                    continue  # the tables may end before this block
                source = sources[entry.first_src_rank + piece.src_rank]
                page = source[src_ids[k * entry.group.src_blocks + piece.src_block]]
                to = destination[dst_ids[k * entry.group.dst_blocks + piece.dst_block]]
                to[dst : dst + nbytes][chosen] = page[src : src + nbytes][chosen]


def _kept(plan: TransferPlan, entry: Entry, tokens: tuple[int, int]) -> list[NDArray[np.bool_]] | None:
    """For each template: bool (blocks, page bytes), which bytes move. None for a group without tokens."""
    group, parallel = entry.group, plan.document.plan.dst
    of = token_bytes(group.dst, parallel, entry.rank % parallel.stage_ranks, group.dst_blocks)
    if of is None:
        return None
    first, end, tokens_each = of
    for page in (group.src, group.dst):
        for axis in page.axes.values():
            if (
                tokens[0] < tokens[1]
                and axis.grows
                and any(bound * axis.size % ((page.block or 1) * axis.granule) for bound in tokens)
            ):
                raise ValueError(f"tokens {tokens} cut through a granule of {axis.granule} units")
    payload = first >= 0
    kept = []
    for k in range(-(-tokens[1] // tokens_each) if tokens[0] < tokens[1] else 0):
        lo, hi = (bound - k * tokens_each for bound in tokens)
        inside, touched = payload & (lo <= first) & (end <= hi), payload & (first < hi) & (lo < end)
        if (inside != touched).any():
            raise ValueError(f"tokens {tokens} cut through bytes that belong to several tokens")
        kept.append(inside)
    return kept
