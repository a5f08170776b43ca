"""The guards that protect the machine from a program, and the limits on its time and memory.

The worker prepares the guards once. The process of a program activates the early guards while it
waits for its job, and the last ones when it has received the job.
"""

import ast
import errno
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Self, get_args

from cwm_cli.errors import CwmError
from cwm_cli.sandbox import linux
from cwm_cli.sandbox.linux import MACHINES, compute_only, deny_everything, for_process

Layer = Literal["user", "capabilities", "landlock", "limits", "seccomp"]
"""Guards: a separate user for each program if cwm runs as root; no capabilities; no files; limits
on resources; a filter of system calls."""

LAYERS: tuple[Layer, ...] = get_args(Layer)
ON = "on"
NOT_HERE = "not here"

_USERS = range(1_900_000_000, 1_900_030_000)
"""User ids that no user has. Each process gets one, by its number, so that it cannot signal others
or read their memory."""


_MIN_SECONDS, _MAX_SECONDS = 0.01, 1e6


@dataclass(frozen=True)
class Limits:
    """Bounds for a program in one job, or for one question of a conversation.

    CPU time is the main limit, because it does not depend on the load of the machine. Wall-clock
    time is a backstop for programs that sleep. On systems where the CPU time of another process
    cannot be read (macOS), stalls are measured by the wall clock.

    A program can forge its progress, so a step that takes too long is detected immediately only in
    an honest program. The total holds for all programs: the processes that answer the rows of a
    dataset share the time in proportion to their rows. The processes of an audit have the whole
    time once more for each worker, because each process loads the program. After a program has run
    out of time, no further dataset is asked. All rollouts of a program together may take as long as
    one process by the wall clock.
    """

    wall_seconds: float = 60.0
    """Maximum wall-clock time of a program in seconds."""

    cpu_seconds: float = 10.0
    """Maximum CPU time of a program in seconds, for all rows of a dataset."""

    stall_seconds: float = 1.0
    """Maximum CPU time in seconds for loading a program or for a single step."""
    # One second is about 100,000 times the duration of a typical step. It leaves time for tables
    # that are built at import, and ends a hang ten times sooner than `cpu_seconds`.

    sleep_seconds: float = 2.0
    """Maximum time in seconds that a program may sleep or wait; no model needs this."""

    memory_mb: int = 512
    """Maximum memory of a program in megabytes, beyond the memory of an idle process."""

    output_bytes: int = 1 << 20
    """Maximum number of bytes that a program may print."""

    def part(self, share: float) -> Self:
        """Return the limits of a process that has a share of the CPU and sleep time."""
        return self.less(
            used=(1 - share) * self.cpu_seconds, slept=(1 - share) * self.sleep_seconds
        )

    def without_time(self) -> Self:
        """Return limits that do not reveal the remaining time, which depends on earlier processes.

        The CPU time is one day: too long to matter.
        """
        return type(self)(
            memory_mb=self.memory_mb, output_bytes=self.output_bytes, cpu_seconds=86400.0
        )

    def longer(self, draws: int) -> Self:
        """Return the limits for several draws of each row.

        Every 16 draws add the time limit once more. A program that answers a row in 30 microseconds
        then has time for 64 draws of each of 20,000 rows.
        """
        factor = 1 + draws // 16
        return replace(
            self,
            cpu_seconds=min(_MAX_SECONDS, factor * self.cpu_seconds),
            wall_seconds=min(_MAX_SECONDS, factor * self.wall_seconds),
        )

    def less(self, *, used: float, slept: float, passed: float = 0.0) -> Self:
        """Return the limits that remain after a process.

        Args:
            used: CPU time of the process in seconds.
            slept: Sleep and wait time of the process in seconds.
            passed: Wall-clock time of the process in seconds.
        """
        return replace(
            self,
            cpu_seconds=max(_MIN_SECONDS, self.cpu_seconds - used),
            sleep_seconds=max(_MIN_SECONDS, self.sleep_seconds - slept),
            wall_seconds=max(_MIN_SECONDS, self.wall_seconds - passed),
        )

    def __post_init__(self) -> None:
        bounds = {"memory_mb": (1, 1 << 20), "output_bytes": (0, 1 << 30)}
        for name, value in vars(self).items():
            least, most = bounds.get(name, (_MIN_SECONDS, _MAX_SECONDS))
            if not least <= value <= most:
                raise ValueError(f"{name} is {value:g}; it must be from {least:g} to {most:.0f}")

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> Self:
        """Return limits with the options of a user, and defaults for all others.

        Raises:
            CwmError: An option is unknown or out of range.
        """
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise CwmError(f"invalid limit of the sandbox: {error}") from error


