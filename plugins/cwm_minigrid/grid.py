"""MiniGrid environments whose observation is the table of all objects and the mission.

The package itself shows only the cells in front of the agent, and its reward decreases with time.
Here, the observation contains the full state, so a step depends on the observation only. Two other
views are available: `partial` is the view of the package, as its numbers, and `pixels` is an image
of the whole grid, which shows neither the mission nor the carried object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.world_object import WorldObj

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectField, ObjectSchema
from cwm_minigrid.pixels import TILE, draw, read_cells

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

ACTIONS = ("turn left", "turn right", "move forward", "pick up", "drop", "toggle", "nothing")
"""Names of the actions, in the order of their numbers."""

COLORS = ("none", "red", "green", "blue", "purple", "yellow", "grey")
DIRECTIONS = ("none", "right", "down", "left", "up")
STATES = ("none", "open", "closed", "locked", "hidden")
CLASSES = ("free", "agent", "wall", "floor", "door", "key", "ball", "box", "goal", "lava")

SCHEMA = ObjectSchema(
    classes=CLASSES,
    fields=(
        ObjectField("x"),
        ObjectField("y"),
        ObjectField("direction", DIRECTIONS),
        ObjectField("color", COLORS),
        ObjectField("state", STATES),
        ObjectField("held"),
    ),
    directions=((1, 0), (0, 1), (-1, 0), (0, -1)),
)
"""The columns of the table of objects, and the names of their values."""

AGENT, HIDDEN = CLASSES.index("agent"), STATES.index("hidden")

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.'-"

VIEWS = ("objects", "partial", "pixels")
"""Observations: a table of all objects, the view of the package, or an image of the whole grid."""

IMAGE, DIRECTION = "image", "direction"
"""Keys of a partial view, in addition to the mission."""


class ObjectGrid(gym.Env[Any, Any]):
    """A MiniGrid with a table of objects as its observation.

    An object keeps its row for a whole episode.

    Args:
        grid: The environment of the package.
        render_mode: None, "rgb_array" or "ansi".
        view: One of `VIEWS`.

    Raises:
        ValueError: The render mode is unknown.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, grid: MiniGridEnv, render_mode: str | None = None, view: str = VIEWS[0]
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'rgb_array' or 'ansi'")
        self.grid = grid
        self.view = view
        self.render_mode = render_mode
        self.limit = grid.max_steps
        # step limit of the inner environment: the wrapper `TimeLimit` ends episodes instead
        no_step_limit = 10**9
        self.grid.max_steps = no_step_limit
        self._package_observation = grid.gen_obs
        self.grid.gen_obs = lambda: {}  # computing it takes most of the time of a step
        slots = 1 + grid.width * grid.height
        highest = (
            len(CLASSES),
            grid.width,
            grid.height,
            *map(len, (DIRECTIONS, COLORS, STATES)),
            2,
        )
        self._empty = np.zeros((slots, len(highest)), np.int64)
        high = np.tile(np.array(highest) - 1, (slots, 1))
        # characters of a mission; the longest mission of the package has about 100
        max_mission_length = 120
        mission = spaces.Text(max_mission_length, min_length=0, charset=LETTERS)
        objects = spaces.Box(self._empty, high, dtype=np.int64)
        self.observation_space = spaces.Dict({MISSION: mission, OBJECTS: objects})
        if view == "partial":
            cells = (grid.agent_view_size, grid.agent_view_size)
            highest = max(OBJECT_TO_IDX.values()), max(COLOR_TO_IDX.values()), len(STATE_TO_IDX) - 1
            image = spaces.Box(
                np.zeros((*cells, 3), np.int64),
                np.tile(np.array(highest), (*cells, 1)),
                dtype=np.int64,
            )
            direction = spaces.Discrete(len(DIRECTIONS) - 1)
            self.observation_space = spaces.Dict(
                {MISSION: mission, DIRECTION: direction, IMAGE: image}
            )
        elif view == "pixels":
            shape = (grid.height * TILE, grid.width * TILE, 3)
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(len(grid.actions))
        self.rows: list[WorldObj | None] = []
        self._roles: dict[str, Role] | None = None
        self._invariants: EpisodeInvariants | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode on a new random grid."""
        super().reset(seed=seed)
        self.grid.reset(seed=seed)
        cells, known = self.grid.grid.grid, set[WorldObj]()
        for cell, thing in enumerate(cells):
            if thing in known:  # some grids put the same wall object into many cells
                cells[cell] = copy(thing)
            elif thing is not None:
                known.add(thing)
        things = list(_with_contents(cells))
        walls = [thing for thing in things if thing.type == "wall"]
        self.rows = [*(thing for thing in things if thing.type != "wall"), *walls]
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; rewards are -1, 0 or 1, and do not depend on the time."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one from 0 to 6")
        if not self.rows:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        _, reward, terminated, _, _ = self.grid.step(int(action))
        return self.observation(), float(np.sign(reward)), bool(terminated), False, {}

    def observation(self) -> Any:
        """Return the current observation of the view."""
        if self.view == "pixels":
            return draw(self.grid)
        mission = self.grid.mission
        if self.view != "partial":
            return {MISSION: mission, OBJECTS: self.table()}
        image = self._package_observation()["image"].astype(np.int64)
        return {MISSION: mission, DIRECTION: int(self.grid.agent_dir), IMAGE: image}

    def table(self) -> np.ndarray:
        """Return the table of all objects, (1 + cells, 7); the agent is in the first row."""
        grid, table = self.grid, self._empty.copy()
        x, y = grid.agent_pos
        table[0] = AGENT, x, y, 1 + grid.agent_dir, 0, 0, 0
        width, row = grid.width, {thing: place for place, thing in enumerate(self.rows, 1) if thing}
        for cell, thing in enumerate(grid.grid.grid):
            if thing is not None:
                self._write(table, row, thing, (cell % width, cell // width, 0))
        if grid.carrying is not None:
            self._write(table, row, grid.carrying, (x, y, 1))
        return table

    def restore(self, observation: Any) -> bool:
        """Set the grid to an observation.

        Returns:
            False if the observation is invalid or lacks part of the state.
        """
        if self.view == "partial" or not self.observation_space.contains(observation):
            return False
        if self._roles is None:
            self._roles = learn_roles(self.grid)
        if self.view == "pixels":
            self._invariants = self._invariants or EpisodeInvariants.of(self.grid)
            state = self._invariants.read(observation, self._empty)
        else:
            state = observation[OBJECTS], observation[MISSION]
        if state is None or not self.set_state(*state):
            return False
        values = _role_values(self.grid)
        if any(role not in values for role in self._roles.values()):
            return False
        for name, role in self._roles.items():
            setattr(self.grid, name, values[role])
        if self.view == "pixels":
            return np.array_equal(draw(self.grid), observation)
        return np.array_equal(self.table(), state[0])

    def set_state(self, table: np.ndarray, mission: str) -> bool:
        """Put the objects of a table into the grid, and set the mission.

        Returns:
            False if two objects are in one cell, or if there is no agent.
        """
        grid = self.grid
        agent, *rows = table.tolist()
        cells: list[WorldObj | None] = [None] * (grid.width * grid.height)
        hidden: dict[tuple[int, ...], WorldObj] = {}
        grid.carrying, grid.step_count = None, 0
        self.rows = (self.rows + [None] * len(rows))[: len(rows)]
        for place, (kind, x, y, _, color, state, held) in enumerate(rows):
            thing = self.rows[place] = _thing(self.rows[place], kind, color, state)
            if thing is None:
                continue
            cell = y * grid.width + x
            if state == HIDDEN:
                hidden[x, y, held] = thing
            elif held and grid.carrying is None:
                grid.carrying, thing.cur_pos = thing, np.array([-1, -1])
            elif not held and cells[cell] is None:
                cells[cell], thing.cur_pos = thing, (x, y)
            else:
                return False
        for (x, y, held), thing in hidden.items():
            box = grid.carrying if held else cells[y * grid.width + x]
            if box is None:
                return False
            box.contains = thing
        grid.grid.grid = cells
        while self.rows and self.rows[-1] is None:
            self.rows.pop()
        grid.agent_pos, grid.agent_dir, grid.mission = (agent[1], agent[2]), agent[3] - 1, mission
        return bool(agent[0] == AGENT and agent[3])

    def render(self) -> Any:
        """Return the grid as an image or as text, according to the render mode."""
        if self.render_mode is None:
            return None
        if self.render_mode == "ansi":
            return f"{self.grid.pprint_grid()}\n\n{self.grid.mission}"
        return self.grid.get_frame(highlight=False)

    def _write(
        self, table: np.ndarray, row: dict[WorldObj, int], thing: WorldObj, at: tuple[int, int, int]
    ) -> None:
        """Write an object into its row, and its hidden content into another row."""
        state = 0
        x, y, held = at
        while thing is not None:
            if thing not in row:  # it was created during the episode
                row[thing] = 1 + len(self.rows)
                self.rows.append(thing)
            kind, color = CLASSES.index(thing.type), COLORS.index(thing.color)
            if thing.type == "door":
                state = 1 if thing.is_open else 3 if thing.is_locked else 2
            table[row[thing]] = kind, x, y, 0, color, state, held
            thing, state = thing.contains, HIDDEN


def _with_contents(things: Sequence[WorldObj | None]) -> Iterator[WorldObj]:
    """Yield objects, each box before its content."""
    for thing in things:
        if thing is not None:
            yield thing
            yield from _with_contents([thing.contains])


def _thing(known: WorldObj | None, kind: int, color: int, state: int) -> WorldObj | None:
    """Return an empty object: the known one if kind and color are equal, else a new one."""
    if kind == 0:
        return None
    name, paint = CLASSES[kind], COLORS[color]
    if known is None or (known.type, known.color) != (name, paint):
        if name not in OBJECT_TO_IDX or paint not in COLOR_TO_IDX or kind == AGENT:
            return None
        known = WorldObj.decode(OBJECT_TO_IDX[name], COLOR_TO_IDX[paint], 0)
    if known is None:
        return None
    if known.type == "door":
        known.is_open, known.is_locked = state == 1, state == 3
    known.contains = None
    return known


class EpisodeInvariants(NamedTuple):
    """Properties that are equal in all episodes of a grid; None if they differ.

    An image shows neither, so it determines the state only if both are known.

    Attributes:
        mission: The mission.
        portable: Number of objects that the agent can pick up.
    """

    mission: str | None
    portable: int | None

    @classmethod
    def of(cls, grid: MiniGridEnv) -> EpisodeInvariants:
        """Find the invariants of a grid from `RESETS` episodes; this resets the grid."""
        missions, counts = set[str](), set[int]()
        for seed in range(RESETS):
            grid.reset(seed=seed)
            missions.add(grid.mission)
            counts.add(sum(thing.can_pickup() for thing in _with_contents(grid.grid.grid)))
        return cls(
            missions.pop() if len(missions) == 1 else None,
            counts.pop() if len(counts) == 1 else None,
        )

    def read(self, picture: np.ndarray, empty: np.ndarray) -> tuple[np.ndarray, str] | None:
        """Return the table of objects and the mission of an image.

        Returns:
            None if the image does not determine them: an object may be carried or in a box.
        """
        cells, width = read_cells(picture), picture.shape[1] // TILE
        table, row, portable = empty.copy(), 0, 0
        for place, cell in enumerate(cells):
            if cell is None or cell[0] == "box":
                return None
            kind, color, state, direction = cell
            x, y = place % width, place // width
            if direction is not None:
                table[0] = AGENT, x, y, 1 + direction, 0, 0, 0
            if kind != "empty":
                row += 1
                number = STATES.index(state) if state else 0
                table[row] = CLASSES.index(kind), x, y, 0, COLORS.index(color), number, 0
            portable += kind in ("key", "ball")
        known = self.mission is not None and portable == self.portable
        return (table, self.mission or "") if known and table[0].any() else None


KNOWN_ATTRIBUTES = {
    "grid",
    "agent_pos",
    "agent_dir",
    "carrying",
    "step_count",
    "max_steps",
    "render_mode",
}
"""Attributes of a grid that the table of objects determines, or that have no effect here."""

RESETS = 12
"""Number of episodes for learning how attributes depend on the mission and the objects."""

Role = tuple[str, ...]
"""The source of the value of an attribute in the mission and the objects.

