"""The cutting of one axis against brute force: every unit that both sides hold moves once, to where it belongs."""

from __future__ import annotations

from itertools import product
from random import Random

from conftest import Size

from kvlayout.algebra.digits import Digit, spread
from kvlayout.plan.align import Part, align


def addresses(digits: list[Digit], base: int) -> dict[int, int]:
    """Byte offset by coordinate, from every value of every digit."""
    found = {}
    for values in product(*(range(digit.size) for digit in digits)):
        unit = base + sum(value * digit.weight for value, digit in zip(values, digits, strict=True))
        found[unit] = sum(value * digit.stride for value, digit in zip(values, digits, strict=True))
    return found


def random_digits(rng: Random) -> tuple[list[Digit], int]:
    """Digits of random radices in random nesting, perhaps dealt out to several holders, and where they begin."""
    while True:
        extent = rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 24))
        radices, rest = [], extent
        while rest > 1 and rng.random() < 0.8:
            radices.append(rng.choice([k for k in range(2, rest + 1) if rest % k == 0]))
            rest //= radices[-1]
        if rest > 1:
            radices.append(rest)
        strides, stride = {}, 1
        for index in rng.sample(range(len(radices)), len(radices)):
            strides[index] = stride
            stride *= radices[index]
        digits, weight = [], 1
        for index, radix in enumerate(radices):
            digits.append(Digit(weight, radix, strides[index]))
            weight *= radix
        run = rng.choice([k for k in range(1, extent + 1) if extent % k == 0])
        try:
            return spread(sorted(digits, reverse=True), run, rng.choice((1, 1, 2, 3, 4))), rng.randrange(9)
        except ValueError:
            continue


def moves(parts: list[Part]) -> list[tuple[int, int]]:
    found = []
    for part in parts:
        steps = list(product(*(range(count) for count, _, _ in part.loops)))
        assert len(steps) == part.units
        for index in steps:
            found.append(
                (
                    part.src + sum(i * loop[1] for i, loop in zip(index, part.loops, strict=True)),
                    part.dst + sum(i * loop[2] for i, loop in zip(index, part.loops, strict=True)),
                )
            )
    return found


def test_align_is_brute_force(size: Size) -> None:
    for seed in range(size(3_000, 60_000, quick=500)):
        rng = Random(seed)
        (src, src_base), (dst, dst_base) = random_digits(rng), random_digits(rng)
        lo = rng.randrange(10)
        hi = lo + rng.randrange(60)
        ours, theirs = addresses(src, src_base), addresses(dst, dst_base)
        expected = sorted((ours[unit], theirs[unit]) for unit in ours if unit in theirs and lo <= unit < hi)
        assert sorted(moves(align(src, src_base, dst, dst_base, lo, hi))) == expected, seed


def test_the_number_of_parts_is_that_of_the_ends_not_of_the_units() -> None:
    """A million tokens against the same million in groups of four are as few parts as eight against eight."""
    for units in (8, 8_000_000):
        fours = [Digit(4, units // 4, 1), Digit(1, 4, units // 4)]
        assert len(align([Digit(1, units, 1)], 0, fours, 0, 0, units)) == 1
        assert len(align([Digit(1, units, 1)], 0, fours, 0, 1, units - 1)) <= 3
        assert len(align([Digit(1, units, 1)], 3, fours, 0, 0, units)) <= 3
