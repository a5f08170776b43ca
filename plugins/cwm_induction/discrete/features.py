"""What rules about a discrete environment can look at."""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.rules import RuleColumn, RuleInputs

Cell = tuple[int, ...]

LEAST_SYMBOLS = 3
LEAST_SITES = 2
RARELY = 0.02


class Landmarks(NamedTuple):
    """What the values of the factor `item` stand for.

    All but `held` stand for a cell, given by the factors `places`. `sites` are the
    cells that were seen; `possible` lists for every other value the cells in which
    nothing that was tried rules it out, and `optimistic` says that what happens in
    the right one is so rare that it is worth foreseeing in all of them. The factor
    `target` says where to, if what is put down always lies there.
    """

    item: int
    held: int
    places: tuple[int, ...]
    sites: Mapping[int, Cell]
    possible: Mapping[int, tuple[Cell, ...]]
    optimistic: bool
    target: int | None

    @property
    def values(self) -> dict[Cell, int]:
        """The value that stands for each cell that was seen."""
        return {cell: value for value, cell in self.sites.items()}

    def here(self, factors: np.ndarray) -> np.ndarray:
        """Return the value that stands for the present cell, or -1."""
        cells = map(tuple, factors[:, self.places].tolist())
        return np.array([self.values.get(cell, -1) for cell in cells], dtype=np.int64)

    def at(self, factors: np.ndarray, factor: int) -> np.ndarray:
        """Say where the present cell is what a factor stands for."""
        result: np.ndarray = self.here(factors) == factors[:, factor]
        return result

    def perhaps(self, factors: np.ndarray, factor: int) -> np.ndarray:
        """Say where the present cell is or may be what a factor stands for."""
        cells = map(tuple, factors[:, self.places].tolist())
        pairs = zip(factors[:, factor].tolist(), cells, strict=True)
        maybe = np.array([cell in self.possible.get(value, ()) for value, cell in pairs])
        either: np.ndarray = self.at(factors, factor) | maybe.astype(bool)
        return either

    def goals(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors that may say where things are to be put, the one that does if known."""
        others = [other for other in self.companions(radices) if other != self.item]
        return others if self.target is None else [self.target]

    def companions(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors whose values may stand for the same cells."""
        size = radices[self.item]
        others = [i for i in range(len(radices)) if i not in self.places]
        return [i for i in others if abs(radices[i] - size) < 2 and radices[i] >= LEAST_SYMBOLS]


class Trials(NamedTuple):
    """Transitions in factors, and the factors that say where something happens."""

    old: np.ndarray
    action: np.ndarray
    after: np.ndarray
    codes: np.ndarray
    places: tuple[int, ...]
    radices: tuple[int, ...]

    def landmarks(self) -> Landmarks | None:
        """Return the places that the values of some factor stand for, if one has such values."""
        others = [i for i in range(len(self.radices)) if i not in self.places]
        found = (self._landmarks(i) for i in others if self.radices[i] >= LEAST_SYMBOLS)
        return next((landmarks for landmarks in found if landmarks), None)

    def _landmarks(self, item: int) -> Landmarks | None:
        """Read the changes of a factor as taking something up and putting it down."""
        pairs = np.stack([self.old[:, item], self.after[:, item]], axis=1)
        changed = pairs[:, 0] != pairs[:, 1]
        held = set(range(self.radices[item]))
        for pair in pairs[changed].tolist():
            held &= set(pair)
        if len(held) != 1:
            return None
        (value,) = held
        symbols = pairs[changed].sum(axis=1) - value
        cells = [tuple(cell) for cell in self.old[changed][:, self.places].tolist()]
        seen = set(zip(symbols.tolist(), cells, strict=True))
        sites = dict(sorted(seen))
        if len(seen) < LEAST_SITES or not len(seen) == len(sites) == len(set(sites.values())):
            return None
        possible = {
            symbol: tuple(self._possible(item, symbol, value, set(sites.values())))
            for symbol in range(self.radices[item])
            if symbol not in sites and symbol != value
        }
        put = changed & (pairs[:, 0] == value)
        share = np.bincount(self.codes)[self.codes[put]].min(initial=len(put)) / len(put)
        found = Landmarks(item, value, self.places, sites, possible, bool(share < RARELY), None)
        return found._replace(target=next(self._targets(found, put), None))

    def _targets(self, found: Landmarks, put: np.ndarray) -> Iterator[int]:
        """Yield the factors that say where everything that is put down lies afterwards."""
        for other in found.companions(self.radices):
            same = self.old[put, other] == self.after[put, found.item]
            if other != found.item and len(same) and same.all():
                yield other

    def _possible(self, item: int, symbol: int, held: int, taken: set[Cell]) -> Iterator[Cell]:
        """Yield the cells that nothing tried in vain rules out for a value."""
        values, changed = self.old[:, item], self.old[:, item] != self.after[:, item]
        vain = np.zeros(len(values), dtype=bool)
        for value, source in ((symbol, values != held), (held, values == held)):
            actions = np.unique(self.action[changed & source])
            vain |= ~changed & (values == value) & np.isin(self.action, actions)
        excluded = taken | set(map(tuple, self.old[vain][:, self.places].tolist()))
        for cell in product(*(range(self.radices[place]) for place in self.places)):
            if cell not in excluded:
                yield cell


LEAST_MEETING = 4
LEAST_FLAGS = 4
LEAST_PICKED = 3
FLAG = 2
LEAST_RUN = 3
MOST_GAPS = 60
MOST_COUNTED = 16
RUN_KINDS = ("sum", "count", "alike", "rising")
RELATIONS = ("same", "meets", "total", "pick", "part", "change", "gap", *RUN_KINDS)


class FactoredTransitions(NamedTuple):
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

    def column(self, column: RuleColumn, sizes: "Sizes") -> np.ndarray:
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

    def _related(self, column: RuleColumn, sizes: "Sizes") -> np.ndarray:
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

    def pool(self, columns: tuple[RuleColumn, ...], sizes: "Sizes") -> RuleInputs:
        """Gather columns for rules to look at."""
        values = np.stack([self.column(column, sizes) for column in columns], axis=1)
        varying = np.flatnonzero((self.old != self.old[:1]).any(axis=0)).tolist()
        factors = {factor: sizes.radices[factor] for factor in varying}
        return RuleInputs(columns, values, factors, sizes.actions)


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

    def columns(self, scene: FactoredTransitions, *kinds: str) -> tuple[RuleColumn, ...]:
        """List the columns of the given kinds that say something in a scene.

        The values before and the aims of a factor count only where they
        differ from its newer values, an edge only where the factor moves.
        """
        return tuple(column for kind in kinds for column in self._of_kind(scene, kind))

    def _of_kind(self, scene: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield the columns of one kind."""
        rewards = int(scene.reward.max(initial=0)) + 1
        sizes = {"action": self.actions, "same": 2, "done": 2, "outside": 2, "reward": rewards}
        several = {
            "meets": self._meetings(scene),
            "at": self._sites(goal=False),
            "goal": self._sites(goal=True),
            "pick": (RuleColumn(kind, p, self.radices[c[0]], cell=c) for p, c in self.picks),
            "part": (RuleColumn(kind, -1, size, n) for n, size in enumerate(self.parts)),
            "change": self._changes(scene),
            "gap": self._gaps(),
            "run": self._of_runs(),
        }
        if kind in sizes:
            if kind != "outside" or scene.outside.any():
                yield RuleColumn(kind, -1, sizes[kind])
        elif kind in several:
            yield from several[kind] if kind != "part" or len(self.parts) > 1 else ()
        elif kind == "total":
            yield from [RuleColumn(kind, -1, len(self.flags) + 1, cell=self.flags)] * bool(
                self.flags
            )
        else:
            yield from self._of_factors(scene, kind)

    def _of_factors(self, scene: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield a column for every factor of which the kind says something."""
        for factor, radix in enumerate(self.radices):
            if _says_something(scene, kind, factor):
                yield RuleColumn(kind, factor, radix * 2 - 1 if kind == "edge" else radix)

    def _changes(self, scene: FactoredTransitions) -> Iterator[RuleColumn]:
        """Yield how much every factor grew."""
        for factor, radix in enumerate(self.radices):
            if (scene.new[:, factor] != scene.old[:, factor]).any():
                yield RuleColumn("change", factor, 2 * radix - 1)

    def _gaps(self) -> Iterator[RuleColumn]:
        """Yield the differences of two factors, unless there are very many."""
        numbers = [n for n, radix in enumerate(self.radices) if radix > FLAG]
        pairs = list(combinations(numbers, 2))
        for one, other in pairs if len(pairs) <= MOST_GAPS else ():
            size = 2 * max(self.radices[one], self.radices[other]) - 1
            yield RuleColumn("gap", one, size, other)

    def _of_runs(self) -> Iterator[RuleColumn]:
        """Yield what can be said about neighbours of one size taken together."""
        for first, end in _runs(self.radices):
            radix, run = self.radices[first], tuple(range(first, end))
            if len(run) >= LEAST_RUN:
                yield RuleColumn("sum", -1, len(run) * (radix - 1) + 1, cell=run)
                yield RuleColumn("alike", -1, 2, cell=run)
                if radix > FLAG:
                    yield RuleColumn("rising", -1, 2, cell=run)
                    for value in range(min(radix, MOST_COUNTED)):
                        yield RuleColumn("count", -1, len(run) + 1, value, run)

    def _sites(self, *, goal: bool) -> Iterator[RuleColumn]:
        """Yield what can be said about the present cell and what factors stand for.

        Where things are put on their target alone, `goal` says nothing.
        """
        if self.landmarks and not (goal and self.landmarks.target is not None):
            item, cell = self.landmarks.item, self.landmarks.places
            if not goal:
                yield RuleColumn("site", -1, 2, cell=cell)
                yield RuleColumn("at", item, 2, cell=cell)
            for factor in self.landmarks.companions(self.radices):
                if factor != item:
                    kind = "perhaps" if self.landmarks.optimistic else "at"
                    yield RuleColumn(kind, factor, 2, cell=cell)

    def _meetings(self, scene: FactoredTransitions) -> Iterator[RuleColumn]:
        """Yield the pairs of factors of nearly the same range that sometimes have one value."""
        for one, other in combinations(range(len(self.radices)), 2):
            pair = self.radices[one], self.radices[other]
            met = scene.new[:, one] == scene.new[:, other]
            if (
                min(pair) >= LEAST_MEETING
                and abs(pair[0] - pair[1]) < 2
                and 0 < met.sum() < len(met)
            ):
                yield RuleColumn("meets", one, 2, other)


def _runs(radices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of every run of neighbours of one size."""
    ends = [n for n in range(1, len(radices)) if radices[n] != radices[n - 1]]
    yield from pairwise([0, *ends, len(radices)])


def pick(factors: np.ndarray, pointer: int, cells: tuple[int, ...]) -> np.ndarray:
    """Return the value of the cell that a factor points at."""
    values: np.ndarray = factors[np.arange(len(factors)), np.array(cells)[factors[:, pointer]]]
    return values


def _of_run(column: RuleColumn, values: np.ndarray) -> np.ndarray:
    """Return what a column says about the factors of a run."""
    steps = np.diff(values, axis=1)
    told: dict[str, np.ndarray] = {
        "sum": values.sum(axis=1),
        "count": np.count_nonzero(values == column.other, axis=1),
        "alike": np.logical_not(steps.any(axis=1)),
        "rising": np.logical_not((steps < 0).any(axis=1)),
    }
    return told[column.kind]


def _landmark(landmarks: Landmarks, column: RuleColumn, old: np.ndarray) -> np.ndarray:
    """Return the values of a column about what factors stand for."""
    if column.kind == "site":
        return landmarks.here(old) >= 0
    return getattr(landmarks, column.kind)(old, column.factor)  # type: ignore[no-any-return]


def _says_something(scene: FactoredTransitions, kind: str, factor: int) -> bool:
    """Say whether a column of a factor varies and differs from the plainer ones."""
    old, aimed, new = (part[:, factor] for part in (scene.old, scene.aimed, scene.new))
    if kind == "old":
        return bool((old != old[0]).any())
    if kind == "new":
        return bool((new != old).any())
    if kind == "aimed":
        return bool((aimed != new).any() and (aimed != old).any())
    return bool((aimed != old).any())
