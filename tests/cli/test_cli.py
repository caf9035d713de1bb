"""The command line as scripts see it: output shapes and exit codes of the contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvlayout.cli import main
from kvlayout.cli.schema import schema_of
from kvlayout.cli.sweep import Sweep, shipped_engines
from kvlayout.data import specs_dir

NEXT = str(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
QWEN = str(specs_dir() / "models" / "qwen3-0.6b.yaml")

PROBLEM_KEYS = {"code", "severity", "where", "message", "expected", "got", "help", "witness"}


class Run:
    """One run of the command line inside this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *arguments: str) -> tuple[int, Any]:
        code, out, _ = self(*arguments, "--format", "json")
        return code, json.loads(out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "kvlayout: 1\nmodel: tiny\nsource: made up\ngroups:\n"
        "  attention: {format: gqa, layers: 2, params: {num_kv_heads: 6, head_size: 4, dtype: bfloat16}}\n"
    )
    return path


class TestPlan:
    def test_json_with_runs_has_the_shape_of_the_contract(self, run: Run) -> None:
        code, plan = run.json("plan", NEXT, "--src", "tp=4", "--dst", "tp=2", "--runs")
        assert code == 0
        assert {"format_version", "verdict", "digest", "groups"} == set(plan)
        assert (plan["format_version"], plan["verdict"]) == (1, "proved")
        attention, state = plan["groups"]
        assert attention == {
            "name": "attention",
            "src_blocks": 1,
            "dst_blocks": 1,
            "dst": [
                {"rank": 0, "page_bytes": 16384, "payload_bytes": 16384, "runs": [[0, 0, 0, 0, 0, 16384]]},
                {"rank": 1, "page_bytes": 16384, "payload_bytes": 16384, "runs": [[2, 0, 0, 0, 0, 16384]]},
            ],
        }
        assert [rank["rank"] for rank in state["dst"]] == [0, 1]
        runs = state["dst"][0]["runs"]
        assert runs == sorted(runs, key=lambda run: (run[3], run[4]))

    def test_layers_are_printed_where_stages_make_entries_differ(self, run: Run) -> None:
        code, plan = run.json("plan", QWEN, "--src", "tp=1,pp=2", "--dst", "tp=2,stages=10+18", "--runs")
        assert code == 0
        entries = plan["groups"][0]["dst"]
        shown = [(each["rank"], each["layers"][0], each["layers"][-1], each["runs"][0][0]) for each in entries]
        # 28 layers: the source cuts at 14, the destination at 10; ranks count over the stages.
        assert shown == [
            (0, 0, 9, 0), (1, 0, 9, 0), (2, 10, 13, 0), (2, 14, 27, 1), (3, 10, 13, 0), (3, 14, 27, 1),
        ]  # fmt: skip

    def test_a_refusal_is_json_and_exit_1(self, run: Run) -> None:
        code, answer = run.json("plan", NEXT, "--src", "tp=1", "--dst", "tp=3")
        assert code == 1
        assert answer["verdict"] == "refused"
        assert {problem["code"] for problem in answer["problems"]} == {"KVL202"}
        assert all(set(problem) == PROBLEM_KEYS and problem["help"] for problem in answer["problems"])

    def test_out_writes_an_artifact_that_verify_proves(self, run: Run, tmp_path: Path) -> None:
        out = tmp_path / "plan.json"
        code, text, _ = run("plan", NEXT, "--src", "tp=4", "--dst", "tp=2,order=NHD", "--out", str(out))
        assert code == 0
        assert "group attention" in text
        jsonschema.Draft202012Validator(schema_of("plan")).validate(json.loads(out.read_text()))
        code, report = run.json("verify", str(out))
        assert code == 0
        assert [each["verdict"] for each in report["artifacts"]] == ["proved"]

    def test_one_group_alone(self, run: Run) -> None:
        code, plan = run.json("plan", NEXT, "--src", "tp=4", "--dst", "tp=2", "--group", "state")
        assert code == 0
        assert [group["name"] for group in plan["groups"]] == ["state"]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("plan", NEXT, "--src", "tp=1"),
            ("plan", NEXT, "--src", "tp=1", "--dst", "tp=x"),
            ("plan", NEXT, "--src", "tp=1", "--dst", "order=LHBNC"),
            ("plan", NEXT, "--src", "tp=1", "--dst", "nothing.block=3"),
            ("plan", NEXT, "--src", "tp=1", "--dst", "tp=1", "--group", "nothing"),
            ("plan", "no-such-file.yaml", "--src", "tp=1", "--dst", "tp=1"),
            ("plan", NEXT, "--src", "no-such-engine.yaml", "--dst", "tp=1"),
            ("show", NEXT, "--engine", "attention.colour=3"),
            ("explain", "KVL999"),
            ("schema", "nothing"),
            ("nothing",),
        ],
    )
    def test_wrong_usage_is_exit_2_without_a_traceback(self, run: Run, arguments: tuple[str, ...]) -> None:
        code, _, err = run(*arguments)
        assert code == 2
        assert err
        assert "Traceback" not in err


