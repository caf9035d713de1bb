"""Re-signing a changed artifact, so that a test reaches the proof and not only the seal."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import msgspec

from kvlayout.ir import digest
from kvlayout.plan.artifact import Document, seal_of

__all__ = ["reseal"]

D = TypeVar("D", Document, dict[str, Any])


def reseal(document: D) -> D:
    """A copy with digest and seal recomputed over whatever the document says; nothing else is repaired.

    Takes a `Document` or the plain JSON object of an artifact file, also one that breaks the schema.

    >>> reseal({"format_version": 1, "digest": "", "seal": "", "plan": {"groups": 7}, "meta": {}})["digest"][:15]
    'sha256:e9c4c01b'
    """
    if isinstance(document, Document):
        fresh = msgspec.structs.replace(document, digest=digest(document.plan))
        return msgspec.structs.replace(fresh, seal=seal_of(fresh))
    plain = copy.deepcopy(document)
    plain["digest"] = digest(plain.get("plan"))
    meta = plain.get("meta")
    sealed = {key: value for key, value in plain.items() if key != "seal"}
    if isinstance(meta, dict):
        sealed["meta"] = {key: value for key, value in meta.items() if key != "compiler"}
    plain["seal"] = digest(sealed)
    return plain
