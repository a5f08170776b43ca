"""A MiniGrid whose observation is all of its objects, and the mission, or what its agent sees.

The package shows a picture of a few cells, and rewards less the later it is; here everything that
decides how an episode goes on is seen, so that a step depends on the observation alone. The view
`partial` is that of the package, in its numbers; `pixels` is all of the grid as a picture, which
shows neither the mission nor what is carried.
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
from cwm_minigrid.pixels import TILE, cells_of, drawn

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
"""What the numbers of an object stand for."""

AGENT, HIDDEN = CLASSES.index("agent"), STATES.index("hidden")

LONGEST_MISSION = 120
"""Characters of a mission; the longest of the package has about a hundred."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.'-"

FOREVER = 10**9
"""Steps after which the package would end an episode; what limits it here is a wrapper."""


VIEWS = ("objects", "partial", "pixels")
"""What can be seen: all objects in a table, the cells before the agent as the package has it, or a
picture of all."""

IMAGE, DIRECTION = "image", "direction"
"""Keys of a partial view, beside that of the mission."""


class ObjectGrid(gym.Env[Any, Any]):
    """Shows a MiniGrid as a table of objects; an object keeps its row for a whole episode.

    Its `view` may be another one.
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
        self.grid.max_steps = FOREVER
        self._look = grid.gen_obs
        self.grid.gen_obs = lambda: {}  # what the package would show takes most of its time
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
        told = spaces.Text(LONGEST_MISSION, min_length=0, charset=LETTERS)
        seen = spaces.Box(self._empty, high, dtype=np.int64)
        self.observation_space = spaces.Dict({MISSION: told, OBJECTS: seen})
        if view == "partial":
            cells = (grid.agent_view_size, grid.agent_view_size)
            highest = max(OBJECT_TO_IDX.values()), max(COLOR_TO_IDX.values()), len(STATE_TO_IDX) - 1
            image = spaces.Box(
                np.zeros((*cells, 3), np.int64),
                np.tile(np.array(highest), (*cells, 1)),
                dtype=np.int64,
            )
            way = spaces.Discrete(len(DIRECTIONS) - 1)
            self.observation_space = spaces.Dict({MISSION: told, DIRECTION: way, IMAGE: image})
        elif view == "pixels":
            shape = (grid.height * TILE, grid.width * TILE, 3)
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(len(grid.actions))
        self.rows: list[WorldObj | None] = []
        self._roles: dict[str, Role] | None = None
        self._sameness: Sameness | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode on a grid that is drawn anew."""
        super().reset(seed=seed)
        self.grid.reset(seed=seed)
        cells, met = self.grid.grid.grid, set[WorldObj]()
        for cell, thing in enumerate(cells):
            if thing in met:  # some grids use one wall many times
                cells[cell] = copy(thing)
            elif thing is not None:
                met.add(thing)
        things = list(_unpacked(cells))
        walls = [thing for thing in things if thing.type == "wall"]
        self.rows = [*(thing for thing in things if thing.type != "wall"), *walls]
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; a reward is 1 or -1, whenever it comes."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one from 0 to 6")
        if not self.rows:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        _, reward, terminated, _, _ = self.grid.step(int(action))
        return self.observation(), float(np.sign(reward)), bool(terminated), False, {}

    def observation(self) -> Any:
        """Return the mission with all objects, or with what the agent sees, or the picture."""
        if self.view == "pixels":
            return drawn(self.grid)
        mission = self.grid.mission
        if self.view != "partial":
            return {MISSION: mission, OBJECTS: self.table()}
        image = self._look()["image"].astype(np.int64)
        return {MISSION: mission, DIRECTION: int(self.grid.agent_dir), IMAGE: image}

    def table(self) -> np.ndarray:
        """Return all objects."""
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
        """Stand at an observation; False where it is none, or does not tell all that matters."""
        if self.view == "partial" or not self.observation_space.contains(observation):
            return False
        if self._roles is None:
            self._roles = learned_roles(self.grid)
        if self.view == "pixels":
            self._sameness = self._sameness or Sameness.of(self.grid)
            found = self._sameness.read(observation, self._empty)
        else:
            found = observation[OBJECTS], observation[MISSION]
        if found is None or not self.stand(*found):
            return False
        told = _told(self.grid)
        if any(role not in told for role in self._roles.values()):
            return False
        for name, role in self._roles.items():
            setattr(self.grid, name, told[role])
        if self.view == "pixels":
            return np.array_equal(drawn(self.grid), observation)
        return np.array_equal(self.table(), found[0])

    def stand(self, table: np.ndarray, mission: str) -> bool:
        """Put the objects of a table into the grid; False where two do not fit into a cell."""
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
        """Draw the grid, as a picture or as text."""
        if self.render_mode is None:
            return None
        if self.render_mode == "ansi":
            return f"{self.grid.pprint_grid()}\n\n{self.grid.mission}"
        return self.grid.get_frame(highlight=False)

    def _write(
        self, table: np.ndarray, row: dict[WorldObj, int], thing: WorldObj, at: tuple[int, int, int]
    ) -> None:
        """Write an object into its row, and what is hidden in it into another."""
        state = 0
        x, y, held = at
        while thing is not None:
            if thing not in row:  # it was not there when the episode began
                row[thing] = 1 + len(self.rows)
                self.rows.append(thing)
            kind, color = CLASSES.index(thing.type), COLORS.index(thing.color)
            if thing.type == "door":
                state = 1 if thing.is_open else 3 if thing.is_locked else 2
            table[row[thing]] = kind, x, y, 0, color, state, held
            thing, state = thing.contains, HIDDEN


