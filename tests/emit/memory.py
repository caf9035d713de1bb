"""Memory whose neighbours may not be touched: pages of the operating system on both sides without any rights."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arena"]

CANARY = 0xA5
_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


class Arena:
    """Buffers between guard pages; `close` gives the memory back once no array is left."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._between: list[NDArray[np.uint8]] = []

    def rows(self, rows: int, nbytes: int, *, gap: int = 0, offset: int = 0, at_end: bool = True) -> NDArray[np.uint8]:
        """uint8 (rows, nbytes), rows `nbytes + gap` apart. The last row ends at a guard page (then `offset` bytes
        before it), or the first one begins at one (`offset` bytes behind it)."""
        stride = nbytes + gap
        used = max(0, rows * stride - gap) + offset
        pages = max(1, -(-used // _PAGE))
        area = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._maps.append(area)
        whole = np.frombuffer(area, np.uint8)
        address = whole.__array_interface__["data"][0]
        for guard in (address, address + (pages + 1) * _PAGE):
            if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        begin = _PAGE + (pages * _PAGE - used if at_end else offset)
        inside = whole[_PAGE : (pages + 1) * _PAGE]
        inside[:] = CANARY
        self._between.append(inside[: begin - _PAGE])
        self._between.append(inside[begin - _PAGE + max(0, rows * stride - gap) :])
        for row in range(rows - 1):
            self._between.append(whole[begin + row * stride + nbytes : begin + (row + 1) * stride])
        return np.lib.stride_tricks.as_strided(whole[begin:], (rows, nbytes), (stride, 1))

    def untouched(self) -> bool:
        """Whether every byte before, between and behind the rows is what it was."""
        return all((each == CANARY).all() for each in self._between)

    def close(self) -> None:
        """Give the memory back."""
        for area in self._maps:
            address = np.frombuffer(area, np.uint8).__array_interface__["data"][0]
            _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(area)), 3)
        self._maps.clear()
        self._between.clear()
