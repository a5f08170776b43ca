"""Multi-step predictions of a world model: errors of rollouts, and whole episodes."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.prediction import APART

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions, WorldModel


HORIZONS = (1, 5, 20, 100)
"""Default numbers of steps after which errors are measured."""

TOO_SLOW = Failure(kind="timeout_wall", message="the rollouts exceeded the time limit")


class Rollout(NamedTuple):
    """The mean error after a number of steps, None if the model failed before."""

    steps: int
    error: float | None


def rollouts(
    model: "WorldModel",
    dataset: Dataset,
    count: int,
    horizons: Sequence[int] = HORIZONS,
    *,
    seed: int = 0,
    seconds: float = math.inf,
) -> list[Rollout]:
    """Return the open-loop error of a world model after each of `horizons` steps.

    A rollout begins at a recorded observation; then the model gets its own predictions and the
    recorded actions. The error after k steps is the mean, over rollouts and components of the
    observation, of |predicted - recorded| divided by the component's standard deviation in the
    dataset: 0 is perfect, and about 1 is as wrong as a constant prediction of the mean. Components
    that are not real numbers count 1 if they differ. Stochastic models predict the most likely
    outcome.

    The first rollout of each episode begins at its start, further ones begin anywhere in it. A
    rollout whose recording ends before k steps does not count for k.

    Rollouts that begin near each other are in separate batches. Otherwise a program could read the
    outcome of one rollout from the start of another.

    Args:
        model: The world model.
        dataset: The recorded episodes.
        count: Maximal number of rollouts.
        horizons: Numbers of steps after which the error is measured.
        seed: Seed of the starts and of the model.
        seconds: Time limit.

    Returns:
        Horizons that a rollout reaches, with their errors. An error is None if the model failed,
        predicted a value that is not finite, or exceeded the time limit.
    """
    remaining = remaining_steps(dataset)
    starts = _choose_starts(dataset, count, np.random.default_rng([seed, count]))
    reached = [steps for steps in sorted(horizons) if (remaining[starts] >= steps).any()]
    deadline = time.monotonic() + seconds

    def predict(rows: Dataset) -> "Predictions":
        found = model.predict(rows, seed=seed)
        in_time = time.monotonic() <= deadline
        return found if in_time else replace(found, columns={}, failure=TOO_SLOW)

    batches = _separate(dataset, starts)
    if model.remembers:
        measured = [
            _unroll_with_memory(model, dataset, batch, remaining[batch], reached, deadline)
            for batch in batches
        ]
    else:
        measured = [
            _unroll(predict, dataset, batch, remaining[batch], reached) for batch in batches
        ]
    found = []
    for steps in reached:
        parts = [errors[steps] for errors in measured if steps in errors]
        known = [part for part in parts if part is not None]
        # a batch that failed has no errors, so that the mean over all rollouts is unknown
        error = float(np.concatenate(known).mean()) if len(known) == len(parts) else np.nan
        found.append(Rollout(steps, error if np.isfinite(error) else None))
    return found


def _unroll(
    predict: Callable[[Dataset], "Predictions"],
    dataset: Dataset,
    starts: np.ndarray,
    remaining: np.ndarray,
    horizons: Sequence[int],
) -> dict[int, np.ndarray | None]:
    """Return errors (rollouts, components) at each reached horizon, None after a failure."""
    reached = [steps for steps in horizons if (remaining >= steps).any()]
    errors: dict[int, np.ndarray | None] = dict.fromkeys(reached)
    columns = dataset[starts].select("observations")
    for step in range(1, max(reached, default=0) + 1):
        alive = remaining >= step
        starts, remaining = starts[alive], remaining[alive]
        rows = dataset[starts + step - 1]
        own = {name: column[alive] for name, column in columns.items()}
        found = predict(replace(rows, columns=rows.columns | own))
        if found.failure is not None:
            break
        likeliest = found.likeliest()
        if step in errors:
            errors[step] = _errors(likeliest, rows, dataset)
        columns = {
            leaf.name: likeliest[f"next_{leaf.name}"]
            for leaf in dataset.observation_space.leaves("observations")
        }
    return errors


def _unroll_with_memory(
    model: "WorldModel",
    dataset: Dataset,
    starts: np.ndarray,
    remaining: np.ndarray,
    horizons: Sequence[int],
    deadline: float,
) -> dict[int, np.ndarray | None]:
    """Return the errors of `_unroll` for a model that gets the history before each start."""
    reached = [steps for steps in horizons if (remaining >= steps).any()]
    errors: dict[int, np.ndarray | None] = dict.fromkeys(reached)
    ends = starts + np.minimum(remaining, max(reached, default=0))
    plans = [
        [dataset.row(row).action for row in range(start, end)]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    predicted = list[list[Any]]()
    for observations in model.unroll([_history(dataset, row) for row in starts], plans, dataset):
        predicted.append(observations)
        if time.monotonic() > deadline:
            break
    if len(predicted) < len(starts):
        return errors
    for steps in reached:
        alive = np.flatnonzero(remaining >= steps)
        last = [predicted[place][steps - 1] for place in alive]
        columns = dataset.observation_space.pack("next_observations", last)
        errors[steps] = _errors(columns, dataset[starts[alive] + steps - 1], dataset)
    return errors


def _history(dataset: Dataset, start: int) -> EpisodeHistory:
    """Return the history of an episode before a row."""
    episodes = dataset.columns["episodes"]
    # The last earlier row of another episode is right before this one.
    others = np.flatnonzero(episodes[:start] != episodes[start])
    first = int(others[-1]) + 1 if len(others) else 0
    before = [dataset.row(row) for row in range(first, start)]
    return EpisodeHistory(
        (*(row.observation for row in before), dataset.row(start).observation),
        tuple(row.action for row in before),
        tuple(float(row.reward) for row in before),
    )


def _separate(dataset: Dataset, starts: np.ndarray) -> list[np.ndarray]:
    """Split starts into batches; starts in one episode are at least `APART` steps apart."""
    episodes, batches = dataset.columns["episodes"], list[list[int]]()
    for start in starts.tolist():

        def is_near(other: int, start: int = start) -> bool:
            return episodes[other] == episodes[start] and abs(other - start) < APART

        batch = next((each for each in batches if not any(map(is_near, each))), None)
        if batch is None:
            batches.append([start])
        else:
            batch.append(start)
    return [np.array(batch) for batch in batches]


def remaining_steps(dataset: Dataset) -> np.ndarray:
    """Return for each row the number of consecutive recorded steps from it, including itself."""
    episodes = dataset.columns["episodes"]
    follows = episodes[1:] == episodes[:-1]
    for name, column in dataset.select("observations").items():
        same = column[1:] == dataset.columns[f"next_{name}"][:-1]
        follows &= same.reshape(len(same), -1).all(axis=1)
    # backwards, so that the count of the next row is known
    remaining = np.ones(len(dataset), dtype=np.int64)
    for row in np.flatnonzero(follows)[::-1]:
        remaining[row] += remaining[row + 1]
    return remaining


def _choose_starts(dataset: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose distinct rows, as evenly over the episodes as possible, first rows first."""
    episodes = dataset.columns["episodes"]
    queues = []
    for episode in rng.permutation(np.unique(episodes)):
        first, *others = np.flatnonzero(episodes == episode)
        queues.append([first, *rng.permutation(others)])
    # The first rows of all episodes are the first turn, the second rows the next one.
    turns = [(turn, row) for queue in queues for turn, row in enumerate(queue)]
    turns.sort(key=lambda choice: choice[0])
    return np.array([row for _, row in turns[:count]], dtype=np.int64)


