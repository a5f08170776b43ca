"""Rewards that a user defines by an expression, such as `-abs(level - 1.2) - 0.1 * valve`.

Its names are column names: an observation has its value after the step, an action is the action of
the step. `observation` and `action` are the whole values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from keyword import iskeyword
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

import gymnasium as gym
import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_names
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.text import clean, first_few

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec, NamedComponent

FUNCTIONS = ("abs", "min", "max", "round", "float", "int")
MATH_FUNCTIONS = ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "atan2", "hypot", "floor")
"""Functions of the module math that an expression may call."""

_ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.Subscript,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)

_CLASS = '''

class Environment(Recorded):
    """The program with the reward of the user's expression."""

    def step(self, action):
        """Predict the outcome of an action."""
        observation, self.own_reward, terminated{valid} = super().step(action)
        return observation, reward_of(observation, action), terminated{valid}
'''
_OUTCOMES = '''
    def outcomes(self, action):
        """Return all outcomes: probability, observation, reward, terminated."""
        return [
            (chance, observation, reward_of(observation, action), terminated{valid})
            for chance, observation, reward, terminated{valid} in super().outcomes(action)
        ]
'''
_CORRECT = '''
    def correct(self, observation, reward):
        """Receive the observation of the last step; its own reward was not recorded."""
        super().correct(observation, self.own_reward)
