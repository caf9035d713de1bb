"""The copies compiled for CPUs that this machine is not: they compile, and take the instructions they should."""

from __future__ import annotations

import re

import pytest
from llvmlite import binding, ir

from kvlayout.emit.lines import COPIES, LANE_COPIES, i64, store_fence
from kvlayout.emit.target import Target, target_of

CPUS = {
    "avx512": ("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f,+avx2,+avx"),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell", "+avx2,+avx"),
    "sse2": ("x86_64-unknown-linux-gnu", "x86-64", "+sse2"),
    "aarch64": ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"),
    "riscv64": ("riscv64-unknown-linux-gnu", "generic-rv64", "+m"),
}


def assembly(cpu: str, run: str) -> str:
    """The copy of one kind of run and a fence, compiled for a CPU."""
    triple, name, features = CPUS[cpu]
    target = target_of(triple, features)
    module = ir.Module()
    module.triple = triple
    emit = (COPIES | LANE_COPIES)[run]
    count = 3 if run in COPIES else 5
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64] * count), "copy")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, target, *function.args)
    if run in LANE_COPIES:
        store_fence(builder, target)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=name, features="", opt=3)
    return str(machine.emit_assembly(parsed))


@pytest.mark.parametrize("run", [*COPIES, *LANE_COPIES])
@pytest.mark.parametrize("cpu", CPUS)
def test_every_copy_compiles(cpu: str, run: str) -> None:
    assert "copy:" in assembly(cpu, run)


@pytest.mark.parametrize(
    ("cpu", "stores", "fence"),
    [
        ("avx512", r"movntp?[sdq]\w*\s+%zmm", "sfence"),
        ("avx2", r"movntp?[sdq]\w*\s+%ymm", "sfence"),
        ("sse2", r"movntp?[sdq]\w*\s+%xmm", "sfence"),
        ("aarch64", r"stnp\s+q", r"dmb\s+st\b"),
    ],
)
@pytest.mark.parametrize("run", LANE_COPIES)
def test_streaming_stores_are_those_of_the_cpu(cpu: str, stores: str, fence: str, run: str) -> None:
    text = assembly(cpu, run)
    assert re.search(stores, text), text
    assert re.search(fence, text)
    assert not re.search(stores, assembly(cpu, "lines"))


def test_a_cpu_that_is_not_known_takes_ordinary_stores() -> None:
    assert target_of("riscv64-unknown-linux-gnu", "+v") == Target(16, False, "release")
    assert "fence" in assembly("riscv64", "stream")
