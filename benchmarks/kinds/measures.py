"""Make a model of each kind from some rows, and measure its predictions and its plans."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

import cwm_cli as cwm
from benchmarks.parts import Figures
from cwm_cli.commands.collect import default_dataset
from cwm_cli.commands.episodes import play
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import Setting
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment

ENVIRONMENTS: Mapping[str, str] = {
    "CartPole-v1": "cart_pole.py",
    "MountainCar-v0": "mountain_car.py",
    "Pendulum-v1": "pendulum.py",
    "Acrobot-v1": "acrobot.py",
    "FrozenLake-v1": "",
    "CliffWalking-v1": "",
    "Taxi-v4": "",
}
"""The environments, each with its program in `benchmarks/recalled`, or ""."""

ARGS: Mapping[str, Mapping[str, Any]] = {"FrozenLake-v1": {"is_slippery": False}}

SIZES = (100, 1000, 10_000)
"""Numbers of train rows; each smaller set is the beginning of the larger one."""

ORACLE, RECALLED, INDUCTION = "oracle", "recalled", "induction"

TRAINED: Mapping[str, Mapping[str, Any]] = {
    "ensemble": {"model": "ensemble", "agent": "planner", "steps": 1000},
    "dreamer": {"model": "dreamer", "steps": 2000},
    "transformer": {
        "model": "transformer",
        "tokenizer": "grid",
        "profile": "tiny",
        "agent": "planner",
        "steps": 2000,
    },
    "cql": {"agent": "cql", "steps": 1000},
}
"""Arguments of `cwm train`.

