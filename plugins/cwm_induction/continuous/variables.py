"""The variables behind an observation, and the input columns of actions.

A pair of a cosine and a sine gives an angle. A number that wraps around has a cycle; other numbers
may have limits. The explanation of a variable may read the next value of another variable, unless
the dependencies form a cycle.
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
"""Absolute and relative tolerance of a correct prediction."""

WIDE = 1e6
"""Declared ranges of at least this width are ignored: they give neither limits nor a cycle."""

USUAL_CHANGE = 0.35
"""Largest change of a real number inside its cycle, as a share of the cycle's length. The velocity
of a bouncing ball changes by more, so it has no cycle."""

LENGTHS = (2 * np.pi, 1.0, np.pi, 2.0, 360.0, 24.0, 12.0, 60.0, 7.0, 10.0, 100.0, 365.0)
"""Common lengths of cycles."""

Reads = Mapping[str, set[str]]
"""For every explained variable, the names that its explanation reads."""


@dataclass(frozen=True)
class Variable:
    """A quantity that changes from step to step.

    Args:
        name: Name in programs.
        source: Expression that computes the value from an observation.
        now: Values before the step.
        then: Values after the step.
        change: Differences `then - now`; with a cycle, by at most half of its length.
        free: Mask of the rows whose next value is neither a limit nor one of the `piles`.
        grain: Relative rounding of stored values.
        noise: Error of the estimated values of a hidden variable, 0 for observed ones.
        piles: Values inside the limits that at least three rows share exactly.
        is_angle: Whether the variable is an angle in radians.
        low: Lower limit.
        high: Upper limit.
        declared: Whether the limits come from the observation space.
        cycle: The cycle that next values are wrapped into.
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
        """Largest error of an exact prediction due to the rounding of stored values."""
        sizes = np.abs(self.now) + np.abs(self.then) + np.abs(self.change).max()
        sizes = sizes + (2.0 if self.is_angle else 0.0)
        sizes = sizes + (self.cycle.length if self.cycle else 0.0)
        tolerance: Array = 4 * self.grain * sizes + self.noise + 1e-13
        return tolerance

    @property
    def quarter(self) -> Array:
        """A quarter of the largest error of a correct prediction, plus the noise."""
        tolerance: Array = 0.25 * MATCH * (1 + np.abs(self.then)) + self.noise
        return tolerance

    @property
    def still(self) -> bool:
        """Whether the variable never changes."""
        return float(np.abs(self.change).max()) < 1e-9

    @property
    def is_kept(self) -> bool:
        """Whether a memory outside the equations updates the variable."""
        return self.noise > 0 and self.still

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        seen = np.concatenate([self.now, self.then])
        return bool((seen == np.round(seen)).all())

    def matches(self, change: Array) -> Array:
        """Return the mask of the rows that the given change predicts correctly."""
        then = np.clip(self.now + change, self.low, self.high)
        off = then - self.then
        off = wrapped(off) if self.is_angle else off
        off = self.cycle.short(off) if self.cycle else off
        right: Array = np.abs(off) <= 4 * self.quarter
        return right

    def agrees(self, change: Array, rows: Array, least: float = 0.98) -> bool:
        """Return whether a change predicts the share `least` of some rows, or there are none."""
        right = self.matches(change)[rows]
        return right.size == 0 or bool(right.mean() >= least)


@dataclass(frozen=True)
class Latents:
    """The variables of an observation, and an expression for each component of the next one."""

    variables: tuple[Variable, ...]
    components: tuple[str, ...]

    def owner(self, component: int) -> str:
        """Return the name of the variable behind a component of the observation."""
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
    """Return the input columns of the actions."""
    space, values = samples.action_space, samples.actions
    if space.kind != "discrete":
        flat = "action" if len(space.shape) == 1 else "inputs"
        return [NamedColumn(f"{flat}[{i}]", values[:, i]) for i in range(values.shape[1])]
    return [NamedColumn("action", values[:, 0]), *indicators(values[:, 0])]


