"""The checker: a document in, a verdict out. It needs the artifact and nothing else, and believes none of it.

The rules run in a fixed order, each one function. Seal and digest say that the file is what was written. T1 says that
both pages are legal, pairing that their fields can convert at all, T4 that each piece moves each byte to where its
logical coordinate lies on the other side, T2 that every byte of every field is written exactly once. Together they
are T3, the plan is right (`docs/theory.md`).
"""

from __future__ import annotations

from kvlayout.errors import Problem, problem
from kvlayout.ir import Page, Parallel, digest
from kvlayout.plan.artifact import Document, Group, Piece, Plan, RankMoves, seal_of
from kvlayout.verify.convertible import layer_problems, page_problems, paired_fields, pairing_problems
from kvlayout.verify.coverage import Uncovered, first_uncovered
from kvlayout.verify.owned import owned_boxes
from kvlayout.verify.resolve import Box, Fault, Part, resolve
from kvlayout.verify.sides import Address, SideView, Vector, paired_views
from kvlayout.verify.verdict import Finding, Verdict, Witness, verdict_of

__all__ = ["Checker", "check_document", "check_plan"]

MAX_FINDINGS = 20
"""Findings of a group after which the checker stops looking: it is refuted anyhow."""

_CODES = {"wrong": "KVL303", "outside": "KVL304", "source": "KVL305", "twice": "KVL301", "unproved": "KVL390"}


def check_document(document: Document, where: str = "plan") -> Verdict:
    """The verdict over a document: seal and digest first, then the proof."""
    findings: list[Finding] = []
    real = digest(document.plan)
    for code, name, got, expected in (
        ("KVL401", "seal", document.seal, seal_of(document)),
        ("KVL402", "digest", document.digest, real),
    ):
        if got != expected:
            text = f"the {name} is not that of the content"
            findings.append(Finding("refuted", problem(code, where, text, expected=expected, got=got)))
    if findings:
        return verdict_of(real, findings, 0, 0)
    return check_plan(document.plan, where, real)


def check_plan(plan: Plan, where: str = "plan", plan_digest: str = "") -> Verdict:
    """The proof alone, without seal and digest."""
    return Checker().check(plan, where, plan_digest)


class Checker:
    """Proves plans; remembers pages and groups that several plans share (as objects, which are immutable)."""

    def __init__(self) -> None:
        self._sides: dict[tuple[int, Parallel], tuple[Page, list[Problem], SideView]] = {}
        self._groups: dict[tuple[int, Parallel, Parallel], tuple[Group, list[Finding], int, int]] = {}

    def check(self, plan: Plan, where: str = "plan", plan_digest: str = "") -> Verdict:
        """The verdict over a plan."""
        findings = [Finding("refuted", each) for each in layer_problems(plan, where)]
        if findings:
            return verdict_of(plan_digest, findings, 0, 0)
        pieces = fields = 0
        for group in plan.groups:
            key = id(group), plan.src, plan.dst
            if key not in self._groups:
                self._groups[key] = (group, *self._group(f"{where}: group '{group.name}'", group, plan.src, plan.dst))
            _, found, group_pieces, group_fields = self._groups[key]
            findings += found
            pieces += group_pieces
            fields += group_fields
        return verdict_of(plan_digest, findings, pieces, fields)

    def _group(self, where: str, group: Group, src: Parallel, dst: Parallel) -> tuple[list[Finding], int, int]:
        src_faults, src_view = self._side(f"{where}, source page", group.src, src)
        dst_faults, dst_view = self._side(f"{where}, destination page", group.dst, dst)
        problems = [*src_faults, *dst_faults] or list(pairing_problems(where, group, src_view, dst_view))
        if problems:
            return [Finding("refuted", each) for each in problems], 0, 0
        checker = _GroupChecker(where, group, *paired_views(src_view, dst_view))
        return checker.findings(), checker.pieces, checker.fields

    def _side(self, where: str, page: Page, parallel: Parallel) -> tuple[list[Problem], SideView]:
        key = id(page), parallel
        if key not in self._sides:
            self._sides[key] = page, list(page_problems(where, page, parallel)), SideView(page, parallel)
        return self._sides[key][1:]


