"""What the documentation shows is run: each `>>>` in `docs/` and the README gives what stands below it.

A Python block without `>>>` is executed. The blocks of one file share their names, from top to bottom, as a reader
would type them; each file starts in a folder that holds nothing but the shipped specs. Console sessions are run, too
(`consoles.py`).
"""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import consoles
import pytest
from consoles import PAGES, ROOT

import kvlayout


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Every fenced block marked as Python, with the number of lines before its first."""
    first: int | None = None
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if first is None and line.rstrip() == "```python":
            first = number + 1
        elif first is not None and line.rstrip() == "```":
            yield first, "".join(lines[first:number])
            first = None
    assert first is None, f"the block that opens on line {first} is never closed"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_the_page_shows_is_true(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs").symlink_to(ROOT / "specs")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    for before, block in python_blocks(page.read_text(encoding="utf-8")):
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), before)
            runner.run(test, out=said.append, clear_globs=False)
            names = test.globs
        else:
            exec(compile("\n" * before + block, str(page), "exec"), names)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_console_shows_is_printed(page: Path, tmp_path: Path) -> None:
    for command, output in consoles.printed(page.read_text(encoding="utf-8"), tmp_path):
        assert consoles.agrees(command.output, output), f"{command.line}\n{output}"


def test_pages_are_found() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "theory.md", "concepts.md"}
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert sum(">>>" in block for _, block in python_blocks(theory)) >= 10


def test_the_page_of_python_names_the_whole_surface() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in kvlayout.__all__ if not name.startswith("__") and name not in text] == []
    for function in (kvlayout.bind, kvlayout.kernel, kvlayout.slice_for_tp_transfer, kvlayout.load_plan):
        written = ", ".join(
            ("*, " if each.kind is each.KEYWORD_ONLY and before is not each.KEYWORD_ONLY else "")
            + each.name
            + ("" if each.default is each.empty else f"={each.default!r}".replace("'", '"'))
            for each, before in _with_kind_before(inspect.signature(function))
        )
        assert f"`{function.__name__}({written})" in text, written


def _with_kind_before(signature: inspect.Signature) -> Iterator[tuple[inspect.Parameter, object]]:
    before: object = None
    for each in signature.parameters.values():
        yield each, before
        before = each.kind
