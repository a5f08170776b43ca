"""Fitting mechanisms through the integrator: which angles, which integrator, which numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from cwm_induction.effort import Share
from cwm_induction.least_squares import Options, minimise
from cwm_induction.mechanics import Integrator, Mechanism, Parameter
from cwm_induction.mechanics_simplify import simplified
from cwm_induction.motion import Joint, Motion
from cwm_induction.samples import Array, Samples
from cwm_induction.terms import Column

MOST_JOINTS = 3
LEARN_ROWS = 260
CHECK_ROWS = 300
INTEGRATORS = (
    Integrator("explicit", 1),
    Integrator("semi-implicit", 1),
    Integrator("Runge-Kutta", 1),
    Integrator("Runge-Kutta", 2),
    Integrator("semi-implicit", 2),
    Integrator("Runge-Kutta", 5),
    Integrator("Runge-Kutta", 4),
    Integrator("semi-implicit", 4),
    Integrator("semi-implicit", 5),
)


@dataclass(frozen=True)
class Mechanics:
    """A mechanism that was found, and for which share of the rows held back it is right."""

    form: Mechanism
    point: Array
    integrator: Integrator
    time: float
    joints: tuple[Joint, ...]
    inputs: tuple[Column, ...]
    right: float
    median: float

    @property
    def names(self) -> list[str]:
        """Names of the variables that the mechanism moves."""
        return [variable.name for joint in self.joints for variable in joint]


@dataclass(frozen=True)
class _Fitting:
    """Fits one form after another to the same rows."""

    learn: Motion
    check: Motion
    joints: tuple[Joint, ...]
    inputs: tuple[Column, ...]
    rng: np.random.Generator
    effort: Share

    def best(self, form: Mechanism) -> Mechanics:
        """Return the best fit over the integrators, which are tried in turn."""
        best = self._found(form, INTEGRATORS[0], self._start(form), Options(0))
        for integrator in INTEGRATORS:
            near = best.right >= 0.5
            options = Options(15 if near else 30, 1e-2, believed=0.9)
            found = self._found(form, integrator, best.point, options)
            best = max(best, found, key=lambda m: (m.right, -m.median))
            lost = integrator == INTEGRATORS[3] and best.median > 1000 and best.right < 0.05
            settled = found.right > 0.97 and found.median < 0.25
            if settled or lost or not self.effort.spend(0):
                break
        return best

    def _found(
        self, form: Mechanism, integrator: Integrator, start: Array, options: Options
    ) -> Mechanics:
        """Fit from a start and judge on the rows held back."""
        point = self._minimised(form, integrator, start, options)
        rest = np.abs(self.check.residuals(form, integrator, point[None])[0])
        right, median = float((rest <= 4).mean()), float(np.median(rest))
        joints, inputs = self.joints, self.inputs
        return Mechanics(form, point, integrator, self.learn.time, joints, inputs, right, median)

    def refined(self, found: Mechanics) -> Mechanics:
        """Leave out and round numbers, then judge again."""
        quantile = min(0.9, 0.93 * found.right)
        form, integrator = found.form, found.integrator
        point = simplified(self.learn, form, integrator, found.point, quantile, self.effort)
        return self._found(form, integrator, point, Options(0))

    def _start(self, form: Mechanism) -> Array:
        """Fit the forces for a diagonal mass matrix, then everything, from three such matrices."""
        kinds = [parameter.kind for parameter in form.parameters]
        forces = np.array([i for i, kind in enumerate(kinds) if not kind.startswith("mass")])
        rough = Integrator("semi-implicit", 1)
        starts = []
        for attempt in range(3):
            point = np.zeros(len(kinds))
            for joint in range(form.coordinates):
                own = form.parameters.index(Parameter("mass_cos", (0, joint, joint)))
                given = attempt == 0 or joint == 0
                point[own] = 1.0 if given else 10 ** self.rng.uniform(-1.3, 0.3)
            point = self._minimised(form, rough, point, Options(3, 1e-3), forces)
            point = self._minimised(form, rough, point, Options(25, 1e-1, 0.9))
            rest = self.learn.residuals(form, rough, point[None])[0]
            starts.append((float(np.median(np.abs(rest))), attempt, point))
        return min(starts)[2]

    def _minimised(
        self,
        form: Mechanism,
        integrator: Integrator,
        start: Array,
        options: Options,
        active: Array | None = None,
    ) -> Array:
        """Fit the active parameters, or all but the unit."""
        if active is None:
            active = np.array([i for i in range(len(start)) if i != form.unit])
        return minimise(
            lambda points: self.learn.residuals(form, integrator, points),
            start,
            active,
            self.effort,
            options,
        )


def fit(
    samples: Samples,
    joints: Sequence[Joint],
    inputs: Sequence[Column],
    time: float,
    rng: np.random.Generator,
    effort: Share,
) -> Mechanics | None:
    """Return the best mechanism for these joints, or None when none comes near."""
    usable = samples.smooth & np.all([v.free for joint in joints for v in joint], axis=0)
    learn = rng.permutation(np.flatnonzero(usable & samples.learn))[:LEARN_ROWS]
    check = np.flatnonzero(usable & ~samples.learn)[:CHECK_ROWS]
    if len(joints) > MOST_JOINTS or len(learn) < 20 or len(check) < 4:
        return None
    motion = Motion.of(joints, inputs, time)
    fitting = _Fitting(
        motion.rows(learn), motion.rows(check), tuple(joints), tuple(inputs), rng, effort
    )
    best: Mechanics | None = None
    for form in _forms(joints, len(inputs)):
        hopeless = form.harmonics > 1 and (best is None or best.median > 300)
        if hopeless or len(form.parameters) > len(joints) * len(learn):
            continue
        found = fitting.best(form)
        best = found if best is None or found.right > best.right + 0.02 else best
        if best.right > 0.97 or not effort.spend(0):
            break
    if best is None or best.right < 0.2:
        return None
    return fitting.refined(best) if best.right > 0.8 else best


def _forms(joints: Sequence[Joint], inputs: int) -> Iterator[Mechanism]:
    """Yield forms, the simplest first: which further coordinates are angles, which waves."""
    count = len(joints)
    known = [i for i in range(count) if joints[i].position.is_angle]
    other = [i for i in range(count) if i not in known]
    choices = [
        tuple(sorted([*known, *extra]))
        for size in range(len(other) + 1)
        for extra in combinations(other, size)
        if known or extra
    ]
    plain = [Mechanism(count, angles, inputs, odd) for odd in (False, True) for angles in choices]
    yield from plain
    if count <= 2:
        yield from (replace(form, harmonics=2) for form in plain)
