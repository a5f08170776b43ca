"""Follow `cwm train`: losses, held-out measures and returns, live or in lines."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from cwm_cli.runs.storage import named
from cwm_cli.text import mean_with_error
from cwm_cli.views.curves import Chart, Series, save_charts
from cwm_cli.views.progress import DrawnProgress, PrintedProgress, ProgressView, can_draw
from cwm_cli.views.tables import labelled
from cwm_cli.views.terminal import bar, duration, printable
from cwm_neural.training.job import TrainingJob
from cwm_neural.training.runs import AgentTest, EpochRecord, TrainingResult
from cwm_neural.training.train import TrainingLoop

MAX_NUMBERS = 8
"""Maximum number of losses or measures in a line."""


def training_view(console: Console) -> "TrainingView":
    """Return the view: a live picture on a terminal, else a line per epoch."""
    if can_draw(console):
        return TrainingPicture(console)
    return TrainingLines(console)


class TrainingView(ProgressView):
    """The progress of training."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.work: TrainingLoop | TrainingJob | None = None
        self.epochs: list[EpochRecord] = []
        self.played: list[AgentTest] = []

    def begins(self, work: object) -> None:
        """Start with the epochs of earlier sessions."""
        assert isinstance(work, TrainingLoop | TrainingJob)
        self.work = work
        self.start_clock(work.run.elapsed)
        self.epochs, self.played = list(work.epochs), list(work.played)

    def advanced(self, event: object) -> None:
        """Record an event."""
        match event:
            case EpochRecord():
                self.epochs.append(event)
            case AgentTest():
                self.played.append(event)


def number_words(numbers: Mapping[str, float]) -> str:
    """Return the first numbers with their names."""
    words = [f"{name} {value:.4g}" for name, value in list(numbers.items())[:MAX_NUMBERS]]
    return printable(", ".join(words))


def epoch_words(epoch: EpochRecord) -> str:
    """Return the line of an epoch."""
    parts = [f"epoch {epoch.number}", f"step {epoch.steps:,}"]
    if epoch.episodes:
        mean = sum(each.returned for each in epoch.episodes) / len(epoch.episodes)
        parts.append(f"return {mean:.4g} of {len(epoch.episodes)}")
    if epoch.losses:
        parts.append(number_words(epoch.losses))
    if epoch.held_out:
        parts.append(f"held-out {number_words(epoch.held_out)}")
    return "  ".join(parts)


def played_words(played: AgentTest) -> str:
    """Return the line of a test: mean return, standard error and episodes."""
    who = f"test after epoch {played.number}" if played.number else "random play"
    count, returned = len(played.returns), mean_with_error(played.mean, played.stderr)
    failed = f", {played.failures} decisions without a plan" if played.failures else ""
    return f"{who}  return {returned} in {count} episode{'s' * (count != 1)}{failed}"


class TrainingLines(PrintedProgress, TrainingView):
    """Prints a line per epoch and per test."""

    def advanced(self, event: object) -> None:
        """Print an epoch or a test."""
        super().advanced(event)
        if isinstance(event, EpochRecord):
            self.print_line(epoch_words(event), self.elapsed)
        elif isinstance(event, AgentTest):
            self.print_line(played_words(event), self.elapsed)

    def print_status(self) -> None:
        """Print the current work."""
        assert self.work is not None
        self.print_line(self.work.doing, self.elapsed)


