"""The fit of the constants of a program to recorded rows.

Nonlinear least squares moves the constants that change predictions smoothly. A search over
candidate values finds thresholds and other constants without a slope. Each step evaluates a batch
of variants of the program in the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import TOLERANCE, match
from cwm_cli.worlds.contract import component_names
from cwm_induction.refining.constants import (
    Choice,
    ConstantKind,
    find_choices,
    find_constants,
    replace_spans,
    simplest,
)
from cwm_induction.refining.variants import predict_variants

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

MAX_STEPS = 1_500_000
"""Most program steps of a fit; the limit is no time, because that depends on the machine."""

MAX_ROWS = 4000
"""Most rows of a fit; of more rows, a random sample is used."""

SAMPLE, QUICK_SAMPLE = 240, 60
"""Numbers of rows for derivatives, and for the comparison of choices."""

NUDGE = 1e-4
"""Step of a finite difference: large enough for programs that compute in float32."""

DAMPINGS = 10.0 ** -np.arange(1, 15, 2)
"""Damping factors of a least-squares step, relative to the largest squared singular value."""

MAX_MOVE = 1.6
"""Largest step of a constant: a factor of five."""

PRIOR = 0.25
"""Standard deviation of the prior of a step."""

FAILED = 1e9
"""Error of a failed row, in tolerances; errors are clipped to it."""

FINE = 0.05
"""Error in tolerances that does not matter."""

SIGMA = 1.4826
"""Standard deviation of normal errors, divided by the median of their absolute values."""

EFFECT = 1e-3
"""Least change of a prediction, in tolerances, if a constant with an effect on it doubles."""

WIDE_STEPS = np.linspace(-0.7, 0.7, 29)
"""Candidate steps of a threshold, from its value on."""

NEAR_STEPS = np.multiply.outer(10.0 ** np.array([-1.3, -2.3, -3.3]), np.linspace(-1, 1, 10)).ravel()
"""Candidate steps of a threshold that a search has improved before."""

MAX_COMBINATIONS = 24
"""Most combinations of choices that are compared; of more, choices are compared one by one."""


class Correction(NamedTuple):
    """The text of a constant or choice before and after a fit."""

    name: str
    before: str
    after: str


class LimitReached(Exception):
    """The limit of steps or seconds is reached."""


@dataclass
class FitLimits:
    """The limits of a fit in seconds and program steps."""

    seconds: float
    steps: int
    used: int = 0
    _start: float = field(default_factory=time.monotonic)

    def extend(self) -> None:
        """Allow 20 % more, for the rounding of the result."""
        self.seconds, self.steps = 1.2 * self.seconds + 2, self.steps + self.steps // 5

    def spend(self, steps: int) -> None:
        """Count steps before they are done; raise `LimitReached` if a limit is reached."""
        if self.used >= self.steps:
            raise LimitReached(f"{self.steps:,} steps")
        if time.monotonic() - self._start > self.seconds:
            raise LimitReached(f"{self.seconds:g} s")
        self.used += steps


class VariantEvaluation(NamedTuple):
    """Errors in tolerances, (variants, rows, components), and losses, (variants, rows)."""

    errors: np.ndarray
    losses: np.ndarray


class ConstantFit:
    """A program, the steps of its constants from their written values, and the errors in all rows.

    A step is the logarithm of the ratio of a value to the written value. If the written value is
    0, it is the value itself.
    """

    def __init__(
        self,
        program: str,
        rows: Dataset,
        sandbox: Sandbox,
        weights: np.ndarray | None,
        limits: FitLimits,
        seed: int,
    ) -> None:
        self.rng = np.random.default_rng([seed, len(rows)])
        kept = np.sort(self.rng.permutation(len(rows))[:MAX_ROWS])
        self.rows = rows[kept]
        self.every = np.arange(len(kept))
        self.limits = limits
        self.chosen: list[Correction] = []
        self.searched: set[int] = set()
        """Constants that the search over candidate values has set."""
        self._weights = np.ones(len(kept)) if weights is None else weights[kept]
        self._sandbox, self._seed = sandbox, seed
        self._use(program)
        self.written = np.array([each.value for each in self.constants])
        self.steps = np.zeros(len(self.constants))
        size = int(np.clip(3 * len(self.constants), 100, SAMPLE))
        self.sample = np.sort(self.rng.permutation(len(kept))[:size])

    def _use(self, program: str) -> None:
        self.program = program
        self.constants, self.choices = find_constants(program), find_choices(program)

    @property
    def components(self) -> list[str]:
        """The names of the predicted real numbers: of the observation, and the reward."""
        space = self.rows.observation_space
        leaves = [leaf.space for leaf in space.leaves("observation")]
        is_real = [leaf.is_float for leaf in leaves for _ in range(leaf.size)]
        names = component_names(space, "observation")
        return [*(name for name, real in zip(names, is_real, strict=True) if real), "reward"]

    @property
    def is_noisy(self) -> bool:
        """Whether more than 95 % of the rows are wrong; right rows are then due to chance."""
        return bool(self.wrong.mean() > 0.95)

    def values(self, steps: np.ndarray) -> np.ndarray:
        """Return the values of the constants; twelve digits, so that thresholds are exact."""
        with np.errstate(over="ignore"):
            moved = np.where(self.written == 0, steps, self.written * np.exp(steps))
        short = [float(f"{value:.12g}") for value in moved]
        values: np.ndarray = np.where(steps == 0, self.written, short)
        return values

    def step_to(self, n: int, value: float) -> float:
        """Return the step of a constant to a value."""
        return float(np.log(value / self.written[n])) if self.written[n] else value

    def text(self, steps: np.ndarray, digits: int = 17) -> str:
        """Return the program with other values; unchanged values keep their text."""
        triples = zip(self.constants, self.values(steps), steps, strict=True)
        changed = [(each.span, each.text(value, digits)) for each, value, step in triples if step]
        return replace_spans(self.program, changed)

    def evaluate(self, variants: Sequence[np.ndarray], rows: np.ndarray) -> VariantEvaluation:
        """Evaluate variants of the program with other steps."""
        self.limits.spend(len(variants) * len(rows))
        chosen, count = self.rows[rows], len(rows)
        texts = [self.text(each) for each in variants]
        continues = ~chosen.columns["terminations"][:, None]
        errors, losses = [], []
        for columns, failed in predict_variants(self._sandbox, texts, chosen, seed=self._seed):
            parts = []
            for name, space in chosen.observation_space.leaves("next_observations"):
                if space.is_float:
                    target = chosen.columns[name].reshape(count, -1)
                    error = columns[name].reshape(count, -1) - target
                    parts.append(error * continues / tolerances(target))
            target = chosen.columns["rewards"][:, None]
            parts.append((columns["rewards"][:, None] - target) / tolerances(target))
            error = np.concatenate(parts, axis=1)
            error[failed | ~np.isfinite(error).all(axis=1)] = FAILED
            errors.append(np.clip(error, -FAILED, FAILED))
            loss = match(columns, chosen).losses(chosen.columns["terminations"])
            losses.append(np.where(failed, 1.0, loss))
        return VariantEvaluation(np.array(errors), np.array(losses))

    def begin(self) -> bool:
        """Evaluate the program; return False if all rows are right or all fail."""
        self.use(self.steps)
        self.wrong_before = self.wrong
        return bool(self.wrong.any() and (np.abs(self.errors).max(axis=1) < FAILED).any())

    def use(self, steps: np.ndarray, found: VariantEvaluation | None = None) -> None:
        """Set the current steps, and evaluate them on all rows."""
        found = found or self.evaluate([steps], self.every)
        self.steps, self.errors, self.losses = steps, found.errors[0], found.losses[0]
        self.wrong = self.losses > 0
        self.score = self._score(found)

    def _score(self, found: VariantEvaluation) -> tuple[float, float]:
        """Return the loss and the size of the errors; lower is better.

        If more than 95 % of the rows are wrong, only the size counts: with noise, the other rows
        are right by chance.
        """
        losses = found.losses[0]
        loss = round(float(losses @ self._weights / self._weights.sum()), 9)
        return 1.0 if (losses > 0).mean() > 0.95 else loss, error_size(found.errors[0])

    def accept(
        self, steps: np.ndarray, *, or_equal: bool = False, growth: float | None = None
    ) -> bool:
        """Use other steps if their score is better.

        Args:
            steps: The steps, (constants,).
            or_equal: Whether an equal loss is enough.
            growth: Largest growth of the robust sum of squared errors, in units of their variance.
        """
        found = self.evaluate([steps], self.every)
        score = self._score(found)
        if score[0] > self.score[0] if or_equal else score >= self.score:
            return False
        if growth is not None:
            scale = np.maximum(SIGMA * np.median(np.abs(self.errors), axis=0), FINE)
            if robust_sum(found.errors[0], scale) > robust_sum(self.errors, scale) + growth:
                return False
        self.use(steps, found)
        return True

    # least squares

    def slopes(
        self, steps: np.ndarray, free: np.ndarray, rows: np.ndarray, base: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the derivatives of errors by the steps of constants: (rows, components, free).

        They are one-sided if the errors of the steps are given as `base`, which halves the work.
        """

        def nudged(size: float) -> np.ndarray:
            return self.evaluate([put(steps, n, steps[n] + size) for n in free], rows).errors

        size = NUDGE if base is not None else 2 * NUDGE
        before = nudged(-NUDGE) if base is None else base
        after = nudged(NUDGE)
        slopes = (after - before) / size
        slopes[(np.abs(after) >= FAILED) | (np.abs(before) >= FAILED)] = 0.0
        return np.moveaxis(slopes, 0, -1)

    def descend(
        self,
        steps: np.ndarray,
        free: np.ndarray,
        rows: np.ndarray,
        turns: int = 20,
        shares: Sequence[float] = (0.9, 0.75, 0.6, 0.5),
    ) -> np.ndarray:
        """Return steps fitted to rows by damped, iteratively reweighted least squares.

        The scale of the Cauchy loss is a quantile of the errors of each component. It decreases
        from share to share, so that rows of another regime lose their weight. All dampings are
        evaluated in one batch. `scipy.optimize.least_squares`, which evaluates one point at a time,
        took 10 to 35 % more steps on classic environments and fitted a mechanism less well.
        """
        base, level = self.evaluate([steps], rows).errors[0], 0.0
        for _ in range(turns):
            share = shares[min(int(level), len(shares) - 1)]
            scale = np.maximum(np.quantile(np.abs(base), share, axis=0), FINE)
            if (np.abs(base) < FINE / 2).all():
                break
            variants = self._damped_steps(steps, free, rows, base, scale)
            if not variants:
                break
            errors = self.evaluate(variants, rows).errors
            costs = [
                robust_sum(each, scale) + (variant**2).sum() / PRIOR**2
                for each, variant in zip((base, *errors), (steps, *variants), strict=True)
            ]
            best = int(np.argmin(costs))
            if best:
                steps, base = variants[best - 1], errors[best - 1]
            has_gained = costs[best] < costs[0] * (1 - 1e-3)
            level += 0.5 if has_gained else 1
            if level >= len(shares) and not has_gained:
                break
        return steps

    def _damped_steps(
        self,
        steps: np.ndarray,
        free: np.ndarray,
        rows: np.ndarray,
        base: np.ndarray,
        scale: np.ndarray,
    ) -> list[np.ndarray]:
        """Return the steps after a least-squares step, for each damping factor."""
        from scipy.linalg import svd

        weights = 1 / np.sqrt(1 + (base / scale) ** 2) / scale
        slopes = self.slopes(steps, free, rows, base)
        live = (np.abs(slopes) > EFFECT).any(axis=(0, 1))
        if not live.any():
            return []
        jacobian = (slopes[:, :, live] * weights[:, :, None]).reshape(-1, live.sum())
        u, sizes, v = svd(jacobian, full_matrices=False)
        target = sizes * (u.T @ (base * weights).ravel())
        target += v @ steps[free[live]] / PRIOR**2
        damped = sizes**2 + PRIOR**-2 + DAMPINGS[:, None] * sizes[0] ** 2
        found = []
        for each in damped:
            step = -v.T @ (target / each)
            step /= max(np.abs(step).max() / (MAX_MOVE / 4), 1.0)
            moved = steps.copy()
            moved[free[live]] = np.clip(moved[free[live]] + step, -MAX_MOVE, MAX_MOVE)
            found.append(moved)
        return found

    # stages of a fit

    def choose(self, kinds: Sequence[ConstantKind]) -> None:
        """Fit the program with each combination of its choices, and use the best one."""
        free = self.free(kinds)
        choices = [*self.choices, *self._integers(free)]
        if not choices:
            return
        few = np.sort(self.rng.permutation(len(self.rows))[:QUICK_SAMPLE])
        program, constants = self.program, self.constants

        def texts(options: Sequence[int]) -> str:
            pairs = zip(choices, options, strict=True)
            return replace_spans(program, [(each.span, each.text(n)) for each, n in pairs])

        def fit(options: tuple[int, ...]) -> tuple[bool, float, tuple[int, ...], np.ndarray]:
            self._use(texts(options))
            steps = self.descend(self.steps, free, few, 6)
            found = self.evaluate([steps], few)
            self.program, self.constants = program, constants
            is_wrong = bool((found.losses[0] > 0).any())
            return is_wrong, error_size(found.errors[0], 1e-6), options, steps

        current = tuple(each.current for each in choices)
        tried = [fit(current)]
        for options in _combinations(choices, current):
            if not tried[-1][0]:
                break
            tried.append(fit(options))
        *_, best, steps = min(tried, key=lambda each: each[:2])
        for choice, n in zip(choices, best, strict=True):
            if n != choice.current:
                before, after = choice.options[choice.current], choice.options[n]
                self.chosen.append(Correction(choice.name, before, after))
        self._use(texts(best))
        self.written = np.array([each.value for each in self.constants])
        self.use(np.zeros(len(self.constants)))
        self.accept(steps)

    def _integers(self, free: np.ndarray) -> list[Choice]:
        """Return constants that have to be integers, such as the number of substeps."""
        if not len(free):
            return []
        nudged = [put(self.steps, n, NUDGE) for n in free]
        fails = (np.abs(self.evaluate(nudged, self.sample[:2]).errors) >= FAILED).all(axis=(1, 2))
        found = []
        for each in (self.constants[n] for n in free[fails]):
            if each.value == int(each.value) and 1 <= each.value <= 12:
                middle = int(each.value)
                options = range(max(1, middle - 2), middle + 3)
                texts, current = tuple(map(str, options)), options.index(middle)
                found.append(Choice(each.name, texts, each.span, current, is_list=False))
        return found

    def free(self, kinds: Sequence[ConstantKind]) -> np.ndarray:
        """Return the indices of the constants of some kinds."""
        return np.array([n for n, each in enumerate(self.constants) if each.kind in kinds], int)

    def fit_kinds(self, kinds: Sequence[ConstantKind], *, is_last: bool) -> None:
        """Fit the constants of some kinds: first on smooth rows, then on all, then thresholds.

        If most rows stay wrong and these are not the last kinds, leave the rest to the next call.
        """
        free = self.free(kinds)
        if not len(free):
            return
        slopes = self.slopes(self.steps, free, self.sample, self.errors[self.sample])
        # Wrong limits and contacts have no effect on rows with few acting constants.
        count = (np.abs(slopes) > EFFECT).any(axis=1).sum(axis=1)
        smooth = self.sample[count <= np.quantile(count, 0.4)]
        self.accept(self.descend(self.steps, free, smooth))
        self.accept(self.descend(self.steps, free, self.sample))
        if not is_last and np.median(np.abs(self.errors).max(axis=1)) > 1:
            return
        for _ in range(3):
            before = self.score
            if not self.wrong.any():
                return
            self._search(free)
            wrong = np.flatnonzero(self.wrong)
            wrong = wrong[self.rng.permutation(len(wrong))[: SAMPLE // 2]]
            self.accept(self.descend(self.steps, free, np.union1d(self.sample, wrong)))
            if self.score[0] >= before[0] and self.score[1] > before[1] - 0.05:
                return

    def _search(self, free: np.ndarray) -> None:
        """Search for thresholds and other constants without a slope."""
        wrong, right = np.flatnonzero(self.wrong), np.flatnonzero(~self.wrong)
        slopes = np.abs(self.slopes(self.steps, free, self.sample, self.errors[self.sample]))
        if not self.is_noisy:
            slopes[self.wrong[self.sample]] = 0.0
        idle = free[(slopes > EFFECT).any(axis=1).mean(axis=0) < 0.1]
        if not len(idle):
            return
        some = np.union1d(
            wrong[self.rng.permutation(len(wrong))[: SAMPLE // 2]],
            right[self.rng.permutation(len(right))[: SAMPLE // 2]],
        )
        tried = [(int(n), step) for n in idle for step in self._candidates(n, wrong)]
        found = self.evaluate([put(self.steps, n, step) for n, step in tried], some)
        current = self.losses[some] @ self._weights[some]
        losses = found.losses @ self._weights[some]
        for variant in np.argsort(losses, kind="stable")[:8]:
            if losses[variant] >= current - 1e-12:
                return
            n, step = tried[variant]
            if self.accept(put(self.steps, n, step)):
                self.searched.add(n)
                self.round_threshold(n)
                if not self.wrong.any():
                    return

    def _candidates(self, n: int, wrong: np.ndarray) -> Iterator[float]:
        """Yield candidate steps: around the current one, and to the commonest of the wrong rows.

        Clamped components contain the value of the clamp.
        """
        yield from self.steps[n] + WIDE_STEPS
        if n in self.searched:
            yield from self.steps[n] + NEAR_STEPS
        value = self.values(self.steps)[n]
        if value == 0:
            return
        columns = self.rows[wrong].select("observations", "next_observations", "actions", "rewards")
        numbers = [
            each.astype(float).ravel() for each in columns.values() if each.dtype.kind in "fiu"
        ]
        recorded = np.copysign(np.concatenate(numbers), value)
        recorded = recorded[(recorded / value > 0.4) & (recorded / value < 2.5)]
        values, counts = np.unique(np.round(recorded, 9), return_counts=True)
        for each in values[np.argsort(-counts, kind="stable")][:12]:
            yield self.step_to(n, each)

    def round_threshold(self, n: int) -> None:
        """Use the simplest value of a threshold that changes no loss."""
        ends = []
        for distance in WIDE_STEPS[[0, -1]]:
            near, far = self.steps[n], self.steps[n] + distance
            [losses] = self.evaluate([put(self.steps, n, far)], self.every).losses
            rows = np.flatnonzero(losses != self.losses)
            while len(rows) and abs(far - near) > 1e-7:
                between = np.linspace(near, far, 10)
                found = self.evaluate([put(self.steps, n, each) for each in between[1:-1]], rows)
                same = (found.losses == self.losses[rows]).all(axis=1)
                reached = int(np.argmin([*same, False]))
                near, far = between[reached], between[reached + 1]
            ends.append(self.values(put(self.steps, n, near if len(rows) else far))[n])
        low, high = min(ends), max(ends)
        if low < high:
            step = self.step_to(n, simplest(low, high, self.written[n]))
            self.accept(put(self.steps, n, step), or_equal=True)


def _combinations(choices: Sequence[Choice], current: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield all combinations of options, or those with one other option if there are too many."""
    ranges = [range(len(each.options)) for each in choices]
    every = list(islice(product(*ranges), MAX_COMBINATIONS + 1))
    if len(every) > MAX_COMBINATIONS:
        every = [
            (*current[:place], n, *current[place + 1 :])
            for place, options in enumerate(ranges)
            for n in options
        ]
    yield from (each for each in every if each != current)


def put(steps: np.ndarray, n: int, step: float) -> np.ndarray:
    """Return steps with one replaced."""
    changed = steps.copy()
    changed[n] = step
    return changed


def tolerances(values: np.ndarray) -> np.ndarray:
    """Return the largest error of a correct prediction of each value."""
    allowed: np.ndarray = TOLERANCE + TOLERANCE * np.abs(values)
    return allowed


def robust_sum(errors: np.ndarray, scale: np.ndarray) -> float:
    """Return the Cauchy loss, which limits the weight of outliers."""
    return float(np.log1p((errors / scale) ** 2).sum())


def error_size(errors: np.ndarray, least: float = FINE) -> float:
    """Return the mean decimal logarithm of errors, none smaller than `least`."""
    return float(np.log10(np.maximum(np.abs(errors), least)).mean())


def residual_of(column: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of a column that other columns do not span, and their weights."""
    if not others.shape[1]:
        return column, np.zeros(0)
    weights = np.linalg.lstsq(others, column, rcond=1e-10)[0]
    return column - others @ weights, weights
