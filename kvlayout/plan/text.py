"""A plan as a table for people: stable, so that it can be diffed and kept as a golden."""

from __future__ import annotations

from collections.abc import Iterator

from kvlayout.ir import Parallel, span
from kvlayout.plan.artifact import Document, Group, Piece, Plan

__all__ = ["plan_text"]

MAX_ROWS = 200
"""Moves shown of a group; the rest are counted."""


def plan_text(document: Document) -> str:
    """The whole plan: what it is, then for each group and destination rank what moves."""
    plan = document.plan
    src, dst = (str(document.meta.get(side) or _sizes(sizes)) for side, sizes in (("src", plan.src), ("dst", plan.dst)))
    lines = [f"plan {src} -> {dst}", f"digest {document.digest}", *_stage_lines(plan)]
    for group in plan.groups:
        lines += ["", *_group_lines(group)]
    return "\n".join(lines)


def _sizes(parallel: Parallel) -> str:
    words = [f"tp={parallel.tp}"]
    words += [
        f"{name}={value}"
        for name, value in (("pcp", parallel.pcp), ("dcp", parallel.dcp), ("interleave", parallel.interleave))
        if value != 1
    ]
    if len(parallel.stages) > 1:
        words.append("stages=" + "+".join(str(count) for count in parallel.stages))
    return ",".join(words)


def _stage_lines(plan: Plan) -> Iterator[str]:
    """Where layers lie, when a side has pipeline stages: the table below counts ranks inside a stage."""
    for name, side in (("source", plan.src), ("destination", plan.dst)):
        if len(side.stages) > 1:
            first, parts = 0, []
            for stage, count in enumerate(side.stages):
                ranks = f"ranks {stage * side.stage_ranks}..{(stage + 1) * side.stage_ranks - 1}"
                parts.append(f"layers {first}..{first + count - 1} on {ranks}")
                first += count
            yield f"{name} stages: {'; '.join(parts)} (ranks below count inside a stage)"


def _group_lines(group: Group) -> Iterator[str]:
    pages = f"pages of {span(group.src.tree)} -> {span(group.dst.tree)} bytes"
    blocks = ""
    if (group.src_blocks, group.dst_blocks) != (1, 1):
        blocks = f", {group.src_blocks} source to {group.dst_blocks} destination blocks"
    layers = "1 layer" if len(group.layers) == 1 else f"{len(group.layers)} layers"
    yield f"group {group.name}: {layers}, {pages}{blocks}"
    rows = [("rank", "fields", "from", "source", "destination", "moves")]
    left = 0
    for moves in group.ranks:
        for piece in moves.pieces:
            if len(rows) > MAX_ROWS:
                left += 1
                continue
            rows.append(
                (
                    str(moves.rank),
                    "+".join(piece.fields),
                    f"rank {piece.src_rank}",
                    f"{piece.src_block}:{piece.src_offset}",
                    f"{piece.dst_block}:{piece.dst_offset}",
                    _moves(piece),
                )
            )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) + "  " + row[5]
    if left:
        yield f"  and {left} more"


def _moves(piece: Piece) -> str:
    loops = "".join(f"{count} x (+{src} -> +{dst}) " for count, src, dst in piece.loops)
    return f"{loops}{piece.nbytes} bytes"
