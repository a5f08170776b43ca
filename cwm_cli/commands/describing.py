"""What is in a dataset, in numbers: ranges and counts of every component, rewards and episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data_import import describe, formats_of
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf
from cwm_cli.envs.documented import documented_actions, documented_names
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment

FEW_VALUES = 12
"""Up to so many different numbers are counted one by one; of more there is a histogram."""

MOST_TEXTS = 20
"""Different texts of a component that are named, the most frequent ones."""

BINS = 20
"""Bins of a histogram, of equal width from the smallest number to the largest."""


@dataclass(frozen=True)
class NumberSpread:
    """How real numbers are spread: `histogram` counts those in bins of equal width."""

    min: float
    median: float
    max: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class ValueCount:
    """How often a value is there; `name` says what it stands for, where that is known."""

    value: float | int | str
    count: int
    name: str = ""


@dataclass(frozen=True)
class ComponentSummary:
    """One component of an observation or an action: either a spread, or values with counts.

    `column` is that of the dataset with the place in a row, `name` what the documentation calls
    it. `different` is how many different values there are.
    """

    column: str
    name: str
    different: int
    spread: NumberSpread | None = None
    values: tuple[ValueCount, ...] = ()


@dataclass(frozen=True)
class DatasetSummary:
    """What is in a dataset. `lengths` are the quantiles 0, 25, 50, 75 and 100 % of episodes'."""

    facts: Mapping[str, Any]
    components: tuple[ComponentSummary, ...]
    rewards: ComponentSummary
    truncations: int
    lengths: tuple[float, ...]
    returns: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm data show --json` prints."""
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
    """Return plain data without what is not there."""
    return {name: value for name, value in asdict(component).items() if value not in (None, (), "")}


def load_own(file: Path) -> Dataset:
    """Load a dataset. The error for a file that `cwm data import` reads names that command."""
    if file.suffix != ".npz" and (formats := formats_of(file)):
        raise CwmError(f"{file} is a {formats[0]} file: run `cwm data import {file}` first")
    return Dataset.load(file)


def summarise(file: Path, dataset: Dataset) -> DatasetSummary:
    """Count what is in a dataset; names are those of its environment, if that can be made."""
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
    """What the components of a flat observation are called, and the actions."""

    components: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


def _names(dataset: Dataset) -> _Names:
    """Ask the environment; a dataset is described without it, too."""
    name, env_args = dataset.metadata.get("env", ""), dataset.metadata.get("env_args", {})
    if ":" in name:
        return _Names()  # a module would be imported, and nobody but the file named it
    try:
        spec = environment(name)
        with closing(spec.make(**env_args)) as env:
            description = spec.describe(env)
            named = spec.action_names(env) if spec.action_names else ()
    except Exception:  # noqa: BLE001  # it may lack a package, or be a stranger's
        return _Names()
    space = dataset.action_space
    count = space.count if space.kind == "discrete" else 0
    actions = tuple(named) or documented_actions(description, count)
    components = documented_names(description, dataset.observation_space)
    return _Names(components, actions if len(actions) == count else ())


def _components(dataset: Dataset, names: _Names) -> Iterator[ComponentSummary]:
    """Yield the components of observations and actions; the pixels of a picture are one."""
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
    """Summarise a leaf of one value: all values of a discrete action are named."""
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
    """Summarise the values of a component: few ones, and texts, are counted."""
    different, counts = np.unique(values, return_counts=True)
    is_text = values.dtype.kind == "U"
    if (is_text or len(different) <= FEW_VALUES) and not whole:
        order = np.argsort(-counts, kind="stable")[:MOST_TEXTS] if is_text else range(len(counts))
        found = tuple(ValueCount(different[n].item(), int(counts[n])) for n in order)
        return ComponentSummary(column, name, len(different), values=found)
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ComponentSummary(column, name, len(different))
    low, middle, high = np.quantile(numbers, [0, 0.5, 1]).tolist()
    half = high / 2 - low / 2  # the whole of it may be more than a float holds
    places = (numbers / 2 - low / 2) / half * BINS if half > 0 else np.zeros(len(numbers))
    bins = np.bincount(places.astype(np.int64).clip(0, BINS - 1), minlength=BINS).tolist()
    return ComponentSummary(
        column, name, len(different), NumberSpread(low, middle, high, tuple(bins))
    )
