"""The guards that protect the machine from a program, activated in its own process.

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
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cwm_cli.sandbox import linux
from cwm_cli.sandbox.linux import MACHINES, compute_only, deny_everything, for_process
from cwm_cli.sandbox.protocol import LAYERS, Layer, Limits

ON = "on"
NOT_HERE = "not here"

_USERS = range(1_900_000_000, 1_900_030_000)
"""User ids that no user has. Each process gets one, by its number, so that it cannot signal others
or read their memory."""


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
