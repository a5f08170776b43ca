"""Draw a MiniGrid as an image from above, and read the cells of such an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import WorldObj

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

TILE = 8
"""Height and width of a cell in pixels: grids of 5 and 8 cells give images of 40 and 64 pixels."""

Cell = tuple[str, str, str, int | None]
"""The kind and color of an object, the state of a door, and the direction of an agent or None."""

KINDS = ("empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava")


def draw(grid: MiniGridEnv) -> np.ndarray:
    """Return an image of the whole grid, (height, width, 3)."""
    picture: np.ndarray = grid.grid.render(TILE, grid.agent_pos, grid.agent_dir)
    return picture


def read_cells(picture: np.ndarray) -> list[Cell | None]:
    """Return the cells of an image row by row; None for unknown or ambiguous cells."""
    height, width = (length // TILE for length in picture.shape[:2])
    tiles = picture.reshape(height, TILE, width, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)
    known = _known_tiles()
    return [known.get(tile.tobytes()) for tile in tiles]


def _known_tiles() -> dict[bytes, Cell | None]:
    """Draw all possible cells on the first call, and return the cell of each image."""
    if not _KNOWN:
        # kinds of objects that always have the same color
        colorless = ("empty", "wall", "goal", "lava")
        for kind in KINDS:
            for color in ["grey"] if kind in colorless else COLOR_TO_IDX:
                for state in STATE_TO_IDX if kind == "door" else [""]:
                    thing = WorldObj.decode(
                        OBJECT_TO_IDX[kind], COLOR_TO_IDX[color], STATE_TO_IDX.get(state, 0)
                    )
                    is_free = thing is None or thing.can_overlap()
                    for agent in (None, 0, 1, 2, 3) if is_free else (None,):
                        tile = Grid.render_tile(thing, agent, tile_size=TILE)
                        key = tile.astype(np.uint8).tobytes()
                        _KNOWN[key] = None if key in _KNOWN else (kind, color, state, agent)
    return _KNOWN


_KNOWN: dict[bytes, Cell | None] = {}
"""Cells by the bytes of their image; None if two cells have the same image."""
