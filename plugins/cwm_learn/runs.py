"""The run of learning: every row as it came, every program, every episode, every question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from cwm_cli.commands.collect import find_environment
from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.result import Result
from cwm_cli.runs import files
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.observer import Measures
from cwm_cli.runs.programs import Options, ProgramRun
from cwm_cli.runs.report import (
    ChartLine,
    Grid,
    LineChart,
    RunReport,
    RunSummary,
    Section,
    cumulative,
    table,
    with_effort,
)
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import DATASET, RunHeader
from cwm_cli.search.contracts import Usage
from cwm_learn.actors.base import PLAY_AIMS
from cwm_learn.certificate import Certificate, EpisodeRecord
from cwm_learn.questions import RecordedQuestion

if TYPE_CHECKING:
    from cwm_cli.runs.observer import Observer
    from cwm_cli.worlds.model import WorldModel

EARLIER = "earlier.npz"
"""The file with rows of another environment that was learned before."""

TRAINED, TRAINER = "trained", "trainer.json"
"""The folder with a model that was trained, and the file in it that says by what."""

PROGRAMS = "programs"
"""The folder with every program that was acted on."""


RECENT = 10
"""Episodes of play whose mean has to reach the return at which learning is to stop."""


class Budget(NamedTuple):
    """How long learning goes on: steps, seconds, and until when, if not only until they are spent.

    It stops when it is `certified`, or when its play returns `target` on the mean.
    """

    steps: int = 5000
    seconds: float | None = None
    certified: bool = True
    target: float | None = None

    def is_reached(self, episodes: Iterable[EpisodeRecord]) -> bool:
        """Return whether the mean return of the last episodes of play reaches the target."""
        played = [each.returned for each in episodes if each.is_play][-RECENT:]
        return (
            self.target is not None
            and len(played) == RECENT
            and bool(np.mean(played) >= self.target)
        )


class LearnConfig(BaseModel):
    """The choices that make learning what it is.

    `begins` is the digest of the transitions that it began with, and of the program; `strategy` is
    empty for the usual loop. How long it goes on, and until when, is no part of it.
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
    """What learning begins with: the description of the environment."""

    kind: str = "learn"
    description: str


class StoredColumn(BaseModel):
    """A column of rows as JSON holds it."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    dtype: str
    values: list[Any]

    @classmethod
    def of(cls, column: np.ndarray) -> Self:
        """Store a column."""
        return cls(dtype=column.dtype.str, values=column.tolist())

    def array(self) -> np.ndarray:
        """Return the column."""
        return np.array(self.values, dtype=np.dtype(self.dtype))


class StepsTaken(BaseModel):
    """A line of the journal: steps one after the other, as the columns of a dataset."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["steps"] = "steps"
    columns: dict[str, StoredColumn]

    @classmethod
    def of(cls, rows: Dataset) -> Self:
        """Store some rows."""
        return cls(columns={name: StoredColumn.of(each) for name, each in rows.columns.items()})

    def arrays(self) -> Columns:
        """Return the columns."""
        return {name: column.array() for name, column in self.columns.items()}


class SavedModel(Protocol):
    """A trained model that a learning run keeps."""

    def save(self, folder: Path) -> None:
        """Write it to files in a folder that exists."""


class ProgramRecord(BaseModel):
    """A line of the journal: a program that was acted on from then on, written from `rows` rows.

    `origin` says who wrote it, `unexplained` how many rows no rule of it gives, and `seconds` how
    long it took.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["program"] = "program"
    number: int
    steps: int
    rows: int
    origin: str
    lines: int
    unexplained: int = 0
    wrong: int = 0
    seconds: float = 0.0
    completions: int = 0
    cost: float | None = 0.0

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        names = ("lines", "unexplained", "wrong", "completions", "cost", "seconds")
        return Measures(self.steps, {f"program/{name}": getattr(self, name) for name in names})

    @property
    def file(self) -> str:
        """Where it is in the folder of the run."""
        return f"{PROGRAMS}/{self.number:04}.py"


class WritingRecord(BaseModel):
    """A line of the journal: the result of writing a program, so that it is not computed again.

    Attributes:
        origin: Who wrote the program.
        rules: The program without recorded transitions; None if it is the program before.
        looks_up: Whether the program looks up the rows that its rules do not predict.
        unexplained: Numbers of the rows that the rules predict wrongly.
        wrong: Numbers of the rows that the whole program predicts wrongly.
        usage: Tokens and money of the language model.
        in_vain: Number of rows at the last attempt that did not help, by who made the attempt.
        induced: Whether a program was induced from the rows.
        completions: Completions of the language model.
        spent: US dollars that the completions cost.
        seconds: Duration.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["writing"] = "writing"
    origin: str
    rules: str | None
    looks_up: bool
    unexplained: tuple[int, ...]
    wrong: tuple[int, ...]
    usage: Usage
    in_vain: dict[str, int]
    induced: bool
    completions: int
    spent: float
    seconds: float


