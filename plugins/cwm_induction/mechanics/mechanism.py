"""Jointed mechanisms: a mass matrix, a potential and forces, stepped by a numerical integrator.

    M(q) v' = push u + offset - damping v - spring q - dV/dq - (centrifugal forces of M)

M and V are sums of cosines and sines of whole combinations of the angles. A `Limit` is an end
of the way of a joint, which pushes back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array

SOFT, HARD, THICKNESS = 0.9, 0.95, 1e-3
"""A limit hardens from soft to hard over its thickness: what MuJoCo does unless told otherwise."""


class Parameter(NamedTuple):
    """A number of a mechanism: what it weighs, and where in that array it stands."""

    kind: str
    place: tuple[int, ...]


class Integrator(NamedTuple):
    """A rule that advances time, and into how many equal parts it divides a step."""

    rule: str
    parts: int


class Laws(NamedTuple):
    """Masses (B, rows, n, n), forces and what turning costs: mass v' = force - turning.

    The force includes the pull of masses that depend on angles, so that it
    alone changes the momentum mass v.
    """

    mass: Array
    force: Array
    turning: Array


class Moved(NamedTuple):
    """Coordinates and velocities after a step, and the coordinates of the last evaluation."""

    q: Array
    v: Array
    stage: Array


class Stepping(NamedTuple):
    """How a mechanism advances by one step."""

    time: float
    integrator: Integrator
    limits: "tuple[Limit, ...]" = ()


@dataclass(frozen=True)
class Mechanism:
    """The form of a mechanism: which coordinates are angles, how many inputs, which waves.

    `odd` admits sines into masses and cosines' partners into the potential;
    `harmonics` is the largest multiple of an angle.
    """

    coordinates: int
    angles: tuple[int, ...]
    inputs: int
    odd: bool = False
    harmonics: int = 1

    @cached_property
    def waves(self) -> Array:
        """The combinations of angles (K, coordinates), the constant first."""
        rows = [np.zeros(self.coordinates)]
        span = range(-self.harmonics, self.harmonics + 1)
        for factors in product(span, repeat=len(self.angles)):
            leading = next((factor for factor in factors if factor), 0)
            if leading > 0 and (self.harmonics == 1 or sum(map(abs, factors)) <= 2):
                row = np.zeros(self.coordinates)
                row[list(self.angles)] = factors
                rows.append(row)
        return np.array(rows)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Every number that may be fitted."""
        joints, waves = range(self.coordinates), range(len(self.waves))
        pairs = list(combinations_with_replacement(joints, 2))
        found = [Parameter("mass_cos", (k, i, j)) for i, j in pairs for k in waves]
        found += [Parameter("potential_cos", (k,)) for k in waves[1:]]
        if self.odd:
            found += [Parameter("mass_sin", (k, i, j)) for i, j in pairs for k in waves[1:]]
            found += [Parameter("potential_sin", (k,)) for k in waves[1:]]
        found += [Parameter("offset", (i,)) for i in joints]
        found += [Parameter("damping", (i,)) for i in joints]
        found += [Parameter("spring", (i,)) for i in joints if i not in self.angles]
        found += [Parameter("push", (i, m)) for i in joints for m in range(self.inputs)]
        return found

    @property
    def unit(self) -> int:
        """Index of the mass that is 1 because only ratios of masses and forces can be seen."""
        return self.parameters.index(Parameter("mass_cos", (0, 0, 0)))

    def arrays(self, points: Array) -> dict[str, Array]:
        """Arrange parameter vectors (B, P) as arrays with a leading axis of length B."""
        joints, waves = self.coordinates, len(self.waves)
        shapes = {
            "mass_cos": (waves, joints, joints),
            "mass_sin": (waves, joints, joints),
            "potential_cos": (waves,),
            "potential_sin": (waves,),
            "offset": (joints,),
            "damping": (joints,),
            "spring": (joints,),
            "push": (joints, self.inputs),
        }
        arrays = {kind: np.zeros((len(points), *shape)) for kind, shape in shapes.items()}
        for kind, (numbers, places) in self._places.items():
            arrays[kind][:, *places] = points[:, numbers]
        return arrays

    @cached_property
    def _places(self) -> dict[str, tuple[Array, Array]]:
        """Which parameters every array holds, and where: masses stand on both sides."""
        found: dict[str, list[tuple[int, ...]]] = {}
        for number, (kind, place) in enumerate(self.parameters):
            rows = found.setdefault(kind, [])
            rows.append((number, *place))
            if kind.startswith("mass"):
                rows.append((number, place[0], place[2], place[1]))
        tables = {kind: np.array(rows).T for kind, rows in found.items()}
        return {kind: (table[0], table[1:]) for kind, table in tables.items()}

    def mass(self, arrays: dict[str, Array], q: Array) -> Array:
        """Return the masses for every parameter vector and row."""
        return self._mass(arrays, q @ self.waves.T)

    def _mass(self, arrays: dict[str, Array], phase: Array) -> Array:
        mass = _weighed(np.cos(phase), arrays["mass_cos"])
        return mass + _weighed(np.sin(phase), arrays["mass_sin"]) if self.odd else mass

    def laws(self, arrays: dict[str, Array], q: Array, v: Array, u: Array) -> Laws:
        """Return masses and forces for every parameter vector and row.

        States that all vectors share stand there once. Products of matrices have rows
        before the last axis; all else has them last, to be fast.
        """
        phase = q @ self.waves.T
        mass = self._mass(arrays, phase)
        phase, spin = _rows_last(phase), _rows_last(v @ self.waves.T)
        wave = -np.sin(phase)
        bent = [wave * part for part in _times_velocity(arrays["mass_cos"], v)]
        slope = wave * arrays["potential_cos"].T[..., None]
        if self.odd:
            wave, moved = np.cos(phase), _times_velocity(arrays["mass_sin"], v)
            bent = [part + wave * more for part, more in zip(bent, moved, strict=True)]
            slope += wave * arrays["potential_sin"].T[..., None]
        energy = bent[0] * v[..., 0]
        for joint in range(1, self.coordinates):
            energy += bent[joint] * v[..., joint]
        pull = _rows_first(slope) @ self.waves
        push = u @ arrays["push"].transpose(0, 2, 1)
        lift = _rows_first(0.5 * energy) @ self.waves
        force, turning = np.empty(pull.shape), np.empty(pull.shape)
        for joint in range(self.coordinates):
            own = (
                arrays["offset"][:, joint, None] - arrays["damping"][:, joint, None] * v[..., joint]
            )
            own -= arrays["spring"][:, joint, None] * q[..., joint]
            force[..., joint] = own - pull[..., joint] + push[..., joint] + lift[..., joint]
            turning[..., joint] = (spin * bent[joint]).sum(0)
        return Laws(mass, force, turning)

    def step(
        self,
        points: Array,
        q: Array,
        v: Array,
        u: Array,
        stepping: Stepping,
    ) -> Moved:
        """Advance every row under every parameter vector; a state may differ among these."""
        time, integrator, limits = stepping
        arrays = self.arrays(points)
        q, v = (part if part.ndim == 3 else part[None] for part in (q, v))
        h, stage = time / integrator.parts, q

        def push(q: Array, v: Array) -> Array:
            laws = self.laws(arrays, q, v, u)
            a = solved(laws.mass, laws.force - laws.turning)
            for limit in limits:
                a = limit.pushed(laws.mass, a, q, v)
            return a

        for _ in range(integrator.parts):
            if integrator.rule == "explicit":
                q, v = q + h * v, v + h * push(q, v)
                stage = q
            elif integrator.rule == "semi-implicit":
                v = v + h * push(q, v)
                q = stage = q + h * v
            else:
                q, v, stage = _runge_kutta(push, q, v, h)
        return Moved(np.broadcast_to(q, v.shape), v, stage)


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


