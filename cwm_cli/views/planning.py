"""Follow the episodes of `cwm plan`, and report the returns."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.text import Text

from cwm_cli.commands.episodes import Episode, PlanningCost, Progress, Underway
from cwm_cli.commands.plan import LeftOut, Playing, SideProgress
from cwm_cli.commands.plays import PlanResult
from cwm_cli.commands.sides import BASELINES, SIDES, MatchRecord, Mean, Side, SideName
from cwm_cli.evaluation.mismatches import Mismatches
from cwm_cli.runs.report import Grid
from cwm_cli.text import UNKNOWN, first_few, mean_with_error, percent, share
from cwm_cli.views.lines import is_verbose
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.tables import GridTable, labelled
from cwm_cli.views.terminal import bar, duration, first_line, printable
from cwm_cli.worlds.confirming import SECONDS, TIMES
from cwm_cli.worlds.model import PlannedWith

MAX_NUMBERS = 3
"""Maximum number of episodes that a line names."""

_WIDTH = max(map(len, SIDES.values()))


def plan_view(console: Console, *, erase: bool) -> "PlanView":
    """Return the view of a plan: a live picture on a terminal, else a line per episode.

    With `erase` the picture is removed after the last episode, to make room for the report.
    """
    if can_draw(console):
        return PlanPicture(console, erase=erase)
    return PlanLines(console)


@dataclass
class _Tally:
    """The finished episodes of a side, and the running episodes by worker.

    `began` is the time of the first event; `before` counts the episodes of earlier sessions.
    """

    asked: int
    limit: int
    episodes: list[Episode]
    cost: PlanningCost
    report: PlannedWith | None
    before: int = 0
    began: float | None = None
    underway: dict[int, list[Underway]] = field(default_factory=dict)

    @classmethod
    def of(cls, side: Side, asked: int, limit: int) -> "_Tally":
        """Return a tally with the episodes of earlier sessions."""
        return cls(asked, limit, list(side.episodes), side.cost, side.report, len(side.episodes))

    @property
    def mean(self) -> Mean:
        """The mean return so far."""
        return Side(self.episodes).mean

    def add(self, worker: int, progress: Progress) -> None:
        """Add the progress of a worker."""
        if self.began is None:
            self.began = time.monotonic() - progress.cost.seconds
        self.episodes += [played.episode for played in progress.finished]
        self.cost = self.cost.plus(progress.cost)
        self.report = self.report or progress.report
        self.underway[worker] = progress.underway

    def left(self) -> float | None:
        """Estimate the remaining seconds, None before the first step.

        A running episode counts by its share of the mean length of finished episodes, or of the
        step limit before the first episode is finished.
        """
        if len(self.episodes) >= self.asked:
            return 0.0
        if self.began is None:
            return None
        lengths = [episode.length for episode in self.episodes]
        usual = sum(lengths) / len(lengths) if lengths else self.limit
        begun = [min(1.0, each.length / usual) for each in self.in_flight()]
        # The clock covers this session only, so episodes of earlier sessions do not count.
        done = len(self.episodes) - self.before + sum(begun)
        open_ = self.asked - len(self.episodes) - sum(begun)
        return (time.monotonic() - self.began) * max(0.0, open_) / done if done else None

    def in_flight(self) -> Iterator[Underway]:
        """Yield the running episodes, sorted by number."""
        yield from sorted(each for some in self.underway.values() for each in some)


class PlanView(ProgressView):
    """Progress of all sides."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.title = ""
        self.tallies: dict[SideName, _Tally] = {}

    def begins(self, work: object) -> None:
        """Start with the episodes of earlier sessions."""
        if isinstance(work, Playing):
            self.title = printable(work.title)
            self.tallies = {
                name: _Tally.of(side, work.episodes, work.limit)
                for name, side in work.outcome().items()
            }
            self.start_clock(work.run.elapsed)

    def advanced(self, event: object) -> None:
        """Add the progress of a worker, or drop a side."""
        if isinstance(event, SideProgress):
            self.tallies[event.side].add(event.worker, event.progress)
        elif isinstance(event, LeftOut):
            del self.tallies[event.side]

    @property
    def times(self) -> str:
        """Elapsed time, and the estimated time left."""
        lefts = [tally.left() for tally in self.tallies.values()]
        known = [left for left in lefts if left is not None]
        seconds = sum(known)
        if seconds < 1:
            return self.elapsed
        word = "about" if len(known) == len(lefts) else "over"
        return f"{self.elapsed}, {word} {duration(seconds)} left"


