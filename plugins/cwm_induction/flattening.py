"""Flatten observations and actions of any spaces to vectors, and adapt programs to the spaces."""

from dataclasses import dataclass, replace
from json import dumps

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Leaf, Space
from cwm_cli.sandbox.job import abilities_of

FIELDS = ("observations", "next_observations")
_BEGINS = "class Numbers:"

_PROGRAM = '''

class Environment(Numbers):
    """Converts {subject} between the environment's spaces and numbers."""
'''

_SET_STATE = '''
    def set_state(self, observation):
        """Set the observation to predict from."""
        super().set_state({numbers})
{text}'''
_KEPT = "        self.given = observation  # text stays as it is\n"

_STEP = '''
    def step(self, action):
        """Predict the outcome of an action."""
        {answer}, reward, terminated = super().step({action})
        return {observation}, reward, terminated
'''


_OUTCOMES = '''
    def outcomes(self, action):
        """Return all outcomes: probability, observation, reward, terminated."""
        return [
            (chance, {observation}, reward, terminated)
            for chance, {answer}, reward, terminated in super().outcomes({action})
        ]
'''


@dataclass(frozen=True)
class Arrangement:
    """A conversion of observations and actions to vectors of numbers of type `dtype`.

    A box of that type is not converted. If `dtype` is empty, nothing is converted.
    """

    observations: Space
    actions: Space
    dtype: str

    @classmethod
    def of(cls, data: Dataset, dtype: str) -> "Arrangement":
        """Return the conversion of a dataset's spaces to a type; "" converts nothing."""
        return cls(data.observation_space, data.action_space, dtype)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is converted, so that programs stay the same."""
        space = self.observations
        kept = space.kind == "box" and space.is_float == self.dtype.startswith("float")
        return not self.dtype or (kept and not self.actions.children)

    def flat(self, data: Dataset) -> Dataset:
        """Return the transitions with vectors of numbers instead of nested values."""
        if self.is_plain:
            return data
        columns = self.flat_columns(data.columns)
        seen = np.concatenate([columns[name] for name in FIELDS])
        actions = self.actions
        if actions.children:
            actions = _row(actions, self._action_type, columns["actions"])
            if self._action_type == "int64":
                actions = replace(actions, kind="multidiscrete")
        observations = _row(self.observations, self.dtype, seen)
        return replace(data, columns=columns, observation_space=observations, action_space=actions)

    def flat_columns(self, columns: Columns) -> Columns:
        """Return columns of transitions or predictions as vectors of numbers."""
        if self.is_plain:
            return columns
        flat = dict(columns)
        fields = [(name, self.observations, self.dtype) for name in FIELDS]
        fields += [("actions", self.actions, self._action_type)] if self.actions.children else []
        for name, space, dtype in fields:
            every = [leaf.name for leaf in space.leaves(name)]
            leaves = [leaf.name for leaf in number_leaves(space, name)]
            if leaves[0] in columns:
                flat[name] = np.concatenate(
                    [columns[leaf].reshape(len(columns[leaf]), -1) for leaf in leaves], axis=1
                ).astype(dtype)
                for leaf in set(every) - {name}:
                    del flat[leaf]
        return flat

    def flattened(self, program: str) -> str:
        """Undo `nested`: return the part of a program that works on vectors."""
        part, begins, _ = program.partition("\n\nclass Environment(Numbers):")
        return part.replace(_BEGINS, "class Environment:", 1) if begins else program

    def nested(self, program: str) -> str:
        """Extend a program on vectors by conversions from and to values of the spaces."""
        if self.is_plain:
            return program
        subject = "observations and actions" if self.actions.children else "observations"
        text = program.replace("class Environment:", _BEGINS, 1).rstrip() + "\n"
        text += _PROGRAM.format(subject=subject)
        kept = _KEPT if _has_text(self.observations) else ""
        numbers = joined(self.observations, "observation")
        if "def set_state(" in program:  # programs with memory may start by `reset` alone
            text += _SET_STATE.format(numbers=numbers, text=kept)
        text += (_OUTCOMES if abilities_of(program).tells else _STEP).format(
            answer="numbers",
            action=joined(self.actions, "action") if self.actions.children else "action",
            observation=built(self.observations, "self.given", [0]),
        )
        return text if "import numpy as np" in text else f"import numpy as np\n\n\n{text}"

    @property
    def _action_type(self) -> str:
        whole = all(not leaf.space.is_float for leaf in self.actions.leaves("actions"))
        return "int64" if whole else "float64"


def is_numeric(space: Space) -> bool:
    """Return whether a space contains numbers."""
    return any(leaf.space.size for leaf in number_leaves(space, "values"))


def is_whole(data: Dataset) -> bool:
    """Return whether all numbers of the observations are whole, for any type of numbers."""
    return all(
        bool((data.columns[leaf.name] == np.round(data.columns[leaf.name])).all())
        for name in FIELDS
        for leaf in number_leaves(data.observation_space, name)
    )


def names_of(space: Space) -> tuple[str, ...]:
    """Return a name for every number: its path of keys, and its index if there are several."""
    return tuple(
        f"{leaf.name}{f' {place}' if leaf.space.size > 1 else ''}".removeprefix("values.")
        for leaf in number_leaves(space, "values")
        for place in range(leaf.space.size)
    )


def _row(space: Space, dtype: str, values: np.ndarray) -> Space:
    """Return the box of the flat vector; missing bounds of whole numbers come from the data."""
    low = np.array([bound for leaf in number_leaves(space, "x") for bound in leaf.space.low])
    high = np.array([bound for leaf in number_leaves(space, "x") for bound in leaf.space.high])
    if dtype == "int64" and len(values):
        low = np.where(np.abs(low) < 2**31, np.ceil(low), values.min(axis=0))
        high = np.where(np.abs(high) < 2**31, np.floor(high), values.max(axis=0))
    return Space("box", dtype, (len(low),), tuple(low.tolist()), tuple(high.tolist()))


def joined(space: Space, value: str) -> str:
    """Return an expression for the vector of all numbers in a nested value."""
    if not space.children:
        return f"np.ravel({value})"
    parts = ", ".join(f"np.ravel({path})" for path, _ in _paths(space, value))
    return f"np.concatenate([{parts}])"


def _paths(space: Space, value: str) -> list[tuple[str, Leaf]]:
    """Return an expression for every leaf with numbers in a nested value."""
    if not space.children:
        return [] if space.kind == "text" else [(value, Leaf(value, space))]
    keys = space.keys if space.kind == "dict" else range(len(space.children))
    return [
        path
        for key, child in zip(keys, space.children, strict=True)
        for path in _paths(child, f"{value}[{dumps(key)}]")
    ]


def built(space: Space, given: str, place: list[int]) -> str:
    """Return an expression for a nested value of a space, built from a vector.

    Args:
        space: The space of the value.
        given: Expression of the previous observation, the source of text.
        place: A list with the index of the next unused number, which is updated.
    """
    if space.kind == "text":
        return given
    if space.kind == "dict":
        parts = [
            f"{dumps(key)}: {built(child, f'{given}[{dumps(key)}]', place)}"
            for key, child in zip(space.keys, space.children, strict=True)
        ]
        return "{" + ", ".join(parts) + "}"
    if space.kind == "tuple":
        parts = [
            f"{built(child, f'{given}[{index}]', place)}, "
            for index, child in enumerate(space.children)
        ]
        inner = "".join(parts)
        return f"({inner.strip() if len(parts) == 1 else inner.removesuffix(', ')})"
    start = place[0]
    place[0] += space.size
    if space.kind == "discrete":
        return f"round(float(numbers[{start}]))"
    part = f"numbers[{start}:{place[0]}]"
    part = part if space.is_float else f"np.rint({part}).astype(int)"
    return part if len(space.shape) == 1 else f"{part}.reshape({space.shape})"


def number_leaves(space: Space, name: str) -> list[Leaf]:
    """Return the leaves that contain numbers."""
    return [leaf for leaf in space.leaves(name) if leaf.space.kind != "text"]


def _has_text(space: Space) -> bool:
    return any(leaf.space.kind == "text" for leaf in space.leaves("values"))
