"""Joints, their observed motion, and fitted mechanisms."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from cwm_induction.continuous.least_squares import RIGHT
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import Variable
from cwm_induction.mechanics.mechanism import Mechanism, Stepping
from cwm_induction.writing.rounding import rounded


class Joint(NamedTuple):
    """A coordinate and its velocity."""

    position: Variable
    velocity: Variable


@dataclass(frozen=True)
class Motion:
    """Coordinates, velocities and inputs of some rows, and their changes after `time`.

    `turn` is the change of the coordinates `q`, and `after` contains the next velocities. The
    `tolerance` of coordinates and velocities is a quarter of the largest accepted error.
    """

    q: Array
    v: Array
    u: Array
    turn: Array
    after: Array
    tolerance: Array
    time: float

    noise: ClassVar[float] = 0.02
    """A fit with a median residual below this value needs no other integrator."""
    price: ClassVar[float] = 150.0
    """Cost of a residual per parameter, in multiplications."""

    @classmethod
    def of(cls, joints: Sequence[Joint], inputs: Sequence[NamedColumn], time: float) -> "Motion":
        """Collect the columns of joints and inputs."""

        def stacked(columns: Sequence[Array]) -> Array:
            return np.stack(columns, 1) if columns else np.zeros((len(joints[0].position.now), 0))

        return cls(
            q=stacked([joint.position.now for joint in joints]),
            v=stacked([joint.velocity.now for joint in joints]),
            u=stacked([column.values for column in inputs]),
            turn=stacked([joint.position.change for joint in joints]),
            after=stacked([joint.velocity.then for joint in joints]),
            tolerance=stacked(
                [joint.position.quarter for joint in joints]
                + [joint.velocity.quarter for joint in joints]
            ),
            time=time,
        )

    @property
    def speeds(self) -> tuple[Array, ...]:
        """The velocities before and after a step; either may determine the coordinate change."""
        return self.v, self.after

    @property
    def momentary(self) -> "Motion":
        """The motion with observed or estimated velocities, for linear fits of accelerations."""
        return self

    @property
    def unrest(self) -> float:
        """The median change of a velocity, in the units of the residuals."""
        change = np.abs(self.after - self.v) / self.tolerance[:, self.v.shape[1] :]
        return float(np.median(change))

    def residuals(self, form: Mechanism, stepping: Stepping, points: Array) -> Array:
        """Return the errors (B, rows, outputs) in units of the tolerance."""
        with np.errstate(all="ignore"):
            q, v, _ = form.step(points, self.q, self.v, self.u, stepping)
            error = np.concatenate([q - self.q - self.turn, v - self.after], -1) / self.tolerance
        return _bounded(error)

    def rows(self, chosen: Array) -> Self:
        """Return some of the rows."""
        columns = (field.name for field in fields(self) if field.name != "time")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True)
class UnseenMotion(Motion):
    """Two consecutive steps with observed coordinates and unobserved velocities.

    The initial velocities are solved for: the first step must lead to the observed coordinates.
    `v` is the initial guess of this solution. The residuals are the errors after the second step,
    with input `u_later` and a change of the coordinates by `later`.
    """

    later: Array
    u_later: Array

    noise: ClassVar[float] = 0.1
    price: ClassVar[float] = 1200.0

    @classmethod
    def following(cls, motion: Motion, u_later: Array) -> "UnseenMotion":
        """Convert a motion whose velocities are changes of coordinates over a step."""
        columns = {name: getattr(motion, name) for name in ("q", "v", "u", "turn", "after", "time")}
        tolerance = motion.tolerance[:, : motion.q.shape[1]]
        later = motion.time * motion.after
        return cls(**columns, tolerance=tolerance, later=later, u_later=u_later)

    @property
    def speeds(self) -> tuple[Array, ...]:
        """No velocities, because none are observed."""
        return ()

    @property
    def momentary(self) -> Motion:
        """The estimated motion in the middle of the two steps."""
        speed, jump = (self.turn + self.later) / 2, self.later - self.turn
        return Motion(
            q=self.q + self.turn,
            v=speed / self.time,
            u=(self.u + self.u_later) / 2,
            turn=self.later,
            after=(speed + jump) / self.time,
            tolerance=np.concatenate([self.tolerance, self.tolerance / self.time], 1),
            time=self.time,
        )

    def residuals(self, form: Mechanism, stepping: Stepping, points: Array) -> Array:
        """Return the errors (B, rows, coordinates) of the second step."""
        with np.errstate(all="ignore"):
            v = shot(self, form, points, stepping)
            _, v, _ = form.step(points, self.q, v, self.u, stepping)
            between = self.q + self.turn
            q, _, _ = form.step(points, between, v, self.u_later, stepping)
            error = (q - between - self.later) / self.tolerance
        return _bounded(error)


@dataclass(frozen=True)
class Mechanics:
    """A fitted mechanism.

    `right` is the fraction of small errors in held-out rows, and `median` is their median error.
    """

    form: Mechanism
    point: Array
    stepping: Stepping
    joints: tuple[Joint, ...]
    inputs: tuple[NamedColumn, ...]
    right: float = 0.0
    median: float = np.inf

    def residuals(self, motion: Motion) -> Array:
        """Return the errors (rows, outputs) in units of the tolerance."""
        own: Array = motion.residuals(self.form, self.stepping, self.point[None])[0]
        return own

    def explains(self, motion: Motion) -> Array:
        """Return the mask of rows without any error above the accepted size."""
        mask: Array = (np.abs(self.residuals(motion)) <= RIGHT).all(1)
        return mask

    @property
    def names(self) -> list[str]:
        """Names of the coordinates and velocities."""
        return [variable.name for joint in self.joints for variable in joint]


NEWTON = 4
"""Newton steps until the velocities are exact to machine precision."""


def shot(motion: Motion, form: Mechanism, points: Array, stepping: Stepping) -> Array:
    """Solve for the velocities (B, rows, n) before a step to the observed coordinates.

    Newton's method starts from the velocities of the motion. It uses the derivatives of the first
    parameter vector for all others, which must be close to the first.
    """

    def position_errors(points: Array, v: Array) -> Array:
        q, _, _ = form.step(points, motion.q, v, motion.u, stepping)
        errors: Array = q - motion.q - motion.turn
        return errors

    def newton_step(v: Array, errors: Array) -> Array:
        usable = np.abs(np.linalg.det(slopes)) > 1e-12
        regular = np.where(usable[..., None, None], slopes, np.eye(len(nudges)))
        step = np.linalg.solve(regular, errors[..., None])[..., 0]
        improved: Array = v - np.where(usable[..., None] & np.isfinite(step), step, 0.0)
        return improved

    v, first = motion.v[None], points[:1]
    nudges = 1e-6 * np.eye(motion.q.shape[1])
    for _ in range(NEWTON):
        errors = position_errors(first, v)
        slopes = (
            np.stack([position_errors(first, v + nudge) - errors for nudge in nudges], -1) / 1e-6
        )
        v = newton_step(v, errors)
    return newton_step(v, position_errors(points, v))


WEIGHTS = (0.0, 1.0, 0.5, *(0.5 + 0.5 / parts for parts in (2, 3, 4, 5, 6)))
"""Possible weights of the next velocity in the change of a coordinate: 0.5 for an average, larger
weights for a semi-implicit integrator with several parts per step."""

ROUGH = 1e-3
"""A step time is only approximate above this unexplained fraction of the changes: velocities change
during long steps."""

ROOM, FINE, COARSE = 2.0, 1e-6, 0.03
"""Relative accuracy of a rounded step time: `ROOM` times the unexplained fraction, at least `FINE`
(about the precision of float32), and `COARSE` for an approximate time."""

DIGITS = 6
"""Maximum number of digits of a step time."""


class _Pairing(NamedTuple):
    """A joint with the estimated step time, and the unexplained fraction of its changes."""

    unexplained: float
    time: float
    joint: Joint


def joints_of(samples: Samples, variables: Sequence[Variable]) -> tuple[list[Joint], float]:
    """Return pairs of coordinates and their velocities, and the time of a step."""
    pairings = [
        pairing
        for velocity in variables
        if not velocity.is_angle and not velocity.is_kept
        for position in variables
        if position.name != velocity.name
        and (pairing := _pairing(samples, Joint(position, velocity))) is not None
    ]
    chosen: list[_Pairing] = []
    for pairing in sorted(pairings, key=lambda pairing: pairing.unexplained):
        taken = {variable.name for other in chosen for variable in other.joint}
        free = not taken & {variable.name for variable in pairing.joint}
        if free and (not chosen or abs(pairing.time / chosen[0].time - 1) < 0.15):
            chosen.append(pairing)
    order = [variable.name for variable in variables]
    time = _round_time(chosen[0]) if chosen else 0.0
    chosen.sort(key=lambda pairing: order.index(pairing.joint.position.name))
    return [pairing.joint for pairing in chosen], time


def _pairing(samples: Samples, joint: Joint) -> _Pairing | None:
    """Fit the changes of a coordinate to its velocity; return None for a poor median error."""
    rows = samples.smooth & joint.position.free & joint.velocity.free
    turn = joint.position.change[rows]
    before, after = joint.velocity.now[rows], joint.velocity.then[rows]
    if len(turn) < 10 or np.ptp(turn) < 1e-12 or np.ptp(before) < 1e-9:
        return None
    fits = []
    for weight in WEIGHTS:
        speed = (1 - weight) * before + weight * after
        fast = np.abs(speed) > np.median(np.abs(speed))
        time = float(np.median(turn[fast] / speed[fast])) if fast.any() else 0.0
        error = np.median(np.abs(turn - time * speed)) / (np.median(np.abs(turn)) + 1e-300)
        fits.append(_Pairing(float(error), time, joint))
    best = min(fits, key=lambda pairing: pairing.unexplained)
    return best if best.time > 0 and best.unexplained < 0.3 else None


def _round_time(best: _Pairing) -> float:
    """Return the step time with the fewest digits that are accurate enough."""
    near = max(FINE, ROOM * best.unexplained) if best.unexplained < ROUGH else COARSE
    digits = (rounded(best.time, count) for count in range(1, DIGITS))
    last = rounded(best.time, DIGITS)
    return next((each for each in digits if abs(each / best.time - 1) < near), last)


def _bounded(error: Array) -> Array:
    """Return errors with finite squares; errors that are not numbers become large."""
    finite = np.nan_to_num(error, nan=1e6, posinf=1e6, neginf=-1e6)
    bounded: Array = np.clip(finite, -1e8, 1e8)
    return bounded
