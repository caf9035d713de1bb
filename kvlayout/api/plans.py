"""Load, slice and prove, composed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvlayout import __version__
from kvlayout.errors import ArtifactError, PlanRefused, Problem, problem
from kvlayout.plan.artifact import Document, Plan, read, sealed
from kvlayout.plan.planner import PlannedGroup, Planner
from kvlayout.plan.transfer import TransferPlan
from kvlayout.verify.check import check_document
from kvlayout.verify.verdict import Verdict

if TYPE_CHECKING:
    from kvlayout.spec.engine import Engine
    from kvlayout.spec.model import Spec

__all__ = ["check", "from_hf", "load", "load_plan", "plan_pair", "slice_for_tp_transfer"]

COMPILER = f"kvlayout {__version__}"


def load(path: str | os.PathLike[str]) -> Spec:
    """Load a model spec from a YAML file. Raises SpecError with located problems."""
    from kvlayout.spec.model import load_spec

    return load_spec(path)


def from_hf(config: Mapping[str, Any] | str | os.PathLike[str], *, name: str | None = None) -> Spec:
    """The model spec of a Hugging Face config: a dict, the path of a config.json, or of a folder that holds one.

    `name`: the model's name. Equal to `load` of what `kvlayout init` writes. Nothing that the config names is imported.
    Raises SpecError for fields that are missing, wrong or at odds, and for architectures that are not known.
    """
    from kvlayout.spec.importers import from_hf

    return from_hf(config, name=name)


def slice_for_tp_transfer(
    spec: Spec, src: Engine, dst: Engine, dst_spec: Spec | None = None, *, group: str | None = None
) -> TransferPlan:
    """The proved plan that moves a model's pages from engine `src` to engine `dst`.

    `dst_spec`: the destination's spec where it differs; groups pair by name. `group`: plan only this one.
    Raises PlanRefused when no such engine exists (`unloadable`), when the pages do not convert, or when the checker
    does not prove the plan; SpecError when an engine names what the spec does not have.
    """
    document = sealed(plan_pair(spec, src, dst, dst_spec, group=group), _meta(spec, src, dst))
    verdict = check_document(document, _where(src, dst))
    if not verdict.proved:
        raise PlanRefused(verdict.problems)
    return TransferPlan(document)


def plan_pair(
    spec: Spec,
    src: Engine,
    dst: Engine,
    dst_spec: Spec | None = None,
    *,
    group: str | None = None,
    planner: Planner | None = None,
) -> Plan:
    """The plan, not yet proved. `planner` may be kept over many pairs of one spec."""
    from kvlayout.spec.model import parallel_of

    other = spec if dst_spec is None else dst_spec
    spec.check_engine(src)
    other.check_engine(dst)
    names = [each.name for each in spec.groups] if group is None else [spec.group(group).name]
    problems: list[Problem] = []
    unloadable = False
    ours_only = [name for name in names if name not in {each.name for each in other.groups}]
    theirs_only = [each.name for each in other.groups if each.name not in names] if group is None else []
    problems += [
        problem("KVL508", _where(src, dst), f"the {side}'s spec has no group '{name}'")
        for side, lacking in (("destination", ours_only), ("source", theirs_only))
        for name in lacking
    ]
    names = [name for name in names if name not in ours_only]
    if spec.num_layers != other.num_layers:
        problems.append(
            problem("KVL508", _where(src, dst), "the two specs have different numbers of layers",
                    expected=str(other.num_layers), got=str(spec.num_layers))
        )  # fmt: skip
    groups: list[PlannedGroup] = []
    parallels = []
    for side, engine in ((spec, src), (other, dst)):
        try:
            parallels.append(parallel_of(side, engine))
        except PlanRefused as error:
            problems += error.problems
            unloadable = True
    for name in names:
        ours, theirs = spec.group(name), other.group(name)
        if ours.layers != theirs.layers:
            problems.append(
                problem("KVL508", _where(src, dst), f"group '{name}' has different layers on the two sides")
            )
        try:
            names_of = spec.format_name(ours, src), other.format_name(theirs, dst)
            formats = "" if names_of[0] == names_of[1] else f" ({names_of[0]} -> {names_of[1]})"
            groups.append(PlannedGroup(name, ours.layers, spec.page(ours, src), other.page(theirs, dst), formats))
        except PlanRefused as error:
            problems += error.problems
            unloadable = unloadable or error.unloadable
    if problems:
        raise PlanRefused(dict.fromkeys(problems), unloadable=unloadable)  # what is wrong with a side is said once
    return (planner or Planner()).plan(_where(src, dst), groups, *parallels)


def check(plan: TransferPlan | Document | str | os.PathLike[str]) -> Verdict:
    """The independent checker's verdict on a plan or an artifact file. Raises ArtifactError for what is no artifact."""
    if isinstance(plan, TransferPlan):
        return check_document(plan.document)
    if isinstance(plan, Document):
        return check_document(plan)
    return check_document(read(plan), os.fspath(plan))


def load_plan(path: str | os.PathLike[str], digest: str | None = None) -> TransferPlan:
    """Load an artifact and prove it again; with `digest` also pin it. Raises ArtifactError for anything else."""
    document = read(path)
    where = os.fspath(path)
    if digest is not None and document.digest != digest:
        raise ArtifactError(
            problem("KVL405", where, "this is not the plan that was asked for", expected=digest, got=document.digest)
        )
    verdict = check_document(document, where)
    if not verdict.proved:
        raise ArtifactError(verdict.problems)
    return TransferPlan(document)


def _where(src: Engine, dst: Engine) -> str:
    return f"plan {src} -> {dst}"


def _meta(spec: Spec, src: Engine, dst: Engine) -> dict[str, Any]:
    return {"spec": spec.name, "src": str(src), "dst": str(dst), "compiler": COMPILER}