class ComparisonRecord(BaseModel):
    """A line of the journal: other programs that replay every row, to compare predictions."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["comparison"] = "comparison"
    programs: tuple[str, ...]


LearnRecord = (
    StepsTaken
    | EpisodeRecord
    | ProgramRecord
    | WritingRecord
    | ComparisonRecord
    | RecordedQuestion
    | Certificate
)
"""A line of the journal."""


class LearnRun(ProgramRun[LearnHeader, LearnRecord]):
    """The folder of learning: the rows it began with, a journal, `programs` and `best.py`."""

    kind = "learn"
    header_type = LearnHeader
    record_type = LearnRecord

    @property
    def config(self) -> LearnConfig:
        """The choices of this run."""
        return self.header.config

    def began(self) -> Dataset:
        """Return the transitions that it began with."""
        return Dataset.load(self.folder / DATASET)

    def earlier(self) -> Dataset | None:
        """Return the transitions of another environment that it began with, if there are some."""
        file = self.folder / EARLIER
        return Dataset.load(file) if file.exists() else None

    def connected(
        self, events: Iterable[LearnRecord | RowsAdded | None]
    ) -> Iterator[LearnRecord | RowsAdded | None]:
        """Replace steps that do not have the columns of the dataset by None."""
        for event in events:
            is_damaged = isinstance(event, StepsTaken) and not self._fits(event)
            yield None if is_damaged else event

    def _fits(self, taken: StepsTaken) -> bool:
        """Return whether steps have the columns of the dataset."""
        known = self._first_rows.columns
        try:
            arrays = taken.arrays()
        except (TypeError, ValueError, OverflowError):
            return False
        lengths = {len(array) if array.ndim else -1 for array in arrays.values()}
        return (
            arrays.keys() - {VALID} == known.keys() - {VALID}
            and len(lengths) == 1
            and all(
                arrays[name].dtype.kind == column.dtype.kind
                and arrays[name].shape[1:] == column.shape[1:]
                for name, column in known.items()
                if name in arrays
            )
        )

    @cached_property
    def _first_rows(self) -> Dataset:
        """The transitions that it began with, which no command changes."""
        return self.began()

    def rows_of(self, taken: StepsTaken) -> Dataset:
        """Return the transitions of a line of the journal."""
        return replace(self._first_rows, columns=taken.arrays())

    def dataset(self) -> Dataset:
        """Return all transitions: those that it began with, and those of its own steps."""
        dataset = self.began()
        taken = [each.arrays() for each in self.records() if isinstance(each, StepsTaken)]
        if not taken:
            return dataset
        columns = {n: np.concatenate([part[n] for part in taken]) for n in taken[0]}
        own = Dataset(columns, dataset.observation_space, dataset.action_space, dataset.metadata)
        return dataset.concatenate(own) if len(dataset) else own

    def save_program(self, record: ProgramRecord, program: str) -> None:
        """Write the file of a program, which precedes its line of the journal."""
        file = self.folder / record.file
        file.parent.mkdir(exist_ok=True)
        files.replace(file, program)

    def program(self, record: ProgramRecord) -> str:
        """Return the text of a program that was acted on."""
        try:
            return read_text(self.folder / record.file)
        except UnreadableError as error:
            raise UnreadableError(error.file, error.reason, "restore it") from error

    def keep_trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Keep a model that was trained instead of a program."""
        folder = self.folder / TRAINED
        folder.mkdir(exist_ok=True)
        training.save(folder)
        files.write_object(folder / TRAINER, {"trainer": trainer, "options": dict(options)})

    @property
    def has_trained(self) -> bool:
        """Whether it came to a model that was trained."""
        return (self.folder / TRAINED / TRAINER).exists()

    def trusted_model(self, options: Options, observer: Observer) -> WorldModel:
        """Return the model that was trained."""
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
        """Yield the episodes that are over."""
        return (each for each in self.records() if isinstance(each, EpisodeRecord))

    def finished(self, budget: Budget) -> LearningResult | None:
        """Return the result if the run is finished under this budget, else None."""
        found = self.result()
        if found is None:
            return None
        try:
            result = LearningResult.from_json(found, self.folder)
        except (KeyError, TypeError, ValueError):
            return None
        match result.stopped:
            case "certified":
                goes_on = not budget.certified
            case "return":
                goes_on = not budget.is_reached(self.episodes())
            case "steps":
                goes_on = result.steps < budget.steps
            case "seconds":
                goes_on = budget.seconds is None or result.seconds < budget.seconds
            case _:
                goes_on = False
        return None if goes_on else result

    def summary(self) -> RunSummary:
        """Say how far it is, and what came of it."""
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
        """Return how learning went: its last episodes, its programs, its questions."""
        if len(runs) > 1:
            raise CwmError("runs of `cwm learn` cannot be merged: report them one by one")
        run = runs[0]
        about, records = run.summary(), list(run.records())
        questions = {each.key: each for each in records if isinstance(each, RecordedQuestion)}
        programs = [each for each in records if isinstance(each, ProgramRecord)]
        certified = [each for each in records if isinstance(each, Certificate)]
        return RunReport(
            title=f"{about.environment} · learning, {about.run}",
            grids=[grid for grid in _grids(run, programs, list(questions.values())) if grid.cells],
            verdict=_verdict(run, certified),
            notes=[
                ", ".join(filter(None, (f"seed {about.seed}", about.done, about.result))),
                *(str(each) for each in certified[-1:]),
            ],
            facts=about.as_json() | (run.result() or {}),
            rows=[each.model_dump(mode="json", exclude={"kind"}) for each in run.episodes()],
        )

    @classmethod
    def sections(cls, runs: Sequence[LearnRun]) -> list[Section]:
        """Return the curve of learning, what is certified, aims, questions, and programs."""
        if len(runs) > 1:
            raise CwmError("runs of `cwm learn` cannot be merged: report them one by one")
        run, records = runs[0], list(runs[0].records())
        return [*_sections(records), *run.program_sections()]


