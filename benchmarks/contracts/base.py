"""Base class of the environments: it separates the shown state from the hidden state."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import Simulator


class ContractSystem(Simulator):
    """A simulator that names the attributes of its state.

    All attributes named in `shown` and `hidden` hold numbers or tuples and are replaced, never
    changed in place, so that a test can save and restore the whole state. By default the
    observation is a vector of the shown attributes.
    """

    shown: ClassVar[tuple[str, ...]]
    hidden: ClassVar[tuple[str, ...]] = ()

    def _observe(self) -> Any:
        return np.array([getattr(self, name) for name in self.shown], self.observation_space.dtype)

    def place(self, observation: Any) -> None:
        """Set the shown state from an observation."""
        for name, value in zip(self.shown, observation, strict=True):
            setattr(self, name, value.item())


def box(low: Sequence[float], high: Sequence[float], dtype: type = np.float64) -> spaces.Box:
    """Return a box with these bounds."""
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


def force(size: int = 1) -> spaces.Box:
    """Return a space of actions between -1 and 1."""
    return spaces.Box(-1.0, 1.0, (size,), np.float32)
