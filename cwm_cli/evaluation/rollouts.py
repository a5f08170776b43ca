"""How far a world model drifts from the recording when it lives on its own predictions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Leaf

if TYPE_CHECKING:
    from cwm_cli.worlds import WorldModel

HORIZONS = (1, 5, 20, 100)


class Rollout(NamedTuple):
    """The mean error after a number of steps; None where the model broke down before."""

    steps: int
    error: float | None


def rollouts(
    model: "WorldModel",
    dataset: Dataset,
    count: int,
    horizons: Sequence[int] = HORIZONS,
    *,
    seed: int = 0,
) -> list[Rollout]:
    """Return the open-loop error of a world model after each of `horizons` steps.

    A rollout begins at a recorded observation; the model then gets its own
    predictions and the recorded actions. The error after k steps is the mean,
    over rollouts and components of the observation, of |predicted - recorded|
    divided by the component's standard deviation in the dataset: 0 is perfect,
    about 1 is as wrong as guessing the mean. Components that are not real
    numbers count 1 when they differ. The first rollout of each episode begins
    at its start, further ones anywhere in it; a rollout whose recording ends
    before k steps does not count for k, and a horizon that none reaches is
    left out. The error is None from where a program raised on its own
    predictions, or predicted something that is not finite.
    """
    lasting = _lasting(dataset)
    starts = _starts(dataset, count, np.random.default_rng([seed, count]))
    reached = [steps for steps in sorted(horizons) if (lasting[starts] >= steps).any()]
    errors: dict[int, float | None] = dict.fromkeys(reached)
    columns = dataset[starts].select("observations")
    for step in range(1, max(reached, default=0) + 1):
        alive = lasting[starts] >= step
        starts, columns = starts[alive], {name: column[alive] for name, column in columns.items()}
        rows = dataset[starts + step - 1]
        asked = replace(rows, columns=rows.columns | columns)
        found = model.predict(asked, seed=seed)
        if found.failure is not None:
            break
        if step in errors:
            errors[step] = _error(found.columns, rows, dataset)
        columns = {
            leaf.name: found.columns[f"next_{leaf.name}"]
            for leaf in dataset.observation_space.leaves("observations")
        }
    return [Rollout(steps, error) for steps, error in errors.items()]


def _lasting(dataset: Dataset) -> np.ndarray:
    """Return for each row how many recorded steps follow on from it, itself included."""
    episodes = dataset.columns["episodes"]
    follows = episodes[1:] == episodes[:-1]
    for name, column in dataset.select("observations").items():
        same = column[1:] == dataset.columns[f"next_{name}"][:-1]
        follows &= same.reshape(len(same), -1).all(axis=1)
    lasting = np.ones(len(dataset), dtype=np.int64)
    for row in np.flatnonzero(follows)[::-1]:
        lasting[row] += lasting[row + 1]
    return lasting


def _starts(dataset: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose distinct rows, as evenly over the episodes as can be."""
    episodes = dataset.columns["episodes"]
    queues = []
    for episode in rng.permutation(np.unique(episodes)):
        first, *others = np.flatnonzero(episodes == episode)
        queues.append([first, *rng.permutation(others)])
    turns = [(turn, row) for queue in queues for turn, row in enumerate(queue)]
    turns.sort(key=lambda choice: choice[0])
    return np.array([row for _, row in turns[:count]], dtype=np.int64)


def _error(predictions: Columns, rows: Dataset, dataset: Dataset) -> float | None:
    """Return the mean error of predictions, None when it is not finite."""
    leaves = list(dataset.observation_space.leaves("next_observations"))
    errors = [
        _deviations(leaf, predictions[leaf.name], rows.columns[leaf.name], dataset)
        for leaf in leaves
    ]
    error = float(np.concatenate(errors, axis=1).mean())
    return error if np.isfinite(error) else None


def _deviations(
    leaf: Leaf, predicted: np.ndarray, recorded: np.ndarray, dataset: Dataset
) -> np.ndarray:
    """Return the error of each component of a leaf, one line per row."""
    shape = (len(recorded), leaf.space.size)
    if not leaf.space.is_float:
        different: np.ndarray = predicted != recorded
        return different.astype(np.float64).reshape(shape)
    spread = dataset.columns[leaf.name].astype(np.float64).std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        errors: np.ndarray = np.abs(predicted - recorded.astype(np.float64)) / spread
    return errors.reshape(shape)
