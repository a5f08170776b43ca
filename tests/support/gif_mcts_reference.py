"""GIF-MCTS word for word, without any shortcut: what the strategy has to agree with."""

from copy import deepcopy
from dataclasses import dataclass, field
from math import log, sqrt

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node

C, EPSILON, LINES, FIXES = 0.1, 1.0, 2, 3
BUG_VALUES = [0.0, 0.33, 0.66, 0.99]
GENERATE, IMPROVE, FIX = GENERATE, IMPROVE, FIX


@dataclass
class Place:
    """A node as the paper has it."""

    id: int
    parent: "Place | None" = None
    action: str = GENERATE
    lines: int = 0
    visits: int = 0
    total: float = 0.0
    is_bug: bool = False
    passed_through: bool = False
    fixes: int = 0
    terminal: bool = False
    in_flight: bool = False
    children: list["Place"] = field(default_factory=list)

    @property
    def value(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    def take(self, value: float) -> None:
        self.total = value * self.visits

    def path(self) -> list["Place"]:
        return [self, *(self.parent.path() if self.parent else [])]

    def chain(self) -> list["Place"]:
        if self.action != FIX:
            return [self]
        return [self, *self.parent.chain()]

    def tried(self, action: str) -> list["Place"]:
        return [child for child in self.children if child.action is action]

    def untried(self) -> list[str]:
        if self.terminal or self.passed_through or self.in_flight:
            return []
        if self.id == ROOT:
            return [GENERATE]
        if self.is_bug:
            return [FIX] if self.fixes and not self.children else []
        return [GENERATE, IMPROVE]

    def is_open(self) -> bool:
        open_child = any(child.is_open() for child in self.children)
        return not self.terminal and (bool(self.untried()) or open_child)


@dataclass
class Reference:
    """Recomputes every bound at every node."""

    root: Place = field(default_factory=lambda: Place(ROOT, visits=1))
    seen: dict[str, list[float]] = field(
        default_factory=lambda: {GENERATE: [0.5, 0.5], IMPROVE: [0.55, 0.55], FIX: [0.5, 0.5]}
    )
    weights: dict[str, list[float]] = field(
        default_factory=lambda: {action: [0.5, 0.5] for action in (GENERATE, IMPROVE, FIX)}
    )

    def __post_init__(self) -> None:
        self.places = {ROOT: self.root}

    def estimate(self, place: Place, action: str) -> float:
        everywhere = sum(self.seen[action]) / len(self.seen[action])
        here = [child.value for child in place.tried(action)]
        if not here:
            return everywhere
        w_g, w_l = self.weights[action]
        return (w_g * everywhere + w_l * sum(here) / len(here)) / (w_g + w_l)

    def moves(self, pending: list[Move]) -> set[tuple[str, int]]:
        """Return every move that selection may make, depending on how ties are drawn."""
        tree = deepcopy(self)
        for move in pending:
            parent = tree.places[move.parent]
            child = Place(-2, parent, move.action, visits=1, in_flight=True)
            parent.children.append(child)
            for place in parent.path():
                place.visits += 1
        return tree.descend(tree.root)

    def descend(self, place: Place) -> set[tuple[str, int]]:
        spread = log(place.visits)
        bounds: list[tuple[float, Place | str]] = []
        for action in place.untried():
            value = min(max(self.estimate(place, action), 0.0), 1.0)
            bonus = C * sqrt(spread / (len(place.tried(action)) + EPSILON))
            bounds.append((value + bonus, action))
        for child in place.children:
            if child.is_open():
                bounds.append((child.value + C * sqrt(spread / (child.visits + EPSILON)), child))
        best = max(bound for bound, _ in bounds)
        moves = set()
        for bound, choice in bounds:
            if bound > best - 1e-9:
                moves |= self.descend(choice) if isinstance(choice, Place) else {(choice, place.id)}
        return moves

    def update(self, node: Node) -> None:
        parent = self.places[node.parent]
        score = 0.0 if node.verdict.is_bug else node.verdict.score
        self._learn(parent, node.action, score)
        length = len(node.program.splitlines())
        child = Place(node.id, parent, node.action, lines=min(parent.lines + LINES, length))
        self.places[node.id] = child
        if node.verdict.is_bug:
            self._raised(child)
        else:
            child.terminal = length - parent.lines < LINES
            if node.action == FIX:
                for place in parent.chain():
                    place.passed_through = True
                    place.take(score)
            child.visits, child.total = 1, 0.0 if child.terminal else score
            for place in parent.path():
                place.visits += 1
                place.total += score
        parent.children.append(child)

    def _learn(self, parent: Place, action: str, score: float) -> None:
        here = [child.value for child in parent.tried(action)]
        if here:
            everywhere = sum(self.seen[action]) / len(self.seen[action])
            estimate, (w_g, w_l) = self.estimate(parent, action), self.weights[action]
            rate = 1 / (1 + len(self.seen[action]))
            slope = 2 * (estimate - score) / (w_g + w_l)
            self.weights[action] = [
                w_g - rate * slope * (everywhere - estimate),
                w_l - rate * slope * (sum(here) / len(here) - estimate),
            ]
        self.seen[action].append(score)

    def _raised(self, child: Place) -> None:
        parent = child.parent
        child.is_bug = True
        child.fixes = parent.fixes - 1 if child.action == FIX else FIXES
        child.visits, child.total = 1, BUG_VALUES[child.fixes]
        if child.action == FIX:
            for place in parent.chain():
                place.passed_through = True
                place.terminal = child.fixes == 0
                place.take(BUG_VALUES[child.fixes])
        for place in parent.path():
            place.total += place.value
            place.visits += 1
