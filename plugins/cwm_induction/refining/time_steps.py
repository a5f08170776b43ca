"""Components that advance by a constant time step times another component."""

from itertools import product
from typing import NamedTuple

import numpy as np

from cwm_cli.evaluation.metric import TOLERANCE


class Advance(NamedTuple):
    """A component that advances by a constant `step` times another component.

    `late` is true if the other component is the one after the step (semi-implicit Euler), false
    if it is the one before (explicit Euler). `error` is the standard error of `step`.
    """

    component: int
    other: int
    late: bool
    step: float
    error: float


def find_advances(before: np.ndarray, after: np.ndarray) -> list[Advance]:
    """Return the components (rows, components) that advance by a constant times another one."""
    if len(before) < 2:
        return []
    clear = (
        np.median(np.abs(after - before) / (TOLERANCE + TOLERANCE * np.abs(after)), axis=0) > 100
    )
    count = before.shape[1]
    pairs = product(np.flatnonzero(clear).tolist(), range(count), (False, True))
    lines = [fit_advance(before, after, *pair) for pair in pairs if pair[0] != pair[1]]
    return [line for line in lines if line is not None]


def fit_advance(
    before: np.ndarray, after: np.ndarray, component: int, other: int, late: bool
) -> Advance | None:
    """Fit a line through the origin, None if less than 90 % of the rows are on it.

    The median ratio comes first, then least squares over the rows on its line; the others may be
    clipped or wrapped.
    """
    change = after[:, component] - before[:, component]
    rate = (after if late else before)[:, other]
    allowed = TOLERANCE + TOLERANCE * np.abs(after[:, component])
    moving = np.abs(rate) > np.abs(rate).max(initial=0.0) / 100
    if moving.sum() < 2:
        return None
    step = float(np.median(change[moving] / rate[moving]))
    on_line = np.abs(change - step * rate) <= allowed
    if on_line.mean() < 0.9 or not step:
        return None
    change, rate = change[on_line], rate[on_line]
    power = float(rate @ rate)
    step = float(rate @ change) / power
    variance = float(((change - step * rate) ** 2).sum()) / max(1, len(rate) - 1)
    return Advance(component, other, late, step, float(np.sqrt(variance / power)))
