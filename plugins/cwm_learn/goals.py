"""Another goal in the same world: a condition on what is observed pays, and reaching it is the end.

Rows that were recorded for another purpose say as much about the world as any: they are told anew,
so that what moves needs no new data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_learn.missions import condition_of, for_goal

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task


@dataclass(frozen=True)
class GoalCondition:
    """A condition that alone pays: 1 where it is reached, which ends the episode, else 0."""

    text: str
    space: Space
    description: str
    reached: Callable[[Any], bool]

    @classmethod
    def of(cls, text: str, space: Space, description: str) -> Self:
        """Read a condition such as `position >= 0.6`; `CwmError` for what is none."""
        return cls(text, space, description, condition_of(text, space, description))

    def program(self, text: str) -> str:
        """Return a program in which this goal pays."""
        return for_goal(text, self.text, self.space, self.description)

    def rows(self, rows: Dataset) -> Dataset:
        """Tell rows as they would have come with this goal, each episode up to reaching it."""
        found = np.array([self.reached(row.next_observation) for row in rows], bool)
        columns = {
            **rows.columns,
            "rewards": found.astype(float),
            "terminations": rows.columns["terminations"] | found,
        }
        return replace(rows, columns=columns)

    def task(self, task: Task) -> Task:
        """Return a task of the same environment, in which this goal pays."""
        return replace(task, make=lambda: self._pursued(task.make()))

    def _pursued(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        import gymnasium

        reached = self.reached

        class Pursued(gymnasium.Wrapper[Any, Any, Any, Any]):
            """Pays where the goal is reached."""

            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                observation, _, terminated, truncated, info = super().step(action)
                there = reached(observation)
                return observation, float(there), bool(terminated) or there, truncated, info

        return Pursued(env)
