"""The state in observations: the components with the positions and velocities of joints.

Positions and velocities of a joint belong together: over a step, the position changes by the time
step times the mean of the two velocities. Layouts are ranked by this relation, and the best ones
are compared by simulating recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from cwm_induction.bodies.mechanism import INTEGRATORS, Array, BodySimulation, StartStates, Timing

TOLERANCE = 1e-5
"""Absolute and relative tolerance of a right prediction, as in the metric."""

MAX_LAYOUTS = 12
"""Layouts that are simulated, the best by kinematics first."""

MAX_ROWS = 60
"""Rows that layouts are compared on."""

RELATED = 0.6
"""Least R² of the change of a position and the mean velocity of its joint."""


class PositionSource(NamedTuple):
    """Components of the observation that give a position: a number, or sine and cosine."""

    first: int
    cosine: int | None = None


@dataclass(frozen=True)
class StateLayout:
    """Sources of the positions in `qpos` and components of the velocities in `qvel`.

    A hidden position keeps its default value, a hidden velocity is zero.
    """

    positions: tuple[PositionSource | None, ...]
    velocities: tuple[int | None, ...]

    @property
    def used(self) -> set[int]:
        """The components of the observation that the state is set from."""
        found = {part for source in self.positions if source for part in source if part is not None}
        return found | {component for component in self.velocities if component is not None}

    def starts(
        self,
        observations: Array,
        defaults: Array,
        bounds: Array | None = None,
        follows: Array | None = None,
    ) -> StartStates:
        """Return the states of observations (rows, components).

        Args:
            observations: The observations.
            defaults: Values of hidden positions, of shape (nq,).
            bounds: The bound of each clipped component, else infinity; no bounds by default.
            follows: Mask of the rows that continue the row before; by default each row is alone.
        """
        positions = np.tile(defaults, (len(observations), 1))
        for index, source in enumerate(self.positions):
            if source is not None:
                positions[:, index] = _read(observations, source)
        velocities = np.zeros((len(observations), len(self.velocities)))
        for index, component in enumerate(self.velocities):
            if component is not None:
                velocities[:, index] = observations[:, component]
        limits = np.full(len(self.velocities), math.inf)
        for index, component in enumerate(self.velocities):
            if component is not None and bounds is not None:
                limits[index] = bounds[component]
        shown = np.array([source is not None for source in self.positions])
        angles = np.array([bool(s and s.cosine is not None) for s in self.positions])
        return StartStates(positions, velocities, shown, limits, angles, follows)

    def expected(self, positions: Array, velocities: Array, size: int) -> Array:
        """Return the components that the state determines; other components are NaN."""
        seen = np.full((len(positions), size), np.nan)
        for index, source in enumerate(self.positions):
            if source is None:
                continue
            if source.cosine is None:
                seen[:, source.first] = positions[:, index]
            else:
                seen[:, source.first] = np.sin(positions[:, index])
                seen[:, source.cosine] = np.cos(positions[:, index])
        for index, component in enumerate(self.velocities):
            if component is not None:
                seen[:, component] = velocities[:, index]
        return seen


@dataclass(frozen=True)
class StepRows:
    """Recorded steps as matrices, with the bound of each clipped component (infinity if none)."""

    observations: Array
    actions: Array
    rewards: Array
    after: Array
    ends: Array
    follows: Array
    """Mask of the rows that continue the row before them."""
    bounds: Array

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, rows: Array) -> StepRows:
        names = ("observations", "actions", "rewards", "after", "ends", "follows")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def with_bounds(self, layout: StateLayout) -> StepRows:
        """Return the rows with one bound for all velocities, and none for positions."""
        speeds = [component for component in layout.velocities if component is not None]
        bound = float(self.bounds[speeds].min(initial=math.inf))
        bounds = np.where(
            np.isin(np.arange(len(self.bounds)), [*layout.used]), math.inf, self.bounds
        )
        if (np.abs(self.after[:, speeds]) <= bound).all():
            bounds[speeds] = bound
        return replace(self, bounds=bounds)

    @property
    def unclipped(self) -> Array:
        """Mask of the rows that start with no component at its bound."""
        return np.asarray((np.abs(self.observations) < self.bounds).all(axis=1))


class FittedLayout(NamedTuple):
    """A layout with frame skip and integrator, and the share of rows that it predicts."""

    layout: StateLayout
    timing: Timing
    right: float


def clip_bounds(values: Array) -> Array:
    """Return the bound of each clipped component of values (rows, components), else infinity.

    A component is clipped if its largest absolute value occurs at least three times and other
    values occur, too.
    """
    size = np.abs(values)
    most = size.max(axis=0)
    at_most = size == most
    is_clipped = (at_most.sum(axis=0) >= 3) & (at_most.mean(axis=0) < 0.9) & (most >= 1)
    shared = [m for m in most[is_clipped].tolist() if m == round(m, 6)]
    return np.where(is_clipped & np.isin(most, shared), most, math.inf)


def is_right(predicted: Array, recorded: Array) -> Array:
    """Return where predictions are right within the tolerance."""
    return np.asarray(np.abs(predicted - recorded) <= TOLERANCE + TOLERANCE * np.abs(recorded))


def fit_layout(
    mechanism: BodySimulation, rows: StepRows, rng: np.random.Generator
) -> FittedLayout | None:
    """Return the layout that predicts most, with its timing; None if no layout predicts a row."""
    usable = np.flatnonzero(rows.unclipped & ~rows.ends)
    if not len(usable):
        return None
    chosen = rng.permutation(usable)[:MAX_ROWS]
    sample, best = rows[np.sort(chosen)], None
    for layout, seconds in _ranked(mechanism, rows[usable])[:MAX_LAYOUTS]:
        skip = max(1, round(seconds / mechanism.model.opt.timestep))
        found = _judge(mechanism, sample, layout, Timing(skip, mechanism.integrator))
        if best is None or found[0] < best[0]:
            best = (*found, layout, skip)
        if best[1] > 0.9:
            break
    if best is None:
        return None
    _, right, layout, skip = best
    timing = Timing(skip, mechanism.integrator)
    if right < 0.9:
        timing, right = _best_timing(mechanism, sample, layout, skip)
    return FittedLayout(layout, timing, right) if right > 0 else None


def _best_timing(
    mechanism: BodySimulation, sample: StepRows, layout: StateLayout, skip: int
) -> tuple[Timing, float]:
    """Return the frame skip near `skip` and the integrator with the smallest errors."""
    own = mechanism.integrator
    skips = sorted(range(max(1, skip - 2), skip + 3), key=lambda each: abs(each - skip))
    found = []
    for integrator in (own, *(name for name in INTEGRATORS if name != own)):
        for each in skips:
            timing = Timing(each, integrator)
            error, right = _judge(mechanism, sample, layout, timing)
            if right > 0.9:
                return timing, right
            found.append((error, right, timing))
    _, right, timing = min(found, key=lambda each: each[0])
    return timing, right


def _judge(
    mechanism: BodySimulation, sample: StepRows, layout: StateLayout, timing: Timing
) -> tuple[float, float]:
    """Return a mean logarithmic error, and the share of rows whose state is right.

    The error decreases with each component that the layout explains.
    """
    starts = layout.starts(sample.observations, mechanism.model.qpos0)
    after = mechanism.simulate(starts, sample.actions, timing, ("qpos", "qvel")).after
    seen = layout.expected(after["qpos"], after["qvel"], sample.after.shape[1])
    seen = np.clip(seen, -sample.bounds, sample.bounds)
    known = ~np.isnan(seen[0])
    if not known.any():
        return math.inf, 0.0
    spread = sample.after.std(axis=0) + 1e-9
    errors = np.abs(seen - sample.after) / spread
    median = np.median(errors[:, known], axis=0).clip(1e-7, 10)
    # A component that the layout does not explain counts like a prediction without a model.
    total = float(np.log10(median).sum()) / len(known)
    return total, float(is_right(seen, sample.after)[:, known].all(axis=1).mean())


def _ranked(mechanism: BodySimulation, rows: StepRows) -> list[tuple[StateLayout, float]]:
    """Return layouts with the seconds per step that they suggest, the best by kinematics first."""
    found: dict[StateLayout, tuple[float, float]] = {}
    for circles in _circle_sets(rows.observations):
        evidence = _Evidence(rows, circles)
        for layout, score in _layouts(mechanism, evidence):
            seconds = evidence.seconds(mechanism, layout)
            if layout not in found or score > found[layout][0]:
                found[layout] = score, seconds
    best = sorted(found, key=lambda layout: -found[layout][0])
    return [(layout, found[layout][1]) for layout in best if found[layout][1] > 0]


def _circle_sets(observations: Array) -> list[tuple[PositionSource, ...]]:
    """Return the possible readings of components as sines and cosines: none, or one per order."""
    squares, pairs = observations**2, list[tuple[int, int]]()
    free = {i for i in range(squares.shape[1]) if np.ptp(squares[:, i]) > 0}
    for i in sorted(free):
        for j in sorted(free):
            if i < j and np.abs(squares[:, i] + squares[:, j] - 1).max() < 1e-5:
                pairs.append((i, j))
    if not pairs or len({part for pair in pairs for part in pair}) != 2 * len(pairs):
        return [()]
    return [
        tuple(PositionSource(i, j) for i, j in pairs),
        tuple(PositionSource(j, i) for i, j in pairs),
    ]


class _Evidence:
    """How well the change of a position fits the mean of a velocity, by R² and slope."""

    def __init__(self, rows: StepRows, circles: tuple[PositionSource, ...]) -> None:
        before, after = rows.observations, rows.after
        self.circles, self.size = circles, before.shape[1]
        taken = {part for source in circles for part in source}
        self.plain = [i for i in range(self.size) if i not in taken]
        self.sources = [*circles, *(PositionSource(i) for i in self.plain)]
        speeds = (before + after) / 2
        self._fits = np.zeros((len(self.sources), self.size))
        self._slopes = np.zeros_like(self._fits)
        power = (speeds**2).sum(axis=0)
        self.moves = {}
        for number, source in enumerate(self.sources):
            change = _read(after, source) - _read(before, source)
            if source.cosine is not None:
                change = (change + np.pi) % (2 * np.pi) - np.pi
            total = float((change**2).sum())
            self.moves[source] = total > 1e-16 * len(before)
            if self.moves[source]:
                product = change @ speeds
                with np.errstate(all="ignore"):
                    self._slopes[number] = np.where(power > 0, product / power, 0)
                    self._fits[number] = np.where(power > 0, product**2 / (power * total), 0)
        self._numbers = {source: number for number, source in enumerate(self.sources)}

    def fit(self, source: PositionSource, component: int) -> float:
        """Return the R² of a position and a velocity, negative if the position never moves."""
        number = self._numbers[source]
        if not self.moves[source]:
            return -1.0
        right = self._slopes[number, component] > 0 and component not in source
        return float(self._fits[number, component]) if right else 0.0

    def seconds(self, mechanism: BodySimulation, layout: StateLayout) -> float:
        """Return the duration of a step that the pairs of a layout suggest, 0 without a pair."""
        slopes, weights = [], []
        for position, velocity, _ in mechanism.scalar_joints:
            source, component = layout.positions[position], layout.velocities[velocity]
            if source is not None and component is not None:
                number = self._numbers[source]
                slopes.append(self._slopes[number, component])
                weights.append(self._fits[number, component])
        if not slopes:
            return 0.0
        order = np.argsort(slopes)
        half = np.cumsum(np.array(weights)[order])
        return float(np.array(slopes)[order][np.searchsorted(half, half[-1] / 2)])


def _layouts(mechanism: BodySimulation, evidence: _Evidence) -> Iterator[tuple[StateLayout, float]]:
    """Yield the layouts with at least one pair of a position and a velocity, with their scores."""
    hinges = [position for position, _, is_hinge in mechanism.scalar_joints if is_hinge]
    circles = evidence.circles
    for start in range(len(hinges) - len(circles) + 1) if circles else [0]:
        angles = dict(zip(hinges[start : start + len(circles)], circles, strict=True))
        plain = [i for i in range(mechanism.model.nq) if i not in angles]
        size, speeds = evidence.size, mechanism.model.nv
        # without plain positions, all are hidden
        for shift, offset in product(range(-len(plain), size), range(1 - speeds, size)):
            found = _layout(mechanism, evidence, angles, plain, shift, offset)
            if found is not None:
                yield found


def _layout(
    mechanism: BodySimulation,
    evidence: _Evidence,
    angles: dict[int, PositionSource],
    plain: list[int],
    shift: int,
    offset: int,
) -> tuple[StateLayout, float] | None:
    """Return the layout whose plain positions begin at a shift, and velocities at an offset.

    Returns None if two values have one component, or no pair agrees with the kinematics.
    """
    model, free = mechanism.model, set(evidence.plain)
    positions: list[PositionSource | None] = [angles.get(i) for i in range(model.nq)]
    for number, index in enumerate(plain):
        if number + shift in free:
            positions[index] = PositionSource(number + shift)
    velocities: list[int | None] = [
        i + offset if i + offset in free else None for i in range(model.nv)
    ]
    score, pairs = 0.0, 0
    for position, velocity, _ in mechanism.scalar_joints:
        source, component = positions[position], velocities[velocity]
        if source is None or component is None:
            continue
        fit = evidence.fit(source, component)
        if fit < 0:
            velocities[velocity] = None  # a joint that never moves
        elif fit < RELATED:
            positions[position] = velocities[velocity] = None
            score -= 1
        else:
            pairs += 1
            score += min(7.0, -math.log(1.0000001 - fit))
    used = [part for source in positions if source for part in source if part is not None]
    used += [component for component in velocities if component is not None]
    if len(set(used)) < len(used) or not pairs:
        return None
    return StateLayout(tuple(positions), tuple(velocities)), score + 0.01 * len(used)


def _read(observations: Array, source: PositionSource) -> Array:
    if source.cosine is None:
        return np.asarray(observations[:, source.first])
    return np.asarray(np.arctan2(observations[:, source.first], observations[:, source.cosine]))
