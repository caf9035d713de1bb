"""Expressions: values against Python's own, and that every slip is an `ExprError` with a column."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.spec.expr import DTYPES, Expr, ExprError, canonical_tag, evaluate, parse, unknown_name
from kvlayout.spec.expr_parse import MAX_NESTING, MAX_TEXT

ENV: dict[str, Any] = {
    "block": 16,
    "head_size": 128,
    "tp": 2,
    "order": "HN",
    "scale_layout": "linear",
    "dtype": "bfloat16",
    "wide": True,
}
ENUMS = {"order": ["HN", "NH"], "scale_layout": ["linear", "sm100"], "dtype": list(DTYPES)}


def value(text: str | int, env: dict[str, Any] | None = None) -> Any:
    return evaluate(parse(text), ENV if env is None else env, enums=ENUMS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 - 2 - 1", 4),
        ("100 // 7 // 2", 7),
        ("7 * 5 % 3", 2),
        ("7 % 4 * 2", 6),
        ("+".join(["(1)"] * 60), 60),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("2 - -3", 5),
        ("- - 3", 3),
        ("head_size//16", 8),
        ("block\n * 2\t", 32),
        (0, 0),
        (-5, -5),
        ("min(block, 3, head_size)", 3),
        ("max(block, 3, head_size) + 1", 129),
        ("ceil_div(130, 128)", 2),
        ("ceil_div(-1, 2)", 0),
        ("round_up(577, 576)", 1152),
        ("round_up(576, 576)", 576),
        ("min(max(1, 2), (3))", 2),
        ("size(dtype) * head_size", 256),
        ("size(float8_e4m3)", 1),
        ("size(float32)", 4),
        ("2**62", None),
        ("4611686018427387904", 2**62),
        ("-4611686018427387904", -(2**62)),
        ("block == 16", True),
        ("16 != block", False),
        ("block >= 16 and block < 17", True),
        ("not block == 16", False),
        ("not not wide", True),
        ("wide and tp > 2 or block <= 16", True),
        ("wide or tp > 2 and tp > 3", True),
        ("(wide or tp > 2) and tp > 3", False),
        ("wide == (tp > 1)", True),
        ("order == HN", True),
        ("NH == order", False),
        ("order != NH", True),
        ("order == dtype", False),
        ("scale_layout == linear or block % 4 == 0", True),
        ("tp == 0 or 4 // tp == 2", True),
        ("tp != 2 or block // (tp - 2) == 1", None),
        ("tp == 2 or block // (tp - 2) == 1", True),
        ("tp != 2 and block // (tp - 2) == 1", False),
        ("order", "HN"),
        ("(order)", "HN"),
        ("e2m1x2", "e2m1x2"),
        ("min", "min"),
        ("andy", "andy"),
        ("wide", True),
    ],
)
def test_values(text: str | int, expected: object) -> None:
    if expected is None:
        with pytest.raises(ExprError):
            value(text)
    else:
        got = value(text)
        assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 0, "the expression is empty"),
        ("  ", 2, "the expression is empty"),
        ("1 +", 3, "a value is missing"),
        ("(1", 0, "'(' is not closed"),
        ("1)", 1, "')' without '('"),
        ("()", 1, "')' stands where a value"),
        ("1 2", 2, "'2' stands where an operator"),
        ("block head", 6, "'head' stands where an operator"),
        ("1 not 2", 2, "'not' stands where an operator"),
        ("* 2", 0, "'*' stands where a value"),
        ("+ 2", 0, "'+' stands where a value"),
        ("and 2", 0, "'and' stands where a value"),
        ("1 + not wide", 4, "'not' after '+' needs parentheses"),
        ("wide == not wide", 8, "'not' after '==' needs parentheses"),
        ("1 < 2 < 3", 6, "do not chain"),
        ("1 == 2 + 1 == 3", 11, "do not chain"),
        ("012", 0, "decimal digits"),
        ("0x10", 0, "decimal digits"),
        ("1_000", 0, "decimal digits"),
        ("1e3", 0, "decimal digits"),
        ("1.5", 0, "decimal digits"),
        ("4611686018427387905", 0, "above 2**62"),
        ("9" * 900, 0, "above 2**62"),
        ("block / 2", 6, "whole division is '//'"),
        ("block = 2", 6, "equality is '=='"),
        ("block.real", 5, "'.' does not belong"),
        ("!wide", 0, "negation is 'not'"),
        ("wide && wide", 5, "use 'and'"),
        ("order == 'HN'", 9, "without quotes"),
        ("a[0]", 1, "'[' does not belong"),
        ("été", 0, "'é' does not belong"),
        ("2 ** 3", 3, "'*' stands where a value"),
        ("1, 2", 1, "outside a function"),
        ("(1, 2)", 2, "outside a function"),
        ("min()", 4, "')' stands where a value"),
        ("min(1,)", 6, "')' stands where a value"),
        ("min(1)", 0, "min() does not take 1"),
        ("ceil_div(1, 2, 3)", 0, "ceil_div() does not take 3"),
        ("size(1)", 0, "size() takes one dtype"),
        ("size(dtype, dtype)", 0, "size() takes one dtype"),
        ("roundup(1, 2)", 0, "no function 'roundup'; did you mean 'round_up'?"),
        ("__import__(os)", 0, "no function '__import__'"),
        ("not (1", 4, "'(' is not closed"),
        ("x" * (MAX_TEXT + 1), MAX_TEXT, "at most 1000 characters"),
        ("(" * 51 + "1" + ")" * 51, 50, "at most 50 deep"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_syntax_errors_have_a_column(text: str, column: int, message: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse(text)
    assert message in caught.value.message
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("head_sise // 2", 0, "unknown name 'head_sise'; did you mean 'head_size'?"),
        ("2 + blok", 4, "did you mean 'block'?"),
        ("min(1, blok)", 7, "did you mean 'block'?"),
        ("blok == 16", 0, "did you mean 'block'?"),
        ("linear == sm100", 0, "unknown name 'linear'"),
        ("block == HN", 9, "unknown name 'HN'"),
        ("1 + 2 == HN", 9, "unknown name 'HN'"),
        ("HN and wide", 0, "unknown name 'HN'"),
        ("order == NHD", 9, "'NHD' is not one of HN, NH, the words of 'order'"),
        ("lineal != scale_layout", 0, "is not one of linear, sm100"),
        ("order == block", 6, "'==' compares the word 'HN' with 16"),
        ("order == 1", 6, "'==' compares the word 'HN' with 1"),
        ("wide == 1", 5, "'==' compares true with 1"),
        ("order + 1", 6, "'+' needs two numbers, got the word 'HN' and 1"),
        ("order < NH", 8, "unknown name 'NH'"),
        ("order < dtype", 6, "'<' needs two numbers"),
        ("wide + 1", 5, "'+' needs two numbers, got true and 1"),
        ("(1 < 2) < 3", 8, "'<' needs two numbers"),
        ("min(1, wide)", 0, "'min()' needs two numbers"),
        ("-order", 0, "'-' needs two numbers"),
        ("block and wide", 6, "'and' needs true or false, got 16"),
        ("wide and block", 5, "'and' needs true or false, got 16"),
        ("not block", 0, "'not' needs true or false, got 16"),
        ("not order", 0, "'not' needs true or false, got the word 'HN'"),
        ("1 // 0", 2, "'//' divides by 0"),
        ("1 % (block - 16)", 2, "'%' divides by 0"),
        ("ceil_div(1, 0)", 0, "'ceil_div()' divides by 0"),
        ("round_up(1, -4)", 0, "'round_up()' divides by -4"),
        ("4611686018427387904 + 1", 20, "beyond 2**62"),
        ("-4611686018427387904 - 1", 21, "beyond 2**62"),
        ("4611686018427387904 * 4611686018427387904", 20, "beyond 2**62"),
        ("size(order)", 5, "size() of 'HN', which is no dtype"),
        ("size(bfloat61)", 5, "did you mean 'bfloat16'?"),
        ("size(block)", 5, "size() of '16', which is no dtype"),
        # What is skipped is not evaluated, but a misspelled name in it is still found.
        ("wide or blok > 1", 8, "did you mean 'block'?"),
        ("wide or order == NHD", 17, "is not one of HN, NH"),
        ("tp > 2 and size(bfloat61) > 1", 16, "did you mean 'bfloat16'?"),
    ],
)
def test_slips_of_meaning_have_a_column(text: str, column: int, message: str) -> None:
    expression = parse(text)
    with pytest.raises(ExprError) as caught:
        evaluate(expression, ENV, enums=ENUMS)
    assert message in caught.value.message
    assert caught.value.column == column


def test_a_guard_protects_what_it_skips() -> None:
    assert value("kv == auto or size(kv) == 2", {"kv": "auto"}) is True
    assert value("kv == auto or size(kv) == 2", {"kv": "float32"}) is False


def test_without_enums_any_word_compares() -> None:
    assert evaluate(parse("order == whatever"), ENV) is False


def test_a_value_of_the_environment_beyond_the_bound_is_refused() -> None:
    with pytest.raises(ExprError, match="beyond"):
        value("big", {"big": 10**19})


@pytest.mark.parametrize("wrong", [True, None, 1.5, [1], 10**5000, 2**62 + 1], ids=lambda wrong: type(wrong).__name__)
def test_only_integers_and_texts_are_expressions(wrong: Any) -> None:
    with pytest.raises(ExprError):
        parse(wrong)


def test_expressions_are_values() -> None:
    first = parse("min(a, b) + size(dtype) + c * c")
    assert first.names == {"a", "b", "c", "dtype"}
    assert first.text == "min(a, b) + size(dtype) + c * c"
    assert first is parse("min(a, b) + size(dtype) + c * c")
    assert {first: 1}[Expr(first.text, frozenset(), ())] == 1
    assert parse("order == HN").names == {"order", "HN"}
    assert parse(5).text == "5" and parse(1) is parse("1")


def test_tags_and_dtypes() -> None:
    assert canonical_tag("e4m3") == canonical_tag("float8_e4m3") == "float8_e4m3"
    assert canonical_tag("e5m2") == "float8_e5m2"
    assert canonical_tag("bfloat16") == "bfloat16" and canonical_tag("any") == "any"
    assert all(value(f"size({dtype})") == size for dtype, size in DTYPES.items())


def test_unknown_names_are_bounded() -> None:
    assert unknown_name("blok", ["block", "tp"]) == "unknown name 'blok'; did you mean 'block'?"
    assert len(unknown_name("x" * 1000, ["x" * 999])) < 100


@pytest.mark.parametrize(
    "text",
    [
        "(" * MAX_NESTING + "1" + ")" * MAX_NESTING,
        "a*(" * MAX_NESTING + "1" + ")" * MAX_NESTING,
        "-" * (MAX_TEXT - 1) + "1",
        "not " * 248 + "wide",
        "1" + "+1" * 499,
        "wide" + " or wide" * 120,
        "min(1," * MAX_NESTING + "1" + ")" * MAX_NESTING,
        "(1 < 2) and not (" * 40 + "wide" + ")" * 40,
        "min(" + "1," * 490 + "1)",
        "*".join(["4611686018427387904"] * 47),
        "9" * MAX_TEXT,
        "(" * MAX_TEXT,
        "x" * MAX_TEXT,
    ],
    ids=lambda text: text[:20],
)
def test_nothing_of_a_thousand_characters_blows_up(text: str) -> None:
    started = time.monotonic()
    try:
        for _ in range(10):
            evaluate(parse(text), {**ENV, "a": 1})
    except ExprError:
        pass
    assert time.monotonic() - started < 5


def _ceil_div(a: int, b: int) -> int:
    if b <= 0:
        raise ZeroDivisionError
    return -(-a // b)


# Rendered without the parentheses that precedence needs, so that Python decides how to read the text too.
ATOMS = st.integers(0, 20).map(str) | st.sampled_from(["n", "m", "z"])
CHAINS = st.lists(st.tuples(ATOMS, st.sampled_from(["+", " - ", "*", " // ", "%"])).map("".join), max_size=5)
NUMBERS = st.recursive(
    ATOMS | st.tuples(CHAINS.map("".join), ATOMS).map("".join),
    lambda inner: (
        st.tuples(inner, st.sampled_from([" + ", "-", " * ", "//", " % "]), inner).map("".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
        | st.tuples(st.sampled_from(["min", "max", "ceil_div", "round_up"]), inner, inner).map(
            lambda parts: "{}({}, {})".format(*parts)
        )
    ),
    max_leaves=8,
)
TRUTHS = st.recursive(
    st.tuples(NUMBERS, st.sampled_from([" == ", "!=", " < ", "<=", " > ", ">="]), NUMBERS).map("".join),
    lambda inner: (
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join)
        | inner.map("not {}".format)
        | inner.map("({})".format)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(NUMBERS | TRUTHS, st.integers(-9, 9), st.integers(-9, 9))
def test_agrees_with_python(text: str, n: int, m: int) -> None:
    env: dict[str, Any] = {"n": n, "m": m, "z": 0}
    functions = {"min": min, "max": max, "ceil_div": _ceil_div, "round_up": lambda a, b: _ceil_div(a, b) * b}
    try:
        expected = eval(text, {"__builtins__": {}, **functions}, env)
    except ZeroDivisionError:
        with pytest.raises(ExprError, match="divides by"):
            evaluate(parse(text), env)
    else:
        got = evaluate(parse(text), env)
        assert got == expected and type(got) is type(expected)


PIECES = [
    "(",
    ")",
    ",",
    "+",
    "-",
    "*",
    "//",
    "%",
    "==",
    "!=",
    "<",
    ">=",
    "and",
    "or",
    "not",
    "min",
    "size",
    "order",
    " ",
]


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from([*PIECES, "block", "7", "HN", "wide"])).map(" ".join))
def test_garbage_is_an_expression_or_an_expr_error(text: str) -> None:
    result: object
    try:
        result = evaluate(parse(text), ENV, enums=ENUMS)
    except ExprError as error:
        result = error
    if isinstance(result, ExprError):
        assert result.message and 0 <= result.column <= len(text)
    else:
        assert type(result) in (int, bool, str)
