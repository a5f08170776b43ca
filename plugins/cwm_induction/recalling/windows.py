"""A moving window onto a larger board, inferred from transitions.

A move turns and shifts the window. The search selects the moves that map views best onto the next
views. Decision trees predict the move of an action, and the changes of cells. A rule of light and
opaque cells predicts the visible cells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.chance_tables import ChanceTable

Array = np.ndarray

LEAST_SHARED = 0.25
"""Minimum visible fraction of a window after a move; turns around its edge keep a quarter."""

SAMPLED = 300
"""Maximum number of rows per action for the search of moves; rarer events are not moves."""

MISS = float(np.log(0.03))
"""Log-likelihood (nats) of a cell that differs from the prediction of a move: changes are rare."""

MOST_CHANGED = 4
"""Maximum number of cells that actions change; more changes result from cells out of sight."""

OWN_SHARE = 0.99
"""Minimum fraction of moves without a change of an own cell; a few moves are misidentified."""

COMMON = 0.05
"""Minimum frequency of each further move among the rows of an action."""

ANOTHER = 15.0
"""Minimum gain of a further move of an action, in nats; a single row gains 7 at most."""

LEAST_CHANGED = 3
"""Minimum number of rows with a change of a cell."""

RIGHT_SIGHT = 0.8
"""Minimum fraction of views that a rule of visible cells must explain completely."""

MOST_VIEWS = 200
"""Maximum number of views that compare rules of visible cells; wrong rules fail in most."""

NEIGHBOURS = tuple((x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y)


class WindowMove(NamedTuple):
    """A move of a window: quarter turns of its cells, then a shift by `x` and `y`."""

    turn: int
    x: int
    y: int

    def apply(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the coordinates of cells of the window after the move."""
        for _ in range(self.turn):
            x, y = -y, x
        return x + self.x, y + self.y


STILL = WindowMove(0, 0, 0)

NO_CODE = -1
"""A code that no cell has: of cells out of sight if all are visible, and of unchanged cells."""


@dataclass(frozen=True)
class Sight:
    """A rule of visible cells.

    Light starts at the mask `seeds` of always visible cells. It spreads to the neighbours in the
    directions `ways`, except from cells with `opaque` contents.
    """

    seeds: Array
    ways: tuple[tuple[int, int], ...]
    opaque: frozenset[int]

    def lit(self, views: Array) -> Array:
        """Return the mask of the visible cells of views (rows, width, height)."""
        clear = ~np.isin(views, list(self.opaque))
        lit = np.broadcast_to(self.seeds, views.shape).copy()
        while True:
            count = lit.sum()
            for way in self.ways:
                _shifted(lit, way)[...] |= _shifted(lit & clear, (-way[0], -way[1]))
            if lit.sum() == count:
                return lit


class AnswerTree(NamedTuple):
    """A decision tree with an answer, such as a reward or a move, for each number of an outcome."""

    answers: tuple[Any, ...]
    table: ChanceTable


@dataclass(frozen=True)
class Views:
    """Transitions between views, with a code for the content of each cell.

    `before` and `after` contain codes (rows, cells), and `kinds` contains the values
    (codes, channels). `key` is the part of the observation with the view. `columns` are the
    features of decision trees. `others` maps the names of numbers beside the view to their keys,
    values and next values.
    """

    key: str
    shape: tuple[int, ...]
    kinds: Array
    before: Array
    after: Array
    columns: dict[str, Array]
    others: dict[str, tuple[str, Array, Array]]

    @classmethod
    def of(cls, data: Dataset) -> Self | None:
        """Read views, or return None if no part of the observation can be a window."""
        parts = list(_parts(data.observation_space))
        grids = [part for part in parts if _is_window(part[1])]
        if len(grids) != 1 or data.action_space.kind != "discrete":
            return None
        [(key, space)] = grids
        sizes = [part.size for _, part in parts if part.kind != "text" and part is not space]
        if any(size != 1 for size in sizes) or not len(data):
            return None
        name = f".{key}" if key else ""
        channels = space.shape[2] if len(space.shape) == 3 else 1
        ends = [data.columns[f"{field}{name}"] for field in ("observations", "next_observations")]
        cells = np.stack(ends).astype(np.int64).reshape(-1, channels)
        kinds, codes = np.unique(cells, axis=0, return_inverse=True)
        before, after = codes.reshape(2, len(data), -1)
        columns = {"action": data.columns["actions"].astype(np.int64)}
        others = {}
        for number, (other, part) in enumerate(parts):
            if part.kind != "text" and part is not space:
                column = other if other.isidentifier() else f"number_{number}"
                now, then = (
                    data.columns[f"{field}.{other}"].reshape(-1).astype(np.int64)
                    for field in ("observations", "next_observations")
                )
                columns[column] = now
                others[column] = other, now, then
        for cell, (x, y) in enumerate(np.ndindex(space.shape[:2])):
            for channel in range(channels):
                columns[f"view[{x}, {y}, {channel}]"] = kinds[before[:, cell], channel]
        columns = {name: part for name, part in columns.items() if np.ptp(part)}
        return cls(key, space.shape, kinds, before, after, columns, others)

    def tree(self, column: Array, rows: Array | None = None) -> AnswerTree:
        """Fit the decision tree of a column's values in a mask of rows."""
        chosen = np.ones(len(column), bool) if rows is None else rows
        values, numbers = np.unique(column[chosen], return_inverse=True)
        columns = {name: part[chosen] for name, part in self.columns.items()}
        table = ChanceTable.of(columns, np.eye(len(values))[numbers])
        return AnswerTree(tuple(values.tolist()), table)


