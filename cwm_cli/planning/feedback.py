"""Search for linear feedback policies, which keep unstable systems in balance.

A plan of fixed actions cannot correct small deviations, so in an unstable system its predicted
return says little beyond a few steps. A policy that maps observations linearly to actions can, and
has few parameters. Searching them at random solves many control tasks (Mania, Guy and Recht,
"Simple random search of static linear policies", 2018); here the cross-entropy method searches them
in the model, from the current state, again and again during the episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.cem import Bounds, is_bounded
from cwm_cli.planning.model import Here, Model
from cwm_cli.planning.planner import Planner, Situation, Unsuited


@dataclass(frozen=True)
class Feedback(Planner):
    """Search for a linear policy, by the cross-entropy method in closed-loop rollouts.

    The action is a linear function of the scaled observation, clipped to its bounds. The model
    must be deterministic, and its observations must be arrays of real numbers.
    """

    NEEDS: ClassVar[str] = "continuous actions within finite bounds"
    SEGMENT: ClassVar[int] = 100
    ALONE: ClassVar[bool] = True
    RESERVE: ClassVar[bool] = True

    rollout: int = 50
    """Number of steps of a rollout."""
    policies: int = 256
    """Number of policies sampled in each iteration. With 64, a third of the searches for a balance
    of a double pendulum end in a policy that falls."""
    iterations: int = 60
    """Maximum number of iterations of a search."""
    patience: int = 8
    """Number of iterations without improvement after which the first search of an episode ends."""
    interval: int = 10
    """Number of decisions between two searches; later ones end after two such iterations."""
    elites: int = 16
    """Number of best policies that the Gaussian is fitted to."""
    spread: float = 1.0
    """Initial standard deviation of the weights. A weight of 1 moves the action by half of its
    range if the observation moves by the standard deviation in the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.rollout, self.iterations, self.interval, self.elites) < 1:
            raise ValueError("rollout, iterations, interval and elites must be at least 1")
        if self.policies < self.elites:
            raise ValueError("there cannot be more elites than policies")
        if not self.spread > 0:
            raise ValueError("spread must be positive")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are real numbers within finite bounds."""
        return is_bounded(action_space)

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 1 for observations of at most 40 real numbers, which have few weights."""
        is_small = observation_space.is_float and observation_space.size <= 40
        return 1.0 if is_small and cls.serves(action_space) else None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation, and keep the search in memory."""
        if not model.deterministic:
            raise Unsuited("draws random numbers")
        if model.remembers:
            raise Unsuited("has a memory")
        return [[self._decide(model, situation)] for situation in situations]

    def _decide(self, model: Model, situation: Situation) -> Any:
        search = situation.memory or PolicySearch(self, model, situation)
        situation.memory = search
        if search.decisions % self.interval == 0:
            search.run(model, situation)
        search.decisions += 1
        observation = _numbers(situation.state)
        return search.act(search.best[None], observation[:, None])[0]


class PolicySearch:
    """A Gaussian over the weights of linear policies, and the best policy so far.

    Attributes:
        best: (actions, components + 1) weights of the best policy; the last column is constant.
        decisions: Number of decisions so far.
    """

    def __init__(self, options: Feedback, model: Model, situation: Situation) -> None:
        examples = model.examples
        if examples is None or examples.ndim != 2 or not len(examples):
            space, rows = model.action_space, [_numbers(situation.state)]
            for _ in range(8):
                model.stand(situation.state)
                for _ in range(options.rollout):
                    action = situation.rng.uniform(space.low, space.high)
                    step = model.step(action.reshape(space.shape))
                    rows.append(_numbers(step.observation))
                    if step.terminated:
                        break
            examples = np.array(rows)
        self._options, self._space, self._type = options, model.action_space, examples.dtype
        self._bounds = Bounds(model.action_space, 1)
        width = examples.std(axis=0, dtype=float)
        self._centre = examples.mean(axis=0, dtype=float)[:, None]
        # A component that never varies has no influence.
        self._width = np.where(width > 0, width, np.inf)[:, None]
        shape = len(self._bounds.middle), len(width) + 1
        self.best, self._elites = np.zeros(shape), np.zeros((0, *shape))
        self._mean, self._deviation = np.zeros(shape), np.full(shape, options.spread)
        self.decisions = 0

    def run(self, model: Model, situation: Situation) -> None:
        """Search until the best return improves by less than 1 % in `patience` iterations."""
        options = self._options
        patience = options.patience if self.decisions == 0 else 2
        returns = list[float]()
        while len(returns) < options.iterations:
            returns.append(self._improve(model, situation))
            if len(returns) > patience:
                before, now = returns[-1 - patience], returns[-1]
                if now - before <= 0.01 * abs(before):
                    return

    def _improve(self, model: Model, situation: Situation) -> float:
        """Fit the Gaussian to the best new and earlier policies; return the best return."""
        options = self._options
        noise = situation.rng.standard_normal((options.policies, *self._mean.shape))
        policies = self._mean + self._deviation * noise
        policies = np.concatenate([policies, self._mean[None], self._elites[:3]])
        returns = self._returns(model, situation, policies)
        order = np.argsort(-returns, kind="stable")[: options.elites]
        self._elites, self.best = policies[order], policies[order[0]]
        # As in iCEM, momentum smooths the Gaussian; some deviation stays, to follow the state.
        self._mean = 0.1 * self._mean + 0.9 * self._elites.mean(axis=0)
        deviation = 0.1 * self._deviation + 0.9 * self._elites.std(axis=0)
        self._deviation = np.maximum(deviation, 0.02 * options.spread)
        return float(returns[order[0]])

    def act(self, policies: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """Return the actions (lanes, *action) of policies at observations (components, lanes)."""
        scaled = (observations.astype(self._type) - self._centre) / self._width
        sums = np.einsum("lac,cl->la", policies[..., :-1], scaled) + policies[..., -1]
        half = (self._bounds.high - self._bounds.low) / 2
        actions = self._bounds.middle + half * sums
        self._bounds.clip(actions)
        shaped: np.ndarray = actions.reshape(-1, *self._space.shape)
        return shaped

    def _returns(self, model: Model, situation: Situation, policies: np.ndarray) -> np.ndarray:
        """Return the undiscounted return of each policy, up to the horizon."""
        horizon = min(self._options.rollout, situation.horizon)
        if isinstance(situation.state, np.ndarray) and not model.hides:
            returns = self._play_together(model, situation.state, policies, horizon)
        else:
            play = partial(self._play_alone, model, situation.state, horizon=horizon)
            returns = np.array([play(policy) for policy in policies])
        return np.where(np.isfinite(returns), returns, -np.inf)

    def _play_together(
        self, model: Model, state: np.ndarray, policies: np.ndarray, horizon: int
    ) -> np.ndarray:
        """Play policies from an observation, each in a lane; ended lanes are dropped."""
        returns, lanes = np.zeros(len(policies)), np.arange(len(policies))
        observations = np.repeat(_numbers(state)[:, None], len(policies), axis=1)
        for _ in range(horizon):
            # Another process receives observations in this precision, and repeats the steps.
            observations = observations.astype(self._type).astype(float)
            actions = self.act(policies[lanes], observations)
            observations, rewards, ends = model.step_all(observations, actions)
            returns[lanes] += rewards
            lost = ~np.isfinite(observations).all(axis=0)
            returns[lanes[lost]] = -np.inf
            kept = ~(ends | lost)
            lanes, observations = lanes[kept], observations[:, kept]
            if not len(lanes):
                break
        return returns

    def _play_alone(self, model: Model, state: Any, policy: np.ndarray, horizon: int) -> float:
        """Play one policy from a state."""
        model.stand(state)
        total, observation = 0.0, _numbers(state)
        for _ in range(horizon):
            step = model.step(self.act(policy[None], observation[:, None])[0])
            total += step.reward
            if step.terminated:
                break
            observation = _numbers(step.observation)
        return total


def _numbers(state: Any) -> np.ndarray:
    """Return the components of the observation of a state.

    Raises:
        Unsuited: If they are not real numbers.
    """
    numbers = np.asarray(state.observation if isinstance(state, Here) else state)
    if numbers.dtype.kind != "f":
        raise Unsuited("has observations that are not arrays of real numbers")
    return numbers.astype(float).ravel()
