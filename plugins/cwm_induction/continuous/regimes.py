"""Several equations for one quantity, each exact in its own regime, and rules that choose.

Formulas are grown from rows that lie close together; flags, modes and counters need no more
than fixed changes and values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula, SearchLimits, Target, exact, fitted
from cwm_induction.continuous.rules import (
    Feature,
    Tree,
    as_features,
    holds,
    in_rows,
    learned,
    names_in,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term
from cwm_induction.continuous.variables import Reads, Variable, needed
from cwm_induction.effort import Share

MOST_REGIMES = 6
"""Formulas after which the search for further ones ends."""

TRIALS = 10
"""Rows in whose neighbourhood a formula is looked for, drawn anew for every formula."""

NEIGHBOURS = (40, 25, 80, 14)
"""Sizes of neighbourhoods, in turn: few rows share a regime, many determine more terms."""

MOST_ROWS = 200
"""Rows that a formula is fitted to before it grows to all that it explains."""

MOST_OUTCOMES = 6
"""Fixed changes and values that may take turns: a number with more is no flag and no mode."""


class Gate(NamedTuple):
    """When a formula holds instead of the ones before it."""

    formula: int
    tree: Tree


@dataclass(frozen=True)
class Regimes:
    """Formulas, the rows that each explains, and the share of rows that some formula explains.

    The gates choose among them; where none opens the first formula holds.
    """

    formulas: tuple[Formula, ...]
    members: tuple[Array, ...]
    covered: float
    gates: tuple[Gate, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names that formulas and rules read."""
        own = {name for formula in self.formulas for name in formula.names}
        return own.union(*(names_in(gate.tree) for gate in self.gates))

    def values(self, rows: int) -> Array:
        """Return the value in every row that the rules choose."""
        values = self.formulas[0].values(rows)
        for index, tree in reversed(self.gates):
            values = np.where(holds(tree, rows), self.formulas[index].values(rows), values)
        return values

    def gated(self, target: Target, features: Sequence[Feature]) -> "Regimes":
        """Learn rules that choose, but for formulas that cannot be told apart from earlier ones."""
        count = len(target.values)
        explains = [
            (np.abs(f.values(count) - target.values) <= 4 * target.tolerance) & target.rows
            for f in self.formulas
        ]
        found: list[Gate] = []
        earlier = explains[0]
        for index in range(1, len(self.formulas)):
            wanted = explains[index] & ~earlier
            decided = np.flatnonzero(wanted | (earlier & ~explains[index]))
            tree = in_rows(learned, features, wanted, decided, 4)
            wrong = int((holds(tree, count) != wanted)[decided].sum())
            if wanted.any() and wrong <= 0.3 * wanted.sum() and not isinstance(tree, bool):
                found.append(Gate(index, tree))
            earlier = earlier | explains[index]
        return replace(self, gates=tuple(found))


@dataclass(frozen=True)
class Places:
    """Where rows lie: coordinates, and masks of rows that may be a regime."""

    coordinates: Array
    hints: Sequence[Array] = ()

    def neighbourhoods(self, remaining: Array, rng: np.random.Generator) -> list[Array]:
        """Return sets of the remaining rows that may belong to one regime."""
        rows = np.flatnonzero(remaining)
        found = [np.flatnonzero(hint & remaining) for hint in self.hints] + [rows]
        scale = self.coordinates.std(0) + 1e-9
        scaled = self.coordinates[rows] / scale
        for trial in range(TRIALS):
            distance = ((scaled - scaled[rng.integers(len(rows))]) ** 2).sum(1)
            near = np.argsort(distance, kind="stable")[: NEIGHBOURS[trial % len(NEIGHBOURS)]]
            found.append(rows[near])
        return [
            rng.choice(rows, MOST_ROWS, replace=False) if len(rows) > MOST_ROWS else rows
            for rows in found
            if len(rows) >= 5
        ]


def regimes(
    terms: Sequence[Term],
    target: Target,
    places: Places,
    rng: np.random.Generator,
    effort: Share,
    *,
    size: int,
) -> Regimes:
    """Fit a formula to rows that lie close together, grow it to all that it explains, repeat.

    `size` is the most terms of a formula.
    """
    remaining = target.rows.copy()
    formulas: list[Formula] = []
    members: list[Array] = []
    few = max(2, int(0.004 * target.rows.sum()))  # rows that may stay unexplained
    while remaining.sum() > few and len(formulas) < MOST_REGIMES and effort.spend(0):
        best: tuple[float, Formula, Array] | None = None
        for rows in places.neighbourhoods(remaining, rng):
            found = _grown(terms, target, rows, remaining, effort, size)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is None or best[2].sum() < 0.01 * target.rows.sum():
            break
        formulas.append(best[1])
        members.append(best[2])
        remaining &= ~best[2]
    covered = 1 - remaining.sum() / max(1, target.rows.sum())
    return Regimes(tuple(formulas), tuple(members), float(covered))


