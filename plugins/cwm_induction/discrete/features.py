"""Inputs of rules about a state of factors: factors, relations between factors, landmarks.

Landmarks are places that values of a factor represent, such as the place of an item or its
destination.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from math import log2
from typing import NamedTuple, Self

import numpy as np

from cwm_induction.decision_list import Bias, RelationFeature, RelationList, Spend, learn

FLAG = 2
"""Number of values of a boolean factor."""

LEAST_FLAGS = 4
"""Rules may count flags if there are at least this many."""

LEAST_PICKED = 3
"""A factor may select one of n other factors if it has n values, at least this many."""

LEAST_RUN = 3
"""At least this many neighbouring factors of one size form a run."""

MOST_GAPS = 60
"""Skip differences of factors if there are more pairs than this, to save time."""

LEAST_SYMBOLS = 3
"""Values may represent places if a factor has at least this many; two are rather a flag."""

LEAST_SITES = 2
"""Number of places that must have been observed with one value each; one may be chance."""

TRUTHS = ("same", "done", "at", "site", "outside")
"""Kinds of columns with boolean values."""

RELATION_BITS = 3.0
"""Price of a comparison of several factors, as there are many pairs and runs."""

Cell = tuple[int, ...]
"""Values of the factors that determine a place."""


class RuleColumn(NamedTuple):
    """An input of rules with `size` values: the action, or a property of factors.

    Kinds with further fields:
        "part": The part `other` of the action.
        "at": Whether `factor` represents the current cell, which the factors in `cell` determine.
        "site": Whether any value represents the current cell.
        "change": The increase of `factor`, plus `size // 2`.
        "gap": The difference of `factor` and `other`, plus `size // 2`.
        "sum": The sum of the factors in `cell`.
    """

    kind: str
    factor: int
    size: int
    other: int = -1
    cell: tuple[int, ...] = ()

    @property
    def is_truth(self) -> bool:
        """Whether the values are boolean."""
        return self.kind in TRUTHS

    @property
    def is_signed(self) -> bool:
        """Whether the values start at `-(size // 2)`."""
        return self.kind in ("change", "gap")

    @property
    def order(self) -> str:
        """How conditions compare the values: as a flag, a code or a number."""
        if self.is_truth:
            return "flag"
        return "code" if self.kind in ("action", "reward") else "number"

    @property
    def bits(self) -> float:
        """Price of a condition, in addition to the choice among all conditions."""
        return RELATION_BITS * (self.kind in ("gap", "sum"))


class FactoredTransitions(NamedTuple):
    """Transitions in factors, one row each.

    `old` is the state before, `aimed` the result of the nominal moves, and `new` the next state
    according to the rules fitted before. `done` marks the ends of episodes, `reward` is the
    index of the reward, and `outside` marks moves that would leave a range.
    """

    action: np.ndarray
    old: np.ndarray
    aimed: np.ndarray
    new: np.ndarray
    done: np.ndarray
    reward: np.ndarray
    outside: np.ndarray

    @classmethod
    def of(cls, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> Self:
        """Build transitions without predictions."""
        unknown = np.zeros(len(old), dtype=np.int64)
        return cls(action, old, new, new, unknown, unknown, unknown)

    def column(self, column: RuleColumn, sizes: "Sizes") -> np.ndarray:
        """Return the values of one column."""
        factor, landmarks = column.factor, sizes.landmarks
        match column.kind:
            case "action" | "done" | "reward" | "outside" as kind:
                values = getattr(self, kind)
            case "part":
                values = np.unravel_index(self.action, sizes.parts)[column.other]
            case "edge":
                values = self.old[:, factor] + self.aimed[:, factor]
            case "old" | "aimed" | "new" as kind:
                values = getattr(self, kind)[:, factor]
            case "site" if landmarks:
                values = landmarks.here(self.old) >= 0
            case "at" if landmarks:
                values = landmarks.at(self.old, factor)
            case _:
                values = self._relation(column)
        result: np.ndarray = values.astype(np.int64)
        return result

    def _relation(self, column: RuleColumn) -> np.ndarray:
        """Return the values of a column about several factors, or about the change of one."""
        old, new, factor, other = self.old, self.new, column.factor, column.other
        values: np.ndarray
        match column.kind:
            case "same":
                values = (new == old).all(axis=1)
            case "change":
                values = new[:, factor] - old[:, factor] + column.size // 2
            case "gap":
                values = new[:, factor] - new[:, other] + column.size // 2
            case _:
                values = new[:, column.cell].sum(axis=1)
        return values


class Landmarks(NamedTuple):
    """The cells that the values of the factor `item` represent.

    Each value except `held` represents a cell, given by the factors `places`. `sites` maps
    values to observed cells. The factor `target` is the destination, if every item is put down
    there.
    """

    item: int
    held: int
    places: tuple[int, ...]
    sites: Mapping[int, Cell]
    target: int | None

    @property
    def values(self) -> dict[Cell, int]:
        """The value that represents each observed cell."""
        return {cell: value for value, cell in self.sites.items()}

    def here(self, factors: np.ndarray) -> np.ndarray:
        """Return the value that represents the current cell, or -1."""
        values, cells = self.values, map(tuple, factors[:, self.places].tolist())
        return np.array([values.get(cell, -1) for cell in cells], dtype=np.int64)

    def at(self, factors: np.ndarray, factor: int) -> np.ndarray:
        """Return a mask of the rows whose current cell is represented by a factor."""
        result: np.ndarray = self.here(factors) == factors[:, factor]
        return result

    def goals(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors that may be the destination; only `target`, if it is known."""
        others = [other for other in self.companions(radices) if other != self.item]
        return others if self.target is None else [self.target]

    def companions(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors whose values may represent the same cells."""
        size = radices[self.item]
        others = [i for i in range(len(radices)) if i not in self.places]
        return [i for i in others if abs(radices[i] - size) < 2 and radices[i] >= LEAST_SYMBOLS]


class Sizes(NamedTuple):
    """The radix of each factor, the number of actions, landmarks, and the parts of an action."""

    radices: tuple[int, ...]
    actions: int
    landmarks: Landmarks | None = None
    parts: tuple[int, ...] = ()

    @property
    def picks(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Pairs of a pointer factor and the equal neighbours it may select from."""
        return tuple(
            (pointer, tuple(range(start, start + count)))
            for first, end in _runs(self.radices)
            for pointer, count in enumerate(self.radices)
            if count >= LEAST_PICKED and not first <= pointer < end and not (end - first) % count
            for start in range(first, end, count)
        )

    @property
    def flags(self) -> tuple[int, ...]:
        """The factors with values 0 and 1, if there are at least `LEAST_FLAGS`."""
        flags = tuple(i for i, radix in enumerate(self.radices) if radix == FLAG)
        return flags if len(flags) >= LEAST_FLAGS else ()

    def columns(self, factored: FactoredTransitions, *kinds: str) -> tuple[RuleColumn, ...]:
        """List the informative columns of the given kinds.

        The new values of a factor are listed only if they differ from the old ones, its aimed
        values only if they differ from both, and its edges only if it moves. The kind "part" is
        the action itself if actions have one part.
        """
        columns = (column for kind in kinds for column in self._of_kind(factored, kind))
        return tuple(dict.fromkeys(columns))

    def _of_kind(self, factored: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield the columns of one kind."""
        match kind:
            case "action":
                yield RuleColumn(kind, -1, self.actions)
            case "same" | "done":
                yield RuleColumn(kind, -1, 2)
            case "outside":
                yield from [RuleColumn(kind, -1, 2)] * bool(factored.outside.any())
            case "reward":
                yield RuleColumn(kind, -1, int(factored.reward.max(initial=0)) + 1)
            case "part":
                columns = (RuleColumn(kind, -1, size, n) for n, size in enumerate(self.parts))
                whole = [RuleColumn("action", -1, self.actions)]
                yield from columns if len(self.parts) > 1 else whole
            case "at" | "goal":
                yield from self._sites(goal=kind == "goal")
            case "run":
                yield from self._of_runs()
            case "gap":
                yield from self._of_pairs()
            case _:
                yield from self._of_factors(factored, kind)

    def _of_factors(self, factored: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield a column for each factor, if it varies and differs from simpler columns."""
        for factor, radix in enumerate(self.radices):
            old, aimed, new = (
                part[:, factor] for part in (factored.old, factored.aimed, factored.new)
            )
            match kind:
                case "old":
                    informative = (old != old[0]).any()
                case "new" | "change":
                    informative = (new != old).any()
                case "aimed":
                    informative = (aimed != new).any() and (aimed != old).any()
                case _:
                    informative = (aimed != old).any()
            if informative:
                signed = kind in ("edge", "change")
                yield RuleColumn(kind, factor, radix * 2 - 1 if signed else radix)

    def _of_pairs(self) -> Iterator[RuleColumn]:
        """Yield differences of factors, unless there are many pairs."""
        numbers = [n for n, radix in enumerate(self.radices) if radix > FLAG]
        pairs = list(combinations(numbers, 2))
        for one, other in pairs if len(pairs) <= MOST_GAPS else ():
            size = 2 * max(self.radices[one], self.radices[other]) - 1
            yield RuleColumn("gap", one, size, other)

    def _of_runs(self) -> Iterator[RuleColumn]:
        """Yield columns about runs of neighbouring factors of one size."""
        for first, end in _runs(self.radices):
            radix, run = self.radices[first], tuple(range(first, end))
            if len(run) >= LEAST_RUN:
                yield RuleColumn("sum", -1, len(run) * (radix - 1) + 1, cell=run)

    def _sites(self, *, goal: bool) -> Iterator[RuleColumn]:
        """Yield columns that compare the current cell with the cells of factors.

        There is no `goal` column if items are put down at their target only.
        """
        if self.landmarks and not (goal and self.landmarks.target is not None):
            item, cell = self.landmarks.item, self.landmarks.places
            if not goal:
                yield RuleColumn("site", -1, 2, cell=cell)
                yield RuleColumn("at", item, 2, cell=cell)
            for factor in self.landmarks.companions(self.radices):
                if factor != item:
                    yield RuleColumn("at", factor, 2, cell=cell)


def _runs(radices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the start and the exclusive end of each run of factors of one size."""
    ends = [n for n in range(1, len(radices)) if radices[n] != radices[n - 1]]
    yield from pairwise([0, *ends, len(radices)])


def pick(factors: np.ndarray, pointer: int, cells: tuple[int, ...]) -> np.ndarray:
    """Return the value of the factor in `cells` that the factor `pointer` selects."""
    values: np.ndarray = factors[np.arange(len(factors)), np.array(cells)[factors[:, pointer]]]
    return values


class Trials(NamedTuple):
    """Transitions in factors, with the factors `places` that determine the current cell."""

    old: np.ndarray
    action: np.ndarray
    after: np.ndarray
    places: tuple[int, ...]
    radices: tuple[int, ...]

    def landmarks(self) -> Landmarks | None:
        """Return the landmarks of the first factor whose values represent places, if any."""
        others = [i for i in range(len(self.radices)) if i not in self.places]
        candidates = (self._landmarks(i) for i in others if self.radices[i] >= LEAST_SYMBOLS)
        return next((landmarks for landmarks in candidates if landmarks), None)

    def _landmarks(self, item: int) -> Landmarks | None:
        """Interpret the changes of a factor as picking up and putting down an item."""
        pairs = np.stack([self.old[:, item], self.after[:, item]], axis=1)
        changed = pairs[:, 0] != pairs[:, 1]
        held = set(range(self.radices[item]))
        for pair in pairs[changed].tolist():
            held &= set(pair)
        if len(held) != 1:
            return None
        (value,) = held
        symbols = pairs[changed].sum(axis=1) - value
        cells = [tuple(cell) for cell in self.old[changed][:, self.places].tolist()]
        seen = set(zip(symbols.tolist(), cells, strict=True))
        sites = dict(sorted(seen))
        if len(seen) < LEAST_SITES or not len(seen) == len(sites) == len(set(sites.values())):
            return None
        landmarks = Landmarks(item, value, self.places, sites, None)
        put = changed & (pairs[:, 0] == value)
        return landmarks._replace(target=next(self._targets(landmarks, put), None))

    def _targets(self, found: Landmarks, put: np.ndarray) -> Iterator[int]:
        """Yield the factors that equal the place of each item after it is put down."""
        for other in found.companions(self.radices):
            same = self.old[put, other] == self.after[put, found.item]
            if other != found.item and len(same) and same.all():
                yield other


CASE_BITS = 4.0
"""Price of a case of a decision list, in addition to its comparisons and its label."""


class CaseList(NamedTuple):
    """A decision list: the first case that holds gives the label, otherwise the label is 0.

    Conditions name columns by their number. `bits` is the description length, errors included.
    """

    columns: tuple[RuleColumn, ...]
    found: RelationList
    bits: float

    def labels(self, factored: FactoredTransitions, sizes: Sizes) -> np.ndarray:
        """Return the label of each transition."""
        used = {n: factored.column(self.columns[int(n)], sizes) for n in self.found.features}
        return self.found.effects(used, len(factored.action))


class CaseSearch(NamedTuple):
    """A search for decision lists about transitions.

    `error_bits` is the price of a wrong row, `search_error_bits` that while rules are extended.
    """

    sizes: Sizes
    spend: Spend
    error_bits: float
    search_error_bits: float | None = None

    def learn(
        self,
        factored: FactoredTransitions,
        columns: tuple[RuleColumn, ...],
        correct: np.ndarray,
        effect_bits: tuple[float, ...] = (),
        rows: np.ndarray | None = None,
    ) -> CaseList:
        """Learn the list with the shortest description.

        Args:
            factored: Transitions, one row each.
            columns: Columns that conditions may compare.
            correct: Mask of shape (rows, labels): the label gives the recorded outcome.
            effect_bits: Price of each label.
            rows: Mask of the rows that count; without it, all rows.
        """
        chosen = np.arange(len(correct)) if rows is None else np.flatnonzero(rows)
        features = [
            RelationFeature(str(n), column.order, values[chosen], column.bits)
            for n, column in enumerate(columns)
            for values in [factored.column(column, self.sizes)]
        ]
        kinds = correct.shape[1]
        bias = Bias(
            self.error_bits, effect_bits, default=0, search_error_bits=self.search_error_bits
        )
        found = learn(features, correct[chosen], self.spend, bias)
        values = {feature.name: feature.values for feature in features}
        labels = found.effects(values, len(chosen))
        wrong = np.count_nonzero(~correct[chosen, labels])
        each = log2(2 + sum(column.size for column in columns))
        bits = len(found.rules) * (CASE_BITS + log2(max(2, kinds))) + wrong * self.error_bits
        bits += sum(each for rule in found.rules for _ in rule.conditions)
        return CaseList(columns, found, float(bits))
