"""What is checked of block tables before a byte moves: shape, range and distinctness, in time of the blocks."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from kvlayout.emit.tables import Table, table
from kvlayout.errors import SubmitError, one_of, problem, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["block_ids", "block_tables", "interval", "one_group_each"]

FEW = 64
"""Ids that a Python list checks faster than four NumPy calls do."""


def block_tables(blocks: object, groups: Sequence[str], known: Sequence[str]) -> Mapping[str, tuple[Any, Any]]:
    """The block tables by group, each a pair; SubmitError where one of `groups` is missing or no pair, or where there
    is one that is not `known`."""
    if type(blocks) is not dict and not isinstance(blocks, Mapping):
        raise _error("KVL604", "blocks", "no block tables", "{group: (source ids, destination ids)}", blocks)
    for name in groups:
        pair = blocks.get(name)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            _no_stranger(blocks, known)  # a misspelled name says more than the one that is missing
            expected = f"'{name}': (source ids, destination ids); two empty lists to move none"
            raise _error("KVL604", f"group '{name}'", "no pair of block tables", expected, pair)
    if len(blocks) > len(groups):
        _no_stranger(blocks, known)
    return blocks


def _no_stranger(blocks: Mapping[Any, Any], known: Sequence[str]) -> None:
    for name in blocks:
        if name not in known:
            raise _error("KVL604", "blocks", f"the plan has no group '{shown(name)}'", one_of(known))


def interval(tokens: object) -> tuple[int, int] | None:
    """A token interval; SubmitError unless it is None or 0 <= a <= b."""
    if tokens is None:
        return None
    if isinstance(tokens, tuple | list) and len(tokens) == 2 and not any(isinstance(bound, bool) for bound in tokens):
        try:
            a, b = map(index, tokens)
        except TypeError:  # no integers
            a = b = -1
        if 0 <= a <= b < 1 << 48:
            return a, b
    raise _error("KVL607", "tokens", "no token interval", "(a, b) with 0 <= a <= b", tokens)


def block_ids(
    ids: Any, where: str, rows: int, used: slice | None, multiple: int, *, distinct: bool, null: int | None = None
) -> Table:
    """A block table as 64-bit words.

    `rows`: pages that every buffer of the side has. `used`: the part that the call reads, None for all of it, which
    then must be a whole number of templates of `multiple` blocks. `null`: the id that marks a block nobody wrote.
    """
    values = _few(ids)
    long = None if values is not None else _array(ids, where)
    length = len(values) if long is None else len(long)  # type: ignore[arg-type]
    if used is None:
        if length % multiple:
            expected = f"a multiple of {multiple}, the blocks of a template"
            raise _error("KVL604", where, "the block table is no whole number of templates", expected, length)
        begin, end = 0, length
    else:
        begin, end = used.start, used.stop
        if length < end:
            expected = f"at least {end}, to cover the tokens"
            raise _error("KVL604", where, "the block table is too short", expected, length)
    if long is None:
        assert values is not None
        part = values[begin:end]
        if part:
            if min(part) < 0 or max(part) >= rows:
                _out_of_range(where, part, rows, begin)
            if null in part:
                raise _null(where, begin + part.index(null))
            if distinct and len(set(part)) != len(part):
                _twice(where, part, begin)
            if begin:
                values[:begin] = [0] * begin  # not read, and so not checked
        else:
            end = 0
        if end < length:
            del values[end:]
        words = array("q", values)
        return Table(words.buffer_info()[0], length, 8, words)
    import numpy as np

    chosen = long[begin:end]
    if len(chosen):
        if chosen.min() < 0 or chosen.max() >= rows:
            _out_of_range(where, chosen.tolist(), rows, begin)
        if null is not None and (chosen == null).any():
            raise _null(where, begin + int((chosen == null).argmax()))
        if distinct:
            # Of equal ids the last one's mark stays, so that another's is found changed. The marks need no clearing.
            marks = np.empty(rows, np.int64)
            order = np.arange(len(chosen))
            marks[chosen] = order
            if not np.array_equal(marks[chosen], order):
                _twice(where, chosen.tolist(), begin)
    return table(np.ascontiguousarray(long, np.int64))


def one_group_each(name: str, ids: NDArray[np.int64], other: str, others: NDArray[np.int64]) -> None:
    """SubmitError where two groups whose pages are cells of one pool name the same destination block."""
    import numpy as np

    shared = np.intersect1d(ids, others)
    if len(shared):
        text = f"destination block {shared[0]} is named by group '{other}', too, whose pages lie in the same memory"
        raise _error("KVL606", f"group '{name}', destination ids", text, "ids that belong to one group")


def _few(ids: Any) -> list[int] | None:
    """A short table as a list, None where it is long or needs a closer look."""
    if isinstance(ids, list):
        if len(ids) <= FEW and all(type(value) is int for value in ids):
            return None if any(abs(value) >> 62 for value in ids) else ids.copy()
        return None
    import numpy as np

    if type(ids) is np.ndarray and ids.dtype.kind in "iu" and ids.ndim == 1 and len(ids) <= FEW:
        values: list[int] = ids.tolist()
        return values
    return None


def _array(ids: Any, where: str) -> NDArray[np.integer]:
    import numpy as np

    expected = "a 1-D array of integers"
    try:
        found = np.asarray(ids).copy()  # what was checked may not change under the kernel
    except Exception as error:  # whatever the object's own `__array__` raises
        raise _error("KVL604", where, "no block table", expected, f"{type(ids).__name__}: {error}") from None
    masked = np.ma.isMaskedArray(ids)  # what is masked is no id, and nobody says which page is meant
    mixed = isinstance(ids, list | tuple) and any(isinstance(value, bool | np.bool_) for value in ids)
    if masked or mixed or found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        got = f"{type(ids).__name__} of {found.dtype}, {found.ndim}-D"
        raise _error("KVL604", where, "no block table", expected, got)
    return found if found.size else found.astype(np.int64)


def _out_of_range(where: str, values: list[int], rows: int, first: int) -> None:
    at = next(at for at, value in enumerate(values) if not 0 <= value < rows)
    expected = f"ids from 0 to {rows - 1}, which every buffer of the group has" if rows else "no id: there are no pages"
    raise _error("KVL605", f"{where}[{first + at}]", "a block id out of range", expected, values[at])


def _twice(where: str, values: list[int], first: int) -> None:
    seen: dict[int, int] = {}
    for at, value in enumerate(values):
        if value in seen:
            text = f"destination block {value} is named twice, at {first + seen[value]} and {first + at}"
            raise _error("KVL606", f"{where}[{first + at}]", text, "distinct ids")
        seen[value] = at


def _null(where: str, at: int) -> SubmitError:
    return _error("KVL610", f"{where}[{at}]", "the null block, whose page nobody wrote", "ids of pages, or an interval "
                  "of tokens without it")  # fmt: skip


def _error(code: str, where: str, text: str, expected: str, got: object = None) -> SubmitError:
    return SubmitError(problem(code, where, text, expected=expected, got=None if got is None else shown(got)))
