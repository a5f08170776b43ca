"""Warnings about datasets that can be used but probably do not hold what the user wants."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf

FEW_ROWS = 20
"""Warn below this number of transitions: most programs fit so few by chance."""

ROUNDING = 1e-5
"""Bounds may be exceeded by this fraction, because many environments compute in float32."""


class Outside(NamedTuple):
    """Rows with an observation outside its space, and one value with its bounds."""

    rows: np.ndarray
    value: float
    low: float
    high: float
    component: str


def dataset_warnings(dataset: Dataset) -> Iterator[str]:
    """Yield one line for each problem of a dataset: too few rows, values outside their space."""
    if len(dataset) < FEW_ROWS:
        yield (
            f"only {len(dataset)} transitions, which many wrong programs fit: record {FEW_ROWS} or "
            "more, with --episodes or --min-rows of cwm collect"
        )
    if words := outside_space(dataset):
        yield words


def outside_space(dataset: Dataset) -> str:
    """Return a warning if observations exceed the bounds of their space, or ""."""
    found = [each for leaf in _bounded(dataset) if (each := _outside(dataset, leaf))]
    if not found:
        return ""
    count = int(np.logical_or.reduce([each.rows for each in found]).sum())
    _, value, low, high, component = found[0]
    return (
        f"{count} of {len(dataset)} transitions have observations outside observation_space "
        f"({component} is {value:g}, bounds {low:g} to {high:g}): correct the space"
    )


def _bounded(dataset: Dataset) -> Iterator[Leaf]:
    """Yield the columns of observations that have bounds of a Box."""
    for name in ("observations", "next_observations"):
        for leaf in dataset.observation_space.leaves(name):
            if leaf.space.kind == "box" and leaf.space.low and leaf.space.high:
                yield leaf


def _outside(dataset: Dataset, leaf: Leaf) -> Outside | None:
    """Return the rows of a column that exceed the bounds of its space."""
    space, column = leaf.space, dataset.columns[leaf.name]
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    slack = ROUNDING * np.maximum(1, np.abs(column))
    wrong = (column < low - slack) | (column > high + slack)
    if not wrong.any():
        return None
    row, *place = (int(index[0]) for index in np.nonzero(wrong))
    rows = np.any(wrong.reshape(len(column), -1), axis=1)
    component = f"{leaf.name}[{', '.join(map(str, place))}]" if place else leaf.name
    value = column[(row, *place)]
    return Outside(rows, value, low[tuple(place)], high[tuple(place)], component)
