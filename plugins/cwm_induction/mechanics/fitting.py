"""Fitting mechanisms through the integrator: which angles, which integrator, which numbers.

Forms are tried from the simplest on, each from a start that needs no integrator; the numbers
of the best are left out and shortened as far as nothing is lost. Rows at the end of a way that
it does not explain get a limit that pushes back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, product

import numpy as np

from cwm_induction.continuous.least_squares import (
    RIGHT,
    SolverOptions,
    by_importance,
    minimise,
    shortened,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.effort import Effort, Share
from cwm_induction.mechanics.mechanism import HARD, Integrator, Limit, Mechanism
from cwm_induction.mechanics.motion import Joint, Mechanics, Motion
from cwm_induction.mechanics.start import NEAR, Start, start

MOST_JOINTS = 3
"""Coordinates of the largest mechanism: one more would have three times as many waves."""

LEARN_ROWS = 260
"""Rows that numbers are fitted to: every number that moves costs a step of each."""

CHECK_ROWS = 300
"""Rows held back that a fit is judged by."""

MOST_FORMS = 3
"""Forms that are fitted, of those that start near."""

REACH = 20.0
"""A row that is off by so many times the median is one in which something else happens."""

ENOUGH = 3
"""Rows beyond a limit from which its spring is fitted, too; with fewer only where it begins."""

PACES = (2.0, 1.0, 4.0)
"""Parts of a step that the spring of a limit takes, critically damped."""

ONE_JUMP = (Integrator("explicit", 1), Integrator("semi-implicit", 1))
"""Integrators that move coordinates by the velocity before or after a step."""

SMOOTH = (
    Integrator("Runge-Kutta", 2),
    Integrator("Runge-Kutta", 1),
    Integrator("Runge-Kutta", 5),
    Integrator("Runge-Kutta", 4),
    Integrator("semi-implicit", 2),
    Integrator("semi-implicit", 4),
    Integrator("semi-implicit", 5),
    Integrator("semi-implicit", 3),
)
"""Integrators that move coordinates by velocities in between, the likeliest first."""


def fit(
    samples: Samples,
    joints: Sequence[Joint],
    inputs: Sequence[NamedColumn],
    motion: Motion,
    rng: np.random.Generator,
    effort: Share,
) -> Mechanics | None:
    """Return the best mechanism for these joints, or None when none comes near."""
    free = np.all([v.free for joint in joints for v in joint], axis=0)
    usable = samples.smooth & free
    learn = rng.permutation(np.flatnonzero(usable & samples.learn))[:LEARN_ROWS]
    check = np.flatnonzero(usable & ~samples.learn)[:CHECK_ROWS]
    if len(joints) > MOST_JOINTS or len(learn) < 20 or len(check) < 4:
        return None
    fitting = _Fitting(
        motion.rows(learn), motion.rows(check), tuple(joints), tuple(inputs), rng, effort
    )
    best = fitting.chosen()
    if best is None or best.right < 0.2:
        return None
    if best.right <= 0.6:
        return best
    best = fitting.refined(best)
    ends = best.explains(motion)[free & samples.terminated]
    usable |= free & (ends.mean() > 0.5 if len(ends) else False)
    rows = motion.rows(np.flatnonzero(usable))
    return fitting.judged(_limited(best, rows, effort))


def again(
    known: Mechanics,
    samples: Samples,
    joints: Sequence[Joint],
    inputs: Sequence[NamedColumn],
    effort: Effort,
) -> Mechanics | None:
    """Return a mechanism that was found in fewer rows as one of these, None if it is less right.

    A limit may have been met since.
    """
    if [v.name for joint in joints for v in joint] != known.names:
        return None
    free = np.all([v.free for joint in joints for v in joint], axis=0)
    motion = Motion.of(joints, inputs, known.time)
    rows = motion.rows(np.flatnonzero(samples.smooth & free))
    found = replace(known, joints=tuple(joints), inputs=tuple(inputs))
    if not found.explains(rows).all() and not found.limits:
        found = _limited(found, rows, effort.share(0.1))
    right = float((np.abs(found.residuals(rows)) <= RIGHT).mean())
    return replace(found, right=right) if right >= known.right else None


@dataclass(frozen=True)
class _Fitting:
    """Fits one form after another to the same rows."""

    learn: Motion
    check: Motion
    joints: tuple[Joint, ...]
    inputs: tuple[NamedColumn, ...]
    rng: np.random.Generator
    effort: Share

    def chosen(self) -> Mechanics | None:
        """Return the best of the forms that start near, or None if none does."""
        best: Mechanics | None = None
        for form, begin in islice(self.starts(), MOST_FORMS):
            found = self.best(form, begin.point)
            best = found if best is None or found.right > best.right + 0.02 else best
            if best.right > 0.9 or not self.effort.spend(0):
                break
        return best

    def starts(self) -> Iterator[tuple[Mechanism, Start]]:
        """Yield forms that come near without an integrator: simple ones, then the best others."""
        learn, check = self.learn.momentary, self.check.momentary
        jumps = learn is not self.learn or self.integrators[0] in ONE_JUMP
        waiting: list[tuple[Mechanism, Start]] = []
        for form in _forms(self.joints, len(self.inputs)):
            size = len(form.parameters)
            if 2 * size > len(self.joints) * len(self.learn.q):
                continue
            if not self.effort.spend(60.0 * self.learn.q.size * size**2):
                break
            begin = start(form, learn, check, self.rng, jumps=jumps)
            if begin.error < NEAR * learn.unrest:
                yield form, begin
            elif begin.error < 0.1 * learn.unrest:
                waiting.append((form, begin))
        yield from sorted(waiting, key=lambda pair: pair[1].error)

    @cached_property
    def integrators(self) -> Sequence[Integrator]:
        """Those that move coordinates as was seen: by the velocity before, after or in between."""
        learn = self.learn
        limit = learn.tolerance[:, : len(self.joints)]
        for integrator, speed in zip(ONE_JUMP, learn.speeds, strict=False):
            if np.median(np.abs(learn.turn - learn.time * speed) / limit) < 2:
                return [integrator]
        return SMOOTH

    def best(self, form: Mechanism, point: Array) -> Mechanics:
        """Return the best fit over the integrators, which are tried in turn.

        What fits worst is left out at first, and of a fit that is nearly right
        only what is far off.
        """
        price = self.learn.price
        options = SolverOptions(10, 1e-4, believed=0.8, reach=REACH, price=price)
        longer = SolverOptions(30, 1e-4, reach=REACH, price=price)
        fits: list[Mechanics] = []
        for integrator in self.integrators:
            found = self._found(form, integrator, point, options)
            if found.right > 0.5:
                found = self._found(form, integrator, found.point, longer)
            fits.append(found)
            settled = fits[-1].right > 0.8 and fits[-1].median < self.learn.noise
            lost = len(fits) == 3 and max(m.right for m in fits) < 0.5
            if settled or lost or not self.effort.spend(0):
                break
        return max(fits, key=lambda found: (found.right > 0.8, -found.median))

    def refined(self, found: Mechanics) -> Mechanics:
        """Leave out and round numbers, then judge again."""
        form, integrator = found.form, found.integrator
        off = np.abs(self.learn.residuals(form, integrator, found.point[None])[0]).max(1)
        learn = self.learn.rows(np.flatnonzero(off <= max(RIGHT, REACH * float(np.median(off)))))
        point = _simplified(learn, form, integrator, found.point, self.effort)
        return self._found(form, integrator, point, SolverOptions(0))

    def _found(
        self, form: Mechanism, integrator: Integrator, begin: Array, options: SolverOptions
    ) -> Mechanics:
        """Fit all but the unit from a start and judge on the rows held back."""
        point = minimise(
            lambda points: self.learn.residuals(form, integrator, points),
            begin,
            np.array([i for i in range(len(begin)) if i != form.unit]),
            self.effort,
            options,
        )
        time, joints, inputs = self.learn.time, self.joints, self.inputs
        return self.judged(Mechanics(form, point, integrator, time, joints, inputs))

    def judged(self, found: Mechanics) -> Mechanics:
        """Say of a mechanism how right it is on the rows held back."""
        rest = np.abs(found.residuals(self.check))
        return replace(found, right=float((rest <= RIGHT).mean()), median=float(np.median(rest)))


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


def _simplified(
    motion: Motion,
    form: Mechanism,
    integrator: Integrator,
    point: Array,
    effort: Share,
) -> Array:
    """Return parameters, many of them 0, whose largest error is about the same."""

    def residuals(points: Array) -> Array:
        return motion.residuals(form, integrator, points)

    def error(trial: Array) -> float:
        return float(np.abs(residuals(trial[None])).max())

    limit = max(1.5 * error(point), 0.3)
    active = np.array([i for i in range(len(point)) if i != form.unit])
    size, order = max(len(active) // 2, 1), by_importance(residuals, point, active)
    while size >= 1 and len(active) > 1 and effort.spend(0):
        size = min(size, len(active) - 1)
        fewer = np.sort(order[size:])
        trial = np.where(np.isin(np.arange(len(point)), [*fewer, form.unit]), point, 0.0)
        trial = minimise(residuals, trial, fewer, effort, SolverOptions(12, 1e-4))
        if error(trial) <= limit:
            active, point, order = fewer, trial, by_importance(residuals, trial, fewer)
        else:
            size //= 2
    point = minimise(residuals, point, active, effort, SolverOptions(10, 1e-6))
    limit = max(1.2 * error(point), 0.2)
    return shortened(point, lambda trial: error(trial) <= limit, active.tolist(), 7)


def _limited(found: Mechanics, motion: Motion, effort: Share) -> Mechanics:
    """Return the mechanism with the limit that explains most of the rows it has wrong, if any."""
    wrong = ~found.explains(motion)
    best, least = found, 0.7 * float(wrong.sum())
    for joint in range(found.form.coordinates):
        way = np.abs(np.stack([motion.q, motion.q + motion.turn])[:, :, joint]).max(0)
        far = way > 0.9 * way.max()
        if wrong.any() and not wrong.all() and far[wrong].mean() > 0.8:
            near = motion.rows(np.flatnonzero(wrong | far))
            tried = _LimitFit(
                found, near, joint, way[wrong], float(way[~wrong].max()), effort
            ).fitted()
            left = float((~tried.explains(motion)).sum())
            if left < least:
                best, least = tried, left
    return best


@dataclass(frozen=True)
class _LimitFit:
    """Fits the limit of one joint to rows near the end of its way.

    `beyond` says how far the joint went in the rows to explain, `free` how far
    in the others.
    """

    found: Mechanics
    motion: Motion
    joint: int
    beyond: Array
    free: float
    effort: Share

    def fitted(self) -> Mechanics:
        """Return the mechanism with the limit that leaves the fewest rows wrong."""
        first, early, middle = np.quantile(self.beyond, (0.0, 0.2, 0.5)).tolist()
        part = self.found.time / self.found.integrator.parts
        fits: list[tuple[int, int, Array]] = []
        for pace, end in product(PACES, (self.free, 0.9999 * first, early, middle)):
            rate = 1 / (pace * part * HARD)
            point = self._minimised(np.log([end, rate**2, 2 * rate, self._ease()]))
            rest = np.abs(self._residuals(point[None])[0])
            fits.append((int((rest > RIGHT).any(1).sum()), len(fits), point))
            if fits[-1][0] < 0.2 * len(self.beyond) or not self.effort.spend(0):
                break
        return replace(self.found, limits=(Limit(self.joint, *np.exp(min(fits)[2]).tolist()),))

    def _minimised(self, point: Array) -> Array:
        """Fit the end, then everything if there are rows enough."""
        believed = 1 - 0.2 * len(self.beyond) / len(self.motion.q)
        for active in (1, 4) if len(self.beyond) >= ENOUGH else (1,):
            options = SolverOptions(20, 1e-2, believed)
            point = minimise(self._residuals, point, np.arange(active), self.effort, options)
        return point

    def _ease(self) -> float:
        """Return the acceleration of the joint by a unit of force on it, all joints at 0."""
        form, rest = self.found.form, np.zeros((1, 1, self.found.form.coordinates))
        mass = form.mass(form.arrays(self.found.point[None]), rest)
        return float(np.linalg.inv(mass)[0, 0, self.joint, self.joint])

    def _residuals(self, points: Array) -> Array:
        """Return the errors for the logarithms of the numbers of a limit."""
        limit = Limit(self.joint, *np.exp(np.clip(points.T[:, :, None], -30, 30)))
        copies = np.repeat(self.found.point[None], len(points), 0)
        form, integrator = self.found.form, self.found.integrator
        return self.motion.residuals(form, integrator, copies, (limit,))
