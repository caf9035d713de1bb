"""What an engine's cache dtype word makes of a group: `specs/kv_dtypes.yaml`, by format and word."""

from __future__ import annotations

from functools import lru_cache

from kvlayout.data import specs_dir
from kvlayout.errors import SpecError, one_of, problem, shown
from kvlayout.spec.grammar import KvDtype, KvDtypesFile
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

__all__ = ["resolve_kv_dtype"]


@lru_cache(maxsize=1)
def _table() -> KvDtypesFile:
    return validated(KvDtypesFile, read_source(specs_dir() / "kv_dtypes.yaml"))


def resolve_kv_dtype(format_name: str, word: str, where: str) -> KvDtype | None:
    """The change that `word` makes to an attention group; None for a group whose format has no entry.

    Raises SpecError when the format has entries, but none for the word.
    """
    words = _table().kv_dtypes.get(format_name)
    if words is None:
        return None
    if word not in words:
        raise SpecError(
            problem(
                "KVL156",
                where,
                f"there is no cache dtype '{shown(word)}' for format '{format_name}'",
                expected=f"auto or {one_of(words)}",
            )
        )
    return words[word]
