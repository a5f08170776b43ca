"""Several equations for one quantity, each exact in its own regime."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula, Search, exact, fitted
from cwm_induction.continuous.rules import Feature, Tree, everywhere, holds, learned
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import Term
from cwm_induction.effort import Share

MOST_REGIMES = 6
TRIALS = 10
NEIGHBOURS = (40, 25, 80, 14)
MOST_ROWS = 200


@dataclass(frozen=True)
class Regimes:
    """Formulas, the rows that each explains, and the share of rows that some formula explains."""

    formulas: tuple[Formula, ...]
    members: tuple[Array, ...]
    covered: float


class Gate(NamedTuple):
    """When a formula holds instead of the ones before it."""

    formula: int
    tree: Tree


@dataclass(frozen=True)
class Target:
    """A quantity to explain: values, tolerance, and the rows to explain it in."""

    values: Array
    tolerance: Array
    rows: Array


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
    few = max(2, int(0.004 * target.rows.sum()))
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


def gates(found: Regimes, target: Target, features: Sequence[Feature]) -> list[Gate]:
    """Return rules that choose among the formulas, leaving out those that cannot be told apart."""
    count = len(target.values)
    explains = [
        (np.abs(f.values(count) - target.values) <= 4 * target.tolerance) & target.rows
        for f in found.formulas
    ]
    result = []
    earlier = explains[0]
    for index in range(1, len(found.formulas)):
        wanted = explains[index] & ~earlier
        decided = np.flatnonzero(wanted | (earlier & ~explains[index]))
        chosen = [f._replace(values=f.values[decided]) for f in features]
        tree = learned(chosen, wanted[decided], depth=4)
        wrong = int((holds(tree, len(decided)) != wanted[decided]).sum())
        if wanted.any() and wrong <= 0.3 * wanted.sum() and not isinstance(tree, bool):
            result.append(Gate(index, everywhere(tree, features)))
        earlier = earlier | explains[index]
    return result


def _grown(
    terms: Sequence[Term], target: Target, rows: Array, remaining: Array, effort: Share, size: int
) -> tuple[float, Formula, Array] | None:
    """Fit some rows exactly, then all rows that the formula explains; return its worth as well."""
    search = Search(max(1, min(size, (len(rows) - 2) // 3)), beam=6, branch=6)
    formula = exact(terms, target.values, target.tolerance, rows, effort, search)
    if formula is None:
        return None
    count = len(target.values)

    def explained(candidate: Formula) -> Array:
        error = np.abs(candidate.values(count) - target.values)
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
