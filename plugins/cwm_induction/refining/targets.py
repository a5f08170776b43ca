"""The values that places of a program need, so that its wrong rows become right.

If the observation has real numbers, the values are solved for, row by row, by the secant method.
Otherwise nearby integers are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import close
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.refining.tracing import (
    ProgramTracer,
    Site,
    SourceChange,
    TracedSource,
    TrialResult,
    flat_predictions,
)

SAMPLE, FIRST_SAMPLE = 40, 16
"""Numbers of wrong rows that are solved for: at the best sites, and at all sites."""

MAX_SITES = 10
"""Most sites with a search for laws; sites that can correct the most values come first."""

NEARBY, SMALL = np.arange(-8, 9), np.arange(13)
"""Changes of integers that are tried, and integers that are tried themselves."""

MAX_SECANTS = 4
"""Most steps of the secant method; a linear dependence takes one."""


@dataclass(frozen=True)
class TracedRows:
    """The predictions of a program for all rows, the wrong numbers, and the recorded values.

    `predicted` and `wrong` have a column for each number of the observation, for the reward and for
    the end. `seen` has a column for each place that the tracer records.
    """

    tracer: ProgramTracer
    truth: Array
    predicted: Array
    wrong: Array
    seen: Array

    @classmethod
    def of(cls, tracer: ProgramTracer) -> TracedRows | None:
        """Run a program on all rows; return None if it fails in one."""
        data, rows = tracer.data, np.arange(len(tracer.data))
        found = tracer.run([SourceChange(rows)])
        if found is None or found[0].failed.any():
            return None
        truth, predicted = flat_predictions(data.columns), found[0].predicted
        wrong = wrong_numbers(data, truth, predicted, rows)
        return cls(tracer, truth, predicted, wrong, found[0].seen)

    @property
    def source(self) -> TracedSource:
        """The text of the program."""
        return self.tracer.source

    @property
    def data(self) -> Dataset:
        """The rows."""
        return self.tracer.data

    @property
    def losses(self) -> int:
        """The number of wrong numbers."""
        return int(self.wrong.sum())

    @cached_property
    def rounding_error(self) -> Array:
        """The largest error of each number that its storage explains."""
        values = self.data.columns["next_observations"]
        precision = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 2e-16
        found: Array = 8 * precision * (1 + np.abs(self.truth)) + 1e-12
        return found

    @cached_property
    def sample(self) -> Array:
        """Evenly spaced wrong rows."""
        rows = np.flatnonzero(self.wrong.any(axis=1))
        sample: Array = rows[np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)]
        return sample

    def values(self, site: Site) -> Array:
        """Return the value of a place before a statement, in each row."""
        found: Array = self.seen[:, self.tracer.columns.index(site)]
        return found

    def reached(self, statement: int) -> Array:
        """Return the mask of the rows that reach a statement."""
        columns = [n for n, site in enumerate(self.tracer.columns) if site.statement == statement]
        reached: Array = np.isfinite(self.seen[:, columns]).any(axis=1)
        return reached

    def numbers(self, statement: int) -> list[NamedColumn]:
        """Return the places that are numbers in all rows that reach a statement."""
        reached, found = self.reached(statement), []
        for place in self.source.statements[statement].known:
            values = self.values(Site(statement, place))
            if np.isfinite(values[reached]).all():
                found.append(NamedColumn(place, values))
        return found

    def quantities(self, statement: int) -> tuple[list[NamedColumn], list[NamedColumn]]:
        """Return the quantities that a condition before a statement should and may compare.

        The first are the action, and observed and predicted numbers; all others are the second.
        """
        observed = self.data.columns["observations"].reshape(len(self.data), -1).T
        main: list[NamedColumn] = []
        others: list[NamedColumn] = []
        for column in self.numbers(statement):
            values = np.nan_to_num(column.values)
            shares = np.isclose(values, observed, atol=1e-9).mean(axis=1)
            later = np.isclose(values, self.predicted.T[:-2], atol=1e-9).mean(axis=1)
            is_main = column.text == "action" or shares.max() == 1 or later.max() > 0.7
            (main if is_main else others).append(NamedColumn(column.text, values))
        return main, others

    def effect(self, result: TrialResult, rows: Array) -> tuple[Array, Array]:
        """Return how many numbers of each row a change corrects, and how many it makes wrong."""
        wrong = wrong_numbers(self.data, self.truth, result.predicted, rows)
        wrong[result.failed] = True
        before = self.wrong[rows]
        return (before & ~wrong).sum(axis=1), (~before & wrong).sum(axis=1)


def wrong_numbers(data: Dataset, truth: Array, predicted: Array, rows: Array) -> Array:
    """Return the mask of the wrong numbers; observations after the end do not count."""
    right = close(predicted, truth[rows])
    if not data.observation_space.is_float:
        right[:, :-2] = predicted[:, :-2] == truth[rows, :-2]
    right[:, :-2] |= data.columns["terminations"][rows][:, None]
    wrong: Array = np.logical_not(right)
    return wrong


@dataclass(frozen=True)
class PatchTarget:
    """The values that a place needs in wrong rows.

    Attributes:
        site: The index of the site in the program.
        statement: The statement before which the place may be changed.
        place: The place.
        current: Its value in all rows.
        rows: The wrong rows that were solved.
        wanted: The value that the place needs, (rows,).
        tolerance: The largest error of `wanted`, below 0 if no value corrects the row.
        corrected: The number of values that become right.
        options: The integers that were tried, None for real numbers.
        allowed: Whether each option corrects each row: (rows, options).
    """

    site: int
    statement: int
    place: str
    current: Array
    rows: Array
    wanted: Array
    tolerance: Array
    corrected: int = 0
    options: Array | None = None
    allowed: Array | None = None

    def accepts(self, values: Array) -> Array:
        """Return which of the rows the values of all rows correct."""
        given = values[self.rows]
        if self.options is None or self.allowed is None:
            near: Array = np.abs(given - self.wanted) <= self.tolerance
            return near
        place = np.searchsorted(self.options, given).clip(0, len(self.options) - 1)
        fits: Array = (self.options[place] == given) & self.allowed[np.arange(len(given)), place]
        return fits


def find_targets(traced: TracedRows) -> list[PatchTarget]:
    """Return the targets at the sites that can correct the most values, the best first."""
    solve = _solve if traced.data.observation_space.is_float else _try_integers
    first = traced.sample[:: max(1, len(traced.sample) // FIRST_SAMPLE)]
    found = solve(traced, range(len(traced.source.sites)), first)
    best = sorted(found, key=lambda each: -each.corrected)[:MAX_SITES]
    again = solve(traced, [each.site for each in best if each.corrected], traced.sample)
    return sorted((e for e in again if e.corrected), key=lambda each: -each.corrected)


def place_targets(traced: TracedRows) -> list[PatchTarget]:
    """Return each target before the first and before the last statement that allows it."""
    found: dict[tuple[int, str], PatchTarget] = {}
    for target in find_targets(traced):
        first = traced.source.earliest(Site(target.statement, target.place))
        for statement in (first, target.statement):
            found.setdefault((statement, target.place), replace(target, statement=statement))
    return list(found.values())


def _begin(traced: TracedRows, sites: Sequence[int], rows: Array) -> list[PatchTarget]:
    """Return the sites that hold a number, with the rows that reach them."""
    found = []
    for index in sites:
        site = traced.source.sites[index]
        if site not in traced.tracer.columns:
            continue
        values = traced.values(site)
        part = rows[np.isfinite(values[rows])]
        if len(part) >= min(2, len(rows)):
            found.append(PatchTarget(index, *site, values, part, values[part], np.zeros(len(part))))
    return found


def _solve(traced: TracedRows, sites: Sequence[int], rows: Array) -> list[PatchTarget]:
    """Solve for the value of each place in each row, by the secant method."""
    solvers = [_Solver(traced, target) for target in _begin(traced, sites, rows)]
    for _ in range(MAX_SECANTS + 1):
        changes = [SourceChange(s.target.rows, 0, s.target.site, s.next) for s in solvers]
        results = traced.tracer.run(changes) if changes else []
        if results is None:
            return []
        for solver, result in zip(solvers, results, strict=True):
            solver.update(result)
    return [solver.target for solver in solvers]


class _Solver:
    """The secant method for one place; each row is solved for the number that it affects most."""

    def __init__(self, traced: TracedRows, target: PatchTarget) -> None:
        self.traced, self.target = traced, target
        self.step = 1e-4 * (np.abs(target.wanted) + 1e-2)
        self.next = target.wanted + self.step
        self.best = np.zeros(len(target.rows), int)
        self.slope: Array | None = None

    def update(self, result: TrialResult) -> None:
        """Use the predictions for the `next` values."""
        if self.slope is None:
            self._begin(result.predicted, result.failed)
        else:
            effect = self.traced.effect(result, self.target.rows)
            self._improve(result.predicted, self.slope, *effect)

    def _begin(self, predicted: Array, failed: Array) -> None:
        rows, traced = self.target.rows, self.traced
        slopes = (predicted - traced.predicted[rows]) / self.step[:, None]
        slopes[failed] = 0.0
        slopes[:, -1] = 0.0
        scale = traced.truth.std(axis=0) + 1e-9
        relative = np.where(traced.wrong[rows], np.abs(slopes) / scale, 0.0)
        self.output = relative.argmax(axis=1)
        each = np.arange(len(rows))
        has_effect = relative[each, self.output] > 1e-7
        self.slope = np.where(has_effect, slopes[each, self.output], np.inf)
        missing = (traced.truth - traced.predicted)[rows, self.output]
        self.next = self.target.wanted + missing / self.slope

    def _improve(self, predicted: Array, slope: Array, gained: Array, lost: Array) -> None:
        rows, traced, target = self.target.rows, self.traced, self.target
        value = predicted[np.arange(len(rows)), self.output]
        truth, before = traced.truth[rows, self.output], traced.predicted[rows, self.output]
        corrected = np.where(lost == 0, gained, 0)
        better = (corrected > 0) & (corrected >= self.best)
        error = traced.rounding_error[rows, self.output]
        loose = 2.5e-6 * (1 + np.abs(truth))
        tolerance = np.where(np.abs(truth - value) <= 4 * error, error, loose) / np.abs(slope)
        self.best = np.where(better, corrected, self.best)
        tolerance = np.where(better, tolerance, target.tolerance)
        self.target = replace(
            target,
            wanted=np.where(better, self.next, target.wanted),
            tolerance=np.where(self.best > 0, tolerance, -1.0),
            corrected=int(self.best.sum()),
        )
        moved, change = self.next - target.current[rows], value - before
        is_usable = (np.abs(moved) > 0) & (np.abs(change) > 0) & np.isfinite(slope)
        self.slope = np.where(is_usable, change / moved, slope)
        step = (truth - value) / self.slope
        self.next = np.where(np.isfinite(step), self.next + step, self.next)


def _try_integers(traced: TracedRows, sites: Sequence[int], rows: Array) -> list[PatchTarget]:
    """Try nearby and small integers for each place in each row."""
    begun = _begin(traced, sites, rows)
    options = []
    for target in begun:
        held = np.unique(target.wanted)
        is_flag = set(np.unique(target.current[np.isfinite(target.current)]).tolist()) == {0.0, 1.0}
        near = np.unique([*(held[:, None] + NEARBY).ravel(), *SMALL, *-held])
        options.append(np.array([0.0, 1.0]) if is_flag else near)
    changes, owners = [], []
    for number, (target, values) in enumerate(zip(begun, options, strict=True)):
        for place, value in enumerate(values.tolist()):
            current = target.wanted
            useful = np.abs(current - value) <= NEARBY.max()
            useful |= (value in SMALL) | (value == -current)
            part = np.flatnonzero(useful & (current != value))
            if len(part):
                given = np.full(len(part), value)
                changes.append(SourceChange(target.rows[part], 0, target.site, given))
                owners.append((number, place, part))
    results = traced.tracer.run(changes) if changes else []
    if results is None:
        return []
    gains = [np.zeros((len(t.rows), len(v)), int) for t, v in zip(begun, options, strict=True)]
    for change, (number, place, part), result in zip(changes, owners, results, strict=True):
        gained, lost = traced.effect(result, change.rows)
        gains[number][part, place] = np.where(lost == 0, gained, 0)
    found = []
    for target, values, gain in zip(begun, options, gains, strict=True):
        best = gain.max(axis=1, initial=0)
        allowed = (gain == best[:, None]) & (gain > 0)
        corrected = int(best.sum())
        found.append(replace(target, corrected=corrected, options=values, allowed=allowed))
    return found
