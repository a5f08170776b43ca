"""The tree of a search as lines of text, folded so that it fits the terminal.

A `SearchTree` stores the size and the best node of every subtree. `fold` selects the most
important nodes and replaces all other nodes by lines with a count and a best score.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cwm_cli.search.contracts import EVIDENCE, ROOT, START, Move, Node
from cwm_cli.text import share
from cwm_cli.views.terminal import best_words, first_line, fitted, printable, spent_words

Rank = tuple[tuple[float, ...], int]
"""Sort key of nodes: the negative rank of the verdict, and the id. The best node is smallest."""

WORST: Rank = ((0.0,), ROOT)


@dataclass(slots=True)
class Subtree:
    """A node and its descendants; `children` are sorted, best subtree first."""

    parent: int = ROOT
    rank: Rank = WORST
    best: Rank = WORST
    below: int = 0
    children: list[tuple[Rank, int]] = field(default_factory=list)


class SearchTree:
    """The nodes of a search. Adding a node takes one step per ancestor.

    `curve` holds the best score so far: pairs (completions, score), one per improvement.
    """

    def __init__(self, nodes: Iterable[Node] = (), switches: int = 0) -> None:
        self.switches = switches
        self.nodes: dict[int, Node] = {}
        self.branches: dict[int, Subtree] = {ROOT: Subtree()}
        self.completions = 0
        self.refinements = 0
        self.curve: list[tuple[int, float]] = []
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
        return self.nodes.get(self.branches[ROOT].best[1])

    def newest(self) -> Iterator[int]:
        """Yield the ids of the nodes, the newest first."""
        return reversed(self.nodes)

    def ancestors(self, node: int) -> Iterator[int]:
        """Yield the ids of the nodes above a node, the nearest first."""
        while (node := self.branches[node].parent) != ROOT:
            yield node

    def add(self, node: Node) -> None:
        """Add a node and update its ancestors."""
        usage = node.usage
        self.completions += node.asked
        self.refinements += not node.asked and node.action not in (START, EVIDENCE)
        self.tokens += usage.tokens
        self.cached += usage.cached_tokens
        if self.cost is not None:
            self.cost = None if usage.cost is None else self.cost + usage.cost
        rank = tuple(-part for part in node.verdict.rank), node.id
        self.nodes[node.id] = node
        self.branches[node.id] = Subtree(node.parent, rank, rank)
        insort(self.branches[node.parent].children, (rank, node.id))
        for ancestor in self.ancestors(node.id):
            branch = self.branches[ancestor]
            branch.below += 1
            if rank < branch.best:
                # Siblings are sorted by their best ranks: move the subtree to its new place.
                siblings = self.branches[branch.parent].children
                del siblings[bisect_left(siblings, (branch.best, ancestor))]
                insort(siblings, (rank, ancestor))
                branch.best = rank
        top = self.branches[ROOT]
        top.below += 1
        top.best = top.children[0][0]
        score = -top.best[0][0]
        if not self.curve or score > self.curve[-1][1]:
            self.curve.append((self.completions, score))


class Fold(NamedTuple):
    """Hidden nodes: their number and their best score."""

    hidden: int
    best: float


class Row(NamedTuple):
    """A line of the drawn tree; `adrift` if the node's parent is hidden."""

    guides: str
    content: Node | Move | Fold
    adrift: bool = False


