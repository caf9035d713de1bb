"""Bombs: specs and engines that are small to write and huge to take at their word.

Each is planned or refused within a second of an idle processor, and all of them together in a process of modest size.
Numbers are bounded where they are read, whatever multiplies them is bounded where it is made, and what remains costs
pieces, never bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import kvlayout
from kvlayout import Engine, KvLayoutError

SECONDS = 2.0
KILOBYTES = 200_000

GQA = "params: {num_kv_heads: 8, head_size: 128, dtype: bfloat16}"
ATTENTION = f"num_layers: 4\ngroups:\n  attention: {{format: gqa, layers: all, {GQA}}}"
MLA = "params: {kv_lora_rank: 8, qk_rope_head_dim: 4, dtype: int8}"
LATENT = f"num_layers: 4\ngroups:\n  a: {{format: mla, layers: all, {MLA}}}"
MANY_HEADS = ATTENTION.replace("num_kv_heads: 8", "num_kv_heads: 4096")
FIELD = "{field: k, bytes: 1, tag: int8}"
MAX = "4611686018427387904"  # 2**62


@dataclass(frozen=True)
class Bomb:
    """A model without its header, and the two engines. `planned`: it is large but lawful."""

    model: str
    src: str = ""
    dst: str = ""
    planned: bool = False


def layers(text: str, more: str = "") -> Bomb:
    return Bomb(f"{more}groups:\n  a: {{format: gqa, layers: {text}, {GQA}}}")


def page(node: str, axes: str = "", let: str = "") -> str:
    """A model of one group with a page of its own."""
    group = f"layers: all, axes: {{{axes}}}, let: {{{let}}}, page: {node}"
    return f"num_layers: 4\ngroups:\n  cache: {{{group}}}"


def many(pattern: str, count: int, first: int = 0) -> str:
    return ", ".join(pattern.replace("#", str(n)).replace("@", str(n - 1)) for n in range(first, count))


def array(axes: str, inner: str = FIELD) -> str:
    return f"{{array: [{axes}], of: {inner}}}"


BOMBS: dict[str, Bomb] = {
    # models
    "a count of layers": layers("1000000000000"),
    "a range of layers": layers("{from: 0, count: 1000000000000}"),
    "a far layer": layers("[0, 9999999999999999999]"),
    "a far layer of a range": layers("{from: 0, every: 9999999999999999999, count: 2}"),
    "all of many layers": layers("all", "num_layers: 1000000000000\n"),
    "all layers in many groups": Bomb(
        "num_layers: 100000\ngroups: {" + many("g#: {format: gqa, layers: all}", 900) + "}"
    ),
    "groups": Bomb("num_layers: 1\ngroups: {" + many("g#: {format: gqa, layers: all}", 6000) + "}"),
    "sizes of tp": Bomb("tp: [" + many("1", 80_000) + "]\n" + ATTENTION),
    "unknown parameters": Bomb(ATTENTION.replace(GQA, "params: {" + many("p#: 1", 20_000) + "}")),
    "block of a group": Bomb(ATTENTION.replace("layers: all", "layers: all, block: 9999999999999999999")),
    # expressions
    "names that read each other": Bomb(page("{field: k, bytes: p9999, tag: int8}", let=many("p#: p@ + 1", 10_000, 1))),
    "a long sum": Bomb(
        page("{field: k, bytes: p9999, tag: int8}", let="p0: 1, " + many("p#: p@ + 1", 10_000, 1)), planned=True
    ),
    "powers": Bomb(page("{field: k, bytes: p99, tag: int8}", let="p0: 2, " + many("p#: p@ * p@", 100, 1))),
    "a name beside many": Bomb(page("{field: k, bytes: q * 1, tag: int8}", let=many("p" * 40 + "#: 1", 5000))),
    "division by zero on one engine": Bomb(page(array("a"), "a: {size: 64 // (tp - 2)}"), "tp=3", "tp=2"),
    # pages
    "an array of ones": Bomb(page(array(many("a", 60_000)), "a: {size: 1}")),
    "an array of twos": Bomb(page(array(many("a", 60_000)), "a: {size: 2}")),
    "axes": Bomb(page(FIELD, many("a#: {size: " + MAX + "}", 5000)), planned=True),
    "fields": Bomb(
        page("[" + many("{array: h, of: {field: f#, bytes: 1, tag: int8}}", 3000) + "]", "h: {size: 8, shard: tp}"),
        planned=True,
    ),
    "equal fields": Bomb(page("[" + many(FIELD, 7000) + "]")),
    "wrong nodes": Bomb(page("[" + many("3", 70_000) + "]")),
    "nodes with wrong keys": Bomb(page("[" + many("{f#: 3}", 20_000) + "]")),
    "deep lists": Bomb(page("[" * 56 + FIELD + "]" * 56), planned=True),
    "deep structs": Bomb(page("{struct: [" * 28 + FIELD + "]}" * 28), planned=True),
    "cases": Bomb(page("{choose: order, cases: {" + many("c#: {pad: 1}", 9000) + "}}")),
    "digits": Bomb(
        page("{digits: {h: [" + many("{d#: 1}", 9000) + "]}, " + array(many("d#", 9000))[1:], "h: {size: 1}")
    ),
    "large digits": Bomb(page(f"{{digits: {{h: [{{p: {MAX}}}, {{q: {MAX}}}]}}, {array('p, q')[1:]}", "h: {size: 8}")),
    "a field of 2**62 bytes": Bomb(page(f"{{field: k, bytes: {MAX}, tag: int8}}"), planned=True),
    "more than 2**62 bytes": Bomb(page(f"[{{field: v, bytes: {MAX}, tag: int8}}, {FIELD}]")),
    "a field of 10**19 bytes": Bomb(page("{field: k, bytes: 10000000000000000000, tag: int8}")),
    "a field of less than nothing": Bomb(page("{field: k, bytes: -8, tag: int8}")),
    "padded to 2**62 bytes": Bomb(page(f"{{struct: [{FIELD}], align: {MAX}}}"), planned=True),
    "an axis of 2**62 units": Bomb(
        page(array("a"), f"a: {{size: {MAX}, shard: tp}}"), "tp=4096", "tp=1024", planned=True
    ),
    # engines
    "block of 2**40": Bomb(ATTENTION, "block=1099511627776", "block=1099511627776", planned=True),
    "block of 10**30": Bomb(ATTENTION, "block=1" + "0" * 30),
    "blocks that never meet": Bomb(ATTENTION, "block=1099511627776", "block=1099511627775"),
    "blocks of one token and of many": Bomb(ATTENTION, "block=1", "block=65536"),
    "page of 2**40 bytes": Bomb(ATTENTION, "page=1099511627776", "page=1099511627776", planned=True),
    "rows": Bomb(page(array("r"), "r: {size: 3 + spec_tokens, common: true}"), "spec_tokens=1048576", planned=True),
    "interleave that divides nothing": Bomb(LATENT, "tp=2,dcp=2,interleave=3,block=16"),
    "interleaves without a common measure": Bomb(
        LATENT,
        "tp=2,dcp=2,interleave=1048575,block=1099507433475",
        "tp=2,dcp=2,interleave=1048573,block=1099507433475",
    ),
    "interleaves that meet soon": Bomb(
        LATENT,
        "tp=2,dcp=2,interleave=3,block=1099511627772",
        "tp=2,dcp=2,interleave=4,block=1099511627772",
        planned=True,
    ),
    "ranks with few heads": Bomb(ATTENTION, "tp=4096", "tp=4096", planned=True),
    "ranks with many heads": Bomb(MANY_HEADS, "tp=4096", "tp=2048", planned=True),
    "ranks with replicas": Bomb(LATENT, "tp=4096", "tp=4096", planned=True),
    "ranks that share tokens": Bomb(LATENT, "pcp=256", "tp=128,dcp=128", planned=True),
    "ranks times ranks": Bomb(ATTENTION, "tp=4096,pcp=256"),
    "ranks times blocks": Bomb(MANY_HEADS, "tp=1024,block=1", "tp=1024,block=4999"),
    "stages": Bomb(ATTENTION.replace("num_layers: 4", "num_layers: 4096"), "pp=4096", "pp=4095", planned=True),
    "named stages": Bomb(ATTENTION, "stages=" + "+".join(["1"] * 4900)),
    "a long text of stages": Bomb(ATTENTION, "stages=" + "+".join(["1"] * 100_000)),
}  # fmt: skip


def explode(bomb: Bomb, folder: Path) -> None:
    """Load, plan, prove, and look at the plan."""
    file = folder / "bomb.yaml"
    file.write_text(f"kvlayout: 1\nmodel: a-bomb\nsource: a test\n{bomb.model}\n", encoding="utf-8")
    plan = kvlayout.slice_for_tp_transfer(kvlayout.load(file), Engine.parse(bomb.src), Engine.parse(bomb.dst))
    assert plan.cost.nbytes > 0 and str(plan) and plan.sources(0)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_soon(name: str, tmp_path: Path) -> None:
    bomb = BOMBS[name]
    started = time.process_time()
    if bomb.planned:
        explode(bomb, tmp_path)
    else:
        with pytest.raises(KvLayoutError) as caught:
            explode(bomb, tmp_path)
        assert all(each.code != "KVL002" for each in caught.value.problems), "the file is too large to be read at all"
        assert len(caught.value.problems) <= 20
        assert len(str(caught.value)) < 20_000
    assert time.process_time() - started < SECONDS


@pytest.mark.peak_memory
def test_bombs_stay_small(tmp_path: Path) -> None:
    script = """
import pathlib, re, sys
sys.path[:0] = sys.argv[2:4]
from kvlayout import KvLayoutError
from test_bombs import BOMBS, explode
for name, bomb in BOMBS.items():
    try:
        explode(bomb, pathlib.Path(sys.argv[1]))
    except KvLayoutError:
        pass
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
    if peak > int(sys.argv[4]):
        sys.exit(f"{name}: {peak} kB")
"""
    folders = [str(Path(kvlayout.__file__).parents[1]), str(Path(__file__).parent)]
    command = [sys.executable, "-c", script, str(tmp_path), *folders, str(KILOBYTES)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
