"""A trace as a batch: every operation is one of numpy, on all lanes."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.rewriting import ordered
from cwm_cli.planning.traced.tracing import Trace

OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "add": "+",
        "subtract": "-",
        "multiply": "*",
        "divide": "/",
        "equal": "==",
        "not_equal": "!=",
        "less": "<",
        "less_equal": "<=",
        "greater": ">",
        "greater_equal": ">=",
        "logical_and": "&",
        "logical_or": "|",
    }
)
"""Operations with a sign; the others are functions of numpy."""

_DTYPES = {"b": np.bool_, "i": np.int64, "f": np.float64}

Function = Callable[..., tuple[list[Any], list[Any]]]
"""Takes the values of symbols, returns those of outputs: the state, and all others."""


class ArrayBatch:
    """Steps many lanes at once, without the rounding of a program that keeps 32 bits."""

    def __init__(self, trace: Trace, observation_space: Space) -> None:
        self._vector = observation_space.is_float
        self._enter = _function(trace.observation, trace.entered, [trace.odd_entry])
        inputs, outcome = [*trace.state, *trace.action], [trace.reward, trace.terminated, trace.odd]
        self._advance = _function(inputs, trace.following, outcome)
        self._step = _function(inputs, trace.following, [*outcome, *trace.observed])
        self._state: list[Any] = []
        self._count = 0

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations: (components, lanes), or (lanes,) where they are one integer."""
        self._count = observations.shape[-1]
        self._state, [odd] = _ran(self._enter, observations if self._vector else [observations])
        _refuse(odd)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        reward, terminated, *observed = self._taken(self._step, actions)
        seen = [self._wide(value) for value in observed]
        observations = np.stack(seen) if self._vector else seen[0]
        return observations, self._wide(reward).astype(float, copy=False), self._wide(terminated)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated, each perhaps one value for all lanes."""
        reward, terminated = self._taken(self._advance, actions)
        return np.asarray(reward, float), np.asarray(terminated)

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with some lanes only, given by number or by a mask."""
        kept = np.flatnonzero(lanes) if lanes.dtype == bool else lanes
        self._count = len(kept)
        self._state = [value.take(kept) if np.ndim(value) else value for value in self._state]

    def apart(self) -> Self:
        """Return another batch of the same program, without lanes."""
        other = copy(self)
        other._state, other._count = [], 0
        return other

    def join(self, other: Self) -> None:
        """Add the lanes of another batch after its own."""
        if self._count and other._count:
            pairs = zip(self._state, other._state, strict=True)
            wide = ((self._wide(mine), other._wide(theirs)) for mine, theirs in pairs)
            self._state = [np.concatenate(pair) for pair in wide]
        elif other._count:
            self._state = other._state
        self._count += other._count

    def _taken(self, function: Function, actions: np.ndarray) -> list[Any]:
        """Take actions; return what they led to."""
        inputs = [*self._state, *([actions] if actions.ndim == 1 else actions)]
        self._state, [reward, terminated, odd, *observed] = _ran(function, inputs)
        _refuse(odd)
        return [reward, terminated, *observed]

    def _wide(self, value: Any) -> np.ndarray:
        """Return an array with a value for every lane."""
        return value if np.ndim(value) else np.full(self._count, value)


def _ran(function: Function, inputs: Sequence[Any] | np.ndarray) -> tuple[list[Any], list[Any]]:
    """Compute, as far as that is possible."""
    try:
        with np.errstate(all="ignore"):
            return function(*inputs)
    except Exception as error:  # such as an index that no lane should have
        raise Unbatched(f"arrays cannot be computed with: {error}") from error


def _refuse(odd: Any) -> None:
    """Refuse what the program does otherwise."""
    if odd is not False and np.any(odd):
        raise Unbatched("a lane does what is not known")


def _function(symbols: Sequence[Node], state: Sequence[Node], others: Sequence[Node]) -> Function:
    """Write and compile what computes outputs from symbols."""
    names = {node: f"s{number}" for number, node in enumerate(symbols)}
    parameters = ", ".join(names.values())
    space: dict[str, Any] = dict(_FUNCTIONS)
    lines = []
    for node in ordered([*state, *others], names):
        lines.append(f"    n{node.number} = {_expression(node, names, space)}")
        names[node] = f"n{node.number}"
    outputs = (", ".join(names[node] for node in nodes) for nodes in (state, others))
    lines.append("    return [{}], [{}]".format(*outputs))
    code = "\n".join([f"def function({parameters}):", *lines])
    exec(compile(code, "<arrays>", "exec"), space)  # noqa: S102  # we wrote it
    made: Function = space["function"]
    return made


def _expression(node: Node, names: Mapping[Node, str], space: dict[str, Any]) -> str:
    """Write an operation; constants keep to plain numbers."""
    if node.is_constant:
        return repr(node.value)
    operands = [names[operand] for operand in node.operands]
    if node.operation in ("table", "index"):
        space[f"T{node.number}"] = np.array(node.values, _DTYPES[node.kind])
        return f"T{node.number}[{operands[0]}]"
    if operator := OPERATORS.get(node.operation):
        return f"{operands[0]} {operator} {operands[1]}"
    return f"{node.operation}({', '.join(operands)})"


_FUNCTIONS = {name: value for name, value in vars(np).items() if isinstance(value, np.ufunc)} | {
    "select": np.where,
    "inf": np.inf,
    "nan": np.nan,
}
