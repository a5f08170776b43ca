"""Linux functions that confine a process: Landlock, a filter of system calls, and others.

All functions raise `OSError` if the kernel refuses a call.
"""

import ctypes
import errno
import mmap
import os
import platform
import signal
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

MACHINE = platform.machine()

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446

# Instructions of classic BPF, and the fields of the description of a call (`struct seccomp_data`).
_INSTRUCTION = Struct("=HBBI")
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16
_PID_PLACEHOLDER = 0x5AFE9D1D
"""Stands for the number of the process in a filter; larger than any process number."""

ALLOWED = """
read write close close_range lseek munmap mremap brk
rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
nanosleep getrandom getrusage getrlimit sched_yield exit exit_group restart_syscall
poll ppoll select pselect6 set_robust_list rseq
"""
"""System calls for computing with memory, clocks and descriptors that are already open.

`os.closerange` of Python 3.13 needs `close_range`: the C library aborts the process without it.
"""

CONSTANT = "getpid gettid getppid getuid geteuid getgid getegid time"
"""Calls that return 0 in every process, so that no answer depends on the process or the hour."""


class Machine(NamedTuple):
    """The audit number of an architecture in the kernel, and the numbers of its system calls."""

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
"""From the tables of the kernel, without calls that an architecture lacks (select on aarch64)."""


def fork_sibling() -> int:
    """Fork this process; the new process is a child of the parent of this one.

    Returns:
        The process number, or 0 in the new process.

    Raises:
        OSError: This process has several threads, or the system is not supported.
    """
    clone = {"x86_64": 56, "aarch64": 220}
    # A fork has only the calling thread: locks that other threads held would stay locked.
    if MACHINE not in clone or len(list(Path("/proc/self/task").iterdir())) > 1:
        raise OSError(errno.ENOSYS, "this process cannot be forked as a sibling")
    return _call(clone[MACHINE], 0x8000, 0, 0, 0, 0)  # CLONE_PARENT


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent thread ends, until the user changes."""
    if sys.platform == "linux":
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def adopt_orphans(*, adopts: bool = True) -> None:
    """Become the parent of all descendants whose own parent ends, or stop doing so."""
    if sys.platform == "linux":
        _prctl(36, int(adopts))  # PR_SET_CHILD_SUBREAPER


class ProcessStat(NamedTuple):
    """State and start of a process.

    The state is a letter, such as `Z` for a process that has ended but was not reaped. The start is
    in clock ticks since the machine was started.
    """

    state: str
    begun: str


def process_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process, or None if it has ended or the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # before it is the name, with any characters
    return ProcessStat(state, rest[18])


def self_stopper() -> Callable[[], object]:
    """Return a function that stops this process, even after the filter hides its number."""
    if MACHINE not in MACHINES or sys.platform != "linux":
        return partial(signal.raise_signal, signal.SIGSTOP)
    pid = os.getpid()
    return partial(_call, MACHINES[MACHINE].numbers["tgkill"], pid, pid, signal.SIGSTOP)


def ask_kernel_for_time() -> bool:
    """Replace the functions of the vDSO by system calls, which a filter can refuse.

    The kernel maps the vDSO into every process, so that clocks are read without a system call. The
    page with the time itself (vvar) is unmapped. Processes that are forked from this one then have
    no other access to the clocks.

    Returns:
        Whether the functions were replaced.
    """
    if sys.platform != "linux" or MACHINE not in MACHINES:
        return False
    numbers = MACHINES[MACHINE].numbers
    prefix = {"x86_64": "__vdso_", "aarch64": "__kernel_"}[MACHINE]
    try:
        vdso = ctypes.CDLL("linux-vdso.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        [code] = _mappings("[vdso")  # always one mapping, which the kernel does not split
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        _checked(_LIBC.mprotect(*code, executable | mmap.PROT_WRITE))
        for name in (
            "clock_gettime",
            "gettimeofday",
            "time",
            "clock_getres",
            "getcpu",
            "getrandom",
        ):
            with suppress(AttributeError):  # the kernel has no such function
                function = vdso[prefix + name]
                ctypes.memmove(function, *_system_call_code(numbers[name]))
        _checked(_LIBC.mprotect(*code, executable))
        for mapping in _mappings("[vvar"):
            _checked(_LIBC.munmap(*mapping))
    except OSError:  # another C library, or a kernel that seals the vDSO
        return False
    return True


def _mappings(name: str) -> list[tuple[ctypes.c_void_p, ctypes.c_size_t]]:
    """Return address and size of each mapping of this process whose line contains a name."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            first, last = (int(address, 16) for address in line.split()[0].split("-"))
            found.append((ctypes.c_void_p(first), ctypes.c_size_t(last - first)))
    return found


def _system_call_code(number: int) -> tuple[bytes, int]:
    """Return machine code that passes its arguments to a system call, and its size."""
    code = b"\xb8" + number.to_bytes(4, "little") + b"\x0f\x05\xc3"  # mov eax; syscall; ret
    if MACHINE == "aarch64":
        code = struct.pack("<3I", 0xD2800008 | number << 5, 0xD4000001, 0xD65F03C0)  # mov; svc; ret
    return code, len(code)


