"""Progress and report of `cwm theorize`: rules and their likelihood."""

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from cwm_cli.runs.storage import named
from cwm_cli.search.contracts import Node
from cwm_cli.text import money, percent, share
from cwm_cli.views.curves import Axis, Chart, Series, save_charts
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.tables import Bullet, labelled
from cwm_cli.views.terminal import bar, duration, printable, spent_words
from cwm_theorize.runs import (
    PhaseRecord,
    TheorizingResult,
    discovered,
    rule_changes,
)
from cwm_theorize.theorize import CollectedPhase, Theorizing

STOPPED = {
    "phases": "limit of phases reached; repeat with more --phases to continue",
    "given_up": "the theorist has no further proposal",
    "money": "cost limit reached; repeat with a higher --max-cost to continue",
}
"""Reason for the end of the search for rules, as shown to users."""


def theorizing_view(console: Console) -> "TheorizingView":
    """Return the view: a live picture on a terminal, else a line per phase."""
    if can_draw(console):
        return TheorizingPicture(console)
    return TheorizingLines(console)


class TheorizingView(ProgressView):
    """The progress of theorizing."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.title = ""
        self.phases: list[PhaseRecord] = []
        self.collected: CollectedPhase | None = None
        self.node: Node | None = None
        self.work: Theorizing | None = None

    def begins(self, work: object) -> None:
        """Start with the phases of earlier sessions."""
        assert isinstance(work, Theorizing)
        self.work, self.title = work, printable(work.title)
        self.start_clock(work.run.elapsed)
        self.phases = list(work.phases)

    def advanced(self, event: object) -> None:
        """Record an event."""
        match event:
            case CollectedPhase():
                self.collected, self.node = event, None
            case Node():
                self.node = event
            case PhaseRecord():
                self.phases.append(event)


def found_words(found: Mapping[str, int], first: Mapping[str, int]) -> str:
    """Return the counts of the changes by kind; kinds that are new are marked."""
    counts = (f"{kind} {count:,}{' (new)' * (kind in first)}" for kind, count in found.items())
    return printable(", ".join(counts))


def phase_words(phase: PhaseRecord) -> str:
    """Return the line of a phase."""
    total = phase.held_out_total
    held_out = "" if total is None else f"  held-out {total:.2f}"
    accepted = "" if phase.accepted is None else f", {phase.accepted} accepted"
    proposals = f"{phase.proposals} proposal{'' if phase.proposals == 1 else 's'}"
    return (
        f"phase {phase.number}  train {phase.train:.2f} of {phase.evidence:,}"
        f"{held_out}  {proposals}{accepted}"
        f"  found {found_words(phase.found, phase.first)}"
    )


class TheorizingLines(PrintedProgress, TheorizingView):
    """Prints a line per phase, and changed rules."""

    def advanced(self, event: object) -> None:
        """Print a finished phase."""
        super().advanced(event)
        if not isinstance(event, PhaseRecord):
            return
        self.print_line(phase_words(event), self.elapsed)
        for mark, rule in rule_changes(event.previous, event.rules):
            if mark:
                self.print_line(f"  {mark} {printable(rule)}")

    def print_status(self) -> None:
        """Print the current work."""
        assert self.work is not None
        self.print_line(f"phase {self.work.doing}", self.elapsed)


class TheorizingPicture(DrawnProgress, TheorizingView):
    """Draws the likelihoods of the phases, the discovered changes and the rules."""

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines; a low terminal has no plot."""
        work = self.work
        assert work is not None
        facts = list(self._facts(work))
        free = height - 2 - len(facts)
        rules = self._rules(width, free)
        plot: list[Text] = []
        tallest = 10  # maximum height of the plot in lines
        least_rules = 8  # lines reserved for the rules before a plot is drawn
        room = min(tallest, free - min(len(rules), least_rules))
        if self.phases and room >= 4 and width >= 20:
            plot = likelihood_chart("", self.phases, work.kinds).dots(width, room)
            rules = self._rules(width, free - len(plot))
        words = f" {len(self.phases)}/{work.wanted_phases} phases · {self.elapsed}"
        progress = bar(len(self.phases), work.wanted_phases, words, width)
        title = Text(self.title, "bold")
        if plot:
            title.append("  mean log-likelihood by phase", "dim")
        lines = [title, *plot, *facts, *rules]
        return [*lines[: max(0, height - 1)], progress]

    def _facts(self, work: Theorizing) -> Iterator[Text]:
        """Yield the current facts, one per line."""
        words = work.doing
        made = sum(each.proposals for each in self.phases) + work.proposed
        if work.accepted is not None and made:
            accepted = sum(each.accepted or 0 for each in self.phases) + work.accepted
            words += f"; {accepted} of {made} accepted, {percent(accepted / made)}"
        if self.node is not None:
            verdict, state = self.node.verdict, work.search.strategy.state(self.node.id)
            weighed = verdict.log_likelihood
            score = "not scored" if weighed is None else f"{weighed:.2f}"
            words += f"; last {score}{f', {state}' if state else ''}"
        yield Text(f"phase     {printable(words)}", "bold green")
        if self.phases:
            last = self.phases[-1]
            yield Text(f"train     {last.train:.2f} for {last.evidence:,} changes", "green")
            if last.held_out:
                yield Text(f"held-out  {held_out_words(last, work.kinds)}", "cyan")
        found, first = discovered(self.phases)
        if self.collected and self.collected.number > len(self.phases):
            found.update(self.collected.found)
            first = first | self.collected.first
            words = f"{found_words(found, self.collected.first)}; {self.collected.rows:,} rows"
            yield Text(f"found     {words}", "yellow")
        elif found:
            yield Text(f"found     {found_words(found, {})}", "yellow")
        usage = work.usage
        problem = work.problem
        scored = f"{problem.scorings:,} scorings, {problem.weighed:,} changes scored"
        spent = [scored, *spent_words(usage.tokens, usage.cost)]
        yield Text(f"spent     {', '.join(spent)}", "dim")

    def _rules(self, width: int, room: int) -> list[Text]:
        """Return the best rules, with the rules added and removed by the last change.

        If there is little room, removed rules are left out first, then long rules are cut.
        """
        changed = [each for each in self.phases if each.rules != each.previous]
        if not changed:
            return [Text("rules     none yet", "dim")]
        last = changed[-1]
        every = rule_changes(last.previous, last.rules)
        here = [each for each in every if each[0] != "-"]
        head = Text(f"rules     since phase {last.number}", "bold")
        for some in (every, here):
            lines = [head, *(line for each in some for line in _wrapped(*each, width))]
            if len(lines) <= room:
                return lines
        return [head, *(line for each in here for line in _wrapped(*each, 0))]


