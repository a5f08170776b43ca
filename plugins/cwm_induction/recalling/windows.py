"""A window onto a larger board, found in transitions: how actions move it, and what they change.

A move turns and shifts the window, so that what was seen before lies where it is seen next. Moves
are found by how well they map one view onto the next, what decides between them by trees of
conditions, and what is out of sight by which cells light goes through.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.chance_tables import ChanceTable

Array = np.ndarray

LEAST_SHARED = 0.25
"""Share of a window that stays in sight at least: a quarter, where one turns at its edge."""

SAMPLED = 300
"""Rows of an action that moves are looked for in: what happens in fewer than some is no move."""

MISS = float(np.log(0.03))
"""What a cell tells against a move that leads something else there: actions change few cells."""

MOST_CHANGED = 4
"""Cells of a view that actions change at most; more that turn into others come into sight."""

OWN_SHARE = 0.99
"""Share of moves in which a cell that goes with the window stays as it is: one is read amiss."""

COMMON = 0.05
"""Share of the rows of an action in which it makes a move at least, if it makes another one."""

ANOTHER = 15.0
"""Nats that a further move of an action has to be worth: one row alone never is."""

LEAST_CHANGED = 3
"""Rows in which a cell of the window changes by an action at least."""

RIGHT_SIGHT = 0.8
"""Share of views that a rule of what is out of sight explains in full, else there is none."""

MOST_VIEWS = 200
"""Views that rules of what is out of sight are compared on: a wrong one fails on most."""

NEIGHBOURS = tuple((x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y)


class WindowMove(NamedTuple):
    """Quarter turns of a window's cells, and where they shift: a cell is seen there next."""

    turn: int
    x: int
    y: int

    def led(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return where cells of the window are seen after the move."""
        for _ in range(self.turn):
            x, y = -y, x
        return x + self.x, y + self.y


STILL = WindowMove(0, 0, 0)


@dataclass(frozen=True)
class Sight:
    """Light goes from cells that are always seen to neighbours, through all but some contents."""

    seeds: Array
    ways: tuple[tuple[int, int], ...]
    opaque: frozenset[int]

    def lit(self, views: Array) -> Array:
        """Return what is seen of views (rows, width, height)."""
        clear = ~np.isin(views, list(self.opaque))
        lit = np.broadcast_to(self.seeds, views.shape).copy()
        while True:
            count = lit.sum()
            for way in self.ways:
                _shifted(lit, way)[...] |= _shifted(lit & clear, (-way[0], -way[1]))
            if lit.sum() == count:
                return lit


class CellChange(NamedTuple):
    """What becomes of a cell of the window: a tree whose first answer is that it stays."""

    cell: tuple[int, int]
    codes: tuple[int, ...]
    table: ChanceTable


class NumberBeside(NamedTuple):
    """A number beside the window: what it becomes, or what is added to it."""

    name: str
    key: str
    values: tuple[int, ...]
    is_change: bool
    table: ChanceTable


class StepOutcome(NamedTuple):
    """Rewards, or whether the episode ends."""

    values: tuple[float, ...]
    table: ChanceTable


@dataclass(frozen=True)
class Views:
    """Transitions between views: numbered contents of cells (rows, width, height).

    `kinds` are the contents (codes, channels), `key` is the part of the observation.
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
        """Read views, or return None where no part of the observation can be a window."""
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
        before, after = codes.reshape(2, len(data), *space.shape[:2])
        columns = {"action": data.columns["actions"].astype(np.int64)}
        others = {}
        for number, (other, part) in enumerate(parts):
            if part.kind != "text" and part is not space:
                called = other if other.isidentifier() else f"number_{number}"
                now, then = (
                    data.columns[f"{field}.{other}"].reshape(-1).astype(np.int64)
                    for field in ("observations", "next_observations")
                )
                columns[called] = now
                others[called] = other, now, then
        for x, y, channel in product(*map(range, (*space.shape[:2], channels))):
            columns[f"view[{x}, {y}, {channel}]"] = kinds[before[:, x, y], channel]
        columns = {name: part for name, part in columns.items() if np.ptp(part)}
        return cls(key, space.shape, kinds, before, after, columns, others)

    def tree(self, answers: Array, count: int, rows: Array | None = None) -> ChanceTable:
        """Grow the tree of conditions that tells numbered answers in a mask of rows."""
        chosen = np.ones(len(answers), bool) if rows is None else rows
        columns = {name: part[chosen] for name, part in self.columns.items()}
        return ChanceTable.of(columns, np.eye(count)[answers[chosen]])


@dataclass(frozen=True)
class Window:
    """All that was found of how a window moves, what changes in it, and what is out of sight."""

    views: Views
    moves: tuple[WindowMove, ...]
    choice: ChanceTable
    of_action: dict[int, tuple[int, ...]]
    own: Array
    changes: tuple[CellChange, ...]
    unseen: int | None
    sight: Sight | None
    usual: Array
    others: tuple[NumberBeside, ...]
    reward: StepOutcome
    terminated: StepOutcome


def find_window(data: Dataset) -> Window | None:
    """Find how a window moves, or return None where nothing that is seen ever moves."""
    views = Views.of(data)
    if views is None:
        return None
    of_action = _moves(views, None)
    unseen = _unseen(views, of_action)
    of_action = of_action if unseen is None else _moves(views, unseen)
    moves = tuple(sorted({move for some in of_action.values() for move in some}))
    if moves in ((), (STILL,)):
        return None
    evidence = np.full((len(data), len(moves)), -np.inf)
    actions = data.columns["actions"]
    for action, some in of_action.items():
        rows = np.flatnonzero(actions == action)
        for move in some:
            evidence[rows, moves.index(move)] = _evidence(views, rows, move, unseen)
    label, two = evidence.argmax(1), np.sort(evidence, axis=1)[:, -2:]
    sure = two[:, -1] - two[:, 0] > -MISS if len(moves) > 1 else np.ones(len(data), bool)
    choice = views.tree(label, len(moves), sure)
    label = np.where(sure, label, choice.chances(views.columns, len(data)).argmax(axis=1))
    known = [view != (-1 if unseen is None else unseen) for view in (views.before, views.after)]
    own = _own(views, known, label, moves)
    led = np.where(own, views.after, _led(views, moves, label, own))
    known_led = led >= 0
    if unseen is not None:
        known_led &= led != unseen
    usual = _usual(views.after, unseen)
    numbers = {action: tuple(map(moves.index, some)) for action, some in of_action.items()}
    return Window(
        views,
        moves,
        choice,
        numbers,
        own,
        tuple(_changes(views, led, known[0] & known_led)),
        unseen,
        None if unseen is None else find_sight(views.before, unseen),
        usual,
        tuple(_other(views, name) for name in views.others),
        _outcome(views, data.columns["rewards"]),
        _outcome(views, data.columns["terminations"]),
    )


def _parts(space: Space) -> Iterator[tuple[str, Space]]:
    """Yield the parts of an observation with their keys; none are nested deeper."""
    if space.kind == "dict":
        yield from zip(space.keys, space.children, strict=True)
    else:
        yield "", space


def _is_window(space: Space) -> bool:
    """Whether a part has cells in two directions, of few whole numbers each."""
    whole = space.kind in ("box", "multidiscrete", "multibinary") and not space.is_float
    plain = len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] <= 8)
    return whole and plain and min(space.shape[:2]) > 1


