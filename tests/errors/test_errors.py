"""The error corpus: one bad input per file, and at the very top of the file the messages that it must get.

Every message is compared whole, so that the corpus is where messages are read and judged. What a file is (a format, a
model, an engine) decides how it is read; files in `yaml` are just YAML. Formats are expanded for their examples. In a
model, a comment `# engines: A B` after the messages plans it from engine A to engine B, `# engines: A` expands its
pages on A, and `# second: FILE` gives engine B a spec of its own. Deeper folders hold cases of several files, of which
some have nothing wrong of their own.

After messages were changed, `pytest tests/errors --rewrite-errors` writes them anew. Read the difference as what a user
will read: where, which rule, what was expected, what was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kvlayout
from kvlayout import Engine, KvLayoutError
from kvlayout.data import specs_dir
from kvlayout.spec.formats import load_format
from kvlayout.spec.grammar import KvDtypesFile
from kvlayout.spec.model import spec_of_format
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.yaml"))
MESSAGE = re.compile(r"# .*: (KVL\d{3}|X\w+): ")
DIRECTIVE = re.compile(r"# (engines|second): (.*)")


def header(content: bytes) -> tuple[list[str], dict[str, str]]:
    """The messages and the directives in the comments at the top."""
    messages: list[str] = []
    directives: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        if directive := DIRECTIVE.fullmatch(line):
            directives[directive[1]] = directive[2]
        elif MESSAGE.match(line):
            messages.append(line.removeprefix("# "))
        else:
            break
    return messages, directives


def read_format(path: Path, directives: dict[str, str]) -> None:
    loaded = load_format(path)
    for index, example in enumerate(loaded.file.examples):
        spec = spec_of_format(loaded, example, loaded.where("examples", index))
        for engine in directives.get("engines", "tp=1").split():
            spec.page(spec.groups[0], Engine.parse(engine))


def read_model(path: Path, directives: dict[str, str]) -> None:
    spec = kvlayout.load(path)
    engines = [Engine.parse(text) for text in directives.get("engines", "tp=1").split()]
    if len(engines) == 2:
        second = kvlayout.load(path.parent / directives["second"]) if "second" in directives else None
        kvlayout.slice_for_tp_transfer(spec, *engines, dst_spec=second)
    for group in spec.groups:
        spec.page(group, engines[0])


READERS: dict[str, Callable[[Path, dict[str, str]], object]] = {
    "yaml": lambda path, _: read_source(path),
    "format": read_format,
    "model": read_model,
    "engine": lambda path, _: Engine.load(path),
    "kv_dtypes": lambda path, _: validated(KvDtypesFile, read_source(path)),
}


def kind_of(path: Path) -> str:
    keys = re.findall(rb"^(format|model|engine|kv_dtypes):", path.read_bytes(), re.MULTILINE)
    return "yaml" if path.parent.name == "yaml" or len(keys) != 1 else str(keys[0].decode())


def messages_of(path: Path) -> list[str]:
    """What a user reads about the file, with paths from its folder on."""
    try:
        READERS[kind_of(path)](path, header(path.read_bytes())[1])
    except KvLayoutError as error:
        text = "\n".join(map(str, error.problems)).replace(f"{path.parent}/", "").replace(f"{specs_dir()}/", "specs/")
        return text.split("\n")
    return []


def rewritten(path: Path) -> bool:
    """Put the messages at the top; whether that changed the file."""
    content = path.read_bytes()
    old, directives = header(content)
    rest = content.split(b"\n", len(old) + len(directives))[-1]
    lines = [f"# {message}" for message in messages_of(path)]
    lines += [f"# {name}: {value}" for name, value in directives.items()]
    path.write_bytes(b"".join(f"{line}\n".encode() for line in lines) + rest)
    return path.read_bytes() != content


@pytest.fixture(scope="module", autouse=True)
def _rewritten(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite-errors", default=False):
        # New lines at the top move the places in the messages, also those of other files.
        for _ in range(4):
            changed = [path for path in FILES if rewritten(path)]
            if not changed:
                return
        pytest.fail("the messages do not settle")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE).with_suffix("")))
def test_a_bad_spec_gets_its_messages(path: Path) -> None:
    expected, _ = header(path.read_bytes())
    assert expected or path.parent.parent != HERE, "no message at the top of the file"
    assert messages_of(path) == expected


def test_messages_are_placed_and_short() -> None:
    for path in FILES:
        for message in header(path.read_bytes())[0]:
            assert re.match(r"[\w./-]+:[1-9]\d*:[1-9]\d*: |engine '|plan tp=|spec |.*/?not-utf8", message), message
            assert len(message) < 500, message
            assert message.isprintable(), message
