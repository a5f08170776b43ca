"""The version of cwm, the exact code that runs (a commit, or a hash), and owners of modules."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

__version__ = "0.2.0"

PACKAGE = Path(__file__).parent


@cache
def code_version() -> str:
    """Return the commit of the checkout that this package is part of, or a hash of its files.

    Returns:
        For example "commit 0221fa0", "commit 0221fa0+changes" if tracked files were changed, or
        "files 5d41402" if the package is installed or git cannot be run.

    """
    commit = _commit(PACKAGE)
    return f"commit {commit}" if commit else f"files {_hash_of_files()}"


def _commit(package: Path) -> str:
    """Return the short hash of the commit that a package is checked out from, or ""."""
    # A virtual environment may lie inside the repository of another project: only a repository
    # that tracks the package counts.
    described = ("describe", "--always", "--dirty=+changes", "--exclude=*", "--abbrev=7")
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        return _git(package, *described)
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git, run in a folder."""
    # Git sets GIT_DIR and others for its hooks; there they would name another repository.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments],  # noqa: S607  # the git of the user's PATH
        cwd=folder,
        env=inherited | {"GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout.strip()


def _hash_of_files() -> str:
    """Return 7 hexadecimal digits over the files of the core and of the built-in plugins."""
    from hashlib import file_digest, sha256

    digest = sha256()
    for name, folder in sorted(_packages().items()):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{name}/{file.relative_to(folder).as_posix()}\0".encode())
                with file.open("rb") as content:
                    digest.update(file_digest(content, "sha256").digest())
    return digest.hexdigest()[:7]


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the names of the installed packages that provide a top-level module.

    `importlib.metadata.packages_distributions` finds the packages of all modules, which takes
    half a second of processor time if 250 packages are installed.
    """
    return _distributions_of(module, tuple(sys.path))


@cache
def _distributions_of(module: str, path: tuple[str, ...]) -> tuple[str, ...]:
    from importlib.metadata import distributions

    found = []
    for each in distributions(path=list(path)):
        declared = (each.read_text("top_level.txt") or "").split()
        record = "" if declared else f"\n{each.read_text('RECORD') or ''}"
        if module in declared or f"\n{module}/" in record or f"\n{module}.py," in record:
            found.append(each.name)
    return tuple(dict.fromkeys(found))  # a folder may be named twice in the path


def _packages() -> dict[str, Path]:
    """Return the folders of the core and of the built-in plugins, without importing any."""
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec

    found = {PACKAGE.name: PACKAGE}
    try:
        entries = distribution("cwm-cli").entry_points.select(group="cwm")
    except PackageNotFoundError:
        return found
    # A plugin may lie inside another (`cwm_neural.pictures`): to find it would import the outer.
    for name in {entry.module.partition(".")[0] for entry in entries}:
        spec = find_spec(name)
        if spec and spec.origin:
            found[name] = Path(spec.origin).parent
    return found
