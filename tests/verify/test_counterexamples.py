"""Plans that an earlier checker proved although they are wrong, or that say nothing. Each must stay refuted."""

from __future__ import annotations

from kvlayout.ir import Array, Axis, Bytes, Node, Page, Parallel, Struct, buffer_starts
from kvlayout.plan.artifact import Group, Piece, Plan, RankMoves
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.plan.transfer import expand_runs
from kvlayout.verify.check import check_plan

ONE = Parallel(stages=(1,))


def codes(src: Parallel, dst: Parallel, *groups: Group) -> set[str]:
    """The rules that a plan is refuted by."""
    verdict = check_plan(Plan(src, dst, groups))
    assert verdict.status == "refuted"
    return {problem.code for problem in verdict.problems}


def repeated(axis: str, count: int, field: str) -> Node:
    return Array(axis, 1, count, 4, Bytes(field, 4, "a"))


def test_growing_axes_that_are_dealt_out_differently() -> None:
    """`k` is dealt out to cp ranks, `s` is not: a destination block id means 32 tokens of one and 16 of the other."""

    def page(n: int) -> Page:
        tree = Struct(8 * n, ((0, repeated("token", n, "k")), (4 * n, repeated("unit", n, "s"))))
        return Page(tree, {"token": Axis(n, "cp", grows=True), "unit": Axis(n, grows=True)}, n)

    moves = tuple(
        RankMoves(
            rank,
            (
                Piece(0, ("k",), 0, 0, 4 * rank, 0, 4, ((16, 8, 4),)),
                Piece(0, ("s",), 0, 0, 128, 64, 64),
            ),
        )
        for rank in (0, 1)
    )
    group = Group("g", (0,), page(32), page(16), 1, 1, moves)
    assert codes(ONE, Parallel(tp=2, dcp=2, stages=(1,)), group) == {"KVL133"}


def test_a_cut_inside_a_granule() -> None:
    """Heads that belong together by fours do not go to ranks by twos, wherever their bytes arrive."""

    def page(heads: int) -> Page:
        return Page(repeated("head", heads, "k"), {"head": Axis(8, "tp", granule=4)}, None)

    moves = tuple(
        RankMoves(rank, tuple(Piece(2 * rank + half, ("k",), 0, 0, 0, 8 * half, 8) for half in (0, 1)))
        for rank in (0, 1)
    )
    group = Group("g", (0,), page(2), page(4), 1, 1, moves)
    assert codes(Parallel(tp=4, stages=(1,)), Parallel(tp=2, stages=(1,)), group) == {"KVL308"}


def test_a_plan_of_nothing() -> None:
    assert codes(ONE, ONE) == {"KVL309"}


def test_a_group_without_a_common_field() -> None:
    pages = (Page(Bytes(name, 4, "any"), {}, None) for name in ("pad", "other"))
    assert codes(ONE, ONE, Group("g", (0,), *pages, 1, 1, (RankMoves(0, ()),))) == {"KVL307"}


def test_buffers_that_are_no_sizes() -> None:
    tree = Struct(16, ((0, Bytes("k", 8, "a")), (8, Bytes("v", 8, "a"))))
    moves = (RankMoves(0, (Piece(0, ("k", "v"), 0, 0, 0, 0, 16),)),)
    for buffers, code in (
        ((("k", -8), ("v", 24)), "KVL124"),
        ((("k", 12), ("v", 4)), "KVL120"),
        ((("k", 8), ("v", 4)), "KVL120"),
    ):
        page = Page(tree, {}, None, buffers)
        assert codes(ONE, ONE, Group("g", (0,), page, page, 1, 1, moves)) == {code}


def test_no_run_crosses_the_border_of_a_buffer() -> None:
    """K and V are neighbours in offsets that count through both buffers, but no neighbours in memory."""
    tree = Struct(128, ((0, repeated("token", 16, "k")), (64, repeated("token", 16, "v"))))
    page = Page(tree, {"token": Axis(16, grows=True)}, 16, (("k", 64), ("v", 64)))
    plan = Planner().plan("test", [PlannedGroup("g", (0,), page, page)], ONE, ONE)
    assert check_plan(plan).proved
    pieces = plan.groups[0].ranks[0].pieces
    assert [piece.fields for piece in pieces] == [("k",), ("v",)]
    runs = expand_runs(pieces, 0, buffer_starts(page), buffer_starts(page))
    assert runs.tolist() == [[0, 0, 0, 0, 0, 64], [0, 0, 64, 0, 64, 64]]


def test_axis_words_that_make_no_sense_together() -> None:
    """Tokens without a block, dealing out what does not grow, common rows that are shared out."""
    for axis, block in (
        (Axis(4, grows=True), None),
        (Axis(4, "cp"), 4),
        (Axis(4, "tp", common=True), None),
        (Axis(4, grows=True), 0),
    ):
        page = Page(repeated("token", 4, "k"), {"token": axis}, block)
        group = Group("g", (0,), page, page, 1, 1, (RankMoves(0, (Piece(0, ("k",), 0, 0, 0, 0, 16),)),))
        assert "KVL126" in codes(ONE, ONE, group)
