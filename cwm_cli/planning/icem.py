"""The improved cross-entropy method, for continuous actions and for scores of discrete actions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.fft import irfft, rfftfreq

from cwm_cli.data.spaces import Space
from cwm_cli.planning.cem import MAX_PLAN_NUMBERS, Bounds, group_equal, is_bounded
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Planner, Situation

Returned = Callable[[Sequence[Any], np.ndarray], np.ndarray]
"""Returns the returns of plans from states, as `Model.returns` does."""

MIN_PLANS = 4
"""Minimum number of plans per iteration; a small budget makes the plans shorter instead."""


@dataclass(frozen=True)
class Icem(Planner):
    """The improved cross-entropy method (iCEM; Pinneri et al., 2020).

    It differs from the cross-entropy method (`cem`): each decision starts from the plans of the
    decision before, the noise is coloured, elites compete again, and momentum smooths the standard
    deviation. A plan of discrete actions has a score of each action for every step, and the action
    of the highest score is taken. Then the colour of the noise decides how long the same action
    repeats.
    """

    NEEDS: ClassVar[str] = "discrete actions, or continuous ones within finite bounds"
    SEGMENT: ClassVar[int] = 100
    """With 25 or 50 decisions HalfCheetah lost a third or an eighth of its return."""

    budget: int = 2000
    """Maximum number of model steps per decision."""
    horizon: int = 30
    """Maximum number of actions in a plan (h)."""
    iterations: int = 3
    """Number of sampling iterations."""
    deviation: float = 0.5
    """Initial standard deviation of the noise, as a fraction of half the action range (sigma)."""
    colour: float = 1.0
    """Exponent of the noise spectrum (beta): 0 is white noise, 2 is a random walk."""
    decay: float = 1.25
    """Factor of the decrease in samples per iteration (gamma)."""
    elites: float = 0.1
    """Fraction of the samples that the Gaussian is fitted to (K)."""
    momentum: float = 0.1
    """Weight of the previous Gaussian when a new one is fitted (alpha)."""
    kept: float = 0.3
    """Fraction of the elites that is used again, also in the next decision (xi)."""
    fine: float = 0.125
    """Fraction of the samples with small noise. Without them, tasks that end in holding still get
    low returns; with a larger fraction, tasks that need large movements do."""
    precision: float = 0.15
    """Standard deviation of the small noise, as a fraction of the normal noise."""
    replan: int = 1
    """Number of actions to play before planning again."""
    draws: int = 1
    """Number of random draws per plan if the model is stochastic; all plans use the same draws.
    More draws leave fewer plans: with 2, a pendulum with noise on its torque loses half its
    return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.horizon, self.iterations, self.replan, self.draws) < 1:
            raise ValueError("horizon, iterations, replan and draws must be at least 1")
        if self.budget < MIN_PLANS * self.iterations:
            raise ValueError(f"budget must be at least {MIN_PLANS} for each iteration")
        shares = (self.elites, self.momentum, self.kept, self.fine, self.precision)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError("elites, momentum, kept, fine and precision must be from 0 to 1")
        if not (self.deviation > 0 and self.colour >= 0 and self.decay >= 1):
            raise ValueError("deviation must be positive, colour not negative, decay at least 1")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are discrete, or real numbers with finite bounds."""
        return action_space.kind == "discrete" or is_bounded(action_space)

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 1 for real numbers, and None for discrete actions: other planners are better."""
        return 1.0 if is_bounded(action_space) else None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the first actions of the best plans, and keep the elites in memory."""
        if model.deterministic:
            return self._plan(model.action_space, situations, model.returns)
        fewer = max(self.budget // self.draws, MIN_PLANS * self.iterations)
        returned = partial(model.returns, draws=self.draws)
        return replace(self, budget=fewer)._plan(model.action_space, situations, returned)

    def _plan(
        self, actions: Space, situations: Sequence[Situation], returned: Returned
    ) -> list[list[Any]]:
        plans: list[list[Any]] = [[]] * len(situations)
        keys = [self._length_and_elites(situation) for situation in situations]
        discrete = actions.kind == "discrete"
        size = actions.count if discrete else actions.size
        for (length, _), places in group_equal(keys, MAX_PLAN_NUMBERS // (self.budget * size)):
            group = [situations[place] for place in places]
            bounds = ActionScores(actions, length, group) if discrete else Bounds(actions, length)
            best = _Search(self, bounds).plan(returned, group)
            for place, plan in zip(places, best, strict=True):
                plans[place] = list(
                    plan[: self.replan].tolist() if discrete else plan[: self.replan]
                )
        return plans

    def _length_and_elites(self, situation: Situation) -> tuple[int, int]:
        """Return the length of plans, and the number of elites from the decision before."""
        length = min(self.horizon, situation.horizon, self.budget // (MIN_PLANS * self.iterations))
        return length, len(situation.memory.elites) if situation.memory else 0


class ActionScores(Bounds):
    """Plans of discrete actions: for every step the action of the highest score is taken."""

    def __init__(self, space: Space, length: int, situations: Sequence[Situation]) -> None:
        count = space.count
        super().__init__(Space("box", "float64", (count,), (-1.0,) * count, (1.0,) * count), length)
        self._lowest = int(space.low[0])
        every = range(self._lowest, self._lowest + count)
        masks = [space.mask(situation.valid or every) for situation in situations]
        self._penalties = np.where(masks, 0.0, -np.inf)[:, None]

    def actions(self, plans: np.ndarray) -> np.ndarray:
        """Return the actions of flat plans; the first action of each plan is valid."""
        scores = self.shaped(plans).copy()
        scores[:, :, 0] += self._penalties
        chosen: np.ndarray = scores.argmax(axis=-1) + self._lowest
        return chosen


class LastPlans(NamedTuple):
    """The memory of a decision: mean of the Gaussian, elites, and number of actions played."""

    mean: np.ndarray
    elites: np.ndarray
    played: int

    def ahead(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rest of the plans, extended to a length by their last action."""
        steps = np.minimum(np.arange(length) + self.played, len(self.mean) - 1)
        elites = self.elites[:, steps]
        return self.mean[steps].ravel(), elites.reshape(len(elites), -1)


