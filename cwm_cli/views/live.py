"""Follow a search: a picture that is drawn anew all the time, or a line per program."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from cwm_cli.llm import ROOT
from cwm_cli.search import Node, Pending, Search
from cwm_cli.views.folding import Row
from cwm_cli.views.pictures import draw, facts_of, fitted, lay_out
from cwm_cli.views.printed import printed_above
from cwm_cli.views.tree import SearchTree
from cwm_cli.views.words import duration, first_line, printable

REFRESHES_PER_SECOND = 4


class View(Protocol):
    """Follows a search."""

    def learned(self, node: Node) -> None:
        """Take in a node that the search has just learned; called in the search's thread."""
        ...


@contextmanager
def live(search: Search, *, budget: int, title: str, console: Console) -> Iterator[View]:
    """Follow a search: a picture on a terminal, plain lines elsewhere.

    The last picture stays on the screen, whatever ends the search.
    """
    if not console.is_interactive or console.options.ascii_only:
        yield Lines(search, budget=budget, console=console)
        return
    screen = Screen(search, budget=budget, title=title, console=console)
    with screen.display() as display, printed_above(console):
        display.refresh()
        try:
            yield screen
        finally:
            screen.over = True


class Lines:
    """Prints a line per node: for files, pipes and terminals that cannot move the cursor."""

    def __init__(self, search: Search, *, budget: int, console: Console) -> None:
        self._tree = SearchTree(search.nodes)
        self._budget = budget
        self._console = console
        self._started = time.monotonic()

    def learned(self, node: Node) -> None:
        """Print what came of a completion."""
        self._tree.add(node)
        number = f"{len(self._tree):>{len(str(self._budget))}}/{self._budget}"
        origin = "" if node.parent == ROOT else f" of #{node.parent}"
        best = self._tree.best or node
        scores = f"{node.verdict.score:.3f} (best {best.verdict.score:.3f})"
        words = f"[{number}] {node.action}{origin}: {scores}"
        parts = [words, duration(time.monotonic() - self._started)]
        if node.verdict.failure is not None and node.verdict.is_bug:
            parts.append(first_line(node.verdict.failure))
        self._console.print(Text("  ".join(parts)), soft_wrap=True)


class Screen:
    """Draws the tree above a bar.

    rich's thread draws while the search's thread learns: the lock keeps the
    tree whole, and the strategy is only asked in the search's thread.
    """

    def __init__(self, search: Search, *, budget: int, title: str, console: Console) -> None:
        self.over = False
        self._search = search
        self._budget = budget
        self._title = printable(title)
        self._console = console
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tree = SearchTree(search.nodes)
        self._states = {node.id: search.strategy.state(node.id) for node in search.nodes}
        self._rows: list[Row] = []
        self._rows_are_of: object = None
        self._drawn: list[int] = []

    def learned(self, node: Node) -> None:
        """Take in a node, and ask the strategy about it, its ancestors and what is on screen."""
        with self._lock:
            self._tree.add(node)
            visible = [row.content.id for row in self._rows if isinstance(row.content, Node)]
        nodes = {node.id, *islice(self._tree.ancestors(node.id), 100), *visible}
        # not under the lock: a strategy that prints would wait for the thread that draws
        states = {number: self._search.strategy.state(number) for number in nodes}
        with self._lock:
            self._states.update(states)

    def display(self) -> Live:
        """Return what draws the picture again and again."""
        return Live(
            console=self._console,
            get_renderable=self._before_drawing,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _before_drawing(self) -> "Screen":
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
        """Draw the picture, a line lower than the terminal is: the cursor goes there in the end."""
        width, height = options.max_width, max(1, options.size.height - 1)
        pending = {} if self.over else self._search.pending.copy()
        with self._lock:
            tree_lines = self._draw_tree(pending, width, height - 3)
            bar = self._bar(len(pending), width)
            facts = Text(" · ".join(facts_of(self._tree)))
        lines = [Text(self._title, "bold"), *tree_lines, bar, facts][-height:]
        lines = [fitted(line, width) for line in lines]
        self._drawn = [line.cell_len for line in lines]
        for line in lines:
            yield from line.render(console, "\n")

    def _draw_tree(self, pending: Mapping[int, Pending], width: int, height: int) -> list[Text]:
        """Draw the tree; it is laid out anew only when it or the terminal has changed."""
        state = (len(self._tree), tuple(pending), width, height)
        if state != self._rows_are_of:
            moves = [flight.move for flight in pending.values()]
            self._rows = lay_out(self._tree, moves, width=width, height=height)
            self._rows_are_of = state
        return draw(self._rows, self._tree, self._states)

    def _bar(self, in_flight: int, width: int) -> Text:
        """Draw how much of the budget is spent."""
        done = len(self._tree)
        words = [f"{done}/{self._budget}", duration(time.monotonic() - self._started)]
        if in_flight:
            words.append(f"{in_flight} in flight")
        label = " " + " · ".join(words)
        length = max(0, width - len(label))
        filled = min(length, length * done // max(1, self._budget))
        bar = Text().append("━" * filled, "green").append("─" * (length - filled), "dim")
        return bar.append(label)
