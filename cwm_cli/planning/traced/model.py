"""A program as a model of plain arithmetic."""

from collections.abc import Callable, Iterable, Sequence
from itertools import tee
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import LARGEST, Batch, Step
from cwm_cli.planning.program import Program
from cwm_cli.planning.traced.plain import Plain, State

FAILURES = (ArithmeticError, LookupError, TypeError, ValueError)
"""What plain arithmetic raises where numpy goes on, and where it has no state."""


_REPEATABLE = (bytes, list, tuple, np.ndarray)


class Here(NamedTuple):
    """A state, and the observation that came with it."""

    observation: Any
    state: State | None


class Traced:
    """Does with plain numbers what a program does, and asks the program where that fails.

    After `play` it stands where it stood before. It has no state from which
    plain arithmetic could go on where an episode has ended or arithmetic failed.
    """

    deterministic = True

    def __init__(self, program: Program, functions: Plain, observation_space: Space) -> None:
        self._program = program
        self._enter, self._step, self._play = functions
        self._observation = _reader(observation_space)
        self._here = Here(None, None)
        self.action_space = program.action_space
        self._takes_integers = program.action_space.kind == "discrete"
        self.counter = program.counter
        self.batch: Batch | None = program.batch
        self.returns: Callable[[Sequence[Any], np.ndarray], np.ndarray] = program.returns
        self.used = program.used
        self.redone = 0
        """How often the program was asked."""

    def stand(self, state: Any) -> None:
        """Stand at an observation, or where `here` said."""
        self._here = state if type(state) is Here else self._at(state)

    def here(self) -> Any:
        """Return the observation and the state."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        taken = action if self._takes_integers else np.ravel(action).tolist()
        try:
            state, observed, reward, terminated = self._step(self._here.state, taken)
            odd = not (-LARGEST < reward < LARGEST and isfinite(sum(observed)))
        except FAILURES:
            odd = True
        if odd:
            return self._redo(action)
        self.counter[0] += 1
        self.used.add("arithmetic")
        observation = self._observation(observed)
        self._here = Here(observation, None if terminated else state)
        return Step(observation, reward, terminated)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        taken, again = (actions, actions) if type(actions) in _REPEATABLE else tee(actions)
        try:
            total, count, _ = self._play(self._here.state, self._plain(taken), discount)
        except FAILURES:
            return self._replay(again, discount)
        if not isfinite(total):
            return self._replay(again, discount)
        self.counter[0] += count
        self.used.add("arithmetic")
        return total

    def _at(self, observation: Any) -> Here:
        """Return where one stands at an observation."""
        try:
            return Here(observation, self._enter(np.ravel(observation).tolist()))
        except FAILURES:
            return Here(observation, None)

    def _plain(self, actions: Iterable[Any]) -> Iterable[Any]:
        """Return actions as plain numbers."""
        if self._takes_integers:
            return actions
        if len(self.action_space.shape) == 1:
            return map(np.ndarray.tolist, actions)
        return (np.ravel(action).tolist() for action in actions)

    def _redo(self, action: Any) -> Step:
        """Take an action in the program."""
        self._place()
        step = self._program.step(action)
        self._here = Here(step.observation, None) if step.terminated else self._at(step.observation)
        return step

    def _replay(self, actions: Iterable[Any], discount: float) -> float:
        """Take actions in the program."""
        self._place()
        return self._program.play(actions, discount)

    def _place(self) -> None:
        """Let the program stand where we stand."""
        self.redone += 1
        self._program.stand(self._here.observation)


def _reader(space: Space) -> Callable[[State], Any]:
    """Return what makes an observation as a program's is read."""
    if space.kind == "discrete":
        return lambda numbers: int(numbers[0])
    dtype, shape = (np.float64 if space.is_float else np.int64), space.shape
    return lambda numbers: np.array(numbers, dtype).reshape(shape)
