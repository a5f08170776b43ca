"""Times of the rows of a table: timestamps in usual notations, epochs, and plain numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from cwm_formats.cells import MISSING_WORDS, read_column
from cwm_formats.tables import Cells

SECONDS_OF: dict[str, float] = {
    "ms": 1e-3,
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "day": 86_400,
    "days": 86_400,
    "week": 604_800,
    "weeks": 604_800,
}
"""Length of the units that the name of a time column may end with."""

_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y"),
    *("%m-%d-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%b %d %Y", "%b %d, %Y"),
    *("%d-%b-%Y", "%d-%b-%y", "%Y-%m", "%m/%Y", "%b %Y"),
)
_TIMES = (" %H:%M:%S", " %H:%M", "", " %H:%M:%S.%f", " %I:%M:%S %p", " %I:%M %p")
_COMPACT = ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d")

_NAIVE_EPOCH = datetime(1970, 1, 1)  # local times without a zone count as UTC

SAMPLE_CELLS = 50
"""Cells that choose a notation; the chosen one is then tried on all cells."""


@dataclass(frozen=True)
class TableClock:
    """The time of each row.

    Attributes:
        seconds: Seconds, or units of the column if its unit is unknown; NaN for a bad cell.

        unit: The name of the unit, such as "seconds"; empty if unknown.
        scale: Seconds of a unit.
    """

    seconds: np.ndarray

    unit: str
    scale: float = 1.0

    def describe(self, length: float) -> str:
        """Return a length of time in words, such as "5 minutes"."""
        if not self.unit:
            return f"{length:g} {'unit' if length == 1 else 'units'} of time"
        words = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
        unit = next((u for u, n in words.items() if length >= n and length % n == 0), self.unit)
        count = length / words.get(unit, self.scale)
        return f"{count:g} {unit.removesuffix('s') if count == 1 else unit}"


def read_clock(name: str, cells: Cells, *, comma: bool = False) -> TableClock | None:
    """Return the times in a column, None if most cells are no times."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind not in "biuf":
        cells = [str(cell) for cell in cells]
    column = read_column(name, cells, comma=comma)
    if column.kind in ("whole", "real") and not column.unit:
        dates = None if isinstance(cells, np.ndarray) else _compact_dates(cells)
        return _numeric_clock(name, column.values) if dates is None else dates
    if isinstance(cells, np.ndarray) or column.kind == "blank":
        return None
    seconds = _timestamps([cell.strip() for cell in cells])
    present = sum(cell.strip().lower() not in MISSING_WORDS for cell in cells)
    if np.isfinite(seconds).sum() < 0.8 * present:
        return None
    return TableClock(seconds, "seconds")


def _numeric_clock(name: str, values: np.ndarray) -> TableClock:
    """Return numbers as epochs if they are dates from 1985 to 2128, else in the named unit."""
    middle = float(np.nanmedian(values))
    for scale in (1.0, 1e3, 1e6, 1e9):
        if 5e8 <= middle / scale <= 5e9:  # from 1985 to 2128
            return TableClock(values / scale, "seconds")
    words = re.findall(r"[a-z]+", name.lower())
    unit = words[-1] if words and words[-1] in SECONDS_OF else ""
    if not unit:
        return TableClock(values, "")
    scale = float(SECONDS_OF[unit])
    word = {"s": "seconds", "sec": "seconds", "min": "minutes", "h": "hours"}.get(unit, unit)
    word = word if word.endswith("s") else f"{word}s"
    return TableClock(values * scale, word, scale)


def _compact_dates(cells: Sequence[str]) -> TableClock | None:
    """Return dates that are written as numbers: 20240131 or 20240131235900."""
    texts = [cell.strip() for cell in cells]
    sample = [text for text in texts if text][:SAMPLE_CELLS]
    if not all(re.fullmatch(r"(19|20)\d{6}(\d{4}(\d{2})?)?", text) for text in sample):
        return None
    seconds = _timestamps(texts)
    return TableClock(seconds, "seconds") if np.isfinite(seconds).mean() > 0.8 else None


