"""A cache of paid completions (`--cache`).

`AnswerCache` is a SQLite file in the cache folder of the user, shared by all processes.
`CachedBackend` looks up each request there first. The key covers everything that decides an
answer: the model, its sampling options, all messages, the seed, and the number of earlier requests
with the same messages. The seed is included so that searches with different seeds stay
independent: a second run of the same search costs nothing, but three seeds are three samples.

The package diskcache would replace only the table and the removal of old answers: it pickles
values, keeps no costs and uses of answers, and fails with a damaged file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cwm_cli.errors import CwmError
from cwm_cli.locks import hold_lock
from cwm_cli.search.contracts import Backend, Completion, Request, Usage
from cwm_cli.search.models import BackendWrapper, innermost
from cwm_cli.text import money

T = TypeVar("T")

FILE = "answers-1.sqlite"
"""The number is the version of the table layout, so that versions of cwm never share a file with a
different layout."""

GIGABYTES, DAYS = 1.0, 90.0
"""Default limits of the file size and of the age of an answer: providers change models without
changing their names."""

PATIENCE = 10.0
"""Seconds to wait for another process that writes; a transaction takes milliseconds."""

LAYOUT = """
CREATE TABLE answers (
  key TEXT PRIMARY KEY,
  model TEXT NOT NULL,
  text TEXT NOT NULL,
  final INTEGER NOT NULL,
  log_probability REAL,
  prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost REAL,
  made REAL NOT NULL,
  used REAL NOT NULL,
  uses INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX answers_by_use ON answers (used);
CREATE INDEX answers_by_age ON answers (made);
CREATE TABLE settings (name TEXT PRIMARY KEY, value REAL NOT NULL);
PRAGMA user_version = 1;
"""

FIND = """
SELECT text, final, log_probability, prompt_tokens, completion_tokens, reasoning_tokens, cost, made
FROM answers WHERE key = ? AND made >= ?
"""

KEEP = """
INSERT OR IGNORE INTO answers (key, model, text, final, log_probability, prompt_tokens,
completion_tokens, reasoning_tokens, cost, made, used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class KeptAnswer(NamedTuple):
    """A cached answer: its text, its usage, and the Unix time at which it was made."""

    text: str
    final: bool
    log_probability: float | None
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: float | None
    made: float

    def completion(self, seconds: float) -> Completion:
        """Return the completion, at no cost.

        It has its original numbers of tokens, so that a pool of models chooses as before.
        """
        usage = Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            seconds=seconds,
            reused=1,
        )
        return Completion(self.text, usage, final=self.final, log_probability=self.log_probability)


@dataclass(frozen=True)
class CacheSummary:
    """Statistics and limits of a cache.

    `bytes` is the size on the disk. `saved` is in US dollars: the cost of each cached answer times
    the number of its uses. `unpriced` counts the uses of answers of unknown cost.
    """

    file: Path
    entries: int
    bytes: int
    reused: int
    saved: float
    unpriced: int
    gigabytes: float
    days: float

    def as_json(self) -> dict[str, Any]:
        """Return the object that `cwm cache --json` prints."""
        return asdict(self) | {"file": str(self.file)}


def answers_file() -> Path:
    """Return the path of the cache file of this user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cwm")) / "answers" / FILE


def answer_key(backend: Backend, request: Request) -> str:
    """Return the hash of everything that decides an answer.

    The address of the server is not included: the name identifies a model. Unset options are left
    out, so that a new option does not change the keys of old answers.
    """
    backend = innermost(backend)
    declared: Sequence[Any] = fields(backend) if is_dataclass(backend) else ()
    options = {
        option.name: getattr(backend, option.name)
        for option in declared
        if option.init and option.metadata.get("identity", True)
    }
    content = {
        "backend": type(backend).__qualname__,
        "options": {name: value for name, value in options.items() if value not in (None, "")},
        "messages": [(message.role, message.content) for message in request.messages],
        "seed": request.seed,
        "occurrence": request.occurrence,
        "weighed": request.weighed,
    }
    return sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class AnswerCache:
    """The cached answers of a user, in a file that threads and processes share.

    `around` wraps a backend so that its answers are cached, `summary` returns statistics, `limit`
    sets the maximum size and age, and `clear` empties the cache. Each call opens the file for one
    short transaction. Answers that are too old are removed first, then the least recently used
    ones. The file, readable only by the user, has the plain text of answers, but only hashes of
    prompts, and no API keys.

    A cache that cannot be read or written never stops a search: `trouble` returns the reason once,
    and requests go to the backend. A damaged file is renamed. If two processes send the same
    request at the same time, both pay and the first answer is kept: waiting would make one search
    depend on another one, which may never end.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = answers_file() if file is None else file
        self._works = True
        self._trouble = ""
        self._lock = threading.Lock()

    def around(self, backend: Backend) -> Backend:
        """Return a cached language model; return any other backend unchanged."""
        return CachedBackend(backend, self) if backend.is_language_model else backend

    def making(self, factory: Callable[..., Backend]) -> Callable[..., Backend]:
        """Return a factory that makes the same backends with this cache."""
        return lambda **options: self.around(factory(**options))

    def trouble(self) -> str:
        """Return the reason why the cache was not used, and clear it."""
        with self._lock:
            trouble, self._trouble = self._trouble, ""
        return trouble

    def find(self, key: str) -> KeptAnswer | None:
        """Return the answer of a key, or None if there is none or it is too old."""

        def look(db: sqlite3.Connection) -> KeptAnswer | None:
            oldest = time.time() - _limits(db)[1] * 86400
            row = db.execute(FIND, (key, oldest)).fetchone()
            if row is None:
                return None
            used = "UPDATE answers SET used = ?, uses = uses + 1 WHERE key = ?"
            db.execute(used, (time.time(), key))
            return KeptAnswer(*row)._replace(final=bool(row[1]))

        return self._attempt(look)

    def keep(self, key: str, model: str, completion: Completion) -> None:
        """Cache a complete answer, unless the key has one; remove old answers if necessary."""
        usage, now = completion.usage, time.time()
        row = (
            *(key, model, completion.text.encode("utf-8", "replace").decode()),
            *(int(completion.final), completion.log_probability),
            *(usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens),
            *(usage.cost, now, now),
        )

        def write(db: sqlite3.Connection) -> None:
            gigabytes, days = _limits(db)
            db.execute("DELETE FROM answers WHERE made < ?", (now - days * 86400,))
            db.execute(KEEP, row)
            _make_room(db, gigabytes * 1e9)

        self._attempt(write)

    def summary(self) -> CacheSummary:
        """Return statistics; raise `CwmError` if the file cannot be read."""

        def count(db: sqlite3.Connection) -> CacheSummary:
            found = db.execute(
                "SELECT count(*), total(uses), total(uses * cost), "
                "total(CASE WHEN cost IS NULL THEN uses END) FROM answers"
            ).fetchone()
            return CacheSummary(
                self.file,
                entries=found[0],
                bytes=sum(file.stat().st_size for file in self._files() if file.exists()),
                reused=int(found[1]),
                saved=found[2],
                unpriced=int(found[3]),
                gigabytes=_limits(db)[0],
                days=_limits(db)[1],
            )

        if not self.file.exists():
            return CacheSummary(self.file, 0, 0, 0, 0.0, 0, GIGABYTES, DAYS)
        return self._do(count)

    def limit(self, gigabytes: float | None = None, days: float | None = None) -> None:
        """Set the maximum size of the file and age of an answer, for all processes."""
        given = {"gigabytes": gigabytes, "days": days}
        rows = [(name, value) for name, value in given.items() if value is not None]

        def write(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)
            size, age = _limits(db)
            db.execute("DELETE FROM answers WHERE made < ?", (time.time() - age * 86400,))
            _make_room(db, size * 1e9)

        self._do(write)

    def clear(self) -> int:
        """Remove all answers, and a damaged file; return the number of answers."""

        def empty(db: sqlite3.Connection) -> int:
            db.execute("PRAGMA secure_delete = ON")  # overwrite deleted content
            count = int(db.execute("DELETE FROM answers").rowcount)
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return count

        with suppress(FileNotFoundError):
            self._aside.unlink()
        return self._do(empty) if self.file.exists() else 0

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work that the user requested; raise `CwmError` if it fails."""
        found: list[T] = []
        self._attempt(lambda db: found.append(work(db)))
        trouble = self.trouble()
        if not found:
            raise CwmError(trouble or f"{self.file} is in use by another process: try again later")
        return found[0]

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do work in a transaction, or return None if it fails; retry once with a new file."""
        for can_retry in (True, False):
            if not self._works:
                return None
            try:
                with self._opened() as db:
                    return work(db)
            except sqlite3.Error as error:
                if _is_busy(error):
                    return None
                if can_retry and _is_damage(error) and self._set_aside():
                    continue
                self._give_up(str(error))
            except OSError as error:
                self._give_up((error.strerror or str(error)).lower())
        return None

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._works = False
            self._trouble = (
                f"cannot use the cache {self.file} ({reason}): completions are neither saved nor "
                "reused"
            )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open or create the file, and begin a transaction."""
        if not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.file, PATIENCE, isolation_level=None)) as db:
            if not _layout(db):
                with hold_lock(self.file.with_suffix(".lock")):
                    # Another process may have created the tables while this one waited.
                    if not _layout(db):
                        db.execute("PRAGMA auto_vacuum = FULL")  # otherwise the file never shrinks
                        if not _is_remote(self.file.parent):
                            db.execute("PRAGMA journal_mode = WAL")
                        db.executescript(f"BEGIN EXCLUSIVE;{LAYOUT}COMMIT;")
            db.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last answer
            db.execute("BEGIN IMMEDIATE")
            yield db
            if db.in_transaction:
                db.execute("COMMIT")

    @property
    def _aside(self) -> Path:
        """The new path of a damaged file. At most one is kept, to save disk space."""
        return self.file.with_name(f"{self.file.name}.damaged")

    def _files(self) -> list[Path]:
        """Return the file, and the auxiliary files of SQLite."""
        return [self.file.with_name(self.file.name + more) for more in ("", "-wal", "-shm")]

    def _set_aside(self) -> bool:
        """Rename a damaged file, unless another process did; return whether to retry."""
        try:
            with hold_lock(self.file.with_suffix(".lock")):
                if not self._is_sound():
                    self.file.replace(self._aside)
                    for file in self._files()[1:]:
                        file.unlink(missing_ok=True)
                    with self._lock:
                        self._trouble = (
                            f"the cache {self.file} was damaged: it is kept as {self._aside.name}, "
                            "and a new one was begun"
                        )
        except OSError:
            return False
        return True

    def _is_sound(self) -> bool:
        """Whether the whole file can be read."""
        try:
            with closing(sqlite3.connect(self.file, PATIENCE)) as db:
                db.execute("SELECT count(*) FROM settings").fetchone()
                return bool(db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.Error as error:
            return _is_busy(error)


class CachedBackend(BackendWrapper):
    """A backend that looks up requests in the cache first.

    Only complete answers are cached. A request whose answer was cut off or had no program is sent
    again, since chance or a former limit may have caused the failure.
    """

    def __init__(self, inner: Backend, cache: AnswerCache) -> None:
        super().__init__(inner)
        self.cache = cache
        self._found: dict[str, KeptAnswer] = {}

    def complete(self, request: Request) -> Completion:
        """Return the cached answer, or request one and cache it."""
        start, key = time.perf_counter(), answer_key(self.inner, request)
        kept = self._found.pop(key, None) or self.cache.find(key)
        if kept is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(kept.made))
            request.log(
                f"question {request.step}: the answer of {when} is reused, which cost "
                f"{money(kept.cost)}"
            )
            return kept.completion(time.perf_counter() - start)
        completion = self.inner.complete(request)
        if not completion.lacking:
            model = request.model or str(getattr(innermost(self.inner), "model", ""))
            self.cache.keep(key, model, completion)
        note = "; ".join(filter(None, (completion.note, self.cache.trouble())))
        return completion._replace(note=note)

    def worst_cost(self, request: Request) -> float | None:
        """Return 0 for a cached answer, which is reserved for `complete`."""
        key = answer_key(self.inner, request)
        kept = self._found.get(key) or self.cache.find(key)
        if kept is None:
            return self.inner.worst_cost(request)
        self._found[key] = kept
        return 0.0


def _layout(db: sqlite3.Connection) -> int:
    """Return the version of the table layout, or 0 in a new file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _limits(db: sqlite3.Connection) -> tuple[float, float]:
    """Return the maximum size in gigabytes and the maximum age in days."""
    known = dict(db.execute("SELECT name, value FROM settings"))
    return known.get("gigabytes", GIGABYTES), known.get("days", DAYS)


def _size(db: sqlite3.Connection) -> int:
    """Return the number of bytes in use."""
    size, pages, free = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_size", "page_count", "freelist_count")
    )
    return size * (pages - free)