@dataclass(frozen=True)
class Window:
    """A model of a window: its moves, the changes of its cells, and the visible cells.

    `choice` predicts the number of the move, `of_action` lists the possible moves of each action,
    and `own` masks the cells that move with the window. `changes` contains a tree of the next code
    for each cell that actions change. `unseen` is the code of cells out of sight, and `usual`
    contains the most common visible code of each cell. `others` are trees of the numbers beside the
    window. Cells are numbered row by row.
    """

    views: Views
    moves: tuple[WindowMove, ...]
    choice: AnswerTree
    of_action: dict[int, tuple[int, ...]]
    own: Array
    changes: dict[int, AnswerTree]
    unseen: int
    sight: Sight | None
    usual: Array
    others: dict[str, AnswerTree]
    reward: AnswerTree
    terminated: AnswerTree


def find_window(data: Dataset) -> Window | None:
    """Fit the model of a window, or return None if the window never moves."""
    views = Views.of(data)
    if views is None:
        return None
    of_action = _moves(views)
    unseen = _unseen(views, of_action)
    moves = tuple(sorted({move for some in of_action.values() for move in some}))
    if moves in ((), (STILL,)):
        return None
    numbers = {action: tuple(map(moves.index, some)) for action, some in of_action.items()}
    label, choice = _labels(views, moves, numbers, unseen)
    seen = (views.before != unseen) & (views.after != unseen)
    own = _own(views, seen, label, moves)
    next_codes = np.where(own, views.after, _codes_after(views, moves, label, own))
    known = (views.before != unseen) & (next_codes != unseen) & (next_codes != NO_CODE)
    boards = views.before.reshape(-1, *views.shape[:2])
    codes = np.arange(len(views.kinds))[:, None, None]
    usual = ((views.after == codes) & (codes != unseen)).sum(axis=1).argmax(axis=0)
    return Window(
        views,
        moves,
        choice,
        numbers,
        own,
        dict(_changes(views, next_codes, known)),
        unseen,
        None if unseen == NO_CODE else find_sight(boards, unseen),
        usual,
        {name: _next_number(views, name) for name in views.others},
        views.tree(data.columns["rewards"]),
        views.tree(data.columns["terminations"]),
    )


def _labels(
    views: Views, moves: tuple[WindowMove, ...], numbers: dict[int, tuple[int, ...]], unseen: int
) -> tuple[Array, AnswerTree]:
    """Return the number of the move in each row, and the tree that predicts it."""
    actions = views.columns["action"]
    evidence = np.full((len(actions), len(moves)), -np.inf)
    for action, some in numbers.items():
        rows = np.flatnonzero(actions == action)
        for number in some:
            evidence[rows, number] = _evidence(views, rows, moves[number], unseen)
    label, top = evidence.argmax(axis=1), np.sort(evidence, axis=1)[:, -2:]
    certain = (top[:, -1] - top[:, 0] > -MISS) | (len(moves) == 1)
    tree = views.tree(label, certain)
    likeliest = tree.table.chances(views.columns, len(actions)).argmax(axis=1)
    return np.where(certain, label, np.array(tree.answers)[likeliest]), tree


