"""Follow work on many problems: a line per problem in flight, or a line when one is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cwm_apps.progress import OVER, SOLVED, CodingProgress, ProblemCounts, ProblemState
from cwm_cli.text import share
from cwm_cli.views.lines import Lines, Pulse
from cwm_cli.views.terminal import ECHO, Pane, bar, duration, printable, printed_above

GAP = "  "
BETWEEN = " \N{MIDDLE DOT} "
MOST_NAMED = 3
"""How many problems in flight are named in a line."""


class CodingView(Lines):
    """Shows work on problems: a picture on a terminal, plain lines elsewhere.

    The last picture stays if something ends the work early, and if it is not to
    be erased for a report to take its place.
    """

    def __init__(self, console: Console, *, erase: bool) -> None:
        self._console = console
        self._erase = erase
        self._showing = ExitStack()
        self._display: Live | None = None
        self._pulse: Pulse | None = None

    def begins(self, work: object) -> None:
        """Show how far the problems are."""
        assert isinstance(work, CodingProgress)
        self._progress = work
        if self._console.is_interactive and not self._console.options.ascii_only:
            pane = CodingPicture(work, self._console).pane
            self._display = self._showing.enter_context(pane.display())
            self._showing.enter_context(printed_above(self._console))
            self._display.refresh()
        else:
            self._pulse = Pulse(self._tell)

    def _tell(self) -> None:
        """Print what is in flight."""
        counts, working = self._progress.counts(), self._progress.working()
        names = [_name(problem) for problem in working[:MOST_NAMED]]
        rest = [f"and {len(working) - MOST_NAMED} more"] if len(working) > MOST_NAMED else []
        words = f"[{counts.over}/{counts.problems}] at work on {', '.join([*names, *rest])}"
        self._console.print(Text(words), soft_wrap=True)

    def advanced(self, event: object) -> None:
        """Print how a problem ended where there is no picture, which draws itself."""
        assert isinstance(event, ProblemState)
        if self._pulse and event.is_over:
            self._pulse.heard()
        if event.is_over and self._display is None:
            counts = self._progress.counts()
            words = f"[{counts.over}/{counts.problems}] {_name(event)}: {_ending(event)}"
            self._console.print(Text(words), soft_wrap=True)

    def ends(self) -> None:
        """Leave the last picture, unless all problems are over."""
        if self._pulse:
            self._pulse.stop()
        counts = self._progress.counts()
        if self._display:
            self._display.transient = self._erase and counts.over == counts.problems
        self._showing.close()


class CodingPicture:
    """Draws a line per problem in flight below a title, what all came to, and a bar.

    What is drawn is asked for at every refresh, so that nothing has to be told.
    """

    def __init__(self, progress: CodingProgress, console: Console) -> None:
        self.pane = Pane(self.lines, console, margin=ECHO)
        self.started = time.monotonic()
        self._progress = progress

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Put all into words."""
        working, counts = self._progress.working(), self._progress.counts()
        room = max(1, height - 3)
        shown = working if len(working) <= room else working[: room - 1]
        lines = [_line(problem) for problem in shown]
        if hidden := len(working) - len(shown):
            lines.append(Text(f"{hidden:,} more in flight", "dim"))
        title = Text(printable(self._progress.title), "bold")
        facts = Text(BETWEEN.join(_facts(working, counts)))
        return [title, *lines, facts, self._bar(counts, width)]

    def _bar(self, counts: ProblemCounts, width: int) -> Text:
        """Draw how many problems are over, and how long the others may take."""
        spent = time.monotonic() - self.started
        words = [f"{counts.over}/{counts.problems}", duration(spent)]
        if made := counts.over - counts.instant:
            left = spent / made * (counts.problems - counts.over)
            words.append(f"{duration(left)} left")
        return bar(counts.over, counts.problems, " " + BETWEEN.join(words), width)


def _line(problem: ProblemState) -> Text:
    """Say how far a problem is; what matters least is cut off first."""
    best = "" if problem.best is None else share(problem.best, 2)
    spent = f"{problem.completions}/{problem.budget}"
    line = Text(f"{problem.id:04}{GAP}", "dim").append(f"{spent:>6}{GAP}{best:>4}{GAP}", "none")
    line.append(f"{printable(problem.state, 30):<9}{GAP}", "bold")
    return line.append(printable(problem.difficulty, 30))


def _facts(working: Sequence[ProblemState], counts: ProblemCounts) -> Iterator[str]:
    """Name what the problems came to and what was spent."""
    yield f"{counts.ended[SOLVED]:,} solved"
    yield f"{len(working):,} in flight"
    costs = [counts.cost, *(problem.cost for problem in working)]
    known = sum(cost for cost in costs if cost is not None)
    if None in costs:
        yield "cost unknown"
    elif known:
        yield f"${known:.2f}"
    for state in OVER:
        if state != SOLVED and (count := counts.ended[state]):
            yield f"{count:,} {state}"


def _name(problem: ProblemState) -> str:
    """Name a problem."""
    return f"{problem.id:04} {printable(problem.difficulty, 30)}"


def _ending(problem: ProblemState) -> str:
    """Say how a problem ended."""
    if problem.reason:
        return f"{problem.state} ({printable(problem.reason)})"
    plural = "" if problem.completions == 1 else "s"
    words = [f"{problem.state} after {problem.completions} {problem.unit}{plural}"]
    if problem.best is not None and problem.best < 1:
        words.append(f"best {share(problem.best, 2)}")
    if problem.cost is None:
        words.append("cost unknown")
    elif problem.cost:
        words.append(f"${problem.cost:.2f}")
    return ", ".join(words)
