"""How well the rows of some data support what a program says: the rows behind its rules.

A rule is a way through the program's text: the arms of branches that were taken. It holds as far
as the rows reach that took the same way, and looked up the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import components, match, situations
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.translation.tables import countable
from cwm_cli.translation.trails import LOOKUP
from cwm_cli.worlds.doubt import Support, limits
from cwm_cli.worlds.model import WorldModel
from cwm_cli.worlds.trails import Trails, TrailsJob, trails

ENOUGH = 3
"""Rows behind a rule that say anything about the next one.

By the rule of three, n rows of which none is wrong leave up to 3 / n wrong ones among all others
(with 95 %): with fewer than three that is any share. Of what is looked up one row is enough, as a
table always answers alike.
"""

UNKNOWN = np.iinfo(np.uint64).max
"""Stands in all of a row's events where they are not known."""


class Survey(NamedTuple):
    """What a program answers rightly, and by which rules, at rows and at every cell there is.

    `right` is a mask of the rows. `rows` and `cells` are events, None where there are none.
    """

    right: np.ndarray
    rows: np.ndarray | None
    cells: np.ndarray | None
    lines: np.ndarray | None


def survey(model: WorldModel, text: str, sandbox: Sandbox, rows: Dataset) -> Survey:
    """Ask a program for rows, and follow its ways there and, where they are few, in all cells."""
    predictions = model.predict(rows)
    if predictions.failure is not None:
        return Survey(np.zeros(len(rows), bool), None, None, None)
    right = _right(predictions.columns, rows)
    columns, count = rows.select("observations", "actions"), len(rows)
    cells = countable(rows.observation_space, rows.action_space)
    if cells:
        every = every_cell(rows.observation_space, rows.action_space)
        columns = {name: np.concatenate([columns[name], every[name]]) for name in columns}
    job = TrailsJob(
        program=text,
        observation_space=rows.observation_space,
        action_space=rows.action_space,
        columns=columns,
        valid=rows.has_valid_actions,
    )
    followed = trails(sandbox, job)
    if followed is None:
        return Survey(right, None, None, None)
    events = followed.events
    return Survey(right, events[:count], events[count:] if cells else None, followed.lines)
