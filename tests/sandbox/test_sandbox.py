"""Generated programs run in their own processes, with any outcome."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from candidates import BOX, LIMITS, dataset_of, predicting, program
from cwm_cli.sandbox import Limits, Sandbox, SandboxError, pool
from cwm_cli.sandbox.failures import Failure, failure_of
from cwm_cli.sandbox.pool import JobResult
from cwm_cli.sandbox.protection import GAPS
from cwm_cli.sandbox.protocol import EndReason, JobReport
from cwm_cli.worlds.messages import PlanningJob
from folders import ROOT, SUPPORT
from processes import (
    AT_REST,
    PER_WORKER,
    WORKERS,
    children,
    ignore_running,
    processes,
    stays,
    wait_until,
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    ignore_running()
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


LOOP = "while True: pass"
FAILING = {
    "a loop in step": (program(LOOP), "timeout_cpu", "0.3 s of CPU time\nat line 12: while True"),
    "a loop in set_state": (program(set_state=LOOP), "timeout_cpu", "at line 9: while True: pass"),
    "a loop at import": (program(top=LOOP), "timeout_cpu", "importing the program"),
    "a loop in __init__": (program(init=LOOP), "timeout_cpu", "at line 7: while True: pass"),
    "a loop that catches all": (
        program("while True:\n            try: 1 / 0\n            except BaseException: pass"),
        "timeout_cpu",
        "a single step",
    ),
    "a loop inside C": (
        program("import re; re.match('(a+)+$', 'a' * 60 + 'b')"),
        "timeout_cpu",
        "at line 12: import re",
    ),
    "a loop in the text of an exception": (
        program("raise Evil", top="class Evil(Exception):\n def __str__(x):\n  while True: pass"),
        "timeout_cpu",
        "while True",
    ),
    "a little time for every row": (
        program("t = time.process_time()\n        while time.process_time() < t + 0.2: pass\n"
                "        return self.state, 0.0, False"),
        "timeout_cpu",
        "more than 1 s of CPU time",
    ),
    "a large array": (program("np.zeros(10**9)"), "memory", "Unable to allocate"),
    "a list that grows": (program("x = [0]\n        while True: x += x"), "memory", "MemoryError"),
    "memory at import": (program(top="x = ' ' * 10**10"), "memory", "at line 1"),
    "os._exit": (program("print('bye'); os._exit(0)"), "early_exit", "had printed:\nbye"),
    "os._exit at import": (program(top="import os; os._exit(3)"), "early_exit", "exit code 3"),
    "sys.exit": (program("sys.exit()"), "step_error", "SystemExit\nat line 12: sys.exit()"),
    "sys.exit at import": (program(top="raise SystemExit(2)"), "load_error", "SystemExit: 2"),
    "KeyboardInterrupt": (program("raise KeyboardInterrupt"), "step_error", "KeyboardInterrupt"),
    "a signal to a guessed process": (
        program("import ctypes; ctypes.CDLL(None).tgkill(1, 1, 0)"), "crash", "SIGSYS"
    ),
    "a null pointer": (
        program("import ctypes; ctypes.string_at(0)"), "crash", "SIGSEGV\nat line 12: import ctypes"
    ),
    "abort": (program("os.abort()"), "crash", "SIGSEGV\nat line 12: os.abort()"),
    "endless output past print": (
        program("\n        while True: os.write(1, b'x' * 10000)"), "step_error", "File too large"
    ),
    "input()": (program("input()"), "step_error", "EOFError"),
    "an exception": (program("return {}['speed']"), "step_error", "KeyError: 'speed'\nat line 12"),
    "an exception without text": (program("assert False"), "step_error", "AssertionError\n"),
    "an exception from numpy": (program("np.ones(2) + np.ones(3)"), "step_error", "at line 12"),
    "an exception that cannot be printed": (
        program("raise Evil", top="class Evil(Exception):\n    def __str__(self): return 1"),
        "step_error",
        "Evil\n",
    ),
    "recursion": (program("return self.step(action)"), "step_error", "RecursionError"),
    "a syntax error": ("x = 1\nx = = 2\n", "load_error", "invalid syntax\nat line 2: x = = 2"),
    "prose": ("Here is the program you asked for", "load_error", "SyntaxError"),
    "nothing": ("", "load_error", "no class Environment"),
    "a null byte": ("x = '\0'", "load_error", "null bytes"),
    "a lone surrogate": ("x = '\ud800'", "load_error", "UnicodeEncodeError"),
    "a deep nest": ("(" * 300 + ")" * 300, "load_error", "too many nested"),
    "no class": ("class Env: pass", "load_error", "the program defines no class Environment"),
    "an instance for a class": ("Environment = 3", "load_error", "no class Environment"),
    "no step": (
        "class Environment:\n    def set_state(self, o): pass", "load_error", "no method step"
    ),
    "no set_state": ("class Environment: pass", "load_error", "no method set_state"),
    "an exception in __init__": (program(init="1 / 0"), "load_error", "at line 7: 1 / 0"),
    "a required argument": (
        "class Environment:\n    def __init__(self, size): pass", "load_error", "missing 1 required"
    ),
    "an import of gymnasium": (
        program(top="import gymnasium as gym"), "load_error", "cannot import 'gymnasium'"
    ),
    "an import of a missing module": (program("import torch"), "step_error", "only numpy and"),
    "an observation of the wrong shape": (
        program("return self.state[:2], 1.0, False"), "wrong_output", "(4,), got the shape (2,)"
    ),
    "an observation that would broadcast": (
        program("return np.zeros(1), 1.0, False"), "wrong_output", "got the shape (1,)"
    ),
    "no observation": (program("return None, 1.0, False"), "wrong_output", "numbers, got None"),
    "a ragged observation": (program("return [[1], [2, 3]], 1, False"), "wrong_output", "numbers"),
    "an observation of texts": (
        program("return np.array(list('1234')), 1, False"), "wrong_output", "numbers, got an array"
    ),
    "an observation of complex numbers": (
        program("return self.state * 1j, 1.0, False"), "wrong_output", "numbers"
    ),
    "nothing returned": (program("pass"), "wrong_output", "terminated), got None"),
    "five values": (
        program("return self.state, 1.0, False, False, {}"), "wrong_output", "a tuple of 5 parts"
    ),
    "a reward of text": (program("return self.state, '1', False"), "wrong_output", "the reward"),
    "two rewards": (program("return self.state, [1, 2], False"), "wrong_output", "shape (2,)"),
    "terminated as text": (program("return self.state, 1.0, 'no'"), "wrong_output", "True or"),
    "terminated as 2": (program("return self.state, 1.0, 2"), "wrong_output", "got 2"),
    "terminated as a real number": (program("return self.state, 1.0, 1.0"), "wrong_output", "1.0"),
}  # fmt: skip


def failures_of(sandbox: Sandbox, programs: Mapping[str, str]) -> dict[str, Failure]:
    """Return how programs fail; each failure affects no later program and not the machine."""
    found: dict[str, Failure] = {}
    for name, text in programs.items():
        failure = sandbox.predict(text, BOX).failure
        assert failure is not None, name
        found[name] = failure
        assert sandbox.predict(program(), BOX).failure is None, f"after {name}"
    assert stays(lambda count: count <= AT_REST)
    return found


def test_failures_contain_no_folders_of_this_machine(sandbox: Sandbox) -> None:
    programs = {
        "a stack that is printed": program(
            top="import os, traceback; traceback.print_stack(); os._exit(2)"
        ),
        "a file that is named": program("raise ValueError(np.__file__ + os.__file__)"),
        "folders": program(top="import sys\nraise ValueError([sys.prefix, sys.base_prefix])"),
    }
    for name, failure in failures_of(sandbox, programs).items():
        for folder in (
            *sys.path,
            sys.prefix,
            Path(np.__file__).parents[1],
            ROOT,
        ):
            assert len(str(folder)) < 2 or str(folder) not in failure.message, name


def test_byte_order_mark_is_ignored(sandbox: Sandbox) -> None:
    assert sandbox.predict("\ufeff" + program(), BOX).failure is None
    failure = sandbox.predict("\ufeff" + program(init="1 / 0"), BOX).failure
    assert failure is not None
    assert failure.message.endswith("at line 7: 1 / 0")


@pytest.mark.slow
def test_every_failure_has_a_kind_and_leaves_nothing(sandbox: Sandbox) -> None:
    found = failures_of(sandbox, {name: text for name, (text, _, _) in FAILING.items()})
    assert not {
        name: found[name]
        for name, (_, kind, words) in FAILING.items()
        if found[name].kind != kind or words not in found[name].message
    }


REFUSED = {
    "a file of ours": "open('/etc/passwd')",
    "a file of its own": "open('mine', 'w')",
    "its folder": "os.listdir()",
    "a new folder": "os.mkdir('here')",
    "a socket": "import socket; socket.socket()",
    "a fork bomb": "\n        while True: os.fork()",
    "a daemon": "os.fork() or os.setsid() or os.fork() or time.sleep(60)\n        time.sleep(60)",
    "another program": "os.execv('/bin/true', ['true'])",
    "its worker killed": "os.kill(os.getppid(), 9); time.sleep(9)",
    "itself killed by number": "os.kill(os.getpid(), 9)",
    "a signal to itself": "signal.raise_signal(signal.SIGKILL)",
    "everything killed": "os.kill(-1, 9)",
    "another user": "os.setuid(0)",
}


def test_forbidden_action_fails_at_its_line(sandbox: Sandbox) -> None:
    found = failures_of(sandbox, {name: program(step) for name, step in REFUSED.items()})
    assert not {
        name: failure
        for name, failure in found.items()
        if failure.kind != "step_error"
        or failure.line not in (12, 13)
        or "Operation not permitted" not in failure.message
    }


def test_new_imports_and_threads_are_refused(sandbox: Sandbox) -> None:
    names = ("sqlite3", "torch", "pydantic", "cwm_cli.envs", "numpy.f2py")
    steps = {
        f"ModuleNotFoundError: cannot import '{name}': only numpy and": f"import {name}"
        for name in names
    }
    thread = "import threading; threading.Thread(target=print).start()"
    steps["can't start new thread"] = thread
    found = failures_of(sandbox, {words: program(step) for words, step in steps.items()})
    for words, failure in found.items():
        assert (failure.kind, failure.line) == ("step_error", 12)
        assert words in failure.message


HARMLESS = {
    "print": program("print('\\033[2J' * 10**5, flush=True); return self.state, 1.0, False"),
    "closing all descriptors": program(
        "os.closerange(0, 99); print('x'); return self.state, 1.0, False"
    ),
    "an error that is caught": program(
        "\n        try: import gymnasium\n        except ImportError: return self.state, 1.0, False"
    ),
    "annotations and dataclasses": program(
        top="from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\n"
        "class State:\n    x: float = 0.0\n"
    ),
    "a main block": program() + "\nif __name__ == '__main__':\n    input()\n",
    "names that clash with ours": program(top="Sandbox = perform = np = None"),
    "recovering from a lack of memory": program(
        "\n        try: np.ones(10**9)\n        except MemoryError: return self.state, 1.0, False"
    ),
    "an empty environment": program(init="assert not dict(os.environ), list(os.environ)"),
    "a clean worker": program(init="assert not {'pydantic', 'gymnasium'} & set(sys.modules)"),
    "no descriptors except standard output": program(
        init="assert [number for number in range(99) if is_open(number)] == [0, 1, 2]",
        top="def is_open(number):\n    try: os.read(number, 0)\n"
        "    except OSError as error: return error.errno != 9\n    return True\n",
    ),
    "another os._exit": program(top="import os\ndef end(code): raise ValueError\nos._exit = end"),
    "no signals": program(top="import signal; signal.raise_signal = None"),
    "allowed imports": program(
        init="import ctypes, json, collections.abc, numpy.linalg, statistics, typing"
    ),
    "plain values": program(
        "return self.state.tolist(), np.ones(1), np.bool_(False)",
        set_state="assert type(observation) is np.ndarray and observation.dtype == float;"
        " observation += 0; self.state = observation",
    ),
    "numpy and integers for the rest": program("return tuple(self.state), np.float32(1), 0"),
}


def test_harmless_actions_are_allowed(sandbox: Sandbox) -> None:
    for name in (*HARMLESS, *HARMLESS):
        columns, failure = sandbox.predict(HARMLESS[name], BOX)
        assert failure is None, name
        assert np.array_equal(columns["next_observations"], BOX.columns["observations"]), name
        assert (columns["rewards"] == 1).all(), name
        assert columns["terminations"].dtype == np.bool_
        assert not columns["terminations"].any()


def test_zero_rows_are_no_failure(sandbox: Sandbox) -> None:
    columns, failure = sandbox.predict(program(), BOX[np.arange(0)])
    assert failure is None
    assert columns["next_observations"].shape == (0, 4)


TELLING = program(
    "print('asked', self.state[0].item()); self.left -= 1; self.left or os._exit(0)\n"
    "        return self.state, 1.0, False",
    init="self.left = 5",
)
"""Prints the rows in the order of its questions."""


def test_rows_are_shuffled_by_seed_and_answers_restored_to_order(sandbox: Sandbox) -> None:
    def asked(seed: int) -> list[float]:
        failure = sandbox.predict(TELLING, BOX, seed=seed).failure
        assert failure is not None
        lines = failure.message.splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("asked ")]

    recorded = BOX.columns["observations"][:, 0].tolist()
    assert asked(1) == asked(1) != asked(2)
    places = [recorded.index(value) for value in asked(1)]
    assert len(set(places)) == 5
    assert places != sorted(places)
    columns, _ = sandbox.predict(program("return self.state, self.state[0], False"), BOX, seed=1)
    assert columns["rewards"].tolist() == recorded


def test_random_numbers_depend_on_row_and_seed(sandbox: Sandbox) -> None:
    for draw in ("random.random()", "np.random.rand()"):
        drawing = program(f"return self.state, {draw}, False")
        rewards = sandbox.predict(drawing, BOX, seed=5).columns["rewards"]
        again = sandbox.predict(f"# another process\n{drawing}", BOX, seed=5).columns["rewards"]
        assert np.array_equal(rewards, again)
        assert len(set(rewards)) == 20
        assert not np.isin(rewards, sandbox.predict(drawing, BOX, seed=6).columns["rewards"]).any()


def test_failure_shows_its_row(sandbox: Sandbox) -> None:
    first = float(BOX.columns["observations"][7, 0])
    step = f"assert self.state[0] != {first!r}, 'here'\n        return self.state, 1.0, False"
    failure = sandbox.predict(program(step), BOX).failure
    assert failure is not None
    assert failure.line == 12
    assert "AssertionError: here\nat line 12: assert self" in failure.message
    assert f"when asked for set_state([ {first:.5f}" in failure.message
    assert "and step([" in failure.message


def test_long_row_is_shortened_in_the_failure(sandbox: Sandbox) -> None:
    failure = sandbox.predict(program("1 / 0"), dataset_of(spaces.Box(0, 1, (5000,)))).failure
    assert failure is not None
    assert len(failure.message) < 800


def test_messages_are_printable_and_bounded(sandbox: Sandbox) -> None:
    text = "\\x1b]0;title\\x07\\x9b2J\\u202eevil\\u200b\\r\\n" * 10**5
    for failing in (
        program(f'raise ValueError("{text[:500]}" * 10000)'),
        program(top="x = = '\033[2J\u202e'"),
    ):
        failure = sandbox.predict(failing, BOX).failure
        assert failure is not None
        assert len(failure.message) < 2000
        assert all(character.isprintable() or character == "\n" for character in failure.message)


@pytest.mark.slow
def test_sleeping_or_stopped_program_is_ended() -> None:
    stop = """
        frame = sys._getframe()
        while "stop" not in frame.f_locals:
            frame = frame.f_back
        frame.f_locals["stop"]()
        return self.state, 1.0, False"""
    for limits, step, words in (
        (Limits(wall_seconds=0.5), "time.sleep(60)", "took more than 0.5 s"),
        (Limits(sleep_seconds=0.5), "time.sleep(60)", "slept or waited for more than 0.5 s"),
        (Limits(sleep_seconds=0.5), stop, "slept or waited for more than 0.5 s"),
    ):
        with Sandbox(limits, workers=1) as sandbox:
            assert sandbox.predict(program(), BOX).failure is None
            started = time.monotonic()
            failure = sandbox.predict(program(step), BOX).failure
        assert failure is not None
        assert (failure.kind, words in failure.message) == ("timeout_wall", True), failure
        assert failure.line == (12 if step != stop else failure.line)
        assert time.monotonic() - started < 10


def test_garbage_collection_is_on_in_programs(sandbox: Sandbox) -> None:
    looking = program("return self.state, float(gc.isenabled()), False", top="import gc")
    assert (sandbox.predict(looking, BOX).columns["rewards"] == 1).all()


def test_changes_to_numpy_do_not_reach_the_next_program(sandbox: Sandbox) -> None:
    vandal = program(
        "return self.state, 1.0, False",
        top="import random, numpy; numpy.asarray = numpy.sin = numpy.random = random.seed = None",
    )
    sandbox.predict(vandal, BOX)
    assert (
        sandbox.predict(program("return np.asarray(np.sin(self.state)), 1.0, False"), BOX).failure
        is None
    )


SCRIBBLE = """
import mmap
        frame = sys._getframe()
        while frame:
            for value in frame.f_locals.values():
                if isinstance(value, mmap.mmap) and len(value) < 10**6:
                    value[:] = np.random.default_rng({seed}).bytes(len(value))
            frame = frame.f_back
        os._exit(0)
