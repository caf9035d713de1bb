"""Canonical JSON and digests: one text for one value, so that peers can compare and pin.

Keys are sorted, there is no white space, and numbers are integers. msgspec writes it from structs, dicts and tuples
alike, so that a document read from a file and the objects it was made from have the same text.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

__all__ = ["canonical_json", "digest"]

_ENCODER = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """The canonical text of a value.

    >>> canonical_json({"b": (1, 2), "a": None})
    b'{"a":null,"b":[1,2]}'
    """
    return _ENCODER.encode(value)


def digest(value: Any) -> str:
    """`sha256:` and the hexadecimal SHA-256 of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()
