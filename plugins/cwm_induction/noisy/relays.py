"""Hidden switches with hysteresis, such as the relay of a thermostat.

The mode of each row is first inferred from the errors of a law with two levels (the most probable
sequence; Viterbi, 1967). Thresholds of a column then have to reproduce the switching.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from cwm_induction.noisy.laws import LawTarget, LawTerm, NoisyLaw, Relay
from cwm_induction.noisy.searching import TermSearch
from cwm_induction.noisy.series import Array, GivenQuantity

STAY = 0.95
"""Probability that a mode lasts another step, for the first estimate of the modes."""

MAX_SHARE_WRONG = 0.25
"""Maximum share of rows whose inferred mode contradicts the thresholds."""

GRID = 9
"""Number of values per threshold in the search that follows."""


def with_relay(search: TermSearch, law: NoisyLaw, quantities: Sequence[GivenQuantity]) -> NoisyLaw:
    """Add a hidden switch to a law if it pays for itself."""
    target = search.target
    fits = [_modes(target, base) for base in _bases(law)]
    fits = [fit for fit in fits if fit.is_clear]
    if not fits:
        return law
    best, cost = law, search.cost(law) - 20.0
    groups = [None, *(q for q in quantities if q.is_flag)]
    sources = [None, *(q for q in quantities if not q.is_flag and q.later is None)]
    for fit in sorted(fits, key=lambda fit: fit.deviation)[:2]:
        for quantity, group in product(sources, groups):
            for is_on in (True, False):
                on = fit.mode if is_on else 1.0 - fit.mode
                relay, wrong = _thresholds(target, quantity, group, on)
                if relay is None or wrong > MAX_SHARE_WRONG:
                    continue
                base = fit.law if is_on else _plus(fit.law, fit.shift)
                shift = fit.shift if is_on else -fit.shift
                candidate = _switched(base, relay, shift, fit.deviation)
                candidate = search.target.fit(candidate, fits_gain=True, rounds=3)
                found = search.cost(candidate)
                if found < cost:
                    best, cost = candidate, found
    return tuned(search, best) if best is not law else law


def without_relay(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Remove a switch that does not pay for itself beside the other terms."""
    if law.relay is None:
        return law
    kept = [number for number, term in enumerate(law.terms) if not term.is_switched]
    terms = tuple(law.terms[number] for number in kept)
    bare = replace(law, terms=terms, weights=law.weights[kept], relay=None)
    fits = [replace(bare, gain=gain) for gain in (law.gain, 1.0)]
    fits = [search.target.fit(fit, fits_gain=fit.gain < 1) for fit in fits]
    return min([*fits, law], key=search.cost)


def _bases(law: NoisyLaw) -> Iterator[NoisyLaw]:
    """Yield the law, and laws without the terms of one column each.

    A column that often agrees with the switch would hide it.
    """
    law = replace(law, gain=1.0, low=-np.inf, high=np.inf, overrides=())
    yield law
    for source in {form.quantity.source: 0 for term in law.terms for form in term.forms}:
        kept = [
            i for i, t in enumerate(law.terms) if source not in [f.quantity.source for f in t.forms]
        ]
        terms = tuple(law.terms[i] for i in kept)
        yield replace(law, terms=terms, weights=law.weights[kept])


def _plus(law: NoisyLaw, shift: float) -> NoisyLaw:
    """Add a constant to a law."""
    return replace(law, terms=(*law.terms, LawTerm("1")), weights=np.append(law.weights, shift))


def _switched(law: NoisyLaw, relay: Relay, shift: float, noise: float) -> NoisyLaw:
    """Add a constant that counts while the switch is on."""
    return replace(
        law,
        terms=(*law.terms, LawTerm("1", is_switched=True)),
        weights=np.append(law.weights, shift),
        relay=replace(relay, noise=noise, width=0.3 * noise),
        gain=min(law.gain, 0.3),
    )


class ModeFit(NamedTuple):
    """The mode of each row (0 or 1), the law in mode 0, and the shift of the outcome in mode 1."""

    mode: Array
    law: NoisyLaw
    shift: float
    deviation: float
    before: float
    """Standard deviation of the errors of a law without modes."""

    @property
    def is_clear(self) -> bool:
        """Whether both modes occur and differ by more than the errors."""
        explains = self.deviation < min(0.5 * abs(self.shift), 0.8 * self.before)
        return explains and 0.05 < float(self.mode.mean()) < 0.95


def _modes(target: LawTarget, law: NoisyLaw) -> ModeFit:
    """Fit a law with a shift in some rows, alternating with the most probable modes."""
    law = replace(law, terms=(LawTerm("1"), *(t for t in law.terms if t.written("x"))))
    law = replace(law, weights=np.zeros(len(law.terms)))
    trace, used = target.trace(law), target.fitted
    columns, errors = target.direct(trace, law.terms, trace.mode), target.errors(trace)
    weights = _least_squares(columns[used], errors[used])
    base = errors - columns @ weights
    without = float(base[used].std())
    low, high = np.quantile(base[used], [0.2, 0.8])
    mode, shift, deviation = (base > 0.5 * (low + high)) * 1.0, high - low, 0.0
    for _ in range(15):
        found = _least_squares(np.column_stack([columns[used], mode[used]]), errors[used])
        weights, shift = found[:-1], float(found[-1])
        base = errors - columns @ weights
        deviation = float((base - shift * mode)[used].std()) + 1e-12
        before = mode
        mode = _viterbi(base**2 / deviation**2, (base - shift) ** 2 / deviation**2)
        if (mode == before).all():
            break
    return ModeFit(mode, replace(law, weights=weights), shift, deviation, without)


