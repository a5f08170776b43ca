"""Summaries of datasets (`cwm data show`): ranges, counts, rewards and episode lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data_import import describe
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf
from cwm_cli.envs.documented import documented_actions, documented_names
from cwm_cli.registry import environment

FEW_VALUES = 12
"""Maximum number of different numbers to count one by one; with more there is a histogram."""

BINS = 20
"""Number of bins of a histogram, of equal width from the smallest number to the largest."""


@dataclass(frozen=True)
class NumberSpread:
    """The distribution of real numbers, with the counts of `BINS` bins of equal width."""

    min: float
    median: float
    max: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class ValueCount:
    """A value with its number of rows; `name` is its documented meaning, if known."""

    value: float | int | str
    count: int
    name: str = ""


@dataclass(frozen=True)
class ComponentSummary:
    """A component of an observation or an action: either a distribution, or values with counts.

    Attributes:
        column: Column of the dataset, with the index in a row, such as `observations[2]`.
        name: Its documented name, if known.
        different: Number of different values.
        spread: The distribution, if there are many values.
        values: The values, if there are few.
    """

    column: str
    name: str
    different: int
    spread: NumberSpread | None = None
    values: tuple[ValueCount, ...] = ()


@dataclass(frozen=True)
class DatasetSummary:
    """Numbers on a dataset.

    `lengths` and `returns` are the quantiles 0, 25, 50, 75 and 100 % over episodes.
    """

    facts: Mapping[str, Any]
    components: tuple[ComponentSummary, ...]
    rewards: ComponentSummary
    truncations: int
    lengths: tuple[float, ...]
    returns: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm data show --json`."""
        names = ("min", "q25", "median", "q75", "max")
        return {
            **self.facts,
            "truncations": self.truncations,
            "episode_lengths": dict(zip(names, self.lengths, strict=True)),
            "episode_returns": dict(zip(names, self.returns, strict=True)),
            "rewards": _as_json(self.rewards),
            "components": [_as_json(component) for component in self.components],
        }


def _as_json(component: ComponentSummary) -> dict[str, Any]:
    """Return plain data without empty fields."""
    return {name: value for name, value in asdict(component).items() if value not in (None, (), "")}


def summarise(file: Path, dataset: Dataset) -> DatasetSummary:
    """Summarise a dataset, with the names that the environment documents if it can be created."""
    columns, names = dataset.columns, _names(dataset)
    _, place = np.unique(columns["episodes"], return_inverse=True)
    lengths = np.bincount(place.reshape(-1))
    returns = np.bincount(place.reshape(-1), columns["rewards"])
    quantiles = [0.0, 0.25, 0.5, 0.75, 1.0]
    some = len(dataset) > 0
    return DatasetSummary(
        describe(file, dataset),
        tuple(_components(dataset, names)) if some else (),
        _component("rewards", "", columns["rewards"])
        if some
        else ComponentSummary("rewards", "", 0),
        int(columns["truncations"].sum()),
        tuple(np.quantile(lengths, quantiles).tolist()) if some else (),
        tuple(np.quantile(returns, quantiles).tolist()) if some else (),
    )


class _Names(NamedTuple):
    """Documented names of the components of a flat observation, and of the actions."""

    components: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


def _names(dataset: Dataset) -> _Names:
    """Return the names that the environment documents, or none if it cannot be created."""
    name, env_args = dataset.metadata.get("env", ""), dataset.metadata.get("env_args", {})
    if ":" in name:
        # The id would import a module that only the file names, not the user.
        return _Names()
    try:
        spec = environment(name)
        with closing(spec.make(**env_args)) as env:
            description = spec.describe(env)
            named = spec.action_names(env) if spec.action_names else ()
    except Exception:  # noqa: BLE001  # third-party environments raise anything
        return _Names()
    space = dataset.action_space
    count = space.count if space.kind == "discrete" else 0
    actions = tuple(named) or documented_actions(description, count)
    components = documented_names(description, dataset.observation_space)
    return _Names(components, actions if len(actions) == count else ())


def _components(dataset: Dataset, names: _Names) -> Iterator[ComponentSummary]:
    """Yield the components of observations and actions; all pixels of a picture are one."""
    leaves = [
        *dataset.observation_space.leaves("observations"),
        *dataset.action_space.leaves("actions"),
    ]
    for leaf in leaves:
        column = dataset.columns[leaf.name]
        if leaf.space.is_picture:
            yield _component(leaf.name, "pixels", column.reshape(-1), whole=True)
        elif not leaf.space.shape:
            yield _single(leaf, column, names)
        else:
            flat = leaf.name == "observations" and names.components
            for number, place in enumerate(np.ndindex(*leaf.space.shape)):
                name = names.components[number] if flat else ""
                words = ", ".join(map(str, place))
                yield _component(f"{leaf.name}[{words}]", name, column[(slice(None), *place)])


def _single(leaf: Leaf, column: np.ndarray, names: _Names) -> ComponentSummary:
    """Summarise a leaf of one value; for discrete actions, also values without rows."""
    if leaf.name != "actions" or leaf.space.kind != "discrete" or leaf.space.count > FEW_VALUES:
        return _component(leaf.name, "", column)
    first = int(leaf.space.low[0])
    counts = np.bincount(column - first, minlength=leaf.space.count).tolist()
    values = tuple(
        ValueCount(first + n, count, names.actions[n] if names.actions else "")
        for n, count in enumerate(counts)
    )
    return ComponentSummary(leaf.name, "", sum(count > 0 for count in counts), values=values)


def _component(
    column: str, name: str, values: np.ndarray, *, whole: bool = False
) -> ComponentSummary:
    """Summarise a component: count few numbers, or the 20 most frequent texts."""
    different, counts = np.unique(values, return_counts=True)
    is_text = values.dtype.kind == "U"
    if (is_text or len(different) <= FEW_VALUES) and not whole:
        order = np.argsort(-counts, kind="stable")[:20] if is_text else range(len(counts))
        found = tuple(ValueCount(different[n].item(), int(counts[n])) for n in order)
        return ComponentSummary(column, name, len(different), values=found)
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ComponentSummary(column, name, len(different))
    low, middle, high = np.quantile(numbers, [0, 0.5, 1]).tolist()
    half = high / 2 - low / 2  # `high - low` may be more than the largest float
    places = (numbers / 2 - low / 2) / half * BINS if half > 0 else np.zeros(len(numbers))
    bins = np.bincount(places.astype(np.int64).clip(0, BINS - 1), minlength=BINS).tolist()
    return ComponentSummary(
        column, name, len(different), NumberSpread(low, middle, high, tuple(bins))
    )
