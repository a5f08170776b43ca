"""What `cwm bench-speed` shows: bars on a logarithmic scale, scores, and what they come to."""

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
from cwm_cli.views.lines import progress_console
from cwm_cli.views.recording import RecordingBar
from cwm_cli.views.tables import GridTable
from cwm_cli.views.terminal import first_line, printable

if TYPE_CHECKING:
    from cwm_cli.bench.asking import Asked
    from cwm_cli.bench.speed import Pace
    from cwm_cli.evaluation import Score

WORLD_MODEL, ENVIRONMENT = "world model", "environment"
NOBODY = "language model"
FIRST = "a transition"
HINT = "none named: --model PROVIDER/NAME asks one, such as --model openai/gpt-5 (cwm-cli[llm])"
TITLES = {
    "scalar": WORLD_MODEL,
    "arithmetic": "  as arithmetic",
    "batched": "  {rows:,} at once",
    "environment": ENVIRONMENT,
    "environments": f"  {LANES:,} at once",
}
"""Lines of the chart by what was timed."""

LACKING = {"arithmetic": "as arithmetic", "batched": "all at once"}

PARTS = {"observation": "observation", "reward": "reward", "terminated": "ended", "exact": "all"}
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
WIDEST_BAR = 40
BESIDE = 38
"""Columns for the figures beside a bar."""

LONGEST_NAME = 40
"""Columns for the name of a model beside its scores."""

MOST_UNREAD = 3
"""How many answers that could not be read are shown."""


class SpeedView(RecordingBar):
    """Follows `bench_speed`: says what is being done."""

    def begins(self, work: object) -> None:
        """Begin to say what is being done, or open the bar of a recording."""
        super().begins(work)
        if isinstance(work, SpeedProgress):
            status = progress_console().status(Text(work.words))
            self._status = self._stack.enter_context(status)

    def advanced(self, event: object) -> None:
        """Say what is being done now."""
        super().advanced(event)
        if isinstance(event, SpeedProgress):
            self._status.update(Text(event.words))


class _Line(NamedTuple):
    """A line of the chart."""

    name: str
    pace: Pace


def speed_parts(found: SpeedResult, width: int) -> Iterator[RenderableType]:
    """Yield the chart, the scores, the ratios, and what went wrong."""
    model = printable(found.name) or NOBODY
    lines = list(_lines(found, model))
    if lines:
        yield _chart(lines, width)
    yield _scores(found, model)
    yield from _ratios(found, model)
    yield from _remarks(found, model)


def seconds_words(seconds: float) -> str:
    """Write a duration with three digits and its unit."""
    size, unit = next(((s, u) for s, u in UNITS if seconds >= 0.9995 * s), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def ratio_words(ratio: SpeedRatio) -> str:
    """Write how many times as fast, and that in orders of magnitude."""
    digits = float(f"{ratio.times:.3g}")
    times = f"{digits:,.0f}" if digits >= 1000 else f"{digits:g}"
    return f"{times} times as fast (10^{round(ratio.orders, 1) + 0.0:.1f})"


def _lines(found: SpeedResult, model: str) -> Iterator[_Line]:
    """Yield a line for each pace that was measured."""
    for name, title in TITLES.items():
        if name in found.paces:
            yield _Line(title.format(rows=found.timed.rows), found.paces[name])
    if found.answering:
        yield _Line(model, found.answering)


def _chart(lines: list[_Line], width: int) -> Table:
    """Draw seconds per transition as bars on a logarithmic scale, a line each."""
    low = floor(log10(min(line.pace.low for line in lines)))
    high = ceil(log10(max(line.pace.high for line in lines)))
    name = max(len(title) for title in (FIRST, *(line.name for line in lines)))
    bars = max(10, min(WIDEST_BAR, width - name - BESIDE))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
    for title in (FIRST, _scale(low, high, bars)):
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
    """Write where the bars begin and end."""
    first, last = (seconds_words(10.0**power) for power in (low, high))
    return first + last.rjust(width - len(first))


def _scores(found: SpeedResult, model: str) -> GridTable:
    """Compare how right the sides are on the same transitions; all: right in every part."""
    asked = found.language_model
    sides = {
        WORLD_MODEL: found.world_model,
        ENVIRONMENT: found.environment,
        model: asked.score if asked else None,
    }
    heads = ["right on", "transitions", *PARTS.values(), "accuracy"]
    cells = [[printable(name, LONGEST_NAME), *_shares(score)] for name, score in sides.items()]
    return GridTable(Grid("", heads, cells))


def _shares(score: Score | None) -> Iterator[str]:
    """Write how many transitions were predicted, and how many of them rightly."""
    if score is None:
        yield from [UNKNOWN] * (len(PARTS) + 2)
        return
    yield str(score.transitions)
    for name in (*PARTS, "accuracy"):
        yield share(getattr(score, name))


def _ratios(found: SpeedResult, model: str) -> Iterator[Text]:
    """Say how many times faster the world model is than the others."""
    names = {"environment": f"the {ENVIRONMENT}", "language_model": model}
    for side, ratios in found.speedups().items():
        for form, ratio in ratios.items():
            if ratio:
                how = " all at once" if form == "batched" else ""
                yield Text(f"{WORLD_MODEL}{how}: {ratio_words(ratio)} as {names[side]}")


def _remarks(found: SpeedResult, model: str) -> Iterator[Text]:
    """Say what failed, what could not be measured, and what the language model cost."""
    _, _, notes, failure = found.timed
    if failure:
        yield Text(f"{WORLD_MODEL}: failed, {first_line(failure)}", style="red")
    for note in dict.fromkeys(notes.values()):
        forms = [LACKING[form] for form in LACKING if notes.get(form) == note]
        side = f"{WORLD_MODEL}, not {' and not '.join(forms)}" if forms else WORLD_MODEL
        yield Text(f"{side}: {printable(note)}", style="dim")
    if words := _doubts(found.environment):
        yield Text(f"{ENVIRONMENT}: {words}", style="dim")
    if asked := found.language_model:
        yield from _spent(asked, model)
    else:
        yield Text(f"{NOBODY}: {HINT}", style="yellow")


def _doubts(score: Score | None) -> str:
    """Say why the environment itself may be wrong about itself."""
    if score is None:
        return "not scored, it cannot be stood at an observation"
    if score.exact < 1:
        return "not always right, since chance decides or observations hide something"
    return ""


def _spent(asked: Asked, model: str) -> Iterator[Text]:
    """Say what was answered, at what cost, and what was not."""
    spent = asked.spent
    counts = [f"{len(asked.answers)} answers", f"{len(asked.unread)} of them no prediction"]
    counts += [f"{len(asked.refused)} refused"] if asked.refused else []
    yield Text(
        f"{model}: {', '.join(counts)}, {tokens(spent.tokens)} tokens, cost {money(spent.cost)}"
    )
    for row, reason in [*asked.unread.items()][:MOST_UNREAD]:
        yield Text(f"  transition {row}: {printable(reason)}", style="dim")
    for note in asked.notes:
        yield Text(printable(note))
    if asked.stopped:
        yield Text(f"{model}: asked no further, {printable(asked.stopped)}", style="yellow")
