"""Answers that were paid for, kept for the next time that the same is asked (`--cache`).

`AnswerCache` is the file, in the cache folder of the user, that all processes share, and
`CachedBackend` looks there before it asks. What is the same is all that decides an answer: the
model, its sampling options, every message, the seed that is sent, and how often the search asked
the same before. The seed is part of it, so that searches with other seeds stay independent: a
second run of one search costs nothing, and three seeds are three draws.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, Usage
from cwm_cli.search.wrapper import BackendWrapper, innermost
from cwm_cli.text import money

T = TypeVar("T")

FILE = "answers-1.sqlite"
"""The number is that of the layout: another one is another file, and no version spoils it."""

GIGABYTES, DAYS = 1.0, 90.0
"""How large the file may become, and how old an answer: models change under their names."""

LEFT = 0.9
"""The share of its size that is left where it became too large, so that not every answer after
that has to make room."""

AT_ONCE = 200
"""Answers that are removed in one transaction, so that nobody waits for long."""

PATIENCE = 10.0
"""Seconds that a process waits for another one that writes; a transaction takes milliseconds."""

REMOTE = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "fuse.sshfs", "9p")
"""How kinds of file system begin that several machines share: SQLite's write-ahead log needs memory
that all of its processes share, and so a single machine."""

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

OLDEST = "SELECT key, length(text) FROM answers ORDER BY used LIMIT ?"


class KeptAnswer(NamedTuple):
    """An answer of before: what it said, what it took then, and when that was (Unix time)."""

    text: str
    final: bool
    log_probability: float | None
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: float | None
    made: float

    def completion(self, seconds: float) -> Completion:
        """Return it as the answer of now, which costs nothing.

        It has the tokens that it had: who chooses by what answers take chooses as before.
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
    """What a cache holds: `bytes` on the disk, `saved` US dollars, limits of size and age.

    `saved` is over the answers that are there, each as often as it was `reused`; `unpriced` counts
    the uses of those whose price nobody knew.
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
        """Return what `cwm cache --json` prints."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "file": str(self.file),
        }


