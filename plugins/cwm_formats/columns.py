"""Convert third-party arrays to the columns of a dataset, and find the ends of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import TransitionShape
from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.spaces import Columns, Space, UnfitError, raise_for_values
from cwm_cli.runs.observer import Observer

MAX_NUMBERS = 100_000_000
"""Maximum number of numbers and characters of an imported dataset."""

TEST_SHARE = 5
"""One in this number of episodes is held out."""


def fitted(space: Space, values: Any) -> np.ndarray:
    """Return values as the column of a leaf of a space.

    Numbers of the kind of the space keep their dtype. Other numbers are cast if that loses no
    information. Real numbers may be out of bounds, see `note_out_of_bounds`.

    Args:
        space: The space of the leaf.
        values: Values with one row per transition.

    Raises:
        ValueError: If a value does not fit; an `UnfitError` also has its row.
    """
    if space.kind == "text":
        return _texts(space, values)
    column = np.asarray(values)
    if column.dtype.kind not in "biuf" or column.ndim == 0:
        raise ValueError("expected rows of numbers")
    if column.shape[1:] != space.shape:
        if column.size != len(column) * space.size or space.size != 1:
            raise ValueError(
                f"expected shape {across(space.shape)}, found {across(column.shape[1:])}"
            )
        column = column.reshape(len(column), *space.shape)
    raise_for_values(~np.isfinite(column), column, "{} is not a finite number")
    wanted = np.dtype(space.dtype)
    if column.dtype.kind != wanted.kind:
        with np.errstate(invalid="ignore"):  # too large numbers raise an error below
            cast = column.astype(wanted)
        if wanted.kind != "f":
            raise_for_values(column != np.rint(column), column, "{} is not a whole number")
            raise_for_values(cast != column, column, f"{{}} does not fit into {wanted}")
        column = cast
    if space.kind != "box":
        low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
        words = f"is not from {int(low)} to {int(high)}" if not space.shape else "is out of bounds"
        raise_for_values((column < low) | (column > high), column, "{} " + words)
    return column


def _texts(space: Space, values: Any) -> np.ndarray:
    """Return a column of texts."""
    texts = np.atleast_1d(values).tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise UnfitError(row, f"{text!r:.40} is not text")
        if len(text) > space.max_length or text.endswith("\0"):
            raise UnfitError(row, f"{text!r:.40} is longer than {space.max_length} characters")
    return np.array(texts, np.str_)


def across(shape: tuple[int, ...]) -> str:
    """Return a shape as text."""
    return "x".join(map(str, shape)) or "() (a single number)"


def flattened(space: Space, name: str, value: Any) -> Columns:
    """Return the columns of a nested value whose leaves are arrays with one row per transition."""
    if space.kind not in ("tuple", "dict"):
        try:
            return {name: fitted(space, value)}
        except UnfitError as error:
            raise UnfitError(error.row, f"{name}: {error.reason}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    columns: Columns = {}
    keys: Sequence[Any] = space.keys if space.kind == "dict" else range(len(space.children))
    kind = dict if space.kind == "dict" else tuple | list
    known = isinstance(value, kind)
    if not known or set(value if isinstance(value, dict) else range(len(value))) != set(keys):
        raise ValueError(f"{name} must have the parts {', '.join(map(str, keys))}")
    for key, (part, child) in zip(keys, space.parts(), strict=True):
        columns |= flattened(child, f"{name}.{part}", value[key])
    return columns


def note_out_of_bounds(
    dataset: Dataset, observer: Observer, place: Callable[[int], str] | None = None
) -> None:
    """Note how many numbers are outside the bounds of their space. They are kept.

    Args:
        dataset: The rows.
        observer: Receives the note.
        place: Returns the name of a row in its file, such as "line 7".
    """
    spaces = {"observations": dataset.observation_space, "actions": dataset.action_space}
    for name, space in spaces.items():
        for leaf in space.leaves(name):
            if leaf.space.kind != "box":
                continue
            column = dataset.columns[leaf.name]
            low, high = (
                np.reshape(np.array(bound, column.dtype), leaf.space.shape)
                for bound in (leaf.space.low, leaf.space.high)
            )
            outside = (column < low) | (column > high)
            count = int(outside.sum())
            if count:
                are = "value of {} is" if count == 1 else "values of {} are"
                first = tuple(np.argwhere(outside)[0].tolist())
                where = f" (first: {column[first]:g} in {place(first[0])})" if place else ""
                observer.note(
                    f"{count} {are.format(leaf.name)} outside the bounds of their space{where}"
                )


class Ends(NamedTuple):
    """How rows ended their episodes. `dones` is set if one flag also marks time limits."""

    terminated: np.ndarray
    truncated: np.ndarray
    dones: np.ndarray | None = None


def ends_of(dones: np.ndarray, episodes: np.ndarray, limit: int | None) -> Ends:
    """Split a single flag: an end in the step of the time limit counts as truncated."""
    firsts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    start_rows = np.repeat(firsts, np.diff(np.append(firsts, len(episodes))))
    timed = dones & (np.arange(len(episodes)) - start_rows + 1 == limit)
    return Ends(dones & ~timed, timed, dones if timed.any() else None)


def split_of(episodes: np.ndarray, observer: Observer) -> np.ndarray:
    """Hold out one in five episodes."""
    _, rank = np.unique(episodes, return_inverse=True)
    if rank.size and rank.max() < TEST_SHARE - 1:
        observer.note(f"no episode is held out: there are fewer than {TEST_SHARE} episodes")
    split: np.ndarray = (rank.reshape(-1) % TEST_SHARE == TEST_SHARE - 1).astype(np.int8)
    return split


class RecordedRows(NamedTuple):
    """Columns of equal length; `columns` are observations and actions that fit their spaces."""

    columns: Columns
    rewards: np.ndarray
    ends: Ends
    episodes: np.ndarray
    split: np.ndarray
    valid: np.ndarray | None = None
    kept: np.ndarray | None = None
    """The row of the file that each row is from."""

    def dataset(self, shape: TransitionShape, metadata: Mapping[str, Any]) -> Dataset:
        """Return the rows as a dataset."""
        made = self.columns | {
            "rewards": self.rewards.astype(np.float64),
            "terminations": self.ends.terminated.astype(np.bool_),
            "truncations": self.ends.truncated.astype(np.bool_),
            "episodes": self.episodes.astype(np.int64),
            "split": self.split.astype(np.int8),
        }
        if self.valid is not None:
            made[VALID] = self.valid.astype(np.bool_)
        if self.ends.dones is not None:
            made[DONE] = self.ends.dones.astype(np.bool_)
        return Dataset(made, shape.observations, shape.actions, dict(metadata))


def too_many(rows: int, shape: TransitionShape) -> bool:
    """Return whether rows of an environment need too much memory."""
    size = 2 * _weight(shape.observations) + _weight(shape.actions)
    return rows * max(1, size) > MAX_NUMBERS


def _weight(space: Space) -> int:
    """Return the maximum number of numbers or characters of a value."""
    own = space.max_length if space.kind == "text" else space.size
    return sum(map(_weight, space.children)) if space.children else own
