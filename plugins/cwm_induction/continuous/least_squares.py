"""Levenberg and Marquardt's method, with residuals computed for many parameter vectors at once.

`scipy.optimize.least_squares` gives programs that are as accurate in 38 recorded systems, but
14 of them, mechanisms among them, took 39 s rather than 32 s, and loading it takes 0.33 s of a
core, a third of all that a small system needs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import rounded

Residuals = Callable[[Array], Array]
"""From parameter vectors (B, P) to residuals (B, rows, outputs), in units of the tolerance."""

NEAR = 1e-3
"""Residuals this small need not become smaller."""

AT_ONCE = 16_000
"""Residuals that are computed together: the arrays of more leave the cache."""

RIGHT = 4.0
"""Residuals up to this count as right, if a unit is a quarter of what a prediction may be off."""

CAUTIOUS = 1e6
"""Damping at which a step is too short to help."""


@dataclass(frozen=True)
class SolverOptions:
    """How long to iterate, how careful to start, and which rows to believe.

    Those are a share of the rows, and of these the ones that are off by at
    most `reach` times the median or within what counts as right. The end has come
    after `patience` steps in a row that gain less than `least_gain`. Derivatives are
    those of parameters of at least the `scale`. A residual costs `price` multiplications for
    every parameter, if it does not count them itself.
    """

    iterations: int = 30
    damping: float = 1e-2
    believed: float = 1.0
    reach: float = np.inf
    least_gain: float = 1e-3
    patience: int = 4
    scale: float = 1e-2
    price: float = 150.0


def minimise(
    residuals: Residuals, start: Array, active: Array, effort: Share, options: SolverOptions
) -> Array:
    """Return parameters with a smaller sum of squares; only the active ones move."""
    point, damping, stalled = start.copy(), options.damping, 0
    rest = residuals(point[None])[0]
    for iteration in range(options.iterations):
        if iteration % 3 == 0:
            weights = _believed(rest, options)
        loss = _loss(rest, weights)
        if float(np.abs(weights * rest).max()) < NEAR:
            return point
        if not effort.spend(options.price * rest.size * len(active)):
            return point
        jacobian = slopes(residuals, point, rest, active, options.scale)
        while True:
            moved = point.copy()
            moved[active] += _step(jacobian, rest, weights, damping)
            trial = residuals(moved[None])[0]
            if _loss(trial, weights) < loss:
                break
            damping *= 6
            if damping > CAUTIOUS:
                return point
        stalled = stalled + 1 if _loss(trial, weights) > (1 - options.least_gain) * loss else 0
        point, rest, damping = moved, trial, max(damping / 8, 1e-12)
        if stalled >= options.patience:
            break
    return point


def descended(residuals: Callable[[Array], Array], start: Array, effort: Share) -> Array:
    """Return few parameters near the start with smaller residuals, which are one vector."""
    options = SolverOptions(25, 1e-3, least_gain=1e-5, patience=1, scale=1e-6, price=0.0)

    def several(points: Array) -> Array:
        return np.stack([residuals(point) for point in points])[..., None]

    return minimise(several, start, np.arange(len(start)), effort, options)


def shortened(
    point: Array, fits: Callable[[Array], bool], numbers: Iterable[int], most: int = 8
) -> Array:
    """Round some numbers, one after another, to the fewest digits with which all still fits.

    One that needs more than the `most` digits stays as it is.
    """
    for index in numbers:
        for digits in range(1, most + 1):
            trial = point.copy()
            trial[index] = rounded(float(point[index]), digits)
            if fits(trial):
                point = trial
                break
    return point


def slopes(
    residuals: Residuals, point: Array, rest: Array, active: Array, scale: float = 1e-2
) -> Array:
    """Return the derivatives (active, rows, outputs) by forward differences."""
    steps = 1e-6 * np.maximum(np.abs(point[active]), scale)
    points = np.repeat(point[None], len(active), 0)
    points[np.arange(len(active)), active] += steps
    size = 1 + AT_ONCE // rest.size
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    moved = np.concatenate([residuals(part) for part in parts])
    derivatives: Array = (moved - rest) / steps[:, None, None]
    return derivatives


def by_importance(residuals: Residuals, point: Array, active: Array) -> Array:
    """Return the active parameters, those that the fit would miss least first (Hassibi, 1993)."""
    rest = residuals(point[None])[0]
    jacobian = slopes(residuals, point, rest, active).reshape(len(active), -1).T
    scale = 1 / (np.linalg.norm(jacobian, axis=0) + 1e-300)
    scaled = jacobian * scale
    inverse = np.linalg.inv(scaled.T @ scaled + 1e-12 * np.eye(len(active)))
    loss = point[active] ** 2 / (np.diag(inverse) * scale**2)
    order: Array = active[np.argsort(loss, kind="stable")]
    return order


def _believed(rest: Array, options: SolverOptions) -> Array:
    """Weigh the rows to believe 1 and the others 0."""
    if options.believed == 1 and options.reach == np.inf:
        return np.ones((len(rest), 1))
    worst = np.abs(rest).max(1)
    share = 1.0001 * np.quantile(worst, options.believed)
    most = min(share, max(RIGHT, options.reach * float(np.median(worst))))
    weights: Array = (worst <= most).astype(float)
    return weights[:, None]


def _loss(rest: Array, weights: Array) -> float:
    return float((weights * rest**2).sum())


def _step(jacobian: Array, rest: Array, weights: Array, damping: float) -> Array:
    """Solve the damped normal equations; stay where they are singular."""
    flat = jacobian.reshape(len(jacobian), -1)
    weighted = (jacobian * weights).reshape(len(jacobian), -1)
    normal, gradient = weighted @ flat.T, weighted @ rest.ravel()
    diagonal = np.diag(normal)
    scale = 1 / np.sqrt(diagonal + 1e-12 * diagonal.max() + 1e-300)
    damped = normal * scale[:, None] * scale + (damping + 1e-13) * np.eye(len(flat))
    try:
        step: Array = -scale * np.linalg.solve(damped, scale * gradient)
    except np.linalg.LinAlgError:
        return np.zeros(len(flat))
    return step
