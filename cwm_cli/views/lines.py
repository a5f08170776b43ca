"""What goes to stderr: one line to the user, how much is said, the console of live views."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import typer

from cwm_cli.runs.observer import Observer

if TYPE_CHECKING:
    from rich.console import Console

Loudness = Literal["quiet", "usual", "verbose"]

KEPT_WHEN_QUIET = ("Error", "Warning", "")
"""Kinds of lines that are printed even with --quiet: what a result may not be read without."""

LOGGER = "cwm"
"""The logger above those of all modules that have something to say: `logging.getLogger("cwm.x")`"""

_loudness: Loudness = "usual"


def speak(loudness: Loudness) -> None:
    """Choose how much is said on stderr from here on.

    quiet: errors and warnings; usual: notes and live views, too; verbose: also what the library
    logs, each line with its time.
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
    """Return whether the user asked for details."""
    return _loudness == "verbose"


class LogLines(logging.Handler):
    """Prints log records to stderr as safe text: all with their time, or only warnings."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.NOTSET if verbose else logging.WARNING)
        line = "%(asctime)s %(name)s: %(message)s" if verbose else "Warning: %(message)s"
        self.setFormatter(logging.Formatter(line, "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; live views stand in for stderr, and print it above them."""
        from cwm_cli.text import clean

        print(clean(self.format(record)), file=sys.stderr)  # noqa: T201


def complain(text: str, kind: str = "Error") -> None:
    """Print one line to stderr; foreign text cannot do more than be read."""
    from cwm_cli.runs.places import with_urls
    from cwm_cli.text import clean

    if _loudness == "quiet" and kind not in KEPT_WHEN_QUIET:
        return
    colour = typer.colors.RED if kind == "Error" else typer.colors.YELLOW
    title, plain = f"{kind}: " if kind else "", False if _is_plain() else None
    typer.secho(title, err=True, nl=False, fg=colour, bold=True, color=plain)
    typer.echo(clean(with_urls(text)).strip(), err=True)


def _is_plain() -> bool:
    """Whether a terminal is to get no colours: see no-color.org."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def progress_console() -> "Console":
    """Return the console on stderr that tells of progress, and is mute with --quiet.

    It can move the cursor only on a terminal that can, and neither under continuous integration
    nor where FORCE_COLOR asks for colours in a file: there are lines instead of live views.
    """
    from rich.console import Console

    quiet = _loudness == "quiet"
    moves = sys.stderr.isatty() and not quiet and not _is_continuous_integration()
    console = Console(stderr=True, quiet=quiet)
    return Console(
        stderr=True, quiet=quiet, force_interactive=moves and not console.is_dumb_terminal
    )


def _is_continuous_integration() -> bool:
    """Whether nobody looks, as services of continuous integration say."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


QUIET_SECONDS = 30.0
"""Where lines are printed nobody waits longer than this without hearing what is being done."""


class Pulse:
    """Says what is being done whenever nothing was heard for a while, in a thread of its own."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._woken = threading.Event()
        self._over = False
        threading.Thread(target=self._run, daemon=True).start()

    def heard(self) -> None:
        """Begin to wait anew: something was said."""
        self._woken.set()

    def stop(self) -> None:
        """Say no more."""
        self._over = True
        self._woken.set()

    def _run(self) -> None:
        """Wait and speak in turn."""
        while not self._over:
            if not self._woken.wait(QUIET_SECONDS) and not self._over:
                self._say()
            self._woken.clear()


class Lines(Observer):
    """Prints each note to stderr, and shows nothing else."""

    def note(self, words: str, kind: str = "Note") -> None:
        """Print the line."""
        complain(words, kind)
