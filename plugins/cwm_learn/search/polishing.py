"""Improve a plan of continuous actions with the iterative linear-quadratic regulator (iLQR).

Li and Todorov, "Iterative linear quadratic regulator design for nonlinear biological movement
systems", 2004. Derivatives are finite differences, computed for all steps of a plan in one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_learn.search.rollouts import LaneSimulator
from cwm_learn.search.trajectories import ImaginedTrajectory, simulate_plan

DIFFERENCE = 1e-3
"""Step of the finite differences, in spreads of the data: large enough to smooth out kinks."""

STEP_SIZES = np.array([1.0, 0.6, 0.3, 0.1, 0.03, 0.01])
"""Shares of a change of the actions that the line search tries."""


class Expansion(NamedTuple):
    """Derivatives at each step of a plan; inputs are the observation and then the action.

    `jacobian` (steps, components, inputs) is the derivative of the next observation, `slope`
    (steps, inputs) and `curvature` (steps, inputs, inputs) are those for the reward.
    """

    jacobian: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


def polish(
    simulator: LaneSimulator,
    arrays: Mapping[str, np.ndarray],
    start: np.ndarray,
    plan: ImaginedTrajectory,
    budget: int,
) -> ImaginedTrajectory:
    """Return a plan with at least the same return, and with feedback gains.

    Plans of discrete actions and plans that end the episode are returned unchanged.
    """
    options = arrays["options"]
    if options.ndim == 1 or plan.ended or not len(plan.actions):
        return plan
    damping, expansion = 1e-3, None
    rounds = 30  # maximum iterations; few plans improve after 20
    # damping, relative to the curvature, above which no change can improve the plan
    max_damping = 1e4
    min_gain = 1e-5  # the iteration stops if the return improves by less than this share
    for _ in range(rounds):
        if simulator.is_exhausted(budget) or damping > max_damping:
            break
        if expansion is None:
            scale = np.concatenate([arrays["spread"], np.ptp(options, 0)])
            expansion = expand(simulator, plan, start, scale)
        change, gains = compute_change(plan, expansion, options, damping)
        if plan.gains is None:
            plan = plan._replace(gains=gains)
        value, actions = _search_step_size(simulator, start, plan, change, gains, options)
        if value > plan.value:
            improved = simulate_plan(simulator, start, actions)._replace(gains=gains)
            if improved.value < plan.value or len(improved.actions) < len(plan.actions):
                return plan
            gain, plan = value - plan.value, improved
            expansion, damping = None, damping / 4
            if gain < min_gain * abs(plan.value):
                break
        else:
            damping *= 10
    return plan


def expand(
    simulator: LaneSimulator, plan: ImaginedTrajectory, start: np.ndarray, scale: np.ndarray
) -> Expansion:
    """Expand the model around all steps of a plan; `scale` has a unit for each input."""
    before = np.concatenate([start[None], plan.observations[:-1]])
    inputs = np.concatenate([before, plan.actions], 1).T  # (inputs, steps)
    size, count = inputs.shape
    delta = DIFFERENCE * scale
    units = np.diag(delta)
    pairs = list(combinations(range(size), 2))
    # the order of the results below: no change, +1 and -1 in each input, +1 in each pair of inputs
    moves = [np.zeros(size), *units, *-units, *(units[i] + units[j] for i, j in pairs)]
    lanes = (inputs[:, None, :] + np.array(moves).T[:, :, None]).reshape(size, -1)
    after, rewards, _, diverged = simulator.step(lanes[: before.shape[1]], lanes[before.shape[1] :])
    rewards = np.where(diverged, 0.0, rewards).reshape(len(moves), count)
    after = np.where(diverged, 0.0, after).reshape(-1, len(moves), count)
    up, down = slice(1, size + 1), slice(size + 1, 2 * size + 1)
    jacobian = (after[:, up] - after[:, down]) / (2 * delta[:, None])
    curvature = np.zeros((count, size, size))
    for i in range(size):
        difference = rewards[1 + i] - 2 * rewards[0] + rewards[1 + size + i]
        curvature[:, i, i] = difference / delta[i] ** 2
    for (i, j), both in zip(pairs, rewards[2 * size + 1 :], strict=True):
        difference = both - rewards[1 + i] - rewards[1 + j] + rewards[0]
        curvature[:, i, j] = curvature[:, j, i] = difference / (delta[i] * delta[j])
    slope = (rewards[up] - rewards[down]) / (2 * delta[:, None])
    # without upward curvature, since a step to its optimum would be infinite
    values, vectors = np.linalg.eigh(curvature)
    curvature = (vectors * np.minimum(values, 0)[:, None]) @ vectors.transpose(0, 2, 1)
    return Expansion(jacobian.transpose(2, 0, 1), slope.T, curvature)


def compute_change(
    plan: ImaginedTrajectory, expansion: Expansion, options: np.ndarray, damping: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a change of each action, and its feedback gains (steps, action, components).

    The actions are optimised backwards through the plan, as if the model were quadratic. An action
    at a bound stays there if the gradient points beyond the bound.
    """
    low, high = options.min(0), options.max(0)
    count, size = plan.observations.shape
    change = np.zeros_like(plan.actions)
    gains = np.zeros((count, len(low), size))
    slope, curvature = np.zeros(size), np.zeros((size, size))  # derivatives of the later return
    for step in range(count - 1, -1, -1):
        jacobian = expansion.jacobian[step]
        gradient = expansion.slope[step] + jacobian.T @ slope
        hessian = expansion.curvature[step] + jacobian.T @ curvature @ jacobian
        by_action = hessian[size:, size:]
        largest = np.abs(np.diag(by_action)).max() + 1e-9
        by_action = by_action - (damping * largest + 1e-9) * np.eye(len(low))
        action, by = plan.actions[step], gradient[size:]
        fixed = ((action >= high) & (by > 0)) | ((action <= low) & (by < 0))
        free = np.flatnonzero(~fixed)
        if len(free):
            right = np.c_[by[free], hessian[size:, :size][free]]
            solved = np.linalg.solve(by_action[np.ix_(free, free)], right)
            change[step, free], gains[step][free] = -solved[:, 0], -solved[:, 1:]
        gain = gains[step]
        slope = gradient[:size] + gain.T @ (by + hessian[size:, size:] @ change[step])
        slope = slope + hessian[:size, size:] @ change[step]
        cross = hessian[:size, size:] @ gain
        curvature = hessian[:size, :size] + cross + cross.T + gain.T @ hessian[size:, size:] @ gain
        curvature = (curvature + curvature.T) / 2
    return change, gains


def _search_step_size(
    simulator: LaneSimulator,
    start: np.ndarray,
    plan: ImaginedTrajectory,
    change: np.ndarray,
    gains: np.ndarray,
    options: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Simulate all step sizes of a change; return the best return and its actions."""
    low, high = options.min(0), options.max(0)
    now = np.repeat(start[:, None], len(STEP_SIZES), 1)
    before = np.concatenate([start[None], plan.observations[:-1]])
    total, actions = np.zeros(len(STEP_SIZES)), []
    for step, action in enumerate(plan.actions):
        feedback = gains[step] @ (now - before[step][:, None])
        moved = action[:, None] + STEP_SIZES * change[step][:, None] + feedback
        actions.append(np.clip(moved, low[:, None], high[:, None]))
        now, rewards, ends, diverged = simulator.step(now, actions[-1])
        total += np.where(diverged | ends, -np.inf, rewards)
        now = np.where(diverged, before[step][:, None], now)
    best = int(np.argmax(np.nan_to_num(total, nan=-np.inf)))
    return float(total[best]), np.array(actions)[:, :, best]
