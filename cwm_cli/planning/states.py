"""Comparing states: whether one is as predicted, and what is equal for equal ones."""

from typing import Any

import numpy as np

from cwm_cli.planning.model import key

TOLERANCE = 1e-5
"""Real numbers agree when they differ by less than this, absolute plus relative."""


class Named:
    """A state that its observation tells from all others."""

    __slots__ = ("name", "state")

    def __init__(self, observation: Any, state: Any) -> None:
        self.name = key(observation)
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def name(state: Any) -> Any:
    """Return something hashable, equal for equal states; a state that cannot be told is its own."""
    named = key(state)
    try:
        hash(named)
    except TypeError:
        return object()
    return named


def countable(state: Any) -> bool:
    """Whether a state holds no real numbers, so that the same one may well come again."""
    if isinstance(state, tuple):
        return all(map(countable, state))
    if isinstance(state, dict):
        return all(map(countable, state.values()))
    if isinstance(state, np.ndarray | np.generic):
        return state.dtype.kind in "biuUS"
    return isinstance(state, int | str | bytes | Named)


def close(left: Any, right: Any) -> bool:
    """Whether two values are equal, real numbers within the tolerance."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[name], right[name]) for name in left)
    if isinstance(left, np.ndarray | float) and isinstance(right, np.ndarray | float):
        return np.shape(left) == np.shape(right) and _near(np.asarray(left), np.asarray(right))
    return type(left) is type(right) and bool(left == right)


def _near(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether numbers differ by no more than the tolerance; what is none has to be equal."""
    if {left.dtype.kind, right.dtype.kind} - set("iuf"):
        return np.array_equal(left, right)
    return np.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
