"""Velocities that nobody sees: what was seen before and after a step stands for them.

Where coordinates move by the velocity before a step, or by the one after it, their changes say how
fast they were, and the equations are those of a system of which everything is seen. Where the
velocity changes within a step only the mechanism itself can tell which one leads to what was seen.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.chains import Chains
from cwm_induction.continuous.samples import Array, Remembered, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import Variable, inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.mechanics.fitting import fit
from cwm_induction.mechanics.mechanism import Stepping
from cwm_induction.mechanics.motion import (
    Joint,
    Mechanics,
    Motion,
    UnseenMotion,
    joints_of,
    shot,
)
from cwm_induction.writing.rounding import simplest_between

NICE = (5.0, 2.0, 1.0)
"""First digits of the length of a step, which what is seen does not tell."""

RIGHT_SHARE = 0.9
"""Share of what is held back that a mechanism explains at least, for its velocities to be taken."""

FEWEST = 4
"""Values as near to the largest one as they are off at most, from which on it is a limit."""


Way = Literal["after", "before", "between"]
"""By which velocity coordinates move: the one after a step, before it, or what is in between."""

SLIGHT = 0.05
"""Of a change of pace, in standard deviations: a push that tells no more of it tells nothing."""


def ways(data: Dataset) -> tuple[Way, ...]:
    """Return by which velocities coordinates may move, the likeliest first.

    A push is seen at once where they move by the velocity after a step, one step later where they
    move by the one before it, and half and half where the velocity changes on the way.
    """
    samples = Samples.of(data, np.zeros(len(data), bool))
    rows = np.flatnonzero(_follows(samples, data))
    moving = [v for v in latents(samples).variables if np.ptp(v.change[samples.smooth]) > 0]
    pushes = np.stack([column.values for column in _pushes(samples)[-1]], 1)
    known = [*(v.now[rows + 1] for v in moving), *(v.change[rows] for v in moving)]
    columns = np.column_stack([pushes[rows + 1], pushes[rows], *known, np.ones(len(rows))])
    scale = np.where(columns.std(0) > 0, columns.std(0), 1.0)
    now, earlier = SLIGHT, SLIGHT
    for variable in moving:
        jump = variable.change[rows + 1] - variable.change[rows]
        weights = np.abs(np.linalg.lstsq(columns / scale, jump, rcond=1e-9)[0])
        weights = weights[: 2 * pushes.shape[1]] / (jump.std() + 1e-12)
        now = max(now, float(weights[: pushes.shape[1]].max()))
        earlier = max(earlier, float(weights[pushes.shape[1] :].max()))
    if now == earlier or not 0.5 < now / earlier < 2:
        return ("before", "after", "between") if earlier > now else ("after", "before", "between")
    return "between", "after", "before"


def _pushes(samples: Samples) -> list[list[NamedColumn]]:
    """Return what may push: an action's number, or each action but the first for itself."""
    inputs = inputs_of(samples)
    if samples.action_space.kind != "discrete":
        return [inputs]
    return [inputs[:1], *([inputs[2:]] if len(inputs) > 2 else [])]


def _follows(samples: Samples, data: Dataset) -> Array:
    """Mask of the rows, but for the last, that the next one goes on from."""
    episodes = data.columns["episodes"]
    same = (samples.after[:-1] == samples.before[1:]).all(1)
    mask: Array = same & (episodes[:-1] == episodes[1:]) & ~samples.terminated[:-1]
    return mask


