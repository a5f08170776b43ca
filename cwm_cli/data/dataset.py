"""Transitions of an environment, and datasets of transitions."""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple, Self

import numpy as np

from cwm_cli.data.reading import UnreadableError, parse_json, read_arrays
from cwm_cli.data.spaces import Columns, Space, UnfitError, raise_for_values
from cwm_cli.errors import CwmError

VALIDATION_SHARE = 0.3
"""Fraction of the train trajectories to hold out from fitting."""

VECTORS = {
    "rewards": np.float64,
    "terminations": np.bool_,
    "truncations": np.bool_,
    "episodes": np.int64,
    "split": np.int8,
}
"""Columns with one number per row, and their types."""

VALID = "valid_actions"
"""Column of the actions that are valid after a transition: a mask with one element per action."""

TURN = "turn"
"""Metadata of a game of two players: the entry of the observation with the player to move."""

DONE = "dones"
"""Column of an imported file that does not distinguish termination from time limits."""

TOLERANCES = "tolerances"
"""Metadata of rows that are compared within given tolerances."""

ALL_FITTED = {"fitted": "all"}
"""Metadata of rows that are all fitted, because an agent that acts on them needs all."""


def is_fitted(places: np.ndarray) -> np.ndarray:
    """Return whether trajectories are fitted, by their indices, counted from 0."""
    position = (places + 1) * VALIDATION_SHARE
    # A trajectory is held out if the held-out count, rounded down, increases with it.
    return np.asarray(np.floor(position + 1e-9) <= np.floor(position - VALIDATION_SHARE + 1e-9))


