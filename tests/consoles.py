"""The console sessions of the documentation, run: what stands below a `$ ` is what the command prints.

A session is a fenced block marked as `console`. Sessions of one page share a folder, from top to bottom, which begins
with the shipped specs and holds each YAML block of the page that opens with the comment of its own path. In what is
shown, `...` stands for any text, the seconds of `in 0.1 s` for any seconds, and paths of the repository begin with
`.../`. `python tests/consoles.py` rewrites what no longer agrees.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NOT_RUN = ("git ", "python ", "pip ", "pytest ", ".ci/", "cd ")
"""What sets up, measures or needs another machine: shown, and run elsewhere."""

CONFIG = ROOT / "tests" / "importers" / "configs" / "qwen3-next-80b-a3b.json"


class Command(NamedTuple):
    """One command of a page; its output stands at `start` to `end` of the text."""

    line: str
    output: str
    start: int
    end: int


def fenced(text: str, language: str) -> Iterator[tuple[str, int]]:
    """The blocks of a language, with where they begin."""
    for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.S | re.M):
        yield block[1], block.start(1)


def commands(text: str) -> Iterator[Command]:
    for block, at in fenced(text, "console"):
        for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            yield Command(part[1], part[2], at + part.start(2), at + part.end(2))


def set_up(text: str, folder: Path) -> None:
    """The folder that a page's sessions begin in."""
    (folder / "specs").symlink_to(ROOT / "specs")
    for path in ("path/to/config.json", "Qwen3-Next-80B-A3B-Thinking/config.json"):
        (folder / path).parent.mkdir(parents=True)
        shutil.copy(CONFIG, folder / path)
    for block, _ in fenced(text, "yaml"):
        if named := re.match(r"# (\S+/\S+\.yaml)\n", block):
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(block, encoding="utf-8")


def printed(text: str, folder: Path) -> Iterator[tuple[Command, str]]:
    """Each command of a page with what it prints, paths and seconds made alike."""
    set_up(text, folder)
    shim = folder / ".bin" / "kvlayout"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvlayout "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }
    status = 0
    for command in commands(text):
        if command.line.startswith(NOT_RUN):
            continue
        ran = subprocess.run(
            ["bash", "-c", f"(exit {status}); {command.line}"],
            cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip
        status = ran.returncode
        output = re.sub(rf"{re.escape(str(ROOT))}/(specs|kvlayout)/", ".../", ran.stdout)
        yield command, output


def agrees(shown: str, output: str) -> bool:
    """Whether what a page shows is what a command prints; nothing shown is nothing claimed."""
    if not shown.strip():
        return True
    shown, output = (re.sub(r"\bin \d+\.\d s\b", "in 0.0 s", text).rstrip() for text in (shown, output))
    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
    return re.fullmatch(pattern, output, re.S) is not None


def rewritten(text: str) -> str:
    """A page with the outputs that its commands have now."""
    with tempfile.TemporaryDirectory() as folder:
        stale = [
            (command, output) for command, output in printed(text, Path(folder)) if not agrees(command.output, output)
        ]
    for command, output in reversed(stale):
        blank = "\n" if command.output.endswith("\n\n") else ""
        text = text[: command.start] + output.rstrip() + "\n" + blank + text[command.end :]
    return text


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))
