"""The layout of boards: which components are cells, and the cell that an action names."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import xlog1py, xlogy

from cwm_induction.continuous.samples import Array

MAX_CODES = 12
"""Different values above which cells hold quantities rather than kinds of things."""

LESS_SURPRISE = 0.85
"""An action names a cell if offsets from it reduce the surprise of changes to this share."""

MAX_AGENT_CODES = 3
"""Values that the agent may have, for example if it carries something or covers something."""

MAX_DIRECTIONS = 10
"""With fewer actions, an action may be a direction of an agent on a board in a vector."""

ALIKE = 0.7
"""Share of the components of a line that have the same range."""

LEAST_CELLS = 6
"""Cells of a board or line at least; fewer are better explained one by one."""


class BoardRows(NamedTuple):
    """Transitions as arrays of whole numbers; actions are numbered from 0."""

    before: Array
    action: Array
    after: Array
    rewards: Array
    ends: Array

    def part(self, mask: Array) -> "BoardRows":
        """Return the rows of a mask."""
        return BoardRows(*(column[mask] for column in self))


@dataclass(frozen=True)
class BoardLayout:
    """A board of cells, other quantities, and the cell that an action refers to.

    `focus` is "agent" (the cell with a value in `agent`, moved by `steps`), "cell" (the action is
    the number of a cell), "column" (the action is a column) or "". `turns` says
    that the cells are a ring that may turn. `actions` are the rows and columns that actions number,
    if some cells have no action.
    """

    shape: tuple[int, int]
    first: int
    size: int
    focus: str = ""
    agent: tuple[int, ...] = ()
    steps: tuple[tuple[int, int, int], ...] = ()
    wraps: tuple[bool, bool] = (False, False)
    ground: "Ground | None" = None
    turns: bool = False
    actions: tuple[int, int] = (0, 0)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.shape[0] * self.shape[1]

    @property
    def across(self) -> int:
        """Number of columns that actions number."""
        return self.actions[1] or self.shape[1]

    @property
    def extras(self) -> list[int]:
        """Components that are no cells."""
        return [i for i in range(self.size) if not self.first <= i < self.first + self.cells]

    def boards(self, observations: Array) -> Array:
        """Return the cells of observations, without the ground that things stand on."""
        cells = observations[:, self.first : self.first + self.cells]
        boards = cells.reshape(-1, *self.shape)
        return self.ground.lifted(boards) if self.ground else boards


@dataclass(frozen=True)
class Ground:
    """Marked cells, which show another value for each thing that stands on them.

    `codes` pairs the value on an unmarked cell with the value on a marked one.
    """

    marked: tuple[tuple[int, int], ...]
    codes: tuple[tuple[int, int], ...]

    def lifted(self, boards: Array) -> Array:
        """Return the boards with the values of unmarked cells."""
        lifted = boards.copy()
        for plain, shown in self.codes:
            lifted[boards == shown] = plain
        return lifted

    def shown(self, boards: Array) -> Array:
        """Return the boards with the values of marked cells."""
        shown = boards.copy()
        mask = np.zeros(boards.shape[1:], bool)
        mask[tuple(np.array(self.marked).T)] = True
        for plain, code in self.codes:
            shown[mask & (boards == plain)] = code
        return shown


def find_layouts(
    before: Array, action: Array, after: Array, shape: tuple[int, ...]
) -> list[BoardLayout]:
    """Return the layouts that fit a dataset, the most plausible first.

    Args:
        before: Observations of shape (rows, components).
        action: Numbers of the actions, from 0.
        after: Next observations.
        shape: Shape of the observation space.
    """
    size = before.shape[1]
    changes = before != after
    actions = int(action.max()) + 1
    if len(shape) == 2 and min(shape) >= 2:
        candidates = [BoardLayout((shape[0], shape[1]), 0, size)]
    else:
        candidates = list(_flat_layouts(before, size, actions))
    candidates = [one for one in candidates if _has_codes(one, before)]
    if len(shape) == 1 and actions < MAX_DIRECTIONS:
        candidates += list(_grids_of(before))
    found = [one for layout in candidates if (one := _with_agent(layout, before, action, after))]
    if len(shape) == 1:
        # of the shapes that a vector may have, single steps show the right one
        found = [one for one in found if all(abs(y) + abs(x) == 1 for _, y, x in one.steps)]
    if found:
        return found[:1]
    pressed = [
        replace(layout, focus=focus, wraps=wraps, actions=grid)
        for layout in candidates
        for focus, grid in _grids(layout.shape, actions)
        for wraps in ((False, False), (False, True), (True, False), (True, True))
    ]
    if pressed:
        best = min(pressed, key=lambda one: _surprise(one, action, changes))
        if _surprise(best, action, changes) < LESS_SURPRISE * _surprise_of_cells(best, changes):
            return [best]
    plain = [one for one in candidates if one.shape[0] == 1 or len(shape) == 2][:1]
    # the cell of an action may be hard to see if all cells change at each step
    unclear = [one for one in pressed if len(shape) == 2 and one.wraps == (False, False)]
    return [*unclear[:1], *plain]


def _grids_of(before: Array) -> Iterator[BoardLayout]:
    """Yield boards of any shape that a vector may begin with."""
    size = before.shape[1]
    for extras in range(4):
        for width in range(3, (size - extras) // 3 + 1):
            if (size - extras) % width == 0:
                layout = BoardLayout(((size - extras) // width, width), 0, size)
                if _has_codes(layout, before):
                    yield layout


def _grids(shape: tuple[int, int], actions: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the meanings that numbers of actions may have: cells or columns.

    Up to two rows and columns may have no action, as for moves of pairs of cells.
    """
    height, width = shape
    if actions == width and height > 1:
        yield "column", (0, 0)
    for down in range(max(1, height - 2), height + 1):
        for right in range(max(1, width - 2), width + 1):
            if actions == down * right and actions > width:
                yield "cell", (down, right)
    if height == 1 and actions == width:
        yield "cell", (1, width)


