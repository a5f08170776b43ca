"""Termination and reward: rules about the next state, and rewards that are sums.

A sum counts or adds factors of the state. A rule gives the difference to the reward, as a bonus.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.decision_list import Spend
from cwm_induction.discrete.expressions import bracketed, part_of_action, picked
from cwm_induction.discrete.features import CaseList, CaseSearch, FactoredTransitions, Sizes, pick
from cwm_induction.discrete.transitions import Transitions

LEAST_REWARDS = 4
"""Search for a sum only with at least this many rewards; rules describe fewer as shortly."""

EXACT = 1e-6
"""Tolerance of a correct reward."""

LEAST_EXACT = 0.5
"""A sum must give the exact reward in at least this share of the rows."""

REWEIGHTINGS = 40
"""Iterations of reweighted least squares to approximate the least absolute errors."""

TERM_BITS = 6.0
"""Price of a term of a sum."""

REWARD_MISS_BITS = 10.0
"""Price of a row whose reward a sum misses."""

MOST_TERMS = 40
"""Largest number of terms of a sum."""

MOST_PRODUCTS = 120
"""Skip terms for single actions if there are more such terms than this, to save time."""

PLAIN_TERM = 0.9
"""Factor for the gain of a term for a single action, compared to a general term."""

DENOMINATORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20, 25, 32, 40, 50, 64, 100, 1000, 10000)
"""Denominators of the weights in a program, the simplest first."""

MISS_BITS = 25.0
"""Price of a row with a wrong reward or end: these are often rare, but matter most."""

RARE_MISS_BITS = 2.0
"""Price of a wrong reward while rules are extended, so that the search reaches rare rewards."""

COLUMNS = (
    *("new", "part", "old", "aimed", "same", "goal"),
    *("change", "gap", "run"),
)
"""Kinds of columns that rules use, the simplest first."""


class Outcomes(NamedTuple):
    """The rules of termination and of reward, and their order.

    Label 0 of the termination is the usual case `always`, and label i of the reward is the i-th
    reward. The second rule may use the result of the first.
    """

    always: bool
    done: CaseList
    reward: CaseList
    reward_first: bool

    @property
    def bits(self) -> float:
        """Description length."""
        return self.done.bits + self.reward.bits

    def predict(self, factored: FactoredTransitions, sizes: Sizes) -> FactoredTransitions:
        """Predict the end and the reward of transitions with known next states."""
        for what in ("reward", "done") if self.reward_first else ("done", "reward"):
            if what == "done":
                factored = factored._replace(
                    done=self.done.labels(factored, sizes) ^ int(self.always)
                )
            else:
                factored = factored._replace(reward=self.reward.labels(factored, sizes))
        return factored


def fit_outcomes(
    seen: Transitions, factored: FactoredTransitions, sizes: Sizes, spend: Spend
) -> Outcomes:
    """Fit both rules in the order with the shorter description."""
    of_end = CaseSearch(sizes, spend, MISS_BITS)
    of_reward = of_end._replace(search_error_bits=RARE_MISS_BITS)

    def fit(
        search: CaseSearch, factored: FactoredTransitions, labels: np.ndarray, *more: str
    ) -> CaseList:
        correct = labels[:, None] == np.arange(max(2, labels.max(initial=0) + 1))
        return search.learn(factored, sizes.columns(factored, *COLUMNS, *more), correct)

    always = bool(2 * seen.count[seen.done == 1].sum() > seen.count.sum())
    labels = seen.done ^ int(always)
    done, reward = fit(of_end, factored, labels), fit(of_reward, factored, seen.codes)
    ended = factored._replace(done=done.labels(factored, sizes) ^ int(always))
    paid = factored._replace(reward=reward.labels(factored, sizes))
    after_done = fit(of_reward, ended, seen.codes, "done")
    after_reward = fit(of_end, paid, labels, "reward")
    if done.bits + after_done.bits <= reward.bits + after_reward.bits:
        return Outcomes(always, done, after_done, reward_first=False)
    return Outcomes(always, after_reward, reward, reward_first=True)


class RewardTerm(NamedTuple):
    """A term of a reward; with an `action` other than -1 it is 0 for all other actions.

    Kinds:
        "old", "new": The value of `factor` before or after the step.
        "far": The distance that `factor` moves.
        "moved": 1 if the state changes, otherwise 0.
        "one": 1.
        "pick": The value before the step of the factor in `flags` that `factor` selects.
        "part": The part `factor` of an action; `flags` are the sizes of its parts.
        "total", "total_before": The number of factors in `flags` that are set after or before.
    """

    kind: str
    factor: int
    action: int
    flags: tuple[int, ...] = ()

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the value of the term in each row."""
        values = np.ones(len(old))
        if self.kind == "moved":
            values = (old != new).any(axis=1).astype(float)
        elif self.kind == "pick":
            values = pick(old, self.factor, self.flags).astype(float)
        elif self.kind == "part":
            values = np.unravel_index(action, self.flags)[self.factor].astype(float)
        elif self.flags:
            values = (new if self.kind == "total" else old)[:, self.flags].sum(axis=1).astype(float)
        elif self.kind == "far":
            values = np.abs(new - old)[:, self.factor].astype(float)
        elif self.kind != "one":
            values = {"old": old, "new": new}[self.kind][:, self.factor].astype(float)
        return values if self.action < 0 else values * (action == self.action)

    def text(self, now: Callable[[int], str], after: Callable[[int], str]) -> str:
        """Write the term; `now` and `after` name factors before and after a step."""
        if self.kind == "part":
            return f"({part_of_action(self.flags, self.factor)})"
        if self.kind == "pick":
            return picked([now(cell) for cell in self.flags], now(self.factor))
        plain = {"one": "1", "moved": "(not unchanged)"}
        if self.kind in plain or self.flags:
            return plain.get(self.kind, self.kind)
        if self.kind == "far":
            return f"abs({after(self.factor)} - {now(self.factor)})"
        return (now if self.kind == "old" else after)(self.factor)


