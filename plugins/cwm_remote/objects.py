"""The objects below a URL, accessed through fsspec.

Errors of a storage are raised as `StorageError`. A missing object raises `FileNotFoundError`,
because only the caller knows whether it has to exist.
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

ObjectInfo = Mapping[str, Any]
"""The facts that a storage returns for an object; their keys differ between storages."""


@dataclass(eq=False)
class Objects:
    """The objects below a URL, by their relative names."""

    url: str

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The fsspec file system, and the folder in its notation."""
        scheme = self.url.partition(":")[0]
        # the extra for each scheme, if it is not `storage`
        extras = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
        command = install_command(f"cwm-cli[{extras.get(scheme, 'storage')}]")
        try:
            from fsspec import url_to_fs

            system, path = url_to_fs(self.url)
        except ImportError as error:
            raise CwmError(
                f"{self.url} needs a package that is not installed: {command}"
            ) from error
        except ValueError as error:
            raise CwmError(f"{self.url} cannot be used ({error}): choose another place") from error
        except Exception as error:  # a third-party file system may raise any type
            raise self._failed(error) from error
        return system, str(path).rstrip("/")

    def listed(self) -> dict[str, ObjectInfo]:
        """Return all objects."""
        with self._storage_errors():
            system, base = self._place
            system.invalidate_cache()
            try:
                found = system.find(base, detail=True)
            except FileNotFoundError:
                return {}
        return {path[len(base) + 1 :]: info for path, info in found.items() if path != base}

    def listed_in(self, folder: str) -> dict[str, ObjectInfo]:
        """Return the objects directly in a folder, by the last part of their names."""
        with self._storage_errors():
            system = self._place[0]
            system.invalidate_cache()
            try:
                found = system.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {info["name"].rpartition("/")[2]: info for info in found}

    def modified(self, name: str) -> float | None:
        """Return the time when an object was written, see `modified`."""
        with self._storage_errors():
            system = self._place[0]
            system.invalidate_cache()
            return modified(system.info(self._path(name)))

    def read(self, names: Sequence[str], *, missing: bool = False) -> dict[str, bytes]:
        """Read objects. With `missing`, objects that do not exist are left out."""
        found: dict[str, bytes] = {}
        batch = 400  # number of objects to read at a time
        for start in range(0, len(names), batch):
            some = {self._path(name): name for name in names[start : start + batch]}
            with self._storage_errors():
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
        """Read an object into a file without loading the whole object into memory."""
        with self._storage_errors():
            self._place[0].get_file(self._path(name), str(file))

    def write(self, contents: Mapping[str, bytes | Path]) -> None:
        """Write objects, each from bytes or from a file."""
        small: dict[str, bytes] = {}
        for name, content in contents.items():
            there = self._path(name)
            if isinstance(content, Path):
                self._write_objects(methodcaller("put_file", str(content), there), there)
            else:
                small[there] = content
        if small:
            self._write_objects(methodcaller("pipe", small), *small)

    def create(self, name: str, content: bytes) -> bool:
        """Create an object if it does not exist; return whether it now has this content."""
        path = self._path(name)
        try:
            self._write_objects(methodcaller("pipe_file", path, content, mode="create"), path)
        except FileExistsError:  # perhaps an earlier attempt whose answer was lost
            with self._storage_errors():
                return bool(self._place[0].cat_file(path) == content)
        except (TypeError, NotImplementedError) as error:
            scheme = self.url.partition(":")[0]
            words = f"{scheme}:// does not support creating objects without replacing others"
            raise CwmError(f"{words}, which runs need: choose another place") from error
        return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        if names:
            with self._storage_errors():
                self._place[0].rm([self._path(name) for name in names])

    def discard(self, names: Sequence[str]) -> None:
        """Remove objects that do no harm; ignore errors."""
        with suppress(CwmError, FileNotFoundError):
            self.remove(names)

    def _path(self, name: str) -> str:
        return f"{self._place[1]}/{name}"

    def _write_objects(self, write: Callable[[Any], object], *paths: str) -> None:
        """Write objects. Create missing folders on file systems with real folders."""
        with self._storage_errors():
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
        """Return the error for a failure of the storage."""
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "check its address, credentials and connection, then repeat the same command"
        return StorageError(f"{self.url} cannot be used ({reason[:300]}): {hint}")

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Convert errors of the storage; leave errors about existing or missing objects."""
        try:
            yield
        except (CwmError, FileNotFoundError, FileExistsError, TypeError, NotImplementedError):
            raise
        except Exception as error:  # each file system has errors of its own
            raise self._failed(error) from error


def modified(info: ObjectInfo) -> float | None:
    """Return when an object was written, in seconds of the storage's clock, None if unknown."""
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
    """Return the version of an object as text."""
    for name in ("ETag", "etag", "generation", "md5Hash"):
        if info.get(name):
            return str(info[name])
    return f"{info.get('size')} {modified(info)}"
