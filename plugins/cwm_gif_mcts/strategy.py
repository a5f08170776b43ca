"""The strategy GIF-MCTS: the selection of nodes, and the updates after completions."""

from array import array
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, log, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cwm_cli.presets import FROM_PRESET, PUBLISHED_ASKING
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Strategy, Verdict
from cwm_gif_mcts.tree import (
    MIN_WEIGHT,
    ActionEstimate,
    Branch,
    RunningMean,
    Tree,
    attach,
    chain,
    path,
    revalue,
    withdraw,
)

HIGHEST_BUG_VALUE = 0.99
"""Value of a program that raised an exception and has not been fixed."""

NEAR = 0.02
"""Programs whose bounds or normalised scores differ by no more than this are compared by the error
of their wrong numbers: a score rarely changes before everything is right."""

WORSE, REPEATED, IMPROVED = "worse", "repeated", "improved"
"""Reasons why a program is not improved further."""


Option = tuple[float, str | None, int, int]
"""An option of selection at a node, with its upper confidence bound.

Either an action, or one of the open children from a start to an end, which have the same value. It
is a plain tuple, because millions are created.
"""


@dataclass
class GifMcts(Strategy):
    """Searches by generate, improve and fix (Dainese et al., 2024), in whole programs or prefixes.

    By default programs stay whole, and the next node is chosen by expected gain (`WholePrograms`).
    As published (`preset=paper`, or `selection=mean` alone) it is a tree of program prefixes.
    Choices that the paper leaves open:

    - Fix is the only action where it is offered, so its value is not estimated.
    - A program that raised an exception is fixed even if it is short. Only a running program ends
      its branch when it has too few new lines. The end of a branch has value 0 itself and passes
      its score to the nodes above, but a chain of fixes that it solves takes the score.
    - A program without new nodes below it is closed, and selection skips it.
    - If the tree is exhausted, the root offers generate again.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {
            "selection": "gain",
            "empty_line": False,
            "count_new": False,
            "prior_generate": 0.1,
        },
        "paper": {
            "selection": "mean",
            "empty_line": True,
            "count_new": True,
            "prior_generate": 0.5,
            **PUBLISHED_ASKING,
        },
    }

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the strategy, the problem and the
    backend."""
    selection: Literal["gain", "mean"] = FROM_PRESET
    """Choice of the next node. gain: improve whole programs, by the fraction of the missing score
    that improvements closed; mean: descend in a tree of program prefixes by mean scores, as
    published."""
    exploration: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Weight of the exploration term in the upper confidence bound (c in the paper)."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Number added to the visits under the root of the bound, so that it is finite for options
    without visits."""
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount factor of a value from a node to its parent (gamma in the paper)."""
    lines: Annotated[int, Field(ge=1)] = 2
    """Number of program lines that a node fixes for its children (L in the paper)."""
    empty_line: bool = FROM_PRESET
    """Count an empty line before each prefix as one of its lines. As published, prefixes have 4, 7,
    10 and 13 lines instead of 2, 4, 6 and 8."""
    count_new: bool = FROM_PRESET
    """Count a new child as 0 in the mean of its siblings when weights are learned from it, as
    published."""
    fixes: Annotated[int, Field(ge=0)] = 3
    """Maximum number of attempts to fix a program that raises an exception (f in the paper)."""
    prior_generate: Annotated[float, Field(ge=0, le=1)] = FROM_PRESET
    """Prior value of generate. With `selection=gain`: expected fraction of the best program's
    missing score that a new program closes."""
    prior_improve: Annotated[float, Field(ge=0, le=1)] = 0.55
    """Prior value of improve. With `selection=gain`: expected fraction of the missing score that it
    closes."""
    prior_count: Annotated[int, Field(ge=0)] = 2
    """Number of completions that each of the two prior values counts for."""
    generate: bool = True
    """Generate new programs throughout the search; if false, only once, at the root."""
    improve: bool = True
    """Improve programs that run without an exception."""
    fix: bool = True
    """Fix programs that raise an exception; if false, they are dropped."""
    _programs: "WholePrograms | None" = field(default=None, init=False, repr=False)
    _actions: tuple[str, ...] = field(init=False, repr=False)
    _tree: dict[int, Branch] = field(init=False, repr=False)
    _nodes: list[Node] = field(default_factory=list, init=False, repr=False)
    _estimates: dict[str, ActionEstimate] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Create the root with one visit."""
        super().__post_init__()
        switches = {GENERATE: self.generate, IMPROVE: self.improve}
        self._actions = tuple(action for action, allowed in switches.items() if allowed)
        self._tree = {ROOT: Branch(ROOT, offers=(GENERATE,))}
        priors = {GENERATE: self.prior_generate, IMPROVE: self.prior_improve}
        self._estimates = {
            a: ActionEstimate(RunningMean(self.prior_count, p)) for a, p in priors.items()
        }
        if self.selection == "gain":
            self._programs = WholePrograms(
                improved=self._estimates[IMPROVE].everywhere,
                generated=self._estimates[GENERATE].everywhere,
                exploration=self.exploration,
                epsilon=self.epsilon,
                fixes=self._max_fixes,
                improve=self.improve,
                generate=self.generate,
            )

    @property
    def repeats(self) -> bool:
        """Whether the same prompt may be sent again, as published."""
        return self.preset == "paper"

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Follow the highest upper confidence bounds down to an action; draw among ties."""
        if self._programs is not None:
            return self._programs.select(rng, pending)
        tree = self._anticipated(pending)
        branch = tree[ROOT]
        while True:
            action, child = self._draw(branch, rng)
            if action is not None:
                return self._move(branch, action)
            branch = tree[branch.open[child][2]]

    def update(self, node: Node) -> None:
        """Update the tree with an evaluated node."""
        if self._programs is not None:
            self._programs.update(node)
            return
        parent = self._tree[node.parent]
        score = 0.0 if node.verdict.is_bug else node.verdict.score
        if estimate := self._estimates.get(node.action):
            here = parent.mean(node.action)
            estimate.learn(here.plus(0.0) if self.count_new else here, score)
        branch = self._branch(node, parent, score)
        self._nodes.append(node)
        self._tree[node.id] = branch
        attach(self._tree, branch)
        if node.action == FIX:
            self._settle(branch, parent, score, solved=not node.verdict.is_bug)
        self._back_up(branch, parent, score, solved=not node.verdict.is_bug)
        self._offer_at_root(self._tree[ROOT])

    def state(self, node: int) -> str:
        """Return the node's status label, e.g. "fix pending", or why it is not continued."""
        if self._programs is not None:
            return self._programs.state(node)
        branch = self._tree[node]
        if branch.terminal:
            return "terminal"
        return "fix pending" if FIX in branch.offers else ""

    def _branch(self, node: Node, parent: Branch, score: float) -> Branch:
        """Create the branch of a node with one visit, by the action of its move."""
        length = node.program.rstrip("\n").count("\n") + 1 if node.program else 0
        known, action = parent.lines, node.action
        if not node.asked:  # a node without a completion counts as the action of its place
            action = GENERATE if node.parent == ROOT else IMPROVE
        if self.empty_line:
            known = max(1, known) + 1  # the root counts as a line, too
        branch = Branch(node.id, parent.id, action, min(known + self.lines, length))
        if node.verdict.is_bug:
            branch.fixes = parent.fixes - 1 if node.action == FIX else self._max_fixes
            branch.value = self._bug_value(branch.fixes)
            branch.terminal = branch.fixes <= 0
            branch.offers = () if branch.terminal else (FIX,)
        elif length - known < self.lines:
            branch.terminal = True
        else:
            branch.value = score
            branch.offers = self._actions
        return branch

    def _settle(self, branch: Branch, parent: Branch, score: float, *, solved: bool) -> None:
        """Set the values of the programs before a fix by its result.

        From now on selection passes through them to the fix, if it is open.
        """
        parent.offers = ()
        withdraw(self._tree, parent)
        for above in chain(self._tree, parent):
            above.terminal = not solved and branch.terminal
            value = score if solved else self._bug_value(branch.fixes)
            revalue(self._tree, above, visits=above.visits, value=value)

    def _back_up(self, branch: Branch, parent: Branch, score: float, *, solved: bool) -> None:
        """Add a visit to the branches above; a program that raised does not change their values."""
        value = score if branch.terminal else self.discount * score
        for above in path(self._tree, parent):
            mean = above.value + (value - above.value) / (above.visits + 1)
            mean = mean if solved else above.value
            revalue(self._tree, above, visits=above.visits + 1, value=mean)
            value *= self.discount

    def _offer_at_root(self, root: Branch) -> None:
        """Set the offers of the root; without `generate`, only if the tree is exhausted."""
        root.offers = (GENERATE,) if self.generate or not root.open else ()

    def _anticipated(self, pending: Sequence[Move]) -> Tree:
        """Return the tree with an additional visit of value 0 for each move in flight."""
        if not pending:
            return self._tree
        parents = [self._tree[move.parent] for move in pending]
        ids = {above.id for parent in parents for above in path(self._tree, parent)}
        tree = ChainMap({id: self._tree[id].copy() for id in ids}, self._tree)
        for move in pending:
            parent = tree[move.parent]
            setattr(parent, move.action, parent.mean(move.action).plus(0.0))
            parent.offers = () if move.action == FIX else parent.offers
            withdraw(tree, parent)
            for above in path(tree, parent):
                visits = above.visits + 1
                revalue(tree, above, visits=visits, value=above.value * above.visits / visits)
        self._offer_at_root(tree[ROOT])
        return tree

    def _draw(self, branch: Branch, rng: np.random.Generator) -> tuple[str | None, int]:
        """Draw an action or an open child with the highest bound; ties have equal probability."""
        best, ties = -inf, list[Option]()
        for option in self._options(branch):
            if option[0] > best:
                best, ties = option[0], [option]
            elif option[0] == best:
                ties.append(option)
        ends = list(accumulate(end - start for *_, start, end in ties))
        index = int(rng.integers(ends[-1])) if ends[-1] > 1 else 0
        chosen = bisect_right(ends, index)
        _, action, _, end = ties[chosen]
        return action, end - ends[chosen] + index

    def _options(self, branch: Branch) -> Iterator[Option]:
        """Yield the untried actions and the open children with their bounds."""
        if FIX in branch.offers:
            yield 1.0, FIX, 0, 1
            return
        spread, explore, epsilon = log(branch.visits), self.exploration, self.epsilon
        for action in branch.offers:
            here = branch.mean(action)
            value = min(max(self._estimates[action].mix(here), 0.0), 1.0)
            yield value + explore * sqrt(spread / (here.number + epsilon)), action, 0, 1
        for visits, value, start, end in branch.groups():
            yield value + explore * sqrt(spread / (visits + epsilon)), None, start, end

    def _move(self, branch: Branch, action: str) -> Move:
        """Return the move of an action at a node."""
        if branch.id == ROOT:
            return Move(action)
        node = self._nodes[branch.id]
        prefix = ""
        if action == GENERATE:
            prefix = "".join(f"{line}\n" for line in node.program.split("\n")[: branch.lines])
        return Move(action, node.id, node.program, node.verdict, prefix)

    @property
    def _max_fixes(self) -> int:
        """The number of fixes for a program that raised an exception."""
        return self.fixes if self.fix else 0

    def _bug_value(self, fixes: int) -> float:
        """Return the value of a program that raised, by its remaining fixes."""
        return HIGHEST_BUG_VALUE * fixes / self._max_fixes if self._max_fixes else 0.0


