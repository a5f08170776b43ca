"""Runs on object stores.

A run may be at any URL that fsspec knows (`s3://bucket/folder`, `gs://`, `memory://`). The store
has the valid state; the process works on a copy. A journal line counts once it is on the store.

- A growing file (`nodes.jsonl`, `log.txt`) is a folder of parts, `nodes.jsonl.parts/00000007`. A
  part is created only if no part has its number, so two processes never add the same one. A part
  `00000009-whole` replaces all parts before it. Other files are single objects.
- One process at a time claims a run (`cwm_remote.claims`).
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from cwm_cli.errors import CwmError
from cwm_cli.runs.storage import HEADER, LOCK, BusyError, Storage, StorageError, storage_of
from cwm_remote.claims import RunClaim, claims_by_run, is_claim
from cwm_remote.objects import ObjectInfo, Objects, token

LAZY = ("log.txt", "clock.json", "logs")
"""Files and a folder that may be lost in a crash: no journal line depends on them."""

LARGE = 1 << 23
"""Bytes above which a file is streamed, and not transferred with others through memory."""

PARTS, WHOLE = ".parts", "-whole"

_PART = re.compile(r"(.+)\.parts/(\d{8}(?:-whole)?)")
_NUMBER = re.compile(r"\d{8}")


class _Stat(NamedTuple):
    """The state of a file of the copy, to detect changes."""

    inode: int
    size: int
    time: int

    @classmethod
    def of(cls, file: Path) -> "_Stat":
        found = file.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class _Kept(NamedTuple):
    """A file of the copy that equals its object on the store.

    `token` is the version of the object, None if this process wrote it. `parts` are the parts of a
    growing file; the part "" is an object with the name of the file.
    """

    stat: _Stat
    token: str | None = None
    parts: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """The number of the last part."""
        return max((int(_NUMBER.findall(part)[0]) for part in self.parts if part), default=0)


@dataclass(eq=False)
class ObjectStorage(Storage):
    """A run in an object store, and its copy in `folder`."""

    objects: Objects = field(init=False, repr=False)
    _claim: RunClaim = field(init=False, repr=False)
    _known: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _sent_lazily: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.objects = Objects(self.url)
        self._claim = RunClaim(self.objects)

    def bring(self, *, light: bool = False) -> None:
        """Update the copy; `light` leaves out transitions, prompts, logs and pages."""
        for attempt in range(5):
            try:
                self._bring(self.objects.listed(), light=light)
            except FileNotFoundError:  # parts were merged after they were listed
                if attempt == 4:
                    raise StorageError(f"{self.url} is changing too fast: try again") from None
            else:
                return

    def _bring(self, found: Mapping[str, ObjectInfo], *, light: bool) -> None:
        """Update the copy from listed objects, run by run."""
        runs = {name[: -len(HEADER) - 1] for name in found if name.endswith(f"/{HEADER}")}
        groups: dict[str, dict[str, ObjectInfo]] = {"": {}}
        for name, info in found.items():
            parents = (str(parent) for parent in PurePosixPath(name).parents)
            run = next((parent for parent in parents if parent in runs), "")
            groups.setdefault(run, {})[name[len(run) + 1 if run else 0 :]] = info
        own = groups.pop("")
        if HEADER in own or (self.folder / HEADER).exists():  # else it is a place with runs
            self._apply_unless_held(own, light=light)
        for run, some in groups.items():
            self._at(run)._apply_unless_held(some, light=True)

    def _at(self, run: str) -> "ObjectStorage":
        """Return the storage of a run inside this one, or this one for an empty relative path."""
        storage = storage_of(self.folder / run) if run else self
        assert isinstance(storage, ObjectStorage)  # the same class handles the same scheme
        return storage

    def _apply_unless_held(self, found: Mapping[str, ObjectInfo], *, light: bool) -> None:
        with self._lock:
            if not self._claim.is_held:
                self._apply(found, light=light)

    def _download_claimed(self, *, fresh: bool) -> None:
        """Download this run after it was claimed; with `fresh` it must not exist yet."""
        listed = self.objects.listed()
        inner = tuple(n[: -len(HEADER)] for n in listed if n.endswith(f"/{HEADER}"))
        own = {name: info for name, info in listed.items() if not name.startswith(inner)}
        if not fresh:
            self._apply(own, light=False)
            return
        if HEADER in own:
            words = "was created by another process in the meantime"
            raise BusyError(f"{self.url} {words}: the same command continues it")
        if {*own, *inner} - {name for name, _ in self._here()} - {n for n in own if is_claim(n)}:
            raise CwmError(f"{self.url} contains other files: choose another --run")

    def fetch(self, file: Path) -> None:
        """Update one file of the copy."""
        name = file.relative_to(self.folder).as_posix()
        for content in self.objects.read([name], missing=True).values():
            self._write_here(name, content)
            self._known[name] = _Kept(_Stat.of(file), "")

    def put(self, file: Path) -> None:
        """Write one file of the copy to the store, as a whole object."""
        with self._lock:
            self._send_whole({file.relative_to(self.folder).as_posix(): _Stat.of(file)})

    def send(self, *last: str) -> None:
        """Send changed files; send logs every few seconds only."""
        self._send(last, lazily=True)

    def finish(self, *last: str) -> None:
        """Send all changed files, and merge the parts of files that have many."""
        self._send(last, lazily=False)
        with self._lock:
            # Maximum parts of a file after a run is released. More are merged: reading each is a
            # request.
            max_parts = 8
            for name, kept in list(self._known.items()):
                if len(kept.parts) > max_parts and (self.folder / name).exists():
                    self._send_part(name, _Stat.of(self.folder / name), whole=True)

    def _send(self, last: Sequence[str], *, lazily: bool) -> None:
        with self._lock:
            self._claim.check()
            here = dict(self._here())
            changed = {
                n: s for n, s in here.items() if n not in self._known or s != self._known[n][0]
            }
            lazy_seconds = 5.0  # seconds between uploads of the files in `LAZY`
            is_time = not lazily or time.monotonic() - self._sent_lazily >= lazy_seconds
            if is_time:
                self._sent_lazily = time.monotonic()
            else:
                lazy = {n for n in changed if PurePosixPath(n).parts[0] in LAZY and n not in last}
                changed = {name: stat for name, stat in changed.items() if name not in lazy}
            first = {name: stat for name, stat in changed.items() if name not in last}
            self._send_some(first)
            for name in last:
                if name in changed:
                    self._send_some({name: changed[name]})
            if gone := [name for name in self._known if name not in here]:
                self._remove_there(gone)

    def claim(self, patience: float = 0.0, *, fresh: bool = False) -> None:
        """Claim the run for this process, and download it.

        Args:
            patience: Maximum seconds to wait.
            fresh: Whether the run must not exist yet.

        Raises:
            BusyError: If another process holds the run; the message names it.
        """
        self._claim.take(patience)
        try:
            self._forget()
            self._download_claimed(fresh=fresh)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the claim."""
        self._claim.release()
        self._forget()

    def remove(self) -> None:
        """Remove the run and all runs inside it, unless another process has claimed one."""
        found = self.objects.listed()
        for run, claims in claims_by_run(found).items():
            self._at(run)._claim.check_free(claims)
        self.objects.remove(list(found))
        self._known.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _here(self) -> Iterator[tuple[str, _Stat]]:
        """Yield the files of this run in its copy, without the files of runs inside it."""
        pending = [self.folder]
        while pending:
            folder = pending.pop()
            for entry in os.scandir(folder) if folder.exists() else ():
                if entry.name == LOCK or (entry.name[0] == "." and entry.name.endswith(".part")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not (Path(entry.path) / HEADER).exists():
                        pending.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    path = Path(entry.path)
                    yield path.relative_to(self.folder).as_posix(), _Stat.of(path)

    def _apply(self, found: Mapping[str, ObjectInfo], *, light: bool) -> None:
        """Make the files of this run equal to the listed objects."""
        grown: dict[str, dict[str, ObjectInfo]] = {}
        plain: dict[str, ObjectInfo] = {}
        for name, info in found.items():
            part = _PART.fullmatch(name)
            if part:
                grown.setdefault(part[1], {})[part[2]] = info
            elif not is_claim(name):
                plain[name] = info
        for name in [name for name in plain if _grows(name)]:
            grown.setdefault(name, {})[""] = plain.pop(name)
        if light:
            plain = {name: info for name, info in plain.items() if not _is_heavy(name)}
            grown = {name: parts for name, parts in grown.items() if not _is_heavy(name)}
        changed = [name for name, info in plain.items() if self._differs(name, token(info))]
        large = {name for name in changed if (plain[name].get("size") or 0) > LARGE}
        for name in large:
            self.objects.read_file(name, self._partial(name))
        contents = self.objects.read([name for name in changed if name not in large])
        for name in changed:
            self._write_here(name, contents.get(name))
            self._known[name] = _Kept(_Stat.of(self.folder / name), token(plain[name]))
        self._apply_parts(grown)
        gone = [name for name in self._known if name not in plain and name not in grown]
        for name in [] if light else gone:
            if self._known[name].token is not None or self._known[name].parts:
                (self.folder / name).unlink(missing_ok=True)
                del self._known[name]

    def _apply_parts(self, grown: Mapping[str, ObjectInfo]) -> None:
        """Append new parts to growing files."""
        wanted: dict[str, tuple[int, list[str]]] = {}
        for name, parts in grown.items():
            order, kept, file = _in_order(parts), self._known.get(name), self.folder / name
            done = 0
            if kept and file.exists() and _Stat.of(file) == kept.stat:
                done = len(kept.parts) if order[: len(kept.parts)] == [*kept.parts] else 0
            if done < len(order) or not (kept and kept.parts):
                wanted[name] = (done, order)
        names = [
            _object(name, part)
            for name, (done, order) in wanted.items()
            for part in order[done:]
            if not part.startswith("?")
        ]
        contents = self.objects.read(names)
        for name, (done, order) in wanted.items():
            added = b""
            for part in order[done:]:
                lost = f"part {part[1:]} of {name} is missing\n".encode()
                content = lost if part.startswith("?") else contents[_object(name, part)]
                added += content if content.endswith(b"\n") or not content else content + b"\n"
            file = self.folder / name
            if done:
                with file.open("ab") as stream:
                    stream.write(added)
            else:
                self._write_here(name, added)
            self._known[name] = _Kept(_Stat.of(file), "", tuple(order))

    def _differs(self, name: str, token: str) -> bool:
        """Return whether the object has changed since this process wrote or downloaded it."""
        kept = self._known.get(name)
        if kept is None or not (self.folder / name).exists():
            return True
        return kept.token is not None and kept.token != token

    def _forget(self) -> None:
        """Mark files that this process wrote as unverified, as others may have changed them."""
        for name, kept in self._known.items():
            if kept.token is None and not kept.parts:
                self._known[name] = kept._replace(token="")

    def _partial(self, name: str) -> Path:
        """Return the temporary path of a file of the copy while it is incomplete."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f".{path.name}.part")

    def _write_here(self, name: str, content: bytes | None) -> None:
        """Write a whole file of the copy. Without content, its temporary file is complete."""
        partial = self._partial(name)
        if content is not None:
            partial.write_bytes(content)
        partial.replace(self.folder / name)

    def _send_some(self, changed: Mapping[str, _Stat]) -> None:
        """Send files, the growing ones last."""
        self._send_whole({name: stat for name, stat in changed.items() if not _grows(name)})
        for name, stat in changed.items():
            if _grows(name):
                self._send_part(name, stat)

    def _send_whole(self, changed: Mapping[str, _Stat]) -> None:
        """Send files as single objects."""
        contents: dict[str, bytes | Path] = {}
        for name, stat in changed.items():
            file = self.folder / name
            contents[name] = file if stat.size > LARGE else file.read_bytes()
        self.objects.write(contents)
        for name, stat in changed.items():
            self._known[name] = _Kept(stat)

    def _send_part(self, name: str, stat: _Stat, *, whole: bool = False) -> None:
        """Send the new lines of a growing file, or the whole file if it was rewritten."""
        kept, file = self._known.get(name), self.folder / name
        before = kept.parts if kept else ()
        number, size = kept.number + 1 if kept else 1, kept.stat.size if kept else 0
        whole = whole or bool(kept and (kept.stat.inode != stat.inode or stat.size < size))
        with file.open("rb") as stream:
            stream.seek(0 if whole else size)
            content = stream.read(stat.size - stream.tell())
        part = f"{number:08}{WHOLE if whole else ''}"
        if content or whole:
            if not self.objects.create(_object(name, part), content):
                raise self._claim.lost()
            before = (part,) if whole else (*before, part)
        self._known[name] = _Kept(stat, None, before)
        if whole and kept:
            gone = [_object(name, each) for each in kept.parts if not each.startswith("?")]
            self.objects.discard(gone)  # no reader needs them

    def _remove_there(self, names: Sequence[str]) -> None:
        """Remove the objects of files that were deleted here."""
        objects = []
        for name in names:
            kept = self._known.pop(name)
            parts = [part for part in kept.parts if not part.startswith("?")]
            objects += [_object(name, part) for part in parts] or [name]
        with suppress(FileNotFoundError):
            self.objects.remove(objects)


def _grows(name: str) -> bool:
    """Return whether a file grows by lines and is stored in parts."""
    return name.endswith(".jsonl") or name == "log.txt"


def _is_heavy(name: str) -> bool:
    """Return whether a light copy leaves a file out."""
    return name.endswith((".npz", ".html")) or PurePosixPath(name).name in (
        "prompts.jsonl",
        "log.txt",
    )


def _object(name: str, part: str) -> str:
    """Return the name of the object with a part."""
    return f"{name}{PARTS}/{part}" if part else name


def _in_order(parts: Iterable[str]) -> list[str]:
    """Return the valid parts in order; a missing part is `?` and its number."""
    order = sorted(parts)
    wholes = [place for place, part in enumerate(order) if part.endswith(WHOLE)]
    order = order[wholes[-1] :] if wholes else order
    found: list[str] = []
    number = int(order[0][:8]) - 1 if wholes else 0
    for part in order:
        if part:
            found += [f"?{lost:08}" for lost in range(number + 1, int(part[:8]))]
            number = int(part[:8])
        found.append(part)
    return found