def _unpacked(things: Sequence[WorldObj | None]) -> Iterator[WorldObj]:
    """Yield objects, and those that are in boxes after them."""
    for thing in things:
        if thing is not None:
            yield thing
            yield from _unpacked([thing.contains])


def _thing(known: WorldObj | None, kind: int, color: int, state: int) -> WorldObj | None:
    """Return an object with nothing in it: the known one, if it is of the kind, or a new one."""
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


class Sameness(NamedTuple):
    """What all episodes of a grid have in common: the mission, and how much can be carried.

    None where they differ. A picture shows neither, and tells a state only where both are known.
    """

    mission: str | None
    portable: int | None

    @classmethod
    def of(cls, grid: MiniGridEnv) -> Sameness:
        """Begin some episodes, and see what is always the same."""
        missions, counts = set[str](), set[int]()
        for seed in range(RESETS):
            grid.reset(seed=seed)
            missions.add(grid.mission)
            counts.add(sum(thing.can_pickup() for thing in _unpacked(grid.grid.grid)))
        return cls(
            missions.pop() if len(missions) == 1 else None,
            counts.pop() if len(counts) == 1 else None,
        )

    def read(self, picture: np.ndarray, empty: np.ndarray) -> tuple[np.ndarray, str] | None:
        """Return the objects and the mission, nothing where a picture does not tell all of them.

        Something may be held, or hidden in a box.
        """
        cells, width = cells_of(picture), picture.shape[1] // TILE
        table, row, portable = empty.copy(), 0, 0
        for place, cell in enumerate(cells):
            if cell is None or cell[0] == "box":
                return None
            kind, color, state, looks = cell
            x, y = place % width, place // width
            if looks is not None:
                table[0] = AGENT, x, y, 1 + looks, 0, 0, 0
            if kind != "empty":
                row += 1
                seen = CLASSES.index(kind), x, y, 0, COLORS.index(color)
                table[row] = *seen, STATES.index(state) if state else 0, 0
            portable += kind in ("key", "ball")
        known = self.mission is not None and portable == self.portable
        return (table, self.mission or "") if known and table[0].any() else None


TOLD = {"grid", "agent_pos", "agent_dir", "carrying", "step_count", "max_steps", "render_mode"}
"""Attributes of a grid that its table tells, or that decide nothing here."""

RESETS = 12
"""Episodes that are begun to see what the attributes of a grid have to do with its mission."""

Role = tuple[str, ...]
"""How a mission and the objects tell an attribute: `("only", "door", "object")` or
`("0", "color")`, the color of what the mission names first."""


def learned_roles(grid: MiniGridEnv) -> dict[str, Role]:
    """Return how each attribute that changes from episode to episode is told; resets the grid.

    One that nothing tells has the role `()`.
    """
    seen: list[tuple[dict[str, Any], dict[Role, Any]]] = []
    for seed in range(RESETS):
        grid.reset(seed=seed)
        seen.append((dict(_attributes(grid)), _told(grid)))
    roles: dict[str, Role] = {}
    for name, first in seen[0][0].items():
        values = [attributes.get(name) for attributes, _ in seen]
        if all(value == first for value in values) and not isinstance(first, WorldObj):
            continue
        fitting = (
            role
            for role in seen[0][1]
            if all(role in told and told[role] == attributes.get(name) for attributes, told in seen)
        )
        roles[name] = next(fitting, ())
    return roles


