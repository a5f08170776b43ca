"""Consequences on boards: lines vanish and things fall, perhaps again and again."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array

FALLS = {
    "": (0, False),
    "down": (-2, False),
    "up": (-2, True),
    "right": (-1, False),
    "left": (-1, True),
}
"""Axis along which things fall, and whether they fall towards its start."""

LINES = '''def lines(board, size):
    """Return the mask of cells in a row or column of equal things, `size` or more."""
    marked = np.zeros(board.shape, bool)
    for axis in {axes}:
        cells, mask = np.moveaxis(board, axis, -1), np.moveaxis(marked, axis, -1)
        for first in range(cells.shape[-1] - size + 1):
            part = cells[..., first : first + size]
            equal = (part == part[..., :1]).all(axis=-1) & (part[..., 0] != {empty})
            mask[..., first : first + size] |= equal[..., None]
    return marked
'''


class StageConsequence(NamedTuple):
    """Cells that become `empty`, how other cells fall, and whether both repeat.

    `clear` is "rows" or "columns" (all cells full), "both", "lines" (at least `size` equal things
    along the `axes`), or "" for none.
    """

    clear: str
    fall: str
    repeats: bool
    empty: int
    size: int = 0
    axes: tuple[int, ...] = ()

    def apply(self, boards: Array) -> tuple[Array, dict[str, Array]]:
        """Return the boards of shape (boards, rows, columns) after it, and counts of events."""
        count = len(boards)
        events = {name: np.zeros(count, np.int64) for name in self.events}
        for number in range(boards.shape[1] * boards.shape[2] if self.repeats else 1):
            marked = np.zeros(boards.shape, bool)
            for name, mask in self._marks(boards):
                marked |= mask
                if name in events:
                    axis = 1 if name == "full_columns" else 2
                    events[name] += mask.all(axis=axis).sum(axis=1)
            now = marked.sum(axis=(1, 2))
            if number == 0:
                events["vanished"] += now
            elif "later" in events:
                events["later"] += now
            if self.repeats and not now.any():
                break
            after = fallen(np.where(marked, self.empty, boards), self.fall, self.empty)
            going_on = (now > 0)[:, None, None] if self.repeats else True
            boards = np.where(going_on, after, boards)
        return boards, events

    @property
    def events(self) -> list[str]:
        """Names of the variables that count events."""
        names = ["full_rows"] * (self.clear in ("rows", "both"))
        names += ["full_columns"] * (self.clear in ("columns", "both"))
        return [*names, "vanished", *["later"] * self.repeats]

    def _marks(self, boards: Array) -> Iterator[tuple[str, Array]]:
        full = boards != self.empty
        if self.clear in ("rows", "both"):
            yield "full_rows", full.all(axis=2, keepdims=True) & full
        if self.clear in ("columns", "both"):
            yield "full_columns", full.all(axis=1, keepdims=True) & full
        if self.clear == "lines":
            yield "", _lines(boards, self.size, self.axes, self.empty)

    @property
    def function(self) -> str:
        """Return the function of the program that finds lines, or ""."""
        return (
            LINES.format(axes=f"({', '.join(map(str, self.axes))},)", empty=self.empty)
            if self.clear == "lines"
            else ""
        )

    @property
    def lines(self) -> list[str]:
        """Write the lines of `step`."""
        mark = {
            "rows": ["full = board != {e}", "marked = full.all(axis=1, keepdims=True) & full"],
            "columns": ["full = board != {e}", "marked = full.all(axis=0, keepdims=True) & full"],
            "both": [
                "rows, columns = (board != {e}).all(axis=1), (board != {e}).all(axis=0)",
                "marked = rows[:, None] | columns[None]",
            ],
            "lines": [f"marked = lines(board, {self.size})"],
            "": ["marked = np.zeros(board.shape, bool)"],
        }[self.clear]
        lines = [line.format(e=self.empty) for line in mark]
        counts = {
            "rows": ["full_rows += int(marked.all(axis=1).sum())"],
            "columns": ["full_columns += int(marked.all(axis=0).sum())"],
            "both": ["full_rows += int(rows.sum())", "full_columns += int(columns.sum())"],
        }.get(self.clear, [])
        lines += counts
        lines += [f"board = np.where(marked, {self.empty}, board)"] * bool(self.clear)
        lines += self._fall_lines()
        start = [f"{name} = 0" for name in self.events]
        if not self.repeats:
            return [*start, *lines, "vanished += int(marked.sum())"]
        body = [
            *lines[: len(mark)],
            "if not marked.any():",
            "    break",
            "if vanished == 0:",
            "    vanished = int(marked.sum())",
            "else:",
            "    later += int(marked.sum())",
            *lines[len(mark) :],
        ]
        return [*start, "while True:", *(f"    {line}" for line in body)]

    def _fall_lines(self) -> list[str]:
        if not self.fall:
            return []
        axis, backwards = FALLS[self.fall]
        sign = "==" if backwards else "!="
        return [
            f"order = np.argsort(board {sign} {self.empty}, axis={axis + 2}, kind='stable')",
            f"board = np.take_along_axis(board, order, axis={axis + 2})  # things fall {self.fall}",
        ]


def fallen(boards: Array, fall: str, empty: int) -> Array:
    """Return boards after things have fallen."""
    if not fall:
        return boards
    axis, backwards = FALLS[fall]
    order = np.argsort(
        (boards == empty) if backwards else (boards != empty), axis=axis, kind="stable"
    )
    return np.take_along_axis(boards, order, axis=axis)


def _lines(boards: Array, size: int, axes: tuple[int, ...], empty: int) -> Array:
    marked = np.zeros(boards.shape, bool)
    for axis in axes:
        cells, mask = np.moveaxis(boards, axis, -1), np.moveaxis(marked, axis, -1)
        for first in range(cells.shape[-1] - size + 1):
            part = cells[..., first : first + size]
            equal = (part == part[..., :1]).all(axis=-1) & (part[..., 0] != empty)
            mask[..., first : first + size] |= equal[..., None]
    return marked


def find_consequence(middle: Array, after: Array, empty: int) -> StageConsequence | None:
    """Return the consequence that leads from most middle boards to the recorded ones, if any.

    Args:
        middle: Boards that an earlier stage predicts, of shape (boards, rows, columns).
        after: Recorded boards.
        empty: The value of empty cells.
    """
    before = int((middle == after).all(axis=(1, 2)).sum())
    best, most = None, before + 2
    for one in _candidates(middle.shape[1:], empty):
        right = int((one.apply(middle)[0] == after).all(axis=(1, 2)).sum())
        if right > most:
            best, most = one, right
    return best


def _candidates(shape: tuple[int, ...], empty: int) -> Iterator[StageConsequence]:
    for repeats in (False, True):
        for fall in FALLS:
            for clear in ("both", "rows", "columns"):
                yield StageConsequence(clear, fall, repeats, empty)
            for size in range(2, min(6, max(shape) + 1)):
                for axes in ((-1, -2), (-1,), (-2,)):
                    yield StageConsequence("lines", fall, repeats, empty, size, axes)
    for fall in list(FALLS)[1:]:
        yield StageConsequence("", fall, False, empty)
