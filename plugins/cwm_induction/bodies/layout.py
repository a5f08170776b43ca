"""The state in observations: the components with the positions and velocities of joints.

Positions and velocities of a joint belong together: over a step, the position changes by the time
step times the mean of the two velocities. Layouts are ranked by this relation, and the best ones
are compared by simulating recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from cwm_induction.bodies.mechanism import (
    INTEGRATORS,
    BodySimulation,
    PositionSource,
    StateLayout,
    StepRows,
    Timing,
)
from cwm_induction.continuous.samples import Array
from cwm_induction.writing.rounding import literal

MAX_LAYOUTS = 12
"""Layouts that are simulated, the best by kinematics first."""

MAX_ROWS = 60
"""Rows that layouts are compared on."""

RELATED = 0.6
"""Least R² of the change of a position and the mean velocity of its joint."""

ENOUGH = 0.9
"""Share of right rows that ends the search."""


class FittedLayout(NamedTuple):
    """A layout with its timing, its error (see `_judge`) and the share of rows that it predicts."""

    layout: StateLayout
    timing: Timing
    error: float
    right: float


class _RankedLayout(NamedTuple):
    """A layout with its score by kinematics, and the seconds per step that it suggests."""

    layout: StateLayout
    score: float
    seconds: float


def fit_layout(
    mechanism: BodySimulation, rows: StepRows, rng: np.random.Generator
) -> FittedLayout | None:
    """Return the layout that predicts most, with its timing; None if no layout predicts a row."""
    is_clipped = (np.abs(rows.observations) >= rows.bounds).any(axis=1)
    usable = np.flatnonzero(~is_clipped & ~rows.ends)
    if not len(usable):
        return None
    sample, best = rows[np.sort(rng.permutation(usable)[:MAX_ROWS])], None
    for layout, _, seconds in _ranked(mechanism, rows[usable])[:MAX_LAYOUTS]:
        skip = max(1, round(seconds / mechanism.model.opt.timestep))
        found = _judge(mechanism, sample, layout, Timing(skip, mechanism.integrator))
        if best is None or found.error < best.error:
            best = found
        if best.right > ENOUGH:
            return best
    if best is None:
        return None
    best = _best_timing(mechanism, sample, best.layout, best.timing.frame_skip)
    return best if best.right > 0 else None


def _best_timing(
    mechanism: BodySimulation, sample: StepRows, layout: StateLayout, skip: int
) -> FittedLayout:
    """Return the layout with the best integrator and the best frame skip near `skip`."""
    own, found = mechanism.integrator, []
    skips = sorted(range(max(1, skip - 2), skip + 3), key=lambda each: abs(each - skip))
    for integrator, each in product((own, *(i for i in INTEGRATORS if i != own)), skips):
        found.append(_judge(mechanism, sample, layout, Timing(each, integrator)))
        if found[-1].right > ENOUGH:
            return found[-1]
    return min(found, key=lambda each: each.error)


def _judge(
    mechanism: BodySimulation, sample: StepRows, layout: StateLayout, timing: Timing
) -> FittedLayout:
    """Simulate the sample; the error is logarithmic, and decreases with each explained component.

    A component that the layout does not explain counts like a prediction without a model.
    """
    after = mechanism.simulate(layout, sample, timing, ("qpos", "qvel")).after
    used = layout.used
    seen = layout.expected(after["qpos"], after["qvel"], sample.after.shape[1])[:, used]
    errors = np.abs(
        np.clip(seen, -sample.bounds[used], sample.bounds[used]) - sample.after[:, used]
    )
    median = np.median(errors / (sample.after[:, used].std(axis=0) + 1e-9), axis=0).clip(1e-7, 10)
    error = float(np.log10(median).sum()) / sample.after.shape[1]
    return FittedLayout(
        layout, timing, error, float(sample.is_right(seen, used).all(axis=1).mean())
    )


def _ranked(mechanism: BodySimulation, rows: StepRows) -> list[_RankedLayout]:
    """Return the layouts, the best by kinematics first."""
    found: dict[StateLayout, _RankedLayout] = {}
    for circles in _circle_sets(rows.observations):
        for ranked in _layouts(mechanism, rows, circles):
            known = found.get(ranked.layout)
            if known is None or ranked.score > known.score:
                found[ranked.layout] = ranked
    return sorted(found.values(), key=lambda ranked: -ranked.score)


def _circle_sets(observations: Array) -> list[list[PositionSource]]:
    """Return the possible readings of components as sines and cosines: none, or one per order."""
    squares = observations**2
    moving = np.flatnonzero(np.ptp(squares, axis=0) > 0).tolist()
    pairs = [
        (i, j)
        for i, j in product(moving, moving)
        if i < j and np.abs(squares[:, i] + squares[:, j] - 1).max() < 1e-5
    ]
    if not pairs or len({part for pair in pairs for part in pair}) != 2 * len(pairs):
        return [[]]
    return [[PositionSource(*pair) for pair in pairs], [PositionSource(j, i) for i, j in pairs]]


def _layouts(
    mechanism: BodySimulation, rows: StepRows, circles: list[PositionSource]
) -> Iterator[_RankedLayout]:
    """Yield the layouts with at least one pair of a position and a velocity.

    Circles are consecutive hinges. Plain positions and velocities are consecutive components.
    """
    model, size = mechanism.model, rows.after.shape[1]
    taken = {part for source in circles for part in source}
    free = {i for i in range(size) if i not in taken}
    relations = _relations(rows, [*circles, *(PositionSource(i) for i in sorted(free))])
    hinges = [joint.position for joint in mechanism.scalar_joints if not joint.direction.any()]
    for start in range(len(hinges) - len(circles) + 1) if circles else [0]:
        angles = dict(zip(hinges[start : start + len(circles)], circles, strict=True))
        plain = [i for i in range(model.nq) if i not in angles]
        for shift, offset in product(range(-len(plain), size), range(1 - model.nv, size)):
            positions: list[PositionSource | None] = [angles.get(i) for i in range(model.nq)]
            for component, index in enumerate(plain, shift):
                if component in free:
                    positions[index] = PositionSource(component)
            velocities = [i + offset if i + offset in free else None for i in range(model.nv)]
            found = _scored(mechanism, relations, positions, velocities)
            if found is not None:
                yield found


class _Relation(NamedTuple):
    """R² and slope of the change of a position by the mean velocity in a component.

    R² is -1 if the position never moves.
    """

    fit: float
    slope: float


def _relations(
    rows: StepRows, sources: list[PositionSource]
) -> dict[PositionSource, list[_Relation]]:
    """Return the relations of each position with all components."""
    speeds = (rows.observations + rows.after) / 2
    power, found = (speeds**2).sum(axis=0) + 1e-300, {}
    for source in sources:
        change = source.read(rows.after) - source.read(rows.observations)
        if source.cosine is not None:
            change = (change + np.pi) % (2 * np.pi) - np.pi
        total = float((change**2).sum())
        slopes = change @ speeds / power
        if total <= 1e-16 * len(rows):
            fits = np.full(len(slopes), -1.0)
        else:
            fits = np.where(slopes > 0, slopes**2 * power / total, 0.0)
            fits[[part for part in source if part is not None]] = 0.0
        found[source] = [_Relation(*pair) for pair in zip(fits.tolist(), slopes, strict=True)]
    return found


def _scored(
    mechanism: BodySimulation,
    relations: dict[PositionSource, list[_Relation]],
    positions: list[PositionSource | None],
    velocities: list[int | None],
) -> _RankedLayout | None:
    """Return the layout, without joints that contradict the kinematics, and its score.

    Returns None if two values have one component, or no pair agrees with the kinematics.
    """
    score, pairs = 0.0, list[_Relation]()
    for position, velocity, _ in mechanism.scalar_joints:
        source, component = positions[position], velocities[velocity]
        if source is None or component is None:
            continue
        relation = relations[source][component]
        if relation.fit < 0:
            velocities[velocity] = None  # a joint that never moves
        elif relation.fit < RELATED:
            positions[position] = velocities[velocity] = None
            score -= 1
        else:
            pairs.append(relation)
            score += min(7.0, -math.log(1.0000001 - relation.fit))
    layout = StateLayout(tuple(positions), tuple(velocities))
    used = layout.used
    if len(set(used)) < len(used) or not pairs:
        return None
    return _RankedLayout(layout, score + 0.01 * len(used), max(pairs).slope)


READ_SHARE = 0.9
"""Least share of rows with the right value."""


class Point(NamedTuple):
    """The origin of a body or a site: its array of `MjData`, its place there, label and code."""

    field: str
    place: int
    label: str
    code: str


class ArrayElement(NamedTuple):
    """An element of an array expression of the program, with its values after the steps."""

    array: str
    place: int
    size: int
    values: Array


def points_of(mechanism: BodySimulation) -> list[Point]:
    """Return all bodies except the fixed one, and all sites."""
    model = mechanism.model

    def point(kind: str, field: str, index: int, name: str) -> Point:
        code = f'data.{kind}("{name}").xpos' if name else f"data.{field}[{index}]"
        return Point(field, index, name or f"{kind}{index}", code)

    return [
        *(point("body", "xpos", i, model.body(i).name) for i in range(1, model.nbody)),
        *(point("site", "site_xpos", i, model.site(i).name) for i in range(model.nsite)),
    ]


def find_readings(
    mechanism: BodySimulation,
    rows: StepRows,
    arrays: dict[str, Array],
    components: list[int],
    sample: Array,
) -> dict[int, ArrayElement]:
    """Return the elements of arrays that components show.

    A component that never changes is the element next to the element of its neighbour, or a
    constant.

    Args:
        mechanism: The body.
        rows: The recorded steps.
        arrays: Arrays of `MjData` after the steps.
        components: The components that the state does not determine.
        sample: Indices of the rows that elements are compared on.
    """
    rows = rows[sample]
    candidates = [*_candidates(mechanism, {name: array[sample] for name, array in arrays.items()})]
    values = np.stack([each.values for each in candidates], axis=1)

    def is_next(place: int, step: int) -> bool:
        inside = 0 <= place + step < len(candidates)
        return inside and candidates[place + step].array == candidates[place].array

    found: dict[int, int] = {}
    constant = [c for c in components if np.ptp(rows.after[:, c]) == 0]
    for component in components:
        if component in constant:
            continue
        shares = rows.is_right(values, [component] * len(candidates)).mean(axis=0)
        previous = found.get(component - 1)
        if previous is not None and is_next(previous, 1):
            shares[previous + 1] += 1e-9  # the next element, if others are as good
        if shares.max() >= READ_SHARE:
            found[component] = int(shares.argmax())
    for step in (1, -1):
        for component in constant[::step]:
            near = found.get(component - step)
            if component not in found and near is not None and is_next(near, step):
                right = rows.is_right(values[:, [near + step]], [component])
                found.update({component: near + step} if right.mean() >= READ_SHARE else {})
    every = {
        place: element
        for place, element in enumerate(_candidates(mechanism, arrays))
        if place in found.values()
    }
    readings = {component: every[place] for component, place in found.items()}
    for component in set(constant) - readings.keys():
        value = float(rows.after[0, component])
        values = np.full(len(arrays["qpos"]), value)
        readings[component] = ArrayElement(f"np.full(1, {literal(value)})", 0, 1, values)
    return readings


def _candidates(mechanism: BodySimulation, arrays: dict[str, Array]) -> Iterator[ArrayElement]:
    """Yield elements, the simplest first: of points, other arrays and differences of points."""
    points = points_of(mechanism)
    for point in points:
        yield from _elements(point.code, arrays[point.field][:, point.place])
    for name, array in arrays.items():
        if name not in ("qpos", "qvel", "xpos", "site_xpos"):
            code = f"data.{name}" + (".ravel()" if array.ndim > 2 else "")
            yield from _elements(code, array.reshape(len(array), -1))
    for one, other in permutations(points, 2):
        ends = (arrays[point.field][:, point.place] for point in (one, other))
        yield from _elements(f"({one.code} - {other.code})", np.subtract(*ends))


def _elements(code: str, array: Array) -> Iterator[ArrayElement]:
    """Yield the elements of an array with values (rows, size)."""
    size = array.shape[1]
    yield from (ArrayElement(code, index, size, array[:, index]) for index in range(size))
