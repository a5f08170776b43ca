"""Follow `cwm apps`: a line per problem in progress, or a line per finished problem."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from cwm_apps.progress import FINAL_STATES, SOLVED, CodingProgress, ProblemCounts, ProblemState
from cwm_cli.text import share
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.terminal import bar, duration, printable

GAP = "  "
BETWEEN = " \N{MIDDLE DOT} "


def coding_view(console: Console, *, erase: bool) -> CodingView:
    """Return the view: a live picture on a terminal, else a line per finished problem.

    With `erase` the picture is removed when all problems are finished.
    """
    if can_draw(console):
        return CodingPicture(console, erase=erase)
    return CodingLines(console)


class CodingView(ProgressView):
    """The progress of coding problems."""

    def begins(self, work: object) -> None:
        """Start with the problems of a run."""
        assert isinstance(work, CodingProgress)
        self.progress = work
        self.start_clock()


class CodingLines(PrintedProgress, CodingView):
    """Prints a line per finished problem."""

    def advanced(self, event: object) -> None:
        """Print the end of a problem."""
        assert isinstance(event, ProblemState)
        if event.is_over:
            self.print_line(f"{self._count()} {_name(event)}: {_ending(event)}")

    def print_status(self) -> None:
        """Print the problems in progress."""
        working = self.progress.working()
        max_named = 3  # maximum number of problems named in a progress line
        names = [_name(problem) for problem in working[:max_named]]
        rest = [f"and {len(working) - max_named} more"] if len(working) > max_named else []
        self.print_line(f"{self._count()} at work on {', '.join([*names, *rest])}")

    def _count(self) -> str:
        counts = self.progress.counts()
        return f"[{counts.over}/{counts.problems}]"


class CodingPicture(DrawnProgress, CodingView):
    """Draws a line per problem in progress, the totals and a progress bar.

    The last picture stays if the work ends early, or if no report replaces it.
    """

    def __init__(self, console: Console, *, erase: bool = False) -> None:
        super().__init__(console)
        self._erase = erase

    def ends(self) -> None:
        """Close the picture; erase it if all problems are finished."""
        counts = self.progress.counts()
        if self.display:
            self.display.transient = self._erase and counts.over == counts.problems
        super().ends()

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines."""
        working, counts = self.progress.working(), self.progress.counts()
        room = max(1, height - 3)
        shown = working if len(working) <= room else working[: room - 1]
        lines = [_line(problem) for problem in shown]
        if hidden := len(working) - len(shown):
            lines.append(Text(f"{hidden:,} more in flight", "dim"))
        title = Text(printable(self.progress.title), "bold")
        facts = Text(BETWEEN.join(_facts(working, counts)))
        return [title, *lines, facts, self._bar(counts, width)]

    def _bar(self, counts: ProblemCounts, width: int) -> Text:
        """Draw the bar of finished problems with the estimated time left."""
        spent = time.monotonic() - self.began
        words = [f"{counts.over}/{counts.problems}", self.elapsed]
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
