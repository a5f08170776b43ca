"""What an episode is planned for: much reward, little, or observations that are new."""

from collections.abc import Iterable, Iterator, Sequence
from operator import le
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.envs.simulators import Remembering, Simulator
from cwm_cli.planning.model import Batch, Counter, Step, key
from cwm_cli.planning.states import countable

ENDLESS = 30.0
"""Steps that the end of an episode counts for where it is new.

With more, episodes end soon rather than go far; with none they avoid their end.
"""

MISSING = 100.0
"""Steps that it counts for as long as no episode has come to an end."""


class Seen:
    """What observations there were: the span of the real numbers, and all of the others."""

    def __init__(self, observations: Iterable[Any]) -> None:
        told = [_told(observation) for observation in observations]
        numbers = np.array([told.numbers for told in told])
        self._low, self._high = numbers.min(axis=0), numbers.max(axis=0)
        self._least, self._most = self._low.tolist(), self._high.tolist()
        width = self._high - self._low
        self._width = np.where(width > 0, width, 1.0)
        self._others = {told.other for told in told}

    def novelty(self, observation: Any) -> float:
        """Return how far an observation is from all that was seen."""
        numbers, other = _told(observation)
        new = other not in self._others
        if all(map(le, self._least, numbers)) and all(map(le, numbers, self._most)):
            return float(new)
        beyond = np.maximum(numbers - self._high, self._low - numbers)
        far = np.log1p(np.maximum(beyond, 0) / self._width)
        return float(far.sum()) + new


class Curious:
    """A simulator that rewards observations for being unlike those that were seen."""

    batch: Batch | None = None

    def __init__(self, simulator: Simulator | Remembering, seen: Seen, *, ended: bool) -> None:
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
        """Return the state in which the simulator is."""
        return self._simulator.here()

    def step(self, action: Any) -> Step:
        """Take an action; the end counts as if the episode went on there."""
        observation, _, terminated, valid = self._simulator.step(action)
        novelty = self._seen.novelty(observation)
        return Step(observation, novelty * (self._end if terminated else 1.0), terminated, valid)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of novelty."""
        total, factor = 0.0, 1.0
        for action in actions:
            step = self.step(action)
            total += factor * step.reward
            if step.terminated:
                break
            factor *= discount
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> np.ndarray:
        """Return the sums of novelty of plans from each state."""
        returns = np.empty(plans.shape[:2])
        for index, state in enumerate(states):
            for number, plan in enumerate(plans[index]):
                self.stand(state)
                returns[index, number] = self.play(plan.copy())
        return returns


class _Told(NamedTuple):
    """The real numbers of an observation, and all the rest of it."""

    numbers: list[float]
    other: Any


def _told(observation: Any) -> _Told:
    """Part an observation."""
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
        return _Told(observation.ravel().tolist(), ())
    leaves = list(_leaves(observation))
    numbers = [np.ravel(leaf) for leaf in leaves if not countable(leaf)]
    others = tuple(key(leaf) for leaf in leaves if countable(leaf))
    return _Told(np.concatenate([np.empty(0), *numbers]).tolist(), others)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what an observation is made of."""
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value
