"""Readers of untrusted files: limits of memory, and short reasons for errors."""

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import (
    LARGEST,
    LARGEST_TEXT,
    MAX_DEPTH,
    MOST_VALUES,
    open_for_appending,
    parse_json,
    read_arrays,
    read_bytes,
    read_json,
    read_lines,
    read_text,
)
from cwm_cli.errors import CwmError
from cwm_published.buffer import read_buffer
from published_buffer import published

READERS = (
    read_bytes,
    read_text,
    read_json,
    read_arrays,
    open_for_appending,
    Dataset.load,
    read_buffer,
    lambda file: list(read_lines(file)),
)

NO_FILES = {
    "it is a folder": Path.mkdir,
    "it is a pipe": os.mkfifo,
    "it is a device": lambda file: file.symlink_to("/dev/zero"),
    "too many levels": lambda file: file.symlink_to(file.name),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("reason", NO_FILES)
def test_readers_reject_everything_but_regular_files(tmp_path, reader, reason):
    NO_FILES[reason](tmp_path / "file")
    with pytest.raises(CwmError, match=reason):
        reader(tmp_path / "file")


@pytest.mark.parametrize("reader", READERS)
def test_readers_reject_a_huge_file(tmp_path, reader):
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(CwmError, match="1,099,511,627,776 bytes; the limit is"):
        reader(tmp_path / "file")


def test_read_text_normalises_line_ends_and_removes_the_byte_order_mark(tmp_path):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n")
    assert read_text(tmp_path / "a.py") == "x = 1\ny = 2\nz = 3\n"
    (tmp_path / "a.py").write_bytes(b"\xff\xfe")
    with pytest.raises(CwmError, match="it is not UTF-8 text"):
        read_text(tmp_path / "a.py")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        (f"[{','.join(['1'] * MOST_VALUES)}]", "too many values"),
        ("9" * 5000, "not valid JSON"),
        ('{"a": 1\n,x}', "not valid JSON: line 2, column 2"),
        ("", "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_parse_json_rejects_extreme_and_invalid_documents(text, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        parse_json(text)
    assert "\n" not in str(refused.value)
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_read_lines_replaces_too_long_lines_and_omits_an_incomplete_one(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"a\n" + b"x" * 50 + b"\n\nb\n" + b"y" * 50)
    assert list(read_lines(file, most=10)) == [b"a", b"", b"", b"b"]
    assert list(read_lines(file)) == [b"a", b"x" * 50, b"", b"b"]


def archive(file, **members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)


def npy(array, shape=None):
    """Return an array file, with another shape in its header if given."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    data = content.getvalue()
    old = str(array.shape).encode()
    return data if shape is None else data.replace(old, str(shape).encode().ljust(len(old)), 1)


def peak(act, reason):
    """Return the peak memory, in bytes, of a call that raises an error."""
    tracemalloc.start()
    try:
        with pytest.raises(CwmError, match=reason) as refused:
            act()
        assert "\n" not in str(refused.value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MEGABYTE = 1 << 20


def test_archive_with_false_sizes_needs_no_memory(tmp_path):
    file = tmp_path / "x.npz"
    archive(file, observations=npy(np.zeros(3999), shape=(10**9,)))
    assert peak(lambda: Dataset.load(file), "a size that does not match its shape") < MEGABYTE
    archive(file, **{f"a{n}": npy(np.zeros(1 << 20)) for n in range(9)})
    assert file.stat().st_size < MEGABYTE / 8
    assert peak(lambda: Dataset.load(file), "its arrays need 75,") < MEGABYTE
    archive(file, observations=npy(np.array([b"x"])))
    assert peak(lambda: Dataset.load(file), "neither numbers nor text") < MEGABYTE
    assert LARGEST_TEXT < LARGEST


def test_space_with_too_many_components_needs_no_memory(tmp_path):
    space = '{"kind": "box", "dtype": "float64", "shape": [1000000000], "low": 0, "high": 1}'
    text = f'{{"observation_space": {space}, "action_space": {space}}}'
    archive(tmp_path / "x.npz", metadata=npy(np.array(text)))
    words = "a value of its space has 1,000,000,000 components"
    assert peak(lambda: Dataset.load(tmp_path / "x.npz"), words) < MEGABYTE


@pytest.mark.parametrize("column", ["rewards", "dones", "traj_starts", "idx"])
def test_pickle_of_exponential_size_needs_no_memory(tmp_path, column):
    pairs = ()
    for _ in range(60):
        pairs = (pairs, pairs)
    fields = pickle.loads(published(protocol=4))  # trusted: made above
    count = fields["idx"]
    fields |= {"obs": [0] * count, "next_obs": [0] * count, "extra_info": [], "idx": 1}
    fields[column] = pairs if column == "idx" else [pairs]
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(fields))
    assert peak(lambda: read_buffer(tmp_path / "x.pkl"), "not a replay buffer") < MEGABYTE


def test_archive_with_too_many_members_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{f"a{number}": np.zeros(0) for number in range(1001)})
    with pytest.raises(CwmError, match="1,001 members, too many"):
        read_arrays(tmp_path / "x.npz")
