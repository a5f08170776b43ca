"""Follow a search: a picture that is drawn anew all the time, or a line per program.

A `SearchTree` knows the size and the best node of every subtree; `fold` chooses the nodes that
matter and folds the rest, so that all fits on a screen; `live` and `SearchView` show it while the
search runs, `finished_tree` when it is over.
"""

import threading
import time
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import NamedTuple, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from cwm_cli.commands.synthesize import SearchJob
from cwm_cli.search.contracts import ROOT, START, Move, Node
from cwm_cli.search.loop import Pending, Search
from cwm_cli.text import share
from cwm_cli.views.lines import Pulse, progress_console
from cwm_cli.views.recording import RecordingBar
from cwm_cli.views.terminal import (
    Pane,
    bar,
    best_words,
    duration,
    first_line,
    fitted,
    printable,
    printed_above,
    spent_words,
)

Rank = tuple[float, float, int]
"""Orders nodes: the smallest rank is the best score, and of equal ones the earliest."""

WORST: Rank = (0.0, 0.0, ROOT)


@dataclass(slots=True)
class Subtree:
    """A node with what lies below it; `children` have the best subtree first."""

    parent: int = ROOT
    rank: Rank = WORST
    best: Rank = WORST
    below: int = 0
    children: list[tuple[Rank, int]] = field(default_factory=list)


class SearchTree:
    """The nodes learned so far; a new one costs a step per ancestor, whatever the tree's size."""

    def __init__(self, nodes: Iterable[Node] = (), switches: int = 0) -> None:
        self.switches = switches
        self.nodes: dict[int, Node] = {}
        self.branches: dict[int, Subtree] = {ROOT: Subtree()}
        self.completions = 0
        self.tokens = 0
        self.cached = 0
        self.cost: float | None = 0.0
        for node in nodes:
            self.add(node)

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.nodes)

    @property
    def best(self) -> Node | None:
        """The best node."""
        return self.nodes.get(self.branches[ROOT].best[2])

    def newest(self) -> Iterator[int]:
        """Yield the ids of the nodes, the newest first."""
        return reversed(self.nodes)

    def ancestors(self, node: int) -> Iterator[int]:
        """Yield the ids of the nodes above a node, the nearest first."""
        while (node := self.branches[node].parent) != ROOT:
            yield node

    def add(self, node: Node) -> None:
        """Take a node in and tell its ancestors."""
        usage = node.usage
        self.completions += node.asked
        self.tokens += usage.tokens
        self.cached += usage.cached_tokens
        if self.cost is not None:
            self.cost = None if usage.cost is None else self.cost + usage.cost
        rank = (-node.verdict.score, -node.verdict.validation, node.id)
        self.nodes[node.id] = node
        self.branches[node.id] = Subtree(node.parent, rank, rank)
        insort(self.branches[node.parent].children, (rank, node.id))
        for ancestor in self.ancestors(node.id):
            self.branches[ancestor].below += 1
            self._improve(ancestor, rank)
        top = self.branches[ROOT]
        top.below += 1
        top.best = top.children[0][0]

    def _improve(self, node: int, rank: Rank) -> None:
        """Note a node below another one if it is the best there."""
        branch = self.branches[node]
        if rank < branch.best:
            siblings = self.branches[branch.parent].children
            del siblings[bisect_left(siblings, (branch.best, node))]
            insort(siblings, (rank, node))
            branch.best = rank


class Fold(NamedTuple):
    """Nodes that are not shown: how many, and the score of the best of them."""

    hidden: int
    best: float


class Row(NamedTuple):
    """A line of the picture; `adrift` where the line above is not the parent."""

    guides: str
    content: Node | Move | Fold
    adrift: bool = False


