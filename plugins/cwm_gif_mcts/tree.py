"""The tree of GIF-MCTS: values, untried actions, and estimates of their values."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from cwm_cli.search.contracts import FIX, GENERATE

MIN_WEIGHT = 1e-9
"""Smaller sums of weights are treated as zero, to avoid division by them."""


class RunningMean(NamedTuple):
    """A running mean of a number of values."""

    number: int = 0
    mean: float = 0.0

    def plus(self, value: float) -> "RunningMean":
        """Return the mean with an additional value."""
        number = self.number + 1
        return RunningMean(number, self.mean + (value - self.mean) / number)

    def changed(self, old: float, new: float) -> "RunningMean":
        """Return the mean after one of its values has changed."""
        return RunningMean(self.number, self.mean + (new - old) / self.number)


NOTHING = RunningMean()


@dataclass(slots=True)
class ActionEstimate:
    """The expected value of one action: a mix of its means in the whole tree and at a node.

    The weights of the mix are learned by gradient descent on the squared error of each estimate.
    They may leave [0, 1]; the caller clips an estimate.
    """

    everywhere: RunningMean
    weight_everywhere: float = 0.5
    weight_here: float = 0.5

    def mix(self, here: RunningMean) -> float:
        """Return the estimate at a node whose children by this action have the mean `here`."""
        total = self.weight_everywhere + self.weight_here
        if not here.number or abs(total) < MIN_WEIGHT:
            return self.everywhere.mean
        return (
            self.weight_everywhere * self.everywhere.mean + self.weight_here * here.mean
        ) / total

    def learn(self, here: RunningMean, value: float) -> None:
        """Learn from a new value of the action at a node, before the value counts in the means.

        Without children the estimate does not depend on the weights.
        """
        total = self.weight_everywhere + self.weight_here
        if here.number and abs(total) >= MIN_WEIGHT:
            estimate = self.mix(here)
            step = 2 * (estimate - value) / total / (1 + self.everywhere.number)
            self.weight_everywhere -= step * (self.everywhere.mean - estimate)
            self.weight_here -= step * (here.mean - estimate)
        self.everywhere = self.everywhere.plus(value)


Entry = tuple[int, float, int]
"""A selectable child: visits, value, id. In sorted order, the best of equally visited children is
last. Plain tuples, here and below, because millions are created."""

Group = tuple[int, float, int, int]
"""The best of equally visited children: visits, value, and their start and end positions in
`Branch.open`."""


@dataclass(slots=True)
class Branch:
    """A node of the tree: `lines` of its program are fixed, `value` is a mean over `visits`.

    `offers` are the untried actions, `fixes` the remaining fixes of a program that raised an
    exception. A branch is closed if it offers nothing and has no open child. Each action has the
    mean value of the children that it led to.
    """

    id: int
    parent: int | None = None
    action: str = GENERATE
    lines: int = 0
    fixes: int = 0
    offers: tuple[str, ...] = ()
    terminal: bool = False
    visits: int = 1
    value: float = 0.0
    open: list[Entry] = field(default_factory=list)
    generate: RunningMean = NOTHING
    improve: RunningMean = NOTHING
    fix: RunningMean = NOTHING

    @property
    def closed(self) -> bool:
        """Whether selection has no option here."""
        return not self.offers and not self.open

    @property
    def entry(self) -> Entry:
        """The entry of this branch in its parent."""
        return self.visits, self.value, self.id

    def mean(self, action: str) -> RunningMean:
        """Return the mean value of the children reached by `action`."""
        mean: RunningMean = getattr(self, action)
        return mean

    def groups(self) -> Iterator[Group]:
        """Yield the best children of every number of visits.

        Equally visited children have the same exploration bonus, so only the best ones matter:
        there are at most sqrt(2 * visits) groups.
        """
        children = self.open
        end = len(children)
        while end:
            visits, value, _ = children[end - 1]
            start = bisect_left(children, (visits, value), 0, end)
            yield visits, value, start, end
            end = bisect_left(children, (visits,), 0, start)

    def copy(self) -> Self:
        """Return an independent copy."""
        return replace(self, open=list(self.open))


Tree = Mapping[int, Branch]


def path(tree: Tree, branch: Branch) -> Iterator[Branch]:
    """Yield a branch and its ancestors up to the root."""
    yield branch
    while branch.parent is not None:
        branch = tree[branch.parent]
        yield branch


def chain(tree: Tree, branch: Branch) -> Iterator[Branch]:
    """Yield a program that raised and its predecessors, up to the first that is not a fix."""
    for above in path(tree, branch):
        yield above
        if above.action != FIX:
            return


def attach(tree: Tree, branch: Branch) -> None:
    """Make a new branch a child of its parent."""
    parent = tree[branch.parent]  # type: ignore[index]
    setattr(parent, branch.action, parent.mean(branch.action).plus(branch.value))
    if not branch.closed:
        insort(parent.open, branch.entry)


def revalue(tree: Tree, branch: Branch, *, visits: int, value: float) -> None:
    """Change the value of a branch, and update its parent."""
    if branch.parent is not None:
        parent = tree[branch.parent]
        _unlist(parent, branch)
        mean = parent.mean(branch.action).changed(branch.value, value)
        setattr(parent, branch.action, mean)
        if not branch.closed:
            insort(parent.open, (visits, value, branch.id))
    branch.visits, branch.value = visits, value


def withdraw(tree: Tree, branch: Branch) -> None:
    """Remove closed branches from selection, from this one upwards."""
    for above in path(tree, branch):
        if not above.closed or above.parent is None:
            return
        _unlist(tree[above.parent], above)


def _unlist(parent: Branch, child: Branch) -> None:
    """Remove a child from the open children, if it is there."""
    entry = child.entry
    position = bisect_left(parent.open, entry)
    if position < len(parent.open) and parent.open[position] == entry:
        del parent.open[position]