def _wrapped(mark: str, rule: str, width: int) -> Iterator[Text]:
    """Wrap a rule to a width; do not wrap it for width 0."""
    words = f"  {mark or ' '} {printable(rule, 1000)}"
    indent = " " * 6
    styles = {"+": "green", "-": "red", "": ""}  # styles of rules: new, removed, unchanged
    for line in textwrap.wrap(words, width, subsequent_indent=indent) if width > 20 else [words]:
        yield Text(line, styles[mark])


def held_out_words(phase: PhaseRecord, kinds: Mapping[str, int]) -> str:
    """Return the log-likelihood of the held-out changes, and the kind with the lowest mean."""
    total = sum(kinds.values())
    words = f"{sum(phase.held_out.values()):.2f} for {total:,} changes"
    means = {kind: value / kinds[kind] for kind, value in phase.held_out.items()}
    worst = min(means, key=lambda kind: means[kind])
    lowest = f"{means[worst]:.2f}"
    if all(lowest == f"{mean:.2f}" for mean in means.values()):
        return words
    return f"{words}; worst {printable(worst)}, {lowest} each"


def likelihood_chart(title: str, phases: Sequence[PhaseRecord], kinds: Mapping[str, int]) -> Chart:
    """Return the mean log-likelihood of a change under the best rules of each phase."""
    x = [each.number for each in phases]
    series = [Series("train", x, [each.train / max(each.evidence, 1) for each in phases])]
    measured = [(each.number, each.held_out_total) for each in phases if each.held_out]
    if measured:
        places, totals = zip(*measured, strict=True)
        count = sum(kinds.values())
        series.append(Series("held-out", places, [total / count for total in totals]))
    return Chart.of(title, "phase", "mean log-likelihood of a change", series)


