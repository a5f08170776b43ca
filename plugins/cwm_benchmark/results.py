"""The results of a benchmark: a row for each job, and means over groups of jobs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer

from cwm_benchmark.best_known import best_known
from cwm_benchmark.configuration import BenchmarkTask, Trial
from cwm_benchmark.folder import AUTOMATIC, BenchmarkFolder, TaskRecord
from cwm_cli.commands.episodes import Episode
from cwm_cli.commands.sides import (
    BaselineName,
    Mean,
    Side,
    SideName,
    better_baseline,
    mean_of,
    relative_return,
)
from cwm_cli.evaluation import Score
from cwm_cli.runs.searches import JournalTail
from cwm_cli.runs.storage import named

NOTHING = "no completion fits into the limit: raise --max-cost"

ALL = "all"

Number = TypeVar("Number", int, float)

Estimated = Annotated[Mean, PlainSerializer(Mean._asdict)]
"""A mean of episodes, an object in JSON."""


class KnownReturn(BaseModel):
    """The best known return of an environment, and its source."""

    model_config = ConfigDict(frozen=True)

    value: float
    source: str


class PlayOutcome(BaseModel):
    """Returns of planning in a program; standard errors are over episodes.

    R compares with `baseline`, the better one of `random` actions and `idle` (doing nothing);
    `R_random` compares with random actions, as publications do. `R_stderr` is the standard error
    of a ratio of means over episodes with the same starts, to first order. `best_known` is None
    if no return is known for these episodes. `unverified` episodes count in no mean. A `refuted`
    program predicted most steps wrongly: its returns are no evidence. `reason` is the reason for
    a missing oracle.
    """

    model_config = ConfigDict(frozen=True)

    episodes: int
    returns: Estimated
    random: Estimated
    idle: Estimated | None = None
    oracle: Estimated | None = None
    best_known: KnownReturn | None = None
    baseline: BaselineName = "random"
    R: float | None = None
    R_random: float | None = None
    R_stderr: float | None = None
    planner: str | None
    oracle_planner: str | None = None
    decisions: int
    failures: int
    unverified: int = 0
    refuted: bool = False
    reason: str | None = None


class TrialRow(BaseModel):
    """A job: its search, how it ended, and the scores of its best program.

    A program that fails when it is scored has the score 0. A process that was lost or failed and
    started again does not count in the resource figures.

    Attributes:
        train_rows: Number of train rows that `--rows` gave the job.
        settled: Whether the search stopped because the score did not improve (`patience`).
        reason: Why the job failed (it has no score then), or why a finished job has no play.
        failure: Error of the best program if no program of the job runs.
        original: Score of the program that the backend started from.
        peak_memory: Highest memory of one of its processes in bytes, without sandboxes. One process
            searches, one plays.
        cpu_seconds: Processor time of both processes with their sandboxes.
        place: Machine that searched, if known.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    environment: str
    group: str | None = None
    strategy: str
    model: str
    backend: str
    seed: int
    train_rows: int | None = None
    run: str
    state: Literal["finished", "failed", "unfinished"]
    reason: str | None = None
    failure: str | None = None
    solved: bool | None = None
    settled: bool | None = None
    budget: int
    completions: int = 0
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    train: Score | None = None
    test: Score | None = None
    ceiling: dict[str, Score | None] | None = None
    original: Score | None = None
    play: PlayOutcome | None = None
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    place: str = ""


class GroupMean(BaseModel):
    """A mean over environments of means over their seeds.

    The standard error is over environments, or over the seeds of a single environment.
    """

    model_config = ConfigDict(frozen=True)

    mean: float
    stderr: float | None
    environments: int
    values: int

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]]) -> "GroupMean | None":
        """Return the mean of the values of each environment, None without values."""
        means = [mean_of(some).mean for some in values.values() if some]
        if not means:
            return None
        every = [value for some in values.values() for value in some]
        mean, error = mean_of(means if len(means) > 1 else every)
        return cls(mean=mean, stderr=error, environments=len(means), values=len(every))


class TrialGroup(BaseModel):
    """A group of jobs. Jobs without a score are counted, but left out of the means.

    Attributes:
        group: A kind of environments, "all", or the id of a single environment.
        means: Means by split and part, such as `test_accuracy`, and of R and R_random. Rows with
            null are left out.
        tokens: Total tokens, null if one number is unknown.
        cost: Total cost in US dollars, null if one cost is unknown.
    """

    model_config = ConfigDict(frozen=True)

    group: str
    strategy: str
    model: str
    train_rows: int | None = None
    over: str
    seeds: str
    jobs: int
    finished: int
    failed: int
    solved: int
    environments: list[str]
    means: dict[str, GroupMean | None]
    completions: int
    tokens: int | None
    cost: float | None
    seconds: float


