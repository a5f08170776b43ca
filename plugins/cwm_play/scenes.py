"""Scenes of games: panels side by side, a table of components, and the mismatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.evaluation.metric import close
from cwm_cli.evaluation.mismatches import wrong_parts
from cwm_cli.planning.model import Step
from cwm_cli.text import percent
from cwm_cli.worlds.model import Predictions, Shape, WorldModel
from cwm_play.painting import Appearance, Components, NamedComponent

VISIBLE_DIFFERENCE = 32
"""The largest difference of a pixel value (of 255) that does not count as a mismatch."""

MAX_ROWS = 64
"""Components in a full table; a larger table shows only components that differ or have changed."""


class Panel(NamedTuple):
    """A panel of a scene: a drawn observation with its title and a note."""

    title: str
    appearance: Appearance
    note: str = ""
    is_marked: bool = False


class ComponentRow(NamedTuple):
    """The values of a component in the columns of a scene; None if a column has no value."""

    component: NamedComponent
    values: tuple[Any, ...]
    is_wrong: bool = False


@dataclass(frozen=True)
class GameScene:
    """The content of the screen of a game.

    Attributes:
        title: The environment and the model.
        facts: Lines about the progress of the episode.
        panels: Drawn observations, from left to right.
        columns: Headings of the table of components.
        rows: The table of components.
        mark: The first mismatch, or another difference.
        warning: An error or a rejected action.
        legend: Entries such as "q quit".
        moment: Position in the game; a film has one frame for each. It starts with the episode.
        is_over: Whether the episode ended.
        row: The transition that led to the scene, or None at the start of an episode.
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
    row: Transition | None = None


def without_header(scene: GameScene) -> GameScene:
    """Return a scene without the texts over its pictures: step, action, rewards and titles."""
    panels = [panel._replace(title="", note="") for panel in scene.panels]
    return replace(scene, facts=(), panels=panels)


def component_rows(
    components: Components,
    observations: Sequence[Any | None],
    compared: tuple[int, int] | None = None,
) -> list[ComponentRow]:
    """Return a table with a row per component and a column per observation.

    Args:
        components: Names the components. Images have none, so the table is empty.
        observations: One observation per column.
        compared: Two columns; values that differ between them are marked as wrong.

    Returns:
        All rows if there are at most `MAX_ROWS`; otherwise only rows with different values, the
        wrong ones first.
    """
    if components.is_picture:
        return []
    columns = [None if each is None else components.values(each) for each in observations]
    rows = []
    for place, component in enumerate(components.entries):
        cells = tuple(None if column is None else column[place] for column in columns)
        wrong = compared is not None and differs(cells[compared[0]], cells[compared[1]])
        rows.append(ComponentRow(component, cells, wrong))
    if len(rows) <= MAX_ROWS:
        return rows
    different = [row for row in rows if row.is_wrong or len(set(row.values) - {None}) > 1]
    return sorted(different, key=lambda row: not row.is_wrong)[:MAX_ROWS]


def differs(one: Any, other: Any) -> bool:
    """Return whether two components differ by more than the tolerance."""
    if one is None or other is None:
        return False
    if isinstance(one, str) or isinstance(other, str):
        return bool(one != other)
    return not bool(close(np.array([one], float), np.array([other], float))[0])


def as_transition(observation: Any, action: Any, step: Step) -> Transition:
    """Return a step as a row of a dataset."""
    next_observation, reward, terminated, valid = step
    return Transition(observation, action, next_observation, reward, terminated, valid=valid)


def mismatched_parts(predicted: Step, actual: Transition, like: Dataset) -> list[str]:
    """Return the names of the wrong parts of a predicted step.

    Args:
        predicted: The predicted step.
        actual: The true transition.
        like: A dataset with the spaces and columns of the environment.
    """
    rows = _one_row(actual, like)
    prediction = _one_row(as_transition(actual.observation, actual.action, predicted), like)
    parts = visible_errors(Predictions(prediction.columns), rows)
    return [name.replace("_", " ") for name, wrong in parts.items() if wrong[0]]


def visible_errors(predictions: Predictions, rows: Dataset) -> dict[str, np.ndarray]:
    """Return a mask of the wrongly predicted rows for each part.

    Networks never predict images exactly, so only visible differences count there.
    """
    if not rows.observation_space.is_picture:
        return wrong_parts(predictions, rows)
    predicted, actual = (
        each.columns["next_observations"].astype(int) for each in (predictions, rows)
    )
    if predictions.shape != "certain":
        actual = actual[:, None]
    is_close = np.abs(predicted - actual) <= VISIBLE_DIFFERENCE
    alike = is_close.all(axis=(-3, -2, -1), keepdims=True)
    columns = {**predictions.columns, "next_observations": np.where(alike, actual, predicted)}
    return wrong_parts(replace(predictions, columns=columns), rows)


def matching_shape(model: WorldModel, row: Transition, like: Dataset) -> Shape | None:
    """Return the shape of a model's predictions if they match a transition, else None.

    The model predicts this step only, from the true observation. A model with memory cannot do
    this, so the result is None.
    """
    if model.remembers:
        return None
    rows = _one_row(row, like)
    # draws per step of a random model; they miss an outcome of probability 0.02 with chance 0.006
    draws_per_step = 256
    predictions = model.predict(rows, draws=draws_per_step)
    if predictions.failure is not None:
        return None
    if any(part[0] for part in visible_errors(predictions, rows).values()):
        return None
    return predictions.shape


def _one_row(row: Transition, like: Dataset) -> Dataset:
    """Return a dataset of one row with the columns of `like`."""
    spaces = like.observation_space, like.action_space
    if like.has_valid_actions and row.valid is None:
        all_actions = spaces[1].masked(np.ones(spaces[1].count, np.bool_))
        row = row._replace(valid=all_actions)
    return Dataset.of(
        [row],
        observation_space=spaces[0],
        action_space=spaces[1],
        metadata=like.metadata,
    )


def describe_difference(components: Components, predicted: Any, actual: Any) -> str:
    """Describe the first component that differs; for images, the share of different values."""
    wrong, right = (components.values(each) for each in (predicted, actual))
    if components.is_picture:
        differences = np.abs(np.subtract(wrong, right))
        visible = percent(float((differences > VISIBLE_DIFFERENCE).mean()))
        mean = f"{differences.mean():.3g}"
        return f"{visible} of the pixel values differ visibly, mean difference {mean}"
    for component, one, other in zip(components.entries, wrong, right, strict=True):
        if differs(one, other):
            texts = format_value(one), format_value(other)
            if texts[0] == texts[1]:  # the difference is smaller than the digits shown
                texts = str(one), str(other)
            return f"{component.name} {texts[0]} instead of {texts[1]}"
    return ""


def format_value(value: Any) -> str:
    """Return a component as short text: floats with five digits, None as an empty text."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)
