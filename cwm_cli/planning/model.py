"""A world model as something that stands at an observation and steps from there."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cwm_cli.packing import Space

LARGEST = 1e300
"""Rewards beyond this are checked: sums over any horizon have to stay finite."""


class Checks(NamedTuple):
    """Functions that return what a program answered as it should be, or refuse it."""

    triple: Callable[[Any], Any]
    reward: Callable[[Any], float]
    terminated: Callable[[Any], bool]
    observation: Callable[[Any], Any]


class Step(NamedTuple):
    """What a step led to."""

    observation: Any
    reward: float
    terminated: bool


class Counter(Protocol):
    """A place for one number, such as a list or shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Model:
    """A program's `Environment`; arrays are copied on their way in and out.

    Between two calls of `stand` every step goes on from the one before.
    `deterministic` says that the program draws no random numbers. The first
    element of `counter` counts the steps.
    """

    def __init__(
        self,
        environment: Any,
        checks: Checks,
        *,
        action_space: Space,
        deterministic: bool = True,
        counter: Counter | None = None,
    ) -> None:
        self._set_state, self._step = environment.set_state, environment.step
        self._checks = checks
        self.action_space = action_space
        self.deterministic = deterministic
        self.counter: Counter = [0] if counter is None else counter
        self._answer: Any = None

    def stand(self, observation: Any) -> None:
        """Stand at an observation."""
        self._set_state(copied(observation))

    def step(self, action: Any) -> Step:
        """Take an action."""
        reward, terminated = self._take((action,), 1.0)
        return Step(self._checks.observation(self._answer), reward, terminated)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        total, _ = self._take(actions, discount)
        self._checks.observation(self._answer)  # one that is wrong is refused, though not needed
        return total

    def _take(self, actions: Iterable[Any], discount: float) -> tuple[float, bool]:
        """Take actions; planners spend nearly all their time here."""
        step, checks, counter = self._step, self._checks, self.counter
        count, total, factor, terminated = counter[0], 0.0, 1.0, False
        for action in actions:
            counter[0] = count = count + 1
            result = step(action)
            if type(result) is not tuple or len(result) != 3:
                result = checks.triple(result)
            self._answer, reward, terminated = result
            if type(reward) is not float or not -LARGEST < reward < LARGEST:
                reward = checks.reward(reward)
            total += factor * reward
            if terminated is not False and checks.terminated(terminated):
                return total, True
            factor *= discount
        return total, False


def copied(value: Any) -> Any:
    """Copy a value, so that whoever gets it cannot change the original."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value


def key(value: Any) -> Any:
    """Return something hashable that is equal for equal values."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(key, value))
    if isinstance(value, dict):
        return tuple(map(key, value.values()))
    return value
