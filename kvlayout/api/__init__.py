"""What engines call: the one room besides the command line that sees both planner and checker."""

from kvlayout.api.answers import Comparison, compare, layout_of
from kvlayout.api.plans import check, from_hf, load, load_plan, plan_pair, slice_for_tp_transfer
from kvlayout.api.schedules import schedule
from kvlayout.api.tensors import TensorSpec

__all__ = [
    "Comparison",
    "TensorSpec",
    "check",
    "compare",
    "from_hf",
    "layout_of",
    "load",
    "load_plan",
    "plan_pair",
    "schedule",
    "slice_for_tp_transfer",
]
