"""What an engine family decides by itself: block sizes and page padding, and which formats it stores.

`vllm@0.32` gives one block id to groups of different models of page, so it makes all pages of one size: it raises the
block until an attention page covers a state page, pads the state, and scales or pads whatever else is smaller. The
numbers depend on the tensor-parallel size, which is why two engines of one model may disagree about them.
`sglang@0.5` keeps every tensor in a buffer of its own: `specs/families.yaml` says which format a group then has.

The rules of vLLM 0.32 are in platforms/interface.py (`_align_hybrid_block_size`, and the padding of layers that are
left out of quantization), v1/core/kv_cache_utils.py (`unify_kv_cache_spec_page_size` and its callers) and
model_executor/layers/attention/attention.py (`get_kv_cache_spec`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused, one_of, problem
from kvlayout.spec.grammar import FamiliesFile, Stored
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

__all__ = ["SMALLEST_KERNEL_BLOCK", "GroupFacts", "Sizing", "kernel_block_of", "stored_format", "vllm_sizing"]

SMALLEST_KERNEL_BLOCK = 16
"""Tokens of the smallest block that vLLM's attention kernels index; blocks are multiples of it."""

LATENT_BLOCK = 128
"""What a block of MLA beside states is a multiple of, so that its kernel blocks stay aligned (TRTLLM, FlashInfer)."""


class GroupFacts(NamedTuple):
    """A group on one engine, as far as the sizes of blocks and pages depend on it.

    `nbytes`: its page as the tree has it, of `block` tokens (None: a state page). `fixed`: the spec gives the block.
    `latent`: no tensor-parallel rank has a share of its own (MLA and its indexers). `window`: tokens that a sliding
    window or chunk keeps. `unquantized`: left out of the cache dtype that other groups have.
    """

    name: str
    nbytes: int
    block: int | None
    fixed: bool = False
    latent: bool = False
    window: int | None = None
    unquantized: bool = False

    def per_token(self, where: str) -> int:
        """Bytes of a token of a page with tokens."""
        nbytes, rest = divmod(self.nbytes, self.block or 1)
        if rest:
            text = f"a page of group '{self.name}' has {self.nbytes} bytes for {self.block} tokens"
            raise PlanRefused(
                problem(
                    "KVL209", where, text, expected="whole bytes a token, or a block of the group's own in the spec"
                ),
                unloadable=True,
            )
        return nbytes


class Sizing(NamedTuple):
    """What an engine makes of a group: tokens of a block, and final bytes of a page (None: what the tree needs)."""

    block: int
    page: int | None = None


def vllm_sizing(where: str, base: int, groups: Sequence[GroupFacts]) -> dict[str, Sizing]:
    """Blocks and pages of vLLM 0.32 by group. `base`: the block size that the user configured.

    A spec whose groups have blocks of their own (DeepSeek-V4) packs pages of several sizes side by side, and nothing
    is made equal. PlanRefused (unloadable) where vLLM finds no common page.
    """
    if any(group.fixed for group in groups):
        return {group.name: Sizing(group.block if group.fixed and group.block else base) for group in groups}
    states = [group for group in groups if group.block is None]
    attention = [group for group in groups if group.block is not None]
    primary = [group for group in attention if not group.unquantized] or attention
    block, padded = base, None
    if states and attention:
        block, padded = _covering_states(where, base, states, primary)
    sizes = {group.name: Sizing(block, padded if group in states else None) for group in groups}
    aside = [group for group in attention if group not in primary]
    if aside:
        block, shared = _covering_unquantized(where, block, padded, primary, aside)
        for group in groups:
            if group in aside:
                own = group.per_token(where)
                sizes[group.name] = Sizing(shared // (own * SMALLEST_KERNEL_BLOCK) * SMALLEST_KERNEL_BLOCK, shared)
            else:
                sizes[group.name] = Sizing(block, shared if group in states else None)
    if not states and len({(group.window, sizes[group.name].block) for group in attention}) == 1:
        return sizes  # one type of attention: one group to vLLM, whatever sizes its pages have
    return _unified(where, groups, sizes)


def kernel_block_of(largest: int, block: int) -> int:
    """The kernel block of a manager's block: the largest size of a backend that takes powers of two up to `largest`.

    >>> [kernel_block_of(64, block) for block in (64, 544, 272, 16)]
    [64, 32, 16, 16]
    """
    while block % largest:
        largest //= 2
    return largest


def _covering_states(
    where: str, base: int, states: Sequence[GroupFacts], primary: Sequence[GroupFacts]
) -> tuple[int, int]:
    """The block whose attention page covers every state, and that page."""
    per_token = max(group.per_token(where) for group in primary)
    unit = max(SMALLEST_KERNEL_BLOCK, base)
    if any(group.latent for group in primary):
        unit = max(unit, LATENT_BLOCK)
    state = max(group.nbytes for group in states)
    block = max(base, _round_up(unit * -(-state // (unit * per_token)), SMALLEST_KERNEL_BLOCK))
    return block, block * per_token


def _covering_unquantized(
    where: str, base: int, padded: int | None, primary: Sequence[GroupFacts], aside: Sequence[GroupFacts]
) -> tuple[int, int]:
    """The block whose quantized page covers a kernel block of the layers that are not, and that page."""
    per_token = max(group.per_token(where) for group in primary)
    required = max(max(group.per_token(where) for group in aside) * SMALLEST_KERNEL_BLOCK, padded or 0)
    unit = max(SMALLEST_KERNEL_BLOCK, base)
    block = max(base, unit * -(-required // (unit * per_token)))
    return block, block * per_token


def _unified(where: str, groups: Sequence[GroupFacts], sizes: dict[str, Sizing]) -> dict[str, Sizing]:
    """All pages as large as the largest: by more tokens where they divide it, else by a pad, which MLA cannot have."""

    def nbytes(group: GroupFacts) -> int:
        size = sizes[group.name]
        if size.page is not None or group.block is None:
            return size.page or group.nbytes
        return group.per_token(where) * size.block

    largest = max(nbytes(group) for group in groups)
    unified = dict(sizes)
    for group in groups:
        here, size = nbytes(group), sizes[group.name]
        if here == largest:
            continue
        if group.block is None or (largest % here and not group.latent):
            unified[group.name] = Sizing(size.block, largest)
        elif largest % here == 0:
            page = None if size.page is None else largest
            unified[group.name] = Sizing(size.block * (largest // here), page)
        elif all(each.block is not None for each in groups) and any(
            each.window is not None and not each.latent for each in groups
        ):
            return sizes  # vLLM then allocates its sliding windows as full attention: one group again
        else:
            text = f"pages of {here} bytes of group '{group.name}' do not divide the largest page, and MLA has no pad"
            raise PlanRefused(
                problem("KVL209", where, text, expected=f"a divisor of {largest} bytes", got=f"{here} bytes"),
                unloadable=True,
            )
    return unified


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@lru_cache(maxsize=1)
def _families() -> FamiliesFile:
    return validated(FamiliesFile, read_source(specs_dir() / "families.yaml"))


def stored_format(family: str, fmt: str, where: str) -> Stored | None:
    """What a family stores in the place of a format; None: that format itself.

    PlanRefused (unloadable) for a format that the family has no page for.
    """
    stored = _families().families.get(family)
    if stored is None or any(fmt == each.format for each in stored.values()):
        return None
    if fmt not in stored:
        text = f"{family} stores no page of format '{fmt}'"
        expected = f"{one_of(stored)}, or the group's format as an override"
        raise PlanRefused(problem("KVL200", where, text, expected=expected), unloadable=True)
    return stored[fmt]
