"""Programs for systems of many like parts, from transitions alone."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.transitions import (
    IntegerEncoding,
    Transitions,
    integer_columns,
    supports,
)
from cwm_induction.effort import Effort
from cwm_induction.relations.board_model import BoardModel, fit_board
from cwm_induction.relations.layout import Rows, find_layouts
from cwm_induction.relations.place_program import write_places
from cwm_induction.relations.places import PlaceModel, find_places, fit_places
from cwm_induction.relations.program import write_board

Model = BoardModel | PlaceModel

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
    episodes = len(np.unique(dataset.columns["episodes"]))
    found = [Induced("", 0.0)]
    for model in _models(rows, dataset.observation_space.shape, effort):
        exact = exact_share(model, rows)
        if exact >= LEAST_EXACT:
            summary = summary_of(model, len(dataset), episodes)
            found.append(Induced(_write(model, seen.encoding, summary), exact))
        if exact >= ENOUGH:
            break
    return max(found, key=lambda one: one.exact)


def _models(rows: Rows, shape: tuple[int, ...], effort: Effort) -> Iterator[Model]:
    """Yield models of objects with places, then of boards."""
    places = find_places(rows) if len(shape) == 1 else None
    if places is not None:
        yield fit_places(places, rows, effort.spend)
    for layout in find_layouts(rows.before, rows.action, rows.after, shape):
        yield fit_board(layout, rows, effort.spend)


def _write(model: Model, encoding: IntegerEncoding, summary: str) -> str:
    if isinstance(model, PlaceModel):
        return write_places(model, encoding, summary)
    return write_board(model, encoding, summary)


def summary_of(model: Model, count: int, episodes: int) -> str:
    """Return the first line of a program's docstring."""
    rows = f"{count:,} transitions of {episodes} episodes"
    if isinstance(model, PlaceModel):
        return f"Objects that move one after another, induced from {rows}."
    return f"A board whose cells follow the same rules, induced from {rows}."


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


def exact_share(model: Model, rows: Rows) -> float:
    """Return the share of transitions that a model predicts in every part."""
    after, names = model.predict(rows.before, rows.action)
    assert model.payments is not None
    rewards, ends = model.payments.predict(names, len(after))
    right = (after == rows.after).all(axis=1) & (ends == rows.ends)
    right &= np.abs(rewards - rows.rewards) <= 1e-6
    return float(right.mean())
