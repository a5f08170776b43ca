"""What there is to see of a game: panels side by side, components by name, how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.evaluation.metric import close
from cwm_cli.evaluation.mismatches import wrong_parts
from cwm_cli.planning.model import Step
from cwm_cli.text import percent
from cwm_cli.worlds.model import Predictions, Shape, WorldModel
from cwm_play.painting import Appearance, Components, NamedComponent

FORESEEN = 256
"""Draws of a step before what came about counts as not foreseen: an outcome of one in fifty is
overlooked then with a chance of 0.006."""

VISIBLE = 32
"""Of 255: a picture without a number that is further off looks as it should."""

MOST_ROWS = 64
"""Components that are told one by one; of more, those that differ or have changed."""


class Panel(NamedTuple):
    """One of the worlds: what it is called, what is seen in it, what else is to be said of it."""

    title: str
    look: Appearance
    note: str = ""
    is_marked: bool = False


class ComponentRow(NamedTuple):
    """A component of the observations in the columns of a scene; None where there is none."""

    component: NamedComponent
    values: tuple[Any, ...]
    is_wrong: bool = False


@dataclass(frozen=True)
class GameScene:
    """What a game shows: a title, facts, panels, a table of components, and what keys do.

    `mark` says what came out otherwise than predicted first, `warning` what went wrong. `columns`
    are the heads of the table. `moment` counts what happened: a film has a frame for each.
    """

    title: str
    facts: Sequence[str] = ()
    panels: Sequence[Panel] = ()
    columns: Sequence[str] = ()
    rows: Sequence[ComponentRow] = ()
    mark: str = ""
    warning: str = ""
    legend: Sequence[str] = ()
    moment: tuple[int, ...] = ()
    is_over: bool = False
    flags: Sequence[str] = field(default=())


def compared_rows(
    named: Components, values: Sequence[Any | None], compared: tuple[int, int] | None = None
) -> list[ComponentRow]:
    """Return the components of observations beside each other; two of them are compared.

    Where there are many, those are left out that are equal in all columns; of pictures there are
    none.
    """
    if named.is_picture:
        return []
    columns = [None if each is None else named.values(each) for each in values]
    rows = []
    for place, component in enumerate(named.each):
        cells = tuple(None if column is None else column[place] for column in columns)
        wrong = compared is not None and differs(cells[compared[0]], cells[compared[1]])
        rows.append(ComponentRow(component, cells, wrong))
    if len(rows) <= MOST_ROWS:
        return rows
    telling = [row for row in rows if row.is_wrong or len(set(row.values) - {None}) > 1]
    return sorted(telling, key=lambda row: not row.is_wrong)[:MOST_ROWS]


def differs(one: Any, other: Any) -> bool:
    """Whether two components differ by more than the tolerance."""
    if one is None or other is None:
        return False
    if isinstance(one, str) or isinstance(other, str):
        return bool(one != other)
    return not bool(close(np.array([one], float), np.array([other], float))[0])


def transition(observation: Any, action: Any, step: Step) -> Transition:
    """Return what an action led to as a row of a dataset."""
    observed, reward, terminated, valid = step
    return Transition(observation, action, observed, reward, terminated, valid=valid)


def parts_of(predicted: Step, actual: Transition, like: Dataset) -> list[str]:
    """Name the parts in which a step came out otherwise than predicted."""
    rows = _alone(actual, like)
    said = _alone(transition(actual.observation, actual.action, predicted), like)
    parts = seen_wrong(Predictions(said.columns), rows)
    return [name.replace("_", " ") for name, wrong in parts.items() if wrong[0]]


def seen_wrong(found: Predictions, rows: Dataset) -> dict[str, np.ndarray]:
    """Return for each part a mask of the rows that came out otherwise, as far as one can see.

    Networks tell pictures nearly, and never to the last bit.
    """
    if not rows.observation_space.is_picture:
        return wrong_parts(found, rows)
    said, came = (each.columns["next_observations"].astype(int) for each in (found, rows))
    if found.shape != "certain":
        came = came[:, None]
    alike = (np.abs(said - came) <= VISIBLE).all(axis=(-3, -2, -1), keepdims=True)
    columns = {**found.columns, "next_observations": np.where(alike, came, said)}
    return wrong_parts(replace(found, columns=columns), rows)


def foreseen(model: WorldModel, row: Transition, like: Dataset) -> Shape | None:
    """Return in which shape a model foresees what came about, None where it does not.

    It is asked for the step alone, from what was observed truly. Of one that remembers that is
    not known.
    """
    if model.remembers:
        return None
    rows = _alone(row, like)
    found = model.predict(rows, draws=FORESEEN)
    if found.failure is not None or any(part[0] for part in seen_wrong(found, rows).values()):
        return None
    return found.shape


def _alone(row: Transition, like: Dataset) -> Dataset:
    """Return a dataset of one row, with the columns that others have."""
    spaces = like.observation_space, like.action_space
    if like.has_valid_actions and row.valid is None:
        every = spaces[1].masked(np.ones(spaces[1].count, np.bool_))
        row = row._replace(valid=every)
    return Dataset.of(
        [row],
        observation_space=spaces[0],
        action_space=spaces[1],
        metadata=like.metadata,
    )


def difference_words(named: Components, predicted: Any, actual: Any) -> str:
    """Say of the first component that differs what was predicted; of pictures how much does."""
    said, came = (named.values(each) for each in (predicted, actual))
    if named.is_picture:
        apart = np.abs(np.subtract(said, came))
        visible = percent(float((apart > VISIBLE).mean()))
        return f"{visible} of the pixel values differ visibly, mean difference {apart.mean():.3g}"
    for component, one, other in zip(named.each, said, came, strict=True):
        if differs(one, other):
            told, truth = number_words(one), number_words(other)
            if told == truth:  # they differ behind the digits that are written
                told, truth = str(one), str(other)
            return f"{component.name} {told} instead of {truth}"
    return ""


def number_words(value: Any) -> str:
    """Write a component in few characters."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)