class AddressSpace(NamedTuple):
    """Bytes of address space that a process uses before its job, and that the job itself uses."""

    before: int
    job: int


class Guards:
    """The guards of this machine; `layers` has the state of each, "on" or why it is not on.

    Args:
        wanted: Guards to activate if the machine has them.
        importable: Modules that an `ImportError` names as available.
    """

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
        """Whether the guards prevent a program from leaving files and processes."""
        return self._is_on("seccomp")

    @property
    def checks_source(self) -> bool:
        """Whether the source of programs is checked because no kernel filter confines them."""
        return self.layers["seccomp"].startswith(NOT_HERE)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that have to stay open for `apply_early`."""
        return () if self._ruleset is None else (self._ruleset,)

    def apply_inherited(self) -> None:
        """Activate, in the worker, the guards that its processes inherit."""
        if any(self._is_on(layer) for layer in ("capabilities", "landlock", "seccomp")):
            linux.give_up_new_privileges()
        # A change of the user, which follows in each process, needs the capabilities.
        if self._is_on("capabilities") and not self._is_on("user"):
            linux.drop_capabilities()
        if self._is_on("seccomp"):
            linux.ask_kernel_for_time()

    def apply_early(self) -> None:
        """Activate the guards that allow this process to receive its job."""
        if self._is_on("user"):  # a change from root to another user also drops the capabilities
            user = _USERS[os.getpid() % len(_USERS)]
            os.setgroups([])  # first, since another user may not
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        if self._is_on("capabilities"):
            linux.hide_from_others()
        if self._ruleset is not None:
            linux.landlock_restrict(self._ruleset)

    def apply_last(self, limits: Limits, space: AddressSpace) -> None:
        """Activate all other guards; from then on the process can only compute."""
        if self._is_on("limits"):
            _limit_resources(limits, space)
        if self._is_on("seccomp"):
            linux.filter_system_calls(for_process(self._instructions, os.getpid()))
            os.uname = lambda: os.uname_result(("Linux", "sandbox", "", "", linux.MACHINE))
            platform.uname = lambda: platform.uname_result(*os.uname())
            # Hide the thread number, which Python has stored before the filter.
            vars(threading.main_thread()).update(_native_id=0)
        _start_clocks()

    def _is_on(self, layer: Layer) -> bool:
        return self.layers[layer] == ON

    def _prepare(self, layer: Layer) -> str:
        """Prepare a guard; return its state, or raise `OSError` if the machine lacks it."""
        if layer == "limits":
            return ON
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "available on Linux only")
        if layer == "user":
            return _check_spare_users()
        if layer == "landlock":
            self._ruleset = deny_everything()
        if layer == "seccomp":
            if linux.MACHINE not in MACHINES:
                raise OSError(errno.ENOSYS, f"the machine type {linux.MACHINE} is not supported")
            self._instructions = compute_only(linux.MACHINE)
            _try_filter(self._instructions)
        return ON


def address_space() -> int:
    """Return the size of the address space of this process in bytes; 0 outside Linux."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _check_spare_users() -> str:
    """Return `ON` if this process can become one of the unused users."""
    if os.geteuid() != 0:
        return "not needed: not root"
    if Path("/proc/self/setgroups").read_text().strip() != "allow":
        raise OSError(errno.EPERM, "this container does not allow dropping groups")
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _USERS.start and first + count > _USERS.stop:
            return ON
    raise OSError(errno.EPERM, "this container has no unused user ids")


