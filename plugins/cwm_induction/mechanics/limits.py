"""Ends of the ways of joints, which push back."""

from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array

SOFT, HARD, THICKNESS = 0.9, 0.95, 1e-3
"""A limit hardens from soft to hard over its thickness: what MuJoCo does unless told otherwise."""


class Limit(NamedTuple):
    """An end of the way of a joint, at both signs, that pushes back (MuJoCo's soft constraints).

    It makes the acceleration approach that of a damped spring, the nearer the
    harder it is and the smaller `give`, which is 0 for a rigid body. The
    numbers may be arrays (B, 1) for many limits at once.
    """

    joint: int
    end: Array | float
    stiffness: Array | float
    damping: Array | float
    give: Array | float

    def pushed(self, mass: Array, a: Array, q: Array, v: Array) -> Array:
        """Return the accelerations (B, rows, n) under the push of the limit."""
        unit = np.zeros(a.shape)
        unit[..., self.joint] = 1.0
        response = solved(mass, unit)
        at, speed = q[..., self.joint], v[..., self.joint]
        depth = np.clip(at, -self.end, self.end) - at
        share = np.minimum(np.abs(depth) / THICKNESS, 1)
        bend = np.where(share < 0.5, 2 * share**2, 1 - 2 * (1 - share) ** 2)
        hard = SOFT + (HARD - SOFT) * bend
        wanted = self.stiffness * hard * depth - self.damping * speed - a[..., self.joint]
        force = wanted / (response[..., self.joint] + self.give * (1 - hard) / hard)
        force = np.where(force * depth > 0, force, 0.0)
        pushed: Array = a + response * force[..., None]
        return pushed


def solved(mass: Array, force: Array) -> Array:
    """Solve mass times acceleration = force; nearly singular masses give large numbers."""
    if force.shape[-1] == 1:
        ratio: Array = force / mass[..., 0]
        return ratio
    if force.shape[-1] == 2:
        a, b, d = mass[..., 0, 0], mass[..., 0, 1], mass[..., 1, 1]
        f, g = force[..., 0], force[..., 1]
        det = a * d - b * b
        det = np.where(np.abs(det) < 1e-12, 1e-12, det)
        return np.stack([(d * f - b * g) / det, (a * g - b * f) / det], -1)
    singular = _is_singular(mass)
    if singular.any():
        mass = np.where(singular[..., None, None], np.eye(force.shape[-1]), mass)
    solution: Array = np.linalg.solve(mass, force[..., None])[..., 0]
    return solution


def _is_singular(mass: Array) -> Array:
    """Mask the masses of three joints that are singular: only near 0 determinants need care."""
    flat = np.ascontiguousarray(mass.reshape(-1, 9).T)
    a, b, c, _, d, e, _, _, f = flat
    rough = a * (d * f - e * e) - b * (b * f - c * e) + c * (b * e - c * d)
    near = ~(np.abs(rough) > 1e-9 * np.abs(flat).max() ** 3 + 1e-13)
    singular: Array = near.reshape(mass.shape[:-2])
    if near.any():
        singular[singular] = np.abs(np.linalg.det(mass[singular])) < 1e-14
    return singular