class _GroupChecker:
    """T4 and T2 for one group. `pieces`, `fields` (of all ranks) count what it went through."""

    def __init__(self, where: str, group: Group, src: SideView, dst: SideView) -> None:
        self.where, self.group, self.src, self.dst = where, group, src, dst
        self.pieces = self.fields = 0
        self._resolved: dict[tuple[object, ...], list[Part] | Fault] = {}
        self._covered: dict[tuple[object, ...], tuple[Vector, int] | None] = {}

    def findings(self) -> list[Finding]:
        """Everything found wrong, rank by rank."""
        paired = paired_fields(self.src, self.dst)
        for name in paired:
            if self.src.address((name,)) is None or self.dst.address((name,)) is None:
                text = f"field '{name}': the interleave does not deal out whole digits"
                return [Finding("unproved", problem("KVL390", self.where, text))]
        ranks = [moves.rank for moves in self.group.ranks]
        if len(ranks) != self.dst.parallel.stage_ranks or ranks != list(range(len(ranks))):
            text = "the destination ranks are not those of the side"
            return [Finding("refuted", problem("KVL306", self.where, text, got=str(ranks[:16])))]
        found: list[Finding] = []
        for moves in self.group.ranks:
            found += self._rank_findings(moves, paired)
            if len(found) >= MAX_FINDINGS:
                break
        return found

    def _rank_findings(self, moves: RankMoves, paired: list[str]) -> list[Finding]:
        """T4 for each piece of a destination rank, then T2 for each of its fields."""
        found: list[Finding] = []
        idle: list[Finding] = []
        boxes: dict[str, list[tuple[Address, Piece, Box]]] = {name: [] for name in paired}
        for piece in moves.pieces:
            self.pieces += 1
            if piece.nbytes < 1 or any(count < 2 for count, _, _ in piece.loops):
                text = "a run of no bytes, or a loop that does not go round, is in no canonical nest"
                idle.append(Finding("unproved", problem("KVL390", f"{self.where}, rank {moves.rank}", text)))
            outcome = self._piece(moves.rank, piece, paired)
            if isinstance(outcome, Fault):
                found.append(self._fault(moves.rank, piece, outcome))
                continue
            address = self.dst.address(piece.fields)
            assert address is not None
            for name in piece.fields:
                boxes[name] += ((address, piece, box) for box in outcome)
        if found:
            return found + idle
        for name in paired:
            self.fields += 1
            finding = self._coverage(moves.rank, name, boxes[name])
            if finding is not None:
                found.append(finding)
        return found + idle

    def _piece(self, rank: int, piece: Piece, paired: list[str]) -> list[Part] | Fault:
        if not 0 <= piece.src_rank < self.src.parallel.stage_ranks:
            return Fault("source", piece.dst_offset, f"there is no source rank {piece.src_rank}")
        if not 0 <= piece.src_block < self.group.src_blocks:
            return Fault("source", piece.dst_offset, f"there is no source block {piece.src_block} in the template")
        if not 0 <= piece.dst_block < self.group.dst_blocks:
            return Fault(
                "outside", piece.dst_offset, f"there is no destination block {piece.dst_block} in the template"
            )
        src, dst = self.src.address(piece.fields), self.dst.address(piece.fields)
        if src is None or dst is None or any(name not in paired for name in piece.fields):
            text = f"{'+'.join(piece.fields) or 'no field'} are no fields that lie side by side on both sides"
            return Fault("outside", None, text)  # the label is wrong; whether a byte is was not asked
        shift = tuple(self.src.origin(piece.src_rank, name) - self.dst.origin(rank, name) for name in dst.names[:-1])
        key = (piece.fields, shift, *_where(piece))
        if key not in self._resolved:
            self._resolved[key] = resolve(piece, src, dst, (*shift, 0))
        return self._resolved[key]

    def _coverage(self, rank: int, name: str, boxes: list[tuple[Address, Piece, Box]]) -> Finding | None:
        address = self.dst.address((name,))
        assert address is not None
        where = f"{self.where}, rank {rank}, field '{name}'"
        try:
            own = [cut for whole, piece, box in boxes if (cut := _of_field(address, whole, piece, box)) is not None]
            key = name, tuple((box.start, box.loops) for box in own)
            if key not in self._covered:
                counts = (self.group.dst_blocks, *address.counts)
                self._covered[key] = first_uncovered(counts, owned_boxes(address, self.group), own)
            hole = self._covered[key]
        except Uncovered as error:
            return Finding("unproved", problem("KVL391", where, str(error)))
        if hole is None:
            return None
        (block, *digits), excess = hole
        offset = address.base + sum(v * s for v, s in zip(digits, address.strides, strict=True))
        logical = zip(address.names, address.logical(tuple(digits), block), strict=True)
        at = ", ".join(f"{axis} {value + self._origin(rank, axis)}" for axis, value in logical)
        text = f"{at} is {'never written' if excess < 0 else f'written {excess + 1} times'}"
        witness = Witness("missing" if excess < 0 else "twice", self.group.name, rank, block, offset)
        return Finding(
            "refuted", problem("KVL302" if excess < 0 else "KVL301", where, text, witness=str(witness)), witness
        )

    def _origin(self, rank: int, axis: str) -> int:
        return 0 if axis == "byte" else self.dst.origin(rank, axis)

    def _fault(self, rank: int, piece: Piece, fault: Fault) -> Finding:
        where = f"{self.where}, rank {rank}, {'+'.join(piece.fields)} from source rank {piece.src_rank}"
        if fault.kind == "unproved":
            return Finding("unproved", problem(_CODES[fault.kind], where, fault.message))
        if fault.offset is None:
            return Finding("refuted", problem(_CODES[fault.kind], where, fault.message))
        witness = Witness(fault.kind, self.group.name, rank, piece.dst_block, fault.offset)
        return Finding("refuted", problem(_CODES[fault.kind], where, fault.message, witness=str(witness)), witness)


def _where(piece: Piece) -> tuple[object, ...]:
    return piece.src_block, piece.dst_block, piece.src_offset, piece.dst_offset, piece.nbytes, piece.loops


def _of_field(address: Address, whole: Address, piece: Piece, box: Box) -> Box | None:
    """The part of a box of neighbouring fields that lies in one of them, its block as a first digit."""
    start, loops = [piece.dst_block, *box.start], [(count, (0, *step)) for count, step in box.loops]
    skip = address.base - whole.base
    lo = start[-1] - skip
    size = address.counts[-1]
    if whole.counts[-1] != size:
        inside = [(count, step) for count, step in loops if step[-1]]
        outside = [(count, step) for count, step in loops if not step[-1]]
        if len(inside) == 1 and inside[0][1] == (*(0,) * (len(start) - 1), 1):
            hi = min(size, lo + inside[0][0])
            lo = max(0, lo)
            if lo >= hi:
                return None
            loops = [*outside, (hi - lo, inside[0][1])] if hi - lo > 1 else outside
        elif inside:
            raise Uncovered("bytes of neighbouring fields are taken in odd steps")
        elif not 0 <= lo < size:
            return None
    start[-1] = lo
    return Box(tuple(start), tuple(loops))
