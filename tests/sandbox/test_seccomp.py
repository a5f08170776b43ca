"""The filter of system calls, in an interpreter of BPF and in the kernel."""

import errno
import faulthandler
import mmap
import os
import re
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm_cli.sandbox import linux
from cwm_cli.sandbox.linux import ALLOWED, CONSTANT, MACHINES, compute_only, for_process

PID = 4321
ALLOW, KILL = 0x7FFF0000, 0x80000000
ZERO = 0x00050000
REFUSE, REFUSE_CLONE3 = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

MOST_INSTRUCTIONS = 4096
CALL = struct.Struct("<IIQ6Q")
INSTRUCTION = struct.Struct("=HBBI")
X32 = 0x40000000

SPECIAL = {
    *("mmap", "mprotect", "tgkill", "prlimit64", "clone3", "clock_gettime", "clock_getres"),
    *("clock_nanosleep", "futex", "madvise", "sched_getaffinity"),
}
"""Calls whose verdict depends on their arguments, and clone3, which is reported as missing."""

WORD = st.integers(0, 2**64 - 1)
WORDS = st.tuples(*[WORD] * 6)
HALF = st.integers(1, 2**32 - 1)

each_machine = pytest.mark.parametrize("machine", MACHINES)


def filter_of(machine: str, pid: int = PID) -> bytes:
    """Return the filter of a process."""
    return for_process(compute_only(machine), pid)


def own_filter() -> bytes:
    return filter_of(linux.MACHINE, os.getpid())


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """Return (operation, jump if true, jump if false, value) of every instruction."""
    return list(INSTRUCTION.iter_unpack(program))


