"""Follow episodes while they are played: a picture that changes, or a line per episode."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.text import Text

from cwm_cli.agents.contests import Mean, Side, SideName, mean_of
from cwm_cli.agents.episodes import Cost, Episode, Round, Standing
from cwm_cli.sandbox import Report
from cwm_cli.views.pane import ECHO, Pane, bar
from cwm_cli.views.printed import printed_above
from cwm_cli.views.sides import NAMES, mean_words, report_words, speed_words
from cwm_cli.views.words import duration, first_line, printable

_WIDTH = max(map(len, NAMES.values()))


class View(Protocol):
    """Follows episodes."""

    def saw(self, side: SideName, worker: int, played: Round) -> None:
        """Take in what a worker has just played."""

    def left_out(self, side: SideName) -> None:
        """Take in that a side is not played after all."""


@contextmanager
def following(
    sides: Mapping[SideName, Side], *, episodes: int, title: str, console: Console, erase: bool
) -> Iterator[View]:
    """Follow episodes; `sides` holds what was played before.

    The last picture stays on the screen if something ends the play early, and
    if it is not to be erased for a report to take its place.
    """
    tallies = {name: _Tally.of(side, episodes) for name, side in sides.items()}
    if not console.is_interactive or console.options.ascii_only:
        with redirect_stdout(sys.stderr):  # what environments print is no result
            yield Lines(tallies, console)
        return
    screen = Screen(tallies, title=title, console=console)
    with screen.pane.display() as display, printed_above(console):
        display.refresh()
        yield screen
        display.transient = erase


@dataclass
class _Tally:
    """What is known of a side: its episodes so far, and those in flight by worker."""

    asked: int
    returns: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    report: Report | None = None
    standings: dict[int, list[Standing]] = field(default_factory=dict)

    @classmethod
    def of(cls, side: Side, asked: int) -> "_Tally":
        """Begin with what was played before."""
        return cls(asked, list(side.returns), side.cost, side.report)

    @property
    def mean(self) -> Mean:
        """The mean return so far."""
        return mean_of(self.returns)

    def add(self, worker: int, played: Round) -> None:
        """Take in what a worker has just played."""
        self.returns += [episode.returned for episode, _ in played.finished]
        self.cost = self.cost.plus(played.cost)
        self.report = self.report or played.report
        self.standings[worker] = played.standings

    def in_flight(self) -> Iterator[Standing]:
        """Yield how far the episodes in flight are, in their order."""
        yield from sorted(standing for some in self.standings.values() for standing in some)


class Lines:
    """Prints a line per episode: for files, pipes and terminals that cannot move the cursor."""

    def __init__(self, tallies: Mapping[SideName, _Tally], console: Console) -> None:
        self._tallies = tallies
        self._console = console
        self._started = time.monotonic()

    def saw(self, side: SideName, worker: int, played: Round) -> None:
        """Print what came of the episodes that are over."""
        tally = self._tallies[side]
        before = len(tally.returns)
        tally.add(worker, played)
        for place, (episode, _) in enumerate(played.finished, start=before + 1):
            mean = mean_of(tally.returns[:place]).mean
            self._print(side, f"{place}/{tally.asked}", episode, mean)

    def left_out(self, side: SideName) -> None:
        """Say nothing: whoever leaves a side out says why."""

    def _print(self, side: SideName, place: str, episode: Episode, mean: float) -> None:
        """Print what came of an episode."""
        words = f"[{place}] {NAMES[side]} #{episode.number}: return {episode.returned:.5g}"
        parts = [f"{words} (mean {mean:.5g})", f"{episode.length:,} steps"]
        parts.append(duration(time.monotonic() - self._started))
        if episode.failure:
            parts.append(f"{episode.failures:,} failures: {first_line(episode.failure)}")
        self._console.print(Text("  ".join(parts)), soft_wrap=True)


class Screen:
    """Draws a line per side, the episodes in flight, a bar, and who plans with what.

    rich's thread draws while another takes in what is played, hence the lock.
    """

    def __init__(self, tallies: Mapping[SideName, _Tally], *, title: str, console: Console) -> None:
        self.pane = Pane(self._lines, console, margin=ECHO)
        self._tallies = dict(tallies)
        self._title = printable(title)
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def saw(self, side: SideName, worker: int, played: Round) -> None:
        """Take in what a worker has just played."""
        with self._lock:
            self._tallies[side].add(worker, played)

    def left_out(self, side: SideName) -> None:
        """Draw a side no more."""
        with self._lock:
            del self._tallies[side]

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Put all into words; where there is little room the sides and the bar remain."""
        with self._lock:
            sides = [_side(name, tally) for name, tally in self._tallies.items()]
            flights = _flights(self._tallies)
            facts = [text for text in map(_facts, self._tallies.values()) if text]
            progress = self._progress(width)
        room = max(0, height - 2 - len(sides))
        notes = [Text(facts[0], "dim")] if facts else []
        return [Text(self._title, "bold"), *sides, *[*flights[: room - 1], *notes][:room], progress]

    def _progress(self, width: int) -> Text:
        """Draw how much of what was asked for is played."""
        asked = sum(tally.asked for tally in self._tallies.values())
        done = sum(len(tally.returns) for tally in self._tallies.values())
        spent = duration(time.monotonic() - self._started)
        return bar(done, asked, f" {done:,}/{asked:,} episodes · {spent}", width)


def _side(name: SideName, tally: _Tally) -> Text:
    """Put a side into words."""
    width = len(str(tally.asked))
    line = Text(f"{NAMES[name]:<{_WIDTH}}  {len(tally.returns):>{width}}/{tally.asked}")
    if tally.returns:
        line.append(f"  return {mean_words(tally.mean)}", "bold green")
    if tally.cost.decisions:
        line.append("  {} decisions/s, {} model steps/s".format(*speed_words(tally.cost)), "dim")
    if tally.cost.failures:
        line.append(f"  {tally.cost.failures:,} failures", "red")
    return line


def _flights(tallies: Mapping[SideName, _Tally]) -> list[Text]:
    """Put the episodes in flight into words, a line each."""
    return [
        Text(f"  #{number} step {length:,}  return {returned:.5g}", "cyan")
        for tally in tallies.values()
        for number, length, returned in tally.in_flight()
    ]


def _facts(tally: _Tally) -> str:
    """Say what plans are made with, and why with nothing faster."""
    return report_words(tally.report) if tally.report else ""
