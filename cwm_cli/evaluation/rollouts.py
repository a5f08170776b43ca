"""A world model on its own predictions: its mean error after some steps, and whole episodes."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Leaf
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.prediction import APART

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions, WorldModel


HORIZONS = (1, 5, 20, 100)

TOO_SLOW = Failure(kind="timeout_wall", message="the rollouts exceeded the time limit")


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
    seconds: float = math.inf,
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
    left out. Of what chance decides the likeliest comes about. The error is None from where a
    program raised on its own predictions, or predicted something that is not finite, or had
    taken `seconds`.

    Rollouts that begin near each other are never asked for together: the start of one would
    tell where another one that began before it should be.
    """
    lasting = lasting_steps(dataset)
    starts = _starts(dataset, count, np.random.default_rng([seed, count]))
    reached = [steps for steps in sorted(horizons) if (lasting[starts] >= steps).any()]
    deadline = time.monotonic() + seconds

    def predict(asked: Dataset) -> "Predictions":
        found = model.predict(asked, seed=seed)
        in_time = time.monotonic() <= deadline
        return found if in_time else replace(found, columns={}, failure=TOO_SLOW)

    waves = _waves(dataset, starts)
    if model.remembers:
        lived = [
            _unrolled(model, dataset, wave, lasting[wave], reached, deadline) for wave in waves
        ]
    else:
        lived = [_lived(predict, dataset, wave, lasting[wave], reached) for wave in waves]
    parts = {steps: [errors[steps] for errors in lived if steps in errors] for steps in reached}
    return [Rollout(steps, _mean(errors)) for steps, errors in parts.items()]


def _lived(
    predict: Callable[[Dataset], "Predictions"],
    dataset: Dataset,
    starts: np.ndarray,
    lasting: np.ndarray,
    horizons: Sequence[int],
) -> dict[int, np.ndarray | None]:
    """Return the errors of rollouts at each horizon that one reaches, None once they broke."""
    reached = [steps for steps in horizons if (lasting >= steps).any()]
    errors: dict[int, np.ndarray | None] = dict.fromkeys(reached)
    columns = dataset[starts].select("observations")
    for step in range(1, max(reached, default=0) + 1):
        alive = lasting >= step
        starts, lasting = starts[alive], lasting[alive]
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


def _unrolled(
    model: "WorldModel",
    dataset: Dataset,
    starts: np.ndarray,
    lasting: np.ndarray,
    horizons: Sequence[int],
    deadline: float,
) -> dict[int, np.ndarray | None]:
    """Do the same with a model that remembers: it knows what happened up to each start."""
    reached = [steps for steps in horizons if (lasting >= steps).any()]
    errors: dict[int, np.ndarray | None] = dict.fromkeys(reached)
    ends = starts + np.minimum(lasting, max(reached, default=0))
    plans = [
        [dataset.row(row).action for row in range(start, end)]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    walks = list[list[Any]]()
    for seen in model.unroll([_history(dataset, start) for start in starts], plans, dataset):
        walks.append(seen)
        if time.monotonic() > deadline:
            break
    if len(walks) < len(starts):
        return errors
    for steps in reached:
        alive = np.flatnonzero(lasting >= steps)
        seen = [walks[place][steps - 1] for place in alive]
        columns = dataset.observation_space.pack("next_observations", seen)
        errors[steps] = _errors(columns, dataset[starts[alive] + steps - 1], dataset)
    return errors


def _history(dataset: Dataset, start: int) -> EpisodeHistory:
    """Return what happened in an episode before a row."""
    episodes = dataset.columns["episodes"]
    others = np.flatnonzero(episodes[:start] != episodes[start])
    first = int(others[-1]) + 1 if len(others) else 0
    before = [dataset.row(row) for row in range(first, start)]
    return EpisodeHistory(
        (*(row.observation for row in before), dataset.row(start).observation),
        tuple(row.action for row in before),
        tuple(float(row.reward) for row in before),
    )


def _waves(dataset: Dataset, starts: np.ndarray) -> list[np.ndarray]:
    """Split starts so that in one part those of an episode lie `APART` steps from each other."""
    episodes, waves = dataset.columns["episodes"], list[list[int]]()
    for start in starts.tolist():

        def is_near(other: int, start: int = start) -> bool:
            return episodes[other] == episodes[start] and abs(other - start) < APART

        free = (wave for wave in waves if not any(map(is_near, wave)))
        wave = next(free, None)
        if wave is None:
            waves.append([start])
        else:
            wave.append(start)
    return [np.array(wave) for wave in waves]


def lasting_steps(dataset: Dataset) -> np.ndarray:
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


def _mean(errors: Sequence[np.ndarray | None]) -> float | None:
    """Return the mean of errors, None when it is not finite or some are not known."""
    known = [each for each in errors if each is not None]
    error = float(np.concatenate(known).mean()) if len(known) == len(errors) else np.nan
    return error if np.isfinite(error) else None


def _errors(predictions: Columns, rows: Dataset, dataset: Dataset) -> np.ndarray:
    """Return the error of each component of predictions, one line per row."""
    leaves = list(dataset.observation_space.leaves("next_observations"))
    errors = [
        _deviations(leaf, predictions[leaf.name], rows.columns[leaf.name], dataset)
        for leaf in leaves
    ]
    return np.concatenate(errors, axis=1)


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


STEPS = 100
"""Steps of an episode that are followed at most."""

TOO_LONG = "it took too long"


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
        """How many steps the model took."""
        return len(self.columns["rewards"])

    @property
    def alive(self) -> np.ndarray:
        """Mask (steps, draws): whether the model's episode had not ended before the step."""
        ended = np.cumsum(self.columns["ends"], axis=0) - self.columns["ends"]
        mask: np.ndarray = ended == 0
        return mask


def trajectories(
    model: "WorldModel",
    dataset: Dataset,
    count: int,
    *,
    known: Dataset,
    draws: int = 1,
    seconds: float = math.inf,
) -> list[FollowedEpisode]:
    """Predict up to `count` recorded episodes of a dataset, spread evenly over it.

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
    lasting, deadline = lasting_steps(dataset), time.monotonic() + seconds
    found = list[FollowedEpisode]()
    for first in firsts[chosen].tolist():
        if time.monotonic() > deadline:
            break
        rows = dataset[np.arange(first, first + min(int(lasting[first]), STEPS))]
        found.append(_followed(model, rows, known, draws, deadline))
    return found


def _followed(
    model: "WorldModel", rows: Dataset, known: Dataset, draws: int, deadline: float
) -> FollowedEpisode:
    """Follow one episode."""
    start = EpisodeHistory((rows.row(0).observation,), (), ())
    names = [leaf.name for leaf in rows.observation_space.leaves("observations")]
    steps, failure = list[Columns](), ""
    try:
        with closing(model.imagine([start] * draws, known)) as episodes:
            for step in range(len(rows)):
                if time.monotonic() > deadline:
                    failure = TOO_LONG
                    break
                actions = rows[np.full(draws, step)].select("actions")
                after = episodes.step(actions)
                seen = {name: np.array(after.observations[name]) for name in names}
                steps.append(seen | {"rewards": after.rewards, "ends": after.terminated})
    except CwmError as error:
        failure = str(error)
    empty = {name: rows.columns[name][:0][:, None] for name in names}
    empty |= {"rewards": np.zeros((0, draws)), "ends": np.zeros((0, draws), np.bool_)}
    columns = (
        {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else empty
    )
    return FollowedEpisode(rows, draws, columns, failure)
