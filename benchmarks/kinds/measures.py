"""How each kind is made from some rows, and what is measured of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

import cwm_cli as cwm
from benchmarks.parts import Figures, Job
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.text import UNKNOWN
from cwm_cli.views.curves import Chart, Series

ENVIRONMENTS: Mapping[str, str] = {
    "CartPole-v1": "cart_pole.py",
    "MiniGrid-DoorKey-5x5-v0": "",
    "FrozenLake-v1": "",
}
"""Where kinds are compared, and the program of `recalled` where there is one."""

ARGS: Mapping[str, Mapping[str, Any]] = {"FrozenLake-v1": {"is_slippery": False}}

SIZES = (100, 300, 1000, 3000, 10_000)

KINDS: Mapping[str, Mapping[str, Any]] = {
    "induction": {},
    "recalled": {},
    "ensemble": {"model": "ensemble", "profile": "small"},
    "transformer": {"model": "transformer", "tokenizer": "grid", "profile": "tiny"},
}
"""What is compared: programs found by induction; a program that a language model once wrote from
memory, recorded, which no rows make better; and what `cwm train` takes for what it trains."""

HELD_OUT = 1000
"""Held-out rows at least."""

LEAST_WORTH = 3000
"""Steps that training is worth at least: few rows are gone through as often as many."""

ROLLOUTS, HORIZON = 50, 5
"""Rollouts on held-out rows, and after how many steps their error is told."""

EPISODES, MOST_STEPS = 5, 100
"""Episodes that are planned, and their most steps: plans in networks take long."""

RECALLED = Path(__file__).parent.parent / "recalled"


class Made(NamedTuple):
    """What was made: what names it to others, its size, and the seconds it took."""

    subject: Mapping[str, Any]
    size: int
    seconds: float


def measured(env: str) -> Callable[[str, int, Path], Figures]:
    """Return what makes a kind of model of an environment from so many rows, and measures it."""

    def measure(case: str, seed: int, folder: Path) -> Figures:
        kind, size = case.split()
        rows = _rows(env, seed, int(size), folder.parent / f"{env}-{seed}.npz")
        made = _made(env, kind, rows, seed, folder)
        found = cwm.evaluate(
            made.subject.get("run") or made.subject["program"],
            env=made.subject.get("env"),
            env_args=made.subject.get("env_args"),
            dataset=rows,
            split="test",
            rollout_count=ROLLOUTS,
            seed=seed,
        )
        played = cwm.plan(
            **made.subject,
            dataset=rows if "program" in made.subject else None,
            folder=folder / "plans",
            **_played(seed),
        )
        assert found.scores.test is not None
        errors = {each.steps: each.error for each in found.rollouts}
        return {
            "exact": found.scores.test.exact,
            "observation": found.scores.test.observation,
            "error": errors.get(HORIZON),
            "return": mean(played.side.returns),
            "oracle": _oracle(env, seed, folder.parent / f"{env}-{seed}-oracle"),
            "random": mean(played.sides["random"].returns),
            "seconds": made.seconds,
            "size": made.size,
        }

    return measure


def _played(seed: int) -> dict[str, Any]:
    """Return which episodes are planned."""
    return {"episodes": EPISODES, "max_steps": MOST_STEPS, "seed": seed}


@cache
def _oracle(env: str, seed: int, folder: Path) -> float:
    """Return what plans in the environment itself come to; they are written down, and kept."""
    args = dict(ARGS.get(env, {}))
    found = cwm.plan(env=env, env_args=args, real_env=True, folder=folder, **_played(seed))
    return mean(found.side.returns)


def _rows(env: str, seed: int, size: int, file: Path) -> Dataset:
    """Return the first train rows of a recording that is kept, and all that are held out."""
    if not file.exists():
        args = {"episodes": 10, "test_episodes": 10, "min_rows": max(SIZES)}
        found = record(
            environment(env),
            env_args=ARGS.get(env, {}),
            policy="curated",
            min_test_rows=HELD_OUT,
            seed=seed,
            max_steps=MOST_STEPS,
            **args,
        )
        found.save(file)
    rows = Dataset.load(file)
    train = np.flatnonzero(rows.columns["split"] == 0)[:size]
    return rows[np.sort(np.concatenate([train, np.flatnonzero(rows.columns["split"] == 1)]))]


def _made(env: str, kind: str, rows: Dataset, seed: int, folder: Path) -> Made:
    """Make a model, or continue to where it was stopped."""
    began = time.monotonic()
    if kind == "recalled":
        if not (name := ENVIRONMENTS[env]):
            raise CwmError("there is no recorded program")
        text = (RECALLED / name).read_text(encoding="utf-8")
        args = dict(ARGS.get(env, {}))
        return Made({"program": RECALLED / name, "env": env, "env_args": args}, _lines(text), 0.0)
    if kind == "induction":
        result = cwm.synthesize(env, dataset=rows, backend="induction", seed=seed, run=folder)
        if result.program is None:
            raise CwmError("no program was found")
        text = result.program.read_text(encoding="utf-8")
        return Made({"run": folder}, _lines(text), result.seconds)
    trained = cwm.train(
        env,
        dataset=rows,
        steps=max(LEAST_WORTH, len(rows.train)),
        run=folder,
        seed=seed,
        agent="planner",
        options={"training.tests": 0},
        **KINDS[kind],
    )
    seconds = trained.seconds or time.monotonic() - began
    return Made({"run": folder}, sum(trained.parameters.values()), seconds)


def _lines(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


COLUMNS: Mapping[str, str] = {
    "exact": "exact rows",
    "observation": "of what is observed",
    "error": f"error after {HORIZON}",
    "return": "return",
    "seconds": "seconds",
    "size": "lines or parameters",
}


def table(found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each kind and number of rows: means over seeds, and who there is beside."""
    heads = "".join(f"{head:>21s}" for head in COLUMNS.values())
    yield f"{'kind':12s}{'rows':>8s}{heads}"
    for case, runs in found.items():
        kind, rows = case.split()
        cells = (_mean(runs, name) for name in COLUMNS)
        told = (UNKNOWN if value is None else f"{value:,.4g}" for value in cells)
        yield f"{kind:12s}{rows:>8s}" + "".join(f"{cell:>21s}" for cell in told)
    every = [each for runs in found.values() for each in runs]
    for name in ("oracle", "random"):
        if (value := _mean(every, name)) is not None:
            yield f"return of {name}: {value:.4g}"


def _mean(runs: Sequence[Figures], name: str) -> float | None:
    values = [each[name] for each in runs if each.get(name) is not None]
    return mean(values) if values else None


def drawn(env: str, found: Mapping[Job, Figures]) -> str:
    """Draw the share of rows that each kind has exactly, and "" where nothing was measured."""
    series = []
    for kind in KINDS:
        points = []
        for size in SIZES:
            own = [
                each["exact"]
                for job, each in found.items()
                if (job.part, job.case) == (env, f"{kind} {size}")
            ]
            points += [(size, own)] if own else []
        if points:
            sizes = [float(size) for size, _ in points]
            means = [mean(own) for _, own in points]
            band = [min(own) for _, own in points], [max(own) for _, own in points]
            series.append(Series(kind, sizes, means, band))
    if not series:
        return ""
    label = "held-out rows predicted exactly, between seeds"
    return Chart.of(env, "transitions", label, series, logarithmic=True).svg()
