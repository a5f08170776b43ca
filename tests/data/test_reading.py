"""Files are read as what they are, with no more memory than they need, or refused in few words."""

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
    DEEPEST,
    LARGEST,
    LARGEST_TEXT,
    MOST_VALUES,
    adding_to,
    parsed,
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
    adding_to,
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
def test_what_is_no_file_is_refused_at_once(tmp_path, reader, reason):
    NO_FILES[reason](tmp_path / "file")
    with pytest.raises(CwmError, match=reason):
        reader(tmp_path / "file")


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_a_terabyte_is_not_read(tmp_path, reader):
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(CwmError, match="1,099,511,627,776 bytes; the limit is"):
        reader(tmp_path / "file")


def test_a_program_has_plain_ends_of_lines_and_no_mark(tmp_path):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n")
    assert read_text(tmp_path / "a.py") == "x = 1\ny = 2\nz = 3\n"
    (tmp_path / "a.py").write_bytes(b"\xff\xfe")
    with pytest.raises(CwmError, match="it is not UTF-8 text"):
        read_text(tmp_path / "a.py")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        (f"[{','.join(['1'] * MOST_VALUES)}]", "too many values"),
        ("9" * 5000, "not valid JSON"),
        ('{"a": 1\n,x}', "not valid JSON: line 2, column 2"),
        ("", "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_json_that_nobody_would_write_is_refused_in_few_words(text, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        parsed(text)
    assert "\n" not in str(refused.value)
    assert parsed("[" * DEEPEST + "]" * DEEPEST)


def test_a_line_that_is_too_long_costs_that_line(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"a\n" + b"x" * 50 + b"\n\nb\n" + b"y" * 50)
    assert list(read_lines(file, most=10)) == [b"a", b"", b"", b"b"]
    assert list(read_lines(file)) == [b"a", b"x" * 50, b"", b"b"]


def archive(file, **members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)


def npy(array, shape=None):
    """Write an array that says that it has another shape."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    said = content.getvalue()
    old = str(array.shape).encode()
    return said if shape is None else said.replace(old, str(shape).encode().ljust(len(old)), 1)


def peak(act, reason):
    """Have something refused, and return how many bytes that took."""
    tracemalloc.start()
    try:
        with pytest.raises(CwmError, match=reason) as refused:
            act()
        assert "\n" not in str(refused.value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MEGABYTE = 1 << 20


def test_archives_take_no_memory_for_what_they_only_claim(tmp_path):
    file = tmp_path / "x.npz"
    archive(file, observations=npy(np.zeros(3999), shape=(10**9,)))
    assert peak(lambda: Dataset.load(file), "a size that does not match its shape") < MEGABYTE
    archive(file, **{f"a{n}": npy(np.zeros(1 << 20)) for n in range(9)})
    assert file.stat().st_size < MEGABYTE / 8
    assert peak(lambda: Dataset.load(file), "its arrays need 75,") < MEGABYTE
    archive(file, observations=npy(np.array([b"x"])))
    assert peak(lambda: Dataset.load(file), "neither numbers nor text") < MEGABYTE
    assert LARGEST_TEXT < LARGEST


def test_metadata_cannot_ask_for_bounds_of_components_that_there_are_not(tmp_path):
    space = '{"kind": "box", "dtype": "float64", "shape": [1000000000], "low": 0, "high": 1}'
    text = f'{{"observation_space": {space}, "action_space": {space}}}'
    archive(tmp_path / "x.npz", metadata=npy(np.array(text)))
    words = "a value of its space has 1,000,000,000 components"
    assert peak(lambda: Dataset.load(tmp_path / "x.npz"), words) < MEGABYTE


@pytest.mark.parametrize("column", ["rewards", "dones", "traj_starts", "idx"])
def test_a_short_pickle_of_pairs_of_pairs_takes_no_memory(tmp_path, column):
    pairs = ()
    for _ in range(60):
        pairs = (pairs, pairs)
    fields = pickle.loads(published(protocol=4))  # written a moment ago
    count = fields["idx"]
    fields |= {"obs": [0] * count, "next_obs": [0] * count, "extra_info": [], "idx": 1}
    fields[column] = pairs if column == "idx" else [pairs]
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(fields))
    assert peak(lambda: read_buffer(tmp_path / "x.pkl"), "not a replay buffer") < MEGABYTE
