"""T2 against brute force and against islpy: corner sums agree exactly when every cell is covered equally often."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import islpy as isl
import pytest
from conftest import Size

from kvlayout.algebra.boxes import Box, interval_boxes, residual


def cells(boxes: list[Box]) -> Counter[tuple[int, ...]]:
    return Counter(cell for box in boxes for cell in product(*(range(lo, hi) for lo, hi in box)))


def random_box(rng: Random, axes: int, reach: int) -> Box:
    lows = [rng.randrange(reach) for _ in range(axes)]
    return tuple((lo, lo + rng.randint(1, reach)) for lo in lows)


def split(rng: Random, box: Box, times: int) -> list[Box]:
    """The box in disjoint parts."""
    parts = [box]
    for _ in range(times):
        part = parts.pop(rng.randrange(len(parts)))
        axis = rng.randrange(len(box))
        lo, hi = part[axis]
        if hi - lo < 2:
            parts.append(part)
            continue
        cut = rng.randrange(lo + 1, hi)
        parts += [(*part[:axis], (lo, cut), *part[axis + 1 :]), (*part[:axis], (cut, hi), *part[axis + 1 :])]
    rng.shuffle(parts)
    return parts


def random_case(rng: Random) -> tuple[list[Box], list[Box]]:
    """Pieces and owned boxes: a right cover, one with a small fault, or anything."""
    axes = rng.randint(1, 4)
    reach = (0, 12, 6, 4, 3)[axes]
    owned = [random_box(rng, axes, reach)]
    if rng.random() < 0.3:  # a second owned box beside the first
        lo, hi = owned[0][0]
        owned.append(((hi, hi + rng.randint(1, 3)), *random_box(rng, axes, reach)[1:]))
    pieces = [part for box in owned for part in split(rng, box, rng.randrange(6))]
    fault = rng.random()
    if fault < 0.2:
        pieces.pop(rng.randrange(len(pieces)))
    elif fault < 0.35:
        pieces.append(rng.choice(pieces))
    elif fault < 0.6:
        index, axis = rng.randrange(len(pieces)), rng.randrange(axes)
        lo, hi = pieces[index][axis]
        lo, hi = rng.choice([(lo - 1, hi), (lo + 1, hi), (lo, hi + 1), (lo, hi - 1), (lo + 1, hi + 1)])
        if lo < hi:
            pieces[index] = (*pieces[index][:axis], (lo, hi), *pieces[index][axis + 1 :])
    elif fault < 0.7:
        pieces = [random_box(rng, axes, reach) for _ in range(rng.randrange(5))]
    return pieces, owned


def test_residual_is_brute_force(size: Size) -> None:
    right = 0
    for seed in range(size(1_500, 10_000, quick=200)):
        pieces, owned = random_case(Random(seed))
        have, want = cells(pieces), cells(owned)
        wrong = {cell: have[cell] - want[cell] for cell in have | want if have[cell] != want[cell]}
        found = residual(pieces, owned)
        if not wrong:
            right += 1
            assert found is None, (seed, pieces, owned)
        else:
            least = min(wrong)
            assert found == (least, wrong[least]), (seed, pieces, owned)
    assert right > 10


def test_empty_and_inverted_boxes_are_refused(size: Size) -> None:
    """Two inverted axes would give the corners of a proper box, with its sign."""
    whole: list[Box] = [((0, 2), (0, 2))]
    for seed in range(size(300, 3_000, quick=50)):
        rng = Random(seed)
        pieces, owned = random_case(rng)
        target = rng.choice([pieces or owned, owned])
        index = rng.randrange(len(target))
        axes = len(target[index])
        bad = set(rng.sample(range(axes), rng.randint(1, axes)))
        target[index] = tuple((hi, lo) if axis in bad else (lo, hi) for axis, (lo, hi) in enumerate(target[index]))
        if rng.random() < 0.3:
            axis = rng.choice(sorted(bad))
            lo = target[index][axis][0]
            target[index] = (*target[index][:axis], (lo, lo), *target[index][axis + 1 :])
        with pytest.raises(ValueError, match="empty interval"):
            residual(pieces, owned)
    with pytest.raises(ValueError, match="empty interval"):
        residual([((2, 0), (2, 0))], whole)


def test_no_boxes_at_all() -> None:
    assert residual([], []) is None
    assert residual([], [((3, 5),)]) == ((3,), -1)
    assert residual([((3, 5),)], []) == ((3,), 1)
    assert residual([()], [()]) is None


def to_isl(box: Box) -> isl.Set:
    names = [f"x{axis}" for axis in range(len(box))]
    bounds = " and ".join(f"{lo} <= {name} < {hi}" for name, (lo, hi) in zip(names, box, strict=True))
    return isl.Set(f"{{ [{', '.join(names)}] : {bounds} }}")


def test_residual_agrees_with_islpy(size: Size) -> None:
    """Covered exactly once: the pieces do not meet, and their union is what is owned."""
    verdicts = Counter[bool]()
    for seed in range(size(150, 1_000, quick=30)):
        pieces, owned = random_case(Random(10_000 + seed))
        empty = to_isl(tuple((0, 0) for _ in owned[0]))
        union, overlap = empty, empty
        for piece in pieces:
            overlap = overlap.union(union.intersect(to_isl(piece)))
            union = union.union(to_isl(piece))
        wanted = empty
        for box in owned:
            wanted = wanted.union(to_isl(box))
        covered = bool(overlap.is_empty() and union.is_equal(wanted))
        assert covered == (residual(pieces, owned) is None), (seed, pieces, owned)
        verdicts[covered] += 1
    assert min(verdicts[True], verdicts[False]) > 3


def test_interval_boxes_are_the_interval(size: Size) -> None:
    for seed in range(size(1_500, 10_000, quick=200)):
        rng = Random(seed)
        radices = [rng.randint(1, 4) for _ in range(rng.randrange(4))]
        lo = rng.randrange(40)
        hi = lo + rng.randrange(-2, 60)
        boxes = interval_boxes(lo, hi, radices)

        numbers = []
        for box in boxes:
            assert all(lo < hi for lo, hi in box)
            assert all(0 <= a < b <= radix for (a, b), radix in zip(box[1:], radices, strict=True))
            for digits in product(*(range(a, b) for a, b in box)):
                number = digits[0]
                for digit, radix in zip(digits[1:], radices, strict=True):
                    number = number * radix + digit
                numbers.append(number)
        assert sorted(numbers) == list(range(lo, hi)), (seed, lo, hi, radices)
        assert len(boxes) <= 2 * len(radices) + 1
