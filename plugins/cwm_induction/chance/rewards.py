"""Reward formulas that hold up to a whole multiple of one number, the hidden count.

A reward may count events that the next observation does not show, such as customers who were
turned away. The formula is fitted by the least sum of absolute errors, so that rows with such
events do not move it. The residual is a multiple of one number: an output like a component.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from cwm_induction.chance.quantities import (
    KnownQuantity,
    OutcomeRows,
    distinct,
    flows,
    number,
)
from cwm_induction.effort import Effort
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

CLOSE = 1e-5
"""Maximum relative error of an exact reward, because stored numbers are rounded."""

MAX_CLASSES = 20
"""Maximum number of rewards that count as outcomes of their own, as in the skill."""

TERM_BITS = 10.0
"""Price of a term of the formula."""

ODD_BITS = 14.0
"""Price of a row whose reward is no multiple of the number."""

MAX_TERMS = 14
"""Terms of a formula at most."""

MAX_FLOWS = 40
"""Amounts that an action moves which may be terms, the simplest first."""

MAX_ROWS = 300
"""Rows of a linear program, whose time grows faster than the rows."""

TRIALS = 4000
"""Samples of rows; each sample gives weights."""

MAX_DRAWN = 6
"""Terms of a formula that is solved from samples: all rows of a sample need the same count."""

MAX_COUNT = 2000
"""Largest difference of hidden counts; residuals of a wider range are no counts."""

LEAST_MULTIPLES = 0.8
"""Share of the remaining rewards that must be multiples of one number."""


class RandomReward(NamedTuple):
    """A sum of terms plus `step` times the whole number `extra` of every row."""

    terms: tuple[KnownQuantity, ...]
    weights: tuple[float, ...]
    step: float
    extra: Array
    exact: Array
    bits: float
    values: tuple[float, ...] = ()
    """The rewards that `extra` numbers, if they are few and no multiples of one number."""

    def text(self) -> str:
        """Write the reward."""
        if self.values:
            return f"({', '.join(map(literal, self.values))})[extra]"
        text = ""
        parts = [(weight, term.text) for term, weight in zip(self.terms, self.weights, strict=True)]
        for weight, name in [*parts, *([(self.step, "extra")] if self.step else [])]:
            size = literal(abs(weight))
            inner = f"({name})" if " + " in name or " - " in name else name
            body = size if name == "1" else inner if abs(weight) == 1 else f"{size} * {inner}"
            sign = "-" if weight < 0 else "+"
            text = f"{text} {sign} {body}" if text else f"-{body}" if weight < 0 else body
        return text or "0.0"


def fit_reward(rows: OutcomeRows, learn: Array, effort: Effort) -> RandomReward:
    """Return the shortest explanation of the rewards."""
    levels, codes = np.unique(rows.rewards, return_inverse=True)
    found = [formula for formula in _formulas(rows, learn, effort) if formula is not None]
    if len(levels) <= MAX_CLASSES:
        _, counts = np.unique(codes[learn], return_counts=True)
        bits = TERM_BITS * len(levels) - float((counts * np.log2(counts / counts.sum())).sum())
        values = tuple(levels.tolist())
        found.append(RandomReward((), (), 0.0, codes, codes >= 0, bits, values))
    best = min(found, key=lambda formula: formula.bits, default=None)
    if best is None:
        mean = float(rows.rewards[learn].mean())
        one = KnownQuantity("1", np.ones(len(rows)))
        return RandomReward((one,), (mean,), 0.0, np.zeros(len(rows)), np.zeros(len(rows), bool), 0)
    return best


def _formulas(rows: OutcomeRows, learn: Array, effort: Effort) -> Iterator[RandomReward | None]:
    for terms in _libraries(rows):
        if not effort.spend(100.0 * len(rows) * len(terms) ** 2):
            return
        for solve in (_least_absolute, _consensus)[: 2 if len(terms) <= MAX_DRAWN else 1]:
            found = _Fit(rows, learn, terms).formula(solve)
            yield found
            if found is not None and found.exact[learn].all() and not found.extra.any():
                return


def _libraries(rows: OutcomeRows) -> Iterator[list[KnownQuantity]]:
    """Yield terms that a reward may count, the plainest first."""
    one = KnownQuantity("1", np.ones(len(rows)))
    events = [
        KnownQuantity(f"({part.text} == {number(level)})", (part.values == level).astype(float))
        for part in rows.actions
        for level in np.unique(part.values)
        if len(np.unique(part.values)) <= MAX_CLASSES
    ]
    flags = [part for part in rows.now if set(np.unique(part.values)) <= {0.0, 1.0}]
    later = rows.earlier
    plain = [one, *rows.actions, *rows.now, *later]
    yield distinct([one, *later])
    yield distinct(plain)
    modes = [_product(event, flag) for event in events for flag in flags]
    yield distinct([*plain, *events, *modes])
    amounts = sorted(flows(rows, [1]), key=lambda part: len(part.text))[:MAX_FLOWS]
    yield distinct([*plain, *events, *modes, *amounts])
    if len(events) * len(rows.now) <= 60:
        products = [_product(event, part) for event in events for part in [*rows.now, *later]]
        yield distinct([*plain, *events, *modes, *products])


def _product(event: KnownQuantity, part: KnownQuantity) -> KnownQuantity:
    return KnownQuantity(f"{event.text} * {part.text}", event.values * part.values)


@dataclass(frozen=True)
class _Fit:
    """Fits one library of terms."""

    rows: OutcomeRows
    learn: Array
    terms: Sequence[KnownQuantity]

    def formula(self, solve: Callable[[Array, Array], Array]) -> RandomReward | None:
        """Return the formula, or None if too few rows are exact."""
        use = self.learn & ~self.rows.terminated
        matrix = np.stack([term.values for term in self.terms], axis=1)
        rewards = self.rows.rewards
        if use.sum() < 3 * min(len(self.terms), MAX_TERMS):
            return None
        some = np.flatnonzero(use)
        some = some[:: 1 + len(some) // MAX_ROWS]
        rest = rewards - matrix @ solve(matrix[some], rewards[some])
        exact = use & (np.abs(rest) < CLOSE * (1 + np.abs(rewards)))
        chosen = _chosen(matrix[exact], rewards[exact])
        if chosen is None:
            return None
        weights = np.linalg.lstsq(matrix[exact][:, chosen], rewards[exact], rcond=1e-10)[0]
        weights = np.array([rounded(weight, 7) for weight in weights])
        rest = rewards - matrix[:, chosen] @ weights
        return self._counted([self.terms[n] for n in chosen], weights.tolist(), rest)

    def _counted(
        self, terms: list[KnownQuantity], weights: list[float], rest: Array
    ) -> RandomReward | None:
        """Explain the residuals as multiples of one number, and a reward for the end."""
        rows, size = self.rows, CLOSE * (1 + np.abs(self.rows.rewards))
        rest = np.where(np.abs(rest) < size, 0.0, rest)
        going = self.learn & ~rows.terminated
        step = _spacing(rest[going])
        if step and np.ptp(rest[going]) > MAX_COUNT * step:
            step = 0.0
        multiples = np.rint(rest[going] / step) if step else np.zeros(1)
        end = _final(rest[rows.terminated & self.learn], step, multiples)
        if end:
            terms = [*terms, KnownQuantity("terminated", rows.terminated.astype(float))]
            weights = [*weights, end]
            rest = rest - end * rows.terminated
        extra = np.rint(rest / step) if step else np.zeros(len(rest))
        exact = np.abs(rest - extra * (step or 0.0)) < 4 * size
        if step:
            sign, counted = _oriented(step, extra, exact, self._modes)
            ends = [term for term in terms if term.text == "terminated"]
            again = self._again(distinct([*self.terms, *ends]), sign * counted, exact)
            if again is not None:
                step, extra, (terms, weights) = sign, counted, again
        kept = [n for n, weight in enumerate(weights) if abs(weight) > 1e-7]
        _, counts = np.unique(extra[self.learn & exact], return_counts=True)
        bits = TERM_BITS * len(kept) + ODD_BITS * float((~exact & self.learn).sum())
        bits -= float((counts * np.log2(counts / counts.sum())).sum())
        used = tuple(terms[n] for n in kept)
        kept_weights = tuple(weights[n] for n in kept)
        return RandomReward(used, kept_weights, step or 0.0, extra, exact, bits)

    @cached_property
    def _modes(self) -> Array:
        """The number of the action and flags of every row."""
        rows = self.rows
        flags = [part for part in rows.now if set(np.unique(part.values)) <= {0.0, 1.0}]
        few = [part for part in rows.actions if len(np.unique(part.values)) <= MAX_CLASSES]
        table = np.stack([part.values for part in [*few, *flags]] or [np.zeros(len(rows))], axis=1)
        numbers: Array = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        return numbers

    def _again(
        self, terms: list[KnownQuantity], counted: Array, exact: Array
    ) -> tuple[list[KnownQuantity], list[float]] | None:
        """Fit the formula to what the counts leave of the rewards."""
        rows = exact & self.learn
        matrix = np.stack([term.values for term in terms], axis=1)[rows]
        target = (self.rows.rewards - counted)[rows]
        chosen = _chosen(matrix, target)
        if chosen is None:
            return None
        weights = np.linalg.lstsq(matrix[:, chosen], target, rcond=1e-10)[0]
        return [terms[n] for n in chosen], [rounded(weight, 7) for weight in weights]


def _oriented(step: float, extra: Array, exact: Array, modes: Array) -> tuple[float, Array]:
    """Return counts that begin at 0; counts of both signs become gains in every mode."""
    least, most = extra[exact].min(initial=0), extra[exact].max(initial=0)
    if least >= 0:
        return step, extra
    if most <= 0:
        return -step, -extra
    gains = extra if step > 0 else -extra
    counted = gains.copy()
    for mode in np.unique(modes):
        rows = exact & (modes == mode)
        counted[modes == mode] -= gains[rows].min(initial=0)
    return abs(step), counted


def _least_absolute(matrix: Array, target: Array) -> Array:
    """Return weights with the least sum of absolute errors, by linear programming."""
    count, width = matrix.shape
    scale = np.abs(matrix).max(axis=0) + 1e-12
    errors = sparse.eye_array(count, format="csr")
    equations = sparse.hstack([sparse.csr_array(matrix / scale), errors, -errors], format="csr")
    found = linprog(
        np.concatenate([np.zeros(width), np.ones(2 * count)]),
        A_eq=equations,
        b_eq=target,
        bounds=[(None, None)] * width + [(0, None)] * (2 * count),
        method="highs",
    )
    if found.x is None:
        return np.zeros(width)
    solved: Array = found.x[:width] / scale
    return solved


def _consensus(matrix: Array, target: Array) -> Array:
    """Return the weights that are exact in most rows, of many solved from few rows each.

    This is random sample consensus (Fischler and Bolles, 1981). It finds the formula even if most
    rows have a hidden count, as long as one count is common.
    """
    count, width = matrix.shape
    rng = np.random.default_rng(0)
    rows = rng.integers(count, size=(TRIALS, width))
    with np.errstate(all="ignore"):
        parts = matrix[rows]
        usable = np.abs(np.linalg.det(parts)) > 1e-6
        weights = np.linalg.solve(parts[usable], target[rows[usable]][..., None])[..., 0]
    if not len(weights):
        return np.zeros(width)
    close = CLOSE * (1 + np.abs(target))
    exact = (np.abs(weights @ matrix.T - target) < close).sum(axis=1)
    best: Array = weights[int(exact.argmax())]
    return best


def _chosen(matrix: Array, target: Array) -> list[int] | None:
    """Return few columns that give the target exactly, by matching pursuit."""
    norms = np.linalg.norm(matrix, axis=0)
    if not len(target):
        return None
    chosen: list[int] = []
    size, left = 10 * CLOSE * (1 + np.abs(target)), target
    while (np.abs(left) > size).any():
        gain = np.abs(left @ matrix) / np.maximum(norms, 1e-9) * (norms > 0)
        gain[chosen] = 0
        if len(chosen) >= MAX_TERMS or not gain.any():
            return None
        chosen.append(int(gain.argmax()))
        left = _rest(matrix[:, chosen], target)
    for column in list(chosen):
        fewer = [other for other in chosen if other != column]
        if (np.abs(_rest(matrix[:, fewer], target)) <= size).all():
            chosen = fewer
    return chosen


def _rest(matrix: Array, target: Array) -> Array:
    if not matrix.shape[1]:
        return target
    rest: Array = target - matrix @ np.linalg.lstsq(matrix, target, rcond=1e-10)[0]
    return rest


def _spacing(rest: Array) -> float:
    """Return the largest number that divides most residuals, or 0."""
    levels, counts = np.unique(np.abs(rest[np.abs(rest) > 1e-6]).round(6), return_counts=True)
    if not len(levels):
        return 0.0
    common = levels[np.argsort(-counts, kind="stable")[:40]]
    gaps = np.abs(common[:, None] - common).ravel()
    tried = np.unique(np.concatenate([gaps[gaps > 1e-4], common]).round(5))[::-1]
    for gap in tried[: 40 * 40].tolist():
        multiple = levels / gap
        good = np.abs(multiple - np.rint(multiple)) < 2e-4 * np.maximum(multiple, 1)
        if counts[good].sum() > LEAST_MULTIPLES * counts.sum():
            return rounded(gap, 6)
    return 0.0


def _final(rest: Array, step: float, multiples: Array) -> float:
    """Return the roundest number that explains the rewards at the end, up to usual multiples."""
    if not len(rest) or (rest == 0).mean() > 0.5:
        return 0.0
    middle = float(np.median(rest))
    if not step:
        return rounded(middle, 6)
    found = []
    for count in range(int(multiples.min()) - 3, int(multiples.max()) + 4):
        end = rounded(middle - count * step, 6)
        multiple = (rest - end) / step
        good = np.abs(multiple - np.rint(multiple)) < 1e-3
        good &= (multiple > multiples.min() - 3.5) & (multiple < multiples.max() + 3.5)
        if good.mean() > 0.6:
            found.append((len(literal(abs(end)).strip("0.")), abs(count), end))
    return min(found, default=(0, 0, 0.0))[2]
