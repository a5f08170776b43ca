"""Planners find what pays, and planning sessions survive whatever the program does."""

import time
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.environments import space_of
from cwm_cli.packing import Space
from cwm_cli.planning import PLANNERS, Checks, Model, fitting
from cwm_cli.planning.cem import Cem, Effort
from cwm_cli.planning.mcts import Mcts
from cwm_cli.sandbox import Limits, Plan, Sandbox, SandboxError
from cwm_cli.sandbox.messages import Record
from processes import AT_REST, PER_WORKER, WORKERS, processes, stays, wait_until

LIMITS = Limits(wall_seconds=30, cpu_seconds=1, stall_seconds=0.3, sleep_seconds=1, memory_mb=128)
TWO = space_of(spaces.Discrete(2))
LINE = space_of(spaces.Box(-1, 1, (2,)))
HERE = space_of(spaces.Box(-9, 9, (1,)))


class Corridor:
    """Five steps to the right, and none to the left, pay 1."""

    def set_state(self, observation):
        self.place = float(observation[0])

    def step(self, action):
        self.place += 1
        wrong = action == 0
        done = wrong or self.place == 5
        return np.array([self.place]), float(self.place == 5 and not wrong), done


class Patience:
    """Taking pays 1 and ends; waiting pays 10 after three steps."""

    def set_state(self, observation):
        self.waited = int(observation[0])

    def step(self, action):
        self.waited += 1
        reward = 1.0 if action == 1 else 10.0 if self.waited == 3 else 0.0
        return np.array([float(self.waited)]), reward, action == 1 or self.waited == 3


class Target:
    """Every step pays more the nearer the action is to a target."""

    target = np.array([0.3, -0.6])

    def set_state(self, observation):
        self.seen = observation

    def step(self, action):
        return np.zeros(1), -float(((action - self.target) ** 2).sum()), False


def model(environment: object, actions: Space = TWO, **options: object) -> Model:
    return Model(environment, Checks(tuple, float, bool, np.array), action_space=actions, **options)


def choose(
    planner: Mcts | Cem, world: Model, place: float = 0.0, *, horizon: int = 50, seed: int = 0
) -> list:
    rng = np.random.default_rng(seed)
    return planner.plan(world, np.array([place]), horizon=horizon, rng=rng)


def test_the_tree_search_walks_the_only_way_that_pays() -> None:
    for seed in range(5):
        for place in range(5):
            assert choose(Mcts(simulations=100), model(Corridor()), place, seed=seed) == [1]


def test_no_step_beyond_the_horizon_counts() -> None:
    for horizon, action in ((1, 1), (2, 1), (3, 0), (50, 0)):
        assert choose(Mcts(simulations=200), model(Patience()), horizon=horizon) == [action]


def test_an_action_whose_outcome_is_known_is_not_taken_again() -> None:
    world = model(Patience())
    choose(Mcts(simulations=25), world, horizon=1)
    assert world.counter[0] == 2


def test_rollouts_end_where_the_episode_ends() -> None:
    world = model(Corridor())
    choose(Mcts(simulations=2), world, 4.0)
    assert world.counter[0] == 2


def test_a_random_outcome_is_weighed_and_not_taken_for_granted() -> None:
    class Lottery:
        def set_state(self, observation):
            self.rng = getattr(self, "rng", np.random.default_rng(5))

        def step(self, action):
            won = self.rng.random() < 0.25
            return np.array([float(won)]), (float(won) if action else 0.4), True

    world = model(Lottery(), deterministic=False)
    chosen = [choose(Mcts(simulations=100), world, seed=seed) for seed in range(20)]
    assert chosen.count([0]) >= 18
    assert world.counter[0] == 20 * 100


def test_actions_of_equal_value_are_chosen_at_random() -> None:
    class Same(Corridor):
        def step(self, action):
            return np.zeros(1), 0.0, True

    chosen = [choose(Mcts(), model(Same()), seed=seed)[0] for seed in range(40)]
    assert 8 < sum(chosen) < 32


def test_actions_are_numbered_as_their_space_numbers_them() -> None:
    class Best(Corridor):
        def step(self, action):
            return np.zeros(1), float(action == -2), True

    assert choose(Mcts(), model(Best(), space_of(spaces.Discrete(3, start=-3)))) == [-2]


