"""A kernel of kvlayout: descriptors of runs under two loops.

Generated from codegen/templates/kernel.py.j2. A job and its rows are described in kvlayout/emit/tables.py.
"""

from numba import types

from kvlayout.emit.primitives import describe, place, scratch, word

ROWS = 0
ROWS_END = 1
ROW_BYTES = 2
OUT = 12
NBYTES = 6
COUNT = 7
SRC_STEP = 8
DST_STEP = 9
OUTER = 10
OUTER_SRC_STEP = 11
OUTER_DST_STEP = 12
SIGNATURE = types.void(types.int64, types.int64, types.int64)


def move(job, first, last):
    lanes = scratch()
    out = word(job, OUT)
    unit = first
    while unit < last:
        width = 1
        row = word(job, ROWS)
        while row < word(job, ROWS_END):
            place(job, row, unit, width, lanes)
            src = word(lanes, 0)
            dst = word(lanes, 1)
            nbytes = word(row, NBYTES)
            src_step = word(row, SRC_STEP)
            dst_step = word(row, DST_STEP)
            outer_src_step = word(row, OUTER_SRC_STEP)
            outer_dst_step = word(row, OUTER_DST_STEP)
            begin_from = 0
            begin_to = 0
            above = word(row, OUTER)
            while above > 0:
                from_ = begin_from
                to = begin_to
                left = word(row, COUNT)
                while left > 0:
                    describe(out, src + from_, dst + to, nbytes)
                    from_ += src_step
                    to += dst_step
                    left -= 1
                begin_from += outer_src_step
                begin_to += outer_dst_step
                above -= 1
            row += word(job, ROW_BYTES)
        unit += width