def fold(tree: SearchTree, flights: Sequence[Move], *, rows: int, levels: int) -> list[Row]:
    """Lay the tree out in at most `rows` rows and `levels` levels.

    The best node, the completions in flight and the newest nodes stay visible, then the path to
    the best node from both its ends. The time depends on the rows and their depth, not on the
    size of the tree.
    """
    forest = Forest(tree, flights)
    wanted = list(islice(dict.fromkeys(_by_importance(forest, rows)), 2 * rows))

    # More items never need fewer rows or levels, so the largest cut is found by bisection.
    def fits(count: int) -> bool:
        cut = Cut(forest, wanted[:count])
        return cut.rows <= rows and cut.levels <= levels

    count = max(1, _most(len(wanted), fits))
    cut = Cut(forest, wanted[:count])
    if cut.rows < rows and count < len(wanted):
        # The tree reached the maximum depth before the maximum length: show more of its top.
        rest = [item for item in wanted[count:] if item not in cut.owner]
        chosen = tuple(cut.shown)

        def filled(number: int) -> Cut:
            return Cut(forest, chosen, rest[:number], levels)

        cut = filled(_most(len(rest), lambda number: filled(number).rows <= rows))
    return list(_rows(cut.with_single_nodes().entries(ROOT), ""))[:rows]


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, or 0 if none does."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))


@dataclass(frozen=True)
class Forest:
    """A tree and the moves in flight, which get the ids after the last node."""

    tree: SearchTree
    flights: Sequence[Move]

    @cached_property
    def first_flight(self) -> int:
        """The id of the first move in flight."""
        return next(self.tree.newest(), ROOT) + 1

    def parent(self, item: int) -> int:
        """Return the parent of an item."""
        flight = item - self.first_flight
        return self.flights[flight].parent if flight >= 0 else self.tree.branches[item].parent

    def content(self, item: int) -> Node | Move:
        """Return the node or the move with an id."""
        flight = item - self.first_flight
        return self.flights[flight] if flight >= 0 else self.tree.nodes[item]


