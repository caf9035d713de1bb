"""What generated kernels call: numba intrinsics around the instructions of `lines`, and the reading of tables.

A kernel in numba keeps the loops; each intrinsic stands for a stretch of code that numba would spend more time typing
than LLVM spends compiling. All values are 64-bit integers, addresses among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvlayout.emit import lines
from kvlayout.emit.lines import i64, load, loop
from kvlayout.emit.tables import JOB, LANES, OUT, ROW
from kvlayout.emit.target import host

_WORD = 8
_INT = types.int64
_alloca: Any = cgutils.alloca_once
_variable: Any = cgutils.alloca_once_value


def _int(value: int) -> ir.Constant:
    return ir.Constant(i64, value)


def _intrinsic(name: str, count: int, returns: Any, emit: Callable[..., Any]) -> Any:
    """An intrinsic of `count` integers, which emits its code in place of a call."""
    signature = returns(*[_INT] * count)

    def codegen(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        value = emit(builder, *arguments)
        return context.get_dummy_value() if returns == types.void else value

    # numba takes the number of arguments from the parameters as they are written.
    definitions: dict[int, Callable[..., Any]] = {
        0: lambda typing: (signature, codegen),
        2: lambda typing, a, b: (signature, codegen),
        3: lambda typing, a, b, c: (signature, codegen),
        4: lambda typing, a, b, c, d: (signature, codegen),
        5: lambda typing, a, b, c, d, e: (signature, codegen),
    }
    definition = definitions[count]
    definition.__name__ = name
    return intrinsic(definition)


def _word(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    return load(b, b.add(table, b.shl(index, _int(3))))


def _scratch(b: ir.IRBuilder) -> ir.Value:
    room = _alloca(b, i64, size=ir.Constant(ir.IntType(32), 2 * LANES))
    return b.ptrtoint(room, i64)


def _place(b: ir.IRBuilder, job: ir.Value, row: ir.Value, unit: ir.Value, width: ir.Value, lanes: ir.Value) -> None:
    """Writes (source, destination) addresses of `width` units from `unit` on to `lanes`."""
    of_job = {name: load(b, job, _WORD * index) for index, name in enumerate(JOB)}
    of_row = {name: load(b, row, _WORD * index) for index, name in enumerate(ROW[:6])}
    with loop(b, _int(0), width, 1) as lane:
        layer = b.udiv(b.add(unit, lane), of_job["templates"])
        template = b.sub(b.add(unit, lane), b.mul(layer, of_job["templates"]))
        for index, side in enumerate(("src", "dst")):
            slot = b.add(b.mul(layer, of_job[f"{side}_slots"]), of_row[f"{side}_slot"])
            base = b.add(of_job[f"{side}_bases"], b.shl(slot, _int(4)))
            block = b.add(b.mul(template, of_job[f"{side}_blocks"]), of_row[f"{side}_block"])
            page = b.mul(_word(b, of_job[f"{side}_ids"], block), load(b, base, _WORD))
            address = b.add(b.add(load(b, base), page), of_row[f"{side}_offset"])
            at = b.add(b.add(lanes, b.shl(lane, _int(4))), _int(_WORD * index))
            b.store(address, b.inttoptr(at, i64.as_pointer()))


def _begin(b: ir.IRBuilder, row: ir.Value, turn: ir.Value, side: ir.Value) -> ir.Value:
    """The offset of the `turn`-th round of the outer loops of a deep row; side 1: source, 2: destination."""
    end = b.mul(load(b, row, _WORD * ROW.index("loops")), _int(3 * _WORD))
    rest, offset = (_variable(b, value) for value in (turn, _int(0)))
    with loop(b, _int(0), end, 3 * _WORD) as at:
        step = b.add(b.add(row, _int(_WORD * len(ROW))), at)
        count = load(b, step)
        left = b.load(rest)
        b.store(b.udiv(left, count), rest)
        moved = b.mul(b.urem(left, count), _word(b, step, side))
        b.store(b.add(b.load(offset), moved), offset)
    return b.load(offset)


def _describe(b: ir.IRBuilder, out: ir.Value, src: ir.Value, dst: ir.Value, nbytes: ir.Value) -> None:
    """Writes a run behind the descriptors of both sides, (address, bytes, device), or adds it to the last one."""
    at = {name: b.add(out, _int(_WORD * index)) for index, name in enumerate(OUT)}

    def put(value: ir.Value, address: ir.Value) -> None:
        b.store(value, b.inttoptr(address, i64.as_pointer()))

    rows = {side: load(b, at[f"{side}_row"]) for side in ("src", "dst")}
    goes_on = b.and_(b.icmp_signed("==", src, load(b, at["src_end"])), b.icmp_signed("==", dst, load(b, at["dst_end"])))
    with b.if_else(goes_on) as (then, otherwise):
        with then:
            for row in rows.values():
                length = b.sub(row, _int(2 * _WORD))  # of the row before
                put(b.add(load(b, length), nbytes), length)
        with otherwise:
            for side, address in (("src", src), ("dst", dst)):
                for index, value in enumerate((address, nbytes, load(b, at[f"{side}_device"]))):
                    put(value, b.add(rows[side], _int(_WORD * index)))
                put(b.add(rows[side], _int(3 * _WORD)), at[f"{side}_row"])
    put(b.add(src, nbytes), at["src_end"])
    put(b.add(dst, nbytes), at["dst_end"])


word = _intrinsic("word", 2, _INT, _word)
"""`word(table, index)`: a 64-bit word of a table."""
scratch = _intrinsic("scratch", 0, _INT, _scratch)
"""`scratch()`: room for the addresses of all lanes."""
place = _intrinsic("place", 5, types.void, _place)
"""`place(job, row, unit, width, lanes)`: look up where a row's nest begins in each of `width` units."""
begin = _intrinsic("begin", 3, _INT, _begin)
"""`begin(row, turn, side)`: where a round of a deep row's outer loops begins."""
describe = _intrinsic("describe", 4, types.void, _describe)
"""`describe(out, src, dst, nbytes)`: write a run down instead of copying it."""
fence = _intrinsic("fence", 0, types.void, lambda b: lines.store_fence(b, host()))
"""`fence()`: the stores before it are seen before those after it."""


def _copy(name: str, count: int, emit: lines.Emit) -> Any:
    return _intrinsic(f"copy_{name}", count, types.void, lambda b, *values: emit(b, host(), *values))


for _name, _emit in lines.COPIES.items():
    globals()[f"copy_{_name}"] = _copy(_name, 3, _emit)
for _name, _emit in lines.LANE_COPIES.items():
    globals()[f"copy_{_name}"] = _copy(_name, 5, _emit)