def _parts(space: Space) -> Iterator[tuple[str, Space]]:
    """Yield the parts of an observation with their keys; nested parts stay whole."""
    if space.kind == "dict":
        yield from zip(space.keys, space.children, strict=True)
    else:
        yield "", space


def _is_window(space: Space) -> bool:
    """Return whether a part is a grid of cells with a few integers each."""
    whole = space.kind in ("box", "multidiscrete", "multibinary") and not space.is_float
    plain = len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] <= 8)
    return whole and plain and min(space.shape[:2]) > 1


def _pairs(shape: tuple[int, ...], move: WindowMove) -> tuple[Array, Array]:
    """Return the flat indices, before and after a move, of cells that stay in the window."""
    width, height = shape[:2]
    x, y = (part.ravel() for part in np.indices((width, height)))
    then_x, then_y = move.apply(x, y)
    stays = (then_x >= 0) & (then_x < width) & (then_y >= 0) & (then_y < height)
    return (x * height + y)[stays], (then_x * height + then_y)[stays]


def _evidence(views: Views, rows: Array, move: WindowMove, unseen: int) -> Array:
    """Return the log-likelihood ratio (nats) of the next views: a move versus chance."""
    here, there = _pairs(views.shape, move)
    now, then = views.before[np.ix_(rows, here)], views.after[np.ix_(rows, there)]
    counts = np.bincount(views.after.ravel(), minlength=len(views.kinds)).astype(float)
    gain = -np.log(np.maximum(counts, 1) / counts.sum())
    cells = np.where(now == then, gain[then], MISS)
    evidence: Array = (cells * ((now != unseen) & (then != unseen))).sum(axis=1)
    return evidence


