"""Mutants of plans: one small lie each, of every kind that a compiler's fault or a forger would tell.

A mutator takes a source of randomness and a right plan, and returns a plan with one thing changed, or None where the
plan has nothing of that kind to change. Some mutants are still right (a replica that holds the same bytes gives them,
a run is told as two); `kvlayout.verify.replay` says which. `RELABELLED` and `TEMPLATE` stand apart: they change no
piece's bytes, only what a piece is said to be, or how many blocks the template has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from kvlayout.ir import span
from kvlayout.plan.artifact import Group, Piece, Plan, RankMoves

__all__ = ["MUTATORS", "RELABELLED", "TEMPLATE", "Mutator"]

Mutator = Callable[[Random, Plan], Plan | None]

_Site = tuple[int, int, int]
"""Group, index of the rank, index of the piece."""


def _pieces(plan: Plan, group: int, rank: int) -> tuple[Piece, ...]:
    return plan.groups[group].ranks[rank].pieces


def _sites(plan: Plan) -> list[_Site]:
    return [
        (g, r, p)
        for g, group in enumerate(plan.groups)
        for r, moves in enumerate(group.ranks)
        for p in range(len(moves.pieces))
    ]


def _at(plan: Plan, site: _Site) -> Piece:
    return _pieces(plan, site[0], site[1])[site[2]]


def _with_rank(plan: Plan, group: int, rank: int, pieces: Sequence[Piece]) -> Plan:
    moves = replace(plan.groups[group].ranks[rank], pieces=tuple(pieces))
    ranks = plan.groups[group].ranks
    return _with_group(plan, group, replace(plan.groups[group], ranks=(*ranks[:rank], moves, *ranks[rank + 1 :])))


def _with_group(plan: Plan, index: int, group: Group) -> Plan:
    return replace(plan, groups=(*plan.groups[:index], group, *plan.groups[index + 1 :]))


def _with_piece(plan: Plan, site: _Site, *pieces: Piece) -> Plan:
    old = _pieces(plan, site[0], site[1])
    return _with_rank(plan, site[0], site[1], (*old[: site[2]], *pieces, *old[site[2] + 1 :]))


def _pick(rng: Random, plan: Plan, wanted: Callable[[Piece], bool] = lambda piece: True) -> _Site | None:
    found = [site for site in _sites(plan) if wanted(_at(plan, site))]
    return rng.choice(found) if found else None


def _amount(rng: Random, piece: Piece) -> int:
    """A number of bytes that means something to a piece: one, its run, or one of its strides."""
    strides = [abs(stride) for _, *both in piece.loops for stride in both if stride]
    return rng.choice([1, 1, piece.nbytes, max(1, piece.nbytes // 2), *strides])


def _two(rng: Random, plan: Plan, differ: Callable[[Piece, Piece], bool]) -> tuple[_Site, _Site] | None:
    """Two pieces of one rank that differ as wanted."""
    first = _pick(rng, plan)
    if first is None:
        return None
    others = [
        (first[0], first[1], p)
        for p, each in enumerate(_pieces(plan, first[0], first[1]))
        if p != first[2] and differ(_at(plan, first), each)
    ]
    return (first, rng.choice(others)) if others else None


def _exchanged(plan: Plan, sites: tuple[_Site, _Site], name: str) -> Plan:
    """Both pieces with the other's value of one attribute."""
    a, b = (_at(plan, site) for site in sites)
    plan = _with_piece(plan, sites[0], replace(a, **{name: getattr(b, name)}))
    return _with_piece(plan, sites[1], replace(b, **{name: getattr(a, name)}))


def dropped(rng: Random, plan: Plan) -> Plan | None:
    """A piece is left out."""
    site = _pick(rng, plan)
    return None if site is None else _with_piece(plan, site)


def doubled(rng: Random, plan: Plan) -> Plan | None:
    """A piece is told twice."""
    site = _pick(rng, plan)
    return None if site is None else _with_piece(plan, site, _at(plan, site), _at(plan, site))