class UnseenVelocities(NamedTuple):
    """How fast coordinates that are seen move from row to row, in units of `time` for a step.

    Speeds are those of `changes` (coordinates, rows). `follows` marks the rows, but for the last,
    that the next one goes on from.
    """

    samples: Samples
    coordinates: Sequence[Variable]
    follows: Array
    time: float

    @classmethod
    def of(
        cls,
        data: Dataset,
        held_back: Array,
        effort: Effort,
        only: str = "",
    ) -> Self | None:
        """Look for coordinates whose velocity is not seen, or for one; None where there is none."""
        samples = Samples.of(data, held_back)
        found = _without_velocity(samples, effort)
        coordinates = [variable for variable in found if only in ("", variable.name)]
        if not coordinates:
            return None
        changes = [variable.change[samples.smooth] for variable in coordinates]
        return cls(samples, coordinates, _follows(samples, data), _time(changes))

    @property
    def speeds(self) -> Array:
        """The changes of coordinates (coordinates, rows) over a step."""
        return np.stack([variable.change for variable in self.coordinates]) / self.time

    @property
    def noise(self) -> list[float]:
        """How far speeds are off, because what is seen is rounded."""
        sizes = [1.0 if v.is_angle else float(np.abs(v.now).max()) for v in self.coordinates]
        return [4 * self.samples.grain * size / self.time for size in sizes]

    @property
    def ends(self) -> list[tuple[int, int, float, float]]:
        """Where coordinates were seen to stop: their component, their place, and both ends."""
        return [
            (int(variable.source[len("observation[") : -1]), place, variable.low, variable.high)
            for place, variable in enumerate(self.coordinates)
            if self.stopped[place].any()
        ]

    @property
    def stopped(self) -> Array:
        """Mask (coordinates, rows) of where one comes to the end of its way, which stops it."""
        return np.stack([(v.then == v.low) | (v.then == v.high) for v in self.coordinates])

    def before(self, speeds: Array | None = None, last: Array | None = None) -> Samples:
        """Return the rows with the velocities before the step, by which coordinates move.

        They are the changes, or those given (coordinates, rows), an episode ends with the `last`.
        """
        speeds = self.speeds if speeds is None else speeds
        follows, terminated = np.append(self.follows, False), self.samples.terminated
        stopped = self.stopped.any(0) & ~terminated
        rows = np.flatnonzero((follows | terminated) & ~stopped)
        then = np.where(follows, np.roll(speeds, -1, axis=1), speeds if last is None else last)
        return self.rows(rows, speeds[:, rows], then[:, rows])

    def after(self) -> Samples:
        """Return the rows with the velocities after the step, by which coordinates move."""
        follows = np.append(False, self.follows)
        rows = np.flatnonzero(follows & (~self.stopped.any(0) | self.samples.terminated))
        speeds = np.where(self.stopped, 0.0, self.speeds)
        return self.rows(rows, speeds[:, rows - 1], speeds[:, rows])

    def rows(self, rows: Array, now: Array, then: Array) -> Samples:
        """Return some rows with velocities (coordinates, rows) before and after the step."""
        samples, count, noise = self.samples, len(self.coordinates), self.noise
        pairs = zip(now, then, strict=True)
        width = samples.before.shape[1]
        ends = [_limit(np.concatenate(part), off) for part, off in zip(pairs, noise, strict=True)]
        remembered = {
            width + place: Remembered(f"{variable.name}_velocity", off)
            for place, (variable, off) in enumerate(zip(self.coordinates, noise, strict=True))
        }
        bounds, near = np.array(ends)[:, None], np.array(noise)[:, None]

        def limited(speeds: Array) -> Array:
            snapped: Array = np.where(
                np.abs(np.abs(speeds) - bounds) < near, np.sign(speeds) * bounds, speeds
            )
            return snapped.T

        return replace(
            samples,
            before=np.concatenate([samples.before[rows], limited(now)], 1),
            after=np.concatenate([samples.after[rows], limited(then)], 1),
            actions=samples.actions[rows],
            rewards=samples.rewards[rows],
            terminated=samples.terminated[rows],
            learn=samples.learn[rows],
            low=np.concatenate([samples.low, -bounds[:, 0]]),
            high=np.concatenate([samples.high, bounds[:, 0]]),
            shape=(width + count,),
            remembered=remembered,
        )

    def mechanism(
        self, rng: np.random.Generator, effort: Effort
    ) -> tuple[Samples, Mechanics] | None:
        """Return the rows with velocities that lead through a step, and what moves by them."""
        rows = np.flatnonzero(self.follows & ~(self.stopped[:, :-1] | self.stopped[:, 1:]).any(0))
        samples = self.rows(rows, self.speeds[:, rows], self.speeds[:, rows + 1])
        by_name = {variable.name: variable for variable in latents(samples).variables}
        joints = [Joint(by_name[v.name], by_name[f"{v.name}_velocity"]) for v in self.coordinates]
        for inputs in _pushes(self.samples):
            now = [column._replace(values=column.values[rows]) for column in inputs]
            later = np.stack([column.values[rows + 1] for column in inputs], 1)
            motion = UnseenMotion.following(Motion.of(joints, now, self.time), later)
            found = fit(samples, joints, now, motion, rng, effort.share(0.5))
            if found is not None and found.right > RIGHT_SHARE:
                return self._through(found, inputs), found
        return None

    def _through(self, found: Mechanics, inputs: Sequence[NamedColumn]) -> Samples:
        """Return the rows with the velocities by which a mechanism leads to what was seen."""
        whole = Motion(
            q=np.stack([v.now for v in self.coordinates], 1),
            v=self.speeds.T,
            u=np.stack([column.values for column in inputs], 1),
            turn=np.stack([v.change for v in self.coordinates], 1),
            after=self.speeds.T,
            tolerance=np.ones((len(self.samples), 2 * len(self.coordinates))),
            time=self.time,
        )
        point, stepping = found.point[None], Stepping(found.time, found.integrator)
        v = shot(whole, found.form, point, stepping)
        after = found.form.step(point, whole.q, v, whole.u, stepping).v
        return self.before(v[0].T, after[0].T)


def _without_velocity(samples: Samples, effort: Effort) -> list[Variable]:
    """Return the coordinates that move as no velocity or equation of what is seen tells."""
    variables = latents(samples).variables
    joints, _ = joints_of(samples, variables)
    told = {variable.name for joint in joints for variable in joint}
    told |= Chains(samples, variables, inputs_of(samples), effort.share(0.05), 2).explain().keys()
    return [
        variable
        for variable in variables
        if variable.name not in told
        and not variable.is_whole
        and float(np.ptp(variable.change[samples.smooth])) > 1e-6
    ]


def _time(changes: Sequence[Array]) -> float:
    """Return a length of a step that makes velocities numbers of about one."""
    most = min(1.0, max(float(np.abs(change).max()) for change in changes))
    power = 10.0 ** np.floor(np.log10(most))
    return float(f"{next(digit for digit in NICE if digit * power <= most) * power:.0e}")


def _limit(speeds: Array, noise: float) -> float:
    """Return the number at which many of the largest speeds come together, or infinity.

    A limit holds in both directions unless something is faster in one.
    """
    limits = [np.inf]
    for side in (1.0, -1.0):
        edge = float((side * speeds).max())
        near = side * speeds >= edge - noise
        if edge > 0 and FEWEST <= near.sum() < 0.5 * len(speeds):
            limits.append(simplest_between(edge - noise, edge + noise))
    limit = min(limits)
    return limit if np.abs(speeds).max() < limit + noise else np.inf