def _moves(views: Views) -> dict[int, list[WindowMove]]:
    """Return up to four moves of each action that explain the next views."""
    width, height = views.shape[:2]
    turns = range(4) if width == height else (0, 2)
    reach = 2 * max(width, height) - 1
    candidates = [
        move
        for turn, x, y in product(turns, range(-reach, reach + 1), range(-reach, reach + 1))
        if len(_pairs(views.shape, move := WindowMove(turn, x, y))[0])
        >= LEAST_SHARED * width * height
    ]
    candidates.sort(key=lambda move: (move.turn, abs(move.x) + abs(move.y)))
    moves = {}
    actions = views.columns["action"]
    for action in np.unique(actions).tolist():
        rows = np.flatnonzero(actions == action)
        sampled = rows[:: 1 + len(rows) // SAMPLED]
        evidence = np.stack([_evidence(views, sampled, move, NO_CODE) for move in candidates], 1)
        chosen = [int(evidence.sum(axis=0).argmax())]
        best = evidence[:, chosen[0]]
        while len(chosen) < 4:
            gained = np.clip(evidence - best[:, None], 0, -2 * MISS)
            rare = (gained > 0).mean(axis=0) < COMMON
            gains = np.where(rare, 0.0, gained.sum(axis=0))
            if gains.max() < ANOTHER:
                break
            chosen.append(int(gains.argmax()))
            best = np.maximum(best, evidence[:, chosen[-1]])
        moves[action] = [candidates[number] for number in chosen]
    return moves


def _unseen(views: Views, of_action: dict[int, list[WindowMove]]) -> int:
    """Return the code of cells out of sight, or NO_CODE without such a code.

    This code appears and disappears all over the view. All other changes, except those by moves,
    affect few cells.
    """
    size, cells = len(views.kinds), views.shape[0] * views.shape[1]
    became = np.zeros((size, size, cells), np.int64)
    for action, moves in of_action.items():
        rows = np.flatnonzero(views.columns["action"] == action)
        evidence = np.stack([_evidence(views, rows, move, NO_CODE) for move in moves])
        for number, move in enumerate(moves):
            here, there = _pairs(views.shape, move)
            chosen = rows[evidence.argmax(axis=0) == number]
            now, then = views.before[chosen], views.after[chosen]
            own = (now == then).mean(axis=0) > OWN_SHARE if move != STILL and len(chosen) else None
            rest = np.ones(len(here), bool) if own is None else ~own[here] & ~own[there]
            np.add.at(became, (now[:, here[rest]], then[:, there[rest]], there[rest]), 1)
    became[np.arange(size), np.arange(size)] = 0
    total = became.sum(axis=(0, 1))
    left = np.stack([total - became[code].sum(0) - became[:, code].sum(0) for code in range(size)])
    changed = (left >= LEAST_CHANGED).sum(axis=1)
    best = int(changed.argmin())
    spread = int((total >= LEAST_CHANGED).sum())
    return best if changed[best] <= MOST_CHANGED < spread - changed[best] else NO_CODE


def _codes_after(views: Views, moves: tuple[WindowMove, ...], label: Array, own: Array) -> Array:
    """Return the code after the move for each cell before the move; NO_CODE if it is unknown.

    The window's own cells hide the cells below them.
    """
    next_codes = np.full_like(views.before, NO_CODE)
    for number, move in enumerate(moves):
        here, there = _pairs(views.shape, move)
        here, there = here[~own[there]], there[~own[there]]
        rows = np.flatnonzero(label == number)
        next_codes[np.ix_(rows, here)] = views.after[np.ix_(rows, there)]
    return next_codes


def _own(views: Views, seen: Array, label: Array, moves: tuple[WindowMove, ...]) -> Array:
    """Return the mask of cells that move with the window: moves do not change them."""
    moved = np.array([move != STILL for move in moves])[label]
    both = seen & moved[:, None]
    wrong = (both & (views.before != views.after)).sum(axis=0)
    shown = views.after.copy()
    for number, move in enumerate(moves):
        here, there = _pairs(views.shape, move)
        rows = np.flatnonzero(label == number)
        shown[np.ix_(rows, there)] = views.before[np.ix_(rows, here)]
    off = (both & (shown != views.after)).sum(axis=0)
    count = both.sum(axis=0)
    own: Array = (count > 0) & (wrong <= (1 - OWN_SHARE) * count) & (off > wrong)
    return own


def _changes(views: Views, next_codes: Array, known: Array) -> Iterator[tuple[int, AnswerTree]]:
    """Yield the cells of the window that actions change, and trees of their next codes."""
    changed = known & (next_codes != views.before)
    for cell in np.flatnonzero(changed.sum(axis=0) >= LEAST_CHANGED).tolist():
        codes = np.where(changed[:, cell], next_codes[:, cell], NO_CODE)
        tree = views.tree(codes, known[:, cell])
        likely = [leaf.shares.index(max(leaf.shares)) for leaf in tree.table.leaves()]
        if any(tree.answers[number] != NO_CODE for number in likely):
            yield cell, tree


def _next_number(views: Views, name: str) -> AnswerTree:
    """Fit a number's next value and its change; return the shorter tree, with text as answers."""
    _, now, then = views.others[name]
    value, change = views.tree(then), views.tree(then - now)
    if value.table.bits <= change.table.bits:
        return value
    return change._replace(answers=tuple(f"{name} + {step}" for step in change.answers))


def _shifted(cells: Array, way: tuple[int, int]) -> Array:
    """Return the part of an array (rows, width, height) that a step along `way` can reach."""
    parts = [slice(max(0, step), None if step >= 0 else step) for step in way]
    part: Array = cells[:, parts[0], parts[1]]
    return part


def find_sight(seen: Array, unseen: int) -> Sight | None:
    """Infer the directions of light and the opaque contents from views, or return None."""
    views = np.unique(seen, axis=0)
    views = views[:: 1 + len(views) // MOST_VIEWS]
    lit = views != unseen
    seeds = lit.all(axis=0)
    if not seeds.any():
        return None
    codes = np.arange(int(views.max()) + 1)
    stopped, passed = [], []
    for way in NEIGHBOURS:
        source = _shifted(views, (-way[0], -way[1]))
        reached = _shifted(lit, way)
        visible = source != unseen
        stopped.append(np.bincount(source[visible & ~reached], minlength=len(codes)))
        passed.append(np.bincount(source[visible & reached], minlength=len(codes)))
    best: tuple[float, int] = (0.0, 0)
    best_sight = None
    for mask in product((False, True), repeat=len(NEIGHBOURS)):
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            continue
        stops = sum(stopped[way] for way in chosen)
        passes = sum(passed[way] for way in chosen)
        opaque = codes[(stops > 0.02 * (stops + passes)) & (codes != unseen)]
        sight = Sight(seeds, tuple(NEIGHBOURS[way] for way in chosen), frozenset(opaque.tolist()))
        right = float((sight.lit(views) == lit).all(axis=(1, 2)).mean())
        if (right, -len(chosen)) > best:
            best, best_sight = (right, -len(chosen)), sight
    return best_sight if best[0] >= RIGHT_SIGHT else None
