"""Laws and rules for the variables of a system, in an order for computing their next values.

Terms of laws and quantities of rules are generic functions of state, action and next state.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library, product_text
from cwm_induction.continuous.variables import Reads, Variable, indicators, settled
from cwm_induction.effort import Share
from cwm_induction.laws.consensus import Unknown
from cwm_induction.laws.guarded import GuardedLaws, LawSearch, RowSets, guarded
from cwm_induction.rules import Feature, as_features

MAX_MODES = 6
"""A whole number with at most this many values is a mode: each value may have its own laws."""

SOLVER_ERROR = 1e-9
"""Error of the robust regression, relative to the largest change: more than double precision."""

PATCHWORK = {0.97: 0.15, 0.0: 0.06}
"""Cost of laws per row, by the share of check rows that they predict. Costlier laws may approximate
a smooth law piece by piece."""

MAX_PAIRED = 12
"""With at most this many quantities, rules also compare differences and sums (132 of 12)."""

MAX_NUMBERED = 3
"""Actions whose number may be a factor in a law; more actions are kinds rather than amounts."""

MAX_FLAGS = 8
"""A whole number with at most this many values can be compared with each value."""


@dataclass
class LawExplainer:
    """Explains variables by laws that hold in parts of the rows.

    `reads` are the names that the explanations of other variables read.
    """

    samples: Samples
    variables: Sequence[Variable]
    inputs: Sequence[NamedColumn]
    reads: Mapping[str, set[str]]
    rng: np.random.Generator
    effort: Share
    found: dict[str, GuardedLaws] = field(default_factory=dict)

    def explain(self, names: Sequence[str], least: float) -> dict[str, GuardedLaws]:
        """Return laws for the named variables that predict the share `least` of the check rows."""
        left = [v for v in self.variables if v.name in names]
        while left:
            tried = {v.name: laws for v in left if (laws := self.laws(v)) is not None}
            rights = {v.name: self.right(v, tried[v.name]) for v in left if v.name in tried}
            good = [name for name in tried if rights[name] >= least]
            if least > 0:
                good = [name for name in good if self._is_short(tried[name], rights[name])]
            if not good:
                break
            best = max(good, key=lambda name: rights[name])
            self.found[best] = tried[best]
            left = [v for v in left if v.name != best]
        return self.found

    def _is_short(self, laws: GuardedLaws, right: float) -> bool:
        limit = next(cost for share, cost in PATCHWORK.items() if right >= share)
        return laws.cost <= limit * len(self.samples)

    def right(self, variable: Variable, laws: GuardedLaws) -> float:
        """Return the share of the check rows that laws predict, or of all rows if it is less."""
        right = variable.matches(laws.values(len(self.samples)))
        check = self.samples.smooth & ~self.samples.learn
        every = float(right[self.samples.smooth].mean())
        return min(every, float(right[check].mean())) if check.any() else every

    def laws(self, variable: Variable, known: Sequence[Formula] = ()) -> GuardedLaws | None:
        """Return laws of one variable, or None if none were found; some formulas may be `known`.

        They may read the next values of variables that are explained already.
        """
        if not self.effort.spend(0):
            return None
        reads: Reads = {**self.reads, **{n: laws.names for n, laws in self.found.items()}}
        after = settled(variable, self.variables, reads)
        now = [v.column for v in self.variables]
        chain = [v for v in self.variables if v.next in {column.text for column in after}]
        unknown = unknown_of(variable, self.samples, chain)
        moving = [v.column for v in self.variables if not v.still]
        libraries = law_libraries([variable.column], now, after, self.inputs)
        search = LawSearch(
            unknown,
            libraries,
            libraries[-1],
            self._sets,
            self.rng,
            self.effort,
            Term(variable.name, variable.now, 1.0),
        )
        laws = search.laws(known)
        if not laws:
            return None
        features = rule_features([*moving, *after], self.inputs)
        formulas = [law.formula for law in laws]
        features += case_features(variable.column, moving, formulas)
        for other in chain:
            if other.name in self.found:
                cases = case_columns(other.column, self.found[other.name].formulas)
                features += as_features(cases, 1.2)
        return guarded(laws, features, unknown.rows, self.effort)

    @cached_property
    def _sets(self) -> RowSets:
        return row_sets(self.samples, [v.column for v in self.variables], self.inputs)


def unknown_of(variable: Variable, samples: Samples, settled: Sequence[Variable] = ()) -> Unknown:
    """Return the change of a variable as a quantity to explain, given some next values.

    Values must agree up to the rounding of stored numbers: with the tolerance of the score,
    approximations would count as laws. The rounding of `settled` next values is scaled by the
    ratio of the standard deviations of the changes.
    """
    limited = not variable.is_angle and variable.cycle is None
    then = variable.then
    inside = (then > variable.low) & (then < variable.high)
    fit = samples.smooth & samples.learn
    tolerance = 0.25 * variable.rounding + SOLVER_ERROR * np.abs(variable.change).max()
    for other in settled:
        ratio = variable.change.std() / (other.change.std() + 1e-300)
        tolerance = tolerance + samples.grain * ratio * np.abs(other.then)
    return Unknown(
        variable.change,
        np.minimum(variable.quarter, tolerance),
        samples.smooth,
        fit & inside if limited and not variable.is_whole else fit,
        distinctness(samples),
        variable.low - variable.now if limited else -np.inf,
        variable.high - variable.now if limited else np.inf,
    )


def distinctness(samples: Samples) -> Array:
    """Return 1 / n for each row, where n rows have the same observation and action."""
    rows = np.column_stack([samples.before, samples.actions])
    _, kinds, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    weights: Array = 1 / counts[kinds.ravel()]
    return weights


def row_sets(
    samples: Samples, columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]
) -> RowSets:
    """Return rows that may share a law: neighbours, modes, and ends of quantities."""
    quantities = [f.values for f in rule_features(columns, inputs)]
    places = np.column_stack([*(column.values for column in columns), samples.actions])
    places /= places.std(0) + 1e-9
    return RowSets(places, _modes(samples, columns), quantities)


def _modes(samples: Samples, columns: Sequence[NamedColumn]) -> list[Array]:
    """Return a mask for each action and each value of a mode: its rows may share a law."""
    single = samples.action_space.kind == "discrete"
    found = [c.values > 0 for c in indicators(samples.actions[:, 0])] if single else []
    if single and not found:
        found = [samples.actions[:, 0] == level for level in np.unique(samples.actions[:, 0])]
    for column in columns:
        levels = np.unique(column.values)
        if 2 <= len(levels) <= MAX_MODES:
            found += [column.values == level for level in levels]
    return found


def law_libraries(
    own: Sequence[NamedColumn],
    columns: Sequence[NamedColumn],
    settled: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> list[list[Term]]:
    """Return sets of terms for laws, the smallest first.

    Linear terms; powers of the quantity itself (`own`) and of inputs; products of all quantities
    and square roots of differences.
    """
    inputs = [i for i in inputs if i.text != "action" or len(np.unique(i.values)) <= MAX_NUMBERED]
    linear = library([*columns, *settled], inputs, 1)
    powers = [t for column in [*own, *inputs] for t in _powers(column)]
    found = [distinct(linear), distinct([*linear, *powers])]
    if len(columns) <= MAX_PAIRED:
        roots = [t for pair in combinations(columns, 2) for t in _roots(*pair)]
        found.append(distinct([*library(columns, inputs, 2), *linear, *powers, *roots]))
    return found


def rule_features(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[Feature]:
    """Return quantities that rules compare: numbers, sizes, differences, sums and flags."""
    moving = [column for column in columns if np.ptp(column.values) > 0]
    lines = [column for column in moving if not column.is_angle]
    signed = [c for c in [*moving, *inputs] if c.values.min() < 0 < c.values.max()]
    found = [
        *as_features([*moving, *inputs]),
        *(Feature(f"abs({c.text})", np.abs(c.values), 1.2) for c in signed),
    ]
    if len(lines) <= MAX_PAIRED:
        for a, b in combinations(lines, 2):
            found.append(Feature(f"{a.text} - {b.text}", a.values - b.values, 2.0))
            found.append(Feature(f"{a.text} + {b.text}", a.values + b.values, 2.2))
    return [*found, *_flags([*moving, *inputs])]


def _flags(columns: Sequence[NamedColumn]) -> Iterator[Feature]:
    """Yield flags: a whole number has a certain value, or two whole numbers are equal."""
    whole = [c for c in columns if (c.values == np.round(c.values)).all()]
    whole = [c for c in whole if len(np.unique(c.values)) > 2]
    for column in whole:
        levels = np.unique(column.values)
        if len(levels) <= MAX_FLAGS:
            for level in levels.tolist():
                text = f"({column.text} == {level:g})"
                yield Feature(text, (column.values == level).astype(float), 1.2)
    for a, b in combinations(whole, 2):
        equal = (a.values == b.values).astype(float)
        if 0 < equal.mean() < 1:
            yield Feature(f"({a.text} == {b.text})", equal, 1.6)


def case_features(
    own: NamedColumn, columns: Sequence[NamedColumn], formulas: Sequence[Formula]
) -> Iterator[Feature]:
    """Yield the next value by each law, the larger one of two, and changes of sign.

    The formulas are changes of the quantity `own`; `case_name` names their results.
    """
    changes = [formula.values(len(own.values)) for formula in formulas]
    cases = case_columns(own, formulas)
    yield from as_features(cases, 0.9)
    for first, second in combinations(cases, 2):
        yield Feature(f"{first.text} - {second.text}", first.values - second.values, 1.6)
    for case, change in zip(cases, changes, strict=True):
        yield Feature(product_text(own, case), own.values * case.values, 1.3)
        yield Feature(f"{case.text} - {own.text}", change, 1.5)
        for column in columns:
            if column.values.min() < 0 < column.values.max() and column.text != own.text:
                text = f"({case.text} - {own.text}) * {column.text}"
                yield Feature(text, change * column.values, 1.8)


def case_columns(own: NamedColumn, formulas: Sequence[Formula]) -> list[NamedColumn]:
    """Return the next value of the quantity `own` by each law."""
    return [
        NamedColumn(case_name(own.text, index), own.values + formula.values(len(own.values)))
        for index, formula in enumerate(formulas)
    ]


def case_name(name: str, index: int) -> str:
    """Return the name of the next value of a variable according to one of its laws."""
    return f"{name}_case_{index}"


def _powers(column: NamedColumn) -> Iterator[Term]:
    text, values = column.text, column.values
    yield Term(f"{text}**2", values**2, 2.0)
    if values.min() < 0 < values.max():
        yield Term(f"abs({text})", np.abs(values), 1.4)
        yield Term(f"{text} * abs({text})", values * np.abs(values), 2.5)


def _roots(first: NamedColumn, second: NamedColumn) -> Iterator[Term]:
    text, values = f"{first.text} - {second.text}", first.values - second.values
    root: Array = np.sqrt(np.abs(values))
    yield Term(f"np.sqrt(abs({text}))", root, 2.5)
    if values.min() < 0 < values.max():
        yield Term(f"np.sign({text}) * np.sqrt(abs({text}))", np.sign(values) * root, 2.7)
