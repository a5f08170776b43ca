"""Which value a place would have to hold for a row to come out right.

Of a program that predicts real numbers this is solved for, row by row, by secants; of one that
predicts whole numbers the values nearby are tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation import close
from cwm_cli.problems.feedback.separation import Quantity
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.refining.patching.trials import (
    LETTER,
    PlaceChange,
    ProgramTrials,
    TrialAnswers,
    outputs,
)

SAMPLE = 40
"""Wrong rows that are solved for: enough to tell a law by."""

FIRST = 16
"""Wrong rows that all sites are tried on; those that help none of them are passed over."""

MOST_SITES = 10
"""Sites at which laws are looked for: those at which most rows can be mended."""

NEARBY = tuple(range(-8, 9))
SMALL = tuple(range(13))
"""By how much whole numbers are changed, and what they are set to."""

SECANTS = 4
"""Steps of solving for a value: what is linear takes one, and smooth programs few more."""


@dataclass(frozen=True)
class RecordedOutcome:
    """What was recorded for rows, and which of the numbers that are predicted are wrong."""

    data: Dataset

    @cached_property
    def truth(self) -> Array:
        """Return what was recorded: what is seen, the reward, whether the episode ends."""
        return outputs(self.data.observation_space, self.data.columns)

    @cached_property
    def tolerance(self) -> Array:
        """By how much a right number may be off because of how it was stored."""
        stored = self.data.observation_space.leaves("next_observations")
        grains = [
            np.finfo(self.data.columns[leaf.name].dtype).eps
            for leaf in stored
            if leaf.space.is_float
        ]
        tolerance: Array = 8 * max(map(float, grains), default=2e-16) * (1 + np.abs(self.truth))
        tolerance += 1e-12
        return tolerance

    def wrong(self, columns: Columns, rows: Array) -> Array:
        """Return which numbers of rows are wrong; what is seen after the end does not matter."""
        said, truth = outputs(self.data.observation_space, columns), self.truth[rows]
        right = close(said, truth)
        if not any(leaf.space.is_float for leaf in self.data.observation_space.leaves("")):
            right[:, :-2] = said[:, :-2] == truth[:, :-2]
        ends = self.data.columns["terminations"][rows]
        right[:, :-2] |= ends[:, None]
        wrong: Array = np.logical_not(right)
        return wrong


@dataclass(frozen=True)
class Standing:
    """A program on the rows: what it says, what is wrong, and what its places hold."""

    trials: ProgramTrials
    outcome: RecordedOutcome
    said: Array
    wrong: Array
    seen: Array

    @classmethod
    def of(cls, trials: ProgramTrials, outcome: RecordedOutcome) -> "Standing | None":
        """Ask a program for every row, None where it fails in one: that is another's to mend."""
        rows = np.arange(len(trials.data))
        found = trials.run([PlaceChange(rows)])
        if found is None:
            return None
        [answers] = found
        if answers.failed.any():
            return None
        wrong = outcome.wrong(answers.columns, rows)
        said = outputs(trials.data.observation_space, answers.columns)
        return cls(trials, outcome, said, wrong, answers.seen)

    @property
    def losses(self) -> int:
        """How many numbers are wrong."""
        return int(self.wrong.sum())

    @cached_property
    def sample(self) -> Array:
        """Return some of the rows that are wrong, spread over all of them."""
        rows = np.flatnonzero(self.wrong.any(axis=1))
        sample: Array = rows[np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)]
        return sample

    def held(self, position: int, place: str) -> Array:
        """Return what a place holds before a statement, in every row."""
        values: Array = self.seen[:, self.trials.columns.index((position, place))]
        return values

    def places(self, position: int) -> list[NamedColumn]:
        """Return the places with numbers before a statement that all rows reach."""
        known = self.trials.source.positions[position].known
        reached = self.reached(position)
        found = [NamedColumn(place, self.held(position, place)) for place in known]
        return [
            column
            for column in found
            if np.isfinite(column.values[reached]).all()
            and (np.abs(column.values[reached]) < LETTER).all()
        ]

    def letters(self, position: int) -> list[Quantity]:
        """Return the places with letters before a statement."""
        known = self.trials.source.positions[position].known
        found = []
        for place in known:
            values = self.held(position, place)
            reached = values[self.reached(position)]
            if len(reached) and np.isfinite(reached).all() and (reached >= LETTER).all():
                labels = {each: repr(chr(int(each - LETTER))) for each in np.unique(reached)}
                found.append(Quantity(place, np.nan_to_num(values), False, False, 0.0, labels))
        return found

    def reached(self, position: int) -> Array:
        """Return the mask of the rows that reach a statement."""
        numbers = [n for n, (at, _) in enumerate(self.trials.columns) if at == position]
        reached: Array = np.isfinite(self.seen[:, numbers]).any(axis=1)
        return reached

    def effect(self, answers: TrialAnswers, rows: Array) -> tuple[Array, Array]:
        """Return how many numbers of each row a change makes right, and how many wrong."""
        wrong = self.outcome.wrong(answers.columns, rows)
        wrong[answers.failed] = True
        was = self.wrong[rows]
        return (was & ~wrong).sum(axis=1), (~was & wrong).sum(axis=1)


