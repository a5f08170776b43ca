"""The variables behind an observation, the columns that actions enter equations as.

An angle stands behind a pair of cosine and sine; what begins again where it ends has a cycle;
other numbers have limits. What follows of one variable may be read to explain another, as long
as nothing is needed before it is known.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.writing.rounding import literal

MATCH = 1e-5
"""The tolerance, absolute and relative, within which a prediction counts as right."""

WIDE = 1e6
"""A declared range as wide as this says nothing: neither a limit nor a cycle."""

USUAL_CHANGE = 0.35
"""Largest usual change of a real number with a cycle, as a share of the cycle: the velocity of a
ball that bounces changes by more."""

LENGTHS = (2 * np.pi, 1.0, np.pi, 2.0, 360.0, 24.0, 12.0, 60.0, 7.0, 10.0, 100.0, 365.0)
"""Lengths of the usual cycles."""

Reads = Mapping[str, set[str]]
"""The names that the explanation of every explained variable reads."""


@dataclass(frozen=True)
class Variable:
    """A quantity that changes from step to step.

    `source` computes it from an observation. `low` and `high` are limits that
    it does not leave, which are `declared` when the observation space says so;
    `piles` are further values that many rows share. `free` marks the rows that
    reach none of these. Of what nobody sees the values are off by `noise`. With a `cycle` the
    variable is kept within it, and the change is the one that it takes on the short way round.
    """

    name: str
    source: str
    now: Array
    then: Array
    change: Array
    free: Array
    grain: float
    noise: float = 0.0
    piles: tuple[float, ...] = ()
    is_angle: bool = False
    low: float = -np.inf
    high: float = np.inf
    declared: bool = False
    cycle: "Cycle | None" = None

    @property
    def next(self) -> str:
        """Name of the value after the step."""
        return f"{self.name}_next"

    @property
    def column(self) -> NamedColumn:
        """The value before the step."""
        return NamedColumn(self.name, self.now, self.is_angle)

    @property
    def next_column(self) -> NamedColumn:
        """The value after the step."""
        return NamedColumn(self.next, self.then, self.is_angle)

    @property
    def rounding(self) -> Array:
        """How far a right prediction may be off because stored values are rounded."""
        sizes = np.abs(self.now) + np.abs(self.then) + np.abs(self.change).max()
        sizes = sizes + (2.0 if self.is_angle else 0.0)
        sizes = sizes + (self.cycle.length if self.cycle else 0.0)
        tolerance: Array = 4 * self.grain * sizes + self.noise + 1e-13
        return tolerance

    @property
    def quarter(self) -> Array:
        """A quarter of the error that still counts as right."""
        tolerance: Array = 0.25 * MATCH * (1 + np.abs(self.then)) + self.noise
        return tolerance

    @property
    def still(self) -> bool:
        """Whether the variable never changes."""
        return float(np.abs(self.change).max()) < 1e-9

    @property
    def is_kept(self) -> bool:
        """Whether the program around the equations updates the variable."""
        return self.noise > 0 and self.still

    @property
    def is_whole(self) -> bool:
        """Whether the variable only takes whole numbers."""
        seen = np.concatenate([self.now, self.then])
        return bool((seen == np.round(seen)).all())

    def matches(self, change: Array) -> Array:
        """Mask of the rows in which this change would count as right."""
        then = np.clip(self.now + change, self.low, self.high)
        off = then - self.then
        off = wrapped(off) if self.is_angle else off
        off = self.cycle.short(off) if self.cycle else off
        right: Array = np.abs(off) <= 4 * self.quarter
        return right

    def agrees(self, change: Array, rows: Array, least: float = 0.98) -> bool:
        """Whether this change would count as right in most of some rows, if there are any."""
        right = self.matches(change)[rows]
        return right.size == 0 or bool(right.mean() >= least)


@dataclass(frozen=True)
class Latents:
    """The variables of an observation, and each component of it in terms of their next values."""

    variables: tuple[Variable, ...]
    components: tuple[str, ...]

    def owner(self, component: int) -> str:
        """Name of the variable behind a component of the observation."""
        text = self.components[component]
        return next(v.name for v in self.variables if v.next in text)


def latents(samples: Samples) -> Latents:
    """Find the variables behind the components."""
    pairs = _circles(samples)
    single = [i for i in range(samples.before.shape[1]) if not any(i in pair for pair in pairs)]
    components = [f"x{index}_next" for index in range(samples.before.shape[1])]
    for index, unseen in samples.remembered.items():
        components[index] = f"{unseen.name}_next"
    variables = []
    for number, pair in enumerate(pairs):
        cosine, sine = _oriented(samples, pair, single)
        variables.append(_angle(samples, f"angle{number}", cosine, sine))
        components[cosine] = f"np.cos(angle{number}_next)"
        components[sine] = f"np.sin(angle{number}_next)"
    variables += [_number(samples, index) for index in single]
    variables.sort(
        key=lambda v: all(v.name != unseen.name for unseen in samples.remembered.values())
    )
    return Latents(tuple(variables), tuple(components))


def inputs_of(samples: Samples) -> list[NamedColumn]:
    """Return the columns that actions enter equations as."""
    space, values = samples.action_space, samples.actions
    if space.kind != "discrete":
        flat = "action" if len(space.shape) == 1 else "inputs"
        return [NamedColumn(f"{flat}[{i}]", values[:, i]) for i in range(values.shape[1])]
    return [NamedColumn("action", values[:, 0]), *indicators(values[:, 0])]


def indicators(actions: Array) -> list[NamedColumn]:
    """Return a column per action that says whether it was taken; none for two actions."""
    levels = np.unique(actions).astype(int).tolist()
    if len(levels) <= 2:
        return []
    return [
        NamedColumn(f"(action == {level})", (actions == level).astype(float)) for level in levels
    ]


def needed(name: str, reads: Reads) -> set[str]:
    """Return the variables whose next values are needed for this one's."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        names = reads.get(waiting.pop(), set())
        fresh = {n.removesuffix("_next") for n in names if n.endswith("_next")} - found
        waiting += fresh
        found |= fresh
    return found


