"""Environments that a program simulates, for recorded data without a simulator.

Episodes begin at recorded initial observations. Their returns are predictions of the program, no
measurements of the recorded system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import gym_space_of
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import printable
from cwm_cli.worlds.messages import MAX_NOTE_BYTES
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.remote import ProgramFailed

T = TypeVar("T")


class ProgramSimulator(AbstractContextManager["ProgramSimulator"]):
    """Steps a program for any number of environments, one step at a time; close it with `with`.

    Args:
        model: The program.
        rows: Recorded transitions; their episodes give the initial observations.
    """

    def __init__(self, model: ProgramModel, rows: Dataset) -> None:
        self.rows = rows
        _, firsts = np.unique(rows.columns["episodes"], return_index=True)
        self.starts: list[Any] = [rows.row(row).observation for row in firsts.tolist()]
        self._model = model.step_remotely(rows)
        self._lock = Lock()

    def make(self, **_: Any) -> SimulatedEnv:
        """Return an environment; the arguments of the recorded one do not matter."""
        return SimulatedEnv(self)

    def begin(self, observation: Any) -> Any:
        """Return the state of the program at the start of an episode."""
        begun = EpisodeHistory((observation,)) if self._model.remembers else observation
        return self._ask(lambda: self._stand(begun))

    def step(self, place: Any, action: Any, key: Sequence[int]) -> tuple[Any, Any]:
        """Return the result of an action in a state, and the next state.

        Args:
            place: A state from `begin` or `step`.
            action: The action.
            key: Whole numbers that determine the random numbers of this step.
        """

        def act() -> tuple[Any, Any]:
            self._stand(place)
            if not self._model.deterministic:
                self._model.draw_from(key)
            found = self._model.step(action)
            self._model.reported.clear()
            return found, self._model.here()

        return self._ask(act)

    def close(self) -> None:
        """End the process of the program."""
        self._model.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _stand(self, place: Any) -> Any:
        self._model.stand(place)
        return self._model.here()

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the process, which answers one environment at a time."""
        try:
            with self._lock:
                return question()
        except ProgramFailed as error:
            message = printable(str(error), MAX_NOTE_BYTES)
            raise CwmError(f"the program failed: {message}") from error


class SimulatedEnv(gym.Env[Any, Any]):
    """An environment that a program steps, from recorded initial observations."""

    def __init__(self, simulator: ProgramSimulator) -> None:
        self.observation_space = gym_space_of(simulator.rows.observation_space)
        self.action_space = gym_space_of(simulator.rows.action_space)
        self._simulator = simulator
        self._place: Any = None
        self._key: tuple[int, ...] = ()
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode at a recorded initial observation, chosen by the seed."""
        super().reset(seed=seed)
        starts = self._simulator.starts
        observation = starts[self.np_random.integers(len(starts))]
        self._key, self._steps = (int(self.np_random.integers(1 << 31)),), 0
        self._place = self._simulator.begin(observation)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Predict the outcome of an action."""
        found, self._place = self._simulator.step(self._place, action, (*self._key, self._steps))
        self._steps += 1
        return found.observation, found.reward, found.terminated, False, {}
