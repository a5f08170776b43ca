"""The layout of boards: which components are cells, and the cell that an action names."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from scipy.special import xlog1py, xlogy

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.model import PartRows, PartsLayout, Steps, common_steps

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

MAX_EXTRAS = 3
"""Components after the cells of a board in a vector at most."""


@dataclass(frozen=True)
class BoardLayout(PartsLayout):
    """A board of cells, the other quantities after it, and the cell that an action refers to.

    `focus` is "agent" (the cell with a value in `agent`, moved by `steps`), "cell" (the action is
    the number of a cell), "column" (the action is a column) or "". `wraps` says whether rows and
    columns are rings around the focus. `turns` says that the cells are a ring that may turn, and
    `vanishes` that boards after the end of an episode may lack the agent.
    """

    shape: tuple[int, int]
    size: int
    focus: str = ""
    agent: tuple[int, ...] = ()
    steps: Steps = field(default_factory=dict)
    wraps: tuple[bool, bool] = (False, False)
    ground: "Ground | None" = None
    turns: bool = False
    vanishes: bool = False

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.shape[0] * self.shape[1]

    @property
    def extras(self) -> list[int]:
        """Components that are no cells."""
        return list(range(self.cells, self.size))

    def shown(self, observations: Array) -> Array:
        """Return the cells of observations, of shape (rows, *shape)."""
        return observations[:, : self.cells].reshape(-1, *self.shape)

    def boards(self, observations: Array) -> Array:
        """Return the cells of observations, without the ground that things stand on."""
        cells = self.shown(observations)
        return self.ground.lifted(cells) if self.ground else cells


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
        for y, x in self.marked:
            for plain, code in self.codes:
                shown[boards[:, y, x] == plain, y, x] = code
        return shown


def find_layouts(rows: PartRows, shape: tuple[int, ...]) -> list[BoardLayout]:
    """Return the layouts that fit transitions, the most plausible first.

    Args:
        rows: Transitions.
        shape: Shape of the observation space.
    """
    size, actions = rows.before.shape[1], int(rows.action.max()) + 1
    is_vector = len(shape) == 1
    if len(shape) == 2 and min(shape) >= 2:
        candidates = [BoardLayout((shape[0], shape[1]), size)]
    else:
        candidates = list(_flat_layouts(rows.before, actions))
    candidates = [one for one in candidates if _has_codes(one, rows.before)]
    if is_vector and actions < MAX_DIRECTIONS:
        candidates += [one for one in _grids_of(size) if _has_codes(one, rows.before)]
    found = [one for layout in candidates if (one := _with_agent(layout, rows))]
    if is_vector:
        # of the shapes that a vector may have, single steps show the right one
        found = [one for one in found if all(abs(y) + abs(x) == 1 for y, x in one.steps.values())]
    if found:
        return found[:1]
    pressed = [
        replace(layout, focus=focus, wraps=wraps)
        for layout in candidates
        if (focus := _named_by(layout, actions))
        for wraps in ((False, False), (False, True), (True, False), (True, True))
    ]
    changes = rows.before != rows.after
    if pressed:
        best = min(pressed, key=lambda one: _surprise(one, rows.action, changes))
        cells = float(_entropy(changes[:, : best.cells].mean(axis=0)).sum() * len(changes))
        if _surprise(best, rows.action, changes) < LESS_SURPRISE * cells:
            return [best]
    return [one for one in candidates if one.shape[0] == 1 or not is_vector][:1]


def _grids_of(size: int) -> Iterator[BoardLayout]:
    """Yield boards of any shape that a vector may begin with."""
    for extras in range(MAX_EXTRAS + 1):
        for width in range(3, (size - extras) // 3 + 1):
            if (size - extras) % width == 0:
                yield BoardLayout(((size - extras) // width, width), size)


def _named_by(layout: BoardLayout, actions: int) -> str:
    """Return what numbers of actions may name: a "cell", a "column" or nothing."""
    if actions == layout.cells:
        return "cell"
    return "column" if actions == layout.shape[1] else ""


def _flat_layouts(before: Array, actions: int) -> Iterator[BoardLayout]:
    """Yield boards and lines that a vector may begin with."""
    tops, size = before.max(axis=0), before.shape[1]
    for layout in _grids_of(size):
        uniform = len(set(tops[: layout.cells].tolist())) <= 2
        if uniform and _named_by(layout, actions):
            yield layout
    if np.unique(tops, return_counts=True)[1].max() < ALIKE * size:
        return
    cells = size
    while cells > 1 and tops[cells - 1] > tops[: cells - 1].max():
        cells -= 1
    yield BoardLayout((1, cells), size)


def _has_codes(layout: BoardLayout, before: Array) -> bool:
    cells = before[:, : layout.cells]
    return layout.cells >= LEAST_CELLS and len(np.unique(cells)) <= MAX_CODES


def _surprise(layout: BoardLayout, action: Array, changes: Array) -> float:
    """Return the bits of the changed cells, given their offset from the focus."""
    height, width = layout.shape
    cells = layout.shown(changes)
    y, x = np.indices((height, width))
    row, column = np.divmod(action, width) if layout.focus == "cell" else (0 * action, action)
    down, right = y[None] - row[:, None, None], x[None] - column[:, None, None]
    down = down % height if layout.wraps[0] else down
    right = right % width if layout.wraps[1] else right
    key = (down + height) * (2 * width) + right + width
    total = np.bincount(key.ravel())
    changed = np.bincount(key.ravel(), weights=cells.ravel(), minlength=len(total))
    share = changed[total > 0] / total[total > 0]
    parameters = ((share > 0) & (share < 1)).sum()
    bits = (_entropy(share) * total[total > 0]).sum()
    return float(bits + 0.5 * np.log2(len(action)) * parameters)


def _entropy(share: Array) -> Array:
    """Return the entropy of each share in bits."""
    entropy: Array = -(xlogy(share, share) + xlog1py(1 - share, -share)) / np.log(2)
    return entropy


def _with_agent(layout: BoardLayout, rows: PartRows) -> BoardLayout | None:
    """Return the layout with its agent: the value that every board has once and actions move."""
    if min(layout.shape) < 2:
        return None
    layout = replace(layout, ground=_ground(layout, np.concatenate([rows.before, rows.after])))
    old, new = layout.boards(rows.before), layout.boards(rows.after)
    boards = np.concatenate([old, new])
    counts = {code: (boards == code).sum(axis=(1, 2)) for code in np.unique(old).tolist()}
    rare = [code for code, count in counts.items() if count.max() == 1]
    best, most = None, 0
    for size in range(1, MAX_AGENT_CODES + 1):
        for codes in combinations(rare, size):
            present = sum(counts[code] for code in codes) == 1
            stays = present[len(old) :]
            if not (present[: len(old)].all() and (stays | rows.ends).all()):
                continue
            moved = place_of(new[stays], codes) - place_of(old[stays], codes)
            count = int(moved.any(axis=1).sum())
            steps, _ = common_steps(moved, rows.action[stays])
            if count > most and len(set(steps.values())) > 1:
                named = replace(layout, focus="agent", agent=codes, steps=steps)
                best, most = replace(named, vanishes=not stays.all()), count
    return best


def place_of(boards: Array, codes: tuple[int, ...]) -> Array:
    """Return row and column of the first cell with one of some values on each board."""
    flat = np.isin(boards, codes).reshape(len(boards), -1).argmax(axis=1)
    return np.stack(np.divmod(flat, boards.shape[2]), axis=1)


def _ground(layout: BoardLayout, observations: Array) -> Ground | None:
    """Find marked cells, which show another value for each value of most cells."""
    seen = [frozenset(np.unique(cell).tolist()) for cell in observations[:, : layout.cells].T]
    groups = Counter(group for group in seen if len(group) > 1)
    if not groups:
        return None
    common = set(groups.most_common(1)[0][0])
    for _ in groups:  # cells that share a value belong together
        common = common.union(*(group for group in groups if group & common))
    other = set().union(*(group for group in groups if not group & common))
    if len(other) != len(common):
        return None
    marked = tuple(divmod(i, layout.shape[1]) for i, group in enumerate(seen) if group <= other)
    return Ground(marked, tuple(zip(sorted(common), sorted(other), strict=True)))
