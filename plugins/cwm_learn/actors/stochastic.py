"""The actor for stochastic environments: value iteration with estimated outcome probabilities."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.planning.model import Step
from cwm_learn.actors.base import PLAY_AIMS, Actor, Aim, Intent, Knowledge, OpenQuestion
from cwm_learn.actors.numbered_states import (
    DiscreteActor,
    NumberedStates,
    NumberedStep,
    check_reply,
)

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

TOLERANCE = 1e-4
"""Relative difference below which returns are equal."""

MIN_CURIOSITY = 0.02
"""The actor explores if its discounted chance of an unknown transition is at least this."""


class OutcomeTable(NamedTuple):
    """Possible outcomes, one per entry; `pair` is state * actions + action."""

    pair: np.ndarray
    probability: np.ndarray
    next_state: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


class StochasticActor(DiscreteActor):
    """Plays by value iteration with the probabilities of all outcomes.

    The probabilities of the program are the prior of a Dirichlet distribution, which is updated
    with the counts of the rows. In every fourth episode, and if no return is promised, the actor
    explores states and actions that no row shows, if it knows a path to them.
    """

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._table = NumberedStates(known.observation_space, known.action_space)
        self._size = len(self._table.actions)
        self._prior: OutcomeTable | None = None
        self._steps: list[NumberedStep] = []
        self._posterior: OutcomeTable | None = None
        self._counted = 0
        self._values: list[np.ndarray] = []
        self._net_rewards, self._unknown_pairs = np.zeros(0), np.zeros((0, 0), bool)
        self._curiosity: np.ndarray | None = None
        self._rng = np.random.default_rng([known.seed, 2])

    @classmethod
    def stochastic_variant(cls) -> type[Actor]:
        """Return this class."""
        return cls

    def rebuild(self) -> None:
        """List the outcomes of the program in all states that are reachable from recorded ones."""
        self._table.clear()
        self._steps.clear()
        self._prior = None
        self._record_rows()
        if self._imagination is not None and len(self._table):
            self._search(np.arange(len(self._table)))
        self._posterior = None

    def observe(self, row: Transition) -> None:
        """Count the outcome of a step."""
        self._record_rows()

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return the most probable outcome of an action."""
        outcomes = self._outcomes()
        places = np.flatnonzero(outcomes.pair == self._pair(observation, action))
        if not len(places):
            return None
        best = int(places[outcomes.probability[places].argmax()])
        after = self._table.observation(int(outcomes.next_state[best]))
        return Step(after, float(outcomes.reward[best]), bool(outcomes.terminated[best]))

    def matches(self, predicted: Step, row: Transition) -> bool:
        """Return whether the recorded outcome was possible, even if it was improbable."""
        outcomes, pair = self._outcomes(), self._pair(row.observation, row.action)
        after = self._table.state_number(row.next_observation)
        same = (outcomes.next_state == after) | (outcomes.terminated & row.terminated)
        same &= np.isclose(outcomes.reward, row.reward) & (outcomes.terminated == row.terminated)
        return bool((same & (outcomes.pair == pair)).any())

    def promised_return(self, observation: Any, left: int) -> float | None:
        """Return the highest mean return; None if it is the usual one and all actions are equal."""
        state = self._state(observation)
        values = self._action_values(state, left)
        matters = values.max() > values.min() + TOLERANCE * (1 + np.abs(values).max())
        return float(values.max()) if matters or self._is_promising(state, left) else None

    def choose(self, observation: Any, left: int, aim: Aim | None = None) -> Intent | None:
        """Return the best action, or explore: in some episodes, and if no return is promised."""
        state, promise = self._state(observation), self.promised_return(observation, left)
        values = self._action_values(state, left)
        if aim is not None and aim not in PLAY_AIMS:
            return self._explore(state, aim)
        # one episode in this many explores although a return is promised: a better one may be
        # unknown
        explore_every = 4
        explores_first = len(self.known.starts) % explore_every == 0
        if aim is None and (explores_first or not self._is_promising(state, left)):
            intent = self._explore(state, "explore")
            if intent is not None:
                return intent
        if promise is None:
            return None
        best = np.flatnonzero(values >= values.max() - 1e-9)
        action = self._table.actions[int(best[0])]
        return Intent(action, aim or "exploit", "the best expected return", promise)

    def questions(self) -> list[OpenQuestion]:
        """Return reachable states that no row shows."""
        outcomes = self._outcomes()
        visited = {step.state for step in self._steps} | {step.next_state for step in self._steps}
        is_possible = ~outcomes.terminated & (outcomes.probability > 0)
        reachable = np.unique(outcomes.next_state[is_possible]).tolist()
        return [
            OpenQuestion(f"never visited: {self.known.describe(self._table.observation(state))}")
            for state in [state for state in reachable if state not in visited][:3]
        ]

    @property
    def is_settled(self) -> bool:
        """Whether almost nothing unknown is reachable from the last three starts."""
        starts = [self._state(start) for start in self.known.starts[-3:]]
        return bool(starts) and all(
            self._curiosities()[state].max() < MIN_CURIOSITY for state in starts
        )

    def _explore(self, state: int, aim: Aim) -> Intent | None:
        """Approach the most valuable unknown transition, if its discounted chance is sufficient."""
        values = self._curiosities()[state]
        if values.max() < MIN_CURIOSITY:
            return None
        best = self._rng.choice(np.flatnonzero(values >= values.max() - 1e-9))
        return Intent(self._table.actions[int(best)], aim, "a likely way to unrecorded transitions")

    def _is_promising(self, state: int, left: int) -> bool:
        value = float(self._action_values(state, left).max())
        late_value = float(self._action_values(state, left // 2).max()) if left > 1 else 0.0
        usual = self.known.usual_reward or 0.0
        tolerance = TOLERANCE * (1 + abs(left * usual))
        return self.known.is_promising(value, late_value, left, usual, tolerance)

    # --- outcomes

    def _state(self, observation: Any) -> int:
        """Return the number of a state, after searching the program if no outcome is known."""
        state, outcomes = self._table.state_number(observation), self._outcomes()
        is_known = (outcomes.pair // self._size == state).any()
        if not is_known and self._imagination is not None and not self._table.expanded[state]:
            self._search(np.array([state]))
            self._posterior = None
        return state

    def _pair(self, observation: Any, action: Any) -> int:
        number = self._table.state_number(observation)
        return number * self._size + self._table.action_number(action)

    def _record_rows(self) -> None:
        self._steps += map(self._table.number_step, self.known.rows[len(self._steps) :])

    def _search(self, roots: np.ndarray) -> None:
        """Add the program's outcomes in all states that are reachable from some states."""
        assert self._imagination is not None
        found = self._table.ask(self._imagination, "reachable:enumerate_outcomes", roots)
        with check_reply():
            numbers = self._table.add_states(roots, found)
            in_bounds = found["next_state"] >= 0
            outcomes = OutcomeTable(
                (numbers[found["state"]] * self._size + found["action"])[in_bounds],
                found["probability"][in_bounds],
                numbers[found["next_state"][in_bounds]],
                found["reward"][in_bounds],
                found["terminated"][in_bounds],
            )
        self._table.expanded[numbers] = 1
        if (prior := self._prior) is not None:
            new_pairs = ~np.isin(outcomes.pair, prior.pair)
            parts = zip(prior, outcomes, strict=True)
            outcomes = OutcomeTable(*(np.concatenate([a, b[new_pairs]]) for a, b in parts))
        self._prior = outcomes

    def _outcomes(self) -> OutcomeTable:
        """Return the posterior: the outcomes of the program, updated with the counts of rows."""
        is_recent = len(self._steps) - self._counted <= 0.1 * self._counted  # 10 % of new rows
        if self._posterior is not None and is_recent:
            return self._posterior
        weights: defaultdict[tuple[int, int, float, bool], float] = defaultdict(float)
        if self._prior is not None:
            entries = zip(*(part.tolist() for part in self._prior), strict=True)
            # Weight of the program's probabilities, in rows of the same state and action. It is
            # large because the program was fitted to all rows, which share its rules.
            prior_count = 30.0
            for pair, probability, *outcome in entries:
                weights[pair, *outcome] += prior_count * probability
        for (state, action, *outcome), count in Counter(self._steps).items():
            weights[state * self._size + action, *outcome] += count
        columns = zip(*weights, strict=True) if weights else [()] * 4
        dtypes = (np.int64, np.int64, float, bool)
        pair, after, reward, ended = map(np.array, columns, dtypes)
        weight = np.array(list(weights.values()), float)
        probability = weight / np.bincount(pair, weight)[pair]
        self._posterior = OutcomeTable(pair, probability, after, reward, ended)
        self._counted, self._values, self._curiosity = len(self._steps), [], None
        return self._posterior

    # --- values

    def _backup(
        self, outcomes: OutcomeTable, rewards: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Return the values (states, actions) one step before the state `values`."""
        after = np.where(outcomes.terminated, 0.0, values[outcomes.next_state])
        weights = outcomes.probability * (rewards + after)
        sums = np.bincount(outcomes.pair, weights, minlength=len(self._table) * self._size)
        return sums.reshape(-1, self._size)

    def _action_values(self, state: int, left: int) -> np.ndarray:
        """Return the value of every action in a state with `left` steps left.

        An action without a known outcome earns the usual reward at every step.
        """
        outcomes, usual = self._outcomes(), self.known.usual_reward or 0.0
        left = min(left, 1_000)  # approximates values with more steps left
        count, size = len(self._table), self._size
        if not self._values or len(self._values[0]) != count:
            self._values = [np.zeros(count)]
            entries = np.bincount(outcomes.pair, minlength=count * size)
            self._unknown_pairs = (entries == 0).reshape(-1, size)
            largest = max(1e-9, np.abs(outcomes.reward).max(initial=0.0))
            # cost of a step as a fraction of the largest reward; of equal returns, the shortest
            # path wins
            step_cost = 1e-7
            self._net_rewards = outcomes.reward - step_cost * largest
        while len(self._values) <= left:
            usual_return = usual * len(self._values)
            values = self._backup(outcomes, self._net_rewards, self._values[-1])
            self._values.append(np.where(self._unknown_pairs, usual_return, values).max(axis=1))
        values = self._backup(outcomes, self._net_rewards, self._values[left - 1])[state]
        return np.where(self._unknown_pairs[state], usual * left, values)

    def _curiosities(self) -> np.ndarray:
        """Return the discounted chance (states, actions) of reaching an unknown transition."""
        outcomes = self._outcomes()
        if self._curiosity is not None and len(self._curiosity) == len(self._table):
            return self._curiosity
        size, count = self._size, len(self._table)
        tried, visited = np.zeros(count * size, bool), np.zeros(count, bool)
        for step in self._steps:
            tried[step.state * size + step.action] = True
            visited[[step.state, step.next_state]] = True
        is_new = ~visited[outcomes.next_state]
        is_predicted = np.bincount(outcomes.pair, minlength=count * size) > 0
        # An untried action has the value 1, or 0.5 if the program predicts its outcome.
        own = np.where(tried, 0.0, np.where(is_predicted, 0.5, 1.0)).reshape(count, size)
        outcomes = outcomes._replace(terminated=outcomes.terminated | is_new)
        values = np.zeros((count, size))
        # discount per step of the value of unknown transitions, so that shorter paths win
        discount = 0.97
        for _ in range(min(2 * self.known.limit, 200)):  # later transitions have almost no value
            # A new state has the value 1, also after the discount.
            backup = self._backup(outcomes, is_new / discount, values.max(axis=1))
            improved = np.maximum(discount * backup, own)
            if np.abs(improved - values).max(initial=0.0) < MIN_CURIOSITY / 100:
                break
            values = improved
        self._curiosity = values
        return values
