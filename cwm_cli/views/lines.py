"""Output to stderr: messages, the level of detail, and the console of live views."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import typer

from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean

if TYPE_CHECKING:
    from rich.console import Console

Loudness = Literal["quiet", "usual", "verbose"]

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
    from cwm_cli.runs.storage import with_urls

    if _loudness == "quiet" and kind not in KEPT_WHEN_QUIET:
        return
    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    title, plain = f"{kind}: " if kind else "", False if _is_plain() else None
    typer.secho(title, err=True, nl=False, fg=colour, bold=True, color=plain)
    typer.echo(clean(with_urls(text)).strip(), err=True)


def _is_plain() -> bool:
    """Return whether the terminal should get no colours; see no-color.org."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def progress_console() -> "Console":
    """Return the console on stderr for progress; --quiet silences it.

    It moves the cursor only on a terminal that supports it, not under continuous integration, and
    not for colours in a file (FORCE_COLOR). Otherwise progress is printed as lines.
    """
    from rich.console import Console

    quiet = _loudness == "quiet"
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    moves = sys.stderr.isatty() and not quiet and not in_ci
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
