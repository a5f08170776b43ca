"""Initial masses and forces by linear least squares, without an integrator.

Two laws are linear in the parameters of a mechanism. For smooth motion, the change of the momentum
is the integral of the force; Simpson's rule computes the integral along the cubic through both
ends of a step. For integrators with one jump of the velocity per step, mass times jump is the
force before the step times the time of the step.
"""

from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.mechanics.mechanism import Laws, Mechanism, solve_accelerations
from cwm_induction.mechanics.motion import Motion

DRAWS = 120
"""Random samples of rows; the rows that agree with the best solution are inliers."""

NEAR = 1e-3
"""Maximum unexplained fraction of the changes for a good solution."""

ROUNDS = 5
"""Number of refits, each with a new selection of the inliers."""


class Start(NamedTuple):
    """Initial parameters, and the median error of the velocities in units of the tolerance."""

    point: Array
    error: float


def start(
    form: Mechanism, learn: Motion, check: Motion, rng: np.random.Generator, *, jumps: bool
) -> Start:
    """Solve for all parameters except the unit, with a regression that is robust to outliers.

    The error is measured on the rows `check`; it is infinite if a mass is not positive.
    """
    columns = (_jumps if jumps else _momenta)(form, learn)
    point = _best_sample(form, learn, columns, rng)
    for _ in range(ROUNDS):
        errors = _velocity_errors(form, learn, point, columns).max(1)
        point = _solve(form, columns[:, errors <= 5 * np.quantile(errors, 0.6)])
    columns = (_jumps if jumps else _momenta)(form, check)
    mass = form.mass(form.arrays(point[None]), check.q[None])
    possible = np.linalg.eigvalsh(mass).min() > 0
    error = float(np.median(_velocity_errors(form, check, point, columns)))
    return Start(point, error if possible else np.inf)


def _best_sample(form: Mechanism, learn: Motion, columns: Array, rng: np.random.Generator) -> Array:
    """Return the solution of a random sample of rows with the smallest median error."""
    fewest = 2 + len(columns) * 5 // (4 * form.coordinates)
    best, least = np.zeros(len(columns)), np.inf
    pools = [_away_from_limits(learn), np.arange(len(learn.q))]
    for draw in range(DRAWS):
        rows = rng.permutation(pools[draw % 2])[:fewest]
        point = _solve(form, columns[:, rows])
        error = float(np.median(_velocity_errors(form, learn, point, columns)))
        if error < least:
            best, least = point, error
        if least < NEAR * learn.unrest:
            break
    return best


def _away_from_limits(motion: Motion) -> Array:
    """Return the rows (indices) far from the ends of all ranges, where limits may act."""
    ends = np.stack([motion.q, motion.q + motion.turn])
    low, high = ends.min((0, 1)), ends.max((0, 1))
    margin = 0.05 * (high - low)
    clear = (ends > low + margin) & (ends < high - margin)
    return np.flatnonzero(clear.all((0, 2)))


def _solve(form: Mechanism, columns: Array) -> Array:
    """Return the least-squares parameters of all rows, with the unit fixed at 1."""
    free = np.arange(len(columns)) != form.unit
    matrix = columns.reshape(len(columns), -1).T
    scale = np.linalg.norm(matrix, axis=0)[free] + 1e-300
    weights = np.linalg.lstsq(matrix[:, free] / scale, -matrix[:, form.unit], rcond=1e-10)[0]
    point = np.ones(len(columns))
    point[free] = weights / scale
    return point


def _jumps(form: Mechanism, motion: Motion) -> Array:
    """Return the contribution of each parameter to mass * acceleration - force (P, rows, n)."""
    laws = _laws(form, motion, motion.q, motion.v)
    jump = (motion.after - motion.v) / motion.time
    rest: Array = _times(laws.mass, jump) - laws.force + laws.turning
    return rest


def _momenta(form: Mechanism, motion: Motion) -> Array:
    """Return the contribution of each parameter to momentum change - force (P, rows, n)."""
    end, time = motion.q + motion.turn, motion.time
    middle = (motion.q + end) / 2 + time / 8 * (motion.v - motion.after)
    speed = 1.5 * motion.turn / time - (motion.v + motion.after) / 4
    first = _laws(form, motion, motion.q, motion.v)
    halfway = _laws(form, motion, middle, speed)
    last = _laws(form, motion, end, motion.after)
    change = (_times(last.mass, motion.after) - _times(first.mass, motion.v)) / time
    rest: Array = change - (first.force + 4 * halfway.force + last.force) / 6
    return rest


def _laws(form: Mechanism, motion: Motion, q: Array, v: Array) -> Laws:
    """Return the laws for P parameter vectors, each with one parameter at 1 and others at 0."""
    return form.laws(form.arrays(np.eye(len(form.parameters))), q[None], v[None], motion.u)


def _times(mass: Array, v: Array) -> Array:
    product: Array = (mass @ v[..., None])[..., 0]
    return product


def _velocity_errors(form: Mechanism, motion: Motion, point: Array, columns: Array) -> Array:
    """Return the errors of the velocities (rows, n) in units of the tolerance."""
    force = np.tensordot(point, columns, 1)
    mass = form.mass(form.arrays(point[None]), motion.q[None])[0]
    with np.errstate(all="ignore"):
        error = np.abs(solve_accelerations(mass, force)) * motion.time
    errors: Array = np.nan_to_num(error / motion.tolerance[:, form.coordinates :], posinf=1e12)
    return errors
