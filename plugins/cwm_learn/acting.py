"""Choose the actor of an environment, and call it safely: its program may fail at any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from cwm_cli.envs.tasks import random_action
from cwm_cli.errors import CwmError
from cwm_cli.worlds.remote import OutOfTime, ProgramFailed
from cwm_learn.actors.base import (
    PLAY_AIMS,
    Actor,
    Aim,
    Intent,
    Knowledge,
    OpenQuestion,
)
from cwm_learn.actors.continuous import ContinuousActor
from cwm_learn.actors.tabular import TabularActor
from cwm_learn.imagination import SearchImagination
from cwm_learn.writing import EXCEPTIONS

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.dataset import Dataset, Transition
    from cwm_cli.planning.model import Step
    from cwm_cli.sandbox import Sandbox
    from cwm_cli.sandbox.failures import Failure

T = TypeVar("T")


def choose_actor(known: Knowledge) -> type[Actor]:
    """Return the first actor class that supports an environment."""
    for actor in (TabularActor, ContinuousActor):
        if actor.supports(known.observation_space, known.action_space):
            return actor
    raise CwmError(
        "learning needs real-valued observations with discrete or bounded real-valued actions, or "
        "discrete observations with few actions: use `cwm synthesize` on recorded data instead"
    )


class GuardedActor:
    """An actor that acts randomly if its program fails.

    Attributes:
        current: The actor for the present program.
        planning_seconds: Time for decisions and predictions.
        learning_seconds: Time of the actor to process new programs.
    """

    def __init__(
        self,
        kind: type[Actor],
        known: Knowledge,
        action_space: gym.Space[Any],
        sandbox: Sandbox,
        *,
        seconds_left: Callable[[], float],
        on_failure: Callable[[Failure], None],
    ) -> None:
        self.current = kind(known)
        self.planning_seconds = self.learning_seconds = 0.0
        self._kind, self._known, self._action_space = kind, known, action_space
        self._sandbox, self._seconds_left, self._on_failure = sandbox, seconds_left, on_failure

    def choose(
        self, observation: Any, left: int, aim: Aim | None, allowed: tuple[int, ...] | None
    ) -> Intent | None:
        """Return the intent of the actor; a random one if the program fails or it is invalid."""
        began = time.perf_counter()
        try:
            intent = self.current.choose(observation, left, aim)
        except ProgramFailed as error:
            self._on_failure(error.failure)
            return self.random_intent("the program failed", allowed)
        finally:
            self.planning_seconds += time.perf_counter() - began
        if intent is not None and intent.aim in PLAY_AIMS and self._known.plays_badly:
            return self.random_intent("play in this program was worse", allowed)
        if intent is None or allowed is None or intent.action in allowed:
            return intent
        return self.random_intent(f"{intent.action} is not allowed here", allowed)

    def random_intent(self, reason: str, allowed: tuple[int, ...] | None) -> Intent:
        """Return a random valid action."""
        return Intent(random_action(self._action_space, allowed), "explore", reason)

    def predict(self, observation: Any, action: Any) -> Step | None:
        """Return the predicted step; None without a program, or if it fails."""
        if not self._known.program:
            return None
        began = time.perf_counter()
        try:
            return self.current.predict(observation, action)
        except ProgramFailed as error:
            self._on_failure(error.failure)
            return None
        finally:
            self.planning_seconds += time.perf_counter() - began

    def matches(self, predicted: Step | None, row: Transition) -> bool:
        """Return whether there is a prediction and it equals the recorded outcome."""
        return predicted is not None and self.current.matches(predicted, row)

    def observe(self, row: Transition) -> None:
        """Record a step for the actor."""
        self._call(lambda: self.current.observe(row), None)

    def rebuild(self) -> None:
        """Recompute the tables and plans of the actor, which drops an unfinished search."""
        self._call(self.current.rebuild, None)

    def questions(self) -> list[OpenQuestion] | None:
        """Return the open questions of the actor; None if it fails."""
        return self._call(self.current.questions, None)

    def is_settled(self) -> bool:
        """Return whether no unvisited state could raise the return."""
        return self._call(lambda: self.current.is_settled, default=False)

    def adopt(self, program: str, rows: Dataset, *, is_stochastic: bool) -> None:
        """Simulate with another program from now on, and prepare the actor for it."""
        began, known = time.perf_counter(), self._known
        if known.imagination is not None:
            known.imagination.close()
        known.program = program
        if not self.current.KEEPS_EXCEPTIONS:
            program = program.partition(EXCEPTIONS)[0]
        known.imagination = SearchImagination(self._sandbox, program, rows, seed=known.seed)
        known.imagination.seconds_left = self._seconds_left
        known.disputed.clear()
        kind = self.current.stochastic_variant() if is_stochastic else self._kind
        if kind is not None and type(self.current) is not kind:
            self.current = kind(known)
        self.rebuild()
        self.learning_seconds += time.perf_counter() - began

    def _call(self, call: Callable[[], T], default: T) -> T:
        """Return the result of a call; the default if it fails or the time is over."""
        try:
            return call()
        except OutOfTime:
            return default
        except ProgramFailed as error:
            self._on_failure(error.failure)
            return default
