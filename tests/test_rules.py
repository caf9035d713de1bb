"""The registry of rule codes: complete, used, explained, and shown at work by at least one bad input per code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvlayout.cli import main
from kvlayout.data import specs_dir
from kvlayout.errors import problem
from kvlayout.rules import RULES, Rule, files, integrations, moves, pages, proofs, sides, specs
from kvlayout.spec.explain import explain
from kvlayout.spec.formats import load_format, shipped_formats

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kvlayout"
CORPUS = ROOT / "tests" / "errors"

TABLES = {
    "files": files.TABLE,
    "specs": specs.TABLE,
    "pages": pages.TABLE,
    "sides": sides.TABLE,
    "proofs": proofs.TABLE,
    "moves": moves.TABLE,
    "integrations": integrations.TABLE,
}
RANGES = {
    "files": r"KVL0\d\d",
    "specs": r"KVL1(0|4|5|6)\d",
    "pages": r"KVL1(1|2|3)\d",
    "sides": r"KVL(20|50|51)\d",
    "proofs": r"KVL(3|4)\d\d",
    "moves": r"KVL6\d\d",
    "integrations": r"KVL7[01]\d",
}

# Codes that no spec with its engines can show, and the test that shows them.
ELSEWHERE = {
    **dict.fromkeys((f"KVL60{n}" for n in range(1, 10)), "tests/emit/test_bind.py"),
    "KVL610": "tests/emit/test_bind.py",
    "KVL611": "tests/emit/test_describe.py",
    **dict.fromkeys(("KVL651", "KVL652"), "tests/emit/test_cache.py"),
    "KVL310": "tests/api/test_schedules.py",
    "KVL510": "tests/api/test_tensors.py",
    **dict.fromkeys((f"KVL16{n}" for n in range(1, 6)), "tests/importers/test_hf_refused.py"),
    "KVL014": "tests/test_rules.py",
    "KVL120": "tests/ir/test_invariants.py",
    "KVL126": "tests/plan/test_hostile_artifacts.py",
    "KVL129": "tests/test_rules.py",
}


def used_codes() -> dict[str, set[str]]:
    """Every code in the package's text outside the registry, with the modules that use it."""
    used: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "rules":
            for code in re.findall(r'"(KVL\d{3})"', path.read_text(encoding="utf-8")):
                used.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    return used


def corpus_codes() -> set[str]:
    return {
        code
        for path in CORPUS.rglob("*.yaml")
        for code in re.findall(
            r"^# .*?: (KVL\d{3}): ", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
    }


def requirements() -> list[tuple[str, str, str]]:
    """(code, sentence, format) of every requirement of the shipped formats."""
    return [
        (each.code, each.say, name)
        for name, path in shipped_formats().items()
        for each in load_format(path).file.require
    ]


def test_every_code_that_is_used_has_a_rule() -> None:
    assert {code: where for code, where in used_codes().items() if code not in RULES} == {}


def test_every_rule_is_used() -> None:
    assert sorted(set(RULES) - set(used_codes())) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_holds_the_codes_of_its_range(name: str) -> None:
    codes = [rule.code for rule in TABLES[name]]
    assert codes == sorted(set(codes))
    assert [code for code in codes if not re.fullmatch(RANGES[name], code)] == []


def test_no_code_stands_in_two_tables() -> None:
    assert sum(map(len, TABLES.values())) == len(RULES)
    assert list(RULES) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)
def test_a_rule_says_what_is_wrong_what_to_change_and_why(rule: Rule) -> None:
    assert rule.title and rule.title[0].islower() | (rule.title[:4] == "YAML") and not rule.title.endswith(".")
    assert rule.help[:1].isupper() and rule.help.endswith(".")
    assert rule.why[:1].isupper() and rule.why.endswith(".")
    assert all(text.isprintable() and "  " not in text for text in (rule.title, rule.help, rule.why))
    assert len(rule.title) < 90


