"""Base classes of views of long work: a picture on a terminal, or printed lines."""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cwm_cli.views.lines import Lines, Pulse
from cwm_cli.views.terminal import ECHO, Pane, duration


def can_draw(console: Console) -> bool:
    """Return whether the console can redraw a picture in place."""
    return console.is_interactive and not console.options.ascii_only


class ProgressView(Lines):
    """The state of some work, and the time that it took so far."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.start_clock()

    def start_clock(self, before: float = 0.0) -> None:
        """Count the time from now on, after `before` seconds in earlier sessions."""
        self.began = time.monotonic() - before

    @property
    def elapsed(self) -> str:
        """Elapsed time."""
        return duration(time.monotonic() - self.began)


class PrintedProgress(ProgressView):
    """Prints lines, for files, pipes and terminals that cannot move the cursor.

    A subclass inherits this class first, and then the view that records the events.
    """

    _pulse: Pulse | None = None

    def begins(self, work: object) -> None:
        """Start to report progress after silence."""
        super().begins(work)
        self._pulse = Pulse(self.print_status)

    def ends(self) -> None:
        """Stop the reports."""
        if self._pulse:
            self._pulse.stop()

    def print_status(self) -> None:
        """Print the current activity after a silence."""
        raise NotImplementedError

    def print_line(self, *parts: str) -> None:
        """Print a line of the parts that are not empty."""
        if self._pulse:
            self._pulse.heard()
        self.console.print(Text("  ".join(filter(None, parts))), soft_wrap=True)


class DrawnProgress(ProgressView):
    """Draws a picture while the work goes on; the last picture stays on the screen.

    rich draws in one thread while another one works; a lock keeps both consistent. A subclass
    inherits this class first, and then the view that records the events.
    """

    def __init__(self, console: Console, *arguments: Any) -> None:
        super().__init__(console, *arguments)
        self.pane = Pane(self._locked_lines, console, margin=ECHO)
        self.display: Live | None = None
        self._lock = threading.RLock()
        self._stack = ExitStack()

    def begins(self, work: object) -> None:
        """Start to draw; further work has a picture of its own."""
        self._stack.close()
        super().begins(work)
        self.display = self._stack.enter_context(self.pane.shown())

    def advanced(self, event: object) -> None:
        """Record an event."""
        with self._lock:
            super().advanced(event)

    def ends(self) -> None:
        """Stop drawing."""
        self._stack.close()

    def _locked_lines(self, width: int, height: int) -> Sequence[Text]:
        with self._lock:
            return self.lines(width, height)

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return the lines of the picture for a number of columns and of lines."""
        raise NotImplementedError
