"""Rewards and the end of episodes, fitted to simulated steps.

A reward is a weighted sum of a few terms: speed, effort, distances, squares. A step ends the
episode if a quantity leaves its healthy range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from cwm_induction.bodies.layout import FittedLayout, Point, points_of
from cwm_induction.bodies.mechanism import BodySimulation, SimulatedSteps, StepRows, is_right
from cwm_induction.continuous.least_squares import shortened
from cwm_induction.continuous.samples import Array
from cwm_induction.rules import Feature, ThresholdRule, learn_rule

REWARDED = 0.95
"""Share of rows with the right reward that ends the search for further terms."""

LOST_SHARE = 0.005
"""Share of right rows that leaving out or rounding a term may cost."""

MAX_MOVING_BODIES = 3
"""Bodies whose speed may be rewarded: the root and the next ones."""

AXES = "xyz"


class ExplainedSteps(NamedTuple):
    """Recorded steps whose state the simulation predicts, and the simulated steps."""

    mechanism: BodySimulation
    found: FittedLayout
    rows: StepRows
    steps: SimulatedSteps


class BodyQuantity(NamedTuple):
    """A number of the simulation: its name, its expression, and its values in all rows.

    `before` is a statement that the program runs before the simulation, "" for none.
    """

    name: str
    code: str
    values: Array
    before: str = ""


@dataclass(frozen=True)
class FittedReward:
    """Terms of a reward and their weights, and the share of rows with the right reward."""

    terms: tuple[tuple[BodyQuantity, float], ...] = ()
    right: float = 0.0


def fit_reward(explained: ExplainedSteps) -> FittedReward:
    """Return the fewest terms that explain the rewards."""
    rewards = explained.rows.rewards
    best = FittedReward(right=-1.0)
    for terms in _levels(explained):
        weights, right = _fit(terms, rewards)
        if right >= REWARDED:
            return _pruned(terms, rewards, right)
        if right > best.right + 0.05:
            best = _weighted(terms, weights, right)
    return best


def fit_ends(explained: ExplainedSteps) -> ThresholdRule:
    """Return the rule for steps that end an episode; positions are simpler than velocities."""
    positions, sites, bodies, speeds = _quantities(explained)
    groups = (_with_sizes(positions), sites, bodies, _with_sizes(speeds))
    features = [
        Feature(code, values, cost, label=name)
        for cost, quantities in enumerate(groups, 1)
        for name, code, values, _ in quantities
    ]
    return learn_rule(features, explained.rows.ends)


def _identifier(*words: str) -> str:
    """Return words joined to a valid name."""
    name = re.sub(r"\W+", "_", "_".join(filter(None, words))).strip("_").lower()
    return f"n{name}" if name[:1].isdigit() else name


def _quantities(explained: ExplainedSteps) -> tuple[list[BodyQuantity], ...]:
    """Return visible positions, places of sites and of bodies, and velocities.

    Coordinates along which a joint with a hidden position moves the body are left out.
    """
    mechanism, found, _, steps = explained
    arrays, hidden = steps.after, _hidden_axes(explained)
    places = [
        [
            _place(point, axis, arrays)
            for point in points_of(mechanism)
            for axis in range(len(AXES))
            if point.field == field and axis not in hidden
        ]
        for field in ("site_xpos", "xpos")
    ]
    positions, velocities = (
        [
            BodyQuantity(name + word, f"data.{field}[{index}]", arrays[field][:, index])
            for index, name in enumerate(_joint_names(mechanism, field))
        ]
        for field, word in (("qpos", ""), ("qvel", "_speed"))
    )
    sources = found.layout.positions
    shown = [each for each, source in zip(positions, sources, strict=True) if source is not None]
    return shown, *places, velocities


def _place(point: Point, axis: int, arrays: dict[str, Array]) -> BodyQuantity:
    """Return a coordinate of a point."""
    values = arrays[point.field][:, point.place, axis]
    return BodyQuantity(_identifier(point.label, AXES[axis]), f"{point.code}[{axis}]", values)


def _with_sizes(quantities: list[BodyQuantity]) -> Iterator[BodyQuantity]:
    """Yield quantities, and before each one with both signs its absolute value."""
    for quantity in quantities:
        name, code, values, _ = quantity
        if values.min() < 0 < values.max():
            yield BodyQuantity(f"{name}_size", f"abs({code})", np.abs(values))
        yield quantity


def _joint_names(mechanism: BodySimulation, field: str) -> list[str]:
    """Return a name for each element of `qpos` or `qvel`."""
    model = mechanism.model
    starts, size = {"qpos": (model.jnt_qposadr, model.nq), "qvel": (model.jnt_dofadr, model.nv)}[
        field
    ]
    return [
        _identifier(model.joint(joint).name or f"joint{joint}", str(i) if n > 1 else "")
        for joint, n in enumerate(np.diff([*starts, size]).tolist())
        for i in range(n)
    ]


def _hidden_axes(explained: ExplainedSteps) -> set[int]:
    """Return the axes along which joints with a hidden position move the body."""
    positions = explained.found.layout.positions
    hidden = (
        np.flatnonzero(np.abs(joint.direction) > 1e-9).tolist()
        for joint in explained.mechanism.scalar_joints
        if positions[joint.position] is None
    )
    return {axis for axes in hidden for axis in axes}


def _levels(explained: ExplainedSteps) -> Iterator[list[BodyQuantity]]:
    """Yield lists of terms, the simplest first."""
    seconds = explained.found.timing.frame_skip * explained.mechanism.model.opt.timestep
    basic = list(_basic_terms(explained, seconds))
    yield basic
    yield basic + list(_distance_terms(explained))
    motion = basic + list(_motion_terms(explained, seconds))
    yield motion
    yield motion + list(_square_terms(explained))


def _basic_terms(explained: ExplainedSteps, seconds: float) -> Iterator[BodyQuantity]:
    """Yield the constant, survival, effort, and the speeds of the root along axes."""
    mechanism, _, rows, steps = explained
    if rows.ends.any():
        yield BodyQuantity("alive_reward", "(not ends)", (~rows.ends).astype(float))
    yield BodyQuantity("base_reward", "1.0", np.ones(len(rows)))
    effort = np.square(rows.actions).sum(axis=1)
    yield BodyQuantity("control_weight", "np.dot(action, action)", effort)
    names = _joint_names(mechanism, "qpos")
    for index, _, direction in mechanism.scalar_joints:
        if direction.any():
            both = (steps.before["qpos"][:, index], steps.after["qpos"][:, index])
            yield _speed(names[index], f"data.qpos[{index}]", *both, seconds)


def _speed(name: str, code: str, before: Array, after: Array, seconds: float) -> BodyQuantity:
    """Return the speed of a quantity, from its values before and after the step."""
    return BodyQuantity(
        f"{name}_speed_weight",
        f"({code} - {name}_before) / self.seconds",
        (after - before) / seconds,
        before=f"{name}_before = {code}",
    )


def _distance_terms(explained: ExplainedSteps) -> Iterator[BodyQuantity]:
    """Yield the distances of all pairs of points after the step, and their squares."""
    for one, other in combinations(points_of(explained.mechanism), 2):
        ends = [explained.steps.after[p.field][:, p.place] for p in (one, other)]
        distance = np.linalg.norm(ends[0] - ends[1], axis=1)
        name = _identifier(one.label, other.label, "distance")
        code = f"np.linalg.norm({one.code} - {other.code})"
        yield BodyQuantity(f"{name}_weight", code, distance)
        yield BodyQuantity(f"{name}_square_weight", f"{code} ** 2", distance**2)


def _motion_terms(explained: ExplainedSteps, seconds: float) -> Iterator[BodyQuantity]:
    """Yield speeds of the first bodies and of the centre of mass, and costs of contact forces."""
    mechanism, _, rows, steps = explained
    masses = mechanism.model.body_mass / mechanism.model.body_mass.sum()
    for axis, letter in enumerate(AXES):
        code = f"np.average(data.xipos[:, {axis}], weights=self.model.body_mass)"
        before, after = (a["xipos"][:, :, axis] @ masses for a in (steps.before, steps.after))
        yield _speed(f"centre_{letter}", code, before, after, seconds)
    for point, axis in product(points_of(mechanism)[:MAX_MOVING_BODIES], range(len(AXES))):
        one, other = (_place(point, axis, a) for a in (steps.before, steps.after))
        yield _speed(one.name, one.code, one.values, other.values, seconds)
    if "cfrc_ext" not in steps.after:
        return
    for bound in [np.inf, *np.unique(rows.bounds[np.isfinite(rows.bounds)]).tolist()]:
        code = "data.cfrc_ext"
        if np.isfinite(bound):
            code = f"np.clip({code}, -{bound:g}, {bound:g})"
        cost = np.square(steps.after["cfrc_ext"].clip(-bound, bound)).sum(axis=(1, 2))
        yield BodyQuantity("contact_weight", f"np.sum(np.square({code}))", cost)


def _square_terms(explained: ExplainedSteps) -> Iterator[BodyQuantity]:
    """Yield positions and places of points, then squares, also of velocities."""
    positions, sites, bodies, velocities = _quantities(explained)
    places = [*positions, *(sites or bodies)]
    for name, code, values, _ in places:
        yield BodyQuantity(f"{name}_weight", code, values)
    for name, code, values, _ in [*places, *velocities]:
        yield BodyQuantity(f"{name}_square_weight", f"{code} ** 2", values**2)


def _matrix(terms: list[BodyQuantity]) -> Array:
    return np.stack([term.values for term in terms], axis=1)


def _fit(terms: list[BodyQuantity], rewards: Array) -> tuple[Array, float]:
    """Return the weights of terms, and the share of right rewards.

    The second fit leaves out the rows that the first one predicts worst.
    """
    matrix = _matrix(terms)
    weights = _least_squares(matrix, rewards)
    errors = np.abs(matrix @ weights - rewards)
    if not is_right(matrix @ weights, rewards).all():
        kept = errors <= np.quantile(errors, 0.9)
        weights = _least_squares(matrix[kept], rewards[kept])
    return weights, float(is_right(matrix @ weights, rewards).mean())


def _least_squares(matrix: Array, rewards: Array) -> Array:
    """Return the weights with the least squares; columns of zeros get 0."""
    size = np.sqrt(np.square(matrix).mean(axis=0))
    scale = np.where(size > 1e-12, size, np.inf)
    weights: Array = np.linalg.lstsq(matrix / scale, rewards, rcond=1e-11)[0] / scale
    return weights


def _pruned(terms: list[BodyQuantity], rewards: Array, right: float) -> FittedReward:
    """Leave out all terms that no row needs, the last terms first, and round the weights."""
    least = right - LOST_SHARE
    for term in terms[::-1]:
        rest = [each for each in terms if each is not term]
        if rest and _fit(rest, rewards)[1] >= least:
            terms = rest
    weights, right = _fit(terms, rewards)
    matrix = _matrix(terms)
    weights = shortened(
        weights,
        lambda trial: bool(is_right(matrix @ trial, rewards).mean() >= right),
        range(len(terms)),
        9,
    )
    return _weighted(terms, weights, float(is_right(matrix @ weights, rewards).mean()))


def _weighted(terms: list[BodyQuantity], weights: Array, right: float) -> FittedReward:
    """Return a reward without the terms of weight 0."""
    pairs = zip(terms, weights.tolist(), strict=True)
    return FittedReward(tuple((term, weight) for term, weight in pairs if weight), right)
