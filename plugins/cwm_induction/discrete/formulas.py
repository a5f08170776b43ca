"""Rewards that are sums of what the state holds, counted or measured, with exceptions."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.scene import Sizes, pick

LEAST_REWARDS = 4
LEAST_SHARE = 0.5
ROUNDS = 40
EXACT = 1e-6
TERM_BITS = 6.0
MISS_BITS = 10.0
MOST_TERMS = 40
MOST_PRODUCTS = 120


class Term(NamedTuple):
    """Something that a reward counts: the value of a factor before or after, how far it moved.

    With an action other than -1 it counts for that action alone; of kind "one" it is 1.
    Of kind "pick" it is the one of the factors in `flags` that `factor` points at before, of
    kind "part" the part `factor` of an action with parts of the sizes in `flags`.
    Of kinds "total" and "total_before" it is how many of the factors in `flags` are set.
    """

    kind: str
    factor: int
    action: int
    flags: tuple[int, ...] = ()

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return what is counted in every row."""
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


class Formula(NamedTuple):
    """A sum of terms, each times a number."""

    terms: tuple[Term, ...]
    weights: tuple[float, ...]

    @property
    def bits(self) -> float:
        """Description length."""
        return TERM_BITS * (1 + len(self.terms))

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the sum in every row."""
        total = np.zeros(len(old))
        for term, weight in zip(self.terms, self.weights, strict=True):
            total += weight * term.values(action, old, new)
        return total


def fit_formula(
    action: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    rewards: np.ndarray,
    sizes: Sizes,
) -> Formula | None:
    """Find the shortest sum that gives the rewards of most rows."""
    if len(np.unique(rewards)) < LEAST_REWARDS:
        return None
    best, least = None, np.inf
    flags, parts = sizes.flags, sizes.parts
    totals = [Term(kind, -1, -1, flags) for kind in ("total", "total_before") if flags]
    totals += [Term("part", n, -1, parts) for n in range(len(parts)) if len(parts) > 1]
    actions = np.unique(action).tolist()
    if len(actions) * len(sizes.picks) <= MOST_PRODUCTS:
        totals += [Term("pick", p, number, c) for p, c in sizes.picks for number in actions]
    for family in _families(action, old, new):
        terms = totals + family
        columns = np.stack([term.values(action, old, new) for term in terms], axis=1)
        exact = np.abs(columns @ _most_exact(columns, rewards) - rewards) < EXACT
        found = _shortest(terms, columns[exact], rewards[exact]) if exact.any() else None
        if found and exact.mean() >= LEAST_SHARE:
            counts = any(term.factor >= 0 or term.flags for term in found.terms)
            bits = found.bits + (0 if counts else np.inf) + MISS_BITS * np.count_nonzero(~exact)
            if bits < least:
                best, least = found, bits
    return best


def _families(action: np.ndarray, old: np.ndarray, new: np.ndarray) -> Iterator[list[Term]]:
    """Yield lists of what may be counted, the plainest first."""
    factors, actions = range(old.shape[1]), np.unique(action).tolist()
    changing = [factor for factor in factors if (old[:, factor] != new[:, factor]).any()]
    plain = [Term("one", -1, -1), Term("moved", -1, -1)]
    after, far = [Term("new", f, -1) for f in factors], [Term("far", f, -1) for f in changing]
    before = [Term("old", f, -1) for f in changing]
    each = [Term("one", -1, number) for number in actions]
    yield plain + far
    yield plain + after
    yield plain + before
    yield plain + after + before
    yield plain + each + after + before
    yield plain + each + after + far
    if len(actions) * len(factors) <= MOST_PRODUCTS:
        products = [Term("old", f, number) for number in actions for f in factors]
        yield plain + each + products
        yield plain + each + after + before + far + products


def _most_exact(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return weights with the least sum of absolute errors, which few wrong rows do not move."""
    trust, weights = np.ones(len(target)), np.full(columns.shape[1], np.inf)
    for _ in range(ROUNDS):
        before = weights
        root = np.sqrt(trust)
        weights = np.linalg.lstsq(columns * root[:, None], target * root, rcond=1e-10)[0]
        if np.abs(weights - before).max() < EXACT / 100:
            break
        trust = 1 / np.maximum(np.abs(columns @ weights - target), EXACT)
    solved: np.ndarray = weights
    return solved


def _shortest(terms: list[Term], columns: np.ndarray, target: np.ndarray) -> Formula | None:
    """Add terms until all rows are exact, then leave out what is not needed."""
    chosen: list[int] = []
    left = target
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    handicap = np.array([0.9 if term.action >= 0 and term.kind != "one" else 1.0 for term in terms])
    while np.abs(left).max(initial=0) > EXACT and len(chosen) < MOST_TERMS:
        gain = np.abs(left @ columns) / norms * handicap
        gain[chosen] = 0
        chosen.append(int(gain.argmax()))
        weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0]
        left = target - columns[:, chosen] @ weights
    for term in list(chosen):
        fewer = [other for other in chosen if other != term]
        if fewer and np.abs(_rest(columns[:, fewer], target)).max() < EXACT:
            chosen = fewer
    rest = _rest(columns[:, chosen], target)
    if not chosen or np.abs(rest).max() > EXACT:
        return None
    weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0].round(9)
    kept = [(terms[n], w) for n, w in zip(chosen, weights.tolist(), strict=True) if w]
    return Formula(tuple(term for term, _ in kept), tuple(w for _, w in kept)) if kept else None


def _rest(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return what the best sum of some columns leaves."""
    weights = np.linalg.lstsq(columns, target, rcond=1e-10)[0]
    rest: np.ndarray = target - columns @ weights
    return rest
