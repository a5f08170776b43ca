"""Stand environments at an observation, by what their state and their observations have in common.

How the one is read from the other is learned from the environment itself: it
is taken to many states, and the numbers that it keeps are compared with the
numbers that it shows. No environment is known by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import combinations_with_replacement
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from cwm_gymnasium.layouts import Layout, flat, reader

if TYPE_CHECKING:
    import gymnasium as gym

EPISODES = 8
STEPS = 12
"""What is played to compare attributes with observations."""

MOST_NUMBERS = 2_000
"""Attributes of more numbers than this are no part of a state."""

HANDS = ("player", "dealer")
"""Attributes of a game of cards: lists of their values, the dealer's first one face up."""

FEW_CARDS = 3
"""Every sum of a hand can be made of so many cards."""

TOLERANCE = 1e-5


class Way(Protocol):
    """Takes an environment to where an observation was made."""

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""


_WAYS: WeakKeyDictionary[Any, Way] = WeakKeyDictionary()


def restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    """Stand a made environment at an observation; False where that does not tell the state.

    What the observation does not show stays as it was or begins at nothing,
    and a clipped speed is what it was clipped to. The first call for an
    environment plays it, and resets it.
    """
    inner = env.unwrapped
    if inner not in _WAYS:
        _WAYS[inner] = _way(env)
        env.reset(seed=0)
    return _WAYS[inner](inner, observation)


def _way(env: gym.Env[Any, Any]) -> Way:
    """Choose how an environment is restored."""
    inner = env.unwrapped
    read = reader(inner)
    kinds = [type(getattr(inner, name, None)).__name__ for name in ("model", "data")]
    if read and kinds == ["MjModel", "MjData"]:
        from cwm_gymnasium.mujoco_restoring import Simulation

        return Simulation(inner)
    if read and all(isinstance(getattr(inner, name, None), list) for name in HANDS):
        return deal
    return Attributes(env)


def deal(env: Any, observation: Any) -> bool:
    """Deal the shortest hand that looks as observed; the dealer's hidden card stays drawn."""
    seen, read = flat(observation), reader(env)
    if seen.shape != (3,) or read is None:
        return False
    env.dealer[0] = int(seen[1])
    for count in range(2, FEW_CARDS + 1):
        for hand in combinations_with_replacement(range(1, 11), count):
            env.player = list(hand)
            if np.array_equal(flat(read()), seen):
                return True
    return False


class Attributes:
    """Sets the attributes whose numbers are observed, or whose cosine and sine are."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        records, seen = zip(*_played(env), strict=True)
        self._names = [name for name, first in records[0].items() if _lasts(name, first, records)]
        states = np.array([self._joined(record) for record in records])
        self._seen = np.array(seen) if len({len(row) for row in seen}) == 1 else np.empty((0, 0))
        self._layout = Layout.copied(states, self._seen) if self._seen.size else None

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""
        layout, seen = self._layout, flat(observation)
        if layout is None or not layout.told.any() or seen.shape != layout.shown.shape:
            return False
        if not np.isfinite(seen).all():
            return False
        self._set(env, layout.state(seen), layout.told)
        read, others = reader(env), ~layout.read
        if read is None:
            return bool((self._seen[:, others] == seen[others]).all())
        own = flat(read())
        return own.shape == seen.shape and np.allclose(own, seen, TOLERANCE, TOLERANCE)

    def _set(self, env: Any, state: np.ndarray, told: np.ndarray) -> None:
        """Set the numbers that are told, and leave the others alone."""
        start = 0
        for name in self._names:
            old = getattr(env, name)
            place = slice(start, start + np.size(old))
            if told[place].any():
                numbers = np.where(told[place], state[place], np.ravel(old))
                setattr(env, name, _like(old, numbers))
            start = place.stop

    def _joined(self, record: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of all attributes in a row."""
        return np.concatenate([np.empty(0), *(record[name] for name in self._names)])


def _played(env: gym.Env[Any, Any]) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Play at random, and yield the attributes that are numbers with what is seen."""
    space = deepcopy(env.action_space)
    space.seed(0)
    for episode in range(EPISODES):
        observation, over = env.reset(seed=episode)[0], False
        for _ in range(STEPS):
            yield _numbers_of(env.unwrapped), flat(observation)
            if over:
                break
            observation, _, terminated, truncated, _ = env.step(space.sample())
            over = bool(terminated or truncated)


def _numbers_of(env: Any) -> dict[str, np.ndarray]:
    """Return the attributes that are numbers, arrays or rows of numbers."""
    found = {name: _numbers(value) for name, value in vars(env).items()}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _numbers(value: Any) -> np.ndarray | None:
    """Return a value as a row of numbers, if it is made of these."""
    if type(value) in (list, tuple) and not all(isinstance(part, Real) for part in value):
        return None
    if not isinstance(value, Real | np.ndarray | np.generic | list | tuple):
        return None
    array = np.asarray(value).ravel()
    if array.dtype.kind not in "biuf" or not 0 < array.size <= MOST_NUMBERS:
        return None
    return array.astype(np.float64)


def _lasts(name: str, first: np.ndarray, records: Sequence[Mapping[str, np.ndarray]]) -> bool:
    """Whether an attribute is always there, of the same size, and not always the same."""
    rows = [record.get(name) for record in records]
    sizes = {None if row is None else row.size for row in rows}
    return sizes == {first.size} and any((row != first).any() for row in rows if row is not None)


def _like(old: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the form of a value that they replace."""
    if isinstance(old, np.ndarray):
        return numbers.reshape(old.shape).astype(old.dtype)
    if isinstance(old, list | tuple):
        return type(old)(_like(*pair) for pair in zip(old, numbers, strict=True))
    return type(old)(numbers.item())
