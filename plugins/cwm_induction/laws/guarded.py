"""Decision lists of laws: several formulas for one quantity, and a rule per formula.

Laws are found first, each exact in many rows. A row that several laws explain does not count
for the rules between them, so rules stay short where laws agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import Term
from cwm_induction.effort import Share
from cwm_induction.laws.consensus import Law, Library, Unknown, variants
from cwm_induction.rules import Feature, ThresholdRule, learn_rule, wrong_rows

MAX_LAWS = 9
"""Laws of one quantity; more are a table rather than an explanation."""

FEW = 0.004
"""Share of unexplained rows below which no new law is looked for, only variants of known laws."""

MAJORITY = 0.5
"""Share of rows that a law must explain, so that no further law is looked for in them now."""

EXTREME = 0.3
"""A law is looked for in this share of the rows at either end of a quantity."""

FEWEST_ROWS = 5
"""Rows below which no new law is looked for."""

NEIGHBOURS = (14, 25, 40, 80, 160)
"""Sizes of neighbourhoods, in turn: few rows share a law, many rows determine more terms."""

UNSEPARATED = 0.3
"""Share of the rows of a law that its rule may get wrong; the law is left out beyond it."""


@dataclass(frozen=True)
class GuardedLaws:
    """Formulas, and rules in order with the number of the formula that a rule selects.

    The first formula holds if no rule does.
    """

    formulas: tuple[Formula, ...]
    rules: tuple[tuple[ThresholdRule, int], ...] = ()

    @property
    def names(self) -> set[str]:
        """Return the names that formulas and rules read."""
        formulas = {name for formula in self.formulas for name in formula.names}
        return formulas.union(*(rule.names for rule, _ in self.rules))

    @property
    def cost(self) -> float:
        """Return the length of the description: terms with the same weight count once."""
        parts = {
            (term.text, weight): term.cost
            for formula in self.formulas
            for term, weight in zip(formula.terms, formula.weights, strict=True)
        }
        return 1.5 * sum(parts.values()) + sum(rule.cost for rule, _ in self.rules)

    def values(self, rows: int) -> Array:
        """Return the value of each row by the first rule that holds."""
        values = self.formulas[0].values(rows)
        for rule, index in reversed(self.rules):
            values = np.where(rule.holds(rows), self.formulas[index].values(rows), values)
        return values

    def simplified(self, rows: int) -> Self:
        """Leave out terms that are 0 in all rows of their formula, if that is a shorter text."""
        if not self.rules:
            return self
        chosen, found = np.zeros(rows, int), self
        for rule, number in reversed(self.rules):
            chosen[rule.holds(rows)] = number
        for number, formula in enumerate(self.formulas):
            own = chosen == number
            pairs = zip(formula.terms, formula.weights, strict=True)
            kept = [(term, w) for term, w in pairs if term.values[own].any() or not own.any()]
            formulas = list(found.formulas)
            formulas[number] = Formula(tuple(t for t, _ in kept), tuple(w for _, w in kept))
            found = min(found, replace(found, formulas=tuple(formulas)), key=lambda laws: laws.cost)
        return found


class RowSets(NamedTuple):
    """Sets of rows that may share a law.

    `places` (rows, coordinates of equal spread) says which rows are neighbours. `groups` are masks
    of rows that may share a law, such as all rows of one action. Either end of `quantities` (values
    of all rows) may have a law.
    """

    places: Array
    groups: Sequence[Array] = ()
    quantities: Sequence[Array] = ()


@dataclass
class LawSearch:
    """Finds the laws of one quantity.

    `libraries` are sets of terms, the smallest first; laws may differ by one of the `terms`. If
    `own` is the quantity before the step, its change is explained, and a law may also set its next
    value.
    """

    unknown: Unknown
    libraries: Sequence[Sequence[Term]]
    terms: Sequence[Term]
    sets: RowSets
    rng: np.random.Generator
    effort: Share
    own: Term | None = None

    def laws(self, known: Sequence[Formula] = ()) -> list[Law]:
        """Return laws that cover the rows, the one with most rows first."""
        candidates = [self.unknown.law(formula) for formula in known]
        seeds = [Formula((), ()), *([Formula((self.own,), (-1.0,))] if self.own else [])]
        bases = [self.unknown.law(seed) for seed in seeds]
        laws: list[Law] = []
        remaining = self.unknown.rows.copy()
        while remaining.any() and len(laws) < MAX_LAWS:
            for law in [*laws, *bases]:
                candidates += variants(law, self.unknown, self.terms, remaining)
            best = self._best(candidates, remaining)
            many = remaining.sum() > FEW * len(remaining) or not laws
            weak = best is None or (best.rows & remaining).sum() < MAJORITY * remaining.sum()
            if many and weak:
                candidates += self._new(remaining)
                best = self._best(candidates, remaining)
            if best is None:
                break
            laws.append(best)
            remaining = remaining & ~best.rows
        return self._needed(laws)

    def _best(self, candidates: Sequence[Law], remaining: Array) -> Law | None:
        """Return the law that explains most of the remaining rows, less its cost."""
        scores = [float(law.support[remaining].sum()) - law.price for law in candidates]
        best = int(np.argmax(scores)) if scores else -1
        return candidates[best] if scores and scores[best] > 0 else None

    def _new(self, remaining: Array) -> Iterator[Law]:
        """Yield laws that grow from some of the remaining rows."""
        rows = np.flatnonzero(remaining & self.unknown.fit)
        groups = [np.intersect1d(rows, np.flatnonzero(group)) for group in self.sets.groups]
        groups = [group for group in groups if len(group) >= FEWEST_ROWS]
        if len(rows) < FEWEST_ROWS:
            return
        for library in self._matrices:
            if not self.effort.spend(0):
                return
            explained = np.zeros(len(remaining))
            for inside in [rows, *groups]:
                for start in self._starts(inside, whole=inside is rows):
                    law = library.law(start, inside, self.effort)
                    if law is not None:
                        explained = np.maximum(explained, law.support - law.price / len(rows))
                        yield law
                    if explained[inside].sum() >= MAJORITY * len(inside):
                        break
            if explained[rows].sum() >= MAJORITY * len(rows):
                return

    def _starts(self, inside: Array, *, whole: bool) -> Iterator[Array]:
        """Yield sets of rows that a law may grow from: ends of quantities, and neighbours."""
        yield inside
        size = int(EXTREME * len(inside))
        for values in self.sets.quantities if whole else self.sets.places.T:
            order = inside[np.argsort(values[inside], kind="stable")]
            yield order[:size]
            yield order[len(order) - size :]
        places = self.sets.places
        for size in NEIGHBOURS:
            centre = places[self.rng.choice(inside)]
            distance = ((places[inside] - centre) ** 2).sum(1)
            yield inside[np.argsort(distance, kind="stable")[:size]]

    @cached_property
    def _matrices(self) -> list[Library]:
        return [Library(terms, self.unknown) for terms in self.libraries if terms]

    def _needed(self, laws: list[Law]) -> list[Law]:
        """Leave out laws whose rows others explain, the costly ones first."""
        kept = sorted(laws, key=lambda law: -law.price)
        for law in list(kept):
            others = [other.rows for other in kept if other is not law]
            covered = np.logical_or.reduce(others) if others else np.zeros_like(law.rows)
            if others and self.unknown.weights[law.rows & ~covered].sum() <= law.price / 2:
                kept = [other for other in kept if other is not law]
        return sorted(kept, key=lambda law: -int(law.rows.sum()))


def guarded(
    laws: Sequence[Law], features: Sequence[Feature], usable: Array, effort: Share
) -> GuardedLaws:
    """Order laws in a decision list, the law with the simplest rule first, and the first law last.

    A law is left out if no rule separates it from the other laws.
    """
    waiting, decided = dict(enumerate(laws)), ~usable
    rules: list[tuple[ThresholdRule, int]] = []
    while len(waiting) > 1:
        options = []
        for number, law in waiting.items():
            if number == 0:
                continue
            effort.spend(20.0 * len(features) * len(usable))
            others = np.logical_or.reduce([o.rows for o in waiting.values() if o is not law])
            wanted, unwanted = law.rows & ~others & ~decided, others & ~law.rows & ~decided
            rule = learn_rule(features, wanted, unwanted)
            wrong = wrong_rows(rule, wanted, unwanted)
            options.append((wrong + 0.5 * rule.cost, number, rule, wrong, int(wanted.sum())))
        _, number, rule, wrong, count = min(options, key=lambda option: option[:2])
        del waiting[number]
        # A rule with more comparisons than rows would only list these rows.
        is_supported = len(rule) <= count + 1
        if not rule.is_constant and is_supported and wrong <= UNSEPARATED * count:
            rules.append((rule, number))
            decided = decided | rule.holds(len(decided))
    return GuardedLaws(tuple(law.formula for law in laws), tuple(rules)).simplified(len(usable))