def answers_file() -> Path:
    """Return where the answers of this user are kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cwm")) / "answers" / FILE


def answer_key(backend: Backend, request: Request) -> str:
    """Return the hash of all that decides an answer.

    The address of the server is no part of it, as it is none of a run: a model is what its name
    says. Options that are not set are left out, so that one that is added later changes no key.
    """
    backend = innermost(backend)
    known: Sequence[Any] = fields(backend) if is_dataclass(backend) else ()
    chosen: list[str] = [
        each.name for each in known if each.init and each.metadata.get("identity", True)
    ]
    options = {name: getattr(backend, name) for name in chosen}
    decides = {
        "backend": type(backend).__qualname__,
        "options": {name: value for name, value in options.items() if value not in (None, "")},
        "messages": [(message.role, message.content) for message in request.messages],
        "seed": request.seed,
        "occurrence": request.occurrence,
        "weighed": request.weighed,
    }
    return sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()


class AnswerCache:
    """The kept answers of a user, in a file that any number of threads and processes share.

    In the order of a life: `around` a backend it has answers kept and found, `summary` says what
    there is, `limit` sets how large and how old, `clear` empties it. Every call opens the file
    for itself, for one short transaction. Of what is too old all is removed, and of what is too
    much what was used longest ago. Texts of answers lie in it as they are, readable by this user
    alone; of prompts there are hashes only, and of keys nothing.

    Nothing fails for want of it: where it cannot be read or written, `trouble` says why in a line,
    once, and answers are asked for as if there were none. A file that is damaged is set aside
    under another name. Two processes that ask the same at the same time both pay, and the first
    answer is kept: to wait would tie one search to another that may never end.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = answers_file() if file is None else file
        self._works = True
        self._trouble = ""
        self._lock = threading.Lock()

    def around(self, backend: Backend) -> Backend:
        """Return a backend that looks here first; one that no answer is kept of as it is."""
        return CachedBackend(backend, self) if backend.is_language_model else backend

    def making(self, factory: Callable[..., Backend]) -> Callable[..., Backend]:
        """Return what makes backends as the factory does, each of which looks here first."""
        return lambda **options: self.around(factory(**options))

    def trouble(self) -> str:
        """Return what kept answers from being used, and forget it."""
        with self._lock:
            told, self._trouble = self._trouble, ""
        return told

    def find(self, key: str) -> KeptAnswer | None:
        """Return the answer of a key, None where there is none that is young enough."""

        def look(db: sqlite3.Connection) -> KeptAnswer | None:
            oldest = time.time() - _limits(db)[1] * 86400
            row = db.execute(FIND, (key, oldest)).fetchone()
            if row is None:
                return None
            used = "UPDATE answers SET used = ?, uses = uses + 1 WHERE key = ?"
            db.execute(used, (time.time(), key))
            return KeptAnswer(*row)._replace(final=bool(row[1]))

        return self._tried(look)

    def keep(self, key: str, model: str, completion: Completion) -> None:
        """Keep a whole answer, unless there is one; make room where there is too much."""
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

        self._tried(write)

    def summary(self) -> CacheSummary:
        """Say what there is; `CwmError` where that cannot be read."""

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
        return self._done(count)

    def limit(self, gigabytes: float | None = None, days: float | None = None) -> None:
        """Set how large it may become and how old an answer, from now on and for all processes."""
        given = {"gigabytes": gigabytes, "days": days}
        rows = [(name, value) for name, value in given.items() if value is not None]

        def write(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)
            size, age = _limits(db)
            db.execute("DELETE FROM answers WHERE made < ?", (time.time() - age * 86400,))
            _make_room(db, size * 1e9)

        self._done(write)

    def clear(self) -> int:
        """Remove all answers, and what was set aside; return how many there were."""

        def empty(db: sqlite3.Connection) -> int:
            db.execute("PRAGMA secure_delete = ON")  # what is removed is not to be read again
            count = int(db.execute("DELETE FROM answers").rowcount)
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return count

        with suppress(FileNotFoundError):
            self._aside.unlink()
        return self._done(empty) if self.file.exists() else 0

    def _done(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do what a user asked for, who is told where that fails."""
        found: list[T] = []
        self._tried(lambda db: found.append(work(db)))
        told = self.trouble()
        if not found:
            raise CwmError(told or f"{self.file} is in use by another process: try again later")
        return found[0]

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do something with the file, or go on without; once after it was set aside."""
        for again in (True, False):
            if not self._works:
                return None
            try:
                with self._opened() as db:
                    return work(db)
            except sqlite3.Error as error:
                if _is_busy(error):
                    return None
                if again and _is_damage(error) and self._set_aside():
                    continue
                self._give_up(str(error))
            except OSError as error:
                self._give_up((error.strerror or str(error)).lower())
        return None

    def _give_up(self, reason: str) -> None:
        """Go on without it, and have that said once."""
        with self._lock:
            self._works = False
            self._trouble = (
                f"cannot use the cache {self.file} ({reason}): completions are neither saved nor "
                "reused"
            )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which is made where there is none; autocommit unless a block says else."""
        made = not self.file.exists()
        if made:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.file, PATIENCE, isolation_level=None)) as db:
            if not _layout(db):
                with self._alone():
                    self._lay_out(db)
            db.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may lose the last
            db.execute("BEGIN IMMEDIATE")
            yield db
            if db.in_transaction:
                db.execute("COMMIT")

    def _lay_out(self, db: sqlite3.Connection) -> None:
        """Make the tables, unless another process did meanwhile."""
        if _layout(db):
            return
        db.execute("PRAGMA auto_vacuum = FULL")  # or the file never shrinks
        if not _is_remote(self.file.parent):
            db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN EXCLUSIVE;{LAYOUT}COMMIT;")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from making or setting aside the file."""
        with self.file.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def _aside(self) -> Path:
        """What a damaged file is called; there is one at most, so that none fill the disk."""
        return self.file.with_name(f"{self.file.name}.damaged")

    def _files(self) -> list[Path]:
        """Return the file, and what SQLite has beside it."""
        return [self.file.with_name(self.file.name + more) for more in ("", "-wal", "-shm")]

    def _set_aside(self) -> bool:
        """Give a damaged file another name, unless another process did; say whether to go on."""
        try:
            with self._alone():
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
        """Whether the file can be read, all of it."""
        try:
            with closing(sqlite3.connect(self.file, PATIENCE)) as db:
                db.execute("SELECT count(*) FROM settings").fetchone()
                return bool(db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.Error as error:
            return _is_busy(error)


class CachedBackend(BackendWrapper):
    """A backend that is asked only what it was not asked before; only whole answers are kept.

    One that was cut off, or is none, is asked for again: it may have been chance, or a limit of
    then.
    """

    def __init__(self, inner: Backend, cache: AnswerCache) -> None:
        super().__init__(inner)
        self.cache = cache
        self._found: dict[str, KeptAnswer] = {}

    def complete(self, request: Request) -> Completion:
        """Return the answer of before, else have the inner one answer and keep what it says."""
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
        """Return 0 for an answer that is there, which is held until it is asked for."""
        key = answer_key(self.inner, request)
        kept = self._found.get(key) or self.cache.find(key)
        if kept is None:
            return self.inner.worst_cost(request)
        self._found[key] = kept
        return 0.0


def _layout(db: sqlite3.Connection) -> int:
    """Return the number of the layout, 0 where there is none yet."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _limits(db: sqlite3.Connection) -> tuple[float, float]:
    """Return how many gigabytes and days are set."""
    known = dict(db.execute("SELECT name, value FROM settings"))
    return known.get("gigabytes", GIGABYTES), known.get("days", DAYS)


def _size(db: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    size, pages, free = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_size", "page_count", "freelist_count")
    )
    return size * (pages - free)


def _make_room(db: sqlite3.Connection, most: float) -> None:
    """Remove what was used longest ago where there are more bytes than there may be."""
    if _size(db) <= most:
        return
    while (excess := _size(db) - LEFT * most) > 0:
        forgotten: list[tuple[str]] = []
        for key, length in db.execute(OLDEST, (AT_ONCE,)):
            if excess > 0:
                forgotten.append((key,))
                excess -= length
        if not forgotten:
            return
        db.executemany("DELETE FROM answers WHERE key = ?", forgotten)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another process had the file for too long."""
    return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database, or not this one."""
    damaged = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    return _name(error).startswith(damaged) or "no such" in str(error)


def _name(error: sqlite3.Error) -> str:
    """Return what SQLite calls an error, "" for one of Python's own."""
    return str(getattr(error, "sqlite_errorname", ""))


def _is_remote(folder: Path) -> bool:
    """Whether several machines may share a folder, as far as this system tells."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mounts = (line.split()[1:3] for line in lines.splitlines() if len(line.split()) > 2)
    places = {where.replace("\\040", " "): kind for where, kind in mounts}
    folder = folder.resolve()
    nearest = next((str(each) for each in (folder, *folder.parents) if str(each) in places), "")
    return places.get(nearest, "").startswith(REMOTE)
