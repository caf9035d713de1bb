"""What cache dtype words make of formats: nothing that a page depends on is lost on the way."""

from __future__ import annotations

import pytest

import kvlayout
from kvlayout import Engine, SpecError
from kvlayout.data import specs_dir
from kvlayout.spec.formats import load_format
from kvlayout.spec.grammar import KvDtypesFile
from kvlayout.spec.source import read_source
from kvlayout.spec.validate import validated

TABLE = validated(KvDtypesFile, read_source(specs_dir() / "kv_dtypes.yaml")).kv_dtypes
ENTRIES = [(name, word) for name, words in TABLE.items() for word in words]

# Parameters that say how values are encoded or arranged. Another format decides both anew; sizes must be kept.
ENCODING = {"dtype", "encoding", "kv_packing", "scale_layout", "key_bits", "value_bits", "fp8_keys", "scales", "align"}


def params_of(name: str) -> set[str]:
    return set(load_format(specs_dir() / "formats" / f"{name}.yaml").file.params)


@pytest.mark.parametrize(("name", "word"), ENTRIES)
def test_a_change_of_format_keeps_every_size(name: str, word: str) -> None:
    change = TABLE[name][word]
    lost = params_of(name) - params_of(change.format or name)
    assert lost <= ENCODING


@pytest.mark.parametrize(("name", "word"), ENTRIES)
def test_a_word_gives_what_its_format_needs(name: str, word: str) -> None:
    change = TABLE[name][word]
    target = load_format(specs_dir() / "formats" / f"{change.format or name}.yaml").file
    needed = {key for key, decl in target.params.items() if decl.default is None}
    assert needed <= params_of(name) | set(change.params)
    assert set(change.params) <= set(target.params)


@pytest.mark.parametrize("name", TABLE)
def test_auto_is_what_the_spec_says(name: str) -> None:
    assert "auto" not in TABLE[name]


def test_keys_and_values_of_two_widths_are_not_nvfp4() -> None:
    """The nvfp4 page has one width; a page for `head_size` alone would be another one than the engine's."""
    spec = kvlayout.load(specs_dir() / "models" / "mimo-v2-flash.yaml")
    widths = {(group.params["head_size"], group.params.get("head_size_v")) for group in spec.groups}
    assert any(b not in (None, a) for a, b in widths)
    engine = Engine(kv_dtype="nvfp4")
    with pytest.raises(SpecError) as caught:
        kvlayout.slice_for_tp_transfer(spec, engine, engine)
    assert {each.code for each in caught.value.problems} == {"KVL221"}
    for width in (192, 128):
        same = Engine(
            kv_dtype="nvfp4", groups={g.name: {"head_size": width, "head_size_v": width} for g in spec.groups}
        )
        assert kvlayout.slice_for_tp_transfer(spec, same, same).cost.nbytes