def _least_squares(matrix: Array, values: Array) -> Array:
    scale = np.sqrt((matrix**2).mean(axis=0)) + 1e-300
    return np.asarray(np.linalg.lstsq(matrix / scale, values, rcond=1e-9)[0] / scale)


def _viterbi(off: Array, on: Array) -> Array:
    """Return the most probable modes along the sequences, given squared errors of both modes."""
    steps, count = off.shape
    change = 2.0 * np.log(STAY / (1.0 - STAY))
    costs = np.stack([off[0], on[0]])
    back = np.zeros((steps, 2, count), int)
    for step in range(1, steps):
        switched = costs[::-1] + change
        back[step] = switched < costs
        costs = np.minimum(costs, switched) + np.stack([off[step], on[step]])
    mode = np.zeros((steps, count))
    current = (costs[1] < costs[0]).astype(int)
    for step in range(steps - 1, -1, -1):
        mode[step] = current
        turned = back[step][current, np.arange(count)]
        current = np.where(turned == 1, 1 - current, current)
    return mode


def _thresholds(
    target: LawTarget, quantity: GivenQuantity | None, group: GivenQuantity | None, on: Array
) -> tuple[Relay | None, float]:
    """Return thresholds that reproduce the modes, and the share of rows where they do not."""
    rows = target.rows
    values = target.now if quantity is None else quantity.values[rows]
    groups = np.zeros(rows.shape) if group is None else group.values[rows]
    low, high = {}, {}
    inside = target.series.counted
    for value in np.unique(groups[inside]).tolist():
        some = inside & (groups == value)
        rises = some[1:] & (on[1:] == 1) & (on[:-1] == 0) & inside[:-1]
        falls = some[1:] & (on[1:] == 0) & (on[:-1] == 1) & inside[:-1]
        if min(rises.sum(), falls.sum()) < 2:
            return None, 1.0
        low[value] = _cut(values[1:][rises], values[some & (on == 0)], True)
        high[value] = _cut(values[1:][falls], values[some & (on == 1)], False)
        if not low[value] < high[value]:
            return None, 1.0
    relay = Relay(quantity, group, low, high)
    should = np.where(
        values < _looked(low, groups), 1.0, np.where(values > _looked(high, groups), 0.0, on)
    )
    return relay, float((should != on)[inside].mean())


def _looked(table: dict[float, float], groups: Array) -> Array:
    found = np.full(groups.shape, np.nan)
    for value, threshold in table.items():
        found[groups == value] = threshold
    return found


def _cut(switching: Array, staying: Array, is_low: bool) -> float:
    """Return the threshold between values that switch and values that do not."""
    if is_low:
        return -_cut(-switching, -staying, False)
    points = np.unique(np.concatenate([switching, [staying.max()]]))
    wrong = [(staying > p).sum() * 1.0 + (switching <= p).sum() for p in points - 1e-12]
    return float(points[int(np.argmin(wrong))])


def tuned(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Improve the thresholds of the switch, their softness and the gain, one after the other."""
    relay = law.relay
    if relay is None:
        return law
    width = float(np.mean([relay.high[key] - relay.low[key] for key in relay.low]))
    for share in (0.2, 0.07, 0.02):
        law = _with_gain(search, _with_widths(search, law))
        law = _with_thresholds(search, law, share * width)
        law = _refitted(search, law)
    return law


def _refitted(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Fit the weights, without the rows of the wrong mode if they are outliers."""
    robust = search.target.fit(law, fits_gain=True, rounds=4, robust=True)
    typical = search.target.typical_error(robust)
    if not search.target.has_outliers(robust):
        return search.target.fit(law, fits_gain=True, rounds=3)
    return replace(robust, relay=robust.relay and replace(robust.relay, noise=1.5 * typical))


def _with_thresholds(search: TermSearch, law: NoisyLaw, width: float) -> NoisyLaw:
    """Move each threshold by up to a width."""
    cost = search.cost(law)
    for side, value in product(("low", "high"), law.relay.low if law.relay else ()):
        start = law
        for offset in np.linspace(-width, width, GRID).tolist():
            candidate = _moved(start, side, value, offset)
            found = search.cost(candidate)
            if found < cost:
                law, cost = candidate, found
    return law


def _moved(law: NoisyLaw, side: str, value: float, offset: float) -> NoisyLaw:
    """Move one threshold of the switch."""
    relay = law.relay
    if relay is None:
        return law
    table = dict(relay.low if side == "low" else relay.high)
    table[value] += offset
    moved = replace(relay, low=table) if side == "low" else replace(relay, high=table)
    return replace(law, relay=moved)


def _with_widths(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Choose the softness of the thresholds, and the noise of a known mode."""
    usual = search.target.typical_error(law)
    for noise in (0.7, 1.0, 1.4):
        law = min(law, _with_relay(law, noise=noise * usual), key=search.cost)
    for width in (0.01, 0.1, 0.2, 0.4, 0.8):
        law = min(law, _with_relay(law, width=width * usual), key=search.cost)
    return law


def _with_relay(law: NoisyLaw, **changes: Any) -> NoisyLaw:
    """Return the law with other values of its switch."""
    return law if law.relay is None else replace(law, relay=replace(law.relay, **changes))


def _with_gain(search: TermSearch, law: NoisyLaw) -> NoisyLaw:
    """Fit the gain from several starts."""
    starts = [law, *(replace(law, gain=gain) for gain in (0.03, 0.1, 0.25))]
    laws = [search.target.fit(start, fits_gain=True, rounds=3) for start in starts]
    return min(laws, key=search.cost)