@dataclass(frozen=True)
class LearningResult(
    Result,
    shown="stopped steps episodes returns certificate gaps program completions cost seconds",
):
    """What came of learning.

    `run` is its folder and `program` the file of the program; `stopped` says why it ended.
    `returns` has every episode: steps in the environment up to its end, its return, and what it was
    played for. `changed` is the number of steps after which nothing changed any more. `refits`
    counts the programs, `writing_seconds` is the time that they took, `planning_seconds` that of
    deciding. `cost` is in US dollars, None where it is unknown. `trained` names what trained
    the model, where it is no program. `has_simulator` is False if no command can act in the
    environment.
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
        """Return the result that `as_json` wrote for a run folder."""
        facts = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        certified = found["certificate"]
        return cls(
            **facts
            | {
                "run": run,
                "program": run / "best.py" if found["program"] else None,
                "certificate": certified and Certificate.model_validate(certified),
                "questions": [RecordedQuestion.model_validate(each) for each in found["questions"]],
                "gaps": tuple(found.get("gaps", ())),
            }
        )

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm learn --json` prints."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        certificate = self.certificate.model_dump(mode="json") if self.certificate else None
        return facts | {
            "run": named(self.run),
            "program": named(self.program) if self.program else None,
            "certificate": certificate,
            "questions": [each.model_dump(mode="json") for each in self.questions],
            "gaps": list(self.gaps),
        }


def _verdict(run: LearnRun, certified: Sequence[Certificate]) -> str:
    """Return whether the play is certified and its mean return, with the steps and the cost."""
    result, episodes = run.result() or {}, list(run.episodes())
    played = [each.returned for each in episodes if each.is_play][-RECENT:]
    outcome = "Certified" if certified else "Not certified"
    if played:
        outcome += f": mean return {np.mean(played):.5g}, last {len(played)} episodes of play"
    return with_effort(
        outcome,
        steps=episodes[-1].steps if episodes else None,
        completions=result.get("completions"),
        cost=result.get("cost", 0.0),
        seconds=result.get("seconds"),
    )


def _sections(records: Sequence[LearnRecord]) -> Iterator[Section]:
    """Yield the sections of the page from the records of a learning run."""
    episodes = [each for each in records if isinstance(each, EpisodeRecord)]
    programs = [each for each in records if isinstance(each, ProgramRecord)]
    questions = {each.key: each for each in records if isinstance(each, RecordedQuestion)}
    certified = [each for each in records if isinstance(each, Certificate)]
    if episodes:
        about = "Without an episode that the end of the budget cut off."
        yield Section("chart", "Return of each episode", return_curve(episodes), about)
    if certified:
        untried = [f"Not covered, never tried: {each}" for each in certified[-1].untried]
        lines = [str(certified[-1]), *untried]
    else:
        lines = ["Not certified: predictions did not agree with the environment for long enough."]
    yield Section("notes", "Certificate", {"lines": lines})
    if episodes:
        yield Section("panels", "Steps and mismatches", {"sections": list(_step_panels(episodes))})
    if programs:
        heads = ["program", "by", "steps", "rows", "lines", "unexplained", "wrong", "seconds"]
        rows = (
            [str(p.number), p.origin, p.steps, p.rows, p.lines, p.unexplained, p.wrong, p.seconds]
            for p in programs
        )
        yield Section("table", "Programs over time", table(heads, rows, words=2, filters=(1,)))
    if len(programs) > 1:
        yield Section("panels", "", {"sections": list(_program_panels(programs))})
    if questions:
        asked = sorted(questions.values(), key=lambda each: (each.state != "open", -each.weight))
        told = (
            [each.state, each.text, each.answer, each.source, each.asked, each.weight]
            for each in asked
        )
        heads = ["state", "question", "answer", "asked by", "asked at step", "weight"]
        count = sum(each.state == "open" for each in asked)
        about = f"{count} open, {len(asked) - count} answered; sorted by their weight in plans."
        data = table(heads, told, words=4, filters=(0, 3))
        yield Section("table", "Questions", data, about)


def return_curve(episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return the chart of the returns: episodes of play, and episodes of exploration."""
    whole = [each for each in episodes if not each.is_cut]
    kinds = {
        "play": ([each for each in whole if each.aim in PLAY_AIMS], 0),
        "exploration": ([each for each in whole if each.aim not in PLAY_AIMS], 1),
    }
    lines = [
        ChartLine(
            name,
            [each.steps for each in some],
            [each.returned for each in some],
            loose=tone == 1,
            tone=tone,
            tips=[f"episode {each.number}: {each.aim}, {each.length} steps" for each in some],
        )
        for name, (some, tone) in kinds.items()
        if some
    ]
    return LineChart("steps of the environment", "return", lines).data()


