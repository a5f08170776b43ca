"""Runs that live on object stores: a copy on this machine, parts that are added, claims.

A run folder may be named by any URL that fsspec knows (`s3://bucket/place`, `gs://`, `memory://`).
What is there is the truth. A process works on a copy of its own, below its temporary folder and
laid out like the URLs, so that a path says which URL it stands for; the copy ends with the process.
`placed` brings what a user names, and what a run adds to its journal is there before it counts.

- A file that grows (`nodes.jsonl`, `log.txt`) is a folder of parts, `nodes.jsonl.parts/00000007`,
  each made only if there is none of its number, so that no two processes add the same one. A part
  `00000009-whole` replaces all before it. Other files are whole objects.
- A run is claimed by making the next number in `lock.claims`, which one process alone can do. Who
  holds it renews it until it is released; one that was not renewed for its lease may be taken over.
  How old it is, is told by the clock of the storage: that of another machine may be wrong.
"""

import atexit
import fcntl
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from operator import methodcaller
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_cli.errors import CwmError

LEASE = "CWM_LEASE"
"""The environment variable with the seconds for which a claim holds that is not renewed."""

LEASE_SECONDS = 90.0
"""For how long a claim holds without it: longer than networks usually fail, and short enough to
wait for when a machine was lost."""

RENEWALS = 4
"""Renewals within a lease: some may fail."""

LOOK_SECONDS = 2.0
"""How often a process that waits looks at the claim."""

LAZY_SECONDS = 5.0
"""How often the files are sent that nothing depends on, while others are."""

LAZY = ("log.txt", "clock.json", "logs")
"""Files, and a folder, on which no line of a journal depends."""

LARGE = 1 << 23
"""Bytes of a file that is sent and brought on its own, and not with others through memory."""

MOST_PARTS = 8
"""Parts of a file that are left when a run is released; more become one: each is a request."""

BATCH = 400
"""Files that are brought at a time."""

HEADER, LOCK = "run.json", "lock"
CLAIMS, PARTS, WHOLE = "lock.claims", ".parts", "-whole"

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""The extra of each kind of storage, where it is not `storage`."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://(.*)", re.DOTALL)
_FLAT_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/+(.*)", re.DOTALL)
_PART = re.compile(r"(.+)\.parts/(\d{8}(?:-whole)?)")
_NUMBER = re.compile(r"\d{8}")


class BusyError(CwmError):
    """Another process works on what is asked for."""


class StorageError(CwmError):
    """A storage that cannot be reached, or that refuses something."""


class LostClaimError(StorageError):
    """A run that another process has taken over, because its claim was not renewed in time."""


def located(place: Path | str) -> Path:
    """Return the folder that a path or URL stands for on this machine; nothing is brought."""
    form = _FLAT_URL if isinstance(place, Path) else _URL  # a path has lost a slash of a URL
    found = form.fullmatch(str(place))
    if found is None:
        return Path(place)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path("/", rest)
    words = [word for word in rest.split("/") if word not in ("", ".")]
    if not words or ".." in words:
        raise CwmError(f"{place} names no folder: write it as s3://bucket/folder")
    return _copies().joinpath(scheme, *words)


def placed(place: Path | str) -> Path:
    """Return the folder that a path or URL stands for, with what is there brought.

    Of runs within it only what tells how far they are is brought: no transitions, prompts or logs.
    """
    folder = located(place)
    if storage := storage_of(folder):
        storage.bring()
    return folder


def named(path: Path | str) -> str:
    """Return what a user calls a path: the URL that a copy stands for, or the path."""
    if _ROOT is None or not Path(path).is_relative_to(_ROOT):
        return str(path)
    scheme, *words = Path(path).relative_to(_ROOT).parts
    return f"{scheme}://{'/'.join(words)}"


def with_urls(text: str) -> str:
    """Return some words with URLs for the copies of this process that they name."""
    if _ROOT is None:
        return text
    return re.sub(rf"{re.escape(str(_ROOT))}/([^/\s]+)/", r"\1://", text)


