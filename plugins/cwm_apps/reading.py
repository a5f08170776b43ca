"""Read the problems of APPS from a folder, from a JSON Lines file, or from the Hugging Face hub.

A folder contains one folder per problem, a file contains one line per problem. Only an index is
kept in memory; each problem is read on demand.
"""

import gzip
import hashlib
import itertools
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from cwm_apps.tasks import UNKNOWN, CodingTask, from_record, parse
from cwm_cli.data.reading import (
    LARGEST,
    UnreadableError,
    open_file,
    open_for_reading,
    read_bytes,
    read_json,
)
from cwm_cli.errors import CwmError, UnknownNameError, install_command
from cwm_cli.text import clean

ALL = "all"
"""The difficulty that selects problems of every difficulty."""

FORMS = "a folder of numbered folders, a .jsonl or a .jsonl.gz file"
FILES = {
    "question.txt": "question",
    "starter_code.py": "starter_code",
    "input_output.json": "input_output",
    "solutions.json": "solutions",
}
"""The files of a problem's folder, and the fields of a record that they contain."""

_KEYS = re.compile(rb'"((?:problem_)?id|difficulty)"(?:\s*:\s*(?:([0-9]{1,18})\s*[,}]|"(\w+)"))?')

Fields = dict[str, Any]
"""A record of a problem as in the hub's file, possibly malformed."""

REPOSITORY, FILE, REVISION = "codeparrot/apps", "test.jsonl", "main"
USE_LOCAL_DATA = "give a file or folder of APPS with --data PATH"
SOLUTIONS_FORM = "write a JSON object of ids, each with a program or a list of programs"


class Data(NamedTuple):
    """The path of the problems, and a name that is the same on every machine."""

    name: str
    path: Path


def find_data(data: str | None) -> Data:
    """Find the problems that `--data` names. Download them if necessary."""
    if data is None:
        return Data("shipped", shipped())
    if data == "hub":
        return Data("hub", hub())
    path = Path(data)
    if not path.exists():
        raise CwmError(f"there is no {path}: give a folder, a .jsonl file, or hub with --data")
    return Data(f"{'folder' if path.is_dir() else 'file'} {path.resolve().name}", path)


def shipped() -> Path:
    """Return the folder of the bundled problems."""
    package = find_spec("cwm_data")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (path := Path(folder) / "apps").is_dir():
            return path
    raise CwmError("the bundled problems are not installed: choose others with --data PATH")


class IndexEntry(NamedTuple):
    """The indexed fields of a problem. `load` reads its record."""

    id: int
    difficulty: str
    load: Callable[[], Fields]


class Malformed(NamedTuple):
    """A problem that cannot be judged, and the reason in one line."""

    id: int
    reason: str


class Tasks:
    """Problems in the order of their data. Each is read on demand and not kept."""

    def __init__(self, entries: Sequence[IndexEntry]) -> None:
        self._entries = entries
        self.ids = [(entry.id, entry.difficulty) for entry in entries]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CodingTask | Malformed]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> CodingTask | Malformed:
        entry = self._entries[position]
        try:
            known = {"id": entry.id, "difficulty": entry.difficulty}
            return from_record(entry.load() | known)
        except CwmError as error:
            return Malformed(entry.id, str(error))


