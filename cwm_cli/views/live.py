"""Follow a search: a picture that is drawn anew all the time, or a line per program."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from cwm_cli.agents.synthesizing import SearchJob
from cwm_cli.search.contracts import ROOT, Node
from cwm_cli.search.loop import Pending, Search
from cwm_cli.views.folding import Row
from cwm_cli.views.pane import Pane, bar
from cwm_cli.views.pictures import draw, facts_of, lay_out
from cwm_cli.views.printed import printed_above
from cwm_cli.views.recording import RecordingBar
from cwm_cli.views.tree import SearchTree
from cwm_cli.views.words import duration, first_line, printable


class SearchView(RecordingBar):
    """Follows `synthesize`: its lines, the recording of data, and the search while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._search_view: View | None = None

    def begins(self, work: object) -> None:
        """Open the picture of a search, or the bar of a recording."""
        super().begins(work)
        if isinstance(work, SearchJob):
            budget, console = work.choices.budget, Console(stderr=True)
            view = live(work.search, budget=budget, title=work.title, console=console)
            self._search_view = self._stack.enter_context(view)

    def advanced(self, event: object) -> None:
        """Draw a node that was learned."""
        super().advanced(event)
        if self._search_view is not None and isinstance(event, Node):
            self._search_view.learned(event)


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
        yield NodeLines(search, budget=budget, console=console)
        return
    screen = Screen(search, budget=budget, title=title, console=console)
    with screen.display() as display, printed_above(console):
        display.refresh()
        try:
            yield screen
        finally:
            screen.over = True


class NodeLines:
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
        self._pane = Pane(self._lines, console)
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tree = SearchTree(search.nodes)
        self._states = {node.id: search.strategy.state(node.id) for node in search.nodes}
        self._rows: list[Row] = []
        self._rows_are_of: object = None

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
        return self._pane.display()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the picture once."""
        return self._pane.__rich_console__(console, options)

    def _lines(self, width: int, height: int) -> Sequence[Text]:
        """Put a title above the tree, and a bar and some facts below it."""
        pending = {} if self.over else self._search.pending.copy()
        with self._lock:
            tree_lines = self._draw_tree(pending, width, height - 3)
            progress = self._progress(pending, width)
            facts = Text(" · ".join(facts_of(self._tree)))
        return [Text(self._title, "bold"), *tree_lines, progress, facts]

    def _draw_tree(self, pending: Mapping[int, Pending], width: int, height: int) -> list[Text]:
        """Draw the tree; it is laid out anew only when it or the terminal has changed."""
        state = (len(self._tree), tuple(pending), width, height)
        if state != self._rows_are_of:
            moves = [flight.move for flight in pending.values()]
            self._rows = lay_out(self._tree, moves, width=width, height=height)
            self._rows_are_of = state
        return draw(self._rows, self._tree, self._states)

    def _progress(self, pending: Mapping[int, Pending], width: int) -> Text:
        """Draw how much of the budget is spent, and say what is being done."""
        done = len(self._tree)
        words = [f"{done}/{self._budget}", duration(time.monotonic() - self._started)]
        if pending:
            words.append(f"{len(pending)} in flight")
        words += [printable(told) for step in pending if (told := self._search.doing.get(step))][:1]
        return bar(done, self._budget, " " + " · ".join(words), width)