@dataclass(frozen=True)
class Need:
    """What a place would have to hold, in some wrong rows, for what is wrong to come out right.

    `wanted` is the value of each of the `rows`, within `tolerance`; of whole numbers `allowed`
    says for each of the `values` in which rows it will do.
    """

    site: int
    position: int
    place: str
    now: Array
    rows: Array
    wanted: Array
    tolerance: Array
    mended: int
    values: Array | None = None
    allowed: Array | None = None

    @property
    def is_whole(self) -> bool:
        """Whether values were tried one by one."""
        return self.allowed is not None

    def serves(self, values: Array) -> Array:
        """Return in which of the rows values of all rows will do."""
        given = values[self.rows]
        if self.values is None or self.allowed is None:
            near: Array = np.abs(given - self.wanted) <= self.tolerance
            return near
        place = np.searchsorted(self.values, given).clip(0, len(self.values) - 1)
        fits: Array = (self.values[place] == given) & self.allowed[np.arange(len(given)), place]
        return fits


def needs(standing: Standing) -> list[Need]:
    """Return what is needed at the sites where most can be mended, the best first."""
    space = standing.trials.data.observation_space
    real = any(leaf.space.is_float for leaf in space.leaves(""))
    solve = _solved if real else _tried
    first = standing.sample[:: max(1, len(standing.sample) // FIRST)]
    every = range(len(standing.trials.sites))
    found = [need for need in solve(standing, every, first) if need.mended]
    best = sorted(found, key=lambda need: -need.mended)[:MOST_SITES]
    again = solve(standing, [need.site for need in best], standing.sample)
    return sorted((need for need in again if need.mended), key=lambda need: -need.mended)


def _begun(standing: Standing, sites: Sequence[int], rows: Array) -> list[Need]:
    """Return the sites where a number stands, in the rows that reach them."""
    found = []
    for number in sites:
        position, place = standing.trials.sites[number]
        if (position, place) not in standing.trials.columns:
            continue
        now = standing.held(position, place)
        usable = np.isfinite(now[rows]) & (np.abs(now[rows]) < LETTER)
        if usable.sum() >= min(2, len(rows)):
            part = rows[usable]
            found.append(
                Need(number, position, place, now, part, now[part], np.zeros(len(part)), 0)
            )
    return found


def _solved(standing: Standing, sites: Sequence[int], rows: Array) -> list[Need]:
    """Solve for the value of every place in every row, by secants from a small step."""
    begun = _begun(standing, sites, rows)
    steps = [1e-4 * (np.abs(need.wanted) + 1e-2) for need in begun]
    tried = _ask(
        standing, begun, [need.wanted + step for need, step in zip(begun, steps, strict=True)]
    )
    if tried is None:
        return []
    state = [
        _Secant.of(standing, need, step, answers)
        for need, step, answers in zip(begun, steps, tried, strict=True)
    ]
    for _ in range(SECANTS):
        tried = _ask(standing, begun, [one.next for one in state])
        if tried is None:
            return []
        for one, answers in zip(state, tried, strict=True):
            one.learn(standing, answers)
    return [one.need for one in state]


def _ask(
    standing: Standing, needs: Sequence[Need], values: Sequence[Array]
) -> list[TrialAnswers] | None:
    """Set places to values."""
    changes = [
        PlaceChange(need.rows, 0, need.site, 0.0, value)
        for need, value in zip(needs, values, strict=True)
    ]
    return standing.trials.run(changes) if changes else []


@dataclass
class _Secant:
    """Solving for the values of one place, each row by the number that it moves most."""

    need: Need
    output: Array
    slope: Array
    next: Array
    best: Array

    @classmethod
    def of(cls, standing: Standing, need: Need, step: Array, answers: TrialAnswers) -> "_Secant":
        """Begin with what a small step does."""
        rows, space = need.rows, standing.trials.data.observation_space
        slopes = (outputs(space, answers.columns) - standing.said[rows]) / step[:, None]
        slopes[answers.failed] = 0.0
        slopes[:, -1] = 0.0
        scale = standing.outcome.truth.std(axis=0) + 1e-9
        use = np.where(standing.wrong[rows], np.abs(slopes) / scale, 0.0)
        output = use.argmax(axis=1)
        each = np.arange(len(rows))
        slope = np.where(use[each, output] > 1e-7, slopes[each, output], np.inf)
        missing = standing.outcome.truth[rows, output] - standing.said[rows, output]
        return cls(need, output, slope, need.wanted + missing / slope, np.zeros(len(rows), int))

    def learn(self, standing: Standing, answers: TrialAnswers) -> None:
        """Take the values that mend their rows, and step on where something is left."""
        rows, space = self.need.rows, standing.trials.data.observation_space
        each = np.arange(len(rows))
        said = outputs(space, answers.columns)[each, self.output]
        gained, lost = standing.effect(answers, rows)
        value = np.where(lost == 0, gained, 0)
        left = standing.outcome.truth[rows, self.output] - said
        better = (value > 0) & (value >= self.best)
        slope = np.abs(self.slope)
        tolerance = standing.outcome.tolerance[rows, self.output] / slope
        loose = 2.5e-6 * (1 + np.abs(standing.outcome.truth[rows, self.output])) / slope
        exact = np.abs(left) <= 4 * standing.outcome.tolerance[rows, self.output]
        self.need = replace(
            self.need,
            wanted=np.where(better, self.next, self.need.wanted),
            tolerance=np.where(better, np.where(exact, tolerance, loose), self.need.tolerance),
            mended=int(np.where(better, value, self.best).sum()),
        )
        self.best = np.where(better, value, self.best)
        moved = self.next - self.need.now[rows]
        change = said - standing.said[rows, self.output]
        self.slope = np.where(
            (np.abs(moved) > 0) & (np.abs(change) > 0) & np.isfinite(self.slope),
            change / moved,
            self.slope,
        )
        step = left / self.slope
        self.next = np.where(np.isfinite(step), self.next + step, self.next)
        self._drop(standing)

    def _drop(self, standing: Standing) -> None:
        """Mark the rows that nothing mends: no value will do in them."""
        self.need = replace(self.need, tolerance=np.where(self.best > 0, self.need.tolerance, -1.0))


def _tried(standing: Standing, sites: Sequence[int], rows: Array) -> list[Need]:
    """Try the values nearby, and small ones, of every place in every row."""
    begun = _begun(standing, sites, rows)
    offered = []
    for need in begun:
        held = np.unique(need.now[need.rows])
        near = np.unique(held[:, None] + np.array(NEARBY)[None])
        flag = set(np.unique(need.now[np.isfinite(need.now)]).tolist()) == {0.0, 1.0}
        values = np.array([0.0, 1.0]) if flag else np.unique([*near, *SMALL, *(-held)])
        offered.append(values)
    changes, owners = [], []
    for number, (need, values) in enumerate(zip(begun, offered, strict=True)):
        for place, value in enumerate(values.tolist()):
            now = need.now[need.rows]
            worth = (np.abs(now - value) <= max(NEARBY)) | (value in SMALL) | (value == -now)
            part = np.flatnonzero(worth & (now != value))
            if len(part):
                changes.append(
                    PlaceChange(need.rows[part], 0, need.site, 0.0, np.full(len(part), value))
                )
                owners.append((number, place, part))
    answered = standing.trials.run(changes) if changes else []
    if answered is None:
        return []
    gains = [np.zeros((len(n.rows), len(v)), int) for n, v in zip(begun, offered, strict=True)]
    for change, (number, place, part), answers in zip(changes, owners, answered, strict=True):
        gained, lost = standing.effect(answers, change.rows)
        gains[number][part, place] = np.where(lost == 0, gained, 0)
    found = []
    for need, values, gain in zip(begun, offered, gains, strict=True):
        best = gain.max(axis=1, initial=0)
        allowed = (gain == best[:, None]) & (gain > 0)
        found.append(replace(need, mended=int(best.sum()), values=values, allowed=allowed))
    return found