def rows_of(run: BenchmarkFolder) -> list[TrialRow]:
    """Return a row for every job in any state."""
    ended = run.last_records()
    failures = {task: record.reason for task, record in ended.items() if record.reason is not None}
    return [_row(run, trial, failures, ended) for trial in run.config.trials]


def _row(
    run: BenchmarkFolder,
    trial: Trial,
    failures: Mapping[str, str],
    ended: Mapping[str, TaskRecord],
) -> TrialRow:
    """Return the row of a job."""
    result, environment = run.trial_result(trial), trial.environment
    prepared, ceiling = run.prepared(environment), run.ceiling_of(environment)
    original = run.program_result(environment)
    about: dict[str, Any] = {
        "job": trial.name,
        **trial._asdict(),
        "train_rows": trial.train_rows or None,
        "backend": trial.model if trial.model == run.config.baseline else run.config.backend,
        "group": prepared.group if prepared else None,
        "run": named(run.trial_folder(trial)),
        "budget": run.header.terms.budget,
        "ceiling": dict(ceiling) if ceiling else None,
        "original": original.train if original else None,
        **_process_facts(trial, ended),
    }
    if result is None or not run.is_settled(result):
        tasks = (("prepare", environment), ("write", environment), ("search", trial.name))
        keys = (BenchmarkTask(kind, name).key for kind, name in tasks)
        failed = next((failures[key] for key in keys if key in failures), None)
        about |= {"state": "failed" if failed else "unfinished", "reason": failed}
        journal = JournalTail(run.trial_folder(trial))
        journal.read()
        return TrialRow(**about, completions=journal.completions)
    if result.train is None:
        return TrialRow(**about, state="unfinished", reason=NOTHING)
    names = ("solved", "settled", "completions", "tokens", "cost", "seconds", "train", "test")
    known = {name: getattr(result, name) for name in names}
    if result.failure and result.train.accuracy == 0:
        known["failure"] = result.failure.message.splitlines()[0]
    play = _play(run, trial, failures)
    why = failures.get(BenchmarkTask("play", trial.name).key)
    missing = why if run.header.terms.plan and play is None else None
    return TrialRow(**about, **known, state="finished", reason=missing, play=play)


def _process_facts(trial: Trial, ended: Mapping[str, TaskRecord]) -> dict[str, Any]:
    """Return the memory, the processor time and the machine of a job."""
    keys = (BenchmarkTask(kind, trial.name).key for kind in ("search", "play"))
    records = [ended[key] for key in keys if key in ended]
    peaks = [record.peak_memory for record in records if record.peak_memory is not None]
    times = [record.cpu_seconds for record in records if record.cpu_seconds is not None]
    return {
        "peak_memory": max(peaks, default=None),
        "cpu_seconds": round(sum(times), 3) if times else None,
        "place": records[0].place if records else "",
    }


def _play(run: BenchmarkFolder, trial: Trial, failures: Mapping[str, str]) -> PlayOutcome | None:
    """Compare the episodes of a job with the oracle and the baselines."""
    found = run.play_of(trial) if run.header.terms.plan else None
    if found is None:
        return None
    usual = BenchmarkTask("oracle", trial.environment, AUTOMATIC)
    best = run.oracle_of(trial.environment, found.planner)
    # an oracle with longer episodes plays fewer episodes, unless their number is given
    count = min(run.wanted(each) or 0 for each in (found, best) if each)
    model = side_of(found.returns[:count], found.unverified)
    sides: dict[SideName, Side] = {"random": side_of(found.random_returns[:count])}
    if found.idle_returns:
        sides["idle"] = side_of(found.idle_returns[:count])
    baseline = better_baseline(sides)
    oracle = side_of(best.returns[:count]) if best else None
    known = best_known(trial.environment, run.config)
    R = relative_return(model, oracle, sides[baseline]) if oracle else None
    return PlayOutcome(
        episodes=count,
        returns=model.mean,
        random=sides["random"].mean,
        idle=sides["idle"].mean if "idle" in sides else None,
        oracle=oracle.mean if oracle else None,
        best_known=known and KnownReturn(value=known.value, source=known.source),
        baseline=baseline,
        R=R,
        R_random=relative_return(model, oracle, sides["random"]) if oracle else None,
        R_stderr=None
        if oracle is None or R is None
        else ratio_error(R, model, oracle, sides[baseline]),
        planner=found.planner,
        oracle_planner=best.planner if best else None,
        decisions=found.decisions,
        failures=found.failures,
        unverified=len(model.unverified),
        refuted=found.refuted,
        reason=None if best else failures.get(usual.key, "the oracle has not played yet"),
    )


