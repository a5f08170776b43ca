"""Warnings about valid datasets that are probably not what the user wants."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf

MIN_ROWS = 20
"""Warn below this number of transitions, because many wrong programs fit so few."""


class Outside(NamedTuple):
    """Rows with an observation outside its space, and one value with its bounds."""

    rows: np.ndarray
    value: float
    low: float
    high: float
    component: str


def dataset_warnings(dataset: Dataset) -> Iterator[str]:
    """Yield one line for each problem of a dataset: too few rows, values outside their space."""
    if len(dataset) < MIN_ROWS:
        yield (
            f"only {len(dataset)} transitions, which many wrong programs fit: record {MIN_ROWS} or "
            "more, with --episodes or --min-rows of cwm collect"
        )
    if words := outside_space(dataset):
        yield words


def outside_space(dataset: Dataset) -> str:
    """Return a warning if observations exceed the bounds of their space, or ""."""
    found = [
        outside
        for name in ("observations", "next_observations")
        for leaf in dataset.observation_space.leaves(name)
        if leaf.space.kind == "box" and leaf.space.low and leaf.space.high
        if (outside := _find_outside(dataset, leaf))
    ]
    if not found:
        return ""
    count = int(np.logical_or.reduce([outside.rows for outside in found]).sum())
    _, value, low, high, component = found[0]
    return (
        f"{count} of {len(dataset)} transitions have observations outside observation_space "
        f"({component} is {value:g}, bounds {low:g} to {high:g}): correct the space"
    )


def _find_outside(dataset: Dataset, leaf: Leaf) -> Outside | None:
    space, column = leaf.space, dataset.columns[leaf.name]
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    # Many environments compute in float32, so that rounding may exceed a bound.
    slack = 1e-5 * np.maximum(1, np.abs(column))
    wrong = (column < low - slack) | (column > high + slack)
    if not wrong.any():
        return None
    row, *place = (int(index[0]) for index in np.nonzero(wrong))
    rows = np.any(wrong.reshape(len(column), -1), axis=1)
    component = f"{leaf.name}[{', '.join(map(str, place))}]" if place else leaf.name
    value = column[(row, *place)]
    return Outside(rows, value, low[tuple(place)], high[tuple(place)], component)
