"""The true environment as a model of itself: what could be predicted, and planned, at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.simulators import Opening, Remembering, Simulator
from cwm_cli.envs.simulators.chance import GLOBAL, reseed
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.planning import Decider, Moment, find_planner
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import (
    Plan,
    PlannedWith,
    Planning,
    PlanningSession,
    Predictions,
    WorldModel,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task
    from cwm_cli.testing.conftest import Material

_CHANCE = 1
"""Tells the random numbers of the simulator from those of the planner."""


@dataclass(frozen=True)
class EnvironmentModel(WorldModel):
    """An environment that is stood where an observation says, or at a state that was saved.

    It holds an environment of its own, apart from those that are played. What it finds out
    about saving and restoring it finds out once.
    """

    kind: ClassVar[str] = "environment"

    spec: EnvironmentSpec
    env_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def example(cls, material: Material) -> Self:
        """Make one of the environment that was recorded, for the tests of what plugs in."""
        return cls(material.spec)

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return "the environment itself"

    @cached_property
    def opening(self) -> Opening:
        """How it is saved and restored; `CwmError` where no way of that is exact."""
        return Opening.of(self.spec, self.env_args)

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Restore the environment to each observation, step it, and say what it answers.

        There is no answer where it cannot be restored, and a failure where nothing restores it.
        What chance decides is drawn once, from `seed`.
        """
        if self.spec.restore is None:
            message = f"nothing restores {self.spec.id} to an observation"
            return Predictions({}, Failure(kind="load_error", message=message))
        seeds = np.random.SeedSequence(seed).generate_state(len(rows)).tolist()
        with closing(self.spec.make(**self.env_args)) as env:
            answers = [self._answer(env, *asked) for asked in zip(rows, seeds, strict=True)]
        columns = Dataset.of(
            [answer or row for answer, row in zip(answers, rows, strict=True)],
            observation_space=rows.observation_space,
            action_space=rows.action_space,
        ).columns
        return Predictions(columns, answered=np.array([answer is not None for answer in answers]))

    def open(self, planners: Sequence[Planning], task: Task) -> EnvironmentSession:
        """Begin to plan in the environment itself; `CwmError` where it cannot be restored."""
        return EnvironmentSession(self.opening.simulator(task.seed), planners, task.seed)

    def _answer(self, env: gym.Env[Any, Any], row: Transition, seed: int) -> Transition | None:
        """Return what the environment answers to a row, nothing where it cannot be restored to it.

        It is reset before every row, so that no time limit is ever reached.
        """
        env.reset(seed=seed)
        if self.spec.restore is None or not self.spec.restore(env.unwrapped, row.observation):
            return None
        following, reward, terminated, *_ = env.step(row.action)
        valid: tuple[int, ...] | None = None
        if row.valid is not None:
            space: Any = env.action_space
            every = range(space.start, space.start + space.n)
            allowed = self.spec.valid_actions and self.spec.valid_actions(env.unwrapped)
            valid = tuple(map(int, every if allowed is None else allowed))
        return Transition(
            row.observation,
            row.action,
            deepcopy(following),
            reward=float(np.asarray(reward).item()),
            terminated=bool(terminated),
            valid=valid,
        )


class EnvironmentSession(PlanningSession):
    """Plans in the true environment, from its saved states."""

    def __init__(
        self, simulator: Simulator | Remembering, planners: Sequence[Planning], seed: int
    ) -> None:
        self._names = [planner.name for planner in planners]
        self._simulator = simulator
        self._seed = seed
        made = [find_planner(each.sought)(**each.options) for each in planners]
        begin = None if simulator.deterministic else self._begin
        self._decider = Decider(made, simulator, seed=seed, begin=begin)

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Save where the environment stands."""
        return self._simulator.state_of(env, history.observations[-1])

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        plans = self._decider.plan(moments)
        self.steps = self._simulator.counter[0]
        reasons = self._decider.passed_over
        pairs = zip(self._names, reasons, strict=False)
        notes = [f"not {name}: it {reason}" for name, reason in pairs]
        self.report = PlannedWith(self._names[len(reasons)], ("simulator",), "; ".join(notes))
        return [Plan(actions, None) for actions in plans]

    def _begin(self, moment: Moment) -> None:
        """Have chances of its own for each decision, so that none depends on those beside it."""
        rng = np.random.default_rng([self._seed, moment.episode, moment.decision, _CHANCE])
        for generator in self._simulator.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)