""".replace("\nimport", "import")


def test_overwritten_slots_harm_only_the_program(sandbox: Sandbox) -> None:
    texts = {str(seed): program(SCRIBBLE.format(seed=seed)) for seed in range(5)}
    kinds = {failure.kind for failure in failures_of(sandbox, texts).values()}
    assert kinds <= {"load_error", "step_error", "wrong_output", "memory", "early_exit"}


BOX_AND_TEXT = dataset_of(spaces.Tuple([spaces.Box(-1, 1, (4,)), spaces.Text(5)]), 3)


def test_garbage_in_slots_does_not_break_the_trusted_side() -> None:
    job = predicting("\n\n", BOX_AND_TEXT)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        report = JobReport(True, EndReason(rng.integers(5)), int(rng.integers(-70, 256)))
        memory = bytearray(rng.bytes(job.layout.size))
        memory[9] = rng.integers(6)
        log = rng.bytes(99) + b'Stack (most recent call first):\n File "<program>", line 9999 in x'
        slots = job.layout.views(bytes(memory))
        failure = failure_of(JobResult(report, bytes(memory), log), slots, job, LIMITS)
        assert failure is not None
        assert failure.line in (None, 1, 2, 3)


@pytest.mark.slow
def test_many_threads_share_two_workers() -> None:
    failures: list[object] = []
    crowds: list[int] = []
    others = psutil.Process().children()
    limits = Limits(sleep_seconds=20)
    with Sandbox(limits, workers=2) as sandbox:
        sandbox.predict(program(), BOX)

        def predict() -> None:
            slow = program("return self.state, 1.0, False", init="time.sleep(0.3)")
            failures.append(sandbox.predict(slow, BOX).failure)

        threads = [threading.Thread(target=predict) for _ in range(5)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            crowds.append(len(psutil.Process().children()) - len(others))
            time.sleep(0.02)
        assert time.monotonic() - started > 5 * 2 * 0.3 / 2, "at most two programs run at a time"
        assert failures == [None] * 5
        assert WORKERS <= min(crowds) <= max(crowds) <= 2 * WORKERS
        assert sandbox.predict(program(), BOX).failure is None, "its workers outlive the threads"


def test_workers_start_on_demand_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(processes())
    with Sandbox(LIMITS) as sandbox:
        assert len(processes()) == before
        assert sandbox.predict(program(), BOX).failure is None
        assert stays(lambda count: count == before + AT_REST)
        assert len(list(tmp_path.iterdir())) == WORKERS
    assert len(processes()) == before
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SandboxError, match="closed"):
        sandbox.predict(program(), BOX)


def test_files_and_processes_are_removed_without_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    littering = program(
        init="open('left', 'w').close(); os.path.isdir('here') or os.mkdir('here')",
    )
    with Sandbox(LIMITS, layers=(), accepted=GAPS) as sandbox:
        for _ in range(3):
            assert sandbox.predict(littering, BOX).failure is None, "no guard refuses it"
        folders = list(tmp_path.iterdir())
        assert wait_until(lambda: not any(list(folder.iterdir()) for folder in folders))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def interpreters(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list of the interpreters that start as workers, without forked workers."""
    started: list[object] = []
    usual = pool.start

    def start(*arguments: Any) -> object:
        started.append(usual(*arguments))
        return started[-1]

    monkeypatch.setattr(pool, "start", start)
    return started