def test_cem_finds_the_optimum_of_a_quadratic_reward() -> None:
    plan = choose(Cem(horizon=3, iterations=8, samples=500, elites=50), model(Target(), LINE))
    assert np.allclose(plan, [Target.target] * 3, atol=0.05)


def test_cem_keeps_to_the_bounds_and_reaches_them() -> None:
    class Far(Target):
        target = np.array([5.0, -5.0])

    plan = choose(Cem(horizon=2, iterations=6, samples=500), model(Far(), LINE))
    assert np.array_equal(plan, [[1.0, -1.0]] * 2)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_cem_plans_actions_of_any_shape(shape: tuple[int, ...]) -> None:
    class Shaped(Target):
        def step(self, action):
            assert np.shape(action) == shape
            return np.zeros(1), -float(np.sum(np.square(action - 0.5))), False

    plan = choose(Cem(horizon=1, iterations=8), model(Shaped(), space_of(spaces.Box(0, 1, shape))))
    assert np.allclose(plan, 0.5, atol=0.05)


def test_a_plan_is_no_longer_than_the_horizon_and_replan_allow() -> None:
    for horizon, replan, length in ((50, 4, 4), (2, 4, 2), (50, 30, 10)):
        planner = Cem(horizon=10, iterations=1, samples=20, replan=replan)
        world = model(Target(), LINE)
        assert len(choose(planner, world, horizon=horizon)) == length
        assert world.counter[0] == 20 * min(10, horizon)


def test_a_program_cannot_change_what_the_planner_remembers() -> None:
    class Vandal(Target):
        def set_state(self, observation):
            observation += 1000

        def step(self, action):
            result = super().step(action)
            action[...] = 99
            return result

    class VandalInTheCorridor(Corridor):
        def set_state(self, observation):
            super().set_state(observation)
            observation[...] = 99
            self.mine = np.zeros(1)

        def step(self, action):
            seen, *rest = super().step(action)
            self.mine[...] = seen  # the same array each time
            return self.mine, *rest

    honest = choose(Cem(), model(Target(), LINE))
    assert np.array_equal(choose(Cem(), model(Vandal(), LINE)), honest)
    for seed in range(5):
        assert choose(Mcts(simulations=100), model(VandalInTheCorridor()), seed=seed) == [1]


def test_the_paper_preset_is_the_published_one_and_options_go_before_it() -> None:
    assert Cem(preset="paper").effort == Effort(100, 20, 1000, 100, replan=100)
    assert Cem(preset="paper", samples=500, replan=1).effort == Effort(100, 20, 500, 100, 1)
    mcts = Mcts()
    assert (mcts.simulations, mcts.rollout, mcts.exploration, mcts.discount) == (25, 100, 1.0, 0.99)


def test_options_without_sense_are_refused() -> None:
    for planner, options in (
        (Mcts, {"simulations": 0}),
        (Mcts, {"rollout": 0}),
        (Mcts, {"discount": 1.5}),
        (Mcts, {"exploration": float("nan")}),
        (Cem, {"samples": 5}),
        (Cem, {"iterations": 0}),
        (Cem, {"replan": 0}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            planner(**options)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Discrete(3), ["mcts"]),
        (spaces.Box(-1, 1, (2,)), ["cem"]),
        (spaces.Box(-np.inf, np.inf, (2,)), []),
        (spaces.Box(0, 9, (2,), np.int64), []),
        (spaces.MultiDiscrete([2, 2]), []),
        (spaces.Tuple([spaces.Discrete(2)]), []),
    ],
    ids=str,
)
def test_planners_say_which_actions_they_serve(space: gym.Space, names: list[str]) -> None:
    assert fitting(space_of(space)) == names


