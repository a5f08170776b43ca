"""What rules about a state of factors can look at: factors, relations between them, landmarks.

Landmarks are places that the values of a factor stand for, as where something lies
or is to be brought.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise, product
from typing import NamedTuple, Self

import numpy as np

from cwm_induction.discrete.rules import RuleColumn, RuleInputs

FLAG = 2
"""Values of a factor that is no or yes."""

LEAST_FLAGS = 4
"""Flags from which on rules may count them."""

LEAST_MEETING = 4
"""Values from which on it says something that two factors have the same."""

LEAST_PICKED = 3
"""Values of a factor that may point at one of as many others, at least."""

LEAST_RUN = 3
"""Neighbours of one size from which on they are taken together."""

MOST_GAPS = 60
"""Pairs of factors above which no differences are looked at, to save time."""

MOST_COUNTED = 16
"""Values of neighbours of which it is counted how many have them."""

RUN_KINDS = ("sum", "count", "alike", "rising")
"""Kinds of columns about neighbours of one size taken together."""

LEAST_SYMBOLS = 3
"""Values of a factor that may stand for places: two are rather no and yes."""

LEAST_SITES = 2
"""Places that must have been seen, each for one value: one may be an accident."""

RARELY = 0.02
"""Share of rewards below which what pays them is worth foreseeing where it is not ruled out."""

Cell = tuple[int, ...]
"""Values of the factors that say where something happens."""


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

    @classmethod
    def of(cls, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> Self:
        """Put transitions together of which nothing was foreseen."""
        unknown = np.zeros(len(old), dtype=np.int64)
        return cls(action, old, new, new, unknown, unknown, unknown)

    def column(self, column: RuleColumn, sizes: "Sizes") -> np.ndarray:
        """Return the values of one column."""
        factor, landmarks = column.factor, sizes.landmarks
        match column.kind:
            case "action" | "done" | "reward" | "outside" as kind:
                values = getattr(self, kind)
            case "part":
                values = np.unravel_index(self.action, sizes.parts)[column.other]
            case "edge":
                values = self.old[:, factor] + self.aimed[:, factor]
            case "old" | "aimed" | "new" as kind:
                values = getattr(self, kind)[:, factor]
            case "site" if landmarks:
                values = landmarks.here(self.old) >= 0
            case "at" | "perhaps" as kind if landmarks:
                values = getattr(landmarks, kind)(self.old, factor)
            case _:
                values = self._related(column)
        result: np.ndarray = values.astype(np.int64)
        return result

    def _related(self, column: RuleColumn) -> np.ndarray:
        """Return the values of a column about several factors, or about the change of one."""
        old, new, factor, other = self.old, self.new, column.factor, column.other
        values: np.ndarray
        match column.kind:
            case "same":
                values = (new == old).all(axis=1)
            case "pick":
                values = pick(old, factor, column.cell)
            case "meets":
                values = new[:, factor] == new[:, other]
            case "change":
                values = new[:, factor] - old[:, factor] + column.size // 2
            case "gap":
                values = new[:, factor] - new[:, other] + column.size // 2
            case "total" | "sum":
                values = new[:, column.cell].sum(axis=1)
            case "count":
                values = np.count_nonzero(new[:, column.cell] == other, axis=1)
            case "alike":
                values = np.logical_not(np.diff(new[:, column.cell], axis=1).any(axis=1))
            case _:
                falls = np.diff(new[:, column.cell], axis=1) < 0
                values = np.logical_not(falls.any(axis=1))
        return values

    def inputs(self, columns: tuple[RuleColumn, ...], sizes: "Sizes") -> RuleInputs:
        """Gather columns for rules to look at."""
        values = np.stack([self.column(column, sizes) for column in columns], axis=1)
        varying = np.flatnonzero((self.old != self.old[:1]).any(axis=0)).tolist()
        factors = {factor: sizes.radices[factor] for factor in varying}
        return RuleInputs(columns, values, factors, sizes.actions)


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
        values, cells = self.values, map(tuple, factors[:, self.places].tolist())
        return np.array([values.get(cell, -1) for cell in cells], dtype=np.int64)

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

    def columns(self, factored: FactoredTransitions, *kinds: str) -> tuple[RuleColumn, ...]:
        """List the columns of the given kinds that say something about transitions.

        The values before and the aims of a factor count only where they
        differ from its newer values, an edge only where the factor moves.
        """
        return tuple(column for kind in kinds for column in self._of_kind(factored, kind))

    def _of_kind(self, factored: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield the columns of one kind."""
        match kind:
            case "action":
                yield RuleColumn(kind, -1, self.actions)
            case "same" | "done":
                yield RuleColumn(kind, -1, 2)
            case "outside":
                yield from [RuleColumn(kind, -1, 2)] * bool(factored.outside.any())
            case "reward":
                yield RuleColumn(kind, -1, int(factored.reward.max(initial=0)) + 1)
            case "part":
                parts = self.parts if len(self.parts) > 1 else ()
                yield from (RuleColumn(kind, -1, size, n) for n, size in enumerate(parts))
            case "pick":
                picks = ((p, self.radices[cell[0]], cell) for p, cell in self.picks)
                yield from (RuleColumn(kind, p, size, cell=cell) for p, size, cell in picks)
            case "total":
                flags = self.flags
                yield from [RuleColumn(kind, -1, len(flags) + 1, cell=flags)] * bool(flags)
            case "at" | "goal":
                yield from self._sites(goal=kind == "goal")
            case "run":
                yield from self._of_runs()
            case "meets" | "gap":
                yield from self._of_pairs(factored, kind)
            case _:
                yield from self._of_factors(factored, kind)

    def _of_factors(self, factored: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield a column for every factor where it varies and differs from plainer ones."""
        for factor, radix in enumerate(self.radices):
            old, aimed, new = (
                part[:, factor] for part in (factored.old, factored.aimed, factored.new)
            )
            match kind:
                case "old":
                    says = (old != old[0]).any()
                case "new" | "change":
                    says = (new != old).any()
                case "aimed":
                    says = (aimed != new).any() and (aimed != old).any()
                case _:
                    says = (aimed != old).any()
            if says:
                signed = kind in ("edge", "change")
                yield RuleColumn(kind, factor, radix * 2 - 1 if signed else radix)

    def _of_pairs(self, factored: FactoredTransitions, kind: str) -> Iterator[RuleColumn]:
        """Yield differences of two factors, unless there are many, or whether they have one value.

        That says something where they have nearly the same range and sometimes meet.
        """
        least = FLAG + 1 if kind == "gap" else LEAST_MEETING
        numbers = [n for n, radix in enumerate(self.radices) if radix >= least]
        pairs = list(combinations(numbers, 2))
        for one, other in pairs if kind == "meets" or len(pairs) <= MOST_GAPS else ():
            sizes = self.radices[one], self.radices[other]
            met = factored.new[:, one] == factored.new[:, other]
            if kind == "gap":
                yield RuleColumn(kind, one, 2 * max(sizes) - 1, other)
            elif abs(sizes[0] - sizes[1]) < 2 and 0 < met.sum() < len(met):
                yield RuleColumn(kind, one, 2, other)

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


def _runs(radices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of every run of neighbours of one size."""
    ends = [n for n in range(1, len(radices)) if radices[n] != radices[n - 1]]
    yield from pairwise([0, *ends, len(radices)])


def pick(factors: np.ndarray, pointer: int, cells: tuple[int, ...]) -> np.ndarray:
    """Return the value of the cell that a factor points at."""
    values: np.ndarray = factors[np.arange(len(factors)), np.array(cells)[factors[:, pointer]]]
    return values


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
