"""What rules about a discrete environment can look at."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.landmarks import Landmarks
from cwm_induction.discrete.tables import Column, Pool

LEAST_MEETING = 4
LEAST_FLAGS = 4
LEAST_PICKED = 3
FLAG = 2
LEAST_RUN = 3
MOST_GAPS = 60
MOST_COUNTED = 16
RUN_KINDS = ("sum", "count", "alike", "rising")
RELATIONS = ("same", "meets", "total", "pick", "part", "change", "gap", *RUN_KINDS)


class Scene(NamedTuple):
    """Transitions in factors, one row each.

    `old` is the state before, `aimed` where the nominal moves lead, `new` the
    next state as far as it is known, `done` whether the episode ended, `reward`
    the number of the reward. `outside` marks moves that would leave a range.
    """

    action: np.ndarray
    old: np.ndarray
    aimed: np.ndarray
    new: np.ndarray
    done: np.ndarray
    reward: np.ndarray
    outside: np.ndarray

    def column(self, column: Column, sizes: "Sizes") -> np.ndarray:
        """Return the values of one column."""
        factor, values = column.factor, self.old[:, column.factor]
        if column.kind in ("action", "done", "reward", "outside"):
            values = getattr(self, column.kind)
        elif column.kind in RELATIONS:
            values = self._related(column, sizes)
        elif column.cell and sizes.landmarks:
            values = _landmark(sizes.landmarks, column, self.old)
        elif column.kind == "edge":
            values = values + self.aimed[:, factor]
        elif column.kind != "old":
            values = getattr(self, column.kind)[:, factor]
        return values.astype(np.int64)

    def _related(self, column: Column, sizes: "Sizes") -> np.ndarray:
        """Return the values of a column about several factors or a part of the action."""
        values: np.ndarray = (self.new == self.old).all(axis=1)
        if column.kind == "part":
            values = np.unravel_index(self.action, sizes.parts)[column.other]
        elif column.kind == "pick":
            values = pick(self.old, column.factor, column.cell)
        elif column.kind == "meets":
            values = self.new[:, column.factor] == self.new[:, column.other]
        elif column.kind == "total":
            values = self.new[:, column.cell].sum(axis=1)
        elif column.kind == "change":
            values = self.new[:, column.factor] - self.old[:, column.factor] + column.size // 2
        elif column.kind == "gap":
            values = self.new[:, column.factor] - self.new[:, column.other] + column.size // 2
        elif column.kind in RUN_KINDS:
            values = _of_run(column, self.new[:, column.cell])
        return values

    def pool(self, columns: tuple[Column, ...], sizes: "Sizes") -> Pool:
        """Gather columns for rules to look at."""
        values = np.stack([self.column(column, sizes) for column in columns], axis=1)
        varying = np.flatnonzero((self.old != self.old[:1]).any(axis=0)).tolist()
        factors = {factor: sizes.radices[factor] for factor in varying}
        return Pool(columns, values, factors, sizes.actions)


class Sizes(NamedTuple):
    """The radix of every factor, the number of actions and what factors stand for.

    Where factors are not `named`, programs have no words for what several have in common.
    """

    radices: tuple[int, ...]
    actions: int
    landmarks: Landmarks | None = None
    parts: tuple[int, ...] = ()
    named: bool = True

    @property
    def picks(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The factors that may say which of as many equal neighbours is meant, and these."""
        return tuple(
            (pointer, tuple(range(start, start + count)))
            for first, end in _runs(self.radices)
            for pointer, count in enumerate(self.radices)
            if count >= LEAST_PICKED and not first <= pointer < end and not (end - first) % count
            for start in range(first, end, count)
        )

    @property
    def flags(self) -> tuple[int, ...]:
        """The factors that are 0 or 1, if there are several."""
        flags = tuple(i for i, radix in enumerate(self.radices) if radix == FLAG)
        return flags if len(flags) >= LEAST_FLAGS else ()

    def columns(self, scene: Scene, *kinds: str) -> tuple[Column, ...]:
        """List the columns of the given kinds that say something in a scene.

        The values before and the aims of a factor count only where they
        differ from its newer values, an edge only where the factor moves.
        """
        return tuple(column for kind in kinds for column in self._of_kind(scene, kind))

    def _of_kind(self, scene: Scene, kind: str) -> Iterator[Column]:
        """Yield the columns of one kind."""
        rewards = int(scene.reward.max(initial=0)) + 1
        sizes = {"action": self.actions, "same": 2, "done": 2, "outside": 2, "reward": rewards}
        several = {
            "meets": self._meetings(scene),
            "at": self._sites(goal=False),
            "goal": self._sites(goal=True),
            "pick": (Column(kind, p, self.radices[c[0]], cell=c) for p, c in self.picks),
            "part": (Column(kind, -1, size, n) for n, size in enumerate(self.parts)),
            "change": self._changes(scene),
            "gap": self._gaps(),
            "run": self._of_runs(),
        }
        if kind in sizes:
            if kind != "outside" or scene.outside.any():
                yield Column(kind, -1, sizes[kind])
        elif kind in several:
            yield from several[kind] if kind != "part" or len(self.parts) > 1 else ()
        elif kind == "total":
            yield from [Column(kind, -1, len(self.flags) + 1, cell=self.flags)] * bool(self.flags)
        else:
            yield from self._of_factors(scene, kind)

    def _of_factors(self, scene: Scene, kind: str) -> Iterator[Column]:
        """Yield a column for every factor of which the kind says something."""
        for factor, radix in enumerate(self.radices):
            if _says_something(scene, kind, factor):
                yield Column(kind, factor, radix * 2 - 1 if kind == "edge" else radix)

    def _changes(self, scene: Scene) -> Iterator[Column]:
        """Yield how much every factor grew."""
        for factor, radix in enumerate(self.radices):
            if (scene.new[:, factor] != scene.old[:, factor]).any():
                yield Column("change", factor, 2 * radix - 1)

    def _gaps(self) -> Iterator[Column]:
        """Yield the differences of two factors, unless there are very many."""
        numbers = [n for n, radix in enumerate(self.radices) if radix > FLAG]
        pairs = list(combinations(numbers, 2))
        for one, other in pairs if len(pairs) <= MOST_GAPS else ():
            size = 2 * max(self.radices[one], self.radices[other]) - 1
            yield Column("gap", one, size, other)

    def _of_runs(self) -> Iterator[Column]:
        """Yield what can be said about neighbours of one size taken together."""
        for first, end in _runs(self.radices):
            radix, run = self.radices[first], tuple(range(first, end))
            if len(run) >= LEAST_RUN:
                yield Column("sum", -1, len(run) * (radix - 1) + 1, cell=run)
                yield Column("alike", -1, 2, cell=run)
                if radix > FLAG:
                    yield Column("rising", -1, 2, cell=run)
                    for value in range(min(radix, MOST_COUNTED)):
                        yield Column("count", -1, len(run) + 1, value, run)

    def _sites(self, *, goal: bool) -> Iterator[Column]:
        """Yield what can be said about the present cell and what factors stand for.

        Where things are put on their target alone, `goal` says nothing.
        """
        if self.landmarks and not (goal and self.landmarks.target is not None):
            item, cell = self.landmarks.item, self.landmarks.places
            if not goal:
                yield Column("site", -1, 2, cell=cell)
                yield Column("at", item, 2, cell=cell)
            for factor in self.landmarks.companions(self.radices):
                if factor != item:
                    kind = "perhaps" if self.landmarks.optimistic else "at"
                    yield Column(kind, factor, 2, cell=cell)

    def _meetings(self, scene: Scene) -> Iterator[Column]:
        """Yield the pairs of factors of nearly the same range that sometimes have one value."""
        for one, other in combinations(range(len(self.radices)), 2):
            pair = self.radices[one], self.radices[other]
            met = scene.new[:, one] == scene.new[:, other]
            if (
                min(pair) >= LEAST_MEETING
                and abs(pair[0] - pair[1]) < 2
                and 0 < met.sum() < len(met)
            ):
                yield Column("meets", one, 2, other)


