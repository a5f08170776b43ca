"""Laws of one component under sensor noise, and their least squares along recorded sequences.

A law predicts the next value of a component from an estimate of its current value, and corrects
the estimate by a share of the prediction error, the gain (innovations form). Weights and gain
minimise the one-step prediction errors along whole sequences (prediction error method; Ljung,
System Identification, 1999, chapter 7). With a gain of 1 this is plain regression; a smaller gain
removes the bias of regression on noisy values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from cwm_induction.noisy.series import (
    MIN_WIDE_VALUES,
    Array,
    Column,
    GivenQuantity,
    RecordedSeries,
)


class OwnFactor(NamedTuple):
    """A function of the component itself: text, values and slope."""

    text: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _root(x: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(x, 0.0)))


OWN_FACTORS: Mapping[str, OwnFactor] = MappingProxyType(
    {
        "1": OwnFactor("", np.ones_like, np.zeros_like),
        "x": OwnFactor("{x}", lambda x: x, np.ones_like),
        "square": OwnFactor("{x} ** 2", lambda x: x * x, lambda x: 2.0 * x),
        "cube": OwnFactor("{x} ** 3", lambda x: x**3, lambda x: 3.0 * x**2),
        "root": OwnFactor(
            "np.sqrt(max({x}, 0.0))",
            _root,
            lambda x: np.where(x > 1e-9, 0.5 / np.maximum(_root(x), 1e-4), 0.0),
        ),
        "size": OwnFactor("abs({x}) * {x}", lambda x: np.abs(x) * x, lambda x: 2.0 * np.abs(x)),
    }
)
"""Functions of the component itself that terms may contain."""


class QuantityForm(NamedTuple):
    """A function of a quantity and its expression, with `{}` for the quantity."""

    quantity: GivenQuantity
    pattern: str
    function: Callable[[Array], Array]

    @property
    def text(self) -> str:
        """The expression."""
        return self.pattern.format(self.quantity.text)


@dataclass(frozen=True)
class LawTerm:
    """A product of a function of the component itself and of functions of given quantities."""

    own: str
    forms: tuple[QuantityForm, ...] = ()
    is_switched: bool = False
    """Whether the term counts only while the hidden switch of the law is on."""

    @cached_property
    def given(self) -> Array:
        """The product of the given quantities by row; a number without any."""
        return self._product([form.quantity.values for form in self.forms])

    @cached_property
    def later(self) -> Array:
        """The same product after the next observation has corrected predicted quantities."""
        values = [
            f.quantity.values if f.quantity.later is None else f.quantity.later for f in self.forms
        ]
        return self._product(values) if self.is_corrected else self.given

    @property
    def is_corrected(self) -> bool:
        """Whether a predicted quantity is part of the term."""
        return any(form.quantity.later is not None for form in self.forms)

    def _product(self, values: Sequence[Array]) -> Array:
        parts = [form.function(each) for form, each in zip(self.forms, values, strict=True)]
        product: Array = np.prod(parts, axis=0) if parts else np.ones(1)
        return product

    def written(self, name: str) -> str:
        """Return the expression of the term; "" for a constant."""
        own = OWN_FACTORS[self.own].text.format(x=name)
        parts = ["switch" if self.is_switched else "", own, *(form.text for form in self.forms)]
        return " * ".join(part for part in parts if part)

    def updated(self, newest: Mapping[str, GivenQuantity]) -> "LawTerm":
        """Return the term with the newest values of its quantities."""
        forms = [
            form._replace(quantity=newest.get(form.quantity.text, form.quantity))
            for form in self.forms
        ]
        return replace(self, forms=tuple(forms))


@dataclass(frozen=True)
class Condition:
    """A comparison of a quantity, or of the component itself, with a threshold."""

    quantity: GivenQuantity | None
    is_above: bool
    threshold: float

    def holds(self, values: Array) -> Array:
        """Compare values of the quantity."""
        return values >= self.threshold if self.is_above else values < self.threshold

    def updated(self, newest: Mapping[str, GivenQuantity]) -> "Condition":
        """Return the condition with the newest values of its quantity."""
        if self.quantity is None:
            return self
        return replace(self, quantity=newest.get(self.quantity.text, self.quantity))


@dataclass(frozen=True)
class Override:
    """Rows with another outcome: all conditions hold, and the outcome is a constant or no change.

    `value` is None if the component keeps its value.
    """

    conditions: tuple[Condition, ...]
    value: float | None


@dataclass(frozen=True)
class CaseTree:
    """A regression tree: a number for each case, or a condition that decides between two trees.

    A law adds the number to its weighted sum.
    """

    value: float = 0.0
    split: "tuple[Condition, CaseTree, CaseTree] | None" = None
    """A condition, the tree of the rows where it holds, and the tree of the other rows."""

    def leaves(self) -> list["CaseTree"]:
        """Return the cases."""
        if self.split is None:
            return [self]
        _, yes, no = self.split
        return [*yes.leaves(), *no.leaves()]

    @property
    def words(self) -> str:
        """The kind of prediction, for a reader."""
        return f"regression tree of {len(self.leaves())} cases"

    def conditions(self) -> Iterator[Condition]:
        """Yield all conditions."""
        if self.split is not None:
            condition, yes, no = self.split
            yield condition
            yield from yes.conditions()
            yield from no.conditions()

    def on(self, read: Callable[[Condition], Array]) -> Array:
        """Return the number of each row; `read` returns the values that a condition compares."""
        if self.split is None:
            return np.asarray(self.value)
        condition, yes, no = self.split
        return np.where(condition.holds(read(condition)), yes.on(read), no.on(read))

    def filled(
        self,
        read: Callable[[Condition], Array],
        outcomes: Array,
        number: Callable[[Array], float],
    ) -> "CaseTree":
        """Return the tree with numbers that are computed from the outcomes of each case.

        Args:
            read: Returns the values that a condition compares, one per outcome.
            outcomes: Outcomes (rows,).
            number: Returns the number of a case; a case without rows keeps its number.
        """

        def part(tree: CaseTree, rows: Array) -> CaseTree:
            if tree.split is None:
                return CaseTree(number(outcomes[rows])) if len(rows) else tree
            condition, yes, no = tree.split
            holds = condition.holds(read(condition)[rows])
            return CaseTree(split=(condition, part(yes, rows[holds]), part(no, rows[~holds])))

        return part(self, np.arange(len(outcomes)))

    def updated(self, newest: Mapping[str, GivenQuantity]) -> "CaseTree":
        """Return the tree with the newest values of its quantities."""
        if self.split is None:
            return self
        condition, yes, no = self.split
        parts = condition.updated(newest), yes.updated(newest), no.updated(newest)
        return replace(self, split=parts)


@dataclass(frozen=True)
class Relay:
    """A hidden switch that turns on below a threshold and off above another (hysteresis).

    Attributes:
        quantity: The quantity that is compared, or None for the component itself.
        group: A quantity whose values have their own thresholds, or None.
        low: Threshold that turns the switch on, by value of the group.
        high: Threshold that turns the switch off, by value of the group.
        width: Softness of the thresholds, because the compared value is uncertain.
        noise: Standard deviation of prediction errors in a known mode.
    """

    quantity: GivenQuantity | None
    group: GivenQuantity | None
    low: Mapping[float, float]
    high: Mapping[float, float]
    width: float = 0.0
    noise: float = 1.0


@dataclass(frozen=True)
class NoisyLaw:
    """The next value of a component: a weighted sum of terms with limits and overrides.

    Attributes:
        terms: Terms of the change, or of the next value if `keeps` is false.
        weights: A weight per term.
        keeps: Whether the sum is added to the current value.
        gain: Share of the prediction error that corrects the estimate.
        jump: After a larger prediction error, the estimate becomes the recorded value, because the
            prediction was of a wrong case.
        low: Lower limit.
        high: Upper limit.
        overrides: Rows with other outcomes.
        relay: A hidden switch, or None.
        cases: A regression tree whose numbers are added, or None if the other parts are a law.
    """

    terms: tuple[LawTerm, ...]
    weights: Array
    keeps: bool = True
    gain: float = 1.0
    jump: float = np.inf
    low: float = -np.inf
    high: float = np.inf
    overrides: tuple[Override, ...] = ()
    relay: Relay | None = None
    cases: CaseTree | None = None

    @property
    def size(self) -> int:
        """Number of fitted constants."""
        extra = 2 * len(self.relay.low) if self.relay else 0
        limits = int(np.isfinite(self.low)) + int(np.isfinite(self.high))
        rules = sum(1 + len(each.conditions) for each in self.overrides)
        return len(self.terms) + extra + limits + rules + int(self.gain < 1)

    @property
    def reads_itself(self) -> bool:
        """Whether the prediction depends on the current value of the component."""
        alone = float(self.keeps)
        for term, weight in zip(self.terms, self.weights, strict=True):
            if term.own == "x" and not term.forms and not term.is_switched:
                alone += float(weight)
            elif term.own != "1":
                return True
        rules = self.overrides
        reads = any(
            rule.value is None or any(c.quantity is None for c in rule.conditions) for rule in rules
        )
        if self.cases is not None:
            reads = reads or any(each.quantity is None for each in self.cases.conditions())
        return reads or alone != 0.0


class LawTrace(NamedTuple):
    """A law along the sequences, all of shape (steps, sequences).

    Attributes:
        predicted: Predictions of the next value.
        state: Estimates of the current value.
        slope: Derivative of the prediction by the estimate.
        open: Mask of the rows whose prediction depends on the weights.
        gains: Gains that correct the estimate after the step.
        free: Mask of the steps whose gain is the fitted one.
        mode: Probability that the switch is on.
        revised: The same after the next observation.
    """

    predicted: Array
    state: Array
    slope: Array
    open: Array
    gains: Array
    free: Array
    mode: Array
    revised: Array


class PreparedRule(NamedTuple):
    """An override on the grid.

    Attributes:
        given: Mask where the comparisons of given quantities hold.
        is_used: Whether they hold in some sequence, by step.
        own: Comparisons of the component itself.
        value: The outcome, or None if the component keeps its value.
    """

    given: Array
    is_used: Array
    own: Sequence[Condition]
    value: float | None


class PreparedLaw(NamedTuple):
    """A law on the grid: its overrides, and the coefficients of functions of the component.

    The `switched` coefficients count while the hidden switch is on.
    """

    low: float
    high: float
    rules: Sequence[PreparedRule]
    usual: Mapping[str, Array]
    switched: Mapping[str, Array]


@dataclass(frozen=True)
class LawTarget:
    """The component that a law predicts, along the sequences."""

    series: RecordedSeries
    index: int

    @property
    def column(self) -> Column:
        """The column of the component."""
        return self.series.observed[self.index]

    @cached_property
    def now(self) -> Array:
        """Recorded values."""
        return np.asarray(self.series.observed[self.index].values[self.rows])

    @cached_property
    def after(self) -> Array:
        """Recorded next values."""
        return np.asarray(self.series.after[self.rows, self.index])

    @cached_property
    def rows(self) -> Array:
        """Row numbers of the grid; those after the end of a sequence are 0."""
        return np.asarray(np.maximum(self.series.grid, 0))

    @cached_property
    def fitted(self) -> Array:
        """Mask of the grid for least squares."""
        return np.asarray(self.series.counted & self.series.learn[self.rows])

    @cached_property
    def checked(self) -> Array:
        """Mask of the held-out rows in the grid."""
        return np.asarray(self.series.counted & ~self.series.learn[self.rows])

    @cached_property
    def rounding(self) -> float:
        """Mean square of the rounding errors of recorded values, or a tiny number."""
        unit, values = self.column.unit, self.column.values
        if unit >= 1 and len(np.unique(values)) <= MIN_WIDE_VALUES:
            unit = 0.0  # counts and codes are exact
        return unit**2 / 12.0 + 1e-14 * float(np.var(self.after)) + 1e-300

    @cached_property
    def range(self) -> tuple[float, float]:
        """A range that contains all recorded values with a wide margin."""
        low, high = float(self.after.min()), float(self.after.max())
        return low - (high - low), high + (high - low)

    def trace(self, law: NoisyLaw) -> LawTrace:
        """Run a law along all sequences."""
        if law.relay is not None or (law.gain < 1 and law.reads_itself):
            return self._stepped(law)
        trace = self._whole(law)
        return self._corrected(law, trace) if law.gain < 1 else trace

    def _corrected(self, law: NoisyLaw, trace: LawTrace) -> LawTrace:
        """Return the trace of a law that does not read its estimates, with these estimates."""
        age = np.arange(len(self.now))[:, None] + np.zeros((1, self.now.shape[1]))
        gains = np.maximum(law.gain, 1.0 / (age + 2.0))
        errors = self.errors(trace)
        gains = np.where(np.abs(errors) > law.jump, 1.0, gains)
        later = trace.predicted + gains * errors
        state = np.concatenate([self.now[:1], later[:-1]])
        return trace._replace(state=state, gains=gains, free=np.zeros(gains.shape, bool))

    def on_grid(self, values: Array) -> Array:
        """Return values by row, or a constant, on the grid."""
        return values[self.rows] if len(values) > 1 else np.broadcast_to(values, self.rows.shape)

    def compared(self, condition: Condition) -> Array:
        """Return the recorded values that a condition compares, on the grid."""
        read = condition.quantity
        return self.now if read is None else np.asarray(read.values[self.rows])

    def _prepared(self, law: NoisyLaw, later: bool = False) -> PreparedLaw:
        """Look up all given quantities of a law, before or after they are corrected."""
        usual: dict[str, Array] = {}
        switched: dict[str, Array] = {}
        for term, weight in zip(law.terms, law.weights, strict=True):
            given = self.on_grid(term.later if later else term.given)
            into = switched if term.is_switched else usual
            into[term.own] = into.get(term.own, 0.0) + weight * given
        if law.keeps:
            usual["x"] = usual.get("x", np.zeros_like(self.now)) + 1.0
        # wrong weights must not make the recursion overflow
        low, high = max(law.low, self.range[0]), min(law.high, self.range[1])
        return PreparedLaw(low, high, self._rules(law), usual, switched)

    def _whole(self, law: NoisyLaw) -> LawTrace:
        """Return the trace if every estimate is the recorded value."""
        state = self.now
        prepared = self._prepared(law)
        predicted, slope = _evaluated(prepared.usual, state)
        free: Array = np.ones(state.shape, bool)
        predicted, open_ = _limited(prepared, predicted, state, slice(None))
        if law.cases is not None:
            predicted = predicted + law.cases.on(self.compared)
        ones = np.ones_like(state)
        return LawTrace(predicted, state, slope * open_, open_, ones, ~free, 0 * ones, 0 * ones)

    def _stepped(self, law: NoisyLaw) -> LawTrace:
        """Return the trace of a law that carries its estimate from step to step."""
        steps, count = self.now.shape
        predicted, state, slope, modes, later = (np.zeros((steps, count)) for _ in range(5))
        open_: Array = np.ones((steps, count), bool)
        age = np.arange(steps)[:, None] + np.zeros((1, count))
        gains = np.maximum(law.gain, 1.0 / (age + 2.0))
        prepared = self._prepared(law)
        corrects = any(term.is_corrected for term in law.terms)
        revised = self._prepared(law, later=True) if corrects else prepared
        relay = None if law.relay is None else RelayTrack.of(law.relay, self.rows)
        current = self.now[0]
        for step in range(steps):
            state[step] = current
            value, rise, inner = _outcome(prepared, current, step, None)
            if relay is not None:
                chance = relay.advance(current, step)
                on = _outcome(prepared, current, step, np.ones(count))
                off, modes[step] = value, chance
                value, rise = off + chance * (on[0] - off), rise + chance * (on[1] - rise)
            predicted[step], slope[step], open_[step] = value, rise * inner, inner
            if corrects:
                value = _outcome(revised, current, step, None)[0]
            if relay is not None:
                relay.correct(self.after[step] - off, self.after[step] - on[0])
                later[step] = relay.chance
                value = (value if corrects else off) + relay.chance * (on[0] - off)
            error = self.after[step] - value
            gains[step] = np.where(np.abs(error) > law.jump, 1.0, gains[step])
            current = value + gains[step] * error
        return LawTrace(predicted, state, slope, open_, gains, gains <= law.gain, modes, later)

    def _rules(self, law: NoisyLaw) -> list[PreparedRule]:
        """Return the overrides, with the comparisons of given quantities on the grid."""
        rules = []
        for rule in law.overrides:
            given: Array = np.ones(self.rows.shape, bool)
            for condition in rule.conditions:
                if condition.quantity is not None:
                    given &= condition.holds(condition.quantity.values[self.rows])
            own = [condition for condition in rule.conditions if condition.quantity is None]
            used = np.asarray(given.any(axis=1))
            rules.append(PreparedRule(given, used, own, rule.value))
        return rules

    def errors(self, trace: LawTrace) -> Array:
        """Return recorded minus predicted next values on the grid."""
        return np.asarray(self.after - trace.predicted)

    def gradients(self, trace: LawTrace, terms: Sequence[LawTerm]) -> Array:
        """Return the derivatives of the predictions by weights (fitted rows, terms).

        A weight changes a prediction directly, and through the estimates of earlier steps.
        """
        direct = self.direct(trace, terms, trace.mode) * trace.open[..., None]
        if not any(term.is_switched for term in terms):
            return self.propagated(trace, direct, direct)
        carried = self.direct(trace, terms, trace.revised) * trace.open[..., None]
        return self.propagated(trace, direct, carried)

    def direct(self, trace: LawTrace, terms: Sequence[LawTerm], mode: Array) -> Array:
        """Return the values of terms at the estimates (steps, sequences, terms)."""
        factors = {own: OWN_FACTORS[own].value(trace.state) for own in {t.own for t in terms}}
        direct = np.stack([factors[t.own] * self.on_grid(t.given) for t in terms], axis=-1)
        for number, term in enumerate(terms):
            if term.is_switched:
                direct[..., number] *= mode
        return direct

    def propagated(self, trace: LawTrace, direct: Array, carried: Array) -> Array:
        """Add the derivatives through earlier estimates to direct ones; return fitted rows.

        Args:
            trace: The law along the sequences.
            direct: Derivatives of the predictions at given estimates.
            carried: The same after the next observation has corrected the mode.
        """
        keep = (1.0 - trace.gains)[..., None]
        if not np.any(keep):
            return np.asarray(direct[self.fitted])
        total = np.empty_like(direct)
        moved = np.zeros_like(direct[0])
        for step in range(len(direct)):
            through = trace.slope[step][:, None] * moved
            total[step] = direct[step] + through
            moved = keep[step] * (carried[step] + through)
        return np.asarray(total[self.fitted])

    def gain_gradient(self, trace: LawTrace) -> Array:
        """Return the derivative of the predictions by the gain (fitted rows, 1)."""
        errors = self.errors(trace) * trace.free
        direct = np.zeros((*errors.shape, 1))
        direct[1:, :, 0] = trace.slope[1:] * errors[:-1]
        return self.propagated(trace, direct, direct)

    def fit(
        self, law: NoisyLaw, *, fits_gain: bool, rounds: int = 6, robust: bool = False
    ) -> NoisyLaw:
        """Return the law with the weights, and the gain, that minimise the squared errors.

        Gauss-Newton steps are halved until the sum decreases.
        """
        trace = self.trace(law)
        loss, weights = self.loss(trace, robust)
        for _ in range(rounds):
            matrix = self.gradients(trace, law.terms) if law.terms else np.zeros((0, 0))
            has_gain = fits_gain and law.gain < 1
            parts = [matrix] if law.terms else []
            parts += [self.gain_gradient(trace)] if has_gain else []
            if not parts:
                break
            columns = np.concatenate(parts, axis=1)
            errors = self.errors(trace)[self.fitted]
            step = _solved(columns * weights[:, None], errors * weights)
            improved = False
            for factor in (1.0, 0.4, 0.1):
                moved = law.weights + factor * step[: len(law.terms)]
                gain = law.gain
                if has_gain:
                    gain = float(np.clip(law.gain + factor * step[-1], LEAST_GAIN, 0.999))
                candidate = replace(law, weights=moved, gain=gain)
                track = self.trace(candidate)
                found, other = self.loss(track, robust)
                if found < loss:
                    improved = found < loss * (1 - 1e-6)
                    law, trace, loss, weights = candidate, track, found, other
                    break
            if not improved:
                break
        return law

    def rounded(self, law: NoisyLaw) -> NoisyLaw:
        """Round the weights within their uncertainty.

        A weight may move by half of its standard error, given all other weights.
        """
        if not law.terms:
            return law
        trace = self.trace(law)
        sizes = np.sqrt((self.gradients(trace, law.terms) ** 2).sum(axis=0))
        slack = 0.5 * self.typical_error(law) / np.maximum(sizes, 1e-300)
        own = np.array([t.own == "x" and not t.forms and not t.is_switched for t in law.terms])
        offset = own * float(law.keeps)
        weights = [
            _fewest_decimals(float(weight), float(width))
            for weight, width in zip(law.weights + offset, slack, strict=True)
        ]
        return replace(law, weights=np.array(weights) - offset)

    def loss(self, trace: LawTrace, robust: bool) -> tuple[float, Array]:
        """Return the sum of squares (of sizes if robust), and weights of the fitted rows."""
        errors = self.errors(trace)[self.fitted]
        if not np.isfinite(errors).all():
            return np.inf, np.ones(len(errors))
        if not robust:
            return float(errors @ errors), np.ones(len(errors))
        size = np.abs(errors)
        least = max(1e-3 * float(np.median(size)), 0.3 * self.rounding**0.5)
        return float(size.sum()), 1.0 / np.sqrt(np.maximum(size, least))

    def typical_error(self, law: NoisyLaw) -> float:
        """Return the standard deviation of the errors without outliers."""
        errors = self.errors(self.trace(law))[self.fitted]
        return 1.4826 * float(np.median(np.abs(errors))) + float(np.sqrt(self.rounding))

    def has_outliers(self, law: NoisyLaw) -> bool:
        """Return whether few rows with large errors determine the mean squared error."""
        return self.typical_error(law) < 0.5 * float(np.sqrt(self.mean_square(law, self.fitted)))

    def mean_square(self, law: NoisyLaw, mask: Array) -> float:
        """Return the mean squared one-step error of a law on rows of the grid."""
        errors = self.errors(self.trace(law))[mask]
        return float(np.mean(errors**2)) if len(errors) else 0.0


@dataclass
class RelayTrack:
    """The probability that a hidden switch is on, along the sequences.

    It is a filter over two modes that share one estimate, as the interacting multiple model
    filter in its simplest form (Blom and Bar-Shalom, 1988).
    """

    relay: Relay
    read: Array | None
    low: Array
    high: Array
    chance: Array

    @classmethod
    def of(cls, relay: Relay, rows: Array) -> "RelayTrack":
        """Look up quantities and thresholds on the grid."""
        read = None if relay.quantity is None else relay.quantity.values[rows]
        if relay.group is None:
            low, high = (np.full(rows.shape, each[0.0]) for each in (relay.low, relay.high))
        else:
            group = relay.group.values[rows]
            low, high = np.zeros(rows.shape), np.zeros(rows.shape)
            for value in relay.low:
                low[group == value] = relay.low[value]
                high[group == value] = relay.high[value]
        return cls(relay, read, low, high, np.full(rows.shape[1], 0.5))

    def advance(self, state: Array, step: int) -> Array:
        """Switch at the thresholds, and return the probability that the switch is on."""
        read = state if self.read is None else self.read[step]
        width = max(self.relay.width, 1e-12)
        self.chance = self.chance + (1.0 - self.chance) * expit((self.low[step] - read) / width)
        self.chance = self.chance * expit((self.high[step] - read) / width)
        return self.chance

    def correct(self, off: Array, on: Array) -> None:
        """Take the errors of both modes into account (Bayes' rule)."""
        evidence = np.clip((off**2 - on**2) / (2.0 * self.relay.noise**2), -50.0, 50.0)
        prior = np.clip(self.chance, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
        self.chance = expit(np.log(prior / (1.0 - prior)) + evidence)


LEAST_GAIN = 0.02
"""Smallest gain: with exact laws it would be 0, but then a wrong estimate would stay wrong."""

LEAST_CHANCE = 0.003
"""Least probability of a mode, so that unexpected switching is noticed after a few steps."""


def _outcome(
    law: PreparedLaw, state: Array, step: int, on: Array | None
) -> tuple[Array, Array, Array]:
    """Return the next values of one step, their slopes, and whether weights act on them."""
    value, slope = _evaluated({own: each[step] for own, each in law.usual.items()}, state)
    if on is not None:
        more, rise = _evaluated({own: each[step] for own, each in law.switched.items()}, state)
        value, slope = value + on * more, slope + on * rise
    value, inner = _limited(law, value, state, step)
    return value, slope, inner


def _limited(
    law: PreparedLaw, value: Array, state: Array, step: int | slice
) -> tuple[Array, Array]:
    """Apply limits and overrides; return the values and the mask of the unchanged ones."""
    inner = (value > law.low) & (value < law.high)
    value = np.minimum(np.maximum(value, law.low), law.high)
    for rule in law.rules:
        if not np.any(rule.is_used[step]):
            continue
        holds = rule.given[step]
        for condition in rule.own:
            holds = holds & condition.holds(state)
        value = np.where(holds, state if rule.value is None else rule.value, value)
        inner = inner & ~holds
    return value, inner


def _evaluated(sums: Mapping[str, Array], state: Array) -> tuple[Array, Array]:
    """Return the sum of own factors times coefficients, and its slope."""
    value, slope = np.zeros_like(state), np.zeros_like(state)
    for own, coefficient in sums.items():
        factor = OWN_FACTORS[own]
        if own == "1":
            value = value + coefficient
        else:
            value = value + coefficient * factor.value(state)
            slope = slope + coefficient * factor.slope(state)
    return value, slope


def _solved(matrix: Array, target: Array) -> Array:
    """Solve least squares with scaled columns."""
    scale = np.sqrt((matrix**2).sum(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    found: Array = np.linalg.lstsq(matrix / scale, target, rcond=1e-9)[0]
    return found / scale


def _fewest_decimals(value: float, slack: float) -> float:
    """Return the number with the fewest decimals within `slack` of a value, but not zero."""
    for decimals in range(13):
        short = round(value, decimals)
        if short and abs(short - value) <= slack:
            return short
    return value
