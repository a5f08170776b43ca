"""Aims of an episode other than reward: new observations, and numbers at their extremes.

`NoveltyModel` and `ExtremesModel` are copies of the environment with a reward for such an aim.
Summaries of earlier rows distinguish new observations from known observations.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import le
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cwm_cli.commands.policies import told
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import CachingSimulator, Simulator
from cwm_cli.envs.tasks import random_action
from cwm_cli.planning.model import Counter, Model, Step, countable, key

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class NumberSpan:
    """The minimum and maximum of each number of some observations, (2, numbers); None without."""

    bounds: np.ndarray | None = None

    @classmethod
    def of(cls, observations: Iterable[Any]) -> Self:
        """Return the span of the numbers of observations."""
        numbers = np.array([told(observation).numbers for observation in observations])
        return cls(np.array([numbers.min(axis=0), numbers.max(axis=0)]) if len(numbers) else None)

    def union(self, other: Self) -> Self:
        """Return the span of the observations of both."""
        if self.bounds is None or other.bounds is None:
            return other if self.bounds is None else self
        (low, high), (least, most) = self.bounds, other.bounds
        return type(self)(np.array([np.minimum(low, least), np.maximum(high, most)]))

    def beyond(self, numbers: np.ndarray, share: float = 0.0) -> int:
        """Count the numbers outside the span by more than a share of its width."""
        if self.bounds is None:
            return len(numbers)
        low, high = self.bounds
        margin = share * (high - low)
        return int(((numbers > high + margin) | (numbers < low - margin)).sum())


class NumberRanges:
    """Spans after all steps and after non-terminal steps, and whether an episode ended."""

    def __init__(self) -> None:
        self.ended = False
        self.after, self.going = NumberSpan(), NumberSpan()

    def add(self, rows: Sequence[Transition]) -> None:
        """Extend the spans to rows."""
        going = [row.next_observation for row in rows if not row.terminated]
        self.ended = self.ended or len(going) < len(rows)
        self.after = self.after.union(NumberSpan.of(row.next_observation for row in rows))
        self.going = self.going.union(NumberSpan.of(going))


class TriedActions:
    """Pairs of observation and action in rows, and the number of ends of episodes by reward."""

    def __init__(self) -> None:
        self.pairs: set[tuple[Any, int]] = set()
        self.ends = Counts[float]()

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the pairs and the ends of rows."""
        self.pairs.update((key(row.observation), row.action) for row in rows)
        self.ends.update(row.reward for row in rows if row.terminated)


