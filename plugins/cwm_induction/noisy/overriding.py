"""Conditions under which a component ignores its law: cut-offs, interlocks, empty or full stores.

A product of matrices gives the decrease of the squared errors for all pairs of comparisons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cwm_induction.noisy.laws import Condition, LawTarget, LawTrace, NoisyLaw, Override
from cwm_induction.noisy.searching import TermSearch
from cwm_induction.noisy.series import Array, GivenQuantity

MAX_OVERRIDES = 5
"""Maximum number of overrides of a law."""

THRESHOLDS = 24
"""Number of quantiles of a quantity that are tried as thresholds."""

MAX_CANDIDATES = 8
"""Pairs of comparisons whose thresholds are moved before they are compared."""

MIN_ROWS = 5
"""Minimum number of rows of an override."""


def with_overrides(
    search: TermSearch, law: NoisyLaw, quantities: Sequence[GivenQuantity], refits: bool = True
) -> NoisyLaw:
    """Add overrides to a law while they pay for themselves."""
    costs = _costs(search, law)
    while len(law.overrides) < MAX_OVERRIDES and search.effort.has_time:
        found = _best(search.target, law, quantities)
        if found is None:
            break
        candidate = replace(law, overrides=(*law.overrides, found))
        # rows of further overrides are outliers, which least squares would follow
        if refits:
            candidate = search.target.fit(
                candidate, fits_gain=search.filters, rounds=4, robust=True
            )
        lower = _costs(search, candidate)
        if (lower > costs - 6.0).any():
            break
        law, costs = candidate, lower
    return law


def _costs(search: TermSearch, law: NoisyLaw) -> Array:
    """Return the criterion with normal errors and with many outliers: overrides lower both."""
    return np.array([search.cost(law, robust) for robust in (False, True)])


def without_needless(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Remove overrides whose gain does not exceed their price."""
    costs = _costs(search, law)
    for rule in law.overrides:
        rest = tuple(each for each in law.overrides if each is not rule)
        candidate = replace(law, overrides=rest)
        candidate = search.target.fit(candidate, fits_gain=search.filters, rounds=2)
        found = _costs(search, candidate)
        if (found < costs + 3.0).any():
            law, costs = candidate, found
    return search.target.fit(law, fits_gain=search.filters, rounds=3)


def rechosen(search: TermSearch, law: NoisyLaw, quantities: Sequence[GivenQuantity]) -> NoisyLaw:
    """Choose every override again, with the other overrides unchanged."""
    costs = _costs(search, law)
    for number in range(len(law.overrides)):
        if not search.effort.has_time:
            break
        rest = law.overrides[:number] + law.overrides[number + 1 :]
        found = _best(search.target, replace(law, overrides=rest), quantities)
        if found is None:
            continue
        candidate = replace(law, overrides=(*rest[:number], found, *rest[number:]))
        candidate = search.target.fit(candidate, fits_gain=search.filters, rounds=2, robust=True)
        lower = _costs(search, candidate)
        if (lower < costs - 1e-6).all():
            law, costs = candidate, lower
    return law


