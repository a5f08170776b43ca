"""Bettering a plan of continuous actions: the iterative linear-quadratic regulator.

Li and Todorov, "Iterative linear quadratic regulator design for nonlinear biological movement
systems", 2004. Derivatives are differences of steps of the model, all steps of a way at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_learn.search.rollouts import ImaginedLanes
from cwm_learn.search.trajectories import ImaginedWay, played

ROUNDS = 30
"""Rounds at most; few ways gain after 20."""

APART = 1e-3
"""How far apart steps are taken for derivatives, in spreads of the data: kinks smooth out."""

SHARES = np.array([1.0, 0.6, 0.3, 0.1, 0.03, 0.01])
"""Shares of a change that are tried."""

STIFF = 1e4
"""Stiffness, relative to the curvature, from which on no change will help."""

GAIN = 1e-5
"""Share of the return that counts as nothing."""


class Curves(NamedTuple):
    """How steps depend on observation and action at each step of a way.

    `jacobian` (steps, components, inputs), `slope` (steps, inputs) and `bend` (steps, inputs,
    inputs) of the rewards.
    """

    jacobian: np.ndarray
    slope: np.ndarray
    bend: np.ndarray


class Controls(NamedTuple):
    """What would better a way: another action, and how it depends on what is observed."""

    actions: np.ndarray
    gains: np.ndarray


def polish(
    lanes: ImaginedLanes,
    arrays: Mapping[str, np.ndarray],
    start: np.ndarray,
    way: ImaginedWay,
    most: int,
) -> ImaginedWay:
    """Return a way that returns at least as much, with gains; `most` bounds the work."""
    options = arrays["options"]
    if options.ndim == 1 or way.ended or not len(way.actions):
        return way
    low, high = options.min(0), options.max(0)
    stiffness, curves = 1e-3, None
    for _ in range(ROUNDS):
        if lanes.is_over(most) or stiffness > STIFF:
            break
        if curves is None:
            curves = _curves(lanes, way, start, np.concatenate([arrays["spread"], high - low]))
        change = _change(way, curves, low, high, stiffness)
        value, actions = _tried(lanes, start, way, change, low, high)
        if value > way.value:
            gained, before = value - way.value, way
            way = played(lanes, start, actions)._replace(gains=change.gains)
            curves, stiffness = None, stiffness / 4
            if way.value < before.value or len(way.actions) < len(before.actions):
                return before
            if gained < GAIN * abs(way.value):
                break
        else:
            stiffness *= 10
    return way


def _curves(lanes: ImaginedLanes, way: ImaginedWay, start: np.ndarray, scale: np.ndarray) -> Curves:
    """Take steps around all of a way at once."""
    before = np.concatenate([start[None], way.observations[:-1]])
    inputs = np.concatenate([before, way.actions], 1).T  # (inputs, steps)
    size, count = len(inputs), inputs.shape[1]
    apart = APART * scale
    units = np.diag(apart)
    pairs = list(combinations(range(size), 2))
    moves = [np.zeros(size), *units, *-units, *(units[i] + units[j] for i, j in pairs)]
    wide = (inputs[:, None, :] + np.array(moves).T[:, :, None]).reshape(size, -1)
    after, rewards, _, lost = lanes.step(wide[: before.shape[1]], wide[before.shape[1] :])
    rewards = np.where(lost, 0.0, rewards).reshape(len(moves), count)
    after = np.where(lost, 0.0, after).reshape(-1, len(moves), count)
    up, down = slice(1, size + 1), slice(size + 1, 2 * size + 1)
    jacobian = (after[:, up] - after[:, down]) / (2 * apart[:, None])
    bend = np.zeros((count, size, size))
    for place in range(size):
        twice = rewards[1 + place] - 2 * rewards[0] + rewards[1 + size + place]
        bend[:, place, place] = twice / apart[place] ** 2
    for (i, j), both in zip(pairs, rewards[2 * size + 1 :], strict=True):
        mixed = both - rewards[1 + i] - rewards[1 + j] + rewards[0]
        bend[:, i, j] = bend[:, j, i] = mixed / (apart[i] * apart[j])
    slope = (rewards[up] - rewards[down]) / (2 * apart[:, None])
    return Curves(jacobian.transpose(2, 0, 1), slope.T, _falling(bend))


def _falling(bend: np.ndarray) -> np.ndarray:
    """Return curvatures without those upwards: a step to their top would never end."""
    values, vectors = np.linalg.eigh(bend)
    lowered: np.ndarray = (vectors * np.minimum(values, 0)[:, None]) @ vectors.transpose(0, 2, 1)
    return lowered


def _change(
    way: ImaginedWay, curves: Curves, low: np.ndarray, high: np.ndarray, stiffness: float
) -> Controls:
    """Go back through a way: which actions would better what follows, if it were quadratic."""
    count, size = way.observations.shape
    free = np.zeros_like(way.actions)
    gains = np.zeros((count, len(low), size))
    rise, bend = np.zeros(size), np.zeros((size, size))
    for step in range(count - 1, -1, -1):
        jacobian = curves.jacobian[step]
        slope = curves.slope[step] + jacobian.T @ rise
        whole = curves.bend[step] + jacobian.T @ bend @ jacobian
        by_action = whole[size:, size:]
        ground = np.abs(np.diag(by_action)).max() + 1e-9
        by_action = by_action - (stiffness * ground + 1e-9) * np.eye(len(low))
        action, gradient = way.actions[step], slope[size:]
        held = ((action >= high) & (gradient > 0)) | ((action <= low) & (gradient < 0))
        open_ = np.flatnonzero(~held)
        if len(open_):
            part = by_action[np.ix_(open_, open_)]
            solved = np.linalg.solve(part, np.c_[gradient[open_], whole[size:, :size][open_]])
            free[step, open_], gains[step][open_] = -solved[:, 0], -solved[:, 1:]
        gain = gains[step]
        rise = slope[:size] + gain.T @ (gradient + whole[size:, size:] @ free[step])
        rise = rise + whole[:size, size:] @ free[step]
        cross = whole[:size, size:] @ gain
        bend = whole[:size, :size] + cross + cross.T + gain.T @ whole[size:, size:] @ gain
        bend = (bend + bend.T) / 2
    return Controls(free, gains)


def _tried(
    lanes: ImaginedLanes,
    start: np.ndarray,
    way: ImaginedWay,
    change: Controls,
    low: np.ndarray,
    high: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Return the best return of shares of a change, and its actions."""
    now = np.repeat(start[:, None], len(SHARES), 1)
    before = np.concatenate([start[None], way.observations[:-1]])
    total, actions = np.zeros(len(SHARES)), []
    for step, action in enumerate(way.actions):
        moved = change.gains[step] @ (now - before[step][:, None])
        moved = action[:, None] + SHARES * change.actions[step][:, None] + moved
        actions.append(np.clip(moved, low[:, None], high[:, None]))
        now, rewards, ends, lost = lanes.step(now, actions[-1])
        total += np.where(lost | ends, -np.inf, rewards)
        now = np.where(lost, before[step][:, None], now)
    best = int(np.argmax(np.nan_to_num(total, nan=-np.inf)))
    return float(total[best]), np.array(actions)[:, :, best]
