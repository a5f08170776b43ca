"""What Linux offers to confine a process: system calls, Landlock, and a filter of system calls.

Where the kernel refuses what is asked of it the functions raise OSError.
"""

import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

MACHINE = platform.machine()

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
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

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version of Landlock knows; later ones know no more."""

_TCP_SINCE, _SCOPES_SINCE = 4, 6
_BIND_AND_CONNECT = 0b11
_SOCKETS_AND_SIGNALS = 0b11

_INSTRUCTION = Struct("=HBBI")
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE = 0x00050000
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_PROT_EXEC = 4
_NOBODY = 0x5AFE9D1D
"""Stands for the number of a process, and is larger than any."""

ALLOWED = """
read write close close_range lseek munmap mremap brk
rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
nanosleep getrandom getrusage getrlimit sched_yield exit exit_group restart_syscall
poll ppoll select pselect6 set_robust_list rseq
"""
"""What computing takes: it works on memory, clocks and the descriptors that are open already.

`os.closerange` of Python 3.13 needs `close_range`: the C library aborts the process without it.
"""


CONSTANT = "getpid gettid getppid getuid geteuid getgid getegid time"
"""Calls that return 0 in every process, so that no answer depends on the process or the hour."""

_CLOCKS = 12
"""Clocks of the machine or of the caller; other numbers are CPU clocks of any process."""

_WALL_CLOCKS = (0, 5, 8, 11)
"""Real time, coarse real time, the alarm of real time, and atomic time."""

_ABSOLUTE, _MONOTONIC = 1, 1
_FUTEX_PRIVATE, _FUTEX_REAL_TIME = 128, 256
_MADVISE_MERGEABLE = 12


class Machine(NamedTuple):
    """How a machine is known to the kernel, and the numbers of its system calls."""

    audit: int
    numbers: dict[str, int]


MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        {
            "read": 0, "write": 1, "close": 3, "poll": 7, "lseek": 8, "mmap": 9,
            "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
            "rt_sigreturn": 15, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28,
            "nanosleep": 35, "getpid": 39, "exit": 60, "gettimeofday": 96,
            "getrlimit": 97, "getrusage": 98, "getuid": 102, "getgid": 104, "geteuid": 107,
            "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201,
            "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228,
            "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "tgkill": 234,
            "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "prlimit64": 302,
            "getcpu": 309, "getrandom": 318, "rseq": 334, "clone3": 435,
            "close_range": 436,
        },
    ),
    "aarch64": Machine(
        0xC00000B7,
        {
            "close": 57, "lseek": 62, "read": 63, "write": 64, "pselect6": 72, "ppoll": 73,
            "exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99,
            "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
            "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "tgkill": 131,
            "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
            "getrlimit": 163, "getrusage": 165, "getcpu": 168, "gettimeofday": 169,
            "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176,
            "getegid": 177, "gettid": 178, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222,
            "mprotect": 226, "madvise": 233, "prlimit64": 261, "getrandom": 278, "rseq": 293,
            "clone3": 435, "close_range": 436,
        },
    ),
}  # fmt: skip
"""From the kernel's tables; a call that a machine lacks (select on aarch64) is left out."""