def beside(others: list[psutil.Process]) -> list[psutil.Process]:
    """Return the new children of this process."""
    return [child for child in children() if child not in others]


forked = pytest.mark.skipif(sys.platform != "linux", reason="a worker cannot be forked here")


@forked
def test_workers_of_both_sides_share_one_interpreter_start(interpreters: list[object]) -> None:
    others = children()
    with Sandbox(LIMITS) as sandbox:
        for _ in range(2):
            assert sandbox.predict(program(), BOX).failure is None
        workers = beside(others)
        assert (len(workers), len(interpreters)) == (WORKERS, 1)
        assert {os.getsid(worker.pid) for worker in workers} == {worker.pid for worker in workers}
        assert len({worker.cwd() for worker in workers}) == WORKERS
        sandbox.prepare(PlanningJob.handler)
        assert sandbox.predict(program(), BOX).failure is None
        assert len(interpreters) == 2
        assert not set(workers) & set(children())


@forked
@pytest.mark.parametrize("number", range(WORKERS))
def test_worker_outlives_its_twin(number: int) -> None:
    others, before = children(), len(processes())
    with Sandbox(LIMITS) as sandbox:
        sandbox.predict(program(), BOX)
        workers = beside(others)
        assert stays(lambda count: count == before + AT_REST)
        workers[number].kill()
        assert stays(lambda count: count == before + PER_WORKER)
        assert beside(others) == [workers[1 - number]]
        assert sandbox.predict(program(), BOX).failure is None


