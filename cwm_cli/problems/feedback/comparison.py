"""Predictions beside what was recorded, component by component."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Leaf
from cwm_cli.evaluation import Matches, Metric, components, match
from cwm_cli.problems.feedback.documented import documented_names
from cwm_cli.text import clean
from cwm_cli.worlds.contract import component_names

LONGEST_NAME = 40


class Component(NamedTuple):
    """One component of the observation in every row: before, recorded after, predicted after."""

    name: str
    space_is_float: bool
    low: float
    high: float
    before: np.ndarray
    recorded: np.ndarray
    predicted: np.ndarray

    @property
    def typical_change(self) -> float:
        """The mean size of the change in one step, or 1 where nothing changes."""
        change = float(np.abs(self.recorded.astype(np.float64) - self.before).mean())
        return change if np.isfinite(change) and change > 0 else 1.0


@dataclass(frozen=True)
class Comparison:
    """A dataset, the predictions of its rows, and what each row weighs."""

    dataset: Dataset
    predictions: Columns
    weights: np.ndarray
    matches: Matches
    right: np.ndarray
    documented: tuple[str, ...]

    @classmethod
    def of(
        cls, dataset: Dataset, predictions: Columns, metric: Metric, description: str = ""
    ) -> Self:
        """Compare predictions with what was recorded."""
        return cls(
            dataset,
            predictions,
            metric.weights(dataset),
            match(predictions, dataset),
            np.concatenate(components(predictions, dataset), axis=1),
            documented_names(description, dataset.observation_space),
        )

    @property
    def terminal(self) -> np.ndarray:
        """Mask of the rows that end an episode; their observation does not count."""
        terminal: np.ndarray = self.dataset.columns["terminations"]
        return terminal

    @cached_property
    def losses(self) -> np.ndarray:
        """What each row loses, unweighted."""
        return self.matches.losses(self.terminal)

    @cached_property
    def lost(self) -> np.ndarray:
        """The weight that each row loses."""
        lost: np.ndarray = self.losses * self.weights
        return lost

    @property
    def wrong(self) -> np.ndarray:
        """Mask of the rows that are wrong in a part that counts."""
        return self.losses > 0

    @property
    def observation_wrong(self) -> np.ndarray:
        """Mask of the rows whose observation is wrong and counts."""
        return self.mistakes["observation"]

    @cached_property
    def mistakes(self) -> dict[str, np.ndarray]:
        """For each part the mask of the rows in which it is wrong and counts."""
        mistakes = {
            "observation": ~self.right.all(axis=1) & ~self.terminal,
            "reward": ~self.matches.reward,
            "terminated": ~self.matches.terminated,
        }
        if self.matches.valid_actions is not None:
            mistakes["valid actions"] = ~self.matches.valid_actions & ~self.terminal
        return mistakes

    @cached_property
    def names(self) -> list[str]:
        """The Python expression of each component of the observation."""
        names = component_names(self.dataset.observation_space, "observation")
        return [clean(name, limit=LONGEST_NAME) for name in names]

    def label(self, index: int) -> str:
        """Name a component, with its name in the documentation where that has one."""
        known = self.documented[index] if self.documented else ""
        return f"{self.names[index]} ({known})" if known else self.names[index]

    def component(self, index: int) -> Component:
        """Return one component of the observation."""
        leaf, place = self._leaves[index]
        low, high = (
            (bounds[place] if bounds else bound)
            for bounds, bound in ((leaf.space.low, -np.inf), (leaf.space.high, np.inf))
        )
        values = (self.dataset.columns[f"{stem}{leaf.name}"] for stem in ("", "next_"))
        columns = (*values, self.predictions[f"next_{leaf.name}"])
        vectors = (column.reshape(len(self.dataset), -1)[:, place] for column in columns)
        return Component(self.names[index], leaf.space.is_float, low, high, *vectors)

    def is_float(self, index: int) -> bool:
        """Whether a component is a real number."""
        return self._leaves[index][0].space.is_float

    @cached_property
    def has_floats(self) -> bool:
        """Whether some component is a real number."""
        return any(leaf.space.is_float for leaf, _ in self._leaves)

    @cached_property
    def errors(self) -> np.ndarray:
        """The largest error of each row's observation, in units of typical changes."""
        largest = np.zeros(len(self.dataset))
        for index in np.flatnonzero(~self.right.all(axis=0)).tolist():
            if self.is_float(index):
                part = self.component(index)
                with np.errstate(invalid="ignore", over="ignore"):
                    error = np.abs(part.predicted - part.recorded) / part.typical_change
                largest = np.maximum(largest, np.nan_to_num(error, nan=np.inf, posinf=np.inf))
        return largest

    @cached_property
    def _leaves(self) -> list[tuple[Leaf, int]]:
        """The leaf of each component, and its place there."""
        leaves = self.dataset.observation_space.leaves("observations")
        return [(leaf, place) for leaf in leaves for place in range(leaf.space.size)]


def share(mask: np.ndarray) -> str:
    """Write the mean of a mask in percent."""
    return percent(float(mask.mean()) if len(mask) else 1.0)


def percent(part: float) -> str:
    """Write a share in percent; only nothing reads 0 and only all reads 100."""
    number = 100 * part
    return f"{number:.0f} %" if number in (0, 100) else f"{min(max(number, 0.1), 99.9):.1f} %"
