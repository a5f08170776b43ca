"""Boards of cells on which an agent moves and changes the cells in front of it."""

from collections import Counter
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.transitions import Transitions

MOST_CODES = 16
MOST_AGENT_CODES = 3
LEAST_SIDE = 3
LEAST_RIGHT = 0.95

Codes = tuple[int, ...]


class Board(NamedTuple):
    """Rules about three cells in a row: the agent's, the one ahead and the one beyond.

    `leaving` says what the agent's cell becomes when it moves on. `entering` says
    what the next cells become, by the code ahead, or by those ahead and
    beyond where that matters; otherwise nothing changes.
    """

    shape: tuple[int, int]
    codes: Codes
    agent: Codes
    steps: dict[int, tuple[int, int]]
    leaving: dict[int, int]
    entering: dict[Codes, Codes]

    @property
    def outside(self) -> int:
        """The code that stands for what lies outside."""
        return max(self.codes) + 1

    def find(self, boards: np.ndarray) -> np.ndarray:
        """Return the row and column of the agent on every board."""
        flat = np.isin(boards, self.agent).reshape(len(boards), -1).argmax(axis=1)
        return np.stack(np.divmod(flat, self.shape[1]), axis=1)

    def cells(self, boards: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the three cells and their codes."""
        step = np.array([self.steps.get(number, (0, 0)) for number in action.tolist()])
        places = self.find(boards)[:, None] + np.arange(3)[None, :, None] * step[:, None]
        return places, self.codes_at(boards, places)

    def codes_at(self, boards: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the codes of some cells of every board."""
        inside = ((places >= 0) & (places < self.shape)).all(axis=2)
        safe = places.clip(0, np.array(self.shape) - 1)
        codes = boards[np.arange(len(boards))[:, None], safe[..., 0], safe[..., 1]]
        return np.where(inside, codes, self.outside)

    def predict(self, boards: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the boards that follow."""
        places, codes = self.cells(boards, action)
        after = boards.copy()
        for row, (here, ahead, beyond) in enumerate(codes.tolist()):
            entered = self.entering.get((ahead, beyond), self.entering.get((ahead,)))
            if entered and self.steps.get(int(action[row]), (0, 0)) != (0, 0):
                for place, code in zip(places[row], (self.leaving[here], *entered), strict=False):
                    after[row, place[0], place[1]] = code
        return after


def supports_board(space: Space) -> bool:
    """Say whether an observation is a table of few codes."""
    return (
        space.kind == "box"
        and len(space.shape) == 2
        and min(space.shape) >= LEAST_SIDE
        and np.issubdtype(space.dtype, np.integer)
    )


def fit_board(dataset: Dataset, seen: Transitions) -> Board | None:
    """Find an agent and rules about the cells in front of it that explain most transitions."""
    if not supports_board(dataset.observation_space) or any(seen.frame.lows):
        return None
    shape = dataset.observation_space.shape
    before, after = (part.reshape(-1, *shape) for part in (seen.before, seen.after))
    codes = np.unique(np.concatenate([before, after]))
    if len(codes) > MOST_CODES or not (agent := _agent(before, after, codes)):
        return None
    board = Board((shape[0], shape[1]), tuple(codes.tolist()), agent, {}, {}, {})
    moved = board.find(after) - board.find(before)
    board = board._replace(steps=_steps(moved, seen.action))
    board = _with_rules(board, before, seen.action, after)
    right = (board.predict(before, seen.action) == after).all(axis=(1, 2))
    return board if right[seen.done == 0].mean() >= LEAST_RIGHT else None


def _agent(before: np.ndarray, after: np.ndarray, codes: np.ndarray) -> Codes:
    """Return the codes of which every board has exactly one, in the place that changes most."""
    boards = np.concatenate([before, after])
    counts = np.stack([(boards == code).sum(axis=(1, 2)) for code in codes], axis=1)
    rare = np.flatnonzero(counts.max(axis=0) == 1).tolist()
    best, most = (), 0
    for number in range(1, MOST_AGENT_CODES + 1):
        for chosen in combinations(rare, number):
            if (counts[:, chosen].sum(axis=1) == 1).all():
                places = np.isin(boards, codes[list(chosen)]).reshape(len(boards), -1).argmax(1)
                moves = int((places[: len(before)] != places[len(before) :]).sum())
                if moves > most:
                    best, most = tuple(codes[list(chosen)].tolist()), moves
    return best


def _steps(moved: np.ndarray, action: np.ndarray) -> dict[int, tuple[int, int]]:
    """Return the commonest step of every action that moves the agent."""
    steps = {}
    for number in np.unique(action).tolist():
        rows = moved[(action == number) & moved.any(axis=1)]
        if len(rows):
            (down, right), _ = Counter(map(tuple, rows.tolist())).most_common(1)[0]
            steps[number] = down, right
    return steps


def _with_rules(board: Board, before: np.ndarray, action: np.ndarray, after: np.ndarray) -> Board:
    """Read off what the three cells become when the agent moves."""
    places, old = board.cells(before, action)
    safe = places.clip(0, np.array(board.shape) - 1)
    new = after[np.arange(len(after))[:, None], safe[..., 0], safe[..., 1]]
    new = np.where(old == board.outside, old, new)
    leaving: dict[int, Counter[int]] = {}
    entering: dict[Codes, Counter[Codes]] = {}
    for row in np.flatnonzero(np.isin(action, list(board.steps))).tolist():
        (here, *front), (left, *become) = old[row].tolist(), new[row].tolist()
        if left != here:
            leaving.setdefault(here, Counter())[left] += 1
        changes = tuple(become) if left != here else ()
        entering.setdefault(tuple(front), Counter())[changes] += 1
    usual = {key: seen.most_common(1)[0][0] for key, seen in sorted(entering.items())}
    floor = sum(leaving.values(), Counter[int]())
    left_behind = {code: leaving.get(code, floor).most_common(1) for code in board.agent}
    return board._replace(
        leaving={code: seen[0][0] for code, seen in left_behind.items() if seen},
        entering=_shortened(usual),
    )


def _shortened(rules: dict[Codes, Codes]) -> dict[Codes, Codes]:
    """Leave out the cell beyond where it neither matters nor changes, and what changes nothing."""
    short: dict[Codes, Codes] = {}
    for ahead in sorted({key[0] for key in rules}):
        own = {key: after for key, after in rules.items() if key[0] == ahead}
        first = {after[:1] for after in own.values()}
        if len(first) == 1 and all(not after or after[1] == key[1] for key, after in own.items()):
            own = {(ahead,): next(iter(first))}
        short |= {key: after for key, after in own.items() if after}
    return short
