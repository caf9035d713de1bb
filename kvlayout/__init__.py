"""kvlayout: declarative layouts of KV cache and state pages, and transfer plans that are proved correct.

The names below are loaded when first used, so that `import kvlayout` needs neither NumPy nor torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlayout.api import (
        Comparison,
        TensorSpec,
        check,
        compare,
        from_hf,
        layout_of,
        load,
        load_plan,
        schedule,
        slice_for_tp_transfer,
    )
    from kvlayout.emit.bind import BoundMove, Kernel, bind, kernel
    from kvlayout.errors import ArtifactError, KvLayoutError, PlanRefused, Problem, SpecError, SubmitError
    from kvlayout.integrations.vllm import from_vllm
    from kvlayout.plan.identity import Layout
    from kvlayout.plan.schedule import Schedule
    from kvlayout.plan.transfer import TransferPlan
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.model import Spec
    from kvlayout.spec.tables import TensorTable, tensor_table
    from kvlayout.verify.verdict import Verdict

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "BoundMove",
    "Comparison",
    "Engine",
    "Kernel",
    "KvLayoutError",
    "Layout",
    "PlanRefused",
    "Problem",
    "Schedule",
    "Spec",
    "SpecError",
    "SubmitError",
    "TensorSpec",
    "TensorTable",
    "TransferPlan",
    "Verdict",
    "__version__",
    "bind",
    "check",
    "compare",
    "from_hf",
    "from_vllm",
    "kernel",
    "layout_of",
    "load",
    "load_plan",
    "schedule",
    "slice_for_tp_transfer",
    "tensor_table",
]

_HOMES = {
    "kvlayout.api": (
        "Comparison",
        "TensorSpec",
        "check",
        "compare",
        "from_hf",
        "layout_of",
        "load",
        "load_plan",
        "schedule",
        "slice_for_tp_transfer",
    ),
    "kvlayout.emit.bind": ("BoundMove", "Kernel", "bind", "kernel"),
    "kvlayout.errors": ("ArtifactError", "KvLayoutError", "PlanRefused", "Problem", "SpecError", "SubmitError"),
    "kvlayout.plan.identity": ("Layout",),
    "kvlayout.integrations.vllm.importer": ("from_vllm",),
    "kvlayout.plan.schedule": ("Schedule",),
    "kvlayout.plan.transfer": ("TransferPlan",),
    "kvlayout.spec.engine": ("Engine",),
    "kvlayout.spec.model": ("Spec",),
    "kvlayout.spec.tables": ("TensorTable", "tensor_table"),
    "kvlayout.verify.verdict": ("Verdict",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'kvlayout' has no attribute '{name}'")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
