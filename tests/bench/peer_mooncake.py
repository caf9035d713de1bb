"""The peer of `bench_plans.py`: Mooncake's reshard planner on a KV-shaped array. Prints medians as JSON.

A process of its own, because the wheel may live in another environment. The array is described as the planner knows
arrays: one tensor a layer, split along its head dimension.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from mooncake.reshard.weight import (
    ParallelRank,
    ParallelTopology,
    PlacementFragment,
    SplitAxis,
    TensorDescriptor,
    TopologyParticipant,
    WeightPlacementManifest,
    plan_placement_transfer,
)

LAYERS, SHAPE, HEAD_DIM, ITEM = 32, (2, 64, 16, 8, 128), 3, 2


def placement(tp: int) -> WeightPlacementManifest:
    """All layers, heads in equal shares."""
    tensors = [
        TensorDescriptor(
            tensor_id=f"layer.{layer}",
            global_shape=SHAPE,
            dtype="bfloat16",
            itemsize=ITEM,
            shard_dims=(HEAD_DIM,),
            layout_fingerprint="row-major",
            parallel_axes=(SplitAxis("tp", HEAD_DIM),),
            layer_id=layer,
        )
        for layer in range(LAYERS)
    ]
    local = tuple(size // tp if dim == HEAD_DIM else size for dim, size in enumerate(SHAPE))
    nbytes = ITEM
    for size in local:
        nbytes *= size
    fragments = [
        PlacementFragment(
            tensor_id=tensor.tensor_id,
            global_offset=tuple(rank * local[HEAD_DIM] if dim == HEAD_DIM else 0 for dim in range(len(SHAPE))),
            local_shape=local,
            nbytes=nbytes,
            rank=ParallelRank(tp=rank),
        )
        for tensor in tensors
        for rank in range(tp)
    ]
    participants = tuple(TopologyParticipant(f"rank{rank}", ParallelRank(tp=rank)) for rank in range(tp))
    return WeightPlacementManifest.from_fragments(
        resource_id="kv",
        revision="1",
        weight_generation=0,
        placement_set_id=f"tp{tp}",
        topology=ParallelTopology(tp_size=tp, pp_size=1, ep_size=1, dp_size=1, participants=participants),
        tensors=tensors,
        fragments=fragments,
    )


def seconds(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main(repeats: int) -> None:
    describe = seconds(lambda: (placement(8), placement(4)), repeats)
    src, dst = placement(8), placement(4)
    plan = seconds(lambda: plan_placement_transfer(src, dst), repeats)
    made = plan_placement_transfer(src, dst)
    regions = made.operations if hasattr(made, "operations") else made.regions

    def expanded() -> int:
        return sum(1 for region in regions for _ in region.iter_segments(max_segments=1_000_000))

    begin = time.perf_counter()
    segments = expanded()
    expand = time.perf_counter() - begin if repeats < 3 else seconds(expanded, min(3, repeats))
    print(
        json.dumps(
            {
                "version": importlib.metadata.version("mooncake-transfer-engine"),
                "describe": describe,
                "plan": plan,
                "regions": len(regions),
                "segments": segments,
                "expand": expand,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