def shifted(rng: Random, plan: Plan) -> Plan | None:
    """Source offset, destination offset, or both, are off by some bytes."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece = _at(plan, site)
    by = rng.choice((-1, 1)) * _amount(rng, piece)
    src, dst = rng.choice(((by, 0), (0, by), (by, by)))
    moved = replace(piece, src_offset=piece.src_offset + src, dst_offset=piece.dst_offset + dst)
    return _with_piece(plan, site, moved)


def widened(rng: Random, plan: Plan) -> Plan | None:
    """Each run is longer."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece = _at(plan, site)
    return _with_piece(plan, site, replace(piece, nbytes=piece.nbytes + _amount(rng, piece)))


def shrunk(rng: Random, plan: Plan) -> Plan | None:
    """Each run is shorter; it may start later, too."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece = _at(plan, site)
    cut = rng.randint(1, piece.nbytes)
    skip = cut if rng.random() < 0.3 else 0
    return _with_piece(
        plan,
        site,
        replace(
            piece, nbytes=piece.nbytes - cut, src_offset=piece.src_offset + skip, dst_offset=piece.dst_offset + skip
        ),
    )


def wrong_source(rng: Random, plan: Plan) -> Plan | None:
    """Another source rank gives the bytes; or one that does not exist."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece, ranks = _at(plan, site), plan.src.stage_ranks
    others = [rank for rank in range(ranks) if rank != piece.src_rank]
    return _with_piece(plan, site, replace(piece, src_rank=rng.choice([*others, *others, ranks, -1])))


def sources_swapped(rng: Random, plan: Plan) -> Plan | None:
    """Two pieces of a rank read each other's source."""
    sites = _two(rng, plan, lambda a, b: a.src_rank != b.src_rank)
    return None if sites is None else _exchanged(plan, sites, "src_rank")


def wrong_destination(rng: Random, plan: Plan) -> Plan | None:
    """A piece is given to another destination rank."""
    site = _pick(rng, plan)
    ranks = plan.dst.stage_ranks
    if site is None or ranks < 2:
        return None
    piece = _at(plan, site)
    other = rng.choice([rank for rank in range(ranks) if rank != site[1]])
    plan = _with_piece(plan, site)
    return _with_rank(plan, site[0], other, (*_pieces(plan, site[0], other), piece))


def ranks_swapped(rng: Random, plan: Plan) -> Plan | None:
    """Two destination ranks swap one piece, or all of them."""
    first = _pick(rng, plan)
    if first is None:
        return None
    others = [site for site in _sites(plan) if site[0] == first[0] and site[1] != first[1]]
    if not others:
        return None
    second = rng.choice(others)
    if rng.random() < 0.5:
        a, b = _at(plan, first), _at(plan, second)
        return _with_piece(_with_piece(plan, first, b), second, a)
    mine, theirs = _pieces(plan, *first[:2]), _pieces(plan, *second[:2])
    return _with_rank(_with_rank(plan, *first[:2], theirs), *second[:2], mine)


def _with_loop(rng: Random, plan: Plan, change: Callable[[Piece, list[int]], None]) -> Plan | None:
    site = _pick(rng, plan, lambda piece: bool(piece.loops))
    if site is None:
        return None
    piece = _at(plan, site)
    index = rng.randrange(len(piece.loops))
    loop = list(piece.loops[index])
    change(piece, loop)
    count, src, dst = loop
    return _with_piece(
        plan, site, replace(piece, loops=(*piece.loops[:index], (count, src, dst), *piece.loops[index + 1 :]))
    )


