"""Files as they come: a reader for each kind, that takes no memory before it knows how much.

Whatever is wrong with a file is an `UnreadableError`, whose `reason` is a few words. A file is
opened without waiting, and it has to be one: no folder, no pipe, no device. What it says of its
own size is compared with the size that it has.
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
"""Bytes of the largest file that is read at all, and of the arrays of the largest archive."""

LARGEST_TEXT = 1 << 24
"""Bytes of the longest program, JSON document and line: a thousand times what is usual, and few
enough that the values of a document, which take some ten times its bytes, fit into any memory."""

MOST_VALUES = 1 << 17
"""Values in a JSON document: the returns of more episodes than anybody plays. What a model of
the document says of each wrong one takes a kilobyte."""

DEEPEST = 64
"""Levels of JSON within JSON: no document of ours has ten, and some libraries fall at hundreds."""

MOST_MEMBERS = 1000
"""Files in an archive: a column for each leaf of a space."""

SMALL_ARRAYS, TIGHTEST = 1 << 26, 200
"""Arrays of up to so many bytes are unpacked from any archive; larger ones only if they are not
packed more than so tightly, which recorded frames of flat colours are not, and bombs are."""

LONGEST_HEAD = 10_000
"""Bytes of the head of an array, as numpy has it."""

KINDS = "biufU"
"""The kinds of numpy's types that are read: numbers and text."""

_OTHER_THAN_FILES = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


