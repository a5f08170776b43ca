"""What there is to see of an observation: its environment's picture, cells in colour, or words.

An environment draws itself where it was stood at the observation, so that what a model predicts
is seen as what came about is.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.envs.documented import documented_names
from cwm_cli.envs.films import QUIET
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.text import clean

if TYPE_CHECKING:
    import gymnasium as gym

CELL = 8
"""Height and width of a cell in pixels: enough for a smaller square in it."""

COLORS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 119, 180),
    "purple": (148, 103, 189),
    "yellow": (219, 200, 34),
    "grey": (127, 127, 127),
    "gray": (127, 127, 127),
    "orange": (255, 127, 14),
    "brown": (140, 86, 75),
    "pink": (227, 119, 194),
    "cyan": (23, 190, 207),
    "black": (40, 40, 40),
    "white": (240, 240, 240),
}
"""What colours are called, for objects that have one."""

EMPTY = (24, 24, 28)

PALETTE = np.array([EMPTY, *list(COLORS.values())[:5], *list(COLORS.values())[7:]], np.uint8)
"""A colour for each class of objects or number on a board: those that are told apart best."""


class Appearance(NamedTuple):
    """What there is to see: a picture (height, width, 3) of bytes, or lines of text, or nothing."""

    picture: np.ndarray | None = None
    text: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see."""
        return self.picture is None and not self.text


