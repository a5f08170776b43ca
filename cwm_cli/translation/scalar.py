"""A translated program as a model, one state at a time."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import tee
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import LARGEST, Here, Model, Step
from cwm_cli.planning.program import MemorylessModel, Program

FAILURES = (ArithmeticError, LookupError, TypeError, ValueError)
"""What plain arithmetic raises where the program has to answer, and where it has no state."""

_REPEATABLE = (bytes, list, tuple, np.ndarray)


class Translated(Model):
    """Does what a program does, and asks the program where that cannot be.

    After `play` it stands where it stood before. It has no state of its own where
    an episode has ended and where the program had to answer; `redone` counts the
    latter.
    """

    deterministic = True
    form = "arithmetic"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._here = Here(None, None)
        self.action_space = program.action_space
        self.counter = program.counter
        self.batch = program.batch
        self.used = program.used
        self.redone = 0

    @cached_property
    def memoryless(self) -> Model:
        """The program that is stood at its last observation before every step, in this form."""
        return MemorylessModel(self, self._program)

    def stand(self, state: Any) -> None:
        """Stand at an observation, or where `here` said."""
        self._here = state if type(state) is Here else Here(state, self._entered(state))

    def here(self) -> Any:
        """Return the observation and the state."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        answer = self._taken(self._here.state, action)
        if answer is None:
            self._place()
            step = self._program.step(action)
            state = None if step.terminated else self._entered(step.observation)
            self._here = Here(step.observation, state)
            return step
        self.counter[0] += 1
        self.used.add(self.form)
        observation, reward, terminated, state = answer
        self._here = Here(observation, None if terminated else state)
        return Step(observation, reward, terminated)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        taken, again = (actions, actions) if type(actions) in _REPEATABLE else tee(actions)
        answer = self._played(self._here.state, taken, discount)
        if answer is None or not isfinite(answer[0]):
            self._place()
            return self._program.play(again, discount)
        total, count = answer
        self.counter[0] += count
        self.used.add(self.form)
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return what the program answers, which steps many at once where it can."""
        return self._program.returns(states, plans)

    def _place(self) -> None:
        """Let the program stand where we stand."""
        self.redone += 1
        self._program.stand(self._here.observation)

    @abstractmethod
    def _entered(self, observation: Any) -> Any:
        """Return the state at an observation, None where there is none."""

    @abstractmethod
    def _taken(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        """Return observation, reward, end and the next state, None where the program has to."""

    @abstractmethod
    def _played(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        """Return the return of some actions and how many were taken, None as above."""


class Functions(NamedTuple):
    """Plain arithmetic: enter a state, take a step, play actions."""

    enter: Callable[[Sequence[Any]], Any]
    step: Callable[[Any, Any], tuple[Any, Sequence[Any], float, bool]]
    play: Callable[[Any, Iterable[Any], float], tuple[float, int, bool]]


class Arithmetic(Translated):
    """Does with plain numbers what a program does."""

    def __init__(self, program: Program, functions: Functions, observation_space: Space) -> None:
        super().__init__(program)
        self._enter, self._step, self._play = functions
        self._takes_integers = program.action_space.kind == "discrete"
        self._takes_vectors = len(program.action_space.shape) == 1
        self._observes_integers = observation_space.kind == "discrete"
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._shape = observation_space.shape

    def _entered(self, observation: Any) -> Any:
        try:
            return self._enter(np.ravel(observation).tolist())
        except FAILURES:
            return None

    def _taken(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        taken = action if self._takes_integers else np.ravel(action).tolist()
        try:
            state, observed, reward, terminated = self._step(state, taken)
            if not (-LARGEST < reward < LARGEST and isfinite(sum(observed))):
                return None
        except FAILURES:
            return None
        if self._observes_integers:
            return int(observed[0]), reward, terminated, state
        observation = np.array(observed, self._dtype)
        if len(self._shape) != 1:
            observation = observation.reshape(self._shape)
        return observation, reward, terminated, state

    def _played(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        if not self._takes_integers:
            vectors = self._takes_vectors
            actions = map(np.ndarray.tolist, actions) if vectors else map(_plain, actions)
        try:
            return self._play(state, actions, discount)[:2]
        except FAILURES:
            return None


def _plain(action: Any) -> list[Any]:
    numbers: list[Any] = np.ravel(action).tolist()
    return numbers
