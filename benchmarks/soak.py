"""Judge many programs in the sandbox, every fifth hostile, and count leaked resources."""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.machine import machine
from benchmarks.scoring import PROGRAM, cartpole
from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox import Limits, Sandbox

ROWS = 100
LIMITS = Limits(stall_seconds=0.5, memory_mb=128)
HOSTILE_EVERY = 5
"""One of this number of programs is hostile."""

HANGING_EVERY = 200
"""One of this number of programs hangs."""

HOSTILE = {
    "syntax error": "class Environment(:",
    "no class": "x = 1",
    "null byte": "x = '\0'",
    "forbidden import": "import gymnasium",
    "exit at import": "import os\nos._exit(0)",
    "sys.exit in step": "import sys\nsys.exit(0)",
    "reads a file": "open('/etc/passwd').read()",
    "writes a file": "open('/tmp/soak', 'w').write('x' * 1000)",
    "fills the disk": "import os\nos.memfd_create('x')",
    "forks": "import os\nwhile True: os.fork()",
    "starts a daemon": "import os\nos.fork() or os.setsid()",
    "starts a shell": "import os\nos.execv('/bin/sh', ['sh'])",
    "opens a socket": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "starts threads": "import _thread\nwhile True: _thread.start_new_thread(print, ())",
    "null pointer": "import ctypes\nctypes.string_at(0)",
    "aborts": "import os\nos.abort()",
    "large array": "import numpy\nnumpy.ones(10**9)",
    "growing list": "x = [0]\nwhile True: x += x",
    "prints without end": "import os\nwhile True: os.write(1, b'x' * 100000)",
    "takes descriptors": "import os\n[os.dup(1) for _ in range(10000)]",
    "closes descriptors": "import os\nos.closerange(0, 99)\nraise ValueError",
    "deep recursion": "def f(n): return f(n + 1)\nf(0)",
    "patches numpy": "import numpy\nnumpy.asarray = numpy.array = None\nraise ValueError",
    "raises": "raise ValueError('\\033[2J' * 1000)",
    "machine code": "import mmap\nmmap.mmap(-1, 4096, prot=7)",
}
"""Code at the start of `step` of a hostile program, or instead of its environment."""

HANGING = {
    "loops": "while True: pass",
    "loops and catches all": (
        "while True:\n        try: 1 / 0\n        except BaseException: pass"
    ),
    "loops in C": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
}


class Usage(NamedTuple):
    """Processes, descriptors, memory of the largest process, and temporary files in use."""

    processes: int
    descriptors: int
    megabytes: float
    files: int


class Outcome(NamedTuple):
    """Times of the verdicts, wrong verdicts, and resources in use before and after."""

    seconds: list[float]
    wrong: list[str]
    before: Usage
    after: Usage


def main() -> None:
    """Judge the programs without and with hanging ones, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    for hanging in (0, HANGING_EVERY):
        found = soak(arguments.programs, threads=arguments.threads, hanging_every=hanging)
        speeds = [99 / (part[-1] - part[0]) for part in (found.seconds[:100], found.seconds[-100:])]
        kind = f"one in {hanging} hangs" if hanging else "none hangs"
        print(
            f"{arguments.programs} programs, one in {HOSTILE_EVERY} hostile, {kind}:"
            f" {arguments.programs / found.seconds[-1]:.0f} per second;"
            f" the last hundred at {speeds[1] / speeds[0]:.2f} x the speed of the first;"
            f" {len(found.wrong)} wrong verdicts; {found.before} before, {found.after} after"
        )
    print(machine())


def soak(programs: int, *, threads: int = 2, hanging_every: int = HANGING_EVERY) -> Outcome:
    """Judge a number of programs with two workers, from several threads."""
    dataset, seconds, wrong = cartpole(ROWS), [], []
    queue, lock = mix(programs, hanging_every), threading.Lock()
    with Sandbox(LIMITS, workers=2) as sandbox:

        def judge(queue: Iterator[tuple[str, str]]) -> None:
            while True:
                with lock:
                    name, program = next(queue, (None, ""))
                if name is None:
                    return
                if fault := _fault(sandbox, dataset, name, program):
                    wrong.append(fault)
                seconds.append(time.perf_counter() - began)

        began = time.perf_counter()
        _run_in_threads(threads, lambda: judge(itertools.islice(mix(100, 0), 20)))
        seconds.clear()
        before, began = measure_usage(), time.perf_counter()
        _run_in_threads(threads, lambda: judge(queue))
        return Outcome(seconds, wrong, before, measure_usage())


def _run_in_threads(threads: int, work: Callable[[], None]) -> None:
    """Do the same work in several threads; then wait until the sandbox has cleaned up."""
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    time.sleep(0.3)


def mix(programs: int, hanging_every: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of programs, good and hostile."""
    hostile, hanging = itertools.cycle(HOSTILE.items()), itertools.cycle(HANGING.items())
    for number in range(1, programs + 1):
        if hanging_every and number % hanging_every == 0:
            yield _in_step(*next(hanging))
        elif number % HOSTILE_EVERY == 0:
            yield _in_step(*next(hostile))
        else:
            yield "good", PROGRAM


def measure_usage() -> Usage:
    """Return the resources that this process and its descendants use."""
    here = psutil.Process()
    files = len(list(Path(tempfile.gettempdir()).glob("cwm-sandbox-*/*")))
    family = [here, *here.children()]
    descriptors = sum(process.num_fds() for process in family)
    memory = max(process.memory_info().rss for process in family) / 2**20
    return Usage(len(here.children(recursive=True)), descriptors, memory, files)


def _fault(sandbox: Sandbox, dataset: Dataset, name: str, program: str) -> str | None:
    """Judge a program; return a description of a wrong verdict, or None."""
    failure = sandbox.predict(program, dataset).failure
    if (failure is None) != (name == "good"):
        return f"{name}: {failure}"
    return None


def _in_step(name: str, text: str) -> tuple[str, str]:
    """Return a program whose `step` begins with hostile code, or only the code if it is no body."""
    if name in ("syntax error", "no class", "null byte", "exit at import"):
        return name, text
    body = text.replace("\n", "\n        ")
    step = "def step(self, action):"
    return name, PROGRAM.replace(step, f"{step}\n        {body}")


if __name__ == "__main__":
    main()