# Sessions: the same planners, in the process of the program.

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
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def decide(sandbox: Sandbox, text: str, times: int = 1, **options: object) -> list[Plan]:
    """Plan some times with a program for two actions, at the observation 0."""
    settings = {"simulations": 10, "rollout": 5} | options
    with sandbox.session(text, (HERE, TWO), planner="mcts", options=settings) as session:
        return [session.plan(np.zeros(1, np.float32), horizon=50) for _ in range(times)]


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
    "SIGKILL to itself": (program("import signal; signal.raise_signal(9)"), "crash", "SIGKILL"),
    "an import of what is not loaded": (program("import sqlite3"), "step_error", "cannot import"),
    "closed pipes": (program("os.closerange(0, 99); return GOOD"), "step_error", "NameError"),
    "garbage for a reply": (
        program("os.write(5, b'\\xff' * 10**4); time.sleep(9)"), "wrong_output", "meddled"
    ),
    "an action out of bounds": (
        program("os.write(5, b'\\x08' + bytes(11) + b'\\x02' + bytes(7)); time.sleep(9)"),
        "wrong_output",
        "meddled",
    ),
    "no action": (program("os.write(5, bytes(12)); time.sleep(9)"), "wrong_output", "meddled"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_every_failure_has_its_name_and_nothing_survives_it(sandbox: Sandbox, name: str) -> None:
    text, kind, words = FAILING[name]
    actions, steps, failure = decide(sandbox, text)[0]
    assert (actions, steps) == ([], 0)
    assert failure is not None
    assert (failure.kind, words in failure.message) == (kind, True), failure
    assert stays(lambda count: count <= AT_REST)
    assert decide(sandbox, GOOD)[0].actions == [1]


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


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_is_left_alone(sandbox: Sandbox, name: str) -> None:
    for plan in decide(sandbox, HARMLESS[name], times=3):
        assert plan.failure is None
        assert plan.actions == [1]


def test_after_a_failure_the_session_goes_on_in_a_fresh_process(sandbox: Sandbox) -> None:
    text = program("assert self.state[0] < 5; return self.state, float(action), False")
    with sandbox.session(text, (HERE, TWO), planner="mcts") as session:
        plans = [session.plan(np.array([place]), horizon=9) for place in (0.0, 7.0, 0.0, 7.0, 0.0)]
    assert [plan.failure is None for plan in plans] == [True, False, True, False, True]
    assert [plan.actions for plan in plans[::2]] == [[1]] * 3


def test_a_program_stays_in_one_process_until_it_fails(sandbox: Sandbox) -> None:
    text = program(
        "return self.state, float(action), False",
        set_state="self.state = observation; self.n += 1; assert self.n < 30",
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
        with sandbox.session(text, (HERE, TWO), planner="mcts", seed=seed) as session:
            return [session.plan(np.zeros(1), horizon=9).actions for _ in range(12)]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_a_failure_does_not_change_later_decisions(sandbox: Sandbox) -> None:
    text = program(
        "assert self.state[0] < 5; return self.state, random.random(), False", top="import random"
    )

    def actions(place: float) -> list[list[int]]:
        with sandbox.session(text, (HERE, TWO), planner="mcts") as session:
            session.plan(np.array([place]), horizon=9)
            return [session.plan(np.zeros(1), horizon=9).actions for _ in range(12)]

    assert actions(0.0) == actions(7.0)


def test_limits_hold_for_each_decision_and_not_for_all_of_them() -> None:
    busy = program(
        "t = time.process_time()\n        while time.process_time() < t + 0.05: pass\n"
        "        return self.state, float(action), True"
    )
    with (
        Sandbox(Limits(wall_seconds=1.0, cpu_seconds=0.25)) as sandbox,
        sandbox.session(busy, (HERE, TWO), planner="mcts") as session,
    ):
        for _ in range(4):
            assert session.plan(np.zeros(1), horizon=1).failure is None
        time.sleep(1.1)  # between two decisions nothing is counted
        assert session.plan(np.zeros(1), horizon=1).actions == [1]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(wall_seconds=0.5), "the program took more than 0.5 s"),
        (Limits(sleep_seconds=0.5), "the program slept or waited for more than 0.5 s"),
    ],
    ids=["the clock", "no patience"],
)
@pytest.mark.parametrize(
    "text",
    [program("time.sleep(60)"), program(init="os.read(4, 9)")],
    ids=["asleep", "a question that is swallowed"],
)
def test_a_program_that_does_nothing_is_ended(text: str, limits: Limits, words: str) -> None:
    with Sandbox(limits) as sandbox:
        failure = decide(sandbox, text)[0].failure
    assert failure is not None
    assert failure.kind == "timeout_wall"
    assert words in failure.message


def test_no_patience_is_lost_between_two_decisions() -> None:
    with (
        Sandbox(Limits(sleep_seconds=0.3)) as sandbox,
        sandbox.session(GOOD, (HERE, TWO), planner="mcts") as session,
    ):
        for _ in range(2):
            assert session.plan(np.zeros(1), horizon=9).actions == [1]
            time.sleep(0.5)