def _pairs(shape: tuple[int, ...], move: WindowMove) -> tuple[Array, Array]:
    """Return places of cells before a move that are in sight after it, and their places then."""
    width, height = shape[:2]
    x, y = (part.ravel() for part in np.indices((width, height)))
    then_x, then_y = move.led(x, y)
    stays = (then_x >= 0) & (then_x < width) & (then_y >= 0) & (then_y < height)
    return (x * height + y)[stays], (then_x * height + then_y)[stays]


def _rows(cells: Array) -> Array:
    """Return an array (rows, width, height) with its cells in a row."""
    return cells.reshape(len(cells), cells.shape[1] * cells.shape[2])


def _evidence(views: Views, rows: Array, move: WindowMove, unseen: int | None) -> Array:
    """Return how much likelier the next views are by a move than by chance, in nats."""
    here, there = _pairs(views.shape, move)
    now, then = _rows(views.before)[rows][:, here], _rows(views.after)[rows][:, there]
    counts = np.bincount(views.after.ravel(), minlength=len(views.kinds)).astype(float)
    gain = -np.log(np.maximum(counts, 1) / counts.sum())
    told = np.where(now == then, gain[then], MISS)
    if unseen is not None:
        told = told * ((now != unseen) & (then != unseen))
    evidence: Array = told.sum(axis=1)
    return evidence


