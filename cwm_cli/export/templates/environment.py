"""The environment that `program.py` predicts, for Gymnasium; `world.json` holds what was recorded.

Every step asks the program as it was asked when it was scored: to stand at an
observation, then to take one step, or to say what can follow, of which one is drawn. It
goes on from what the program answered, before that was rounded to the precision of the
space. A program with memory goes on by itself, from the `reset` at the start: what it
predicts is what happens, so that there is nothing to `correct`.
"""

import json
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class WorldModelEnv(gym.Env[Any, Any]):
    """Acts through a program.

    An episode starts at one of the recorded starting observations, or where
    `reset(options={"observation": ...})` says. Where the program knows which
    actions are valid, `info` has them as `valid_actions` and `action_mask`; all
    are at a start of which nothing is known.
    """

    def __init__(self) -> None:
        self._world = json.loads(Path(__file__).with_name("world.json").read_text())
        characters = self._world["characters"]
        self.observation_space = space_of(self._world["observation_space"], characters)
        self.action_space = space_of(self._world["action_space"], characters)
        with seeded(self._world["seed"]):
            self._make_program = import_module(f"{__package__}.program").Environment

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; equal seeds and actions give equal episodes."""
        super().reset(seed=seed)
        start = self._world["starts"][self.np_random.integers(len(self._world["starts"]))]
        if options and "observation" in options:
            start = {"observation": options["observation"]}
        if self._world["abilities"]["draws"]:
            self._make_program.rng = self.np_random  # also for what it does when it is made
        with seeded(self._world["seed"]):
            self._program = self._make_program()
        self._observation = plain(self.observation_space, start["observation"])
        if self._world["abilities"]["draws"]:
            self._program.rng = self.np_random  # others are made of the same class
        if self._world["abilities"]["remembers"]:
            self._program.reset(plain(self.observation_space, self._observation))
        info = self._info(start.get("valid_actions", ()))
        return typed(self.observation_space, self._observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; a time limit is left to Gymnasium."""
        if self._world["draws"]:
            with seeded(int(self.np_random.integers(2**32))):
                answer = self._answer(action)
        else:
            answer = self._answer(action)
        observation, reward, terminated, *valid = answer
        self._observation = plain(self.observation_space, observation)
        seen = typed(self.observation_space, self._observation)
        info = self._info(valid[0] if valid else ())
        return seen, float(np.asarray(reward).item()), bool(terminated), False, info

    def _answer(self, action: Any) -> Any:
        """Ask the program; it gets copies."""
        taken, abilities = plain(self.action_space, action), self._world["abilities"]
        if not abilities["remembers"]:
            self._program.set_state(plain(self.observation_space, self._observation))
            if abilities["tells"]:
                return self._drawn(self._program.outcomes(taken))
        return self._program.step(taken)

    def _drawn(self, told: Iterable[Any]) -> Any:
        """Draw one of the outcomes that the program tells, each of which has its probability."""
        outcomes = list(told)
        shares = np.array([float(outcome[0]) for outcome in outcomes])
        return outcomes[self.np_random.choice(len(outcomes), p=shares / shares.sum())][1:]

    def _info(self, valid: Iterable[Any]) -> dict[str, Any]:
        """Say which actions are valid, where the program knows; all where it names none."""
        if not self._world["names_actions"]:
            return {}
        assert isinstance(self.action_space, spaces.Discrete)
        first, mask = int(self.action_space.start), np.zeros(int(self.action_space.n), np.int8)
        named = [int(action) - first for action in valid]
        mask[[place for place in named if 0 <= place < len(mask)]] = 1
        if not mask.any():
            mask[:] = 1
        return {"valid_actions": (np.flatnonzero(mask) + first).tolist(), "action_mask": mask}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let `random` and `numpy.random` begin at a seed, and leave both as they were."""
    before = random.getstate(), np.random.get_state()
    random.seed(repr((seed,)))
    np.random.seed([seed % 2**32])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def space_of(data: dict[str, Any], characters: str) -> spaces.Space[Any]:
    """Make the space that `data` describes; texts are made of `characters`."""
    children = [space_of(child, characters) for child in data.get("children", ())]
    if data["kind"] == "tuple":
        return spaces.Tuple(children)
    if data["kind"] == "dict":
        return spaces.Dict(OrderedDict(zip(data.get("keys", ()), children, strict=True)))
    if data["kind"] == "text":
        return spaces.Text(data["max_length"], min_length=0, charset=characters)
    return _space_of_numbers(data)


def _space_of_numbers(data: dict[str, Any]) -> spaces.Space[Any]:
    """Make a space of one number or of an array of them."""
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    if data["kind"] == "multibinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    low, high = _bound(data["low"], shape, dtype, -1), _bound(data["high"], shape, dtype, 1)
    if data["kind"] == "discrete":
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    if data["kind"] == "multidiscrete":
        return spaces.MultiDiscrete(high - low + 1, dtype=dtype.type, start=low)
    return spaces.Box(low, high, shape, dtype.type)


def plain(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value as programs see it: int, str, arrays of float64 or int64, each a copy."""
    return _each(space, value, _plain)


def typed(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value that programs see in the types of its space."""
    return _each(space, value, _typed)


def _each(space: spaces.Space[Any], value: Any, of_leaf: Callable[..., Any]) -> Any:
    """Apply a function to the leaves of a nested value."""
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, value, strict=True)
        return tuple(_each(child, part, of_leaf) for child, part in pairs)
    if isinstance(space, spaces.Dict):
        return {key: _each(child, value[key], of_leaf) for key, child in space.spaces.items()}
    return of_leaf(space, value)


def _plain(space: spaces.Space[Any], value: Any) -> Any:
    """Return a leaf as programs see it; whole numbers are the nearest to what they answered."""
    if isinstance(space, spaces.Text):
        return str(value)
    array = np.array(value).reshape(space.shape)
    if space.dtype is not None and space.dtype.kind == "f":
        return array.astype(np.float64)
    if array.dtype.kind == "f":
        with np.errstate(invalid="raise"):
            array = np.rint(array).astype(np.int64)
    return int(array) if isinstance(space, spaces.Discrete) else array.astype(np.int64)


def _typed(space: spaces.Space[Any], value: Any) -> Any:
    """Return a leaf in the type of its space."""
    return value.astype(space.dtype) if isinstance(value, np.ndarray) else value


def _bound(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any], sign: int) -> np.ndarray:
    """Read bounds: one for all components or one each; null is none."""
    bounds = bound if isinstance(bound, list) else [bound] * int(np.prod(shape, dtype=int))
    floats = [sign * np.inf if each is None else each for each in bounds]
    if dtype.kind == "f":
        return np.array(floats, dtype).reshape(shape)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.array([int(min(max(each, least), most)) for each in floats], dtype).reshape(shape)
