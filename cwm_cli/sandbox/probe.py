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
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import PathFinder
from typing import Any

SIMULATORS = ""
"""Folder of the package with the true environments."""

ASKER = 0
"""Process number of the trusted side."""

_PRIVATE_KEY = 0
_CREATE = 0o1600
_NEW_USER_NAMESPACE = 0x10000000
_MOST_DESCRIPTORS = 64
_GIB = 1 << 30


def _read_files() -> Iterator[Callable[[], Any]]:
    yield lambda: _open("/etc/passwd")
    yield lambda: os.listdir("/")
    yield lambda: _open(sys.executable)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _see_files() -> Iterator[Callable[[], Any]]:
    yield lambda: os.stat("/etc/passwd")
    yield lambda: os.readlink("/proc/self/exe")


def _write_files() -> Iterator[Callable[[], Any]]:
    for folder in (".", "/tmp", "/dev/shm"):
        yield partial(_create, f"{folder}/.cwm-probe-{os.getpid()}")


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def _network() -> Iterator[Callable[[], Any]]:
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).bind(("127.0.0.1", 0))


def _local_sockets() -> Iterator[Callable[[], Any]]:
    yield lambda: socket.socket(socket.AF_UNIX)
    yield socket.socketpair


def _shared_memory() -> Iterator[Callable[[], Any]]:
    yield lambda: _libc("shmget", _PRIVATE_KEY, 4096, _CREATE)
    yield lambda: os.close(os.memfd_create("probe"))


def _signals() -> Iterator[Callable[[], Any]]:
    for process in (os.getppid(), ASKER):
        yield partial(os.kill, process, 0)


def _other_processes() -> Iterator[Callable[[], Any]]:
    for process in (os.getppid(), ASKER):
        for file in ("environ", "mem"):
            yield partial(_open, f"/proc/{process}/{file}")
        yield partial(_read_memory, process)


def _read_memory(process: int) -> None:
    here = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    there = (ctypes.c_size_t * 2)(4096, 8)
    try:
        _libc("process_vm_readv", process, here, 1, there, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:  # the address is invalid, but the call is allowed
            raise


def _secrets() -> Iterator[Callable[[], Any]]:
    yield lambda: next(iter(os.environ.values()))


def _descriptors() -> Iterator[Callable[[], Any]]:
    for number in range(3, _MOST_DESCRIPTORS):
        yield partial(_use, number)


def _use(number: int) -> None:
    try:
        os.lseek(number, 0, os.SEEK_CUR)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise


def _simulator() -> Iterator[Callable[[], Any]]:
    yield lambda: __import__("gymnasium")
    yield lambda: PathFinder.find_spec("gymnasium", [SIMULATORS]).origin  # type: ignore[union-attr]


def _privileges() -> Iterator[Callable[[], Any]]:
    yield lambda: os.setresuid(0, 0, 0)
    yield lambda: os.setgroups([])
    yield lambda: os.chroot("/")
    yield lambda: _libc("unshare", _NEW_USER_NAMESPACE)


def _memory() -> Iterator[Callable[[], Any]]:
    yield lambda: mmap.mmap(-1, _GIB)
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def _machine_code() -> Iterator[Callable[[], Any]]:
    yield lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def _system_calls() -> Iterator[Callable[[], Any]]:
    yield lambda: os.getpriority(os.PRIO_PROCESS, 0)


def _threads() -> Iterator[Callable[[], Any]]:
    yield lambda: _thread.start_new_thread(int, ())


def _processes() -> Iterator[Callable[[], Any]]:
    yield _fork
    yield lambda: os.execv("/bin/true", ["true"])


def _fork() -> None:
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)


CHECKS = (
    _read_files,
    _see_files,
    _write_files,
    _network,
    _local_sockets,
    _shared_memory,
    _signals,
    _other_processes,
    _secrets,
    _descriptors,
    _simulator,
    _privileges,
    _memory,
    _machine_code,
    _system_calls,
    _threads,
    _processes,
)


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


class Environment:
    """Runs one check per step."""

    def set_state(self, observation: Any) -> None:
        """Select the check."""
        self.check = CHECKS[int(observation)]

    def step(self, action: int) -> tuple[int, float, bool]:
        """Run the check; return reward 1 if all its attempts are refused."""
        return 0, float(all([_is_refused(attempt) for attempt in self.check()])), False
