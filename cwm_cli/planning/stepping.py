"""Parallel steps of imagined episodes from many observations, for every form of a model."""

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
    """Return what follows `actions` at `observations`, both as columns: an episode in each row.

    There are `rewards`, `ends` and, where a step says so, the `valid_actions` that may follow.
    What chance decides follows from the `key`. An episode in which the model raises, or says what
    is no number, ends where it is; if it raises in all of them its last complaint is raised.
    """
    seen = Space.from_json(space)
    if model.batch is not None and not valid and not seen.children and seen.kind != "text":
        try:
            return _followed_together(model, arrays["observations"], arrays["actions"])
        except (Unbatched, ArithmeticError, ValueError, IndexError, TypeError):
            pass  # the program itself may still answer
    return _followed_alone(model, arrays, seen, key, valid=valid)


def _followed_together(model: Model, observations: np.ndarray, actions: np.ndarray) -> Columns:
    """Take a step in every episode at once."""
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


def _followed_alone(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    space: Space,
    key: Sequence[int],
    *,
    valid: bool,
) -> Columns:
    """Take a step in one episode after the other."""
    actions, after = model.action_space, list[Any]()
    count = len(next(iter(arrays.values())))
    rewards, ends = np.zeros(count), np.ones(count, np.bool_)
    allowed = np.ones((count, actions.count if valid else 0), np.bool_)
    complaint: Exception | None = None
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
        except Exception as error:  # noqa: BLE001  # programs raise what they like
            complaint, raised = error, raised + 1
    if complaint is not None and raised == count:
        raise complaint
    found = space.pack("observations", after) | {"rewards": rewards, "ends": ends}
    return found | ({"valid_actions": allowed} if valid else {})
