"""From a Hugging Face config.json to a model spec."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from kvlayout.errors import SpecError, problem, shown
from kvlayout.spec.importers.defaults import DEFAULTS
from kvlayout.spec.importers.document import Config, read_config
from kvlayout.spec.importers.families import FAMILIES, family_name
from kvlayout.spec.importers.groups import Group, every, gqa, layer_count
from kvlayout.spec.importers.write import model_text
from kvlayout.spec.model import Spec, spec_of_source
from kvlayout.spec.source import parse_source

__all__ = ["Imported", "from_hf", "import_hf"]

# Where a model of several parts keeps its text model.
_TEXT = ("thinker_config", "text_config", "llm_config", "language_config")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd", "n_layer", "n_head")
MAX_NAME = 200


class Imported(NamedTuple):
    """A model spec as YAML text, and what it loads to."""

    text: str
    spec: Spec


def from_hf(config: Mapping[str, Any] | str | os.PathLike[str], *, name: str | None = None) -> Spec:
    """The model spec of a Hugging Face config: a dict, the path of a config.json, or of a folder that holds one.

    It is what `load` gives for the YAML that `kvlayout init` writes. `name`: the model's name; without it the config's
    `_name_or_path` where that is a repository, else the model type. Nothing that the config names is imported or run.

    Raises SpecError: for what is no config, for a field that is missing, wrong, or at odds with another one, and for
    an architecture that is not known here.
    """
    return import_hf(config, name=name).spec


def import_hf(config: Mapping[str, Any] | str | os.PathLike[str], *, name: str | None = None) -> Imported:
    """As `from_hf`, with the YAML text."""
    root = read_config(config)
    text_model, model_type = _text_model(root)
    family = FAMILIES.get(family_name(model_type))
    if family is None:
        _unknown(text_model, model_type)
    groups = [group for group in family(text_model) if group.layers]
    if not groups:
        text_model.refuse((), "no layer keeps anything", expected="a layer with attention or a state")
    text = model_text(
        _name(root, name) or model_type,
        model_type,
        layer_count(text_model),
        groups,
        list(root.used),
        _notes(root, groups),
    )
    return Imported(text, spec_of_source(parse_source(text, f"{root.file} (as YAML)")))


def _text_model(root: Config) -> tuple[Config, str]:
    """The object with the text model's fields, and its model type."""
    at, model_type = root, _model_type(root)
    for _ in _TEXT:
        inner = next((found for name in _TEXT if (found := at.inner(name)) is not None), None)
        if inner is None:
            break
        at, model_type = inner, _model_type(inner) or model_type
    if model_type is None:
        at.missing("model_type", "the name of a model's architecture")
    defaults = dict(DEFAULTS.get(family_name(model_type), {}))
    if at.outer is None:
        # only configs inside others are saved without their sizes; elsewhere a missing size is a damaged file
        defaults = {name: value for name, value in defaults.items() if name not in _SIZES}
    if model_type == "nemotron_h":
        # its layers are said by a list or a word alone, in newer configs
        listed = [at.given.get(name) for name in ("layers_block_type", "layer_types", "hybrid_override_pattern")]
        counts = [len(each) for each in listed if isinstance(each, str | list)]
        defaults |= {"num_hidden_layers": counts[0]} if counts else {}
    return replace(at, defaults=defaults), model_type


def _model_type(c: Config) -> str | None:
    found = c.word("model_type")
    c.used.pop(next(reversed(c.used), ""), None)
    return None if found is None else found.value


def _name(root: Config, name: str | None) -> str | None:
    """The model's name, if one is given or the config has one that is no path of somebody's machine."""
    if name is not None:
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            expected = f"a printable text of at most {MAX_NAME} characters"
            raise SpecError(problem("KVL162", "name", "the model's name", expected=expected, got=f"'{shown(name)}'"))
        return name
    given = root.given.get("_name_or_path")
    return given if isinstance(given, str) and len(given) <= MAX_NAME and _REPOSITORY.fullmatch(given) else None


def _notes(root: Config, groups: list[Group]) -> list[str]:
    """What the config says that a spec leaves to the engine."""
    notes = []
    quantized = root.given.get("quantization_config")
    if isinstance(quantized, dict) and any(quantized.get(key) for key in ("kv_cache_quant_algo", "kv_cache_scheme")):
        notes.append("The checkpoint asks for a quantised cache, which is the engine's word: kv_dtype=fp8, for one.")
    if any("no torch_dtype" in fact.origin for group in groups for fact in group.params.values()):
        notes.append("The config names no dtype: bfloat16 is assumed, as engines do for most checkpoints. Check it.")
    return notes


def _unknown(c: Config, model_type: str) -> NoReturn:
    """SpecError with what is known, and the YAML to start from."""
    group = "{format: gqa, layers: all, params: {num_kv_heads: 8, head_size: 128, dtype: bfloat16}}"
    try:
        params = gqa(c, every(c)).params
    except SpecError:
        pass
    else:
        inner = ", ".join(f"{key}: {fact.value}" for key, fact in params.items())
        group = f"{{format: gqa, layers: all, params: {{{inner}}}}}"
    text = f"model_type '{shown(model_type)}' is not known, so what its layers keep is not"
    advice = (
        "Write the model spec by hand, as docs/new-model.md shows. If all layers have plain attention: "
        f"groups: {{attention: {group}}}"
    )
    known = ", ".join(sorted(FAMILIES))
    raise SpecError(
        problem("KVL165", c.where("model_type"), text, expected=f"one of {known}", got=c.known(), help=advice)
    )