def hide_from_others() -> None:
    """Deny other processes of the same user access to the memory of this process."""
    _prctl(4, 0)  # PR_SET_DUMPABLE


def give_up_new_privileges() -> None:
    """Prevent this process from gaining rights by executing other programs."""
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS


def drop_capabilities() -> None:
    """Drop all capabilities, which are the privileges of root."""
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    capset = {"x86_64": 126, "aarch64": 91}[MACHINE]
    _call(capset, header, bytes(24))  # no effective, permitted or inheritable capability


def landlock_version() -> int:
    """Return the version of Landlock in this kernel, or 0."""
    try:
        return _call(_LANDLOCK_CREATE_RULESET, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    except OSError:
        return 0


def landlock_restrict(ruleset: int) -> None:
    """Restrict this process permanently by a ruleset."""
    _call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`: the number of instructions and their address."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls(instructions: bytes) -> None:
    """Filter all further system calls of this process permanently by a classic BPF program."""
    program = _FilterProgram(len(instructions) // 8, instructions)
    _prctl(22, 2, ctypes.addressof(program))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _prctl(option: int, *values: int) -> None:
    padded = (ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4])
    _checked(_LIBC.prctl(option, *padded))  # only looked up on Linux


def _call(number: int, *values: int | bytes | None) -> int:
    # ctypes would pass a plain int of a variadic function as 32 bits.
    arguments = [ctypes.c_long(v) if isinstance(v, int) else v for v in values]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def deny_everything() -> int:
    """Return the descriptor of a Landlock ruleset that denies everything the kernel can deny.

    It denies all files and folders, TCP (since version 4), and signals and abstract sockets to
    processes outside (since version 6).

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    attributes = landlock_attributes(version)
    return _call(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)


_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = (
    1 << bit for bit in (0, 1, 2, 3, 14, 15)
)
"""Rights of Landlock; the other ones are about the entries of a folder."""


class FileAccess(NamedTuple):
    """Files and folders, with all that is below them, that a process may use.

    Args:
        read: Paths to read and to execute.
        listed: Folders whose names may be listed, while their files cannot be read.
        write: Paths to use in every way.
    """

    read: Sequence[str]
    listed: Sequence[str]
    write: Sequence[str]


def hide_other_files(access: FileAccess) -> None:
    """Hide all other files from this process and its children, permanently.

    Signals to processes outside are refused as well, since version 6 of Landlock. The network
    stays open. Paths that do not exist are left out.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    [every] = struct.unpack_from("=Q", landlock_attributes(version))
    words = [every, 0, 0b10] if version >= 6 else [every]
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = _call(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    rights = (_EXECUTE | _READ_FILE | _READ_DIR, _READ_DIR, every)
    for paths, allowed in zip(access, rights, strict=True):
        for path in paths:
            _allow(ruleset, path, allowed & every)
    give_up_new_privileges()
    landlock_restrict(ruleset)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule that allows rights below a path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
        if rights:
            rule = struct.pack("=Qi", rights, descriptor)
            _call(_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)  # LANDLOCK_RULE_PATH_BENEATH
    finally:
        os.close(descriptor)


def landlock_attributes(version: int) -> bytes:
    """Return the attributes of a ruleset that denies everything, for a version of Landlock."""
    file_rights = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # later versions add none
    words = [(1 << file_rights[min(version, 5)]) - 1]
    if version >= 4:
        words.append(0b11)  # bind and connect of TCP
    if version >= 6:
        words.append(0b11)  # abstract sockets and signals
    return struct.pack(f"={len(words)}Q", *words)


def for_process(instructions: bytes, pid: int) -> bytes:
    """Return the filter of `compute_only` for a process, which may then signal itself."""
    placeholder = _PID_PLACEHOLDER.to_bytes(4, sys.byteorder)
    return instructions.replace(placeholder, pid.to_bytes(4, sys.byteorder))


def compute_only(machine: str) -> bytes:
    """Return the filter for a machine of `MACHINES`, as a classic BPF program.

    A call that is not allowed fails with EPERM, which Python raises as PermissionError. A call with
    the numbers of another architecture (32-bit, x32) ends the process. The calls of `ALLOWED` are
    allowed and the calls of `CONSTANT` return 0. A process may also read its own limits and map
    memory that it cannot execute.

    CPU clocks of other processes and futexes on pages of shared libraries are refused, because two
    processes could use them to exchange data. Clocks with the hour are refused too. A signal to a
    guessed process number ends the process.
    """
    audit, numbers = MACHINES[machine]
    code = [_load(_AUDIT), *_unless_equal(audit, _end(_KILL)), _load(_NUMBER)]
    if machine == "x86_64":
        # Calls of the x32 interface have this bit in their number, and other meanings.
        code += [_step(_IF_AT_LEAST, 0x40000000, 0, 1), _end(_KILL)]
    for name in ALLOWED.split():
        if name in numbers:
            code += _when(numbers[name], [_end(_ALLOW)])
    for name in ("mmap", "mprotect"):
        executable = [
            _load(_argument(2)),
            _step(_IF_ANY_BIT, mmap.PROT_EXEC, 0, 1),
            _refuse(errno.EPERM),
        ]
        code += _when(numbers[name], [*executable, _end(_ALLOW)])
    for name in CONSTANT.split():
        if name in numbers:
            code += _when(numbers[name], [_refuse(0)])
    code += _clock_rules(numbers)
    private_futex, real_time_futex = 128, 256
    shared = [_load(_argument(1)), _step(_IF_ANY_BIT, private_futex, 1, 0), _refuse(errno.EPERM)]
    real = [_step(_IF_ANY_BIT, real_time_futex, 1, 0), _end(_ALLOW)]
    # A lock without a timeout names the real-time clock, too.
    for half in (_argument(3), _argument(3) + 4):
        real += [_load(half), *_unless_equal(0, _refuse(errno.EPERM))]
    code += _when(numbers["futex"], [*shared, *real, _end(_ALLOW)])
    # The time of a write shows whether the kernel has merged a page with an equal one elsewhere.
    merged = [_load(_argument(2)), _step(_IF_EQUAL, 12, 0, 1)]  # MADV_MERGEABLE
    code += _when(numbers["madvise"], [*merged, _refuse(errno.EINVAL), _end(_ALLOW)])
    own = [_load(_argument(0)), *_unless_equal(0, _refuse(errno.EPERM)), _end(_ALLOW)]
    code += _when(numbers["sched_getaffinity"], own)
    # A program sees its own process number as 0; a signal to another number ends it.
    no_group = [_load(_argument(0)), _step(_IF_EQUAL, 0, 0, 1), _refuse(errno.EPERM)]
    to_itself = [*no_group, *_unless_equal(_PID_PLACEHOLDER, _end(_KILL))]
    code += _when(numbers["tgkill"], [*to_itself, _end(_ALLOW)])
    own_and_only_read = [
        line
        for half in (_argument(0), _argument(0) + 4, _argument(2), _argument(2) + 4)
        for line in (_load(half), *_unless_equal(0, _refuse(errno.EPERM)))
    ]
    code += _when(numbers["prlimit64"], [*own_and_only_read, _end(_ALLOW)])
    code += _when(numbers["clone3"], [_refuse(errno.ENOSYS)])  # then libc falls back to clone
    return b"".join([*code, _refuse(errno.EPERM)])


def _clock_rules(numbers: dict[str, int]) -> list[bytes]:
    """Return the part of the filter about clocks.

    Wall clocks may not be read. Sleeping on one until an absolute time is refused too, because it
    returns immediately if the time has passed.
    """
    # Clocks from 12 on are CPU clocks of any process.
    no_process = [_load(_argument(0)), _step(_IF_AT_LEAST, 12, 0, 1), _refuse(errno.EPERM)]
    wall_clocks = (0, 5, 8, 11)  # real time, coarse real time, its alarm, and atomic time
    no_hour = [
        line
        for clock in wall_clocks
        for line in (_step(_IF_EQUAL, clock, 0, 1), _refuse(errno.EPERM))
    ]
    monotonic, absolute = 1, 1  # a clock, and a flag
    relative = [
        _step(_IF_EQUAL, monotonic, 2, 0),
        _load(_argument(1)),
        _step(_IF_ANY_BIT, absolute, 1, 0),
        _end(_ALLOW),
        _refuse(errno.EPERM),
    ]
    return [
        *_when(numbers["clock_gettime"], [*no_process, *no_hour, _end(_ALLOW)]),
        *_when(numbers["clock_getres"], [*no_process, _end(_ALLOW)]),
        *_when(numbers["clock_nanosleep"], [*no_process, *relative]),
    ]


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return an instruction; the jumps are the numbers of instructions to skip."""
    return _INSTRUCTION.pack(operation, if_true, if_false, value)


def _load(offset: int) -> bytes:
    """Return an instruction that loads 32 bits of the description of the call."""
    return _step(_LOAD, offset)


def _argument(index: int) -> int:
    """Return the offset of the lower half of an argument, on little-endian machines."""
    return _ARGUMENTS + 8 * index


def _end(verdict: int) -> bytes:
    return _step(_RETURN, verdict)


def _refuse(error: int) -> bytes:
    """Return an instruction that makes the call fail with an error number (0: return 0)."""
    return _end(0x00050000 | error)  # SECCOMP_RET_ERRNO


def _unless_equal(value: int, line: bytes) -> list[bytes]:
    """Return code that executes one instruction unless the loaded word equals a value."""
    return [_step(_IF_EQUAL, value, 1, 0), line]


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Return code that executes `body` for one system call; `body` has to end in a verdict."""
    return [_step(_IF_EQUAL, number, 0, len(body)), *body]
