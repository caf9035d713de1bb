"""Proving specs over many pairs of engines, and artifacts: the work behind `kvlayout verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvlayout.api import check, plan_pair
from kvlayout.cli.report import ArtifactResult, Report
from kvlayout.data import specs_dir
from kvlayout.errors import KvLayoutError, PlanRefused, Problem, SpecError, problem
from kvlayout.ir import digest
from kvlayout.plan.artifact import Plan
from kvlayout.plan.planner import Planner
from kvlayout.spec.engine import Engine
from kvlayout.spec.formats import load_format
from kvlayout.spec.model import Spec, load_spec, spec_of_format
from kvlayout.spec.source import read_source
from kvlayout.verify.check import Checker

__all__ = ["Job", "Sweep", "files_of", "kind_of", "shipped_engines"]

DEFAULT_TP = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Job:
    """Engine pairs of one spec. `spec` is made when the job runs, so that a bad file stops only itself."""

    path: Path
    spec: Spec
    sources: tuple[Engine, ...]
    destinations: tuple[Engine, ...]

    @property
    def pairs(self) -> int:
        """How many ordered pairs there are."""
        return len(self.sources) * len(self.destinations)


@dataclass(slots=True)
class Sweep:
    """Collects a report. `sources`, `destinations`: engines asked for; empty means the defaults. `tp`: their sizes.
    `besides`: engines that models meet besides the defaults, where they can."""

    sources: tuple[Engine, ...] = ()
    destinations: tuple[Engine, ...] = ()
    tp: tuple[int, ...] = ()
    besides: tuple[Engine, ...] = ()
    report: Report = field(default_factory=Report)
    skipped: list[Problem] = field(default_factory=list)
    engines_only: bool = True
    unreadable: bool = False
    findings: bool = False
    _digests: set[str] = field(default_factory=set)

    def jobs(self, files: Sequence[Path]) -> list[Job]:
        """The jobs of spec files; artifacts are checked on the way, unreadable files are reported."""
        jobs: list[Job] = []
        for path in files:
            try:
                jobs += self._jobs_of(path)
            except KvLayoutError as error:
                self.unreadable = True
                self.report.add(error.problems)
        return jobs

    def run(self, job: Job, advance: Callable[[], None]) -> None:
        """Prove every pair of a job."""
        planner, checker = Planner(), Checker()
        loads = {}
        for engine in dict.fromkeys((*job.sources, *job.destinations)):
            try:
                loads[engine] = self._loads(job.spec, engine, planner)
            except SpecError as error:
                self.unreadable = True
                self.report.add(error.problems)
                return
        for side in (job.sources, job.destinations):
            reasons = [loads[engine] for engine in side]
            if all(reason is not None for reason in reasons):
                self._find(next(reason for reason in reasons if reason is not None).problems)
                break
        for engine, reason in loads.items():
            if reason is not None and job.spec.tp is not None and engine.tp in job.spec.tp and not self._asked:
                self._find(reason.problems)
        for src in job.sources:
            for dst in job.destinations:
                self.report.pairs += 1
                missing = loads[src] or loads[dst]
                if missing is not None:
                    self._skip(job.spec, src, dst, missing)
                else:
                    self._pair(job.spec, src, dst, planner, checker)
                advance()

    @property
    def _asked(self) -> bool:
        return bool(self.sources or self.destinations)

    def _loads(self, spec: Spec, engine: Engine, planner: Planner) -> PlanRefused | None:
        """Why no such engine exists, or None. A side that exists can at least be planned against itself."""
        spec.check_engine(engine)
        try:
            plan_pair(spec, engine, engine, planner=planner)
        except PlanRefused as error:
            return error if error.unloadable else None
        return None

    def _pair(self, spec: Spec, src: Engine, dst: Engine, planner: Planner, checker: Checker) -> None:
        try:
            plan = plan_pair(spec, src, dst, planner=planner)
        except PlanRefused as error:
            self._skip(spec, src, dst, error)
            return
        found = digest(plan)
        verdict = checker.check(plan, f"{spec.name}: plan {src} -> {dst}", found)
        if found not in self._digests:
            self._digests.add(found)
            self.report.plans += 1
            self.report.identities += _is_identity(plan)
        setattr(self.report, verdict.status, getattr(self.report, verdict.status) + 1)
        if not verdict.proved:
            self._find(verdict.problems)

    def _skip(self, spec: Spec, src: Engine, dst: Engine, reason: PlanRefused) -> None:
        if reason.unloadable:
            self.report.unloadable += 1
        else:
            self.report.refused += 1
        where = f"{spec.name}: plan {src} -> {dst}"
        self.skipped += (
            replace(
                each, severity="note", message=f"{where}: {each.message}" if where not in each.where else each.message
            )
            for each in reason.problems
        )

    def _find(self, problems: tuple[Problem, ...]) -> None:
        self.findings = True
        self.report.add(problems)

    def _jobs_of(self, path: Path) -> Iterator[Job]:
        if path.suffix == ".json":
            self.engines_only = False
            self._artifact(path)
            return
        kind = kind_of(path)
        if kind == "engine":
            Engine.load(path)
            return
        self.engines_only = False
        self.report.specs += 1
        if kind == "model":
            yield from self._with_besides(self.job(path, load_spec(path)))
        else:
            loaded = load_format(path)
            if not loaded.file.examples:
                where = loaded.where()
                raise SpecError(
                    problem("KVL129", where, f"format '{loaded.name}' has no examples, so nothing to prove")
                )
            for index, example in enumerate(loaded.file.examples):
                yield self.job(path, spec_of_format(loaded, example, loaded.where("examples", index)))

    def job(self, path: Path, spec: Spec) -> Job:
        """The pairs to prove for a spec that is loaded; `path` is what problems call it."""
        sources = self.sources or self._default_engines(spec)
        destinations = self.destinations or self._default_engines(spec)
        return Job(path, spec, sources, destinations)

    def _with_besides(self, job: Job) -> Iterator[Job]:
        """The job, joined by the engines of `besides` that hold other pages than its own engines. Values are never
        converted, so engines of another cache dtype meet each other alone."""
        if not self.besides:
            yield job
            return

        def pages(engine: Engine) -> tuple[int, ...]:
            return tuple(id(job.spec.page(group, engine)) for group in job.spec.groups)

        planner = Planner()
        loads = [engine for engine in job.sources if self._loads(job.spec, engine, planner) is None]
        known = {pages(engine) for engine in loads}
        by_dtype: dict[str, tuple[Engine, ...]] = {"auto": job.sources}
        for engine in self.besides:
            try:
                if self._loads(job.spec, engine, planner) is not None:
                    continue
            except SpecError:
                continue  # it speaks of groups or parameters that other models have
            if engine.pp * engine.pcp * engine.dcp > 1 or pages(engine) not in known:
                by_dtype[engine.kv_dtype] = (*by_dtype.get(engine.kv_dtype, ()), engine)
        for engines in by_dtype.values():
            yield replace(job, sources=engines, destinations=engines)

    def _default_engines(self, spec: Spec) -> tuple[Engine, ...]:
        engines: list[Engine] = []
        for tp in self.tp or spec.tp or DEFAULT_TP:
            heads, tokens = Engine(tp=tp, order="LBHNC"), Engine(tp=tp, order="LBNHC")
            try:
                same = all(spec.page(group, heads) is spec.page(group, tokens) for group in spec.groups)
            except KvLayoutError:
                same = False  # running the job says what is wrong, and in which order
            engines += (heads,) if same else (heads, tokens)
        return tuple(engines)

    def _artifact(self, path: Path) -> None:
        verdict = check(path)
        self.report.artifacts.append(ArtifactResult(str(path), verdict.status, verdict.digest))
        if not verdict.proved:
            self._find(verdict.problems)


def _is_identity(plan: Plan) -> bool:
    """Whether every rank would only copy its own pages to themselves."""
    return (plan.src.stage_ranks, plan.src.stages) == (plan.dst.stage_ranks, plan.dst.stages) and all(
        group.src.nbytes == group.dst.nbytes
        and all(
            (piece.src_rank, piece.src_block, piece.src_offset) == (moves.rank, piece.dst_block, piece.dst_offset)
            and all(ss == ds for _, ss, ds in piece.loops)
            for moves in group.ranks
            for piece in moves.pieces
        )
        for group in plan.groups
    )


def files_of(paths: Sequence[str]) -> list[Path]:
    """The files that paths mean: files as they are, folders with every spec and artifact below them.

    Without a path, the shipped formats and models.
    """
    if not paths:
        return [path for folder in ("formats", "models") for path in sorted((specs_dir() / folder).glob("*.yaml"))]
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(each for end in ("*.yaml", "*.yml", "*.json") for each in path.rglob(end) if _is_ours(each))
        else:
            files.append(path)
    return files


def shipped_engines() -> tuple[Engine, ...]:
    """The engines of `specs/engines`."""
    return tuple(Engine.load(path) for path in sorted((specs_dir() / "engines").glob("*.yaml")))


def _is_ours(path: Path) -> bool:
    """Whether a file found in a folder is a spec or an artifact, and not an index, a table or a schema beside them."""
    if path.name in ("index.json", "kv_dtypes.yaml", "families.yaml") or not path.is_file():
        return False
    if path.suffix == ".json":
        with path.open("rb") as file:
            return b'"$schema"' not in file.read(4096)
    return True


def kind_of(path: Path) -> str:
    """`format`, `model` or `engine`, by the key that only such a file has. Raises SpecError."""
    source = read_source(path)
    kinds = [kind for kind in ("format", "model", "engine") if kind in source.data]
    if len(kinds) != 1:
        raise SpecError(
            problem(
                "KVL014",
                source.where(()),
                "what kind of file this is cannot be told",
                expected="one of the keys format, model, engine",
                got=", ".join(kinds) or None,
            )
        )
    return kinds[0]
