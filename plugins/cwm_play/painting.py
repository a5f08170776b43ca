"""Draw observations: an image by the environment, coloured cells, or text.

The environment is set to the observation and then renders itself, so a predicted observation and
a true one look alike.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
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
"""Height and width of a cell in pixels: enough to draw a smaller square inside."""

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
"""RGB values of the colours of objects."""

EMPTY = (24, 24, 28)

PALETTE = np.array([EMPTY, *list(COLORS.values())[:5], *list(COLORS.values())[7:]], np.uint8)
"""Colours of object classes and of numbers on a board: the most distinct ones come first."""


class Appearance(NamedTuple):
    """A drawn observation: a picture (height, width, 3) of bytes, lines of text, or nothing."""

    picture: np.ndarray | None = None
    text: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a picture nor text."""
        return self.picture is None and not self.text


class Painter:
    """A painter of observations.

    It uses the first way that works: the observation itself if it is an image, a rendering by the
    environment as an image or as text, or coloured cells. Close it after use::

        painter = Painter(spec, env_args, space)
        painter.paint(observation).picture

    Attributes:
        no_rendering_reason: Why the environment renders nothing; empty if it renders.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        space: Space,
        schema: ObjectSchema | None = None,
    ) -> None:
        self.no_rendering_reason = ""
        self._spec, self._env_args, self._space, self._schema = spec, env_args, space, schema
        self._env: gym.Env[Any, Any] | None = None
        self._is_picture = space.is_picture
        if not self._is_picture:
            self._env = self._make_env()

    def paint(self, observation: Any) -> Appearance:
        """Draw an observation; the result is empty if there is no way to draw it."""
        if self._is_picture:
            return Appearance(to_rgb(np.asarray(observation)))
        if self._env is not None:
            appearance = self._render(self._env, observation)
            if appearance is not None:
                return appearance
        return Appearance(self._cells(observation))

    def close(self) -> None:
        """Close the environment that renders observations."""
        if self._env is not None:
            self._env.close()

    def _make_env(self) -> gym.Env[Any, Any] | None:
        if self._spec.restore is None:
            self.no_rendering_reason = f"{self._spec.id} cannot be restored to an observation"
            return None
        env = make_rendering_env(self._spec, self._env_args)
        if isinstance(env, str):
            self.no_rendering_reason = env
            return None
        return env

    def _render(self, env: gym.Env[Any, Any], observation: Any) -> Appearance | None:
        """Set the environment to an observation and render it; None if that is impossible."""
        restore = self._spec.restore
        assert restore is not None
        try:
            if restore(env.unwrapped, observation):
                return render(env)
        except Exception as error:  # noqa: BLE001  # a predicted observation can raise anything
            self.no_rendering_reason = (
                f"{self._spec.id} cannot render this observation ({type(error).__name__})"
            )
        else:
            self.no_rendering_reason = (
                f"an observation of {self._spec.id} does not show its whole state"
            )
        return None

    def _cells(self, observation: Any) -> np.ndarray | None:
        """Draw an object table or a board; return None for other observations."""
        if self._schema is not None and isinstance(observation, Mapping):
            return object_cells(self._schema, np.asarray(observation[OBJECTS]))
        if self._space.kind in ("tuple", "dict", "text", "discrete") or self._space.is_float:
            return None
        return board_cells(np.asarray(observation))


def make_rendering_env(
    spec: EnvironmentSpec, env_args: Mapping[str, Any]
) -> gym.Env[Any, Any] | str:
    """Return an environment that renders itself as an image or as text, or the reason why not."""
    os.environ.update({name: text for name, text in QUIET.items() if name not in os.environ})
    reason = f"{spec.id} has no rendering"
    with warnings.catch_warnings(action="ignore"), redirect_stdout(sys.stderr):
        for mode in ("rgb_array", "ansi"):
            try:
                env = spec.make(**dict(env_args) | {"render_mode": mode})
                env.reset(seed=0)
                if render(env) is not None:
                    return env
                env.close()
            except Exception as error:  # noqa: BLE001  # packages, a screen or drivers may be missing
                message = clean(str(error), limit=100)
                if mode == "rgb_array":
                    hint = ": without a screen, set MUJOCO_GL=egl" * ("OpenGL" in message)
                    reason = f"{spec.id} cannot be rendered ({message}){hint}"
    return reason


def render(env: gym.Env[Any, Any]) -> Appearance | None:
    """Return the rendering of an environment, or None if it is neither text nor an image."""
    rendering = env.render()
    if isinstance(rendering, str):
        without_colours = re.sub(r"\x1b\[[0-9;]*m", "", rendering)
        return Appearance(text=clean(without_colours, newlines=True))
    picture = np.asarray(rendering)
    if picture.dtype != np.uint8 or picture.ndim != 3:
        return None
    return Appearance(to_rgb(picture))


def to_rgb(picture: np.ndarray) -> np.ndarray:
    """Return an image with any number of channels as (height, width, 3)."""
    return np.repeat(picture[..., :1], 3, axis=2) if picture.shape[2] < 3 else picture[..., :3]


def board_cells(board: np.ndarray) -> np.ndarray | None:
    """Draw a board of integers as coloured cells; return None for other shapes.

    Args:
        board: Numbers (height, width), or layers (height, width, kinds) with one layer per kind.
    """
    if board.ndim == 3 and min(board.shape[:2]) > 1:
        kinds = np.arange(1, board.shape[2] + 1)
        board = ((board != 0) * kinds).max(axis=2)
    if board.ndim != 2 or min(board.shape) < 2:
        return None
    numbers = board.astype(np.int64)
    numbers = np.where(numbers > 0, (numbers - 1) % (len(PALETTE) - 1) + 1, numbers % len(PALETTE))
    return np.kron(PALETTE[numbers], np.ones((CELL, CELL, 1), np.uint8))


def object_cells(schema: ObjectSchema, table: np.ndarray) -> np.ndarray | None:
    """Draw the objects of a table at their positions; the agent is a smaller square on top.

    Args:
        schema: The columns of the table.
        table: Objects (count, fields); the agent is in the first row.

    Returns:
        A picture, or None if there are no objects or a coordinate is 128 or more.
    """
    x, y = (table[:, schema.column(name)] for name in ("x", "y"))
    present = (table[:, 0] > 0) & (table[:, 0] < len(schema.classes)) & (x >= 0) & (y >= 0)
    if not present.any() or max(x[present].max(), y[present].max()) >= 128:
        return None
    height, width = int(y[present].max()) + 1, int(x[present].max()) + 1
    picture = np.tile(np.array(EMPTY, np.uint8), (height * CELL, width * CELL, 1))
    field = next((each for each in schema.fields if each.name in ("color", "colour")), None)
    occupied: set[tuple[int, int]] = set()
    for row in np.flatnonzero(present)[::-1]:  # the agent, in the first row, is drawn last
        color = PALETTE[(int(table[row, 0]) - 1) % (len(PALETTE) - 1) + 1]
        if field is not None:
            number = int(table[row, schema.column(field.name)])
            word = field.values[number] if number < len(field.values) else ""
            color = np.array(COLORS.get(word, tuple(color)), np.uint8)
        cell = int(x[row]), int(y[row])
        inset = 2 if row == 0 else 1 if cell in occupied else 0
        occupied.add(cell)
        top, left = cell[1] * CELL + inset, cell[0] * CELL + inset
        picture[top : top + CELL - 2 * inset, left : left + CELL - 2 * inset] = color
    return picture


class NamedComponent(NamedTuple):
    """The name and the bounds of a component of an observation."""

    name: str
    low: float
    high: float


class Components:
    """The named components of the observations of a space.

    Example::

        components = Components(space, description)
        list(zip(components.entries, components.values(observation)))
    """

    def __init__(
        self, space: Space, description: str = "", schema: ObjectSchema | None = None
    ) -> None:
        self._space, self.is_picture = space, space.is_picture
        self.entries: list[NamedComponent] = []
        documented = documented_names(description, space)
        for name, leaf in space.leaves(""):
            names = _component_names(name.strip(".") or "observation", leaf, documented, schema)
            bounds = np.full((2, len(names)), np.inf) * np.array([[-1], [1]])
            if leaf.low:
                bounds = np.array([leaf.low, leaf.high], float).reshape(2, -1)
            self.entries += [
                NamedComponent(each, float(low), float(high))
                for each, low, high in zip(names, *bounds, strict=True)
            ]

    def values(self, observation: Any) -> list[Any]:
        """Return the components of an observation: numbers and texts."""
        columns = self._space.pack("", [observation])
        return [value for column in columns.values() for value in column.reshape(-1).tolist()]


def _component_names(
    name: str, leaf: Space, documented: tuple[str, ...], schema: ObjectSchema | None
) -> list[str]:
    if not leaf.shape or leaf.kind == "text":
        return [name]
    if len(documented) == leaf.size:
        return list(documented)
    places = list(np.ndindex(leaf.shape))
    if schema is not None and name == OBJECTS:
        objects = ["agent", *(f"object {row}" for row in range(1, leaf.shape[0]))]
        return [f"{objects[row]} {schema.names[field]}" for row, field in places]
    return [f"{name} {', '.join(map(str, place))}" for place in places]
