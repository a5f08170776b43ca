"""Programs for systems of many like parts, from transitions alone."""

from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.transitions import Transitions, integer_columns, supports
from cwm_induction.effort import Effort
from cwm_induction.relations.board_model import BoardModel, fit_board
from cwm_induction.relations.layout import Rows, find_layouts
from cwm_induction.relations.program import summary_of, write_board

LEAST_ROWS = 100
"""Transitions below which relations are not told from chance."""

LEAST_EXACT = 0.5
"""Share of exact transitions below which a program is not written."""

ENOUGH = 0.97
"""Share of exact transitions above which no other layout and no other attempt is tried."""


class Induced(NamedTuple):
    """A program, "" for none, and the share of the transitions that it predicts exactly."""

    program: str
    exact: float


def induce(dataset: Dataset, effort: Effort) -> Induced:
    """Return the best program for a dataset that `discrete.supports` accepts."""
    if len(dataset) < LEAST_ROWS or not supports(dataset):
        return Induced("", 0.0)
    seen = Transitions.of(dataset)
    rows = rows_of(dataset, seen)
    best: tuple[float, BoardModel] | None = None
    for layout in find_layouts(
        rows.before, rows.action, rows.after, dataset.observation_space.shape
    ):
        model = fit_board(layout, rows, effort.spend)
        exact = exact_share(model, rows)
        if best is None or exact > best[0]:
            best = exact, model
        if exact >= ENOUGH:
            break
    if best is None or best[0] < LEAST_EXACT:
        return Induced("", 0.0)
    episodes = len(np.unique(dataset.columns["episodes"]))
    summary = summary_of(len(dataset), episodes)
    return Induced(write_board(best[1], seen.encoding, summary), best[0])


def rows_of(dataset: Dataset, seen: Transitions) -> Rows:
    """Return the transitions of a dataset in order."""
    space = dataset.observation_space
    return Rows(
        integer_columns(dataset, space, "observations"),
        seen.action[seen.rows],
        integer_columns(dataset, space, "next_observations"),
        dataset.columns["rewards"].astype(float),
        dataset.columns["terminations"].astype(bool),
    )


def exact_share(model: BoardModel, rows: Rows) -> float:
    """Return the share of transitions that a model predicts in every part."""
    after, names = model.predict(rows.before, rows.action)
    assert model.payments is not None
    rewards, ends = model.payments.predict(names, len(after))
    right = (after == rows.after).all(axis=1) & (ends == rows.ends)
    right &= np.abs(rewards - rows.rewards) <= 1e-6
    return float(right.mean())
