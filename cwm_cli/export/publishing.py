"""Writing of exports: completely or not at all, and never over other files."""

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from string import Template
from typing import Any, NamedTuple

from cwm_cli.errors import CwmError

# The last line of the README of every export.
MARK = "<!-- written by `cwm runs export` -->"
# Files that an export may replace.
OWN = (
    "README.md",
    "pyproject.toml",
    "*world_model",
    "*world_model.egg-info",  # left by the installation, like `build`
    "build",
)


class Export(NamedTuple):
    """The files of an export, by their paths within its folder, and its description.

    Attributes:
        files: Contents by path.
        paths: The main file, by its role, such as `program`.
        facts: The output of `--json`.
        use: Commands for using the export; `$folder` stands in for the folder.
        notes: Remarks for the user.
    """

    files: Mapping[str, bytes]
    paths: Mapping[str, str]
    facts: Mapping[str, Any]
    use: tuple[str, ...]
    notes: tuple[str, ...] = ()


@cache
def template(name: str, package: str = __package__) -> Template:
    """Return the template of a file that a package writes."""
    file = files(package) / "templates" / f"{name}.template"
    return Template(file.read_text(encoding="utf-8"))


def publish(export: Export, folder: Path, *, replaces: bool = True) -> None:
    """Write the files of an export into a folder.

    Args:
        export: The files.
        folder: A new or empty folder, or an earlier export.
        replaces: False refuses an earlier export too.

    Raises:
        CwmError: The folder contains other files, or is a file.
    """
    folder = Path(os.path.realpath(folder))
    _check_place(folder, {Path(name).parts[0] for name in export.files}, replaces=replaces)
    partial, old = (folder.with_name(f".{folder.name}.{word}") for word in ("part", "old"))
    rmtree(partial, ignore_errors=True)  # of an export that was killed
    try:
        for name, content in export.files.items():
            file = partial / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        try:
            partial.rename(folder)
        except BaseException:
            if old.exists():  # restore the earlier export
                old.rename(folder)
            raise
        rmtree(old, ignore_errors=True)
    finally:
        rmtree(partial, ignore_errors=True)


def _check_place(folder: Path, own: set[str], *, replaces: bool) -> None:
    if not folder.exists():
        return
    hint = "choose another folder with --out"
    if not folder.is_dir():
        raise CwmError(f"{folder} is a file: {hint}")
    names = sorted(path.name for path in folder.iterdir())
    readme = folder / "README.md"
    is_export = (
        replaces
        and readme.is_file()
        and MARK in readme.read_text(encoding="utf-8", errors="replace")
    )
    others = [name for name in names if not any(fnmatch(name, each) for each in (*OWN, *own))]
    if names and (others or not is_export):
        raise CwmError(f"{folder} contains other files ({(others or names)[0]}): {hint}")
