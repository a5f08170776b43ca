"""Safe readers of untrusted files, which check sizes before they allocate memory.

Every error of a file is an `UnreadableError` with a `reason` of a few words. Only regular files
are read, no folders, pipes or devices, and opening one never blocks. The sizes that a file
declares are compared with its real size.
"""

import errno
import json
import os
import stat
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, prod
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError

LARGEST = 1 << 30
"""Maximal size of a file, and of all arrays of an archive, in bytes."""

LARGEST_TEXT = 1 << 24
"""Maximal size of a program, a JSON document and a line, in bytes: 1000 times the usual size. The
values of a document need about ten times its size in memory."""

MOST_VALUES = 1 << 17
"""Maximal number of values in a JSON document: more than the returns of any run. Validation may
need a kilobyte of error messages for each value."""

MAX_DEPTH = 64
"""Maximal nesting of JSON: documents of cwm have less than ten levels, and some libraries fail at
hundreds."""

MAX_HEADER = 10_000
"""Maximal size of the header of an array, in bytes; the default of numpy."""

_NOT_FILES = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


class UnreadableError(CwmError):
    """A file that cannot be read, with the reason; `is_missing` is set if it does not exist."""

    def __init__(self, file: Path, reason: str, hint: str = "", *, is_missing: bool = False):
        self.file, self.reason, self.is_missing = file, reason, is_missing
        cause = f"there is no {file}" if is_missing else f"{file} cannot be read ({reason})"
        super().__init__(f"{cause}: {hint or 'restore it or choose another file'}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, an error from another process could not be unpickled.
        return type(self), (self.file, self.reason)


def open_file(file: Path, most: int = LARGEST) -> BinaryIO:
    """Open a regular file of at most `most` bytes for reading.

    Raises:
        UnreadableError: The file is missing, too large, not a regular file or not permitted.
    """
    with _translate_errors(file):
        # The checks use the descriptor, as the file of a name can be replaced after a check.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        _check_opened(descriptor, file, most)
        return os.fdopen(descriptor, "rb")


@contextmanager
def open_for_reading(file: Path, most: int = LARGEST) -> Iterator[BinaryIO]:
    """Open a file as `open_file` does, and raise `UnreadableError` for errors during reading."""
    with open_file(file, most) as stream, _translate_errors(file):
        yield stream


@contextmanager
def _translate_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableError(file, "it is not there", is_missing=True) from error
    except OSError as error:
        raise UnreadableError(
            file, (error.strerror or str(error) or "reading failed").lower()
        ) from error


def open_for_appending(file: Path) -> IO[bytes]:
    """Open or create a regular file to append to it without a buffer.

    System errors that are not about the kind of the file, such as a full disk, are `OSError`.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a reader.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise
        if error.errno == errno.EISDIR:
            raise UnreadableError(file, _NOT_FILES[stat.S_IFDIR]) from error
        raise UnreadableError(file, (error.strerror or "it is not a file").lower()) from error
    _check_opened(descriptor, file, LARGEST)
    return os.fdopen(descriptor, "r+b", buffering=0)


def _check_opened(descriptor: int, file: Path, most: int) -> None:
    """Close a descriptor and raise an error if it is not a regular file, or is too large."""
    status = os.fstat(descriptor)
    if (kind := stat.S_IFMT(status.st_mode)) != stat.S_IFREG:
        os.close(descriptor)
        raise UnreadableError(file, _NOT_FILES.get(kind, "it is not a file"))
    if (size := status.st_size) > most:
        os.close(descriptor)
        raise UnreadableError(file, f"it has {size:,} bytes; the limit is {most:,}")


def read_bytes(file: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file."""
    with open_for_reading(file, most) as stream:
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_text(file: Path, most: int = LARGEST_TEXT) -> str:
    """Return the text of a UTF-8 file, with Unix line ends and without a byte order mark."""
    try:
        text = read_bytes(file, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(file, "it is not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(file: Path, most: int = LARGEST_TEXT, values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON file with at most `values` values."""
    try:
        return parse_json(read_bytes(file, most), values)
    except ValueError as error:
        raise UnreadableError(file, str(error)) from error


def parse_json(content: bytes | str, values: int = MOST_VALUES, *, finite: bool = False) -> Any:
    """Return the value of a JSON document.

    Args:
        content: The document.
        values: Maximal number of values in it.
        finite: Whether to reject NaN and infinity, which strict JSON does not allow.

    Raises:
        ValueError: The document is invalid; the message has a few words.
    """
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not valid JSON: {place}") from error
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if is_deep else "it is not valid JSON"
        raise ValueError(reason) from error
    # Level by level, as a recursive walk could exceed the recursion limit itself.
    level, count = [value], 1
    for _ in range(MAX_DEPTH):
        if finite and any(isinstance(each, float) and not isfinite(each) for each in level):
            raise ValueError("a number in it is not finite")
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        count += len(level)
        if count > values:
            raise ValueError("it has too many values")
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def read_lines(file: Path, most: int = LARGEST_TEXT) -> Iterator[bytes]:
    """Yield the complete lines of a file, without line ends.

    A line of more than `most` bytes is yielded as an empty line. An incomplete last line, which a
    killed process may leave, is omitted.
    """
    with open_for_reading(file) as stream:
        while line := stream.readline(most):
            if line.endswith(b"\n"):
                yield line[:-1]
                continue
            # Skip the rest of a long line in pieces, so that it never fills the memory.
            while line and not line.endswith(b"\n"):
                line = stream.readline(most)
            if line:
                yield b""


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` archive: numbers and text, no pickled objects."""
    with open_for_reading(file) as stream, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns about some invalid headers
        try:
            return _read_archive(stream)
        except OSError:
            raise
        except ValueError as error:
            raise UnreadableError(file, " ".join(str(error).split())[:120]) from error
        except Exception as error:  # zipfile and numpy raise many types for damaged archives
            raise UnreadableError(file, "it is not a .npz archive, or damaged") from error


def _read_archive(stream: BinaryIO) -> dict[str, np.ndarray]:
    """Read an archive, after checks of its directory and of the sizes in all headers."""
    # The record at the end has the number of members and the length of their directory, which
    # `zipfile` would read as a whole.
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 22))
    end = stream.read()
    count, length = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    if not end.startswith(b"PK\5\6") or len(end) < 22:
        raise ValueError("it is not a .npz archive, or it was cut short")
    max_members = 1000  # a column for each leaf of a space
    if count > max_members or length > max_members * MAX_HEADER:
        raise ValueError(f"it has {count:,} members, too many")
    with zipfile.ZipFile(stream) as archive:
        members = [_Member.of(archive, info) for info in archive.infolist()]
        total = sum(member.info.file_size for member in members)
        # Archives of more than 64 MiB may be compressed by a factor of 200, which recorded frames
        # of flat colours do not reach but zip bombs exceed.
        if total > LARGEST or total > max(1 << 26, 200 * size):
            raise ValueError(f"its arrays need {total:,} bytes, too many for a file of this size")
        return {member.name: member.read(archive) for member in members}


class _Member(NamedTuple):
    """An array in an archive, with a checked header."""

    name: str
    info: zipfile.ZipInfo

    @classmethod
    def of(cls, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> "_Member":
        """Read the header of an array; `ValueError` unless type and shape match its size."""
        name = info.filename.removesuffix(".npy")
        if name == info.filename or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ValueError("it contains something other than arrays")
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read(stream, max_header_size=MAX_HEADER)
            header = stream.tell()
        if dtype.kind not in "biufU" or min(shape, default=0) < 0:
            raise ValueError(f"the array {name[:40]!r} contains neither numbers nor text")
        # Without this check numpy would allocate the declared shape before it reads the data.
        if header + prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"the array {name[:40]!r} has a size that does not match its shape")
        return cls(name, info)

    def read(self, archive: zipfile.ZipFile) -> np.ndarray:
        """Read the array, with the byte order of this machine."""
        with archive.open(self.info) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        # Python has no such characters: every later use of the text would raise a `ValueError`.
        has_letters = array.dtype.kind == "U" and array.nbytes > 0
        if has_letters and array.ravel("K").view(np.uint32).max() > sys.maxunicode:
            raise ValueError(f"the array {self.name[:40]!r} has invalid characters")
        return np.asarray(array.astype(array.dtype.newbyteorder("="), copy=False))
