"""Renders observations with the true environment, or as text.

The true environment is created for the first picture and must be installed then. `world.json`
describes how to set its state from an observation.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np


def renderer(told: Mapping[str, Any], mode: str) -> "TrueRenderer | TextRenderer":
    """Return the renderer of a mode; `told` is the section `rendering` of `world.json`."""
    if mode not in told["modes"]:
        known = ", ".join(map(repr, told["modes"])) or "none"
        raise ValueError(f"unknown render_mode {mode!r}: choose {known}")
    return TrueRenderer(told, mode) if told["environment"] else TextRenderer(told)


class TrueRenderer:
    """Renders with the true environment."""

    def __init__(self, told: Mapping[str, Any], mode: str) -> None:
        self._told, self._mode = told, mode
        self._env: gym.Env[Any, Any] | None = None

    def render(self, observation: Any) -> Any:
        """Stand the environment at an observation, and have it draw itself."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            if self._env is None:
                arguments = {**self._told["arguments"], "render_mode": self._mode}
                name = self._told["environment"]
                with without_mujoco_warnings(name):
                    self._env = gym.make(name, disable_env_checker=True, **arguments).unwrapped
                self._env.reset(seed=0)
            stand(self._env, self._told["layout"], observation)
            return self._env.render()
        except (ImportError, gym.error.Error) as error:
            name, what = self._told["environment"], self._told["needs"]
            words = f"rendering needs {name}, which cannot be created ({error}): {what}"
            raise gym.error.DependencyNotInstalled(words) from error

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()


@contextmanager
def without_mujoco_warnings(name: str) -> Iterator[None]:
    """Suppress warnings of MuJoCo while an environment loads its model file.

    They concern outdated options in that file, which a user cannot change.
    """
    if "mujoco" not in str(gym.spec(name).entry_point):
        yield
        return
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def stand(env: Any, layout: Mapping[str, Any], observation: Any) -> None:
    """Set the state of an environment from an observation; the rest is unchanged.

    A state is read as `base + weights @ (observation - shown)`; of a turn (angle, cosine, sine)
    the last two are the places at which it is observed.
    """
    seen = np.concatenate([np.ravel(part) for part in _parts(observation)]).astype(np.float64)
    state = np.array(layout["base"])
    rows, columns, weights = (np.array(part) for part in layout["weights"])
    shown = np.array(layout["shown"])
    np.add.at(state, rows.astype(int), weights * (seen - shown)[columns.astype(int)])
    for angle, cosine, sine in layout["turns"]:
        state[angle] = np.arctan2(seen[sine], seen[cosine])
    if layout["attributes"] is None:  # positions and velocities of a simulation by MuJoCo
        env.set_state(*np.split(state, [env.model.nq, env.model.nq + env.model.nv])[:2])
        return
    told, place = np.array(layout["told"], np.bool_), 0
    for name, size in layout["attributes"]:
        span = slice(place, place + size)
        if told[span].any():
            old = getattr(env, name)
            setattr(env, name, _like(old, np.where(told[span], state[span], np.ravel(old))))
        place += size


def _parts(observation: Any) -> list[Any]:
    """Return the leaves of an observation, those of a dict in the order of their names."""
    if isinstance(observation, Mapping):
        observation = [observation[name] for name in sorted(observation)]
    if isinstance(observation, list | tuple):
        return [leaf for part in observation for leaf in _parts(part)]
    return [observation]


def _like(old: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the form of a value that they replace."""
    if isinstance(old, np.ndarray):
        return numbers.reshape(old.shape).astype(old.dtype)
    if isinstance(old, list | tuple):
        return type(old)(_like(*pair) for pair in zip(old, numbers, strict=True))
    return type(old)(numbers.item())


class TextRenderer:
    """Renders a board as lines of characters, one per cell.

    Of an array of whole numbers they are its digits, `.` for 0. Of a table of objects, whose rows
    begin with a class (0 is none) and have an x and a y, they are the first letters of classes; of
    several objects in a cell the first row is seen.
    """

    CHARACTERS = ".123456789abcdefghijklmnopqrstuvwxyz"

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._objects = told["objects"]

    def render(self, observation: Any) -> str:
        """Return the lines."""
        if self._objects:
            named, x, y = (self._objects[name] for name in ("classes", "x", "y"))
            rows = [row for row in observation[self._objects["table"]].tolist() if row[0] > 0]
            there = [row for row in rows if min(row[x], row[y]) >= 0 and row[0] < len(named)]
            width, height = (max([0, *(row[axis] for row in there)]) + 1 for axis in (x, y))
            cells = [["."] * width for _ in range(height)]
            for row in reversed(there):
                cells[row[y]][row[x]] = named[row[0]][:1] or "?"
        else:
            last, board = len(self.CHARACTERS) - 1, observation.tolist()
            cells = [[self.CHARACTERS[min(max(n, 0), last)] for n in line] for line in board]
        return "".join("".join(line) + "\n" for line in cells)

    def close(self) -> None:
        """Do nothing: there are no resources."""
