"""Base class of the environments: it draws, advances and shows a state."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Simulator(gym.Env[Any, Any]):
    """An environment whose subclass draws, advances and shows its state."""

    @abstractmethod
    def _start(self) -> None:
        """Draw a start state with `self.np_random`."""

    @abstractmethod
    def _advance(self, action: Any) -> tuple[float, bool]:
        """Change the state by one step; return the reward and whether the episode ended."""

    @abstractmethod
    def _observe(self) -> Any:
        """Return the observation of the state."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._start()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance by one action."""
        reward, terminated = self._advance(action)
        return self._observe(), float(reward), bool(terminated), False, {}


def clamp(value: float, low: float, high: float) -> float:
    """Return the value, moved into the interval."""
    return min(max(value, low), high)


def wrap(angle: float) -> float:
    """Return the angle in [-pi, pi)."""
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def runge_kutta(slope: Callable[[Vector], Vector], state: Vector, step: float) -> Vector:
    """Return the state after one classical Runge-Kutta step of fourth order."""
    first = slope(state)
    second = slope(state + step / 2 * first)
    third = slope(state + step / 2 * second)
    fourth = slope(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)
