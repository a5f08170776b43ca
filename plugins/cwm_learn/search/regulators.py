"""Linear-quadratic regulators: feedback gains that hold a model at an equilibrium.

Anderson and Moore, "Optimal control: linear quadratic methods", 1990. The gains are stationary
after enough steps of the backward pass of the iterative regulator (see `polishing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cwm_learn.search.polishing import Expansion, compute_change, expand
from cwm_learn.search.rollouts import LaneSimulator
from cwm_learn.search.trajectories import ImaginedTrajectory


def find_regulators(
    simulator: LaneSimulator, arrays: Mapping[str, np.ndarray], guess: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the weights of linear policies (see `policies.act`) that hold an equilibrium.

    Args:
        simulator: The model; its actions are continuous.
        arrays: `options`, `spread`, `centre` and `scale`.
        guess: An observation (components,) near the equilibrium.
    """
    options, spread = arrays["options"], arrays["spread"]
    half = np.ptp(options, 0) / 2
    found = _find_equilibrium(simulator, arrays, guess)
    if found is None:
        return
    observation, action = found
    size = len(observation)
    here = ImaginedTrajectory(action[None], observation[None], np.zeros(1), ended=False)
    scale = np.concatenate([spread, 2 * half])
    expansion = expand(simulator, here, observation, scale)
    reward = simulator.step(observation[:, None], action[:, None])[1][0]
    unit = max(abs(reward), np.abs(expansion.curvature * np.outer(scale, scale)).max(), 1e-9)
    if not all(np.isfinite(part).all() for part in expansion):
        return
    horizon = 300  # steps of the backward pass, after which the gains are stationary
    plan = here._replace(
        actions=np.repeat(action[None], horizon, 0),
        observations=np.repeat(observation[None], horizon, 0),
    )
    # Cost of a deviation of one spread of the data, relative to the rewards. It makes regulators
    # stable if the reward does not depend on the observation.
    state_cost = 1e-3
    # Costs of an action at its bound, relative to the rewards. Cheap actions correct deviations
    # faster, and reach their bounds earlier.
    action_costs = (1e-4, 1e-2, 1.0)
    for cost in action_costs:
        costs = unit * np.concatenate([state_cost / spread**2, cost / half**2])
        repeated = expansion._replace(curvature=expansion.curvature - np.diag(costs))
        repeated = Expansion(*(np.repeat(part, horizon, 0) for part in repeated))
        _, gains = compute_change(plan, repeated, options, damping=0.0)
        gain = gains[0]  # (action, components)
        middle = (options.max(0) + options.min(0)) / 2
        bias = action - middle + gain @ (arrays["centre"] - observation)
        yield np.c_[bias, gain * arrays["scale"], np.zeros((len(half), size))] / half[:, None]


def _find_equilibrium(
    simulator: LaneSimulator, arrays: Mapping[str, np.ndarray], guess: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return an observation and an action that leaves it unchanged, or None if none is near."""
    options, spread, size = arrays["options"], arrays["spread"], len(guess)
    low, high = options.min(0), options.max(0)
    scale = np.concatenate([spread, high - low])
    point = np.concatenate([guess, (low + high) / 2])
    newton_steps = 20  # maximum iterations of Newton's method for an equilibrium
    max_drift = 1e-4  # maximum change of an equilibrium in a step, in spreads of the data
    for _ in range(newton_steps):
        observation, action = point[:size], point[size:]
        after = simulator.step(observation[:, None], action[:, None])[0][:, 0]
        drift = (after - observation) / spread
        if not np.isfinite(drift).all():
            return None
        if np.abs(drift).max() < max_drift:
            return observation, action
        here = ImaginedTrajectory(action[None], observation[None], np.zeros(1), ended=False)
        jacobian = expand(simulator, here, observation, scale).jacobian[0] - np.eye(
            size, len(point)
        )
        change = np.linalg.lstsq(jacobian * scale / spread[:, None], -drift, rcond=1e-6)[0]
        point = point + scale * change / max(1.0, np.abs(change).max())
        point[size:] = np.clip(point[size:], low, high)
    return None
