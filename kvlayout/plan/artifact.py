"""The plan artifact: the document that a plan is, on disk and between peers.

This module defines the document and nothing else, so that planner and checker can both read it without sharing a line
of reasoning. `plan` holds all that the digest covers: page trees, ownership (axes and parallel sizes), the chosen
sources and the nests. `meta` says for people where it came from. The digest is what engines pin and peers compare;
the seal covers everything but itself and the compiler's version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from kvlayout.errors import ArtifactError, problem
from kvlayout.ir import Page, Parallel, canonical_json, digest

__all__ = [
    "FORMAT_VERSION",
    "Document",
    "Group",
    "Piece",
    "Plan",
    "RankMoves",
    "decode",
    "encode",
    "read",
    "seal_of",
    "sealed",
]

FORMAT_VERSION = 1
MAX_ARTIFACT_BYTES = 64 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One logical move with its nest: for every index of `loops`, `nbytes` bytes of a source block to a destination
    block.

    `src_rank`: inside its pipeline stage. `fields`: the neighbouring fields that move together. Offsets and strides are
    bytes inside one page; `loops` are (count, source stride, destination stride), outermost first.
    """

    src_rank: int
    fields: tuple[str, ...]
    src_block: int
    dst_block: int
    src_offset: int
    dst_offset: int
    nbytes: int
    loops: tuple[tuple[int, int, int], ...] = ()


class RankMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that one destination rank (inside its pipeline stage) receives."""

    rank: int
    pieces: tuple[Piece, ...]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cache group: its layers (global indices), both pages, and the moves that every one of its layers shares.

    `src_blocks`, `dst_blocks`: consecutive blocks of each side that make the smallest common token span.
    """

    name: str
    layers: tuple[int, ...]
    src: Page
    dst: Page
    src_blocks: int
    dst_blocks: int
    ranks: tuple[RankMoves, ...]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the digest covers."""

    src: Parallel
    dst: Parallel
    groups: tuple[Group, ...]


class Document(msgspec.Struct, frozen=True, weakref=True, forbid_unknown_fields=True):
    """The artifact as it lies in a file."""

    format_version: int
    digest: str
    seal: str
    plan: Plan
    meta: dict[str, Any]


_DECODER = msgspec.json.Decoder(Document)


def seal_of(document: Document) -> str:
    """SHA-256 of the canonical document without `seal` and `meta.compiler`."""
    meta = {key: value for key, value in document.meta.items() if key != "compiler"}
    return digest(
        {
            "format_version": document.format_version,
            "digest": document.digest,
            "plan": document.plan,
            "meta": meta,
        }
    )


def sealed(plan: Plan, meta: dict[str, Any]) -> Document:
    """The document of a plan, digest and seal computed."""
    document = Document(FORMAT_VERSION, digest(plan), "", plan, meta)
    return msgspec.structs.replace(document, seal=seal_of(document))


def encode(document: Document) -> bytes:
    """The text of the file: canonical JSON and a newline."""
    return canonical_json(document) + b"\n"


def decode(data: bytes, where: str) -> Document:
    """Read a document; ArtifactError when it is no artifact of this format version. Executes nothing, checks no
    proof."""
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ArtifactError(problem("KVL403", where, f"not a plan artifact: {_short(error)}")) from None
    if version != FORMAT_VERSION:
        raise ArtifactError(
            problem(
                "KVL404",
                where,
                "the artifact has another format version",
                expected=str(FORMAT_VERSION),
                got=str(version),
            )
        )
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ArtifactError(problem("KVL403", where, f"malformed artifact: {_short(error)}")) from None


def read(path: str | os.PathLike[str]) -> Document:
    """Read an artifact file; see `decode`."""
    where = os.fspath(path)
    try:
        if not Path(path).is_file():
            raise OSError("not a regular file" if os.path.exists(where) else "there is no such file")
        with open(path, "rb") as file:
            data = file.read(MAX_ARTIFACT_BYTES + 1)
    except OSError as error:
        raise ArtifactError(problem("KVL001", where, f"cannot read the artifact: {error.strerror or error}")) from None
    if len(data) > MAX_ARTIFACT_BYTES:
        raise ArtifactError(problem("KVL403", where, "the file is larger than any artifact", expected="64 MiB at most"))
    return decode(data, where)


class _Version(msgspec.Struct):
    format_version: int


def _short(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error) if isinstance(error, msgspec.MsgspecError) else "no UTF-8 text"
