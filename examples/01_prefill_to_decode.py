"""From a prefill engine with tp=4 to a decode engine with tp=2: plan, apply, check by hand, pin, forge.

Qwen3-Next has two cache groups. Its 2 KV heads are fewer than 4 ranks, so that two prefill ranks hold each head; its
recurrent state is cut by heads, k and q by 16, v and the temporal state by 32. The decode engine keeps one row more in
its convolution windows, for a speculative token. Run it with `python examples/01_prefill_to_decode.py`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kvlayout
from kvlayout.data import specs_dir
from kvlayout.testing import reseal

Bytes = NDArray[np.uint8]

PREFILL_TP, DECODE_TP = 4, 2
TOKENS = 16  # in a block
ROWS = {PREFILL_TP: 3, DECODE_TP: 4}  # conv_kernel - 1, and one for the speculative token
UNTOUCHED = 0xEE


# The model's cache for one block of one layer, without any engine: every element is a 16-bit number of its own field.
def numbered(first: int, *shape: int) -> NDArray[np.uint16]:
    return (np.arange(np.prod(shape), dtype=np.uint32) * 40503 + first).astype(np.uint16).reshape(shape)


K, V = numbered(1, 2, TOKENS, 256), numbered(2, 2, TOKENS, 256)  # head, token, element
CONV = {
    "conv_q": numbered(3, 16, 128, 3),  # head, channel, row
    "conv_k": numbered(4, 16, 128, 3),
    "conv_v": numbered(5, 32, 128, 3),
}
TEMPORAL = numbered(6, 32, 128, 128)  # head, v, k


def share(field: NDArray[np.uint16], tp: int, rank: int) -> NDArray[np.uint16]:
    """The heads of a rank: an equal share, or one head that several ranks hold."""
    heads = len(field)
    if heads % tp == 0:
        return field[rank * heads // tp : (rank + 1) * heads // tp]
    return field[rank * heads // tp :][:1]


def attention_page(tp: int, rank: int) -> Bytes:
    """Heads outside, tokens inside; of each token k, then v."""
    pair = np.concatenate([share(K, tp, rank), share(V, tp, rank)], axis=2)
    return np.frombuffer(pair.tobytes(), np.uint8)


def state_page(tp: int, rank: int) -> Bytes:
    """Three convolution windows, channels outside and rows inside, then the temporal state."""
    parts = []
    for field in CONV.values():
        mine = share(field, tp, rank)
        window = np.full((*mine.shape[:2], ROWS[tp]), UNTOUCHED * 0x0101, np.uint16)
        window[:, :, : mine.shape[2]] = mine
        parts.append(window.tobytes())
    parts.append(share(TEMPORAL, tp, rank).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8)


def main() -> None:
    spec = kvlayout.load(specs_dir() / "models" / "qwen3-next-80b-a3b.yaml")
    prefill = kvlayout.Engine(tp=PREFILL_TP, block=TOKENS)
    decode = kvlayout.Engine(tp=DECODE_TP, block=TOKENS, spec_tokens=1)
    plan = kvlayout.slice_for_tp_transfer(spec, src=prefill, dst=decode)
    print(plan)

    # Applying a plan takes no more than slices.
    for group, page_of in (("attention", attention_page), ("state", state_page)):
        sources = {rank: page_of(PREFILL_TP, rank) for rank in range(PREFILL_TP)}
        for rank in range(DECODE_TP):
            expected = page_of(DECODE_TP, rank)
            page = np.full(len(expected), UNTOUCHED, np.uint8)
            runs = plan.runs(group, dst_rank=rank)
            for src_rank, _, src_offset, _, dst_offset, nbytes in runs:
                page[dst_offset : dst_offset + nbytes] = sources[src_rank][src_offset : src_offset + nbytes]
            assert np.array_equal(page, expected), (group, rank)
            print(f"\n{group}, decode rank {rank}: {len(page)} bytes right after {len(runs)} copies")
            if group == "state":
                check_fields(page, rank)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        again = kvlayout.load_plan(path, digest=plan.digest)  # proves it once more, and it is the pinned one
        assert again.digest == plan.digest
        print(f"\nsaved, pinned and proved again: {kvlayout.check(path)}")

        # A forged stride: the channels of conv_q are read 8 bytes apart instead of 6.
        document = json.loads(path.read_text(encoding="utf-8"))
        piece = document["plan"]["groups"][1]["ranks"][0]["pieces"][0]
        ((count, src_stride, dst_stride),) = piece[-1]
        assert (piece[1], src_stride, dst_stride) == (["conv_q"], 6, 8)
        piece[-1] = [[count, dst_stride, dst_stride]]
        path.write_text(json.dumps(document), encoding="utf-8")
        verdict = kvlayout.check(path)
        assert [problem.code for problem in verdict.problems] == ["KVL401", "KVL402"]
        print(f"\nforged: {verdict}")

        # With seal and digest made to fit, only the proof is left to notice.
        path.write_text(json.dumps(reseal(document)), encoding="utf-8")
        verdict = kvlayout.check(path)
        assert verdict.status == "refuted"
        witness = verdict.findings[0].witness
        assert witness is not None and (witness.group, witness.rank) == ("state", 0)
        print(f"\nforged and sealed again: {verdict}")
        assert refused_with(path) == "KVL303"


def refused_with(path: Path) -> str:
    try:
        kvlayout.load_plan(path)
    except kvlayout.ArtifactError as error:
        return error.problems[0].code
    raise AssertionError("a refuted plan was loaded")


def check_fields(page: Bytes, rank: int) -> None:
    """Field by field, with offsets worked out here: rank r has heads 8r.. of q and k, 16r.. of v and the state."""
    channel = ROWS[DECODE_TP] * 2
    at = 0
    for name, heads in (("conv_q", 8), ("conv_k", 8), ("conv_v", 16)):
        window = page[at : at + heads * 128 * channel].view(np.uint16).reshape(heads, 128, ROWS[DECODE_TP])
        assert np.array_equal(window[:, :, :3], CONV[name][rank * heads : (rank + 1) * heads])
        assert (window[:, :, 3] == UNTOUCHED * 0x0101).all()  # the speculative row is nobody's
        at += heads * 128 * channel
    state = page[at:].view(np.uint16).reshape(16, 128, 128)
    assert np.array_equal(state, TEMPORAL[rank * 16 : (rank + 1) * 16])
    assert at + state.nbytes == len(page) == 557_056


if __name__ == "__main__":
    main()
