"""The start page: `cwm` alone suggests the next commands in this folder, above the help."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cwm_cli.commands.installation import provider_keys
from cwm_cli.runs.recent import RUNS, RecentRun, recent_runs
from cwm_cli.text import clean

NEWEST = 5
"""Number of runs to read, so that the page is fast in a folder with many runs."""

PLAYABLE = ("search", "learn", "train")
"""Kinds of run that `cwm plan` accepts."""

LABEL_WIDTH = 10


def next_steps(folder: Path = RUNS) -> Iterator[str]:
    """Yield lines that suggest commands, from the newest runs and the variables that are set."""
    runs = list(islice(recent_runs(folder), NEWEST))
    if not runs:
        yield _line("start", "cwm synthesize --env CartPole-v1", "needs no language model")
    if not os.environ.get("CWM_MODEL") and not provider_keys():
        yield _line("models", "export OPENAI_API_KEY=KEY", "then add --model openai/gpt-5")
    for run in [run for run in runs if run.is_locked][:1]:
        yield _line("running", _command("runs", "show", run.folder), _about(run))
    for run in [run for run in runs if not run.is_finished and not run.is_locked][:1]:
        command = run.command or _command("runs", "show", run.folder)
        yield _line("continue", command, f"{run.folder} is unfinished")
    for run in [run for run in runs if run.is_finished][:1]:
        if run.kind in PLAYABLE and run.has_simulator:
            yield _line("plan", _command("plan", run.folder), _about(run))
        yield _line("report", _command("runs", "report", run.folder, "--html"))
    yield ""


def _line(label: str, command: str, comment: str = "") -> str:
    return f"{label:<{LABEL_WIDTH}}{clean(command)}" + (f"  ({clean(comment)})" if comment else "")


def _about(run: RecentRun) -> str:
    return f"{run.kind} on {run.environment}" if run.environment else run.kind


def _command(*words: str | Path) -> str:
    return shlex.join(["cwm", *map(str, words)])
