"""A transformed program as a batch: stand, step, keep."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.batched.creation import lane_array
from cwm_cli.planning.batched.lanes import Maybe, Value, has_lanes, kind, only, refuse
from cwm_cli.planning.batched.sharing import is_shared, owner_of
from cwm_cli.planning.batched.transformed import Transformed, location
from cwm_cli.planning.model import Unbatched

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]

Result = TypeVar("Result")


class LaneBatch:
    """Steps many lanes at once; attributes that no observation sets go with their lanes.

    Every `stand` begins with the program as it was when it had just been made.
    """

    def __init__(self, transformed: Transformed, observation_space: Space) -> None:
        self.transformed = transformed
        self._components = observation_space.size if observation_space.is_float else 0
        self._resize(0)
        self._object: Any = None

    def stand(self, observations: np.ndarray) -> None:
        """Stand at observations: (components, lanes), or (lanes,) where they are one integer."""
        _guarded(self._stand, observations.copy())

    def step(self, actions: np.ndarray) -> Answer:
        """Take actions; return observations, rewards (lanes,) and terminated (lanes,)."""
        return _guarded(self._step, actions.copy() if self.transformed.changes else actions)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions; return rewards and terminated."""
        return self.step(actions)[1:]

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with some lanes only, given by number or by a mask."""
        kept = _Kept(self._count, np.flatnonzero(lanes) if lanes.dtype == bool else lanes)
        attributes = vars(self._object)
        parts = {name: kept(value) for name, value in attributes.items()}
        if self.transformed.changes and kept.shares:
            refuse("an array that may change is part of another")
        attributes.update(parts)
        self._resize(len(kept.lanes))

    def _stand(self, observations: np.ndarray) -> None:
        self._resize(observations.shape[-1])
        self._object = self.transformed.make(self._count)
        self._object.set_state(observations)

    def _step(self, actions: np.ndarray) -> Answer:
        self.transformed.resize(self._count)
        answer = self._object.step(actions)
        if not isinstance(answer, tuple) or len(answer) != 3:
            refuse("step returns something other than three values")
        observation, reward, terminated = answer
        return self._observed(observation), self._rewards(reward), self._ends(terminated)

    def _resize(self, count: int) -> None:
        self._count = count
        self._same: dict[Value, np.ndarray] = {}

    def _observed(self, value: Value) -> np.ndarray:
        """Return what is an observation in every lane."""
        if not self._components:
            return self._wide(value, "iub", "the observation")
        value = lane_array(value)
        if not has_lanes(value) or value.shape[:-1] != (self._components,):
            refuse("the observation has another shape")
        if kind(value) not in "fiub":
            refuse("the observation is not made of numbers")
        if value.shape[-1] != self._count:
            return np.repeat(value, self._count, -1)
        return np.array(value) if self.transformed.changes else np.asarray(value)

    def _rewards(self, value: Value) -> np.ndarray:
        """Return rewards; an array of one element is a number."""
        value = only(value) if has_lanes(value) and value.ndim > 1 else value
        wide = self._wide(value, "fiub", "the reward")
        return wide if wide.dtype == np.float64 else wide.astype(np.float64)

    def _ends(self, value: Value) -> np.ndarray:
        """Return in which lanes the episode ends."""
        wide = self._wide(value, "biu", "terminated")
        if wide.dtype != bool and ((wide != 0) & (wide != 1)).any():
            refuse("terminated is neither 0 nor 1")
        return wide if wide.dtype == bool else wide != 0

    def _wide(self, value: Value, kinds: str, what: str) -> np.ndarray:
        """Return one number for every lane."""
        if kind(value) not in kinds or (has_lanes(value) and value.ndim > 1):
            refuse(f"{what} is no such number")
        if has_lanes(value):
            same = value.shape[-1] != self._count
            return np.repeat(value, self._count) if same else np.asarray(value)
        known = self._same.get((type(value), value))
        if known is None:
            known = self._same[type(value), value] = np.full(self._count, value)
            known.flags.writeable = False
        return known


class _Kept:
    """Values with some of their lanes; what was one object stays one object."""

    def __init__(self, count: int, lanes: np.ndarray) -> None:
        self.count, self.lanes = count, lanes
        self.shares = False
        self._made: dict[int, Value] = {}
        self._owners: set[int] = set()

    def __call__(self, value: Value) -> Value:
        """Return a value with some of its lanes."""
        if not isinstance(value, np.ndarray | list | tuple | dict | Maybe):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._part(value)
        return self._made[id(value)]

    def _part(self, value: Value) -> Value:
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Maybe):
            return Maybe(self(value.value), self(value.missing))
        if isinstance(value, dict):
            parts = {key: self(part) for key, part in value.items()}
            return parts if any(parts[key] is not value[key] for key in value) else value
        made = [self(part) for part in value]
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        return made if isinstance(value, list) else tuple(made)

    def _array(self, value: np.ndarray) -> np.ndarray:
        if not value.ndim or value.shape[-1] != self.count:
            return value
        owner = id(owner_of(value))
        self.shares |= owner in self._owners
        self._owners.add(owner)
        kept = np.take(value, self.lanes, axis=-1)
        kept.flags.writeable = value.flags.writeable and not is_shared(value)
        return kept


def _trip(error: str, flag: int) -> None:
    """Refuse what numpy goes on with, and Python may not."""
    refuse(f"{error} encountered")


def _guarded(work: Callable[[np.ndarray], Result], values: np.ndarray) -> Result:
    """Refuse whatever the program would have failed with, naming the line."""
    try:
        with np.errstate(all="call", under="ignore", call=_trip):
            return work(values)
    except Unbatched as error:
        raise Unbatched(f"{location(error)}{error}") from None
    except Exception as error:  # noqa: BLE001  # the program itself will say it better
        raise Unbatched(f"{location(error)}{type(error).__name__}: {error}") from None