def decide(program: bytes, call: bytes) -> int:
    """Run classic BPF as the kernel does; an instruction that is not known here is an error."""
    code, accumulator, at = instructions(program), 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:  # load a word
            assert value % 4 == 0
            [accumulator] = struct.unpack_from("<I", call, value)
        elif operation == 0x06:  # return
            return value
        else:
            tests = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: accumulator & value,
            }
            at += if_true if tests[operation] else if_false


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Return what the filter of process PID says to a call."""
    known = MACHINES[machine]
    audit = known.audit if audit is None else audit
    words = (arguments + (0,) * 6)[:6]
    return decide(filter_of(machine), CALL.pack(number, audit, 0x7F00DEAD0000, *words))


def number_of(machine: str, name: str) -> int:
    return MACHINES[machine].numbers[name]


@each_machine
def test_filter_is_a_valid_bpf_program(machine: str) -> None:
    code = instructions(filter_of(machine))
    assert 0 < len(code) < MOST_INSTRUCTIONS
    for at, (operation, if_true, if_false, _) in enumerate(code):
        assert operation in (0x20, 0x06, 0x15, 0x35, 0x45)
        if operation != 0x06:
            assert at + 1 + max(if_true, if_false) < len(code), "jumps stay within the program"
    assert code[-1][0] == 0x06


def test_too_long_jump_is_refused() -> None:
    from cwm_cli.sandbox import linux as seccomp

    assert len(seccomp._when(1, [seccomp._end(0)] * 255)) == 256
    with pytest.raises(struct.error):
        seccomp._when(1, [seccomp._end(0)] * 256)


@each_machine
def test_only_calls_for_computing_are_allowed(machine: str) -> None:
    numbers = MACHINES[machine].numbers
    allowed = {numbers[name] for name in ALLOWED.split() if name in numbers}
    constant = {numbers[name] for name in CONSTANT.split() if name in numbers}
    assert len(allowed) > 20
    special = {numbers[name] for name in SPECIAL}
    for number in range(601):
        if number in allowed:
            assert verdict(machine, number) == ALLOW, number
        elif number in constant:
            assert verdict(machine, number) == ZERO, number
        elif number not in special:
            assert verdict(machine, number) == REFUSE, number
    assert verdict(machine, numbers["clone3"]) == REFUSE_CLONE3


@each_machine
@given(arguments=WORDS)
def test_arguments_never_allow_a_refused_call(machine: str, arguments: tuple[int, ...]) -> None:
    numbers = set(MACHINES[machine].numbers.values())
    for number in (56, 59, 203, 257, 317, 424, 425, 599):
        if number not in numbers:
            assert verdict(machine, number, *arguments) == REFUSE
    assert verdict(machine, number_of(machine, "clone3"), *arguments) == REFUSE_CLONE3


@each_machine
@given(number=st.integers(0, 2**32 - 1), audit=st.integers(0, 2**32 - 1), arguments=WORDS)
def test_calls_of_another_architecture_end_the_process(
    machine: str, number: int, audit: int, arguments: tuple[int, ...]
) -> None:
    if audit != MACHINES[machine].audit:
        assert verdict(machine, number, *arguments, audit=audit) == KILL


@each_machine
def test_32_bit_calls_end_the_process(machine: str) -> None:
    for audit in (0x40000003, 0x40000028, 0xC00000B7 ^ 0xC000003E ^ MACHINES[machine].audit):
        for number in range(601):
            assert verdict(machine, number, audit=audit) == KILL


@given(number=st.integers(X32, 2**32 - 1), arguments=WORDS)
def test_x32_calls_end_the_process(number: int, arguments: tuple[int, ...]) -> None:
    assert verdict("x86_64", number, *arguments) == KILL
    assert verdict("aarch64", number, *arguments) == REFUSE


@each_machine
@pytest.mark.parametrize("name", ["mmap", "mprotect"])
@given(arguments=WORDS)
def test_memory_is_never_executable(machine: str, name: str, arguments: tuple[int, ...]) -> None:
    number, executable = number_of(machine, name), mmap.PROT_EXEC
    first, second, protection, *rest = arguments
    protected = (first, second, protection | executable, *rest)
    assert verdict(machine, number, *protected) == REFUSE
    plain = (first, second, protection & ~executable, *rest)
    assert verdict(machine, number, *plain) == ALLOW


@each_machine
@given(pid=st.integers(0, 2**32 - 1), arguments=WORDS)
def test_process_may_signal_only_itself(machine: str, pid: int, arguments: tuple[int, ...]) -> None:
    number = number_of(machine, "tgkill")
    expected = {PID: ALLOW, 0: REFUSE}.get(pid, KILL)
    assert verdict(machine, number, pid, *arguments) == expected
    assert verdict(machine, number, PID, *arguments) == ALLOW


@each_machine
@given(kind=WORD, old=WORD, first=HALF, second=HALF)
def test_process_may_only_read_its_own_limits(
    machine: str, kind: int, old: int, first: int, second: int
) -> None:
    number = number_of(machine, "prlimit64")
    assert verdict(machine, number, 0, kind, 0, old) == ALLOW
    for shift in (0, 32):
        assert verdict(machine, number, first << shift, kind, 0, old) == REFUSE
        assert verdict(machine, number, 0, kind, second << shift, old) == REFUSE
        assert verdict(machine, number, first << shift, kind, second << shift, old) == REFUSE


@each_machine
@given(pid=st.integers(1, 2**22))
def test_every_process_has_its_own_filter(machine: str, pid: int) -> None:
    call = CALL.pack(number_of(machine, "tgkill"), MACHINES[machine].audit, 0, pid, *[0] * 5)
    assert decide(filter_of(machine, pid), call) == ALLOW
    assert decide(filter_of(machine, pid + 1), call) == KILL
    common, own = instructions(compute_only(machine)), instructions(filter_of(machine, pid))
    changed = [pair for pair in zip(common, own, strict=True) if len({*pair}) > 1]
    assert [(before[:3], after[3]) for before, after in changed] == [((0x15, 1, 0), pid)]


CLOCK = st.integers(0, 2**32 - 1)


@each_machine
@given(clock=CLOCK, high=st.integers(0, 2**32 - 1), arguments=WORDS)
def test_clocks_reveal_neither_hour_nor_other_processes(
    machine: str, clock: int, high: int, arguments: tuple[int, ...]
) -> None:
    wall, kept = (0, 5, 8, 11), (1, 2, 3, 4, 6, 7, 9)
    for each in (clock, *range(14), 2**32 - 6):
        word = high << 32 | each  # the kernel looks at the lower half
        read = verdict(machine, number_of(machine, "clock_gettime"), word, *arguments[:5])
        assert read == (ALLOW if each in (*kept, 10) else REFUSE), each
        for name in ("clock_getres", "clock_nanosleep"):
            expected = ALLOW if each in (*kept, *wall, 10) else REFUSE
            assert verdict(machine, number_of(machine, name), word, 0) == expected
        if each != 1:  # sleeping until a time would reveal if it has passed
            number = number_of(machine, "clock_nanosleep")
            assert verdict(machine, number, word, 1) == REFUSE


@each_machine
@given(operation=WORD, advice=WORD, pid=HALF, arguments=WORDS)
def test_memory_and_affinity_of_other_processes_are_refused(
    machine: str, operation: int, advice: int, pid: int, arguments: tuple[int, ...]
) -> None:
    for each in (operation, operation | 128, operation & ~256 | 128):
        for timeout in (0, pid, pid << 32):
            own = each & 128 and (not each & 256 or not timeout)
            futex = verdict(machine, number_of(machine, "futex"), 0, each, 0, timeout)
            assert futex == (ALLOW if own else REFUSE)
    madvise = number_of(machine, "madvise")
    assert verdict(machine, madvise, 0, 0, 12) == 0x00050000 | errno.EINVAL
    assert (verdict(machine, madvise, 0, 0, advice) == ALLOW) == (advice % 2**32 != 12)
    affinity = number_of(machine, "sched_getaffinity")
    assert verdict(machine, affinity, 0, *arguments[:5]) == ALLOW
    assert verdict(machine, affinity, pid, *arguments[:5]) == REFUSE


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
LACKING = {"x86_64": set(), "aarch64": {"poll", "select", "time"}}
"""Allowed calls that do not exist on aarch64."""


@each_machine
def test_numbers_of_calls_match_the_kernel(machine: str) -> None:
    header = HEADERS[machine]
    if not header.is_file():
        pytest.skip(f"{header} is not installed")
    pattern = r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)\b"
    kernel = {name: int(n) for name, n in re.findall(pattern, header.read_text(), re.MULTILINE)}
    assert len(kernel) > 250
    numbers = MACHINES[machine].numbers
    assert numbers == {name: kernel.get(name) for name in numbers}


@each_machine
def test_every_call_has_a_number(machine: str) -> None:
    numbers = MACHINES[machine].numbers
    assert len(set(numbers.values())) == len(numbers)
    assert {*ALLOWED.split(), *CONSTANT.split(), *SPECIAL} - numbers.keys() == LACKING[machine]
    unused = numbers.keys() - {*ALLOWED.split(), *CONSTANT.split(), *SPECIAL}
    assert unused == {"gettimeofday", "getcpu"}, "the functions of the vDSO that are refused"


# The kernel itself, in a process that ends afterwards.

linux_only = pytest.mark.skipif(
    sys.platform != "linux" or linux.MACHINE not in MACHINES,
    reason="there are no filters of system calls for this machine",
)


def under_the_filter(attempt: Callable[[], Any]) -> int:
    """Return 0, the error number of an attempt, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        code = 255
        faulthandler.disable()  # which would print where an attempt was aborted
        try:
            linux.give_up_new_privileges()
            linux.ask_kernel_for_time()
            linux.filter_system_calls(own_filter())
            attempt()
            code = 0
        except OSError as error:
            code = error.errno or 254
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def touch_memory() -> None:
    with mmap.mmap(-1, 1 << 24) as pages:
        pages[::4096] = b"x" * (1 << 12)
    assert sum(bytearray(1 << 24)) == 0


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


