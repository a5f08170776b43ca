"""Follow the jobs of a benchmark: a line per job that changes, or a line when one is over."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.text import Text

from cwm_cli.bench.benchmarking import ERRANDS, WORKING, BenchmarkWork, TaskEvent, TrialStanding
from cwm_cli.bench.configuration import BenchmarkTask
from cwm_cli.bench.run import AUTOMATIC
from cwm_cli.text import share
from cwm_cli.views.lines import Lines, Pulse, progress_console
from cwm_cli.views.terminal import ECHO, Pane, bar, duration, printable, printed_above

GAP = "  "


class BenchmarkView(Lines):
    """Follows `benchmark`: a picture on a terminal, plain lines elsewhere.

    The last picture stays if something ends the benchmark early, and if it is not to be
    erased for a report to take its place.
    """

    def __init__(self, *, json: bool = False, console: Console | None = None) -> None:
        self._console = console or progress_console()
        self._erase = json or sys.stdout.isatty()
        self._stack = ExitStack()
        self._shown: _Shown | None = None

    def begins(self, work: object) -> None:
        """Open the picture, or begin to print lines."""
        if not isinstance(work, BenchmarkWork):
            return
        if not self._console.is_interactive or self._console.options.ascii_only:
            self._shown = BenchmarkLines(work, self._console)
            return
        self._shown = screen = BenchmarkScreen(work, self._console)
        display = self._stack.enter_context(screen.pane.display())
        self._stack.enter_context(printed_above(self._console))
        display.refresh()

        def settle(failed: type[BaseException] | None, *_: object) -> None:
            display.transient = self._erase and failed is None

        self._stack.push(settle)

    def advanced(self, event: object) -> None:
        """Take in that a task was begun or is over."""
        if self._shown is not None and isinstance(event, TaskEvent):
            self._shown.saw(event)

    def ends(self) -> None:
        """Close the picture."""
        if isinstance(self._shown, BenchmarkLines):
            self._shown.close()
        self._stack.__exit__(*sys.exc_info())
        self._shown = None


class _Shown(Protocol):
    """What is shown of a benchmark."""

    def saw(self, event: TaskEvent) -> None:
        """Take in that a task was begun or is over."""


class BenchmarkLines:
    """Prints a line when a job has taken a step: for files and pipes."""

    def __init__(self, work: BenchmarkWork, console: Console) -> None:
        self._work = work
        self._console = console
        self._began = time.monotonic() - work.run.elapsed
        self._told = {line.trial: line.state for line in work.standings()}
        self._count(work.standings())
        self._pulse = Pulse(self._tell)

    def close(self) -> None:
        """Say no more."""
        self._pulse.stop()

    def saw(self, event: TaskEvent) -> None:
        """Print what failed, and the jobs that are over or that a process begins to work on."""
        task = event.task
        if event.reason:
            self._print(printable(f"{task.kind} {task.name} failed: {event.reason}"))
        lines = self._work.standings()
        self._count(lines)
        if task.kind in ERRANDS and not event.reason:
            words = f"[{self._over}/{self._all}] {errand_words(task)}"
            self._print(f"{words}{': done' * event.over}{GAP}{self._clock()}")
        for line in lines:
            changed = self._told.get(line.trial) != line.state
            if changed and (line.is_over or line.trial.name == task.name):
                self._print(self._words(line))
            self._told[line.trial] = line.state

    def _count(self, lines: Sequence[TrialStanding]) -> None:
        """Count the jobs, and those that are over."""
        self._over, self._all = sum(line.is_over for line in lines), len(lines)

    def _tell(self) -> None:
        """Print what is at work."""
        for line in self._work.standings():
            if line.state in (WORKING["search"], WORKING["play"]):
                self._print(self._words(line))
        for errand in self._work.errands():
            words = f"[{self._over}/{self._all}] {errand_words(errand.task)}"
            self._print(f"{words}, for {duration(errand.seconds)}{GAP}{self._clock()}")

    def _clock(self) -> str:
        """Say how long the benchmark has been at work, in all of its sessions."""
        return duration(time.monotonic() - self._began)

    def _words(self, line: TrialStanding) -> str:
        """Put a job into words."""
        best = "" if line.best is None else f" {share(line.best)}"
        words = f"[{self._over}/{self._all}] {printable(line.trial.name)}: {line.state}{best}"
        budget = self._work.run.header.terms.budget
        spent = f"{line.completions}/{budget}" if line.completions else ""
        parts = [words, spent, self._clock()]
        return GAP.join(part for part in parts if part)

    def _print(self, words: str) -> None:
        self._pulse.heard()
        self._console.print(Text(words), soft_wrap=True)


class BenchmarkScreen:
    """Draws a line per job below a title, and a bar; what does not fit is counted."""

    def __init__(self, work: BenchmarkWork, console: Console) -> None:
        self.pane = Pane(self._lines, console, margin=ECHO)
        self._work = work
        self._title = printable(f"cwm benchmark · {work.run.folder.name}")
        self._started = time.monotonic()
        self._before = work.run.elapsed
        self._over_before = sum(line.is_over for line in work.standings())

    def saw(self, event: TaskEvent) -> None:
        """Do nothing: the picture is drawn again and again."""

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Put all into words."""
        standings = self._work.standings()
        errands = self._work.errands()
        shown, hidden = chosen(standings, max(1, height - 3 - len(errands)))
        table = _table(shown, standings, self._work.run.header.terms.budget)
        counts = Counter(line.state for line in hidden)
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        rest = [Text(f"not shown: {words}", "dim")] if hidden else []
        rest += [
            Text(f"besides: {errand_words(task)}, for {duration(seconds)}", "bold")
            for task, seconds in errands
        ]
        return [Text(self._title, "bold"), *table, *rest, self._progress(standings, width)]

    def _progress(self, standings: Sequence[TrialStanding], width: int) -> Text:
        """Draw how many jobs are over, and how long the others may take."""
        over = sum(line.is_over for line in standings)
        spent = time.monotonic() - self._started
        words = [f"{over}/{len(standings)} jobs", duration(self._before + spent)]
        besides = len(self._work.errands()) + self._work.to_come
        if over == len(standings) and besides:
            words.append(f"{besides} besides left")
        elif made := over - self._over_before:
            words.append(f"{duration(spent / made * (len(standings) - over))} left")
        costs = [line.cost for line in standings]
        if any(costs):
            words.append(f"${sum(cost or 0.0 for cost in costs):.2f}")
        return bar(over, len(standings), " " + " · ".join(words), width)


