"""The improved cross-entropy method, for continuous actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.bounds import Bounds, grouped
from cwm_cli.planning.model import Model
from cwm_cli.planning.noise import coloured
from cwm_cli.planning.planner import Situation

FEWEST = 4
"""Plans tried in an iteration; where the budget is too small for them, plans are shorter."""


@dataclass(frozen=True)
class Icem:
    """Refines the plan of the decision before with coloured noise (Pinneri et al., 2020).

    A decision takes at most `budget` steps of the model; plans are at most
    `horizon` long. `deviation` is that of the noise, as a share of half the range of
    the actions, and `colour` how slowly it changes. In an iteration there are
    `decay` times fewer samples than in the one before. `elites` is the share of
    the samples that the Gaussian is fitted to, `momentum` how much of the one
    before stays, and `kept` the share of the elites that compete again. A share
    `fine` of the samples has noise of `precision` times the deviation: without it
    tasks that end in holding still are done badly, with more of it those that take
    big movements. The best plan is played for `replan` actions.
    """

    NEEDS: ClassVar[str] = "continuous actions within finite bounds"

    budget: int = 2000
    horizon: int = 30
    iterations: int = 3
    deviation: float = 0.5
    colour: float = 1.0
    decay: float = 1.25
    elites: float = 0.1
    momentum: float = 0.1
    kept: float = 0.3
    fine: float = 0.125
    precision: float = 0.15
    replan: int = 1

    def __post_init__(self) -> None:
        if min(self.horizon, self.iterations, self.replan) < 1:
            raise ValueError("horizon, iterations and replan must be at least 1")
        if self.budget < FEWEST * self.iterations:
            raise ValueError(f"budget must be at least {FEWEST} for each iteration")
        shares = (self.elites, self.momentum, self.kept, self.fine, self.precision)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError("elites, momentum, kept, fine and precision must be from 0 to 1")
        if not (self.deviation > 0 and self.colour >= 0 and self.decay >= 1):
            raise ValueError("deviation must be positive, colour not negative, decay at least 1")

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        return Bounds.serve(action_space)

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the beginnings of the best plans, and remember the elites."""
        plans: list[list[Any]] = [[]] * len(situations)
        keys = [(self._length(each), _remembered(each)) for each in situations]
        for (length, _), places in grouped(keys, self.budget * model.action_space.size):
            search = _Search(self, Bounds(model.action_space, length))
            group = [situations[place] for place in places]
            for place, plan in zip(places, search.plan(model, group), strict=True):
                plans[place] = list(plan[: self.replan])
        return plans

    def _length(self, situation: Situation) -> int:
        """Return how long plans are."""
        return min(self.horizon, situation.horizon, self.budget // (FEWEST * self.iterations))


class Memory(NamedTuple):
    """The mean and the best plans of a decision, as they were before anything was played."""

    mean: np.ndarray
    elites: np.ndarray
    played: int

    def ahead(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what is left of the plans; their last action goes on to the length."""
        steps = np.minimum(np.arange(length) + self.played, len(self.mean) - 1)
        elites = self.elites[:, steps]
        return self.mean[steps].ravel(), elites.reshape(len(elites), -1)


class _Sizes(NamedTuple):
    """How many plans are sampled in each iteration, are elites, and compete again."""

    samples: list[int]
    elites: int
    kept: int


class _Search:
    """Decides for situations whose plans are equally long; plans are flat but at the ends."""

    def __init__(self, options: Icem, bounds: Bounds) -> None:
        self._options = options
        self._bounds = bounds
        self._sizes = _sizes(options, options.budget // bounds.shape[0])
        self._half = (bounds.high - bounds.low) / 2

    def plan(self, model: Model, situations: Sequence[Situation]) -> np.ndarray:
        """Return the best plan for each situation."""
        options, sizes, bounds = self._options, self._sizes, self._bounds
        states = [situation.state for situation in situations]
        mean, tried = self._begin(situations)
        deviation = np.tile(self._half * options.deviation, (len(states), 1))
        elites, returns = tried[:, :0], np.empty((len(states), 0))
        for number, count in enumerate(sizes.samples, 1):
            plans = self._sample(situations, mean, deviation, count)
            if number == options.iterations:
                plans[:, 0] = mean
            plans = np.concatenate([plans, tried], axis=1)
            scores = model.returns(states, bounds.shaped(plans))
            plans = np.concatenate([plans, elites[:, : sizes.kept]], axis=1)
            scores = np.concatenate([scores, returns[:, : sizes.kept]], axis=1)
            elites, returns = self._best(plans, scores)
            mean = _mixed(options.momentum, mean, elites.mean(axis=1))
            deviation = _mixed(options.momentum, deviation, elites.std(axis=1))
            tried = tried[:, :0]
        self._remember(situations, mean, elites)
        return bounds.shaped(elites[:, 0])

    def _begin(self, situations: Sequence[Situation]) -> tuple[np.ndarray, np.ndarray]:
        """Return the means to start from, and the plans that are left from before."""
        middle, length = self._bounds.middle, self._bounds.shape[0]
        nothing = middle, np.empty((0, len(middle)))
        memories: list[Memory | None] = [situation.memory for situation in situations]
        pairs = [memory.ahead(length) if memory else nothing for memory in memories]
        return np.array([mean for mean, _ in pairs]), np.array([elites for _, elites in pairs])

    def _sample(
        self, situations: Sequence[Situation], mean: np.ndarray, deviation: np.ndarray, count: int
    ) -> np.ndarray:
        """Return plans for each situation; the last of them are near the mean."""
        length, size = self._bounds.shape[0], mean.shape[1] // self._bounds.shape[0]
        colour = self._options.colour
        noises = [coloured(each.rng, (count, size, length), colour) for each in situations]
        plans = np.array(noises).transpose(0, 1, 3, 2).reshape(len(situations), count, -1)
        plans *= deviation[:, None]
        plans[:, count - round(self._options.fine * count) :] *= self._options.precision
        plans += mean[:, None]
        self._bounds.clip(plans)
        return plans

    def _best(self, plans: np.ndarray, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the elites, best first, and their returns; of equal ones, those of less effort."""
        scale = np.where(self._half > 0, self._half, 1.0)
        effort = np.square((plans - self._bounds.middle) / scale).sum(axis=2)
        order = np.lexsort((effort, -returns), axis=1)[:, : self._sizes.elites]
        best = np.take_along_axis(plans, order[:, :, None], axis=1)
        return best, np.take_along_axis(returns, order, axis=1)

    def _remember(
        self, situations: Sequence[Situation], mean: np.ndarray, elites: np.ndarray
    ) -> None:
        """Leave what the next decision of each episode starts from."""
        shaped = self._bounds.shaped
        for situation, own, best in zip(situations, mean, elites, strict=True):
            kept = shaped(best[: self._sizes.kept])
            situation.memory = Memory(shaped(own), kept, self._options.replan)


def _sizes(options: Icem, plans: int) -> _Sizes:
    """Divide the plans of a decision among its iterations."""
    elites = max(2, round(options.elites * plans / options.iterations))
    kept = min(max(1, int(options.kept * elites)), plans // 2)
    shares = options.decay ** -np.arange(options.iterations)
    free = plans - kept
    samples = [max(1, int(free * share / shares.sum())) for share in shares]
    samples[0] += free - sum(samples)
    return _Sizes(samples, elites, kept)


def _mixed(momentum: float, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return a mean of the values before and after."""
    return momentum * before + (1 - momentum) * after


def _remembered(situation: Situation) -> int:
    """Return how many plans are left from the decision before."""
    return len(situation.memory.elites) if situation.memory else 0
