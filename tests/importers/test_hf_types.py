"""Every model type that is known: its groups, and the YAML of it, which loads to the same spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvlayout
from kvlayout.errors import SpecError
from kvlayout.spec.importers import import_hf
from kvlayout.spec.importers.families import FAMILIES, family_name
from kvlayout.spec.model import Spec

CONFIGS = Path(__file__).parent / "configs"

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

# Groups as `name: format layers params`, the params in the format's order without dtypes; layers as a list, or their
# number where they are all of the model's or more than 8.
EXPECTED = {
    "bailing_hybrid": "attention: mla [3, 7] 512 64 | state: linear [0, 1, 2, 4, 5, 6, 8, 9] 8 128",
    "bailing_hybrid-3": "attention: mla [3, 7, 8, 9] 512 64 | state: kda [0, 1, 2, 4, 5, 6] 8 128 4",
    "bailing_moe_linear": "attention: gqa [3, 7, 8, 9] 2 128 | state: linear [0, 1, 2, 4, 5, 6] 8 128",
    "bamba": "attention: gqa [1] 2 64 | state: mamba2 [0, 2, 3] 16 64 1 64 4",
    "cohere": "attention: gqa 4 2 64",
    "cohere2": "attention: gqa [3] 2 64 | sliding: gqa [0, 1, 2] 2 64",
    "deepseek_v2": "attention: mla 4 512 64",
    "deepseek_v3": "attention: mla 4 512 64",
    "deepseek_v32": "attention: mla_fp8_ds 4 512 64 | indexer: indexer_fp8 4 128",
    # 43 layers: two windows alone, then 4 and 128 in turn; the 44th entry is of the draft layer
    "deepseek_v4": (
        "sliding: dsv4_fp8 43  | compressed_4: dsv4_fp8 21 4 | compressed_128: dsv4_fp8 20 128 | "
        "indexer: indexer_fp8 21 128 4 576 | compressor_4: dsv4_compressor 21 512 4 576 | "
        "compressor_128: dsv4_compressor 20 512 128 576 | indexer_compressor: dsv4_compressor 21 128 4 576"
    ),
    "deepseek_vl_v2": "attention: mla 4 512 64",
    "falcon": "attention: gqa 32 1 64",
    "falcon-40b": "attention: gqa 60 8 64",
    "falcon-RefinedWebModel": "attention: gqa 32 1 64",
    "falcon_h1": "attention: gqa 4 2 64 | state: mamba2 4 16 32 1 64 4",
    "falcon_mamba": "state: mamba1 4 1024 16 4",
    "gemma2": "attention: gqa [1, 3] 4 256 | sliding: gqa [0, 2] 4 256",
    "gemma3_text": "attention: gqa [3, 7] 4 256 | sliding: gqa [0, 1, 2, 4, 5, 6] 4 256",
    "gemma4": "attention: gqa [5] 1 512 | sliding: gqa [0, 1, 2, 3, 4, 6, 7] 1 256",
    "glm4": "attention: gqa 4 2 128",
    "glm4_moe": "attention: gqa 4 2 64",
    "glm4_moe_lite": "attention: mla 4 512 64",
    # with an offset of 3 layers 0 to 2 have indexers, and then every fourth
    "glm_moe_dsa": "attention: mla_fp8_ds 78 512 64 | indexer: indexer_fp8 21 128",
    "gpt_bigcode": "attention: gqa 4 1 64",
    "gpt_neox": "attention: gqa 4 8 64",
    "gpt_oss": "attention: gqa [1, 3, 5] 2 64 | sliding: gqa [0, 2, 4] 2 64",
    "granite": "attention: gqa 4 2 64",
    "granitemoehybrid": "attention: gqa [1] 2 64 | state: mamba2 [0, 2, 3] 16 64 1 64 4",
    "internvl_chat": "attention: gqa 4 2 64",
    "jamba": "attention: gqa [2] 2 64 | state: mamba1 [0, 1, 3] 1024 16 4",
    "kimi_k2": "attention: mla 4 512 64",
    "kimi_k25": "attention: mla 4 512 64",
    "kimi_linear": "attention: mla [3] 512 64 | state: kda [0, 1, 2] 8 128 4",
    "lfm2": "attention: gqa [2] 2 64 | state: short_conv [0, 1, 3] 512 3",
    "lfm2_moe": "attention: gqa [2] 2 64 | state: short_conv [0, 1, 3] 512 3",
    "llama": "attention: gqa 4 2 64",
    "llama4_text": "attention: gqa [2, 6] 2 128 | chunked: gqa [0, 1, 3, 4, 5, 7] 2 128",
    "mamba": "state: mamba1 64 5120 16 4",
    "mamba2": "state: mamba2 4 16 64 2 64 4",
    "mimo": "attention: gqa 4 2 64",
    "mimo_v2": "attention: gqa [0, 3] 2 192 128 | sliding: gqa [1, 2] 4 192 128",
    # the class's layers alternate, beginning with a full one
    "minimax": "attention: gqa [0, 2] 2 64 | state: linear [1, 3] 8 64",
    "minimax_m3": "attention: gqa 4 2 128 | indexer: indexer_m3 [1, 2] 64",
    "minimax_text_01": "attention: gqa [3] 2 128 | state: linear [0, 1, 2] 8 128",
    "mistral": "attention: gqa 36 8 128",
    "mixtral": "attention: gqa 4 2 64",
    "nemotron-nas": "heads_2: gqa [0, 5] 2 64 | heads_4: gqa [2] 4 64 | heads_2_64: gqa [3] 2 64",
    "nemotron_h": "attention: gqa [2] 2 128 | state: mamba2 [0, 4] 16 64 2 64 4",
    "olmo3": "attention: gqa [3] 8 64 | sliding: gqa [0, 1, 2] 8 64",
    # 3/4 of 3840 over 30 heads, and v twice as wide
    "olmo_hybrid": "attention: gqa [3, 7, 11, 15, 19, 23, 27, 31] 30 128 | state: gdn 24 30 30 96 192 4",
    "phi3": "attention: gqa 4 2 64",
    "qwen2": "attention: gqa [0, 1] 2 64 | sliding: gqa [2, 3] 2 64",
    "qwen2_5_vl": "attention: gqa 4 2 64",
    "qwen2_moe": "attention: gqa 4 2 64",
    "qwen3": "attention: gqa 4 2 128",
    "qwen3_5": "attention: gqa [3, 7, 11, 15, 19, 23, 27, 31] 4 256 | state: gdn 24 16 32 128 128 4",
    "qwen3_5_moe": "attention: gqa [1, 3] 2 128 | state: gdn [0, 2] 4 8 64 64 4",
    "qwen3_moe": "attention: gqa 4 2 128",
    "qwen3_next": "attention: gqa [3] 2 128 | state: gdn [0, 1, 2] 4 8 64 64 4",
    "starcoder2": "attention: gqa 4 2 64",
    "step3p7": "attention: gqa [0, 3] 2 64 | sliding: gqa [1, 2] 2 64",
    # twice 3584 over 32 heads; every layer has a state
    "zamba2": "attention: gqa 13 32 224 | state: mamba2 81 112 64 2 64 4",
}
WINDOWS = {"cohere2": 4096, "deepseek_v4": (8, 128), "gemma2": 4096, "gemma3_text": 512, "gemma4": 512,
           "gpt_oss": 128, "llama4_text": 1024, "mimo_v2": 128,
           "mistral": 32768, "nemotron-nas": 64, "olmo3": 4096, "qwen2": 256, "step3p7": 512}  # fmt: skip
SSM_DTYPES = {"nemotron_h": "float32", "qwen3_5": "float32", "qwen3_5_moe": "float32", "kimi_linear": "float32",
              "bailing_hybrid-3": "float32"}  # fmt: skip
TYPES = sorted(path.stem.removeprefix("type-") for path in CONFIGS.glob("type-*.json"))


def summary(spec: Spec) -> str:
    said = []
    for group in spec.groups:
        counted = len(group.layers) > 8 or group.layers == tuple(range(spec.num_layers))
        layers = len(group.layers) if counted else list(group.layers)
        params = " ".join(str(value) for value in group.params.values() if isinstance(value, int))
        said.append(f"{group.name}: {group.format.name} {layers} {params}")
    return " | ".join(said)


def same(left: Spec, right: Spec) -> bool:
    def parts(spec: Spec) -> object:
        groups = [(g.name, g.format.name, dict(g.params), g.layers, g.block, g.window) for g in spec.groups]
        return spec.name, spec.num_layers, spec.tp, groups

    return parts(left) == parts(right)


def test_every_config_has_an_expectation() -> None:
    assert sorted(EXPECTED) == TYPES


@pytest.mark.parametrize("kind", TYPES)
def test_a_model_type_gives_its_groups(kind: str) -> None:
    spec = kvlayout.from_hf(CONFIGS / f"type-{kind}.json")
    assert summary(spec) == EXPECTED[kind]
    windows = {group.window for group in spec.groups} - {None}
    expected = WINDOWS.get(kind, ())
    assert windows == ({expected} if isinstance(expected, int) else set(expected))
    dtypes = {group.params["ssm_dtype"] for group in spec.groups if "ssm_dtype" in group.params}
    assert dtypes <= {SSM_DTYPES.get(kind, "bfloat16")}
    others = {value for group in spec.groups for key, value in group.params.items() if key in ("dtype", "conv_dtype")}
    assert others <= {"bfloat16"}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_yaml_loads_to_the_same_spec(path: Path, tmp_path: Path) -> None:
    imported = import_hf(path, name="owner/a model: 'x'")
    written = tmp_path / "model.yaml"
    written.write_text(imported.text, encoding="utf-8")
    assert same(kvlayout.load(written), imported.spec)
    assert same(imported.spec, kvlayout.from_hf(json.loads(path.read_text()), name="owner/a model: 'x'"))
    assert max(map(len, imported.text.splitlines())) <= 120
    for line in imported.text.splitlines():
        if line.startswith("      ") and ": " in line.split("#")[0]:
            assert "  # " in line, f"no origin: {line}"


def test_families_are_told_apart_by_their_configs() -> None:
    """Every function of the table is reached by a config here."""
    used = set()
    for path in CONFIGS.glob("*.json"):
        data = json.loads(path.read_text())
        for name in ("text_config", "llm_config", "language_config"):
            data = data.get(name, data)
        used.add(FAMILIES[family_name(data["model_type"])])
    assert {family.__name__ for family in set(FAMILIES.values()) - used} == set()


class TestNames:
    @pytest.mark.parametrize(
        ("given", "name", "expected"),
        [
            (None, None, "llama"),
            ("meta-llama/Llama-2-7b-hf", None, "meta-llama/Llama-2-7b-hf"),
            ("meta-llama/Llama-2-7b-hf", "mine", "mine"),
            ("/home/somebody/llama", None, "llama"),
            ("./", None, "llama"),
            ("../x/y", None, "llama"),
            (7, None, "llama"),
            (None, "yes", "yes"),
            (None, 'a "quoted" # name: x', 'a "quoted" # name: x'),
            (None, "12", "12"),
        ],
    )
    def test_the_name_of_the_model(self, given: object, name: str | None, expected: str) -> None:
        config = LLAMA if given is None else {**LLAMA, "_name_or_path": given}
        assert kvlayout.from_hf(config, name=name).name == expected

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "\u202eabc"])
    def test_a_name_that_does_not_show(self, name: str) -> None:
        with pytest.raises(SpecError) as caught:
            kvlayout.from_hf(LLAMA, name=name)
        assert caught.value.problems[0].code == "KVL162"


class TestDefaults:
    def test_absent_is_not_null(self) -> None:
        config = {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        assert kvlayout.from_hf({**config, "sliding_window": None}).groups[0].params["num_kv_heads"] == 8
        null = kvlayout.from_hf({**config, "sliding_window": None, "num_key_value_heads": None}).groups[0]
        assert (null.params["num_kv_heads"], null.window) == (4, None)
        assert kvlayout.from_hf(config).groups[0].window == 4096

    def test_sizes_are_absent_only_inside(self) -> None:
        with pytest.raises(SpecError, match="KVL163: field 'num_hidden_layers'"):
            kvlayout.from_hf({"model_type": "llama"})
        inside = kvlayout.from_hf({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
        assert inside.num_layers == 26

    def test_the_type_of_the_whole_where_the_part_has_none(self) -> None:
        part = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
        spec = kvlayout.from_hf({"model_type": "gemma3", "dtype": "float16", "text_config": part})
        assert [group.name for group in spec.groups] == ["attention", "sliding"]
        assert spec.groups[0].params["dtype"] == "float16"

    def test_the_yaml_marks_what_the_config_does_not_say(self) -> None:
        text = import_hf(CONFIGS / "type-gpt_oss.json").text
        assert "bfloat16 is assumed" in text
        assert "# no torch_dtype in the config: check it" in text
        assert "sliding_window_pattern, absent: the config class's default" in text
        assert "bfloat16 is assumed" not in import_hf(CONFIGS / "type-llama.json").text

    def test_a_checkpoint_that_asks_for_a_quantised_cache(self) -> None:
        config = json.loads((CONFIGS / "type-llama.json").read_text())
        config["quantization_config"] = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
        assert "kv_dtype=fp8" in import_hf(config).text


class TestGemma4:
    CONFIG = json.loads((CONFIGS / "type-gemma4.json").read_text())["text_config"] | {"num_kv_shared_layers": 0}

    def test_heads_layer_by_layer(self) -> None:
        overrides = {str(layer): {"head_dim": 128, "num_key_value_heads": 2} for layer in (5, 11)}
        spec = kvlayout.from_hf({**self.CONFIG, "per_layer_config": overrides})
        assert summary(spec).startswith("attention: gqa [5, 11] 2 128 | sliding: ")

    @pytest.mark.parametrize("overrides", [{"5": {"head_dim": 128}}, {"0": {"head_dim": 128}}])
    def test_heads_that_make_no_group(self, overrides: object) -> None:
        with pytest.raises(SpecError, match=r"config#/per_layer_config.*KVL164"):
            kvlayout.from_hf({**self.CONFIG, "per_layer_config": overrides})

    def test_the_last_layer_is_full(self) -> None:
        types = ["sliding_attention"] * 12
        assert summary(kvlayout.from_hf({**self.CONFIG, "layer_types": types})).startswith("attention: gqa [11] 1 512")


class TestDeepSeekV4:
    CONFIG = json.loads((CONFIGS / "type-deepseek_v4.json").read_text())

    def test_pages_as_vllm_sizes_them(self) -> None:
        spec = kvlayout.from_hf(self.CONFIG)
        sizes = {group.name: spec.page(group, kvlayout.Engine()).nbytes for group in spec.groups}
        # 64 rows of 584, rounded to 576: what the compressors' pages of 4 and 8 tokens fit into
        assert sizes == {
            "sliding": 37440, "compressed_4": 37440, "compressed_128": 1728, "indexer": 8640, "compressor_4": 32832,
            "compressor_128": 32832, "indexer_compressor": 8640,
        }  # fmt: skip

    def test_layer_types_say_the_same(self) -> None:
        words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
        config = {name: value for name, value in self.CONFIG.items() if name != "compress_ratios"}
        other = kvlayout.from_hf({**config, "layer_types": [words[each] for each in self.CONFIG["compress_ratios"]]})
        assert same(other, kvlayout.from_hf(self.CONFIG))

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"compress_ratios": [0, 8]}, "config#/compress_ratios/1: KVL162: .* expected one of 0, 1, 4, 128; got 8"),
            ({"compress_ratios": [0, 4]}, "config#/compress_ratios: KVL164: .* expected 43; got 2"),
            ({"compress_ratios": None}, "KVL163: field 'compress_ratios'"),
            ({"head_dim": 256}, "config#/head_dim: KVL164: .* expected 512; got 256"),
        ],
    )
    def test_what_no_format_holds(self, fields: dict[str, object], said: str) -> None:
        with pytest.raises(SpecError, match=said):
            kvlayout.from_hf({**self.CONFIG, **fields})


class TestIndexers:
    CONFIG = json.loads((CONFIGS / "type-deepseek_v32.json").read_text())

    @pytest.mark.parametrize(
        ("fields", "layers"),
        [
            ({"index_topk_pattern": "FSSF"}, (0, 3)),
            ({"index_topk_pattern": ["F", "S", "F", "S", "S"]}, (0, 2)),
            ({"indexer_types": ["full", "full", "shared", "shared"]}, (0, 1)),
            ({"index_topk_freq": 2}, (0, 1, 3)),
            ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, (0, 3)),
            ({"index_topk_freq": 1}, (0, 1, 2, 3)),
        ],
    )
    def test_layers_that_have_one(self, fields: dict[str, object], layers: tuple[int, ...]) -> None:
        spec = kvlayout.from_hf({**self.CONFIG, **fields})
        assert spec.group("indexer").layers == layers
        assert spec.group("attention").layers == (0, 1, 2, 3)