def storage_of(folder: Path) -> "Storage | None":
    """Return the storage of a folder that stands for a URL; a plain folder has none."""
    if _ROOT is None or not folder.is_relative_to(_ROOT) or folder == _ROOT:
        return None
    with _GUARD:
        return _STORAGES.setdefault(folder, Storage(folder, named(folder)))


def bring(*files: Path) -> None:
    """Bring files as they are now, as far as they are there; plain paths are what they are."""
    for file in files:
        if storage_of(file):
            _owner(file).fetch(file)


def send(*files: Path) -> None:
    """Send files whole, at once, whoever holds the run; plain paths are where they belong."""
    for file in files:
        if storage_of(file):
            _owner(file).put(file)


def send_all(folder: Path) -> None:
    """Send all files of a folder, such as a page or a package that was written into a run."""
    if storage_of(folder):
        send(*(path for path in sorted(folder.rglob("*")) if path.is_file()))


_ROOT: Path | None = None
_GUARD = threading.RLock()
_STORAGES: dict[Path, "Storage"] = {}


def _copies() -> Path:
    """Return the folder of all copies of this process, which is removed when it ends."""
    global _ROOT
    with _GUARD:
        if _ROOT is None:
            base, prefix = Path(tempfile.gettempdir()), f"cwm-runs-{os.getuid()}-"
            for left in base.glob(f"{prefix}*"):
                _remove_left(left)
            made = Path(tempfile.mkdtemp(prefix=prefix)).absolute()
            partial = made / f".{LOCK}.part"
            lock = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # it is held as long as this process lives
            partial.rename(made / LOCK)  # others see it only once it is held
            _ROOT = made
            atexit.register(_remove_own, _ROOT, os.getpid())
        return _ROOT


def _remove_own(root: Path, process: int) -> None:
    """Remove the copies of this process, but not in a child that was forked from it."""
    if os.getpid() == process:
        shutil.rmtree(root, ignore_errors=True)


def _remove_left(left: Path) -> None:
    """Remove what a process that was killed has left."""
    with suppress(OSError):
        lock = os.open(left / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)


def _owner(path: Path) -> "Storage":
    """Return the storage of the run that a file belongs to."""
    run = next((each for each in path.parents if (each / HEADER).exists()), path.parent)
    storage = storage_of(run) or storage_of(path.parent)
    assert storage is not None
    return storage


class _Stat(NamedTuple):
    """What tells whether a file here has changed."""

    inode: int
    size: int
    time: int

    @classmethod
    def of(cls, file: Path) -> "_Stat":
        found = file.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class _Kept(NamedTuple):
    """A file that is alike here and there: how it was here, and what it is there.

    `token` is the object's, None for one that this process wrote; `parts` are those of a file
    that grows, "" for an object that has its plain name.
    """

    stat: _Stat
    token: str | None = None
    parts: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """The number of the last part."""
        return max((int(_NUMBER.findall(part)[0]) for part in self.parts if part), default=0)


