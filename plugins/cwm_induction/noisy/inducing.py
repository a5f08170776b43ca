"""Find a law for every component of noisy recorded rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cwm_induction.effort import Effort
from cwm_induction.noisy.cases import best_with_cases, refitted
from cwm_induction.noisy.laws import (
    LEAST_GAIN,
    LawTarget,
    LawTerm,
    NoisyLaw,
    QuantityForm,
)
from cwm_induction.noisy.overriding import (
    rechosen,
    refined,
    with_overrides,
    without_needless,
)
from cwm_induction.noisy.relays import tuned, with_relay, without_relay
from cwm_induction.noisy.searching import TermLibrary, TermSearch
from cwm_induction.noisy.series import (
    MAX_DELAY,
    Array,
    Column,
    GivenQuantity,
    RecordedSeries,
    rounding_unit,
)

MAX_SIMPLE_TERMS = 6
"""Maximum number of terms of the first law, whose errors show limits and overrides."""


MIN_COPIED = 0.3
"""A component may copy an action if they are equal in at least this share of the rows."""


JUMP = 6.0
"""Prediction errors of this many standard deviations show that a wrong case was predicted."""


MANY_COMPONENTS = 31
"""With more components than these, a law reads only the components that are most correlated."""


MAX_SOURCES = 12
"""Number of other components that a law may read if there are many components."""


PACES = (0.1, 0.18, 0.3, 0.45, 0.65)
"""Weights of the newest action in exponential averages, before they are fitted."""


MAX_NOISY_GAIN = 0.85
"""With a larger gain, an estimate is about as noisy as the recorded value."""


@dataclass
class RecordedFindings:
    """Laws by component, with estimates and predictions along all rows."""

    series: RecordedSeries
    order: list[int]
    remembers: bool
    laws: dict[int, NoisyLaw] = field(default_factory=dict)
    estimates: dict[int, Array] = field(default_factory=dict)
    predicted: dict[int, Array] = field(default_factory=dict)
    reward: NoisyLaw | None = None
    ending: NoisyLaw | None = None
    """Law of the end of an episode: 0, with overrides of 1; None if no episode ended."""

    def target(self, index: int) -> LawTarget:
        """Return the component as the target of a law."""
        return LawTarget(self.series, index)

    def sources(self, index: int) -> Sequence[int]:
        """Return the other components that a law may read.

        If there are many, they are those with the largest partial correlations with the change of
        the component, given its value (sure independence screening; Fan and Lv, 2008).
        """
        series = self.series
        others = [other for other in range(len(series.observed)) if other != index]
        if len(series.observed) <= MANY_COMPONENTS:
            return others
        values = np.stack([column.values for column in series.observed], axis=1)[series.learn]
        values = values - values.mean(axis=0)
        own = values[:, index] / max(float(np.linalg.norm(values[:, index])), 1e-300)
        change = series.after[series.learn, index] - series.observed[index].values[series.learn]
        change = change - change.mean()
        values = values - np.outer(own, own @ values)
        left = np.abs((change - own * (own @ change)) @ values)
        left /= np.linalg.norm(values, axis=0) + 1e-9
        return sorted(sorted(others, key=lambda other: -left[other])[:MAX_SOURCES])

    def record(self, index: int) -> None:
        """Store the estimates and predictions of a law."""
        target, law = self.target(index), self.laws[index]
        trace = target.trace(law)
        counted = self.series.counted
        for name, values in (("estimates", trace.state), ("predicted", trace.predicted)):
            column = np.array(self.series.observed[index].values)
            column[target.rows[counted]] = values[counted]
            getattr(self, name)[index] = column

    @property
    def has_sensor_noise(self) -> bool:
        """Whether a component is noisier than its rounding, and estimates predict it better."""
        return any(
            law.gain < MAX_NOISY_GAIN
            and law.reads_itself
            and self.target(index).typical_error(law) > 2.0 * self.series.observed[index].unit
            for index, law in self.laws.items()
        )

    def corrected(self, index: int) -> Array:
        """Return the estimates of the next value after its observation, by row."""
        series = self.series
        shifted = np.append(self.estimates[index][1:], 0.0)
        goes_on = np.append(series.follows[1:], False)
        return np.where(goes_on, shifted, series.after[:, index])


def induce(series: RecordedSeries, effort: Effort, remembers: bool) -> RecordedFindings:
    """Find the laws of all components; `remembers` allows programs with memory.

    After the time limit, components without a law get a linear one or none, and no law is improved.
    """
    series = series.with_history if remembers else series
    real = [index for index, column in enumerate(series.observed) if not column.is_label]
    found = RecordedFindings(series, real, remembers)
    for index, column in enumerate(series.observed):
        found.estimates[index] = found.predicted[index] = column.values
    short = effort.extension()
    starts = {
        index: first_law(found, index, effort, remembers)
        if effort.has_time
        else linear_law(found, index, short)
        for index in real
    }
    # labels and components that do not depend on themselves come first: others may follow them
    labels = [index for index in range(len(series.observed)) if index not in real]
    found.order = sorted(real, key=lambda index: (_reads_itself(starts[index]), index))
    for index in labels:
        found.laws[index] = label_law(found, index, effort)
        found.record(index)
    found.order = [*labels, *found.order]
    rounds = 1 if len(real) == 1 else 2 + remembers
    for round_ in range(rounds):
        for index in found.order[len(labels) :]:
            law = found.laws.get(index) or starts[index]
            thorough = round_ > 0 or rounds == 1
            if effort.has_time:
                law = law_of(found, index, effort, remembers, law, thorough)
            found.laws[index] = law
            found.record(index)
    for index in found.order:
        if not effort.has_time:
            break
        quantities = quantities_of(found, index, found.order)
        quantities += lagged_of(series) if remembers else []
        target = found.target(index)
        found.laws[index] = best_with_cases(target, found.laws[index], quantities)
        found.record(index)
    found = finished(found, effort)
    series = found.series
    found.reward = outcome_law(found, "reward", series.rewards, effort)
    if series.terminated.any():
        found.ending = outcome_law(found, "terminated", series.terminated * 1.0, effort)
    return found


def label_law(found: RecordedFindings, index: int, effort: Effort) -> NoisyLaw:
    """Return the law of a label: it stays or copies an action, with overrides."""
    target = found.target(index)
    search = TermSearch(target, TermLibrary(()), effort, False)
    starts = [NoisyLaw((), np.zeros(0))]
    for column in found.series.acted:
        copied = QuantityForm(
            GivenQuantity(column.name, column.values, column.name), "{}", np.asarray
        )
        starts.append(NoisyLaw((LawTerm("1", (copied,)),), np.ones(1), keeps=False))
    given = quantities_of(found, index, ())
    own = found.series.readings(target.column, target.column.values)
    laws = [with_overrides(search, law, [*own, *given], refits=False) for law in starts]
    return min(laws, key=search.cost)


def outcome_law(found: RecordedFindings, name: str, values: Array, effort: Effort) -> NoisyLaw:
    """Return the law of the reward or of the end, which may read next values of components."""
    series = found.series
    if np.ptp(values) == 0:
        return NoisyLaw((LawTerm("1"),), np.array([float(values[0])]), keeps=False)
    unit = rounding_unit(values)
    column = Column(name, (), np.zeros(len(series)), False, unit)
    extended = replace(
        series,
        observed=(*series.observed, column),
        after=np.column_stack([series.after, values]),
        terminated=np.zeros(len(series), bool),
    )
    place = len(series.observed)
    other = replace(found, series=extended, order=[*found.order, place])
    target = other.target(place)
    now = quantities_of(other, place, other.order)
    if name == "terminated":
        search = TermSearch(target, TermLibrary(()), effort, False)
        law = NoisyLaw((), np.zeros(0), keeps=False)
        return refined(search, with_overrides(search, law, now))
    search = TermSearch(target, TermLibrary.of(target, now, ()).without_itself, effort, False)
    law = search.selected(NoisyLaw((LawTerm("1"),), np.zeros(1), keeps=False), robust=False)
    if target.has_outliers(law):
        law = refined(search, with_overrides(search, law, now))
        law = search.selected(without_needless(search, law), robust=False)
    return target.rounded(law)


def first_law(found: RecordedFindings, index: int, effort: Effort, remembers: bool) -> NoisyLaw:
    """Return the best of some simple laws with overrides.

    They are the linear law of most rows, and copies of actions.
    """
    target = found.target(index)
    quantities = quantities_of(found, index, ())
    lagged = lagged_of(found.series) if remembers else []
    search = TermSearch(
        target, TermLibrary.linear(target, [*quantities, *lagged]), effort, remembers
    )
    starts = [search.selected(majority(target, quantities), robust=True, most=MAX_SIMPLE_TERMS)]
    spread = float(target.after.std())
    for term in TermLibrary.linear(target, [*quantities, *lagged]).terms:
        [form] = term.forms
        values = form.quantity.values[target.rows]
        near = np.abs(target.after - values)[target.fitted] < 0.1 * spread
        if near.mean() > MIN_COPIED and form.pattern == "{}" and not form.quantity.is_flag:
            starts.append(NoisyLaw((LawTerm("x"), term), np.array([-1.0, 1.0])))
    gains = (0.5, 1.0) if remembers else (1.0,)
    starts = [replace(law, gain=gain) for law in starts for gain in gains]
    laws = [with_overrides(search, law, quantities) for law in starts]
    if remembers:
        laws.append(with_relay(search, starts[0], quantities))
    return min(laws, key=search.cost)


def linear_law(found: RecordedFindings, index: int, effort: Effort) -> NoisyLaw:
    """Return a linear law of the sources, or no change after the time limit."""
    if not effort.has_time:
        return NoisyLaw((), np.zeros(0))
    target = found.target(index)
    return target.rounded(majority(target, quantities_of(found, index, ())))


def _reads_itself(law: NoisyLaw) -> bool:
    weights = {term.written("x"): float(w) for term, w in zip(law.terms, law.weights, strict=True)}
    alone = float(law.keeps) + weights.pop("x", 0.0)
    return abs(alone) > 0.1 or any(term.own != "1" and term.forms for term in law.terms)


def majority(target: LawTarget, quantities: Sequence[GivenQuantity]) -> NoisyLaw:
    """Return a linear law of most rows.

    Least absolute deviations: a law of more than half of the rows is found exactly.
    """
    terms = [LawTerm("1"), LawTerm("x")]
    terms += TermLibrary.linear(target, quantities).terms
    change = (target.after - target.now)[target.fitted]
    columns = np.stack([_column(target, term) for term in terms], axis=1)
    scale = np.abs(columns).max(axis=0) + 1e-300
    weights = np.ones(len(change))
    solved = np.zeros(len(terms))
    tiny = 1e-9 * (1.0 + float(np.abs(target.after).max()))
    for _ in range(40):
        scaled = columns / scale
        solved = np.linalg.lstsq(scaled * weights[:, None], change * weights, rcond=1e-9)[0]
        size = np.abs(change - scaled @ solved)
        weights = 1.0 / np.sqrt(np.maximum(size, max(tiny, 1e-3 * float(np.median(size)))))
    return NoisyLaw(tuple(terms), solved / scale)


def _column(target: LawTarget, term: LawTerm) -> Array:
    values = target.now if term.own == "x" else np.ones_like(target.now)
    column: Array = (values * target.on_grid(term.given))[target.fitted]
    return column


def quantities_of(found: RecordedFindings, index: int, order: Sequence[int]) -> list[GivenQuantity]:
    """Return the quantities that a law of a component may read.

    They are the other components, the actions, and the next values of components that come earlier
    in the `order`.
    """
    series = found.series
    given: list[GivenQuantity] = []
    sources = found.sources(index)
    for other in sources:
        given += series.readings(series.observed[other], found.estimates[other])
    for column in series.acted:
        given += series.readings(column, column.values)
    for other in order[: order.index(index)] if index in order else ():
        if other not in sources:
            continue
        column = series.observed[other]
        later = found.corrected(other)
        # without noise, a wrong prediction of another component must not spoil this law
        values = found.predicted[other] if found.remembers else series.after[:, other]
        for quantity in series.readings(column, values, "_next"):
            given.append(replace(quantity, later=later, source=quantity.text))
    return given


def lagged_of(series: RecordedSeries) -> list[GivenQuantity]:
    """Return earlier actions, and averages of the last actions."""
    given: list[GivenQuantity] = []
    for column in series.acted:
        for read in series.readings(column, column.values):
            given += _averages(series, read)
        for delay in range(1, MAX_DELAY + 1):
            earlier = series.earlier(column.values, delay)
            for quantity in series.readings(column, earlier, f"_{delay}_ago"):
                given.append(replace(quantity, delay=delay))
    return given


def _averages(series: RecordedSeries, read: GivenQuantity) -> Iterator[GivenQuantity]:
    """Yield moving averages and exponential averages (first-order lags) of an action."""
    name = read.text.strip("()").lower()
    if read.text != name:  # a label: "(valve == VALVE_LOW)"
        column, label = name.split(" == ")
        name = f"{column}_{label}" if label.isdigit() else label
    base = replace(read, is_flag=False, averaged=read.text)
    for window in range(2, MAX_DELAY + 2):
        values = series.windowed(read.values, window)
        yield replace(base, text=f"{name}_mean_{window}", values=values, window=window)
    for number, pace in enumerate(PACES, 1):
        values = series.smoothed(read.values, pace)
        yield replace(base, text=f"{name}_lag_{number}", values=values, pace=pace)


def law_of(
    found: RecordedFindings,
    index: int,
    effort: Effort,
    remembers: bool,
    before: NoisyLaw,
    thorough: bool,
) -> NoisyLaw:
    """Search for the law of a component, given estimates of all other components."""
    target = found.target(index)
    now = quantities_of(found, index, found.order)
    lagged = lagged_of(found.series) if remembers else []
    gain = (before.gain if before.gain < 1 else 0.5) if remembers else 1.0
    simple = TermSearch(target, TermLibrary.linear(target, [*now, *lagged]), effort, remembers)
    law = updated(replace(before, gain=gain), [*now, *lagged])
    readable = [quantity for quantity in now if quantity.later is None]
    if law.relay is None and (law.overrides or not thorough):
        other = replace(majority(target, now), gain=gain)
        other = simple.selected(other, robust=True, most=MAX_SIMPLE_TERMS)
        tried = [with_overrides(simple, each, readable) for each in (law, other)]
        law = min(tried, key=simple.cost)
    law = refined(simple, with_overrides(simple, law, readable))
    if law.overrides:
        law = rechosen(simple, without_needless(simple, law), readable)
        law = refined(simple, with_overrides(simple, law, readable))
    law = simple.limited(without_needless(simple, law))
    if remembers:
        law = replace(law, jump=JUMP * target.typical_error(law))
    if not thorough and remembers:
        return law
    library = TermLibrary.of(target, now, lagged)
    if law.relay is not None:
        library = library.with_switch
    search = TermSearch(target, library, effort, remembers)
    law = without_relay(search, search.selected(law, robust=target.has_outliers(law)))
    law = without_needless(search, refined(search, search.limited(search.fit_paces(law))))
    law = search.selected(tuned(search, law), robust=target.has_outliers(law))
    unfiltered = target.fit(replace(law, gain=1.0), fits_gain=False)
    fresh = TermSearch(target, library.without_itself, effort, False)
    start = NoisyLaw((LawTerm("1"),), np.zeros(1), keeps=False, overrides=law.overrides)
    tried = [search.limited(law), unfiltered, fresh.selected(start, robust=False)]
    costs = np.array([search.cost(tried[0]), search.cost(unfiltered) - 2.0, fresh.cost(tried[2])])
    law = tried[int(np.argmin(costs))]
    if remembers and not law.reads_itself:
        # the prediction does not depend on the gain, and is better than a noisy recorded value
        law = replace(law, gain=LEAST_GAIN, jump=JUMP * target.typical_error(law))
    return law


def finished(found: RecordedFindings, effort: Effort) -> RecordedFindings:
    """Fit the constants of all laws again, to all rows."""
    series = replace(found.series, learn=np.ones(len(found.series), bool))
    found = replace(found, series=series)
    for index in found.order:
        target = found.target(index)
        known = found.laws[index]
        if known.cases is None and (target.column.is_label or not known.size):
            found.record(index)
            continue
        now = [*quantities_of(found, index, found.order), *lagged_of(series)]
        law = updated(found.laws[index], now)
        if law.cases is not None:
            found.laws[index] = refitted(target, law)
            found.record(index)
            continue
        search = TermSearch(target, TermLibrary(()), effort, law.gain < 1)
        robust = target.has_outliers(law)
        law = target.fit(law, fits_gain=law.gain < 1, robust=robust)
        law = tuned(search, refined(search, law))
        law = target.fit(law, fits_gain=law.gain < 1, robust=robust)
        found.laws[index] = target.rounded(law)
        found.record(index)
    return found


def updated(law: NoisyLaw, quantities: Sequence[GivenQuantity]) -> NoisyLaw:
    """Return a law that reads the newest values of its quantities."""
    # Averages of actions never change, and their weights may have been fitted.
    newest = {quantity.text: quantity for quantity in quantities if not quantity.averaged}
    rules = [
        replace(rule, conditions=tuple(each.updated(newest) for each in rule.conditions))
        for rule in law.overrides
    ]
    terms = tuple(term.updated(newest) for term in law.terms)
    relay = law.relay
    if relay is not None:
        read = [q and newest.get(q.text, q) for q in (relay.quantity, relay.group)]
        relay = replace(relay, quantity=read[0], group=read[1])
    cases = law.cases and law.cases.updated(newest)
    return replace(law, terms=terms, overrides=tuple(rules), relay=relay, cases=cases)
