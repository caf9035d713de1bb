"""KVL6xx: moves, that is buffers, block tables and kernels."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL601",
        "a buffer that the plan needs is not given",
        "Give a buffer for every source rank that the plan reads, and for every group and layer of it.",
        "A plan moves all that it names or nothing; a layer left out would keep the bytes of an earlier request.",
    ),
    Rule(
        "KVL602",
        "a buffer that does not hold pages",
        "Give memory of this CPU whose first axis counts blocks and whose rows are whole pages, bytes in order.",
        "Addresses are computed from the page that was proved. In a buffer of other rows they are other bytes.",
    ),
    Rule(
        "KVL603",
        "memory that a move would read and write, or write twice",
        "Give every destination buffer memory of its own. Groups may share a pool if each block is one cell of it.",
        "The proof presumes that source bytes are those from before the call; where pages share memory they are not.",
    ),
    Rule(
        "KVL604",
        "a block table that does not fit the plan",
        "Give for every bound group two 1-D integer tables of whole templates, or tables that cover the tokens.",
        "Entry i * blocks + j is block j of template i; a table of another length names other blocks.",
    ),
    Rule(
        "KVL605",
        "a block id out of range",
        "Give ids of pages that every buffer of the group has.",
        "An id stands for an address; one that is out of range is memory of somebody else.",
    ),
    Rule(
        "KVL606",
        "a destination block named twice",
        "Name each destination block once.",
        "Distinct pages are what makes one proof hold for all templates: of two writers the last one would win. Groups "
        "that share a pool name distinct blocks, too.",
    ),
    Rule(
        "KVL607",
        "a token interval that the pages cannot be cut at",
        "Give (a, b) with 0 <= a <= b, at multiples of what the pages move as one.",
        "Half of a unit of several tokens, or of a granule, cannot be moved, and a whole one would overwrite tokens "
        "that were not named.",
    ),
    Rule(
        "KVL608",
        "a packed buffer that is missing, too short or of the wrong kind",
        "Give for every source rank a contiguous buffer of as many bytes as 'packed_bytes' says.",
        "Packed bytes lie without gaps in the order of the plan; a shorter buffer ends in somebody else's memory.",
    ),
    Rule(
        "KVL609",
        "no such rank or layer in the plan",
        "Give a destination rank and a layer of the plan.",
        "A plan says what each rank of its destination receives; of another one it says nothing.",
    ),
    Rule(
        "KVL610",
        "a null block in a table",
        "Leave out blocks that hold nothing, or give an interval of tokens without them.",
        "Engines put a null block where a window has passed or a state was never stored. Its page is anybody's bytes, "
        "and as a destination it is everybody's.",
    ),
    Rule(
        "KVL611",
        "more descriptors than a transport should be given",
        "Pack the pages and move them as a few long runs.",
        "A descriptor costs 48 bytes of tables and microseconds on the wire; millions take longer than the bytes do.",
    ),
    Rule(
        "KVL651",
        "a kernel cache that others could write to",
        "Give in KVLAYOUT_CACHE a folder of your own that no other user may write to, by its real path.",
        "Compiled kernels are loaded from there, and numba's index files are pickles: whoever can write to the folder "
        "can run code as you.",
    ),
    Rule(
        "KVL652",
        "numba compiles nothing here",
        "Unset NUMBA_DISABLE_JIT.",
        "Kernels are made of instructions that only a compiled function has.",
    ),
)
