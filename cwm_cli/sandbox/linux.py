"""System calls that the standard library lacks; where the kernel refuses one it raises OSError."""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from pathlib import Path

MACHINE = platform.machine()

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION = 1


def fork_sibling() -> int:
    """Fork as `os.fork` does, but into a child of the parent; only a process of one thread may."""
    if MACHINE not in _CLONE or len(list(Path("/proc/self/task").iterdir())) > 1:
        raise OSError(errno.ENOSYS, "this process cannot be forked so")
    return _call(_CLONE[MACHINE], _CLONE_PARENT, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Have this process killed when the thread that forked it ends; a change of user undoes it."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_from_others() -> None:
    """Keep the memory of this process from other processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def give_up_new_privileges() -> None:
    """Let no program that this process may execute have more rights than it has."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability, and with them what makes root powerful."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call(_CAPSET[MACHINE], header, bytes(24))


def landlock_version() -> int:
    """Return the version of Landlock that this kernel has, or 0."""
    try:
        return _call(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    except OSError:
        return 0


def landlock_ruleset(handled: bytes) -> int:
    """Return the descriptor of a ruleset that allows nothing of what it handles."""
    return _call(_LANDLOCK_CREATE_RULESET, handled, len(handled), 0)


def landlock_restrict(ruleset: int) -> None:
    """Restrict this process by a ruleset, for good."""
    _call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


class _FilterProgram(ctypes.Structure):
    """What the kernel takes: the number of instructions and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls(instructions: bytes) -> None:
    """Pass every further system call of this process through a classic BPF program, for good."""
    program = _FilterProgram(len(instructions) // 8, instructions)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _prctl(option: int, *values: int) -> None:
    """Change an attribute of this process."""
    _checked(_LIBC.prctl(option, *(*values, 0, 0, 0, 0)[:4]))


def _call(number: int, *values: int | bytes | None) -> int:
    """Make a system call by its number."""
    arguments = [ctypes.c_long(v) if isinstance(v, int) else v for v in values]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> int:
    """Raise what the kernel complains of."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
