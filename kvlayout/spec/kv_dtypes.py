"""What an engine's cache dtype word makes of a group: `specs/kv_dtypes.yaml`, by format and word."""

from __future__ import annotations

from functools import lru_cache

from kvlayout.data import specs_dir
from kvlayout.errors import PlanRefused, one_of, problem, shown
from kvlayout.spec.formats import Format
from kvlayout.spec.grammar import KvDtype, KvDtypesFile
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

__all__ = ["resolve_kv_dtype"]


@lru_cache(maxsize=1)
def _table() -> KvDtypesFile:
    return validated(KvDtypesFile, read_source(specs_dir() / "kv_dtypes.yaml"))


def resolve_kv_dtype(fmt: Format, word: str, where: str) -> KvDtype | None:
    """The change that `word` makes to an attention group; None for a group whose format has no entry.

    PlanRefused when the format has entries but none for the word, when it has none but extends one that has (what the
    word means for it nobody said), and when no format knows the word.
    """
    table = _table().kv_dtypes
    words = table.get(fmt.name)
    if words is None:
        parent = next((name for name in fmt.parents if name in table), None)
        if parent is not None:
            text = (
                f"format '{fmt.name}' extends '{parent}'; nothing says what the cache dtype '{shown(word)}' makes of it"
            )
            raise PlanRefused(problem("KVL156", where, text, expected="the format's own parameters as overrides"))
        known = dict.fromkeys(each for entries in table.values() for each in entries)
        if word not in known:
            text = f"no format knows the cache dtype '{shown(word)}'"
            raise PlanRefused(problem("KVL156", where, text, expected=f"auto or {one_of(known)}"))
        return None
    if word not in words:
        text = f"there is no cache dtype '{shown(word)}' for format '{fmt.name}'"
        raise PlanRefused(problem("KVL156", where, text, expected=f"auto or {one_of(words)}"))
    return words[word]
