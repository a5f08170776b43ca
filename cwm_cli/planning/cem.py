"""The cross-entropy method as published, for continuous actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.bounds import Bounds, grouped
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Situation


class Effort(NamedTuple):
    """How long plans are, how many are tried, and how many of their actions are played."""

    horizon: int
    iterations: int
    samples: int
    elites: int
    replan: int


EFFORTS: Mapping[str, Effort] = {
    "default": Effort(horizon=30, iterations=3, samples=100, elites=10, replan=5),
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

    preset: Literal["default", "paper"] = "default"
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
        return Bounds.serve(action_space)

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the beginnings of the best plans of the last iteration."""
        effort, space = self.effort, model.action_space
        plans: list[list[Any]] = [[]] * len(situations)
        lengths = [min(effort.horizon, situation.horizon) for situation in situations]
        for length, places in grouped(lengths, effort.samples * effort.horizon * space.size):
            bounds = Bounds(space, length)
            best = _best(model, [situations[place] for place in places], bounds, effort)
            for place, plan in zip(places, best, strict=True):
                plans[place] = list(bounds.shaped(plan)[: effort.replan])
        return plans


def _best(
    model: Model, situations: Sequence[Situation], bounds: Bounds, effort: Effort
) -> list[np.ndarray]:
    """Return the best flat plan of the last iteration for each situation."""
    states = [situation.state for situation in situations]
    count, size = len(states), bounds.low.size
    mean = np.tile(bounds.middle, (count, 1))
    spread = np.tile(np.maximum(np.abs(bounds.low), np.abs(bounds.high)) / 2, (count, 1))
    plans = np.empty((count, effort.samples, size))
    best = []
    for _ in range(effort.iterations):
        for index, situation in enumerate(situations):
            _sample(plans[index], mean[index], spread[index], situation.rng)
        bounds.clip(plans)
        returns = model.returns(states, bounds.shaped(plans))
        orders = [np.argsort(-row)[: effort.elites] for row in returns]
        elites = [some[order] for some, order in zip(plans, orders, strict=True)]
        mean[:] = [some.mean(axis=0) for some in elites]
        spread[:] = [some.std(axis=0) for some in elites]
        best = [some[0] for some in elites]
    return best


def _sample(
    plans: np.ndarray, mean: np.ndarray, spread: np.ndarray, rng: np.random.Generator
) -> None:
    """Fill plans with the numbers of `rng.normal(mean, spread)`, in two thirds of its time."""
    rng.standard_normal(out=plans)
    plans *= spread
    plans += mean
