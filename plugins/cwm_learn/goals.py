"""Learn another goal in the same environment: a condition that pays 1 and ends the episode.

Recorded transitions are relabelled with the rewards of the goal, so that the dynamics need no new
data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_learn.missions import compile_condition, replace_reward

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task


@dataclass(frozen=True)
class GoalCondition:
    """A condition on observations: the reward is 1 and the episode ends if it is met, else 0."""

    text: str
    space: Space
    description: str
    is_met: Callable[[Any], bool]

    @classmethod
    def parse(cls, text: str, space: Space, description: str) -> Self:
        """Parse a condition such as `position >= 0.6`; raise `CwmError` if it is invalid."""
        return cls(text, space, description, compile_condition(text, space, description))

    def add_to(self, program: str) -> str:
        """Return a program with the rewards and ends of this goal."""
        return replace_reward(program, self.text, self.space, self.description)

    def relabel(self, rows: Dataset) -> Dataset:
        """Return rows with the rewards and ends of this goal."""
        met = np.array([self.is_met(row.next_observation) for row in rows], bool)
        ends = rows.columns["terminations"] | met
        columns = {**rows.columns, "rewards": met.astype(float), "terminations": ends}
        return replace(rows, columns=columns)

    def wrap(self, task: Task) -> Task:
        """Return a task in the same environment, with the rewards and ends of this goal."""
        import gymnasium

        is_met = self.is_met

        class GoalWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                observation, _, terminated, truncated, info = super().step(action)
                met = is_met(observation)
                return observation, float(met), bool(terminated) or met, truncated, info

        def make() -> gym.Env[Any, Any]:
            return GoalWrapper(task.make())

        return replace(task, make=make)
