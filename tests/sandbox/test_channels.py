"""Processes cannot exchange data, and no answer depends on the hour or the process."""

import re
import sys

import numpy as np
import pytest

from candidates import BOX, LIMITS, predicting, program
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.sandbox import Limits, Sandbox, linux

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or linux.MACHINE not in linux.MACHINES,
    reason="there are no filters of system calls for this machine",
)

CTYPES = "import ctypes, threading, platform, socket, datetime; libc = ctypes.CDLL(None)"
NUMBERS = linux.MACHINES[linux.MACHINE].numbers if linux.MACHINE in linux.MACHINES else {}


def telling(sandbox: Sandbox, expression: str) -> str:
    """Return the value of an expression in a process, or the error."""
    failure = sandbox.predict(program(f"raise ValueError(repr({expression}))", top=CTYPES), BOX)
    assert failure.failure is not None
    return failure.failure.message.splitlines()[0]


CONSTANT = {
    "os.getpid()": "0",
    "os.getppid()": "0",
    "(os.getuid(), os.geteuid(), os.getgid(), os.getegid())": "(0, 0, 0, 0)",
    "threading.get_native_id()": "0",
    "threading.main_thread().native_id": "0",
    "libc.getpid()": "0",
    "(time.localtime().tm_year, time.gmtime().tm_hour)": "(1970, 0)",
    "time.ctime()": "'Thu Jan  1 00:00:00 1970'",
    "int(time.time()) + int(time.monotonic()) + int(time.perf_counter())": "0",
    "(time.time_ns() + time.monotonic_ns() + time.perf_counter_ns()) // 10**9": "0",
    "datetime.date.today().year": "1970",
    "np.datetime64('now').astype(int).item()": "0",
    "np.datetime64('today').astype(int).item()": "0",
    "np.array(['now'], 'datetime64[s]').astype(int).tolist()": "[0]",
    "libc.time(None)": "0",
    "os.uname().nodename": "'sandbox'",
    "platform.node()": "'sandbox'",
    "platform.release()": "''",
    "sys.argv + sys.orig_argv": "['', '']",
}
"""Expressions whose value is the same in every process, on every machine and at every hour."""

REFUSED = (
    "socket.gethostname()",
    "time.clock_gettime(time.CLOCK_REALTIME)",
    "os.fstat(1)",
    "time.clock_gettime(11)",
    "os.getsid(0)",
    "os.getgroups()",
    "os.getresuid()",
    "os.getloadavg()",
    "os.sched_getaffinity(1)",
    "time.clock_gettime(~1 << 3 | 2)",
)


def test_answers_do_not_depend_on_hour_host_or_process(sandbox: Sandbox) -> None:
    found = {each: telling(sandbox, each) for each in CONSTANT}
    expected = {each: f"ValueError: {value}" for each, value in CONSTANT.items()}
    if sys.version_info >= (3, 13):  # which raises if a clock is refused
        for each in found:
            if "datetime.date" in each and found[each].startswith("PermissionError"):
                expected[each] = found[each]
    assert found == expected


def test_expressions_that_vary_are_refused(sandbox: Sandbox) -> None:
    found = {each: telling(sandbox, each) for each in REFUSED}
    assert not {
        each: said for each, said in found.items() if not re.match("(Permission|OS)Error", said)
    }


@pytest.mark.parametrize(
    "value",
    [
        "int(time.time() // 3600)",
        "hash(os.uname().nodename)",
        "os.getpid() % 2",
        "os.getuid() % 2",
        "libc.getppid() % 2",
        "libc.time(None) // 3600",
    ],
)
def test_program_that_reads_its_surroundings_answers_the_same_everywhere(
    sandbox: Sandbox, value: str
) -> None:
    text = program(f"return self.state, float({value}), False", top=CTYPES)
    columns, failure = sandbox.predict(text, BOX)
    assert failure is None
    assert sandbox.audit(text, BOX, columns) is None
    with Sandbox(LIMITS) as other:
        assert np.array_equal(other.predict(text, BOX).columns["rewards"], columns["rewards"])
    assert len(set(columns["rewards"].tolist())) == 1


def test_clocks_advance_and_sleeping_takes_time(sandbox: Sandbox) -> None:
    body = """
        began = [time.time(), time.monotonic(), time.perf_counter()]
        time.sleep(0.01)
        passed = np.array([time.time(), time.monotonic(), time.perf_counter()]) - began
        return self.state, float(passed.min() >= 0.01 and passed.max() < 5), False"""
    columns, failure = sandbox.predict(program(body), BOX[np.arange(4)])
    assert failure is None
    assert columns["rewards"].tolist() == [1.0] * 4


