"""What other code prints while a view is on the screen."""

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from rich.console import Console
from rich.text import Text

from cwm_cli.text import clean


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
        self.rich_proxied_file = stream  # the name by which rich finds the real stream
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
        """Print the lines that are complete; of what was overwritten in place, only the last."""
        with self._lock:
            *lines, begun = (self._begun + text).split("\n")
            self._begun = begun[begun.rfind("\r", 0, -1) + 1 :]
        if lines:
            shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
            self._console.print(Text(clean("\n".join(shown), newlines=True)))
        return len(text)

    def finish(self) -> None:
        """Print a last line that was not ended."""
        if self._begun:
            self.write("\n")