class UnreadableError(CwmError):
    """A file that cannot be read: `reason` says why, `is_missing` that it is not there."""

    def __init__(self, file: Path, reason: str, hint: str = "", *, is_missing: bool = False):
        self.file, self.reason, self.is_missing = file, reason, is_missing
        words = f"there is no {file}" if is_missing else f"{file} cannot be read ({reason})"
        super().__init__(f"{words}: {hint or 'restore it or choose another file'}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Be as it is in other processes, too."""
        return type(self), (self.file, self.reason)


def open_file(file: Path, most: int = LARGEST) -> BinaryIO:
    """Open a regular file of at most some bytes for reading."""
    with _complaining(file):
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        stream = os.fdopen(_regular(descriptor, file), "rb")
        if (size := os.fstat(descriptor).st_size) > most:
            stream.close()
            raise UnreadableError(file, f"it has {size:,} bytes; the limit is {most:,}")
        return stream


@contextmanager
def opened(file: Path, most: int = LARGEST) -> Iterator[BinaryIO]:
    """Open a file as `open_file` does; what fails while it is read is told as well."""
    with open_file(file, most) as stream, _complaining(file):
        yield stream


@contextmanager
def _complaining(file: Path) -> Iterator[None]:
    """Say what the system refuses."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableError(file, "it is not there", is_missing=True) from error
    except OSError as error:
        raise UnreadableError(
            file, (error.strerror or str(error) or "reading failed").lower()
        ) from error


def adding_to(file: Path) -> IO[bytes]:
    """Open a regular file, made if need be, whose end is written without a buffer."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise  # what is no fault of the file
        if error.errno == errno.EISDIR:
            raise UnreadableError(file, _OTHER_THAN_FILES[stat.S_IFDIR]) from error
        raise UnreadableError(file, (error.strerror or "it is not a file").lower()) from error
    stream = os.fdopen(_regular(descriptor, file), "r+b", buffering=0)
    if (size := os.fstat(descriptor).st_size) > LARGEST:
        stream.close()
        raise UnreadableError(file, f"it has {size:,} bytes; the limit is {LARGEST:,}")
    return stream


def _regular(descriptor: int, file: Path) -> int:
    """Return the descriptor of a regular file; any other is closed."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    raise UnreadableError(file, _OTHER_THAN_FILES.get(kind, "it is not a file"))


def read_bytes(file: Path, most: int = LARGEST) -> bytes:
    """Return what is in a file."""
    with opened(file, most) as stream:
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_text(file: Path, most: int = LARGEST_TEXT) -> str:
    """Return the text of a program or another file of UTF-8, with plain line ends and no mark."""
    try:
        text = read_bytes(file, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(file, "it is not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(file: Path, most: int = LARGEST_TEXT, values: int = MOST_VALUES) -> Any:
    """Return the values of a JSON document."""
    try:
        return parsed(read_bytes(file, most), values)
    except ValueError as error:
        raise UnreadableError(file, str(error)) from error


def parsed(content: bytes | str, values: int = MOST_VALUES, *, finite: bool = False) -> Any:
    """Return the value of a JSON document.

    Args:
        content: The document.
        values: Maximal number of values in it.
        finite: Whether to refuse NaN and infinity, which no strict JSON document contains.

    Raises:
        ValueError: The document is wrong; the message has a few words.
    """
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not valid JSON: {place}") from error
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        raise ValueError("it is nested too deeply" if deep else "it is not valid JSON") from error
    level, count = [value], 1
    for _ in range(DEEPEST):
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
    """Yield the whole lines of a file, without their ends; one that is too long is empty."""
    with opened(file) as stream:
        while line := stream.readline(most):
            if line.endswith(b"\n"):
                yield line[:-1]
                continue
            while line and not line.endswith(b"\n"):
                line = stream.readline(most)
            if line:
                yield b""


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive (`.npz`): numbers and text, nothing that is pickled."""
    with opened(file) as stream, warnings.catch_warnings():
        warnings.simplefilter("error")  # what numpy only warns of was written by nobody of ours
        try:
            return _arrays(stream, os.fstat(stream.fileno()).st_size)
        except OSError:
            raise
        except ValueError as error:
            raise UnreadableError(file, " ".join(str(error).split())[:120]) from error
        except Exception as error:  # a stranger's archive may be wrong in any way
            raise UnreadableError(file, "it is not a .npz archive, or damaged") from error


def _arrays(stream: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """Read an archive whose arrays have in all just the sizes that it says."""
    _check_directory(stream)
    with zipfile.ZipFile(stream) as archive:
        members = [_Member.of(archive, info) for info in archive.infolist()]
        total = sum(member.info.file_size for member in members)
        if total > LARGEST or total > max(SMALL_ARRAYS, TIGHTEST * size):
            raise ValueError(f"its arrays need {total:,} bytes, too many for a file of this size")
        return {member.name: member.read(archive) for member in members}


def _check_directory(stream: BinaryIO) -> None:
    """Refuse an archive that does not end with a short directory: it would be read as a whole."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - 22))
    end = stream.read()
    count, length = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    if not end.startswith(b"PK\5\6") or len(end) < 22:
        raise ValueError("it is not a .npz archive, or it was cut short")
    if count > MOST_MEMBERS or length > MOST_MEMBERS * LONGEST_HEAD:
        raise ValueError(f"it has {count:,} members, too many")


class _Member(NamedTuple):
    """An array in an archive, of which only the head was read."""

    name: str
    info: zipfile.ZipInfo

    @classmethod
    def of(cls, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> "_Member":
        """Read the head of an array: type and shape have to make up its size."""
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
            shape, _, dtype = read(stream, max_header_size=LONGEST_HEAD)
            head = stream.tell()
        if dtype.kind not in KINDS or min(shape, default=0) < 0:
            raise ValueError(f"the array {name[:40]!r} contains neither numbers nor text")
        if head + prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"the array {name[:40]!r} has a size that does not match its shape")
        return cls(name, info)

    def read(self, archive: zipfile.ZipFile) -> np.ndarray:
        """Read the array, in the order of bytes of this machine."""
        with archive.open(self.info) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        has_letters = array.dtype.kind == "U" and array.nbytes > 0
        if has_letters and array.ravel("K").view(np.uint32).max() > sys.maxunicode:
            raise ValueError(f"the array {self.name[:40]!r} has invalid characters")
        native: np.ndarray = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native
