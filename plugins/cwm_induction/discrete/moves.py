"""Nominal moves: the change of each state factor by action, and perhaps by another factor."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.expressions import Constants
from cwm_induction.discrete.features import Sizes

MAX_DELTAS = 24
"""Most common changes of a factor to consider."""

MAX_KEY = 8
"""Moves may depend on another factor with at most this many values."""

MAX_KEYED = 16
"""Try moves that depend on other factors up to this number of factors."""

LEAST_PLACES = 2
"""A factor with steps up and down is a place, not a flag, if it has more values than this."""

CHANGE_BITS = 2
"""Price of a change by an action, in addition to the price of its value."""

KEYED_BITS = 4.0
"""Price of a move that depends on another factor, in addition to its table entries."""

SET_BITS = 8.0
"""Price of a move that sets a factor to a value, instead of a change that is added to it."""

MISS_BITS = 6.0
"""Estimated price of a transition that moves miss and exceptions must explain."""

BLOCKED_WORTH = 0.7
"""Credit of a move for a transition without any change, which an obstacle may explain."""

STOPS_WORTH = 0.01
"""Extra credit of a move for a correct transition that does not meet the bounds."""


@dataclass(frozen=True)
class FactorMove:
    """The nominal change of one factor.

    `deltas` has a row per action. It has a column per value of the factor `key`, or one column
    without a `key`. If `wraps` is set, the factor wraps around at its bounds; otherwise it stops
    there. If `sets` is set, `deltas` are the next values themselves.
    """

    radix: int
    wraps: bool
    key: int | None
    deltas: np.ndarray
    sets: bool = False

    @property
    def moves(self) -> bool:
        """Whether any action changes the factor."""
        return self.sets or bool(self.deltas.any())

    @property
    def steps(self) -> bool:
        """Whether actions move the factor to its neighbours, up and down."""
        deltas = set(self.deltas.ravel().tolist())
        unit = {-1, 1} <= deltas <= {-1, 0, 1}
        return self.radix > LEAST_PLACES and unit and not self.sets

    def apply(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return the factor's nominal next values."""
        return _to_range(self.target(factors, action, factor), self.radix, self.wraps)

    def leaves(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return a mask (rows): whether the move would leave the range."""
        target = self.target(factors, action, factor)
        outside: np.ndarray = (target < 0) | (target >= self.radix)
        return outside & (not self.wraps)

    def target(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return the next values of the move without bounds."""
        column = 0 if self.key is None else factors[:, self.key]
        deltas: np.ndarray = self.deltas[action, column]
        target: np.ndarray = deltas if self.sets else factors[:, factor] + deltas
        return target

    def target_text(self, constants: Constants, names: list[str], factor: int) -> str:
        """Write the next value of the move without bounds."""
        name, word = names[factor], "next value" if self.sets else "change"
        key = "action" if self.key is None else f"(action, {names[self.key]})"
        entries = [
            f"{action if self.key is None else (action, column)}: {delta}"
            for action, row in enumerate(self.deltas.tolist())
            for column, delta in enumerate(row)
            if delta
        ]
        display, comment = "{" + ", ".join(entries) + "}", f"{word} of {name} by {key}"
        step = constants.add(f"{name.upper()}_STEP", display, comment)
        return f"{step}.get({key}, 0)" if self.sets else f"{name} + {step}.get({key}, 0)"

    def bounded_text(self, target: str) -> str:
        """Write the next value of the move within the bounds."""
        if self.sets:
            return target
        wraps = f"({target}) % {self.radix}"
        return wraps if self.wraps else f"min(max({target}, 0), {self.radix - 1})"


class Fit(NamedTuple):
    """A move, its description length and its misses; blocked transitions count in part."""

    move: FactorMove
    bits: float
    misses: float

    @property
    def cost(self) -> float:
        """Bits of the move, plus the estimated price of its misses."""
        return self.bits + MISS_BITS * self.misses


def fit_moves(
    factors: np.ndarray,
    action: np.ndarray,
    after: np.ndarray,
    radices: tuple[int, ...],
    actions: int,
) -> list[Fit]:
    """Fit the nominal move with the least cost for each factor."""
    stays = (factors == after).all(axis=1)
    search = _MoveSearch(factors, action, after, stays, radices, actions)
    return [min(search.fits(factor), key=lambda fit: fit.cost) for factor in range(len(radices))]


class _MoveSearch(NamedTuple):
    """Distinct transitions, in factors; `stays` marks transitions without any change."""

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    stays: np.ndarray
    radices: tuple[int, ...]
    actions: int

    def fits(self, factor: int) -> Iterator[Fit]:
        """Yield the moves of one factor: by action alone, then by action and another factor."""
        plain = list(self.by_action(factor, None))
        yield from plain
        if not all(fit.misses for fit in plain):
            return
        yield self._setting(factor)
        if len(self.radices) <= MAX_KEYED:
            for key, radix in enumerate(self.radices):
                if key != factor and radix <= MAX_KEY:
                    yield from self.by_action(factor, key)

    def by_action(self, factor: int, key: int | None) -> Iterator[Fit]:
        """Yield the best move that stops at the bounds, then the best that wraps around."""
        size, actions = 1 if key is None else self.radices[key], self.actions
        group = self.action * size + (0 if key is None else self.factors[:, key])
        before, after, radix = self.factors[:, factor], self.after[:, factor], self.radices[factor]
        deltas = _candidates(after - before)
        for wraps in (False, True):
            landing = _to_range(before[:, None] + deltas, radix, wraps)
            right = landing == after[:, None]
            plain = right & (before[:, None] + deltas == after[:, None])
            worth = np.where(right, 1 + STOPS_WORTH * plain, BLOCKED_WORTH * self.stays[:, None])
            support = np.zeros((actions * size, len(deltas)))
            np.add.at(support, group, worth)
            table = deltas[support.argmax(axis=1)].reshape(actions, size)
            misses = max(0.0, len(before) - support.max(axis=1).sum())
            bits = 2.0 + wraps + np.count_nonzero(table) * (log2(radix) + CHANGE_BITS)
            if key is not None:
                bits += KEYED_BITS + table.size
            yield Fit(FactorMove(radix, wraps, key, table), bits, misses)

    def _setting(self, factor: int) -> Fit:
        """Return the move that sets the factor to a value by action."""
        factors = self.factors.copy()
        factors[:, factor] = 0
        still = self._replace(factors=factors)
        fit = next(still.by_action(factor, None))
        return Fit(replace(fit.move, sets=True), fit.bits + SET_BITS, fit.misses)


def _candidates(changes: np.ndarray) -> np.ndarray:
    """Return the most common changes: no change first, then in order of size."""
    values, counts = np.unique(changes, return_counts=True)
    values = values[np.lexsort((values, np.abs(values), -counts))][:MAX_DELTAS]
    values = values[values != 0]
    return np.concatenate([[0], values[np.lexsort((values, np.abs(values)))]])


def _to_range(values: np.ndarray, radix: int, wraps: bool) -> np.ndarray:
    """Wrap or clip values to the range of a factor."""
    result: np.ndarray = values % radix if wraps else np.clip(values, 0, radix - 1)
    return result


GridCell = tuple[int, int]

LEAST_RIGHT = 0.95
"""Slides must explain this share of the transitions; other events during a slide are exceptions."""

AXES = 2
"""Number of factors of a grid, and the least length of a move that is more than one step."""

STEP_BITS = 3.0
"""Price of the direction of an action."""

LOOP = """\
new_{row}, new_{column} = {row}, {column}
down, right = {steps}.get(action, (0, 0))
while (down, right) != (0, 0):
    there = new_{row} + down, new_{column} + right
    inside = 0 <= there[0] <= {last_row} and 0 <= there[1] <= {last_column}
    if not inside{walls}:
        break
    new_{row}, new_{column} = there{stops}"""

STOP = """
    if there in {stops}:
        break"""


class Slide(NamedTuple):
    """The direction of each action; slides stop in front of `walls` and in `stops`."""

    steps: dict[int, GridCell]
    walls: frozenset[GridCell]
    stops: frozenset[GridCell]
    radices: tuple[int, int]
    actions: int

    @property
    def bits(self) -> float:
        """Description length."""
        cells = log2(self.radices[0] * self.radices[1])
        return STEP_BITS * len(self.steps) + cells * (len(self.walls) + len(self.stops))

    @property
    def moves(self) -> tuple[FactorMove, ...]:
        """The single steps, one move per factor."""
        deltas = np.array([self.steps.get(action, (0, 0)) for action in range(self.actions)])
        return tuple(
            FactorMove(radix, wraps=False, key=None, deltas=deltas[:, [factor]])
            for factor, radix in enumerate(self.radices)
        )

    def landing(self, old: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the last cell of each slide."""
        pairs = zip(map(tuple, old.tolist()), action.tolist(), strict=True)
        return np.array([self._end(cell, self.steps.get(number, (0, 0))) for cell, number in pairs])

    def _end(self, cell: GridCell, step: GridCell) -> GridCell:
        """Return the last cell of one slide."""
        while step != (0, 0):
            there = cell[0] + step[0], cell[1] + step[1]
            inside = all(0 <= at < size for at, size in zip(there, self.radices, strict=True))
            if not inside or there in self.walls:
                break
            cell = there
            if cell in self.stops:
                break
        return cell

    def lines(self, constants: Constants, names: list[str]) -> list[str]:
        """Write the loop of a slide; `names` are the factors of the grid, row first."""
        row, column = names
        steps = constants.add("SLIDES", str(self.steps), f"by action: step of ({row}, {column})")
        walls, stops = (
            "{" + ", ".join(map(str, sorted(cells))) + "}" for cells in (self.walls, self.stops)
        )
        if self.walls:
            walls = constants.add("WALLS", walls, "cells that block a slide")
        if self.stops:
            stops = constants.add("STOPS", stops, "cells that end a slide")
        return LOOP.format(
            row=row,
            column=column,
            steps=steps,
            walls=f" or there in {walls}" if self.walls else "",
            stops=STOP.format(stops=stops) if self.stops else "",
            last_row=self.radices[0] - 1,
            last_column=self.radices[1] - 1,
        ).split("\n")


def fit_slide(
    old: np.ndarray, action: np.ndarray, after: np.ndarray, done: np.ndarray, sizes: Sizes
) -> Slide | None:
    """Return slides along the axes of a grid, if they explain most transitions."""
    radices = sizes.radices
    if len(radices) != AXES or np.abs(after - old).max() < AXES:
        return None
    steps = _steps(after - old, action)
    starts, ends = (list(map(tuple, part.tolist())) for part in (old, after))
    stops = {end for end, is_end in zip(ends, done.tolist(), strict=True) if is_end}
    free, ahead = set(starts), set()
    for start, end, number in zip(starts, ends, action.tolist(), strict=True):
        down, right = steps.get(number, (0, 0))
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
        free |= {(start[0] + k * down, start[1] + k * right) for k in range(length + 1)}
        if end not in stops:
            ahead.add((end, (end[0] + down, end[1] + right)))
    inside = {(end, cell) for end, cell in ahead if 0 <= cell[0] < radices[0]}
    inside = {(end, cell) for end, cell in inside if 0 <= cell[1] < radices[1] and cell != end}
    stops |= {end for end, cell in inside if cell in free}
    walls = {cell for _, cell in inside if cell not in free}
    slide = Slide(
        steps, frozenset(walls), frozenset(stops), (radices[0], radices[1]), sizes.actions
    )
    explained = (slide.landing(old, action) == after).all(axis=1)
    return slide if steps and explained.mean() >= LEAST_RIGHT else None


def _steps(changes: np.ndarray, action: np.ndarray) -> dict[int, GridCell]:
    """Return the most common direction of each action that changes anything."""
    steps = {}
    for number in np.unique(action).tolist():
        rows = np.sign(changes[(action == number) & changes.any(axis=1)])
        if len(rows):
            directions, counts = np.unique(rows, axis=0, return_counts=True)
            down, right = directions[counts.argmax()].tolist()
            steps[number] = down, right
    return steps
