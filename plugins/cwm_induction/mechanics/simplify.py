"""Leaving out the numbers of a mechanism that are not needed, and shortening the others."""

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Share
from cwm_induction.mechanics.least_squares import Options, Residuals, importance, minimise
from cwm_induction.mechanics.mechanism import Integrator, Mechanism
from cwm_induction.mechanics.motion import Motion
from cwm_induction.writing.rounding import rounded


def simplified(
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
    size, order = max(len(active) // 2, 1), _by_importance(residuals, point, active)
    while size >= 1 and len(active) > 1 and effort.spend(0):
        size = min(size, len(active) - 1)
        fewer = np.sort(order[size:])
        trial = np.where(np.isin(np.arange(len(point)), [*fewer, form.unit]), point, 0.0)
        trial = minimise(residuals, trial, fewer, effort, Options(12, 1e-4))
        if error(trial) <= limit:
            active, point, order = fewer, trial, _by_importance(residuals, trial, fewer)
        else:
            size //= 2
    point = minimise(residuals, point, active, effort, Options(10, 1e-6))
    limit = max(1.2 * error(point), 0.2)
    for index in active.tolist():
        for digits in range(1, 8):
            trial = point.copy()
            trial[index] = rounded(point[index], digits)
            if error(trial) <= limit:
                point = trial
                break
    return point


def _by_importance(residuals: Residuals, point: Array, active: Array) -> Array:
    """Return the active parameters, those that the fit would miss least first."""
    order: Array = active[np.argsort(importance(residuals, point, active), kind="stable")]
    return order
