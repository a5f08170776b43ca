"""The published cross-entropy method, for continuous actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Planner, Situation
from cwm_cli.presets import FROM_PRESET

MAX_PLAN_NUMBERS = 8_000_000
"""Maximum size of the array of all plans tried together, so that it fits in a sandbox."""


@dataclass(frozen=True)
class Cem(Planner):
    """The cross-entropy method: refit a Gaussian to the best of its samples.

    The model scores N samples of T actions. The best K samples give the mean and the standard
    deviation of the next N. After I iterations, the best sample of the last one is the plan
    (Rubinstein, 1999; as in Dainese et al., 2024). As published, the preset `paper` resets the
    model to its last observation before every step, and limits T by the length of an episode, not
    by the remaining steps.
    """

    NEEDS: ClassVar[str] = "continuous actions within finite bounds"
    PRESETS: ClassVar[Mapping[str, dict[str, Any]]] = {
        "default": {
            "horizon": 30,
            "iterations": 3,
            "samples": 100,
            "elites": 10,
            "replan": 5,
            "draws": 4,
        },
        "paper": {
            "horizon": 100,
            "iterations": 20,
            "samples": 1000,
            "elites": 100,
            "replan": 100,
            "draws": 0,
            "planning.doubt": "ignore",
        },
    }

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options. Published plans take 2 million model steps."""
    horizon: int = FROM_PRESET
    """Number of actions in a plan (T). Paper: 100."""
    iterations: int = FROM_PRESET
    """Number of sampling iterations (I). Paper: 20."""
    samples: int = FROM_PRESET
    """Number of plans sampled in each iteration (N). Paper: 1000."""
    elites: int = FROM_PRESET
    """Number of best plans that the Gaussian is fitted to (K). Paper: 100."""
    replan: int = FROM_PRESET
    """Number of actions to play before planning again. Paper: 100."""
    draws: int = FROM_PRESET
    """Number of random draws per plan if the model is stochastic; all plans use the same draws.
    Paper: 0, each plan has its own draw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = (self.horizon, self.iterations, self.samples, self.elites, self.replan)
        if min(numbers) < 1:
            raise ValueError("horizon, iterations, samples, elites and replan must be at least 1")
        if self.draws < 0:
            raise ValueError("draws must not be negative")
        if self.elites > self.samples:
            raise ValueError("there cannot be more elites than samples")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are real numbers with finite bounds."""
        return is_bounded(action_space)

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the first actions of the best plan of the last iteration for each situation."""
        most = MAX_PLAN_NUMBERS // (self.samples * self.horizon * model.action_space.size)
        plans: list[list[Any]] = [[]] * len(situations)
        lengths = [min(self.horizon, self._remaining(situation)) for situation in situations]
        model = model.memoryless if self.preset == "paper" else model
        for length, places in group_equal(lengths, most):
            bounds = Bounds(model.action_space, length)
            best = self._best(model, [situations[place] for place in places], bounds)
            for place, plan in zip(places, bounds.shaped(best), strict=True):
                plans[place] = list(plan[: min(self.replan, situations[place].horizon)])
        return plans

    def _remaining(self, situation: Situation) -> int:
        """Return the number of remaining steps, or as published of all steps of the episode."""
        if self.preset != "paper":
            return situation.horizon
        situation.memory = situation.memory or situation.horizon
        return int(situation.memory)

    def _best(self, model: Model, situations: Sequence[Situation], bounds: "Bounds") -> np.ndarray:
        """Return the best plan of the last iteration for each situation, each as a flat row."""
        states = [situation.state for situation in situations]
        draws = 0 if model.deterministic else self.draws
        returned = partial(model.returns, draws=draws) if draws else model.returns
        half = np.maximum(np.abs(bounds.low), np.abs(bounds.high)) / 2
        mean, deviation = (np.tile(row, (len(states), 1)) for row in (bounds.middle, half))
        plans = np.empty((len(states), self.samples, half.size))
        for _ in range(self.iterations):
            for own, situation in zip(plans, situations, strict=True):
                situation.rng.standard_normal(out=own)
            plans *= deviation[:, None]
            plans += mean[:, None]
            bounds.clip(plans)
            order = np.argsort(-returned(states, bounds.shaped(plans)), axis=1)
            elites = np.take_along_axis(plans, order[:, : self.elites, None], axis=1)
            mean, deviation = elites.mean(axis=1), elites.std(axis=1)
        best: np.ndarray = elites[:, 0]
        return best


class Bounds:
    """The lowest and the highest plan of a length, as flat rows of action after action."""

    def __init__(self, space: Space, length: int) -> None:
        self.shape = (length, *space.shape)
        self.low = np.tile(np.array(space.low), length)
        self.high = np.tile(np.array(space.high), length)
        self.middle: np.ndarray = (self.low + self.high) / 2
        same = len(set(space.low)) == len(set(space.high)) == 1
        self._clip = (space.low[0], space.high[0]) if same else (self.low, self.high)

    def clip(self, plans: np.ndarray) -> None:
        """Clip flat plans to the bounds, in place; single numbers as bounds are faster."""
        np.clip(plans, *self._clip, out=plans)

    def shaped(self, plans: np.ndarray) -> np.ndarray:
        """Reshape flat plans, on the last axis, to actions of the shape of their space."""
        return plans.reshape(*plans.shape[:-1], *self.shape)

    def actions(self, plans: np.ndarray) -> np.ndarray:
        """Return the actions of flat plans."""
        return self.shaped(plans)


def is_bounded(space: Space) -> bool:
    """Return whether actions are real numbers with finite bounds."""
    return space.is_float and space.size > 0 and all(map(isfinite, space.low + space.high))


def group_equal(keys: Sequence[Any], most: int) -> list[tuple[Any, list[int]]]:
    """Return each key with its indices, in groups of at most `most`.

    Situations with equal keys are planned together, since a batch takes less time per plan.
    """
    groups = []
    size = max(1, most)
    for key in dict.fromkeys(keys):
        places = [place for place, other in enumerate(keys) if other == key]
        groups += [(key, places[at : at + size]) for at in range(0, len(places), size)]
    return groups