def side_of(returns: Sequence[float], unverified: Sequence[int] = ()) -> Side:
    """Return episodes with these returns; the numbered `unverified` ones are not verified."""
    return Side(
        [
            Episode(number=place, returned=value, length=0, verified=place not in unverified)
            for place, value in enumerate(returns)
        ]
    )


def ratio_error(R: float, model: Side, oracle: Side, baseline: Side) -> float | None:
    """Return the standard error of R, to first order, over episodes with the same starts."""
    unverified = model.unverified
    model, oracle, baseline = (each.without(unverified) for each in (model, oracle, baseline))
    least = np.array(baseline.returns)
    gains, best = np.array(model.returns) - least, np.array(oracle.returns) - least
    errors = (gains - R * best) / best.mean()
    return mean_of(errors.tolist()).stderr


def groups_of(rows: Sequence[TrialRow]) -> list[TrialGroup]:
    """Group rows by kind of environment, and all together if there are several kinds."""
    gathered: dict[tuple[str, str, str, int | None], list[TrialRow]] = defaultdict(list)
    kinds = {row.group for row in rows if row.group}
    for row in rows:
        for kind in [row.group, *([ALL] if len(kinds) > 1 else [])]:
            if kind:
                gathered[kind, row.strategy, row.model, row.train_rows].append(row)
    keys = sorted(gathered, key=lambda key: ("discrete", "continuous", "text", ALL).index(key[0]))
    return [_group(key[0], gathered[key]) for key in keys]


def groups_by_size(rows: Sequence[TrialRow]) -> list[TrialGroup]:
    """Gather the seeds of each environment, strategy, model and number of train rows.

    The errors of the means are over seeds. Without `--rows` there are no groups.
    """
    gathered: dict[tuple[str, str, str, int], list[TrialRow]] = defaultdict(list)
    for row in rows:
        if row.train_rows:
            gathered[row.environment, row.strategy, row.model, row.train_rows].append(row)
    return [_group(key[0], own) for key, own in gathered.items()]


def _group(name: str, rows: Sequence[TrialRow]) -> TrialGroup:
    """Summarize the jobs of a group, which share strategy, model and size."""
    done = [row for row in rows if row.state == "finished"]
    means: dict[str, GroupMean | None] = {}
    for split in ("train", "test"):
        scored = [(row, getattr(row, split)) for row in done]
        for part in ("accuracy", "normalised", "exact", "paper", "floor", "skill"):
            means[f"{split}_{part}"] = _mean((row, getattr(s, part, None)) for row, s in scored)
        ceilings = ((row, (row.ceiling or {}).get(split)) for row in done)
        means[f"{split}_ceiling"] = _mean((row, s.accuracy if s else None) for row, s in ceilings)
    for ratio in ("R", "R_random"):
        means[ratio] = _mean((row, getattr(row.play, ratio, None)) for row in done)
    environments = list(dict.fromkeys(row.environment for row in done))
    seeds = _seeds(done)
    return TrialGroup(
        group=name,
        strategy=rows[0].strategy,
        model=rows[0].model,
        train_rows=rows[0].train_rows,
        over=f"{_count(str(len(environments)), 'environment')} x {_count(seeds, 'seed')}",
        seeds=seeds,
        jobs=len(rows),
        finished=len(done),
        failed=sum(row.state == "failed" for row in rows),
        solved=sum(bool(row.solved) for row in done),
        environments=environments,
        means=means,
        completions=sum(row.completions for row in done),
        tokens=_sum([row.tokens for row in done]),
        cost=_sum([row.cost for row in done]),
        seconds=sum(row.seconds or 0.0 for row in done),
    )


def _mean(known: Iterable[tuple[TrialRow, float | None]]) -> GroupMean | None:
    """Return the mean of the known values."""
    values: dict[str, list[float]] = defaultdict(list)
    for row, value in known:
        if value is not None:
            values[row.environment].append(value)
    return GroupMean.of(values)


def _seeds(rows: Iterable[TrialRow]) -> str:
    """Return the number of seeds per environment as text."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        seeds[row.environment].add(row.seed)
    counts = sorted({len(some) for some in seeds.values()}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _count(number: str, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == "1" else "s")


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum, None if a value is unknown."""
    known = [value for value in values if value is not None]
    total: Number = sum(known)
    return total if len(known) == len(values) else None
