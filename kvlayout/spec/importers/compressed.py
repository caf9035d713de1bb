"""DeepSeek-V4: a window of plain tokens in every layer, and compressed ones in most."""

from __future__ import annotations

from kvlayout.spec.importers.document import Config, Fact
from kvlayout.spec.importers.groups import Group, Kinds, layer_count

__all__ = ["deepseek_v4"]

_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_NOTE = "Served with fp8 rows. Plain ones: kv_dtype=bfloat16, and align=512 for the indexer and the compressors."

# What no config says and vLLM fixes: tokens of a block, by what the block holds.
_BLOCK = Fact(256, "fixed in vLLM")
_WINDOW_BLOCK = Fact(64, "fixed in vLLM")
_COMPRESSOR_BLOCKS = {4: Fact(4, "fixed in vLLM"), 128: Fact(8, "fixed in vLLM")}
_ALIGN = Fact(576, "beside fp8 rows")


def deepseek_v4(c: Config) -> list[Group]:
    """A window of tokens everywhere; where tokens are compressed, by 4 or by 128, their states and open groups too.

    Layers that compress by 4 select states through an indexer, whose keys are compressed in the same way.
    """
    width = c.number("head_dim")
    if width.value != 512:
        c.refuse(("head_dim",), "rows of this width have no format", expected="512", got=f"{width.value}")
    ratios = _ratios(c)
    key = c.number("index_head_dim")
    every = tuple(range(len(ratios.kinds)))
    window = c.maybe_number("sliding_window")
    four, many = ratios.layers("4"), ratios.layers("128")
    per_four, per_many = Fact(4, ratios.origin), Fact(128, ratios.origin)
    keys = {"head_dim": key, "tokens_per_state": per_four, "align": _ALIGN}
    return [
        Group("sliding", "dsv4_fp8", every, "num_hidden_layers", {}, window, _WINDOW_BLOCK, _NOTE),
        Group("compressed_4", "dsv4_fp8", four, ratios.origin, {"tokens_per_state": per_four}, block=_BLOCK),
        Group("compressed_128", "dsv4_fp8", many, ratios.origin, {"tokens_per_state": per_many}, block=_BLOCK),
        Group("indexer", "indexer_fp8", four, ratios.origin, keys, block=_BLOCK),
        _compressor("compressor_4", four, per_four, width),
        _compressor("compressor_128", many, per_many, width),
        _compressor("indexer_compressor", four, per_four, key),
    ]


def _compressor(name: str, layers: tuple[int, ...], ratio: Fact[int], width: Fact[int]) -> Group:
    """Tokens whose group is still open. Windows of 4 overlap, those of 128 do not."""
    window = Fact(2 * 4, "two overlapping windows") if ratio.value == 4 else Fact(128, ratio.origin)
    params = {"head_dim": width, "ratio": ratio, "align": _ALIGN}
    return Group(name, "dsv4_compressor", layers, ratio.origin, params, window, _COMPRESSOR_BLOCKS[ratio.value])


def _ratios(c: Config) -> Kinds:
    """How many tokens each layer makes one; a list may go on for draft layers, which are not counted."""
    count = layer_count(c).value
    name = "compress_ratios" if c.has("compress_ratios") or not c.has("layer_types") else "layer_types"
    if name == "layer_types":
        words = c.words(name) or []
        for index, word in enumerate(words):
            if word not in _RATIOS:
                c.not_one_of((name, index), _RATIOS, word)
        ratios = [_RATIOS[word] for word in words]
    else:
        given = c.numbers(name)
        if given is None:
            c.missing(name, "a list with 0, 4 or 128 for each layer", "layer_types")
        for index, ratio in enumerate(given):
            if ratio not in (0, 1, 4, 128):
                c.not_one_of((name, index), (0, 1, 4, 128), ratio)
        ratios = given
    if len(ratios) < count:
        c.refuse((name,), f"'{name}' speaks of too few layers", expected=f"{count}", got=f"{len(ratios)}")
    return Kinds([str(ratio) for ratio in ratios[:count]], name)