def settled(variable: Variable, variables: Sequence[Variable], reads: Reads) -> list[NamedColumn]:
    """Return the next values that are known before this variable's."""
    late = {v.name for v in variables if v.name not in reads} | {variable.name}
    return [
        other.next_column
        for other in variables
        if not other.still and other.name not in late and not late & needed(other.name, reads)
    ]


def wrapped(angle: Array) -> Array:
    """Return angles in [-pi, pi)."""
    turned: Array = (angle + np.pi) % (2 * np.pi) - np.pi
    return turned


class Cycle(NamedTuple):
    """The first value of a cycle and its length."""

    start: float
    length: float

    def short(self, change: Array) -> Array:
        """Return changes by at most half a cycle that lead to the same place."""
        turned: Array = change - self.length * np.round(change / self.length)
        return turned

    def text(self, expression: str) -> str:
        """Write an expression, brought back into the cycle."""
        length = _in_turns(self.length)
        if self.start == 0:
            return f"({expression}) % {length}"
        sign, start = ("+", -self.start) if self.start < 0 else ("-", self.start)
        offset = _in_turns(start).removeprefix("(").removesuffix(")")
        back = "-" if sign == "+" else "+"
        return f"({expression} {sign} {offset}) % {length} {back} {offset}"


def cycle_of(now: Array, then: Array, low: float, high: float) -> Cycle | None:
    """Return the cycle that makes every large change a small one, if there is one.

    A range declared as one turn is a cycle though nothing came round.
    """
    change = then - now
    least, most = float(min(now.min(), then.min())), float(max(now.max(), then.max()))
    whole = _whole(least, most)
    for cycle in _cycles(least, most, low, high):
        slack = 1e-5 * cycle.length
        inside = cycle.start - slack <= least and most <= cycle.start + cycle.length + slack
        around = np.abs(change) > cycle.length / 2
        short = most - least > cycle.length - 0.5 and whole
        needed = 0 if abs(high - low - 2 * np.pi) < 1e-6 else 2
        if short or not inside or not needed <= around.sum() <= 0.3 * len(change):
            continue
        usual = float(np.abs(change[~around]).max())
        if needed and not whole and usual > USUAL_CHANGE * cycle.length:
            continue
        if np.abs(cycle.short(change)[around]).max(initial=0) <= 1.2 * usual + slack:
            return cycle
    return None


