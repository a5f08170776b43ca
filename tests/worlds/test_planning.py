"""Planning sessions with programs that fail, attack their process or are slow."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium import spaces

from candidates import open_session, plan_at
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Limits, Sandbox, SandboxError
from cwm_cli.worlds.messages import Codec
from cwm_cli.worlds.model import Plan
from cwm_cli.worlds.program import ProgramSession
from processes import (
    AT_REST,
    PER_WORKER,
    WORKERS,
    ignore_running,
    processes,
    stays,
    wait_until,
)

LIMITS = Limits(wall_seconds=30, cpu_seconds=1, stall_seconds=0.3, sleep_seconds=1, memory_mb=128)
TWO = space_of(spaces.Discrete(2))
HERE = space_of(spaces.Box(-9, 9, (1,)))


PROGRAM = """{top}
import os, time
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        {set_state}
    def step(self, action):
        {step}
"""


def program(
    step: str = "return self.state, float(action), False",
    *,
    set_state: str = "self.state = observation",
    init: str = "pass",
    top: str = "",
) -> str:
    """Write a program whose step begins in line 11 when `top` is one line."""
    return PROGRAM.format(step=step, set_state=set_state, init=init, top=top)


GOOD = program()
"""Rewards are actions: the last action is the best."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    ignore_running()
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def decide(sandbox: Sandbox, text: str, times: int = 1, **options: object) -> list[Plan]:
    """Plan `times` decisions with a program for two actions, at the observation 0."""
    settings = {"simulations": 10, "rollout": 5} | options
    with session(sandbox, text, **settings) as opened:
        return [ask(opened, number, horizon=50) for number in range(times)]


def session(sandbox: Sandbox, text: str, seed: int = 0, **options: object) -> ProgramSession:
    """Open a session that plans with a program for two actions."""
    options = {"preset": "paper", "discount": 0.0} | options  # the next reward decides
    return open_session(sandbox, text, (HERE, TWO), planners=[("mcts", options)], seed=seed)


def ask(opened: ProgramSession, number: int = 0, place: float = 0.0, *, horizon: int = 9) -> Plan:
    """Return the plan for a decision, by its number."""
    return plan_at(opened, np.array([place], np.float32), number, horizon=horizon)


