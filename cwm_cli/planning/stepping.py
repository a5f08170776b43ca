"""One step of many imagined episodes, for every form of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.planning.model import Model, Unbatched


def follow(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: dict[str, Any],
    key: Sequence[int],
    valid: bool = False,
) -> Columns:
    """Take one step in each of many episodes.

    An episode ends, with its old observation, if the model raises an exception or returns a number
    that is not finite.

    Args:
        model: The model, in any form.
        arrays: Columns `observations` and `actions`, one row per episode.
        space: The observation space as JSON.
        key: Seed of the random numbers of the model.
        valid: Whether to return the valid actions.

    Returns:
        Columns of the next observations, `rewards`, `ends` and, if requested, `valid_actions`.

    Raises:
        Exception: The last exception of the model, if it raised one in every episode.
    """
    seen = Space.from_json(space)
    if model.batch is not None and not valid and not seen.children and seen.kind != "text":
        try:
            actions = model.action_space.flatten("actions", arrays)
            return _follow_together(model, arrays["observations"], actions)
        except (Unbatched, ArithmeticError, ValueError, IndexError, TypeError):
            pass  # the scalar form may still answer
    return _follow_each(model, arrays, seen, key, valid=valid)


def _follow_together(model: Model, observations: np.ndarray, actions: np.ndarray) -> Columns:
    """Take a step in all episodes together."""
    count, shape = len(observations), observations.shape[1:]
    batch = model.batch
    assert batch is not None
    batch.stand(np.moveaxis(observations, 0, -1))
    after, rewards, ends = batch.step(np.moveaxis(actions, 0, -1))
    model.counter[0] += count
    after = np.moveaxis(np.broadcast_to(after, (*shape, count)), -1, 0)
    found = {
        "rewards": np.array(np.broadcast_to(rewards, count), float),
        "ends": np.array(np.broadcast_to(ends, count), np.bool_),
    }
    with np.errstate(invalid="ignore"):
        lost = ~np.isfinite(after.reshape(count, -1)).all(axis=1) | ~np.isfinite(found["rewards"])
    found["rewards"][lost], found["ends"][lost] = 0.0, True
    after = np.where(lost.reshape(-1, *[1] * len(shape)), observations, after)
    if observations.dtype.kind != "f":
        if not np.array_equal(after, np.round(after)):
            raise Unbatched("observations are not whole numbers")
        after = after.astype(np.int64)
    return {"observations": after} | found


def _follow_each(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    space: Space,
    key: Sequence[int],
    *,
    valid: bool,
) -> Columns:
    """Take a step in each episode, one by one."""
    actions, after = model.action_space, list[Any]()
    count = len(next(iter(arrays.values())))
    rewards, ends = np.zeros(count), np.ones(count, np.bool_)
    allowed = np.ones((count, actions.count if valid else 0), np.bool_)
    last_error: Exception | None = None
    raised = 0
    for row in range(count):
        after.append(space.unpack("observations", arrays, row))
        try:
            if not model.deterministic:
                model.draw_from([*key, row])
            model.stand(after[row])
            step = model.step(actions.unpack("actions", arrays, row))
            after[row], rewards[row], ends[row] = step.observation, step.reward, step.terminated
            if valid and step.valid is not None:
                allowed[row] = actions.mask(step.valid)
        except Exception as error:  # noqa: BLE001  # programs may raise anything
            last_error, raised = error, raised + 1
    if last_error is not None and raised == count:
        raise last_error
    found = space.pack("observations", after) | {"rewards": rewards, "ends": ends}
    return found | ({"valid_actions": allowed} if valid else {})
