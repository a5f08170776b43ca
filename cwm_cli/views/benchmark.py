"""Follow the jobs of a benchmark: a line per job that changes, or a line when one is over."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rich.console import Console
from rich.text import Text

from cwm_cli.views.pane import ECHO, Pane, bar
from cwm_cli.views.printed import printed_above
from cwm_cli.views.words import duration, printable

if TYPE_CHECKING:
    from cwm_cli.bench.overview import Overview, Standing
    from cwm_cli.bench.running import Event

GAP = "  "


class View(Protocol):
    """Follows a benchmark."""

    def saw(self, event: Event) -> None:
        """Take in that a task was begun or is over."""


class Column(NamedTuple):
    """A column: its head, and whether it is aligned to the right."""

    head: str
    right: bool = False


@contextmanager
def overview(state: Overview, *, title: str, console: Console, erase: bool) -> Iterator[View]:
    """Follow a benchmark: a picture on a terminal, plain lines elsewhere.

    The last picture stays if something ends the benchmark early, and if it is
    not to be erased for a report to take its place.
    """
    if not console.is_interactive or console.options.ascii_only:
        yield Lines(state, console)
        return
    screen = Screen(state, title=title, console=console)
    with screen.pane.display() as display, printed_above(console):
        display.refresh()
        yield screen
        display.transient = erase


class Lines:
    """Prints a line when a job has taken a step: for files and pipes."""

    def __init__(self, state: Overview, console: Console) -> None:
        self._state = state
        self._console = console
        self._started = time.monotonic()
        self._told = {line.trial: line.state for line in state.standings()}
        self._over = self._all = 0

    def saw(self, event: Event) -> None:
        """Print what failed, and the jobs that are over or that a process begins to work on."""
        self._state.saw()
        task = event.task
        if event.reason:
            self._print(printable(f"{task.kind} {task.name} failed: {event.reason}"))
        lines = self._state.standings()
        self._over, self._all = sum(line.is_over for line in lines), len(lines)
        for line in lines:
            changed = self._told.get(line.trial) != line.state
            if changed and (line.is_over or line.trial.name == task.name):
                self._print(self._words(line))
            self._told[line.trial] = line.state

    def _words(self, line: Standing) -> str:
        """Put a job into words."""
        best = "" if line.best is None else f" {line.best:.3f}"
        words = f"[{self._over}/{self._all}] {printable(line.trial.name)}: {line.state}{best}"
        budget = self._state.benchmark.header.terms.budget
        spent = f"{line.completions}/{budget}" if line.completions else ""
        parts = [words, spent, duration(time.monotonic() - self._started)]
        return GAP.join(part for part in parts if part)

    def _print(self, words: str) -> None:
        self._console.print(Text(words), soft_wrap=True)


class Screen:
    """Draws a line per job below a title, and a bar; what does not fit is counted.

    rich's thread draws while another takes in what happens, hence the lock.
    """

    def __init__(self, state: Overview, *, title: str, console: Console) -> None:
        self.pane = Pane(self._lines, console, margin=ECHO)
        self._state = state
        self._title = printable(title)
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._over_before = sum(line.is_over for line in state.standings())

    def saw(self, event: Event) -> None:
        """Take in that a task was begun or is over."""
        with self._lock:
            self._state.saw()

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Put all into words."""
        with self._lock:
            standings = self._state.standings()
        budget = self._state.benchmark.header.terms.budget
        shown, hidden = chosen(standings, max(1, height - 3))
        table = _table(shown, standings, budget)
        rest = [Text(_counts("not shown", hidden), "dim")] if hidden else []
        return [Text(self._title, "bold"), *table, *rest, self._progress(standings, width)]

    def _progress(self, standings: Sequence[Standing], width: int) -> Text:
        """Draw how many jobs are over, and how long the others may take."""
        over = sum(line.is_over for line in standings)
        spent = time.monotonic() - self._started
        words = [f"{over}/{len(standings)} jobs", duration(spent)]
        if made := over - self._over_before:
            words.append(f"{duration(spent / made * (len(standings) - over))} left")
        costs = [line.cost for line in standings]
        if any(costs):
            words.append(f"${sum(cost or 0.0 for cost in costs):.2f}")
        return bar(over, len(standings), " " + " · ".join(words), width)


def chosen(standings: Sequence[Standing], room: int) -> tuple[list[Standing], list[Standing]]:
    """Choose the jobs that are shown, in their order, and return the others.

    Those at work come first, then those that failed, those to come, and what
    was finished last.
    """
    if len(standings) <= room:
        return list(standings), []
    ranked = sorted(range(len(standings)), key=lambda place: _rank(standings[place], place))
    visible = set(ranked[: max(1, room - 1)])
    places = range(len(standings))
    shown = [standings[place] for place in places if place in visible]
    return shown, [standings[place] for place in places if place not in visible]


def _rank(line: Standing, place: int) -> tuple[int, int]:
    """Order jobs by how much there is to see of them."""
    if line.is_working:
        return 0, place
    if line.is_finished:
        return 3, -place
    return (1 if line.is_over else 2), place


def _counts(words: str, standings: Sequence[Standing]) -> str:
    """Say how many jobs are in which state."""
    counts = Counter(line.state for line in standings)
    return f"{words}: {', '.join(f'{count} {state}' for state, count in counts.items())}"


def _table(shown: Sequence[Standing], every: Sequence[Standing], budget: int) -> list[Text]:
    """Write jobs as lines under heads; what all have in common has no column."""
    columns = [Column("environment")]
    varying = [
        name
        for name in ("strategy", "model", "seed")
        if len({getattr(line.trial, name) for line in every}) > 1
    ]
    columns += [Column(name) for name in varying]
    columns += [
        Column("state"),
        *(Column(head, True) for head in ("best", "spent", "cost", "left")),
    ]
    cells = [_cells(line, varying, budget) for line in shown]
    widths = [
        max(len(text) for text in (column.head, *(line[place] for line in cells)))
        for place, column in enumerate(columns)
    ]
    heads = _aligned([column.head for column in columns], columns, widths)
    lines = [Text(heads, "dim")]
    for line, words in zip(shown, cells, strict=True):
        text = Text(_aligned(words, columns, widths), _style(line))
        if line.reason:
            text.append(GAP + printable(line.reason))
        lines.append(text)
    return lines


def _style(line: Standing) -> str:
    """Return how a job is drawn."""
    if line.is_working:
        return "bold"
    if not line.is_over:
        return ""
    return "green" if line.is_finished else "red"


def _cells(line: Standing, varying: Sequence[str], budget: int) -> list[str]:
    """Write what is known of a job."""
    trial = [printable(str(getattr(line.trial, name))) for name in ("environment", *varying)]
    best = "" if line.best is None else f"{line.best:.3f}"
    spent = f"{line.completions}/{budget}" if line.completions or line.is_working else ""
    cost = "?" if line.cost is None else f"${line.cost:.2f}" if line.cost else ""
    left = "" if line.left_seconds is None else duration(line.left_seconds)
    return [*trial, line.state, best, spent, cost, left]


def _aligned(words: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Align the cells of a line."""
    cells = (
        word.rjust(width) if column.right else word.ljust(width)
        for word, column, width in zip(words, columns, widths, strict=True)
    )
    return GAP.join(cells).rstrip()
