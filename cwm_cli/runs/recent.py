"""The newest runs in a folder, read fast: from headers and file times alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cwm_cli.errors import CwmError

RUNS = Path("runs")
"""The default folder of runs, as in `store`, which is slow to import."""


class RecentRun(NamedTuple):
    """A run: the command that started it, and whether it is finished or being written."""

    folder: Path
    kind: str
    environment: str
    model: str
    command: str
    is_finished: bool
    is_locked: bool
    has_simulator: bool


def recent_runs(folder: Path) -> Iterator[RecentRun]:
    """Yield the runs in a folder, newest first; skip unreadable ones."""
    for _, header in sorted(_headers(folder), reverse=True):
        from cwm_cli.data.reading import read_json  # imports numpy: only if there are runs

        try:
            file, known = header.with_name("result.json"), read_json(header)
            result = read_json(file) if file.exists() else None
            words, config = [str(word) for word in known.get("command", ())], known["config"]
            yield RecentRun(
                header.parent,
                str(known["kind"]),
                str(config.get("env", "")),
                str(config.get("model", "") or ""),
                shlex.join(["cwm", *words]) if words else "",
                result is not None,
                _is_locked(header.with_name("lock")),
                (result or {}).get("has_simulator", True),
            )
        except (CwmError, KeyError, TypeError, AttributeError):
            continue  # `cwm runs list` reports damaged runs


def _headers(folder: Path) -> Iterator[tuple[float, Path]]:
    """Yield the headers of runs with the time when each was written."""
    try:
        runs = list(folder.iterdir())
    except OSError:
        return
    for run in runs:
        try:
            header = run / "run.json"
            yield header.stat().st_mtime, header
        except OSError:
            continue


def _is_locked(lock: Path) -> bool:
    from cwm_cli.data.reading import open_file
    from cwm_cli.locks import try_lock

    try:
        with open_file(lock) as file:
            try_lock(file.fileno(), shared=True)
    except BlockingIOError:
        return True
    except (CwmError, OSError):
        return False
    return False
