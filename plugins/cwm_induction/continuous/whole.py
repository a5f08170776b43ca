"""Flags, modes and counters: whole numbers that rules set or move by a fixed amount."""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.mixture import Gate, Regimes, Target, gates
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.rules import Feature, Tree, as_features, holds
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.settling import Reads, needed
from cwm_induction.continuous.terms import ONE, Column, Term

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


def compared(columns: Sequence[Column]) -> list[Feature]:
    """Return quantities, and differences of two, that rules about whole numbers may compare."""
    plain = as_features(columns)
    if len(columns) > 12:
        return plain
    differences = [
        Feature(f"{a.text} - {b.text}", a.values - b.values, 2.0)
        for a, b in combinations(columns, 2)
    ]
    return [*plain, *differences]


def modes(variables: Sequence[Variable], reads: Reads, ruled: Iterable[str]) -> list[Column]:
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
                Column(f"({column.text} == {level:g})", (column.values == level).astype(float))
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