def _errors(predictions: Columns, rows: Dataset, dataset: Dataset) -> np.ndarray:
    """Return the errors of predictions (rows, components)."""
    parts = []
    for name, space in dataset.observation_space.leaves("next_observations"):
        predicted, recorded = predictions[name], rows.columns[name]
        if space.is_float:
            spread = dataset.columns[name].astype(np.float64).std(axis=0)
            with np.errstate(invalid="ignore", over="ignore"):
                part = np.abs(predicted - recorded.astype(np.float64))
                part = part / np.where(spread > 0, spread, 1.0)
        else:
            part = (predicted != recorded).astype(np.float64)
        parts.append(part.reshape(len(recorded), space.size))
    return np.concatenate(parts, axis=1)


class FollowedEpisode(NamedTuple):
    """A recorded episode, and the predictions of a model from its first observation and actions.

    `rows` are the recorded steps. The model predicts `draws` episodes in parallel: `columns`
    (steps, draws, ...) have the observations after each step (`observations`, named as in a
    dataset), `rewards` and `ends`. If the model fails before the recording ends, `failure` has the
    reason, and there are fewer steps than rows.
    """

    rows: Dataset
    draws: int
    columns: Columns
    failure: str = ""

    @property
    def steps(self) -> int:
        """Number of steps that the model predicted."""
        return len(self.columns["rewards"])

    @property
    def alive(self) -> np.ndarray:
        """Mask (steps, draws): whether the model's episode had not ended before the step."""
        ended = np.cumsum(self.columns["ends"], axis=0) - self.columns["ends"]
        return np.asarray(ended == 0)


