"""KVL11x to KVL13x: formats, their names and parameters, axes and page trees (theorem T1 of docs/theory.md)."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL110",
        "an unknown format",
        "Use a shipped format, or put the format's file beside the file that names it or into ../formats.",
        "A format is found by its file's name, in these places and nowhere else.",
    ),
    Rule(
        "KVL111",
        "a format is not named like its file",
        "Rename the file, or the format in it.",
        "Formats are found by their files' names; with two names, the one that is read is not the one that is meant.",
    ),
    Rule(
        "KVL112",
        "formats extend each other without end",
        "Break the circle, or shorten the chain to 8 files.",
        "A circle has no first format to start from, and nobody can follow a long chain to the value that holds.",
    ),
    Rule(
        "KVL113",
        "a format of your own has the name of a shipped one",
        "Rename your format; it may extend the shipped one.",
        "Otherwise the same spec would mean other bytes on a machine without the local file.",
    ),
    Rule(
        "KVL114",
        "a name is given two meanings",
        "Rename one of them; engine words, parameters, let names, axes and digits share one space.",
        "An expression that reads the name would read either meaning.",
    ),
    Rule(
        "KVL115",
        "a parameter that the format does not have",
        "Remove the parameter or correct its name.",
        "A misspelled parameter that is ignored leaves its default in force, and the page becomes another one.",
    ),
    Rule(
        "KVL116",
        "a parameter has no value",
        "Give the parameter a value.",
        "A parameter without a default is one that no page can be described without.",
    ),
    Rule(
        "KVL117",
        "a value that the parameter cannot have",
        "Give a value that the format allows.",
        "The format says for which values it describes real pages.",
    ),
    Rule(
        "KVL118",
        "axis words that exclude each other",
        "Use 'shard: cp' on an axis that grows, and 'common' on an axis that is neither shared out nor grows.",
        "Context parallelism deals out tokens, which only a growing axis counts; rows in common are owned whole by "
        "every rank.",
    ),
    Rule(
        "KVL119",
        "a node without a field",
        "Give the node a field, or remove it; a gap is a pad between the members of a list.",
        "A page of pads has no bytes to move.",
    ),
    Rule(
        "KVL120",
        "the parts of a page do not fill it exactly",
        "Correct the offsets and sizes: parts neither overlap nor leave a byte that is not a declared pad.",
        "T1: strides equal to the span of what they repeat, and parts that tile their struct, make every byte of the "
        "page belong to exactly one field or pad.",
    ),
    Rule(
        "KVL121",
        "a name that is no axis here",
        "Use an axis of the format, a digit declared on the way down, or order.",
        "An array repeats its content along an axis; a factored axis is used by its digits, or it would count twice.",
    ),
    Rule(
        "KVL122",
        "the digits on the way to a field do not form its axis",
        "Name each axis, or each of its digits, exactly once on the way from the page to the field.",
        "T1: every coordinate of the axis must be formed exactly once, or a byte has no coordinate, or two.",
    ),
    Rule(
        "KVL123",
        "a field stands in the page twice",
        "Rename one of the two.",
        "Fields pair by name between two engines; with two of one name it is unknown which bytes are meant.",
    ),
    Rule(
        "KVL124",
        "a size that no page has",
        "Correct the sizes; all are between 1 and 2**62 bytes or units.",
        "Offsets and their sums must stay inside 64-bit integers on every machine that applies a plan.",
    ),
    Rule(
        "KVL125",
        "a page tree with too many nodes or levels",
        "Use arrays for what repeats.",
        "A bounded tree cannot exhaust time, memory or the stack.",
    ),
    Rule(
        "KVL126",
        "a page whose axis words contradict each other or its block",
        "Compile the plan again from its specs; no spec expands to such a page.",
        "Only a page of tokens has a block and axes that grow with it, only growing axes are dealt out to "
        "context-parallel ranks, and common axes are shared out by nothing: the proof relies on it.",
    ),
    Rule(
        "KVL127",
        "a choice that cannot be made",
        "Choose over a parameter, order, conv or family, with one case for each value that it can have.",
        "A case that never holds is a misspelled one, and a missing case is a page that is not described.",
    ),
    Rule(
        "KVL128",
        "digits that do not factor their axis",
        "Give digits whose counts multiply to the axis's units on a rank; only the first may be without a count.",
        "Digits that form more or fewer units than there are leave bytes without a coordinate, or coordinates "
        "without bytes.",
    ),
    Rule(
        "KVL129",
        "a format without examples",
        "Add 'examples' with at least one set of parameters.",
        "What nothing is tried on is not verified; a green run over an empty input would say otherwise.",
    ),
    Rule(
        "KVL130",
        "an array without an axis",
        "Name the axes and digits along which the array lies, outer to inner, or take the array away.",
        "An array repeats its content along axes; without one it says nothing.",
    ),
    Rule(
        "KVL131",
        "a field lies along two growing axes",
        "Let one axis grow with the blocks.",
        "A block adds units at the end of one axis. Along two, it would add a corner of a square, which no list of "
        "blocks describes.",
    ),
    Rule(
        "KVL132",
        "a requirement takes a code that has another meaning",
        "Give the requirement a code of your own that starts with X.",
        "A code means one thing, wherever it is printed and whoever looks it up.",
    ),
    Rule(
        "KVL133",
        "growing axes of one page are dealt out differently",
        "Give every growing axis of the page the same `shard`, or put the fields into two groups.",
        "A block id covers block * cp tokens of an axis that is dealt out to context-parallel ranks, and block tokens "
        "of one that is not; block b of the page would mean two different stretches of tokens.",
    ),
    Rule(
        "KVL134",
        "a shared axis that no field lies along",
        "Put the axis into the arrays of its fields, or take it away.",
        "A forgotten axis makes a page of one unit, which still looks legal: a page with one head instead of eight.",
    ),
)
