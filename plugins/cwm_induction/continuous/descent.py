"""Levenberg and Marquardt's method for few parameters and one vector of residuals."""

from collections.abc import Callable

import numpy as np

from cwm_induction.continuous.samples import Array

STEPS = 25
SETTLED = 1e-5
"""Relative gain below which no further step is taken."""


def descended(residuals: Callable[[Array], Array], start: Array) -> Array:
    """Return parameters near the start with a smaller sum of squares."""
    point, rest, damping = start, residuals(start), 1e-3
    for _ in range(STEPS):
        jacobian = _slopes(residuals, point, rest)
        normal = jacobian.T @ jacobian
        if not np.isfinite(normal).all() or not np.diag(normal).all():
            break
        before, moved, trial = float(rest @ rest), point, rest
        while damping < 1e6 and not float(trial @ trial) < before:
            damped = normal + damping * np.diag(np.diag(normal))
            moved = point - np.linalg.lstsq(damped, jacobian.T @ rest, rcond=None)[0]
            trial, damping = residuals(moved), damping * 5
        if not float(trial @ trial) < before:
            break
        point, rest, damping = moved, trial, max(damping / 50, 1e-12)
        if float(rest @ rest) > (1 - SETTLED) * before:
            break
    return point


def _slopes(residuals: Callable[[Array], Array], point: Array, rest: Array) -> Array:
    """Return the derivatives (rows, parameters) by forward differences."""
    columns = []
    for index, step in enumerate(1e-6 * np.maximum(np.abs(point), 1e-6)):
        moved = point.copy()
        moved[index] += step
        columns.append((residuals(moved) - rest) / step)
    return np.stack(columns, 1)
