"""The cross-entropy method as published (`Cem`), and the improved one (`Icem`).

Both fit a Gaussian over plans to the best of its samples. Plans are flat rows of action after
action, and `Bounds` converts them to actions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.fft import irfft, rfftfreq

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
        lengths = [min(self.horizon, self._remaining(situation)) for situation in situations]
        model = model.memoryless if self.preset == "paper" else model

        def search(length: int, group: list[Situation]) -> Iterator[list[Any]]:
            bounds = Bounds(model.action_space, length)
            best = bounds.shaped(self._best(model, group, bounds))
            for plan, situation in zip(best, group, strict=True):
                yield list(plan[: min(self.replan, situation.horizon)])

        return plan_in_groups(situations, lengths, most, search)

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
    PREFERS_NUMBERS: ClassVar[bool] = True
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
        # The number of elites from the decision before differs after the first decision.
        keys = [
            (
                min(self.horizon, each.horizon, self.budget // (MIN_PLANS * self.iterations)),
                len(each.memory.elites) if each.memory else 0,
            )
            for each in situations
        ]
        discrete = actions.kind == "discrete"
        size = actions.count if discrete else actions.size

        def search(key: tuple[int, int], group: list[Situation]) -> Iterator[list[Any]]:
            length, _ = key
            bounds = ActionScores(actions, length, group) if discrete else Bounds(actions, length)
            for plan in _Search(self, bounds).plan(returned, group):
                yield list(plan[: self.replan].tolist() if discrete else plan[: self.replan])

        return plan_in_groups(situations, keys, MAX_PLAN_NUMBERS // (self.budget * size), search)


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

    def __init__(self, options: Icem, bounds: "Bounds") -> None:
        self._options = options
        self._bounds = bounds
        self._half = (bounds.high - bounds.low) / 2
        plans = options.budget // bounds.shape[0]
        self._elites = max(2, round(options.elites * plans / options.iterations))
        self._kept = min(max(1, int(options.kept * self._elites)), plans // 2)
        shares = options.decay ** -np.arange(options.iterations)
        free = plans - self._kept  # the next decision tries the kept plans again
        self._samples = [max(1, int(free * share / shares.sum())) for share in shares]
        self._samples[0] += free - sum(self._samples)  # the rest of rounding down

    def plan(self, returned: Returned, situations: Sequence[Situation]) -> np.ndarray:
        """Return the best plan for each situation."""
        bounds, kept, momentum = self._bounds, self._kept, self._options.momentum
        states = [situation.state for situation in situations]
        mean, left = self._begin(situations)
        deviation = np.tile(self._half * self._options.deviation, (len(states), 1))
        elites, returns = left[:, :0], np.empty((len(states), 0))
        for number, count in enumerate(self._samples, 1):
            plans = self._sample(situations, mean, deviation, count)
            if number == self._options.iterations:  # the mean competes too, as published
                plans[:, 0] = mean
            plans = np.concatenate([plans, left], axis=1)
            scores = returned(states, bounds.actions(plans))
            plans = np.concatenate([plans, elites[:, :kept]], axis=1)
            scores = np.concatenate([scores, returns[:, :kept]], axis=1)
            elites, returns = self._best(plans, scores)
            mean = momentum * mean + (1 - momentum) * elites.mean(axis=1)
            deviation = momentum * deviation + (1 - momentum) * elites.std(axis=1)
            left = left[:, :0]  # the plans of the decision before compete only once
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


def is_bounded(space: Space) -> bool:
    """Return whether actions are real numbers with finite bounds."""
    return space.is_float and space.size > 0 and all(map(isfinite, space.low + space.high))


def plan_in_groups(
    situations: Sequence[Situation],
    keys: Sequence[Any],
    most: int,
    search: Callable[[Any, list[Situation]], Iterable[list[Any]]],
) -> list[list[Any]]:
    """Plan situations with equal keys together, since a batch takes less time per plan.

    Args:
        situations: The situations.
        keys: The key of each situation, such as the length of its plans.
        most: Maximum number of situations to plan together; at least one is planned.
        search: Returns the plan of each situation, given their key.

    Returns:
        The plan of each situation.
    """
    plans: list[list[Any]] = [[]] * len(situations)
    size = max(1, most)
    for key in dict.fromkeys(keys):
        places = [place for place, other in enumerate(keys) if other == key]
        for first in range(0, len(places), size):
            together = places[first : first + size]
            found = search(key, [situations[place] for place in together])
            for place, plan in zip(together, found, strict=True):
                plans[place] = plan
    return plans
