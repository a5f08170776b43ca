"""Steps of many rows with one program; this module runs inside the confined process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import describe_exception
from cwm_cli.planning import stepping
from cwm_cli.planning.model import EpisodeHistory, Model, Step

REASON_CHARACTERS = 200
"""Maximum length of the reason why a row failed."""

_places: OrderedDict[str, tuple[int, Any]] = OrderedDict()
"""By session: the number of steps taken, and the state after them."""


class _Row(NamedTuple):
    """A row to step: a history, the actions that continue it, and the key of its random numbers."""

    history: EpisodeHistory
    actions: Sequence[Any]
    key: Sequence[int]
    session: str


def step_rows(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: dict[str, Any],
    sessions: Sequence[str],
    valid: bool,
) -> Columns:
    """Take the steps of each row, and return the result of its last step.

    Args:
        model: The program, in any form.
        arrays: `observations`, `actions` and `rewards` of all rows, one row after the other;
            `lengths` (rows, 2), the numbers of observations in the history and of actions after it;
            `keys` (rows, 3), the seed, the number of the first step and the number of the row.
        space: The observation space as JSON.
        sessions: The name of the session of each row, or "".
        valid: Whether to return the valid actions.

    Returns:
        Columns of the next observations, `rewards`, `ends`, `failed` (a mask), `reasons` (texts)
        and, if requested, `valid_actions`.
    """
    seen = Space.from_json(space)
    rows = list(_read_rows(model, arrays, seen, sessions))
    steps: list[Step | None] = [None] * len(rows)
    reasons = [""] * len(rows)
    if model.batch is not None and model.deterministic and not valid and len(rows) > 1:
        steps = _step_together(model, arrays, seen, space)
    for place, row in enumerate(rows):
        if steps[place] is None:
            try:
                steps[place] = _step_row(model, row)
            except Exception as error:  # noqa: BLE001  # programs may raise anything
                reasons[place] = describe_exception(error, "<program>")[:REASON_CHARACTERS]
    return _as_columns(model, rows, steps, reasons, seen, valid=valid)


def _read_rows(
    model: Model, arrays: Mapping[str, np.ndarray], space: Space, sessions: Sequence[str]
) -> Iterator[_Row]:
    """Yield the rows in the arrays."""
    observation = action = reward = 0
    for place, (known, taken) in enumerate(arrays["lengths"].tolist()):
        observations = tuple(
            space.unpack("observations", arrays, observation + n) for n in range(known)
        )
        actions = [
            model.action_space.unpack("actions", arrays, action + n)
            for n in range(known - 1 + taken)
        ]
        rewards = tuple(arrays["rewards"][reward : reward + known - 1].tolist())
        history = EpisodeHistory(observations, tuple(actions[: known - 1]), rewards)
        yield _Row(history, actions[known - 1 :], arrays["keys"][place].tolist(), sessions[place])
        observation, action, reward = (
            observation + known,
            action + known - 1 + taken,
            reward + known - 1,
        )


def _step_together(
    model: Model, arrays: Mapping[str, np.ndarray], seen: Space, space: dict[str, Any]
) -> list[Step | None]:
    """Step all rows by the batched form; None for each row that it may not have answered."""
    count = len(arrays["lengths"])
    nothing: list[Step | None] = [None] * count
    if (arrays["lengths"] != 1).any() or seen.children or seen.kind == "text":
        return nothing
    try:
        found = stepping.follow(model, arrays, space=space, key=[0])
    except Exception:  # noqa: BLE001  # each row is then tried alone
        return nothing
    before, after = arrays["observations"], found["observations"]
    same = (before == after).reshape(count, -1).all(axis=1)
    # `follow` ends an episode that failed, with reward 0 and its old observation.
    doubtful = found["ends"] & (found["rewards"] == 0) & same
    return [
        None
        if doubtful[row]
        else Step(
            seen.unpack("observations", found, row),
            float(found["rewards"][row]),
            bool(found["ends"][row]),
        )
        for row in range(count)
    ]


def _step_row(model: Model, row: _Row) -> Step:
    """Take the actions of a row; a known session continues from its latest state."""
    seed, first, number = row.key
    taken, state = _places.pop(row.session, (0, None)) if row.session else (0, None)
    if state is None or taken != len(row.actions) - 1:
        taken, state = 0, row.history if model.remembers else row.history.observations[-1]
    model.stand(state)
    found = None
    for place in range(taken, len(row.actions)):
        if not model.deterministic:
            model.draw_from([seed, first + place, number])
        found = model.step(row.actions[place])
    assert found is not None
    if row.session and model.remembers:
        _places[row.session] = len(row.actions), model.here()
        # number of sessions whose latest state a process keeps, so that it need not replay them
        max_places = 256
        if len(_places) > max_places:
            _places.popitem(last=False)
    return found


def _as_columns(
    model: Model,
    rows: Sequence[_Row],
    steps: Sequence[Step | None],
    reasons: Sequence[str],
    space: Space,
    *,
    valid: bool,
) -> Columns:
    """Return steps as columns; a row without a step keeps its observation."""
    kept = [
        step or Step(row.history.observations[-1], 0.0, False)
        for row, step in zip(rows, steps, strict=True)
    ]
    columns = space.pack("observations", [step.observation for step in kept])
    columns |= {
        "rewards": np.array([step.reward for step in kept], float),
        "ends": np.array([step.terminated for step in kept], np.bool_),
        "failed": np.array([step is None for step in steps], np.bool_),
        "reasons": np.array(list(reasons), np.str_),
    }
    if valid:
        actions = model.action_space
        every = np.ones(actions.count, np.bool_)
        masks = [every if step.valid is None else actions.mask(step.valid) for step in kept]
        columns["valid_actions"] = np.array(masks, np.bool_).reshape(len(kept), actions.count)
    return columns