def _timestamps(texts: Sequence[str]) -> np.ndarray:
    """Return seconds since 1970; NaN for texts without a known notation."""
    seconds = np.array([_iso(text) for text in texts])
    while (left := np.flatnonzero(np.isnan(seconds))).size:
        spread = left[np.linspace(0, len(left) - 1, min(len(left), SAMPLE_CELLS)).astype(int)]
        sample = [texts[row] for row in spread.tolist()]
        notations = [date + time for date in _DATES for time in _TIMES] + list(_COMPACT)
        counts = [
            sum(not np.isnan(_parsed(text, notation)) for text in sample) for notation in notations
        ]
        best = max(counts)
        if best == 0:
            break
        fitting = [n for n, count in zip(notations, counts, strict=True) if count == best]
        read = [np.array([_parsed(texts[row], n) for row in left.tolist()]) for n in fitting[:4]]
        chosen = min(read, key=_disorder)
        seconds[left] = chosen
    clock = [re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?", text) for text in texts]
    if np.isnan(seconds).all() and sum(map(bool, clock)) > 0.8 * len(texts):
        hours = [
            int(m[1]) * 3600 + int(m[2]) * 60 + float(m[3] or 0) if m else np.nan for m in clock
        ]
        seconds = np.array(hours)
        known = np.isfinite(seconds)
        # add a day each time that the time falls by more than half a day
        days = np.cumsum(np.append(0, np.diff(seconds[known]) < -43_200))
        seconds[known] += 86_400 * days
    return seconds


def _iso(text: str) -> float:
    """Return the seconds of an ISO timestamp or an epoch, NaN for other texts."""
    if re.fullmatch(r"[12]\d{9}", text):
        return float(text)
    if not re.match(r"\d{4}-?\d{2}-?\d{2}", text) or (text.isdigit() and len(text) != 8):
        return float("nan")
    try:
        return _since_epoch(datetime.fromisoformat(text))
    except ValueError:
        return float("nan")


def _since_epoch(moment: datetime) -> float:
    if moment.tzinfo is not None:
        return moment.astimezone(UTC).timestamp()
    return (moment - _NAIVE_EPOCH).total_seconds()


def _parsed(text: str, notation: str) -> float:
    try:
        moment = datetime.strptime(" ".join(text.replace("T", " ").split()), notation)
    except ValueError:
        return float("nan")
    return _since_epoch(moment)


def _disorder(seconds: np.ndarray) -> tuple[int, float]:
    """Return how badly times fit: the cells without a time, and the length of all steps."""
    known = seconds[np.isfinite(seconds)]
    return len(seconds) - len(known), float(np.abs(np.diff(known)).sum())


def usual_step(steps: np.ndarray) -> float:
    """Return the usual length of a positive step, 0 if there is none."""
    positive = steps[steps > 0]
    return float(np.median(positive)) if positive.size else 0.0


def is_regular(steps: np.ndarray, usual: float) -> bool:
    """Return whether most steps have the usual length, within a tenth."""
    return bool(steps.size) and float((np.abs(steps - usual) <= 0.1 * usual).mean()) >= 0.7


def are_gaps(steps: np.ndarray, usual: float) -> np.ndarray:
    """Return which steps are longer or shorter than one step can be.

    Steps of a regular clock may differ by half of the usual step; other steps may be up to five
    times as long.
    """
    if is_regular(steps, usual):
        gaps: np.ndarray = ~(np.abs(steps - usual) <= 0.5 * usual)
    else:
        gaps = ~((steps > 0) & (steps <= 5 * usual))
    return gaps


def out_of_order(times: np.ndarray) -> np.ndarray:
    """Return which times are not in the longest non-decreasing part of a sequence.

    The algorithm is patience sorting (Fredman 1975), in O(n log n).
    """
    tails: list[float] = []
    last_rows: list[int] = []
    previous = np.full(len(times), -1)
    for row, time in enumerate(times.tolist()):
        place = bisect_right(tails, time)
        if place == len(tails):
            tails.append(time)
            last_rows.append(row)
        else:
            tails[place], last_rows[place] = time, row
        previous[row] = last_rows[place - 1] if place else -1
    outside = np.ones(len(times), np.bool_)
    row = last_rows[-1] if last_rows else -1
    while row >= 0:
        outside[row] = False
        row = int(previous[row])
    return outside
