"""Compare sequence models of tokens, trained on the same rows with equal numbers of updates.

    python -m benchmarks.sequences                      # about 8 minutes
    python -m benchmarks.sequences --case ncp --seeds 1
    python -m benchmarks.sequences --table              # only print existing results

Predictions of tokens are scored on held-out rows. `imagined` is the number of imagined steps per
second, with 64 episodes at a time. `copy` is the score of predicting no change.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.parts import Figures, Part, measure_parts
from cwm_cli import train
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.registry import environment
from cwm_cli.runs.observer import SILENT
from cwm_neural.training.runs import TrainRun

ENV = "MiniGrid-Empty-5x5-v0"

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "transformer": ("transformer", {}),
    "as published, smaller": ("transformer", {"model.aligned": False, "model.whole": True}),
    "two last layers learn": ("transformer", {"model.unfrozen": 2}),
    "norms and heads learn": ("transformer", {"model.unfrozen": 0}),
    "ncp": ("ncp", {}),
    "ncp-multi": ("ncp-multi", {}),
}
"""The compared variants: the model, and options that differ from the profile `tiny`."""

UPDATES, EPISODES, IMAGINED, STEPS = 300, 64, 64, 10

COLUMNS: Mapping[str, str] = {
    "token_loss": "cross-entropy",
    "changed_accuracy": "changed tokens",
    "exact": "exact frames",
    "exact_5": "after 5 steps",
    "copy_exact": "copy",
    "parameters": "parameters",
    "update": "ms an update",
    "imagined": "imagined steps/s",
}


def measure(case: str, seed: int, folder: Path) -> Figures:
    """Train a variant for `UPDATES` updates, and measure it."""
    model, others = VARIANTS[case]
    rows = record(
        environment(ENV), policy="random", episodes=EPISODES, test_episodes=EPISODES // 4, seed=seed
    )
    options = {"model.updates": 1.0, "training.every": UPDATES, "training.tests": 0, **others}
    began = time.process_time()
    found = train(
        ENV,
        model=model,
        agent="random",
        profile="tiny",
        dataset=rows,
        steps=UPDATES,
        seed=seed,
        run=folder,
        options=options,
    )
    seconds = time.process_time() - began
    return {
        **{name: found.epochs[-1].held_out.get(name) for name in COLUMNS},
        "parameters": sum(found.parameters.values()),
        "update": 1000 * seconds / UPDATES,
        "imagined": _imagined(TrainRun.load(folder), rows.test),
    }


def _imagined(run: TrainRun, rows: Dataset) -> float:
    """Return the number of imagined steps per second."""
    model = run.trusted_model((), SILENT)
    rng = np.random.default_rng(0)
    starts = [
        EpisodeHistory((rows.row(place).observation,))
        for place in rng.integers(len(rows), size=IMAGINED)
    ]
    episodes = model.imagine(starts, rows, seed=0)
    actions = rng.integers(rows.action_space.count, size=(STEPS, IMAGINED))
    began = time.process_time()
    for done in actions:
        episodes.step({"actions": done})
    seconds = time.process_time() - began
    episodes.close()
    return STEPS * IMAGINED / seconds


def table(found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each variant: means over seeds."""
    yield f"| variant | {' | '.join(COLUMNS.values())} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for case, runs in found.items():
        means = (mean(each[name] for each in runs) for name in COLUMNS)
        yield f"| {case} | {' | '.join(f'{value:,.4g}' for value in means)} |"


PARTS = (Part(ENV, list(VARIANTS), measure, table, seeds=2, about=f"after {UPDATES} updates"),)


if __name__ == "__main__":
    measure_parts(PARTS, Path("runs/sequences"), __doc__, "benchmarks.sequences")
