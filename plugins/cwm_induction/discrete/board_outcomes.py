"""What rewards and ends may depend on where the state is a board."""

import numpy as np

from cwm_induction.discrete.board import Board
from cwm_induction.discrete.exceptions import Options
from cwm_induction.discrete.outcomes import Outcomes, fit_outcomes
from cwm_induction.discrete.scene import Scene, Sizes
from cwm_induction.discrete.transitions import Transitions

AROUND = ("far", "left_side", "right_side")
"""The cells next to the one beyond: straight on and to the sides."""

PLACE = ("row", "column")
CELLS = ("here", "ahead", "beyond", *AROUND)


def feature_names(board: Board) -> list[str]:
    """Name what outcomes may depend on."""
    return [*PLACE, *CELLS, *(f"count_{code}" for code in board.codes)]


def board_outcomes(board: Board, seen: Transitions, options: Options) -> Outcomes:
    """Fit the rules of termination and reward."""
    before, after = (part.reshape(-1, *board.shape) for part in (seen.before, seen.after))
    scene = board_scene(board, before, seen.action, after)
    highest = max(board.codes)
    area = board.shape[0] * board.shape[1]
    radices = (*board.shape, *[highest + 2] * len(CELLS), *[area + 1] * len(board.codes))
    sizes = Sizes(radices, seen.frame.actions, named=False)
    return fit_outcomes(seen, scene, sizes, options, seen.disagreement(after=True))


def board_scene(board: Board, before: np.ndarray, action: np.ndarray, after: np.ndarray) -> Scene:
    """Describe transitions by the agent's place, the cells around it and counts of codes."""
    places, codes = board.cells(before, action)
    step = places[:, 1] - places[:, 0]
    side = np.stack([-step[:, 1], step[:, 0]], axis=1)
    around = places[:, 2][:, None] + np.stack([step, side, -side], axis=1)
    cells = np.concatenate([codes, board.codes_at(before, around)], axis=1)
    sides = []
    for boards in (before, after):
        counts = [(boards == code).sum(axis=(1, 2)) for code in board.codes]
        sides.append(np.concatenate([board.find(boards), cells, np.stack(counts, axis=1)], axis=1))
    unknown = np.zeros(len(before), dtype=np.int64)
    return Scene(action, sides[0], sides[0], sides[1], unknown, unknown, unknown)
