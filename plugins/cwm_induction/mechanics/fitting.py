"""Fit mechanisms through an integrator: the angles, the scheme and the parameters.

The search tries forms in the order of their size. A linear regression without integrator gives
the initial parameters of each form. Needless parameters of the best mechanism are then set to 0,
and the remaining ones are rounded. Wrong rows at the end of a joint range are explained by a limit
with a spring.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice
from typing import NamedTuple

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
from cwm_induction.mechanics.mechanism import (
    HARD,
    Limit,
    Mechanism,
    Scheme,
    Stepping,
    solve_accelerations,
)
from cwm_induction.mechanics.motion import Joint, Mechanics, Motion

MOST_JOINTS = 3
"""Maximum number of coordinates: each further one would triple the number of waves."""

LEARN_ROWS = 260
"""Maximum number of rows of a fit: each free parameter costs one simulated step per row."""

CHECK_ROWS = 300
"""Maximum number of held-out rows that measure the accuracy of a fit."""

MOST_FORMS = 3
"""Maximum number of forms that are fitted through an integrator."""

DRAWS = 120
"""Random samples of rows for a start; the rows that agree with the best solution are inliers."""

NEAR = 1e-3
"""Maximum unexplained fraction of the changes for a good start."""

REFITS = 5
"""Number of refits of a start, each with a new selection of the inliers."""

REACH = 20.0
"""Rows with an error above this multiple of the median error are outliers."""

ENOUGH = 3
"""Minimum number of rows beyond a limit to fit its spring; fewer rows fit only its position."""

ONE_JUMP = (Scheme("euler", 1), Scheme("semi-implicit", 1))
"""Schemes that move coordinates by the velocity before or after a step."""

SMOOTH = (
    Scheme("runge-kutta", 2),
    Scheme("runge-kutta", 1),
    Scheme("runge-kutta", 5),
    Scheme("runge-kutta", 4),
    Scheme("semi-implicit", 2),
    Scheme("semi-implicit", 4),
    Scheme("semi-implicit", 5),
    Scheme("semi-implicit", 3),
)
"""Schemes that move coordinates by intermediate velocities, the most likely first."""


def fit(
    samples: Samples,
    joints: Sequence[Joint],
    inputs: Sequence[NamedColumn],
    motion: Motion,
    rng: np.random.Generator,
    effort: Share,
) -> Mechanics | None:
    """Return the best mechanism for these joints, or None if every fit is poor."""
    free = np.all([v.free for joint in joints for v in joint], axis=0)
    usable = samples.smooth & free
    learn = rng.permutation(np.flatnonzero(usable & samples.learn))[:LEARN_ROWS]
    check = np.flatnonzero(usable & ~samples.learn)[:CHECK_ROWS]
    if len(joints) > MOST_JOINTS or len(learn) < 20 or len(check) < 4:
        return None
    fitting = _Fitting(
        motion.rows(learn), motion.rows(check), tuple(joints), tuple(inputs), rng, effort
    )
    best = fitting.best_form()
    if best is None or best.right < 0.2:
        return None
    if best.right <= 0.6:
        return best
    best = fitting.simplify(best)
    ends = best.explains(motion)[free & samples.terminated]
    usable |= free & (ends.mean() > 0.5 if len(ends) else False)
    rows = motion.rows(np.flatnonzero(usable))
    return fitting.with_accuracy(_with_limit(best, rows, effort))


def again(
    known: Mechanics,
    samples: Samples,
    joints: Sequence[Joint],
    inputs: Sequence[NamedColumn],
    effort: Effort,
) -> Mechanics | None:
    """Adapt a mechanism from fewer rows to the current rows, or return None if accuracy drops.

    The adapted mechanism may get a limit, because the new rows may contain the first contacts.
    """
    if [v.name for joint in joints for v in joint] != known.names:
        return None
    free = np.all([v.free for joint in joints for v in joint], axis=0)
    motion = Motion.of(joints, inputs, known.stepping.time)
    rows = motion.rows(np.flatnonzero(samples.smooth & free))
    mechanics = replace(known, joints=tuple(joints), inputs=tuple(inputs))
    if not mechanics.explains(rows).all() and not mechanics.stepping.limits:
        mechanics = _with_limit(mechanics, rows, effort.share(0.1))
    right = float((np.abs(mechanics.residuals(rows)) <= RIGHT).mean())
    return replace(mechanics, right=right) if right >= known.right else None


class Start(NamedTuple):
    """Initial parameters, and the median error of the velocities in units of the tolerance."""

    point: Array
    error: float


@dataclass(frozen=True)
class _Fitting:
    """A search over forms and schemes on the same rows."""

    learn: Motion
    check: Motion
    joints: tuple[Joint, ...]
    inputs: tuple[NamedColumn, ...]
    rng: np.random.Generator
    effort: Share

    def best_form(self) -> Mechanics | None:
        """Return the best fit over the most promising forms, or None if there are no such forms."""
        best: Mechanics | None = None
        for form, initial in islice(self.starts(), MOST_FORMS):
            mechanics = self.best_scheme(form, initial.point)
            best = mechanics if best is None or mechanics.right > best.right + 0.02 else best
            if best.right > 0.9 or not self.effort.spend(0):
                break
        return best

    def starts(self) -> Iterator[tuple[Mechanism, Start]]:
        """Yield forms with a good linear fit in the order of size, then the less accurate forms.

        Linear fits are less accurate if the velocities are hidden.
        """
        learn, check = self.learn.momentary, self.check.momentary
        others: list[tuple[Mechanism, Start]] = []
        for form in _forms(self.joints, len(self.inputs)):
            size = len(form.parameters)
            if 2 * size > len(self.joints) * len(self.learn.q):
                continue
            if not self.effort.spend(60.0 * self.learn.q.size * size**2):
                break
            initial = start(form, learn, check, self.rng)
            if initial.error < NEAR * learn.unrest:
                yield form, initial
            elif initial.error < 0.1 * learn.unrest:
                others.append((form, initial))
        yield from sorted(others, key=lambda pair: pair[1].error)

    @cached_property
    def schemes(self) -> Sequence[Scheme]:
        """The schemes that agree with the observed changes of the coordinates."""
        learn = self.learn
        limit = learn.tolerance[:, : len(self.joints)]
        for scheme, speed in zip(ONE_JUMP, learn.speeds, strict=False):
            if np.median(np.abs(learn.turn - learn.time * speed) / limit) < 2:
                return [scheme]
        return SMOOTH

    def best_scheme(self, form: Mechanism, point: Array) -> Mechanics:
        """Return the best fit over the integration schemes.

        The fits ignore the fifth of the rows with the largest errors.
        """
        options = SolverOptions(40, 1e-4, believed=0.8, reach=REACH, price=self.learn.price)
        fits: list[Mechanics] = []
        for scheme in self.schemes:
            fits.append(self._fit(form, scheme, point, options))
            settled = fits[-1].right > 0.8 and fits[-1].median < self.learn.noise
            lost = len(fits) == 3 and max(m.right for m in fits) < 0.5
            if settled or lost or not self.effort.spend(0):
                break
        return max(fits, key=lambda mechanics: (mechanics.right > 0.8, -mechanics.median))

    def simplify(self, mechanics: Mechanics) -> Mechanics:
        """Set needless parameters to 0, round the remaining ones and update the accuracy."""
        off = np.abs(mechanics.residuals(self.learn)).max(1)
        learn = self.learn.rows(np.flatnonzero(off <= max(RIGHT, REACH * float(np.median(off)))))
        return self.with_accuracy(
            replace(mechanics, point=_simplified(learn, mechanics, self.effort))
        )

    def _fit(
        self, form: Mechanism, scheme: Scheme, initial: Array, options: SolverOptions
    ) -> Mechanics:
        """Fit all parameters except the unit, and measure the accuracy on held-out rows."""
        stepping = Stepping(self.learn.time, scheme)
        point = minimise(
            lambda points: self.learn.residuals(form, stepping, points),
            initial,
            np.array([i for i in range(len(initial)) if i != form.unit]),
            self.effort,
            options,
        )
        return self.with_accuracy(Mechanics(form, point, stepping, self.joints, self.inputs))

    def with_accuracy(self, mechanics: Mechanics) -> Mechanics:
        """Return the mechanism with its accuracy and median error on the held-out rows."""
        rest = np.abs(mechanics.residuals(self.check))
        return replace(
            mechanics, right=float((rest <= RIGHT).mean()), median=float(np.median(rest))
        )


def _forms(joints: Sequence[Joint], inputs: int) -> Iterator[Mechanism]:
    """Yield forms, the simplest first; they differ in angles, and odd ones have sines."""
    count = len(joints)
    known = [i for i in range(count) if joints[i].position.is_angle]
    other = [i for i in range(count) if i not in known]
    choices = [
        tuple(sorted([*known, *extra]))
        for size in range(len(other) + 1)
        for extra in combinations(other, size)
        if known or extra
    ]
    for odd in (False, True):
        yield from (Mechanism(count, angles, inputs, odd) for angles in choices)


def start(form: Mechanism, learn: Motion, check: Motion, rng: np.random.Generator) -> Start:
    """Solve for all parameters except the unit, with a regression that is robust to outliers.

    The change of the momentum is the integral of the force, which is linear in the parameters. The
    error is measured on the rows `check`; it is infinite if a mass is not positive.
    """
    columns = _momenta(form, learn)
    point = _best_sample(form, learn, columns, rng)
    for _ in range(REFITS):
        errors = _velocity_errors(form, learn, point, columns).max(1)
        point = _solve(form, columns[:, errors <= 5 * np.quantile(errors, 0.6)])
    columns = _momenta(form, check)
    mass = form.mass(form.arrays(point[None]), check.q[None])
    possible = np.linalg.eigvalsh(mass).min() > 0
    error = float(np.median(_velocity_errors(form, check, point, columns)))
    return Start(point, error if possible else np.inf)


def _best_sample(form: Mechanism, learn: Motion, columns: Array, rng: np.random.Generator) -> Array:
    """Return the solution of a random sample of rows with the smallest median error."""
    fewest = 2 + len(columns) * 5 // (4 * form.coordinates)
    best, least = np.zeros(len(columns)), np.inf
    for _ in range(DRAWS):
        rows = rng.permutation(len(learn.q))[:fewest]
        point = _solve(form, columns[:, rows])
        error = float(np.median(_velocity_errors(form, learn, point, columns)))
        if error < least:
            best, least = point, error
        if least < NEAR * learn.unrest:
            break
    return best


def _solve(form: Mechanism, columns: Array) -> Array:
    """Return the least-squares parameters of all rows, with the unit fixed at 1."""
    free = np.arange(len(columns)) != form.unit
    matrix = columns.reshape(len(columns), -1).T
    scale = np.linalg.norm(matrix, axis=0)[free] + 1e-300
    weights = np.linalg.lstsq(matrix[:, free] / scale, -matrix[:, form.unit], rcond=1e-10)[0]
    point = np.ones(len(columns))
    point[free] = weights / scale
    return point


def _momenta(form: Mechanism, motion: Motion) -> Array:
    """Return the contribution of each parameter to momentum change - force (P, rows, n).

    Simpson's rule integrates the force along the cubic through both ends of a step.
    """
    end, time = motion.q + motion.turn, motion.time
    middle = (motion.q + end) / 2 + time / 8 * (motion.v - motion.after)
    speed = 1.5 * motion.turn / time - (motion.v + motion.after) / 4
    arrays = form.arrays(np.eye(len(form.parameters)))  # P parameter vectors with one number each
    first, halfway, last = (
        form.laws(arrays, q[None], v[None], motion.u)
        for q, v in ((motion.q, motion.v), (middle, speed), (end, motion.after))
    )
    momenta = [
        (laws.mass @ v[..., None])[..., 0] for laws, v in ((first, motion.v), (last, motion.after))
    ]
    change = (momenta[1] - momenta[0]) / time
    rest: Array = change - (first.force + 4 * halfway.force + last.force) / 6
    return rest


def _velocity_errors(form: Mechanism, motion: Motion, point: Array, columns: Array) -> Array:
    """Return the errors of the velocities (rows, n) in units of the tolerance."""
    force = np.tensordot(point, columns, 1)
    mass = form.mass(form.arrays(point[None]), motion.q[None])[0]
    with np.errstate(all="ignore"):
        error = np.abs(solve_accelerations(mass, force)) * motion.time
    errors: Array = np.nan_to_num(error / motion.tolerance[:, form.coordinates :], posinf=1e12)
    return errors


def _simplified(motion: Motion, mechanics: Mechanics, effort: Share) -> Array:
    """Set as many parameters to 0 as possible without a much larger maximum error."""
    form, point = mechanics.form, mechanics.point

    def residuals(points: Array) -> Array:
        return motion.residuals(form, mechanics.stepping, points)

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


def _with_limit(mechanics: Mechanics, motion: Motion, effort: Share) -> Mechanics:
    """Add the limit that explains most of the wrong rows, if there is such a limit."""
    wrong = ~mechanics.explains(motion)
    best, least = mechanics, 0.7 * float(wrong.sum())
    for joint in range(mechanics.form.coordinates):
        extent = np.abs(np.stack([motion.q, motion.q + motion.turn])[:, :, joint]).max(0)
        far = extent > 0.9 * extent.max()
        if wrong.any() and not wrong.all() and far[wrong].mean() > 0.8:
            near = motion.rows(np.flatnonzero(wrong | far))
            ends = float(extent[~wrong].max()), extent[wrong]
            tried = _fit_limit(mechanics, near, joint, *ends, effort)
            left = float((~tried.explains(motion)).sum())
            if left < least:
                best, least = tried, left
    return best


def _fit_limit(
    mechanics: Mechanics, motion: Motion, joint: int, free: float, beyond: Array, effort: Share
) -> Mechanics:
    """Return the mechanism with the limit of a joint that leaves the fewest wrong rows.

    Args:
        mechanics: The mechanism without a limit.
        motion: Rows near the end of the range of the joint.
        joint: Index of the joint.
        free: The largest absolute coordinate of the right rows.
        beyond: The largest absolute coordinate of each wrong row.
        effort: The work budget.
    """
    form, stepping = mechanics.form, mechanics.stepping
    mass = form.mass(form.arrays(mechanics.point[None]), np.zeros((1, 1, form.coordinates)))
    inverse_inertia = np.linalg.inv(mass)[0, 0, joint, joint]

    def residuals(points: Array) -> Array:
        limit = Limit(joint, *np.exp(np.clip(points.T[:, :, None], -30, 30)))
        copies = np.repeat(mechanics.point[None], len(points), 0)
        return motion.residuals(form, stepping._replace(limits=(limit,)), copies)

    options = SolverOptions(20, 1e-2, believed=1 - 0.2 * len(beyond) / len(motion.q))
    quantiles = np.quantile(beyond, (0.0, 0.2, 0.5)) * (0.9999, 1, 1)
    fits: list[tuple[int, int, Array]] = []
    rate = stepping.scheme.parts / (2 * stepping.time * HARD)  # a time constant of two parts
    for end in (free, *quantiles.tolist()):
        point = np.log([end, rate**2, 2 * rate, inverse_inertia])
        for active in (1, 4) if len(beyond) >= ENOUGH else (1,):
            point = minimise(residuals, point, np.arange(active), effort, options)
        fits.append(
            (int((np.abs(residuals(point[None])[0]) > RIGHT).any(1).sum()), len(fits), point)
        )
        if fits[-1][0] < 0.2 * len(beyond) or not effort.spend(0):
            break
    limit = Limit(joint, *np.exp(min(fits)[2]).tolist())
    return replace(mechanics, stepping=stepping._replace(limits=(limit,)))
