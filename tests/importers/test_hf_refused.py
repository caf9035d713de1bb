"""Configs that are damaged, hostile, at odds with themselves or of an unknown architecture: an error with its place."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import kvlayout
from kvlayout.errors import SpecError
from kvlayout.rules import RULES
from kvlayout.spec.importers.document import MAX_BYTES, MAX_DEPTH

CONFIGS = Path(__file__).parent / "configs"
LLAMA = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}


def config(kind: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"type-{kind}.json").read_text())
    return data


def refused(source: Any) -> str:
    with pytest.raises(SpecError) as caught:
        kvlayout.from_hf(source)
    (found,) = caught.value.problems
    assert found.help and found.code in RULES
    assert str(found).isprintable() and len(str(found)) < 1600
    return str(found)


TEXTS = {
    "": "config.json:1:1: KVL161: not valid JSON: expecting value",
    "[]": "config.json:1:1: KVL161: the config is not a JSON object; got a list of 0",
    "12": "config.json:1:1: KVL161: the config is not a JSON object; got 12",
    '{"a": 1,\n "b" 2}': "config.json:2:6: KVL161: not valid JSON: expecting ':' delimiter",
    '{"head_dim": 1, "head_dim": 2}': "config.json: KVL161: key 'head_dim' is given twice in one object",
    '{"a": [{"b": {"c": 1, "c": 2}}]}': "config.json#/a/0/b: KVL161: key 'c' is given twice in one object",
    '{"a": ' + "[" * 100_000: f"config.json:1:{6 + MAX_DEPTH}: KVL002: nested too deep; expected at most 64 levels",
    '{"a":' * 100_000: f"config.json:1:{5 * MAX_DEPTH + 1}: KVL002: nested too deep; expected at most 64 levels",
    '{"a": "' + "[" * 1000: "config.json:1:7: KVL161: not valid JSON: unterminated string starting at",
    '{"a": "\\': "config.json:1:7: KVL161: not valid JSON: unterminated string starting at",
}


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_no_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert refused(path).removeprefix(f"{tmp_path}/") == TEXTS[text]


def test_a_folder_means_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert kvlayout.from_hf(tmp_path).name == kvlayout.from_hf(str(tmp_path)).name == "llama"


class TestFiles:
    def test_none(self, tmp_path: Path) -> None:
        assert refused(tmp_path / "x.json").endswith(
            "x.json: KVL001: the config cannot be read: No such file or directory"
        )
        assert "KVL001" in refused(tmp_path)  # a folder without a config.json
        assert "KVL001" in refused("a\0b")

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(b'{"a":\n "\xff"}')
        assert refused(path).endswith("config.json:2:3: KVL001: the config is not UTF-8; got byte 0xff")

    def test_a_fifo_and_a_device_do_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        assert refused(tmp_path / "fifo").endswith("KVL001: not a regular file")
        assert refused("/dev/zero").endswith("KVL001: not a regular file")

    def test_a_huge_file_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        with path.open("wb") as file:
            file.truncate(1 << 30)
        tracemalloc.start()
        try:
            assert "KVL002: the config is too large" in refused(path)
            assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("filler", ["[],", '"\\"', '""', '{"":0},', "1,"])
    def test_the_largest_files_take_no_time(self, filler: str, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"a": [' + filler * ((MAX_BYTES - 10) // len(filler)))
        started = time.monotonic()
        assert "KVL161" in refused(path)
        assert time.monotonic() - started < 10

    @pytest.mark.parametrize("source", [None, 7, b"config.json"[0], [], object])
    def test_what_is_no_config(self, source: object) -> None:
        assert "KVL162" in refused(source) or "KVL001" in refused(source)


VALUES = [
    ("num_hidden_layers", 0, "got 0"),
    ("num_hidden_layers", -4, "got -4"),
    ("num_hidden_layers", 10**9, "expected an integer from 1 to 100000; got 1000000000"),
    ("num_hidden_layers", True, "got true"),
    ("num_hidden_layers", 4.0, "got 4.0"),
    ("num_hidden_layers", "4", "got '4'"),
    ("num_hidden_layers", [4], "got a list of 1"),
    ("num_hidden_layers", {}, "got an object of 0"),
    ("num_key_value_heads", 2**31 + 1, "got 2147483649"),
    ("num_key_value_heads", float("nan"), "got nan"),
    ("head_dim", float("inf"), "got inf"),
    ("torch_dtype", "float64", "expected one of bfloat16, float16, float32; got 'float64'"),
    ("torch_dtype", 7, "expected a text; got 7"),
    ("layer_types", "full_attention", "expected a list; got 'full_attention'"),
    ("layer_types", [["full_attention"]] * 4, "'layer_types.0'; expected a text; got a list of 1"),
    ("layer_types", ["full_attention", "rwkv"] * 2, "'layer_types.1'; expected one of"),
]


@pytest.mark.parametrize(("name", "value", "said"), VALUES)
def test_a_value_that_a_field_cannot_have(name: str, value: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, name: value}))
    for text in (refused(path).removeprefix(f"{path}"), refused({**LLAMA, name: value}).removeprefix("config")):
        assert text.startswith(f"#/{name}") and "KVL162: the value of '" in text and said in text, text


@pytest.mark.parametrize(
    ("digits", "said"), [("9" * 5000, "an integer of 5000 digits"), ("1e999", "got inf"), ("NaN", "nan")]
)
def test_numbers_beyond_all_bounds(digits: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA).replace('"num_hidden_layers": 4', f'"num_hidden_layers": {digits}'))
    assert said in refused(path)
    path.write_text(json.dumps(LLAMA)[:-1] + f', "nobody_reads_this": {digits}}}')
    assert kvlayout.from_hf(path).num_layers == 4


def test_the_place_of_a_field_inside() -> None:
    inner = {"model_type": "qwen2", "text_config": {**LLAMA, "model_type": "qwen2", "num_attention_heads": []}}
    assert refused(inner).startswith("config#/text_config/num_attention_heads: KVL162: ")
    assert refused({"text_config": 7}).startswith(
        "config#/text_config: KVL162: the value of 'text_config'; expected an object"
    )
    assert refused({"model_type": "x", "a/b~": 1, "text_config": []}).startswith("config#/text_config: ")


MISSING = [
    ({}, "model_type"),
    ({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4}, "num_attention_heads"),
    ({"model_type": "llama", "num_attention_heads": 8, "num_hidden_layers": 4}, "hidden_size"),
    ({"model_type": "kimi_k2", "num_hidden_layers": 4}, "kv_lora_rank"),
    ({**LLAMA, "model_type": "mimo_v2", "hybrid_layer_pattern": [0, 1, 1, 0]}, "swa_num_key_value_heads"),
    ({**LLAMA, "model_type": "nemotron_h"}, "hybrid_override_pattern"),
    ({**LLAMA, "model_type": "minimax_m1"}, "attn_type_list"),
    ({**LLAMA, "model_type": "lfm2"}, "layer_types"),
    ({**LLAMA, "model_type": "granitemoehybrid"}, "layers_block_type"),
    ({**LLAMA, "model_type": "kimi_linear", "linear_attn_config": {}}, "full_attn_layers"),
    ({**LLAMA, "model_type": "bailing_moe_linear"}, "layer_group_size"),
]


@pytest.mark.parametrize(("source", "name"), MISSING)
def test_a_field_that_is_missing(source: dict[str, Any], name: str) -> None:
    text = refused(source)
    assert f"KVL163: field '{name}'" in text and "is missing" in text
    assert ("known are model_type" in text) == ("model_type" in source and name != "full_attn_layers")


CONTRADICTIONS = [
    ("qwen3_next", {"layer_types": ["full_attention"]}, "layer_types", "expected 4 entries; got 1"),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers", "expected 8 entries; got 2"),
    ("nemotron_h", {"layers_block_type": None, "num_hidden_layers": 5, "hybrid_override_pattern": "M*"},
     "hybrid_override_pattern", "expected 5 letters; got 2"),
    ("mamba2", {"num_heads": 15}, "num_heads", "expected 1024; got 15 * 64"),
    ("falcon_h1", {"mamba_d_ssm": 500}, "mamba_n_heads", "expected 500; got 16 * 32"),
    ("bamba", {"mamba_n_heads": 15}, "mamba_n_heads", "1024 is no multiple of 15"),
    ("zamba2", {"n_mamba_heads": 8}, "n_mamba_heads", "expected 7168; got 8 * 64"),
    ("zamba2", {"hybrid_layer_ids": [1, 2]}, "hybrid_layer_ids", "name other layers"),
    ("kimi_linear", {"layer_types": None, "linear_attn_config": {"full_attn_layers": [1], "kda_layers": [1, 2, 3]}},
     "linear_attn_config/kda_layers", "each of 1 to 4"),
    ("lfm2", {"full_attn_idxs": [2, 2]}, "full_attn_idxs/1", "stands twice"),
    ("cohere", {"num_attention_heads": 7}, "hidden_size", "512 cannot be shared by 7 heads"),
    ("bailing_hybrid", {"architectures": ["Other"]}, "architectures", "BailingMoeV3ForCausalLM"),
    ("deepseek_v32", {"index_topk_pattern": "FS"}, "index_topk_pattern", "expected 4; got 2"),
    ("nemotron_h", {"layers_block_type": ["mlp", "moe"]}, "", "no layer keeps anything"),
    ("nemotron-nas", {"block_configs": [{}]}, "block_configs", "expected 6 entries; got 1"),
    ("nemotron-nas", {"num_hidden_layers": 1, "block_configs": [{"attention": {"n_heads_in_group": 3}}]},
     "block_configs/0/attention/n_heads_in_group", "8 heads do not make whole groups of 3"),
    ("minimax_m3", {"sparse_attention_config": {"sparse_attention_freq": [1]}},
     "sparse_attention_config/sparse_attention_freq", "expected 4 entries; got 1"),
    ("deepseek_v4", {"head_dim": 256}, "head_dim", "expected 512; got 256"),
    ("deepseek_v4", {"compress_ratios": [0, 4]}, "compress_ratios", "expected 43; got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "pointer", "said"), CONTRADICTIONS)
def test_fields_at_odds(kind: str, fields: dict[str, Any], pointer: str, said: str) -> None:
    text = refused({**config(kind), **fields})
    assert text.startswith(f"config#/{pointer}: KVL164: " if pointer else "config: KVL164: "), text
    assert said in text


@pytest.mark.parametrize(
    ("kind", "fields", "where"),
    [
        ("minimax_text_01", {"attn_type_list": [0, 0, 2, 1]}, "attn_type_list/2"),
        ("mimo_v2", {"hybrid_layer_pattern": [0, 1, 1, -1]}, "hybrid_layer_pattern/3"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "M*X"}, "hybrid_override_pattern"),
        ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices/0"),
        ("kimi_linear", {"layer_types": None, "linear_attn_config": {"full_attn_layers": [0]}},
         "linear_attn_config/full_attn_layers/0"),
        ("jamba", {"attn_layer_offset": 4}, "attn_layer_offset"),
        ("qwen3_5", {"text_config": {"mamba_ssm_dtype": "int8"}}, "text_config/mamba_ssm_dtype"),
        ("deepseek_v32", {"index_topk_pattern": "FSXF"}, "index_topk_pattern/2"),
        ("gemma4", {"text_config": {"num_kv_shared_layers": 30}}, "text_config/num_kv_shared_layers"),
        ("falcon", {"multi_query": "yes"}, "multi_query"),
        ("mamba", {"conv_kernel": 1}, "conv_kernel"),
        ("nemotron-nas", {"block_configs": [0]}, "block_configs/0"),
        ("minimax_m3", {"sparse_attention_config": {"sparse_attention_freq": [0, 2, 0, 0]}},
         "sparse_attention_config/sparse_attention_freq/1"),
        ("deepseek_v4", {"compress_ratios": [8] * 44}, "compress_ratios/0"),
    ],
)  # fmt: skip
def test_words_and_layers_that_do_not_exist(kind: str, fields: dict[str, Any], where: str) -> None:
    assert refused({**config(kind), **fields}).startswith(f"config#/{where}: KVL162: the value of ")


class TestUnknown:
    def test_it_says_what_is_known_and_what_to_write(self) -> None:
        with pytest.raises(SpecError) as caught:
            kvlayout.from_hf({**LLAMA, "model_type": "rwkv7", "num_key_value_heads": 2, "torch_dtype": "float16"})
        (found,) = caught.value.problems
        assert (found.code, found.where) == ("KVL165", "config#/model_type")
        assert found.got == (
            "known are model_type rwkv7, num_hidden_layers 4, hidden_size 512, num_attention_heads 8, "
            "num_key_value_heads 2, torch_dtype float16"
        )
        assert found.help is not None and "docs/new-model.md" in found.help
        group = "{format: gqa, layers: all, params: {num_kv_heads: 2, head_size: 64, dtype: float16}}"
        assert f"groups: {{attention: {group}}}" in found.help

    def test_without_sizes(self) -> None:
        assert "KVL165" in refused({"model_type": "\u202e" + "x" * 1000})

    @pytest.mark.parametrize("kind", [7, ["llama"], {}])
    def test_a_type_that_is_no_text(self, kind: object) -> None:
        assert refused({**LLAMA, "model_type": kind}).startswith("config#/model_type: KVL162: ")

    def test_nothing_that_a_config_names_is_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "modeling_evil.py").write_text("raise SystemExit('imported')")
        (tmp_path / "config.json").write_text(
            json.dumps({**LLAMA, "auto_map": {"AutoConfig": "modeling_evil.Config"}, "trust_remote_code": True})
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        assert kvlayout.from_hf(tmp_path).num_layers == 4


def test_a_format_refuses_what_it_cannot_hold() -> None:
    """What the config says is consistent, but no page is made for it."""
    spec = kvlayout.from_hf({**config("deepseek_v32"), "kv_lora_rank": 256})
    with pytest.raises(SpecError):
        spec.page(spec.groups[0], kvlayout.Engine())


def test_the_most_layers() -> None:
    spec = kvlayout.from_hf({**config("mamba"), "num_hidden_layers": 100_000})
    assert len(spec.groups[0].layers) == 100_000
    assert "KVL148" in refused({**config("falcon_h1"), "num_hidden_layers": 100_000})