`("only", "door", "object")` is the only door. `("0", "color")` is the color of the first object
that the mission names.
"""


def learn_roles(grid: MiniGridEnv) -> dict[str, Role]:
    """Return the role of each attribute that changes between episodes; this resets the grid.

    An attribute that neither mission nor objects determine has the role `()`.
    """
    episodes: list[tuple[dict[str, Any], dict[Role, Any]]] = []
    for seed in range(RESETS):
        grid.reset(seed=seed)
        episodes.append((dict(_attributes(grid)), _role_values(grid)))
    roles: dict[str, Role] = {}
    for name, first in episodes[0][0].items():
        attribute = [attributes.get(name) for attributes, _ in episodes]
        if all(value == first for value in attribute) and not isinstance(first, WorldObj):
            continue
        matching = (
            role
            for role in episodes[0][1]
            if all(
                role in values and values[role] == attributes.get(name)
                for attributes, values in episodes
            )
        )
        roles[name] = next(matching, ())
    return roles


def _attributes(grid: MiniGridEnv) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that `step` reads: texts, numbers, positions and objects."""
    steps = [vars(kind)["step"] for kind in type(grid).__mro__ if "step" in vars(kind)]
    read = {name for step in steps if hasattr(step, "__code__") for name in step.__code__.co_names}
    for name, value in vars(grid).items():
        if name in KNOWN_ATTRIBUTES or name not in read:
            continue
        if isinstance(value, WorldObj | str | int | float | None):
            yield name, value
        elif isinstance(value, tuple | list | np.ndarray) and len(value):
            if all(isinstance(part, int | np.integer) for part in value):
                yield name, tuple(map(int, value))
            elif all(isinstance(part, WorldObj) for part in value):
                yield name, tuple(value)