FAILING = {
    "an exception": (program("return {}['speed']"), "step_error", "KeyError: 'speed'\nat line 11"),
    "an exception in set_state": (program(set_state="1 / 0"), "step_error", "at line 9: 1 / 0"),
    "an exception at import": (program(top="1 / 0"), "load_error", "at line 1: 1 / 0"),
    "a syntax error": ("x = = 2", "load_error", "invalid syntax"),
    "no class": ("x = 2", "load_error", "no class Environment"),
    "the wrong shape": (program("return np.zeros(2), 1.0, False"), "wrong_output", "shape (2,)"),
    "the wrong shape, late": (
        program("self.n += 1; return np.zeros(1 + self.n // 9), 1.0, False", init="self.n = 0"),
        "wrong_output",
        "the shape (2,)",
    ),
    "two values": (program("return self.state, 1.0"), "wrong_output", "a tuple of 2 parts"),
    "a reward of text": (program("return self.state, '1', False"), "wrong_output", "the reward"),
    "a reward that is no number": (
        program("return self.state, float('nan'), False"), "wrong_output", "finite number, got nan"
    ),
    "an infinite reward": (
        program("return self.state, -np.inf, False"), "wrong_output", "finite number, got -inf"
    ),
    "terminated as text": (program("return self.state, 1.0, 'no'"), "wrong_output", "True or"),
    "a loop": (program("while True: pass"), "timeout_cpu", "0.3 s of CPU time\nat line 11: while"),
    "a loop at import": (program(top="while True: pass"), "timeout_cpu", "importing the program"),
    "a little time for every step": (
        program("t = time.process_time()\n        while time.process_time() < t + 0.2: pass\n"
                "        return self.state, 0.0, False"),
        "timeout_cpu",
        "more than 1 s of CPU time",
    ),
    "endless output past print": (
        program("\n        while True: os.write(1, b'x' * 10000)"), "step_error", "File too large"
    ),
    "a null pointer": (program("import ctypes; ctypes.string_at(0)"), "crash", "SIGSEGV"),
    "memory": (program("np.zeros(10**9)"), "memory", "Unable to allocate"),
    "os._exit": (program("print('bye'); os._exit(0)"), "early_exit", "had printed:\nbye"),
    "its worker killed": (
        program("os.kill(os.getppid(), 9); time.sleep(9)"), "step_error", "Operation not permitted"
    ),
    "a fork bomb": (
        program("\n        while True: os.fork()"), "step_error", "Operation not permitted"
    ),
    "a file": (program("open('mine', 'w')"), "step_error", "Operation not permitted"),
    "SIGKILL to itself": (
        program("import signal; signal.raise_signal(9)"), "step_error", "Operation not permitted"
    ),
    "an import of an unloaded module": (program("import sqlite3"), "step_error", "cannot import"),
    "closed pipes": (program("os.closerange(0, 99); return GOOD"), "step_error", "NameError"),
    "garbage for a reply": (
        program("os.write(5, b'\\xff' * 10**4); time.sleep(9)"), "wrong_output", "tampered"
    ),
    "an action out of bounds": (
        program("os.write(5, (424).to_bytes(4, 'little') + bytes(412) "
                "+ b'\\1\\0\\0\\0\\2' + bytes(7)); time.sleep(9)"),
        "wrong_output",
        "tampered",
    ),
    "no action": (
        program("os.write(5, (416).to_bytes(4, 'little') + bytes(416)); time.sleep(9)"),
        "wrong_output",
        "tampered",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_every_failure_is_classified_and_leaves_no_process_behind(sandbox: Sandbox) -> None:
    wrong = {}
    for name, (text, kind, words) in FAILING.items():
        plan = decide(sandbox, text)[0]
        failure = plan.failure
        if plan.actions or failure is None or failure.kind != kind or words not in failure.message:
            wrong[name] = plan
        if decide(sandbox, GOOD)[0].actions != [1]:
            wrong[name] = "it hurt the next program"
        if not wait_until(lambda: len(processes()) <= AT_REST):
            wrong[name] = "it left processes behind"
    assert not wrong
    assert stays(lambda count: count <= AT_REST)


IS_OPEN = """
import os
def is_open(number):
    for use in (lambda: os.read(number, 0), lambda: os.write(number, b"")):
        try:
            use()
            return True
        except OSError as error:
            assert error.errno == 9
    return False
"""

HARMLESS = {
    "print": program("print('\\033[2J' * 10**5); return self.state, float(action), False"),
    "lists and numbers of numpy": program("return [0], np.float32(action), np.bool_(False)"),
    "forged progress": program(
        "\n        for x in gc.get_objects() * (not self.n):\n"
        "            if type(x) is memoryview: self.n = x[0] = 10**9\n"
        "        assert self.n; return self.state, float(action), False",
        init="self.n = 0",
        top="import gc",
    ),
    "the descriptors of a session and no others": program(
        "return self.state, float(action), False",
        init="assert [number for number in range(99) if is_open(number)] == [0, 1, 2, 4, 5]",
        top=IS_OPEN,
    ),
}


def test_harmless_programs_are_planned_with(sandbox: Sandbox) -> None:
    found = {name: decide(sandbox, text, times=3) for name, text in HARMLESS.items()}
    wrong = {name: plans for name, plans in found.items() if plans != [Plan([1], None)] * 3}
    assert not wrong


def test_a_session_continues_in_a_new_process_after_a_failure(sandbox: Sandbox) -> None:
    text = program("assert self.state[0] < 5; return self.state, float(action), False")
    with session(sandbox, text) as opened:
        places = enumerate((0.0, 7.0, 0.0, 7.0, 0.0))
        plans = [ask(opened, number, place) for number, place in places]
    assert [plan.failure is None for plan in plans] == [True, False, True, False, True]
    assert [plan.actions for plan in plans[::2]] == [[1]] * 3


def test_a_program_stays_in_one_process_until_it_fails(sandbox: Sandbox) -> None:
    text = program(
        "return self.state, float(action), False",
        set_state="self.state = observation; self.n += 1; assert self.n < 200",
        init="self.n = 0",
    )
    failed = [plan.failure is not None for plan in decide(sandbox, text, times=8)]
    assert 1 <= sum(failed) <= 3
    assert not failed[0]
    assert not failed[failed.index(True) + 1]


RANDOM = program(
    "return self.state, random.random() + np.random.random(), False", top="import random"
)
COIN = program("return self.state, 0.0, False")


@pytest.mark.parametrize("text", [RANDOM, COIN])
def test_the_same_seed_gives_the_same_actions(sandbox: Sandbox, text: str) -> None:
    def actions(seed: int) -> list[list[int]]:
        with session(sandbox, text, seed) as opened:
            return [ask(opened, number).actions for number in range(12)]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_a_failure_does_not_change_later_decisions(sandbox: Sandbox) -> None:
    text = program(
        "assert self.state[0] < 5; return self.state, random.random(), False", top="import random"
    )

    def actions(place: float) -> list[list[int]]:
        with session(sandbox, text) as opened:
            ask(opened, 0, place)
            return [ask(opened, number).actions for number in range(1, 13)]

    assert actions(0.0) == actions(7.0)


@pytest.mark.slow
def test_limits_hold_for_each_decision_separately() -> None:
    busy = program(
        "t = time.process_time()\n        while time.process_time() < t + 0.05: pass\n"
        "        return self.state, float(action), True"
    )
    with (
        Sandbox(Limits(wall_seconds=1.0, cpu_seconds=0.25)) as sandbox,
        session(sandbox, busy) as opened,
    ):
        for _ in range(4):
            assert ask(opened, horizon=1).failure is None
        time.sleep(1.1)  # between two decisions nothing is counted
        assert ask(opened, horizon=1).actions == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(wall_seconds=0.4), "the program took more than 0.4 s"),
        (Limits(sleep_seconds=0.4), "the program slept or waited for more than 0.4 s"),
    ],
    ids=["the clock", "no patience"],
)
def test_a_program_that_sleeps_or_blocks_is_ended(limits: Limits, words: str) -> None:
    asleep, swallows_the_question = program("time.sleep(60)"), program(init="os.read(4, 4096)")
    with Sandbox(limits) as sandbox:
        for text in (asleep, swallows_the_question):
            failure = decide(sandbox, text)[0].failure
            assert failure is not None, text
            assert (failure.kind, words in failure.message) == ("timeout_wall", True), text


