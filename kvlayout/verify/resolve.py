"""T4 as code: does a nest move, at every index, a byte to the byte of the same logical coordinate?

Looking at the origin and at one step of each loop is enough only while no digit of either side carries on the way; a
nest may have other digits than the pages. So the loops are cut wherever a digit would carry, until none does: then
every index decodes to `start + sum(index * step)` on both sides, and equal starts and equal logical steps are a proof
for all of them. A cut that comes out wrong is a counterexample at once, with the byte that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvlayout.plan.artifact import Piece
from kvlayout.verify.sides import Address, Vector

__all__ = ["Box", "Fault", "Part", "resolve"]

MAX_PARTS = 20_000
"""Parts that one piece may fall into before the checker gives up, saying so."""

MAX_LOOPS = 300
"""Loops of one piece: there are no more than digits on both sides, and a page has at most 100 levels."""

_Loop = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a piece on which nothing carries: destination digits of its first byte, and (count, digit steps)."""

    start: Vector
    loops: tuple[tuple[int, Vector], ...]


@dataclass(frozen=True, slots=True)
class Part(Box):
    """A box, and the bytes that it is: source and destination of the first one, and (source, destination) strides of
    each loop. The proof needs the box alone; who moves a part of a proved piece needs the bytes."""

    at: tuple[int, int] = field(repr=False)
    strides: tuple[tuple[int, int], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a piece is not right. `offset`: the destination byte that shows it, None when nothing is shown wrong."""

    kind: Literal["wrong", "outside", "source", "twice", "unproved"]
    offset: int | None
    message: str


def resolve(piece: Piece, src: Address, dst: Address, shift: Vector) -> list[Part] | Fault:
    """The boxes of a piece, or the first fault.

    `shift`: by axis, the source rank's origin less the destination rank's, in global units; byte axis 0.
    """
    boxes: list[Part] = []
    moves: list[tuple[int, int, tuple[_Loop, ...]]] = []
    loops = (*piece.loops, (piece.nbytes, 1, 1))
    if any(count < 1 for count, _, _ in loops):
        return boxes  # moves nothing; coverage says what is missing
    if len(loops) > MAX_LOOPS:
        return Fault("unproved", None, f"a nest of more than {MAX_LOOPS} loops is not looked at")
    src_at, dst_at, forward = piece.src_offset, piece.dst_offset, []
    for count, ss, ds in loops:  # turn backward loops round: the same moves in another order
        if ds < 0:
            src_at, dst_at, ss, ds = src_at + (count - 1) * ss, dst_at + (count - 1) * ds, -ss, -ds
        if count > 1:
            forward.append((count, ss, ds))
    forward.sort(key=lambda loop: loop[2])
    moves.append((src_at, dst_at, tuple(forward)))
    while moves:
        src_at, dst_at, loops = moves.pop()
        starts = _same(src, src_at, dst, dst_at, piece, shift)
        if isinstance(starts, Fault):
            return starts
        for count, _, ds in loops:
            if ds == 0:
                return Fault("twice", dst_at, f"a loop of {count} writes the same byte each time")
        backward = next((index for index, (_, ss, _) in enumerate(loops) if ss < 0), None)
        # No canonical nest reads backward; step by step what is wrong is shown.
        cut = (backward, 1, False) if backward is not None else _first_carry(src, starts[0], dst, starts[1], loops)
        if cut is None:
            fault = _unequal_step(src, dst, src_at, dst_at, loops)
            if fault is not None:
                return fault
            steps = tuple((count, dst.step(ds)) for count, _, ds in loops)
            boxes.append(Part(starts[1], steps, (src_at, dst_at), tuple((ss, ds) for _, ss, ds in loops)))
        else:
            moves += _split(src_at, dst_at, loops, *cut)
        if len(boxes) + len(moves) > MAX_PARTS:
            return Fault(
                "unproved", None, f"the piece falls into more than {MAX_PARTS} parts on which no digit carries"
            )
    return boxes


def _same(
    src: Address, src_at: int, dst: Address, dst_at: int, piece: Piece, shift: Vector
) -> tuple[Vector, Vector] | Fault:
    """Both bytes decoded, if they are the same logical byte."""
    to = dst.decode(dst_at)
    if to is None:
        return Fault("outside", dst_at, f"destination byte {dst_at} is no payload of {'+'.join(piece.fields)}")
    from_ = src.decode(src_at)
    if from_ is None:
        return Fault("source", dst_at, f"source byte {src_at} is no payload of {'+'.join(piece.fields)}")
    is_, ought = src.logical(from_, piece.src_block), dst.logical(to, piece.dst_block)
    for name, a, b, s in zip(dst.names, is_, ought, shift, strict=True):
        if a + s != b:
            return Fault(
                "wrong",
                dst_at,
                f"destination byte {dst_at} gets source byte {src_at}, {name} {a + s - b:+d} off its own",
            )
    return from_, to


def _first_carry(
    src: Address, src_start: Vector, dst: Address, dst_start: Vector, loops: tuple[_Loop, ...]
) -> tuple[int, int, bool] | None:
    """The first loop that would make a digit carry, how many of its steps are safe (at least 1), and whether these are
    one whole round of the digit that carries, so that the next round begins where this one did."""
    counts = (*src.counts, *dst.counts)
    room = [count - 1 - value for count, value in zip(counts, (*src_start, *dst_start), strict=True)]
    for index, (count, ss, ds) in enumerate(loops):
        steps = (*src.step(ss), *dst.step(ds))
        safe, whole = count, False
        for left, step, size in zip(room, steps, counts, strict=True):
            if step and left < step * (count - 1) and left // step + 1 <= safe:
                safe = left // step + 1
                whole = safe * step == size
        if safe < count:
            return index, safe, whole
        room = [left - step * (count - 1) for left, step in zip(room, steps, strict=True)]
    return None


def _split(
    src_at: int, dst_at: int, loops: tuple[_Loop, ...], index: int, safe: int, whole: bool
) -> list[tuple[int, int, tuple[_Loop, ...]]]:
    """The same moves with the loop cut after `safe` steps: whole rounds as a loop of loops, the rest apart."""
    count, ss, ds = loops[index]
    before, after = loops[:index], loops[index + 1 :]
    rounds = count // safe if whole and safe > 1 else 1
    done = rounds * safe
    inner = ((safe, ss, ds),) if safe > 1 else ()
    outer = ((rounds, safe * ss, safe * ds),) if rounds > 1 else ()
    parts = [(src_at, dst_at, tuple(sorted((*before, *inner, *outer, *after), key=lambda loop: loop[2])))]
    if done < count:
        rest = ((count - done, ss, ds),) if count - done > 1 else ()
        parts.append((src_at + done * ss, dst_at + done * ds, (*before, *rest, *after)))
    return parts


def _unequal_step(src: Address, dst: Address, src_at: int, dst_at: int, loops: tuple[_Loop, ...]) -> Fault | None:
    for _, ss, ds in loops:
        is_, ought = src.logical(src.step(ss)), dst.logical(dst.step(ds))
        for name, a, b in zip(dst.names, is_, ought, strict=True):
            if a != b:
                return Fault(
                    "wrong",
                    dst_at + ds,
                    f"destination byte {dst_at + ds} gets source byte {src_at + ss}, {name} {a - b:+d} off its own",
                )
    return None