def test_titles_are_unique() -> None:
    titles = [rule.title for rule in RULES.values()]
    assert sorted(titles) == sorted(set(titles))


def test_a_proof_rule_names_its_theorem() -> None:
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for rule in RULES.values():
        if rule.code.startswith("KVL3"):
            named = re.findall(r"\bT[1-4]\b", rule.why)
            assert named, rule.code
            assert all(theorem in theory for theorem in named)


def test_every_rule_about_inputs_is_shown_by_a_bad_one() -> None:
    asked = {code for code in RULES if code[3] in "0125"}
    assert sorted(asked - corpus_codes() - set(ELSEWHERE)) == []


@pytest.mark.parametrize("code", ELSEWHERE)
def test_a_code_outside_the_corpus_is_in_the_test_that_is_named(code: str) -> None:
    assert code not in corpus_codes()
    assert code in (ROOT / ELSEWHERE[code]).read_text(encoding="utf-8")


def test_a_problem_takes_its_help_from_the_rule() -> None:
    assert problem("KVL005", "here", "twice").help == RULES["KVL005"].help
    assert problem("KVL005", "here", "twice", help="do this").help == "do this"
    assert problem("X1", "here", "mine").help is None


class TestRequirements:
    def test_a_code_is_one_sentence(self) -> None:
        said: dict[str, set[str]] = {}
        for code, sentence, _ in requirements():
            said.setdefault(code, set()).add(sentence)
        assert {code: sentences for code, sentences in said.items() if len(sentences) > 1} == {}

    def test_codes_are_their_own(self) -> None:
        codes = {code for code, _, _ in requirements()}
        assert codes & set(RULES) == set()
        assert [code for code in codes if not re.fullmatch(r"KVL2[1-9]\d", code)] == []


class TestExplain:
    @pytest.mark.parametrize("code", RULES)
    def test_a_rule_of_the_package(self, code: str) -> None:
        rule = RULES[code]
        page = explain(code)
        assert page is not None
        assert page.startswith(f"{code}: {rule.title}\n")
        assert rule.why in page and rule.help in page

    @pytest.mark.parametrize(("code", "sentence", "name"), requirements())
    def test_a_requirement_of_a_format(self, code: str, sentence: str, name: str) -> None:
        page = explain(code)
        assert page is not None
        assert page.startswith(f"{code}: {sentence}\n")
        assert f"format '{name}' at {specs_dir()}" in page
        assert re.search(r"\.yaml:\d+:\d+", page)

    def test_a_requirement_of_a_users_own_format(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(
            "kvlayout: 1\nformat: mine\nsource: a test\nparams: {n: {min: 1}}\n"
            "require:\n  - {that: n % 4 == 0, code: X_FOURS, say: values come in fours}\n"
            "page: {field: k, bytes: n, tag: int8}\n"
        )
        assert explain("X_FOURS") is None
        assert explain("X_FOURS", [load_format(file)]) == (
            "X_FOURS: values come in fours\n\nCondition: n % 4 == 0\nChange: Set n so that the condition holds.\n"
            f"Required by:\n  format 'mine' at {file}:6:5"
        )

    @pytest.mark.parametrize("code", ["", "KVL", "KVL000", "KVL299", "X", "kvl001", "KVL001\n"])
    def test_no_such_rule(self, code: str) -> None:
        assert explain(code) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kvlayout: 1\nsource: neither of the three\n", "KVL014"),
        ("kvlayout: 1\nmodel: a\nformat: b\nsource: two of the three\n", "KVL014"),
        ("kvlayout: 1\nformat: mine\nsource: a\npage: {field: k, bytes: 1, tag: int8}\n", "KVL129"),
    ],
)
def test_verify_refuses_a_file_that_it_cannot_verify(
    text: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert main(["verify", str(file)]) in (1, 2)
    printed = capsys.readouterr()
    assert f"{file}:1:1: {code}: " in printed.out + printed.err
