"""The transitions to explain, as plain arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space

Array = np.ndarray


class Remembered(NamedTuple):
    """A hidden component: its name, and the error of its estimated values."""

    name: str
    noise: float


@dataclass(frozen=True)
class Samples:
    """Rows of a dataset whose observations are one box of real numbers.

    `grain` is the relative rounding of stored observations. `learn` is the mask of the rows for
    fitting equations; the other `smooth` rows check the equations. The observation after a terminal
    row has no consequences, so only rules for the end and the reward use terminal rows.
    """

    before: Array
    after: Array
    actions: Array
    rewards: Array
    terminated: Array
    learn: Array
    low: Array
    high: Array
    grain: float
    shape: tuple[int, ...]
    action_space: Space
    remembered: Mapping[int, Remembered] = field(default_factory=dict)
    """Hidden components, by index."""

    @classmethod
    def of(cls, data: Dataset, held_back: Array) -> Self:
        """Flatten the columns of a dataset; `held_back` is the mask of the held-out rows."""
        space, count = data.observation_space, len(data)
        stored = data.columns["observations"]
        return cls(
            before=stored.reshape(count, -1).astype(float),
            after=data.columns["next_observations"].reshape(count, -1).astype(float),
            actions=data.columns["actions"].reshape(count, -1).astype(float),
            rewards=data.columns["rewards"].astype(float),
            terminated=data.columns["terminations"],
            learn=~held_back,
            low=np.array(space.low),
            high=np.array(space.high),
            grain=float(np.finfo(stored.dtype).eps) / 2,
            shape=space.shape,
            action_space=data.action_space,
        )

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def smooth(self) -> Array:
        """Mask of the rows that are not terminal."""
        return ~self.terminated