def count_changed(rng: Random, plan: Plan) -> Plan | None:
    """A loop goes round more or less often."""

    def change(piece: Piece, loop: list[int]) -> None:
        loop[0] = rng.choice([loop[0] + 1, loop[0] - 1, loop[0] * 2, loop[0] // 2, 1, 0])

    return _with_loop(rng, plan, change)


def stride_changed(rng: Random, plan: Plan) -> Plan | None:
    """A stride of a loop is longer, shorter, turned round, none, or that of the other side."""

    def change(piece: Piece, loop: list[int]) -> None:
        side = rng.choice((1, 2))
        by = _amount(rng, piece)
        loop[side] = rng.choice([loop[side] + by, loop[side] - by, -loop[side], 0, loop[3 - side], piece.nbytes])

    return _with_loop(rng, plan, change)


def both_strides_changed(rng: Random, plan: Plan) -> Plan | None:
    """A loop's strides change together, so that only the far steps are wrong."""

    def change(piece: Piece, loop: list[int]) -> None:
        by = rng.choice((-1, 1)) * _amount(rng, piece)
        loop[1:] = rng.choice([[loop[1] + by, loop[2] + by], [-loop[1], -loop[2]], [loop[2], loop[1]]])

    return _with_loop(rng, plan, change)


def loop_dropped(rng: Random, plan: Plan) -> Plan | None:
    """A loop is forgotten."""
    site = _pick(rng, plan, lambda piece: bool(piece.loops))
    if site is None:
        return None
    piece = _at(plan, site)
    index = rng.randrange(len(piece.loops))
    return _with_piece(plan, site, replace(piece, loops=piece.loops[:index] + piece.loops[index + 1 :]))


def loop_added(rng: Random, plan: Plan) -> Plan | None:
    """A loop too many, along some stride that the nest knows."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece = _at(plan, site)
    by = _amount(rng, piece)
    return _with_piece(plan, site, replace(piece, loops=(*piece.loops, (2, by, rng.choice((by, _amount(rng, piece)))))))


def loops_crossed(rng: Random, plan: Plan) -> Plan | None:
    """Two loops of a nest swap one stride, or their counts."""
    site = _pick(rng, plan, lambda piece: len(piece.loops) > 1)
    if site is None:
        return None
    piece = _at(plan, site)
    loops = [list(loop) for loop in piece.loops]
    a, b = rng.sample(range(len(loops)), 2)
    part = rng.randrange(3)
    loops[a][part], loops[b][part] = loops[b][part], loops[a][part]
    return _with_piece(plan, site, replace(piece, loops=tuple((c, s, d) for c, s, d in loops)))


def src_offsets_swapped(rng: Random, plan: Plan) -> Plan | None:
    """Two fields are read from each other's place."""
    sites = _two(rng, plan, lambda a, b: a.fields != b.fields and a.src_offset != b.src_offset)
    return None if sites is None else _exchanged(plan, sites, "src_offset")


def dst_offsets_swapped(rng: Random, plan: Plan) -> Plan | None:
    """Two fields are written to each other's place."""
    sites = _two(rng, plan, lambda a, b: a.fields != b.fields and a.dst_offset != b.dst_offset)
    return None if sites is None else _exchanged(plan, sites, "dst_offset")


def blocks_swapped(rng: Random, plan: Plan) -> Plan | None:
    """Two pieces of a rank use each other's block."""
    name = rng.choice(("src_block", "dst_block"))
    sites = _two(rng, plan, lambda a, b: bool(getattr(a, name) != getattr(b, name)))
    return None if sites is None else _exchanged(plan, sites, name)


def wrong_block(rng: Random, plan: Plan) -> Plan | None:
    """Another block, or one that the template does not have."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece, group = _at(plan, site), plan.groups[site[0]]
    if rng.random() < 0.5:
        blocks = [block for block in range(-1, group.src_blocks + 1) if block != piece.src_block]
        return _with_piece(plan, site, replace(piece, src_block=rng.choice(blocks)))
    blocks = [block for block in range(-1, group.dst_blocks + 1) if block != piece.dst_block]
    return _with_piece(plan, site, replace(piece, dst_block=rng.choice(blocks)))


def anywhere(rng: Random, plan: Plan) -> Plan | None:
    """A piece lies at a random byte of the page on each side."""
    site = _pick(rng, plan)
    if site is None:
        return None
    group = plan.groups[site[0]]
    src, dst = rng.randrange(span(group.src.tree)), rng.randrange(span(group.dst.tree))
    return _with_piece(plan, site, replace(_at(plan, site), src_offset=src, dst_offset=dst))


def retold(rng: Random, plan: Plan) -> Plan | None:
    """The same bytes in other words: a run or a loop is cut in two pieces, or the loops stand in another order."""
    site = _pick(rng, plan, lambda piece: piece.nbytes > 1 or bool(piece.loops))
    if site is None:
        return None
    piece = _at(plan, site)
    if piece.loops and rng.random() < 0.3:
        loops = list(piece.loops)
        rng.shuffle(loops)
        return _with_piece(plan, site, replace(piece, loops=tuple(loops)))
    if piece.nbytes > 1 and (not piece.loops or rng.random() < 0.5):
        cut = rng.randrange(1, piece.nbytes)
        rest = replace(piece, src_offset=piece.src_offset + cut, dst_offset=piece.dst_offset + cut,
                       nbytes=piece.nbytes - cut)  # fmt: skip
        return _with_piece(plan, site, replace(piece, nbytes=cut), rest)
    index = rng.randrange(len(piece.loops))
    count, src, dst = piece.loops[index]
    cut = rng.randrange(1, count)
    parts = []
    for first, steps in ((0, cut), (cut, count - cut)):
        loop = ((steps, src, dst),) if steps > 1 else ()
        parts.append(
            replace(
                piece,
                src_offset=piece.src_offset + first * src,
                dst_offset=piece.dst_offset + first * dst,
                loops=(*piece.loops[:index], *loop, *piece.loops[index + 1 :]),
            )
        )
    return _with_piece(plan, site, *parts)


def relabelled(rng: Random, plan: Plan) -> Plan | None:
    """A piece claims to move other fields than it does."""
    site = _pick(rng, plan)
    if site is None:
        return None
    piece = _at(plan, site)
    known = sorted({name for group in plan.groups for m in group.ranks for p in m.pieces for name in p.fields})
    chosen = rng.choice(
        [(), ("no such field",), (rng.choice(known),), (*piece.fields, rng.choice(known)), piece.fields[::-1]]
    )
    return _with_piece(plan, site, replace(piece, fields=chosen))


def template_changed(rng: Random, plan: Plan) -> Plan | None:
    """The template has other numbers of blocks, or other ranks."""
    index = rng.randrange(len(plan.groups))
    group = plan.groups[index]
    if rng.random() < 0.3:
        ranks = list(group.ranks)
        choice = rng.randrange(3)
        if choice == 0:
            ranks.pop(rng.randrange(len(ranks)))
        elif choice == 1:
            ranks.append(RankMoves(len(ranks), rng.choice(ranks).pieces))
        else:
            rng.shuffle(ranks)
        return _with_group(plan, index, replace(group, ranks=tuple(ranks)))
    a, b = group.src_blocks, group.dst_blocks
    src, dst = rng.choice([(a + 1, b), (a, b + 1), (2 * a, 2 * b), (a + 1, b + 1), (0, b), (b, a)])
    return _with_group(plan, index, replace(group, src_blocks=src, dst_blocks=dst))


MUTATORS: dict[str, Mutator] = {
    each.__name__: each
    for each in (
        dropped, doubled, shifted, widened, shrunk, wrong_source, sources_swapped, wrong_destination, ranks_swapped,
        count_changed, stride_changed, both_strides_changed, loop_dropped, loop_added, loops_crossed,
        src_offsets_swapped, dst_offsets_swapped, blocks_swapped, wrong_block, anywhere, retold,
    )
}  # fmt: skip
"""Mutators of what moves, by name."""

RELABELLED: Mutator = relabelled
TEMPLATE: Mutator = template_changed
