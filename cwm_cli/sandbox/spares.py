"""Processes that are made ahead of their jobs, so that no job has to wait for that."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

from cwm_cli.sandbox import candidate
from cwm_cli.sandbox.candidate import MOST_DESCRIPTORS
from cwm_cli.sandbox.confinement import Guards
from cwm_cli.sandbox.protocol import BEGINNING, FLAGS, Descriptors, Request, Setup
from cwm_cli.sandbox.warmth import warm_up
from cwm_cli.sandbox.watching import Bell

_FIRST_DESCRIPTOR = 3
_COMMAND = f"{BEGINNING}; from cwm_cli.sandbox.spares import become_program; become_program()"


class Spare:
    """A process that waits for its job; `ready` tells once every guard is up."""

    def __init__(self, guards: Guards) -> None:
        """Fork this process."""
        worker = os.getpid()
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            Bell.mute()
            _keep_only(requests.fileno(), ready, *guards.descriptors)
            candidate.run(requests, ready, worker, guards)
        requests.close()
        os.close(ready)

    def give(self, request: Request, files: Descriptors) -> None:
        """Hand the job over; a process that could not be set up is no longer there to take it."""
        with self._requests, suppress(BrokenPipeError):
            request.send(self._requests, files)


def _keep_only(*descriptors: int) -> None:
    """Close every other descriptor but those of standard input, output and errors."""
    first = _FIRST_DESCRIPTOR
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, MOST_DESCRIPTORS)


class ColdSpare(Spare):
    """A new interpreter, where forking one that has loaded numpy is not safe."""

    def __init__(self, setup: Setup, environment: dict[str, str]) -> None:
        """Start it; `environment` has what it takes to find modules and libraries."""
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        with requests:
            ends = (requests.fileno(), ready)
            process = subprocess.Popen(
                [
                    sys.executable,
                    *FLAGS,
                    _COMMAND,
                    *map(str, ends),
                    str(os.getpid()),
                    setup.encode(),
                ],
                pass_fds=ends,
                env=environment,
            )
        os.close(ready)
        self.pid = process.pid
        process.returncode = 0  # the worker itself waits for the end of it

    def give(self, request: Request, files: Descriptors) -> None:
        """Hand the job over once the interpreter is warm."""
        self._requests.recv(1)
        super().give(request, files)


def become_program() -> NoReturn:
    """Be the process of one program, in a new interpreter."""
    requests, ready, worker = map(int, sys.argv[1:4])
    guards, _ = warm_up(Setup.decode(sys.argv[4]))
    control = socket.socket(fileno=requests)
    control.send(b"W")
    candidate.run(control, ready, worker, guards)
