"""Views of `cwm learn`: a live picture on a terminal, or a line per episode, and the report."""

import shlex
import time
from collections.abc import Iterator, Sequence
from math import floor, isfinite, log10, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from cwm_cli.runs.storage import named
from cwm_cli.text import money, percent
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.tables import MAX_GAPS, gap_parts, labelled
from cwm_cli.views.terminal import bar, duration, printable
from cwm_learn.actors.base import PLAY_AIMS, Knowledge
from cwm_learn.certificate import MEAN_EPISODES, NEEDED, Certificate, EpisodeRecord
from cwm_learn.curve import learning_chart
from cwm_learn.learner import Learner
from cwm_learn.outcomes import MismatchEvent, StepEvent
from cwm_learn.questions import RecordedQuestion, open_questions
from cwm_learn.records import ProgramRecord
from cwm_learn.runs import LearningResult

STOPPED = {
    "certified": "the program is certified",
    "return": "the required return is reached",
    "steps": "step limit reached; repeat with more --steps to continue",
    "seconds": "time limit reached; repeat with more --seconds to continue",
    "idle": "no untested situation can be reached any more",
    "completions": "limit of completions reached",
    "money": "cost limit reached",
}
"""Reasons to stop, as shown to users."""


def learning_view(console: Console, *, steps: int) -> "LearningView":
    """Return the view: a live picture on a terminal, else a line per episode.

    `steps` is the maximum number of environment steps.
    """
    if can_draw(console):
        return LearningPicture(console, steps)
    return LearningLines(console, steps)


class LearningView(ProgressView):
    """The state that both views show."""

    def __init__(self, console: Console, max_steps: int) -> None:
        super().__init__(console)
        self.max_steps = max_steps
        self.title = ""
        self.steps = 0
        self.returns: list[dict[str, Any]] = []
        self.step: StepEvent | None = None
        self.mismatch: MismatchEvent | None = None
        self.mismatches = 0
        self.program: ProgramRecord | None = None
        self.questions: dict[str, RecordedQuestion] = {}
        self.certificate: Certificate | None = None
        self.step_count, self.step_seconds = 0, 0.0
        self.length, self.returned = 0, 0.0  # of the running episode
        self.work: object = None

    def begins(self, work: object) -> None:
        """Start with the records of the learner, if it continues a run."""
        self.work = work
        run = getattr(work, "run", None)
        self.title = printable(getattr(work, "title", "learning"))
        self.start_clock(run.elapsed if run else 0.0)
        if isinstance(work, Learner):
            self.steps = work.steps
            self.returns = [each.curve_point for each in work.episodes if not each.is_cut]
            self.program = work.programs[-1] if work.programs else None
            self.questions = {each.key: each for each in work.questions}
            self.mismatches = sum(each.mismatched for each in work.episodes)

    def advanced(self, event: object) -> None:
        """Record an event."""
        match event:
            case StepEvent():
                self.steps, self.step = event.steps, event
                self.step_count += 1
                self.step_seconds += event.seconds
                self.length += 1
                self.returned += event.row.reward
            case MismatchEvent():
                self.mismatch = event
                self.mismatches += not event.by_chance
            case EpisodeRecord():
                self.steps = max(self.steps, event.steps)
                self.returns += [event.curve_point] * (not event.is_cut)
                self.length, self.returned = 0, 0.0
                self.step = None  # its aim does not hold for the next episode
            case ProgramRecord():
                self.program = event
            case RecordedQuestion():
                self.questions[event.key] = event
            case Certificate():
                self.certificate = event

    @property
    def waiting(self) -> str:
        """The model that has not answered yet and for how long, "" if no request is in flight."""
        in_flight = getattr(self.work, "in_flight", None)
        oldest = in_flight.oldest if in_flight else None
        if oldest is None:
            return ""
        waited = duration(time.monotonic() - oldest.since)
        return f"waiting for {printable(oldest.model, 40) or 'the backend'} for {waited}"