def _circles(samples: Samples) -> list[tuple[int, int]]:
    """Return the pairs of components that lie on the unit circle."""
    rows = np.concatenate([samples.before, samples.after])
    moving = [i for i in range(rows.shape[1]) if np.ptp(rows[:, i]) > 1e-9]
    bounded = [i for i in moving if np.abs(rows[:, i]).max() < 1 + 1e-5]
    pairs: list[tuple[int, int]] = []
    for i, j in combinations(bounded, 2):
        taken = {index for pair in pairs for index in pair}
        if not {i, j} & taken and np.abs(rows[:, i] ** 2 + rows[:, j] ** 2 - 1).max() < 1e-5:
            pairs.append((i, j))
    return pairs


def _oriented(samples: Samples, pair: tuple[int, int], single: list[int]) -> tuple[int, int]:
    """Order a pair as (cosine, sine) so that some velocity turns the angle forwards."""
    speeds = [samples.before[:, i] + samples.after[:, i] for i in single]
    speeds = [speed for speed in speeds if np.ptp(speed) > 1e-9]

    def agreement(order: tuple[int, int]) -> float:
        turn = _angle(samples, "", *order).change
        return max((np.corrcoef(turn, speed)[0, 1] for speed in speeds), default=0.0)

    return max(pair, pair[::-1], key=agreement)


def _angle(samples: Samples, name: str, cosine: int, sine: int) -> Variable:
    now = np.arctan2(samples.before[:, sine], samples.before[:, cosine])
    then = np.arctan2(samples.after[:, sine], samples.after[:, cosine])
    source = f"np.arctan2(observation[{sine}], observation[{cosine}])"
    free = np.ones(len(samples), bool)
    turn = wrapped(then - now)
    return Variable(name, source, now, then, turn, free, samples.grain, is_angle=True)


def _number(samples: Samples, index: int) -> Variable:
    """Return a component as it is, within its cycle or its limits."""
    now, then = samples.before[:, index], samples.after[:, index]
    free = np.ones(len(samples), bool)
    unseen = samples.remembered.get(index)
    name, noise = unseen or (f"x{index}", 0.0)
    source = f"observation[{index}]"
    variable = Variable(name, source, now, then, then - now, free, samples.grain, noise)
    cycle = None if unseen else cycle_of(now, then, samples.low[index], samples.high[index])
    if cycle is not None:
        return replace(variable, change=cycle.short(variable.change), cycle=cycle)
    found = _limited(variable, samples.low[index], samples.high[index])
    return replace(found, declared=found.declared and not unseen)


def _limited(variable: Variable, low: float, high: float) -> Variable:
    """Give a variable the limits that the space declares, or at which values pile up."""
    declared = bool(np.isfinite([low, high]).all() and high - low < WIDE)
    piles = _piles(variable.then)
    if not declared:
        low = min(piles) if piles and min(piles) == variable.then.min() else -np.inf
        high = max(piles) if piles and max(piles) == variable.then.max() else np.inf
    near = (variable.then <= low + 1e-6 * abs(low)) | (variable.then >= high - 1e-6 * abs(high))
    inner = tuple(pile for pile in piles if not (near & (variable.then == pile)).any())
    free = ~near & ~np.isin(variable.then, inner)
    return replace(variable, low=low, high=high, declared=declared, piles=inner, free=free)


def _piles(values: Array) -> list[float]:
    """Return the values that many rows share exactly, where most rows differ."""
    count = Counter(values.tolist())
    piles = sorted(value for value, rows in count.items() if rows >= 3)
    return piles if len(count) > 20 and len(piles) <= 6 else []  # few of many are no labels


def _cycles(least: float, most: float, low: float, high: float) -> Iterator[Cycle]:
    """Yield cycles that may hold all values, the declared one first."""
    whole = _whole(least, most)
    if np.isfinite([low, high]).all() and high - low < WIDE:
        yield _declared(low, high - low + (1 if whole else 0))
    if whole:
        yield Cycle(least, most - least + 1)
    for length in LENGTHS:
        yield Cycle(0.0, length)
        yield Cycle(-length / 2, length)


def _whole(least: float, most: float) -> bool:
    return least % 1 == 0 and most % 1 == 0


def _declared(start: float, length: float) -> Cycle:
    """Return a cycle whose bounds were kept in single precision."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-6:
        half = round(start / np.pi) * np.pi
        return Cycle(half, turns * np.pi)
    return Cycle(float(f"{start:.7g}"), float(f"{length:.7g}"))


def _in_turns(length: float) -> str:
    """Write a length, multiples of pi as such."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-9:
        return "np.pi" if turns == 1 else f"({turns} * np.pi)"
    return literal(length)