def _flight_words(flight: Underway) -> str:
    """Return the number of a running episode and its step, or that it is rechecked."""
    state = "rechecking decisions" if flight.rechecking else f"step {flight.length:,}"
    return f"#{flight.number} {state}"


class PlanLines(PrintedProgress, PlanView):
    """Prints a line per episode."""

    def print_status(self) -> None:
        """Print the steps of the running episodes."""
        for name, tally in list(self.tallies.items()):
            flights = [_flight_words(each) for each in tally.in_flight()]
            if flights:
                words = f"[{len(tally.episodes)}/{tally.asked}] {SIDES[name]} plays"
                more = len(flights) - MAX_NUMBERS
                rest = [f"and {more} more"] if more > 0 else []
                self.print_line(words, *flights[:MAX_NUMBERS], *rest, self.times)

    def advanced(self, event: object) -> None:
        """Print a line for each finished episode."""
        super().advanced(event)
        if not isinstance(event, SideProgress):
            return
        tally, finished = self.tallies[event.side], event.progress.finished
        before = len(tally.episodes) - len(finished)
        for place, (episode, *_) in enumerate(finished, start=before + 1):
            so_far = Side(tally.episodes[:place])
            mean = f" (mean {so_far.mean.mean:.5g})" if so_far.verified else ""
            words = f"[{place}/{tally.asked}] {SIDES[event.side]} #{episode.number}"
            parts = [f"{words}: return {episode.returned:.5g}{mean}"]
            parts += [f"{episode.length:,} steps", self.times]
            if not episode.verified:
                parts.append("unverified: not in the mean")
            if episode.failure:
                parts.append(f"{episode.failures:,} failures: {first_line(episode.failure)}")
            self.print_line(*parts)


class PlanPicture(DrawnProgress, PlanView):
    """Draws a line per side, the running episodes, the planner and a progress bar."""

    def __init__(self, console: Console, *, erase: bool) -> None:
        super().__init__(console)
        self._erase = erase

    def ends(self) -> None:
        """Stop drawing; keep the last picture unless a report replaces it."""
        done, asked = self._counts()
        if self.display:
            self.display.transient = self._erase and done == asked
        super().ends()

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of finished and of requested episodes."""
        tallies = self.tallies.values()
        return sum(len(tally.episodes) for tally in tallies), sum(tally.asked for tally in tallies)

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines; on a low terminal only the sides and the bar."""
        sides = [_side(name, tally) for name, tally in self.tallies.items()]
        flights = [
            Text(f"  {_flight_words(each)}  return {each.returned:.5g}", "cyan")
            for tally in self.tallies.values()
            for each in tally.in_flight()
        ]
        facts = [report_words(t.report) for t in self.tallies.values() if t.report]
        done, asked = self._counts()
        progress = bar(done, asked, f" {done:,}/{asked:,} episodes · {self.times}", width)
        room = max(0, height - 2 - len(sides))
        notes = [Text(facts[0], "dim")] if facts else []
        return [Text(self.title, "bold"), *sides, *[*flights[: room - 1], *notes][:room], progress]


