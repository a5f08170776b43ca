"""Programs for systems of many like parts, from transitions alone."""

from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array
from cwm_induction.discrete.transitions import (
    IntegerEncoding,
    Transitions,
    integer_columns,
    supports,
)
from cwm_induction.effort import Effort
from cwm_induction.relations.board_fitting import fit_board
from cwm_induction.relations.board_model import BoardModel
from cwm_induction.relations.layout import BoardLayout, BoardRows, find_layouts
from cwm_induction.relations.lists import ListLayout, ListModel, find_lists, fit_lists, write_lists
from cwm_induction.relations.place_program import write_places
from cwm_induction.relations.places import PlaceLayout, PlaceModel, find_places, fit_places
from cwm_induction.relations.program import write_board
from cwm_induction.relations.stages import Spend

AnyModel = BoardModel | ListModel | PlaceModel
AnyLayout = BoardLayout | ListLayout | PlaceLayout

LEAST_ROWS = 100
"""Transitions below which relations are not told from chance."""

LEAST_EXACT = 0.5
"""Share of exact transitions below which a program is not written."""

SEARCH_SHARE, FITTING_SHARE = 0.55, 0.75
"""Share of the effort for finding the structure, and share of the rest for fitting it to all rows.
Other attempts need the remaining effort if the structure explains too little."""

ENOUGH = 0.95
"""Share of exact transitions above which no other layout and no other attempt is tried."""


class Induced(NamedTuple):
    """A program, "" for none, and how far it holds.

    `judged` is the program that was fitted without the rows held out, `exact` the share of held-out
    rows that it predicts exactly.
    """

    program: str = ""
    judged: str = ""
    exact: float = 0.0


def induce(dataset: Dataset, held_out: Array, effort: Effort) -> Induced:
    """Return the best program for a dataset.

    Args:
        dataset: Transitions of any spaces; programs are written for whole numbers only.
        held_out: Mask of the rows that show whether rules hold for other rows.
        effort: Work that may be done.
    """
    if len(dataset) < LEAST_ROWS or not supports(dataset) or held_out.all():
        return Induced()
    seen = Transitions.of(dataset)
    rows, shape = rows_of(dataset, seen), dataset.observation_space.shape
    episodes = len(np.unique(dataset.columns["episodes"]))
    part = rows.part(~held_out)
    checked = rows.part(held_out) if held_out.any() else rows
    best, judged, chosen = 0.0, None, None
    search = effort.share(SEARCH_SHARE)
    for layout in _layouts(rows, shape):
        model = _fit(layout, part, search.spend)
        exact = exact_share(model, checked)
        if exact > best:
            best, judged, chosen = exact, model, layout
        if exact >= ENOUGH:
            break
    if judged is None or chosen is None or best < LEAST_EXACT:
        return Induced()
    whole = _fit(chosen, rows, effort.share(FITTING_SHARE).spend, judged)
    if exact_share(whole, rows) < exact_share(judged, rows):
        whole = judged  # the effort did not suffice
    program, other = (
        _write(model, seen.encoding, summary_of(model, len(data.before), episodes))
        for model, data in ((whole, rows), (judged, part))
    )
    return Induced(program, other, best)


def _layouts(rows: BoardRows, shape: tuple[int, ...]) -> list[AnyLayout]:
    """Return layouts of objects with places, of lists and of boards."""
    found: list[AnyLayout | None] = []
    if len(shape) == 1:
        found = [find_places(rows), find_lists(rows)]
    boards = find_layouts(rows.before, rows.action, rows.after, shape)
    return [layout for layout in [*found, *boards] if layout is not None]


def _fit(
    layout: AnyLayout, rows: BoardRows, spend: Spend, like: AnyModel | None = None
) -> AnyModel:
    """Fit a model; `like` is the model of fewer rows."""
    if isinstance(layout, PlaceLayout):
        return fit_places(layout, rows, spend, like if isinstance(like, PlaceModel) else None)
    if isinstance(layout, ListLayout):
        return fit_lists(layout, rows, spend)
    return fit_board(layout, rows, spend, like if isinstance(like, BoardModel) else None)


def _write(model: AnyModel, encoding: IntegerEncoding, summary: str) -> str:
    if isinstance(model, PlaceModel):
        return write_places(model, encoding, summary)
    if isinstance(model, ListModel):
        return write_lists(model, encoding, summary)
    return write_board(model, encoding, summary)


def summary_of(model: AnyModel, count: int, episodes: int) -> str:
    """Return the first line of a program's docstring."""
    rows = f"{count:,} transitions of {episodes} episodes"
    if isinstance(model, PlaceModel):
        return f"Objects that move one after another, induced from {rows}."
    if isinstance(model, ListModel):
        return f"Lists of items that leave and join at the ends, induced from {rows}."
    return f"A board whose cells follow the same rules, induced from {rows}."


def rows_of(dataset: Dataset, seen: Transitions) -> BoardRows:
    """Return the transitions of a dataset in order."""
    space = dataset.observation_space
    return BoardRows(
        integer_columns(dataset, space, "observations"),
        seen.action[seen.rows],
        integer_columns(dataset, space, "next_observations"),
        dataset.columns["rewards"].astype(float),
        dataset.columns["terminations"].astype(bool),
    )


def exact_share(model: AnyModel, rows: BoardRows) -> float:
    """Return the share of transitions that a model predicts in every part."""
    if model.payments is None:
        return 0.0
    after, names = model.predict(rows.before, rows.action)
    rewards, ends = model.payments.predict(names, len(after))
    right = (after == rows.after).all(axis=1) & (ends == rows.ends)
    right &= np.abs(rewards - rows.rewards) <= 1e-6
    return float(right.mean())