def _runs(radices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of every run of neighbours of one size."""
    ends = [n for n in range(1, len(radices)) if radices[n] != radices[n - 1]]
    yield from pairwise([0, *ends, len(radices)])


def pick(factors: np.ndarray, pointer: int, cells: tuple[int, ...]) -> np.ndarray:
    """Return the value of the cell that a factor points at."""
    values: np.ndarray = factors[np.arange(len(factors)), np.array(cells)[factors[:, pointer]]]
    return values


def _of_run(column: Column, values: np.ndarray) -> np.ndarray:
    """Return what a column says about the factors of a run."""
    steps = np.diff(values, axis=1)
    told: dict[str, np.ndarray] = {
        "sum": values.sum(axis=1),
        "count": np.count_nonzero(values == column.other, axis=1),
        "alike": np.logical_not(steps.any(axis=1)),
        "rising": np.logical_not((steps < 0).any(axis=1)),
    }
    return told[column.kind]


def _landmark(landmarks: Landmarks, column: Column, old: np.ndarray) -> np.ndarray:
    """Return the values of a column about what factors stand for."""
    if column.kind == "site":
        return landmarks.here(old) >= 0
    return getattr(landmarks, column.kind)(old, column.factor)  # type: ignore[no-any-return]


def _says_something(scene: Scene, kind: str, factor: int) -> bool:
    """Say whether a column of a factor varies and differs from the plainer ones."""
    old, aimed, new = (part[:, factor] for part in (scene.old, scene.aimed, scene.new))
    if kind == "old":
        return bool((old != old[0]).any())
    if kind == "new":
        return bool((new != old).any())
    if kind == "aimed":
        return bool((aimed != new).any() and (aimed != old).any())
    return bool((aimed != old).any())
