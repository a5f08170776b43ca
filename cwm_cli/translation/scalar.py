"""A translated program as a model of one state at a time."""

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

# Emitted code raises these if the program has to compute the step, or if there is no state.
ARITHMETIC_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)

_REPEATABLE = (bytes, list, tuple, np.ndarray)


class TranslatedModel(Model):
    """A model that computes steps of a program, and calls the program if it cannot.

    `play` leaves the state unchanged. The model has no state of its own
    after the end of an episode and after a step of the program; the program then computes the
    next step. `fallbacks` counts how often the program was called.
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
        self.fallbacks = 0

    @cached_property
    def memoryless(self) -> Model:
        """The same form, with the state set from the last observation before every step."""
        return MemorylessModel(self, self._program)

    def stand(self, state: Any) -> None:
        """Set the state by an observation or by a result of `here`."""
        self._here = state if type(state) is Here else Here(state, self._enter_state(state))

    def here(self) -> Any:
        """Return the observation and the state."""
        return self._here

    def step(self, action: Any) -> Step:
        """Take an action."""
        answer = self._take_step(self._here.state, action)
        if answer is None:
            self._restore_program()
            step = self._program.step(action)
            state = None if step.terminated else self._enter_state(step.observation)
            self._here = Here(step.observation, state)
            return step
        self.counter[0] += 1
        self.used.add(self.form)
        observation, reward, terminated, state = answer
        self._here = Here(observation, None if terminated else state)
        return Step(observation, reward, terminated)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        # The program needs the actions again if the translation fails halfway.
        first, again = (actions, actions) if type(actions) in _REPEATABLE else tee(actions)
        answer = self._play_actions(self._here.state, first, discount)
        if answer is None or not isfinite(answer[0]):
            self._restore_program()
            return self._program.play(again, discount)
        total, count = answer
        self.counter[0] += count
        self.used.add(self.form)
        return total

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        """Return the returns of plans from the program, which uses its batch if it has one."""
        return self._program.returns(states, plans)

    def _restore_program(self) -> None:
        self.fallbacks += 1
        self._program.stand(self._here.observation)

    @abstractmethod
    def _enter_state(self, observation: Any) -> Any:
        """Return the state for an observation, or None if the program has to be called."""

    @abstractmethod
    def _take_step(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        """Return observation, reward, terminated and next state; None to call the program."""

    @abstractmethod
    def _play_actions(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        """Return the return of actions and the number of steps; None to call the program."""


class ScalarFunctions(NamedTuple):
    """Emitted functions on plain numbers: enter a state, take a step, play actions."""

    enter: Callable[[Sequence[Any]], Any]
    step: Callable[[Any, Any], tuple[Any, Sequence[Any], float, bool]]
    play: Callable[[Any, Iterable[Any], float], tuple[float, int, bool]]


class ArithmeticModel(TranslatedModel):
    """A program as plain arithmetic on Python numbers."""

    def __init__(
        self, program: Program, functions: ScalarFunctions, observation_space: Space
    ) -> None:
        super().__init__(program)
        self._enter, self._step, self._play = functions
        self._takes_integers = program.action_space.kind == "discrete"
        self._takes_vectors = len(program.action_space.shape) == 1
        self._observes_integers = observation_space.kind == "discrete"
        self._dtype = np.float64 if observation_space.is_float else np.int64
        self._shape = observation_space.shape

    def _enter_state(self, observation: Any) -> Any:
        try:
            return self._enter(np.ravel(observation).tolist())
        except ARITHMETIC_ERRORS:
            return None

    def _take_step(self, state: Any, action: Any) -> tuple[Any, float, bool, Any] | None:
        try:
            state, components, reward, terminated = self._step(
                state, action if self._takes_integers else np.ravel(action).tolist()
            )
            if not (-LARGEST < reward < LARGEST and isfinite(sum(components))):
                return None
        except ARITHMETIC_ERRORS:
            return None
        if self._observes_integers:
            return int(components[0]), reward, terminated, state
        observation = np.array(components, self._dtype)
        if len(self._shape) != 1:
            observation = observation.reshape(self._shape)
        return observation, reward, terminated, state

    def _play_actions(
        self, state: Any, actions: Iterable[Any], discount: float
    ) -> tuple[float, int] | None:
        if self._takes_vectors:
            actions = map(np.ndarray.tolist, actions)
        elif not self._takes_integers:
            actions = (np.ravel(action).tolist() for action in actions)
        try:
            return self._play(state, actions, discount)[:2]
        except ARITHMETIC_ERRORS:
            return None
