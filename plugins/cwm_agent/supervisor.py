"""The process between `cwm` and an agent: it limits the time and ends all descendants.

It runs as `python -m cwm_agent.supervisor`. The first line of its standard input is an `AgentTask`
as JSON. When that input ends, because `cwm` was interrupted or killed, the agent ends as well. The
standard error has the output of the agent, and the standard output one line, the `AgentOutcome`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cwm_cli.sandbox.linux import (
    FileAccess,
    adopt_orphans,
    drop_capabilities,
    hide_from_others,
    hide_other_files,
)


class AgentTask(NamedTuple):
    """A command with its folder, environment variables and time limit.

    `access` has the files that the agent may use, None for all.
    """

    command: list[str]
    folder: str
    variables: dict[str, str]
    seconds: float
    access: FileAccess | None = None


class AgentOutcome(NamedTuple):
    """The end of an agent: exit, timeout, interrupted or not started, and the exit code."""

    end: str
    code: int = 0
    reason: str = ""


def supervise(task: AgentTask) -> AgentOutcome:
    """Run the command to its end, its time limit, or the end of the standard input."""
    adopt_orphans()
    deadline = time.monotonic() + task.seconds
    try:
        agent = subprocess.Popen(
            task.command,
            cwd=task.folder,
            env=task.variables,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            preexec_fn=_hiding(task.access),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return AgentOutcome("not started", reason=str(error))
    end = "exit"
    while agent.poll() is None:
        if time.monotonic() > deadline:
            end = "timeout"
            break
        ready, _, _ = select.select([0], [], [], 0.05)
        if ready and not os.read(0, 1024):
            end = "interrupted"
            break
    code = agent.returncode
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(agent.pid, signal.SIGKILL)
    _end_descendants()
    return AgentOutcome(end, code or 0)


def _hiding(access: FileAccess | None) -> Callable[[], None] | None:
    """Return a function that hides all other files, for the process of the agent."""
    if access is None:
        return None

    def hide() -> None:
        hide_other_files(access)
        if os.geteuid() == 0:  # root may read the variables of all processes
            drop_capabilities()

    return hide


def _end_descendants() -> None:
    """Kill all descendants; those whose parent ends become children of this process."""
    end_seconds = 10.0  # maximum time to end the descendants of the agent
    deadline = time.monotonic() + end_seconds
    while time.monotonic() < deadline:
        for process in _children():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not _children():
            return
        time.sleep(0.01)


def _children() -> Sequence[int]:
    """Return the children of this process."""
    try:
        return [
            int(process)
            for listed in Path("/proc/self/task").glob("*/children")
            for process in listed.read_text().split()
        ]
    except OSError:
        return []


def main() -> None:
    """Read the task, run it, and print the outcome; without a reader, remove the folder."""
    hide_from_others()
    line = b""
    while not line.endswith(b"\n"):  # unbuffered, so that `select` sees the rest
        piece = os.read(0, 1)
        if not piece:
            return
        line += piece
    data = json.loads(line)
    access = data.pop("access")
    task = AgentTask(**data, access=access and FileAccess(**access))
    outcome = supervise(task)
    if outcome.end == "interrupted":
        shutil.rmtree(task.folder, ignore_errors=True)
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(outcome._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
