"""What each job of a benchmark came to, read from its folder."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer

from cwm_cli.agents.contests import Mean, Side, mean_of, relative_return
from cwm_cli.agents.episodes import Episode
from cwm_cli.bench.configuration import Header, Trial
from cwm_cli.bench.folder import Folder, Task
from cwm_cli.bench.tail import Tail
from cwm_cli.bench.tasks import AUTOMATIC, is_settled, oracle_of, play_of
from cwm_cli.evaluation import Score

NOTHING = "no completion was paid for: raise --max-cost"


Estimated = Annotated[Mean, PlainSerializer(Mean._asdict)]
"""A mean of episodes, an object in JSON."""


class Play(BaseModel):
    """What planning in a program came to; standard errors are over episodes.

    `R_stderr` is that of a ratio of means over episodes with the same starts,
    to first order. `reason` says why there is no oracle.
    """

    model_config = ConfigDict(frozen=True)

    episodes: int
    returns: Estimated
    random: Estimated
    oracle: Estimated | None = None
    R: float | None = None
    R_stderr: float | None = None
    planner: str | None
    oracle_planner: str | None = None
    decisions: int
    failures: int
    reason: str | None = None


class Row(BaseModel):
    """A job: what was searched, how it ended, and what its best program is worth.

    A program that fails when it is scored has the score 0. A job that failed
    has no score, and `reason` says why; of a finished one it says why nothing
    was played. `original` is the score of the program that a simulation breaks.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    environment: str
    group: str | None = None
    strategy: str
    model: str
    backend: str
    seed: int
    run: str
    state: Literal["finished", "failed", "unfinished"]
    reason: str | None = None
    solved: bool | None = None
    budget: int
    completions: int = 0
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    train: Score | None = None
    test: Score | None = None
    ceiling: dict[str, Score | None] | None = None
    original: Score | None = None
    play: Play | None = None


def rows_of(folder: Folder, header: Header) -> list[Row]:
    """Return a row for every job, whatever state it is in."""
    failures = folder.failures()
    return [_row(folder, header, trial, failures) for trial in header.configuration.trials]


def _row(folder: Folder, header: Header, trial: Trial, failures: Mapping[str, str]) -> Row:
    """Gather what is known of a job."""
    result, failed = folder.result(folder.run(trial)), _why(trial, failures)
    environment = folder.found(Task("prepare", trial.environment)) or {}
    about: dict[str, Any] = {
        "job": trial.name,
        **trial._asdict(),
        "backend": header.configuration.backend,
        "group": environment.get("group"),
        "run": str(folder.run(trial)),
        "budget": header.terms.budget,
        "ceiling": folder.found(Task("ceiling", trial.environment)),
        "original": _original(folder, header, trial),
    }
    if result is None or not is_settled(result, header.terms):
        tail = Tail(folder.run(trial))
        tail.read()
        about |= {"state": "failed" if failed else "unfinished", "reason": failed}
        return Row(**about, completions=tail.completions)
    if result["train"] is None:
        return Row(**about, state="failed", reason=NOTHING)
    names = ("solved", "completions", "tokens", "cost", "seconds", "train", "test")
    known = {name: result[name] for name in names}
    play = _play(folder, header, trial, failures)
    why = None if play else failures.get(Task("play", trial.name).key)
    return Row(**about, **known, state="finished", reason=why, play=play)


def _why(trial: Trial, failures: Mapping[str, str]) -> str | None:
    """Return why a search could not be made or finished."""
    steps = (
        Task("prepare", trial.environment),
        Task("write", trial.environment),
        Task("search", trial.name),
    )
    return next((failures[task.key] for task in steps if task.key in failures), None)


def _original(folder: Folder, header: Header, trial: Trial) -> Any:
    """Return the score of the program that is broken for a simulation."""
    if not header.configuration.needs_programs:
        return None
    return (folder.result(folder.program(trial.environment)) or {}).get("train")


def _play(folder: Folder, header: Header, trial: Trial, failures: Mapping[str, str]) -> Play | None:
    """Compare what was played with the oracle and with chance."""
    terms = header.terms
    found = play_of(folder, terms, trial) if terms.plan else None
    if found is None:
        return None
    count = terms.episodes
    usual = Task("oracle", trial.environment, AUTOMATIC)
    best = oracle_of(folder, terms, trial.environment, found["planner"])
    model, random = (side_of(found[name][:count]) for name in ("returns", "random_returns"))
    oracle = side_of(best["returns"][:count]) if best else None
    R = relative_return(model, oracle, random) if oracle else None
    return Play(
        episodes=count,
        returns=model.mean,
        random=random.mean,
        oracle=oracle.mean if oracle else None,
        R=R,
        R_stderr=None if oracle is None or R is None else ratio_error(R, model, oracle, random),
        planner=found["planner"],
        oracle_planner=best["planner"] if best else None,
        decisions=found["decisions"],
        failures=found["failures"],
        reason=None if best else failures.get(usual.key, "the oracle has not played yet"),
    )


def side_of(returns: Sequence[float]) -> Side:
    """Return episodes of which only the returns are known."""
    numbered = enumerate(returns)
    return Side([Episode(number=place, returned=value, length=0) for place, value in numbered])


def ratio_error(R: float, model: Side, oracle: Side, random: Side) -> float | None:
    """Return the standard error of R, to first order, over episodes with the same starts."""
    chance = np.array(random.returns)
    gains, best = np.array(model.returns) - chance, np.array(oracle.returns) - chance
    errors = (gains - R * best) / best.mean()
    return mean_of(errors.tolist()).stderr
