"""Environments of recorded tables: they have spaces but no simulator.

The id is `data/NAME`; the arguments of the environment describe the columns of the table, so that
a dataset, a run or a worker process needs nothing else to make the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, NamedComponent, gym_space_of
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym

PREFIX = "data/"
"""Begin of the ids of environments without a simulator."""


@dataclass(frozen=True)
class RecordedColumn:
    """A column of a table.

    Attributes:
        name: Its name.
        labels: Labels if the cells are texts or booleans. The number of a label is its place,
            counted from the lowest value.
        unit: Unit that the cells carry, such as "kW".
        resolution: Rounding unit of the numbers, such as 0.001; 0 for labels and for numbers
            that are not rounded. A perfect prediction may be wrong by half a unit.
    """

    name: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    resolution: float = 0.0


@dataclass(frozen=True)
class RecordedTable:
    """What the columns of a table mean.

    Attributes:
        observations: Observation space, a flat box with a component per column.
        actions: Action space: discrete, multidiscrete or a flat box with a component per column,
            or a dict with a part per column.
        observed: Columns of the observation, in the order of its components.
        acted: Columns of the action, in the order of its components.
        source: Name of the file.
        step: Length of a step in words, such as "300 seconds"; empty if unknown.
        reward: Name of the column of the reward; empty if there is none and all rewards are 0.
        reward_resolution: Rounding unit of the rewards, 0 if they are not rounded.
    """

    observations: Space
    actions: Space
    observed: tuple[RecordedColumn, ...]
    acted: tuple[RecordedColumn, ...]
    source: str = ""
    step: str = ""
    reward: str = ""
    reward_resolution: float = 0.0

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of the environment, as JSON data."""
        return {
            "observations": self.observations.to_json(),
            "actions": self.actions.to_json(),
            "observed": [[column.name, *column.labels] for column in self.observed],
            "acted": [[column.name, *column.labels] for column in self.acted],
            "units": [column.unit for column in (*self.observed, *self.acted)],
            "resolutions": [column.resolution for column in self.observed],
            "source": self.source,
            "step": self.step,
            "reward": self.reward,
            "reward_resolution": self.reward_resolution,
        }

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the table that `as_arguments` described; `ValueError` for other data."""
        observed, acted = (_columns(arguments[name]) for name in ("observed", "acted"))
        units = arguments.get("units", [""] * (len(observed) + len(acted)))
        resolutions = arguments.get("resolutions", [0.0] * len(observed))
        observed = tuple(
            replace(column, unit=str(unit), resolution=float(resolution))
            for column, unit, resolution in zip(observed, units, resolutions, strict=False)
        )
        acted = tuple(
            replace(column, unit=str(unit))
            for column, unit in zip(acted, units[len(observed) :], strict=True)
        )
        return cls(
            Space.from_json(arguments["observations"]),
            Space.from_json(arguments["actions"]),
            observed,
            acted,
            str(arguments.get("source", "")),
            str(arguments.get("step", "")),
            str(arguments.get("reward", "")),
            float(arguments.get("reward_resolution", 0.0)),
        )

    def describe(self) -> str:
        """Return the text that describes the table to a reader or a language model."""
        step = f" A step takes {self.step}." if self.step else ""
        lines = [
            f"Recorded transitions of {self.source or 'a table'}; there is no simulator.{step}",
            "",
            "| Num | Observation | Values |",
            "|---|---|---|",
        ]
        lines += _rows(self.observed, self.observations)
        if self.actions.kind == "discrete":
            [column] = self.acted
            low = int(self.actions.low[0])
            lines += ["", f"The action is {column.name}:", ""]
            if column.labels and low == 0:
                lines += [f"- {number}: {label}" for number, label in enumerate(column.labels)]
            else:
                lines.append(f"a whole number from {low} to {int(self.actions.high[0])}.")
        else:
            lines += ["", "| Num | Action | Values |", "|---|---|---|"]
            lines += _rows(self.acted, self.actions)
        lines += [
            "",
            f"The reward is {self.reward}."
            if self.reward
            else "There is no reward: it is always 0.",
        ]
        return "\n".join(lines)


def _columns(data: Any) -> tuple[RecordedColumn, ...]:
    return tuple(RecordedColumn(str(name), tuple(map(str, labels))) for name, *labels in data)


def _rows(columns: Sequence[RecordedColumn], space: Space) -> list[str]:
    """Return a row of a table for each column."""
    leaves = [leaf.space for leaf in space.leaves("x")]
    bounds = [
        (low, high, leaf) for leaf in leaves for low, high in zip(leaf.low, leaf.high, strict=True)
    ]
    rows = []
    for number, (column, (low, high, leaf)) in enumerate(zip(columns, bounds, strict=True)):
        if column.labels:
            first = int(low)
            values = ", ".join(f"{first + n} = {label}" for n, label in enumerate(column.labels))
        else:
            is_real = leaf.is_float and column.resolution != 1
            values = f"{'real' if is_real else 'whole'}, from {low:g} to {high:g} {column.unit}"
            if 0 < column.resolution < 1:
                values = f"{values.strip()}, rounded to {column.resolution:g}"
        name = column.name.replace("|", "/")
        rows.append(f"| {number} | {name} | {values.strip()} |")
    return rows


def make(name: str, **arguments: Any) -> gym.Env[Any, Any]:
    """Make the environment of a table, which can neither be reset nor stepped."""
    import gymnasium as gym

    try:
        table = RecordedTable.of(arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise CwmError(
            f"{name} is known by its transitions only: give its dataset with --dataset FILE"
        ) from error
    env: gym.Env[Any, Any] = gym.Env()
    env.observation_space = gym_space_of(table.observations)
    env.action_space = gym_space_of(table.actions)
    env.table = table  # type: ignore[attr-defined]
    return env


class RecordedEnvironments(Mapping[str, Callable[[], EnvironmentSpec]]):
    """All ids `data/NAME`; none is listed, because each belongs to a dataset."""

    def __getitem__(self, name: str) -> Callable[[], EnvironmentSpec]:
        if name not in self:
            raise KeyError(name)
        return partial(_specify, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(PREFIX) and name != PREFIX

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _specify(name: str) -> EnvironmentSpec:
    return EnvironmentSpec(
        id=name,
        make=partial(make, name),
        describe=lambda env: env.unwrapped.table.describe(),  # type: ignore[attr-defined]
        versions=dict,
        components=_components,
    )


def _components(env: gym.Env[Any, Any]) -> tuple[list[NamedComponent], list[NamedComponent]]:
    """Return the names and labels of all columns."""
    table: RecordedTable = env.unwrapped.table  # type: ignore[attr-defined]
    observed = [(column.name, column.labels) for column in table.observed]
    return observed, [(column.name, column.labels) for column in table.acted]
