"""Follow a run over many problems: a line per problem in flight, or a line when one is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.text import Text

from cwm_cli.views.pane import ECHO, Pane, bar
from cwm_cli.views.printed import printed_above
from cwm_cli.views.words import duration, printable

if TYPE_CHECKING:
    from cwm_apps.overview import Counts, Progress, Standing

GAP = "  "
BETWEEN = " \N{MIDDLE DOT} "


class View(Protocol):
    """Follows a run."""

    def saw(self, event: Standing) -> None:
        """Take in how far a problem is, after the progress has."""


@contextmanager
def overview(state: Progress, *, title: str, console: Console, erase: bool) -> Iterator[View]:
    """Follow a run: a picture on a terminal, plain lines elsewhere.

    The last picture stays if something ends the run early, and if it is not to
    be erased for a report to take its place.
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
    """Prints a line when a problem is over: for files and pipes."""

    def __init__(self, state: Progress, console: Console) -> None:
        self._state = state
        self._console = console

    def saw(self, event: Standing) -> None:
        """Print how a problem ended."""
        if event.is_over:
            counts = self._state.counts()
            words = f"[{counts.over}/{counts.problems}] {_name(event)}: {_ending(event)}"
            self._console.print(Text(words), soft_wrap=True)


class Screen:
    """Draws a line per problem in flight below a title, what all came to, and a bar.

    What is drawn is asked for at every refresh, so that nothing has to be told.
    """

    def __init__(self, state: Progress, *, title: str, console: Console) -> None:
        self.pane = Pane(self._lines, console, margin=ECHO)
        self._state = state
        self._title = printable(title)
        self._started = time.monotonic()

    def saw(self, event: Standing) -> None:
        """Leave it to the next refresh."""

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Put all into words."""
        working, counts = self._state.working(), self._state.counts()
        facts = Text(BETWEEN.join(_facts(working, counts)))
        lines = _working_lines(working, max(1, height - 3))
        return [Text(self._title, "bold"), *lines, facts, self._progress(counts, width)]

    def _progress(self, counts: Counts, width: int) -> Text:
        """Draw how many problems are over, and how long the others may take."""
        spent = time.monotonic() - self._started
        words = [f"{counts.over}/{counts.problems}", duration(spent)]
        if made := counts.over - counts.instant:
            left = spent / made * (counts.problems - counts.over)
            words.append(f"{duration(left)} left")
        return bar(counts.over, counts.problems, " " + BETWEEN.join(words), width)


def _working_lines(working: Sequence[Standing], room: int) -> list[Text]:
    """Write a line per problem, and count those for which there is no room."""
    shown = working if len(working) <= room else working[: room - 1]
    lines = [_line(standing) for standing in shown]
    if hidden := len(working) - len(shown):
        lines.append(Text(f"{hidden:,} more in flight", "dim"))
    return lines


def _line(standing: Standing) -> Text:
    """Say how far a problem is; what matters least is cut off first."""
    best = "" if standing.best is None else f"{standing.best:.2f}"
    spent = f"{standing.completions}/{standing.budget}"
    line = Text(f"{standing.id:04}{GAP}", "dim").append(f"{spent:>6}{GAP}{best:>4}{GAP}", "none")
    line.append(f"{printable(standing.state, 30):<9}{GAP}", "bold")
    return line.append(printable(standing.difficulty, 30))


def _facts(working: Sequence[Standing], counts: Counts) -> Iterator[str]:
    """Name what the problems came to and what was spent."""
    yield f"{counts.solved:,} solved"
    yield f"{len(working):,} in flight"
    costs = [counts.cost, *(standing.cost for standing in working)]
    known = sum(cost for cost in costs if cost is not None)
    if None in costs:
        yield "cost unknown"
    elif known:
        yield f"${known:.2f}"
    for state in ("unsolved", "skipped", "failed"):
        if count := getattr(counts, state):
            yield f"{count:,} {state}"


def _name(standing: Standing) -> str:
    """Name a problem."""
    return f"{standing.id:04} {printable(standing.difficulty, 30)}"


def _ending(standing: Standing) -> str:
    """Say how a problem ended."""
    if standing.reason:
        return f"{standing.state} ({printable(standing.reason)})"
    plural = "" if standing.completions == 1 else "s"
    words = [f"{standing.state} after {standing.completions} {standing.unit}{plural}"]
    if standing.best is not None and standing.best < 1:
        words.append(f"best {standing.best:.2f}")
    if standing.cost is None:
        words.append("cost unknown")
    elif standing.cost:
        words.append(f"${standing.cost:.2f}")
    return ", ".join(words)