def test_worker_with_threads_is_started_instead_of_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreters: list[object]
) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "busy_tool.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with Sandbox(LIMITS, tools=["busy_tool"]) as sandbox:
        assert sandbox.predict(program(), BOX).failure is None
    assert len(interpreters) == WORKERS


def test_close_ends_running_programs() -> None:
    before = len(processes())
    sandbox = Sandbox(Limits(sleep_seconds=60))
    sandbox.predict(program(), BOX)
    outcome: list[str] = []

    def predict() -> None:
        with pytest.raises(SandboxError):
            sandbox.predict(program("time.sleep(60)"), BOX)
        outcome.append("ended")

    thread = threading.Thread(target=predict)
    thread.start()
    time.sleep(0.2)
    assert outcome == []
    sandbox.close()
    thread.join(10)
    assert outcome == ["ended"]
    assert len(processes()) == before


def test_worker_that_does_not_start_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Sandbox() as sandbox, pytest.raises(SandboxError, match="did not start"):
        sandbox.predict(program(), BOX)


@pytest.mark.slow
def test_many_hostile_programs_leak_no_descriptors(sandbox: Sandbox) -> None:
    hostile = [
        program("os._exit(1)"),
        program("os.abort()"),
        program("[os.open('/dev/null', 0) for _ in range(99)]"),
        program("return 1"),
        program("return self.state, 'much', False"),
        "x = =",
    ]
    sandbox.predict(program(), BOX)
    workers = children()
    assert len(workers) == WORKERS
    assert stays(lambda count: count == AT_REST)
    before = psutil.Process().num_fds(), [worker.num_fds() for worker in workers]
    for index in range(102):
        assert sandbox.predict(hostile[index % len(hostile)], BOX).failure is not None
    assert children() == workers
    assert stays(lambda count: count == AT_REST)
    assert (psutil.Process().num_fds(), [worker.num_fds() for worker in workers]) == before