@pytest.mark.slow
def test_time_between_decisions_does_not_count() -> None:
    with (
        Sandbox(Limits(sleep_seconds=0.3)) as sandbox,
        session(sandbox, GOOD) as opened,
    ):
        for _ in range(2):
            assert ask(opened).actions == [1]
            time.sleep(0.5)


def test_planned_actions_have_the_dtype_and_shape_of_the_space(sandbox: Sandbox) -> None:
    space = space_of(spaces.Box(-1, 1, (2, 3)))
    text = program("return self.state, float(action.sum()), False")
    options = {"horizon": 4, "iterations": 5, "samples": 200, "elites": 20, "replan": 2}
    with open_session(sandbox, text, (HERE, space), planners=[("cem", options)]) as opened:
        plan = ask(opened)
    assert [(action.dtype, action.shape) for action in plan.actions] == [(np.float32, (2, 3))] * 2
    assert all(action.mean() > 0.4 for action in plan.actions)
    assert opened.steps == 5 * 200 * 4


SPACES = [
    (spaces.Box(-1, 1, (2, 2)), "type(observation) is np.ndarray and observation.dtype == float"),
    (spaces.Box(0, 255, (3,), np.uint8), "observation.dtype == int"),
    (spaces.Box(-1, 1, (10_000,)), "observation.shape == (10_000,)"),
    (spaces.Discrete(5, start=-2), "type(observation) is int"),
    (spaces.MultiBinary([2, 3]), "observation.dtype == int and observation.shape == (2, 3)"),
    (spaces.Text(7, charset="abc é☃😀"), "type(observation) is str"),
    (
        spaces.Tuple([spaces.Discrete(3), spaces.Text(4)]),
        "[type(part) for part in observation] == [int, str]",
    ),
    (spaces.Dict({"a.b": spaces.Discrete(3), "c": spaces.Box(0, 1)}), "observation['c'].size == 1"),
]


