"""Search for the terms, limits and overrides of a law of a noisy component.

Terms are added one at a time: the derivative of all predictions by the weight of each candidate
shows by how much the squared errors would decrease (orthogonal matching pursuit in the frame of
one-step prediction errors). The extended Bayesian information criterion decides whether a term
pays for itself (Chen and Chen, Biometrika 95, 2008).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cwm_induction.effort import Effort
from cwm_induction.noisy.laws import LawTarget, LawTerm, NoisyLaw, QuantityForm
from cwm_induction.noisy.series import Array, GivenQuantity

MAX_TERMS = 14
"""Maximum number of terms of a law."""


@dataclass(frozen=True)
class TermLibrary:
    """Candidate terms of a law."""

    terms: tuple[LawTerm, ...]

    @classmethod
    def of(
        cls,
        target: LawTarget,
        quantities: Sequence[GivenQuantity],
        singles: Sequence[GivenQuantity],
    ) -> "TermLibrary":
        """Combine quantities to terms; `singles` enter alone or times the component itself."""
        own = _own_factors(target)
        terms = [LawTerm(name) for name in own if name not in ("1", "x")]
        for form in (form for quantity in singles for form in _forms(quantity)):
            terms += [LawTerm("1", (form,)), LawTerm("x", (form,))]
        forms: list[QuantityForm] = []
        for quantity in quantities:
            found = list(_forms(quantity))
            for form in found:
                terms += [LawTerm(name, (form,)) for name in own]
                others = [other for other in forms if other.quantity.source != quantity.source]
                terms += [LawTerm("1", (other, form)) for other in others]
                terms += [LawTerm("x", (other, form)) for other in others if _is_cased(other, form)]
            forms += found
        return cls(tuple(term for term in terms if np.ptp(term.given) > 0 or term.own != "1"))

    @property
    def without_itself(self) -> "TermLibrary":
        """The terms that do not contain the component itself."""
        return TermLibrary(tuple(term for term in self.terms if term.own == "1"))

    @property
    def with_switch(self) -> "TermLibrary":
        """The terms, and short terms that count only while the hidden switch is on."""
        short = [term for term in self.terms if len(term.forms) < 2 - (term.own != "1")]
        extra = [replace(term, is_switched=True) for term in (LawTerm("x"), *short)]
        return TermLibrary((*self.terms, *extra))

    @classmethod
    def linear(cls, target: LawTarget, quantities: Sequence[GivenQuantity]) -> "TermLibrary":
        """Take quantities alone, and their sizes if they have both signs."""
        forms = [form for quantity in quantities for form in _forms(quantity)]
        terms = [LawTerm("1", (form,)) for form in forms if form.pattern in ("{}", "abs({})")]
        return cls(tuple(term for term in terms if np.ptp(term.given) > 0))


def _is_cased(one: QuantityForm, other: QuantityForm) -> bool:
    """Return whether forms are a plain number and a flag, or two flags: products by case."""
    flags = one.quantity.is_flag + other.quantity.is_flag
    return flags > 0 and one.pattern == other.pattern == "{}"


def _own_factors(target: LawTarget) -> list[str]:
    """Return the functions of the component that its values allow."""
    now = target.now
    names = ["1", "x", "square"]
    low, high = np.quantile(now, [0.02, 0.98])
    if low > 0 or (now >= 0).all():
        names.append("root")
    elif low < 0 < high:
        names += ["size"]
    return names


def _forms(quantity: GivenQuantity) -> Iterator[QuantityForm]:
    """Yield functions of a quantity that its values allow."""
    values = quantity.values
    yield QuantityForm(quantity, "{}", _same)
    if quantity.is_flag:
        return
    low, high = np.quantile(values, [0.05, 0.95])
    yield QuantityForm(quantity, "{} ** 2", np.square)
    if low < 0 < high:
        yield QuantityForm(quantity, "max({}, 0.0)", _positive)
        yield QuantityForm(quantity, "abs({})", np.abs)
    elif values.min() >= 0:
        yield QuantityForm(quantity, "np.sqrt(max({}, 0.0))", _root)
    if values.min() > 0 and high > 2 * low:
        yield QuantityForm(quantity, "1 / {}", partial(_inverse, 0.5 * float(values.min())))


def _same(values: Array) -> Array:
    return values


def _positive(values: Array) -> Array:
    return np.asarray(np.maximum(values, 0.0))


def _root(values: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(values, 0.0)))


def _inverse(floor: float, values: Array) -> Array:
    return np.asarray(1.0 / np.maximum(values, floor))


@dataclass(frozen=True)
class TermSearch:
    """A search for the law of a component."""

    target: LawTarget
    library: TermLibrary
    effort: Effort
    filters: bool
    """Whether the gain may be smaller than 1, which needs a program with memory."""

    def selected(self, law: NoisyLaw, robust: bool, most: int = MAX_TERMS) -> NoisyLaw:
        """Add and remove terms until no change pays for itself."""
        law = self._pruned(law, robust)
        for _ in range(2):
            law = self._grown(law, robust, most)
            law = self._pruned(law, robust)
            swapped = self._swapped(law, robust)
            if swapped is law:
                break
            law = self._pruned(swapped, robust)
        return law

    def cost(self, law: NoisyLaw, robust: bool = False) -> float:
        """Return the extended information criterion of a law; lower is better."""
        loss, _ = self.target.loss(self.target.trace(law), robust)
        count = int(self.target.fitted.sum())
        if robust:  # Laplace's distribution
            fit = 2.0 * np.log(max(loss / count, 0.8 * self.target.rounding**0.5))
        else:
            fit = np.log(max(loss / count, self.target.rounding))
        return float(count * fit + self._penalty * law.size)

    @property
    def _penalty(self) -> float:
        return float(np.log(self.target.fitted.sum()) + np.log(1 + len(self.library.terms)))

    def fit_paces(self, law: NoisyLaw) -> NoisyLaw:
        """Fit the weights of exponential averages by a search in shrinking steps."""
        series = self.target.series
        actions = [q for column in series.acted for q in series.readings(column, column.values)]
        base = {quantity.text: quantity.values for quantity in actions}
        lagged = {
            form.quantity.text: form.quantity
            for term in law.terms
            for form in term.forms
            if form.quantity.pace < 1
        }
        for text, quantity in lagged.items():
            step = 1.3
            while step > 1.0005 and self.effort.spend(0):
                tried = []
                for pace in (min(0.95, quantity.pace * step), quantity.pace / step):
                    values = series.smoothed(base[quantity.averaged], pace)
                    moved = replace(quantity, pace=pace, values=values)
                    terms = tuple(term.updated({text: moved}) for term in law.terms)
                    fitted = self._fit(replace(law, terms=terms), False, rounds=2)
                    tried.append((fitted, moved))
                best = min(tried, key=lambda each: self.cost(each[0]))
                if self.cost(best[0]) < self.cost(law):
                    law, quantity = best
                else:
                    step = step**0.5
        return law

    def _fit(self, law: NoisyLaw, robust: bool, rounds: int = 4) -> NoisyLaw:
        return self.target.fit(law, fits_gain=self.filters, rounds=rounds, robust=robust)

    def _gains(self, law: NoisyLaw, robust: bool) -> Array:
        """Return by how much each candidate would decrease the loss."""
        target = self.target
        trace = target.trace(law)
        _, weights = target.loss(trace, robust)
        errors = target.errors(trace)[target.fitted] * weights
        known = [target.gradients(trace, law.terms)] if law.terms else []
        if self.filters and law.gain < 1:
            known.append(target.gain_gradient(trace))
        gains = np.zeros(len(self.library.terms))
        basis = np.zeros((len(errors), 0))
        if known:
            basis = np.linalg.qr(np.concatenate(known, axis=1) * weights[:, None])[0]
        errors = errors - basis @ (basis.T @ errors)
        chosen = {term.written("x") for term in law.terms}
        for start in range(0, len(gains), 200):
            terms = self.library.terms[start : start + 200]
            if not self.effort.spend(trace.state.size * len(terms) * (2 + basis.shape[1])):
                return gains
            columns = target.gradients(trace, terms) * weights[:, None]
            size = (columns**2).sum(axis=0)
            columns = columns - basis @ (basis.T @ columns)
            left = (columns**2).sum(axis=0)
            share = (columns.T @ errors) ** 2 / np.maximum(left, 1e-300)
            # nearly a sum of the known columns: its weight would be arbitrary
            gains[start : start + 200] = np.where(left > 1e-6 * size, share, 0.0)
        for number, term in enumerate(self.library.terms):
            if term.written("x") in chosen:
                gains[number] = 0.0
        return gains

    def _grown(self, law: NoisyLaw, robust: bool, most: int) -> NoisyLaw:
        cost = self.cost(law, robust)
        while len(law.terms) < most and self.effort.spend(0):
            gains = self._gains(law, robust)
            if not gains.max(initial=0.0) > 0:
                break
            tried = [self._with(law, number, robust) for number in np.argsort(-gains)[:2].tolist()]
            costs = [self.cost(each, robust) for each in tried]
            best = int(np.argmin(costs))
            if costs[best] >= cost:
                break
            law, cost = tried[best], costs[best]
            if any(form.quantity.pace < 1 for form in law.terms[-1].forms):
                # before other terms make up for a wrong weight
                law = self.fit_paces(law)
                cost = self.cost(law, robust)
        return law

    def _with(self, law: NoisyLaw, number: int, robust: bool) -> NoisyLaw:
        terms = (*law.terms, self.library.terms[number])
        law = replace(law, terms=terms, weights=np.append(law.weights, 0.0))
        return self._fit(law, robust, rounds=2)

    def _without(self, law: NoisyLaw, number: int, robust: bool) -> NoisyLaw:
        terms = law.terms[:number] + law.terms[number + 1 :]
        law = replace(law, terms=terms, weights=np.delete(law.weights, number))
        return self._fit(law, robust, rounds=2)

    def _pruned(self, law: NoisyLaw, robust: bool) -> NoisyLaw:
        """Remove terms while the criterion decreases."""
        law = self._fit(law, robust)
        cost = self.cost(law, robust)
        while law.terms:
            tried = [self._without(law, number, robust) for number in self._weakest(law, robust)]
            costs = [self.cost(each, robust) for each in tried]
            best = int(np.argmin(costs))
            if costs[best] > cost:
                break
            law, cost = self._fit(tried[best], robust), costs[best]
        return law

    def _weakest(self, law: NoisyLaw, robust: bool) -> list[int]:
        """Return the terms with the smallest effects in standard errors."""
        target = self.target
        trace = target.trace(law)
        matrix = target.gradients(trace, law.terms)
        errors = target.errors(trace)[target.fitted]
        scale = np.sqrt((matrix**2).sum(axis=0)) + 1e-150
        inverse = np.linalg.pinv((matrix / scale).T @ (matrix / scale), rcond=1e-12)
        deviation = np.sqrt(np.maximum(np.diag(inverse), 0.0) * np.mean(errors**2)) / scale
        strength = np.abs(law.weights) / np.maximum(deviation, 1e-150)
        return [int(place) for place in np.argsort(strength, kind="stable")[:2]]

    def _swapped(self, law: NoisyLaw, robust: bool) -> NoisyLaw:
        """Replace one term by another if that decreases the criterion."""
        cost, best = self.cost(law, robust), law
        for number in range(len(law.terms)):
            if not self.effort.spend(0):
                break
            shorter = self._without(law, number, robust)
            gains = self._gains(shorter, robust)
            candidate = self._with(shorter, int(np.argmax(gains)), robust)
            found = self.cost(candidate, robust)
            if found < cost - 2.0:
                best, cost = candidate, found
        return best

    def limited(self, law: NoisyLaw) -> NoisyLaw:
        """Add limits of the next value if they pay for themselves."""
        after = self.target.after[self.target.fitted]
        for is_high in (False, True):
            ordered = np.sort(after if is_high else -after)[::-1]
            top = ordered[: max(4, int(0.45 * len(ordered)))]
            points = np.unique(np.quantile(top, np.linspace(0, 1, 14)))
            free = _with_limit(law, is_high, np.inf)
            tried = [_with_limit(law, is_high, point) for point in points.tolist()]
            best = min([law, free, *tried], key=self.cost)
            limit = best.high if is_high else -best.low
            if np.isfinite(limit):
                best = self._refined(best, is_high, float(np.ptp(points)) / 13)
                best = self._fit(best, False)
            law = best
        return law

    def _refined(self, law: NoisyLaw, is_high: bool, width: float) -> NoisyLaw:
        """Improve a limit by a search in shrinking steps."""
        cost = self.cost(law)
        while width > 1e-7 * (1 + abs(law.high if is_high else law.low)):
            moved = False
            for step in (-width, width):
                limit = law.high if is_high else -law.low
                candidate = _with_limit(law, is_high, limit + step)
                found = self.cost(candidate)
                if found < cost - 1e-9:
                    law, cost, moved = candidate, found, True
            width = width if moved else width / 2.5
        return law


def _with_limit(law: NoisyLaw, is_high: bool, limit: float) -> NoisyLaw:
    """Return the law with an upper limit, or with the negative of a limit as the lower one."""
    return replace(law, high=limit) if is_high else replace(law, low=-limit)
