"""Aims of an episode other than reward: new observations, and numbers at their extremes.

`Curious` and `Driven` are copies of the environment with a reward for such an aim. Summaries of
earlier rows distinguish new observations from known ones.
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

ENDLESS = 30.0
"""Steps that a new way to end an episode counts for.

With more, episodes end soon rather than go far; with none they avoid their end.
"""

MISSING = 100.0
"""Steps that the end counts for as long as no episode has ended."""

WALKS = 3
"""Random walks from the start of an episode, to measure how far each number moves unaided."""

STRAYING = 0.02
"""Cost of a step if the other numbers are off their start by the range of the random walks.

The unit is the reward for moving the driven number by its own such range. With a higher cost no
number is driven anywhere.
"""

STRAYED_END = 20.0
"""Steps with this cost that the end of an episode is charged, for the steps that it prevents."""

STILL = 1e-9
"""Relative change below which a number counts as constant, since only its digits change."""


@dataclass(frozen=True)
class NumberSpan:
    """The lowest and the highest of each number of some observations; None without any."""

    bounds: np.ndarray | None = None

    @classmethod
    def of(cls, observations: Iterable[Any]) -> Self:
        """Return the span of the numbers of observations."""
        numbers = np.array([told(observation).numbers for observation in observations])
        return cls(np.array([numbers.min(axis=0), numbers.max(axis=0)]) if len(numbers) else None)

    def union(self, other: Self) -> Self:
        """Return the span of both."""
        if self.bounds is None or other.bounds is None:
            return other if self.bounds is None else self
        (low, high), (least, most) = self.bounds, other.bounds
        return type(self)(np.array([np.minimum(low, least), np.maximum(high, most)]))

    def beyond(self, numbers: np.ndarray, share: float = 0.0) -> int:
        """Count the numbers that are outside, by a share of the width."""
        if self.bounds is None:
            return len(numbers)
        low, high = self.bounds
        room = share * (high - low)
        return int(((numbers > high + room) | (numbers < low - room)).sum())


class NumberRanges:
    """Spans after all steps and after non-terminal steps, and whether an episode ended."""

    def __init__(self) -> None:
        self.ended = False
        self.after, self.going = NumberSpan(), NumberSpan()

    def add(self, rows: Sequence[Transition]) -> None:
        """Widen the spans."""
        going = [row.next_observation for row in rows if not row.terminated]
        self.ended = self.ended or len(going) < len(rows)
        self.after = self.after.union(NumberSpan.of(row.next_observation for row in rows))
        self.going = self.going.union(NumberSpan.of(going))


class TriedActions:
    """Pairs of observation and action in the rows, and how often each reward ended an episode."""

    def __init__(self) -> None:
        self.pairs: set[tuple[Any, int]] = set()
        self.ends = Counts[float]()

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the pairs and the ends of rows."""
        self.pairs.update((key(row.observation), row.action) for row in rows)
        self.ends.update(row.reward for row in rows if row.terminated)


class Seen:
    """Seen observations: the span of real numbers, and all values of other leaves."""

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
        """Return the distance of an observation from all recorded observations."""
        numbers, other = told(observation)
        new = other not in self._others
        if all(map(le, self._least, numbers)) and all(map(le, numbers, self._most)):
            return float(new)
        beyond = np.maximum(numbers - self._high, self._low - numbers)
        far = np.log1p(np.maximum(beyond, 0) / self._width)
        return float(far.sum()) + new


def has_rare_outcomes(rows: Iterable[Transition]) -> bool:
    """Return whether an outcome occurred too rarely to find out its conditions.

    An outcome is a reward, and whether the episode terminated. It is frequent enough after 20
    times, since a condition that holds in a quarter of the cases is then missing with probability
    0.003, or after 5 times in the same situation. Observations of real numbers are never rare:
    each is new, and their limits are searched for by driving numbers to their extremes. Neither
    are rewards of more than ten different values.
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


class Curious(Model):
    """A simulator that rewards observations for their distance from the recorded observations."""

    def __init__(self, simulator: Simulator | CachingSimulator, seen: Seen, *, ended: bool) -> None:
        self._simulator = simulator
        self._seen = seen
        self._end = ENDLESS if ended else MISSING
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        self._simulator.stand(state)

    def here(self) -> Any:
        """Return the state of the simulator."""
        return self._simulator.here()

    def step(self, action: Any) -> Step:
        """Take an action; an end counts as many steps at that observation."""
        observation, _, terminated, valid = self._simulator.step(action)
        novelty = self._seen.novelty(observation)
        return Step(observation, novelty * (self._end if terminated else 1.0), terminated, valid)


class Driven(Model):
    """A simulator that rewards each number of the observation for a new extreme.

    The corner chooses the direction of each number, up or down. The unit of a number is its range
    in random walks. In the first corner all numbers go up, in the second all go down, in the next
    two every other one goes up, then pairs, and so on: any two numbers are combined in each way. A
    state is the state of the simulator with the extreme of each number so far.

    With the widths of `bounds`, one number is driven alone, at a small cost for the distance of the
    other numbers from their start: the limit of a track is distinguished from a fall only if
    nothing falls there. The number that random walks leave farthest from its bounds comes first, up
    in the first corner and down in the second, then the next number. Numbers without bounds are
    last.
    """

    def __init__(
        self, simulator: Simulator | CachingSimulator, corner: int, bounds: np.ndarray | None = None
    ) -> None:
        self._simulator = simulator
        self._corner = corner
        self._bounds = bounds
        self._scale = self._far = self._shown = self._charge = self._start = np.empty(0)
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def measure(
        self, state: Any, observation: Any, valid: Any, actions: gym.Space[Any], steps: int
    ) -> None:
        """Measure the start of an episode, and the range of each number in random walks from it."""
        found = [np.array(told(observation).numbers)]
        for _ in range(WALKS):
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
        self._scale = np.array(signs) / np.where(span > STILL * (1 + size), span, 1 + size)
        self._charge = np.zeros(len(span))
        if self._bounds is not None:
            unit, order = np.abs(self._scale), np.argsort(span / self._bounds, kind="stable")
            alone = order[self._corner // 2 % len(span)]
            self._charge = STRAYING * unit / len(span)
            self._charge[alone] = 0.0
            self._scale = np.zeros(len(span))
            self._scale[alone] = -unit[alone] if self._corner % 2 else unit[alone]
        self._shown = self._scale * self._start

    def reached(self, state: Any, observation: Any) -> Any:
        """Return the state of an episode that has reached an observation."""
        self._shown = np.maximum(self._shown, self._scale * told(observation).numbers)
        return state, self._shown

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        inner, self._far = state
        self._simulator.stand(inner)

    def here(self) -> Any:
        """Return the state of the simulator, with the extreme of each number so far."""
        return self._simulator.here(), self._far

    def step(self, action: Any) -> Step:
        """Take an action; the reward is the distance of each number beyond its extreme so far."""
        observation, _, terminated, valid = self._simulator.step(action)
        before, numbers = self._far, np.array(told(observation).numbers)
        self._far = np.maximum(before, self._scale * numbers)
        reward = float((self._far - before).sum())
        if self._bounds is not None:
            strayed = float(self._charge @ np.abs(numbers - self._start))
            reward -= strayed * (STRAYED_END if terminated else 1.0)
        return Step(observation, reward, terminated, valid)
