"""Sparse equations for several variables; each equation may read explained next values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula, SearchLimits, exact
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.continuous.variables import Reads, Variable, needed
from cwm_induction.effort import Share

MOST_ROWS = 600
"""Maximum number of rows for fitting an equation; the held-out rows check the equation."""

TIGHT = (0.25, 1.0)
"""Tolerances that are tried first, as shares of the largest rounding error. Few approximations pass
the smallest tolerance."""

FEWEST_ROWS = 12
"""Minimum number of rows for fitting an equation."""

MIN_INNER_FRACTION = 0.5
"""An equation is fitted only in rows without a variable at its limit, if they are at least this
fraction of the rows."""

MIN_ROWS_PER_TERM = 3
"""A longer equation must explain more rows than this for each additional term."""

SEARCHES = {
    1: SearchLimits(size=3, eliminate=8),
    2: SearchLimits(size=5, eliminate=14),
    3: SearchLimits(size=6, eliminate=14),
}
"""Limits of the regression for each level of the library."""


class _Attempt(NamedTuple):
    """A formula, and whether its errors are within the rounding of stored values."""

    formula: Formula
    tight: bool


@dataclass
class Chains:
    """A search for formulas of the changes of variables, which may read other next values.

    `level` is the largest library, 1 to 3 as in `terms.library`. `others` has the names that
    other explanations than formulas read, for every variable that they explain.
    """

    samples: Samples
    variables: Sequence[Variable]
    inputs: Sequence[NamedColumn]
    effort: Share
    level: int = 3
    formulas: dict[str, Formula] = field(default_factory=dict)
    others: Reads = field(default_factory=dict)
    _loose: dict[str, Formula] = field(default_factory=dict)
    _bases: dict[tuple[int, bytes], Array] = field(default_factory=dict)
    _libraries: dict[tuple[int, frozenset[str]], list[Term]] = field(default_factory=dict)

    def explain(self) -> dict[str, Formula]:
        """Return a formula for every variable that has one."""
        for variable in self.variables:
            if variable.still:
                self.formulas[variable.name] = Formula((), ())
        while self._next_formula() or self._accept_loose() or self._linked_formula():
            pass
        self._shorten()
        return self.formulas

    def _next_formula(self) -> bool:
        """Explain another variable by explained ones, with the smallest sufficient library."""
        for level in range(1, self.level + 1):
            for variable in self._unexplained():
                chain = self._independent(variable, explained=True)
                attempt = self._attempt(variable, level, chain)
                if attempt is not None and attempt.tight:
                    self.formulas[variable.name] = attempt.formula
                    return True
                if attempt is not None:
                    self._loose.setdefault(variable.name, attempt.formula)
        return False

    def _accept_loose(self) -> bool:
        """Accept a formula that is within the tolerance but not within the rounding errors."""
        for variable in self._unexplained():
            if variable.name in self._loose:
                self.formulas[variable.name] = self._loose[variable.name]
                return True
        return False

    def _linked_formula(self) -> bool:
        """Explain a variable by next values of variables without an explanation."""
        candidates = {}
        for variable in self._unexplained():
            chain = self._independent(variable, explained=False)
            attempt = self._attempt(variable, 1, chain)
            if attempt is not None:
                candidates[variable.name] = attempt.formula
        if not candidates:
            return False
        cheapest = min(candidates, key=lambda name: candidates[name].cost)
        self.formulas[cheapest] = candidates[cheapest]
        return True

    def _shorten(self) -> None:
        """Replace formulas by cheaper ones, or by equally cheap ones with smaller weights.

        Large weights multiply rounding errors, such as the difference of a next value and its
        own terms.
        """
        for variable in self.variables:
            formula = self.formulas.get(variable.name)
            if formula is None or formula.cost <= 1.2:
                continue
            chain = self._independent(variable, explained=True)
            fewer = [other for other in chain if other.next not in formula.names]
            for after in (chain, fewer) if len(fewer) < len(chain) else (chain,):
                attempt = self._attempt(variable, 1, after)
                if attempt is not None and _price(attempt.formula) < _price(formula):
                    formula = self.formulas[variable.name] = attempt.formula

    def _attempt(
        self, variable: Variable, level: int, chain: Sequence[Variable]
    ) -> _Attempt | None:
        """Return a formula that also holds in the held-out rows, or None.

        At the limit of another variable a different law may hold, such as a stop at a wall. So
        the formula is fitted in the other rows, unless a longer one explains enough rows more.
        """
        own = self.samples.smooth & variable.free
        inner = own & np.all([v.free for v in self.variables if not v.is_whole], axis=0)
        if inner.sum() < MIN_INNER_FRACTION * own.sum():
            inner = own
        attempt = self._attempt_in(inner, variable, level, chain)
        if attempt is None or inner.sum() == own.sum():
            return attempt
        right = self._count_right(variable, attempt, own)
        if right == own.sum():
            return attempt
        longer = self._attempt_in(own, variable, level, chain)
        if longer is None:
            return attempt
        more_terms = max(0, len(longer.formula.terms) - len(attempt.formula.terms))
        more_rows = self._count_right(variable, longer, own) - right
        return longer if more_rows > MIN_ROWS_PER_TERM * more_terms else attempt

    def _count_right(self, variable: Variable, attempt: _Attempt, rows: Array) -> int:
        change = attempt.formula.values(len(self.samples))
        return int(variable.matches(change)[rows].sum())

    def _attempt_in(
        self, usable: Array, variable: Variable, level: int, chain: Sequence[Variable]
    ) -> _Attempt | None:
        """Return a formula for the usable rows (a mask), or None."""
        rows = np.flatnonzero(usable & self.samples.learn)
        rows = rows[:: 1 + len(rows) // MOST_ROWS]
        terms = self._terms(level, chain)
        if len(rows) < FEWEST_ROWS or not self._possible(variable, terms, rows):
            return None
        target, search = variable.change, SEARCHES[level]
        loose = exact(terms, target, variable.quarter, rows, self.effort, search)
        if loose is None:
            return None
        check = usable & ~self.samples.learn
        for share in TIGHT:
            tight = exact(terms, target, share * variable.rounding, rows, self.effort, search)
            if tight is not None and self._holds(variable, tight, check):
                return _Attempt(tight, tight=True)
        return _Attempt(loose, tight=False) if self._holds(variable, loose, check) else None

    def _holds(self, variable: Variable, formula: Formula, check: Array) -> bool:
        """Return whether a formula holds in the check rows, and at the limits of whole numbers."""
        change = formula.values(len(self.samples))
        holds = variable.agrees(change, check)
        if variable.is_whole:  # the limits of a whole number are ordinary values
            stuck = self.samples.smooth & ~variable.free
            holds = holds and variable.agrees(change, stuck, 0.97)
        return holds

    def _possible(self, variable: Variable, terms: list[Term], rows: Array) -> bool:
        """Return whether all terms together fit the changes within the tolerance.

        If they do not, no subset of the terms does.
        """
        if len(terms) > 0.9 * len(rows):
            return True
        key = (id(terms), rows.tobytes())
        if key not in self._bases:
            self.effort.spend(2.0 * len(rows) * len(terms) ** 2)
            matrix = np.stack([term.values[rows] for term in terms], 1)
            self._bases[key] = np.linalg.qr(matrix / np.linalg.norm(matrix, axis=0))[0]
        basis, target = self._bases[key], variable.change[rows]
        rest = target - basis @ (basis.T @ target)
        return float(np.linalg.norm(rest)) <= float(np.linalg.norm(variable.quarter[rows]))

    def _terms(self, level: int, chain: Sequence[Variable]) -> list[Term]:
        """Return the library of a level, with the next values of the chain."""
        key = (level, frozenset(variable.name for variable in chain))
        if key in self._libraries:
            return self._libraries[key]
        columns = [variable.column for variable in self.variables]
        terms = library(columns, self.inputs, level)
        terms += [Term(v.next, v.then, 1.2) for v in chain]
        if level == 3 and chain and len(self.variables) <= 8:
            names = {variable.name for variable in chain}
            ahead = [v.next_column if v.name in names else v.column for v in self.variables]
            terms += [t for t in library(ahead, self.inputs, 3) if "_next" in t.text]
        self.effort.spend(0.05 * len(self.samples) * len(terms) ** 2)
        self._libraries[key] = distinct(terms)
        return self._libraries[key]

    def _unexplained(self) -> list[Variable]:
        known = {*self.formulas, *self.others}
        return [v for v in self.variables if v.name not in known]

    def _independent(self, variable: Variable, explained: bool) -> list[Variable]:
        """Return the moving variables whose next values do not depend on the given variable.

        If `explained`, return only variables that already have an explanation.
        """
        formulas = {name: formula.names for name, formula in self.formulas.items()}
        reads = {**self.others, **formulas}
        return [
            other
            for other in self.variables
            if other.name != variable.name
            and not other.still
            and (other.name in reads or not explained)
            and variable.name not in needed(other.name, reads)
        ]


def _price(formula: Formula) -> tuple[float, float]:
    return round(formula.cost, 6), max(abs(weight) for weight in formula.weights)
