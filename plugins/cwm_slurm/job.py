"""Run a command on a Slurm node, and return how it ended."""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.bench.executor import JobProcess, fresh_log, logged_reason

ENDED_BY_SLURM = "Slurm ended its job: another took its place, or its time was up"


class JobOutcome(NamedTuple):
    """How a command ended: the fields of `Ended` without its name."""

    reason: str | None
    lost: bool
    peak_memory: int | None
    place: str
    cpu_seconds: float


def carry_out(
    words: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
) -> JobOutcome:
    """Run a command in a new process, which ends with this one in any case.

    It writes its output to `log` and works in `folder`. A signal from Slurm means that the job will
    be ended. Then the command is killed immediately and counts as lost, because it can be repeated.
    """
    with fresh_log(log) as output:
        # in this session, because Slurm may use it to find the processes of a job
        process = JobProcess(
            words, output, {**os.environ, **environment}, folder=folder, in_session=True
        )
    received: list[int] = []

    def kill(number: int, _: Any) -> None:
        received.append(number)
        process.kill()

    # SIGTERM is sent to cancelled jobs, SIGUSR2 shortly before the time limit. They replace
    # submitit's handler, which would make Slurm restart the job next to the driver's own restart
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, kill)
    end = process.wait()
    # the command may receive the signal first, because all processes of a job do
    lost = end.code != 0 and (bool(received) or -end.code in (signal.SIGTERM, signal.SIGUSR2))
    reason = ENDED_BY_SLURM if lost else logged_reason(end.code, log)
    return JobOutcome(reason, lost, end.peak_memory, socket.gethostname(), end.cpu_seconds)