class SeenObservations:
    """Recorded observations: the span of real numbers, and all values of other leaves."""

    def __init__(self) -> None:
        self._span, self._others = NumberSpan(), set[Any]()
        self._low = self._high = self._width = np.empty(0)
        self._least, self._most = list[float](), list[float]()

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the observations of rows."""
        observations = [each for row in rows for each in (row.observation, row.next_observation)]
        self._others.update(told(observation).other for observation in observations)
        self._span = self._span.union(NumberSpan.of(observations))
        if self._span.bounds is not None:
            self._low, self._high = self._span.bounds
            self._least, self._most = self._low.tolist(), self._high.tolist()
            width = self._high - self._low
            self._width = np.where(width > 0, width, 1.0)

    def novelty(self, observation: Any) -> float:
        """Return the distance of an observation from the recorded ones; 0 if it is inside."""
        numbers, other = told(observation)
        new = other not in self._others
        if all(map(le, self._least, numbers)) and all(map(le, numbers, self._most)):
            return float(new)
        beyond = np.maximum(numbers - self._high, self._low - numbers)
        far = np.log1p(np.maximum(beyond, 0) / self._width)
        return float(far.sum()) + new


def has_rare_outcomes(rows: Iterable[Transition]) -> bool:
    """Return whether an outcome occurred too rarely to infer its conditions.

    An outcome is a reward together with the end of the episode. It is frequent enough after 20
    occurrences: a condition that holds in a quarter of the cases is then missing with probability
    0.003. It is also frequent enough after 5 occurrences in the same situation. The result is
    False for observations of real numbers, because each is new and their limits are found by
    driving numbers to their extremes, and for more than ten different outcomes.
    """
    situations: dict[tuple[float, bool], Counts[Any]] = {}
    for row in rows:
        if not countable(row.observation):
            return False
        counts = situations.setdefault((row.reward, row.terminated), Counts())
        counts[key(row.observation), key(row.action)] += 1
    if len(situations) > 10:
        return False
    return any(counts.total() < (5 if len(counts) == 1 else 20) for counts in situations.values())


class NoveltyModel(Model):
    """A simulator that rewards observations for their distance from the recorded observations."""

    def __init__(
        self, simulator: Simulator | CachingSimulator, seen: SeenObservations, *, ended: bool
    ) -> None:
        self._simulator = simulator
        self._seen = seen
        # A new end of an episode counts like this number of steps. With a higher value, episodes
        # end early instead of going far. With 0, they avoid their end.
        end_steps = 30.0
        first_end_steps = 100.0  # the value of an end, in steps, until an episode has ended
        self._end = end_steps if ended else first_end_steps
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def stand(self, state: Any) -> None:
        """Set the simulator to a state."""
        self._simulator.stand(state)

    def here(self) -> Any:
        """Return the state of the simulator."""
        return self._simulator.here()

    def step(self, action: Any) -> Step:
        """Take an action; the reward is the novelty, multiplied at an end of the episode."""
        observation, _, terminated, valid = self._simulator.step(action)
        novelty = self._seen.novelty(observation)
        return Step(observation, novelty * (self._end if terminated else 1.0), terminated, valid)


class ExtremesModel(Model):
    """A simulator that rewards each number of the observation for a new extreme.

    The unit of a number is its range in random walks. A state is the state of the simulator with
    the extreme of each number so far.

    Args:
        simulator: The copy of the environment.
        corner: Chooses the direction of each number. In corner 0 all numbers go up, in corner 1
            all go down, in the next two every second number goes up, then pairs, and so on. So any
            two numbers are combined in each possible way.
        bounds: Widths of the bounds of each number, NaN without bounds. With it, only one number
            is driven, and the distance of the other numbers from their start has a small cost: the
            limit of a track can be distinguished from a fall only if nothing falls there. The
            first number is the one whose range in random walks is the smallest part of its bounds,
            up in corner 0 and down in corner 1, then the next number. Numbers without bounds are
            last.
    """

    def __init__(
        self, simulator: Simulator | CachingSimulator, corner: int, bounds: np.ndarray | None = None
    ) -> None:
        self._simulator = simulator
        self._corner = corner
        self._bounds = bounds
        self._scale = self._extremes = self._reached_extremes = self._costs = self._start = (
            np.empty(0)
        )
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def measure(
        self, state: Any, observation: Any, valid: Any, actions: gym.Space[Any], steps: int
    ) -> None:
        """Measure the start of an episode, and the range of each number in random walks."""
        found = [np.array(told(observation).numbers)]
        # random walks from the start of an episode, to measure the range of each number
        random_walks = 3
        for _ in range(random_walks):
            self._simulator.stand(state)
            allowed = valid
            for _ in range(steps):
                step = self._simulator.step(random_action(actions, allowed))
                found.append(np.array(told(step.observation).numbers))
                allowed = step.valid
                if step.terminated:
                    break
        span, size = np.ptp(found, axis=0), np.abs(found).max(axis=0)
        numbers = np.arange(len(span)) & self._corner // 2
        signs = [(-1) ** (int(number).bit_count() + self._corner) for number in numbers]
        self._start = found[0]
        # a number with a smaller relative change counts as constant: only rounding errors change it
        min_relative_change = 1e-9
        self._scale = np.array(signs) / np.where(
            span > min_relative_change * (1 + size), span, 1 + size
        )
        self._costs = np.zeros(len(span))
        if self._bounds is not None:
            unit, order = np.abs(self._scale), np.argsort(span / self._bounds, kind="stable")
            alone = order[self._corner // 2 % len(span)]
            # Cost of a step if the other numbers deviate from their start by their range in random
            # walks. The unit is the reward for moving the driven number by its range. With a higher
            # cost, no number moves.
            deviation_cost = 0.02
            self._costs = deviation_cost * unit / len(span)
            self._costs[alone] = 0.0
            self._scale = np.zeros(len(span))
            self._scale[alone] = -unit[alone] if self._corner % 2 else unit[alone]
        self._reached_extremes = self._scale * self._start

    def reached(self, state: Any, observation: Any) -> Any:
        """Return the state of this model for an episode at an observation."""
        self._reached_extremes = np.maximum(
            self._reached_extremes, self._scale * told(observation).numbers
        )
        return state, self._reached_extremes

    def stand(self, state: Any) -> None:
        """Set the model to a state."""
        inner, self._extremes = state
        self._simulator.stand(inner)

    def here(self) -> Any:
        """Return the state of the simulator, with the extreme of each number so far."""
        return self._simulator.here(), self._extremes

    def step(self, action: Any) -> Step:
        """Take an action; the reward is the distance of each number beyond its extreme so far."""
        observation, _, terminated, valid = self._simulator.step(action)
        before, numbers = self._extremes, np.array(told(observation).numbers)
        self._extremes = np.maximum(before, self._scale * numbers)
        reward = float((self._extremes - before).sum())
        if self._bounds is not None:
            cost = float(self._costs @ np.abs(numbers - self._start))
            # an end of an episode costs as much as this number of steps, for the steps that it
            # prevents
            end_cost_steps = 20.0
            reward -= cost * (end_cost_steps if terminated else 1.0)
        return Step(observation, reward, terminated, valid)