def _runge_kutta(push: Callable[[Array, Array], Array], q: Array, v: Array, h: float) -> Moved:
    """Take one classic step of fourth order."""
    a1 = push(q, v)
    v2 = v + h / 2 * a1
    a2 = push(q + h / 2 * v, v2)
    v3 = v + h / 2 * a2
    a3 = push(q + h / 2 * v2, v3)
    v4, stage = v + h * a3, q + h * v3
    a4 = push(stage, v4)
    q = q + h / 6 * (v + 2 * v2 + 2 * v3 + v4)
    v = v + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
    return Moved(q, v, stage)


def _weighed(waves: Array, masses: Array) -> Array:
    """Return the sum of the masses of every wave: (B, rows, coordinates, coordinates)."""
    count, kinds, joints, _ = masses.shape
    flat = waves @ masses.reshape(count, kinds, joints * joints)
    total: Array = flat.reshape(*flat.shape[:2], joints, joints)
    return total


def _times_velocity(masses: Array, v: Array) -> list[Array]:
    """Return the masses of every wave times the velocities, for each coordinate (K, B, rows)."""
    count, waves, joints, _ = masses.shape
    flat = masses.transpose(0, 2, 1, 3).reshape(count, joints, waves * joints)
    moved = (v @ flat).reshape(count, -1, waves, joints)
    return list(moved.transpose(3, 2, 0, 1))


def _rows_last(values: Array) -> Array:
    """Turn (B, rows, K) into (K, B, rows)."""
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _rows_first(values: Array) -> Array:
    """Turn (K, B, rows) into (B, rows, K)."""
    return np.ascontiguousarray(values.transpose(1, 2, 0))
