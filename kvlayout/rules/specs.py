"""KVL10x and KVL14x to KVL16x: expressions, models, engines and configs that specs are imported from."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL101",
        "an expression that cannot be read",
        "Correct the expression at this column: integers, names, + - * // %, comparisons, and/or/not, min, max, "
        "ceil_div, round_up, size.",
        "The language is small so that a spec can be understood at sight and cannot run for long.",
    ),
    Rule(
        "KVL102",
        "an expression has a result of the wrong kind",
        "Give an expression with a number, a word or a truth value, as this place needs.",
        "A truth value is no number and a word is no number: each slip of this kind has a meaning in some language, "
        "and none is what was meant.",
    ),
    Rule(
        "KVL103",
        "a number is too small for its place",
        "Change the expression or the parameters that it reads.",
        "A size of nothing, or below nothing, describes no bytes.",
    ),
    Rule(
        "KVL104",
        "an expression has no value",
        "Correct the name or the operands at this column; names are parameters, let names and engine words.",
        "An expression that divides by zero, grows beyond 2**62 or reads an unknown name cannot place a byte. A word "
        "is compared only with names that can hold it, so that a misspelled word cannot make a condition false.",
    ),
    Rule(
        "KVL141",
        "a group has a format, or a page of its own",
        "Give the group either 'format', or 'page' with 'axes', 'let' and 'require' beside it.",
        "With both, or with parts of both, it would be unclear which of them describes the bytes.",
    ),
    Rule(
        "KVL142",
        "a group is named like an engine word",
        "Rename the group.",
        "In an engine file, and in front of a dot, the name would be read as the engine's word.",
    ),
    Rule(
        "KVL143",
        "a group names a layer that the model does not have",
        "Correct the layers, or num_layers; layers count from 0.",
        "A plan for a layer that does not exist moves bytes that belong to something else.",
    ),
    Rule(
        "KVL144",
        "num_layers is missing",
        "Add num_layers at the top of the file.",
        "What 'all' means, or a count beside other groups, is known only with the number of layers.",
    ),
    Rule(
        "KVL145",
        "two groups give a count of layers",
        "Name the layers of all groups but one, by a list or by {from, every, count}.",
        "A count takes the layers that no other group names; two counts do not say which takes which.",
    ),
    Rule(
        "KVL146",
        "a count of layers is not what the other groups leave",
        "Correct the count, num_layers or the layers of the other groups.",
        "The count is checked against the layers that are left, so that a forgotten or doubled layer is found.",
    ),
    Rule(
        "KVL147",
        "a group names a layer twice",
        "Remove one of the two.",
        "A layer has one page in a group; a second mention is most likely meant for another layer.",
    ),
    Rule(
        "KVL148",
        "more layers than any model has",
        "Correct the numbers of layers.",
        "Every group keeps its own list of layers, and a bounded one cannot exhaust memory.",
    ),
    Rule(
        "KVL151",
        "an unknown engine word",
        "Correct the word; what belongs to one group is written group.word.",
        "A misspelled word that is ignored leaves its default in force, and the engine becomes another one.",
    ),
    Rule(
        "KVL152",
        "an engine's text that is no list of words with values",
        "Write key=value,key=value with each key once, as tp=4,order=NHD,attention.block=64.",
        "Of two values for one word only one could hold.",
    ),
    Rule(
        "KVL153",
        "a value that no engine word can have",
        "Give a value of the kind and within the bounds that are expected.",
        "Engines are bounded so that what is computed from them stays small; real ones are far from the bounds.",
    ),
    Rule(
        "KVL154",
        "an unknown group",
        "Correct the name of the group, or take the override out.",
        "An override of a group that the model does not have would silently change nothing.",
    ),
    Rule(
        "KVL155",
        "an override that the group does not have",
        "Override a parameter of the group's format, or one of the words that every group has.",
        "An override that changes nothing hides that the engine is not described.",
    ),
    Rule(
        "KVL156",
        "a cache dtype that the format does not know",
        "Use a cache dtype of the format, or override the group's format and parameters by name.",
        "What a cache dtype makes of a page differs between formats; guessing would describe another page.",
    ),
    Rule(
        "KVL161",
        "a config that is not JSON, or says one thing twice",
        "Give the model's config.json as it was published: one JSON object in which no key stands twice.",
        "JSON readers keep one of two values for a key and drop the other silently.",
    ),
    Rule(
        "KVL162",
        "a field of a config has a value that it cannot have",
        "Correct the field, or write the model spec by hand (docs/new-model.md).",
        "A size of another kind, or out of bounds, is no size; whatever was made of it would be another model's page.",
    ),
    Rule(
        "KVL163",
        "a field that a config lacks",
        "Add the field, or write the model spec by hand with the value that the engine uses (docs/new-model.md).",
        "A value that is guessed describes the page of another model.",
    ),
    Rule(
        "KVL164",
        "fields of a config contradict each other",
        "Correct one of the fields, or write the model spec by hand (docs/new-model.md).",
        "Of two fields that disagree one is not what the engine follows, and which one is not known here.",
    ),
    Rule(
        "KVL165",
        "an architecture that the importer does not know",
        "Write the model spec by hand (docs/new-model.md); a dozen lines say what each layer keeps.",
        "What a layer keeps follows from its code, not its config: a new architecture may keep more than it shows.",
    ),
)