def _attributes(grid: MiniGridEnv) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that a step reads: texts, numbers, places, objects."""
    steps = [vars(kind)["step"] for kind in type(grid).__mro__ if "step" in vars(kind)]
    read = {name for step in steps if hasattr(step, "__code__") for name in step.__code__.co_names}
    for name, value in vars(grid).items():
        if name in TOLD or name not in read:
            continue
        if isinstance(value, WorldObj | str | int | float | None):
            yield name, value
        elif isinstance(value, tuple | list | np.ndarray) and len(value):
            if all(isinstance(part, int | np.integer) for part in value):
                yield name, tuple(map(int, value))
            elif all(isinstance(part, WorldObj) for part in value):
                yield name, tuple(value)


_NAMED = re.compile(rf"\b({'|'.join(COLORS[1:])}) ({'|'.join(CLASSES[2:])})\b")


def _told(grid: MiniGridEnv) -> dict[Role, Any]:
    """Return what a mission names, in its order, and what there is at most one of."""
    told: dict[Role, Any] = {}
    things = list(_unpacked([*grid.grid.grid, grid.carrying]))
    for kind in CLASSES[2:]:
        found = [thing for thing in things if thing.type == kind]
        if len(found) < 2:
            told["only", kind, "object"] = found[0] if found else None
    for number, (color, kind) in enumerate(_NAMED.findall(grid.mission)):
        told |= {(str(number), "color"): color, (str(number), "type"): kind}
        found = [thing for thing in things if (thing.type, thing.color) == (kind, color)]
        if len(found) < 2:
            told[str(number), "object"] = found[0] if found else None
        if len(found) == 1 and not found[0].can_pickup():  # else it may have been somewhere else
            cell = grid.grid.grid.index(found[0])
            told[str(number), "place"] = (cell % grid.width, cell // grid.width)
    return told


class SavedGrid(NamedTuple):
    """Where a grid stands: its objects, its mission, its attributes, and its random numbers."""

    table: bytes
    mission: str
    attributes: tuple[tuple[str, Any], ...]
    chance: Any


class _Row(NamedTuple):
    """An attribute that is an object, by its row."""

    number: int


class GridRewinder:
    """Saves the objects of a grid as their table, and loads them into another instance."""

    how = "objects"

    def __init__(self, env: ObjectGrid) -> None:
        self._env = env

    def save(self, *, chance: bool = True) -> SavedGrid:
        """Return all that decides how an episode goes on."""
        grid, env = self._env.grid, self._env
        table = env.table()
        row = {thing: _Row(number) for number, thing in enumerate(env.rows) if thing is not None}
        attributes = [
            (name, tuple(_packed(part, row) for part in value))
            if isinstance(value, tuple)
            else (name, _packed(value, row))
            for name, value in _attributes(grid)
        ]
        drawn = grid.np_random.bit_generator.state if chance else None
        return SavedGrid(table.tobytes(), grid.mission, tuple(attributes), drawn)

    def load(self, state: SavedGrid, *, chance: bool = True) -> None:
        """Go on from a saved state."""
        env = self._env
        table = np.frombuffer(state.table, np.int64).reshape(-1, len(SCHEMA.names))
        env.stand(table, state.mission)
        rows = dict(enumerate(env.rows))
        for name, value in state.attributes:
            found: Any = rows.get(value.number) if isinstance(value, _Row) else value
            if type(value) is tuple and any(isinstance(part, _Row) for part in value):
                found = [rows.get(part.number) for part in value]
            setattr(env.grid, name, found)
        if chance and state.chance is not None:
            env.grid.np_random.bit_generator.state = state.chance

    def generators(self) -> Sequence[Any]:
        """Return the generator that grids and what moves by itself are drawn from."""
        return [self._env.grid.np_random]

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Know no faster way than to step."""


def _packed(value: Any, rows: dict[WorldObj, _Row]) -> Any:
    """Return a value, or the row of an object; one that is gone has none."""
    return rows.get(value, _Row(-1)) if isinstance(value, WorldObj) else value
