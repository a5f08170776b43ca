"""Choosing few columns: by leaving out what is missed least, or by adding what helps most."""

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort, Share

DEPENDENT = 3e-7
"""A column that adds less than this to the ones before it is left out."""


def eliminated(
    matrix: Array, target: Array, costs: Array, effort: Effort | Share, most: int
) -> tuple[int, ...] | None:
    """Return at most so many columns that explain the target to within 1 in every row.

    All columns are fitted, then the one missed least is left out (Hassibi, 1993), again and again.
    """
    rows = len(target)
    active = _independent(matrix, costs)
    if len(active) > 0.6 * rows or not effort.spend(4.0 * rows * len(active) ** 2):
        return None
    found: list[Array] = []
    while len(active):
        weights, inverse, loss = _solved(matrix[:, active], target)
        if loss > rows:
            break
        while len(active) and loss <= rows:
            found.append(active)
            active, weights, inverse, rise = _without_least(active, weights, inverse)
            loss += rise
            if len(active) < 0.8 * len(found[-1]) or len(found) % 10 == 0:
                break
    small = [chosen for chosen in reversed(found) if len(chosen) <= most]
    fits = (chosen for chosen in small if _worst(matrix[:, chosen], target) <= 1)
    best = next(fits, None)
    return None if best is None else tuple(sorted(best.tolist()))


def selected(unit: Array, target: Array, most: int, gain: float) -> list[int]:
    """Add the column of unit length that explains most of the rest, while that gains enough."""
    chosen: list[int] = []
    remaining, rest = unit.copy(), target
    while len(chosen) < most:
        norms = np.einsum("ij,ij->j", remaining, remaining)
        fresh = norms > DEPENDENT
        gains = np.where(fresh, (remaining.T @ rest) ** 2 / np.where(fresh, norms, 1), -1.0)
        best = int(np.argmax(gains))
        if gains[best] < gain * float(rest @ rest):
            break
        chosen.append(best)
        direction = remaining[:, best] / np.sqrt(norms[best])
        rest = rest - direction * (direction @ rest)
        remaining = remaining - np.outer(direction, direction @ remaining)
    return chosen


def _independent(matrix: Array, costs: Array) -> Array:
    """Return columns that do not depend on each other, the cheap ones rather than the costly."""
    norms = np.linalg.norm(matrix, axis=0)
    order = np.argsort(costs, kind="stable")
    order = order[norms[order] > 0]
    upper = np.linalg.qr(matrix[:, order] / norms[order])[1]
    count = min(upper.shape)
    chosen: Array = order[:count][np.abs(np.diag(upper))[:count] > DEPENDENT]
    return chosen


def _solved(matrix: Array, target: Array) -> tuple[Array, Array, float]:
    """Return the weights of scaled columns, their inverse normal matrix and the loss."""
    basis, upper = np.linalg.qr(matrix / np.linalg.norm(matrix, axis=0))
    inverse = np.linalg.inv(upper)
    part = basis.T @ target
    rest = target - basis @ part
    return inverse @ part, inverse @ inverse.T, float(rest @ rest)


def _without_least(
    active: Array, weights: Array, inverse: Array
) -> tuple[Array, Array, Array, float]:
    """Leave out the column that is missed least; return how much more is left unexplained."""
    rises = weights**2 / np.diag(inverse)
    least = int(np.argmin(rises))
    pull = inverse[:, least] / inverse[least, least]
    weights = np.delete(weights - pull * weights[least], least)
    inverse = inverse - np.outer(pull, inverse[least])
    inverse = np.delete(np.delete(inverse, least, 0), least, 1)
    return np.delete(active, least), weights, inverse, float(rises[least])


def _worst(matrix: Array, target: Array) -> float:
    scale = np.linalg.norm(matrix, axis=0)
    weights = np.linalg.lstsq(matrix / scale, target, rcond=None)[0]
    return float(np.abs(matrix / scale @ weights - target).max(initial=0))
