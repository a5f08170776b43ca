"""Learning runs that crash, and their contents without times."""

import json
from pathlib import Path
from typing import Any

import pytest

from cwm_cli import learn
from cwm_learn.runs import LearnRun

TIMES = {"seconds", "writing_seconds", "planning_seconds"}


class Crash(BaseException):
    """Simulates the end of a process."""


def crash_after(run: Path, lines: int, **arguments: Any) -> bool:
    """Learn until `lines` further journal lines and a part of the next one are written.

    Returns:
        Whether it crashed; a run with fewer lines ends.
    """
    write, written = LearnRun.append, []

    def crash(run: LearnRun, *records: Any) -> None:
        write(run, *records)
        written.append(records)
        if len(written) == lines:
            with (run.folder / "journal.jsonl").open("ab") as journal:
                journal.write(b'{"kind":"steps","col')
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearnRun, "append", crash)
        try:
            learn(**arguments, run=run)
        except Crash:
            return True
    return False


def journal_of(run: Path) -> list[dict[str, Any]]:
    """Return the journal without times."""
    found = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for line in found:
        line.pop("seconds", None)
        (line.get("usage") or {}).pop("seconds", None)
    return found


def result_of(run: Path) -> dict[str, Any]:
    """Return the result and all programs, without times and folders."""
    result = json.loads((run / "result.json").read_text())
    kept = {name: value for name, value in result.items() if name not in {*TIMES, "run", "program"}}
    return kept | {
        "programs": {str(file.relative_to(run)): file.read_text() for file in run.rglob("*.py")}
    }