def _make_room(db: sqlite3.Connection, limit: float) -> None:
    """If the size exceeds the limit in bytes, remove the least recently used answers."""
    if _size(db) <= limit:
        return
    # Free 10 %, so that not every later answer has to remove others, but in transactions
    # of 200 answers, so that no other process waits for long.
    while (excess := _size(db) - 0.9 * limit) > 0:
        removed: list[tuple[str]] = []
        oldest = "SELECT key, length(text) FROM answers ORDER BY used LIMIT 200"
        for key, length in db.execute(oldest):
            if excess > 0:
                removed.append((key,))
                excess -= length
        if not removed:
            return
        db.executemany("DELETE FROM answers WHERE key = ?", removed)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another process locked the file for too long."""
    return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database, or lacks a table."""
    damaged = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    return _name(error).startswith(damaged) or "no such" in str(error)


def _name(error: sqlite3.Error) -> str:
    """Return the SQLite name of an error, or "" for an error of the Python module."""
    return str(getattr(error, "sqlite_errorname", ""))


def _is_remote(folder: Path) -> bool:
    """Whether several machines may share a folder, according to the mounts of this system.

    The write-ahead log of SQLite needs memory that all processes share, so a single machine.
    """
    kinds = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "fuse.sshfs", "9p")
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mounts = (line.split()[1:3] for line in lines.splitlines() if len(line.split()) > 2)
    places = {where.replace("\\040", " "): kind for where, kind in mounts}
    folder = folder.resolve()
    nearest = next((str(path) for path in (folder, *folder.parents) if str(path) in places), "")
    return places.get(nearest, "").startswith(kinds)
