"""Exports are written as a whole or not at all, and over nothing but an earlier export."""

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

MARK = "<!-- written by `cwm runs export` -->"
"""What the README of an export ends with."""

OWN = (
    "README.md",
    "pyproject.toml",
    "*world_model",
    "*world_model.egg-info",  # what installing it leaves there, and `build`
    "build",
)


class Export(NamedTuple):
    """Files by their paths within a folder, and what to say of them.

    `paths` names the file that the rest is for, `use` says how it is used, with `$folder` for
    where it is, and `notes` what the user should know.
    """

    files: Mapping[str, bytes]
    paths: Mapping[str, str]
    facts: Mapping[str, Any]
    use: tuple[str, ...]
    notes: tuple[str, ...] = ()


@cache
def template(name: str, package: str = __package__) -> Template:
    """Read the template of a file that a package writes."""
    file = files(package) / "templates" / f"{name}.template"
    return Template(file.read_text(encoding="utf-8"))


def publish(export: Export, folder: Path, *, replaces: bool = True) -> None:
    """Write the files of an export; a folder that holds something else is refused.

    Unless it `replaces` an earlier export, a folder that holds anything is.
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
        _exchange(partial, folder, old)
    finally:
        rmtree(partial, ignore_errors=True)


def _check_place(folder: Path, own: set[str], *, replaces: bool) -> None:
    """Refuse to write over anything but an earlier export, or over anything at all."""
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


def _exchange(partial: Path, folder: Path, old: Path) -> None:
    """Put a finished folder in the place of an earlier one, which comes back if that fails."""
    rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        partial.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    rmtree(old, ignore_errors=True)
