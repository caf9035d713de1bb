"""`kvlayout init`: what it writes, what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvlayout
from kvlayout.cli import main
from kvlayout.spec.importers import import_hf

CONFIGS = Path(__file__).parent / "configs"
QWEN = str(CONFIGS / "qwen3-0.6b.json")
LLAMA = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}


class TestPrinted:
    def test_the_yaml_and_the_rest_as_comments(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init", "--from", QWEN, "--name", "Qwen/Qwen3-0.6B"]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        text = import_hf(QWEN, name="Qwen/Qwen3-0.6B").text
        assert printed.out.startswith(text)
        rest = printed.out.removeprefix(text).strip().splitlines()
        counts = "64 proved, 0 refuted, 0 unproved, 0 refused, 0 unloadable"
        assert rest[0] == f"# 1 spec, 64 engine pairs, 54 different plans and 10 identities: {counts}"
        assert all(line.startswith("#") for line in rest)
        assert "# Qwen/Qwen3-0.6B on tp=1" in rest
        assert "# group attention: page of 65536 bytes, 65536 payload, 0 padding, 16 tokens a block" in rest
        file = tmp_path / "model.yaml"
        file.write_text(printed.out)
        assert kvlayout.load(file).groups[0].params == {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}

    def test_a_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
        assert main(["init", "--from", str(tmp_path)]) == 0
        assert "num_layers: 4  # num_hidden_layers\n" in capsys.readouterr().out


class TestWritten:
    def test_the_file_and_what_show_prints(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "model.yaml"
        assert main(["init", "--from", QWEN, "--out", str(out)]) == 0
        printed = capsys.readouterr().out
        assert out.read_text() == import_hf(QWEN).text
        assert main(["show", str(out)]) == 0
        shown = capsys.readouterr().out
        assert printed.startswith(f"{out} is written\n1 spec, ") and printed.endswith(shown)
        assert main(["verify", str(out)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == printed.splitlines()[1]

    def test_never_over_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "model.yaml"
        out.write_text("mine")
        assert main(["init", "--from", QWEN, "--out", str(out)]) == 2
        assert out.read_text() == "mine"
        assert "exists; --force writes over it" in capsys.readouterr().err
        assert main(["init", "--from", QWEN, "--out", str(out), "--force"]) == 0
        assert out.read_text().startswith("# Written by `kvlayout init`")

    @pytest.mark.parametrize("source", ["config.json", "."])
    def test_never_over_the_config(self, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(LLAMA))
        assert main(["init", "--from", str(tmp_path / source), "--out", str(config), "--force"]) == 2
        assert json.loads(config.read_text()) == LLAMA
        assert "is the config itself" in capsys.readouterr().err

    def test_nothing_is_written_for_a_bad_config(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config, out = tmp_path / "config.json", tmp_path / "model.yaml"
        config.write_text(json.dumps({**LLAMA, "num_attention_heads": -1}))
        assert main(["init", "--from", str(config), "--out", str(out)]) == 2
        assert not out.exists()
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"{config}#/num_attention_heads: KVL162: ")

    def test_a_folder_that_does_not_exist(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init", "--from", QWEN, "--out", str(tmp_path / "no" / "model.yaml")]) == 2
        assert "No such file or directory" in capsys.readouterr().err


class TestCodes:
    def test_a_page_that_no_engine_has(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Heads that no tp of the default engines but 1 divides are counted; a format's own limit is a spec error."""
        config = tmp_path / "config.json"
        config.write_text(json.dumps({**LLAMA, "num_key_value_heads": 7}))
        assert main(["init", "--from", str(config)]) == 0
        assert "4 proved, 0 refuted, 0 unproved, 0 refused, 60 unloadable" in capsys.readouterr().out
        sparse = json.loads((CONFIGS / "type-deepseek_v32.json").read_text())
        config.write_text(json.dumps({**sparse, "kv_lora_rank": 256}))
        assert main(["init", "--from", str(config)]) == 2
        assert "KVL" in capsys.readouterr().err

    def test_an_unknown_architecture(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = tmp_path / "config.json"
        config.write_text(json.dumps({**LLAMA, "model_type": "rwkv7"}))
        assert main(["init", "--from", str(config)]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"{config}#/model_type: KVL165: model_type 'rwkv7' is not known")
        assert "KVL165: Write the model spec by hand, as docs/new-model.md shows." in printed

    def test_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init"]) == 2
        assert "--from" in capsys.readouterr().err
