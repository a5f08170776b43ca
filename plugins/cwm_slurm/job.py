"""What a job does on its node: it has a command carried out, and returns what came of it."""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.bench.executor import JobProcess, fresh_log, logged_reason

ENDED_BY_SLURM = "Slurm ended its job: another took its place, or its time was up"


class JobOutcome(NamedTuple):
    """What came of a command: the fields of `Ended`, but for its name."""

    reason: str | None
    lost: bool
    peak_memory: int | None
    place: str
    cpu_seconds: float


def carry_out(
    words: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
) -> JobOutcome:
    """Run a command in a fresh process, which ends when this one does, however it does.

    It prints to `log` and works in `folder`. Slurm tells this process by a signal that the job
    will be ended; then the command is ended at once, since it may be repeated, and is lost.
    """
    with fresh_log(log) as output:
        # in the session of this process, since that may be how Slurm knows what belongs to a job
        process = JobProcess(
            words, output, {**os.environ, **environment}, folder=folder, in_session=True
        )
    told: list[int] = []

    def kill(number: int, _: Any) -> None:
        told.append(number)
        process.kill()

    # SIGTERM is for jobs that are cancelled, SIGUSR2 for those whose time is nearly up. That of
    # submitit has the job started again by Slurm, beside the one that the driver would start
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, kill)
    end = process.wait()
    # the signal may have reached the command first: all of a job is told
    lost = end.code != 0 and (bool(told) or -end.code in (signal.SIGTERM, signal.SIGUSR2))
    reason = ENDED_BY_SLURM if lost else logged_reason(end.code, log)
    return JobOutcome(reason, lost, end.peak_memory, socket.gethostname(), end.cpu_seconds)
