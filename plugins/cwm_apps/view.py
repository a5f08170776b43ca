"""Follow `cwm apps`: a line per problem in progress, or a line per finished problem."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cwm_apps.progress import FINAL_STATES, SOLVED, CodingProgress, ProblemCounts, ProblemState
from cwm_cli.text import share
from cwm_cli.views.lines import Lines, Pulse
from cwm_cli.views.terminal import ECHO, Pane, bar, duration, printable

GAP = "  "
BETWEEN = " \N{MIDDLE DOT} "
MAX_NAMED = 3
"""Maximum number of problems named in a progress line."""


class CodingView(Lines):
    """Progress of coding problems: a live picture on a terminal, else plain lines.

    The last picture stays if the work ends early, or if no report replaces it.
    """

    def __init__(self, console: Console, *, erase: bool) -> None:
        self._console = console
        self._erase = erase
        self._showing = ExitStack()
        self._display: Live | None = None
        self._pulse: Pulse | None = None

    def begins(self, work: object) -> None:
        """Open the live picture, or start to report progress."""
        assert isinstance(work, CodingProgress)
        self._progress = work
        if self._console.is_interactive and not self._console.options.ascii_only:
            pane = CodingPicture(work, self._console).pane
            self._display = self._showing.enter_context(pane.shown())
        else:
            self._pulse = Pulse(self._print_progress)

    def _print_progress(self) -> None:
        """Print the problems in progress."""
        counts, working = self._progress.counts(), self._progress.working()
        names = [_name(problem) for problem in working[:MAX_NAMED]]
        rest = [f"and {len(working) - MAX_NAMED} more"] if len(working) > MAX_NAMED else []
        words = f"[{counts.over}/{counts.problems}] at work on {', '.join([*names, *rest])}"
        self._console.print(Text(words), soft_wrap=True)

    def advanced(self, event: object) -> None:
        """Print the end of a problem if there is no live picture."""
        assert isinstance(event, ProblemState)
        if self._pulse and event.is_over:
            self._pulse.heard()
        if event.is_over and self._display is None:
            counts = self._progress.counts()
            words = f"[{counts.over}/{counts.problems}] {_name(event)}: {_ending(event)}"
            self._console.print(Text(words), soft_wrap=True)

    def ends(self) -> None:
        """Close the live picture; erase it if all problems are finished."""
        if self._pulse:
            self._pulse.stop()
        counts = self._progress.counts()
        if self._display:
            self._display.transient = self._erase and counts.over == counts.problems
        self._showing.close()


class CodingPicture:
    """Draws a line per problem in progress, the totals and a progress bar.

    The picture reads the state at each refresh.
    """

    def __init__(self, progress: CodingProgress, console: Console) -> None:
        self.pane = Pane(self.lines, console, margin=ECHO)
        self.started = time.monotonic()
        self._progress = progress

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines."""
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
        """Draw the bar of finished problems with the estimated time left."""
        spent = time.monotonic() - self.started
        words = [f"{counts.over}/{counts.problems}", duration(spent)]
        if made := counts.over - counts.instant:
            left = spent / made * (counts.problems - counts.over)
            words.append(f"{duration(left)} left")
        return bar(counts.over, counts.problems, " " + BETWEEN.join(words), width)


def _line(problem: ProblemState) -> Text:
    """Return the line of a problem; a narrow terminal cuts its end."""
    best = "" if problem.best is None else share(problem.best, 2)
    spent = f"{problem.completions}/{problem.budget}"
    line = Text(f"{problem.id:04}{GAP}", "dim").append(f"{spent:>6}{GAP}{best:>4}{GAP}", "none")
    line.append(f"{printable(problem.state, 30):<9}{GAP}", "bold")
    return line.append(printable(problem.difficulty, 30))


def _facts(working: Sequence[ProblemState], counts: ProblemCounts) -> Iterator[str]:
    """Yield the numbers of problems by result, and the cost."""
    yield f"{counts.ended[SOLVED]:,} solved"
    yield f"{len(working):,} in flight"
    costs = [counts.cost, *(problem.cost for problem in working)]
    known = sum(cost for cost in costs if cost is not None)
    if None in costs:
        yield "cost unknown"
    elif known:
        yield f"${known:.2f}"
    for state in FINAL_STATES:
        if state != SOLVED and (count := counts.ended[state]):
            yield f"{count:,} {state}"


def _name(problem: ProblemState) -> str:
    """Return id and difficulty of a problem."""
    return f"{problem.id:04} {printable(problem.difficulty, 30)}"


def _ending(problem: ProblemState) -> str:
    """Return the result of a problem, with completions, score and cost."""
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