def fold(tree: SearchTree, flights: Sequence[Move], *, rows: int, levels: int) -> list[Row]:
    """Lay the tree out in so many rows and levels.

    The best node, the completions in flight and the newest nodes stay, then
    the path to the best node from both its ends. It costs steps per row and
    per ancestor of what is shown, not per node.
    """
    forest = Forest(tree, flights)
    wanted = list(islice(dict.fromkeys(_by_importance(forest, rows)), 2 * rows))

    def fits(count: int) -> bool:
        cut = Cut(forest, wanted[:count])
        return cut.rows <= rows and cut.levels <= levels

    count = max(1, _most(len(wanted), fits))
    cut = Cut(forest, wanted[:count])
    if cut.rows < rows and count < len(wanted):
        rest = [item for item in wanted[count:] if item not in cut.owner]
        cut = _fill(cut, rest, rows=rows, levels=levels)
    return list(_rows(cut.with_single_nodes().entries(ROOT), ""))[:rows]


def _fill(cut: "Cut", rest: Sequence[int], *, rows: int, levels: int) -> "Cut":
    """Show more items where a tree got too deep before it got too long."""

    def filled(count: int) -> Cut:
        return Cut(cut.forest, cut.shown, rest[:count], levels)

    return filled(_most(len(rest), lambda count: filled(count).rows <= rows))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, 0 if 1 does not."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))


@dataclass(frozen=True)
class Forest:
    """A tree together with the completions in flight, which are numbered after its nodes."""

    tree: SearchTree
    flights: Sequence[Move]

    @cached_property
    def first_flight(self) -> int:
        """The number of the first completion in flight."""
        return next(self.tree.newest(), ROOT) + 1

    def parent(self, item: int) -> int:
        """Return what an item hangs from."""
        flight = item - self.first_flight
        return self.flights[flight].parent if flight >= 0 else self.tree.branches[item].parent

    def content(self, item: int) -> Node | Move:
        """Return the node or the move behind a number."""
        flight = item - self.first_flight
        return self.flights[flight] if flight >= 0 else self.tree.nodes[item]