def write_arrays(path: Path, arrays: Columns) -> None:
    """Write arrays to a `.npz` file atomically; equal arrays give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes, or two threads of one, may write the same file.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.part")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")  # always dated 1980
                member.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class Transition(NamedTuple):
    """One step of an environment.

    `split` is 0 for train and 1 for test (held out). `valid` has the actions that are valid after
    the transition, if the environment reports them.
    """

    observation: Any
    action: Any
    next_observation: Any
    reward: float
    terminated: bool
    truncated: bool = False
    episode: int = 0
    split: int = 0
    valid: tuple[int, ...] | None = None


class ColumnError(ValueError):
    """An invalid value in a column of a dataset, with its row and column."""

    def __init__(self, column: str, error: UnfitError) -> None:
        super().__init__(f"{error.reason} (row {error.row}, counted from 0, column {column})")


@dataclass(frozen=True)
class Dataset:
    """Transitions as numpy columns of equal length, one `.npz` file on disk, without pickle.

    The columns are `observations`, `actions` and `next_observations` (one per leaf of their space,
    see `spaces`), `rewards` (float64), `terminations`, `truncations`, `episodes` (the number of
    the trajectory) and `split`. If the environment reports valid actions, `valid_actions` is a
    mask of the actions that are valid after the transition. If an imported file does not
    distinguish time limits from termination, `dones` has its marks. `metadata` describes the
    source of the data.
    """

    columns: Columns
    observation_space: Space
    action_space: Space
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        transitions: Sequence[Transition],
        *,
        observation_space: Space,
        action_space: Space,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return transitions as columns.

        If some transitions have valid actions, all actions are valid after the other transitions.
        """
        names = ("observation", "action", "next_observation")
        spaces = (observation_space, action_space, observation_space)
        columns: Columns = {}
        for name, space in zip(names, spaces, strict=True):
            columns |= space.pack(f"{name}s", [getattr(row, name) for row in transitions])
        fields = ("reward", "terminated", "truncated", "episode", "split")
        for (column, dtype), name in zip(VECTORS.items(), fields, strict=True):
            columns[column] = np.array([getattr(row, name) for row in transitions], dtype=dtype)
        valid = [row.valid for row in transitions]
        if action_space.kind == "discrete" and any(actions is not None for actions in valid):
            every = np.ones(action_space.count, np.bool_)
            masks = (every if actions is None else action_space.mask(actions) for actions in valid)
            columns[VALID] = np.array(list(masks))
        return cls(columns, observation_space, action_space, dict(metadata or {}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`; `CwmError` if it is missing or invalid."""
        try:
            columns = read_arrays(path)
            header = parse_json(str(columns.pop("metadata", np.array("{}"))), finite=True)
            if not isinstance(header, dict) or not header.keys() >= {"observation_space"}:
                raise ValueError("it has no observation space")
            for name, kind in {"env": str, "env_args": dict, "note": str}.items():
                if not isinstance(header.get(name, kind()), kind):
                    raise ValueError(f"its {name} has the wrong type")
            observation = Space.from_json(header.pop("observation_space"))
            action = Space.from_json(header.pop("action_space", None))
            return cls(columns, observation, action, header).validate()
        except ColumnError as error:
            raise CwmError(f"{path}: {error}; correct the value or remove the row") from error
        except (UnreadableError, ValueError) as error:
            if isinstance(error, UnreadableError) and error.is_missing:
                words = f"there is no dataset {path}"
            else:
                reason = getattr(error, "reason", None) or " ".join(str(error).split())[:120]
                words = f"{path} is not a dataset of cwm ({reason})"
            raise CwmError(f"{words}: record one with `cwm collect`") from error

    def save(self, path: Path) -> None:
        """Write the file atomically; equal data gives equal bytes."""
        spaces = {
            "observation_space": self.observation_space.to_json(),
            "action_space": self.action_space.to_json(),
        }
        header = json.dumps(spaces | self.metadata, sort_keys=True, allow_nan=False)
        write_arrays(path, self.columns | {"metadata": np.array(header)})

    @property
    def digest(self) -> str:
        """SHA-256 of all columns, in hexadecimal; metadata do not count."""
        digest = sha256()
        for name in sorted(self.columns):
            column = np.ascontiguousarray(self.columns[name])
            # Type and shape count, as equal bytes may be different columns.
            digest.update(f"{name} {column.dtype.str} {column.shape};".encode())
            digest.update(column.tobytes())
        return digest.hexdigest()

    @property
    def train(self) -> Self:
        """The rows that a search may use."""
        return self[self.columns["split"] == 0]

    @property
    def test(self) -> Self:
        """The held-out rows, which no search uses."""
        return self[self.columns["split"] == 1]

    @property
    def has_rewards(self) -> bool:
        """Whether rewards are a part of scores: tables of transitions may lack them."""
        return self.metadata.get("rewards") is not False

    @property
    def has_ends(self) -> bool:
        """Whether the ends of episodes are a part of scores."""
        return self.metadata.get("ends") is not False

    @property
    def tolerances(self) -> dict[str, float]:
        """Absolute tolerances of exactness by number of the component, or `reward`."""
        return dict(self.metadata.get(TOLERANCES, {}))

    @property
    def has_valid_actions(self) -> bool:
        """Whether programs must return the valid actions after a step."""
        return VALID in self.columns

    @property
    def turn(self) -> str:
        """The entry of the observation with the player to move, in a game of two players."""
        return str(self.metadata.get(TURN, ""))

    @property
    def longest_episode(self) -> int:
        """The number of rows of the longest episode."""
        return int(np.unique(self.columns["episodes"], return_counts=True)[1].max(initial=0))

    @property
    def fitted(self) -> np.ndarray:
        """Mask of the rows that may be fitted to and shown in prompts.

        By default 70 % of the trajectories, spread evenly, always with the first one; all rows if
        the metadata contain `ALL_FITTED`.
        """
        if self.metadata.items() >= ALL_FITTED.items():
            return np.ones(len(self), np.bool_)
        _, rank = np.unique(self.columns["episodes"], return_inverse=True)
        return is_fitted(rank.reshape(-1))

    def select(self, *names: str) -> Columns:
        """Return the columns of the given fields, such as `observations` and `actions`."""
        return {key: column for key, column in self.columns.items() if key.split(".")[0] in names}

    def situations(self) -> list[bytes]:
        """Return a key for the observation and the action of every row."""
        leaves = [
            *self.observation_space.leaves("observations"),
            *self.action_space.leaves("actions"),
        ]
        columns = [np.ascontiguousarray(self.columns[leaf.name]) for leaf in leaves]
        return [b"\0".join(column[row].tobytes() for column in columns) for row in range(len(self))]

    def row(self, index: int) -> Transition:
        """Return one transition."""
        row = Transition(
            self.observation_space.unpack("observations", self.columns, index),
            self.action_space.unpack("actions", self.columns, index),
            self.observation_space.unpack("next_observations", self.columns, index),
            *(self.columns[name][index].item() for name in VECTORS),
        )
        if not self.has_valid_actions:
            return row
        return row._replace(valid=self.action_space.masked(self.columns[VALID][index]))

    def __getitem__(self, rows: np.ndarray) -> Self:
        """Select rows by a mask or by indices."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return type(self)(columns, self.observation_space, self.action_space, self.metadata)

    def first_train_rows(self, count: int) -> Self:
        """Return the first train rows and all test rows; the last train episode may be cut."""
        train = np.flatnonzero(self.columns["split"] == 0)[:count]
        test = np.flatnonzero(self.columns["split"] == 1)
        return self[np.sort(np.concatenate([train, test]))]

    def concatenate(self, *others: Self) -> Self:
        """Append the rows of other datasets, which must have the same columns."""
        columns = {
            name: np.concatenate([column, *(rows.columns[name] for rows in others)])
            for name, column in self.columns.items()
        }
        return type(self)(columns, self.observation_space, self.action_space, self.metadata)

    def with_columns_of(self, rows: Self) -> Self:
        """Return the dataset with the same columns as other rows, to concatenate them.

        A missing mask of valid actions becomes true for all actions.
        """
        columns = {name: column for name, column in self.columns.items() if name in rows.columns}
        for name, column in rows.columns.items():
            if name not in columns:
                columns[name] = np.ones((len(self), *column.shape[1:]), column.dtype)
        return replace(self, columns=columns)

    def __len__(self) -> int:
        return len(self.columns["rewards"])

    def __iter__(self) -> Iterator[Transition]:
        return (self.row(index) for index in range(len(self)))

    def validate(self) -> Self:
        """Check all columns, convert their types, and add `split` if it is missing.

        Raises:
            ColumnError: A value is outside its space, not finite or not allowed.
            ValueError: A column is missing or has another type or shape.
        """
        columns = self.columns
        # Without a split, every fifth episode is held out.
        if "split" not in columns and "episodes" in columns:
            _, rank = np.unique(columns["episodes"], return_inverse=True)
            columns["split"] = (rank.reshape(-1) % 5 == 4).astype(np.int8)
        rows = columns["rewards"].shape[:1] if "rewards" in columns else ()
        leaves = [
            *self.observation_space.leaves("observations"),
            *self.action_space.leaves("actions"),
            *self.observation_space.leaves("next_observations"),
        ]
        shapes = {leaf.name: leaf.space.shape for leaf in leaves}
        if self.has_valid_actions:
            shapes[VALID] = (self.action_space.count,)
        shapes |= dict.fromkeys([*VECTORS, *({DONE} & columns.keys())], ())
        if missing := [name for name in shapes if name not in columns]:
            raise ValueError(f"the column {missing[0]} is missing")
        if wrong := [name for name in columns if columns[name].shape[:1] != rows]:
            raise ValueError(
                f"the column {wrong[0][:40]} and the column rewards have different lengths"
            )
        for name, shape in shapes.items():
            if columns[name].shape != (*rows, *shape):
                raise ValueError(f"the column {name} does not have the shape of its space")
        for name, dtype in VECTORS.items():
            if not np.can_cast(columns[name].dtype, dtype, "same_kind"):
                raise ValueError(f"the column {name} has the wrong type")
            with _name_column(name):
                _check_vector(name, columns[name])
            columns[name] = columns[name].astype(dtype, copy=False)
        for leaf in leaves:
            with _name_column(leaf.name):
                leaf.space.check(columns[leaf.name])
        for name in (VALID, DONE):
            if name in columns and columns[name].dtype.kind != "b":
                raise ValueError(f"the column {name} has the wrong type")
        return self


@contextmanager
def _name_column(name: str) -> Iterator[None]:
    """Add the name of the column to errors about its values."""
    try:
        yield
    except UnfitError as error:
        raise ColumnError(name, error) from error


def _check_vector(name: str, column: np.ndarray) -> None:
    """Check the values of a column of `VECTORS`, before a cast hides invalid ones."""
    if name == "rewards" and column.dtype.kind == "f":
        raise_for_values(~np.isfinite(column), column, "{} is not a finite number")
    elif name == "split":
        wrong = (column != 0) & (column != 1)
        raise_for_values(wrong, column, "{} is neither 0 (train) nor 1 (test)")
    elif name == "episodes":
        wrong = (column < 0) | (column > np.iinfo(np.int64).max)
        raise_for_values(wrong, column, "{} is not a valid episode number")


# --- warnings about valid datasets that are probably not what the user wants

MIN_ROWS = 20
"""Warn below this number of transitions, because many wrong programs fit so few."""


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
    outside, first = np.zeros(len(dataset), np.bool_), ""
    for name in ("observations", "next_observations"):
        for leaf in dataset.observation_space.leaves(name):
            space, column = leaf.space, dataset.columns[leaf.name]
            if space.kind != "box" or not space.low or not space.high:
                continue
            low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
            # Many environments compute in float32, so that rounding may exceed a bound.
            slack = 1e-5 * np.maximum(1, np.abs(column))
            wrong = (column < low - slack) | (column > high + slack)
            outside |= wrong.any(axis=tuple(range(1, wrong.ndim)))
            if wrong.any() and not first:
                row, *place = np.argwhere(wrong)[0].tolist()
                at, value = tuple(place), column[(row, *place)]
                component = f"{leaf.name}[{', '.join(map(str, place))}]" if place else leaf.name
                first = f"{component} is {value:g}, bounds {low[at]:g} to {high[at]:g}"
    if not first:
        return ""
    return (
        f"{int(outside.sum())} of {len(dataset)} transitions have observations outside "
        f"observation_space ({first}): correct the space"
    )