class _Claim(BaseModel):
    """Who holds a run: `machine` tells processes apart that see each other, `begun` when it was."""

    model_config = ConfigDict(frozen=True)

    id: str
    host: str
    process: int
    machine: str
    begun: str
    lease: float
    released: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether its process was on this machine and has ended."""
        return self.machine == _machine() and _begun(self.process) != self.begun


@dataclass(eq=False)
class Storage:
    """The folder of a run at a URL, and its copy in `folder`.

    Runs within it have storages of their own. A life: `bring`, `claim`, `send` as often as
    something is to be kept, `release`. Whatever the storage refuses is a `StorageError`.
    """

    folder: Path
    url: str
    lease: float = field(default_factory=lambda: _lease())
    _known: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _holding: "_Holding | None" = field(default=None, init=False, repr=False)
    _sent_lazily: float = field(default=0.0, init=False, repr=False)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The file system of fsspec, and the folder in its words."""
        scheme = self.url.partition(":")[0]
        command = f"pip install 'cwm-cli[{EXTRAS.get(scheme, 'storage')}]'"
        try:
            from fsspec import url_to_fs

            system, path = url_to_fs(self.url)
        except ImportError as error:
            raise CwmError(f"{self.url} needs what is not installed: {command}") from error
        except ValueError as error:
            raise CwmError(f"{self.url} cannot be used ({error}): name another place") from error
        except Exception as error:  # whatever a stranger's file system asks for, such as an account
            raise self._failed(error) from error
        return system, str(path).rstrip("/")

    def bring(self, *, light: bool = False) -> None:
        """Make the copy like what is there; `light` is without transitions, prompts and logs.

        What this process holds is as it should be already.
        """
        for attempt in range(5):
            try:
                self._bring(self._listed(), light=light)
            except FileNotFoundError:  # parts became one since they were listed
                if attempt == 4:
                    raise StorageError(f"{self.url} changes too fast: try again") from None
            else:
                return

    def _bring(self, found: Mapping[str, Mapping[str, Any]], *, light: bool) -> None:
        """Bring what was listed, each file to the run that it belongs to."""
        runs = {name[: -len(HEADER) - 1] for name in found if name.endswith(f"/{HEADER}")}
        groups: dict[str, dict[str, Mapping[str, Any]]] = {"": {}}
        for name, info in found.items():
            parents = (str(parent) for parent in PurePosixPath(name).parents)
            run = next((parent for parent in parents if parent in runs), "")
            groups.setdefault(run, {})[name[len(run) + 1 if run else 0 :]] = info
        own = groups.pop("")
        if HEADER in own or (self.folder / HEADER).exists():  # else it is a place with runs
            self._apply_unless_held(own, light=light)
        for run, some in groups.items():
            storage = storage_of(self.folder / run)
            assert storage is not None
            storage._apply_unless_held(some, light=True)

    def _apply_unless_held(self, found: Mapping[str, Mapping[str, Any]], *, light: bool) -> None:
        with self._lock:
            if self._holding is None:
                self._apply(found, light=light)

    def _begin(self, *, fresh: bool) -> None:
        """Bring this run once it is claimed; with `fresh` none may have begun there."""
        listed = self._listed()
        inner = tuple(n[: -len(HEADER)] for n in listed if n.endswith(f"/{HEADER}"))
        own = {name: info for name, info in listed.items() if not name.startswith(inner)}
        if not fresh:
            self._apply(own, light=False)
            return
        if HEADER in own:
            words = "was begun by another process meanwhile"
            raise BusyError(f"{self.url} {words}: the same command continues it")
        if {*own, *inner} - {name for name, _ in self._here()} - {n for n in own if _is_claim(n)}:
            raise CwmError(f"{self.url} holds something else: choose another --run")

    def fetch(self, *files: Path) -> None:
        """Bring whole files of this run, as far as they are there."""
        names = [file.relative_to(self.folder).as_posix() for file in files]
        for name, content in self._read(names, missing=True).items():
            self._write_here(name, content)
            self._known[name] = _Kept(_Stat.of(self.folder / name), "")

    def put(self, *files: Path) -> None:
        """Send whole files of this run, whoever holds it."""
        with self._lock:
            names = [file.relative_to(self.folder).as_posix() for file in files]
            self._send_whole({name: _Stat.of(self.folder / name) for name in names})

    def send(self, *last: str, lazily: bool = True) -> None:
        """Send what has changed here, and of it `last` at the end, in this order.

        What nothing depends on waits for a while, unless not `lazily`.
        """
        with self._lock:
            self._check_held()
            here = dict(self._here())
            changed = {
                n: s for n, s in here.items() if n not in self._known or s != self._known[n][0]
            }
            is_time = not lazily or time.monotonic() - self._sent_lazily >= LAZY_SECONDS
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

    def compact(self) -> None:
        """Make one part of the many that a file has."""
        with self._lock:
            for name, kept in list(self._known.items()):
                if len(kept.parts) > MOST_PARTS and (self.folder / name).exists():
                    self._send_part(name, _Stat.of(self.folder / name), whole=True)

    def claim(self, patience: float = 0.0, *, fresh: bool = False) -> None:
        """Claim the run for this process and bring it; with `fresh` none may be there yet.

        Waits for up to `patience` seconds. Raises `BusyError`, which says who holds it.
        """
        deadline, offset = time.monotonic() + patience, None
        mine = _Claim(
            id=uuid4().hex,
            host=socket.gethostname(),
            process=os.getpid(),
            machine=_machine(),
            begun=_begun(os.getpid()),
            lease=self.lease,
        )
        while True:
            claims = self._claims()
            top = max(claims, default=0)
            held = self._held(claims, top)
            if held is not None and held.claim.id != mine.id:
                offset = self._clock_offset() if offset is None else offset
                left = held.until - (time.time() + offset)
                if left > 0:
                    if time.monotonic() + min(LOOK_SECONDS, left) >= deadline:
                        raise BusyError(self._told(held, offset))
                    time.sleep(min(LOOK_SECONDS, left))
                    continue
            if self._made(top + 1, mine):
                break
        self._holding = _Holding(self, top + 1, mine)
        if top:
            with suppress(CwmError, FileNotFoundError):
                self._remove_objects([f"{CLAIMS}/{number:08}" for number in claims])
        try:
            self._forget()
            self._begin(fresh=fresh)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others claim the run."""
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.end()
        self._forget()

    def remove(self) -> None:
        """Remove all that is there, unless another process holds some of it."""
        found = self._listed()
        claims: dict[str, dict[int, Mapping[str, Any]]] = {}
        for name, info in found.items():
            place, _, number = name.rpartition("/")
            if PurePosixPath(place).name == CLAIMS and _NUMBER.fullmatch(number):
                claims.setdefault(place, {})[int(number)] = info
        for place, some in claims.items():
            run = place[: -len(CLAIMS)].rstrip("/")
            storage = storage_of(self.folder / run if run else self.folder)
            assert storage is not None
            held = storage._held(some, max(some)) if storage._holding is None else None
            if held is not None:
                offset = storage._clock_offset()
                if held.until > time.time() + offset:
                    raise BusyError(storage._told(held, offset))
        self.clear(found)

    def clear(self, found: Iterable[str] | None = None) -> None:
        """Remove all that is there, and the copy."""
        self._remove_objects(list(self._listed() if found is None else found))
        self._known.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _here(self) -> Iterator[tuple[str, _Stat]]:
        """Yield the files of this run in its copy; those of runs within it are theirs."""
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

    def _apply(self, found: Mapping[str, Mapping[str, Any]], *, light: bool) -> None:
        """Make the files of this run like the objects that were listed."""
        grown: dict[str, dict[str, Mapping[str, Any]]] = {}
        plain: dict[str, Mapping[str, Any]] = {}
        for name, info in found.items():
            part = _PART.fullmatch(name)
            if part:
                grown.setdefault(part[1], {})[part[2]] = info
            elif not _is_claim(name):
                plain[name] = info
        for name in [name for name in plain if _grows(name)]:
            grown.setdefault(name, {})[""] = plain.pop(name)
        if light:
            plain = {name: info for name, info in plain.items() if not _is_heavy(name)}
            grown = {name: parts for name, parts in grown.items() if not _is_heavy(name)}
        changed = [name for name, info in plain.items() if self._differs(name, _token(info))]
        for name, content in self._read(
            changed, {n: i.get("size") for n, i in plain.items()}
        ).items():
            self._write_here(name, content)
            self._known[name] = _Kept(_Stat.of(self.folder / name), _token(plain[name]))
        self._apply_parts(grown)
        gone = [name for name in self._known if name not in plain and name not in grown]
        for name in [] if light else gone:
            if self._known[name].token is not None or self._known[name].parts:
                (self.folder / name).unlink(missing_ok=True)
                del self._known[name]

    def _apply_parts(self, grown: Mapping[str, Mapping[str, Any]]) -> None:
        """Add to files that grow the parts that are new."""
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
        contents = self._read(names)
        for name, (done, order) in wanted.items():
            added = b""
            for part in order[done:]:
                lost = f"part {part[1:]} of {name} is missing\n".encode()
                content = lost if part.startswith("?") else bytes(contents[_object(name, part)])
                added += content if content.endswith(b"\n") or not content else content + b"\n"
            file = self.folder / name
            if done:
                with file.open("ab") as stream:
                    stream.write(added)
            else:
                self._write_here(name, added)
            self._known[name] = _Kept(_Stat.of(file), "", tuple(order))

    def _differs(self, name: str, token: str) -> bool:
        """Whether an object is to be brought: not what this process wrote, or brought before."""
        kept = self._known.get(name)
        if kept is None or not (self.folder / name).exists():
            return True
        return kept.token is not None and kept.token != token

    def _forget(self) -> None:
        """Take nothing for granted of what this process wrote: another one may have, since."""
        for name, kept in self._known.items():
            if kept.token is None and not kept.parts:
                self._known[name] = kept._replace(token="")

    def _write_here(self, name: str, content: bytes | Path) -> None:
        """Write a file of the copy as a whole."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.part")
        if isinstance(content, Path):
            content.replace(path)
            return
        partial.write_bytes(content)
        partial.replace(path)

    def _send_some(self, changed: Mapping[str, _Stat]) -> None:
        """Send files, those that grow after the others."""
        self._send_whole({name: stat for name, stat in changed.items() if not _grows(name)})
        for name, stat in changed.items():
            if _grows(name):
                self._send_part(name, stat)

    def _send_whole(self, changed: Mapping[str, _Stat]) -> None:
        """Send files as they are."""
        contents: dict[str, bytes] = {}
        for name, stat in changed.items():
            if stat.size > LARGE:
                there = self._path(name)
                self._write_there(methodcaller("put_file", str(self.folder / name), there), there)
            else:
                contents[self._path(name)] = (self.folder / name).read_bytes()
        if contents:
            self._write_there(methodcaller("pipe", contents), *contents)
        for name, stat in changed.items():
            self._known[name] = _Kept(stat)

    def _send_part(self, name: str, stat: _Stat, *, whole: bool = False) -> None:
        """Send what was added to a file that grows, or all of it where it was rewritten."""
        kept, file = self._known.get(name), self.folder / name
        before = kept.parts if kept else ()
        number, size = kept.number + 1 if kept else 1, kept.stat.size if kept else 0
        whole = whole or bool(kept and (kept.stat.inode != stat.inode or stat.size < size))
        with file.open("rb") as stream:
            stream.seek(0 if whole else size)
            content = stream.read(stat.size - stream.tell())
        part = f"{number:08}{WHOLE if whole else ''}"
        if content or whole:
            if not self._create(_object(name, part), content):
                raise self._lost()
            before = (part,) if whole else (*before, part)
        self._known[name] = _Kept(stat, None, before)
        if whole and kept:
            gone = [_object(name, each) for each in kept.parts if not each.startswith("?")]
            with suppress(CwmError, FileNotFoundError):  # nobody reads them any more
                self._remove_objects(gone)

    def _remove_there(self, names: Sequence[str]) -> None:
        """Remove the objects of files that are no longer here."""
        objects = []
        for name in names:
            kept = self._known.pop(name)
            parts = [part for part in kept.parts if not part.startswith("?")]
            objects += [_object(name, part) for part in parts] or [name]
        with suppress(FileNotFoundError):
            self._remove_objects(objects)

    def _path(self, name: str) -> str:
        return f"{self._place[1]}/{name}"

    def _listed(self) -> dict[str, Mapping[str, Any]]:
        """List all that is there, by its name below the folder."""
        with self._reaching():
            system, base = self._place
            system.invalidate_cache()
            try:
                found = system.find(base, detail=True)
            except FileNotFoundError:
                return {}
        return {path[len(base) + 1 :]: info for path, info in found.items() if path != base}

    def _read(
        self, names: Sequence[str], sizes: Mapping[str, Any] | None = None, *, missing: bool = False
    ) -> dict[str, Any]:
        """Read objects, large ones into files; those that are missing are left out, or an error."""
        found: dict[str, Any] = {}
        large = [name for name in names if ((sizes or {}).get(name) or 0) > LARGE]
        small = [name for name in names if name not in set(large)]
        for name in large:
            partial = (self.folder / name).with_name(f".{PurePosixPath(name).name}.part")
            partial.parent.mkdir(parents=True, exist_ok=True)
            with self._reaching():
                self._place[0].get_file(self._path(name), str(partial))
            found[name] = partial
        for start in range(0, len(small), BATCH):
            some = {self._path(name): name for name in small[start : start + BATCH]}
            with self._reaching():
                read = self._place[0].cat([*some], on_error="return")
            for path, name in some.items():
                content = read.get(path, FileNotFoundError(path))
                if isinstance(content, FileNotFoundError) and missing:
                    continue
                if isinstance(content, FileNotFoundError):
                    raise content
                if isinstance(content, Exception):
                    raise self._failed(content) from content
                found[name] = content
        return found

    def _write_there(self, write: Callable[[Any], object], *paths: str) -> None:
        """Write objects; where there are real folders, they are made first."""
        with self._reaching():
            system = self._place[0]
            try:
                write(system)
            except FileNotFoundError as error:
                if getattr(system, "async_impl", False):  # an object store, which has no folders
                    raise OSError(str(error) or "there is no such bucket") from error
                for folder in {path.rpartition("/")[0] for path in paths}:
                    system.makedirs(folder, exist_ok=True)
                write(system)

    def _create(self, name: str, content: bytes) -> bool:
        """Make an object if there is none; whether there is now one with this content."""
        path = self._path(name)
        try:
            self._write_there(methodcaller("pipe_file", path, content, mode="create"), path)
        except FileExistsError:  # perhaps by an attempt of ours whose answer was lost
            with self._reaching():
                return bool(self._place[0].cat_file(path) == content)
        except (TypeError, NotImplementedError) as error:
            scheme = self.url.partition(":")[0]
            words = f"{scheme}:// cannot make an object only where there is none"
            raise CwmError(f"{words}: runs need that, name another place") from error
        return True

    def _remove_objects(self, names: Sequence[str]) -> None:
        if names:
            with self._reaching():
                self._place[0].rm([self._path(name) for name in names])

    def _claims(self) -> dict[int, Mapping[str, Any]]:
        """List the claims, by their numbers."""
        with self._reaching():
            system = self._place[0]
            system.invalidate_cache()
            try:
                found = system.ls(self._path(CLAIMS), detail=True)
            except FileNotFoundError:
                return {}
        names = {info["name"].rpartition("/")[2]: info for info in found}
        return {int(name): info for name, info in names.items() if _NUMBER.fullmatch(name)}

    def _held(self, claims: Mapping[int, Mapping[str, Any]], top: int) -> "_Held | None":
        """Return who holds the run, by the newest claim, None if nobody does for sure."""
        if top not in claims:
            return None
        try:
            content = self._read([f"{CLAIMS}/{top:08}"])[f"{CLAIMS}/{top:08}"]
            claim = _Claim.model_validate_json(content)
        except (FileNotFoundError, ValidationError):
            return None
        if claim.released or claim.is_dead:
            return None
        return _Held(claim, (_modified(claims[top]) or time.time()) + claim.lease)

    def _clock_offset(self) -> float:
        """Return by how many seconds the clock of the storage is ahead of that of this machine."""
        name = f"{CLAIMS}/now-{uuid4().hex}"
        path, before = self._path(name), time.time()
        self._write_there(methodcaller("pipe_file", path, b""), path)
        with self._reaching():
            system = self._place[0]
            system.invalidate_cache()
            there = _modified(system.info(path))
        with suppress(CwmError, FileNotFoundError):
            self._remove_objects([name])
        return 0.0 if there is None else there - before

    def _made(self, number: int, claim: _Claim) -> bool:
        """Make a claim of a number; whether it is the newest then."""
        name = f"{CLAIMS}/{number:08}"
        if not self._create(name, claim.model_dump_json().encode()):
            return False
        if max(self._claims(), default=0) == number:
            return True
        with suppress(CwmError, FileNotFoundError):  # an old number was free again
            self._remove_objects([name])
        return False

    def _renewed(self, number: int, claim: _Claim) -> bool:
        """Write a claim anew; whether it was still the newest."""
        if max(self._claims(), default=0) != number:
            return False
        path = self._path(f"{CLAIMS}/{number:08}")
        self._write_there(methodcaller("pipe_file", path, claim.model_dump_json().encode()), path)
        return True

    def _check_held(self) -> None:
        """Refuse to write what another process may write as well."""
        if self._holding is not None and not self._holding.is_valid():
            raise self._lost()

    def _lost(self) -> LostClaimError:
        words = f"another process has taken {self.url} over"
        return LostClaimError(f"{words}: this one stops, what it had written down is kept")

    def _told(self, held: "_Held", offset: float) -> str:
        """Say who holds the run, and for how long."""
        until = time.strftime("%H:%M:%S", time.localtime(held.until - offset))
        who = f"process {held.claim.process} on {held.claim.host}"
        words = f"another process is working on {self.url} ({who}, until {until} if it has ended)"
        return f"{words}: wait for it or choose another --run"

    def _failed(self, error: Exception) -> StorageError:
        """Say what a storage has refused."""
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "look after its address, credentials and connection, then the same command continues"
        return StorageError(f"{self.url} cannot be used ({reason[:300]}): {hint}")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Say what a storage refuses; what is or is not there is for those who ask to judge."""
        try:
            yield
        except (CwmError, FileNotFoundError, FileExistsError, TypeError, NotImplementedError):
            raise
        except Exception as error:  # each file system has errors of its own
            raise self._failed(error) from error


class _Held(NamedTuple):
    """A claim of another process, and until when it holds by the clock of the storage."""

    claim: _Claim
    until: float


@dataclass(eq=False)
class _Holding:
    """A claim that this process has, renewed in a thread."""

    storage: Storage
    number: int
    claim: _Claim

    def __post_init__(self) -> None:
        self._over, self._is_lost, self._renewed = threading.Event(), False, _clock()
        self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._thread.start()

    def is_valid(self) -> bool:
        """Whether the run is still this process's; asked there if the lease has run out."""
        if not self._is_lost and _clock() - self._renewed > self.claim.lease:
            self._try()
        return not self._is_lost

    def end(self) -> None:
        """Renew no more, and say that others may claim the run."""
        self._over.set()
        self._thread.join()
        if not self._is_lost:
            released = self.claim.model_copy(update={"released": True})
            self.storage._renewed(self.number, released)

    def _try(self) -> None:
        """Renew the claim."""
        began = _clock()
        if self.storage._renewed(self.number, self.claim):
            self._renewed = began
        else:
            self._is_lost = True

    def _renew(self) -> None:
        """Renew the claim again and again; a failure is for the next time, or who writes."""
        while not self._over.wait(self.claim.lease / RENEWALS) and not self._is_lost:
            with suppress(CwmError, OSError):
                self._try()