def read(source: Path) -> Tasks:
    """Index the problems of a folder or file: their ids and difficulties."""
    try:
        entries = list(index(source))
    except UnreadableError as error:
        raise UnreadableError(
            error.file, error.reason, f"give {FORMS}", is_missing=error.is_missing
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(source, str(error).rstrip("."), f"give {FORMS}") from error
    if not entries:
        raise CwmError(f"{source} contains no problems: give {FORMS}")
    number, times = Counter(entry.id for entry in entries).most_common(1)[0]
    if times > 1:
        hint = "give a single split only, such as its folder test"
        raise CwmError(f"{source} contains problem {number} {times} times: {hint}")
    return Tasks(entries)


def chosen(tasks: Tasks, idx: int, total: int, difficulty: str = ALL) -> list[int]:
    """Return the positions of `total` problems of a difficulty, starting at its `idx`th."""
    known = {each for _, each in tasks.ids}
    if difficulty != ALL and difficulty not in known:
        raise UnknownNameError("difficulty", difficulty, known | {ALL})
    fitting = [n for n, (_, each) in enumerate(tasks.ids) if difficulty in (ALL, each)]
    taken = fitting[idx : idx + total] if idx >= 0 and total > 0 else []
    if not taken:
        among = "" if difficulty == ALL else f" of difficulty {difficulty}"
        asked = f"no problems {idx} to {idx + total - 1}{among}"
        raise CwmError(f"{asked}: there are {len(fitting)}, counted from 0")
    return taken


def read_solutions(file: Path) -> dict[int, list[str]]:
    """Read the programs of each problem."""
    try:
        found = read_json(file, LARGEST, 1 << 24)  # more than a thousand for each existing problem
    except UnreadableError as error:
        raise UnreadableError(
            file, error.reason, SOLUTIONS_FORM, is_missing=error.is_missing
        ) from error
    if not isinstance(found, dict):
        raise CwmError(f"{file} is not a JSON object: {SOLUTIONS_FORM}")
    programs: dict[int, list[str]] = {}
    for name, value in found.items():
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise CwmError(f"{file} has no programs for problem {name}: {SOLUTIONS_FORM}")
        try:
            number = int(name)
        except ValueError as error:
            raise CwmError(f"{file} has the invalid id {name!r}: {SOLUTIONS_FORM}") from error
        programs[number] = [each.encode("utf-8", "replace").decode() for each in listed]
    return programs


def index(source: Path) -> Iterator[IndexEntry]:
    """Yield the problems of a folder or file in their order."""
    return _folders(source) if source.is_dir() else _lines(source)


def _difficulty(record: Any, number: int, *, test: bool) -> str:
    """Return the difficulty of a record, or the difficulty implied by its test split number."""
    named = record.get("difficulty") if isinstance(record, dict) else None
    if isinstance(named, str) and named.strip():
        return clean(named, limit=40)
    if not test or number not in range(5000):
        return UNKNOWN
    return "interview" if number < 3000 else "competition" if number < 4000 else "introductory"


def _folders(source: Path) -> Iterator[IndexEntry]:
    """Index a folder in the order of its numbered folders, or the only file in it."""
    # subfolders of the named folder that are searched for problems as well
    splits = ("test", "train")
    places = (source, *(source / split for split in splits))
    found = [
        path
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if re.fullmatch("[0-9]{1,18}", path.name) and path.is_dir()
    ]
    if not found:
        yield from _lines(_only_file(source))
    for path in sorted(found, key=lambda path: int(path.name)):
        number = int(path.name)
        difficulty = _difficulty(_metadata(path), number, test=path.parent.name == "test")
        yield IndexEntry(number, difficulty, partial(_folder, path))


def _only_file(folder: Path) -> Path:
    """Return the file of the test split in a folder, or its only file of problems."""
    files = sorted(path for form in ("*.jsonl", "*.jsonl.gz") for path in folder.glob(form))
    named = [path for path in files if path.name.startswith("test.")]
    if len(found := named or files) != 1:
        raise CwmError(f"{folder} contains {len(found)} problem files: give {FORMS}")
    return found[0]


def _metadata(folder: Path) -> Fields:
    """Return the metadata of a problem, empty if they cannot be read."""
    try:
        found = parse(read_bytes(folder / "metadata.json"), "metadata.json")
    except CwmError:
        return {}
    return found if isinstance(found, dict) else {}


def _folder(folder: Path) -> Fields:
    """Read the files of a problem as a record."""
    record = {"url": _metadata(folder).get("url")}
    for name, field in FILES.items():
        if (path := folder / name).exists():
            text = _decoded(path)
            record[field] = text if path.suffix == ".json" else text.replace("\r\n", "\n")
    return record


def _decoded(path: Path) -> str:
    """Return the text of a file without its byte order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnreadableError as error:
        raise CwmError(f"{path.name} cannot be read ({error.reason})") from error
    except UnicodeDecodeError as error:
        raise CwmError(f"{path.name} is not UTF-8") from error


def _lines(source: Path) -> Iterator[IndexEntry]:
    """Index a file of lines. A line without an id gets its position or the next free number."""
    file = _opened(source)
    test = source.name.startswith("test.")
    lines, offset = [], 0
    for line in file:
        if line.strip():
            lines.append(((offset, len(line)), *_heading(line)))
        offset += len(line)
    if all(record is None for _, _, record in lines):
        raise CwmError(f"{source} contains no problems: give {FORMS}")
    taken = {number for _, number, _ in lines}
    for position, (place, number, record) in enumerate(lines):
        if number is None:
            number = next(n for n in itertools.count(position) if n not in taken)
            taken.add(number)
        difficulty = _difficulty(record, number, test=test)
        yield IndexEntry(number, difficulty, partial(_line, file, *place))


def _opened(source: Path) -> BinaryIO:
    """Open a file of lines. Unpack a compressed file into a temporary file for random access."""
    # maximum size in bytes: ten times the file of all problems with all their tests
    largest_data = 1 << 34
    if source.suffix != ".gz":
        return open_file(source, largest_data)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as its readers
    with open_for_reading(source, largest_data) as packed, gzip.open(packed) as unpacked:
        while part := unpacked.read(1 << 20):
            if file.tell() > largest_data:
                raise UnreadableError(source, f"it unpacks to more than {largest_data:,} bytes")
            file.write(part)
    file.seek(0)
    return file


def _heading(line: bytes) -> tuple[int | None, Fields | None]:
    """Return the id and the difficulty of a record, each None if it is missing."""
    if seen := _quick_heading(line):
        return seen
    try:
        record = parse(line, "the line")
    except CwmError:
        return None, None
    if not isinstance(record, dict):
        return None, None
    number = record.get("id", record.get("problem_id"))
    if isinstance(number, str) and re.fullmatch("[0-9]{1,18}", number):
        number = int(number)
    proper = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return number if proper else None, {"difficulty": record.get("difficulty")}


def _quick_heading(line: bytes) -> tuple[int, Fields] | None:
    """Return the same as `_heading`, many times faster, for a line in the format of the hub.

    Quotes within a string are escaped, so unescaped quotes before a colon enclose a key. If a key
    occurs twice, it is unclear which object it belongs to, and the result is None.
    """
    found = _KEYS.findall(line)
    numbers = [number for key, number, _ in found if key != b"difficulty"]
    levels = [level for key, _, level in found if key == b"difficulty"]
    if len(numbers) == len(levels) == 1 and numbers[0] and levels[0]:
        return int(numbers[0]), {"difficulty": levels[0].decode()}
    return None


def _line(file: BinaryIO, offset: int, length: int) -> Fields:
    """Read the record at an offset. Safe for several concurrent readers."""
    found = parse(os.pread(file.fileno(), length, offset), "the line")
    if not isinstance(found, dict):
        raise CwmError("the line is not a JSON object")
    return found


def hub() -> Path:
    """Return the test split in the cache of the hub. Its folder is named after the commit.

    The library resumes an interrupted download, but compares only the size of the existing part.
    So the checksum of the content, which is its name on the hub, is verified here.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        hint = install_command("cwm-cli[hub]")
        raise CwmError(f"the hub needs a package that is not installed: {hint}") from error
    cached = try_to_load_from_cache(REPOSITORY, FILE, revision=REVISION, repo_type="dataset")
    if isinstance(cached, str) and _intact(Path(cached)):
        return Path(cached)
    for _ in range(2):  # a file that is damaged twice is damaged at its source
        if _intact(path := _download()):
            return path
    raise CwmError(f"{path} is damaged, even after another download: {USE_LOCAL_DATA}")


def _download() -> Path:
    """Download the file into the cache of the library, even if the cache contains it."""
    import httpx
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            REPOSITORY, FILE, repo_type="dataset", revision=REVISION, force_download=True
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        lines = str(error.__cause__ or error).strip().splitlines()
        reason = lines[0].rstrip(".:") if lines else type(error).__name__
        raise CwmError(f"cannot download {REPOSITORY} ({reason}): {USE_LOCAL_DATA}") from error
    return Path(path)


def _intact(path: Path) -> bool:
    """Return whether the content of a file matches its name, if the name is a checksum."""
    name = path.readlink().name if path.is_symlink() else ""
    if not re.fullmatch("[0-9a-f]{64}", name):
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == name
