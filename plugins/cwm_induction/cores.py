"""Two attempts at the same time, on a core each where there are two."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np

from cwm_induction.families import Answer, Attempt, Task


class Done(NamedTuple):
    """An answer, the work units that it took, and whether time ran out on the way."""

    answer: Answer
    spent: float
    capped: bool


def answers(attempts: list[Attempt], task: Task) -> list[Answer]:
    """Return the answers to one or two attempts, each made with an equal part of the effort.

    They are the same on any number of cores.
    """
    effort = task.effort
    first, *second = [replace(task, effort=effort.part(len(attempts))) for _ in attempts]
    if second and (os.cpu_count() or 1) > 1:
        done = _side_by_side(attempts, first, second[0])
    else:
        done = [made(*pair) for pair in zip(attempts, [first, *second], strict=True)]
    effort.units -= sum(one.spent for one in done)
    effort.capped = effort.capped or any(one.capped for one in done)
    return [one.answer for one in done]


def made(attempt: Attempt, task: Task) -> Done:
    """Make an attempt; numbers out of range are part of it and no news."""
    before = task.effort.units
    with np.errstate(all="ignore"):
        answer = attempt(task)
    return Done(answer, before - task.effort.units, task.effort.capped)


def _side_by_side(attempts: list[Attempt], here: Task, there: Task) -> list[Done]:
    """Make the first attempt here and the second in a process of its own.

    The process begins with `main`, so that nothing of the program that uses
    this library is run again. What is lost with it is made here.
    """
    command = [sys.executable, "-c", "from cwm_induction.cores import main; main()"]
    asked = pickle.dumps((attempts[1], replace(there, effort=there.effort.alone())))
    with TemporaryFile() as file:
        file.write(asked)
        file.seek(0)
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        first = made(attempts[0], here)
        text, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    return [first, pickle.loads(text) if text else made(attempts[1], there)]  # noqa: S301  # ours


def main() -> None:
    """Make the attempt that is read from stdin, and write what came of it to stdout."""
    attempt, task = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that began this
    done = made(attempt, replace(task, effort=task.effort.alone()))
    sys.stdout.buffer.write(pickle.dumps(done))
