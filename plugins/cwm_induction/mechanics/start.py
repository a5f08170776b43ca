"""Masses and forces by linear least squares, without an integrator.

Both laws are linear in every number of a mechanism. The momentum changes by
the integral of the force, which Simpson's rule takes along the cubic through
both ends of a step; where velocities jump once per step, mass times that jump
is the force before it times the time.
"""

from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.mechanics.mechanism import Laws, Mechanism, solved
from cwm_induction.mechanics.motion import Motion

DRAWS = 120
"""Random sets of rows that are solved for; the best solution tells which rows to believe."""

NEAR = 1e-3
"""The share of the changes that a good solution leaves unexplained."""

ROUNDS = 5
"""How often the rows to believe are chosen anew."""


class Start(NamedTuple):
    """Numbers to begin with, and how far velocities are off, in tolerances, as a median."""

    point: Array
    error: float


def start(
    form: Mechanism, learn: Motion, check: Motion, rng: np.random.Generator, *, jumps: bool
) -> Start:
    """Solve for all numbers but the unit, in spite of rows in which something else happens."""
    columns = (_jumps if jumps else _momenta)(form, learn)
    point = _drawn(form, learn, columns, rng)
    for _ in range(ROUNDS):
        off = _off(form, learn, point, columns).max(1)
        point = _solved(form, columns[:, off <= 5 * np.quantile(off, 0.6)])
    columns = (_jumps if jumps else _momenta)(form, check)
    mass = form.mass(form.arrays(point[None]), check.q[None])
    possible = np.linalg.eigvalsh(mass).min() > 0
    error = float(np.median(_off(form, check, point, columns)))
    return Start(point, error if possible else np.inf)


def _drawn(form: Mechanism, learn: Motion, columns: Array, rng: np.random.Generator) -> Array:
    """Return the solution for a random set of rows that suits half of all rows best."""
    fewest = 2 + len(columns) * 5 // (4 * form.coordinates)
    best, least = np.zeros(len(columns)), np.inf
    pools = [_away_from_limits(learn), np.arange(len(learn.q))]
    for draw in range(DRAWS):
        rows = rng.permutation(pools[draw % 2])[:fewest]
        point = _solved(form, columns[:, rows])
        error = float(np.median(_off(form, learn, point, columns)))
        if error < least:
            best, least = point, error
        if least < NEAR * learn.unrest:
            break
    return best


def _away_from_limits(motion: Motion) -> Array:
    """Return the rows that stay clear of the ends of every range, where a limit may push back."""
    ends = np.stack([motion.q, motion.q + motion.turn])
    low, high = ends.min((0, 1)), ends.max((0, 1))
    margin = 0.05 * (high - low)
    clear = (ends > low + margin) & (ends < high - margin)
    return np.flatnonzero(clear.all((0, 2)))


def _solved(form: Mechanism, columns: Array) -> Array:
    """Return the numbers that balance all rows best, the unit given."""
    free = np.arange(len(columns)) != form.unit
    matrix = columns.reshape(len(columns), -1).T
    scale = np.linalg.norm(matrix, axis=0)[free] + 1e-300
    weights = np.linalg.lstsq(matrix[:, free] / scale, -matrix[:, form.unit], rcond=1e-10)[0]
    point = np.ones(len(columns))
    point[free] = weights / scale
    return point


def _jumps(form: Mechanism, motion: Motion) -> Array:
    """Return what every number adds to mass times change of velocity less force: (P, rows, n)."""
    laws = _laws(form, motion, motion.q, motion.v)
    jump = (motion.after - motion.v) / motion.time
    rest: Array = _times(laws.mass, jump) - laws.force + laws.turning
    return rest


def _momenta(form: Mechanism, motion: Motion) -> Array:
    """Return what every number adds to the change of momentum less the force: (P, rows, n)."""
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
    """Return the laws with every number 1 in turn."""
    return form.laws(form.arrays(np.eye(len(form.parameters))), q[None], v[None], motion.u)


def _times(mass: Array, v: Array) -> Array:
    product: Array = (mass @ v[..., None])[..., 0]
    return product


def _off(form: Mechanism, motion: Motion, point: Array, columns: Array) -> Array:
    """Return how far the velocities (rows, n) are off, in tolerances."""
    force = np.tensordot(point, columns, 1)
    mass = form.mass(form.arrays(point[None]), motion.q[None])[0]
    with np.errstate(all="ignore"):
        error = np.abs(solved(mass, force)) * motion.time
    off: Array = np.nan_to_num(error / motion.tolerance[:, form.coordinates :], posinf=1e12)
    return off
