"""What a destination rank must receive of a field, as boxes over its digits: all of it, or the rows both sides mean."""

from __future__ import annotations

from itertools import product

from kvlayout.algebra.boxes import Box, Interval, interval_boxes
from kvlayout.plan.artifact import Group
from kvlayout.verify.sides import Address

__all__ = ["owned_boxes"]


def owned_boxes(address: Address, group: Group) -> list[Box]:
    """Boxes over (block, digits of the field, byte). Of a `common` axis only units below the smaller size are owned."""
    first: Interval = (0, group.dst_blocks if address.block_axis >= 0 else 1)
    whole: list[Interval] = [first, *((0, count) for count in address.counts)]
    boxes: list[list[Interval]] = [whole]
    for index, name in enumerate(address.names[:-1]):
        src, dst = group.src.axes[name], group.dst.axes[name]
        if dst.common and src.common and src.size < dst.size:
            digits = sorted(
                (d for d in range(len(address.counts)) if address.axes[d] == index), key=lambda d: -address.weights[d]
            )
            cuts = interval_boxes(0, src.size, [address.counts[d] for d in digits[1:]])
            boxes = [_with(box, digits, cut) for box, cut in product(boxes, cuts)]
    return [tuple(box) for box in boxes]


def _with(box: list[Interval], digits: list[int], cut: Box) -> list[Interval]:
    out = list(box)
    for digit, interval in zip(digits, cut, strict=True):
        out[digit + 1] = interval
    return out