_NAMED = re.compile(rf"\b({'|'.join(COLORS[1:])}) ({'|'.join(CLASSES[2:])})\b")


def _role_values(grid: MiniGridEnv) -> dict[Role, Any]:
    """Return the value of every role that the mission and the objects have."""
    values: dict[Role, Any] = {}
    things = list(_with_contents([*grid.grid.grid, grid.carrying]))
    for kind in CLASSES[2:]:
        found = [thing for thing in things if thing.type == kind]
        if len(found) < 2:
            values["only", kind, "object"] = found[0] if found else None
    for number, (color, kind) in enumerate(_NAMED.findall(grid.mission)):
        values |= {(str(number), "color"): color, (str(number), "type"): kind}
        found = [thing for thing in things if (thing.type, thing.color) == (kind, color)]
        if len(found) < 2:
            values[str(number), "object"] = found[0] if found else None
        if len(found) == 1 and not found[0].can_pickup():  # else it may have been moved
            cell = grid.grid.grid.index(found[0])
            values[str(number), "place"] = (cell % grid.width, cell // grid.width)
    return values


class SavedGrid(NamedTuple):
    """The state of a grid: its objects, mission and attributes, and its random generator."""

    table: bytes
    mission: str
    attributes: tuple[tuple[str, Any], ...]
    chance: Any


class _Row(NamedTuple):
    """A reference to an object by its row, as the value of an attribute."""

    number: int


class GridRewinder:
    """Saves the state of a grid, and loads it into the same or another instance."""

    how = "objects"

    def __init__(self, env: ObjectGrid) -> None:
        self._env = env

    def save(self, *, chance: bool = True) -> SavedGrid:
        """Return the state, with the state of the random generator if `chance` is true."""
        grid, env = self._env.grid, self._env
        table = env.table()
        row = {thing: _Row(number) for number, thing in enumerate(env.rows) if thing is not None}
        attributes = [
            (name, tuple(_by_row(part, row) for part in value))
            if isinstance(value, tuple)
            else (name, _by_row(value, row))
            for name, value in _attributes(grid)
        ]
        generator = grid.np_random.bit_generator.state if chance else None
        return SavedGrid(table.tobytes(), grid.mission, tuple(attributes), generator)

    def load(self, state: SavedGrid, *, chance: bool = True) -> None:
        """Restore a saved state, with the random generator if `chance` is true."""
        env = self._env
        table = np.frombuffer(state.table, np.int64).reshape(-1, len(SCHEMA.names))
        env.set_state(table, state.mission)
        rows = dict(enumerate(env.rows))
        for name, value in state.attributes:
            found: Any = rows.get(value.number) if isinstance(value, _Row) else value
            if type(value) is tuple and any(isinstance(part, _Row) for part in value):
                found = [rows.get(part.number) for part in value]
            setattr(env.grid, name, found)
        if chance and state.chance is not None:
            env.grid.np_random.bit_generator.state = state.chance

    def generators(self) -> Sequence[Any]:
        """Return the random generator of the grid and of objects that move by themselves."""
        return [self._env.grid.np_random]

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Return None: there is no faster method than single steps."""


def _by_row(value: Any, rows: dict[WorldObj, _Row]) -> Any:
    """Replace an object by its row, or by row -1 if it no longer exists."""
    return rows.get(value, _Row(-1)) if isinstance(value, WorldObj) else value