class RewardFormula(NamedTuple):
    """A weighted sum of terms."""

    terms: tuple[RewardTerm, ...]
    weights: tuple[float, ...]

    @property
    def bits(self) -> float:
        """Description length."""
        return TERM_BITS * (1 + len(self.terms))

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the sum in each row."""
        total = np.zeros(len(old))
        for term, weight in zip(self.terms, self.weights, strict=True):
            total += weight * term.values(action, old, new)
        return total

    def lines(
        self, start: str, now: Callable[[int], str], after: Callable[[int], str]
    ) -> list[str]:
        """Write an assignment to the reward that adds the sum to the expression `start`."""
        groups: dict[tuple[int, float], str] = {}
        for term, weight in zip(self.terms, self.weights, strict=True):
            subtracted = (term.action, -weight) in groups
            key, text = (term.action, -weight if subtracted else weight), term.text(now, after)
            if key in groups:
                text = f"{groups[key]} {'-' if subtracted else '+'} {text}"
            groups[key] = text
        total = start
        for (action, weight), text in groups.items():
            part = _product(abs(weight), text)
            if action >= 0:
                part = f"(action == {action})" + (f" * {part}" if part != "1" else "")
            sign = "-" if weight < 0 else "+"
            total = f"{total} {sign} {part}" if total else f"-{part}" if weight < 0 else part
        return bracketed("reward = ", total)


def fit_formula(
    action: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    rewards: np.ndarray,
    sizes: Sizes,
) -> RewardFormula | None:
    """Fit the shortest sum that gives the rewards of most rows, if there is one."""
    if len(np.unique(rewards)) < LEAST_REWARDS:
        return None
    best, least = None, np.inf
    for terms in _term_lists(action, old, new, sizes):
        columns = np.stack([term.values(action, old, new) for term in terms], axis=1)
        exact = np.abs(columns @ _most_exact(columns, rewards) - rewards) < EXACT
        formula = _shortest(terms, columns[exact], rewards[exact]) if exact.any() else None
        if formula and exact.mean() >= LEAST_EXACT:
            counts = any(term.factor >= 0 or term.flags for term in formula.terms)
            bits = formula.bits + REWARD_MISS_BITS * np.count_nonzero(~exact)
            if counts and bits < least:
                best, least = formula, bits
    return best


def _term_lists(
    action: np.ndarray, old: np.ndarray, new: np.ndarray, sizes: Sizes
) -> Iterator[list[RewardTerm]]:
    """Yield lists of candidate terms, the simplest first."""
    factors, actions = range(old.shape[1]), np.unique(action).tolist()
    changing = [factor for factor in factors if (old[:, factor] != new[:, factor]).any()]
    flags, parts = sizes.flags, sizes.parts
    plain = [RewardTerm(kind, -1, -1, flags) for kind in ("total", "total_before") if flags]
    plain += [RewardTerm("part", n, -1, parts) for n in range(len(parts)) if len(parts) > 1]
    if len(actions) * len(sizes.picks) <= MOST_PRODUCTS:
        plain += [RewardTerm("pick", p, number, c) for p, c in sizes.picks for number in actions]
    plain += [RewardTerm("one", -1, -1), RewardTerm("moved", -1, -1)]
    after = [RewardTerm("new", factor, -1) for factor in factors]
    far = [RewardTerm("far", factor, -1) for factor in changing]
    before = [RewardTerm("old", factor, -1) for factor in changing]
    each = [RewardTerm("one", -1, number) for number in actions]
    yield plain + far
    yield plain + after
    yield plain + before
    yield plain + after + before
    yield plain + each + after + before
    yield plain + each + after + far
    if len(actions) * len(factors) <= MOST_PRODUCTS:
        products = [RewardTerm("old", f, number) for number in actions for f in factors]
        yield plain + each + products
        yield plain + each + after + before + far + products


def _most_exact(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return weights with the least sum of absolute errors, which is robust to outliers."""
    trust, weights = np.ones(len(target)), np.full(columns.shape[1], np.inf)
    for _ in range(REWEIGHTINGS):
        before = weights
        root = np.sqrt(trust)
        weights = np.linalg.lstsq(columns * root[:, None], target * root, rcond=1e-10)[0]
        if np.abs(weights - before).max() < EXACT / 100:
            break
        trust = 1 / np.maximum(np.abs(columns @ weights - target), EXACT)
    solved: np.ndarray = weights
    return solved