def _side(name: SideName, tally: _Tally) -> Text:
    """Return the line of a side."""
    width = len(str(tally.asked))
    line = Text(f"{SIDES[name]:<{_WIDTH}}  {len(tally.episodes):>{width}}/{tally.asked}")
    if tally.episodes:
        line.append(f"  return {mean_words(tally.mean)}", "bold green")
    if tally.cost.decisions:
        line.append("  {} decisions/s, {} model steps/s".format(*speed_words(tally.cost)), "dim")
    wrong = sum(each.mismatches.wrong for each in tally.episodes if each.mismatches)
    if wrong:
        line.append(f"  {wrong:,} steps predicted wrongly", "red")
    if unverified := Side(tally.episodes).unverified:
        line.append(f"  {len(unverified):,} unverified", "red")
    if tally.cost.failures:
        line.append(f"  {tally.cost.failures:,} failures", "red")
    return line


def plan_report(result: PlanResult) -> Iterator[RenderableType]:
    """Yield returns, the verdict on the predictions, and how the plans were made."""
    yield side_table(result.sides)
    side, found = result.side, result.mismatches
    if side.episodes:
        yield Text(_return_words(result), "bold")
    if result.in_program:
        yield Text(
            "Played in the program itself, from recorded initial states: returns are predictions.",
            "yellow",
        )
    if found:
        style = "bold green" if not (found.wrong or found.unanswered) else "bold yellow"
        yield Text(mismatch_words(found), style)
    if result.unverified:
        yield Text(unverified_words(result), "red")
    if found and result.refuted:
        yield Text(refuted_words(found), "red")
    if confirmed := side.cost.confirmed:
        decisions = side.cost.decisions
        yield Text(f"{confirmed:,} of {decisions:,} decisions rechecked outside the sandbox.")
    if result.doubt:
        yield Text(doubt_words(result))
    lines = {}
    if side.report:
        lines["Planner"] = report_words(side.report)
    if is_verbose():
        lines["Episodes"] = str(result.journal)
    if found and (found.mistakes or found.unanswered) and result.learn_from:
        lines["Next"] = shlex.join(result.learn_from.command)
    yield from labelled(lines)
    if result.shifted:
        yield ""
        yield shifted_table({"original": result, **result.shifted})


def shifted_table(results: Mapping[str, PlanResult]) -> GridTable:
    """Compare the returns and the predictions in several environments, a row each."""
    heads = ["environment", "mean return", "random", "oracle", "right", "wrong parts"]
    cells = []
    for name, each in results.items():
        found = each.mismatches
        right, parts = UNKNOWN, UNKNOWN
        if found is not None and found.steps:
            right = share((found.steps - found.wrong) / found.steps)
            parts = ", ".join(found.kinds) or "none"
        means = [each.side.mean, each.random, each.oracle]
        words = [UNKNOWN if mean is None else mean_words(mean) for mean in means]
        cells.append([name, *words, right, parts])
    places = [n for n in range(len(heads)) if any(line[n] != UNKNOWN for line in cells)]
    cells = [[line[n] for n in places] for line in cells]
    return GridTable(Grid("", [heads[n] for n in places], cells), compact=True)


def match_words(found: MatchRecord, opponent: str) -> str:
    """Return the results of the games against an opponent, with a confidence interval."""
    low, high = (100 * bound for bound in found.interval(found.wins))
    against = {"random": "random moves", "self": "itself", "oracle": "plans in the true game"}
    illegal = f"; {found.illegal} lost by an illegal move" if found.illegal else ""
    if found.opponent_illegal:
        illegal += f"; {found.opponent_illegal} won by an illegal move of the opponent"
    return (
        f"Against {against[opponent]}: {found.wins} wins, {found.draws} draws, {found.losses} "
        f"losses in {found.games} games (wins {percent(found.wins / found.games)}, 95 % "
        f"confidence interval {low:.1f} to {high:.1f} %){illegal}."
    )