def _flat_layouts(before: Array, size: int, actions: int) -> Iterator[BoardLayout]:
    """Yield boards and lines that a vector may begin with."""
    tops = before.max(axis=0)
    for extras in range(4):
        cells = size - extras
        if cells < LEAST_CELLS or len(set(tops[:cells].tolist())) > 2:
            continue
        for width in range(3, cells // 3 + 1):
            if cells % width == 0 and actions in (cells, width):
                yield BoardLayout((cells // width, width), 0, size)
    if np.unique(tops, return_counts=True)[1].max() < ALIKE * size:
        return
    cells = size
    while cells > 1 and tops[cells - 1] > tops[: cells - 1].max():
        cells -= 1
    if cells >= LEAST_CELLS:
        yield BoardLayout((1, cells), 0, size)


def _has_codes(layout: BoardLayout, before: Array) -> bool:
    cells = before[:, layout.first : layout.first + layout.cells]
    return layout.cells >= LEAST_CELLS and len(np.unique(cells)) <= MAX_CODES


def _surprise(layout: BoardLayout, action: Array, changes: Array) -> float:
    """Return the bits of the changed cells, given their offset from the focus."""
    height, width = layout.shape
    cells = changes[:, layout.first : layout.first + layout.cells].reshape(-1, height, width)
    y, x = np.indices((height, width))
    row, column = divmod(action, layout.across) if layout.focus == "cell" else (0 * action, action)
    down = y[None] - np.reshape(row, (-1, 1, 1))
    right = x[None] - column[:, None, None]
    down = down % height if layout.wraps[0] else down
    right = right % width if layout.wraps[1] else right
    key = (down + height) * (2 * width) + right + width
    total = np.bincount(key.ravel())
    changed = np.bincount(key.ravel(), weights=cells.ravel(), minlength=len(total))
    used = total > 0
    bits, parameters = _entropy(changed[used] / total[used])
    return float((bits * total[used]).sum() + 0.5 * np.log2(len(action)) * parameters)


def _surprise_of_cells(layout: BoardLayout, changes: Array) -> float:
    """Return the bits of the changed cells, given the frequency of change of each cell."""
    cells = changes[:, layout.first : layout.first + layout.cells]
    return float(_entropy(cells.mean(axis=0))[0].sum() * len(cells))


def _entropy(share: Array) -> tuple[Array, int]:
    """Return the entropy of each share in bits, and how many are neither 0 nor 1."""
    entropy = -(xlogy(share, share) + xlog1py(1 - share, -share)) / np.log(2)
    return entropy, int(((share > 0) & (share < 1)).sum())


def _with_agent(
    layout: BoardLayout, before: Array, action: Array, after: Array
) -> BoardLayout | None:
    """Return the layout with its agent: the value that every board has once and actions move."""
    if min(layout.shape) < 2:
        return None
    ground = _ground(layout, np.concatenate([before, after]))
    layout = replace(layout, ground=ground)
    old, new = layout.boards(before), layout.boards(after)
    best, most = None, 0
    codes = np.unique(old).tolist()
    boards = np.concatenate([old, new])
    counts = {code: (boards == code).sum(axis=(1, 2)) for code in codes}
    rare = [code for code in codes if counts[code].max() == 1]
    sets = [one for size in range(1, MAX_AGENT_CODES + 1) for one in combinations(rare, size)]
    for code in sets:
        if not (sum(counts[one] for one in code) == 1).all():
            continue
        moved = place_of(new, code) - place_of(old, code)
        count = int(moved.any(axis=1).sum())
        steps = _steps(moved, action)
        if count > most and len({step[1:] for step in steps}) > 1:
            best, most = replace(layout, focus="agent", agent=code, steps=steps), count
    return best


def place_of(boards: Array, codes: tuple[int, ...]) -> Array:
    """Return row and column of the first cell with one of some values on each board."""
    flat = np.isin(boards, codes).reshape(len(boards), -1).argmax(axis=1)
    return np.stack(np.divmod(flat, boards.shape[2]), axis=1)


def _steps(moved: Array, action: Array) -> tuple[tuple[int, int, int], ...]:
    """Return action, rows and columns of the most common step of each action that moves."""
    steps = []
    for number in np.unique(action).tolist():
        rows = moved[(action == number) & moved.any(axis=1)]
        if len(rows):
            (down, right), _ = Counter(map(tuple, rows.tolist())).most_common(1)[0]
            steps.append((number, int(down), int(right)))
    return tuple(steps)


def _ground(layout: BoardLayout, observations: Array) -> Ground | None:
    """Find marked cells: those with other values than most cells, one for each of theirs."""
    cells = observations[:, layout.first : layout.first + layout.cells]
    groups = Counter(frozenset(np.unique(cells[:, i]).tolist()) for i in range(layout.cells))
    changing = [group for group in groups if len(group) > 1]
    classes = _joined(changing)
    if len(classes) != 2 or len(classes[0]) != len(classes[1]):
        return None
    common = max(classes, key=lambda one: sum(n for group, n in groups.items() if group <= one))
    other = next(one for one in classes if one != common)
    marked = tuple(
        (int(i // layout.shape[1]), int(i % layout.shape[1]))
        for i in range(layout.cells)
        if set(np.unique(cells[:, i]).tolist()) <= other
    )
    pairs = tuple(zip(sorted(common), sorted(other), strict=True))
    return Ground(marked, pairs) if marked else None


def _joined(groups: list[frozenset[int]]) -> list[frozenset[int]]:
    """Join sets that share an element."""
    classes: list[frozenset[int]] = []
    for group in groups:
        touching = [one for one in classes if one & group]
        classes = [one for one in classes if not one & group]
        classes.append(group.union(*touching))
    return classes
