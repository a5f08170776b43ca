"""Datasets in memory and on disk."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm_cli.data.dataset import VECTORS, Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError

STATES = Space("discrete", low=(0,), high=(15,))
ACTIONS = Space("discrete", low=(0,), high=(3,))


def walk(*lengths: int, split: int = 0) -> Dataset:
    """Return episodes of the given lengths."""
    return Dataset.of(
        [
            Transition(
                step, step % 4, step + 1, 0.1 * step, step == length - 1, False, number, split
            )
            for number, length in enumerate(lengths)
            for step in range(length)
        ],
        observation_space=STATES,
        action_space=ACTIONS,
        metadata={"env": "Walk-v0"},
    )


def members(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file."""
    with np.load(path) as archive:
        return dict(archive)


def test_load_inverts_save(tmp_path: Path) -> None:
    dataset = walk(3, 2)
    dataset.save(tmp_path / "new" / "walk.npz")
    loaded = Dataset.load(tmp_path / "new" / "walk.npz")
    assert list(loaded) == list(dataset)
    assert loaded.metadata == {"env": "Walk-v0"}
    assert (loaded.observation_space, loaded.action_space) == (STATES, ACTIONS)
    assert {name: column.dtype for name, column in loaded.columns.items()} == {
        name: column.dtype for name, column in dataset.columns.items()
    }
    assert loaded.digest == dataset.digest


def test_row_has_python_values() -> None:
    row = walk(2).row(1)
    assert row == Transition(1, 1, 2, 0.1, True)
    assert [type(value) for value in row[:-1]] == [int, int, int, float, bool, bool, int, int]


def test_equal_data_gives_equal_bytes_on_any_date(tmp_path: Path) -> None:
    for name in ("one.npz", "other.npz"):
        walk(3).save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:
        assert {member.date_time[:3] for member in archive.infolist()} == {(1980, 1, 1)}


def test_digest_depends_on_columns_and_not_on_metadata() -> None:
    dataset = walk(3)
    renamed = Dataset(dataset.columns, STATES, ACTIONS, {"env": "Other-v0"})
    assert renamed.digest == dataset.digest
    assert walk(3, split=1).digest != dataset.digest


