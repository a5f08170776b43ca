"""Parallel steps of a model from many observations; each observation has its own lane."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time

import numpy as np

from cwm_cli.planning.model import Model, Unbatched

DIVERGED = 1e6
"""A program has diverged if it predicts a number of at least this size."""


MIN_BATCH_COST, MAX_SINGLE_LANES = 200, 8
"""Minimum cost of a batch of steps, relative to one lane, and the largest number of lanes that step
one by one instead, which is faster: a batch of one lane took 20 times as long as a single step."""


class LaneSimulator:
    """Steps a model from many observations: arrays whose last axis is the lane.

    A lane ends without a reward if the program raises an exception or diverges in it. `work` is the
    sum of the costs of the steps, and `lanes` is the number of steps.
    """

    def __init__(self, model: Model, shape: tuple[int, ...]) -> None:
        self.work, self.lanes, self._started = 0, 0, process_time()
        self._model, self._shape = model, shape

    def is_exhausted(self, budget: int) -> bool:
        """Return whether `work` exceeds the budget, or the time is over."""
        # Seconds of one core that a call may take; the sandbox ends a process after 30. The budget,
        # which does not depend on the load of the machine, is spent in about four seconds.
        max_seconds = 12.0
        return self.work > budget or process_time() - self._started > max_seconds

    def step(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations (components, lanes), rewards, ends and diverged lanes (lanes,)."""
        self.lanes += observations.shape[-1]
        found = self._step_batch(observations, actions)
        after, rewards, ends = found or self._step_one_by_one(observations, actions)
        with np.errstate(invalid="ignore"):
            diverged = ~(np.abs(after) < DIVERGED).all(0) | ~(np.abs(rewards) < DIVERGED)
        return after, np.where(diverged, 0.0, rewards), ends & ~diverged, diverged

    def _step_batch(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        batch, lanes = self._model.batch, observations.shape[-1]
        if batch is None or lanes <= MAX_SINGLE_LANES:
            return None
        try:
            batch.stand(observations.reshape(*self._shape, lanes))
            after, rewards, ends = batch.step(actions)
        except Unbatched:
            return None
        self._model.counter[0] += lanes
        self.work += max(lanes, MIN_BATCH_COST)
        return after.reshape(-1, lanes), rewards, ends

    def _step_one_by_one(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        lanes = observations.shape[-1]
        # cost of a step if the model has no form for many observations, relative to one lane
        unbatched_cost = 30
        self.work += unbatched_cost * lanes
        after, rewards = np.full(observations.shape, np.nan), np.zeros(lanes)
        ends = np.zeros(lanes, np.bool_)
        for lane in range(lanes):
            action = actions[..., lane]
            try:
                self._model.stand(observations[:, lane].reshape(self._shape))
                found = self._model.step(int(action) if action.ndim == 0 else action.copy())
            except Exception:  # noqa: BLE001, S112  # a program may raise any exception
                continue
            after[:, lane] = np.ravel(found.observation)
            rewards[lane], ends[lane] = found.reward, found.terminated
        return after, rewards, ends


def distance_to_data(observations: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the distance of observations (components, ...) from `low` to `high`, in `spread`."""
    shape = (-1, *[1] * (observations.ndim - 1))
    low, high, spread = (arrays[name].reshape(shape) for name in ("low", "high", "spread"))
    distance: np.ndarray = (np.maximum(observations - high, low - observations) / spread).max(0)
    return distance


def discount_outside_data(
    rewards: np.ndarray, observations: np.ndarray, arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return rewards, reduced outside the visited range."""
    distance = np.nan_to_num(np.clip(distance_to_data(observations, arrays), 0, 1), nan=1.0)
    # Largest share of a reward that is lost outside the data, reached at one spread of the data. No
    # row shows the outcomes there, for instance whether the episode ends.
    reward_loss_outside = 0.1
    reduced: np.ndarray = rewards - reward_loss_outside * np.abs(rewards) * distance
    return reduced


def predict_steps(model: Model, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outcomes of `actions` at `observations` (lanes, components)."""
    simulator = LaneSimulator(model, tuple(arrays["shape"].tolist()))
    actions = np.moveaxis(arrays["actions"], 0, -1)
    after, rewards, ends, diverged = simulator.step(arrays["observations"].T, actions)
    return {"observations": after.T, "rewards": rewards, "ends": ends, "diverged": diverged}
