"""Flags, modes and counters: whole numbers that rules set or move by a fixed amount."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula, SearchLimits, exact, fitted
from cwm_induction.continuous.rules import Feature, Tree, as_features, everywhere, holds, learned
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term
from cwm_induction.continuous.variables import Variable
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
    search = SearchLimits(max(1, min(size, (len(rows) - 2) // 3)), beam=6, branch=6)
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


Reads = Mapping[str, set[str]]
"""The names that the explanation of every explained variable reads."""


def needed(name: str, reads: Reads) -> set[str]:
    """Return the variables whose next values are needed for this one's."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        names = reads.get(waiting.pop(), set())
        fresh = {n.removesuffix("_next") for n in names if n.endswith("_next")} - found
        waiting += fresh
        found |= fresh
    return found


def settled(variable: Variable, variables: Sequence[Variable], reads: Reads) -> list[NamedColumn]:
    """Return the next values that are known before this variable's."""
    late = {v.name for v in variables if v.name not in reads} | {variable.name}
    return [
        other.next_column
        for other in variables
        if not other.still and other.name not in late and not late & needed(other.name, reads)
    ]


def cases(
    variables: Sequence[Variable], formulas: Mapping[str, Sequence[Formula]]
) -> list[NamedColumn]:
    """Return the next values according to every single formula of some variables."""
    return [
        NamedColumn(f"{v.name}_case_{index}", v.now + formula.values(len(v.now)))
        for v in variables
        for index, formula in enumerate(formulas.get(v.name, ()))
    ]


MOST_OUTCOMES = 6


def is_whole(variable: Variable) -> bool:
    """Whether a variable only takes whole numbers."""
    seen = np.concatenate([variable.now, variable.then])
    return bool((seen == np.round(seen)).all())


def by_rules(
    variable: Variable, samples: Samples, features: Sequence[Feature]
) -> tuple[Regimes, list[Gate]] | None:
    """Return few fixed changes or values and rules that choose, if they hold in rows held back."""
    rows = samples.smooth
    formulas, members = _outcomes(variable, rows)
    if not formulas:
        return None
    target = Target(variable.change, np.full(len(rows), 1e-6), rows & samples.learn)
    found = Regimes(tuple(formulas), tuple(members), 1.0)
    chosen = gates(found, target, features)
    wrong = np.abs(chosen_values(found, chosen, len(rows)) - variable.change) > 1e-6
    check = rows & ~samples.learn
    if (wrong & rows).mean() > 0.03 or (wrong & check).sum() > 0.04 * check.sum():
        return None
    target = Target(target.values, target.tolerance, rows)
    return found, gates(found, target, features)


def chosen_values(found: Regimes, chosen: Sequence[Gate], count: int) -> Array:
    """Return the change in every row that the rules choose."""
    values = found.formulas[0].values(count)
    for index, tree in reversed(chosen):
        values = np.where(holds(tree, count), found.formulas[index].values(count), values)
    return values


def compared(columns: Sequence[NamedColumn]) -> list[Feature]:
    """Return quantities, and differences of two, that rules about whole numbers may compare."""
    plain = as_features(columns)
    if len(columns) > 12:
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
    whole = [v for v in variables if not v.still and is_whole(v)]
    found = [*then]
    for column in [*(v.column for v in whole), *then]:
        levels = np.unique(column.values)
        if 3 <= len(levels) <= MOST_OUTCOMES:
            found += [
                NamedColumn(f"({column.text} == {level:g})", (column.values == level).astype(float))
                for level in levels.tolist()
            ]
    return found


def names_read(found: tuple[Regimes, list[Gate]]) -> set[str]:
    """Return the names that formulas and rules read."""
    regimes, chosen = found
    own = {name for formula in regimes.formulas for name in formula.names}
    return own.union(*(_read(gate.tree) for gate in chosen))


def _read(tree: Tree) -> set[str]:
    if isinstance(tree, bool):
        return set()
    own = Term(tree.feature.text, tree.feature.values, 1.0).names
    return own | _read(tree.below) | _read(tree.above)


def _outcomes(variable: Variable, rows: Array) -> tuple[list[Formula], list[Array]]:
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
    return ([], []) if remaining.any() else (formulas, members)