def errand_words(task: BenchmarkTask) -> str:
    """Name what is done for an environment."""
    planner = f" with {task.planner}" if task.planner not in ("", AUTOMATIC) else ""
    return printable(ERRANDS[task.kind].format(task.name) + planner)


def chosen(
    standings: Sequence[TrialStanding], room: int
) -> tuple[list[TrialStanding], list[TrialStanding]]:
    """Choose the jobs that are shown, in their order, and return the others.

    Those at work come first, then those that failed, those to come, and what
    was finished last.
    """
    if len(standings) <= room:
        return list(standings), []
    places = range(len(standings))
    visible = set(sorted(places, key=lambda place: _rank(standings[place], place))[: room - 1 or 1])
    shown = [standings[place] for place in places if place in visible]
    return shown, [standings[place] for place in places if place not in visible]


def _rank(line: TrialStanding, place: int) -> tuple[int, int]:
    """Order jobs by how much there is to see of them."""
    if line.is_working:
        return 0, place
    if line.is_finished:
        return 3, -place
    return (1 if line.is_over else 2), place


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


def _table(
    shown: Sequence[TrialStanding], every: Sequence[TrialStanding], budget: int
) -> list[Text]:
    """Write jobs as lines under heads; what all have in common has no column."""
    names = ["environment"]
    for name in ("strategy", "model", "seed"):
        if len({getattr(line.trial, name) for line in every}) > 1:
            names.append(name)
    columns = [
        _Column(name, [printable(str(getattr(line.trial, name))) for line in shown])
        for name in names
    ]
    columns.append(_Column("state", [line.state for line in shown]))
    facts = zip(*(_facts(line, budget) for line in shown), strict=True)
    heads = ("best", "spent", "cost", "left")
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
    """Write what is known of a job."""
    return (
        "" if line.best is None else share(line.best),
        f"{line.completions}/{budget}" if line.completions or line.is_working else "",
        "?" if line.cost is None else f"${line.cost:.2f}" if line.cost else "",
        "" if line.left_seconds is None else duration(line.left_seconds),
    )
