"""A MiniGrid as a picture from above, and what a picture tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import WorldObj

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

TILE = 8
"""Height and width of a cell in pixels: grids of 5 and 8 cells have pictures of 40 and 64."""

Cell = tuple[str, str, str, int | None]
"""What is in a cell: kind and color of an object, the state of a door, and how an agent looks."""

KINDS = ("empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava")
COLORLESS = ("empty", "wall", "goal", "lava")
"""Kinds of things, and those that have the same color always."""


def drawn(grid: MiniGridEnv) -> np.ndarray:
    """Draw all of a grid."""
    picture: np.ndarray = grid.grid.render(TILE, grid.agent_pos, grid.agent_dir)
    return picture


def cells_of(picture: np.ndarray) -> list[Cell | None]:
    """Return what is in each cell of a picture, row by row; None for what is none or ambiguous."""
    height, width = (length // TILE for length in picture.shape[:2])
    tiles = picture.reshape(height, TILE, width, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)
    known = _tiles()
    return [known.get(tile.tobytes()) for tile in tiles]


def _tiles() -> dict[bytes, Cell | None]:
    """Return what each picture of a cell means."""
    if not _KNOWN:
        for kind in KINDS:
            for color in ["grey"] if kind in COLORLESS else COLOR_TO_IDX:
                for state in STATE_TO_IDX if kind == "door" else [""]:
                    thing = _thing(kind, color, state)
                    can_stand = thing is None or thing.can_overlap()
                    for agent in (None, 0, 1, 2, 3) if can_stand else (None,):
                        tile = Grid.render_tile(thing, agent, tile_size=TILE)
                        key = tile.astype(np.uint8).tobytes()
                        _KNOWN[key] = None if key in _KNOWN else (kind, color, state, agent)
    return _KNOWN


_KNOWN: dict[bytes, Cell | None] = {}
"""What each picture of a cell means, once they were all drawn."""


def _thing(kind: str, color: str, state: str) -> WorldObj | None:
    """Return an object as it is drawn."""
    return WorldObj.decode(OBJECT_TO_IDX[kind], COLOR_TO_IDX[color], STATE_TO_IDX.get(state, 0))
