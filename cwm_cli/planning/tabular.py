"""Value iteration over all reachable states, for small models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model, PossibleStep, countable, name
from cwm_cli.planning.planner import Planner, Situation, Unsuited

MAX_VALUES = 4_000_000
"""Maximum number of values to keep, over all states and numbers of remaining steps."""

MAX_PAIRS = 400_000
"""Maximum number of pairs of state and action. Rechecking a plan outside the sandbox takes each of
these steps again, which takes about 30 s, the time that is allowed for it."""

MOST_DRAWN = 1_000
"""Maximum number of states of a stochastic model that does not return its possible outcomes."""


@dataclass(frozen=True)
class Tabular(Planner):
    """Finite-horizon value iteration over all reachable states.

    Values depend on the number of remaining steps. If these do not fit in memory, only the values
    of the last steps are kept. If the model is stochastic, they are expected values, by the
    probabilities that the model returns, or else by the frequencies of its samples.
    """

    NEEDS: ClassVar[str] = "discrete actions"
    ALONE: ClassVar[bool] = True

    states: int = 100_000
    """Maximum number of states of the model; with more, the next planner is used, and also with
    more than 400,000 pairs of state and action."""
    discount: float = 0.99
    """Discount factor per step (gamma) if the model is deterministic."""
    expected_discount: float = 0.9999
    """Discount factor per step if the model is stochastic. With 0.99 the plan takes risks and loses
    5 % in FrozenLake8x8."""
    tolerance: float = 1e-6
    """Change of the values below which value iteration has converged. If the model is stochastic,
    values change slowly for long: only equal values have converged."""
    draws: int = 200
    """Number of tries per action if a stochastic model does not return the possible outcomes."""
    _tables: dict[int, "StateTable"] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.states, self.draws) < 1:
            raise ValueError("states and draws must be at least 1")
        if not (0 <= self.discount <= 1 and 0 <= self.expected_discount <= 1):
            raise ValueError("discount and expected_discount must be from 0 to 1")
        if not self.tolerance >= 0:
            raise ValueError("tolerance must not be negative")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are discrete."""
        return action_space.kind == "discrete"

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 0 if there are finitely many states, since values are exact then."""
        return 0.0 if is_finite(observation_space) else None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        if model.remembers:
            raise Unsuited("has a memory")
        table = self._tables.setdefault(id(model), StateTable(model, self))
        numbers = [table.start(situation) for situation in situations]
        table.close()
        pairs = zip(numbers, situations, strict=True)
        return [[table.action(number, situation)] for number, situation in pairs]


def is_finite(space: Space) -> bool:
    """Return whether a space has finitely many values: integers within bounds."""
    spaces = [leaf.space for leaf in space.leaves("")]
    return all(
        leaf.kind != "text" and not leaf.is_float and all(map(isfinite, leaf.low + leaf.high))
        for leaf in spaces
    )


class StateTable:
    """All reachable states, the outcomes of every action, and values by remaining steps.

    State 0 is the end of an episode. Call `start` for each situation, then `close`, then `action`.
    """

    def __init__(self, model: Model, options: Tabular) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._all = range(int(low), int(high) + 1)
        self._model = model
        self._options = options
        self._most = min(options.states, MAX_PAIRS // len(self._all))
        certain = model.deterministic
        self._discount = options.discount if certain else options.expected_discount
        self._tolerance = options.tolerance if certain else 0.0
        self._numbers: dict[Any, int] = {}
        self._states: list[Any] = [None]
        self._valid: list[Sequence[int]] = [()]
        self._firsts = [0, 0]  # index of the first action of each state
        self._rewards: list[float] = []
        self._counts: list[int] = []
        self._following: list[int] = []
        self._shares: list[float] = []
        self._outcomes: OutcomeArrays | None = None
        self._values: list[np.ndarray] = []
        self._sweeps = 0
        self._converged = False

    def start(self, situation: Situation) -> int:
        """Return the number of the state of a situation."""
        self._model.stand(situation.state)
        return self._number(self._model.here(), situation.valid)

    def close(self) -> None:
        """Take every action in every state.

        Raises:
            Unsuited: If there are too many states.
        """
        tried = len(self._firsts) - 1
        if tried == len(self._states):
            return
        while tried < len(self._states):
            self._expand(tried)
            tried += 1
            found = len(self._states) - 1
            # If most real-valued states are still new after 300 expansions, they never end.
            is_endless = tried >= 300 and 2 * found > len(self._rewards)
            if found > self._most or (is_endless and not countable(self._states[-1])):
                raise Unsuited(f"reaches more than {min(found, self._most)} states")
        self._outcomes = OutcomeArrays.of(
            np.diff(self._firsts), self._rewards, self._counts, self._following, self._shares
        )
        self._values = [np.zeros(len(self._states))]
        self._sweeps, self._converged = 0, False

    def action(self, number: int, situation: Situation) -> int:
        """Return an action of the highest value in a state; ties are broken at random."""
        assert self._outcomes is not None
        values = self._values_after(situation.horizon - 1)
        own = self._outcomes.select(*self._firsts[number : number + 2])
        found = own.back_up(values, self._discount).tolist()
        backed_up = {
            action: value
            for action, value in zip(self._valid[number], found, strict=True)
            if not situation.valid or action in situation.valid
        }
        highest = max(backed_up.values())
        # Expected values that differ by less than 1e-9 differ by rounding only.
        tolerance = 0.0 if self._model.deterministic else 1e-9 * (1 + abs(highest))
        best = [action for action, value in backed_up.items() if value >= highest - tolerance]
        return best[int(situation.rng.integers(len(best)))]

    def _number(self, state: Any, valid: tuple[int, ...] | None) -> int:
        """Return the number of a state; a new state gets the next number."""
        number = self._numbers.setdefault(name(state), len(self._states))
        if number == len(self._states):
            self._states.append(state)
            self._valid.append(valid or self._all)
        return number

    def _expand(self, number: int) -> None:
        """Take every action in a state, and add the outcomes."""
        model = self._model
        for action in self._valid[number]:
            model.stand(self._states[number])
            if model.deterministic:
                step = model.step(action)
                following: Sequence[PossibleStep] = [PossibleStep(1.0, step, model.here())]
            else:
                exact = model.outcomes(action)
                following = exact or model.sample_outcomes(action, self._options.draws)
                self._most = self._most if exact else min(self._most, MOST_DRAWN)
            self._rewards.append(sum(o.probability * o.step.reward for o in following))
            self._counts.append(len(following))
            for probability, (_, _, terminated, valid), state in following:
                self._following.append(0 if terminated else self._number(state, valid))
                self._shares.append(probability)
        self._firsts.append(len(self._rewards))

    def _values_after(self, steps: int) -> np.ndarray:
        """Return the values of all states with n remaining steps, or the converged values.

        10,000 steps count as converged.
        """
        outcomes, values = self._outcomes, self._values
        room = max(2, MAX_VALUES // len(self._states))
        while outcomes and self._sweeps < min(steps, 10_000) and not self._converged:
            improved = outcomes.improve(values[-1], self._discount)
            change = np.abs(improved - values[-1]).max()
            self._converged = bool(change <= self._tolerance)
            self._sweeps += 1
            if len(values) == room:  # keep the values of few remaining steps, and the latest ones
                values.pop()
            values.append(improved)
        return values[min(steps, len(values) - 1)]


Numbers = Sequence[float] | np.ndarray


class OutcomeArrays(NamedTuple):
    """The outcomes of all actions as flat arrays.

    `states` has the numbers of the states with actions, and `actions` the index of the first
    action of each. `rewards` has the mean reward of each action, and `outcomes` the index of its
    first outcome. Each outcome has a `following` state and a share. A state without actions keeps
    its value.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    outcomes: np.ndarray
    following: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(
        cls,
        actions: Numbers,
        rewards: Numbers,
        outcomes: Numbers,
        following: Numbers,
        shares: Numbers,
    ) -> Self:
        """Build the arrays from the number of actions per state and of outcomes per action."""
        action_counts, outcome_counts = np.array(actions), np.array(outcomes)
        own = action_counts[action_counts > 0]
        return cls(
            np.flatnonzero(action_counts),
            np.cumsum(own) - own,
            np.array(rewards),
            np.cumsum(outcome_counts) - outcome_counts,
            np.array(following),
            np.array(shares),
        )

    def select(self, first: int, end: int) -> Self:
        """Return the part with the actions of one state."""
        begins = self.outcomes[first:end]
        outcomes = slice(begins[0], self.outcomes[end] if end < len(self.outcomes) else None)
        return self._replace(
            rewards=self.rewards[first:end],
            outcomes=begins - begins[0],
            following=self.following[outcomes],
            shares=self.shares[outcomes],
        )

    def back_up(self, values: np.ndarray, discount: float) -> np.ndarray:
        """Return the values of all actions, given the values of all states."""
        # The outcomes of an action are adjacent: `reduceat` adds from each first one to the next.
        expected = np.add.reduceat(self.shares * values[self.following], self.outcomes)
        backed_up: np.ndarray = self.rewards + discount * expected
        return backed_up

    def improve(self, values: np.ndarray, discount: float) -> np.ndarray:
        """Return the values of all states with one more remaining step (Bellman's equation)."""
        improved = values.copy()
        improved[self.states] = np.maximum.reduceat(self.back_up(values, discount), self.actions)
        return improved