def _moves(views: Views, unseen: int | None) -> dict[int, list[WindowMove]]:
    """Return the fewest moves of each action that lead to what is seen."""
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
    found = {}
    actions = views.columns["action"]
    for action in np.unique(actions).tolist():
        rows = np.flatnonzero(actions == action)
        sampled = rows[:: 1 + len(rows) // SAMPLED]
        told = np.stack([_evidence(views, sampled, move, unseen) for move in candidates], 1)
        chosen = [int(told.sum(axis=0).argmax())]
        best = told[:, chosen[0]]
        while len(chosen) < 4:
            gained = np.clip(told - best[:, None], 0, -2 * MISS)
            rare = (gained > 0).mean(axis=0) < COMMON
            gains = np.where(rare, 0.0, gained.sum(axis=0))
            if gains.max() < ANOTHER:
                break
            chosen.append(int(gains.argmax()))
            best = np.maximum(best, told[:, chosen[-1]])
        found[action] = [candidates[number] for number in chosen]
    return found


def _unseen(views: Views, of_action: dict[int, list[WindowMove]]) -> int | None:
    """Return what cells out of sight look like, if one content comes and goes all over the view.

    Without it only few cells become other than what moved there.
    """
    size, cells = len(views.kinds), views.shape[0] * views.shape[1]
    became = np.zeros((size, size, cells), np.int64)
    for action, moves in of_action.items():
        rows = np.flatnonzero(views.columns["action"] == action)
        told = np.stack([_evidence(views, rows, move, None) for move in moves])
        for number, move in enumerate(moves):
            here, there = _pairs(views.shape, move)
            chosen = rows[told.argmax(axis=0) == number]
            now, then = _rows(views.before)[chosen], _rows(views.after)[chosen]
            own = (now == then).mean(axis=0) > OWN_SHARE if move != STILL and len(chosen) else None
            rest = np.ones(len(here), bool) if own is None else ~own[here] & ~own[there]
            np.add.at(became, (now[:, here[rest]], then[:, there[rest]], there[rest]), 1)
    became[np.arange(size), np.arange(size)] = 0
    total = became.sum(axis=(0, 1))
    left = np.stack([total - became[code].sum(0) - became[:, code].sum(0) for code in range(size)])
    changed = (left >= LEAST_CHANGED).sum(axis=1)
    best = int(changed.argmin())
    spread = int((total >= LEAST_CHANGED).sum())
    return best if changed[best] <= MOST_CHANGED < spread - changed[best] else None


def _led(views: Views, moves: tuple[WindowMove, ...], label: Array, own: Array) -> Array:
    """Return what each cell of the window before a move is seen as after it, -1 out of sight.

    What lies below the window's own cells is out of sight too.
    """
    led, after = np.full_like(_rows(views.before), -1), _rows(views.after)
    for number, move in enumerate(moves):
        here, there = _pairs(views.shape, move)
        here, there = here[~own.ravel()[there]], there[~own.ravel()[there]]
        rows = np.flatnonzero(label == number)
        led[np.ix_(rows, here)] = after[np.ix_(rows, there)]
    return led.reshape(views.before.shape)


def _own(views: Views, known: list[Array], label: Array, moves: tuple[WindowMove, ...]) -> Array:
    """Mask of the cells that go with the window: they stay as they are when it is moved."""
    moved = np.array([move != STILL for move in moves])[label]
    both = known[0] & known[1] & moved[:, None, None]
    wrong = (both & (views.before != views.after)).sum(0)
    shown, before = _rows(views.after).copy(), _rows(views.before)
    for number, move in enumerate(moves):
        here, there = _pairs(views.shape, move)
        rows = np.flatnonzero(label == number)
        shown[np.ix_(rows, there)] = before[np.ix_(rows, here)]
    off = (both & (shown.reshape(views.before.shape) != views.after)).sum(0)
    own: Array = (both.sum(0) > 0) & (wrong <= (1 - OWN_SHARE) * both.sum(0)) & (off > wrong)
    return own


def _changes(views: Views, led: Array, known: Array) -> Iterator[CellChange]:
    """Yield what actions make of cells of the window."""
    changed = known & (led != views.before)
    for x, y in np.argwhere(changed.sum(axis=0) >= LEAST_CHANGED).tolist():
        codes = np.unique(led[changed[:, x, y], x, y])
        answers = np.where(changed[:, x, y], 1 + np.searchsorted(codes, led[:, x, y]), 0)
        answers = np.where(known[:, x, y], answers, 0)
        table = views.tree(answers, 1 + len(codes), known[:, x, y])
        if any(max(leaf.shares) > leaf.shares[0] for leaf in table.leaves()):
            yield CellChange((x, y), tuple(codes.tolist()), table)


def _other(views: Views, name: str) -> NumberBeside:
    """Find what a number beside the window becomes, or by how much it changes."""
    key, now, then = views.others[name]
    found = []
    for is_change, target in ((False, then), (True, then - now)):
        values, answers = np.unique(target, return_inverse=True)
        table = views.tree(answers, len(values))
        found.append(NumberBeside(name, key, tuple(values.tolist()), is_change, table))
    return min(found, key=lambda other: other.table.bits)


def _outcome(views: Views, column: Array) -> StepOutcome:
    values, answers = np.unique(column, return_inverse=True)
    return StepOutcome(tuple(values.tolist()), views.tree(answers, len(values)))


def _usual(seen: Array, unseen: int | None) -> Array:
    """Return what is usual in each cell of the window, where it is seen."""
    counts = np.stack([(seen == code).sum(axis=0) for code in range(int(seen.max()) + 1)])
    if unseen is not None:
        counts[unseen] = 0
    usual: Array = counts.argmax(axis=0)
    return usual


def _shifted(cells: Array, way: tuple[int, int]) -> Array:
    """Return the view of an array (rows, width, height) without the edge that a way comes from."""
    parts = [slice(max(0, step), None if step >= 0 else step) for step in way]
    part: Array = cells[:, parts[0], parts[1]]
    return part


def find_sight(seen: Array, unseen: int) -> Sight | None:
    """Find which neighbours light goes to and what it does not go through, from views alone."""
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
        some = source != unseen
        stopped.append(np.bincount(source[some & ~reached], minlength=len(codes)))
        passed.append(np.bincount(source[some & reached], minlength=len(codes)))
    best: tuple[float, int] = (0.0, 0)
    found = None
    for mask in product((False, True), repeat=len(NEIGHBOURS)):
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            continue
        against = sum(stopped[way] for way in chosen)
        for_it = sum(passed[way] for way in chosen)
        opaque = codes[(against > 0.02 * (against + for_it)) & (codes != unseen)]
        sight = Sight(seeds, tuple(NEIGHBOURS[way] for way in chosen), frozenset(opaque.tolist()))
        right = float((sight.lit(views) == lit).all(axis=(1, 2)).mean())
        if (right, -len(chosen)) > best:
            best, found = (right, -len(chosen)), sight
    return found if best[0] >= RIGHT_SIGHT else None