class Painter:
    """Shows observations of an environment; to be closed.

    The first way that serves is kept: an observation that is a picture, what the environment
    draws, as a picture or in words, or cells in colour. `lacking` says why the environment draws
    nothing.

        painter = Painter(spec, env_args, space)
        painter.look(observation).picture
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        space: Space,
        schema: ObjectSchema | None = None,
    ) -> None:
        self.lacking = ""
        self._spec, self._env_args, self._space, self._schema = spec, env_args, space, schema
        self._env: gym.Env[Any, Any] | None = None
        self._is_picture = space.is_picture
        if not self._is_picture:
            self._env = self._drawing()

    def look(self, observation: Any) -> Appearance:
        """Return what there is to see of an observation."""
        if self._is_picture:
            return Appearance(in_colour(np.asarray(observation)))
        if self._env is not None:
            found = self._drawn(self._env, observation)
            if found is not None:
                return found
        return Appearance(self._cells(observation))

    def close(self) -> None:
        """Let go of the environment that draws."""
        if self._env is not None:
            self._env.close()

    def _drawing(self) -> gym.Env[Any, Any] | None:
        """Make an environment that draws itself, nothing where there is none."""
        if self._spec.restore is None:
            self.lacking = f"{self._spec.id} cannot be restored to an observation"
            return None
        env = drawing(self._spec, self._env_args)
        if isinstance(env, str):
            self.lacking = env
            return None
        return env

    def _drawn(self, env: gym.Env[Any, Any], observation: Any) -> Appearance | None:
        """Stand the environment at an observation, and have it draw itself."""
        restore = self._spec.restore
        assert restore is not None
        try:
            if restore(env.unwrapped, observation):
                return rendered(env)
        except Exception as error:  # noqa: BLE001  # of what a model made up anything may come
            self.lacking = (
                f"{self._spec.id} cannot render this observation ({type(error).__name__})"
            )
        else:
            self.lacking = f"an observation of {self._spec.id} does not show its whole state"
        return None

    def _cells(self, observation: Any) -> np.ndarray | None:
        """Draw an object table or a board, nothing where it is neither."""
        if self._schema is not None and isinstance(observation, Mapping):
            return object_cells(self._schema, np.asarray(observation[OBJECTS]))
        if self._space.kind in ("tuple", "dict", "text", "discrete") or self._space.is_float:
            return None
        return board_cells(np.asarray(observation))


def drawing(spec: EnvironmentSpec, env_args: Mapping[str, Any]) -> gym.Env[Any, Any] | str:
    """Make an environment that draws itself, in pixels or in words; or say why there is none."""
    os.environ.update({name: text for name, text in QUIET.items() if name not in os.environ})
    reason = f"{spec.id} has no rendering"
    with warnings.catch_warnings(action="ignore"), redirect_stdout(sys.stderr):
        for mode in ("rgb_array", "ansi"):
            try:
                env = spec.make(**dict(env_args) | {"render_mode": mode})
                env.reset(seed=0)
                if rendered(env) is not None:
                    return env
                env.close()
            except Exception as error:  # noqa: BLE001  # drawing needs packages, screens, ...: any may fail
                said = clean(str(error), limit=100)
                if mode == "rgb_array":
                    hint = ": without a screen, set MUJOCO_GL=egl" * ("OpenGL" in said)
                    reason = f"{spec.id} cannot be rendered ({said}){hint}"
    return reason


def rendered(env: gym.Env[Any, Any]) -> Appearance | None:
    """Have an environment draw itself, nothing where it does not."""
    seen = env.render()
    if isinstance(seen, str):
        return Appearance(text=_plain(seen))
    picture = np.asarray(seen)
    if picture.dtype != np.uint8 or picture.ndim != 3:
        return None
    return Appearance(in_colour(picture))


def _plain(text: str) -> str:
    """Return text without the escapes that colour it."""
    import re

    return clean(re.sub(r"\x1b\[[0-9;]*m", "", text), newlines=True)


def in_colour(picture: np.ndarray) -> np.ndarray:
    """Return pixels (height, width, channels) with three channels."""
    return np.repeat(picture[..., :1], 3, axis=2) if picture.shape[2] < 3 else picture[..., :3]


def board_cells(board: np.ndarray) -> np.ndarray | None:
    """Draw whole numbers of two axes, or three of which the last tells what is there."""
    if board.ndim == 3 and min(board.shape[:2]) > 1:
        there = board != 0
        depth = np.arange(1, board.shape[2] + 1)
        board = (there * depth).max(axis=2)
    if board.ndim != 2 or min(board.shape) < 2:
        return None
    numbers = board.astype(np.int64)
    numbers = np.where(numbers > 0, (numbers - 1) % (len(PALETTE) - 1) + 1, numbers % len(PALETTE))
    return np.kron(PALETTE[numbers], np.ones((CELL, CELL, 1), np.uint8))


def object_cells(schema: ObjectSchema, table: np.ndarray) -> np.ndarray | None:
    """Draw the objects of a table where they are; the agent is the smaller square, on top."""
    x, y = (table[:, schema.column(name)] for name in ("x", "y"))
    there = (table[:, 0] > 0) & (table[:, 0] < len(schema.classes)) & (x >= 0) & (y >= 0)
    if not there.any() or max(x[there].max(), y[there].max()) >= 128:
        return None
    height, width = int(y[there].max()) + 1, int(x[there].max()) + 1
    picture = np.tile(np.array(EMPTY, np.uint8), (height * CELL, width * CELL, 1))
    field = next((each for each in schema.fields if each.name in ("color", "colour")), None)
    seen: set[tuple[int, int]] = set()
    for row in np.flatnonzero(there)[::-1]:  # the agent, which has the first row, last
        color = PALETTE[(int(table[row, 0]) - 1) % (len(PALETTE) - 1) + 1]
        if field is not None:
            number = int(table[row, schema.column(field.name)])
            word = field.values[number] if number < len(field.values) else ""
            color = np.array(COLORS.get(word, tuple(color)), np.uint8)
        cell = int(x[row]), int(y[row])
        inset = 2 if row == 0 else 1 if cell in seen else 0
        seen.add(cell)
        top, left = cell[1] * CELL + inset, cell[0] * CELL + inset
        picture[top : top + CELL - 2 * inset, left : left + CELL - 2 * inset] = color
    return picture


class NamedComponent(NamedTuple):
    """A part of an observation: what it is called, and between which bounds it is."""

    name: str
    low: float
    high: float


class Components:
    """The single components of the observations of a space, by name.

    named = Components(space, description)
    list(zip(named.each, named.values(observation)))
    """

    def __init__(
        self, space: Space, description: str = "", schema: ObjectSchema | None = None
    ) -> None:
        self._space, self.is_picture = space, space.is_picture
        self.each: list[NamedComponent] = []
        documented = documented_names(description, space)
        for name, leaf in space.leaves(""):
            called = _called(name.strip(".") or "observation", leaf, documented, schema)
            bounds = np.full((2, len(called)), np.inf) * np.array([[-1], [1]])
            if leaf.low:
                bounds = np.array([leaf.low, leaf.high], float).reshape(2, -1)
            self.each += [
                NamedComponent(word, float(low), float(high))
                for word, low, high in zip(called, *bounds, strict=True)
            ]

    def values(self, observation: Any) -> list[Any]:
        """Return the components of an observation, numbers and texts."""
        columns = self._space.pack("", [observation])
        return [value for column in columns.values() for value in column.reshape(-1).tolist()]


def _called(
    name: str, leaf: Space, documented: tuple[str, ...], schema: ObjectSchema | None
) -> list[str]:
    """Name the components of a leaf."""
    if not leaf.shape or leaf.kind == "text":
        return [name]
    if len(documented) == leaf.size:
        return list(documented)
    places = list(np.ndindex(leaf.shape))
    if schema is not None and name == OBJECTS:
        tell: Callable[[int], str] = lambda row: "agent" if row == 0 else f"object {row}"  # noqa: E731
        return [f"{tell(row)} {schema.names[field]}" for row, field in places]
    return [f"{name} {', '.join(map(str, place))}" for place in places]