def _by_importance(forest: Forest, rows: int) -> Iterator[int]:
    """Yield items, the most important first; some come twice."""
    tree = forest.tree
    flights = range(forest.first_flight, forest.first_flight + len(forest.flights))
    path: list[int] = []
    if tree.best is not None:
        yield tree.best.id
        path = list(tree.ancestors(tree.best.id))
    yield from flights[: rows // 3]
    yield from islice(tree.newest(), 3)
    ends = _alternately(path, reversed(path))
    parents = (move.parent for move in forest.flights[: rows // 3] if move.parent != ROOT)
    yield from _alternately(ends, chain(parents, islice(tree.newest(), rows)))
    yield from flights[rows // 3 : rows]


def _alternately(one: Iterable[int], other: Iterable[int]) -> Iterator[int]:
    """Yield from two sources in turn until both are empty."""
    return (item for pair in zip_longest(one, other) for item in pair if item is not None)


class Entry(NamedTuple):
    """A line and the lines below it."""

    content: Node | Move | Fold
    adrift: bool
    below: "list[Entry]"


@dataclass
class Cut:
    """A choice of items to show, `optional` ones only where they are not too deep.

    `owner` maps every shown item, and every hidden one above a shown one, to
    its nearest shown ancestor; whatever is hidden folds into one line there.
    """

    forest: Forest
    chosen: InitVar[Collection[int]]
    optional: InitVar[Collection[int]] = ()
    deepest: InitVar[int] = 0
    shown: dict[int, None] = field(default_factory=dict, init=False)
    owner: dict[int, int] = field(default_factory=dict, init=False)
    owned: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list), init=False)
    hidden: dict[int, int] = field(default_factory=dict, init=False)
    levels: int = field(default=0, init=False)

    def __post_init__(
        self, chosen: Collection[int], optional: Collection[int], deepest: int
    ) -> None:
        left_out = set(optional)
        self.hidden[ROOT] = self.forest.tree.branches[ROOT].below
        depths = {ROOT: 0}
        for item in sorted((*chosen, *optional)):  # parents come before their children
            owner = self._find_owner(item)
            depth = depths[owner] + 1 + self._adrift(item)
            if depth <= deepest or item not in left_out:
                depths[item] = depth
                self._show(item, owner)
        self.levels = max(depths.values())

    def _show(self, item: int, owner: int) -> None:
        """Show an item below its owner."""
        self.shown[item] = None
        self.owned[owner].append(item)
        if item < self.forest.first_flight:
            below = self.forest.tree.branches[item].below
            self.hidden[item] = below
            self.hidden[owner] -= below + 1

    @property
    def rows(self) -> int:
        """How many lines it takes."""
        return len(self.shown) + sum(map(bool, self.hidden.values()))

    def with_single_nodes(self) -> "Cut":
        """Show the nodes that would be folded alone: they take no more room."""
        alone = [self._best_hidden[owner][2] for owner, count in self.hidden.items() if count == 1]
        return Cut(self.forest, [*self.shown, *alone]) if alone else self

    def entries(self, owner: int) -> list[Entry]:
        """Return the lines below a shown item, the fold first: it is mostly older."""
        direct: list[Entry] = []
        adrift: list[Entry] = []
        for item in self.owned[owner]:
            loose = self._adrift(item)
            entry = Entry(self.forest.content(item), loose, self.entries(item))
            (adrift if loose else direct).append(entry)
        if hidden := self.hidden.get(owner):
            fold = Fold(hidden, -self._best_hidden[owner][0])
            direct.insert(0, Entry(fold, False, adrift))
        return direct

    def _adrift(self, item: int) -> bool:
        """Whether the parent of a shown item is hidden."""
        return self.forest.parent(item) != self.owner[item]

    def _find_owner(self, item: int) -> int:
        """Walk up to the nearest shown ancestor, and note it for all that is passed."""
        path = [item]
        above = self.forest.parent(item)
        while above != ROOT and above not in self.shown and above not in self.owner:
            path.append(above)
            above = self.forest.parent(above)
        owner = above if above == ROOT or above in self.shown else self.owner[above]
        self.owner.update(dict.fromkeys(path, owner))
        return owner

    @cached_property
    def _best_hidden(self) -> dict[int, Rank]:
        """Return, for every shown item with a fold, the rank of the best node in the fold."""
        found: dict[int, list[Rank]] = defaultdict(list)
        branches = self.forest.tree.branches
        for item in (ROOT, *self.owner):
            if item >= self.forest.first_flight:
                continue
            hidden = item != ROOT and item not in self.shown
            owner = self.owner[item] if hidden else item
            found[owner] += [branches[item].rank] if hidden else []
            aside = (rank for rank, child in branches[item].children if child not in self.owner)
            found[owner] += islice(aside, 1)
        return {owner: min(ranks) for owner, ranks in found.items() if ranks}


def _rows(entries: Sequence[Entry], guides: str) -> Iterator[Row]:
    """Draw the guides of a tree."""
    for place, entry in enumerate(entries, start=1):
        last = place == len(entries)
        yield Row(guides + ("└ " if last else "├ "), entry.content, entry.adrift)
        yield from _rows(entry.below, guides + ("  " if last else "│ "))


def finished_tree(nodes: Sequence[Node]) -> "FinishedTree":
    """Draw the nodes of a run: folded to a terminal, in a file as tall as it gets."""
    return FinishedTree(SearchTree(nodes))


@dataclass(frozen=True)
class FinishedTree:
    """The picture of a search that is over."""

    tree: SearchTree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the tree and, below it, what it came to."""
        room = options.size.height - 3 if console.is_terminal else len(self.tree)
        rows = lay_out(self.tree, (), width=options.max_width, height=room)
        programs = "1 program" if len(self.tree) == 1 else f"{len(self.tree)} programs"
        if self.tree.completions < len(self.tree):
            completions = "completion" if self.tree.completions == 1 else "completions"
            programs += f", {self.tree.completions} {completions}"
        facts = Text(" · ".join([programs, *facts_of(self.tree)]))
        for line in [*draw(rows, self.tree, {}), facts]:
            yield from fitted(line, options.max_width).render(console, "\n")


def lay_out(tree: SearchTree, flights: Sequence[Move], *, width: int, height: int) -> list[Row]:
    """Fold a tree to so many lines, with guides over no more than half of a line."""
    levels = max(2, min(40, width // 4))
    return fold(tree, flights, rows=max(1, height), levels=levels)


def draw(rows: Sequence[Row], tree: SearchTree, states: Mapping[int, str]) -> list[Text]:
    """Put what is laid out into words."""
    return [_line(row, tree, states) for row in rows]


def facts_of(tree: SearchTree) -> list[str]:
    """Name the best score and what was spent."""
    best = [best_words(tree.best.verdict)] if tree.best else []
    return best + spent_words(tree.tokens, tree.cost, tree.cached)


def _line(row: Row, tree: SearchTree, states: Mapping[int, str]) -> Text:
    """Put one row into words."""
    line = Text(end="").append(row.guides, "dim")
    content = row.content
    origin = f" of #{content.parent}" if row.adrift and not isinstance(content, Fold) else ""
    if isinstance(content, Fold):
        return line.append(f"… {content.hidden:,} more, best {share(content.best)}", "dim")
    if isinstance(content, Move):
        return line.append(f"… {content.action}{origin}", "cyan")
    best = content is tree.best
    words = f"{'★ ' if best else ''}#{content.id} {content.action}{origin}"
    line.append(f"{words} {share(content.verdict.score)}", _style(content, best=best))
    return _append_notes(line, content, states.get(content.id, ""))


def _append_notes(line: Text, node: Node, state: str) -> Text:
    """Add a node's standing and what is wrong with its program."""
    if state:
        line.append(f"  {printable(state, 30)}", "yellow")
    failure = node.verdict.failure
    if failure is not None and failure.is_bug:
        line.append(f"  {first_line(failure)}", "dim red")
    elif node.verdict.open_gap:
        line.append(f"  not solved: {node.verdict.open_gap}", "dim")
    return line


def _style(node: Node, *, best: bool) -> str:
    """Choose the colour of a node."""
    if best:
        return "bold green"
    return "dim red" if node.verdict.is_bug else ""


class SearchView(RecordingBar):
    """Follows `synthesize`: its lines, the recording of data, and the search while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._search_view: View | None = None

    def begins(self, work: object) -> None:
        """Open the picture of a search, or the bar of a recording."""
        super().begins(work)
        if isinstance(work, SearchJob):
            budget, console = work.choices.budget, progress_console()
            began = time.monotonic() - work.run.elapsed
            view = live(work.search, budget=budget, title=work.title, console=console, began=began)
            self._search_view = self._stack.enter_context(view)

    def advanced(self, event: object) -> None:
        """Draw a node that was learned."""
        super().advanced(event)
        if self._search_view is not None and isinstance(event, Node):
            self._search_view.learned(event)


def in_flight(pending: Mapping[int, Pending]) -> str:
    """Return the numbers of completions in flight, with their models, and of refiners at work."""
    asked = [flight for flight in pending.values() if flight.asked]
    models = Counter(flight.model for flight in asked if flight.model)
    named = ", ".join(f"{printable(model, 40)} {count}" for model, count in models.items())
    words = [f"{len(asked)} in flight{f' ({named})' if named else ''}"] if asked else []
    if refiners := sum(flight.move.action != START for flight in pending.values()) - len(asked):
        words.append(f"{refiners} refining")
    return ", ".join(words)


def _grown(tree: SearchTree, node: Node, search: Search) -> SearchTree:
    """Return the tree with a new node, rebuilt if a switch of the contract changed all verdicts."""
    if search.switches != tree.switches:
        return SearchTree(search.nodes, search.switches)
    tree.add(node)
    return tree


class View(Protocol):
    """Follows a search."""

    def learned(self, node: Node) -> None:
        """Take in a node that the search has just learned; called in the search's thread."""
        ...


@contextmanager
def live(
    search: Search, *, budget: int, title: str, console: Console, began: float | None = None
) -> Iterator[View]:
    """Follow a search: a picture on a terminal, plain lines elsewhere.

    The clock runs since `began`, in the time of `time.monotonic`.
    The last picture stays on the screen, whatever ends the search.
    """
    if not console.is_interactive or console.options.ascii_only:
        lines = NodeLines(search, budget=budget, console=console, began=began)
        pulse = Pulse(lines.tell)
        lines.heard = pulse.heard
        try:
            yield lines
        finally:
            pulse.stop()
        return
    screen = Screen(search, budget=budget, title=title, console=console, began=began)
    with screen.display() as display, printed_above(console):
        display.refresh()
        try:
            yield screen
        finally:
            screen.over = True


class NodeLines:
    """Prints a line per node: for files, pipes and terminals that cannot move the cursor."""

    def __init__(
        self, search: Search, *, budget: int, console: Console, began: float | None = None
    ) -> None:
        self.heard: Callable[[], None] = lambda: None
        self._search = search
        self._tree = SearchTree(search.nodes, search.switches)
        self._budget = budget
        self._console = console
        self._began = time.monotonic() if began is None else began

    def tell(self) -> None:
        """Print what is being done."""
        pending = self._search.pending.copy()
        told = [printable(told) for step in pending if (told := self._search.doing.get(step))][:1]
        number = self._number(self._tree.completions)
        words = [f"[{number}] {in_flight(pending)}".rstrip(), *told]
        words.append(duration(time.monotonic() - self._began))
        self._console.print(Text("  ".join(words)), soft_wrap=True)

    def _number(self, done: int) -> str:
        """Write how many completions are done, all numbers as wide as the budget."""
        return f"{done:>{len(str(self._budget))}}/{self._budget}"

    def learned(self, node: Node) -> None:
        """Print what came of a completion."""
        self.heard()
        self._tree = _grown(self._tree, node, self._search)
        number = self._number(self._tree.completions)
        origin = "" if node.parent == ROOT else f" of #{node.parent}"
        best = self._tree.best or node
        scores = f"{share(node.verdict.score)} (best {share(best.verdict.score)})"
        words = f"[{number}] {node.action}{origin}: {scores}"
        parts = [words, duration(time.monotonic() - self._began)]
        if node.verdict.failure is not None and node.verdict.is_bug:
            parts.append(first_line(node.verdict.failure))
        elif node.verdict.open_gap:
            parts.append(f"not solved: {node.verdict.open_gap}")
        self._console.print(Text("  ".join(parts)), soft_wrap=True)


class Screen:
    """Draws the tree above a bar.

    rich's thread draws while the search's thread learns: the lock keeps the
    tree whole, and the strategy is only asked in the search's thread.
    """

    def __init__(
        self,
        search: Search,
        *,
        budget: int,
        title: str,
        console: Console,
        began: float | None = None,
    ) -> None:
        self.over = False
        self._search = search
        self._budget = budget
        self._title = printable(title)
        self._pane = Pane(self._lines, console)
        self._began = time.monotonic() if began is None else began
        self._lock = threading.Lock()
        self._tree = SearchTree(search.nodes, search.switches)
        self._states = {node.id: search.strategy.state(node.id) for node in search.nodes}
        self._rows: list[Row] = []
        self._rows_are_of: object = None

    def learned(self, node: Node) -> None:
        """Take in a node, and ask the strategy about it, its ancestors and what is on screen."""
        with self._lock:
            self._tree = _grown(self._tree, node, self._search)
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
        state = (len(self._tree), self._tree.switches, tuple(pending), width, height)
        if state != self._rows_are_of:
            moves = [flight.move for flight in pending.values()]
            self._rows = lay_out(self._tree, moves, width=width, height=height)
            self._rows_are_of = state
        return draw(self._rows, self._tree, self._states)

    def _progress(self, pending: Mapping[int, Pending], width: int) -> Text:
        """Draw how much of the budget is spent, and say what is being done."""
        done = self._tree.completions
        words = [f"{done}/{self._budget}", duration(time.monotonic() - self._began)]
        if flights := in_flight(pending):
            words.append(flights)
        words += [printable(told) for step in pending if (told := self._search.doing.get(step))][:1]
        return bar(done, self._budget, " " + " · ".join(words), width)