def trajectories(
    model: "WorldModel",
    dataset: Dataset,
    count: int,
    *,
    known: Dataset,
    draws: int = 1,
    seconds: float = math.inf,
) -> list[FollowedEpisode]:
    """Predict up to 100 steps of up to `count` recorded episodes, spread evenly over a dataset.

    The model gets the first observation of an episode, and then only the recorded actions, one
    after the other.

    Args:
        model: The world model.
        dataset: The recorded episodes.
        count: Largest number of episodes.
        known: Rows that the model may see whole, such as the fitted rows. Faster forms of a program
            have to agree with the program on them.
        draws: Number of episodes to predict in parallel from each recorded one.
        seconds: Time limit for all episodes together. The model gets no actions after it.
    """
    episodes = dataset.columns["episodes"]
    firsts = np.sort(np.unique(episodes, return_index=True)[1])
    chosen = np.unique(np.linspace(0, len(firsts) - 1, min(count, len(firsts))).astype(int))
    remaining, deadline = remaining_steps(dataset), time.monotonic() + seconds
    found = list[FollowedEpisode]()
    for first in firsts[chosen].tolist():
        if time.monotonic() > deadline:
            break
        rows = dataset[np.arange(first, first + min(int(remaining[first]), 100))]
        found.append(_follow(model, rows, known, draws, deadline))
    return found


def _follow(
    model: "WorldModel", rows: Dataset, known: Dataset, draws: int, deadline: float
) -> FollowedEpisode:
    start = EpisodeHistory((rows.row(0).observation,), (), ())
    names = [leaf.name for leaf in rows.observation_space.leaves("observations")]
    steps, failure = list[Columns](), ""
    try:
        with closing(model.imagine([start] * draws, known)) as episodes:
            for step in range(len(rows)):
                if time.monotonic() > deadline:
                    failure = "it took too long"
                    break
                actions = rows[np.full(draws, step)].select("actions")
                after = episodes.step(actions)
                columns = {name: np.array(after.observations[name]) for name in names}
                steps.append(columns | {"rewards": after.rewards, "ends": after.terminated})
    except CwmError as error:
        failure = str(error)
    # Columns of an episode that failed before its first step have the axis of steps as well.
    empty = {name: rows.columns[name][:0][:, None] for name in names}
    empty |= {"rewards": np.zeros((0, draws)), "ends": np.zeros((0, draws), np.bool_)}
    columns = (
        {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else empty
    )
    return FollowedEpisode(rows, draws, columns, failure)