class LearningLines(PrintedProgress, LearningView):
    """A line per episode."""

    def advanced(self, event: object) -> None:
        """Print a finished episode, or a certificate."""
        super().advanced(event)
        if isinstance(event, EpisodeRecord):
            promise, count = event.promised, event.mismatched
            promised = "" if promise is None else f" (planned {promise:.5g})"
            returned = f"{event.returned:.5g}{' so far' if event.is_cut else ''}"
            words = f"step {event.steps:,}  {event.aim}: return {returned}{promised}"
            mismatches = f"{count} mismatch{'' if count == 1 else 'es'}" if count else ""
            self.print_line(words, mismatches, self._program(), self.elapsed)
        elif isinstance(event, Certificate):
            self.print_line(f"certified: {event}")

    def print_status(self) -> None:
        """Print the current activity after a silence."""
        activity = self.waiting or (describe_aim(self.step) if self.step else "beginning")
        self.print_line(
            f"[{self.steps:,}/{self.max_steps:,}] {activity}", self._program(), self.elapsed
        )

    def _program(self) -> str:
        return f"program {self.program.number}, {self.program.lines} lines" if self.program else ""


def describe_aim(step: StepEvent) -> str:
    """Return the aim of a step and the reason for it."""
    reason = printable(step.intent.reason, 200)
    return f"{step.intent.aim}: {reason}" if reason else step.intent.aim


def describe_mismatch(event: MismatchEvent, known: Knowledge | None = None) -> str:
    """Return the wrong parts with their values, and the component with the largest error.

    `known` has the names of the components.
    """
    row, predicted = event.row, event.predicted
    if predicted is None:
        return "no prediction"
    texts = []
    for part in event.parts:
        actual, value = getattr(row, part), getattr(predicted, part)
        if part == "observation":
            actual = row.next_observation
            part, actual, value = _worst_component(actual, value, known)
        if isinstance(actual, float):
            error = abs(actual - value)
            actual, value = round_by_error(actual, error), round_by_error(value, error)
        texts.append(f"{part} {printable(str(actual), 40)}, predicted {printable(str(value), 40)}")
    return "; ".join(texts)


def _worst_component(actual: Any, predicted: Any, known: Knowledge | None) -> tuple[str, Any, Any]:
    """Return the name and both values of the component of an observation with the largest error."""
    if not isinstance(actual, np.ndarray) or np.shape(actual) != np.shape(predicted):
        describe = known.describe if known else str
        return "observation", describe(actual), describe(predicted)
    values, others = np.asarray(actual, float).ravel(), np.asarray(predicted, float).ravel()
    place = int(np.abs(values - others).argmax())
    name = known.component_name(place) if known else f"observation[{place}]"
    return name, float(values[place]), float(others[place])


def round_by_error(value: float, error: float) -> str:
    """Return a number with the digits up to the second significant digit of its error."""
    if not (isfinite(error) and isfinite(value)) or error <= 0:
        return f"{value:.5g}"
    return f"{value:.{min(9, max(0, 1 - floor(log10(error))))}f}"


