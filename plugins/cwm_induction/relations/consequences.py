"""Consequences on boards: lines vanish, things fall, and rings turn."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.expressions import evaluate

FALLS = {"": (0, ""), "down": (-2, "!="), "up": (-2, "=="), "right": (-1, "!="), "left": (-1, "==")}
"""Axis along which things fall, and the comparison with empty cells that sorts them."""

LINES = '''def lines(board, size):
    """Return the mask of cells in a row or column of equal things, `size` or more."""
    marked = np.zeros(board.shape, bool)
    for axis in {axes}:
        cells, mask = np.moveaxis(board, axis, -1), np.moveaxis(marked, axis, -1)
        for first in range(cells.shape[-1] - size + 1):
            part = cells[..., first : first + size]
            equal = (part == part[..., :1]).all(axis=-1) & (part[..., 0] != 0)
            mask[..., first : first + size] |= equal[..., None]
    return marked
'''

FULL = {"full_rows": -1, "full_columns": -2}
"""Axes of events that count full rows and columns."""

SHIFTS = (0, 1, -1, 2, -2, 3, -3)
"""Numbers of places that a ring may turn in one step."""


class StageConsequence(NamedTuple):
    """Cells that become empty (0), how other cells fall, and whether both repeat.

    `full` names the events of `FULL` that clear cells. Otherwise, lines of at least `size` equal
    things along the `axes` vanish, or nothing if `size` is 0.
    """

    full: tuple[str, ...]
    fall: str
    repeats: bool
    size: int = 0
    axes: tuple[int, ...] = ()

    def apply(self, boards: Array) -> tuple[Array, dict[str, Array]]:
        """Return the boards of shape (boards, rows, columns) after it, and counts of events."""
        events = {name: np.zeros(len(boards), np.int64) for name in self.events}
        for number in range(boards[0].size if self.repeats else 1):
            full = {name: (boards != 0).all(axis=FULL[name]) for name in self.full}
            marked = np.zeros(boards.shape, bool)
            for name, mask in full.items():
                events[name] += mask.sum(axis=1)
                marked |= np.expand_dims(mask, FULL[name])
            if self.size:
                marked = self._lines(boards)
            now = marked.sum(axis=(1, 2))
            if number == 0:
                events["vanished"] += now
            elif "later" in events:
                events["later"] += now
            if self.repeats and not now.any():
                break
            after = np.where(marked, 0, boards)
            if self.fall:
                after = evaluate(self._fallen, {"board": after, "np": np})
            boards = np.where((now > 0)[:, None, None], after, boards) if self.repeats else after
        return boards, events

    def _lines(self, boards: Array) -> Array:
        names = {"np": np}
        exec(self.function, names)  # noqa: S102  # the text of this module
        return np.asarray(names["lines"](boards, self.size))  # type: ignore[operator]

    @property
    def _fallen(self) -> str:
        axis, sign = FALLS[self.fall]
        order = f"np.argsort(board {sign} 0, axis={axis}, kind='stable')"
        return f"np.take_along_axis(board, {order}, axis={axis})"

    @property
    def events(self) -> list[str]:
        """Names of the variables that count events."""
        return [*self.full, "vanished", *["later"] * self.repeats]

    @property
    def function(self) -> str:
        """Return the function of the program that finds lines, or ""."""
        return LINES.format(axes=self.axes) if self.size else ""

    @property
    def lines(self) -> list[str]:
        """Write the lines of `step`."""
        names = [name.removeprefix("full_") for name in self.full]
        mark = [f"{name} = (board != 0).all(axis={FULL[f'full_{name}']})" for name in names]
        shown = {"rows": "rows[:, None]", "columns": "columns[None]"}
        both = " | ".join(shown[name] for name in names)
        if self.full and len(names) == 1:
            both = f"np.zeros(board.shape, bool) | {both}"
        if self.full or self.size:
            mark.append(f"marked = {both or f'lines(board, {self.size})'}")
        clear = [f"full_{name} += int({name}.sum())" for name in names]
        clear += ["board = np.where(marked, 0, board)"] * bool(mark)
        clear += [f"board = {self._fallen}  # things fall {self.fall}"] * bool(self.fall)
        start = [f"{name} = 0" for name in self.events]
        if not self.repeats:
            return [*start, *mark, *clear, *["vanished += int(marked.sum())"] * bool(mark)]
        count = [
            "if not marked.any():",
            "    break",
            "if vanished == 0:",
            "    vanished = int(marked.sum())",
            "else:",
            "    later += int(marked.sum())",
        ]
        return [*start, "while True:", *(f"    {line}" for line in [*mark, *count, *clear])]


def find_consequence(middle: Array, after: Array) -> StageConsequence | None:
    """Return the consequence that leads from most middle boards to the recorded ones, if any.

    Args:
        middle: Boards that an earlier stage predicts, of shape (boards, rows, columns).
        after: Recorded boards.
    """
    best, most = None, int((middle == after).all(axis=(1, 2)).sum()) + 2
    for one in _candidates(max(middle.shape[1:])):
        right = int((one.apply(middle)[0] == after).all(axis=(1, 2)).sum())
        if right > most:
            best, most = one, right
    return best


def _candidates(length: int) -> Iterator[StageConsequence]:
    for repeats in (False, True):
        for fall in FALLS:
            for full in (("full_rows", "full_columns"), ("full_rows",), ("full_columns",)):
                yield StageConsequence(full, fall, repeats)
            for size in range(2, min(6, length + 1)):
                for axes in ((-1, -2), (-1,), (-2,)):
                    yield StageConsequence((), fall, repeats, size, axes)
    for fall in list(FALLS)[1:]:
        yield StageConsequence((), fall, False)


def turned(boards: Array, shifts: Array) -> Array:
    """Return boards whose rows are rolled by a number of places each."""
    width = boards.shape[2]
    index = (np.arange(width)[None] - shifts[:, None]) % width
    return np.take_along_axis(boards, np.broadcast_to(index[:, None], boards.shape), axis=2)


def mismatches(before: Array, after: Array) -> Array:
    """Return how many cells differ after each of `SHIFTS`, of shape (boards, shifts)."""
    return np.stack(
        [(np.roll(before, shift, axis=2) != after).sum(axis=(1, 2)) for shift in SHIFTS], axis=1
    )


def ring_length(before: Array, after: Array) -> int:
    """Return how many cells of a line turn as a ring, 0 if none do.

    Args:
        before: Lines of shape (rows, cells).
        after: The same lines after a step.
    """
    best, least = 0, 0.25
    changed = (before != after).sum(axis=1) > 1
    if changed.sum() < 20:
        return 0
    for length in range(before.shape[1], max(5, before.shape[1] - 5), -1):
        off = mismatches(before[changed, None, :length], after[changed, None, :length])
        wrong = (off.min(axis=1) / length).mean()
        turning = (off.min(axis=1) < off[:, 0]).mean()
        if turning > 0.5 and wrong < least - 0.01:
            best, least = length, wrong
    return best