def fork_sibling() -> int:
    """Fork as `os.fork` does, but into a child of the parent; only a process of one thread may."""
    if MACHINE not in _CLONE or len(list(Path("/proc/self/task").iterdir())) > 1:
        raise OSError(errno.ENOSYS, "this process cannot be forked so")
    return _call(_CLONE[MACHINE], _CLONE_PARENT, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Have this process killed when the thread that forked it ends; a change of user undoes it."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(*, adopts: bool = True) -> None:
    """Become the parent of every descendant whose own parent ends, or do so no more."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, int(adopts))


class ProcessStat(NamedTuple):
    """What the system tells of a process: its state, and when it began.

    The state is a letter, such as `Z` of one that nobody has waited for; the time is counted in
    ticks since the machine was started.
    """

    state: str
    begun: str


def process_stat(pid: int) -> ProcessStat | None:
    """Return what is told of a process, None where it is gone or nothing is told of any."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # what is before it may have any name
    return ProcessStat(state, rest[18])


def self_stopper() -> Callable[[], object]:
    """Return a function that stops this process, also under the filter, which hides its number."""
    if MACHINE not in MACHINES or sys.platform != "linux":
        return partial(signal.raise_signal, signal.SIGSTOP)
    pid = os.getpid()
    return partial(_call, MACHINES[MACHINE].numbers["tgkill"], pid, pid, signal.SIGSTOP)


_VDSO_NAMES = {"x86_64": "__vdso_", "aarch64": "__kernel_"}
_VDSO_FUNCTIONS = "clock_gettime gettimeofday time clock_getres getcpu getrandom"


def ask_kernel_for_time() -> bool:
    """Replace the functions of the vDSO by system calls, which a filter sees; return success.

    The kernel maps the vDSO into every process so that clocks are read without a system call.
    Programs that were forked from this process have no other way to the clocks. The page with the
    time itself (vvar) is unmapped.
    """
    if sys.platform != "linux" or MACHINE not in MACHINES:
        return False
    numbers = MACHINES[MACHINE].numbers
    try:
        vdso = ctypes.CDLL("linux-vdso.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        [code] = _mappings("[vdso")  # the kernel splits no such mapping
        runs = mmap.PROT_READ | mmap.PROT_EXEC
        _checked(_LIBC.mprotect(*code, runs | mmap.PROT_WRITE))
        for name in _VDSO_FUNCTIONS.split():
            with suppress(AttributeError):  # the kernel has no such function
                function = vdso[_VDSO_NAMES[MACHINE] + name]
                ctypes.memmove(function, *_system_call(numbers[name]))
        _checked(_LIBC.mprotect(*code, runs))
        for mapping in _mappings("[vvar"):
            _checked(_LIBC.munmap(*mapping))
    except OSError:  # another C library, or a kernel that seals the vDSO
        return False
    return True


def _mappings(name: str) -> list[tuple[ctypes.c_void_p, ctypes.c_size_t]]:
    """Return address and size of the mappings of this process that have a name."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            found.append((ctypes.c_void_p(first), ctypes.c_size_t(last - first)))
    return found


def _system_call(number: int) -> tuple[bytes, int]:
    """Return machine code that makes a system call with the arguments it gets, and its size."""
    code = b"\xb8" + number.to_bytes(4, "little") + b"\x0f\x05\xc3"  # mov eax; syscall; ret
    if MACHINE == "aarch64":
        code = struct.pack("<3I", 0xD2800008 | number << 5, 0xD4000001, 0xD65F03C0)  # mov; svc; ret
    return code, len(code)


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
    padded = (ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4])
    _checked(_LIBC.prctl(option, *padded))  # nothing of it is looked up where there is no Linux


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


def deny_everything() -> int:
    """Return the descriptor of a ruleset that denies all that this kernel can deny.

    That is every file and folder, TCP (since version 4), and signals and
    abstract sockets to processes outside (since version 6).
    OSError where the kernel has no Landlock.
    """
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    return landlock_ruleset(handled(version))


def handled(version: int) -> bytes:
    """Return the attributes of that ruleset as a version of the kernel's interface has them."""
    words = [(1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1]
    if version >= _TCP_SINCE:
        words.append(_BIND_AND_CONNECT)
    if version >= _SCOPES_SINCE:
        words.append(_SOCKETS_AND_SIGNALS)
    return struct.pack(f"={len(words)}Q", *words)


def for_process(instructions: bytes, pid: int) -> bytes:
    """Return the filter of `compute_only` for one process, which may signal itself."""
    return instructions.replace(_NOBODY.to_bytes(4, sys.byteorder), pid.to_bytes(4, sys.byteorder))


def compute_only(machine: str) -> bytes:
    """Return the filter for a machine of `MACHINES`, as a classic BPF program.

    A call that is not allowed fails with EPERM, which Python shows as a PermissionError;
    one of another machine's numbering (32-bit, x32) ends the process. A process may also
    read its own limits and map memory, which it may not execute. The calls of `CONSTANT` return 0.

    CPU clocks of other processes and futexes on pages of shared libraries are refused, because
    they would let two processes talk to each other. So are clocks with the hour. A signal to a
    guessed process ends the process.
    """
    audit, numbers = MACHINES[machine]
    code = [_load(_AUDIT), *_unless_equal(audit, _end(_KILL)), _load(_NUMBER)]
    if machine == "x86_64":
        code += [_step(_IF_AT_LEAST, _X32, 0, 1), _end(_KILL)]
    for name in ALLOWED.split():
        if name in numbers:
            code += _when(numbers[name], [_end(_ALLOW)])
    for name in ("mmap", "mprotect"):
        executable = [
            _load(_argument(2)),
            _step(_IF_ANY_BIT, _PROT_EXEC, 0, 1),
            _refuse(errno.EPERM),
        ]
        code += _when(numbers[name], [*executable, _end(_ALLOW)])
    for name in CONSTANT.split():
        if name in numbers:
            code += _when(numbers[name], [_refuse(0)])
    code += _clock_rules(numbers)
    shared = [_load(_argument(1)), _step(_IF_ANY_BIT, _FUTEX_PRIVATE, 1, 0), _refuse(errno.EPERM)]
    real = [_step(_IF_ANY_BIT, _FUTEX_REAL_TIME, 1, 0), _end(_ALLOW)]
    for half in (_argument(3), _argument(3) + 4):  # a lock without a timeout names this clock, too
        real += [_load(half), *_unless_equal(0, _refuse(errno.EPERM))]
    code += _when(numbers["futex"], [*shared, *real, _end(_ALLOW)])
    merged = [_load(_argument(2)), _step(_IF_EQUAL, _MADVISE_MERGEABLE, 0, 1)]
    code += _when(numbers["madvise"], [*merged, _refuse(errno.EINVAL), _end(_ALLOW)])
    own = [_load(_argument(0)), *_unless_equal(0, _refuse(errno.EPERM)), _end(_ALLOW)]
    code += _when(numbers["sched_getaffinity"], own)
    nobody = [_load(_argument(0)), _step(_IF_EQUAL, 0, 0, 1), _refuse(errno.EPERM)]
    to_itself = [*nobody, *_unless_equal(_NOBODY, _end(_KILL))]
    code += _when(numbers["tgkill"], [*to_itself, _end(_ALLOW)])
    own_and_only_read = [
        line
        for half in (_argument(0), _argument(0) + 4, _argument(2), _argument(2) + 4)
        for line in (_load(half), *_unless_equal(0, _refuse(errno.EPERM)))
    ]
    code += _when(numbers["prlimit64"], [*own_and_only_read, _end(_ALLOW)])
    code += _when(numbers["clone3"], [_refuse(errno.ENOSYS)])  # upon which libc tries clone
    return b"".join([*code, _refuse(errno.EPERM)])


def _clock_rules(numbers: dict[str, int]) -> list[bytes]:
    """Return the part of the filter about clocks.

    A wall clock is neither read nor slept on until an absolute time: that returns immediately if
    the time has passed.
    """
    no_process = [_load(_argument(0)), _step(_IF_AT_LEAST, _CLOCKS, 0, 1), _refuse(errno.EPERM)]
    no_hour = [
        line
        for clock in _WALL_CLOCKS
        for line in (_step(_IF_EQUAL, clock, 0, 1), _refuse(errno.EPERM))
    ]
    relative = [
        _step(_IF_EQUAL, _MONOTONIC, 2, 0),
        _load(_argument(1)),
        _step(_IF_ANY_BIT, _ABSOLUTE, 1, 0),
        _end(_ALLOW),
        _refuse(errno.EPERM),
    ]
    return [
        *_when(numbers["clock_gettime"], [*no_process, *no_hour, _end(_ALLOW)]),
        *_when(numbers["clock_getres"], [*no_process, _end(_ALLOW)]),
        *_when(numbers["clock_nanosleep"], [*no_process, *relative]),
    ]


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Assemble an instruction; the jumps count the instructions to leave out."""
    return _INSTRUCTION.pack(operation, if_true, if_false, value)


def _load(offset: int) -> bytes:
    """Load 32 bits of the description of the call."""
    return _step(_LOAD, offset)


def _argument(index: int) -> int:
    """Return where the lower half of an argument is, on little-endian machines."""
    return _ARGUMENTS + 8 * index


def _end(verdict: int) -> bytes:
    """Decide."""
    return _step(_RETURN, verdict)


def _refuse(error: int) -> bytes:
    """Have the call fail."""
    return _end(_REFUSE | error)


def _unless_equal(value: int, line: bytes) -> list[bytes]:
    """Do what `line` says unless what is loaded has a value."""
    return [_step(_IF_EQUAL, value, 1, 0), line]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Do `body`, which has to end in a decision, for one system call."""
    return [_step(_IF_EQUAL, number, 0, len(body)), *body]
