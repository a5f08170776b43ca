"""The end of `cwm bench-speed`: times on a logarithmic scale, correct predictions, ratios."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cwm_cli.bench.speed import LANES, SpeedProgress, SpeedRatio, SpeedResult
from cwm_cli.runs.report import Grid
from cwm_cli.text import UNKNOWN, money, share, tokens
from cwm_cli.views.datasets import RecordingBar
from cwm_cli.views.lines import progress_console
from cwm_cli.views.tables import GridTable
from cwm_cli.views.terminal import first_line, printable

if TYPE_CHECKING:
    from cwm_cli.bench.asking import Asked
    from cwm_cli.bench.speed import Pace
    from cwm_cli.evaluation import Score

WORLD_MODEL, ENVIRONMENT = "world model", "environment"
UNNAMED_MODEL = "language model"
FIRST_HEAD = "per transition"
HINT = "To time a language model as well, add --model PROVIDER/NAME (needs cwm-cli[llm])."
TITLES = {
    "scalar": WORLD_MODEL,
    "arithmetic": "  as arithmetic",
    "batched": "  {rows:,} at once",
    "environment": ENVIRONMENT,
    "environments": f"  {LANES:,} at once",
}
"""Labels of the chart's lines by the pace that is measured."""

FORMS = {"arithmetic": "as arithmetic", "batched": "in batches"}

PARTS = {
    "observation": "observation",
    "reward": "reward",
    "terminated": "terminated",
    "exact": "all parts",
}
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class SpeedView(RecordingBar):
    """The progress of `bench_speed` in one line."""

    def begins(self, work: object) -> None:
        """Start the progress line, or the bar of a recording."""
        super().begins(work)
        if isinstance(work, SpeedProgress):
            status = progress_console().status(Text(work.words))
            self._status = self._stack.enter_context(status)

    def advanced(self, event: object) -> None:
        """Update the progress line."""
        super().advanced(event)
        if isinstance(event, SpeedProgress):
            self._status.update(Text(event.words))


class _Line(NamedTuple):
    name: str
    pace: Pace


def speed_parts(found: SpeedResult, width: int) -> Iterator[RenderableType]:
    """Yield the chart, the correct predictions, the ratios, and what failed."""
    model = printable(found.name) or UNNAMED_MODEL
    lines = list(_lines(found, model))
    if lines:
        yield _chart(lines, width)
    yield _scores(found, model)
    yield from _ratios(found, model)
    yield from _remarks(found, model)