def _is_claim(name: str) -> bool:
    """Whether an object says who holds the run."""
    return name.startswith(f"{CLAIMS}/")


def _grows(name: str) -> bool:
    """Whether lines are added to a file, and it is kept in parts."""
    return name.endswith(".jsonl") or name == "log.txt"


def _is_heavy(name: str) -> bool:
    """Whether a file does not tell how far a run is."""
    return name.endswith((".npz", ".html")) or PurePosixPath(name).name in (
        "prompts.jsonl",
        "log.txt",
    )


def _object(name: str, part: str) -> str:
    """Return the name of the object that holds a part."""
    return f"{name}{PARTS}/{part}" if part else name


def _in_order(parts: Iterable[str]) -> list[str]:
    """Return the parts that count, in order; one that is missing is `?` and its number."""
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


def _token(info: Mapping[str, Any]) -> str:
    """Return what tells one state of an object from another."""
    for name in ("ETag", "etag", "generation", "md5Hash"):
        if info.get(name):
            return str(info[name])
    return f"{info.get('size')} {_modified(info)}"


def _modified(info: Mapping[str, Any]) -> float | None:
    """Return when an object was written, in seconds by the clock of the storage."""
    for name in ("LastModified", "last_modified", "updated", "modified", "mtime", "created"):
        value = info.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _clock() -> float:
    """Return seconds that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """Return what processes have in common that see each other's numbers, empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {uuid4().hex}"


def _begun(process: int) -> str:
    """Return when a process on this machine began, empty if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _lease() -> float:
    """Read for how long claims hold."""
    text = os.environ.get(LEASE, "")
    try:
        seconds = float(text) if text else LEASE_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise CwmError(f"${LEASE} is {text!r}: give it a number of seconds")
    return seconds
