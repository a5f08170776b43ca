"""Limits of joints that push back, fitted to the rows that a free mechanism does not explain."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Share
from cwm_induction.mechanics.least_squares import Options, minimise
from cwm_induction.mechanics.limits import HARD, Limit
from cwm_induction.mechanics.motion import Mechanics, Motion

ENOUGH = 3
"""Rows beyond a limit from which its spring is fitted, too; with fewer only where it begins."""

PACES = (2.0, 1.0, 4.0)
"""Parts of a step that the spring of a limit takes, critically damped."""


def limited(found: Mechanics, motion: Motion, effort: Share) -> Mechanics:
    """Return the mechanism with the limit that explains most of the rows it has wrong, if any."""
    wrong = _wrong(found, motion)
    best, least = found, 0.7 * float(wrong.sum())
    for joint in range(found.form.coordinates):
        way = np.abs(np.stack([motion.q, motion.q + motion.turn])[:, :, joint]).max(0)
        far = way > 0.9 * way.max()
        if wrong.any() and not wrong.all() and far[wrong].mean() > 0.8:
            near = motion.rows(np.flatnonzero(wrong | far))
            tried = _Push(found, near, joint, way[wrong], float(way[~wrong].max()), effort).fitted()
            if _wrong(tried, motion).sum() < least:
                best, least = tried, float(_wrong(tried, motion).sum())
    return best


@dataclass(frozen=True)
class _Push:
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
            fits.append((int((rest > 4).any(1).sum()), len(fits), point))
            if fits[-1][0] < 0.2 * len(self.beyond) or not self.effort.spend(0):
                break
        return replace(self.found, limits=(Limit(self.joint, *np.exp(min(fits)[2]).tolist()),))

    def _minimised(self, point: Array) -> Array:
        """Fit the end, then everything if there are rows enough."""
        believed = 1 - 0.2 * len(self.beyond) / len(self.motion.q)
        for active in (1, 4) if len(self.beyond) >= ENOUGH else (1,):
            options = Options(20, 1e-2, believed)
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


def _wrong(found: Mechanics, motion: Motion) -> Array:
    wrong: Array = (np.abs(found.residuals(motion)) > 4).any(1)
    return wrong