def indicators(actions: Array) -> list[NamedColumn]:
    """Return an indicator column for each action; none if there are at most two actions."""
    levels = np.unique(actions).astype(int).tolist()
    if len(levels) <= 2:
        return []
    return [
        NamedColumn(f"(action == {level})", (actions == level).astype(float)) for level in levels
    ]


def needed(name: str, reads: Reads) -> set[str]:
    """Return the variables whose next values a variable depends on, directly or indirectly."""
    dependencies: set[str] = set()
    waiting = [name]
    while waiting:
        names = reads.get(waiting.pop(), set())
        fresh = {n.removesuffix("_next") for n in names if n.endswith("_next")} - dependencies
        waiting += fresh
        dependencies |= fresh
    return dependencies


def settled(variable: Variable, variables: Sequence[Variable], reads: Reads) -> list[NamedColumn]:
    """Return the next values that can be computed before the variable's next value."""
    late = {v.name for v in variables if v.name not in reads} | {variable.name}
    return [
        other.next_column
        for other in variables
        if not other.still and other.name not in late and not late & needed(other.name, reads)
    ]


def wrapped(angle: Array) -> Array:
    """Wrap angles to [-pi, pi)."""
    turned: Array = (angle + np.pi) % (2 * np.pi) - np.pi
    return turned


class Cycle(NamedTuple):
    """The first value of a cycle and its length."""

    start: float
    length: float

    def short(self, change: Array) -> Array:
        """Return the equivalent changes of at most half a cycle."""
        turned: Array = change - self.length * np.round(change / self.length)
        return turned

    def text(self, expression: str) -> str:
        """Return the source text of an expression, wrapped into the cycle."""
        length = _in_turns(self.length)
        if self.start == 0:
            return f"({expression}) % {length}"
        sign, start = ("+", -self.start) if self.start < 0 else ("-", self.start)
        offset = _in_turns(start).removeprefix("(").removesuffix(")")
        back = "-" if sign == "+" else "+"
        return f"({expression} {sign} {offset}) % {length} {back} {offset}"


def cycle_of(now: Array, then: Array, low: float, high: float) -> Cycle | None:
    """Return the cycle that turns every large change into a small one, or None.

    A declared range of one turn is a cycle even if no row wraps around.
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
    """Return the pairs of components whose squares sum to 1 in every row."""
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
    """Order a pair as (cosine, sine) so that the angle's change correlates with a velocity."""
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
    """Return a component as a variable with its cycle or its limits."""
    now, then = samples.before[:, index], samples.after[:, index]
    free = np.ones(len(samples), bool)
    unseen = samples.remembered.get(index)
    name, noise = unseen or (f"x{index}", 0.0)
    source = f"observation[{index}]"
    variable = Variable(name, source, now, then, then - now, free, samples.grain, noise)
    cycle = None if unseen else cycle_of(now, then, samples.low[index], samples.high[index])
    if cycle is not None:
        return replace(variable, change=cycle.short(variable.change), cycle=cycle)
    limited = _limited(variable, samples.low[index], samples.high[index])
    return replace(limited, declared=limited.declared and not unseen)


def _limited(variable: Variable, low: float, high: float) -> Variable:
    """Set the limits of a variable: the declared ones, or extreme values that recur exactly."""
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
    """Return the values that at least three rows share; none if many such values exist."""
    count = Counter(values.tolist())
    piles = sorted(value for value, rows in count.items() if rows >= 3)
    return piles if len(count) > 20 and len(piles) <= 6 else []  # few values may be labels


def _cycles(least: float, most: float, low: float, high: float) -> Iterator[Cycle]:
    """Yield candidate cycles, the declared one first."""
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
    """Return a declared cycle, with multiples of pi or seven digits instead of single precision."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-6:
        half = round(start / np.pi) * np.pi
        return Cycle(half, turns * np.pi)
    return Cycle(float(f"{start:.7g}"), float(f"{length:.7g}"))


def _in_turns(length: float) -> str:
    """Return a literal of a length, or an expression if it is a multiple of pi."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-9:
        return "np.pi" if turns == 1 else f"({turns} * np.pi)"
    return literal(length)
