"""The classical fourth-order integrator."""

from collections.abc import Callable

import numpy as np


def rk4(slope: Callable[[np.ndarray], np.ndarray], state: np.ndarray, dt: float) -> np.ndarray:
    """Advance an autonomous system by one Runge-Kutta step."""
    k1 = slope(state)
    k2 = slope(state + dt / 2 * k1)
    k3 = slope(state + dt / 2 * k2)
    k4 = slope(state + dt * k3)
    advanced: np.ndarray = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return advanced
