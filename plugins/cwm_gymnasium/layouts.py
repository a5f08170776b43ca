"""Which numbers of an observation are numbers of a state, found by comparing many of both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

READERS = ("_get_obs", "_get_ob")
"""Methods that return what an environment shows where it stands."""

SAME = 1e-6
"""Numbers that differ by less in all samples are the same; observations may be of float32."""

LINEAR = 1e-8
"""Likewise for a sum of numbers of the state, which needs samples of float64."""

DIGITS = 11
"""Decimals of what is solved for: what is shown as it is shall be read to the last bit."""


@dataclass(frozen=True)
class Layout:
    """How a state is read from an observation, both flat: `base + weights @ (seen - shown)`.

    `turns` are angles: the number of the state, and where its cosine and its
    sine are seen. `read` marks what is read of an observation, `told` what
    that tells of the state; the rest of the state is that of `base`.
    """

    base: np.ndarray
    shown: np.ndarray
    weights: np.ndarray
    turns: tuple[tuple[int, int, int], ...]
    read: np.ndarray
    told: np.ndarray

    @classmethod
    def copied(cls, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which numbers of the state are shown as they are."""
        pairs = _same(states, seen)
        weights = np.zeros((states.shape[1], seen.shape[1]))
        told, read = pairs.max(axis=1), pairs.max(axis=0)
        weights[told, pairs.argmax(axis=1)[told]] = 1.0
        base = np.where(told, 0.0, states[-1])
        return cls._turned(states, seen, cls(base, 0 * seen[0], weights, (), read, told))

    @classmethod
    def linear(cls, base: np.ndarray, states: np.ndarray, seen: np.ndarray) -> Self:
        """Learn which sums of numbers of the state are shown, and what they tell of it."""
        design = np.hstack([states - base, np.ones((len(states), 1))])
        slopes = np.linalg.lstsq(design, seen)[0].round(DIGITS)
        right = np.abs(design @ slopes - seen).max(axis=0) < LINEAR * (1 + np.abs(seen).max(axis=0))
        jacobian, shown = slopes[:-1].T, slopes[-1]
        read = right & (np.abs(jacobian).max(axis=1) > SAME)
        weights = np.zeros((len(base), seen.shape[1]))
        weights[:, read] = np.linalg.pinv(jacobian[read], rcond=SAME).round(DIGITS)
        told = np.abs(np.diag(weights @ jacobian) - 1) < SAME
        return cls._turned(states, seen, cls(base, shown, weights, (), read, told))

    @classmethod
    def _turned(cls, states: np.ndarray, seen: np.ndarray, found: Layout) -> Self:
        """Add the angles whose cosine and sine are shown."""
        cosines, sines = _same(np.cos(states), seen), _same(np.sin(states), seen)
        angles = np.flatnonzero(cosines.any(axis=1) & sines.any(axis=1) & ~found.told)
        turns = tuple(
            (int(angle), int(cosines[angle].argmax()), int(sines[angle].argmax()))
            for angle in angles
        )
        read, told = found.read.copy(), found.told.copy()
        told[angles] = True
        read[[place for _, *places in turns for place in places]] = True
        return cls(found.base, found.shown, found.weights, turns, read, told)

    def state(self, seen: np.ndarray) -> np.ndarray:
        """Return the state that an observation tells."""
        state: np.ndarray = self.base + self.weights @ (seen - self.shown)
        for angle, cosine, sine in self.turns:
            state[angle] = np.arctan2(seen[sine], seen[cosine])
        return state


def flat(observation: Any) -> np.ndarray:
    """Return the numbers of an observation, one after the other; a text is not a number."""
    if isinstance(observation, Mapping):
        observation = [observation[key] for key in sorted(observation)]
    if isinstance(observation, list | tuple):
        parts = [flat(part) for part in observation]
        return np.concatenate(parts) if parts else np.empty(0)
    array = np.asarray(observation).ravel()
    return array.astype(np.float64) if array.dtype.kind in "biuf" else np.full(array.size, np.nan)


def reader(env: Any) -> Callable[[], Any] | None:
    """Return the method by which an environment looks at itself, if it has one."""
    found = (getattr(env, name, None) for name in READERS)
    return next((method for method in found if _takes_nothing(method)), None)


def _takes_nothing(method: Any) -> bool:
    """Whether something can be called without arguments."""
    if not inspect.ismethod(method):
        return False
    parameters = inspect.signature(method).parameters.values()
    return all(
        parameter.default is not parameter.empty or "VAR" in parameter.kind.name
        for parameter in parameters
    )


def _same(states: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return which numbers of the states (rows) are which that are seen, in all samples.

    Those that are never seen to change tell nothing.
    """
    pairs = np.zeros((states.shape[1], seen.shape[1]), dtype=np.bool_)
    changing = np.ptp(seen, axis=0) > 0 if len(seen) else np.zeros(seen.shape[1], np.bool_)
    for number, column in enumerate(states.T):
        apart = np.abs(seen - column[:, None])
        pairs[number] = changing & (apart <= SAME * (1 + np.abs(seen))).all(axis=0)
    return pairs
