"""Follow the jobs of a benchmark: a live table, or a line per finished job."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from cwm_benchmark.benchmarking import ENVIRONMENT_TASKS, BenchmarkWork, TaskEvent
from cwm_benchmark.configuration import BenchmarkConfig, BenchmarkTask
from cwm_benchmark.folder import AUTOMATIC
from cwm_benchmark.standings import FAILED, FINISHED, StandingCounts, TrialStanding
from cwm_cli.text import money, share
from cwm_cli.views.lines import progress_console
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.terminal import bar, duration, printable

GAP = "  "
BETWEEN = " · "


def benchmark_view(*, json: bool = False, console: Console | None = None) -> "BenchmarkView":
    """Return the view: a live table on a terminal, else a line per event of a job.

    The table is removed when all jobs have ended, if a report replaces it.
    """
    console = console or progress_console()
    if can_draw(console):
        return BenchmarkScreen(console, erase=json or sys.stdout.isatty())
    return BenchmarkLines(console)


class BenchmarkView(ProgressView):
    """Progress of `cwm benchmark`."""

    def begins(self, work: object) -> None:
        """Start with the jobs of earlier sessions."""
        assert isinstance(work, BenchmarkWork)
        self.work = work
        self.start_clock(work.run.elapsed)


class BenchmarkLines(PrintedProgress, BenchmarkView):
    """Prints a line per event of a job: for files and pipes."""

    def advanced(self, event: object) -> None:
        """Print failures, finished jobs, and jobs that a process starts."""
        assert isinstance(event, TaskEvent)
        task = event.task
        if event.is_again:
            reason = event.reason or ""
            self.print_line(printable(f"{task.kind} {task.name} will start again later: {reason}"))
            return
        if event.reason:
            self.print_line(printable(f"{task.kind} {task.name} failed: {event.reason}"))
        counts = self.work.counts()
        if task.kind in ENVIRONMENT_TASKS and not event.reason:
            words = f"{_place(counts)} {environment_task_words(task)}"
            self.print_line(f"{words}{': done' * event.over}", self.elapsed)
        for line in event.changed:
            if line.is_over or line.trial.name == task.name:
                self._print_job(line, counts)

    def print_status(self) -> None:
        """Print the running jobs, the totals and the estimated time left."""
        counts = self.work.counts()
        for line in self.work.working():
            self._print_job(line, counts)
        for environment_task in self.work.environment_tasks():
            words = f"{_place(counts)} {environment_task_words(environment_task.task)}"
            self.print_line(f"{words}, for {duration(environment_task.seconds)}", self.elapsed)
        facts = BETWEEN.join([*_facts_of(counts, self.work), *_left_words(self.work)])
        self.print_line(f"{_place(counts)} {facts}")

    def _print_job(self, line: TrialStanding, counts: StandingCounts) -> None:
        """Print the line of a job."""
        best = "" if line.best is None else f" {share(line.best)}"
        budget = self.work.run.header.terms.budget
        self.print_line(
            f"{_place(counts)} {printable(line.trial.name)}: {line.state}{best}",
            f"{line.completions}/{budget}" if line.completions else "",
            f"on {printable(line.place)}" if line.place else "",
            self.elapsed,
        )


class BenchmarkScreen(DrawnProgress, BenchmarkView):
    """Draws a line per job, the totals and a progress bar.

    If there are more jobs than lines, running and failed jobs are shown. The time to draw
    depends on the visible jobs only. The last picture stays if the benchmark ends early.
    """

    def __init__(self, console: Console, *, erase: bool) -> None:
        super().__init__(console)
        self._erase = erase

    def begins(self, work: object) -> None:
        """Open the live table."""
        assert isinstance(work, BenchmarkWork)
        self._started, self._over_before = time.monotonic(), work.counts().over
        super().begins(work)

    def ends(self) -> None:
        """Close the live table."""
        if self.display:
            self.display.transient = self._erase and sys.exc_info()[0] is None
        super().ends()

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines."""
        counts, environment_tasks = self.work.counts(), self.work.environment_tasks()
        shown = self.work.shown(max(1, height - 4 - len(environment_tasks)))
        run = self.work.run
        table = _table(shown, run.config, run.header.terms.budget)
        environment_lines = [
            Text(f"also running: {environment_task_words(task)}, for {duration(seconds)}", "bold")
            for task, seconds in environment_tasks
        ]
        style = "bold yellow" if self.work.is_stopping else ""
        facts = Text(BETWEEN.join(_facts_of(counts, self.work)), style)
        bar_line = self._bar(counts, width, is_crowded=len(shown) < counts.jobs)
        title = printable(f"cwm benchmark · {run.folder.name}")
        return [Text(title, "bold"), *table, *environment_lines, facts, bar_line]

    def _bar(self, counts: StandingCounts, width: int, *, is_crowded: bool) -> Text:
        """Draw the bar of finished jobs, with the rate and the estimated time left."""
        made, spent = counts.over - self._over_before, time.monotonic() - self._started
        words = [f"{counts.over:,}/{counts.jobs:,} jobs", self.elapsed]
        words += _left_words(self.work)
        if made and is_crowded:
            words.append(f"{60 * made / spent:,.2g}/min")
        return bar(counts.over, counts.jobs, " " + BETWEEN.join(words), width)


