"""Output to stderr: messages, the level of detail, and shared parts of live views."""

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from typing import Literal, TextIO
from unicodedata import category, east_asian_width

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import Verdict
from cwm_cli.text import cached_words, clean, money, share, tokens

Loudness = Literal["quiet", "usual", "verbose"]

_PLAIN = ("dumb", "unknown")
"""Values of `TERM` for terminals without colours."""

KEPT_WHEN_QUIET = ("Error", "Warning", "")
"""Kinds of messages that are printed even with --quiet."""

LOGGER = "cwm"
"""The parent of all loggers of cwm, such as `logging.getLogger("cwm.plugins")`."""

_loudness: Loudness = "usual"


def speak(loudness: Loudness) -> None:
    """Set the level of detail on stderr.

    quiet prints errors and warnings; usual adds notes and live views; verbose adds the log of the
    library, each line with its time.
    """
    global _loudness  # one process has one stderr
    _loudness = loudness
    logger = logging.getLogger(LOGGER)
    for handler in [each for each in logger.handlers if isinstance(each, LogLines)]:
        logger.removeHandler(handler)
    verbose = loudness == "verbose"
    logger.addHandler(LogLines(verbose=verbose))
    logger.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    logger.propagate = not verbose


def is_verbose() -> bool:
    """Return whether --verbose was given."""
    return _loudness == "verbose"


class LogLines(logging.Handler):
    """A log handler that prints safe text to stderr: all records with their time, or warnings."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.NOTSET if verbose else logging.WARNING)
        line = "%(asctime)s %(name)s: %(message)s" if verbose else "Warning: %(message)s"
        self.setFormatter(logging.Formatter(line, "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; a live view replaces `sys.stderr` and prints it above itself."""
        print(clean(self.format(record)), file=sys.stderr)  # noqa: T201


def complain(text: str, kind: str = "Error") -> None:
    """Print one line to stderr, without control characters."""
    from cwm_cli.runs.places import with_urls

    if _loudness == "quiet" and kind not in KEPT_WHEN_QUIET:
        return
    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    title = f"{kind}: " if kind else ""
    # See no-color.org; None leaves the choice to click, which looks for a terminal.
    has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in _PLAIN
    typer.secho(
        title, err=True, nl=False, fg=colour, bold=True, color=None if has_colours else False
    )
    typer.echo(clean(with_urls(text)).strip(), err=True)


def progress_console() -> Console:
    """Return the console on stderr for progress; --quiet silences it.

    It moves the cursor only on a terminal that supports it, not under continuous integration, and
    not for colours in a file (FORCE_COLOR). Otherwise progress is printed as lines.
    """
    quiet = _loudness == "quiet"
    on_server = os.environ.get("CI", "").lower() not in ("", "0", "false")
    moves = sys.stderr.isatty() and not quiet and not on_server
    console = Console(stderr=True, quiet=quiet)
    return Console(
        stderr=True, quiet=quiet, force_interactive=moves and not console.is_dumb_terminal
    )


PROGRESS_SECONDS = 5.0
"""Minimum time between two progress lines about frequent events, in seconds."""

QUIET_SECONDS = 30.0
"""Maximum time between two progress lines, in seconds."""


class Pulse:
    """A thread that reports progress after a time without output."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._woken = threading.Event()
        self._over = False

        def run() -> None:
            while not self._over:
                if not self._woken.wait(QUIET_SECONDS) and not self._over:
                    self._say()
                self._woken.clear()

        threading.Thread(target=run, daemon=True).start()

    def heard(self) -> None:
        """Restart the wait after other output."""
        self._woken.set()

    def stop(self) -> None:
        """End the thread."""
        self._over = True
        self._woken.set()


class Lines(Observer):
    """An observer that prints each note to stderr."""

    def note(self, words: str, kind: str = "Note") -> None:
        """Print the line."""
        complain(words, kind)


UNSURE = "\ufffd"


@lru_cache(maxsize=1024)
def printable(text: str, limit: int = 300) -> str:
    """Return text in one line, of characters whose width all terminals agree on.

    Terminals differ about marks that combine, joiners and pictures, so these
    are replaced as control characters are.
    """
    # Cut first: cleaning a text of megabytes would stop the live view.
    line = clean(text[: 4 * limit], limit=limit)
    if line.isascii():
        return line

    def has_sure_width(character: str) -> bool:
        kind = category(character)
        # Marks combine with the character before; terminals without its glyph draw a picture
        # in one column or in two.
        if kind[0] == "M" or (kind[0] == "S" and character >= "\U0001f000"):
            return False
        return cell_len(character) == (2 if east_asian_width(character) in "WF" else 1)

    return "".join(c if has_sure_width(c) else UNSURE for c in line)


def first_line(failure: Failure) -> str:
    """Name a failure: its kind and the first line of its message."""
    lines = (line for line in failure.message[:2000].splitlines() if line.strip())
    kind = failure.kind.replace("_", " ")
    line = printable(next(lines, ""))
    return f"{kind}: {line}" if line else kind


def place_words(failure: Failure) -> str:
    """Name the kind of a failure, and the line of the program where it happened."""
    where = f", line {failure.line}" if failure.line else ""
    return failure.kind.replace("_", " ") + where


def best_words(verdict: Verdict) -> str:
    """Name the score of the best program, and the one on validation rows where that differs."""
    train, validation = share(verdict.score), share(verdict.validation)
    told = verdict.validation and validation != train
    return f"best {train} (validation {validation})" if told else f"best {train}"


def spent_words(count: int, cost: float | None, cached: int = 0) -> list[str]:
    """Name the tokens and the money that were spent, if any, and how many a provider had read."""
    words = [f"{tokens(count)} tokens{cached_words(cached)}"] if count else []
    if cost is None:
        return [*words, "cost unknown"]
    return [*words, money(cost)] if cost else words


def duration(seconds: float) -> str:
    """Name a duration: 12 s, 1:05 or 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"


