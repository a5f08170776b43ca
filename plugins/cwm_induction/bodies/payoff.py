"""Rewards and the end of episodes, fitted to simulated steps.

A reward is a weighted sum of a few terms: speed, effort, distances, squares. A step ends the
episode if a quantity leaves its healthy range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.bodies.layout import StateLayout, StepRows, is_right
from cwm_induction.bodies.mechanism import Array, BodySimulation, SimulatedSteps, Timing
from cwm_induction.bodies.readings import AXES, Point, points_of
from cwm_induction.writing.rounding import rounded, simplest_between

REWARDED = 0.95
"""Share of rows with the right reward that ends the search for further terms."""

LOST_SHARE = 0.005
"""Share of right rows that leaving out or rounding a term may cost."""

MAX_CONDITIONS = 4

MAX_MOVING_BODIES = 3
"""Bodies whose speed may be rewarded: the root and the next ones."""


class ExplainedSteps(NamedTuple):
    """Recorded steps whose state the simulation predicts, and the simulated steps."""

    mechanism: BodySimulation
    layout: StateLayout
    timing: Timing
    rows: StepRows
    steps: SimulatedSteps


@dataclass(frozen=True)
class SimulatedTerm:
    """A term of the reward: its name, its expression, its values in all rows, and its weight.

    `before` is a statement that the program runs before the simulation, "" for none.
    """

    name: str
    code: str
    values: Array
    before: str = ""
    weight: float = 0.0


@dataclass(frozen=True)
class EndCondition:
    """A condition that ends the episode: a quantity is above or below a threshold."""

    name: str
    code: str
    is_above: bool
    threshold: float


@dataclass(frozen=True)
class FittedReward:
    """A reward, and the share of rows with the right reward."""

    terms: tuple[SimulatedTerm, ...] = ()
    right: float = 0.0


def fit_reward(found: ExplainedSteps) -> FittedReward:
    """Return the fewest terms that explain the rewards."""
    rewards = found.rows.rewards
    best: FittedReward | None = None
    for terms in _levels(found):
        weights, right = _fit(terms, rewards)
        if right >= REWARDED:
            return _pruned(terms, rewards, right)
        if best is None or right > best.right + 0.05:
            best = _weighted(terms, weights, right)
    assert best is not None
    return best


def fit_ends(found: ExplainedSteps) -> tuple[EndCondition, ...]:
    """Return conditions that hold in steps that end an episode, and in no other step.

    A condition is better if it explains more ends, then if its quantity is a position rather than a
    place or a velocity, then if the threshold is next to values of steps that do not end.
    """
    conditions: list[EndCondition] = []
    rows = found.rows
    positions, sites, bodies, speeds = _quantities(found)
    groups = (_with_sizes(positions), sites, bodies, _with_sizes(speeds))
    quantities = [(group, *each) for group, some in enumerate(groups) for each in some]
    left = rows.ends.copy()
    while left.any() and not rows.ends.all() and len(conditions) < MAX_CONDITIONS:
        best: tuple[float, int, float] | None = None
        chosen: tuple[EndCondition, Array] | None = None
        for group, name, code, values in quantities:
            for is_above in (True, False):
                signed = values if is_above else -values
                most = signed[~rows.ends].max()
                covered = left & (signed > most)
                if not covered.any():
                    continue
                least = signed[covered].min()
                gap = (least - most) / (values[~rows.ends].std() + 1e-9)
                order = (-float(covered.sum()), group, gap)
                if best is None or order < best:
                    low, high = (most, least) if is_above else (-least, -most)
                    threshold = simplest_between(float(low), float(high))
                    best = order
                    chosen = EndCondition(name, code, is_above, threshold), covered
        if chosen is None:
            break
        conditions.append(chosen[0])
        left &= ~chosen[1]
    return tuple(conditions)


def identifier(*words: str) -> str:
    """Return words joined to a valid name."""
    name = re.sub(r"\W+", "_", "_".join(filter(None, words))).strip("_").lower()
    return f"n{name}" if name[:1].isdigit() else name


class _Quantity(NamedTuple):
    """Name, expression and values of a number of the simulation."""

    name: str
    code: str
    values: Array


def _quantities(found: ExplainedSteps) -> tuple[list[_Quantity], ...]:
    """Return visible positions, places of sites and of bodies, and velocities.

    Coordinates along which a joint with a hidden position moves the body are left out.
    """
    arrays, mechanism = found.steps.after, found.mechanism
    hidden = _hidden_axes(mechanism, found.layout)
    places = {
        kind: [
            _place(point, axis, arrays)
            for point in points_of(mechanism)
            for axis in range(AXES)
            if point.kind == kind and axis not in hidden
        ]
        for kind in ("site", "body")
    }
    positions = [
        _Quantity(name, f"data.qpos[{index}]", arrays["qpos"][:, index])
        for index, name in enumerate(position_names(mechanism))
        if found.layout.positions[index] is not None
    ]
    velocities = [
        _Quantity(f"{name}_speed", f"data.qvel[{index}]", arrays["qvel"][:, index])
        for index, name in enumerate(velocity_names(mechanism))
    ]
    return positions, places["site"], places["body"], velocities


def _place(point: Point, axis: int, arrays: dict[str, Array]) -> _Quantity:
    """Return a coordinate of a point."""
    values = arrays[point.field][:, point.index, axis]
    return _Quantity(identifier(_label(point), "xyz"[axis]), f"{point.code}[{axis}]", values)


def _with_sizes(quantities: list[_Quantity]) -> Iterator[_Quantity]:
    """Yield quantities, and before each one with both signs its absolute value."""
    for name, code, values in quantities:
        if values.min() < 0 < values.max():
            yield _Quantity(f"{name}_size", f"abs({code})", np.abs(values))
        yield _Quantity(name, code, values)


def position_names(mechanism: BodySimulation) -> list[str]:
    """Return a name for each element of `qpos`."""
    return _names(mechanism, mechanism.model.jnt_qposadr, mechanism.model.nq)


def velocity_names(mechanism: BodySimulation) -> list[str]:
    """Return a name for each element of `qvel`."""
    return _names(mechanism, mechanism.model.jnt_dofadr, mechanism.model.nv)


def _names(mechanism: BodySimulation, starts: Array, size: int) -> list[str]:
    return [
        identifier(mechanism.model.joint(joint).name or f"joint{joint}", str(i) if n > 1 else "")
        for joint, n in enumerate(np.diff([*starts, size]).tolist())
        for i in range(n)
    ]


def _hidden_axes(mechanism: BodySimulation, layout: StateLayout) -> set[int]:
    """Return the axes along which joints with a hidden position move the body."""
    model, hidden = mechanism.model, set[int]()
    for joint in range(model.njnt):
        start, kind = int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
        if kind == 0:  # a free joint
            hidden |= {axis for axis in range(AXES) if layout.positions[start + axis] is None}
        elif kind == 2 and layout.positions[start] is None:  # a slide
            hidden |= set(np.flatnonzero(np.abs(model.jnt_axis[joint]) > 1e-9).tolist())
    return hidden


def _levels(found: ExplainedSteps) -> Iterator[list[SimulatedTerm]]:
    """Yield lists of terms, the simplest first."""
    seconds = found.timing.frame_skip * found.mechanism.model.opt.timestep
    basic = list(_basic_terms(found, seconds))
    yield basic
    yield basic + list(_distance_terms(found))
    motion = basic + list(_motion_terms(found, seconds))
    yield motion
    yield motion + list(_square_terms(found))


def _basic_terms(found: ExplainedSteps, seconds: float) -> Iterator[SimulatedTerm]:
    """Yield the constant, survival, effort, and the speeds of the root along axes."""
    mechanism, _, _, rows, steps = found
    if rows.ends.any():
        yield SimulatedTerm("alive_reward", "(not ends)", (~rows.ends).astype(float))
    yield SimulatedTerm("base_reward", "1.0", np.ones(len(rows)))
    yield SimulatedTerm(
        "control_weight", "np.dot(action, action)", np.square(rows.actions).sum(axis=1)
    )
    model, names = mechanism.model, position_names(mechanism)
    for joint in range(model.njnt):
        start, kind = int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
        for index in {0: range(start, start + AXES), 2: [start]}.get(kind, []):
            both = (steps.before["qpos"][:, index], steps.after["qpos"][:, index])
            yield _speed(names[index], f"data.qpos[{index}]", both, seconds)


def _speed(name: str, code: str, both: tuple[Array, Array], seconds: float) -> SimulatedTerm:
    """Return the speed of a quantity, from its values before and after the step."""
    return SimulatedTerm(
        f"{name}_speed_weight",
        f"({code} - {name}_before) / self.seconds",
        (both[1] - both[0]) / seconds,
        before=f"{name}_before = {code}",
    )


def _distance_terms(found: ExplainedSteps) -> Iterator[SimulatedTerm]:
    """Yield the distances of all pairs of points after the step, and their squares."""
    for one, other in combinations(points_of(found.mechanism), 2):
        ends = [found.steps.after[p.field][:, p.index] for p in (one, other)]
        distance = np.linalg.norm(ends[0] - ends[1], axis=1)
        name = identifier(_label(one), _label(other), "distance")
        code = f"np.linalg.norm({one.code} - {other.code})"
        yield SimulatedTerm(f"{name}_weight", code, distance)
        yield SimulatedTerm(f"{name}_square_weight", f"{code} ** 2", distance**2)


def _motion_terms(found: ExplainedSteps, seconds: float) -> Iterator[SimulatedTerm]:
    """Yield speeds of the first bodies and of the centre of mass, and costs of contact forces."""
    mechanism, _, _, rows, steps = found
    masses = mechanism.model.body_mass / mechanism.model.body_mass.sum()
    for axis, letter in enumerate("xyz"):
        code = f"np.average(data.xipos[:, {axis}], weights=self.model.body_mass)"
        before, after = (a["xipos"][:, :, axis] @ masses for a in (steps.before, steps.after))
        yield _speed(f"centre_{letter}", code, (before, after), seconds)
    for point in points_of(mechanism)[:MAX_MOVING_BODIES]:
        for axis in range(AXES):
            one, other = (_place(point, axis, a) for a in (steps.before, steps.after))
            yield _speed(one.name, one.code, (one.values, other.values), seconds)
    if "cfrc_ext" not in steps.after:
        return
    forces, sizes = steps.after["cfrc_ext"], {float(b) for b in rows.bounds if np.isfinite(b)}
    for bound in [np.inf, *sorted(sizes)]:
        code = "data.cfrc_ext"
        if np.isfinite(bound):
            code = f"np.clip({code}, -{bound:g}, {bound:g})"
        cost = np.square(forces.clip(-bound, bound)).sum(axis=(1, 2))
        yield SimulatedTerm("contact_weight", f"np.sum(np.square({code}))", cost)


def _square_terms(found: ExplainedSteps) -> Iterator[SimulatedTerm]:
    """Yield positions and places of points, then squares, also of velocities."""
    positions, sites, bodies, velocities = _quantities(found)
    places = [*positions, *(sites or bodies)]
    for name, code, values in places:
        yield SimulatedTerm(f"{name}_weight", code, values)
    for name, code, values in [*places, *velocities]:
        yield SimulatedTerm(f"{name}_square_weight", f"{code} ** 2", values**2)


def _label(point: Point) -> str:
    return point.name or f"{point.kind}{point.index}"


def _fit(terms: list[SimulatedTerm], rewards: Array) -> tuple[Array, float]:
    """Return the weights of terms, and the share of right rewards.

    The second fit leaves out the rows that the first one predicts worst.
    """
    matrix = np.stack([term.values for term in terms], axis=1)
    weights = _least_squares(matrix, rewards)
    if not is_right(matrix @ weights, rewards).all():
        errors = np.abs(matrix @ weights - rewards)
        kept = errors <= np.quantile(errors, 0.9)
        weights = _least_squares(matrix[kept], rewards[kept])
    return weights, float(is_right(matrix @ weights, rewards).mean())


def _least_squares(matrix: Array, rewards: Array) -> Array:
    """Return the weights with the least squares; columns of zeros get 0."""
    size = np.sqrt(np.square(matrix).mean(axis=0))
    used = size > 1e-12
    weights = np.zeros(len(size))
    found, *_ = np.linalg.lstsq(matrix[:, used] / size[used], rewards, rcond=1e-11)
    weights[used] = found / size[used]
    return weights


def _pruned(terms: list[SimulatedTerm], rewards: Array, right: float) -> FittedReward:
    """Leave out all terms that no row needs, the last terms first, and round the weights."""
    least = right - LOST_SHARE
    for term in terms[::-1]:
        rest = [each for each in terms if each is not term]
        if rest and _fit(rest, rewards)[1] >= least:
            terms = rest
    weights, right = _fit(terms, rewards)
    matrix = np.stack([term.values for term in terms], axis=1)
    for index in range(len(terms)):
        for digits in range(1, 10):
            trial = weights.copy()
            trial[index] = rounded(float(weights[index]), digits)
            share = float(is_right(matrix @ trial, rewards).mean())
            if share >= right:
                weights = trial
                break
    share = float(is_right(matrix @ weights, rewards).mean())
    return _weighted(terms, weights, share)


def _weighted(terms: list[SimulatedTerm], weights: Array, right: float) -> FittedReward:
    """Return a reward without the terms of weight 0."""
    pairs = zip(terms, weights.tolist(), strict=True)
    return FittedReward(tuple(replace(term, weight=w) for term, w in pairs if w), right)
