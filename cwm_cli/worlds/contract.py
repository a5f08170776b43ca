"""What the class of a program has to define, how rows reach it, and both put into words."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import isfinite
from string import Template
from typing import ClassVar

import numpy as np

from cwm_cli.data.spaces import Space

MOST_BOUNDS = 12
"""Bounds of more components than this are not listed one by one."""

_CARRIED = " What a module would read from a file has to be in the text of the program."

_FITTED = (
    "\n- Constants that you are not sure of may be class attributes: "
    '`PARAMETERS = {"gravity": 9.8}`, read as `self.PARAMETERS["gravity"]`, and ways to compute '
    '`CHOICES = {"integrator": ["semi-implicit", "euler", "rk4"]}`, of which the first is in '
    "force. They can be fitted to the recorded transitions afterwards: the structure is what has "
    "to be right."
)

_VALID_ACTIONS = (
    "\n- `valid_actions`: a list of the ints that are allowed as the next action, in the state "
    "that the step led to."
)


class Contract:
    """What the class `Environment` of a program has to define, and how rows reach it.

    `methods` are what is called: first the one that takes an observation, then the one that
    takes an action. `words` tells a language model all of it; what it tells has to be what
    the sandbox does: they stand in the file `text`. What asks for more derives from it.
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
        """Say what to write, for programs that may import `tools` as well.

        With `names_actions` a step has to say which actions are allowed after it, and where numbers
        can be `fitted` they may be declared.
        """
        text = (files("cwm_cli.worlds") / self.text).read_text(encoding="utf-8").strip()
        return Template(text).substitute(
            observation=describe(observation_space),
            action=describe(action_space),
            modules=", ".join(("numpy", *tools)),
            carried=_CARRIED if tools else "",
            answer=", valid_actions" if names_actions else "",
            valid=_VALID_ACTIONS if names_actions else "",
            fitted=_FITTED if fitted else "",
        )


class ChanceContract(Contract):
    """Chance, told by `outcomes` or drawn by `step` from the generator that is put there."""

    name: ClassVar[str] = "chance"
    methods: ClassVar[tuple[str, ...]] = ("set_state", "step", "outcomes")
    text: ClassVar[str] = "contract_chance.md"


class MemoryContract(Contract):
    """Memory: whole episodes, each predicted step by step and then put right."""

    name: ClassVar[str] = "memory"
    methods: ClassVar[tuple[str, ...]] = ("reset", "step", "correct")
    text: ClassVar[str] = "contract_memory.md"


def describe(space: Space) -> str:
    """Say which Python value stands for a value of the space."""
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


def component_names(space: Space, name: str) -> list[str]:
    """Return the Python expression of each component of each leaf."""
    names = []
    leaves = (leaf.space for leaf in space.leaves(name))
    for leaf, expression in zip(leaves, expressions(space, name), strict=True):
        for index in np.ndindex(leaf.shape):
            names.append(f"{expression}[{', '.join(map(str, index))}]" if index else expression)
    return names


def _bounds(space: Space) -> str:
    """Say within which bounds the components lie, where they do."""
    bounds = list(zip(space.low, space.high, strict=True))
    bounded = [pair for pair in bounds if all(map(isfinite, pair))]
    if not bounded or (len(set(bounds)) > 1 and len(bounds) > MOST_BOUNDS):
        return ""
    if len(set(bounds)) == 1:
        return f", each from {bounds[0][0]:g} to {bounds[0][1]:g}"
    return f", from {[low for low, _ in bounds]} to {[high for _, high in bounds]}"