The number of updates follows from `steps`: 5,000 of an ensemble, 500 of DreamerV3, 1,000 of a
transformer and 1,000 of CQL. It does not depend on the number of rows, so that a curve over rows
shows the effect of the data alone.
"""

OWN_AGENT = ("dreamer", "cql")
"""Kinds that play with a trained agent; the other kinds play by planning."""

ROLLOUTS, HORIZON = 50, 5
"""Rollouts from held-out rows, and the number of steps after which their error is measured."""

EPISODES, MAX_STEPS, PLAY_SEED = 3, 200, 200
"""Number, maximum length and seed of the episodes, which are the same for all models."""

LIMIT_SECONDS = 600
"""Limit of the processor time of a case: training, evaluation and play, without sandboxes."""

RECALLED_PROGRAMS = Path(__file__).parent.parent / "recalled"


class MadeModel(NamedTuple):
    """A model: its arguments for `cwm.plan`, its lines or parameters, and the seconds it took."""

    subject: Mapping[str, Any]
    size: int
    seconds: float


class TimeLimit(BaseException):
    """The time limit of a case is reached; no handler of ordinary errors catches this."""


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` in the main thread after `seconds` of processor time of this process.

    A busy machine therefore does not change which cases finish.
    """

    def stop(*_: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def cases_of() -> list[str]:
    """Return the cases of an environment: a kind and a number of rows."""
    return [f"{kind} {rows}" for kind in (INDUCTION, *TRAINED) for rows in SIZES]


def references() -> list[str]:
    """Return the cases that do not depend on rows: an environment, and "oracle" or "recalled"."""
    recalled = [f"{env} {RECALLED}" for env, program in ENVIRONMENTS.items() if program]
    return [*(f"{env} {ORACLE}" for env in ENVIRONMENTS), *recalled]


def measure_case(env: str) -> Callable[[str, int, Path], Figures]:
    """Return the function that measures a case of an environment, or a reference ("").

    Its figures are the share of held-out rows that are predicted exactly (`exact`) and whose
    observation is (`observation`), the error after `HORIZON` steps, the mean returns of planned
    and of random actions, the seconds to make the model, its lines or parameters (`size`), and the
    cores and load of the machine. A figure that a kind does not have is missing. A case that
    reaches the time limit has only `limit`, in seconds of processor time.
    """

    def measure(case: str, seed: int, folder: Path) -> Figures:
        first, second = case.split()
        try:
            with limit_seconds(LIMIT_SECONDS):
                if env:
                    found = _measure(env, first, int(second), seed, folder)
                else:
                    found = _measure(first, second, max(SIZES), seed, folder)
        except TimeLimit:
            found = {"limit": LIMIT_SECONDS}
        return found | {"machine": f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}"}

    return measure


def _measure(env: str, kind: str, size: int, seed: int, folder: Path) -> Figures:
    """Measure a kind without a time limit."""
    if kind == ORACLE:
        return _play(folder, env=env, env_args=dict(ARGS.get(env, {})), real_env=True)
    rows = _rows(env, seed, size)
    made = _make_model(env, kind, rows, seed, folder)
    figures: Figures = {"seconds": made.seconds, "size": made.size}
    if kind != "cql":
        figures |= _score(made, rows, seed)
    if kind in OWN_AGENT:
        return figures | {"return": _agent_return(env, folder)}
    rows_of_program = {"dataset": rows} if "program" in made.subject else {}
    return figures | _play(folder / "plans", **made.subject, **rows_of_program)


def _score(made: MadeModel, rows: Dataset, seed: int) -> Figures:
    """Score the predictions of a model on held-out rows."""
    found = cwm.evaluate(
        made.subject.get("run") or made.subject["program"],
        env=made.subject.get("env"),
        env_args=made.subject.get("env_args"),
        dataset=rows,
        split="test",
        rollout_count=ROLLOUTS,
        seed=seed,
    )
    assert found.scores.test is not None
    errors = {each.steps: each.error for each in found.rollouts}
    return {
        "exact": found.scores.test.exact,
        "observation": found.scores.test.observation,
        "error": errors.get(HORIZON),
    }


def _play(folder: Path, **subject: Any) -> Figures:
    """Plan in a model or in the environment itself, and play random actions."""
    played = cwm.plan(
        **subject,
        folder=folder,
        episodes=EPISODES,
        max_steps=MAX_STEPS,
        seed=PLAY_SEED,
        options={"planning.stop": False},  # also the returns of bad models are compared
    )
    random = mean(played.sides["random"].returns)
    return {"return": mean(played.side.returns), "random": random}


def _agent_return(env: str, folder: Path) -> float:
    """Return the mean return of a trained agent, in the episodes that the planners play."""
    from cwm_neural.training.runs import TrainRun

    task = Setting(env, dict(ARGS.get(env, {})), PLAY_SEED, MAX_STEPS).task(environment(env))
    session = TrainRun.load(folder).agent().open(task, greedy=True, seed=PLAY_SEED)
    with closing(session):
        steps = play(task, range(EPISODES), session)
        return mean(each.episode.returned for step in steps for each in step.finished)


def _rows(env: str, seed: int, size: int) -> Dataset:
    """Return as many train rows, and the held-out rows that all seeds share.

    The train rows are the curated episodes of `cwm synthesize` in random order, then random
    episodes, since curated ones take long to record.
    """
    spec, args = environment(env), ARGS.get(env, {})
    file, _ = default_dataset(spec, env_args=args)
    curated = Dataset.load(file)
    train, rng = curated.train, np.random.default_rng(seed)
    order = rng.permutation(np.unique(train.columns["episodes"]))
    by_episode = [np.flatnonzero(train.columns["episodes"] == episode) for episode in order]
    random = record(
        spec,
        env_args=args,
        policy="random",
        episodes=1,
        test_episodes=1,
        min_rows=max(0, size - len(train)),
        seed=seed,
        max_steps=MAX_STEPS,
    ).train
    random.columns["episodes"] = random.columns["episodes"] + curated.columns["episodes"].max() + 1
    shuffled = train[np.concatenate(by_episode)]
    return shuffled.concatenate(random, curated.test).first_train_rows(size)


def _make_model(env: str, kind: str, rows: Dataset, seed: int, folder: Path) -> MadeModel:
    """Make a model from rows, or continue an interrupted run."""
    began = time.monotonic()
    if kind == RECALLED:
        program = RECALLED_PROGRAMS / ENVIRONMENTS[env]
        subject = {"program": program, "env": env, "env_args": dict(ARGS.get(env, {}))}
        return MadeModel(subject, _lines(program), 0.0)
    if kind == INDUCTION:
        result = cwm.synthesize(env, dataset=rows, backend="induction", seed=seed, run=folder)
        if result.program is None:
            raise CwmError("no program was found")
        return MadeModel({"run": folder}, _lines(result.program), result.seconds)
    trained = cwm.train(
        env, dataset=rows, run=folder, seed=seed, options={"training.tests": 0}, **TRAINED[kind]
    )
    seconds = trained.seconds or time.monotonic() - began
    return MadeModel({"run": folder}, sum(trained.parameters.values()), seconds)


def _lines(program: Path) -> int:
    return sum(bool(line.strip()) for line in program.read_text(encoding="utf-8").splitlines())