'''


@dataclass(frozen=True)
class RewardExpression:
    """A reward as a function of the next observation and the action.

    Attributes:
        text: The expression as the user wrote it.
        code: Source of the function `reward_of(observation, action)`.
    """

    text: str
    code: str

    @classmethod
    def parse(cls, text: str, spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> Self:
        """Read an expression over the columns of an environment.

        Raises:
            CwmError: The expression has a syntax error, or uses an unknown name or operation.
        """
        from cwm_cli.envs.spec import space_of

        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
        if spec.components is not None:
            observed, acted = spec.components(env)
        else:
            names = documented_names(spec.describe(env), spaces[0])
            observed, acted = [(name, ()) for name in names], []
        values = dict(_values("observation", spaces[0], observed))
        values |= dict(_values("action", spaces[1], acted))
        labels = {identifier(name): words for name, words in [*observed, *acted] if words}
        tree = _parse(text, {*values, "observation", "action"})
        tree = ast.fix_missing_locations(_Labels(labels, text).visit(tree))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        lines = [f"    {name} = {value}" for name, value in values.items() if name in used]
        imported = [name for name in MATH_FUNCTIONS if name in used]
        head = f"from math import {', '.join(imported)}\n\n\n" if imported else ""
        body = "\n".join([*lines, f"    return float({ast.unparse(tree)})"])
        described = '    """Return the reward that the user defined."""'
        return cls(text, f"{head}def reward_of(observation, action):\n{described}\n{body}\n")

    def reward(self, observation: Any, action: Any) -> float:
        """Return the reward of a step; `CwmError` if it is not a finite number."""
        try:
            with np.errstate(all="raise"):
                found = _function(self.code)(observation, action)
        except (ArithmeticError, ValueError, TypeError, LookupError) as error:
            raise CwmError(
                f"the reward expression {clean(self.text, limit=80)} fails ({error}): "
                "choose one that holds for all observations"
            ) from error
        if not isfinite(found):
            raise CwmError(
                f"the reward expression {clean(self.text, limit=80)} is not finite: "
                "choose one that is finite for all observations"
            )
        return found

    def rewarded(self, rows: Dataset) -> Dataset:
        """Return transitions with the rewards of the expression."""
        found = [self.reward(row.next_observation, row.action) for row in rows]
        return replace(rows, columns=rows.columns | {"rewards": np.array(found, np.float64)})

    def extended(self, program: str, *, valid: bool = False) -> str:
        """Return a program with the rewards of the expression.

        Args:
            program: The text of the program, with the class `Environment`.
            valid: Whether its steps also return the valid actions.
        """
        abilities = abilities_of(program)
        if abilities.contract == "game":
            raise CwmError(
                "the rewards of a game of two players cannot be replaced: leave out "
                "--reward-expression"
            )
        text = re.sub(r"^class Environment\b", "class Recorded", program, flags=re.MULTILINE)
        parts = [_CLASS, *[_OUTCOMES] * abilities.tells, *[_CORRECT] * abilities.remembers]
        added = "".join(part.replace("{valid}", ", valid" if valid else "") for part in parts)
        return f"{text.rstrip()}\n\n\n{self.code}{added}"


@cache
def _function(code: str) -> Callable[[Any, Any], float]:
    """Return the function that a checked expression defines."""
    names: dict[str, Any] = {}
    exec(compile(code, "<reward expression>", "exec"), names)  # noqa: S102  # checked syntax
    found: Callable[[Any, Any], float] = names["reward_of"]
    return found


class RewardedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with the rewards of an expression."""

    def __init__(self, env: gym.Env[Any, Any], reward: RewardExpression) -> None:
        super().__init__(env)
        self._reward = reward

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment, and replace its reward."""
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, self._reward.reward(observation, action), terminated, truncated, info


def identifier(name: str) -> str:
    """Return the name of a column as Python can read it: `power (kW)` becomes `power_kW`."""
    found = re.sub(r"\W+", "_", name).strip("_")
    return f"_{found}" if not found or found[0].isdigit() or iskeyword(found) else found


def _values(whole: str, space: Space, named: Sequence[NamedComponent]) -> Sequence[tuple[str, str]]:
    """Return the name of each component, and the expression for its value."""
    names = [identifier(name) for name, _ in named]
    if space.kind == "dict":
        parts = zip(names, space.keys, space.children, strict=False)
        return [(n, f"{whole}[{key!r}]{'[0]' * bool(part.shape)}") for n, key, part in parts]
    if not space.shape:
        return [(name, whole) for name in names]
    return [(name, f"{whole}[{number}]") for number, name in enumerate(names)]


def _parse(text: str, names: set[str]) -> ast.Expression:
    """Return the syntax tree of an expression that uses only known names and operations."""
    shown = clean(text, limit=80)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CwmError(
            f"the reward expression {shown} is not valid Python: write it like "
            "--reward-expression '-abs(level - 1.2)'"
        ) from error
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = {*FUNCTIONS, *MATH_FUNCTIONS}
    for node in ast.walk(tree):
        keywords = isinstance(node, ast.Call) and (
            node.keywords or not isinstance(node.func, ast.Name)
        )
        if not isinstance(node, _ALLOWED) or keywords:
            raise CwmError(
                f"the reward expression {shown} may only calculate with columns, numbers and "
                f"functions such as {first_few(sorted(functions), 6)}: simplify it"
            )
        if isinstance(node, ast.Name) and node.id not in (functions if node in called else names):
            raise CwmError(
                f"the reward expression {shown} uses the unknown name {clean(node.id)}: "
                f"choose from {first_few(sorted(names), 12)}"
            )
    return tree


class _Labels(ast.NodeTransformer):
    """Replaces labels by their numbers: `mode == "heating"` becomes `mode == 1`."""

    def __init__(self, labels: Mapping[str, Sequence[str]], text: str) -> None:
        self._labels = labels
        self._text = clean(text, limit=80)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:  # name given by ast
        """Replace the labels that a column is compared with."""
        sides = [node.left, *node.comparators]
        columns = [s.id for s in sides if isinstance(s, ast.Name) and s.id in self._labels]
        words = self._labels[columns[0]] if len(columns) == 1 else ()
        node.left, *node.comparators = [self._number(side, words) for side in sides]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Refuse labels that no column is compared with."""
        if isinstance(node.value, bool | int | float):
            return node
        raise CwmError(
            f"the reward expression {self._text} has the value {node.value!r:.40}: compare labels "
            "with their column, such as pump == 'high'"
        )

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Keep the keys of `observation` and `action`."""
        return node

    def _number(self, side: ast.expr, words: Sequence[str]) -> ast.expr:
        if not isinstance(side, ast.Constant) or not isinstance(side.value, str):
            return side
        if side.value not in words:
            known = first_few([*words], 8) if words else "no column with labels"
            raise CwmError(
                f"the reward expression {self._text} uses the unknown label "
                f"{side.value!r:.40}: choose from {known}"
            )
        return ast.Constant(words.index(side.value))