class TestVerify:
    def test_counts_add_up_and_fit_the_schema(self, run: Run) -> None:
        code, report = run.json("verify", NEXT, QWEN)
        assert code == 0
        jsonschema.Draft202012Validator(schema_of("verify")).validate(report)
        # Four sizes of one model and five of the other, in two orders, against each other.
        assert (report["specs"], report["pairs"]) == (2, 64 + 100)
        verdicts = ("proved", "refuted", "unproved", "refused", "unloadable")
        assert report["pairs"] == sum(report[name] for name in verdicts) == report["proved"]
        assert 0 < report["plans"] <= report["pairs"]

    def test_a_spec_without_order_meets_each_size_once(self, run: Run) -> None:
        _, report = run.json("verify", str(specs_dir() / "models" / "mamba-codestral-7b.yaml"))
        assert report["pairs"] == 16

    @pytest.mark.parametrize(
        ("name", "besides"),
        [
            ("qwen3-next-80b-a3b", "block=64,order=LBNHC|kv_packing=planes|pp=2|conv=SD|spec_tokens=2"),
            ("deepseek-v3", "dcp=2,interleave=16|block=64,order=LBNHC|pp=2"),
            ("llama-3.1-8b-nvfp4", "block=64,order=LBNHC|pp=2|scale_layout=sm100"),
        ],
    )
    def test_shipped_models_meet_shipped_engines(self, name: str, besides: str) -> None:
        """Those that hold other pages than engines of the spec's sizes; another cache dtype meets itself alone."""
        path = specs_dir() / "models" / f"{name}.yaml"
        (alone,) = Sweep().jobs([path])
        first, second = Sweep(besides=shipped_engines()).jobs([path])
        assert first.sources[: len(alone.sources)] == alone.sources and first.destinations == first.sources
        found = {str(engine) for engine in first.sources[len(alone.sources) :]}
        assert len(found) == len(besides.split("|"))
        assert all(any(words in engine for engine in found) for words in besides.split("|"))
        assert [str(engine) for engine in second.sources] == ["tp=4,kv_dtype=fp8"]

    def test_sizes_that_do_not_load_are_counted_and_listed_with_v(self, run: Run, spec_file: Path) -> None:
        code, report = run.json("verify", str(spec_file), "--tp", "1,2,4")
        assert code == 0
        # Three sizes in two orders; 6 heads on 4 ranks do not load, in whichever order.
        assert (report["pairs"], report["unloadable"], report["problems"]) == (36, 20, [])
        code, out, _ = run("verify", str(spec_file), "--tp", "1,2,4", "-v")
        assert code == 0
        assert "KVL202" in out

    def test_an_unloadable_size_that_the_spec_names_is_a_finding(self, run: Run, spec_file: Path) -> None:
        spec_file.write_text(spec_file.read_text().replace("groups:", "tp: [1, 4]\ngroups:"))
        code, report = run.json("verify", str(spec_file))
        assert code == 1
        assert {problem["code"] for problem in report["problems"]} == {"KVL202"}

    def test_a_spec_that_loads_nowhere_is_a_finding(self, run: Run, spec_file: Path) -> None:
        code, _ = run.json("verify", str(spec_file), "--src", "tp=4", "--dst", "tp=5")
        assert code == 1

    def test_one_side_alone_meets_the_default_engines(self, run: Run, spec_file: Path) -> None:
        code, report = run.json("verify", str(spec_file), "--src", "tp=3", "--tp", "1,2")
        assert code == 0
        assert report["pairs"] == 4

    def test_formats_are_proved_by_their_examples(self, run: Run) -> None:
        code, report = run.json("verify", str(specs_dir() / "formats" / "nvfp4.yaml"))
        assert code == 0
        assert report["proved"] > 0

    def test_a_bad_seal_is_a_finding(self, run: Run, tmp_path: Path) -> None:
        out = tmp_path / "plan.json"
        run("plan", QWEN, "--src", "tp=4", "--dst", "tp=2", "--out", str(out))
        document = json.loads(out.read_text())
        document["meta"]["spec"] = "another"
        out.write_text(json.dumps(document))
        code, report = run.json("verify", str(out))
        assert code == 1
        assert [problem["code"] for problem in report["problems"]] == ["KVL401"]

    def test_a_bad_file_does_not_stop_the_others(self, run: Run, spec_file: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.yaml"
        bad.write_text("kvlayout: 1\nmodel: x\n")
        code, report = run.json("verify", str(bad), str(spec_file))
        assert code == 2
        assert report["proved"] > 0
        assert report["problems"]

    def test_nothing_to_do_is_exit_2(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("verify", str(tmp_path))
        assert code == 2
        assert "nothing to verify" in err

    def test_quiet_prints_nothing_when_all_is_well(self, run: Run) -> None:
        assert run("verify", QWEN, "--quiet") == (0, "", "")


def test_compile_writes_artifacts_and_an_index(run: Run, tmp_path: Path) -> None:
    code, _, _ = run("compile", QWEN, NEXT, "--src", "tp=4", "--dst", "tp=2", "--dst", "tp=1", "--out", str(tmp_path))
    assert code == 0
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["format_version"] == 1
    assert [(plan["src"], plan["dst"]) for plan in index["plans"]] == [("tp=4", "tp=2"), ("tp=4", "tp=1")] * 2
    for plan in index["plans"]:
        assert set(plan) == {"spec", "src", "dst", "digest", "file"}
        assert json.loads((tmp_path / plan["file"]).read_text())["digest"] == plan["digest"]
    code, report = run.json("verify", str(tmp_path))
    assert code == 0
    assert len(report["artifacts"]) == 4


def test_show_names_fields_offsets_owners_and_padding(run: Run) -> None:
    code, out, _ = run("show", QWEN, "--engine", "tp=2,page=40000")
    assert code == 0
    for part in (
        "page of 40000 bytes, 32768 payload, 7232 padding",
        "(pad)",
        "rank r holds [4 * r, 4 * r + 4)",
        "k ",
        "v ",
    ):
        assert part in out


def test_explain_prints_a_rule(run: Run) -> None:
    for code in ("KVL301", "kvl202", "KVL210"):
        result, out, _ = run("explain", code)
        assert result == 0
        assert code.upper() in out


def test_a_closed_pipe_is_no_fault(tmp_path: Path) -> None:
    command = f"{sys.executable} -m kvlayout plan {QWEN} --src tp=1 --dst tp=2,order=NHD --runs | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("plan tp=1")
    assert "Traceback" not in done.stderr
    assert "fault" not in done.stderr


def test_a_fault_of_ours_is_exit_101(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("seeded")

    monkeypatch.setattr("kvlayout.api.plans.plan_pair", broken)
    code, _, err = run("plan", QWEN, "--src", "tp=1", "--dst", "tp=1")
    assert code == 101
    assert "fault of kvlayout" in err


def test_engine_files_alone_are_nothing_to_do(run: Run) -> None:
    code, _, err = run("verify", str(specs_dir() / "engines"))
    assert code == 2
    assert "--src" in err


def test_a_folder_of_everything_is_the_specs_in_it(run: Run) -> None:
    """Schemas, the table of cache dtypes and engine files lie beside the specs; they are none."""
    _, everything = run.json("verify", str(specs_dir()), "--tp", "1")
    _, shipped = run.json("verify", "--tp", "1")
    assert everything == shipped


def test_runs_beyond_what_can_be_printed_are_counted_first(run: Run) -> None:
    engines = ("--src", "tp=1,block=1000000", "--dst", "tp=2,block=1000000,order=NHD")
    code, out, err = run("plan", QWEN, *engines, "--runs")
    assert (code, out) == (2, "")
    assert "8000000 runs" in err


def test_an_artifact_that_cannot_be_written_says_where(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "plan.json"
    code, _, err = run("plan", QWEN, "--src", "tp=1", "--dst", "tp=1", "--out", str(target))
    assert code == 2
    assert f"{target}: KVL406" in err


def test_compile_writes_nothing_when_an_engine_is_wrong(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, _ = run("compile", QWEN, "--src", "tp=1", "--dst", "state.block=4", "--out", str(out))
    assert code == 2
    assert not out.exists()


@pytest.mark.parametrize("word", ["bogus", "fp8_ds_mla"])
def test_a_cache_dtype_without_an_entry_is_refused(run: Run, word: str) -> None:
    code, answer = run.json("plan", QWEN, "--src", f"tp=1,kv_dtype={word}", "--dst", "tp=1")
    assert code == 1
    assert [problem["code"] for problem in answer["problems"]] == ["KVL156"]


def test_a_cache_dtype_is_not_ignored_by_a_format_that_extends_one(run: Run, spec_file: Path) -> None:
    (spec_file.parent / "mine.yaml").write_text("kvlayout: 1\nformat: mine\nextends: gqa\nsource: made up\n")
    spec_file.write_text(spec_file.read_text().replace("format: gqa", "format: mine"))
    code, answer = run.json("plan", str(spec_file), "--src", "tp=1,kv_dtype=fp8", "--dst", "tp=1")
    assert code == 1
    assert "extends 'gqa'" in answer["problems"][0]["message"]


def test_a_copy_of_a_shipped_format_beside_a_spec_is_no_clash(run: Run, spec_file: Path) -> None:
    """A checkout beside an installed package holds the very same formats; another file of that name is refused."""
    copy = spec_file.parent / "gqa.yaml"
    copy.write_bytes((specs_dir() / "formats" / "gqa.yaml").read_bytes())
    assert run("verify", str(spec_file), "--tp", "1,2", "-q")[0] == 0
    copy.write_text(copy.read_text() + "\n# another\n")
    code, _, _ = run("plan", str(spec_file), "--src", "tp=1", "--dst", "tp=1")
    assert code == 2


def test_explain_finds_the_codes_of_a_model_and_says_how(run: Run, spec_file: Path) -> None:
    spec_file.write_text(
        "kvlayout: 1\nmodel: m\nsource: made up\nnum_layers: 1\ngroups:\n  a:\n    layers: all\n"
        "    require: [{that: block == 16, code: X_MINE, say: the kernel is made for 16}]\n"
        "    page: {field: k, bytes: 2, tag: a}\n"
    )
    assert run("explain", "X_MINE")[0] == 2
    code, out, _ = run("explain", "X_MINE", str(spec_file))
    assert code == 0
    assert "the kernel is made for 16" in out


@pytest.mark.parametrize("engine", ["tp=3,dcp=3", "tp=2,dcp=2", "tp=2,pp=3", "tp=2,page=10"])
def test_a_side_that_only_slicing_finds_impossible_loads_nowhere(run: Run, spec_file: Path, engine: str) -> None:
    """6 heads on 3 ranks that deal out tokens too: no rank holds every head of every token."""
    code, report = run.json("verify", str(spec_file), "--src", engine, "--dst", engine)
    assert (code, report["unloadable"]) == (1, 1)


def test_opaque_bytes_pair_with_nothing_but_their_like(run: Run, spec_file: Path) -> None:
    page = (
        "    page: {choose: conv, cases: {DS: {opaque: k, bytes: 4, tag: zip}, SD: {field: k, bytes: 4, tag: any}}}\n"
    )
    spec_file.write_text(
        f"kvlayout: 1\nmodel: m\nsource: made up\nnum_layers: 1\ngroups:\n  a:\n    layers: all\n{page}"
    )
    assert run.json("plan", str(spec_file), "--src", "conv=DS", "--dst", "conv=DS")[0] == 0
    code, answer = run.json("plan", str(spec_file), "--src", "conv=DS", "--dst", "conv=SD")
    assert code == 1
    assert [problem["code"] for problem in answer["problems"]] == ["KVL502"]


def any_spec(src: str, dst: str) -> str:
    k = "{field: k, bytes: 4, tag: a}"
    page = f"{{choose: conv, cases: {{DS: [{k}, {src}], SD: [{k}, {dst}]}}}}"
    return f"kvlayout: 1\nmodel: m\nsource: made up\nnum_layers: 1\ngroups:\n  a: {{layers: all, page: {page}}}\n"


@pytest.mark.parametrize(
    ("src", "dst", "code", "payload"),
    [
        ("{field: s, bytes: 2, tag: any}", "{field: s, bytes: 2, tag: float16}", 0, 6),
        ("{field: s, bytes: 2, tag: any}", "{field: s, bytes: 4, tag: any}", 0, 4),
        ("{field: s, bytes: 2, tag: any}", "{field: t, bytes: 2, tag: any}", 0, 4),
        # A real field is never left unwritten because the other side calls its bytes meaningless.
        ("{field: s, bytes: 2, tag: any}", "{field: s, bytes: 4, tag: float32}", 1, None),
        ("{field: s, bytes: 4, tag: float32}", "{field: s, bytes: 2, tag: any}", 1, None),
    ],
)
def test_any_bytes(run: Run, spec_file: Path, src: str, dst: str, code: int, payload: int | None) -> None:
    spec_file.write_text(any_spec(src, dst))
    found, plan = run.json("plan", str(spec_file), "--src", "conv=DS", "--dst", "conv=SD")
    assert found == code
    assert payload is None or plan["groups"][0]["dst"][0]["payload_bytes"] == payload


def test_default_engines_try_both_orders_even_when_one_does_not_load(run: Run, spec_file: Path) -> None:
    spec_file.write_text(
        "kvlayout: 1\nmodel: m\nsource: made up\nnum_layers: 1\ntp: [1]\ngroups:\n  a:\n    layers: all\n"
        "    axes: {head: {size: 2}, token: {size: block, grows: block}}\n"
        "    page: {choose: order, cases: {HN: {array: order, of: {field: k, bytes: 2, tag: a}}}}\n"
    )
    code, report = run.json("verify", str(spec_file))
    assert code == 2
    assert {problem["code"] for problem in report["problems"]} == {"KVL127"}


def test_bench_copy(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLAYOUT_CACHE", str(tmp_path.resolve() / "cache"))
    plots = [tmp_path / "speed.png", tmp_path / "speed.svg"]
    small = ("bench", "copy", "--mib", "1", "--rounds", "1", "--run", "128", "--run", "4096")
    code, found = run.json(*small, *(word for path in plots for word in ("--plot", str(path))))
    assert code == 0 and [each["run"] for each in found] == [128, 4096]
    assert {"kvlayout", "numpy.copyto", "numpy fancy indexing", "numba byte loop"} <= set(found[0]["gb_per_s"])
    assert all({*each["times_faster_than"], "kvlayout"} == set(each["gb_per_s"]) for each in found)
    assert all(number > 0 for each in found for number in each["gb_per_s"].values())
    assert plots[0].read_bytes().startswith(b"\x89PNG") and "<svg" in plots[1].read_text()
    code, out, _ = run(*small)
    assert code == 0 and len(out.splitlines()) == 4
    nowhere = str(tmp_path / "nowhere" / "speed.svg")
    for wrong in (("--run", "130"), ("--plot", "speed.pdf"), ("--plot", nowhere), ("--run", "1048576")):
        code, _, err = run("bench", "copy", "--mib", "1", *wrong)
        assert code == 2 and "Error" in err

    def too_much(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kvlayout.emit.bench.measured", too_much)
    code, _, err = run(*small)
    assert code == 2 and "smaller --mib" in err


def test_compare_answers_in_one_word(run: Run) -> None:
    for src, dst, verdict, wanted in (
        ("tp=2", "tp=2,order=NHD", "identical", 0),
        ("tp=4", "tp=2", "convertible", 0),
        ("tp=2", "tp=2,state.ssm_dtype=float32", "refused", 1),
        ("tp=3", "tp=2", "refused", 1),
    ):
        code, text, _ = run("compare", NEXT, "--src", src, "--dst", dst)
        assert code == wanted and text.startswith(verdict)
        code, found = run.json("compare", NEXT, "--src", src, "--dst", dst)
        assert code == wanted and found["verdict"] == verdict
        assert (found["src_digest"] == found["dst_digest"]) is (verdict == "identical")
        assert (found["cost"] is None) is bool(found["problems"]) is (verdict == "refused")
    assert run("compare", NEXT, "--src", "tp=2", "--dst", "nothing.attention=1")[0] == 2
