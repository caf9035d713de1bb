"""Families whose attention reads chosen tokens: beside the pages of attention an indexer keeps a key for each token."""

from __future__ import annotations

from kvlayout.spec.importers.document import Config, Fact
from kvlayout.spec.importers.groups import (
    ATTENTION,
    Group,
    Kinds,
    check_length,
    dtype_of,
    every,
    gqa,
    latent,
    layer_count,
    of_kind,
)

__all__ = ["minimax_m3", "sparse_mla"]


def sparse_mla(c: Config) -> list[Group]:
    """Latent attention over tokens that an indexer selects. Pages are packed fp8 rows, the only ones that kernels read.

    Layers that use the selection of the layer before them have no indexer.
    """
    count = layer_count(c)
    rows = latent(c, every(c))
    dims = {name: fact for name, fact in rows.params.items() if name != "dtype"}
    note = "Served with fp8 rows; kv_dtype=bfloat16 on both engines gives plain ones."
    indexed, width = _indexed(c, count.value), c.number("index_head_dim")
    return [
        rows._replace(format="mla_fp8_ds", params=dims, note=note),
        Group(
            "indexer",
            "indexer_fp8",
            indexed.layers(ATTENTION),
            indexed.origin,
            {"head_dim": width},
        ),
    ]


def _indexed(c: Config, count: int) -> Kinds:
    """The layers with an indexer of their own, as vLLM reads them."""
    kinds = {"F": ATTENTION, "S": "", "full": ATTENTION, "shared": ""}
    for name in ("indexer_types", "index_topk_pattern"):
        if isinstance(c.given.get(name), str):
            word = c.word(name)
            words = list(word.value) if word is not None else None
        else:
            words = c.words(name)
        if words is not None:
            for index, word_ in enumerate(words):
                if word_ not in kinds:
                    c.not_one_of((name, index), kinds, word_)
            if len(words) < count:
                c.refuse((name,), f"'{name}' speaks of too few layers", expected=f"{count}", got=f"{len(words)}")
            return Kinds([kinds[word_] for word_ in words[:count]], name)
    step = c.maybe_number("index_topk_freq")
    if step is None or step.value == 1:
        return every(c)
    offset = c.maybe_number("index_skip_topk_offset", low=0)
    skipped = offset.value if offset is not None else 2
    return of_kind(c, lambda i: "" if max(i - skipped + 1, 0) % step.value else ATTENTION, "index_topk_freq")


def minimax_m3(c: Config) -> list[Group]:
    """Plain attention everywhere; in the sparse layers of `sparse_attention_freq` a block index keeps a key a token."""
    found = [gqa(c, every(c))]
    sparse = c.inner("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", True):
        return found
    flags = sparse.numbers("sparse_attention_freq", high=1)
    if flags is None:
        sparse.missing("sparse_attention_freq", "a list with 0 or 1 for each layer")
    check_length(sparse, "sparse_attention_freq", len(flags))
    layers = tuple(index for index, flag in enumerate(flags) if flag)
    params: dict[str, Fact[int] | Fact[str]] = {"head_dim": sparse.number("sparse_index_dim"), "dtype": dtype_of(c)}
    return [*found, Group("indexer", "indexer_m3", layers, "sparse_attention_freq", params)]
