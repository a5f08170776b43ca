"""Shared parts of live views: text of known width, repeated drawing, output of other code."""

import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from typing import TextIO
from unicodedata import category, east_asian_width

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import Verdict
from cwm_cli.text import cached_words, clean, money, share, tokens

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
