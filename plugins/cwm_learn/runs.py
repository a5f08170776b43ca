"""The run of `cwm learn`: its budget, its folder and its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from cwm_cli.commands.collect import find_environment
from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Space, UnfitError
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.result import Result
from cwm_cli.runs import files
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.programs import Options, ProgramRun
from cwm_cli.runs.report import RunReport, RunSummary, Section
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import DATASET, RunHeader
from cwm_learn.certificate import MEAN_EPISODES, Certificate, EpisodeRecord
from cwm_learn.questions import RecordedQuestion
from cwm_learn.records import LearnRecord, ProgramRecord, StepsTaken
from cwm_learn.report import LearnReport

if TYPE_CHECKING:
    from cwm_cli.runs.observer import Observer
    from cwm_cli.worlds.model import WorldModel

EARLIER = "earlier.npz"
"""File with rows of another environment that was learned before."""

TRAINED, TRAINER = "trained", "trainer.json"
"""Folder with a trained model, and the file in it that names the trainer."""


class Budget(NamedTuple):
    """The conditions to stop: a number of steps, seconds, a certificate, a mean return."""

    steps: int = 5000
    seconds: float | None = None
    certified: bool = True
    target: float | None = None

    def is_reached(self, episodes: Iterable[EpisodeRecord]) -> bool:
        """Return whether the mean return of the last episodes of play reaches the target."""
        played = [each.returned for each in episodes if each.is_play][-MEAN_EPISODES:]
        return (
            self.target is not None
            and len(played) == MEAN_EPISODES
            and bool(np.mean(played) >= self.target)
        )


class LearnConfig(BaseModel):
    """The choices that identify a run, without its budget.

    `begins` is the digest of the initial transitions and the initial program. `strategy` is empty
    for the default learning loop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str
    env_args: dict[str, Any] = {}
    begins: str = ""
    strategy: str = ""
    curriculum: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    goal: str = ""
    options: dict[str, dict[str, Any]] = {}
    tools: tuple[str, ...] = ()
    seed: int = 0


class LearnHeader(RunHeader[LearnConfig]):
    """The header of a run, with the description of the environment."""

    kind: str = "learn"
    description: str


class SavedModel(Protocol):
    """A trained model that a run can store."""

    def save(self, folder: Path) -> None:
        """Write the model to files in an existing folder."""


