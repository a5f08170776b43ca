"""Learn another goal in the same environment: a condition that pays 1 and ends the episode.

Recorded transitions are relabelled with the rewards of the goal, so that the dynamics need no new
data.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from string import Template
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_names
from cwm_cli.errors import CwmError
from cwm_learn.missions import identifiers

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task


SYNTAX = (
    ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Name,
    ast.Constant, ast.Subscript, ast.Tuple, ast.boolop, ast.unaryop, ast.operator, ast.cmpop,
    ast.expr_context,
)  # fmt: skip
"""Syntax that a condition may use."""

GOAL_CODE = '''

_World = Environment


class Environment(_World):
    """The same environment with another reward: 1 for reaching $goal."""

    def step(self, action):
        observation, _, terminated, *more = super().step(action)
        reached = bool($condition)
        return (observation, float(reached), bool(terminated or reached), *more)
'''


@dataclass(frozen=True)
class GoalCondition:
    """A condition on observations: the reward is 1 and the episode ends if it is met, else 0.

    `condition` is Python over `observation`.
    """

    text: str
    condition: str

    @classmethod
    def parse(cls, text: str, space: Space, description: str) -> Self:
        """Parse a condition such as `position >= 0.6` or `observation[0] >= 0.6`.

        The description of the environment has the names of the components.

        Raises:
            CwmError: The text is more than a comparison of numbers.
        """
        names = identifiers(documented_names(description, space))
        hint = f"components are called {', '.join(names)}" if names else "write observation[0] >= 1"
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise CwmError(f"the goal {text!r} is not a Python condition: {hint}") from None
        # names that a condition may use besides the names of components
        known_names = ("observation", "abs", "min", "max")
        for node in ast.walk(tree):
            if not isinstance(node, SYNTAX):
                raise CwmError(f"the goal {text!r} must be a comparison of numbers: {hint}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in known_names[1:]:
                raise CwmError(f"the goal {text!r} may only call abs, min and max: {hint}")
            if isinstance(node, ast.Name) and node.id not in (*names, *known_names):
                raise CwmError(f"the goal {text!r} has the unknown name {node.id!r}: {hint}")
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if not used - {*known_names[1:]}:
            raise CwmError(f"the goal {text!r} uses no observation: {hint}")
        return cls(text, ast.unparse(_ComponentNames(names).visit(tree)))

    @cached_property
    def is_met(self) -> Callable[[Any], bool]:
        """A function that returns whether an observation meets the condition."""
        code = compile(self.condition, "<goal>", "eval")
        known = {"__builtins__": {}, "abs": abs, "min": min, "max": max}
        return lambda observation: bool(eval(code, known, {"observation": observation}))  # noqa: S307

    def add_to(self, program: str) -> str:
        """Return a program with the rewards and ends of this goal."""
        goal = " ".join(self.text.split()).replace("\\", "").replace('"""', "")
        code = Template(GOAL_CODE).substitute(goal=goal, condition=self.condition)
        return f"{program.rstrip()}\n{code}"

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


class _ComponentNames(ast.NodeTransformer):
    """Replaces names of components by `observation[i]`."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:  # the name is prescribed by ast
        """Replace a name."""
        if node.id not in self._names:
            return node
        return ast.parse(f"observation[{self._names[node.id]}]", mode="eval").body