class _Search:
    """The search for plans of equal length in several situations; plans are flat rows."""

    def __init__(self, options: Icem, bounds: Bounds) -> None:
        self._options = options
        self._bounds = bounds
        self._half = (bounds.high - bounds.low) / 2
        plans = options.budget // bounds.shape[0]
        self._elites = max(2, round(options.elites * plans / options.iterations))
        self._kept = min(max(1, int(options.kept * self._elites)), plans // 2)
        shares = options.decay ** -np.arange(options.iterations)
        free = plans - self._kept  # the next decision tries the kept plans again
        self._samples = [max(1, int(free * share / shares.sum())) for share in shares]
        self._samples[0] += free - sum(self._samples)

    def plan(self, returned: Returned, situations: Sequence[Situation]) -> np.ndarray:
        """Return the best plan for each situation."""
        bounds, kept, momentum = self._bounds, self._kept, self._options.momentum
        states = [situation.state for situation in situations]
        mean, left = self._begin(situations)
        deviation = np.tile(self._half * self._options.deviation, (len(states), 1))
        elites, returns = left[:, :0], np.empty((len(states), 0))
        for number, count in enumerate(self._samples, 1):
            plans = self._sample(situations, mean, deviation, count)
            if number == self._options.iterations:
                plans[:, 0] = mean
            plans = np.concatenate([plans, left], axis=1)
            scores = returned(states, bounds.actions(plans))
            plans = np.concatenate([plans, elites[:, :kept]], axis=1)
            scores = np.concatenate([scores, returns[:, :kept]], axis=1)
            elites, returns = self._best(plans, scores)
            mean = momentum * mean + (1 - momentum) * elites.mean(axis=1)
            deviation = momentum * deviation + (1 - momentum) * elites.std(axis=1)
            left = left[:, :0]
        for situation, own, best in zip(situations, mean, elites, strict=True):
            last = bounds.shaped(own), bounds.shaped(best[:kept])
            situation.memory = LastPlans(*last, self._options.replan)
        return bounds.actions(elites[:, :1])[:, 0]

    def _begin(self, situations: Sequence[Situation]) -> tuple[np.ndarray, np.ndarray]:
        """Return the initial means, and the plans kept from the decision before."""
        middle, length = self._bounds.middle, self._bounds.shape[0]
        initial = middle, np.empty((0, len(middle)))
        memories: list[LastPlans | None] = [situation.memory for situation in situations]
        pairs = [memory.ahead(length) if memory else initial for memory in memories]
        return np.array([mean for mean, _ in pairs]), np.array([elites for _, elites in pairs])

    def _sample(
        self, situations: Sequence[Situation], mean: np.ndarray, deviation: np.ndarray, count: int
    ) -> np.ndarray:
        """Sample plans for each situation; the last fraction `fine` has small noise."""
        length, size = self._bounds.shape[0], mean.shape[1] // self._bounds.shape[0]
        colour = self._options.colour
        noises = [coloured_noise(own.rng, (count, size, length), colour) for own in situations]
        plans = np.array(noises).transpose(0, 1, 3, 2).reshape(len(situations), count, -1)
        plans *= deviation[:, None]
        plans[:, count - round(self._options.fine * count) :] *= self._options.precision
        plans += mean[:, None]
        self._bounds.clip(plans)
        return plans

    def _best(self, plans: np.ndarray, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the elites, best first, and their returns; less effort breaks ties."""
        scale = np.where(self._half > 0, self._half, 1.0)
        effort = np.square((plans - self._bounds.middle) / scale).sum(axis=2)
        order = np.lexsort((effort, -returns), axis=1)[:, : self._elites]
        best = np.take_along_axis(plans, order[:, :, None], axis=1)
        return best, np.take_along_axis(returns, order, axis=1)


def coloured_noise(rng: np.random.Generator, shape: tuple[int, ...], colour: float) -> np.ndarray:
    """Draw sequences of zero mean and unit variance, along the last axis.

    The power falls with the frequency f as f**-colour: 0 is white noise, 2 has the spectrum of a
    random walk (Timmer and Koenig, "On generating power law noise", 1995). The lowest frequency
    also represents all lower frequencies. Zero and, for an even length, the highest frequency have
    only real parts, which carry their whole power.
    """
    length = shape[-1]
    if colour == 0 or length == 1:
        return rng.standard_normal(shape)
    frequencies = rfftfreq(length)
    frequencies[0] = frequencies[1]
    amplitudes: np.ndarray = frequencies ** (-colour / 2)
    real = np.zeros(len(frequencies), bool)
    real[0], real[-1] = True, length % 2 == 0
    amplitudes[real] *= np.sqrt(2)
    amplitudes *= length / np.sqrt((np.where(real, 1, 4) * amplitudes**2).sum())
    parts = rng.standard_normal((2, *shape[:-1], len(amplitudes)))
    return irfft((parts[0] + 1j * parts[1]) * amplitudes, n=length, axis=-1)
