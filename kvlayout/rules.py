"""The registry of rule codes: one line of title and one sentence of help each.

A code never changes its meaning and is never used again. `kvlayout explain CODE` prints the rule; formats declare more
rules in their `require` lists (`KVL2xx` in shipped formats, `X...` in a user's own).

| range | speaks of |
| --- | --- |
| KVL0xx | files and YAML, before any meaning |
| KVL1xx | specs: expressions, axes, page trees, models, engines |
| KVL2xx | sides that no engine can load, and what a format requires |
| KVL3xx | proofs: what the checker found wrong in a plan |
| KVL4xx | artifacts: seals, digests, versions |
| KVL5xx | pairs: two sides that exist but cannot be converted |
| KVL9xx | the command line, and faults of ours |
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`title` names what is wrong; `help` says what to change; `why` tells what would happen otherwise."""

    code: str
    title: str
    help: str
    why: str


_TABLE: tuple[Rule, ...] = (
    # -- reading ------------------------------------------------------------------------------------------------
    Rule(
        "KVL001",
        "the file cannot be read",
        "Give the path of an existing, readable UTF-8 file.",
        "Nothing is assumed about a spec that was not read.",
    ),
    Rule(
        "KVL002",
        "the file is larger than a spec can be",
        "Split the file, or remove what does not belong to the spec.",
        "A file of bounded size, depth and number of values cannot exhaust time or memory.",
    ),
    Rule(
        "KVL003",
        "the file is not valid YAML",
        "Correct the YAML at this place; quote a text that holds a special character.",
        "Text that cannot be parsed has no meaning to check.",
    ),
    Rule(
        "KVL004",
        "a character that does not show",
        "Remove the character; use spaces and plain line ends.",
        "A spec must mean what a reader sees, and names in it reach terminals and file names.",
    ),
    Rule(
        "KVL005",
        "a key is given twice",
        "Remove one of the two, or rename it.",
        "YAML readers keep one value and drop the other silently, and not all keep the same one.",
    ),
    Rule(
        "KVL006",
        "a key is not a text",
        "Write the key as a text; quote it if it looks like a number, true, false or null.",
        "A key that one reader takes for a number and another for a text is found by only one of them.",
    ),
    Rule(
        "KVL007",
        "anchors, aliases, merge keys, tags and directives are not part of a spec",
        "Write the value out where it is used.",
        "They let a short file stand for a huge one, or let a value mean something else than it shows.",
    ),
    Rule(
        "KVL008",
        "a file holds one mapping",
        "Write one document whose top level is a mapping of keys to values.",
        "A second document, or anything that is not a mapping, would be silently ignored.",
    ),
    Rule(
        "KVL009",
        "an integer has too many digits",
        "Give a smaller number, or quote it if it is a text.",
        "No size, count or offset needs so many digits, and longer ones cost time to read.",
    ),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _TABLE}