class LearningPicture(DrawnProgress, LearningView):
    """A live picture: the returns over the steps, the aim, the program, the open questions."""

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines; a low terminal has no plot."""
        facts = list(self._facts())
        max_plot_lines = 12  # maximum height of the plot in lines
        room = min(max_plot_lines, height - 2 - len(facts))
        plot: list[Text] = []
        if self.returns and room >= 3 and width >= 20:
            plot = learning_chart("", self.returns).dots(width, room)
        words = f" {self.steps:,}/{self.max_steps:,} steps · {self.elapsed}"
        progress = bar(self.steps, self.max_steps, words, width)
        title = Text(self.title, "bold").append("  return of each episode", "dim")
        return [title, *plot, *facts[: max(0, height - 2)], progress]

    def _facts(self) -> Iterator[Text]:
        """Yield the current facts, one per line."""
        words = (
            f"{len(self.returns) + 1:,}: {self.length:,} steps, return {self.returned:.5g} so far"
        )
        if self.returns:
            best = max(each["return"] for each in self.returns)
            words += f"; last {self.returns[-1]['return']:.5g}, best {best:.5g}"
        yield Text(f"episode   {words}", "bold green")
        if waiting := self.waiting:
            yield Text(f"model     {waiting}", "yellow")
        if self.step:
            promise = self.step.intent.promised_return
            promised = "" if promise is None else f" (planned return {promise:.5g})"
            yield Text(f"aim       {describe_aim(self.step)}{promised}", "cyan")
        elif self.step_count:
            yield Text("aim       a new episode", "cyan")
        if self.step_count:
            words = f"{1000 * self.step_seconds / self.step_count:,.1f} ms per step"
            if isinstance(self.work, Learner):
                words += f", and {self.work.writing_seconds:,.0f} s for writing programs"
            yield Text(f"planning  {words}", "dim")
        if self.mismatch:
            known = self.work.known if isinstance(self.work, Learner) else None
            chance = " by chance" * self.mismatch.by_chance
            words = (
                f"step {self.mismatch.steps:,}{chance}: {describe_mismatch(self.mismatch, known)}"
            )
            yield Text(f"mismatch  {words} ({self.mismatches:,} so far)", "red")
        if self.program:
            program = self.program
            words = f"{program.number}, {program.lines} lines by {printable(program.origin, 40)}"
            wrong = f", {program.unexplained} rows unexplained" if program.unexplained else ""
            yield Text(f"program   {words}, from {program.rows:,} rows{wrong}")
        if questions := open_questions(self.questions.values()):
            yield Text(
                f"open      {len(questions)} questions; {printable(questions[0].text, 200)}",
                "yellow",
            )
        if self.certificate:
            yield Text(f"certified {self.certificate}", "bold green")


def learning_report(result: LearningResult, curve: Path) -> Iterator[RenderableType]:
    """Yield the certificate, the returns, the effort, open questions and the next command."""
    play = [each["return"] for each in result.returns if each["aim"] in PLAY_AIMS]
    play = play[-MEAN_EPISODES:]
    title = "Certified" if result.certificate else "Not certified"
    style = "bold green" if result.certificate else "bold yellow"
    reason = str(result.certificate or NEEDED)
    yield Text(f"{title}: ", style).append(f"{reason}.", "default not bold")
    if play:
        count = len(play)
        error = stdev(play) / sqrt(count) if count > 1 else 0.0
        mean = round_by_error(fmean(play), error)
        yield Text(f"Mean return {mean} (last {count} episode{'s' * (count != 1)} of play).")
    words = f"Learned from {result.steps:,} steps in {result.episodes:,} episodes"
    words += f" ({duration(result.seconds)}"
    if result.seconds:
        writing, planning = (
            percent(min(1.0, part / result.seconds))
            for part in (result.writing_seconds, result.planning_seconds)
        )
        words += f"; {writing} writing {result.refits:,} program{'s' * (result.refits != 1)}, "
        words += f"{planning} planning"
    yield Text(f"{words}).")
    yield Text(f"Stopped: {STOPPED.get(result.stopped, result.stopped)}.")
    if result.completions:
        yield Text(f"Cost: {result.completions:,} completions, {money(result.cost)}.")
    questions = open_questions(result.questions)
    yield from gap_parts([printable(each.text) for each in questions])
    if len(questions) > MAX_GAPS:
        yield Text(f"  and {len(questions) - MAX_GAPS} more: cwm runs show {named(result.run)}")
    lines = {}
    if result.trained:
        lines["Model"] = f"trained by {result.trained}"
    else:
        lines["Program"] = named(result.program) if result.program else "none"
    playable = result.has_simulator and (result.program is not None or bool(result.trained))
    command = ["cwm", "plan"] if playable else ["cwm", "runs", "show"]
    lines["Curve"] = named(curve)
    lines["Next"] = shlex.join([*command, named(result.run)])
    yield from labelled(lines)
