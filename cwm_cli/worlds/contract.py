"""The contracts of programs: which methods a program defines and how they are called."""

import ast
from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import isfinite
from string import Template
from typing import ClassVar

import numpy as np

from cwm_cli.data.spaces import Space

MOST_BOUNDS = 12
"""Prompts list the bounds of an array only if it has at most this many components."""

_DATA_FILES = " Write the text of any data file that a module needs into the program."

_FITTED = (
    '\n- Optional class attributes `PARAMETERS = {"gravity": 9.8}` and '
    '`CHOICES = {"integrator": ["euler", "rk4"]}` declare numbers and alternatives that are fitted '
    "to the recorded transitions later; get the structure right. The first item of a list in "
    '`CHOICES` is in force: always write `self.CHOICES["integrator"][0]`. A program that leaves '
    "`[0]` out is rejected."
)

_VALID_ACTIONS = (
    "\n- `valid_actions`: a list of the ints that are allowed as the next action, in the state "
    "after the step."
)


class Contract:
    """The methods that the class `Environment` of a program defines, and their description.

    Contracts with more methods derive from this one.

    Attributes:
        name: The name for `--contract`.
        methods: The methods that the sandbox calls. The first takes an observation, the second an
            action.
        text: The file that explains the contract to a language model. It must agree with the
            sandbox.
    """

    name: ClassVar[str] = "plain"
    methods: ClassVar[tuple[str, ...]] = ("set_state", "step")
    text: ClassVar[str] = "contract.md"

    def words(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        tools: Sequence[str] = (),
        names_actions: bool = False,
        fitted: bool = False,
    ) -> str:
        """Return the part of a prompt that explains the contract.

        Args:
            observation_space: The observation space of the environment.
            action_space: The action space of the environment.
            tools: Modules that programs may import in addition to the usual ones.
            names_actions: Whether a step also returns the actions that are valid after it.
            fitted: Whether to explain how a program declares numbers and choices for fitting.
        """
        text = (files("cwm_cli.worlds") / self.text).read_text(encoding="utf-8").strip()
        return Template(text).substitute(
            observation=describe(observation_space),
            action=describe(action_space),
            modules=", ".join(("numpy", *tools)),
            carried=_DATA_FILES if tools else "",
            answer=", valid_actions" if names_actions else "",
            valid=_VALID_ACTIONS if names_actions else "",
            fitted=_FITTED if fitted else "",
        )


class ChanceContract(Contract):
    """A contract for random results: `outcomes` lists them, or `step` draws from `self.rng`."""

    name: ClassVar[str] = "chance"
    methods: ClassVar[tuple[str, ...]] = ("set_state", "step", "outcomes")
    text: ClassVar[str] = "contract_chance.md"


class MemoryContract(Contract):
    """A contract for hidden state: the sandbox replays episodes and corrects each prediction."""

    name: ClassVar[str] = "memory"
    methods: ClassVar[tuple[str, ...]] = ("reset", "step", "correct")
    text: ClassVar[str] = "contract_memory.md"


class GameContract(Contract):
    """A contract for games of two players: `legal_actions` returns the legal actions of a state."""

    name: ClassVar[str] = "game"
    methods: ClassVar[tuple[str, ...]] = ("set_state", "step", "legal_actions")
    text: ClassVar[str] = "contract_game.md"


def describe(space: Space) -> str:
    """Return words for the Python type, shape and bounds of a value of the space."""
    if space.kind == "tuple":
        if len(space.children) > 1 and len(set(space.children)) == 1:
            return f"a tuple of {len(space.children)} values, each {describe(space.children[0])}"
        parts = [f"[{index}] {describe(child)}" for index, child in enumerate(space.children)]
        return f"a tuple of {len(parts)} values: {'; '.join(parts)}"
    if space.kind == "dict":
        pairs = zip(space.keys, space.children, strict=True)
        parts = [f"[{key!r}] {describe(child)}" for key, child in pairs]
        return f"a dict of {len(parts)} values: {'; '.join(parts)}"
    if space.kind == "discrete":
        return f"an int from {space.low[0]:.0f} to {space.high[0]:.0f}"
    if space.kind == "text":
        return f"a str of at most {space.max_length} characters"
    dtype = "float64" if space.is_float else "int64"
    return f"a numpy {dtype} array of shape {space.shape}{_bounds(space)}"


def expressions(space: Space, name: str) -> Iterator[str]:
    """Yield the Python expression of each leaf, in the order of `Space.leaves`."""
    if space.kind not in ("tuple", "dict"):
        yield name
    keys = space.keys if space.kind == "dict" else range(len(space.children))
    for key, child in zip(keys, space.children, strict=True):
        yield from expressions(child, f"{name}[{key!r}]")


def declared_approximations(program: str) -> dict[int, str]:
    """Return the components that a program predicts without a law, and the kind of prediction.

    The optional class attribute `APPROXIMATIONS = {1: "regression tree of 8 cases"}` names them by
    their positions in the observation. Other values of the attribute are ignored.
    """
    try:
        nodes = ast.walk(ast.parse(program))
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id="APPROXIMATIONS")], value=value):
                    found = ast.literal_eval(value)
                    if isinstance(found, dict):
                        return {
                            k: v
                            for k, v in found.items()
                            if isinstance(k, int) and isinstance(v, str)
                        }
    except (SyntaxError, ValueError, RecursionError):
        pass
    return {}


def component_names(space: Space, name: str) -> list[str]:
    """Return the Python expression of each component of each leaf."""
    names = []
    leaves = (leaf.space for leaf in space.leaves(name))
    for leaf, expression in zip(leaves, expressions(space, name), strict=True):
        for index in np.ndindex(leaf.shape):
            names.append(f"{expression}[{', '.join(map(str, index))}]" if index else expression)
    return names


def _bounds(space: Space) -> str:
    """Return the bounds of the components in words, or "" if there are none or too many."""
    # Equal bounds of all components take one phrase, so that their number is not limited.
    bounds = list(zip(space.low, space.high, strict=True))
    bounded = [pair for pair in bounds if all(map(isfinite, pair))]
    if not bounded or (len(set(bounds)) > 1 and len(bounds) > MOST_BOUNDS):
        return ""
    if len(set(bounds)) == 1:
        return f", each from {bounds[0][0]:g} to {bounds[0][1]:g}"
    low, high = (", ".join(f"{value:.8g}" for value in side) for side in zip(*bounds, strict=True))
    return f", from [{low}] to [{high}]"
