"""What a job does on its node: it has a command carried out, and returns what came of it."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.bench.executor import LEASH, reason_of

ENDED_BY_SLURM = "Slurm ended its job: another took its place, or its time was up"


class JobOutcome(NamedTuple):
    """What came of a command: the fields of `Ended`, but for its name."""

    reason: str | None
    lost: bool
    peak_memory: int
    place: str


def carry_out(
    words: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
) -> JobOutcome:
    """Run a command in a fresh process, which ends when this one does, however it does.

    It prints to `log` and works in `folder`. Slurm tells this process by a signal that the job
    will be ended; then the command is ended at once, since it may be repeated, and is lost.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    leash, held = os.pipe()
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment, LEASH: str(leash)},
            pass_fds=(leash,),
        )
    os.close(leash)
    told: list[int] = []

    def end(number: int, _: Any) -> None:
        told.append(number)
        process.kill()

    # SIGTERM is for jobs that are cancelled, SIGUSR2 for those whose time is nearly up. That of
    # submitit has the job started again by Slurm, beside the one that the driver would start
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, end)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    os.close(held)
    # the signal may have reached the command first: all of a job is told
    lost = code != 0 and (bool(told) or -code in (signal.SIGTERM, signal.SIGUSR2))
    text = "" if code == 0 else log.read_text(encoding="utf-8", errors="replace")
    reason = ENDED_BY_SLURM if lost else reason_of(code, text)
    return JobOutcome(reason, lost, usage.ru_maxrss * 1024, socket.gethostname())
