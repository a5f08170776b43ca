"""Collection of episodes, and agents and models that learn nothing.

These are `cwm train --agent planner`, `--agent random` and `--model dummy`, the true environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.commands.plan import choose_planners
from cwm_cli.commands.policies import RandomSession
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.tasks import Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.registry import environment, names
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import Planning, PlanningSession, WorldModel
from cwm_neural.training.trainer import Agent, AgentTrainer, Trainer, Training, TrainingTask

if TYPE_CHECKING:
    import gymnasium as gym


class Untrained(Agent):
    """An agent without parameters and without a saved state."""

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Set the model."""
        self.model = model
        return {}

    def save(self, folder: Path) -> None:
        """Write nothing."""

    def load(self, folder: Path) -> None:
        """Read nothing."""


@dataclass
class PlannerTrainer(AgentTrainer):
    """Plans every action in the current world model."""

    learns = False
    plans = True

    planner: str = "auto"
    """Planner, as for `cwm plan --planner`; the planner's own options can be set as well."""

    def begin(self, task: TrainingTask) -> Agent:
        """Check that a planner supports the spaces; `open` chooses among the model's planners."""
        spaces = task.observation_space, task.action_space
        choose_planners(self.planner, self.chosen, spaces, {}, names("planner"))
        return PlanningAgent(
            lambda suited: choose_planners(self.planner, self.chosen, spaces, {}, suited).planners
        )


class PlanningAgent(Untrained):
    """Plans in a world model, with the first chosen planner that supports the model."""

    def __init__(self, choose: Callable[[Sequence[str]], list[Planning]]) -> None:
        self._choose = choose

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Return a session of the planner, with `seed` as its random seed."""
        if self.model is None:
            raise CwmError("planning needs a world model: add --model or --world")
        planned = self.model.planned
        return planned.open(self._choose(planned.planners), replace(task, seed=seed))


@dataclass
class RandomTrainer(AgentTrainer):
    """Acts at random, so that the collected rows depend on no policy."""

    needs_model = False
    learns = False

    def begin(self, task: TrainingTask) -> Agent:
        """Return a random agent."""
        return RandomAgent()


class RandomAgent(Untrained):
    """Takes random actions."""

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Return a session with random actions."""
        return RandomSession(task, seed)


@dataclass
class DummyTrainer(Trainer):
    """Uses the true environment as the world model: an upper bound for any model."""

    def begin(self, task: TrainingTask) -> Training:
        """Return a training whose model is the environment."""
        if not task.env:
            raise CwmError("the dummy model is the environment itself: add --env ID")
        return DummyTraining(EnvironmentModel(environment(task.env), task.env_args))


class DummyTraining(Training):
    """A training without parameters: the model is the environment."""

    def __init__(self, model: EnvironmentModel) -> None:
        self.model = model

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Return no losses."""
        return {}

    def save(self, folder: Path) -> None:
        """Write nothing."""

    def load(self, folder: Path) -> None:
        """Read nothing."""


class Collector:
    """Plays consecutive episodes, in portions that may end in the middle of an episode.

    The seed of the task and the number of an episode determine its randomness. Each action is
    random with probability `epsilon`. Each episode has its own environment.
    """

    def __init__(self, task: Task, epsilon: float) -> None:
        self._task, self._epsilon = task, epsilon
        self._env: gym.Env[Any, Any] | None = None
        self._number = 0
        self._history = EpisodeHistory(())

    @property
    def returned(self) -> float:
        """The return of the current episode so far."""
        return sum(self._history.rewards)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def resume(self, rows: Dataset) -> bool:
        """Replay the last episode of rows to continue it.

        The collector skips an episode that has ended or cannot be reproduced.

        Returns:
            Whether the environment reproduced the rows.
        """
        if not len(rows):
            return True
        episodes = rows.columns["episodes"]
        last, self._number = rows.row(len(rows) - 1), int(episodes[-1])
        if last.terminated or last.truncated:
            self._number += 1
            return True
        self._begin()
        for row in rows[episodes == self._number]:
            self._step(row.action)
            seen = [row.next_observation, self._history.observations[-1]]
            packed = rows.observation_space.pack("seen", seen).values()
            if row.reward != self._history.rewards[-1] or not all(
                np.array_equal(column[0], column[1]) for column in packed
            ):
                self.close()
                self._number += 1
                return False
        return True

    def collect(self, session: PlanningSession | None, count: int) -> Iterator[Transition]:
        """Yield `count` steps with the actions of a session, or random ones without a session."""
        planned: deque[Any] = deque()
        decision = len(self._history.actions)  # the number of earlier plans is unknown
        for _ in range(count):
            if self._env is None:
                decision = 0
                self._begin()
            assert self._env is not None
            allowed, done = self._task.allowed(self._env), len(self._history.actions)
            if session is not None and not planned:
                state = session.state(self._env, self._history)
                moment = Moment(self._number, decision, state, self._task.limit - done, allowed)
                planned.extend(session.plan([moment])[0].actions)
                decision += 1
            draws = np.random.default_rng([self._task.seed, self._number, done])
            if not planned or draws.random() < self._epsilon:
                planned.clear()
                space = self._env.action_space
                space.seed(int(draws.integers(1 << 31)))
                planned.append(random_action(space, allowed))
            row = self._step(planned.popleft())
            yield row
            if row.terminated or row.truncated:
                planned.clear()
                self.close()
                self._number += 1

    def _begin(self) -> None:
        self._env = self._task.make()
        observation, _ = self._env.reset(seed=seeds_of(self._task.seed, self._number)[0])
        self._history = EpisodeHistory((deepcopy(observation),))

    def _step(self, action: Any) -> Transition:
        """Take an action; copy values, because environments may change them in place."""
        assert self._env is not None
        after, reward, terminated, truncated, _ = self._env.step(deepcopy(action))
        before = self._history.observations[-1]
        self._history = self._history.after(action, deepcopy(after), reward_number(reward))
        row = Transition(
            before,
            action,
            self._history.observations[-1],
            self._history.rewards[-1],
            bool(terminated),
            episode=self._number,
            valid=self._task.allowed(self._env),
        )
        over = len(self._history.actions) >= self._task.limit and not terminated
        return row._replace(truncated=bool(truncated) or over)
