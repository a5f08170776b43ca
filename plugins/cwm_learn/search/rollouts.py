"""Parallel steps of a model from many observations, for searches; a lane per observation."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time

import numpy as np

from cwm_cli.planning.model import Model, Unbatched

FARTHEST = 1e6
"""Largest number that a plan uses; a program that predicts larger ones has diverged."""

STRAYING = 0.1
"""Largest share of a reward that is lost outside the data, reached at one spread of the data.

No row shows what happens there, for instance whether the episode ends.
"""

LONGEST = 4.0
"""Seconds of one core that a question may take; the sandbox ends a process after ten."""

ALONE = 30
"""Cost of a step if the model has no form for many observations, relative to one lane."""


class ImaginedLanes:
    """Steps a model from many observations: arrays whose last axis is the lane.

    A lane ends without a reward if the program raises an exception or diverges in it. `work` is the
    sum of the costs of the steps.
    """

    def __init__(self, model: Model, shape: tuple[int, ...]) -> None:
        self.work, self._began = 0, process_time()
        self._model, self._shape = model, shape

    def is_over(self, most: int) -> bool:
        """Whether more than `most` work was done, or the time is over."""
        return self.work > most or process_time() - self._began > LONGEST

    def step(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations (components, lanes), rewards, ends and diverged lanes (lanes,)."""
        lanes = observations.shape[-1]
        batch = self._model.batch
        if batch is not None:
            try:
                batch.stand(observations.reshape(*self._shape, lanes))
                after, rewards, ends = batch.step(actions)
                self._model.counter[0] += lanes
                self.work += lanes
                return _sound(after.reshape(-1, lanes), rewards, ends)
            except Unbatched:
                pass
        self.work += ALONE * lanes
        return _sound(*self._alone(observations, actions))

    def _alone(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step one lane after the other."""
        lanes = observations.shape[-1]
        after, rewards = np.full(observations.shape, np.nan), np.zeros(lanes)
        ends = np.zeros(lanes, np.bool_)
        for lane in range(lanes):
            action = actions[..., lane]
            try:
                self._model.stand(observations[:, lane].reshape(self._shape))
                found = self._model.step(int(action) if action.ndim == 0 else action.copy())
            except Exception:  # noqa: BLE001, S112  # programs raise what they like
                continue
            after[:, lane] = np.ravel(found.observation)
            rewards[lane], ends[lane] = found.reward, found.terminated
        return after, rewards, ends


def _sound(
    after: np.ndarray, rewards: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Add the mask of diverged lanes, which get neither a reward nor an end."""
    with np.errstate(invalid="ignore"):
        lost = ~(np.abs(after) < FARTHEST).all(0) | ~(np.abs(rewards) < FARTHEST)
    return after, np.where(lost, 0.0, rewards), ends & ~lost, lost


def strayed(observations: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the distance of observations (components, ...) from `low` to `high`, in `spread`."""
    shape = (-1, *[1] * (observations.ndim - 1))
    low, high, spread = (arrays[name].reshape(shape) for name in ("low", "high", "spread"))
    out: np.ndarray = (np.maximum(observations - high, low - observations) / spread).max(0)
    return out


def doubted(
    rewards: np.ndarray, observations: np.ndarray, arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return rewards, reduced outside the visited range."""
    out = np.nan_to_num(np.clip(strayed(observations, arrays), 0, 1), nan=1.0)
    less: np.ndarray = rewards - STRAYING * np.abs(rewards) * out
    return less


def steps(model: Model, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outcomes of `actions` at `observations` (lanes, components)."""
    shape = tuple(arrays["shape"].tolist())
    actions = np.moveaxis(arrays["actions"], 0, -1)
    after, rewards, ends, lost = ImaginedLanes(model, shape).step(arrays["observations"].T, actions)
    return {"observations": after.T, "rewards": rewards, "ends": ends, "lost": lost}