class TrainingPicture(DrawnProgress, TrainingView):
    """Draws the returns, the losses and the current work."""

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return all lines; a low terminal has no plot."""
        work = self.work
        assert work is not None
        facts = list(self._facts(work))
        series = return_series(self.epochs, self.played)
        steps = self.epochs[-1].steps if self.epochs else 0
        plot: list[Text] = []
        max_plot_height = 10  # maximum height of the plot in lines
        room = min(max_plot_height, height - 2 - len(facts))
        if series and room >= 4 and width >= 20:
            plot = Chart.of("", "steps", "return", series).dots(width, room)
        title = Text(printable(work.run.title), "bold")
        if plot:
            title.append(f"  return: {', '.join(each.name for each in series)}", "dim")
        words = f" {steps:,}/{work.wanted:,} steps · {self.elapsed}"
        lines = [title, *plot, *facts]
        return [*lines[: max(0, height - 1)], bar(steps, work.wanted, words, width)]

    def _facts(self, work: TrainingLoop | TrainingJob) -> Iterator[Text]:
        """Yield the current facts, one per line."""
        yield Text(f"doing     {printable(work.doing)}", "bold green")
        if self.epochs:
            last = self.epochs[-1]
            if last.losses:
                yield Text(f"losses    {number_words(last.losses)}", "green")
            if last.held_out:
                yield Text(f"held-out  {number_words(last.held_out)}", "cyan")
        tests = [each for each in self.played if each.number]
        if tests:
            best = max(tests, key=lambda each: each.mean)
            yield Text(f"tested    {played_words(tests[-1])}", "yellow")
            if best is not tests[-1]:
                yield Text(f"best      {played_words(best)}", "dim")
        for each in self.played[:1]:
            if not each.number:
                yield Text(f"random    return {each.mean:.5g}", "dim")


def return_series(epochs: Sequence[EpochRecord], played: Sequence[AgentTest]) -> list[Series]:
    """Return the returns of collected episodes, and of tests with standard errors."""
    episodes = [each for epoch in epochs for each in epoch.episodes]
    found = []
    if tests := list(played):
        means, errors = [each.mean for each in tests], [each.stderr or 0.0 for each in tests]
        pairs = list(zip(means, errors, strict=True))
        band = [mean - error for mean, error in pairs], [mean + error for mean, error in pairs]
        found.append(Series("tests", [each.steps for each in tests], means, band))
    if episodes:
        steps, returns = zip(*((each.steps, each.returned) for each in episodes), strict=True)
        found.append(Series("collected", steps, returns, loose=True))
    return found


def number_charts(title: str, epochs: Sequence[EpochRecord], part: str) -> Iterator[Chart]:
    """Yield a chart for each loss, or for each held-out measure."""
    names = dict.fromkeys(name for each in epochs for name in getattr(each, part))
    for name in list(names)[:MAX_NUMBERS]:
        points = [(each.steps, getattr(each, part).get(name)) for each in epochs]
        known = [(x, y) for x, y in points if y is not None and abs(y) < float("inf")]
        if known:
            xs, ys = zip(*known, strict=True)
            yield Chart.of(f"{title}: {name}", "steps", name, [Series(name, xs, ys)])


def save_training_curves(env: str, result: TrainingResult) -> list[Path]:
    """Write returns, losses and held-out measures to `curve.svg`; return the file."""
    played = [*([result.random] if result.random else []), *result.tests]
    charts = []
    if series := return_series(result.epochs, played):
        charts.append(Chart.of(f"{env}: return", "steps", "return of an episode", series))
    charts += number_charts("loss", result.epochs, "losses")
    charts += number_charts("held out", result.epochs, "held_out")
    if not charts:
        return []
    file = result.run / "curve.svg"
    save_charts(charts, file)
    return [file]


def training_report(result: TrainingResult, curve: Sequence[Path]) -> Iterator[RenderableType]:
    """Yield returns, losses, sizes, the file of curves if there is one, and the next command."""
    if best := result.best:
        yield Text(f"Best test: {played_words(best)}", "bold")
        if best is not result.tests[-1]:
            yield Text(f"Last test: {played_words(result.tests[-1])}")
    if result.random:
        yield Text(f"Random actions: mean return {result.random.mean:.5g}")
    yield Text(f"Trained on {result.steps:,} steps ({duration(result.seconds)}).")
    lines = {}
    if result.epochs:
        last = result.epochs[-1]
        if last.held_out:
            lines["Held-out losses"] = number_words(last.held_out)
        if last.losses:
            lines["Training losses"] = number_words(last.losses)
    if result.parameters:
        sizes = ", ".join(f"{name} {count:,}" for name, count in result.parameters.items())
        lines["Parameters"] = printable(sizes)
    if curve:
        lines["Curve"] = named(curve[0])
    command = ["cwm", "plan"] if result.has_simulator else ["cwm", "runs", "show"]
    lines["Next"] = shlex.join([*command, named(result.run)])
    yield from labelled(lines)