def _by_importance(forest: Forest, rows: int) -> Iterator[int]:
    """Yield items, the most important first, with repetitions."""
    tree = forest.tree
    flights = range(forest.first_flight, forest.first_flight + len(forest.flights))
    path: list[int] = []
    if tree.best is not None:
        yield tree.best.id
        path = list(tree.ancestors(tree.best.id))
    # A third of the rows at most: many parallel completions must not hide the tree.
    yield from flights[: rows // 3]
    yield from islice(tree.newest(), 3)
    ends = _alternately(path, reversed(path))
    parents = (move.parent for move in forest.flights[: rows // 3] if move.parent != ROOT)
    yield from _alternately(ends, chain(parents, islice(tree.newest(), rows)))
    yield from flights[rows // 3 : rows]


def _alternately(one: Iterable[int], other: Iterable[int]) -> Iterator[int]:
    """Yield alternately from two iterables until both are exhausted."""
    return (item for pair in zip_longest(one, other) for item in pair if item is not None)


class Entry(NamedTuple):
    """A line and its child lines."""

    content: Node | Move | Fold
    adrift: bool
    below: "list[Entry]"


@dataclass
class Cut:
    """A selection of items to show; `optional` items are dropped below level `deepest`.

    `owner` maps each shown item, and each hidden ancestor of a shown item, to its nearest shown
    ancestor. All hidden nodes of an owner fold into one line.
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
                self.shown[item] = None
                self.owned[owner].append(item)
                if item < self.forest.first_flight:
                    below = self.forest.tree.branches[item].below
                    self.hidden[item] = below
                    self.hidden[owner] -= below + 1
        self.levels = max(depths.values())

    @property
    def rows(self) -> int:
        """Number of lines."""
        return len(self.shown) + sum(map(bool, self.hidden.values()))

    def with_single_nodes(self) -> "Cut":
        """Show each node that would be the only one in its fold: it needs one line either way."""
        alone = [self._best_hidden[owner][1] for owner, count in self.hidden.items() if count == 1]
        return Cut(self.forest, [*self.shown, *alone]) if alone else self

    def entries(self, owner: int) -> list[Entry]:
        """Return the lines below a shown item, the fold first because its nodes are older."""
        direct: list[Entry] = []
        adrift: list[Entry] = []
        for item in self.owned[owner]:
            loose = self._adrift(item)
            entry = Entry(self.forest.content(item), loose, self.entries(item))
            (adrift if loose else direct).append(entry)
        if hidden := self.hidden.get(owner):
            fold = Fold(hidden, -self._best_hidden[owner][0][0])
            direct.insert(0, Entry(fold, False, adrift))
        return direct

    def _adrift(self, item: int) -> bool:
        """Whether the parent of a shown item is hidden."""
        return self.forest.parent(item) != self.owner[item]

    def _find_owner(self, item: int) -> int:
        """Return the nearest shown ancestor, and cache it for the hidden nodes on the path."""
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
        """Best rank among the folded nodes of each shown item."""
        found: dict[int, list[Rank]] = defaultdict(list)
        branches = self.forest.tree.branches
        # Children are sorted, so the best hidden child is the first one without an owner.
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
    """Yield the rows with the guide lines of a tree."""
    for place, entry in enumerate(entries, start=1):
        last = place == len(entries)
        yield Row(guides + ("└ " if last else "├ "), entry.content, entry.adrift)
        yield from _rows(entry.below, guides + ("  " if last else "│ "))


def finished_tree(nodes: Sequence[Node]) -> "FinishedTree":
    """Draw the nodes of a run: folded to the height of a terminal, complete in a file."""
    return FinishedTree(SearchTree(nodes))


@dataclass(frozen=True)
class FinishedTree:
    """The tree of a finished search, with totals below."""

    tree: SearchTree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the tree and the line of totals."""
        room = options.size.height - 3 if console.is_terminal else len(self.tree)
        rows = lay_out(self.tree, (), width=options.max_width, height=room)
        programs = [plural(len(self.tree), "program")]
        if self.tree.completions < len(self.tree):
            programs.append(plural(self.tree.completions, "completion"))
        facts = Text(" · ".join([*programs, *totals(self.tree)]))
        for line in [*draw(rows, self.tree, {}), facts]:
            yield from fitted(line, options.max_width).render(console, "\n")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 program" or "2 programs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def lay_out(tree: SearchTree, flights: Sequence[Move], *, width: int, height: int) -> list[Row]:
    """Fold a tree to `height` lines whose guides take at most half of the width."""
    levels = max(2, min(40, width // 4))
    return fold(tree, flights, rows=max(1, height), levels=levels)


def draw(rows: Sequence[Row], tree: SearchTree, states: Mapping[int, str]) -> list[Text]:
    """Write the rows as lines of text."""
    return [_line(row, tree, states) for row in rows]


def totals(tree: SearchTree) -> list[str]:
    """Return the refiner moves, the best score, the tokens and the cost of a search, as words."""
    refined = [plural(tree.refinements, "refiner move")] if tree.refinements else []
    best = [best_words(tree.best.verdict)] if tree.best else []
    return refined + best + spent_words(tree.tokens, tree.cost, tree.cached)


def _line(row: Row, tree: SearchTree, states: Mapping[int, str]) -> Text:
    """Write one row."""
    line = Text(end="").append(row.guides, "dim")
    content = row.content
    origin = f" of #{content.parent}" if row.adrift and not isinstance(content, Fold) else ""
    if isinstance(content, Fold):
        return line.append(f"… {content.hidden:,} more, best {share(content.best)}", "dim")
    if isinstance(content, Move):
        return line.append(f"… {content.action}{origin}", "cyan")
    best, verdict = content is tree.best, content.verdict
    words = f"{'★ ' if best else ''}#{content.id} {content.action}{origin}"
    style = "bold green" if best else "dim red" if verdict.is_bug else ""
    line.append(f"{words} {share(verdict.score)}", style)
    if verdict.saved_bits:
        line.append(f"  {verdict.saved_bits:,} bits shorter", "green")
    if state := states.get(content.id, ""):
        line.append(f"  {printable(state, 30)}", "yellow")
    if verdict.failure is not None and verdict.failure.is_bug:
        line.append(f"  {first_line(verdict.failure)}", "dim red")
    elif verdict.open_gap:
        line.append(f"  not solved: {verdict.open_gap}", "dim")
    return line