@pytest.mark.parametrize("top", ["", "import random"], ids=["known", "drawn"])
def test_observations_of_every_space_reach_the_program_unchanged(
    sandbox: Sandbox, top: str
) -> None:
    wrong = {}
    for space, check in SPACES:
        space.seed(3)
        text = program(
            "self.n += 1; return self.state, float(action), False",
            init="self.n = 0; self.first = None",
            set_state=f"assert {check}; text = repr(observation); self.first = self.first or text;"
            " assert text == self.first; self.state = observation",
            top=top,
        )
        planners = [("mcts", {"preset": "paper", "rollout": 2, "discount": 0.0})]
        with open_session(sandbox, text, (space_of(space), TWO), planners=planners) as opened:
            plan = plan_at(opened, space.sample())
        if plan != Plan([1], None):
            wrong[str(space)] = plan
    assert not wrong


def test_a_codec_decodes_what_it_encoded() -> None:
    for space, _ in SPACES:
        space.seed(4)
        described = space_of(space)
        codec, value = Codec(described, "values"), space.sample()
        data = codec.encode([value, value])
        assert len(data) == 2 * codec.size, space
        before, after = (described.pack("x", two) for two in ([value] * 2, codec.decode(data, 2)))
        assert all(np.array_equal(before[name], after[name]) for name in before), space


def test_an_observation_of_another_space_is_refused(sandbox: Sandbox) -> None:
    with session(sandbox, GOOD) as opened:
        with pytest.raises(CwmError, match="of observations does not match their space"):
            plan_at(opened, np.zeros(3))
        assert ask(opened).actions == [1]


@pytest.mark.slow
def test_sessions_run_in_parallel_and_end_when_closed() -> None:
    time.sleep(0.1)  # until a worker of another test is at rest
    others = processes()
    with Sandbox(LIMITS, workers=2) as sandbox:
        first = session(sandbox, GOOD)
        second = session(sandbox, GOOD)
        for opened in (first, second, first):
            assert ask(opened).actions == [1]
        most = (WORKERS + 1) * PER_WORKER  # a session takes a worker of the one side
        assert stays(lambda count: len(others) + AT_REST <= count <= len(others) + most)
        first.close()
        second.close()
        assert stays(lambda count: count == len(others) + most)
        assert ask(first).actions == [1]  # starts again
    assert wait_until(lambda: processes() == others)
    with pytest.raises(SandboxError, match="closed"):
        ask(first)


def test_a_session_leaves_no_process_of_its_program_behind(sandbox: Sandbox) -> None:
    decide(sandbox, GOOD)
    assert stays(lambda count: count == AT_REST)
    before = processes()
    with session(sandbox, GOOD) as opened:
        assert ask(opened).actions == [1]
    assert stays(lambda count: count == AT_REST)
    assert len(set(before) - set(processes())) == 1, "the process of the program is gone"


def test_an_interrupted_session_leaves_its_worker_ready(sandbox: Sandbox) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        session(sandbox, GOOD) as opened,
    ):
        ask(opened)
        raise KeyboardInterrupt
    assert stays(lambda count: count == AT_REST)
    assert decide(sandbox, GOOD)[0].actions == [1]