def _try_filter(instructions: bytes) -> None:
    """Apply the filter in a child process, to test that the kernel accepts it."""
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
    """Refuses imports of new modules: the true environment would be a perfect model."""

    def __init__(self, importable: Iterable[str]) -> None:
        self._names = ", ".join(sorted(importable))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise an error that names the available modules."""
        raise ModuleNotFoundError(
            f"cannot import {fullname!r}: only {self._names} and those modules of the standard "
            "library that just compute are available",
            name=fullname,
        )


def _limit_resources(limits: Limits, space: AddressSpace) -> None:
    """Set the limits of the kernel.

    The worker watches CPU time more closely. The limit on processes does not bind root, so the
    worker also checks programs for children.
    """
    # Later than the worker, which knows the reason and reports it.
    seconds = ceil(time.process_time() + limits.cpu_seconds) + 1
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower(resource.RLIMIT_FSIZE, limits.output_bytes + (1 << 16))  # and a stack in the log
    _lower(resource.RLIMIT_NOFILE, 32)
    for name in ("CORE", "NPROC", "MEMLOCK", "MSGQUEUE"):
        if hasattr(resource, f"RLIMIT_{name}"):
            _lower(getattr(resource, f"RLIMIT_{name}"), 0)
    if sys.platform == "linux":  # other systems do not enforce it, or count unknown memory
        _lower(resource.RLIMIT_AS, space.before + space.job + (limits.memory_mb << 20))


def _start_clocks() -> None:
    """Make the clocks of the `time` module show the time since this process received its job.

    Then an answer cannot depend on the hour, and a loop with a time limit still ends.
    """
    monotonic, monotonic_ns = time.monotonic, time.monotonic_ns
    began, began_ns = monotonic(), monotonic_ns()

    def seconds() -> float:
        return monotonic() - began

    def nanoseconds() -> int:
        return monotonic_ns() - began_ns

    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, seconds)
    for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        setattr(time, name, nanoseconds)


def _lower(name: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but never raise one that is already set."""
    _, present = resource.getrlimit(name)
    bounds = (soft, soft if hard is None else hard)
    if present != resource.RLIM_INFINITY:
        bounds = (min(bounds[0], present), min(bounds[1], present))
    resource.setrlimit(name, bounds)


class ForbiddenName(SyntaxError):
    """A program uses a name that is forbidden on this machine."""


def check_source(program: str, file: str) -> None:
    """Refuse a program that does more than compute.

    This check is used if the kernel cannot confine a program (macOS, old kernels). It prevents
    accidents, such as a program that reads files because a language model considers that helpful.
    It is not a security boundary: a hostile program can circumvent it.

    Args:
        program: Source text of the program.
        file: File name for the error.

    Raises:
        ForbiddenName: The program uses a name that is not allowed.
        SyntaxError: The text is not Python.
    """
    for node in ast.walk(ast.parse(program, file)):
        for name in _forbidden_names(node):
            line = getattr(node, "lineno", 1)
            raise ForbiddenName(
                f"{name!r} is not allowed: on this machine the only protection is a check of the "
                "program's text, so programs may only compute",
                (file, line, None, None),
            )


# Modules, functions and attributes that do more than compute, and harmless attributes.
_MODULES = """
_thread asyncio builtins codeop concurrent ctypes fcntl gc glob gzip http importlib inspect
linecache mmap multiprocessing os pathlib pickle platform posix pty resource runpy select shelve
shutil signal site socket sqlite3 ssl subprocess tempfile urllib webbrowser zipfile
"""
_FUNCTIONS = "open eval exec compile __import__ breakpoint globals vars"
_ATTRIBUTES = """
modules meta_path load save savez savez_compressed loadtxt savetxt genfromtxt fromfile tofile memmap
ctypeslib f2py
"""
_HARMLESS = "__init__ __name__ __class__ __post_init__ __doc__ __stdin__ __stdout__"


def _forbidden_names(node: ast.AST) -> Iterator[str]:
    modules = _MODULES.split()
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.partition(".")[0] in modules)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield from (module,) if module.partition(".")[0] in modules else ()
    elif isinstance(node, ast.Name):
        yield from (node.id,) if node.id in _FUNCTIONS.split() else ()
    elif isinstance(node, ast.Attribute):
        hidden = node.attr.startswith("__") and node.attr not in _HARMLESS.split()
        is_forbidden = node.attr in (*modules, *_ATTRIBUTES.split())
        yield from (node.attr,) if hidden or is_forbidden else ()