class LearnRun(ProgramRun[LearnHeader, LearnRecord]):
    """The folder of a run: the initial rows, the journal, `programs` and `best.py`."""

    kind = "learn"
    header_type = LearnHeader
    record_type = LearnRecord

    @property
    def config(self) -> LearnConfig:
        """The choices of this run."""
        return self.header.config

    @cached_property
    def initial_rows(self) -> Dataset:
        """The initial transitions, which no command changes."""
        return Dataset.load(self.folder / DATASET)

    def earlier_rows(self) -> Dataset | None:
        """Return the initial transitions of another environment, None without any."""
        file = self.folder / EARLIER
        return Dataset.load(file) if file.exists() else None

    def dataset_of(self, rows: Sequence[Transition]) -> Dataset:
        """Return transitions as a dataset with the spaces and metadata of the initial rows."""
        initial = self.initial_rows
        return Dataset.of(
            rows,
            observation_space=initial.observation_space,
            action_space=initial.action_space,
            metadata=initial.metadata,
        )

    def connected(
        self, events: Iterable[LearnRecord | RowsAdded | None]
    ) -> Iterator[LearnRecord | RowsAdded | None]:
        """Replace steps that do not have the columns of the dataset by None."""
        for event in events:
            is_damaged = isinstance(event, StepsTaken) and not self._fits(event)
            yield None if is_damaged else event

    def _fits(self, taken: StepsTaken) -> bool:
        """Return whether steps have the columns of the dataset."""
        known, found = self.initial_rows.columns, taken.columns
        lengths = {len(array) if array.ndim else -1 for array in found.values()}
        return (
            found.keys() - {VALID} == known.keys() - {VALID}
            and len(lengths) == 1
            and all(
                found[name].dtype.kind == column.dtype.kind
                and found[name].shape[1:] == column.shape[1:]
                for name, column in known.items()
                if name in found
            )
        )

    def dataset(self) -> Dataset:
        """Return all transitions: the initial ones and the steps."""
        taken = [each.columns for each in self.records() if isinstance(each, StepsTaken)]
        if not taken:
            return Dataset.load(self.folder / DATASET)  # a copy, which callers may change
        columns = {name: np.concatenate([part[name] for part in taken]) for name in taken[0]}
        own = replace(self.initial_rows, columns=columns)
        return self.initial_rows.concatenate(own) if len(self.initial_rows) else own

    def save_program(self, record: ProgramRecord, program: str) -> None:
        """Write the file of a program, before its journal line."""
        file = self.folder / record.file
        file.parent.mkdir(exist_ok=True)
        files.replace(file, program)

    def save_trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Store a trained model, for strategies that produce no program."""
        folder = self.folder / TRAINED
        folder.mkdir(exist_ok=True)
        training.save(folder)
        files.write_object(folder / TRAINER, {"trainer": trainer, "options": dict(options)})

    @property
    def has_trained(self) -> bool:
        """Whether the run has a trained model instead of a program."""
        return (self.folder / TRAINED / TRAINER).exists()

    def trusted_model(self, options: Options, observer: Observer) -> WorldModel:
        """Return the trained model."""
        folder = self.folder / TRAINED
        known = files.read_object(folder / TRAINER)
        if known is None:
            raise CwmError(f"{folder / TRAINER} is missing: restore it")
        factory = find("trainer", known["trainer"])
        factory.check()
        spec = find_environment(self.config.env)
        model: WorldModel = factory(**known["options"]).load_model(spec, self.config, folder)
        return model

    def episodes(self) -> Iterator[EpisodeRecord]:
        """Yield the finished episodes."""
        return (each for each in self.records() if isinstance(each, EpisodeRecord))

    def finished(self, budget: Budget) -> LearningResult | None:
        """Return the result if the run is finished under this budget, otherwise None."""
        found = self.result()
        if found is None:
            return None
        try:
            result = LearningResult.from_json(found, self.folder)
        except (KeyError, TypeError, ValueError):
            return None
        continues = {
            "certified": not budget.certified,
            "return": not budget.is_reached(self.episodes()),
            "steps": result.steps < budget.steps,
            "seconds": budget.seconds is None or result.seconds < budget.seconds,
        }
        return None if continues.get(result.stopped) else result

    def summary(self) -> RunSummary:
        """Return the progress and the result of the run in a line."""
        played = list(self.episodes())
        steps = played[-1].steps if played else 0
        result = self.result() or {}
        certified = result.get("certificate")
        whole = [each for each in played if not each.is_cut]
        words = f"return {whole[-1].returned:.5g}" if whole else ""
        return RunSummary(
            self.place,
            self.kind,
            environment=self.config.env,
            answers=", ".join(self.config.models),
            seed=self.config.seed,
            completions=result.get("completions"),
            done=f"{steps:,} steps",
            result=", ".join(filter(None, [words, "certified" if certified else ""])),
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[LearnRun]) -> RunReport:
        """Return the last episodes, the programs and the questions of one run."""
        run = _one_run(runs)
        about, result = run.summary(), run.result() or {}
        report = LearnReport(list(run.records()), result)
        progress = (f"seed {about.seed}", about.done, about.result)
        return RunReport(
            title=f"{about.environment} · learning, {about.run}",
            grids=[grid for grid in report.grids() if grid.cells],
            verdict=report.verdict(),
            notes=[", ".join(filter(None, progress))]
            + ([str(report.certificate)] if report.certificate else []),
            facts=about.as_json() | result,
            rows=[each.model_dump(mode="json", exclude={"kind"}) for each in report.episodes],
        )

    @classmethod
    def sections(cls, runs: Sequence[LearnRun]) -> list[Section]:
        """Return the returns, the certificate, the aims, the programs and the questions."""
        run = _one_run(runs)
        report = LearnReport(list(run.records()), run.result() or {})
        return [*report.sections(), *run.program_sections()]


def dataset_value(space: Space, value: Any) -> Any:
    """Return a copy of an observation or an action in the form of datasets.

    Raises:
        CwmError: The value is outside the space, for example NaN.
    """
    columns = space.pack("value", [value])
    try:
        for leaf in space.leaves("value"):
            leaf.space.check(columns[leaf.name])
    except UnfitError as error:
        raise CwmError(f"the environment returned an invalid value: {error.reason}") from error
    return space.unpack("value", columns, 0)


@dataclass(frozen=True)
class LearningResult(
    Result,
    shown="stopped steps episodes returns certificate gaps program completions cost seconds",
):
    """The result of `cwm learn`.

    Attributes:
        run: Folder of the run.
        program: File of the program.
        returns: For each episode the environment steps up to its end, its return and its aim.
        questions: All questions, open and answered.
        cost: Cost of the completions in US dollars, None if unknown.
        stopped: Reason to stop.
        changed: Environment steps at the last change of the program or its play.
        refits: Number of programs.
        mismatches: Number of wrong predictions by part of the transition.
        gaps: Situations that the data do not cover.
        trained: Trainer of the model, if the result is a trained model instead of a program.
        has_simulator: Whether commands such as `cwm plan` can act in the environment.
    """

    run: Path
    program: Path | None
    steps: int
    episodes: int
    returns: list[dict[str, Any]]
    certificate: Certificate | None
    questions: list[RecordedQuestion]
    completions: int
    cost: float | None
    seconds: float
    stopped: str
    changed: int = 0
    refits: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    writing_seconds: float = 0.0
    planning_seconds: float = 0.0
    gaps: tuple[str, ...] = ()
    trained: str = ""
    has_simulator: bool = True

    @classmethod
    def from_json(cls, found: Mapping[str, Any], run: Path) -> Self:
        """Return a result from the output of `as_json`."""
        program = run / "best.py" if found["program"] else None
        own = {"run": run, "program": program}
        return TypeAdapter(cls).validate_python({**found, **own})

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm learn --json`."""
        facts: dict[str, Any] = TypeAdapter(LearningResult).dump_python(self, mode="json")
        program = named(self.program) if self.program else None
        return facts | {"run": named(self.run), "program": program}


def _one_run(runs: Sequence[LearnRun]) -> LearnRun:
    if len(runs) > 1:
        raise CwmError("runs of `cwm learn` cannot be merged: report them one by one")
    return runs[0]
