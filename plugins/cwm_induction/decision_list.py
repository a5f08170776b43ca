"""Decision lists: ordered rules of few conditions, learned greedily by description length.

The learner is sequential covering with a beam (CN2: Clark and Niblett 1989), with two changes.
A sample may have several correct effects (a cell that keeps its value also equals a neighbour
of the same value), and a rule is scored by the bits that it saves, so that guards for the
default and rules with few exceptions compete with exact rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import xlog1py, xlogy

from cwm_induction.continuous.samples import Array

BEAM = 6
"""Conditions that are extended at each depth; more finds no better rules in the hard suite."""

MAX_CONDITIONS = 5
"""Conditions of one rule at most: longer ones never generalised in the hard suite."""

POWERS = (0.0, 1.0)
"""Rules are chosen by the bits saved over the number of conditions to these powers; the shorter
of the lists is kept. The second finds short guards first, the first finds the main cases."""

SWEEPS = 3
"""Passes over a list while it gets shorter; later passes rarely find more."""

FARTHEST = 5
"""A rule moves back by less than this number of places while it is simplified."""

TRIAL, TRIAL_LEFT = 12, 0.5
"""A search ends after 12 rules if half of the errors of the default are left."""

HOPELESS = 0.05
"""Share of wrong samples above which a list is not searched for a second time."""

PURE = 10.0
"""If an error costs as many bits, only rules without errors are accepted."""

MAX_CELLS = 25_000_000
"""Entries of the matrix of samples and conditions; more samples are thinned out."""


Spend = Callable[[float], bool]
"""Takes multiplications and returns whether more may be done."""


class RelationCondition(NamedTuple):
    """A comparison of a feature with a constant; `operator` "" tests a flag."""

    feature: str
    operator: str
    value: int = 1

    @property
    def text(self) -> str:
        """Return the condition as Python."""
        if self.operator:
            return f"{self.feature} {self.operator} {self.value}"
        return self.feature if self.value else f"not {self.feature}"

    def holds(self, values: Mapping[str, Array]) -> Array:
        """Return the mask of the samples that meet the condition."""
        column = values[self.feature]
        if self.operator in ("", "=="):
            mask = column == self.value
        elif self.operator == "!=":
            mask = column != self.value
        else:
            mask = column <= self.value if self.operator == "<=" else column >= self.value
        return np.asarray(mask)


class RelationRule(NamedTuple):
    """Conditions that must all hold, and the effect that then applies."""

    conditions: tuple[RelationCondition, ...]
    effect: int


class RelationList(NamedTuple):
    """Rules in order: the first rule that holds applies, and `default` if none holds."""

    rules: tuple[RelationRule, ...]
    default: int

    def effects(self, values: Mapping[str, Array], count: int) -> Array:
        """Return the effect of each of `count` samples."""
        effects = np.full(count, self.default)
        for rule in reversed(self.rules):
            holds = np.ones(count, bool)
            for condition in rule.conditions:
                holds &= condition.holds(values)
            effects[holds] = rule.effect
        return effects

    @property
    def features(self) -> set[str]:
        """Names of the features that conditions compare."""
        return {condition.feature for rule in self.rules for condition in rule.conditions}


class RelationFeature(NamedTuple):
    """A column of integers: a `code` is compared for equality, a `number` also for order.

    `price` is added to the bits of each condition on it.
    """

    name: str
    kind: str
    values: Array
    price: float = 0.0


def conditions_on(feature: RelationFeature, most: int = 24) -> list[RelationCondition]:
    """Return the conditions that a feature offers, at most `most` thresholds."""
    seen = np.unique(feature.values).tolist()
    if len(seen) < 2:
        return []
    if feature.kind == "flag":
        return [RelationCondition(feature.name, "", value) for value in (1, 0)]
    if len(seen) > most:
        seen = np.unique(np.quantile(feature.values, np.linspace(0, 1, most)).astype(int)).tolist()
    found = [RelationCondition(feature.name, "==", value) for value in seen]
    if len(seen) == 2:
        return found
    found += [RelationCondition(feature.name, "!=", value) for value in seen]
    if feature.kind == "number":
        found += [RelationCondition(feature.name, "<=", value) for value in seen[1:-1]]
        found += [RelationCondition(feature.name, ">=", value) for value in seen[1:-1]]
    return found


class Bias(NamedTuple):
    """Preferences of a search.

    `error_bits` is the price of a sample that a rule predicts wrongly; low values tolerate noise.
    `effect_bits` are the prices of effects. `default` is the effect if no rule holds; None stands
    for the effect that is correct most often. With `search_error_bits`, the search also extends
    rules for other effects by this price of an error, which finds long rules about rare samples.
    """

    error_bits: float = 25.0
    effect_bits: Sequence[float] = ()
    max_rules: int = 40
    default: int | None = None
    search_error_bits: float | None = None


def learn(
    features: Sequence[RelationFeature],
    correct: Array,
    spend: Spend,
    bias: Bias = Bias(),  # noqa: B008  # immutable
) -> RelationList:
    """Learn a decision list.

    Args:
        features: Columns with one entry per sample.
        correct: Mask of shape (samples, effects): the effect gives the recorded outcome.
        spend: Takes multiplications and returns whether more may be done.
        bias: Prices and limits.
    """
    return _Learner(features, correct, spend, bias).learn()


Choice = tuple[tuple[int, ...], int]
"""Numbers of the conditions of a rule, and its effect."""


class _Candidate(NamedTuple):
    gain: float
    chosen: tuple[int, ...]
    effect: int
    errors: float

    def worth(self, power: float) -> float:
        return self.gain / float(len(self.chosen) ** power)


class _Learner:
    """One search: `holds` has a column per condition, `correct` one per effect."""

    def __init__(
        self,
        features: Sequence[RelationFeature],
        correct: Array,
        spend: Spend,
        bias: Bias,
    ) -> None:
        conditions = [(c, f) for f in features for c in conditions_on(f)]
        rows = np.arange(0, len(correct), 1 + len(correct) * len(conditions) // MAX_CELLS)
        correct, count = correct[rows], len(rows)
        columns: list[Array] = []
        prices: list[float] = []
        self.conditions: list[RelationCondition] = []
        seen: dict[bytes, int] = {}
        for condition, feature in sorted(conditions, key=lambda pair: pair[1].price):
            column = condition.holds({feature.name: feature.values[rows]})
            key = np.packbits(column).tobytes()
            if key not in seen:
                seen[key] = len(columns)
                columns.append(column)
                prices.append(feature.price)
                self.conditions.append(condition)
        table = np.stack(columns, axis=1) if columns else np.zeros((count, 0), bool)
        self.holds, self.correct = table.astype(np.float32), correct.astype(np.float32)
        self.prices = np.array(prices) + np.log2(max(2, len(columns)))
        extra = np.asarray(bias.effect_bits or np.zeros(correct.shape[1]))
        self.effect_bits = extra + np.log2(max(2, correct.shape[1]))
        self.spend, self.bias, self.error_bits = spend, bias, bias.error_bits
        self.masks: dict[tuple[int, ...], Array] = {}

    def learn(self) -> RelationList:
        default = self.bias.default
        if default is None:
            default = int((self.correct.sum(0) - 0.01 * self.effect_bits).argmax())
        found = [self._rules(default, POWERS[0])]
        if len(found[0]) > 1 and self._wrong(found[0], default) <= HOPELESS * len(self.correct):
            found += [self._rules(default, power) for power in POWERS[1:]]
        kept = min(found, key=lambda rules: (self._wrong(rules, default), self._length(rules)))
        named = [RelationRule(tuple(self.conditions[c] for c in chosen), e) for chosen, e in kept]
        return RelationList(tuple(named), default)

    def _rules(self, default: int, power: float) -> list[Choice]:
        """Return rules for the samples that the default gets wrong, simplified."""
        left, rules = np.ones(len(self.correct), bool), list[Choice]()
        wrong = self.correct[:, default] == 0
        while len(rules) < self.bias.max_rules and (left & (self.correct[:, default] == 0)).any():
            found = self._best(left, default, power)
            if found is None:
                break
            rules.append((found.chosen, found.effect))
            left &= ~self._covered(found.chosen)
            if len(rules) == TRIAL and (left & wrong).sum() > TRIAL_LEFT * wrong.sum():
                return rules
        return self._pruned(rules, default)

    def _length(self, rules: list[Choice]) -> float:
        return sum(float(self.prices[list(chosen)].sum()) + 4.0 for chosen, _ in rules)

    def _covered(self, chosen: tuple[int, ...]) -> Array:
        key = tuple(sorted(chosen))
        if key not in self.masks:
            self.masks[key] = np.asarray((self.holds[:, list(key)] > 0).all(axis=1))
        return self.masks[key]

    def _best(self, left: Array, default: int, power: float) -> _Candidate | None:
        """Return the rule that saves most bits, also for its length, on the samples left."""
        best: _Candidate | None = None
        beam: list[tuple[int, ...]] = [()]
        rows = np.flatnonzero(left)
        total = len(rows), float((self.correct[rows, default] == 0).sum())
        for _ in range(MAX_CONDITIONS):
            found: dict[tuple[int, ...], _Candidate] = {}
            for chosen in beam:
                for candidate in self._extended(chosen, rows, total, default):
                    key = tuple(sorted(candidate.chosen))
                    if key not in found or candidate.gain > found[key].gain:
                        found[key] = candidate
            ranked = sorted(found.values(), key=lambda c: (-c.gain, c.chosen))
            pure = [c for c in ranked if self.error_bits < PURE or not c.errors]
            if pure and (best is None or pure[0].worth(power) > best.worth(power) + 1e-6):
                best = pure[0]
            promising = ranked[:BEAM] + self._rare(ranked[BEAM:], default)
            beam = [candidate.chosen for candidate in promising if candidate.errors]
            if not beam:
                break
        return best if best is not None and best.gain > 0 else None

    def _rare(self, found: list[_Candidate], default: int) -> list[_Candidate]:
        """Return the best candidates for other effects than the default, if errors cost less."""
        if (price := self.bias.search_error_bits) is None:
            return []
        rest, others = self.error_bits - price, [c for c in found if c.effect != default]
        return sorted(others, key=lambda c: (-c.gain - rest * c.errors, c.chosen))[:BEAM]

    def _extended(
        self, chosen: tuple[int, ...], rows: Array, total: tuple[int, float], default: int
    ) -> list[_Candidate]:
        """Return the best extensions of some conditions by one more."""
        inside = rows[self._covered(chosen)[rows]] if chosen else rows
        holds, correct = self.holds[inside], self.correct[inside]
        # a product of matrices does five multiplications in the time of one elsewhere
        if not self.spend(holds.size * (correct.shape[1] + 1) / 5):
            return []
        right = holds.T @ correct
        size = holds.sum(0)
        default_wrong = size - right[:, default]
        errors = size[:, None] - right
        price = self.prices + self.prices[list(chosen)].sum()
        # every sample that the default gets wrong also needs its effect named
        rest = _bits(total[0] - size, total[1] - default_wrong, self.error_bits)
        saved = _bits(np.array(total[0]), np.array(total[1]), self.error_bits) - rest
        inside_bits = _bits(size[:, None], errors, self.error_bits)
        gain = saved[:, None] - inside_bits - price[:, None] - self.effect_bits[None]
        # a rule that covers nothing, or that repeats a condition, changes nothing
        gain[(size == 0) | (size == len(inside))] = -np.inf
        # among equal gains, the cheaper feature comes first
        gain = gain - 1e-9 * np.arange(gain.size).reshape(gain.shape)
        flat = np.argpartition(-gain.ravel(), min(BEAM, gain.size - 1))[:BEAM].tolist()
        flat.append(int(np.where(errors == 0, gain, -np.inf).argmax()))
        if (cheap := self.bias.search_error_bits) is not None:
            worth = gain + (self.error_bits - cheap) * errors
            worth[:, default] = -np.inf
            more = np.argpartition(-worth.ravel(), min(BEAM, gain.size - 1))[:BEAM]
            flat = list(dict.fromkeys([*flat, *more.tolist()]))
        pairs = [divmod(int(index), gain.shape[1]) for index in flat]
        return [
            _Candidate(float(gain[c, e]), (*chosen, c), e, float(errors[c, e]))
            for c, e in pairs
            if np.isfinite(gain[c, e])
        ]

    def _pruned(self, rules: list[Choice], default: int) -> list[Choice]:
        """Simplify rules while as many samples are right.

        A rule or condition is left out, or a rule moves behind a guard and loses a condition.
        """
        for _ in range(SWEEPS):
            before, place = rules, len(rules) - 1
            while place >= 0:
                shorter = self._shorter(rules, place, default)
                rules, place = (rules, place - 1) if shorter is None else (shorter, place)
                place = min(place, len(rules) - 1)
            if rules == before:
                break
        return rules

    def _shorter(self, rules: list[Choice], place: int, default: int) -> list[Choice] | None:
        """Return the first list with less at a place that is as good, or None."""
        (chosen, effect), others = rules[place], rules[:place] + rules[place + 1 :]
        candidates = [others]
        for condition in chosen if len(chosen) > 1 else ():
            fewer = tuple(c for c in chosen if c != condition), effect
            farthest = min(len(rules), place + FARTHEST)
            candidates += [[*others[:to], fewer, *others[to:]] for to in range(place, farthest)]
        # rules before the place stay, so only the samples that pass them matter
        left = np.ones(len(self.correct), bool)
        for conditions, _ in rules[:place]:
            left &= ~self._covered(conditions)
        passed = np.flatnonzero(left)
        fewest = self._wrong(rules[place:], default, passed)
        for candidate in candidates:
            if not self.spend(len(rules[place:]) * len(passed)):
                return None
            if self._wrong(candidate[place:], default, passed) <= fewest:
                return candidate
        return None

    def _wrong(self, rules: list[Choice], default: int, left: Array | None = None) -> int:
        """Count the wrong samples, of all samples or of the numbers in `left`."""
        left = np.arange(len(self.correct)) if left is None else left
        wrong = 0
        for chosen, effect in rules:
            covered = self._covered(chosen)[left]
            wrong += int((self.correct[left[covered], effect] == 0).sum())
            left = left[~covered]
        return wrong + int((self.correct[left, default] == 0).sum())


def _bits(count: Array, wrong: Array, error_bits: float) -> Array:
    """Return the bits that name the wrong samples, with a price for each."""
    share = wrong / np.maximum(count, 1)
    entropy = -(xlogy(share, share) + xlog1py(1 - share, -share)) / np.log(2)
    bits: Array = count * entropy + wrong * error_bits
    return bits