def refined(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Choose the thresholds of all overrides again, given the fitted law."""
    for number, rule in enumerate(law.overrides):
        others = law.overrides[:number] + law.overrides[number + 1 :]
        bare = replace(law, overrides=others)
        trace = search.target.trace(bare)
        gain = _gain(search.target, trace, rule.value)
        moved, _ = _moved(search.target, trace, rule, gain)
        candidate = replace(law, overrides=(*others[:number], moved, *others[number:]))
        if search.cost(candidate) < search.cost(law):
            law = candidate
    return law


def _gain(target: LawTarget, trace: LawTrace, value: float | None) -> Array:
    """Return by how much an outcome would decrease the squared error of each fitted row."""
    other = trace.state if value is None else value
    before = target.errors(trace) ** 2
    after = (target.after - other) ** 2
    return np.asarray((before - after)[target.fitted])


def _best(target: LawTarget, law: NoisyLaw, quantities: Sequence[GivenQuantity]) -> Override | None:
    """Return the override that decreases the squared errors most, or None."""
    trace = target.trace(law)
    conditions = list(_conditions(target, trace, quantities))
    if not conditions:
        return None
    masks = np.array([holds for _, holds in conditions], np.float32)
    best: tuple[float, Override] | None = None
    for value in _values(target, trace):
        gain = _gain(target, trace, value)
        totals = (masks * gain.astype(np.float32)) @ masks.T
        counts = masks @ masks.T
        totals[counts < MIN_ROWS] = -np.inf
        for pair in _candidates(totals, [condition for condition, _ in conditions]):
            rule, total = _moved(target, trace, Override(pair, value), gain)
            # a second comparison, or a constant other than zero, has to be clearly better
            total *= (1.0 if len(pair) == 1 else 0.97) * (1.0 if value in (None, 0.0) else 0.9)
            if best is None or total > best[0]:
                best = total, rule
    return best[1] if best is not None and best[0] > 0 else None


def _candidates(totals: Array, conditions: Sequence[Condition]) -> Iterator[tuple[Condition, ...]]:
    """Yield the best pairs of comparisons, with different quantities or directions each."""
    seen: set[frozenset[tuple[str, bool]]] = set()
    for place in np.argsort(-totals, axis=None)[:4000].tolist():
        one, other = divmod(place, len(totals))
        if len(seen) >= MAX_CANDIDATES or not totals[one, other] > 0:
            break
        pair = (conditions[one],) if one == other else (conditions[one], conditions[other])
        kind = frozenset((c.quantity.text if c.quantity else "", c.is_above) for c in pair)
        if kind not in seen and (one == other or len(kind) == 2):
            seen.add(kind)
            yield pair


def _values(target: LawTarget, trace: LawTrace) -> Iterator[float | None]:
    """Yield outcomes that overrides may have: none of them, zero, and frequent values."""
    after, errors = target.after[target.fitted], np.abs(target.errors(trace)[target.fitted])
    if np.ptp(target.now) > 0:
        yield None
    if after.min() <= 0 <= after.max():
        yield 0.0
    if target.column.is_label:
        yield from np.unique(after).tolist()
        return
    wrong = after[errors > 4 * np.median(errors)]
    if len(wrong) < MIN_ROWS:
        return
    counts, edges = np.histogram(wrong, bins=40)
    if counts.max() >= MIN_ROWS:
        place = int(counts.argmax())
        inside = wrong[(wrong >= edges[place]) & (wrong <= edges[place + 1])]
        yield float(f"{np.median(inside):.4g}")


def _read(target: LawTarget, trace: LawTrace, quantity: GivenQuantity | None) -> Array:
    """Return a quantity, or the component itself, in the fitted rows."""
    if quantity is None:
        return np.asarray(trace.state[target.fitted])
    return np.asarray(quantity.values[target.rows][target.fitted])


def _conditions(
    target: LawTarget, trace: LawTrace, quantities: Sequence[GivenQuantity]
) -> Iterator[tuple[Condition, Array]]:
    """Yield comparisons with quantiles, and the rows where they hold."""
    for quantity in (None, *quantities):
        values = _read(target, trace, quantity)
        if quantity is not None and quantity.is_flag:
            points = np.array([0.5])
        else:
            ends = 0.5 ** np.arange(4, 9)
            levels = np.concatenate([ends, np.linspace(0.06, 0.94, THRESHOLDS), 1 - ends])
            points = np.unique(np.quantile(values, levels))
            if values.min() < 0 < values.max():
                points = np.append(points, [0.0, 1e-9])
        for point in points.tolist():
            for is_above in (True, False):
                condition = Condition(quantity, is_above, point)
                holds = condition.holds(values)
                if MIN_ROWS <= holds.sum() <= len(holds) - MIN_ROWS:
                    yield condition, holds


def _moved(
    target: LawTarget, trace: LawTrace, rule: Override, gain: Array
) -> tuple[Override, float]:
    """Move the thresholds of an override to the best places; return the decrease of squares."""
    conditions = list(rule.conditions)
    for number in (*range(len(conditions)), *range(len(conditions))):
        condition = conditions[number]
        if condition.quantity is not None and condition.quantity.is_flag:
            continue
        rows = np.ones(len(gain), bool)
        for other in conditions[:number] + conditions[number + 1 :]:
            rows &= other.holds(_read(target, trace, other.quantity))
        values = _read(target, trace, condition.quantity)[rows]
        if not len(values):
            continue
        order = np.argsort(values, kind="stable")
        if not condition.is_above:
            order = order[::-1]
        ordered = values[order]
        ends = np.flatnonzero(np.append(np.diff(ordered) != 0, True))
        # gain of the rows from each place to the end of the sorted values
        total = np.cumsum(gain[rows][order])
        left = total[-1] - np.concatenate([[0.0], total[ends]])
        place = int(np.argmax(left[:-1]))
        first = 0 if place == 0 else int(ends[place - 1]) + 1
        threshold = float(ordered[first])
        if values.min() < 0 < values.max():
            signs = [replace(condition, threshold=each) for each in (0.0, 1e-9)]
            best = float(left[place])
            equal = [
                c for c in signs if gain[rows][c.holds(values)].sum() >= best - 1e-9 * abs(best)
            ]
            if equal:
                conditions[number] = equal[-1 if condition.is_above else 0]
                continue
        if place > 0:
            threshold = 0.5 * (threshold + float(ordered[first - 1]))
        conditions[number] = replace(condition, threshold=threshold)
    rows = np.ones(len(gain), bool)
    for condition in conditions:
        rows &= condition.holds(_read(target, trace, condition.quantity))
    return Override(tuple(conditions), rule.value), float(gain[rows].sum())