def seconds_words(seconds: float) -> str:
    """Return a duration with three digits and its unit."""
    size, unit = next(((s, u) for s, u in UNITS if seconds >= 0.9995 * s), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def ratio_words(ratio: SpeedRatio) -> str:
    """Return a speed ratio such as "51 times as fast"."""
    digits = float(f"{ratio.times:.3g}")
    times = f"{digits:,.0f}" if digits >= 1000 else f"{digits:g}"
    return f"{times} times as fast"


def _lines(found: SpeedResult, model: str) -> Iterator[_Line]:
    """Yield a line of the chart for each measured pace."""
    for name, title in TITLES.items():
        if name in found.paces:
            yield _Line(title.format(rows=found.timed.rows), found.paces[name])
    if found.answering:
        yield _Line(model, found.answering)


def _chart(lines: list[_Line], width: int) -> Table:
    """Draw the times as bars on a logarithmic scale."""
    low = floor(log10(min(line.pace.low for line in lines)))
    high = ceil(log10(max(line.pace.high for line in lines)))
    name = max(len(title) for title in (FIRST_HEAD, *(line.name for line in lines)))
    max_bar_columns = 40
    # Columns for the figures beside a bar.
    figure_columns = 38
    bars = max(10, min(max_bar_columns, width - name - figure_columns))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
    for title in (FIRST_HEAD, _scale(low, high, bars)):
        table.add_column(Text(title, style="dim"), no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("5 to 95 %", justify="right", no_wrap=True)
    for line in lines:
        length = log10(line.pace.median) - low
        table.add_row(
            Text(line.name),
            Bar(high - low, 0, length, width=bars, color="cyan"),
            seconds_words(line.pace.median),
            f"{seconds_words(line.pace.low)} to {seconds_words(line.pace.high)}",
        )
    return table


def _scale(low: int, high: int, width: int) -> str:
    """Return the ends of the scale as a head of the bars."""
    first, last = (seconds_words(10.0**power) for power in (low, high))
    return first + last.rjust(width - len(first))


def _scores(found: SpeedResult, model: str) -> GridTable:
    """Compare the shares of correct predictions on the same transitions."""
    asked = found.language_model
    sides = {WORLD_MODEL: found.world_model, ENVIRONMENT: found.environment}
    if asked:
        sides[model] = asked.score
    heads = ["correct", "transitions", *PARTS.values()]
    max_name_columns = 32
    cells = [[printable(name, max_name_columns), *_shares(score)] for name, score in sides.items()]
    return GridTable(Grid("", heads, cells), compact=True)


def _shares(score: Score | None) -> Iterator[str]:
    """Yield the number of transitions, then the share predicted correctly by part."""
    if score is None:
        yield from [UNKNOWN] * (len(PARTS) + 1)
        return
    yield str(score.transitions)
    for name in PARTS:
        yield share(getattr(score, name))


def _ratios(found: SpeedResult, model: str) -> Iterator[Text]:
    """Yield the speed of the world model relative to the environment and language model."""
    names = {"environment": f"the {ENVIRONMENT}", "language_model": model}
    for side, ratios in found.speedups().items():
        for form, ratio in ratios.items():
            if ratio:
                how = " in batches" if form == "batched" else ""
                yield Text(f"The world model{how} is {ratio_words(ratio)} as {names[side]}.")


def _remarks(found: SpeedResult, model: str) -> Iterator[Text]:
    """Yield failures, missing measurements, and the cost of the language model."""
    _, _, notes, failure = found.timed
    if failure:
        yield Text(f"{WORLD_MODEL}: failed, {first_line(failure)}", style="red")
    for note in dict.fromkeys(notes.values()):
        forms = [FORMS[form] for form in FORMS if notes.get(form) == note]
        side = f"{WORLD_MODEL}, not timed {' or '.join(forms)}" if forms else WORLD_MODEL
        yield Text(f"{side}: {printable(note)}", style="dim")
    if words := _environment_note(found.environment):
        yield Text(f"{ENVIRONMENT}: {words}", style="dim")
    if asked := found.language_model:
        yield from _spent(asked, model)
    else:
        yield Text(HINT, style="dim")


def _environment_note(score: Score | None) -> str:
    """Return why the true environment has no perfect score."""
    if score is None:
        return "not scored, since it cannot be set to a recorded state"
    if score.exact < 1:
        return "below 1, since it is random or its observations are incomplete"
    return ""


def _spent(asked: Asked, model: str) -> Iterator[Text]:
    """Yield the answers of the language model, with cost and failures."""
    spent = asked.spent
    counts = [f"{len(asked.answers)} answers", f"{len(asked.unread)} invalid"]
    counts += [f"{len(asked.refused)} refused"] if asked.refused else []
    yield Text(
        f"{model}: {', '.join(counts)}, {tokens(spent.tokens)} tokens, cost {money(spent.cost)}"
    )
    # Invalid answers of a language model that are printed.
    max_invalid_answers = 3
    for row, reason in [*asked.unread.items()][:max_invalid_answers]:
        yield Text(f"  transition {row}: {printable(reason)}", style="dim")
    for note in asked.notes:
        yield Text(printable(note))
    if asked.stopped:
        yield Text(f"{model}: stopped, {printable(asked.stopped)}", style="yellow")
