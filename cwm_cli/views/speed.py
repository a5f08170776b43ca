"""The end of `cwm bench-speed`: times on a logarithmic scale, correct predictions, ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cwm_cli.bench.batches import FORMS as FORM_TITLES
from cwm_cli.bench.batches import BatchSpeeds
from cwm_cli.bench.speed import LANES, SpeedProgress, SpeedRatio, SpeedResult
from cwm_cli.runs.report import Grid
from cwm_cli.text import UNKNOWN, money, share, tokens
from cwm_cli.views.datasets import RecordingBar
from cwm_cli.views.lines import progress_console
from cwm_cli.views.tables import GridTable
from cwm_cli.views.terminal import first_line, printable

if TYPE_CHECKING:
    from cwm_cli.bench.speed import Pace

WORLD_MODEL, ENVIRONMENT = "world model", "environment"
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


def speed_parts(found: SpeedResult, width: int) -> Iterator[RenderableType]:
    """Yield the chart, the correct predictions, the ratios, and what failed."""
    model = printable(found.name) or "language model"
    paces = {
        title.format(rows=found.timed.rows): found.paces[name]
        for name, title in TITLES.items()
        if name in found.paces
    }
    if found.answering:
        paces[model] = found.answering
    if paces:
        yield _chart(paces, width)
    sides = {WORLD_MODEL: found.world_model, ENVIRONMENT: found.environment}
    if found.language_model:
        sides[model] = found.language_model.score
    cells = []
    for side, score in sides.items():
        parts = [UNKNOWN] * (len(PARTS) + 1)
        if score is not None:
            parts = [str(score.transitions), *(share(getattr(score, part)) for part in PARTS)]
        cells.append([printable(side, 32), *parts])
    heads = ["correct", "transitions", *PARTS.values()]
    yield GridTable(Grid("", heads, cells), compact=True)
    names = {"environment": f"the {ENVIRONMENT}", "language_model": model}
    for other, ratios in found.speedups().items():
        for form, ratio in ratios.items():
            if ratio:
                how = " in batches" if form == "batched" else ""
                yield Text(f"The world model{how} is {ratio_words(ratio)} as {names[other]}.")
    yield from _remarks(found, model)


def batch_parts(found: BatchSpeeds) -> Iterator[RenderableType]:
    """Yield the steps per second of each form, and why some forms have none."""
    cells = []
    for form, title in FORM_TITLES.items():
        rates = [found.rate(form, batch) for batch in found.batches]
        if any(rates):
            sandboxed = form == "python" and found.sandboxed
            name = "program, in the sandbox" if sandboxed else title
            cells.append([name, *(f"{rate:,.0f}" if rate else UNKNOWN for rate in rates)])
    heads = ["steps per second", *(f"{batch:,}" for batch in found.batches)]
    yield GridTable(Grid("", heads, cells), compact=True)
    for form, reason in found.reasons.items():
        name, _, batch = form.partition(" ")
        where = f", batch of {int(batch):,}" if batch else ""
        yield Text(f"{FORM_TITLES[name]}{where}: {printable(reason)}", style="dim")


def seconds_words(seconds: float) -> str:
    """Return a duration with three digits and its unit."""
    size, unit = next(((s, u) for s, u in UNITS if seconds >= 0.9995 * s), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def ratio_words(ratio: SpeedRatio) -> str:
    """Return a speed ratio such as "51 times as fast"."""
    digits = float(f"{ratio.times:.3g}")
    times = f"{digits:,.0f}" if digits >= 1000 else f"{digits:g}"
    return f"{times} times as fast"


def _chart(paces: Mapping[str, Pace], width: int) -> Table:
    """Draw the times as bars on a logarithmic scale."""
    low = floor(log10(min(pace.low for pace in paces.values())))
    high = ceil(log10(max(pace.high for pace in paces.values())))
    first_head = "per transition"
    names = max(map(len, (first_head, *paces)))
    # The figures beside a bar take 38 columns.
    bars = max(10, min(40, width - names - 38))
    left, right = (seconds_words(10.0**power) for power in (low, high))
    scale = left + right.rjust(bars - len(left))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
    for title in (first_head, scale):
        table.add_column(Text(title, style="dim"), no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("5 to 95 %", justify="right", no_wrap=True)
    for name, pace in paces.items():
        table.add_row(
            Text(name),
            Bar(high - low, 0, log10(pace.median) - low, width=bars, color="cyan"),
            seconds_words(pace.median),
            f"{seconds_words(pace.low)} to {seconds_words(pace.high)}",
        )
    return table


def _remarks(found: SpeedResult, model: str) -> Iterator[Text]:
    """Yield failures, missing measurements, and the cost of the language model."""
    _, _, notes, failure = found.timed
    if failure:
        yield Text(f"{WORLD_MODEL}: failed, {first_line(failure)}", style="red")
    for note in dict.fromkeys(notes.values()):
        forms = [FORMS[form] for form in FORMS if notes.get(form) == note]
        side = f"{WORLD_MODEL}, not timed {' or '.join(forms)}" if forms else WORLD_MODEL
        yield Text(f"{side}: {printable(note)}", style="dim")
    if found.environment is None:
        words = "not scored, since it cannot be set to a recorded state"
        yield Text(f"{ENVIRONMENT}: {words}", style="dim")
    elif found.environment.exact < 1:
        words = "below 1, since it is random or its observations are incomplete"
        yield Text(f"{ENVIRONMENT}: {words}", style="dim")
    asked = found.language_model
    if asked is None:
        hint = "To time a language model as well, add --model PROVIDER/NAME (needs cwm-cli[llm])."
        yield Text(hint, style="dim")
        return
    spent = asked.spent
    counts = [f"{len(asked.answers)} answers", f"{len(asked.unread)} invalid"]
    counts += [f"{len(asked.refused)} refused"] if asked.refused else []
    yield Text(
        f"{model}: {', '.join(counts)}, {tokens(spent.tokens)} tokens, cost {money(spent.cost)}"
    )
    for row, reason in [*asked.unread.items()][:3]:
        yield Text(f"  transition {row}: {printable(reason)}", style="dim")
    for note in asked.notes:
        yield Text(printable(note))
    if asked.stopped:
        yield Text(f"{model}: stopped, {printable(asked.stopped)}", style="yellow")
