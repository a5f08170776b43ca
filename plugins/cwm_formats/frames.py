"""Datasets from data frames and other columns in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cwm_cli.commands.data import TableColumns
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import SILENT, Observer
from cwm_formats.inferred import infer_dataset
from cwm_formats.tables import Cells, ReadTable


def dataset(
    frame: Any,
    actions: Sequence[str] | str,
    observations: Sequence[str] | str | None = None,
    *,
    reward: str | None = None,
    episode: str | None = None,
    time: str | None = None,
    terminated: str | None = None,
    name: str = "table",
    drop_missing: bool = False,
    resample: float | None = None,
    observer: Observer = SILENT,
) -> Dataset:
    """Return the rows of a table as transitions, with inferred spaces and without an environment.

    A row has the observation and the action of a step, and the next row has the next observation.
    Columns with usual names (`episode`, `time`, `reward`, `done`) are recognised if their roles
    are not given; `"none"` prevents this.

    Args:
        frame: A `pandas.DataFrame`, another data frame, a table of pyarrow, or a mapping of names
            to columns of equal length. An index of times counts as a column.
        actions: Columns of the action.
        observations: Columns of the observation, by default all that have no other role.
        reward: Column of the reward; without one, all rewards are 0.
        episode: Column of the episode's number or name.
        time: Column of the time; gaps in it end an episode.
        terminated: Column that marks the last row of an episode.
        name: Name of the dataset; its environment is `data/NAME`.
        drop_missing: Leave out rows with missing or bad cells.
        resample: Length of the steps to resample to, in seconds or units of the time column.
        observer: Receives notes on omitted cells and on decisions.

    Raises:
        CwmError: A column is missing or cannot be used, or there are bad cells.

    Example::

        rows = cwm.dataset(frame, actions=["valve"], time="timestamp")
        result = cwm.synthesize(dataset=rows)
    """
    columns = TableColumns(
        _names(actions),
        _names(observations or ()),
        reward,
        episode,
        time,
        terminated,
        drop_missing,
        resample,
    )
    return infer_dataset(_table(frame, name), columns, name, name, observer)


def _names(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _table(frame: Any, name: str) -> ReadTable:
    """Return the columns of a frame as cells."""
    if isinstance(frame, Mapping):
        columns = dict(frame)
    elif hasattr(frame, "column_names") and hasattr(frame, "column"):  # pyarrow
        columns = {key: frame.column(key).to_pylist() for key in frame.column_names}
    elif hasattr(frame, "columns") and hasattr(frame, "__getitem__"):
        columns = {key: frame[key] for key in frame.columns}
        index = getattr(frame, "index", None)
        if index is not None and getattr(index, "dtype", np.dtype(int)).kind == "M":
            columns = {index.name or "time": index, **columns}
    else:
        raise CwmError(
            f"a {type(frame).__name__} is not a table: give a data frame or a mapping of columns"
        )
    cells = {str(key): _cells(values) for key, values in columns.items()}
    lengths = {key: len(values) for key, values in cells.items()}
    if len(cells) < len(columns) or len(set(lengths.values())) != 1:
        raise CwmError(
            f"{name} needs columns of equal length with different names: correct the columns "
            f"{', '.join(list(lengths)[:10])}"
        )
    rows = next(iter(lengths.values()))
    return ReadTable(name, cells, rows, lambda row: f"row {row} (counted from 0)")


def _cells(values: Any) -> Cells:
    """Return a column as numbers or texts; a missing object is an empty text."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise CwmError(f"a column has the shape {array.shape}: a table needs one value in each row")
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind == "M":
        array = np.datetime_as_string(array, unit="us")
    elif array.dtype.kind == "m":
        return array / np.timedelta64(1, "s")
    # texts of the objects that data frames hold in cells without a value
    missing_objects = frozenset({"None", "nan", "NaN", "NaT", "<NA>"})
    return [
        ""
        if str(cell) in missing_objects and (cell == "NaT" or not isinstance(cell, str))
        else str(cell)
        for cell in array.tolist()
    ]