def test_actions_of_a_box_come_in_its_own_type_and_shape(sandbox: Sandbox) -> None:
    space = space_of(spaces.Box(-1, 1, (2, 3)))
    text = program("return self.state, float(action.sum()), False")
    options = {"horizon": 4, "iterations": 5, "samples": 200, "replan": 2}
    with sandbox.session(text, (HERE, space), planner="cem", options=options) as session:
        plan = session.plan(np.zeros(1), horizon=9)
    assert [(action.dtype, action.shape) for action in plan.actions] == [(np.float32, (2, 3))] * 2
    assert all(action.mean() > 0.4 for action in plan.actions)
    assert plan.steps == 5 * 200 * 4


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
@pytest.mark.parametrize(("space", "check"), SPACES, ids=lambda value: str(value)[:20])
def test_observations_reach_the_program_and_come_back_whole(
    sandbox: Sandbox, space: gym.Space, check: str, top: str
) -> None:
    space.seed(3)
    text = program(
        "self.n += 1; return self.state, float(action), False",
        init="self.n = 0; self.first = None",
        set_state=f"assert {check}; text = repr(observation); self.first = self.first or text;"
        " assert text == self.first; self.state = observation",
        top=top,
    )
    options = {"rollout": 2}
    with sandbox.session(text, (space_of(space), TWO), planner="mcts", options=options) as session:
        plan = session.plan(space.sample(), horizon=9)
    assert plan.failure is None
    assert plan.actions == [1]


@pytest.mark.parametrize("space", [space for space, _ in SPACES], ids=str)
def test_a_record_gives_back_what_it_was_given(space: gym.Space) -> None:
    space.seed(4)
    described = space_of(space)
    record, value = Record(described, "values"), space.sample()
    data = record.encode(value)
    assert len(data) == record.size
    before, after = (described.pack("x", [each]) for each in (value, record.decode(data)))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_observation_of_another_space_is_refused(sandbox: Sandbox) -> None:
    with sandbox.session(GOOD, (HERE, TWO), planner="mcts") as session:
        with pytest.raises(ValueError, match="observations are not of their space"):
            session.plan(np.zeros(3), horizon=9)
        assert session.plan(np.zeros(1), horizon=9).actions == [1]


def test_sessions_run_side_by_side_and_end_when_they_are_closed() -> None:
    time.sleep(0.1)  # until a worker of another test is at rest
    others = processes()
    with Sandbox(LIMITS, workers=2) as sandbox:
        first = sandbox.session(GOOD, (HERE, TWO), planner="mcts")
        second = sandbox.session(GOOD, (HERE, TWO), planner="mcts")
        for session in (first, second, first):
            assert session.plan(np.zeros(1), horizon=9).actions == [1]
        most = (WORKERS + 1) * PER_WORKER  # a session takes a worker of the one side
        assert stays(lambda count: len(others) + AT_REST <= count <= len(others) + most)
        first.close()
        second.close()
        assert stays(lambda count: count == len(others) + most)
        assert first.plan(np.zeros(1), horizon=9).actions == [1]  # starts again
    assert wait_until(lambda: processes() == others)
    with pytest.raises(SandboxError, match="closed"):
        first.plan(np.zeros(1), horizon=9)


def test_a_session_leaves_no_process_of_its_program_behind(sandbox: Sandbox) -> None:
    decide(sandbox, GOOD)
    assert stays(lambda count: count == AT_REST)
    before = processes()
    with sandbox.session(GOOD, (HERE, TWO), planner="mcts") as session:
        assert session.plan(np.zeros(1), horizon=9).actions == [1]
    assert stays(lambda count: count == AT_REST)
    assert len(set(before) - set(processes())) == 1, "the process of the program is gone"


def test_an_interrupted_session_leaves_its_worker_ready(sandbox: Sandbox) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        sandbox.session(GOOD, (HERE, TWO), planner="mcts") as session,
    ):
        session.plan(np.zeros(1), horizon=9)
        raise KeyboardInterrupt
    assert stays(lambda count: count == AT_REST)
    assert decide(sandbox, GOOD)[0].actions == [1]


@pytest.mark.parametrize("name", PLANNERS)
def test_every_planner_has_options_with_defaults(name: str) -> None:
    assert PLANNERS[name]() == PLANNERS[name]()
    assert PLANNERS[name].NEEDS