REFUSED = {
    "open": lambda: os.open("/dev/null", os.O_RDONLY),
    "stat": Path("/").stat,
    "listdir": lambda: list(Path("/").iterdir()),
    "unlink": Path("/nowhere").unlink,
    "chdir": lambda: os.chdir("/"),
    "socket": lambda: socket.socket(socket.AF_INET),
    "a local socket": lambda: socket.socket(socket.AF_UNIX),
    "a pair of sockets": socket.socketpair,
    "a pipe": os.pipe,
    "dup": lambda: os.dup(0),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill its parent": lambda: os.kill(os.getppid(), 0),
    "kill itself": lambda: os.kill(os.getpid(), 0),
    "a group": lambda: os.killpg(0, 0),
    "another session": os.setsid,
    "another user": lambda: os.setuid(0),
    "nice": lambda: os.nice(1),
    "affinity": lambda: os.sched_setaffinity(0, {0}),
    "an alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 9),
    "a memory file": lambda: os.memfd_create("x"),
    "machine code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC),
    "undone by prctl": linux.hide_from_others,
    "a signal to itself": lambda: signal.raise_signal(signal.SIGCHLD),
    "the name of the host": os.uname,
    "a CPU clock of another process": lambda: time.clock_gettime(~os.getppid() << 3 | 2),
    "the hour": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "no capabilities": linux.drop_capabilities,
    "another filter": lambda: linux.filter_system_calls(own_filter()),
}
GRANTED = {
    "nothing": lambda: None,
    "clocks": lambda: (time.monotonic(), time.process_time(), time.sleep(0.001)),
    "real randomness": lambda: os.urandom(16),
    "memory": touch_memory,
    "its own numbers": lambda: (os.getpid(), os.getppid(), os.getuid()),
    "its own limits": lambda: resource.getrlimit(resource.RLIMIT_AS),
    "its own usage": lambda: resource.getrusage(resource.RUSAGE_SELF),
    "open descriptors": lambda: (os.read(0, 0), os.write(1, b""), os.close(0)),
    "locks": lambda: (threading.Lock().acquire(), held().acquire(timeout=0.001)),
    "handlers of signals": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
}


@linux_only
@pytest.mark.parametrize("name", REFUSED)
def test_kernel_refuses_calls_that_do_not_compute(name: str) -> None:
    assert under_the_filter(REFUSED[name]) == errno.EPERM


@linux_only
@pytest.mark.parametrize("name", GRANTED)
def test_kernel_lets_programs_compute(name: str) -> None:
    assert under_the_filter(GRANTED[name]) == 0


@linux_only
def test_filter_refuses_to_set_limits() -> None:
    def lower() -> None:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        except ValueError as error:  # as the resource module tells a refusal
            raise OSError(errno.EPERM, "refused") from error

    assert under_the_filter(lower) == errno.EPERM


@linux_only
def test_process_can_abort_and_stop_under_the_filter() -> None:
    assert under_the_filter(os.abort) == -signal.SIGSEGV
    process = os.fork()
    if process == 0:
        stop = linux.self_stopper()
        linux.give_up_new_privileges()
        linux.filter_system_calls(own_filter())
        stop()
        os._exit(0)
    _, status = os.waitpid(process, os.WUNTRACED)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert os.WIFSTOPPED(status)


@linux_only
def test_refused_thread_is_a_python_error() -> None:
    def start() -> None:
        try:
            threading.Thread(target=int).start()
        except RuntimeError as error:
            raise OSError(errno.EPERM, "refused") from error

    assert under_the_filter(start) == errno.EPERM
