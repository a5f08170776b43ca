"""Programs for systems of many like parts, from transitions alone."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array
from cwm_induction.discrete.transitions import Transitions, integer_columns, supports
from cwm_induction.effort import Effort
from cwm_induction.relations.board_fitting import fit_board
from cwm_induction.relations.layout import find_layouts
from cwm_induction.relations.lists import find_lists, fit_lists
from cwm_induction.relations.model import PartRows, PartsModel
from cwm_induction.relations.places import find_places, fit_places
from cwm_induction.relations.rules import Spend

Fit = Callable[[PartRows, Spend, Any], PartsModel]
"""Fits a model to transitions; the last argument is a model of fewer rows, or None."""

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
    seen, space = Transitions.of(dataset), dataset.observation_space
    rows = PartRows(
        integer_columns(dataset, space, "observations"),
        seen.action[seen.rows],
        integer_columns(dataset, space, "next_observations"),
        dataset.columns["rewards"].astype(float),
        dataset.columns["terminations"].astype(bool),
    )
    part = rows.part(~held_out)
    checked = rows.part(held_out) if held_out.any() else rows
    best, judged, chosen = 0.0, None, None
    search = effort.share(SEARCH_SHARE)
    for fit in _structures(rows, space.shape):
        model = fit(part, search.spend, None)
        exact = model.exact_share(checked)
        if exact > best:
            best, judged, chosen = exact, model, fit
        if exact >= ENOUGH:
            break
    if judged is None or chosen is None or best < LEAST_EXACT:
        return Induced()
    whole = chosen(rows, effort.share(FITTING_SHARE).spend, judged)
    if whole.exact_share(rows) < judged.exact_share(rows):
        whole = judged  # the effort did not suffice
    episodes = len(np.unique(dataset.columns["episodes"]))
    program, other = (
        model.write(seen.encoding, f"{len(data.before):,} transitions of {episodes} episodes")
        for model, data in ((whole, rows), (judged, part))
    )
    return Induced(program, other, best)


def _structures(rows: PartRows, shape: tuple[int, ...]) -> Iterator[Fit]:
    """Yield how to fit objects with places, lists, and boards, if the data may have these."""
    places = find_places(rows) if len(shape) == 1 else None
    if places:
        yield partial(fit_places, places)
    lists = find_lists(rows) if len(shape) == 1 else None
    if lists:
        yield partial(fit_lists, lists)
    for layout in find_layouts(rows, shape):
        yield partial(fit_board, layout)