def test_failed_save_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "walk.npz"
    walk(3).save(path)
    before = path.read_bytes()
    spoilt = walk(2)
    spoilt.columns["rewards"] = np.array([object(), object()])
    with pytest.raises(ValueError, match="allow_pickle"):
        spoilt.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@given(st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_load_adds_a_split_by_trajectory(tmp_path_factory, episodes: int) -> None:
    path = tmp_path_factory.mktemp("split") / "walk.npz"
    walk(*[2] * episodes).save(path)
    arrays = members(path)
    del arrays["split"]
    np.savez(path, **arrays)
    dataset = Dataset.load(path)
    assert len(dataset.train) + len(dataset.test) == 2 * episodes
    assert len(dataset.test) // 2 == episodes // 5
    train, test = (set(part.columns["episodes"]) for part in (dataset.train, dataset.test))
    assert not train & test
    assert len(dataset.train)


@given(st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_seventy_percent_of_the_trajectories_are_fitted(episodes: int) -> None:
    dataset = walk(*[2] * episodes)
    fitted, held = dataset[dataset.fitted], dataset[~dataset.fitted]
    assert not set(fitted.columns["episodes"]) & set(held.columns["episodes"])
    assert abs(len(fitted) / 2 - 0.7 * episodes) < 1
    assert 0 in fitted.columns["episodes"]


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def refused(path: Path) -> str:
    """Return the one-line error of loading a file."""
    with pytest.raises(CwmError) as refusal:
        Dataset.load(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "cwm collect" in str(refusal.value)
    return str(refusal.value)


def test_load_never_unpickles(tmp_path: Path) -> None:
    path = tmp_path / "walk.npz"
    walk(2).save(path)
    trap = np.array([Trap(tmp_path / "sprung"), None], dtype=object)
    np.savez(path, **members(path) | {"observations": trap})
    refused(path)
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(tmp_path / "bare.npz")
    assert not (tmp_path / "sprung").exists()


def test_load_rejects_truncated_files(tmp_path: Path) -> None:
    path = tmp_path / "walk.npz"
    walk(2).save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        refused(path)


def test_load_reports_a_missing_file(tmp_path: Path) -> None:
    assert "there is no dataset" in refused(tmp_path / "none.npz")


def test_load_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "walk.npz"
    walk(2).save(path)
    arrays = members(path)
    foreign = {
        "text": b"observation,action\n1,2\n",
        "array": npz(None, rows=np.arange(3)),
        "other arrays": npz(None, a=np.arange(3)),
        "no rewards": npz(arrays, rewards=None),
        "short rewards": npz(arrays, rewards=np.zeros(1)),
        "header is no JSON": npz(arrays, metadata=np.array("{")),
        "header is no object": npz(arrays, metadata=np.array("3")),
        "unknown space": npz(
            arrays, metadata=np.array(json.dumps({"observation_space": 3, "action_space": {}}))
        ),
    }
    for content in foreign.values():
        path.write_bytes(content)
        refused(path)
    refused(tmp_path)


def npz(arrays: dict[str, np.ndarray] | None, **changes: np.ndarray | None) -> bytes:
    """Return an archive of arrays, with changes; None removes an array."""
    file = io.BytesIO()
    changed = {**(arrays or {}), **changes}
    np.savez(file, **{name: array for name, array in changed.items() if array is not None})
    return file.getvalue()


WRONG_VALUES = {
    "an infinite reward": ("rewards", np.inf, np.float64, "inf is not a finite number"),
    "no reward": ("rewards", np.nan, np.float64, "nan is not a finite number"),
    "another split": ("split", 2, np.int8, "2 is neither 0 (train) nor 1 (test)"),
    "a split that overflows": ("split", 256, np.int64, "256 is neither 0 (train) nor 1 (test)"),
    "a negative episode": ("episodes", -1, np.int64, "-1 is not a valid episode number"),
    "a huge episode": ("episodes", 2**63, np.uint64, "is not a valid episode number"),
    "another action": ("actions", 4, np.int64, "4 is not from 0 to 3"),
    "another state": ("next_observations", -1, np.int64, "-1 is not from 0 to 15"),
}


@pytest.mark.parametrize("column, value, dtype, reason", WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_load_reports_row_and_column_of_an_invalid_value(
    tmp_path: Path, column: str, value: float, dtype: type, reason: str
) -> None:
    path = tmp_path / "walk.npz"
    walk(4).save(path)
    arrays = members(path)
    changed = arrays[column].astype(dtype)
    changed[2] = value
    path.write_bytes(npz(arrays, **{column: changed}))
    with pytest.raises(CwmError) as refusal:
        Dataset.load(path)
    assert reason in str(refusal.value)
    assert f"(row 2, counted from 0, column {column}); correct" in str(refusal.value)


@pytest.mark.parametrize("dtype, value", [("float32", np.nan), ("int8", 0.5)])
def test_load_rejects_invalid_numbers_of_a_box(tmp_path: Path, dtype: str, value: float) -> None:
    box = Space("box", dtype, (2,), (0.0, 0.0), (1.0, 1.0))
    row = Transition(np.zeros(2, dtype), 0, np.zeros(2, dtype), 0.0, False)
    rows = Dataset.of([row] * 3, observation_space=box, action_space=ACTIONS)
    rows.save(path := tmp_path / "box.npz")
    changed = rows.columns["observations"].astype(np.float32)
    changed[1, 1] = value
    path.write_bytes(npz(members(path), observations=changed))
    with pytest.raises(CwmError, match=r"\(row 1, counted from 0, column observations\)"):
        Dataset.load(path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_load_rejects_metadata_that_are_not_finite(tmp_path: Path, value: str) -> None:
    path = tmp_path / "walk.npz"
    walk(2).save(path)
    arrays = members(path)
    header = str(arrays["metadata"]).replace('"env":', f'"reset_seeds": [{value}], "env":')
    path.write_bytes(npz(arrays, metadata=np.array(header)))
    assert "a number in it is not finite" in refused(path)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_have_fixed_types(name: str) -> None:
    assert walk(2).columns[name].dtype == VECTORS[name]


def test_empty_dataset_can_be_saved_and_loaded(tmp_path: Path) -> None:
    walk().save(tmp_path / "none.npz")
    assert len(Dataset.load(tmp_path / "none.npz")) == 0
