"""A kernel of kvlayout: runs of kind stream under one loop.

Generated from codegen/templates/kernel.py.j2. A job and its rows are described in kvlayout/emit/tables.py.
"""

from numba import types

from kvlayout.emit.primitives import copy_stream as copy
from kvlayout.emit.primitives import fence, place, scratch, word

ROWS = 0
ROWS_END = 1
ROW_BYTES = 2
NBYTES = 6
COUNT = 7
SRC_STEP = 8
DST_STEP = 9
LANES = 8
SIGNATURE = types.void(types.int64, types.int64, types.int64)


def move(job, first, last):
    lanes = scratch()
    unit = first
    while unit < last:
        width = LANES
        if last - unit < width:
            width = last - unit
        row = word(job, ROWS)
        while row < word(job, ROWS_END):
            place(job, row, unit, width, lanes)
            nbytes = word(row, NBYTES)
            src_step = word(row, SRC_STEP)
            dst_step = word(row, DST_STEP)
            from_ = 0
            to = 0
            left = word(row, COUNT)
            while left > 0:
                copy(lanes, width, from_, to, nbytes)
                from_ += src_step
                to += dst_step
                left -= 1
            row += word(job, ROW_BYTES)
        unit += width
    fence()
