"""The cross-entropy method, for continuous actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.planning.model import Model


class Effort(NamedTuple):
    """How long plans are, how many are tried, and how many of their actions are played."""

    horizon: int
    iterations: int
    samples: int
    elites: int
    replan: int


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(horizon=30, iterations=3, samples=100, elites=10, replan=5),
    "paper": Effort(horizon=100, iterations=20, samples=1000, elites=100, replan=100),
}
"""`paper` are the published values; a plan of theirs takes two million steps of the model."""


@dataclass(frozen=True)
class Cem:
    """Plans a sequence of actions by refitting a Gaussian to the best of its samples.

    `preset` gives the values of the options that are not set. After `replan`
    actions, or when the plan is used up, planning begins anew.
    """

    NEEDS: ClassVar[str] = "continuous actions within finite bounds"

    preset: Literal["quick", "paper"] = "quick"
    horizon: int | None = None
    iterations: int | None = None
    samples: int | None = None
    elites: int | None = None
    replan: int | None = None

    def __post_init__(self) -> None:
        if min(self.effort) < 1:
            raise ValueError(f"{', '.join(Effort._fields)} must be at least 1")
        if self.effort.elites > self.effort.samples:
            raise ValueError("there cannot be more elites than samples")

    @property
    def effort(self) -> Effort:
        """The values of the preset, but for those that were set."""
        chosen = {name: getattr(self, name) for name in Effort._fields}
        given = {name: value for name, value in chosen.items() if value is not None}
        return EFFORTS[self.preset]._replace(**given)

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        return action_space.is_float and all(map(isfinite, action_space.low + action_space.high))

    def plan(
        self, model: Model, observation: Any, *, horizon: int, rng: np.random.Generator
    ) -> list[Any]:
        """Return the beginning of the best plan of the last iteration."""
        effort, space = self.effort, model.action_space
        low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
        length = min(effort.horizon, horizon)
        mean = np.tile((low + high) / 2, (length, *[1] * low.ndim))
        spread = np.tile(np.maximum(np.abs(low), np.abs(high)) / 2, (length, *[1] * low.ndim))
        for _ in range(effort.iterations):
            plans = rng.normal(mean, spread, (effort.samples, *mean.shape)).clip(low, high)
            returns = np.array([_return(plan, model, observation) for plan in plans])
            elites = plans[np.argsort(-returns, kind="stable")[: effort.elites]]
            mean, spread = elites.mean(axis=0), elites.std(axis=0)
        return list(elites[0][: effort.replan])


def _return(plan: np.ndarray, model: Model, observation: Any) -> float:
    """Return the sum of the rewards of a plan; the program gets a copy of it."""
    model.stand(observation)
    return model.play(plan.copy())
