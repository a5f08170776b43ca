"""Joints, and what was seen of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cwm_induction.continuous.least_squares import RIGHT
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import Variable
from cwm_induction.mechanics.mechanism import Integrator, Limit, Mechanism, Stepping
from cwm_induction.writing.rounding import rounded


class Joint(NamedTuple):
    """A coordinate and its velocity."""

    position: Variable
    velocity: Variable


@dataclass(frozen=True)
class Motion:
    """Coordinates, velocities and inputs of some rows, and what followed after `time`."""

    q: Array
    v: Array
    u: Array
    turn: Array
    after: Array
    tolerance: Array
    time: float

    noise: ClassVar[float] = 0.02
    """Below which residual a median says that there is nothing left to explain."""
    price: ClassVar[float] = 150.0
    """Multiplications that a residual costs for every parameter."""

    @classmethod
    def of(cls, joints: Sequence[Joint], inputs: Sequence[NamedColumn], time: float) -> "Motion":
        """Gather the columns of joints and inputs."""

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
        """The velocities before and after a step, by one of which coordinates may have moved."""
        return self.v, self.after

    @property
    def momentary(self) -> "Motion":
        """What was seen, for who asks for no more than accelerations."""
        return self

    @property
    def unrest(self) -> float:
        """The median change of a velocity, in the units of the residuals."""
        change = np.abs(self.after - self.v) / self.tolerance[:, self.v.shape[1] :]
        return float(np.median(change))

    def residuals(
        self,
        form: Mechanism,
        integrator: Integrator,
        points: Array,
        limits: tuple[Limit, ...] = (),
    ) -> Array:
        """Return the errors (B, rows, outputs) in units of a quarter of what counts as right."""
        stepping = Stepping(self.time, integrator, limits)
        with np.errstate(all="ignore"):
            q, v, _ = form.step(points, self.q, self.v, self.u, stepping)
            error = np.concatenate([q - self.q - self.turn, v - self.after], -1) / self.tolerance
        return _bounded(error)

    def rows(self, chosen: Array) -> "Motion":
        """Return some of the rows."""
        columns = ("q", "v", "u", "turn", "after", "tolerance")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True)
class UnseenMotion(Motion):
    """Two steps in a row of which only coordinates are seen.

    The velocities before are those that lead through the first step to what was seen, `v` is where
    they are looked for; what counts is where the second step leads to: it turns by `later`.
    """

    later: Array
    u_later: Array

    noise: ClassVar[float] = 0.1
    price: ClassVar[float] = 1200.0

    @classmethod
    def following(cls, motion: Motion, u_later: Array) -> "UnseenMotion":
        """Return motion of which velocities are the changes of coordinates over a step."""
        columns = {name: getattr(motion, name) for name in ("q", "v", "u", "turn", "after", "time")}
        tolerance = motion.tolerance[:, : motion.q.shape[1]]
        later = motion.time * motion.after
        return cls(**columns, tolerance=tolerance, later=later, u_later=u_later)

    @property
    def speeds(self) -> tuple[Array, ...]:
        """No velocities are seen."""
        return ()

    @property
    def momentary(self) -> Motion:
        """What was seen in the middle of both steps."""
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

    def residuals(
        self,
        form: Mechanism,
        integrator: Integrator,
        points: Array,
        limits: tuple[Limit, ...] = (),
    ) -> Array:
        """Return the errors (B, rows, coordinates) of the second step."""
        stepping = Stepping(self.time, integrator, limits)
        with np.errstate(all="ignore"):
            v = shot(self, form, points, stepping)
            _, v, _ = form.step(points, self.q, v, self.u, stepping)
            between = self.q + self.turn
            q, _, _ = form.step(points, between, v, self.u_later, stepping)
            error = (q - between - self.later) / self.tolerance
        return _bounded(error)

    def rows(self, chosen: Array) -> "UnseenMotion":
        """Return some of the rows."""
        columns = ("q", "v", "u", "turn", "after", "tolerance", "later", "u_later")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True)
class Mechanics:
    """A mechanism that was found, and for which share of the rows held back it is right."""

    form: Mechanism
    point: Array
    integrator: Integrator
    time: float
    joints: tuple[Joint, ...]
    inputs: tuple[NamedColumn, ...]
    right: float = 0.0
    median: float = np.inf
    limits: tuple[Limit, ...] = ()

    def residuals(self, motion: Motion) -> Array:
        """Return the errors (rows, outputs) in units of a quarter of what counts as right."""
        every = motion.residuals(self.form, self.integrator, self.point[None], self.limits)
        own: Array = every[0]
        return own

    def explains(self, motion: Motion) -> Array:
        """Mask of the rows in which all errors are small enough."""
        mask: Array = (np.abs(self.residuals(motion)) <= RIGHT).all(1)
        return mask

    @property
    def names(self) -> list[str]:
        """Names of the variables that the mechanism moves."""
        return [variable.name for joint in self.joints for variable in joint]


NEWTON = 4
"""Rounds after which velocities are right to the last digit."""


def shot(motion: Motion, form: Mechanism, points: Array, stepping: Stepping) -> Array:
    """Return the velocities (B, rows, n) before a step that leads to where coordinates were seen.

    They are looked for by Newton's method, from those of the motion on. All but the first of the
    points are taken to be near it: they have its derivatives.
    """

    def missed(points: Array, v: Array) -> Array:
        q, _, _ = form.step(points, motion.q, v, motion.u, stepping)
        off: Array = q - motion.q - motion.turn
        return off

    def corrected(v: Array, off: Array) -> Array:
        usable = np.abs(np.linalg.det(slopes)) > 1e-12
        regular = np.where(usable[..., None, None], slopes, np.eye(len(nudges)))
        step = np.linalg.solve(regular, off[..., None])[..., 0]
        moved: Array = v - np.where(usable[..., None] & np.isfinite(step), step, 0.0)
        return moved

    v, first = motion.v[None], points[:1]
    nudges = 1e-6 * np.eye(motion.q.shape[1])
    for _ in range(NEWTON):
        off = missed(first, v)
        slopes = np.stack([missed(first, v + nudge) - off for nudge in nudges], -1) / 1e-6
        v = corrected(v, off)
    return corrected(v, missed(points, v))


WEIGHTS = (0.0, 1.0, 0.5, *(0.5 + 0.5 / parts for parts in (2, 3, 4, 5, 6)))
"""How much the velocity after a step counts: an average, or that of a step of several parts, each
of which moves by the velocity after it."""

AVERAGE = 0.5
"""The weight that a smooth integrator comes near to whatever it does on its way."""

ROUGH, ROUGH_AVERAGE = 3e-3, 1e-5
"""A share of the changes that is left unexplained, from which on a time is no more than near: long
steps turn on their way, and an average hides by how much."""

ROOM, FINE, COARSE = 2.0, 1e-6, 0.03
"""How far a time may be rounded: for each share that it leaves unexplained, at least, which is what
float32 shows of a time, and where it is rough."""

DIGITS = 6
"""Digits of a time that cannot be rounded."""


class _Pairing(NamedTuple):
    """How well a velocity explains the change of a coordinate, and the time that this takes."""

    fit: float
    time: float
    joint: Joint
    weight: float

    @property
    def unexplained(self) -> float:
        """The share of the changes that it leaves."""
        return float(np.sqrt(max(0.0, 1 - self.fit)))

    @property
    def is_rough(self) -> bool:
        """Whether its time is no more than near."""
        return self.unexplained > (ROUGH_AVERAGE if self.weight == AVERAGE else ROUGH)


def joints_of(samples: Samples, variables: Sequence[Variable]) -> tuple[list[Joint], float]:
    """Pair coordinates with the velocities that move them; return the time of a step as well."""
    pairings = [
        pairing
        for velocity in variables
        if not velocity.is_angle and not velocity.is_kept
        for position in variables
        if position.name != velocity.name
        and (pairing := _pairing(samples, Joint(position, velocity))) is not None
    ]
    chosen: list[_Pairing] = []
    for pairing in sorted(pairings, key=lambda p: -p.fit):
        taken = {variable.name for other in chosen for variable in other.joint}
        free = not taken & {variable.name for variable in pairing.joint}
        if free and (not chosen or abs(pairing.time / chosen[0].time - 1) < 0.15):
            chosen.append(pairing)
    order = [variable.name for variable in variables]
    time = _round_time(chosen) if chosen else 0.0
    chosen.sort(key=lambda pairing: order.index(pairing.joint.position.name))
    return [pairing.joint for pairing in chosen], time


def _pairing(samples: Samples, joint: Joint) -> _Pairing | None:
    """Compare most changes of a coordinate with velocities from before a step to after it."""
    rows = samples.smooth & joint.position.free & joint.velocity.free
    turn = joint.position.change[rows]
    before, after = joint.velocity.now[rows], joint.velocity.then[rows]
    if len(turn) < 10 or np.ptp(turn) < 1e-12 or np.ptp(before) < 1e-9:
        return None
    fits = []
    for share in WEIGHTS:
        speed = (1 - share) * before + share * after
        fast = np.abs(speed) > np.median(np.abs(speed))
        time = float(np.median(turn[fast] / speed[fast])) if fast.any() else 0.0
        error = np.median(np.abs(turn - time * speed)) / (np.median(np.abs(turn)) + 1e-300)
        fits.append((1 - min(float(error), 1e9) ** 2, time, share))
    fit, time, weight = max(fits)
    return _Pairing(fit, time, joint, weight) if time > 0 and fit > 0.9 else None


def _round_time(pairings: Sequence[_Pairing]) -> float:
    """Return the time of a step with as few digits as it leaves nothing further unexplained.

    Where it is rough in the best pairing it is the middle one of all.
    """
    best = pairings[0]
    near, time = max(FINE, ROOM * best.unexplained), best.time
    if best.is_rough:
        near, time = COARSE, float(np.median([pairing.time for pairing in pairings]))
    digits = (rounded(time, count) for count in range(1, DIGITS))
    return next((each for each in digits if abs(each / time - 1) < near), rounded(time, DIGITS))


def _bounded(error: Array) -> Array:
    """Return errors that squares can be taken of; what is no number is a large one."""
    finite = np.nan_to_num(error, nan=1e6, posinf=1e6, neginf=-1e6)
    bounded: Array = np.clip(finite, -1e8, 1e8)
    return bounded
