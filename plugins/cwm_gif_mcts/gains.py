"""Programs by what they may still bring: the choice among them where none is begun anew in parts.

A tree of prefixes takes a program apart that is right but for one term. Here programs are whole:
one that runs is bettered or left alone. What a completion is worth is the share of what was
lacking that it closed, so that a guess at the floor is worth nothing, and improving a program is
never expected to bring less than the program has.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log, sqrt

import numpy as np

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Verdict
from cwm_gif_mcts.tree import SMALLEST, RunningMean

HIGHEST_BUG_VALUE = 0.99
"""What a program is worth that raised and was not fixed yet."""

NEAR = 0.02
"""Programs whose bounds, or whose scores above the floor, differ by no more are told apart by how
far their wrong numbers are off: a score hardly moves before everything is right."""

WORSE, REPEATED, BETTERED = "worse", "repeated", "bettered"
"""Why a program is not gone on with."""


@dataclass
class WholePrograms:
    """All programs of a search, and which of them to better next.

    The bound of a program of value v is v + (1 - v) (h + bonus), h being the share of what was
    lacking that improvements closed, here and everywhere. A new program counts from the best one,
    with the share that programs from scratch closed after the first. A program that is worse than
    the one that it was to better is left alone, and so is one that was bettered without a question.
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
        """Let what is known of an action everywhere count here as often as the prior does."""
        self._prior = max(self.improved.number, 1)

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Return the move of the highest bound; near ties go to the smallest error."""
        spread = log(1 + self._asked + len(pending))
        bounds = self._bounds(pending, spread)
        highest = float(bounds.max(initial=-inf))
        if highest == -inf or (self.generate and self._anew(pending, spread) > highest):
            return Move(GENERATE)
        near = np.flatnonzero(bounds >= highest - NEAR)
        order = np.stack([np.array(self._errors)[near], -bounds[near]])
        least = order[:, np.lexsort(order[::-1])[0]]
        ties = near[(order == least[:, None]).all(axis=0)]
        node = self._nodes[ties[rng.integers(len(ties))]]
        return Move(FIX if node.verdict.is_bug else IMPROVE, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Learn what a completion brought, and whether its program is gone on with."""
        verdict, origin = node.verdict, self._origin(node.parent)
        value = 0.0 if verdict.is_bug else verdict.normalised
        if node.asked:
            self._learn(node, value)
        state = self._standing(node, origin)
        if origin is not None and not (node.asked or state):
            self._close(origin.id, BETTERED)
        if node.parent != ROOT and self._nodes[node.parent].verdict.is_bug:
            self._close(node.parent, "")
        fixes = self._fixes_left(node) if verdict.is_bug else 0
        if verdict.is_bug:
            state = "fix pending" if fixes else "terminal"
        self._nodes.append(node)
        self._texts.add(node.program)
        self._states.append(state)
        self._values.append(self._bug_value(fixes) if fixes else value)
        self._errors.append(_error(verdict))
        self._gains.append(0.0)
        self._tries.append(0)
        self._fixes.append(fixes)
        self._open.append(bool(fixes) if verdict.is_bug else not state)
        self.best = value if self.best is None else max(self.best, value)

    def state(self, node: int) -> str:
        """Say whether a program awaits its fix, or why it is not gone on with."""
        return self._states[node]

    def _bounds(self, pending: Sequence[Move], spread: float) -> np.ndarray:
        """Return the bound of every program, minus infinity for those that are closed."""
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

    def _anew(self, pending: Sequence[Move], spread: float) -> float:
        """Return the bound of another program from scratch."""
        share = self.generated
        for move in pending:
            share = share.plus(0.0) if move.action == GENERATE else share
        bonus = self.exploration * sqrt(spread / (share.number + self.epsilon))
        best = self.best or 0.0
        return best + (1 - best) * (share.mean + bonus)

    def _learn(self, node: Node, value: float) -> None:
        """Count a completion, and the share of what was lacking that it closed."""
        self._asked += 1
        if node.action == IMPROVE:
            before = self._nodes[node.parent].verdict.normalised
            gain = max(0.0, value - before) / max(1 - before, SMALLEST)
            self.improved = self.improved.plus(gain)
            self._tries[node.parent] += 1
            self._gains[node.parent] += gain
        elif node.action == GENERATE and self.best is not None:
            gain = max(0.0, value - self.best) / max(1 - self.best, SMALLEST)
            self.generated = self.generated.plus(gain)

    def _standing(self, node: Node, origin: Node | None) -> str:
        """Say why a program that runs is not gone on with, if so."""
        if node.program in self._texts:
            return REPEATED
        return WORSE if origin is not None and is_worse(node.verdict, origin.verdict) else ""

    def _origin(self, number: int) -> Node | None:
        """Return the program that runs, if any, that a node was to better."""
        while number != ROOT and self._nodes[number].verdict.is_bug:
            number = self._nodes[number].parent
        return None if number == ROOT else self._nodes[number]

    def _fixes_left(self, node: Node) -> int:
        """Return how often a program that raised may still be fixed."""
        return self._fixes[node.parent] - 1 if node.action == FIX else self.fixes

    def _bug_value(self, fixes: int) -> float:
        """Value a program that raised: it is fixed at once, then by the fixes it has left."""
        return inf if fixes == self.fixes else HIGHEST_BUG_VALUE * fixes / self.fixes

    def _close(self, number: int, state: str) -> None:
        """Leave a program alone from now on."""
        self._open[number] = 0
        self._states[number] = state


def is_worse(one: Verdict, other: Verdict) -> bool:
    """Whether a program is worse than another: by its error where the scores are nearly equal."""
    less = other.normalised - one.normalised
    if abs(less) <= NEAR and one.error is not None and other.error is not None:
        return one.error > other.error
    return less > 0


def _error(verdict: Verdict) -> float:
    """Return the error of a verdict, the largest where there is none."""
    return inf if verdict.error is None else verdict.error