def _shortest(
    terms: list[RewardTerm], columns: np.ndarray, target: np.ndarray
) -> RewardFormula | None:
    """Add terms until all rows are exact, then drop redundant terms."""
    chosen: list[int] = []
    residuals = target
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    narrow = [term.action >= 0 and term.kind != "one" for term in terms]
    handicap = np.where(narrow, PLAIN_TERM, 1.0)
    while np.abs(residuals).max(initial=0) > EXACT and len(chosen) < MOST_TERMS:
        gain = np.abs(residuals @ columns) / norms * handicap
        gain[chosen] = 0
        chosen.append(int(gain.argmax()))
        weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0]
        residuals = target - columns[:, chosen] @ weights
    for term in list(chosen):
        fewer = [other for other in chosen if other != term]
        if fewer and np.abs(_residuals(columns[:, fewer], target)).max() < EXACT:
            chosen = fewer
    if not chosen or np.abs(_residuals(columns[:, chosen], target)).max() > EXACT:
        return None
    weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0].round(9)
    kept = [(terms[n], w) for n, w in zip(chosen, weights.tolist(), strict=True) if w]
    if not kept:
        return None
    used_terms, used_weights = zip(*kept, strict=True)
    return RewardFormula(used_terms, used_weights)


def _residuals(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the residuals of a least-squares fit."""
    weights = np.linalg.lstsq(columns, target, rcond=1e-10)[0]
    rest: np.ndarray = target - columns @ weights
    return rest


def _product(weight: float, text: str) -> str:
    """Write a weight times a sum."""
    if text == "1":
        return _number(weight)
    inner = f"({text})" if " + " in text or " - " in text else text
    return inner if weight == 1 else f"{_number(weight)} * {inner}"


def _number(value: float) -> str:
    """Write a number in short form, as a fraction if that is exact."""
    for denominator in DENOMINATORS:
        whole = round(value * denominator)
        if whole and abs(whole / denominator - value) < 1e-8:
            plain = repr(whole / denominator)
            return plain if len(plain) < 8 else f"{whole} / {denominator}"
    return repr(value)