def whole_regimes(
    variable: Variable, samples: Samples, features: Sequence[Feature]
) -> Regimes | None:
    """Return few fixed changes or values and rules that choose, if they hold in rows held back."""
    rows = samples.smooth
    found = _outcomes(variable, rows)
    if found is None:
        return None
    learn = Target(variable.change, np.full(len(rows), 1e-6), rows & samples.learn)
    wrong = np.abs(found.gated(learn, features).values(len(rows)) - variable.change) > 1e-6
    check = rows & ~samples.learn
    if (wrong & rows).mean() > 0.03 or (wrong & check).sum() > 0.04 * check.sum():
        return None
    return found.gated(replace(learn, rows=rows), features)


def compared(columns: Sequence[NamedColumn]) -> list[Feature]:
    """Return quantities, and differences of two, that rules about whole numbers may compare."""
    plain = as_features(columns)
    if len(columns) > 12:  # more than 66 differences
        return plain
    differences = [
        Feature(f"{a.text} - {b.text}", a.values - b.values, 2.0)
        for a, b in combinations(columns, 2)
    ]
    return [*plain, *differences]


def modes(variables: Sequence[Variable], reads: Reads, ruled: Iterable[str]) -> list[NamedColumn]:
    """Return next values that rules give already, and columns that say which mode is on."""
    late = {v.name for v in variables if v.name not in reads}
    ready = {name for name in ruled if not late & needed(name, reads)}
    then = [v.next_column for v in variables if v.name in ready]
    whole = [v.column for v in variables if not v.still and v.is_whole]
    found = [*then]
    for text, values, _ in [*whole, *then]:
        levels = np.unique(values)
        if 3 <= len(levels) <= MOST_OUTCOMES:
            found += [
                NamedColumn(f"({text} == {level:g})", (values == level).astype(float))
                for level in levels.tolist()
            ]
    return found


def _grown(
    terms: Sequence[Term], target: Target, rows: Array, remaining: Array, effort: Share, size: int
) -> tuple[float, Formula, Array] | None:
    """Fit some rows exactly, then all rows that the formula explains.

    Return the rows that it explains, less what its terms cost, the formula and a mask of the rows.
    """
    search = SearchLimits(max(1, min(size, (len(rows) - 2) // 3)), beam=6, branch=6)
    formula = exact(terms, target.values, target.tolerance, rows, effort, search)
    if formula is None:
        return None

    def explained(candidate: Formula) -> Array:
        error = np.abs(candidate.values(len(target.values)) - target.values)
        member: Array = (error <= 2 * target.tolerance) & remaining
        return member

    member = explained(formula)
    if member.sum() < 2 * len(formula.terms) + 2:
        return None
    refitted = fitted(formula.terms, target.values, target.tolerance, np.flatnonzero(member))
    wider = explained(refitted)
    if wider.sum() >= member.sum():
        formula, member = refitted, wider
    return float(member.sum()) - 1.5 * formula.cost, formula, member


def _outcomes(variable: Variable, rows: Array) -> Regimes | None:
    """Cover the rows with fixed changes and fixed values, the commonest first."""
    ones = Term(ONE, np.ones(len(rows)), 1.0)
    own = Term(variable.name, variable.now, 1.0)
    options = [
        (variable.change == change, Formula((ones,), (change,)) if change else Formula((), ()))
        for change in np.unique(variable.change[rows]).tolist()
    ]
    options += [
        (variable.then == value, Formula((own, ones), (-1.0, value)))
        for value in np.unique(variable.then[rows]).tolist()
    ]
    formulas: list[Formula] = []
    members: list[Array] = []
    remaining = rows.copy()
    while remaining.any() and len(formulas) < MOST_OUTCOMES and len(options) <= 60:
        member, formula = max(options, key=lambda option: int((option[0] & remaining).sum()))
        formulas.append(formula)
        members.append(member & remaining)
        remaining = remaining & ~member
    covered = bool(formulas) and not remaining.any()
    return Regimes(tuple(formulas), tuple(members), 1.0) if covered else None
