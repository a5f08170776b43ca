"""Processes that do tasks: started, watched and ended, and why they failed."""

import json
import signal
import subprocess
import sys
import time
from typing import IO, NamedTuple

from cwm_cli.bench.configuration import Access
from cwm_cli.bench.folder import Folder, Task
from cwm_cli.text import clean

MARK = "Error: "
"""What the line begins with in which a command says why it ended."""

LONGEST_REASON = 300


class Child(NamedTuple):
    """A process that does a task."""

    task: Task
    process: "subprocess.Popen[bytes]"
    started: float

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


def start(folder: Folder, task: Task, access: Access, lock: IO[bytes]) -> Child:
    """Start a process; it ends when this one does, and Ctrl-C is left to this one."""
    log = folder.log(task)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cwm_cli.bench.work"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
    assert process.stdin is not None
    order = {"folder": str(folder.path), **task._asdict(), "access": access.model_dump()}
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended already, and its log says why
    return Child(task, process, time.monotonic())


def reason(folder: Folder, child: Child) -> str | None:
    """Say in a line why a process that has ended did not do its task, None if it did."""
    code = child.process.returncode
    if code == 0:
        return None
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    text = folder.log(child.task).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    last = (errors or lines or [f"its process ended with exit code {code}"])[-1]
    return clean(last, limit=LONGEST_REASON)
