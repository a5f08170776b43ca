"""What `cwm` alone says before the list of commands: the sensible next step in this folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.cli.doctor import provider_keys
from cwm_cli.errors import CwmError
from cwm_cli.text import clean

RUNS = Path("runs")
"""Where runs are that were given no folder, as in `runs.store`, which is slow to import."""

NEWEST = 5
"""Runs that are looked at: what came long before is not what somebody is about."""

PLAYABLE = ("search", "learn", "train")
"""Kinds of run that `cwm plan` plays with."""

WIDTH = 9
"""Columns of the words before a command."""


class RunHere(NamedTuple):
    """A run of the working folder: what was typed to begin it, and whether it is over."""

    folder: Path
    kind: str
    environment: str
    model: str
    command: str
    is_over: bool
    is_busy: bool


def next_steps(runs: Path = RUNS) -> Iterator[str]:
    """Yield lines on what to do next, judged by the newest runs and the variables that are set."""
    newest = list(islice(runs_here(runs), NEWEST))
    if not newest:
        yield _line("start", "cwm synthesize --env CartPole-v1", "a program from data alone")
    if not os.environ.get("CWM_MODEL") and not provider_keys():
        yield _line("models", "export OPENAI_API_KEY=KEY", "then --model openai/gpt-5")
    for run in [run for run in newest if run.is_busy][:1]:
        yield _line("at work", _command("runs", "show", run.folder), _about(run))
    for run in [run for run in newest if not run.is_over and not run.is_busy][:1]:
        words = run.command or _command("runs", "show", run.folder)
        yield _line("go on", words, f"{run.folder} is unfinished")
    for run in [run for run in newest if run.is_over][:1]:
        if run.kind in PLAYABLE:
            yield _line("play", _command("plan", run.folder), _about(run))
        yield _line("look", _command("runs", "report", run.folder, "--html"))
    yield ""


def _line(word: str, command: str, why: str = "") -> str:
    return f"{word:<{WIDTH}}{clean(command)}" + (f"  ({clean(why)})" if why else "")


def _about(run: RunHere) -> str:
    return " of ".join(filter(None, (run.kind, run.environment)))


def _command(*words: str | Path) -> str:
    return shlex.join(["cwm", *map(str, words)])


def runs_here(place: Path) -> Iterator[RunHere]:
    """Yield the runs in a folder, the newest first; those that cannot be read are passed over."""
    for _, header in sorted(_headers(place), reverse=True):
        from cwm_cli.data.reading import read_json  # imports numpy: only if there are runs

        try:
            yield _run(header.parent, read_json(header))
        except (CwmError, KeyError, TypeError, AttributeError):
            continue  # not a run, or damaged: `cwm runs list` says so


def _headers(place: Path) -> Iterator[tuple[float, Path]]:
    """Yield the headers of runs and when each was written."""
    try:
        folders = list(place.iterdir())
    except OSError:
        return
    for folder in folders:
        try:
            header = folder / "run.json"
            yield header.stat().st_mtime, header
        except OSError:
            continue


def _run(folder: Path, header: dict[str, Any]) -> RunHere:
    """Tell what a header and the files beside it say."""
    typed = [str(word) for word in header.get("command", ())]
    config = header["config"]
    return RunHere(
        folder,
        str(header["kind"]),
        str(config.get("env", "")),
        str(config.get("model", "") or ""),
        shlex.join(["cwm", *typed]) if typed else "",
        (folder / "result.json").exists(),
        _is_busy(folder / "lock"),
    )


def _is_busy(lock: Path) -> bool:
    """Whether a process has locked a run."""
    import fcntl

    from cwm_cli.data.reading import open_file

    try:
        with open_file(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (CwmError, OSError):
        return False
    return False
