"""Jointed mechanisms: mass matrix, potential and forces, advanced by an integrator.

    M(q) v' = push u + offset - damping v - spring q - dV/dq - (centrifugal forces of M)

M and V are sums of cosines and sines of integer combinations of the angles. A `Limit` bounds the
range of a joint by a repelling force.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array

SOFT, HARD, THICKNESS = 0.9, 0.95, 1e-3
"""The impedance of a limit increases from soft to hard over its thickness (defaults of MuJoCo)."""

STAGES = {
    "euler": ((0.0, 1.0),),
    "midpoint": ((0.0, 0.0), (0.5, 1.0)),
    "runge-kutta": ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6)),
}
"""For each stage of a rule, its distance along the rates of the stage before, and its weight."""

_WORDS = {"runge-kutta": "Runge-Kutta", "euler": "Euler"}


class Scheme(NamedTuple):
    """An integration rule, and the number of equal parts of a step.

    Rules are the keys of `STAGES`, and "semi-implicit" for mechanisms: velocities change first, and
    the new velocities move the coordinates.
    """

    rule: str
    parts: int

    @property
    def words(self) -> str:
        """The steps in words."""
        rule = _WORDS.get(self.rule, self.rule)
        return f"{self.parts} {rule} steps" if self.parts > 1 else f"one {rule} step"

    def repeated(self, body: str) -> str:
        """Write a loop over the parts around the statements of one part."""
        if self.parts == 1:
            return body
        lines = [f"    {line}" for line in body.splitlines()]
        return "\n".join([f"for _ in range({self.parts}):", *lines])


class Parameter(NamedTuple):
    """A parameter of a mechanism: the array that contains it, and its index in this array."""

    kind: str
    place: tuple[int, ...]


class Laws(NamedTuple):
    """Masses (B, rows, n, n), and forces and inertial terms (B, rows, n).

    The law is mass v' = force - turning, where `turning` is (d mass / dt) v. The force includes
    the gradient of the kinetic energy, so it equals the rate of change of the momentum mass v.
    """

    mass: Array
    force: Array
    turning: Array


class Moved(NamedTuple):
    """Coordinates and velocities after a step, and coordinates of the last force evaluation."""

    q: Array
    v: Array
    stage: Array


class Stepping(NamedTuple):
    """The duration of a step, its integration scheme and the limits of the joints."""

    time: float
    scheme: Scheme
    limits: "tuple[Limit, ...]" = ()


@dataclass(frozen=True)
class Mechanism:
    """The form of a mechanism: its number of coordinates and inputs, and its angles.

    `angles` lists the coordinates that are angles. With `odd`, masses and potential contain sines
    as well as cosines.
    """

    coordinates: int
    angles: tuple[int, ...]
    inputs: int
    odd: bool = False

    @cached_property
    def combinations(self) -> Array:
        """The combinations of angles (K, coordinates); the first is constant."""
        rows = [np.zeros(self.coordinates)]
        for factors in product((-1, 0, 1), repeat=len(self.angles)):
            if next((factor for factor in factors if factor), 0) > 0:
                row = np.zeros(self.coordinates)
                row[list(self.angles)] = factors
                rows.append(row)
        return np.array(rows)

    @cached_property
    def waves(self) -> Array:
        """The combinations in all waves (W, coordinates): in cosines, if odd then in sines."""
        return np.concatenate([self.combinations, self.combinations[1:]][: 1 + self.odd])

    @cached_property
    def shifts(self) -> Array:
        """The phase shift of each wave (W): a sine is a cosine with a shift of pi / 2."""
        return np.pi / 2 * (np.arange(len(self.waves)) >= len(self.combinations))

    @cached_property
    def parameters(self) -> list[Parameter]:
        """All parameters of this form."""
        joints, waves = range(self.coordinates), range(len(self.waves))
        pairs = combinations_with_replacement(joints, 2)
        parameters = [Parameter("mass", (k, i, j)) for i, j in pairs for k in waves]
        parameters += [Parameter("potential", (k,)) for k in waves[1:]]
        parameters += [Parameter("offset", (i,)) for i in joints]
        parameters += [Parameter("damping", (i,)) for i in joints]
        parameters += [Parameter("spring", (i,)) for i in joints if i not in self.angles]
        parameters += [Parameter("push", (i, m)) for i in joints for m in range(self.inputs)]
        return parameters

    @property
    def unit(self) -> int:
        """Index of the mass that is fixed at 1: data determine only ratios of masses and forces."""
        return self.parameters.index(Parameter("mass", (0, 0, 0)))

    def arrays(self, points: Array) -> dict[str, Array]:
        """Arrange parameter vectors (B, P) as arrays with a leading axis of length B."""
        joints, waves = self.coordinates, len(self.waves)
        shapes = {
            "mass": (waves, joints, joints),
            "potential": (waves,),
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
        """The parameters of each array and their indices; the mass matrix is symmetric."""
        entries: dict[str, list[tuple[int, ...]]] = {}
        for number, (kind, place) in enumerate(self.parameters):
            rows = entries.setdefault(kind, [])
            rows.append((number, *place))
            if kind == "mass":
                rows.append((number, place[0], place[2], place[1]))
        tables = {kind: np.array(rows).T for kind, rows in entries.items()}
        return {kind: (table[0], table[1:]) for kind, table in tables.items()}

    def mass(self, arrays: dict[str, Array], q: Array) -> Array:
        """Return the masses (B, rows, n, n) for every parameter vector and row."""
        masses = arrays["mass"].reshape(-1, len(self.waves), self.coordinates**2)
        mass: Array = np.cos(q @ self.waves.T - self.shifts) @ masses
        return mass.reshape(*mass.shape[:2], self.coordinates, self.coordinates)

    def laws(self, arrays: dict[str, Array], q: Array, v: Array, u: Array) -> Laws:
        """Return masses and forces for every parameter vector and row.

        States that all vectors share have a first axis of length 1.
        """
        waves, joints = self.waves, self.coordinates
        slope = -np.sin(q @ waves.T - self.shifts)
        masses = arrays["mass"].transpose(0, 2, 1, 3).reshape(-1, joints, len(waves) * joints)
        momenta = v @ masses
        momenta = momenta.reshape(*momenta.shape[:2], len(waves), joints) * slope[..., None]
        turning = ((v @ waves.T)[..., None, :] @ momenta)[..., 0, :]
        energy = 0.5 * (momenta @ v[..., None])[..., 0]
        gradient = (energy - slope * arrays["potential"][:, None]) @ waves
        push = u @ arrays["push"].transpose(0, 2, 1) + arrays["offset"][:, None]
        resistance = arrays["damping"][:, None] * v + arrays["spring"][:, None] * q
        return Laws(self.mass(arrays, q), push - resistance + gradient, turning)

    def step(self, points: Array, q: Array, v: Array, u: Array, stepping: Stepping) -> Moved:
        """Advance every row with every parameter vector.

        The states `q` and `v` have shape (rows, n), or (B, rows, n) with a state per vector.
        """
        time, (rule, parts), limits = stepping
        arrays = self.arrays(points)
        q, v = (part if part.ndim == 3 else part[None] for part in (q, v))
        h, stage = time / parts, q

        def push(q: Array, v: Array) -> Array:
            laws = self.laws(arrays, q, v, u)
            a = solve_accelerations(laws.mass, laws.force - laws.turning)
            for limit in limits:
                a = limit.apply(laws.mass, a, q, v)
            return a

        for _ in range(parts):
            if rule == "semi-implicit":
                v = v + h * push(q, v)
                q = q + h * v
                continue
            speed, a, moved, faster = (np.zeros(1) for _ in range(4))
            for distance, weight in STAGES[rule]:
                stage, speed = q + distance * h * speed, v + distance * h * a
                a = push(stage, speed)
                moved, faster = moved + weight * speed, faster + weight * a
            q, v = q + h * moved, v + h * faster
        return Moved(np.broadcast_to(q, v.shape), v, stage if rule == "runge-kutta" else q)


class Limit(NamedTuple):
    """A symmetric bound of a joint with a repelling force (a soft constraint of MuJoCo).

    The force moves the acceleration of the joint towards the one of a damped spring. A harder limit
    and a smaller `give` bring the acceleration closer to the spring; `give` is 0 for a rigid body.
    The numbers may be arrays (B, 1) for a batch of limits.
    """

    joint: int
    end: Array | float
    stiffness: Array | float
    damping: Array | float
    give: Array | float

    def apply(self, mass: Array, a: Array, q: Array, v: Array) -> Array:
        """Add the effect of the limit to accelerations (B, rows, n)."""
        unit = np.zeros(a.shape)
        unit[..., self.joint] = 1.0
        response = solve_accelerations(mass, unit)
        at, speed = q[..., self.joint], v[..., self.joint]
        depth = np.clip(at, -self.end, self.end) - at
        share = np.minimum(np.abs(depth) / THICKNESS, 1)
        bend = np.where(share < 0.5, 2 * share**2, 1 - 2 * (1 - share) ** 2)
        hard = SOFT + (HARD - SOFT) * bend
        wanted = self.stiffness * hard * depth - self.damping * speed - a[..., self.joint]
        force = wanted / (response[..., self.joint] + self.give * (1 - hard) / hard)
        force = np.where(force * depth > 0, force, 0.0)
        limited: Array = a + response * force[..., None]
        return limited


def solve_accelerations(mass: Array, force: Array) -> Array:
    """Solve mass times acceleration = force; almost singular masses give large numbers."""
    if force.shape[-1] == 1:
        ratio: Array = force / mass[..., 0]
        return ratio
    if force.shape[-1] == 2:
        a, b, d = mass[..., 0, 0], mass[..., 0, 1], mass[..., 1, 1]
        f, g = force[..., 0], force[..., 1]
        det = a * d - b * b
        det = np.where(np.abs(det) < 1e-12, 1e-12, det)
        return np.stack([(d * f - b * g) / det, (a * g - b * f) / det], -1)
    try:
        solution: Array = np.linalg.solve(mass, force[..., None])[..., 0]
    except np.linalg.LinAlgError:
        singular = np.linalg.det(mass) == 0
        mass = np.where(singular[..., None, None], np.eye(force.shape[-1]), mass)
        solution = np.linalg.solve(mass, force[..., None])[..., 0]
    return solution
