"""Sokoban as a Gymnasium environment, with objects or an image as observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.data.objects import MISSION, OBJECTS, ObjectField, ObjectSchema
from cwm_sokoban.boards import (
    ACTIVATE,
    MAX_INNER_WALLS,
    OUTER,
    SIZE,
    Cell,
    Positions,
    Warehouse,
    draw,
)

REVISION = "1"
"""The version of the rules; increase it with every change of behaviour."""

MAX_STEPS = 120
"""Step limit of an episode."""

CLASSES = ("free", "agent", "box", "target", "teleporter", "wall")
AGENT, BOX, TARGET, TELEPORTER, WALL = range(1, len(CLASSES))

SCHEMA = ObjectSchema(CLASSES, (ObjectField("x"), ObjectField("y")))
"""The columns of the table of objects, and the names of their values."""

MISSION_TEXT = "push every box onto a target"

REWARDS = {"step": -0.1, "on": 1.0, "off": -1.0, "finish": 10.0}
"""Rewards of a step, of a box pushed onto or off a target, and of the last box."""

VIEWS = ("objects", "pixels")
"""Observations: a table of all objects, or an image of the board."""


class Sokoban(gym.Env[Any, Any]):
    """Sokoban on a new random board in every episode.

    Args:
        boxes: Number of boxes.
        teleports: Whether boards have two teleporters.
        teleport_share: The fraction of boards that can be solved only by teleporting, 0 to 1.
        view: One of `VIEWS`.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        ValueError: An argument is out of range.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        boxes: int = 1,
        teleports: bool = False,
        teleport_share: float = 0.5,
        view: str = "objects",
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi' or 'rgb_array'")
        if not 0 <= teleport_share <= 1:
            raise ValueError(f"teleport_share is {teleport_share}: it must be from 0 to 1")
        self.boxes, self.teleports, self.teleport_share = boxes, teleports, teleport_share
        if view not in VIEWS:
            raise ValueError(f"unknown view {view!r}: choose {' or '.join(VIEWS)}")
        self.render_mode, self.view = render_mode, view
        self.rewards = dict(REWARDS)
        slots = 1 + 2 * boxes + 2 * teleports + len(OUTER) + MAX_INNER_WALLS
        self._empty = np.zeros((slots, 3), np.int64)
        high = np.tile([len(CLASSES) - 1, SIZE - 1, SIZE - 1], (slots, 1))
        mission = spaces.Text(len(MISSION_TEXT), charset=MISSION_TEXT)
        objects = spaces.Box(self._empty, high, dtype=np.int64)
        self.observation_space: gym.Space[Any] = spaces.Dict({MISSION: mission, OBJECTS: objects})
        if view == "pixels":
            side = SIZE * PIXELS // SUBSAMPLING
            self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.action_space = spaces.Discrete(ACTIVATE + teleports)
        self.board = Warehouse(OUTER, ())
        self.position: Positions | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode on a new board that can be solved."""
        super().reset(seed=seed)
        parted = self.teleports and bool(self.np_random.random() < self.teleport_share)
        self.board, self.position = draw(
            self.np_random, self.boxes, teleporters=self.teleports, parted=parted
        )
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move, push a box, or teleport; terminate when every box is on a target."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        if self.position is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        before = self.board.count_placed(self.position)
        self.position = self.board.after(self.position, int(action))
        after = self.board.count_placed(self.position)
        over = after == self.boxes
        reward = self.rewards["step"] + self.rewards["finish"] * over
        reward += self.rewards["on"] * (after > before) + self.rewards["off"] * (after < before)
        digits = 9  # decimals of a reward, which remove rounding errors of sums
        return self.observation(), round(reward, digits), over, False, {}

    def observation(self) -> Any:
        """Return the mission and the table of objects, or the image of the board."""
        if self.view == "pixels":
            return self.picture()[::SUBSAMPLING, ::SUBSAMPLING].copy()
        table = self._empty.copy()
        if self.position is not None:
            groups: Sequence[tuple[int, Sequence[Cell]]] = (
                (AGENT, [self.position.player]),
                (BOX, self.position.boxes),
                (TARGET, self.board.targets),
                (TELEPORTER, self.board.teleporters),
                (WALL, sorted(self.board.walls)),
            )
            rows = [(kind, *cell) for kind, cells in groups for cell in cells]
            table[: len(rows)] = rows
        return {MISSION: MISSION_TEXT, OBJECTS: table}

    def restore(self, observation: Any) -> bool:
        """Set the game to an observation; return False if the observation is invalid."""
        if not self.observation_space.contains(observation):
            return False
        found: dict[int, list[Cell]] = {kind: [] for kind in range(len(CLASSES))}
        rows = (
            _read_picture(observation) if self.view == "pixels" else observation[OBJECTS].tolist()
        )
        for kind, x, y in rows:
            found[kind].append((x, y))
        if self.view == "pixels" and len(found[TARGET]) < self.boxes:
            found[TARGET] += found[AGENT]  # the player hides a target in its cell
        counts = [len(found[kind]) for kind in (AGENT, BOX, TARGET, TELEPORTER)]
        if counts != [1, self.boxes, self.boxes, 2 * self.teleports]:
            return False
        self.board = Warehouse(
            frozenset(found[WALL]), tuple(found[TARGET]), tuple(found[TELEPORTER])
        )
        self.position = Positions(found[AGENT][0], tuple(found[BOX]))
        if self.view == "pixels":
            return np.array_equal(self.observation(), observation)
        return np.array_equal(self.observation()[OBJECTS], observation[OBJECTS])

    def render(self) -> Any:
        """Return the board as text or as an image, according to the render mode."""
        if self.render_mode is None or self.position is None:
            return None
        if self.render_mode == "ansi":
            return "\n".join("".join(row).rstrip() for row in self._signs())
        return self.picture()

    def picture(self) -> np.ndarray:
        """Return an image of the board, (height, width, 3)."""
        rows = self._signs()
        return np.concatenate([np.concatenate([TILES[sign] for sign in row], 1) for row in rows])

    def _signs(self) -> list[list[str]]:
        return [[self._sign((x, y)) for x in range(SIZE)] for y in range(SIZE)]

    def _sign(self, cell: Cell) -> str:
        """Return the sign of a cell, which shows a player or a box together with its ground."""
        board, position = self.board, self.position
        if cell in board.walls or position is None:
            return "#"
        ground = 1 if cell in board.targets else 2 if cell in board.teleporters else 0
        if cell == position.player:
            return "@+&"[ground]
        return ("$*%" if cell in position.boxes else " .o")[ground]


PIXELS, SUBSAMPLING = 16, 2
"""Size of a cell in a rendered image in pixels, and the distance of the pixels in observations."""

FLOOR, BRICK, MORTAR = (236, 228, 208), (110, 110, 118), (82, 82, 90)
RED, VIOLET, BLUE, WOOD, GREEN = (
    (206, 64, 56),
    (136, 84, 190),
    (48, 104, 196),
    (170, 118, 62),
    (70, 148, 78),
)
"""The colors of targets, teleporters, the player, boxes, and boxes on a target."""


def _draw_tiles() -> dict[str, np.ndarray]:
    """Return the image of each sign."""
    y, x = np.mgrid[:PIXELS, :PIXELS] - (PIXELS - 1) / 2
    far, square = np.hypot(x, y), np.maximum(np.abs(x), np.abs(y))
    grounds = {0: far < 0, 1: np.abs(x) + np.abs(y) < 4, 2: (far > 4.5) & (far < 7)}
    colors = {0: FLOOR, 1: RED, 2: VIOLET}
    tiles: dict[str, np.ndarray] = {}
    for ground, mask in grounds.items():
        floor = np.full((PIXELS, PIXELS, 3), FLOOR, np.uint8)
        floor[mask] = colors[ground]
        player, box = floor.copy(), floor.copy()
        player[far < 5] = BLUE
        box[square < 6] = GREEN if ground == 1 else WOOD
        box[(square < 6) & (np.abs(np.abs(x) - np.abs(y)) < 1)] = FLOOR
        tiles |= {" .o"[ground]: floor, "@+&"[ground]: player, "$*%"[ground]: box}
    wall = np.full((PIXELS, PIXELS, 3), BRICK, np.uint8)
    wall[::8] = wall[:8, 4] = wall[8:, 12] = MORTAR
    return tiles | {"#": wall}


TILES = _draw_tiles()
"""Images of the signs: # wall, @ player, $ box, . target, o teleporter; + and * are a player and a
box on a target, & and % on a teleporter."""

OBJECTS_BY_SIGN: dict[str, tuple[int, ...]] = {
    "#": (WALL,),
    " ": (),
    ".": (TARGET,),
    "o": (TELEPORTER,),
    "@": (AGENT,),
    "&": (AGENT, TELEPORTER),
    "$": (BOX,),
    "*": (BOX, TARGET),
    "%": (BOX, TELEPORTER),
}
"""The visible objects of a cell by its sign."""

OBJECTS_BY_TILE = {
    TILES[sign][::SUBSAMPLING, ::SUBSAMPLING].tobytes(): kinds
    for sign, kinds in OBJECTS_BY_SIGN.items()
}
"""The visible objects of a cell by the bytes of its observed image."""


def _read_picture(picture: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the class, x and y of the objects in an image; skip cells with unknown images."""
    side = PIXELS // SUBSAMPLING
    return [
        (kind, x, y)
        for y in range(SIZE)
        for x in range(SIZE)
        for kind in OBJECTS_BY_TILE.get(
            picture[y * side : (y + 1) * side, x * side : (x + 1) * side].tobytes(), ()
        )
    ]
