"""The numbers of a program, moved until it predicts recorded rows.

It goes in stages. Rows on which few numbers act come first, as there a wrong limit or contact
cannot lead astray; then all rows; then numbers that nothing moves smoothly, thresholds above all,
are searched for among the rows that are still wrong. Every step is a batch of versions of the
program that the sandbox answers in one process; what was recorded to follow stays outside.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, product
from math import ceil, exp, floor, log10, pi
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import TOLERANCE, match
from cwm_cli.worlds.contract import component_names
from cwm_induction.refining.lifting import (
    MOST_DENOMINATOR,
    Choice,
    NumberKind,
    choices,
    lift,
    written,
)
from cwm_induction.refining.versions import ask_versions

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox

MOST_STEPS = 1_500_000
"""Steps of the program that a fit takes: what decides, as seconds depend on the machine."""

MOST_ROWS = 4000
"""Rows that a fit looks at; of more so many are drawn."""

LEAST_SAMPLE, SAMPLE, QUICK = 100, 240, 60
"""Rows that derivatives are taken on, three for each number within these bounds, and those on
which ways are tried."""

NUDGE = 1e-4
"""Relative step of a derivative: coarse, so that programs that compute in float32 have one."""

WIDEST = 1.6
"""How far a number may move, as a logarithm: to a fifth or to five times of what it was."""

USUALLY_OFF = 0.25
"""How far off numbers are before they are fitted, as a logarithm: what errors do not tell keeps
them near what was written, which fades as errors become small."""

DAMPINGS = 10.0 ** -np.arange(1, 15, 2)
"""Shares of the largest squared singular value that damp a step, all tried in one batch."""

BETTER = 0.01
"""By how much the mean logarithm of errors has to fall for another round, if no row is gained."""

NOWHERE = 1e9
"""Tolerances by which a row counts as wrong where a version has no answer."""

FINE = 0.05
"""Share of the tolerance that may be given up for a simpler number, and below which all is well."""

SIGMA = 1.4826
"""The standard deviation of normal errors over the median of their absolute values."""

NEARLY_ALL = 0.95
"""Share of wrong rows above which versions are ordered by their errors alone."""

LEAST = 1e-6
"""Tolerances below which errors are noise; ways that do nearly the same differ by more."""

ACTS = 1e-3
"""Tolerances by which a number has to move an answer, when it doubles, to act on a row."""

FACTORS = np.exp(np.linspace(-0.7, 0.7, 29))
"""Where a threshold is looked for, times what it was."""

SHARP = 1e-7
"""Relative width to which the ends of a gap are known, in which a threshold may lie."""

FINER = 10.0 ** np.array([[-1.3], [-2.3], [-3.3]]) * np.linspace(-1, 1, 10)
"""Where it is looked for next: between the places that were tried first, ever closer."""

MOST_SEEN = 12
"""Values of the wrong rows that are tried as a threshold as well: clamped values show the clamp."""

MOST_CHECKED = 8
"""Values that did well on some rows and are tried on all of them, the best first."""

MANY_DIGITS = 6
"""A decimal with more digits gives way to a simple fraction."""

ELASTIC = 0.05
"""A number acts on a ratio if d(log ratio) / d(log number) is above this."""

ROUGH = 0.02
"""Relative error of a one-sided slope of float32 answers."""

MOST_WAYS = 24
"""Combinations of choices that are tried; of more each choice is tried on its own."""

BETTER = 0.05
"""By how much less, as a mean decimal logarithm, errors have to be for another beginning to go on:
a tenth."""

MOST_OFF_LINE = 0.1
"""Largest share of clipped or wrapped rows of a component that advances with another one."""

CLEAR = 100.0
"""Least advance of a component in the median row, in tolerances: then the ratio is clear."""

EPSILON = 2e-7
"""Relative error of a ratio of numbers that were stored as float32."""

CLOSE = 1e-5
"""Relative difference of the recorded time step and the fitted one that still counts as exact."""

UNIT = 0.3
"""Logarithm of the factor that tests whether numbers compensate each other."""

STARTS, SPREAD = 24, 0.2
"""Other beginnings, and how far away they are, where the first leads nowhere."""


class Correction(NamedTuple):
    """A number or a way of a program, before and after."""

    name: str
    before: str
    after: str


class Advance(NamedTuple):
    """A component that advances by another one times a constant, which is a time step.

    `late` is true if the other component is the one after the step (semi-implicit Euler), false
    if it is the one before (explicit Euler). `error` is the standard error of the `step`.
    """

    component: int
    other: int
    late: bool
    step: float
    error: float


class OutOfWork(Exception):
    """The work or the time that a fit may take is used up."""


@dataclass
class Work:
    """What a fit may still do."""

    seconds: float
    steps: int
    began: float = field(default_factory=time.monotonic)
    done: int = 0

    def extend(self) -> None:
        """Allow a fifth more, so that what was reached can be written simply."""
        self.seconds, self.steps = 1.2 * self.seconds + 2, self.steps + self.steps // 5

    def spend(self, steps: int) -> None:
        """Count steps before they are taken; `OutOfWork` when that is enough."""
        if self.done >= self.steps:
            raise OutOfWork(f"{self.steps:,} steps")
        if time.monotonic() - self.began > self.seconds:
            raise OutOfWork(f"{self.seconds:g} s")
        self.done += steps


class _Found(NamedTuple):
    """What versions say: errors in tolerances (versions, rows, components), and each row's loss."""

    errors: np.ndarray
    losses: np.ndarray


