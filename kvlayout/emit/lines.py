"""The copies themselves, as LLVM instructions: how the bytes of one run are loaded and stored on a target.

Every function takes an IR builder and 64-bit values and emits code; nothing here knows numba, so that the same code
can be compiled for another CPU and looked at. A *line* is 64 bytes, moved in vectors as wide as the target has them.
No function loads or stores a byte outside `[0, nbytes)` of its run: what is no whole number of vectors is finished by
a vector that overlaps the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from kvlayout.emit.tables import UNITS
from kvlayout.emit.target import LINE, Target

__all__ = ["COPIES", "LANE_COPIES", "i64", "load", "loop", "store_fence"]

i64 = ir.IntType(64)
_i32 = ir.IntType(32)

Emit = Callable[..., None]


def _int(value: int) -> ir.Constant:
    return ir.Constant(i64, value)


def _pointer(b: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return b.inttoptr(address, kind.as_pointer())


def load(b: ir.IRBuilder, address: ir.Value, byte: int = 0) -> ir.Value:
    """The 64-bit word at `address + byte`."""
    return b.load(_pointer(b, b.add(address, _int(byte)), i64))


@contextmanager
def loop(b: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int) -> Iterator[ir.Value]:
    """Code for every `index` in range(start, stop, step), counted signed."""
    before = b.basic_block
    head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(i64)
    index.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", index, stop), body, after)
    b.position_at_end(body)
    yield index
    index.add_incoming(b.add(index, _int(step)), b.basic_block)
    b.branch(head)
    b.position_at_end(after)


def _piece(b: ir.IRBuilder, dst: ir.Value, src: ir.Value, at: int | ir.Value, nbytes: int) -> None:
    """`nbytes`, a power of two, as one load and one ordinary store."""
    offset = _int(at) if isinstance(at, int) else at
    kind: ir.Type = ir.IntType(8 * nbytes) if nbytes <= 8 else ir.VectorType(i64, nbytes // 8)
    value = b.load(_pointer(b, b.add(src, offset), kind), align=1)
    b.store(value, _pointer(b, b.add(dst, offset), kind), align=1)


def _lines(b: ir.IRBuilder, target: Target, dst: ir.Value, src: ir.Value, nbytes: int, *, streaming: bool) -> None:
    """`nbytes`, a multiple of a line: all loads before the stores. A streaming destination is aligned to a line."""
    vector = ir.VectorType(i64, target.vector // 8)
    steps = range(0, nbytes, target.vector)
    values = [b.load(_pointer(b, b.add(src, _int(step)), vector), align=1) for step in steps]
    for step, value in zip(steps, values, strict=True):
        aligned = target.vector if streaming else 1
        store = b.store(value, _pointer(b, b.add(dst, _int(step)), vector), align=aligned)
        if streaming and target.streams:
            store.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(_i32, 1)]))


def _unit(nbytes: int) -> Emit:
    def emit(b: ir.IRBuilder, target: Target, src: ir.Value, dst: ir.Value, size: ir.Value) -> None:
        _piece(b, dst, src, 0, nbytes)

    return emit


def _small(b: ir.IRBuilder, target: Target, src: ir.Value, dst: ir.Value, nbytes: ir.Value) -> None:
    """Fewer than 64 bytes: the largest power of two that fits, from the front and again from the back."""
    done = b.append_basic_block("done")
    for size in reversed(UNITS):
        fits, smaller = b.append_basic_block(f"fits{size}"), b.append_basic_block(f"below{size}")
        b.cbranch(b.icmp_signed(">=", nbytes, _int(size)), fits, smaller)
        b.position_at_end(fits)
        _piece(b, dst, src, 0, size)
        _piece(b, dst, src, b.sub(nbytes, _int(size)), size)
        b.branch(done)
        b.position_at_end(smaller)
    b.branch(done)
    b.position_at_end(done)


def _inline(b: ir.IRBuilder, target: Target, src: ir.Value, dst: ir.Value, nbytes: ir.Value) -> None:
    """64 bytes or more, line by line, the last line from the back."""
    last = b.sub(nbytes, _int(LINE))
    with loop(b, _int(0), last, LINE) as at:
        _lines(b, target, b.add(dst, at), b.add(src, at), LINE, streaming=False)
    _lines(b, target, b.add(dst, last), b.add(src, last), LINE, streaming=False)


def _memcpy(b: ir.IRBuilder, target: Target, src: ir.Value, dst: ir.Value, nbytes: ir.Value) -> None:
    """Any number of bytes, by the C library, which knows long runs best."""
    byte = ir.IntType(8).as_pointer()
    function = b.module.globals.get("memcpy")
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(byte, [byte, byte, i64]), "memcpy")
    b.call(function, [b.inttoptr(dst, byte), b.inttoptr(src, byte), nbytes])


COPIES: dict[str, Emit] = {
    **{f"unit{nbytes}": _unit(nbytes) for nbytes in UNITS},
    "small": _small,
    "lines": _inline,
    "memcpy": _memcpy,
}
"""`emit(builder, target, src, dst, nbytes)` by kind of run, ordinary stores."""


def _lane(b: ir.IRBuilder, lanes: ir.Value, lane: ir.Value, from_: ir.Value, to: ir.Value) -> tuple[ir.Value, ir.Value]:
    at = b.add(lanes, b.shl(lane, _int(4)))
    return b.add(load(b, at), from_), b.add(load(b, at, 8), to)


def _stream(
    b: ir.IRBuilder, target: Target, lanes: ir.Value, width: ir.Value, from_: ir.Value, to: ir.Value, nbytes: ir.Value
) -> None:
    """A multiple of a line to aligned destinations: two lines of each lane in turn, then the odd one."""
    pairs = b.and_(nbytes, _int(-2 * LINE))
    for start, stop, size in ((_int(0), pairs, 2 * LINE), (pairs, nbytes, LINE)):
        with loop(b, start, stop, size) as at, loop(b, _int(0), width, 1) as lane:
            src, dst = _lane(b, lanes, lane, b.add(from_, at), b.add(to, at))
            _lines(b, target, dst, src, size, streaming=True)


def _ragged(
    b: ir.IRBuilder, target: Target, lanes: ir.Value, width: ir.Value, from_: ir.Value, to: ir.Value, nbytes: ir.Value
) -> None:
    """Any number of bytes from 64 on, to any destination. The first and the last line of a lane are stored in the
    ordinary way; between them lie the lines that the destination's cache lines cover."""
    common = b.and_(b.sub(nbytes, _int(LINE - 1)), _int(-2 * LINE))  # whole lines, wherever a lane's first one begins
    last = b.sub(nbytes, _int(LINE))
    with loop(b, _int(0), width, 1) as lane:
        src, dst = _lane(b, lanes, lane, from_, to)
        _lines(b, target, dst, src, LINE, streaming=False)
    with loop(b, _int(0), common, 2 * LINE) as at, loop(b, _int(0), width, 1) as lane:
        src, dst = _lane(b, lanes, lane, from_, to)
        at = b.add(at, b.and_(b.neg(dst), _int(LINE - 1)))
        _lines(b, target, b.add(dst, at), b.add(src, at), 2 * LINE, streaming=True)
    with loop(b, _int(0), width, 1) as lane:
        src, dst = _lane(b, lanes, lane, from_, to)
        with loop(b, b.add(common, b.and_(b.neg(dst), _int(LINE - 1))), last, LINE) as at:
            _lines(b, target, b.add(dst, at), b.add(src, at), LINE, streaming=True)
        _lines(b, target, b.add(dst, last), b.add(src, last), LINE, streaming=False)


LANE_COPIES: dict[str, Emit] = {"stream": _stream, "ragged": _ragged}
"""`emit(builder, target, lanes, width, from, to, nbytes)` by kind of run, stores that go past the caches."""


def store_fence(b: ir.IRBuilder, target: Target) -> None:
    """Streaming stores before it are seen before any store after it."""
    void = ir.VoidType()
    if target.fence == "sfence":
        b.call(b.module.declare_intrinsic("llvm.x86.sse.sfence", (), ir.FunctionType(void, [])), [])
    elif target.fence == "dmb":
        stores = ir.Constant(_i32, 14)  # of the full system: a NIC reads outside the domain of the CPUs
        name = "llvm.aarch64.dmb"
        b.call(b.module.declare_intrinsic(name, (), ir.FunctionType(void, [_i32])), [stores])
    else:
        b.fence("release")
