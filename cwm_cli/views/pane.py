"""Lines at the bottom of a terminal that are drawn anew all the time."""

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from cwm_cli.views.pictures import fitted

REFRESHES_PER_SECOND = 4

ECHO = 3
"""Columns left free: where Ctrl-C is echoed behind a full line, the cursor is a line too low."""


class Pane:
    """Draws what `lines` returns for a width and a height; what does not fit is cut off.

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
        """Return what draws the lines again and again."""
        return Live(
            console=self._console,
            get_renderable=self._before_drawing,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _before_drawing(self) -> "Pane":
        """Erase what a terminal that became narrower has wrapped of the last picture."""
        width = self._console.width
        wrapped = sum(-(-cells // width) - 1 for cells in self._drawn if cells)
        self._drawn = []
        if wrapped > 0:
            erase = (ControlType.ERASE_IN_LINE, 2)
            up = ((ControlType.CURSOR_UP, 1), erase)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, erase, *up * wrapped))
        return self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the lines, one fewer than the terminal has: the cursor goes there in the end."""
        width, height = max(1, options.max_width - self._margin), max(1, options.size.height - 1)
        lines = [fitted(line, width) for line in self._lines(width, height)][-height:]
        self._drawn = [line.cell_len for line in lines]
        for line in lines:
            yield from line.render(console, "\n")


def bar(done: int, asked: int, label: str, width: int) -> Text:
    """Draw how much of what was asked for is done, and a label behind it."""
    length = max(0, width - len(label))
    filled = min(length, length * done // max(1, asked))
    return Text().append("━" * filled, "green").append("─" * (length - filled), "dim").append(label)