SEARCH = """
        seen, found = [sys._getframe()], set()
        while seen[-1].f_back:
            seen.append(seen[-1].f_back)
        for frame in seen:
            for value in list(frame.f_locals.values()):
                limits = getattr(value, "limits", getattr(value, "_limits", None))
                found |= {limits.cpu_seconds, limits.sleep_seconds} if limits else set()
        found.add(resource.getrlimit(resource.RLIMIT_CPU)[0])
        raise ValueError(sorted(found))"""


def test_process_does_not_see_time_used_by_earlier_processes() -> None:
    wasteful = program(
        "\n        end = time.process_time() + 0.03"
        "\n        while time.process_time() < end: pass"
        "\n        return self.state, 0.0, False"
    )
    looking, rows = predicting(program(SEARCH, top="import resource"), BOX), BOX[np.arange(4)]
    with Sandbox(Limits(cpu_seconds=9), workers=1) as sandbox:
        seen = [sandbox.run(looking).failure]
        [replies] = sandbox.run_apart(
            [[predicting(wasteful, rows), looking]], [sandbox.limits.part(0.5)]
        )
        seen += [replies[1].failure, *(sandbox.run(looking).failure for _ in range(3))]
    assert replies[0].used > 0.1
    assert {failure and failure.message for failure in seen} == {seen[0] and seen[0].message}


LISTENING = """
        address = ctypes.cast(libc.getenv, ctypes.c_void_p).value & -4
        word = ctypes.c_int.from_address(address).value
        second = (ctypes.c_long * 2)(0, {nanoseconds})
        woken = {call}
        return self.state, float(woken), False"""


@pytest.mark.slow
def test_processes_cannot_wake_each_other_through_shared_pages() -> None:
    """Both wait at and wake a word of the C library, which is one page of the machine for all."""
    arguments = f"ctypes.c_long({NUMBERS.get('futex')}), ctypes.c_void_p(address)"
    wait = LISTENING.format(
        nanoseconds=30_000_000, call=f"libc.syscall({arguments}, 0, word, second, None, 0) == 0"
    )
    wake = LISTENING.format(
        nanoseconds=0,
        call=f"sum(libc.syscall({arguments}, 1, 99) > 0 or time.sleep(0.003) or 0 "
        "for _ in range(40))",
    )
    with Sandbox(LIMITS) as sandbox:
        sandbox.predict(program(), BOX)
        rows = BOX[np.arange(4)]
        jobs = [predicting(program(text, top=CTYPES), rows) for text in (wait, wake)]
        replies = sandbox.run_apart([[job] for job in jobs], [sandbox.limits] * 2)
    for [reply] in replies:
        assert reply.failure is None
        assert reply.slots["rewards"].tolist() == [0.0] * 4


def test_program_that_waits_for_a_lock_is_ended() -> None:
    waiting = program("lock = threading.Lock(); lock.acquire(); lock.acquire()", top=CTYPES)
    with Sandbox(Limits(sleep_seconds=0.3)) as sandbox:
        failure = sandbox.predict(waiting, BOX).failure
    assert failure is not None
    assert failure.kind == "timeout_wall"


LATE = """
import time
import numpy as np
asked = {"last": None, "number": 0}

class Environment:
    def reset(self, observation):
        self.first, self.seen = np.array(observation), observation

    def correct(self, observation, reward):
        self.seen = observation

    def step(self, action):
        now = time.perf_counter()
        waited = 0.0 if asked["last"] is None else now - asked["last"]
        asked["number"] += 1
        if self.first[0] > 0:
            time.sleep(0.03)
        asked["last"] = time.perf_counter()
        return self.seen, float(waited > 0.02), False
"""
"""One of two processes answers late; the other measures the time until its next question."""


def test_process_does_not_wait_for_answers_of_another() -> None:
    rng = np.random.default_rng(0)
    rows = [
        Transition([sign * 0.5, n], 0, [sign * 0.5, n + 1], 0.0, False, episode=episode)
        for episode, sign in enumerate((1, -1))
        for n in rng.permutation(20)
    ]
    box = Space(kind="box", dtype="float64", shape=(2,), low=(-99.0,) * 2, high=(99.0,) * 2)
    pushes = Space(kind="discrete", dtype="int64", low=(0,), high=(1,))
    data = Dataset.of(rows, observation_space=box, action_space=pushes)
    with Sandbox(Limits(sleep_seconds=9.0), 2) as sandbox:
        found = sandbox.ask(LATE, data)
    assert found.failure is None
    assert found.columns["rewards"][20:].sum() <= 4  # of 20, some for other work of the machine
