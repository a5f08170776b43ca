"""Kinds of rewards in MuJoCo environments, computed for many simulations at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

View = Mapping[str, np.ndarray]
"""Arrays of `MjData` with a first axis for the simulation."""

Measure = Callable[[View], np.ndarray]
Effort = Callable[[np.ndarray], np.ndarray]
Judgement = tuple[np.ndarray, np.ndarray | None]
"""Rewards, and which simulations terminated where any can."""


class Rewards(Protocol):
    """How an environment rewards a step."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The arrays of `MjData` that are read."""

    @property
    def forces(self) -> bool:
        """Whether contact forces are among them."""

    def measure(self, view: View) -> np.ndarray:
        """Return what is compared with the next step, per simulation."""

    def judge(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> Judgement:
        """Return the rewards of a step that led to `view`."""


@dataclass(frozen=True)
class Moving:
    """Rewarded for moving forward and for being healthy, charged for effort and contact."""

    fields: tuple[str, ...]
    measure: Measure
    seconds: float
    speed_weight: float
    effort: Effort
    contact: Measure | None = None
    healthy: Measure | None = None
    health_reward: float = 0.0
    terminates: bool = False
    always_rewarded: bool = False

    @property
    def forces(self) -> bool:
        """Whether contact forces are charged."""
        return self.contact is not None

    def judge(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> Judgement:
        """Return the rewards of a step that led to `view`."""
        rewards = self.speed_weight * ((after - before) / self.seconds) - self.effort(actions)
        if self.contact:
            rewards = rewards - self.contact(view)
        if self.healthy is None:
            return rewards, None
        healthy = self.healthy(view)
        rewarded = True if self.always_rewarded else healthy
        return rewards + self.health_reward * rewarded, ~healthy if self.terminates else None


@dataclass(frozen=True)
class Reaching:
    """Charged for distances between bodies, `late` those after the step, and for effort."""

    pairs: tuple[tuple[float, int, int], ...]
    effort: Effort
    late: bool
    fields: tuple[str, ...] = ("xpos",)
    forces: bool = False

    def measure(self, view: View) -> np.ndarray:
        """Return the weighted distances."""
        places = view["xpos"]
        distances = (
            weight * np.linalg.norm(places[:, one] - places[:, other], axis=-1)
            for weight, one, other in self.pairs
        )
        return np.asarray(sum(distances))

    def judge(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> Judgement:
        """Return the rewards of a step that led to `view`."""
        return -(after if self.late else before) - self.effort(actions), None


@dataclass(frozen=True)
class Standing:
    """Rewarded by `reward`, which also tells who terminated; nothing is compared with before."""

    fields: tuple[str, ...]
    reward: Callable[[View, np.ndarray], Judgement]
    forces: bool = False

    def measure(self, view: View) -> np.ndarray:
        """Return nothing of interest, per simulation."""
        return np.zeros(len(view[self.fields[0]]))

    def judge(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> Judgement:
        """Return the rewards of a step that led to `view`."""
        return self.reward(view, actions)
