"""Velocities that nobody sees: the differences between what was seen stand for them.

Where coordinates move by the velocity before a step, or by the one after it, what is seen says how
fast they were, and the equations are those of a system of which everything is seen.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array, Remembered, Samples
from cwm_induction.continuous.variables import Variable, latents
from cwm_induction.mechanics.motion import joints_of
from cwm_induction.writing.rounding import simplest_between

NICE = (5.0, 2.0, 1.0)
"""First digits of the length of a step, which what is seen does not tell."""

FEWEST = 6
"""Values as near to the largest one as they are off at most, from which on it is a limit."""


def with_velocities(data: Dataset, held_back: Array, *, ahead: bool) -> Samples | None:
    """Return the rows with a velocity for every coordinate that has none, or None if all have one.

    Coordinates move by the velocity before a step, or `ahead` by the one after it. Rows of which
    it cannot be told are left out.
    """
    samples = Samples.of(data, held_back)
    moving = _without_velocity(samples)
    if not moving:
        return None
    shifted = _rows_before(samples, data) if ahead else _rows_after(samples, data)
    rows = np.flatnonzero(shifted >= 0)
    for variable in moving:
        stopped = _stopped(variable)
        rows = rows[~stopped[rows] | samples.terminated[rows] | ahead]
    time = _time([variable.change[samples.smooth] for variable in moving])
    before, after, remembered = [samples.before[rows]], [samples.after[rows]], {}
    for variable in moving:
        speed = np.where(_stopped(variable) & ahead, 0.0, variable.change / time)
        size = 1.0 if variable.is_angle else float(np.abs(variable.now).max())
        noise = 4 * samples.grain * size / time
        speed = _limited(speed, noise)
        first, then = (shifted[rows], rows) if ahead else (rows, shifted[rows])
        before.append(speed[first][:, None])
        after.append(speed[then][:, None])
        place = samples.before.shape[1] + len(remembered)
        remembered[place] = Remembered(f"{variable.name}_velocity", noise)
    unbounded = np.full(len(remembered), np.inf)
    return replace(
        samples,
        before=np.concatenate(before, axis=1),
        after=np.concatenate(after, axis=1),
        actions=samples.actions[rows],
        rewards=samples.rewards[rows],
        terminated=samples.terminated[rows],
        learn=samples.learn[rows],
        low=np.concatenate([samples.low, -unbounded]),
        high=np.concatenate([samples.high, unbounded]),
        shape=(samples.before.shape[1] + len(remembered),),
        remembered=remembered,
    )


def _without_velocity(samples: Samples) -> list[Variable]:
    """Return the coordinates that move, at a pace that changes, and whose velocity is not seen."""
    variables = latents(samples).variables
    joints, _ = joints_of(samples, variables)
    paired = {variable.name for joint in joints for variable in joint}
    return [
        variable
        for variable in variables
        if variable.name not in paired
        and not variable.is_whole
        and float(np.ptp(variable.change[samples.smooth])) > 1e-6
    ]


def _rows_after(samples: Samples, data: Dataset) -> Array:
    """Return the number of the row that follows each, its own at an end, -1 where none does."""
    count = len(samples)
    follows = _follows(samples, data)
    number = np.where(samples.terminated, np.arange(count), -1)
    number[:-1][follows] = np.flatnonzero(follows) + 1
    return number


def _rows_before(samples: Samples, data: Dataset) -> Array:
    """Return the number of the row before each, -1 where there is none."""
    number = np.full(len(samples), -1)
    follows = _follows(samples, data)
    number[1:][follows] = np.flatnonzero(follows)
    return number


def _follows(samples: Samples, data: Dataset) -> Array:
    """Mask of the rows, but for the last, that the next one goes on from."""
    episodes = data.columns["episodes"]
    same = (samples.after[:-1] == samples.before[1:]).all(1)
    mask: Array = same & (episodes[:-1] == episodes[1:]) & ~samples.terminated[:-1]
    return mask


def _stopped(variable: Variable) -> Array:
    """Mask of the rows in which a coordinate comes to the end of its way, where it is stopped."""
    mask: Array = (variable.then == variable.low) | (variable.then == variable.high)
    return mask


def _time(changes: Sequence[Array]) -> float:
    """Return a length of a step that makes velocities numbers of about one."""
    most = min(1.0, max(float(np.abs(change).max()) for change in changes))
    power = 10.0 ** np.floor(np.log10(most))
    return float(f"{next(digit for digit in NICE if digit * power <= most) * power:.0e}")


def _limited(speed: Array, noise: float) -> Array:
    """Make one number of the values at an end where many come together: a limit of the speed."""
    for side in (1.0, -1.0):
        edge = float((side * speed).max())
        near = side * speed >= edge - 4 * noise
        if FEWEST <= near.sum() < 0.5 * len(speed):
            limit = simplest_between(edge - 4 * noise, edge + noise)
            speed = np.where(near, side * limit, speed)
    return speed
