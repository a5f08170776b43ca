"""The guards between a program and the machine, put up in its own process.

The worker prepares them once; the process of a program puts up the early ones
while it waits for its job and the last ones when it has it.
"""

import errno
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, get_args

from cwm_cli.sandbox import linux
from cwm_cli.sandbox.job import Limits
from cwm_cli.sandbox.linux import MACHINES, compute_only, deny_everything, for_process

Layer = Literal["user", "capabilities", "landlock", "limits", "seccomp"]
"""Another user for each program of root; no capabilities; no files; limits; no system calls."""

LAYERS: tuple[Layer, ...] = get_args(Layer)
ON = "on"
NOT_HERE = "not here"

OPEN_FILES = 32
DUMP_BYTES = 1 << 16
"""Room in the log, beyond what a program may print, for where it hung or crashed."""

_FIRST_USER = 1_900_000_000
_USERS = 30_000
"""Ids that nobody uses; a process has the one that its number gives."""


class Room(NamedTuple):
    """Addresses that a process uses before its job and those that the job takes, in bytes."""

    before: int
    job: int


class Guards:
    """What protects the machine here; `layers` says of each guard whether it is on, or why not."""

    def __init__(self, wanted: Iterable[str], importable: Iterable[str]) -> None:
        self.imports = ImportGuard(importable)
        self._instructions = b""
        self._ruleset: int | None = None
        self.layers: dict[str, str] = dict.fromkeys(LAYERS, "switched off")
        for layer in LAYERS:
            if layer in wanted:
                try:
                    self.layers[layer] = self._prepare(layer)
                except OSError as error:
                    self.layers[layer] = f"{NOT_HERE}: {error.strerror}"

    @property
    def leave_nothing(self) -> bool:
        """Whether a program can leave neither files nor processes."""
        return self._is_on("seccomp")

    @property
    def checks_source(self) -> bool:
        """Whether the source of programs is checked because no kernel filter confines them."""
        return self.layers["seccomp"].startswith(NOT_HERE)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What has to stay open for `early`."""
        return () if self._ruleset is None else (self._ruleset,)

    def inherited(self) -> None:
        """Put up, in the worker, what its processes take over from it."""
        if any(self._is_on(layer) for layer in ("capabilities", "landlock", "seccomp")):
            linux.give_up_new_privileges()
        if self._is_on("capabilities") and not self._is_on("user"):
            linux.drop_capabilities()
        if self._is_on("seccomp"):
            linux.ask_kernel_for_time()

    def early(self) -> None:
        """Put up what does not keep this process from receiving its job."""
        if self._is_on("user"):  # a change from root to another user takes the capabilities, too
            user = _FIRST_USER + os.getpid() % _USERS
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        if self._is_on("capabilities"):
            linux.hide_from_others()
        if self._ruleset is not None:
            linux.landlock_restrict(self._ruleset)

    def last(self, limits: Limits, room: Room) -> None:
        """Put up the rest; from here on nothing but computing is possible."""
        if self._is_on("limits"):
            _limit_resources(limits, room)
        if self._is_on("seccomp"):
            linux.filter_system_calls(for_process(self._instructions, os.getpid()))
            os.uname = lambda: os.uname_result(("Linux", "sandbox", "", "", linux.MACHINE))
            platform.uname = lambda: platform.uname_result(*os.uname())
            vars(threading.main_thread()).update(_native_id=0)
        _start_clocks()

    def _is_on(self, layer: Layer) -> bool:
        return self.layers[layer] == ON

    def _prepare(self, layer: Layer) -> str:
        """Return whether a guard can be put up here, or say why it need not be."""
        if layer == "limits":
            return ON
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "available on Linux only")
        if layer == "user":
            return _other_users()
        if layer == "landlock":
            self._ruleset = deny_everything()
        if layer == "seccomp":
            if linux.MACHINE not in MACHINES:
                raise OSError(errno.ENOSYS, f"the machine type {linux.MACHINE} is not supported")
            self._instructions = compute_only(linux.MACHINE)
            _try_filter(self._instructions)
        return ON


def address_space() -> int:
    """Return how many bytes of addresses this process uses, as far as that is known."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _other_users() -> str:
    """Return whether this process can become users that nobody else is."""
    if os.geteuid() != 0:
        return "not needed: not root"
    if Path("/proc/self/setgroups").read_text().strip() != "allow":
        raise OSError(errno.EPERM, "this container does not allow dropping groups")
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_USER and first + count > _FIRST_USER + _USERS:
            return ON
    raise OSError(errno.EPERM, "this container has no unused user ids")


def _try_filter(instructions: bytes) -> None:
    """Filter the system calls of a process that does nothing else, to see whether that works."""
    child = os.fork()
    if child == 0:
        try:
            linux.give_up_new_privileges()
            linux.filter_system_calls(instructions)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        reason = os.strerror(code) if code > 0 else f"a process was ended by signal {-code}"
        raise OSError(max(code, 0), f"this kernel filters no system calls: {reason}")


class ImportGuard(MetaPathFinder):
    """Refuses what is not loaded already: the real environment would be a perfect model."""

    def __init__(self, importable: Iterable[str]) -> None:
        self._names = ", ".join(sorted(importable))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Say what may be imported instead."""
        raise ModuleNotFoundError(
            f"cannot import {fullname!r}: only {self._names} and those modules of the standard "
            "library that just compute are available",
            name=fullname,
        )


def _limit_resources(limits: Limits, room: Room) -> None:
    """Have the kernel refuse what goes beyond the limits.

    CPU time is watched more closely by the worker. The number of processes
    does not bind root, whose programs the worker watches for children.
    """
    seconds = ceil(time.process_time() + limits.cpu_seconds) + 1
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower(resource.RLIMIT_FSIZE, limits.output_bytes + DUMP_BYTES)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    for name in ("CORE", "NPROC", "MEMLOCK", "MSGQUEUE"):
        if hasattr(resource, f"RLIMIT_{name}"):
            _lower(getattr(resource, f"RLIMIT_{name}"), 0)
    if sys.platform == "linux":  # elsewhere it is not enforced, or counts what cannot be known
        _lower(resource.RLIMIT_AS, room.before + room.job + (limits.memory_mb << 20))


def _start_clocks() -> None:
    """Have the clocks of the `time` module show the time since this process got its job.

    An answer then cannot depend on the hour, and a loop that ends after some time still ends.
    """
    monotonic, monotonic_ns = time.monotonic, time.monotonic_ns
    began, began_ns = monotonic(), monotonic_ns()

    def seconds() -> float:
        """Return seconds since this process got its job."""
        return monotonic() - began

    def nanoseconds() -> int:
        """Return nanoseconds since this process got its job."""
        return monotonic_ns() - began_ns

    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, seconds)
    for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        setattr(time, name, nanoseconds)


def _lower(name: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, or keep the lower one that is set already."""
    _, present = resource.getrlimit(name)
    bounds = (soft, soft if hard is None else hard)
    if present != resource.RLIM_INFINITY:
        bounds = (min(bounds[0], present), min(bounds[1], present))
    resource.setrlimit(name, bounds)