def _place(counts: StandingCounts) -> str:
    """Return the number of finished jobs and of all jobs, such as "[3/8]"."""
    return f"[{counts.over}/{counts.jobs}]"


def _left_words(work: BenchmarkWork) -> Iterator[str]:
    """Yield the estimated time left, or the number of tasks left."""
    counts, others = work.counts(), len(work.environment_tasks()) + work.environment_tasks_left
    if counts.over == counts.jobs and others:
        yield f"environment tasks left: {others}"
    elif work.is_stopping or counts.over == counts.jobs:
        return
    elif (seconds := work.left_seconds()) is not None:
        yield f"{duration(seconds)} left"


def _facts_of(counts: StandingCounts, work: BenchmarkWork) -> Iterator[str]:
    """Yield the number of jobs by state, the cost and its limit, and reused answers."""
    if work.is_stopping:
        yield "stopping"
    last = (FAILED, FINISHED)
    for state in [*(each for each in counts.states if each not in last), *last]:
        if count := counts.states.get(state):
            yield f"{count:,} {state}"
    limit = work.run.header.terms.max_cost
    if counts.has_unknown_cost:
        yield "cost unknown"
    elif counts.cost or limit is not None:
        yield money(counts.cost) + ("" if limit is None else f" of {money(limit)}")
    if counts.reused:
        yield f"{counts.reused:,} answers reused"


def environment_task_words(task: BenchmarkTask) -> str:
    """Describe a task that several jobs share."""
    planner = f" with {task.planner}" if task.planner not in ("", AUTOMATIC) else ""
    return printable(ENVIRONMENT_TASKS[task.kind].format(task.name) + planner)


class _Column(NamedTuple):
    """A column: its head, its cells, and whether it is aligned to the right."""

    head: str
    cells: list[str]
    right: bool = False

    def aligned(self) -> list[str]:
        """Return head and cells of one width."""
        width = max(map(len, (self.head, *self.cells)))
        lines = (self.head, *self.cells)
        return [line.rjust(width) if self.right else line.ljust(width) for line in lines]


def _table(shown: Sequence[TrialStanding], config: BenchmarkConfig, budget: int) -> list[Text]:
    """Return the table of jobs, without columns that are equal for all jobs."""
    several = {
        "strategy": len(config.strategies),
        "model": len(config.models),
        "train_rows": len(config.rows),
        "seed": config.seeds,
    }
    names = ["environment", *(name for name, count in several.items() if count > 1)]
    columns = [
        _Column(
            name.replace("_", " "), [printable(str(getattr(line.trial, name))) for line in shown]
        )
        for name in names
    ]
    columns.append(_Column("state", [line.state for line in shown]))
    facts = zip(*(_facts(line, budget) for line in shown), strict=True)
    heads = ("best", "spent", "cost", "left")
    if any(line.place for line in shown):
        columns.append(_Column("place", [printable(line.place, 24) for line in shown]))
    columns += [_Column(head, list(cells), True) for head, cells in zip(heads, facts, strict=True)]
    head, *lines = (
        GAP.join(cells).rstrip() for cells in zip(*(c.aligned() for c in columns), strict=True)
    )
    texts = [Text(head, "dim")]
    for line, words in zip(shown, lines, strict=True):
        style = "bold" if line.is_working else ""
        if line.is_over:
            style = "green" if line.is_finished else "red"
        reason = GAP + printable(line.reason) if line.reason else ""
        texts.append(Text(words, style).append(reason))
    return texts


def _facts(line: TrialStanding, budget: int) -> tuple[str, str, str, str]:
    """Return best score, completions, cost and time left of a job."""
    return (
        "" if line.best is None else share(line.best),
        f"{line.completions}/{budget}" if line.completions or line.is_working else "",
        "?" if line.cost is None else f"${line.cost:.2f}" if line.cost else "",
        "" if line.left_seconds is None else duration(line.left_seconds),
    )
