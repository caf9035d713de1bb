"""Memory that moves read and write: rows of equal length at equal distances.

Whatever a user hands over (NumPy arrays, torch tensors on the CPU, memoryviews, mmaps) becomes an address, a number of
rows and a stride. Nothing is copied, and the object is kept so that its memory stays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvlayout.emit.target import LINE
from kvlayout.errors import Problem, SubmitError, problem, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Named", "Region", "clashes", "flat", "lines_of", "region", "same_cells"]


@dataclass(frozen=True, slots=True)
class Region:
    """Row i is the bytes [address + i * stride, + nbytes). `owner` keeps them alive."""

    address: int
    rows: int
    stride: int
    nbytes: int
    owner: object

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + (self.rows - 1) * self.stride + self.nbytes if self.rows else self.address


@dataclass(frozen=True, slots=True)
class _Strided:
    """What is asked of every kind of buffer: shape and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    readonly: bool
    owner: object


def region(buffer: object, nbytes: int, where: str, *, writable: bool) -> Region:
    """Pages of `nbytes` bytes: the first axis counts blocks, the others lie in order. One axis alone may also be all
    bytes, page after page. Raises SubmitError."""
    found = _strided(buffer, "KVL602", where, writable=writable)
    inner = _contiguous(found.shape[1:], found.strides[1:], found.itemsize) if found.shape else None
    if found.shape[:1] == (0,):  # strides of an empty array say nothing: NumPy writes zeros
        inner = math.prod(found.shape[1:]) * found.itemsize
    if len(found.shape) == 1 and found.itemsize != nbytes:
        total = found.shape[0] * found.itemsize
        if _contiguous(found.shape, found.strides, found.itemsize) is None or total % nbytes:
            expected, got = f"contiguous pages of {nbytes} bytes", f"{total} bytes, {_described(found)}"
            raise SubmitError(_wrong("KVL602", where, "the buffer holds no whole pages", expected, got))
        return Region(found.address, total // nbytes, nbytes, nbytes, found.owner)
    if inner is None:
        expected = "a first axis of blocks, and the rest of it one page, bytes in order"
        raise SubmitError(_wrong("KVL602", where, "the bytes of a page are not in order", expected, _described(found)))
    if inner != nbytes:
        raise SubmitError(_wrong("KVL602", where, "a row is no page", f"{nbytes} bytes a row", f"{inner} bytes"))
    rows, stride = found.shape[0], found.strides[0]
    if rows > 1 and stride < nbytes:
        expected = f"a stride of {nbytes} bytes or more between rows"
        raise SubmitError(_wrong("KVL602", where, "rows overlap or go backward", expected, f"{stride} bytes"))
    return Region(found.address, rows, stride if rows > 1 else nbytes, nbytes, found.owner)


def flat(buffer: object, where: str, *, writable: bool) -> Region:
    """All bytes of a contiguous buffer as one row. Raises SubmitError."""
    found = _strided(buffer, "KVL608", where, writable=writable)
    total = _contiguous(found.shape, found.strides, found.itemsize)
    if total is None:
        raise SubmitError(_wrong("KVL608", where, "the buffer has gaps", "contiguous bytes", _described(found)))
    return Region(found.address, 1, total, total, found.owner)


def lines_of(rows: int, nbytes: int) -> NDArray[np.uint8]:
    """New memory, uint8 (rows, nbytes), that begins at a cache line, as every engine's pool does."""
    import numpy as np

    raw = np.empty(rows * nbytes + LINE, np.uint8)
    begin = -raw.__array_interface__["data"][0] % LINE
    return raw[begin : begin + rows * nbytes].reshape(rows, nbytes)


Named = tuple[str, Region]
"""What a message calls a region, and the region."""


def clashes(written: Sequence[Named], read: Sequence[Named]) -> Iterator[tuple[Named, Named, bool]]:
    """Every pair of a written region and another one that share a byte, and whether that is written, too.

    Exact also where rows of several regions alternate in one allocation. Costs the number of regions, and of pairs
    whose extents overlap; of rows only where strides differ.
    """
    every = [(each, True) for each in written] + [(each, False) for each in read]
    every = sorted(
        (item for item in every if item[0][1].rows and item[0][1].nbytes), key=lambda item: item[0][1].address
    )
    open_: list[tuple[Named, bool]] = []
    for each, writes in every:
        open_ = [item for item in open_ if item[0][1].end > each[1].address]
        for other, other_writes in open_:
            if (writes or other_writes) and _meet(other[1], each[1]):
                yield (each, other, other_writes) if writes else (other, each, False)
        open_.append((each, writes))


def same_cells(a: Region, b: Region) -> bool:
    """Whether rows of two regions lie in one cell where their numbers are equal, and apart where they are not."""
    first, second = (a, b) if a.address <= b.address else (b, a)
    return first.stride == second.stride and second.address + second.nbytes <= first.address + first.stride


def _meet(a: Region, b: Region) -> bool:
    """Whether two regions share a byte; `a` begins first."""
    apart = b.address - a.address
    if a.rows == 1 or b.rows == 1 or a.stride == b.stride:
        # Row i of a meets row j of b when -b.nbytes < apart + j * b.stride - i * a.stride < a.nbytes.
        if a.rows == 1:
            return apart < a.nbytes
        if b.rows == 1:
            row = min(apart // a.stride, a.rows - 1)
            return any(
                -b.nbytes < apart - i * a.stride < a.nbytes
                for i in range(max(0, row), min(a.rows, (apart + b.nbytes - 1) // a.stride + 1))
            )
        steps, rest = divmod(apart, a.stride)
        # i - j is `steps` (then b lies `rest` behind a's row) or one more (then it lies before a's next row).
        return (steps < a.rows and rest < a.nbytes) or (steps + 1 < a.rows and rest + b.nbytes > a.stride)
    import numpy as np

    few, many = (a, b) if a.rows <= b.rows else (b, a)
    starts = few.address + few.stride * np.arange(few.rows, dtype=np.int64)
    # Of the rows of `many` that begin before the end of one of `few`, the last one reaches farthest.
    last = np.minimum((starts + few.nbytes - 1 - many.address) // many.stride, many.rows - 1)
    return bool(((last >= 0) & (many.address + last * many.stride + many.nbytes > starts)).any())


def _strided(buffer: object, code: str, where: str, *, writable: bool) -> _Strided:
    import numpy as np

    kinds = "a NumPy array, a torch CPU tensor or an object with the buffer protocol"
    torch = sys.modules.get("torch")
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.hasobject:
            raise SubmitError(_wrong(code, where, "an array of Python objects holds no pages", kinds, "dtype object"))
        found = _Strided(buffer.__array_interface__["data"][0], buffer.shape, buffer.strides, buffer.itemsize,
                         not buffer.flags.writeable, buffer)  # fmt: skip
    elif torch is not None and isinstance(buffer, torch.Tensor):
        found = _tensor(buffer, code, where)
    else:
        try:
            view = memoryview(buffer)  # type: ignore[arg-type]
            array = np.frombuffer(view, np.uint8) if view.c_contiguous and view.nbytes else np.asarray(view)
        except (TypeError, ValueError, BufferError) as error:
            # No buffer protocol; memory that was released, or a format that NumPy does not know; the object says no.
            got = f"{type(buffer).__name__}: {shown(error)}"
            raise SubmitError(_wrong(code, where, "no buffer", kinds, got)) from None
        if "O" in "".join(view.format.split(":")[::2]):  # types alone: names stand between colons
            raise SubmitError(_wrong(code, where, "a view of Python objects holds no pages", kinds, view.format))
        address, shape, strides = array.__array_interface__["data"][0], view.shape or (), view.strides or ()
        found = _Strided(address, shape, strides, view.itemsize, view.readonly, array)
    if writable and found.readonly:
        text, expected = "the buffer is read-only", "a buffer that may be written to"
        raise SubmitError(problem(code, where, text, expected=expected, help="Give writable memory to be written to."))
    return found


def _tensor(tensor: Any, code: str, where: str) -> _Strided:
    if tensor.device.type != "cpu":
        expected = "a CPU tensor; memory of a device is moved by a transport or a kernel of that device"
        raise SubmitError(_wrong(code, where, "the tensor is not in CPU memory", expected, str(tensor.device)))
    expected = "a plain strided tensor with memory of its own"
    try:
        if str(tensor.layout) != "torch.strided" or tensor.is_conj() or tensor.is_neg():
            raise SubmitError(_wrong(code, where, "the tensor's bytes are not its elements", expected))
        shape, size = tuple(tensor.shape), tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        storage = tensor.untyped_storage()
        held = storage.nbytes() - size * tensor.storage_offset() if storage.device.type == "cpu" else 0
        reach = size + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if tensor.numel() else 0
        address = tensor.data_ptr() if held else 0
    except (RuntimeError, ValueError) as error:  # nested, batched, not yet initialised: torch says what it is
        raise SubmitError(_wrong(code, where, "the tensor has no memory", expected, shown(error))) from None
    if reach and (reach > held or not address):  # storage that was resized, or a tensor that stands for another one
        got = f"{held} bytes at {address:#x} for {reach}"
        raise SubmitError(_wrong(code, where, "the tensor has no memory", expected, got))
    return _Strided(address, shape, strides, size, False, tensor)


def _contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int | None:
    """Bytes of these axes when they lie in order without gaps, else None."""
    if 0 in shape:
        return 0
    nbytes = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != nbytes:
            return None
        nbytes *= size
    return nbytes


def _described(found: _Strided) -> str:
    return f"shape {found.shape}, strides {found.strides} bytes"


def _wrong(code: str, where: str, text: str, expected: str, got: str | None = None) -> Problem:
    return problem(code, where, text, expected=expected, got=got)
