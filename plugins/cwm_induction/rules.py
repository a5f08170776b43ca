"""Rules over thresholds: a disjunction of conjunctions, learned by covering with a beam.

Each conjunction is grown from general to special by FOIL's information gain (Quinlan, 1990) with
a beam (CN2; Clark and Niblett, 1989). Rules are chosen by the rows that they get wrong, then by
their length. Rows that are neither wanted nor unwanted do not count.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.writing.rounding import literal, simplest_between, whole_degrees_between
from cwm_induction.writing.statements import mentioned

BEAM = 6
"""Conjunctions that are extended at a time."""

MAX_ATOMS = 5
"""Comparisons of a conjunction."""

MAX_CONJUNCTIONS = 5
"""Alternatives of a rule."""

ATOM_PRICE = 0.35
"""Rows that a comparison of cost 1 must explain, so that a rule is more than a list of rows."""


WIDE_GAP = 0.3
"""Gain of a threshold in the widest possible gap, in rows: of equal thresholds, the widest wins."""

SAME = 1e-12
"""Values of a feature that differ by less than this share of its range differ by rounding only."""


class Feature(NamedTuple):
    """A quantity that a rule may compare with a threshold.

    `cost` is the price of believing in the quantity. With `degrees`, whole degrees are simpler
    thresholds than decimal numbers. `label` is the name of a constant for the threshold.
    """

    text: str
    values: Array
    cost: float = 1.0
    degrees: bool = False
    label: str = "THRESHOLD"

    @property
    def is_flag(self) -> bool:
        """Return whether the quantity is a condition by itself."""
        return bool(np.isin(self.values, (0.0, 1.0)).all())

    @property
    def is_whole(self) -> bool:
        """Return whether the quantity takes whole numbers only."""
        return bool((self.values == np.round(self.values)).all())


class Threshold(NamedTuple):
    """A number to compare with, in its simplest form."""

    value: float
    text: str
    comment: str = ""


Namer = Callable[[Feature, Threshold], str]
"""Returns the text of a threshold."""


def as_features(columns: Sequence[NamedColumn], cost: float = 1.0) -> list[Feature]:
    """Return columns as quantities that rules may compare."""
    return [
        Feature(text, values, cost, label=f"{text.upper()}_THRESHOLD".replace("_NEXT", ""))
        if text.isidentifier()
        else Feature(text, values, cost)
        for text, values, _ in columns
    ]


def threshold_between(feature: Feature, low: float, high: float) -> Threshold:
    """Return the simplest number in a gap between two values of a feature."""
    if feature.is_whole:
        return Threshold(low, literal(low).removesuffix(".0"))
    comment = f"The data only show that it is between {low:.5g} and {high:.5g}."
    degrees = whole_degrees_between(low, high) if feature.degrees else None
    if degrees is not None:
        return Threshold(float(np.radians(degrees)), f"np.radians({degrees})", comment)
    value = simplest_between(low, high)
    return Threshold(value, repr(value), comment)


class ThresholdTest(NamedTuple):
    """A comparison: above a threshold (`side` 1) or up to it (`side` -1)."""

    feature: Feature
    side: int
    threshold: Threshold

    def holds(self) -> Array:
        """Return a mask: whether the comparison holds in a row."""
        above: Array = self.feature.values > self.threshold.value
        return above if self.side > 0 else ~above

    def written(self, name: Namer) -> str:
        """Write the comparison."""
        text = self.feature.text
        if self.feature.is_flag:
            return text if self.side > 0 else f"not {text}"
        return f"{text} {'>' if self.side > 0 else '<='} {name(self.feature, self.threshold)}"

    def opposite(self) -> "ThresholdTest":
        """Return the comparison that holds in all other rows."""
        return self._replace(side=-self.side)


@dataclass(frozen=True)
class ThresholdRule:
    """A disjunction of conjunctions, or its opposite; without conjunctions, an answer."""

    conjunctions: tuple[tuple[ThresholdTest, ...], ...] = ()
    opposite: bool = False

    def __len__(self) -> int:
        """Return the number of comparisons."""
        return sum(map(len, self.conjunctions))

    @property
    def is_constant(self) -> bool:
        """Return whether the rule compares nothing."""
        return not self.conjunctions

    @property
    def names(self) -> set[str]:
        """Return the names that the rule reads."""
        return {n for c in self.conjunctions for atom in c for n in mentioned(atom.feature.text)}

    @property
    def cost(self) -> float:
        """Return the length of the rule: one per comparison, and half the cost of its feature."""
        return sum(1 + 0.5 * atom.feature.cost for c in self.conjunctions for atom in c)

    def holds(self, rows: int) -> Array:
        """Return a mask (rows): whether the rule holds."""
        found = np.zeros(rows, bool)
        for conjunction in self.conjunctions:
            found |= np.logical_and.reduce([atom.holds() for atom in conjunction])
        return ~found if self.opposite else found

    def text(self, name: Namer = lambda _, threshold: threshold.text) -> str:
        """Write the rule as an expression; `name` writes the thresholds."""
        if self.is_constant:
            return repr(self.opposite)
        if self.opposite and len(self.conjunctions) == 1:
            return " or ".join(a.opposite().written(name) for a in self.conjunctions[0])
        if self.opposite and all(len(c) == 1 for c in self.conjunctions):
            return " and ".join(c[0].opposite().written(name) for c in self.conjunctions)
        parts = [" and ".join(atom.written(name) for atom in c) for c in self.conjunctions]
        several = len(parts) > 1
        text = " or ".join(f"({p})" if several and " and " in p else p for p in parts)
        return f"not ({text})" if self.opposite else text


def learn_rule(
    features: Sequence[Feature], wanted: Array, unwanted: Array | None = None
) -> ThresholdRule:
    """Learn a rule that holds in the wanted rows (mask) and not in the unwanted rows (mask).

    Without `unwanted` these are all other rows. The rule may describe either side.
    """
    unwanted = ~wanted if unwanted is None else unwanted
    if not wanted.any() or not unwanted.any():
        return ThresholdRule(opposite=bool(wanted.any()))
    columns = _Columns(features, np.flatnonzero(wanted | unwanted))
    sides = [
        ThresholdRule(columns.covering(wanted)),
        ThresholdRule(columns.covering(unwanted), opposite=True),
    ]
    return min(sides, key=lambda rule: wrong_rows(rule, wanted, unwanted) + ATOM_PRICE * rule.cost)


def wrong_rows(rule: ThresholdRule, wanted: Array, unwanted: Array | None = None) -> int:
    """Return the number of wanted rows without the rule and of unwanted rows with it."""
    unwanted = ~wanted if unwanted is None else unwanted
    holds = rule.holds(len(wanted))
    return int((wanted & ~holds).sum() + (unwanted & holds).sum())


class _Test(NamedTuple):
    """A comparison of a column in the decided rows."""

    column: int
    side: int
    threshold: float
    gain: float


class _Columns:
    """The values of all features in the rows that count, sorted once."""

    def __init__(self, features: Sequence[Feature], rows: Array) -> None:
        varied = [f for f in features if np.ptp(f.values[rows]) > 0]
        self.features, self.rows = varied, rows
        values = np.stack([f.values[rows] for f in varied]) if varied else np.zeros((0, len(rows)))
        self.values = values
        self.order = np.argsort(values, axis=1, kind="stable")
        self.sorted = np.take_along_axis(values, self.order, axis=1)
        self.costs = np.array([f.cost for f in varied])

    def covering(self, wanted: Array) -> tuple[tuple[ThresholdTest, ...], ...]:
        """Return conjunctions that cover the wanted rows one after another."""
        positive = wanted[self.rows]
        left = positive.copy()
        found: list[tuple[ThresholdTest, ...]] = []
        while left.any() and len(found) < MAX_CONJUNCTIONS:
            tests = self._conjunction(left, ~positive)
            if tests is None:
                break
            holds = self._holds(tests)
            covered, wrong = int((holds & left).sum()), int((holds & ~positive).sum())
            price = sum(1 + 0.5 * self.costs[t.column] for t in tests)
            if covered - wrong <= ATOM_PRICE * price:
                break
            found.append(self._atoms(tests, positive, left))
            left &= ~holds
        return tuple(found)

    def _conjunction(self, positive: Array, negative: Array) -> list[_Test] | None:
        """Grow a conjunction that covers many positive and few negative rows."""
        beam: list[tuple[list[_Test], Array]] = [([], positive | negative)]
        usual = float(np.log2(positive.sum() / (positive | negative).sum()))
        best: tuple[float, list[_Test]] | None = None
        seen: set[bytes] = set()
        for _ in range(MAX_ATOMS):
            grown: list[tuple[float, list[_Test], Array]] = []
            for tests, holds in beam:
                for test in self._tests(holds & positive, holds & negative, usual):
                    inside = holds & self._holds([test])
                    key = inside.tobytes()
                    if key in seen:
                        continue
                    seen.add(key)
                    grown.append((test.gain, [*tests, test], inside))
            grown.sort(key=lambda state: -state[0])
            beam = [(tests, inside) for _, tests, inside in grown[:BEAM]]
            for tests, inside in beam:
                price = sum(1 + 0.5 * self.costs[t.column] for t in tests)
                wrong = int((inside & negative).sum())
                score = float((inside & positive).sum()) - 3 * wrong - ATOM_PRICE * price
                if best is None or score > best[0]:
                    best = score, tests
            whole = best is not None and best[0] >= positive.sum() - 2 * ATOM_PRICE * MAX_ATOMS
            if not beam or whole or (best is not None and len(beam[0][0]) > len(best[1]) + 1):
                break
        return best[1] if best and best[1] else None

    def _tests(self, good: Array, bad: Array, usual: float) -> Iterator[_Test]:
        """Yield the best comparisons, by FOIL's gain over all rows.

        `usual` is the logarithm of the share of positive rows among all rows.
        """
        total, others = int(good.sum()), int(bad.sum())
        if not total or not others:
            return
        inside = (good | bad)[self.order]
        order = self.order[inside].reshape(len(self.order), -1)
        values = self.sorted[inside].reshape(order.shape)
        steps = np.diff(values, axis=1)
        gaps = steps / (values[:, -1:] - values[:, :1] + 1e-300)
        middles = values[:, :-1] + steps / 2
        split = (gaps > SAME) & (middles < values[:, 1:])  # a middle may be rounded up
        below = np.cumsum(good[order], axis=1, dtype=np.int32)[:, :-1]
        count = np.arange(1, order.shape[1], dtype=np.int32)
        for side in (-1, 1):
            p = below if side < 0 else total - below
            rows = count if side < 0 else order.shape[1] - count
            usable = split & (p > 0) & (rows - p < others)
            gain = p * (np.log2((p + 1e-6) / rows, dtype=np.float32) - usual)
            gain += WIDE_GAP * gaps - 0.5 * ATOM_PRICE * self.costs[:, None]
            gain = np.where(usable, gain, -np.inf)
            best = np.argmax(gain, axis=1)
            gains = gain[np.arange(len(gain)), best]
            for column in np.argsort(-gains, kind="stable")[:BEAM].tolist():
                if gains[column] > 0:
                    middle = float(middles[column, best[column]])
                    yield _Test(column, side, middle, float(gains[column]))

    def _holds(self, tests: Sequence[_Test]) -> Array:
        inside = np.ones(len(self.rows), bool)
        for column, side, threshold, _ in tests:
            above = self.values[column] > threshold
            inside &= above if side > 0 else ~above
        return inside

    def _atoms(self, tests: list[_Test], positive: Array, left: Array) -> tuple[ThresholdTest, ...]:
        """Leave out needless comparisons, and choose the simplest thresholds."""
        wrong = int((self._holds(tests) & ~positive).sum())
        for test in sorted(tests, key=lambda t: -self.costs[t.column]):
            fewer = [t for t in tests if t is not test]
            if fewer and (self._holds(fewer) & ~positive).sum() <= wrong:
                tests = fewer
        return tuple(self._atom(test, tests, positive) for test in tests)

    def _atom(self, test: _Test, tests: Sequence[_Test], positive: Array) -> ThresholdTest:
        """Move the threshold to the simplest number between the rows on either side."""
        values = self.values[test.column]
        others = self._holds([t for t in tests if t is not test])
        above = values > test.threshold
        inside = above if test.side > 0 else ~above
        kept, excluded = values[others & inside & positive], values[others & ~inside & ~positive]
        if not len(kept) or not len(excluded):
            kept, excluded = values[inside], values[~inside]
        if test.side > 0:
            low, high = float(excluded.max()), float(kept.min())
        else:
            low, high = float(kept.max()), float(excluded.min())
        feature = self.features[test.column]
        return ThresholdTest(feature, test.side, threshold_between(feature, low, high))
