"""Returns of many plans at once."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.planning.model import Batch, Unbatched

MOST_LANES = 8000
"""More lanes than this are played one part after the other: their arrays would leave the cache."""

_ENDED_SHARE = 0.25


class Returns(NamedTuple):
    """Sums of rewards until the end of the episode, and the steps that were taken for them."""

    returns: np.ndarray
    steps: int


def returns(batch: Batch, observations: Sequence[Any], plans: np.ndarray) -> Returns:
    """Return the returns (observations, plans) of plans (observations, plans, steps, *action)."""
    count, number, horizon = plans.shape[:3]
    starts = np.stack([np.asarray(value) for value in observations], -1)
    by_step = plans.reshape(count * number, horizon, -1)
    total, steps = np.zeros(count * number), 0
    for part in _parts(count * number):
        lanes = np.arange(part.start, part.stop) // number
        actions = np.ascontiguousarray(by_step[part].transpose(1, 2, 0))
        if plans.ndim == 3:
            actions = actions[:, 0]
        total[part], taken = _played(batch, np.take(starts, lanes, -1), actions)
        steps += taken
    return Returns(total.reshape(count, number), steps)


def _parts(lanes: int) -> Iterator[slice]:
    """Yield parts of about equal size."""
    parts = -(-lanes // MOST_LANES)
    bounds = [lanes * part // max(parts, 1) for part in range(parts + 1)]
    yield from map(slice, bounds, bounds[1:])


def _played(batch: Batch, starts: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, int]:
    """Play all plans; once more without ended lanes if these are what the batch cannot do."""
    try:
        return _play(batch, starts, actions, _ENDED_SHARE)
    except _Ended:
        return _play(batch, starts, actions, 0.0)


def _play(
    batch: Batch, starts: np.ndarray, actions: np.ndarray, share: float
) -> tuple[np.ndarray, int]:
    """Play all plans; ended lanes are left out when they are more than a share."""
    total = np.zeros(starts.shape[-1])
    everybody = slice(None)
    lanes: Any = everybody
    alive, living, steps = np.ones(len(total), bool), len(total), 0
    batch.stand(starts)
    for now in actions:
        now = now if lanes is everybody else np.take(now, lanes, -1)
        all_alive = living == len(alive)
        rewards, terminated = _step(batch, now, ended=not all_alive)
        steps += living
        total[lanes] += rewards if all_alive else np.where(alive, rewards, 0.0)
        if not np.count_nonzero(terminated):
            continue
        alive &= np.logical_not(terminated)
        living = int(np.count_nonzero(alive))
        if not living:
            break
        if len(alive) - living > share * len(alive):
            batch.keep(alive)
            lanes = np.arange(len(total))[lanes][alive]
            alive = np.ones(living, bool)
    return total, steps


class _Ended(Exception):
    """What cannot be done may be in lanes that have ended."""


def _step(batch: Batch, actions: np.ndarray, *, ended: bool) -> tuple[np.ndarray, np.ndarray]:
    """Take a step; return rewards and where the episode ended."""
    try:
        return batch.advance(actions)
    except Unbatched:
        if ended:
            raise _Ended from None
        raise
