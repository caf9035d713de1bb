"""What a CPU offers for moving bytes: how wide a vector is, whether stores can go past the caches, and which fence
orders them.

Three kinds are enough. x86-64 has non-temporal stores as wide as its vectors, which `sfence` orders. AArch64 has store
pairs that hint the same, which are weakly ordered as all its stores are. Any other CPU takes ordinary stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

__all__ = ["LINE", "Target", "host", "host_name", "target_of"]

LINE = 64
"""Bytes of a cache line, the unit of a streaming store on every CPU that has one."""


@dataclass(frozen=True, slots=True)
class Target:
    """`vector`: bytes of one load or store. `streams`: has non-temporal stores. `fence`: what orders them."""

    vector: int
    streams: bool
    fence: Literal["sfence", "dmb", "release"]


def target_of(triple: str, features: str) -> Target:
    """The target of an LLVM triple and feature string.

    >>> target_of("x86_64-unknown-linux-gnu", "+sse2,+avx2,-avx512f")
    Target(vector=32, streams=True, fence='sfence')
    """
    has = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    architecture = triple.split("-", 1)[0]
    if architecture in ("x86_64", "amd64"):
        return Target(64 if "avx512f" in has else 32 if "avx" in has or "avx2" in has else 16, True, "sfence")
    if architecture in ("aarch64", "arm64"):
        return Target(32, True, "dmb")  # a pair of 16-byte registers
    return Target(16, False, "release")


def host_name() -> tuple[str, str, str]:
    """Triple, CPU and features that numba compiles for; what machine code depends on."""
    from numba.core.registry import cpu_target

    triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return triple, cpu, features


@cache
def host() -> Target:
    """The target that numba compiles for."""
    triple, _, features = host_name()
    return target_of(triple, features)