def _return_words(result: PlanResult) -> str:
    """Return the mean return, and the normalised one if the oracle played."""
    if not (count := len(result.side.verified)):
        return "No verified episode, so no return."
    if result.match:
        return match_words(result.match, result.opponent)
    baseline = BASELINES[result.baseline]
    words = f"Mean return {mean_words(result.side.mean)} ({count} episode{'s' * (count != 1)})"
    if result.R is not None:
        words += f"; normalised return R = {share(result.R)} (0: {baseline}, 1: oracle)"
    elif "oracle" in result.sides and result.asked != "oracle":
        words += f"; no normalised return, since the oracle is not clearly better than {baseline}"
    return f"{words}."


def mismatch_words(found: Mismatches) -> str:
    """Return the number of correctly predicted steps, and the kinds of wrong predictions."""
    words = f"Correct predictions during play: {found.steps - found.wrong:,} of {found.steps:,}"
    if found.wrong:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
        words += f"; wrong: {kinds}"
    several = [
        f"{found.chance:,} in situations with several outcomes" * bool(found.chance),
        f"{found.drawn:,} sampled by the model" * bool(found.drawn),
    ]
    if any(several):
        words += f" ({', '.join(filter(None, several))})"
    if found.unanswered:
        words += f"; the program failed in episodes of {found.unanswered:,} steps"
    return f"{words}."


def unverified_words(result: PlanResult) -> str:
    """Return which episodes are not verified, and how to have them verified."""
    numbers, episodes = result.unverified, len(result.side.episodes)
    named = first_few([f"#{number}" for number in numbers], MAX_NUMBERS)
    return (
        f"Unverified: {len(numbers)} of {episodes} episodes ({named}); rechecking decisions "
        f"took over {SECONDS:.0f} s plus {TIMES:.0f} times their planning, so their returns do "
        "not count. Lower the effort of a decision, such as -o mcts.budget=100 or "
        "-o icem.budget=500, choose another --planner, or lower --max-steps."
    )


def refuted_words(found: Mismatches) -> str:
    """Return that most predictions of played steps failed."""
    failed = found.uninformative + found.unanswered
    return (
        f"Refuted: predictions of {failed:,} of {found.steps + found.unanswered:,} played steps "
        "are little better than a guess, so the return is not evidence for the program."
    )


def doubt_words(result: PlanResult) -> str:
    """Return the mode of caution, and the share of decisions that used untested transitions."""
    modes = {"careful": "on", "curious": "off, untested transitions are explored", "ignore": "off"}
    reason = result.doubt.removeprefix("none: ")
    mode = f"Caution {modes.get(result.doubt, f'off: {reason}')}"
    if result.unsupported is None:
        return f"{mode}."
    return f"{mode}: {percent(result.unsupported)} of decisions used untested transitions."


def side_table(sides: Mapping[SideName, Side]) -> GridTable:
    """Compare the sides, a row each."""
    heads = ["", "mean return", "length", "decisions/s", "model steps/s"]
    cells = []
    for name, side in sides.items():
        row = [SIDES[name], "none", "", "", ""]
        if side.episodes:
            length = sum(side.lengths) / len(side.lengths)
            verified, played = len(side.verified), len(side.episodes)
            returned = mean_words(side.mean) if verified else "none verified"
            if 0 < verified < played:
                returned += f" ({verified} of {played} episodes)"
            row[1:] = returned, f"{length:.4g}", *speed_words(side.cost)
        cells.append(row)
    return GridTable(Grid("", heads, cells), compact=True)


def mean_words(mean: Mean) -> str:
    """Write a mean with its standard error."""
    return mean_with_error(mean.mean, mean.stderr)


def speed_words(cost: PlanningCost) -> tuple[str, str]:
    """Write the decisions and the steps of the model per second of planning, if any."""
    if not cost.seconds:
        return "", ""
    return f"{cost.decisions / cost.seconds:,.4g}", f"{cost.model_steps / cost.seconds:,.0f}"


def report_words(report: PlannedWith) -> str:
    """Return the planner with the forms of the model that it calls, and why not others."""
    words = f"{report.planner}, model as {' and '.join(report.forms)}"
    return f"{words} ({printable(report.note)})" if report.note else words