def _step_panels(episodes: Sequence[EpisodeRecord]) -> Iterator[list[Any]]:
    """Yield charts of the steps by aim and of the mismatches, cumulative over the steps."""
    places = [0, *(each.steps for each in episodes)]
    aims = dict.fromkeys(aim for each in episodes for aim in each.aims)
    lines = [
        ChartLine(aim, places, cumulative(each.aims.get(aim, 0) for each in episodes))
        for aim in aims
    ]
    yield ["Steps by aim", "chart", LineChart("steps", "cumulative steps", lines).data()]
    wrong = cumulative(each.mismatched for each in episodes)
    line = ChartLine("", places, wrong, tone="bad")
    drawn = LineChart("steps", "cumulative mismatches", [line], staircase=True).data()
    yield ["Wrong predictions", "chart", drawn]


def _program_panels(programs: Sequence[ProgramRecord]) -> Iterator[list[Any]]:
    """Yield charts of the length of the programs and of the rows they do not explain."""
    measures = {"lines": "lines of the program", "unexplained": "unexplained rows"}
    for name, words in measures.items():
        line = ChartLine.of("", [(each.steps, getattr(each, name)) for each in programs])
        yield ["", "chart", LineChart("steps", words, [line], staircase=True).data()]


MOST_TOLD = 12
"""Lines of a table at most: the last ones."""


def _grids(
    run: LearnRun, programs: Sequence[ProgramRecord], questions: Sequence[RecordedQuestion]
) -> Iterator[Grid]:
    """Yield the tables of a run: episodes, programs, questions."""
    played = list(run.episodes())[-MOST_TOLD:]
    yield Grid(
        "last episodes",
        ["episode", "aim", "steps", "return", "promised", "mismatches"],
        [
            [
                str(each.number),
                each.aim,
                f"{each.steps:,}",
                f"{each.returned:.5g}",
                "" if each.promised is None else f"{each.promised:.5g}",
                str(each.mismatched),
            ]
            for each in played
        ],
        2,
    )
    yield Grid(
        "last programs",
        ["program", "by", "steps", "rows", "lines", "unexplained"],
        [
            [
                str(p.number),
                p.origin,
                f"{p.steps:,}",
                f"{p.rows:,}",
                str(p.lines),
                str(p.unexplained),
            ]
            for p in programs[-MOST_TOLD:]
        ],
        2,
    )
    yield Grid(
        "questions",
        ["question", "answer"],
        [[each.text, each.answer or "open"] for each in questions[-MOST_TOLD:]],
        2,
    )
