"""Where the process of a program reads and writes: a few descriptors, and none but these."""

import fcntl
import io
import mmap
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from cwm_cli.sandbox.job import Order
from cwm_cli.sandbox.protocol import Console, Descriptors, Request

MOST_DESCRIPTORS = 256
"""More than a worker ever has open."""

_ERROR_BYTES = 1 << 16
"""How much a program that prints elsewhere may say on standard error."""

READY_DESCRIPTOR = 3
"""Those of a conversation follow it."""


def settle(request: Request, files: Descriptors, ready: int) -> tuple[Order, mmap.mmap]:
    """Map what the program works on; keep what it prints to, the last word and a session's pipes.

    Nothing else stays open.
    """
    os.dup2(files.log, 1)
    os.dup2(files.log, 2)
    if files.console:
        _connect(files.console)
    else:
        sys.stdout = sys.stderr = _log(request.limits.output_bytes)
    arena = mmap.mmap(files.arena, request.arena_bytes)
    order = Order.decode(mmap.mmap(files.job, request.job_bytes, access=mmap.ACCESS_READ))
    kept = [ready, *(files.channel or ())[:2]]
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, READY_DESCRIPTOR + 3) for descriptor in kept]
    for number, descriptor in enumerate(kept, start=READY_DESCRIPTOR):
        os.dup2(descriptor, number)
    os.closerange(READY_DESCRIPTOR + len(kept), MOST_DESCRIPTORS)
    return order, arena


def _connect(console: Console) -> None:
    """Have the program read and write real files, also where it does so past `sys`."""
    os.dup2(console.stdin, 0)
    os.dup2(console.stdout, 1)
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sink = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    stdin = io.TextIOWrapper(reader, "utf-8", "replace")
    stdout = io.TextIOWrapper(sink, "utf-8", "backslashreplace")
    for stream, mode in ((stdin, "r"), (stdout, "w")):
        vars(stream)["mode"] = mode  # which programs that make streams of their own ask for
    vars(sys).update(stdin=stdin, __stdin__=stdin, stdout=stdout, __stdout__=stdout)
    sys.stderr = _log(_ERROR_BYTES)


def _log(limit: int) -> TextIO:
    """Return a stream to the log, which keeps what is printed up to a limit."""
    kept: Any = _Log(limit)
    return io.TextIOWrapper(kept, "utf-8", "backslashreplace", write_through=True)


class _Log(io.RawIOBase):
    """Keeps what is printed up to a limit and takes the rest without a word."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        """Say that one can print."""
        return True

    def write(self, data: Any) -> int:
        """Keep what there is room for."""
        kept = bytes(data[: self._left])
        self._left -= len(kept)
        with suppress(OSError):  # a program may close its descriptors
            os.write(2, kept)
        return len(data)
