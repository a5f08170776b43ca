"""Datasets on the terminal: progress of `cwm collect`, and the summary of `cwm data show`.

Without a terminal, the progress is a line per episode.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TaskID
from rich.table import Table
from rich.text import Text

from cwm_cli.commands.data import BINS, ComponentSummary, DatasetSummary
from cwm_cli.commands.recording import BeingRecorded, Key, Recorded, Recording
from cwm_cli.text import percent
from cwm_cli.views.lines import PROGRESS_SECONDS, Lines, is_verbose, progress_console
from cwm_cli.views.terminal import duration, printable

LEVELS = " ▁▂▃▄▅▆▇█"
"""Characters of bars by height."""

NARROW = 80
"""Terminal width below which a histogram has half the number of bars."""

NUMBER = 11
"""Width of a column of numbers."""


class DatasetPicture:
    """The components, rewards and episodes of a dataset."""

    def __init__(self, summary: DatasetSummary) -> None:
        self._summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw ranges, counts, rewards and episodes."""
        summary, width = self._summary, options.max_width
        # Maximum number of components in the output; --json lists all.
        most_drawn = 40
        parts = (*summary.components[:most_drawn], summary.rewards)
        spread = [each for each in parts if each.spread]
        counted = [each for each in parts if each.values]
        episodes = _table("", "min", "25 %", "median", "75 %", "max")
        for name, numbers in {"length": summary.lengths, "return": summary.returns}.items():
            episodes.add_row(f"episode {name}", *map(_number, numbers))
        for drawn in (_ranges(spread, width), _counts(counted, width), episodes):
            if drawn.row_count:
                yield Text("")
                yield drawn
        yield Text("")
        if (left := len(summary.components) - most_drawn) > 0:
            yield Text(f"and {left} more components: --json lists them")
        facts = summary.facts
        yield Text(
            f"{facts['terminations']} terminated, {summary.truncations} truncated; "
            f"{facts['train']} train rows, {facts['test']} test rows"
        )


def _table(*heads: str) -> Table:
    """Return a table of words and numbers, without lines."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    return table


def _ranges(components: Sequence[ComponentSummary], width: int) -> Table:
    """Draw the range of each component with a histogram."""
    table = _table("", "min", "median", "max")
    table.add_column("", no_wrap=True)
    room = width - 3 * NUMBER - (BINS if width >= NARROW else BINS // 2) - 2
    for each in components:
        if each.spread:
            numbers = (each.spread.min, each.spread.median, each.spread.max)
            bars = histogram(each.spread.histogram, width)
            table.add_row(_title(each, room), *map(_number, numbers), bars)
    return table


def _counts(components: Sequence[ComponentSummary], width: int) -> Table:
    """Draw the counts of the values, one line each."""
    table = _table("", "", "count", "share")
    table.columns[1].justify = "left"
    if width >= NARROW:
        table.add_column("", no_wrap=True)
    left = max((len(each.name or each.column) for each in components), default=0)
    left = min(left, (width - 2 * NUMBER) // 2)
    room = width - 2 * NUMBER - left - (BINS if width >= NARROW else 0)
    # Maximum number of values per component, one line each.
    shown = 12
    for each in components:
        total = max(1, sum(count.count for count in each.values))
        for number, value in enumerate(each.values[:shown]):
            part = value.count / total
            words = repr(value.value) if isinstance(value.value, str) else _number(value.value)
            named = printable(f"{words} {value.name}".strip(), max(8, room))
            cells = [_title(each, left) if number == 0 else Text("")]
            cells += map(Text, (named, str(value.count), percent(part)))
            if width >= NARROW:
                cells.append(Text("█" * round(BINS * part), "green"))
            table.add_row(*cells)
        if (more := each.different - shown) > 0:
            table.add_row("", Text(f"and {more} more", "dim"), "", "")
    return table


def histogram(counts: Sequence[int], width: int) -> Text:
    """Draw bars with heights proportional to the counts; a bar is empty only if its count is 0."""
    bins = list(counts)
    if width < NARROW:
        bins = [sum(bins[place : place + 2]) for place in range(0, len(bins), 2)]
    most = max(bins, default=0) or 1
    heights = [0 if not count else max(1, round(8 * count / most)) for count in bins]
    return Text("".join(LEVELS[height] for height in heights), "green")


def _title(component: ComponentSummary, room: int) -> Text:
    """Return the documented name of a component, or its column."""
    return Text(printable(component.name or component.column, max(8, room)))


def _number(value: float) -> str:
    """Write a number with four significant digits."""
    return f"{value:.4g}"


class RecordingBar(Lines):
    """Progress of a recording on stderr.

    Output that environments print during a recording goes to stderr as well.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._work: Recording | None = None
        self._console = progress_console()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._underway: dict[Key, float] = {}
        self._known = 0
        self._began = self._last = 0.0

    def begins(self, work: object) -> None:
        """Start the bar of a recording; ignore other work."""
        if not isinstance(work, Recording):
            return
        self._work, self._underway, self._known = work, {}, work.done
        self._began = self._last = time.monotonic()
        title = f"recording {printable(work.spec.id)}"
        if self._console.is_interactive:
            columns = (*Progress.get_default_columns(), MofNCompleteColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(escape(title), total=work.episodes)
            self._bar.start()
            self._stack.callback(self._bar.stop)
        else:
            left = work.episodes - work.done
            words = f"{left} of {work.episodes} episodes left" if work.done else f"{left} episodes"
            self._say(f"{title}: {words}")
        self._stack.enter_context(redirect_stdout(sys.stderr))

    def advanced(self, event: object) -> None:
        """Update the bar."""
        if self._work is None:
            return
        if isinstance(event, BeingRecorded):
            self._underway[event.key] = event.share
        elif isinstance(event, Recorded):
            self._underway.pop(event.key, None)
        done = self._work.done
        if self._bar is not None:
            completed = done + sum(self._underway.values())
            self._bar.update(self._task, completed=completed, total=self._work.episodes)
            return
        # Lines become rarer: a long recording has a line per fifth of the time so far.
        now = time.monotonic()
        recent = now - self._last < max(PROGRESS_SECONDS, (now - self._began) / 5)
        if isinstance(event, Recorded) and is_verbose():
            returned = sum(row.reward for row in event.rows)
            words = f"return {returned:.5g}  {len(event.rows):,} steps  policy {event.policy}"
        elif isinstance(event, Recorded) and (not recent or done == self._work.episodes):
            words = "episodes recorded"
        elif isinstance(event, BeingRecorded) and not recent:
            split, place = event.key
            words = f"{('train', 'test')[split]} episode {place + 1}: {event.share:.0%}"
        else:
            return
        passed, total = now - self._began, self._work.episodes
        new = done - self._known + sum(self._underway.values())
        left = f"  about {duration(passed * (total - done) / new)} left" if new else ""
        self._say(f"[{done}/{total}] {words}  {duration(passed)}{left if total > done else ''}")

    def ends(self) -> None:
        """Stop the bar."""
        self._stack.close()
        self._bar = self._work = None

    def _say(self, words: str) -> None:
        self._last = time.monotonic()
        self._console.print(Text(words), soft_wrap=True)
