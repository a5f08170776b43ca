"""What lies at a URL, as fsspec reaches it: objects that have names below it.

Whatever a storage refuses is a `StorageError`. A missing object is a `FileNotFoundError`: who asks
knows whether it should be there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from operator import methodcaller
from pathlib import Path
from typing import Any

from cwm_cli.errors import CwmError, install_command
from cwm_cli.runs.storage import StorageError

BATCH = 400
"""Objects that are read at a time."""

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""The extra of each kind of storage, where it is not `storage`."""

ObjectInfo = Mapping[str, Any]
"""What a storage tells of an object: each kind of storage has words of its own."""


@dataclass(eq=False)
class Objects:
    """The objects below a URL, by their names from there on."""

    url: str

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The file system of fsspec, and the folder in its words."""
        scheme = self.url.partition(":")[0]
        command = install_command(f"cwm-cli[{EXTRAS.get(scheme, 'storage')}]")
        try:
            from fsspec import url_to_fs

            system, path = url_to_fs(self.url)
        except ImportError as error:
            raise CwmError(
                f"{self.url} needs a package that is not installed: {command}"
            ) from error
        except ValueError as error:
            raise CwmError(f"{self.url} cannot be used ({error}): choose another place") from error
        except Exception as error:  # whatever a stranger's file system asks for, such as an account
            raise self._failed(error) from error
        return system, str(path).rstrip("/")

    def listed(self) -> dict[str, ObjectInfo]:
        """List all that is there."""
        with self._reaching():
            system, base = self._place
            system.invalidate_cache()
            try:
                found = system.find(base, detail=True)
            except FileNotFoundError:
                return {}
        return {path[len(base) + 1 :]: info for path, info in found.items() if path != base}

    def listed_in(self, folder: str) -> dict[str, ObjectInfo]:
        """List what is directly in a folder, by the last words of the names."""
        with self._reaching():
            system = self._place[0]
            system.invalidate_cache()
            try:
                found = system.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {info["name"].rpartition("/")[2]: info for info in found}

    def modified(self, name: str) -> float | None:
        """Return when an object was written, as `modified` does."""
        with self._reaching():
            system = self._place[0]
            system.invalidate_cache()
            return modified(system.info(self._path(name)))

    def read(self, names: Sequence[str], *, missing: bool = False) -> dict[str, bytes]:
        """Read objects; some may be `missing`, which are left out then."""
        found: dict[str, bytes] = {}
        for start in range(0, len(names), BATCH):
            some = {self._path(name): name for name in names[start : start + BATCH]}
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
                found[name] = bytes(content)
        return found

    def read_file(self, name: str, file: Path) -> None:
        """Read an object into a file, without all of it in memory."""
        with self._reaching():
            self._place[0].get_file(self._path(name), str(file))

    def write(self, contents: Mapping[str, bytes | Path]) -> None:
        """Write objects, of which each is some bytes or the file of that path."""
        small: dict[str, bytes] = {}
        for name, content in contents.items():
            there = self._path(name)
            if isinstance(content, Path):
                self._written(methodcaller("put_file", str(content), there), there)
            else:
                small[there] = content
        if small:
            self._written(methodcaller("pipe", small), *small)

    def create(self, name: str, content: bytes) -> bool:
        """Make an object if there is none; whether there is now one with this content."""
        path = self._path(name)
        try:
            self._written(methodcaller("pipe_file", path, content, mode="create"), path)
        except FileExistsError:  # perhaps by an attempt of ours whose answer was lost
            with self._reaching():
                return bool(self._place[0].cat_file(path) == content)
        except (TypeError, NotImplementedError) as error:
            scheme = self.url.partition(":")[0]
            words = f"{scheme}:// does not support creating objects without replacing others"
            raise CwmError(f"{words}, which runs need: choose another place") from error
        return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        if names:
            with self._reaching():
                self._place[0].rm([self._path(name) for name in names])

    def discard(self, names: Sequence[str]) -> None:
        """Remove objects that do no harm where they are, if that can be."""
        with suppress(CwmError, FileNotFoundError):
            self.remove(names)

    def _path(self, name: str) -> str:
        return f"{self._place[1]}/{name}"

    def _written(self, write: Callable[[Any], object], *paths: str) -> None:
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

    def _failed(self, error: Exception) -> StorageError:
        """Say what a storage has refused."""
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "check its address, credentials and connection, then repeat the same command"
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


def modified(info: ObjectInfo) -> float | None:
    """Return when an object was written, in seconds by the clock of the storage, None if unsaid."""
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


def token(info: ObjectInfo) -> str:
    """Return what tells one state of an object from another."""
    for name in ("ETag", "etag", "generation", "md5Hash"):
        if info.get(name):
            return str(info[name])
    return f"{info.get('size')} {modified(info)}"
