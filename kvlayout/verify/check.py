"""The checker: a document in, a verdict out. It needs the artifact and nothing else, and believes none of it.

The rules run in a fixed order, each one function. Seal and digest say that the file is what was written. T1 says that
both pages are legal, pairing that their fields can convert at all, T4 that each piece moves each byte to where its
logical coordinate lies on the other side, T2 that every byte of every field is written exactly once. Together they
are T3, the plan is right (`docs/theory.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvlayout.errors import Problem, problem
from kvlayout.ir import Page, Parallel, digest, page_faults
from kvlayout.plan.artifact import Document, Group, Piece, Plan, RankMoves, seal_of
from kvlayout.verify.coverage import Uncovered, first_uncovered
from kvlayout.verify.owned import owned_boxes
from kvlayout.verify.resolve import Box, Fault, resolve
from kvlayout.verify.sides import Address, SideView, Vector
from kvlayout.verify.verdict import Finding, Verdict, Witness, verdict_of

__all__ = ["check_document", "check_plan"]

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
    findings = [Finding("refuted", each) for each in _parallel_problems(plan, where)]
    pieces = fields = 0
    if not findings:
        for group in plan.groups:
            checker = GroupChecker(f"{where}: group '{group.name}'", group, plan.src, plan.dst)
            findings += checker.findings()
            pieces += checker.pieces
            fields += checker.fields
    return verdict_of(plan_digest, findings, pieces, fields)


def _parallel_problems(plan: Plan, where: str) -> Iterator[Problem]:
    for name, side in (("source", plan.src), ("destination", plan.dst)):
        if min(side.tp, side.pcp, side.dcp, side.interleave, *side.stages) < 1:
            yield problem("KVL309", where, f"a parallel size of the {name} is below 1")
    layers = [sum(side.stages) for side in (plan.src, plan.dst)]
    if layers[0] != layers[1]:
        yield problem(
            "KVL309", where, "the pipeline stages of the two sides hold another number of layers", got=str(layers)
        )
    for group in plan.groups:
        known = sorted(set(group.layers)) == list(group.layers)
        if not known or not group.layers or group.layers[0] < 0 or group.layers[-1] >= layers[0]:
            yield problem("KVL309", where, f"the layers of group '{group.name}' are not ascending layers of the stages")
    if len({group.name for group in plan.groups}) != len(plan.groups):
        yield problem("KVL309", where, "two groups have one name")


class GroupChecker:
    """Checks one group. `pieces`, `fields` (of all ranks) count what it went through."""

    def __init__(self, where: str, group: Group, src: Parallel, dst: Parallel) -> None:
        self.where, self.group = where, group
        self.parallels = src, dst
        self.pieces = self.fields = 0
        self._resolved: dict[tuple[object, ...], list[Box] | Fault] = {}
        self._covered: dict[tuple[object, ...], tuple[Vector, int] | None] = {}

    def findings(self) -> list[Finding]:
        """Everything found wrong, rule by rule; later rules only run on what earlier ones allow."""
        found = [Finding("refuted", each) for each in self._page_problems()]
        if found:
            return found
        self.src = SideView(self.group.src, self.parallels[0])
        self.dst = SideView(self.group.dst, self.parallels[1])
        paired, problems = self._paired()
        found = [Finding("refuted", each) for each in problems]
        if found:
            return found
        for name in paired:
            if self.src.address((name,)) is None or self.dst.address((name,)) is None:
                text = f"field '{name}': the interleave does not deal out whole digits"
                return [Finding("unproved", problem("KVL390", self.where, text))]
        ranks = [moves.rank for moves in self.group.ranks]
        if ranks != list(range(self.parallels[1].stage_ranks)):
            text = "the destination ranks are not those of the side"
            return [Finding("refuted", problem("KVL306", self.where, text, got=str(ranks[:16])))]
        for moves in self.group.ranks:
            found += self._rank_findings(moves, paired)
            if len(found) >= MAX_FINDINGS:
                break
        return found

    def _page_problems(self) -> Iterator[Problem]:
        """T1 on both sides."""
        for name, page, parallel in zip(
            ("source", "destination"), (self.group.src, self.group.dst), self.parallels, strict=True
        ):
            for fault in page_faults(page, parallel.tp):
                yield problem(fault.code, f"{self.where}, {name} page", f"'{fault.subject}': {fault.message}")
            yield from _axis_problems(f"{self.where}, {name} page", page)

    def _paired(self) -> tuple[list[str], list[Problem]]:
        """The fields that must arrive, and whatever forbids that these two pages convert."""
        paired: list[str] = []
        problems: list[Problem] = []

        def refuse(text: str) -> None:
            problems.append(problem("KVL307", self.where, text))

        ours, theirs = self.dst.leaves, self.src.leaves
        for name in dict.fromkeys((*ours, *theirs)):
            a, b = theirs.get(name), ours.get(name)
            if a is None or b is None:
                if (a or b).tag != "any":  # type: ignore[union-attr]
                    refuse(f"field '{name}' is on one side only")
                continue
            if "any" in (a.tag, b.tag):
                if a.nbytes == b.nbytes:
                    paired.append(name)
                continue
            if (a.tag, a.nbytes) != (b.tag, b.nbytes):
                refuse(f"field '{name}' has atoms of {a.nbytes} bytes of {a.tag} and of {b.nbytes} bytes of {b.tag}")
            paired.append(name)
        for name in paired:
            if sorted(theirs[name].axes) != sorted(ours[name].axes):
                refuse(f"field '{name}' lies along other axes on the two sides")
                continue
            for axis in ours[name].axes:
                a_axis, b_axis = self.group.src.axes[axis], self.group.dst.axes[axis]
                a_size, b_size = a_axis.size, b_axis.size
                if a_axis.grows and b_axis.grows:
                    a_size, b_size = a_size * (self.group.dst.block or 0), b_size * (self.group.src.block or 0)
                if a_axis.grows != b_axis.grows or (a_size != b_size and not (a_axis.common and b_axis.common)):
                    refuse(f"axis '{axis}' of field '{name}' has another size on the two sides")
        self._template_problems(paired, refuse)
        return paired, problems

    def _template_problems(self, paired: list[str], refuse: Callable[[str], None]) -> None:
        a, b = self.src.tokens, self.dst.tokens
        blocks = self.group.src_blocks, self.group.dst_blocks
        whole = [n for n in paired if not any(self.group.dst.axes[axis].grows for axis in self.dst.leaves[n].axes)]
        if min(blocks) < 1:
            refuse("a template has at least one block of each side")
        elif len(whole) == len(paired) or a is None or b is None:
            if blocks != (1, 1):
                refuse("pages without a growing axis move one block at a time")
        elif a * blocks[0] != b * blocks[1]:
            refuse(f"{blocks[0]} blocks of {a} tokens are not {blocks[1]} blocks of {b} tokens")
        elif whole and a != b:
            refuse(f"field '{whole[0]}' does not grow with the tokens, so blocks of {a} and {b} tokens do not convert")

    def _rank_findings(self, moves: RankMoves, paired: list[str]) -> list[Finding]:
        """T4 for each piece of a destination rank, then T2 for each of its fields."""
        found: list[Finding] = []
        boxes: dict[str, list[tuple[Address, Piece, Box]]] = {name: [] for name in paired}
        for piece in moves.pieces:
            self.pieces += 1
            outcome = self._piece(moves.rank, piece, paired)
            if isinstance(outcome, Fault):
                found.append(self._fault(moves.rank, piece, outcome))
                continue
            address = self.dst.address(piece.fields)
            assert address is not None
            for name in piece.fields:
                boxes[name] += ((address, piece, box) for box in outcome)
        if found:
            return found
        for name in paired:
            self.fields += 1
            finding = self._coverage(moves.rank, name, boxes[name])
            if finding is not None:
                found.append(finding)
        return found

    def _piece(self, rank: int, piece: Piece, paired: list[str]) -> list[Box] | Fault:
        if not 0 <= piece.src_rank < self.parallels[0].stage_ranks:
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
            return Fault("outside", piece.dst_offset, text)
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
        if fault.kind == "unproved" or fault.offset is None:
            return Finding("unproved", problem(_CODES[fault.kind], where, fault.message))
        witness = Witness(fault.kind, self.group.name, rank, piece.dst_block, fault.offset)
        return Finding("refuted", problem(_CODES[fault.kind], where, fault.message, witness=str(witness)), witness)


def _axis_problems(where: str, page: Page) -> Iterator[Problem]:
    for name, axis in page.axes.items():
        if axis.size < 1 or axis.granule < 1:
            yield problem("KVL124", where, f"axis '{name}' has {axis.size} units and a granule of {axis.granule}")
        if (axis.grows or axis.shard == "cp") and page.block is None:
            yield problem("KVL126", where, f"axis '{name}' counts tokens, but the page has no block")
        if axis.shard == "cp" and not axis.grows:
            yield problem("KVL126", where, f"axis '{name}' is dealt out to cp ranks but does not grow")
        if axis.common and axis.shard is not None:
            yield problem("KVL126", where, f"axis '{name}' is common and sharded")
    if page.block is not None and page.block < 1:
        yield problem("KVL126", where, f"a block of {page.block} tokens")


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
