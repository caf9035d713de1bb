"""KVL0xx: files, YAML and the shape of what they hold, before any meaning."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL001",
        "the file cannot be read",
        "Give the path of an existing, readable file; specs are UTF-8 text.",
        "Nothing is assumed about a file that was not read. Only regular files are read, so that no pipe or device "
        "can block a run or feed it without end.",
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
    Rule(
        "KVL010",
        "a key is missing",
        "Add the key.",
        "A spec says everything that a page depends on; a guessed value would describe another page.",
    ),
    Rule(
        "KVL011",
        "an unknown key",
        "Correct the key, or start it with 'x-' if it is a note of your own.",
        "A misspelled key that is ignored leaves its default in force, and the page becomes another one than was "
        "written.",
    ),
    Rule(
        "KVL012",
        "a value of the wrong kind or out of its bounds",
        "Give a value of the kind that is expected; quote a text that looks like a number, true, false or null.",
        "Values are never converted, so that two readers of a file cannot disagree about what it says.",
    ),
    Rule(
        "KVL013",
        "no kind of node of a page",
        "Write a mapping with exactly one of the keys that tell its kind: field, array, struct, choose, pad or opaque; "
        "or a list of nodes.",
        "Each kind of node is told by the one key that only it has.",
    ),
    Rule(
        "KVL014",
        "a file that says neither format, model nor engine",
        "Give the file one of the keys format, model and engine.",
        "What a file is decides what is checked; a file that was taken for something else would pass for checked.",
    ),
)
