"""Folding keeps the map, is idempotent, and gives one nest whatever the order in which the loops were told."""

from __future__ import annotations

from random import Random

from conftest import Size

from kvlayout.algebra.digits import Digit, reach, spread
from kvlayout.algebra.nests import Loop, Nest, fold, run_count, runs


def moved(nest: Nest) -> list[tuple[int, int]]:
    return sorted((src + i, dst + i) for src, dst, nbytes in runs(nest) for i in range(nbytes))


def random_loops(rng: Random) -> tuple[int, list[Loop]]:
    """Loops whose destination strides nest, as those of a page do; the source has its own order."""
    nbytes = rng.randint(1, 4)
    counts = [rng.choice((1, 2, 2, 3, 4)) for _ in range(rng.randrange(5))]
    order = list(range(len(counts)))
    if rng.random() < 0.6:
        rng.shuffle(order)
    src_strides, dst_strides, src, dst = {}, {}, nbytes, nbytes
    for index in order:
        src_strides[index] = src
        src *= counts[index] * rng.choice((1, 1, 1, 2))
    for index, count in enumerate(counts):
        dst_strides[index] = dst
        dst *= count * rng.choice((1, 1, 1, 3))
    return nbytes, [(count, src_strides[i], dst_strides[i]) for i, count in enumerate(counts)]


def test_fold_keeps_the_map_and_is_canonical(size: Size) -> None:
    for seed in range(size(1_000, 10_000, quick=200)):
        rng = Random(seed)
        nbytes, loops = random_loops(rng)
        src, dst = rng.randrange(100), rng.randrange(100)
        nest = fold(src, dst, nbytes, loops)

        assert moved(nest) == moved(Nest(src, dst, nbytes, tuple(loops))), seed
        assert fold(*nest) == nest, seed
        assert all(count > 1 for count, _, _ in nest.loops)
        assert [loop[2] for loop in nest.loops] == sorted((loop[2] for loop in nest.loops), reverse=True)

        rng.shuffle(loops)
        assert fold(src, dst, nbytes, loops) == nest, seed


def test_fold_is_unique_whatever_way_a_loop_is_told(size: Size) -> None:
    """A loop told as two, or a run told as a loop of shorter runs, folds to the same nest."""
    for seed in range(size(500, 5_000, quick=100)):
        rng = Random(seed)
        nbytes, loops = random_loops(rng)
        nest = fold(0, 0, nbytes, loops)
        told: list[Loop] = []
        for count, src, dst in loops:
            part = rng.choice([k for k in range(1, count + 1) if count % k == 0])
            told += [(part, src, dst), (count // part, src * part, dst * part)]
        shorter = rng.choice([k for k in range(1, nbytes + 1) if nbytes % k == 0])
        told.append((nbytes // shorter, shorter, shorter))
        rng.shuffle(told)
        assert fold(0, 0, shorter, told) == nest, seed


def test_run_count() -> None:
    nest = Nest(0, 0, 4, ((3, 8, 8), (2, 100, 4)))
    assert run_count(nest) == 6 == len(list(runs(nest)))


def test_spread_deals_out_runs_in_turn(size: Size) -> None:
    for seed in range(size(300, 3_000, quick=50)):
        rng = Random(seed)
        count, ways = rng.choice((1, 2, 4, 6, 8, 12)), rng.randint(1, 4)
        run = rng.choice([k for k in range(1, count + 1) if count % k == 0])
        dealt = spread([Digit(1, count, 10)], run, ways)
        units = [0]
        offsets = [0]
        for weight, size_, stride in dealt:
            units = [u + i * weight for u in units for i in range(size_)]
            offsets = [o + i * stride for o in offsets for i in range(size_)]
        # Local unit t of the first holder: the tokens dealt to it, one after the other.
        mine = [token for token in range(count * ways) if token // run % ways == 0]
        assert dict(zip(offsets, units, strict=True)) == {10 * t: token for t, token in enumerate(mine)}
        assert reach(dealt) == mine[-1] + 1