def kinds_chart(title: str, phases: Sequence[PhaseRecord], kinds: Mapping[str, int]) -> Chart:
    """Return the mean log-likelihood of a held-out change of each kind, by phase."""
    phases = [each for each in phases if each.held_out]
    x = [each.number for each in phases]
    series = [
        Series(kind, x, [each.held_out[kind] / count for each in phases])
        for kind, count in kinds.items()
    ]
    return Chart.of(title, "phase", "mean log-likelihood of a held-out change", series)


def found_chart(title: str, phases: Sequence[PhaseRecord]) -> Chart:
    """Return the number of discovered changes by kind over the rows, with a logarithmic y axis."""
    found: Counter[str] = Counter()
    counts = []
    for each in phases:
        found.update(each.found)
        counts.append(dict(found))
    series = []
    for kind in found:
        seen = [
            (p.rows, some[kind]) for p, some in zip(phases, counts, strict=True) if kind in some
        ]
        series.append(Series(kind, [rows for rows, _ in seen], [count for _, count in seen]))
    chart = Chart.of(title, "rows collected", "changes found", series)
    heights = [height for one in series for height in one.y] or [1.0]
    return chart._replace(y=Axis.of(heights, logarithmic=True))


def save_theory_curves(title: str, result: TheorizingResult) -> list[Path]:
    """Write likelihoods and discovered changes to `curve.svg`; return the file."""
    if not result.phases:
        return []
    charts = [
        likelihood_chart(f"{title}: likelihood by phase", result.phases, result.held_out),
        found_chart(f"{title}: transitions discovered", result.phases),
    ]
    if any(each.held_out for each in result.phases):
        by_kind = kinds_chart(
            f"{title}: held-out, by kind of change", result.phases, result.held_out
        )
        charts.insert(1, by_kind)
    file = result.run / "curve.svg"
    save_charts(charts, file)
    return [file]


def theorizing_report(result: TheorizingResult, curve: Path) -> Iterator[RenderableType]:
    """Yield the rules, how well they predict, and the next command."""
    yield Text("Rules:", "bold")
    yield from (Bullet(printable(rule)) for rule in result.rules.splitlines() or ["none"])
    if result.phases:
        last, count = result.phases[-1], len(result.phases)
        if last.held_out:
            yield Text(f"Held-out log-likelihood {held_out_words(last, result.held_out)}")
        yield Text(f"Training log-likelihood {last.train:.2f} for {last.evidence:,} changes")
        words = f"{result.proposals:,} proposals in {count} phase{'s' * (count != 1)}"
        if result.accepted is not None and result.proposals:
            words += f", {percent(result.accepted / result.proposals)} accepted"
        yield Text(f"{words} ({duration(result.seconds)})")
        found, _ = discovered(result.phases)
        yield Text(f"Discovered kinds of change: {found_words(found, {})}")
    yield Text(f"Predicted change among the k most likely: {topk_words(result.topk)}")
    yield Text(f"Stopped: {STOPPED.get(result.stopped, result.stopped)}.")
    lines = {}
    if result.tokens:
        lines["Cost"] = f"{result.tokens:,} tokens, {money(result.cost)}"
    lines["Curve"] = named(curve)
    lines["Next"] = shlex.join(["cwm", "runs", "show", named(result.run)])
    yield from labelled(lines)


def topk_words(topk: Mapping[str, Any]) -> str:
    """Return the share of changes that are among the k most likely, also as mean over kinds."""
    every, kinds = topk["all"]["top"], topk["mean"]["top"]
    shares = ", ".join(f"k = {k}: {share(value)}" for k, value in every.items())
    return f"{shares} (mean over kinds: {', '.join(share(value) for value in kinds.values())})"
