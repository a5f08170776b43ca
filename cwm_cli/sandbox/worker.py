"""The warm worker: forks one process per program, watches it and says how it ended.

It never compiles, reads or relays anything of a program, so that nothing of
one program is left for the next.
"""

import faulthandler
import gc
import importlib
import mmap
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from cwm_cli.sandbox import candidate
from cwm_cli.sandbox.arena import CONTROL_BYTES
from cwm_cli.sandbox.linux import adopt_orphans
from cwm_cli.sandbox.protocol import HELLO, Descriptors, Report, Request
from cwm_cli.sandbox.watching import Child, HungUp, watch

PRELOADED = """
abc array bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions
functools heapq inspect itertools json linecache math numbers operator random re statistics string
struct textwrap time traceback types typing warnings
numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random
"""
"""Modules that programs find imported."""


def main() -> None:
    """Serve requests until the other side hangs up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    folder = Path.cwd()
    _warm_up()
    control.sendall(HELLO)
    with suppress(HungUp, ConnectionError):
        spare = _Spare(control)
        while received := Request.receive(control):
            _serve(control, *received, spare)
            _empty(folder)
            spare = _Spare(control)
        spare.dismiss()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # nothing is left to clean up, and tearing numpy down takes longer than a job


def _warm_up() -> None:
    """Import and touch what programs use, so that no program pays for it."""
    adopt_orphans()
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    for name in PRELOADED.split():
        importlib.import_module(name)
    np.random.default_rng(0).normal(size=3)
    np.linalg.inv(np.eye(2))
    str(np.array([1.5]))
    os.environ.clear()
    gc.collect()
    gc.freeze()


class _Spare:
    """A process that is forked ahead of its job, so that no job has to wait for that."""

    def __init__(self, control: socket.socket) -> None:
        worker = os.getpid()
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            control.close()
            self._requests.close()
            candidate.run(requests, ready, worker)
        requests.close()
        os.close(ready)

    def dismiss(self) -> None:
        """End it without a job."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def give(self, request: Request, files: Descriptors) -> None:
        """Hand the job over."""
        with self._requests:
            request.send(self._requests, files)


def _serve(control: socket.socket, request: Request, files: Descriptors, spare: _Spare) -> None:
    """Run one job and report."""
    child = Child(spare.pid, control, files.channel.marks if files.channel else None)
    try:
        spare.give(request, files)
        with mmap.mmap(files.arena, CONTROL_BYTES, prot=mmap.PROT_READ) as page:
            ending = watch(child, request, page)
    finally:
        code = child.end()
    guarded = os.read(spare.ready, 1) == candidate.READY  # does not wait: nobody can write
    for descriptor in (spare.ready, *files.all):
        os.close(descriptor)
    Report(guarded, ending, code).send(control)


def _empty(folder: Path) -> None:
    """Remove the files that a program has left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