@dataclass
class WholePrograms:
    """Whole programs, and the choice of the next one to improve (`selection=gain`).

    A tree of prefixes discards lines of a program that is right except for one term. Here a program
    is improved as a whole or not at all. The value of a completion is the share of the missing
    score that it gained. So guesses at the level of the baseline gain 0, and an improvement is
    never expected to score less than its program.

    The bound of a program of value v is v + (1 - v) (h + bonus), where h is the share of the
    missing score that improvements gained, of this program and of all. The bound of a new program
    has the best value as v, and as h the share that programs from scratch gained after the first. A
    program that is worse than its parent is not improved, nor is one that a refiner has improved.
    """

    improved: RunningMean
    generated: RunningMean
    exploration: float
    epsilon: float
    fixes: int
    improve: bool = True
    generate: bool = True
    best: float | None = None
    _asked: int = 0
    _prior: int = field(init=False)
    _nodes: list[Node] = field(default_factory=list)
    _texts: set[str] = field(default_factory=set)
    _states: list[str] = field(default_factory=list)
    _values: "array[float]" = field(default_factory=lambda: array("d"))
    _errors: "array[float]" = field(default_factory=lambda: array("d"))
    _gains: "array[float]" = field(default_factory=lambda: array("d"))
    _tries: "array[int]" = field(default_factory=lambda: array("q"))
    _fixes: "array[int]" = field(default_factory=lambda: array("q"))
    _open: "array[int]" = field(default_factory=lambda: array("b"))

    def __post_init__(self) -> None:
        """Give the gains of all programs the weight of the prior, at least 1."""
        self._prior = max(self.improved.number, 1)

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Return the move with the highest bound; among near ties, the smallest error wins."""
        spread = log(1 + self._asked + len(pending))
        bounds = self._bounds(pending, spread)
        highest = float(bounds.max(initial=-inf))
        if highest == -inf or (
            self.generate and self._bound_from_scratch(pending, spread) > highest
        ):
            return Move(GENERATE)
        near = np.flatnonzero(bounds >= highest - NEAR)
        order = np.stack([np.array(self._errors)[near], -bounds[near]])
        least = order[:, np.lexsort(order[::-1])[0]]
        ties = near[(order == least[:, None]).all(axis=0)]
        node = self._nodes[ties[rng.integers(len(ties))]]
        return Move(FIX if node.verdict.is_bug else IMPROVE, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Record the gain of a completion, and whether its program is improved further."""
        verdict, origin = node.verdict, self._origin(node.parent)
        value = 0.0 if verdict.is_bug else verdict.normalised
        if node.asked:
            self._learn(node, value)
        state = self._status(node, origin)
        if origin is not None and not (node.asked or state):
            self._close(origin.id, IMPROVED)
        if node.parent != ROOT and self._nodes[node.parent].verdict.is_bug:
            self._close(node.parent, "")
        fixes = 0
        if verdict.is_bug:
            fixes = self._fixes[node.parent] - 1 if node.action == FIX else self.fixes
            state = "fix pending" if fixes else "terminal"
        self._nodes.append(node)
        self._texts.add(node.program)
        self._states.append(state)
        self._values.append(self._bug_value(fixes) if fixes else value)
        self._errors.append(inf if verdict.error is None else verdict.error)
        self._gains.append(0.0)
        self._tries.append(0)
        self._fixes.append(fixes)
        self._open.append(bool(fixes) if verdict.is_bug else not state)
        self.best = value if self.best is None else max(self.best, value)

    def state(self, node: int) -> str:
        """Return the status label of a program, or why it is not improved further."""
        return self._states[node]

    def _bounds(self, pending: Sequence[Move], spread: float) -> np.ndarray:
        """Return the bound of every program, minus infinity for closed programs."""
        values, tries, gains = (np.array(x) for x in (self._values, self._tries, self._gains))
        is_open, fixes = np.array(self._open, dtype=bool), np.array(self._fixes)
        for move in pending:
            if move.action == FIX:
                is_open[move.parent] = False
            elif move.parent != ROOT:
                tries[move.parent] += 1
        shares = (self._prior * self.improved.mean + gains) / (self._prior + tries)
        bonus = self.exploration * np.sqrt(spread / (tries + self.epsilon))
        bounds = values.copy()
        runs = fixes == 0
        bounds[runs] += (1 - values[runs]) * (shares + bonus)[runs]
        return np.where(is_open & (self.improve | ~runs), bounds, -inf)

    def _bound_from_scratch(self, pending: Sequence[Move], spread: float) -> float:
        """Return the bound of another program from scratch."""
        share = self.generated
        for move in pending:
            share = share.plus(0.0) if move.action == GENERATE else share
        bonus = self.exploration * sqrt(spread / (share.number + self.epsilon))
        best = self.best or 0.0
        return best + (1 - best) * (share.mean + bonus)

    def _learn(self, node: Node, value: float) -> None:
        """Count a completion, and the share of the missing score that it gained."""
        self._asked += 1
        if node.action == IMPROVE:
            before = self._nodes[node.parent].verdict.normalised
            gain = max(0.0, value - before) / max(1 - before, MIN_WEIGHT)
            self.improved = self.improved.plus(gain)
            self._tries[node.parent] += 1
            self._gains[node.parent] += gain
        elif node.action == GENERATE and self.best is not None:
            gain = max(0.0, value - self.best) / max(1 - self.best, MIN_WEIGHT)
            self.generated = self.generated.plus(gain)

    def _status(self, node: Node, origin: Node | None) -> str:
        """Return why a running program is not improved further, "" if it is."""
        if node.program in self._texts:
            return REPEATED
        return WORSE if origin is not None and is_worse(node.verdict, origin.verdict) else ""

    def _origin(self, number: int) -> Node | None:
        """Return the running program that a node was meant to improve, None if there is none."""
        while number != ROOT and self._nodes[number].verdict.is_bug:
            number = self._nodes[number].parent
        return None if number == ROOT else self._nodes[number]

    def _bug_value(self, fixes: int) -> float:
        """Return the value of a program that raised: infinite, then by its remaining fixes."""
        return inf if fixes == self.fixes else HIGHEST_BUG_VALUE * fixes / self.fixes

    def _close(self, number: int, state: str) -> None:
        """Exclude a program from selection."""
        self._open[number] = 0
        self._states[number] = state


def is_worse(one: Verdict, other: Verdict) -> bool:
    """Return whether a program is worse, by its error if the scores are almost equal."""
    less = other.normalised - one.normalised
    if abs(less) <= NEAR and one.error is not None and other.error is not None:
        return one.error > other.error
    return less > 0