REFRESHES_PER_SECOND = 4

ECHO = 3
"""Columns left free: where Ctrl-C is echoed behind a full line, the cursor is a line too low."""


class Pane:
    """Draws the lines that `lines` returns for a width and a height; cuts off the rest.

    `margin` is how many columns are left free.
    """

    def __init__(
        self, lines: Callable[[int, int], Sequence[Text]], console: Console, *, margin: int = 0
    ) -> None:
        self._lines = lines
        self._console = console
        self._margin = margin
        self._drawn: list[int] = []

    def display(self) -> Live:
        """Return the live display, which draws the lines four times a second."""

        def before_drawing() -> Pane:
            # rich erases as many lines as it printed; a narrower terminal has wrapped some.
            width = self._console.width
            wrapped = sum(-(-cells // width) - 1 for cells in self._drawn if cells)
            self._drawn = []
            if wrapped > 0:
                erase = (ControlType.ERASE_IN_LINE, 2)
                up = ((ControlType.CURSOR_UP, 1), erase)
                self._console.control(Control(ControlType.CARRIAGE_RETURN, erase, *up * wrapped))
            return self

        return Live(
            console=self._console,
            get_renderable=before_drawing,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @contextmanager
    def shown(self) -> Iterator[Live]:
        """Draw the lines during the context, and print the standard streams above them."""
        with self.display() as display, printed_above(self._console):
            display.refresh()
            yield display

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the lines; the last line of the terminal stays free for the cursor."""
        width, height = max(1, options.max_width - self._margin), max(1, options.size.height - 1)
        lines = [fitted(line, width) for line in self._lines(width, height)][-height:]
        self._drawn = [line.cell_len for line in lines]
        for line in lines:  # `render` ignores the style of a line without spans
            style = console.get_style(line.style)
            yield from Segment.apply_style(line.render(console), style)
            yield Segment.line()


def fitted(line: Text, width: int) -> Text:
    """Cut a line to a width."""
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def bar(done: int, asked: int, label: str, width: int) -> Text:
    """Return a progress bar with a label behind it."""
    length = max(0, width - len(label))
    filled = min(length, length * done // max(1, asked))
    return Text().append("━" * filled, "green").append("─" * (length - filled), "dim").append(label)


@contextmanager
def printed_above(console: Console) -> Iterator[None]:
    """Print what goes to the standard streams above the view, which it would run into."""
    out, err = Printed(console, sys.stdout), Printed(console, sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.finish()
            err.finish()


class Printed(io.TextIOBase):
    """Stands in for a standard stream: prints whole lines through the console, made harmless."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich finds the real stream under this name
        self._console = console
        self._lock = threading.Lock()
        self._begun = ""

    def writable(self) -> bool:
        """Accept text."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the real stream."""
        return self.rich_proxied_file.fileno()

    def write(self, text: str) -> int:
        """Print complete lines; of an overwritten line (carriage return), only its last version."""
        with self._lock:
            *lines, begun = (self._begun + text).split("\n")
            # A progress bar overwrites its line: keep the part after the last carriage return, but
            # not one at the very end, whose line is not overwritten yet.
            self._begun = begun[begun.rfind("\r", 0, -1) + 1 :]
        if lines:
            shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
            self._console.print(Text(clean("\n".join(shown), newlines=True)))
        return len(text)

    def finish(self) -> None:
        """Print a last line that was not ended."""
        if self._begun:
            self.write("\n")
