"""KVL3xx and KVL4xx: what the checker finds wrong in a plan, and artifacts (theorems T1 to T4 of docs/theory.md)."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

_AGAIN = "Do not use the plan; compile it again from its specs, and report it if the new one is refuted too."

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL301",
        "a byte is written twice",
        _AGAIN,
        "T2: the signed corner sums of all pieces of a field must equal those of its owned box. They do not, and the "
        "least corner that differs is covered more than once: the last writer would win.",
    ),
    Rule(
        "KVL302",
        "a byte is never written",
        _AGAIN,
        "T2: the signed corner sums of all pieces of a field must equal those of its owned box. They do not, and the "
        "least corner that differs is not covered: the byte would keep what an earlier request left there.",
    ),
    Rule(
        "KVL303",
        "a byte is written with another byte than its own",
        _AGAIN,
        "T4: the nest is cut until no digit carries; then start and steps of both sides decode to logical coordinates, "
        "which must agree. The witness decodes to another coordinate on the source.",
    ),
    Rule(
        "KVL304",
        "a byte is written that is no payload of its field",
        _AGAIN,
        "T4 decodes each destination address; this one is a pad, another field, or outside the page (T1), so that "
        "foreign bytes would be destroyed.",
    ),
    Rule(
        "KVL305",
        "a byte is read that its source does not hold",
        _AGAIN,
        "T3 asks that each piece lies in a box that its source rank owns, and T4 decodes each source address; here "
        "there is no such rank, block or payload byte, so that foreign bytes would be sent.",
    ),
    Rule(
        "KVL306",
        "a plan does not speak of every destination rank once",
        _AGAIN,
        "T3 holds for a side when T2 and T4 hold for each of its ranks; one that is left out keeps old bytes.",
    ),
    Rule(
        "KVL307",
        "a plan between pages that do not convert",
        _AGAIN,
        "T3 asks for equal fields, atom widths, tags and axes on both sides, and for as many tokens in the blocks of "
        "both. Otherwise coordinates that look alike mean different bytes.",
    ),
    Rule(
        "KVL308",
        "a plan cuts inside a granule",
        _AGAIN,
        "A granule says that the units of an axis belong together in groups. T3 asks that every share, block and run "
        "of the axis ends at a multiple of it; the bytes would arrive, but apart from what they belong to.",
    ),
    Rule(
        "KVL309",
        "parallel sizes, stages or layers that no pair of sides has",
        _AGAIN,
        "T3 speaks of the ranks and layers of two sides; sizes below 1, stages of other totals, or layers outside "
        "them are not the sides of any transfer.",
    ),
    Rule(
        "KVL310",
        "a schedule that does not deliver its plans",
        "Make the schedule again with kvlayout.schedule; do not edit schedules.",
        "T3 speaks of a plan whose moves all happen, each once. A move that is not sent leaves a page as it was, one "
        "that is sent twice writes a page that may be in use. Rounds let a rank have one transfer at a time.",
    ),
    Rule(
        "KVL390",
        "a piece cannot be proved right",
        "Compile the plan again; if it stays unproved, choose sizes whose digits nest, or report it.",
        "T4 cuts a nest until no digit carries. Here that gave too many parts, or the page's digits and the interleave "
        "do not nest. What could not be analysed is never taken for right.",
    ),
    Rule(
        "KVL391",
        "coverage cannot be proved",
        "Compile the plan again; if it stays unproved, choose sizes whose digits nest, or report it.",
        "T2 needs boxes over digits. Here the pieces fall into too many of them, or take bytes in steps that form no "
        "boxes. What could not be analysed is never taken for right.",
    ),
    Rule(
        "KVL401",
        "the seal is not that of the content",
        "Fetch the artifact again, or compile it again; do not edit artifacts.",
        "The seal covers the whole file but itself and the compiler's version: something in the file was changed or "
        "lost after it was written.",
    ),
    Rule(
        "KVL402",
        "the digest is not that of the plan",
        "Fetch the artifact again, or compile it again; do not edit artifacts.",
        "Peers compare digests to know that they mean the same plan; a digest of another plan would let two engines "
        "move bytes by different plans.",
    ),
    Rule(
        "KVL403",
        "not a plan artifact",
        "Give a file that 'kvlayout plan --out' or 'kvlayout compile' wrote.",
        "An artifact is exactly the document of its format version; a key or a type that is not part of it could mean "
        "anything.",
    ),
    Rule(
        "KVL404",
        "an artifact of another format version",
        "Compile the plan again with this version, or read it with the version that wrote it.",
        "The rules by which sources are chosen and nests are written belong to the version; under other rules equal "
        "digests would not mean equal plans.",
    ),
    Rule(
        "KVL405",
        "not the plan that was asked for",
        "Use the artifact whose digest you pinned, or pin the digest of this one after looking at it.",
        "A pinned digest says which plan was examined; any other plan, however right, was not.",
    ),
    Rule(
        "KVL406",
        "the artifact cannot be written",
        "Give a path in a folder that exists and may be written to.",
        "An artifact appears whole or not at all; what stood at its place before is left as it was.",
    ),
)
