"""Choose the nodes of a search that matter, and fold the rest so that all fits on a screen."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from cwm_cli.search.contracts import ROOT, Move, Node
from cwm_cli.views.tree import Rank, SearchTree


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