class _Way(NamedTuple):
    """A combination of choices: how large errors stay, in how many rows, and what fits best."""

    size: float
    wrong: int
    numbers: tuple[int, ...]
    values: np.ndarray


class Fitting:
    """A program, its numbers as they stand, and how the rows like them."""

    def __init__(
        self,
        program: str,
        rows: Dataset,
        sandbox: Sandbox,
        weights: np.ndarray | None,
        work: Work,
        seed: int,
    ) -> None:
        self._rng = np.random.default_rng([seed, len(rows)])
        kept = np.sort(self._rng.permutation(len(rows))[:MOST_ROWS])
        self.rows = rows[kept]
        self._weights = np.ones(len(kept)) if weights is None else weights[kept]
        self._sandbox, self.work, self._seed = sandbox, work, seed
        self.taken: list[Correction] = []
        self.searched: set[int] = set()
        self.fixed: set[int] = set()
        """Time steps that the rows determine exactly."""
        self.redundant: set[int] = set()
        """Numbers that others make up for exactly, which keep their written values."""
        self._use(program)
        self.first = self.values = np.array([each.value for each in self.numbers])
        size = min(SAMPLE, max(LEAST_SAMPLE, 3 * len(self.numbers)))
        self.sample = np.sort(self._rng.permutation(len(kept))[:size])

    @property
    def components(self) -> list[str]:
        """The names of the numbers that are predicted: those of the observation, the reward."""
        space = self.rows.observation_space
        leaves = [leaf.space for leaf in space.leaves("observation")]
        real = [leaf.is_float for leaf in leaves for _ in range(leaf.size)]
        names = zip(component_names(space, "observation"), real, strict=True)
        return [*(name for name, is_real in names if is_real), "reward"]

    def _use(self, program: str) -> None:
        """Go on with a program that differs by ways that are taken; its numbers are the same."""
        self.program = program
        self.numbers, self.choices = lift(program), choices(program)

    def text(self, values: np.ndarray, digits: int = 17) -> str:
        """Write a version; what is as it was stays as it was written."""
        pairs = zip(self.numbers, values, self.first, strict=True)
        return written(
            self.program,
            [(each.place, each.text(value, digits)) for each, value, was in pairs if value != was],
        )

    @property
    def is_noisy(self) -> bool:
        """Whether more than 95 % of the rows are wrong, so that the right ones are chance."""
        return bool(self.wrong.mean() > NEARLY_ALL)

    # what is asked

    def ask(self, versions: Sequence[np.ndarray], rows: np.ndarray) -> _Found:
        """Ask for rows by versions of the program with other numbers."""
        self.work.spend(len(versions) * len(rows))
        chosen = self.rows[rows]
        answers = ask_versions(
            self._sandbox, [self.text(each) for each in versions], chosen, seed=self._seed
        )
        goes_on = ~chosen.columns["terminations"]
        errors, losses = [], []
        for columns, failed in answers:
            parts = [
                (
                    (columns[name] - chosen.columns[name]).reshape(len(rows), -1),
                    chosen.columns[name],
                )
                for name, space in chosen.observation_space.leaves("next_observations")
                if space.is_float
            ]
            parts = [(error * goes_on[:, None], target) for error, target in parts]
            rewards = chosen.columns["rewards"]
            parts.append(((columns["rewards"] - rewards)[:, None], rewards))
            sizes = [
                error / (TOLERANCE + TOLERANCE * np.abs(target.reshape(len(rows), -1)))
                for error, target in parts
            ]
            size = np.concatenate(sizes, axis=1)
            size[failed | ~np.isfinite(size).all(axis=1)] = NOWHERE
            errors.append(np.clip(size, -NOWHERE, NOWHERE))
            lost = match(columns, chosen).losses(chosen.columns["terminations"])
            losses.append(np.where(failed, 1.0, lost))
        return _Found(np.array(errors), np.array(losses))

    def begin(self) -> bool:
        """See how right the program is as it stands; False where that is all or nothing."""
        found = self.ask([self.values], self.every)
        self.note(self.values, found)
        self.wrong_before = self.wrong
        answered = np.abs(found.errors[0]).max(axis=1) < NOWHERE
        return bool(self.wrong.any() and answered.any())

    @property
    def every(self) -> np.ndarray:
        """All rows, by number."""
        return np.arange(len(self.rows))

    def note(self, values: np.ndarray, found: _Found) -> None:
        """Take values as they stand, with what was found for all rows."""
        self.values, self.errors = values, found.errors[0]
        self.losses = found.losses[0]
        self.wrong = self.losses > 0
        self.standing = self.stands(found)

    def stands(self, found: _Found, version: int = 0) -> tuple[float, float]:
        """Return the sort key of a version on all rows: its loss, then the size of its errors.

        If more than 95 % of the rows are wrong, only the size counts: with noise, the other rows
        are right by chance.
        """
        losses = found.losses[version]
        loss = round(float(losses @ self._weights / self._weights.sum()), 9)
        if (losses > 0).mean() > NEARLY_ALL:
            loss = 1.0
        return loss, _size(found.errors[version])

    def accept(
        self, values: np.ndarray, *, at_least: bool = False, growth: float | None = None
    ) -> bool:
        """Take other values if the rows score better with them.

        With `at_least` an equal score is enough. `growth` limits by how much the robust sum of
        squared errors may grow meanwhile, in units of their variance.
        """
        found = self.ask([values], self.every)
        stands = self.stands(found)
        if stands[0] > self.standing[0] if at_least else stands >= self.standing:
            return False
        if growth is not None:
            near = np.maximum(SIGMA * np.median(np.abs(self.errors), axis=0), FINE)
            if _cost(found.errors[0], near) > _cost(self.errors, near) + growth:
                return False
        self.note(values, found)
        return True

    # the stages

    def fix_time_step(self, kinds: Sequence[NumberKind]) -> None:
        """Fit a time step alone if a component advances by another one times a constant.

        The program has to advance the same component by the same other one, and exactly one of its
        numbers may change that ratio. The number then keeps the value that the rows determine.
        """
        rows = self.sample[~self.rows.columns["terminations"][self.sample]]
        before, after = self._floats(rows)
        recorded = advances(before, after)
        free = self._free(kinds)
        if not recorded or not len(free):
            return

        def predicted(versions: Sequence[np.ndarray]) -> np.ndarray:
            errors = self.ask(versions, rows).errors[..., :-1]  # the last one is the reward
            values: np.ndarray = after + errors * _tolerances(after)
            return values

        own = advances(before, predicted([self.values])[0])
        pairs = [
            (line, mine)
            for line, mine in product(recorded, own)
            if line[:2] == mine[:2] and line.step * mine.step > 0
        ]
        if not pairs:
            return
        nudged = predicted([self._nudged(self.values, n) for n in free])
        for line, mine in pairs:
            moved = [_advance(before, one, *mine[:3]) for one in nudged]
            steps = [each.step for each in moved if each is not None]
            if len(steps) < len(free) or min(each * mine.step for each in steps) <= 0:
                continue
            powers = np.log(np.array(steps) / mine.step) / NUDGE
            acting = np.flatnonzero(np.abs(powers) > ELASTIC)
            if len(acting) != 1 or abs(round(float(powers[acting[0]]))) != 1:
                continue
            n, power = int(free[acting[0]]), round(float(powers[acting[0]]))
            value = self.first[n] * (line.step / mine.step) ** power
            reach = abs(value) * (2 * line.error / abs(line.step) + EPSILON)
            values = put(self.values, n, simplest(value - reach, value + reach, self.first[n]))
            found = _advance(before, predicted([values])[0], *mine[:3])
            if found is not None and abs(found.step / line.step - 1) < CLOSE:
                self.fixed.add(n)
                self.note(values, self.ask([values], self.every))

    def _floats(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the real numbers that are observed before and after rows: (rows, components)."""
        chosen = self.rows[rows]
        sides = [
            [
                chosen.columns[name].reshape(len(rows), -1).astype(float)
                for name, space in chosen.observation_space.leaves(side)
                if space.is_float
            ]
            for side in ("observations", "next_observations")
        ]
        empty = np.zeros((len(rows), 0))
        before, after = (np.concatenate([empty, *side], axis=1) for side in sides)
        return before, after

    def _independent(self, free: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Return the numbers that no product of others replaces: the Jacobian has full rank there.

        Of `force / mass` only the ratio shows. A column of the Jacobian that others span is tested
        by a long step along that direction: if no answer changes, the number keeps its written
        value. Numbers without a name, and numbers that are written as 1, are tested last: most of
        them belong to a formula, or are units.
        """
        columns = slopes.reshape(-1, len(free))
        kept: list[int] = []
        units = [
            (" in line " in self.numbers[n].name, self.first[n] == 1.0, place)
            for place, n in enumerate(free)
        ]
        for *_, n in sorted(units):
            column = columns[:, n]
            if np.abs(column).max(initial=0.0) <= ACTS:
                continue
            rest, shift = left_over(column, columns[:, kept])
            powers = np.round(2 * shift) / 2
            spanned = np.linalg.norm(rest) < ROUGH * np.linalg.norm(column)
            scales = self.first[free[n]] * self.values[free[n]] > 0  # a product has no zeros
            scales = scales and self.values[free[kept]][powers != 0].all()
            if spanned and scales and powers.any() and np.abs(powers - shift).max() < ROUGH:
                steps = np.array([UNIT, *(-UNIT * powers)])
                moved = _moved(self.values, free[[n, *kept]], steps)
                found = self.ask([moved], self.every)
                same = np.abs(found.errors[0] - self.errors).max() < FINE
                if same and (found.losses[0] == self.losses).all():
                    self.redundant.add(int(free[n]))
                    back = np.log(self.first[free[n]] / self.values[free[n]]) / UNIT
                    moved = _moved(self.values, free[[n, *kept]], steps * back)
                    self.note(moved, self.ask([moved], self.every))
                    continue
            kept.append(n)
        return np.array([n for n in free if n not in self.redundant], int)

    def _started(self) -> np.ndarray:
        """Return the written values, with the time steps that are fixed."""
        values = self.first.copy()
        fixed = sorted(self.fixed)
        values[fixed] = self.values[fixed]
        return values

    def choose(self, kinds: Sequence[NumberKind]) -> None:
        """Try the ways that a program may take, on a few rows; keep the best."""
        free = self._free(kinds)
        whole = self._stiff(free)
        ways = [*self.choices, *whole]
        if not ways:
            return
        few = np.sort(self._rng.permutation(len(self.rows))[:QUICK])

        def fitted(numbers: Sequence[int], start: np.ndarray, rows: np.ndarray) -> _Way:
            """Fit with other ways in force, and say how large the errors stay."""
            program, before = self.program, self.numbers
            texts = [(way.place, way.text(n)) for way, n in zip(ways, numbers, strict=True)]
            self._use(written(program, texts))
            values = self.descend(start, free, rows, 6)
            found = self.ask([values], rows)
            self._use(program)
            self.numbers = before
            size = _size(found.errors[0], LEAST)
            return _Way(size, int((found.losses[0] > 0).sum()), tuple(numbers), values)

        now = tuple(way.now for way in ways)
        tried = [fitted(now, self.values, few)]
        for numbers in _combinations(ways, now):
            if not tried[-1].wrong:
                break
            tried.append(fitted(numbers, self.values, few))
        best = sorted(tried, key=lambda each: (each.wrong > 0, each.size))[:3]
        if best[0].wrong:
            again = [fitted(each.numbers, each.values, self.sample) for each in best]
            best = sorted(again, key=lambda each: each.size)
        for way, n in zip(ways, best[0].numbers, strict=True):
            if n != way.now:
                self.taken.append(Correction(way.name, way.ways[way.now], way.ways[n]))
        if self.taken:
            texts = [(way.place, way.text(n)) for way, n in zip(ways, best[0].numbers, strict=True)]
            self._use(written(self.program, texts))
            self.first = np.array([each.value for each in self.numbers])
        started = self._started()
        self.note(started, self.ask([started], self.every))
        self.accept(best[0].values)

    def _free(self, kinds: Sequence[NumberKind]) -> np.ndarray:
        left_out = self.fixed | self.redundant
        chosen = [n for n, each in enumerate(self.numbers) if each.kind in kinds]
        return np.array([n for n in chosen if n not in left_out], int)

    def _stiff(self, free: np.ndarray) -> list[Choice]:
        """Find numbers that have to be whole, such as how often a step is repeated."""
        few = self.sample[:2]
        if not len(free):
            return []
        nudged = self.ask([self._nudged(self.values, n) for n in free], few).errors
        fails = (np.abs(nudged) >= NOWHERE).all(axis=(1, 2))
        found = []
        for each in (self.numbers[n] for n in free[fails]):
            if each.value == int(each.value) and 1 <= each.value <= 12:
                middle = int(each.value)
                ways = sorted({*range(max(1, middle - 2), middle + 3)})
                texts = tuple(map(str, ways))
                found.append(Choice(each.name, texts, each.place, ways.index(middle), False))
        return found

    def settle(self, kinds: Sequence[NumberKind], *, is_last: bool) -> None:
        """Fit the numbers of some kinds: smooth rows, all rows, what only decides, again.

        Where most rows stay wrong other numbers are off as well, if these are not the last.
        """
        free = self._free(kinds)
        if not len(free):
            return
        slopes = self.slopes(self.values, free, self.sample, self.errors[self.sample])
        every, free = free, self._independent(free, slopes)
        slopes = slopes[:, :, np.isin(every, free)]
        acting = (np.abs(slopes) > ACTS).any(axis=1)  # rows, numbers
        count = acting.sum(axis=1)
        smooth = self.sample[count <= np.quantile(count, 0.4)]
        self.accept(self.descend(self.values, free, smooth))
        self.accept(self.descend(self.values, free, self.sample))
        if np.median(np.abs(self.errors).max(axis=1)) > 1:
            if not is_last:
                return
            self._begin_anew(free, smooth)
        for _ in range(3):
            before = self.standing
            if not self.wrong.any():
                return
            self._search(free)
            wrong = np.flatnonzero(self.wrong)
            wrong = wrong[self._rng.permutation(len(wrong))[: SAMPLE // 2]]
            rows = np.union1d(self.sample, wrong)
            self.accept(self.descend(self.values, free, rows))
            if self.wrong.any():
                near = np.flatnonzero(np.abs(self.errors).max(axis=1) < 1e3)
                near = near[np.argsort(-np.abs(self.errors[near]).max(axis=1))][:SAMPLE]
                if len(near):
                    self.accept(self.descend(self.values, free, near, shares=(0.9,)))
            if self.standing[0] >= before[0] and self.standing[1] > before[1] - BETTER:
                return

    def _begin_anew(self, free: np.ndarray, rows: np.ndarray) -> None:
        """Fit from other beginnings, of which those that are promising go on."""
        few = rows[:QUICK]
        starts = []
        for _ in range(STARTS):
            moved = self._started()
            moved[free] *= np.exp(SPREAD * self._rng.standard_normal(len(free)))
            starts.append(moved)
        sizes = [_size(each) for each in self.ask(starts, few).errors]
        for place in np.argsort(sizes)[:3]:
            values = self.descend(starts[place], free, few, turns=8)
            if _size(self.ask([values], few).errors[0]) < _size(self.errors[few]) - BETTER:
                self.accept(self.descend(values, free, self.sample))

    def _nudged(self, values: np.ndarray, place: int, size: float = NUDGE) -> np.ndarray:
        return _moved(values, np.array([place]), np.array([size]))

    def slopes(
        self, values: np.ndarray, free: np.ndarray, rows: np.ndarray, base: np.ndarray | None = None
    ) -> np.ndarray:
        """Return how errors change with the logarithms of numbers: (rows, components, numbers).

        With the errors of `base` to begin from they are half as exact, for half the work.
        """
        moved = self.ask([self._nudged(values, place) for place in free], rows).errors
        size = NUDGE
        if base is None:
            base = self.ask([self._nudged(values, place, -NUDGE) for place in free], rows).errors
            size = 2 * NUDGE
        slopes = (moved - base) / size
        slopes[(np.abs(moved) >= NOWHERE) | (np.abs(base) >= NOWHERE)] = 0.0
        return np.moveaxis(slopes, 0, -1)

    def descend(
        self,
        values: np.ndarray,
        free: np.ndarray,
        rows: np.ndarray,
        turns: int = 20,
        shares: Sequence[float] = (0.9, 0.75, 0.6, 0.5),
    ) -> np.ndarray:
        """Fit numbers to rows by damped steps of reweighted least squares; return better values.

        What counts as near is a quantile of the errors of each component, which becomes less from
        turn to turn, so that rows of another regime lose their weight. `least_squares` of scipy
        would ask for one point at a time; here a batch of dampings costs as little.
        """
        from scipy.linalg import svd

        base = self.ask([values], rows).errors[0]
        level = 0.0
        for _ in range(turns):
            share = shares[min(int(level), len(shares) - 1)]
            near = np.maximum(np.quantile(np.abs(base), share, axis=0), FINE)
            if (np.abs(base) < FINE / 2).all():
                break
            weights = 1 / np.sqrt(1 + (base / near) ** 2) / near
            slopes = self.slopes(values, free, rows, base)
            live = (np.abs(slopes) > ACTS).any(axis=(0, 1))
            if not live.any():
                break
            slopes = slopes[:, :, live] * weights[:, :, None]
            u, sizes, v = svd(slopes.reshape(-1, live.sum()), full_matrices=False)
            target = sizes * (u.T @ (base * weights).ravel())
            target += v @ self._moves(values)[free[live]] / USUALLY_OFF**2
            damped = sizes**2 + USUALLY_OFF**-2 + DAMPINGS[:, None] * sizes[0] ** 2
            steps = [-v.T @ (target / each) for each in damped]
            room = WIDEST / 4
            steps = [step * min(1.0, room / max(np.abs(step).max(), 1e-300)) for step in steps]
            versions = [self._within(_moved(values, free[live], step)) for step in steps]
            errors = self.ask(versions, rows).errors
            costs = [
                _cost(each, near) + (self._moves(version) ** 2).sum() / USUALLY_OFF**2
                for each, version in zip((base, *errors), (values, *versions), strict=True)
            ]
            best = int(np.argmin(costs))
            if best:
                values, base = versions[best - 1], errors[best - 1]
            level += 0.5 if costs[best] < costs[0] * (1 - 1e-3) else 1
            if level >= len(shares) and costs[best] > costs[0] * (1 - 1e-3):
                break
        return values

    def _moves(self, values: np.ndarray) -> np.ndarray:
        """Return how far numbers are from what was written, as logarithms."""
        return np.array(
            [
                now - was if was == 0 else np.log(now / was)
                for now, was in zip(values, self.first, strict=True)
            ]
        )

    def _within(self, values: np.ndarray) -> np.ndarray:
        """Keep numbers near what they were."""
        first = self.first
        reach = np.where(first == 0, 1.0, np.abs(first))
        low = np.where(first == 0, -reach, np.abs(first) * exp(-WIDEST))
        high = np.where(first == 0, reach, np.abs(first) * exp(WIDEST))
        signs = np.where(first == 0, 1.0, np.sign(first))
        kept: np.ndarray = signs * np.clip(signs * values, low, high)
        return kept

    def _search(self, free: np.ndarray) -> None:
        """Look for the numbers that only decide what happens: no slope leads there."""
        wrong = np.flatnonzero(self.wrong)
        right = np.flatnonzero(~self.wrong)
        slopes = np.abs(self.slopes(self.values, free, self.sample, self.errors[self.sample]))
        if not self.is_noisy:
            slopes[self.wrong[self.sample]] = 0.0
        acts = (slopes > ACTS).any(axis=1).mean(axis=0)
        idle = free[acts < 0.1]
        if not len(idle):
            return
        some = np.union1d(
            wrong[self._rng.permutation(len(wrong))[: SAMPLE // 2]],
            right[self._rng.permutation(len(right))[: SAMPLE // 2]],
        )
        tried = [(place, value) for place in idle for value in self._candidates(place, wrong)]
        versions = [put(self.values, place, value) for place, value in tried]
        found = self.ask(versions, some)
        now = self.losses[some] @ self._weights[some]
        losses = found.losses @ self._weights[some]
        for version in np.argsort(losses, kind="stable")[:MOST_CHECKED]:
            if losses[version] >= now - 1e-12:
                return
            place, value = tried[version]
            if self.accept(put(self.values, place, value)):
                self.searched.add(int(place))
                self.bracket(int(place))
                if not self.wrong.any():
                    return

    def _candidates(self, place: int, wrong: np.ndarray) -> Iterator[float]:
        """Yield values to try for a number: around it, and those seen most in the wrong rows."""
        value = self.values[place]
        if value == 0:
            yield from np.linspace(-1, 1, 21)
            return
        yield from value * FACTORS
        if place in self.searched:  # what is left is near
            yield from (value * (1 + FINER)).ravel()
        rows = self.rows[wrong]
        seen = [
            column.astype(float).ravel()
            for column in rows.select("observations", "next_observations", "actions").values()
            if column.dtype.kind in "fiu"
        ]
        every = np.concatenate([*seen, rows.columns["rewards"]])
        every = np.copysign(every, value)
        every = every[(every / value > 0.4) & (every / value < 2.5)]
        values, counts = np.unique(np.round(every, 9), return_counts=True)
        yield from values[np.argsort(-counts, kind="stable")][:MOST_SEEN]

    def bracket(self, place: int) -> None:
        """Find between which values a threshold may lie, and take the simplest number there."""
        ends = []
        for factor in FACTORS[[0, -1]]:
            near, far = self.values[place], self.values[place] * factor
            [losses] = self.ask([put(self.values, place, far)], self.every).losses
            rows = np.flatnonzero(losses != self.losses)
            while len(rows) and abs(far - near) > SHARP * abs(near):
                between = np.linspace(near, far, 10)
                found = self.ask([put(self.values, place, each) for each in between[1:-1]], rows)
                same = (found.losses == self.losses[rows]).all(axis=1)
                reached = int(np.argmin([*same, False]))
                near, far = between[reached], between[reached + 1]
            ends.append(near if len(rows) else far)
        low, high = min(ends), max(ends)
        if low < high:
            value = simplest(low, high, self.first[place])
            self.accept(put(self.values, place, value), at_least=True)


def _moved(values: np.ndarray, places: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Move numbers by steps of their logarithms; one that is zero by a sum."""
    moved = values.copy()
    now = values[places]
    with np.errstate(over="ignore", invalid="ignore"):  # too large a step is not accepted
        moved[places] = np.where(now == 0, steps, now * np.exp(steps))
    return moved


def put(values: np.ndarray, place: int, value: float) -> np.ndarray:
    """Return values of which one is another."""
    moved = values.copy()
    moved[place] = value
    return moved


def advances(before: np.ndarray, after: np.ndarray) -> list[Advance]:
    """Find the components (rows, components) that advance by another one times a constant."""
    if len(before) < 2:
        return []
    pairs = product(range(before.shape[1]), range(before.shape[1]), (False, True))
    found = []
    for component, other, late in pairs:
        if component == other:
            continue
        change = np.abs(after[:, component] - before[:, component])
        if np.median(change / _tolerances(after)[:, component]) < CLEAR:
            continue
        line = _advance(before, after, component, other, late)
        if line is not None:
            found.append(line)
    return found


def _advance(
    before: np.ndarray, after: np.ndarray, component: int, other: int, late: bool
) -> Advance | None:
    """Fit the ratio of one component's advance to another component; None if there is no line.

    The median ratio comes first, then least squares over the rows that are on its line.
    """
    change = after[:, component] - before[:, component]
    rate = (after if late else before)[:, other]
    allowed = _tolerances(after)[:, component]
    moving = np.abs(rate) > np.abs(rate).max(initial=0.0) / 100
    if moving.sum() < 2:
        return None
    step = float(np.median(change[moving] / rate[moving]))
    on_line = np.abs(change - step * rate) <= allowed
    if on_line.mean() < 1 - MOST_OFF_LINE or not step:
        return None
    change, rate = change[on_line], rate[on_line]
    power = float(rate @ rate)
    step = float(rate @ change) / power
    variance = float(((change - step * rate) ** 2).sum()) / max(1, len(rate) - 1)
    return Advance(component, other, late, step, float(np.sqrt(variance / power)))


def _tolerances(values: np.ndarray) -> np.ndarray:
    """Return by how much a prediction of each value may be off."""
    allowed: np.ndarray = TOLERANCE + TOLERANCE * np.abs(values)
    return allowed


def _cost(errors: np.ndarray, near: np.ndarray) -> float:
    """Return a sum that rows far off hardly add to."""
    return float(np.log1p((errors / near) ** 2).sum())


def _size(errors: np.ndarray, least: float = FINE) -> float:
    """Return the mean decimal logarithm of errors, none smaller than what is fine."""
    return float(np.log10(np.maximum(np.abs(errors), least)).mean())


def left_over(column: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what of a column others do not make up for, and by how much each of them would."""
    if not others.shape[1]:
        return column, np.zeros(0)
    shift = np.linalg.lstsq(others, column, rcond=1e-10)[0]
    return column - others @ shift, shift


def _combinations(ways: Sequence[Choice], best: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield combinations of ways, all of them where they are few."""
    every = product(*(range(len(way.ways)) for way in ways))
    combinations = list(islice(every, MOST_WAYS + 1))
    if len(combinations) <= MOST_WAYS:
        yield from (each for each in combinations if each != tuple(best))
        return
    for place, way in enumerate(ways):
        for n in range(len(way.ways)):
            if n != best[place]:
                yield (*best[:place], n, *best[place + 1 :])


def simplest(low: float, high: float, was: float) -> float:
    """Return the simplest number between two: what it was, or on the coarsest grid that has one.

    Grids are decimals, whole degrees and whole multiples of pi. A decimal of many digits gives
    way to a fraction of small numbers, unless such a fraction may be there by chance.
    """
    if low <= was <= high:
        return was
    middle = (low + high) / 2
    fraction = Fraction(middle).limit_denominator(MOST_DENOMINATOR)
    by_chance = fraction.denominator**2 * (high - low)
    if low <= fraction <= high and by_chance < 1e-2:
        decimal = f"{float(fraction):.15g}"
        if len(decimal.strip("-0.").replace(".", "")) > MANY_DIGITS:
            return float(fraction)
    largest = floor(log10(max(abs(low), abs(high))))
    steps = [tens * 10.0**power for power in range(largest, largest - 16, -1) for tens in (5, 1)]
    for step in sorted([*steps, pi, pi / 180], reverse=True):
        value = ceil(low / step) * step
        if low <= value <= high:
            return float(f"{value:.15g}")
    return (low + high) / 2
