"""Problems in the forms in which APPS comes: a folder per problem, or a line per problem."""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from cwm_apps.indexing import FORMS, Entry, index
from cwm_apps.records import digest, from_record, to_record
from cwm_apps.tasks import CodingTask
from cwm_cli.errors import CwmError, UnknownNameError

__all__ = [
    "ALL",
    "Malformed",
    "Tasks",
    "chosen",
    "digest",
    "from_record",
    "read",
    "shipped",
    "to_record",
]

ALL = "all"
"""In place of a difficulty: every one."""

PACKAGE = "cwm_data"


class Malformed(NamedTuple):
    """A problem that cannot be judged, and in a line why."""

    id: int
    reason: str


class Tasks:
    """Problems in the order of their data, each read when it is asked for and not kept."""

    def __init__(self, entries: Sequence[Entry]) -> None:
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
    except (OSError, EOFError, zlib.error) as error:
        raise CwmError(f"cannot read {source} ({error}): give {FORMS}") from error
    if not entries:
        raise CwmError(f"{source} holds no problems: give {FORMS}")
    number, times = Counter(entry.id for entry in entries).most_common(1)[0]
    if times > 1:
        hint = "give a single split of it, such as its folder test"
        raise CwmError(f"{source} holds problem {number} {times} times: {hint}")
    return Tasks(entries)


def shipped() -> Path:
    """Return the folder of the problems that ship."""
    package = find_spec(PACKAGE)
    folders = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        if (path := Path(folder) / "apps").is_dir():
            return path
    raise CwmError("the problems that ship are not installed: name others with --data PATH")


def chosen(tasks: Tasks, idx: int, total: int, difficulty: str = ALL) -> list[int]:
    """Return the positions of `total` problems of a difficulty from its `idx`th on."""
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
