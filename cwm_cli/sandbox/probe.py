"""A program that attempts forbidden actions. Its text runs in the sandbox.

Each row asks for one check by number; the reward is 1 if every attempt was refused. The last checks
may end the process. The trusted side appends the values of SIMULATORS and ASKER.
"""

import _thread
import ctypes
import errno
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from typing import Any

SIMULATORS = ""
"""Folder of the package with the true environments."""

ASKER = 0
"""Process number of the trusted side."""


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def _read_memory(process: int) -> None:
    here = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    there = (ctypes.c_size_t * 2)(4096, 8)
    try:
        _libc("process_vm_readv", process, here, 1, there, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:  # the address is invalid, but the call is allowed
            raise


def _seek(descriptor: int) -> None:
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError as error:
        if error.errno == errno.EBADF:  # every other error shows that the descriptor is open
            raise


def _fork() -> None:
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)


def _libc(name: str, *values: Any) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*values) < 0:
        raise OSError(ctypes.get_errno(), name)


def _is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except BaseException:  # noqa: BLE001  # every kind of failure counts
        return True
    return False


# Lambdas, because the values of SIMULATORS and ASKER follow only after this text.
CHECKS: dict[str, list[Callable[[], Any]]] = {
    "read-files": [
        lambda: _open("/etc/passwd"),
        lambda: os.listdir("/"),
        lambda: _open(sys.executable),
    ],
    "see-files": [lambda: os.stat("/etc/passwd"), lambda: os.readlink("/proc/self/exe")],
    "write-files": [
        lambda: _create(f"./.cwm-probe-{os.getpid()}"),
        lambda: _create(f"/tmp/.cwm-probe-{os.getpid()}"),
        lambda: _create(f"/dev/shm/.cwm-probe-{os.getpid()}"),
    ],
    "network": [
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9)),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).bind(("127.0.0.1", 0)),
    ],
    "local-sockets": [lambda: socket.socket(socket.AF_UNIX), socket.socketpair],
    "shared-memory": [
        lambda: _libc("shmget", 0, 4096, 0o1600),  # IPC_PRIVATE; IPC_CREAT for its owner
        lambda: os.close(os.memfd_create("probe")),
    ],
    "signals": [lambda: os.kill(os.getppid(), 0), lambda: os.kill(ASKER, 0)],
    "other-processes": [
        lambda: _open(f"/proc/{os.getppid()}/environ"),
        lambda: _open(f"/proc/{os.getppid()}/mem"),
        lambda: _read_memory(os.getppid()),
        lambda: _open(f"/proc/{ASKER}/environ"),
        lambda: _open(f"/proc/{ASKER}/mem"),
        lambda: _read_memory(ASKER),
    ],
    "secrets": [lambda: next(iter(os.environ.values()))],
    "descriptors": [partial(_seek, descriptor) for descriptor in range(3, 64)],
    "simulator": [
        lambda: __import__("gymnasium"),
        lambda: PathFinder.find_spec("gymnasium", [SIMULATORS]).origin,  # type: ignore[union-attr]
    ],
    "privileges": [
        lambda: os.setresuid(0, 0, 0),
        lambda: os.setgroups([]),
        lambda: os.chroot("/"),
        lambda: _libc("unshare", 0x10000000),  # CLONE_NEWUSER
    ],
    "memory": [
        lambda: mmap.mmap(-1, 1 << 30),
        lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
    ],
    "machine-code": [
        lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    ],
    "system-calls": [lambda: os.getpriority(os.PRIO_PROCESS, 0)],
    "threads": [lambda: _thread.start_new_thread(int, ())],
    "processes": [_fork, lambda: os.execv("/bin/true", ["true"])],
}
"""The attempts of each check, in the order of `protection.GAPS`."""


class Environment:
    """Runs one check per step."""

    def set_state(self, observation: Any) -> None:
        """Select the check."""
        self.attempts = list(CHECKS.values())[int(observation)]

    def step(self, action: int) -> tuple[int, float, bool]:
        """Run the check; return reward 1 if all its attempts are refused."""
        return 0, float(all([_is_refused(attempt) for attempt in self.attempts])), False
