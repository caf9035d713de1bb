"""What is checked of block tables before a byte moves: shape, range and distinctness, in time of the blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvlayout.errors import SubmitError, one_of, problem, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["block_ids", "interval", "tables"]

FEW = 64
"""Ids that a Python list checks faster than four NumPy calls do."""


def tables(blocks: object, groups: tuple[str, ...]) -> Mapping[str, tuple[Any, Any]]:
    """The block tables by group, each a pair; SubmitError where a group is missing, unknown, or no pair."""
    if not isinstance(blocks, Mapping):
        raise _error("KVL604", "blocks", "no block tables", "{group: (source ids, destination ids)}", blocks)
    for name in blocks:
        if name not in groups:
            raise _error("KVL604", "blocks", f"no group '{shown(name)}' is bound", one_of(groups))
    for name in groups:
        pair = blocks.get(name)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            expected = f"'{name}': (source ids, destination ids); two empty lists to move none"
            raise _error("KVL604", f"group '{name}'", "no pair of block tables", expected, pair)
    return blocks


def interval(tokens: object) -> tuple[int, int] | None:
    """A token interval; SubmitError unless it is None or 0 <= a <= b."""
    if tokens is None:
        return None
    if (
        isinstance(tokens, tuple | list)
        and len(tokens) == 2
        and all(isinstance(bound, int) and not isinstance(bound, bool) for bound in tokens)
        and 0 <= tokens[0] <= tokens[1] < 1 << 48
    ):
        return tokens[0], tokens[1]
    raise _error("KVL607", "tokens", "no token interval", "(a, b) with 0 <= a <= b", tokens)


def block_ids(
    ids: object, where: str, rows: int, used: slice | None, multiple: int, *, distinct: bool
) -> NDArray[np.int64]:
    """A block table as contiguous int64.

    `rows`: pages that every buffer of the side has. `used`: the part that the call reads, None for all of it, which
    then must be a whole number of templates of `multiple` blocks.
    """
    import numpy as np

    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        array = None
    if array is None or array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise _error("KVL604", where, "no block table", "a 1-D array of integers", type(ids).__name__)
    if used is None:
        if len(array) % multiple:
            expected = f"a multiple of {multiple}, the blocks of a template"
            raise _error("KVL604", where, "the block table is no whole number of templates", expected, len(array))
        used = slice(0, len(array))
    elif len(array) < used.stop:
        expected = f"at least {used.stop}, to cover the tokens"
        raise _error("KVL604", where, "the block table is too short", expected, len(array))
    part = array[used]
    if len(part) <= FEW:
        values = part.tolist()
        if values and not (min(values) >= 0 and max(values) < rows):
            _out_of_range(where, values, rows, used.start)
        if distinct and len(set(values)) != len(values):
            _twice(where, values, used.start)
    else:
        if part.min() < 0 or part.max() >= rows:
            _out_of_range(where, part.tolist(), rows, used.start)
        if distinct:
            # Of equal ids the last one's mark stays, so that another's is found changed. The marks need no clearing.
            marks = np.empty(rows, np.int64)
            order = np.arange(len(part))
            marks[part] = order
            if not np.array_equal(marks[part], order):
                _twice(where, part.tolist(), used.start)
    return np.ascontiguousarray(array, np.int64)


def _out_of_range(where: str, values: list[int], rows: int, first: int) -> None:
    index = next(index for index, value in enumerate(values) if not 0 <= value < rows)
    expected = f"ids from 0 to {rows - 1}, which every buffer of the group has" if rows else "no id: there are no pages"
    raise _error("KVL605", f"{where}[{first + index}]", "a block id out of range", expected, values[index])


def _twice(where: str, values: list[int], first: int) -> None:
    seen: dict[int, int] = {}
    for index, value in enumerate(values):
        if value in seen:
            text = f"destination block {value} is named twice, at {first + seen[value]} and {first + index}"
            raise _error("KVL606", f"{where}[{first + index}]", text, "distinct ids")
        seen[value] = index


def _error(code: str, where: str, text: str, expected: str, got: object = None) -> SubmitError:
    return SubmitError(problem(code, where, text, expected=expected, got=None if got is None else shown(got)))
