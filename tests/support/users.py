"""Run Python as root or as an ordinary user, for any place of the interpreter.

Root may install Python in folders that other users cannot enter. For an ordinary user, a mount
namespace of its process covers such folders by empty folders with only the files that Python needs.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

USERS = ("root", "ordinary")
AM_ROOT = os.geteuid() == 0

_ORDINARY = 54321
"""An id that is nobody's and that small containers have, too."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS = 0x20000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_ENTER, _READ_AND_ENTER = 0o1, 0o5


@cache
def obstacle(user: str) -> str:
    """Return why Python cannot run as a user here, or an empty text."""
    if user == "root" and not AM_ROOT:
        return "the tests were not started by root"
    trial = run_as(user, "-c", "import os, numpy, cwm_cli; print(os.geteuid() == 0)")
    if trial.returncode:
        return f"Python does not run as an ordinary user: {trial.stderr.strip()[-300:]}"
    assert trial.stdout.strip() == str(user == "root")
    return ""


def run_as(
    user: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> "subprocess.CompletedProcess[str]":
    """Run Python to its end, in an empty home that only that user may enter."""
    with _home(user) as home:
        return subprocess.run(
            as_user(user, arguments, home),
            env=_variables(home) | dict(environment or {}),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def as_user(user: str, arguments: tuple[str, ...], home: Path) -> list[str]:
    """Return the command that runs Python as a user; it takes root to become another one."""
    if user == "root" or not AM_ROOT:
        return [sys.executable, *arguments]
    return [sys.executable, "-P", __file__, str(home), *arguments]


@contextmanager
def _home(user: str) -> Iterator[Path]:
    """Make a folder for a user, with one for temporary files in it."""
    home = Path(tempfile.mkdtemp(prefix="cwm-home-")).resolve()
    try:
        (home / "tmp").mkdir()
        if AM_ROOT and user == "ordinary":
            for folder in (home, home / "tmp"):
                os.chown(folder, _ORDINARY, _ORDINARY)
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _variables(home: Path) -> dict[str, str]:
    """Return the environment variables of a user."""
    libraries = {name: text for name, text in os.environ.items() if name == "LD_LIBRARY_PATH"}
    modules = [str(Path(__file__).parent), *(str(Path(path).absolute()) for path in sys.path)]
    return libraries | {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main() -> None:
    """Become an ordinary user for whom all that Python needs is within reach, and run Python."""
    home = Path(sys.argv[1])
    needed = [home, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]
    needed += [Path(path) for path in os.environ["PYTHONPATH"].split(os.pathsep)]
    _reach([path for path in needed if path.is_dir()])
    os.setgroups([])
    os.setresgid(_ORDINARY, _ORDINARY, _ORDINARY)
    os.setresuid(_ORDINARY, _ORDINARY, _ORDINARY)
    os.chdir(home)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


def _reach(needed: list[Path]) -> None:
    """Cover the folders that keep an ordinary user from needed ones, for this process only."""
    if not barrier(needed):
        return
    _checked(_LIBC.unshare(_NEW_MOUNTS))
    _mount("none", Path("/"), None, _RECURSIVE | _PRIVATE)
    while folder := barrier(needed):
        _cover(folder, needed)


def barrier(needed: list[Path]) -> Path | None:
    """Return the outermost parent of a needed folder that an ordinary user cannot enter."""
    for path in needed:
        for folder in (*reversed(path.parents), path):
            rights = _READ_AND_ENTER if folder == path else _ENTER
            status = folder.stat()
            if status.st_mode & rights != rights and status.st_uid != _ORDINARY:
                return folder
    return None


def _cover(folder: Path, needed: list[Path]) -> None:
    """Cover a folder by an empty one and mount in it what leads to needed folders."""
    original = os.open(folder, os.O_PATH)
    entries = {path.relative_to(folder).parts[0] for path in needed if folder in path.parents}
    if folder in needed:
        entries |= {entry.name for entry in folder.iterdir()}
    _mount("tmpfs", folder, "tmpfs", 0, b"mode=755")
    for entry in entries:
        source, target = Path(f"/proc/self/fd/{original}/{entry}"), folder / entry
        if source.is_symlink():
            target.symlink_to(source.readlink())
            continue
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
        _mount(str(source), target, None, _BIND | _RECURSIVE)
    os.close(original)


def _mount(
    source: str, target: Path, kind: str | None, flags: int, options: bytes | None = None
) -> None:
    """Mount something for this process."""
    name = None if kind is None else kind.encode()
    where = os.fsencode(target)
    result = _LIBC.mount(source.encode(), where, name, ctypes.c_ulong(flags), options)
    _checked(result, target)


def _checked(result: int, what: object = "a mount namespace") -> None:
    """Raise what the kernel complains of."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(what))


if __name__ == "__main__":
    main()