SCRIPT = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from candidates import BOX, program
from cwm_cli.sandbox import Limits, Sandbox
with Sandbox(Limits(sleep_seconds=60)) as sandbox:
    sandbox.predict(program(), BOX)
    print("ready", flush=True)
    sandbox.predict(program("time.sleep(60)"), BOX)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_and_programs_die_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) >= WORKERS * (PER_WORKER - 1)
        parent.send_signal(number)
        parent.wait(20)
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert (len(gone), alive) == (len(family), [])
    assert wait_until(lambda: not list(tmp_path.iterdir()))


def test_only_folders_of_killed_processes_are_removed(
    tmp_path: Path,
) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    start = f"import sys, time\nsys.path.insert(0, {str(SUPPORT)!r})\n"
    start += "from cwm_cli.sandbox.pool import Connection\n"
    living = "c = Connection.make()\nprint('ready', flush=True)\ntime.sleep(60)"
    killed, alive = (
        subprocess.Popen(
            [sys.executable, "-c", start + living], env=environment, stdout=subprocess.PIPE
        )
        for _ in range(2)
    )
    with killed, alive:
        assert [each.stdout.readline() for each in (killed, alive) if each.stdout] == [
            b"ready\n",
            b"ready\n",
        ]
        left = {*tmp_path.iterdir()}
        killed.kill()
        killed.wait(20)
        (tmp_path / "cwm-sandbox-used").mkdir()
        (tmp_path / "cwm-sandbox-used" / "file").touch()
        done = subprocess.run(
            [sys.executable, "-c", f"{start}Connection.make().close()"], env=environment
        )
        assert done.returncode == 0
        stay = {*tmp_path.iterdir()}
        alive.kill()
    assert len(left) == 2
    assert len(stay & left) == 1
    assert {path.name for path in stay - left} == {"cwm-sandbox-used"}
