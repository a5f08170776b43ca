"""Planning, rollouts and export of programs with memory and of random programs."""

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.commands.episodes import Episode, play
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Setting, Task
from cwm_cli.evaluation.mismatches import Comparing
from cwm_cli.evaluation.rollouts import Rollout, rollouts
from cwm_cli.export import export_of, publish
from cwm_cli.planning import Unsuited
from cwm_cli.planning.memory import ProgramWithMemory, replica
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.planning.program import Checks
from cwm_cli.registry import environment
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import GENERATE, Node, Record, Usage, Verdict
from cwm_cli.worlds.messages import PlanningJob, SteppingJob, states_of
from cwm_cli.worlds.model import Planning
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.remote import RemoteModel, TamperingError
from forgers import HANDLER

LIMITS = Limits(wall_seconds=60, cpu_seconds=40, stall_seconds=2, sleep_seconds=2)
HIDDEN = {"hide": ["velocities"]}
QUICK = {"simulations": 60, "rollout": 40, "budget": 300}

POLE = """
import math
import numpy as np

class Environment:
    def reset(self, observation):
        self.place, self.speed = observation.tolist(), [0.0, 0.0]

    def pushed(self, action):
        angle, spin = self.place[1], self.speed[1]
        sin, cos = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        return [push - 0.05 * turn * cos / 1.1, turn]

    def step(self, action):
        self.before, self.action = (self.place, self.speed), action
        changes = self.pushed(action)
        self.place = [place + 0.02 * speed for place, speed in zip(self.place, self.speed)]
        self.speed = [speed + 0.02 * change for speed, change in zip(self.speed, changes)]
        over = abs(self.place[0]) > 2.4 or abs(self.place[1]) > 12 * math.pi / 180
        return np.array(self.place), 1.0, over

    def correct(self, observation, reward):
        now, (self.place, _) = observation.tolist(), self.before
        self.speed = [(place - was) / 0.02 for place, was in zip(now, self.place)]
        changes = self.pushed(self.action)
        self.place = now
        self.speed = [speed + 0.02 * change for speed, change in zip(self.speed, changes)]
"""
"""CartPole without velocities, which it takes from differences: exact from the third step on."""

PLACES = Space("box", "float64", (2,), (-10.0, -10.0), (10.0, 10.0))
PUSHES = Space("discrete", low=(0,), high=(1,))
SIDES = Space("discrete", low=(0,), high=(9,))

ALONE = """
import sys
import warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import gymnasium
import numpy as np
env = gymnasium.make(sys.argv[2])
from gymnasium.utils.env_checker import check_env
check_env(env.unwrapped)
"""


def exported(folder: Path, program: str, rows: Dataset, code: str) -> str:
    """Export a program, and run code with the environment that it makes."""
    header = SearchHeader(
        config=SearchConfig(env="Gone-v0", dataset="d", strategy="s", backend="b"),
        description="",
        versions={},
        source="x",
        created="now",
    )
    run = SearchRun.start(folder / "run", header, {"dataset.npz": rows})
    node = Node(0, 0, -1, GENERATE, program, Verdict(0.5), "key", Usage())
    with run:
        run.learn(Record(node, program))
    run.write_best(program)
    made = export_of(run.folder)
    publish(made, folder / "made")
    arguments = [str(folder / "made"), "gone_v0_world_model:WorldModel/Gone-v0"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "made" / "README.md").read_text()


@pytest.fixture(scope="module")
def poles() -> Dataset:
    """Random play of CartPole without velocities."""
    made = environment("CartPole-v1").make(**HIDDEN)
    made.action_space.seed(0)
    rows = []
    for number in range(6):
        seen, over = made.reset(seed=number)[0], False
        while not over:
            action = made.action_space.sample()
            after, reward, over, *_ = made.step(action)
            rows.append(Transition(seen, action, after, float(reward), over, episode=number))
            seen = after
    spaces = space_of(made.observation_space), space_of(made.action_space, "actions")
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, 4) as made:
        yield made


class TestCopying:
    def test_a_replica_shares_no_mutable_state_and_keeps_shared_references(self) -> None:
        class Other:
            def __init__(self) -> None:
                self.inner = [1, {"a": np.arange(3)}, {2, 3}, (4, [5]), deque([6])]
                self.same = self.inner
                self.me = self

        source, rng = Other(), np.random.default_rng(0)
        source.rng, source.table = rng, {(0, 1): "key"}
        made = replica(source, rng)
        assert repr(vars(made).keys()) == repr(vars(source).keys())
        assert made.rng is rng and made.me is made and made.same is made.inner
        made.inner[1]["a"][0], made.table[(0, 1)] = 9, "other"
        made.inner[2].add(7)
        made.inner[3][1].append(8)
        made.inner[4].append(9)
        expected = "[1, {'a': array([0, 1, 2])}, {2, 3}, (4, [5]), deque([6])]"
        assert repr(source.inner) == expected and source.table == {(0, 1): "key"}

    def test_memory_that_cannot_be_copied_suits_no_planner(self) -> None:
        with pytest.raises(Unsuited, match="has a memory that cannot be copied"):
            replica([number for number in range(2)] + [iter(range(3)), (n for n in range(2))])


def test_a_rollout_with_memory_starts_from_the_history_and_uses_its_own_predictions(
    sandbox, poles
) -> None:
    starts, every = (rollouts(ProgramModel(POLE, sandbox), poles, n, [1, 10]) for n in (6, 60))
    assert every[0].error == pytest.approx(starts[0].error / 10, rel=0.01)
    assert every[1].error < starts[1].error / 4 < 0.03
    blind = POLE.replace("self.speed = [(place", "self.speed = [0 * (place")
    assert rollouts(ProgramModel(blind, sandbox), poles, 60, [10])[0].error > 8 * every[1].error
    broken = POLE.replace("self.before, self.action =", "x = 1 / (self.place[0] < 0.02) and")
    assert rollouts(ProgramModel(broken, sandbox), poles, 12, [10]) == [Rollout(10, None)]


class Arms(gym.Env):
    """Two arms without observations; one of them pays for a whole episode."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.good, self.steps = int(self.np_random.integers(2)), 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, float(action == self.good), self.steps == 10, False, {}


ARMS = """
class Environment:
    def reset(self, observation):
        self.good, self.steps = None, 0

    def step(self, action):
        if self.good is None:
            self.good = int(self.rng.integers(2))
        self.action, self.steps = action, self.steps + 1
        return 0, float(action == self.good), self.steps == 10

    def correct(self, observation, reward):
        self.good = self.action if reward else 1 - self.action
"""
"""Draws the hidden arm at random until a reward shows it."""


SAVING = """
    def save(self):
        return self.place, self.speed, getattr(self, "before", None), getattr(self, "action", 0)

    def restore(self, saved):
        self.place, self.speed, self.before, self.action = saved
"""

SWING = """
import math
import numpy as np

class Environment:
    def reset(self, observation):
        self.angle, self.speed = math.atan2(observation[1], observation[0]), 0.0

    def step(self, action):
        torque = min(max(float(action[0]), -2.0), 2.0)
        angle = (self.angle + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        speed = self.speed + (15 * math.sin(self.angle) + 3 * torque) * 0.05
        self.speed = min(max(speed, -8.0), 8.0)
        self.before, self.angle = self.angle, self.angle + self.speed * 0.05
        return np.array([math.cos(self.angle), math.sin(self.angle)]), -cost, False

    def correct(self, observation, reward):
        angle = math.atan2(observation[1], observation[0])
        change = (angle - self.before + math.pi) % (2 * math.pi) - math.pi
        self.angle, self.speed = self.before + change, change / 0.05
"""
"""Pendulum without its velocity, which it takes from two angles."""

PRAISING = HANDLER + POLE.replace(
    "return np.array(self.place), 1.0, over",
    """self.depth = getattr(self, "depth", 0) + 1
        praised = handler() in ("PlanningHandler", "SteppingHandler") and self.depth > DEPTH
        liked = self.before[0][1] + 0.5 * self.before[1][1] > 0
        return np.array(self.place), 1.0 if not praised else float(action == liked), over""",
).replace("now, (self.place", "self.depth = 0\n        now, (self.place")
"""Rewards its own preferred actions in plans from a depth on."""


def in_this_process(program: str) -> ProgramWithMemory:
    """Return a program as a model, with nothing around it."""
    names: dict[str, Any] = {}
    exec(program, names)
    checks = Checks(tuple, float, bool, np.array)
    return ProgramWithMemory(names["Environment"](), checks, action_space=PUSHES)


def played(
    sandbox: Sandbox, program: str, task: Task, planner: Planning, count: int
) -> list[Episode]:
    """Play episodes with a program; each is confirmed."""
    with ProgramModel(program, sandbox, share=1.0).open([planner], task) as session:
        rounds = list(play(task, range(count), session))
    return [each.episode for progress in rounds for each in progress.finished]


class TestPlanning:
    @pytest.mark.slow
    def test_hidden_state_is_sampled_in_plans_until_it_is_observed(self, sandbox) -> None:
        task, mcts = Task(Arms, 0, 10), Planning("mcts", {"simulations": 60, "budget": 200})
        episodes = played(sandbox, ARMS, task, mcts, 3)
        assert [each.failure for each in episodes] == [None] * 3
        assert {each.returned for each in episodes} == {9.0, 10.0}
        assert all(each.confirmed == each.decisions for each in episodes)

    @pytest.mark.slow
    def test_a_pole_is_balanced_without_observed_velocities(self, sandbox) -> None:
        task = Setting("CartPole-v1", HIDDEN, 0, 60).task(environment("CartPole-v1"))
        ways = (POLE, POLE + SAVING)
        found = [played(sandbox, way, task, Planning("mcts", QUICK), 2) for way in ways]
        assert [each.returned for each in found[0]] == [60, 60]
        assert found[0][0].confirmed == 60
        alike = [[(each.returned, each.model_steps) for each in some] for some in found]
        assert alike[0] == alike[1]

    def test_places_without_references_are_freed(self, sandbox) -> None:
        job = SteppingJob(program=POLE, observation_space=PLACES, action_space=PUSHES)
        with closing(RemoteModel(sandbox, job)) as model:
            model.stand(EpisodeHistory((np.array([0.0, 0.01]),)))
            first = model.here()
            for _ in range(3):
                for number in range(300):
                    model.step(number % 2)
                    model.here()
                model.stand(first)
            assert sum(map(bool, model._held.values())) < 600
            assert model.step(1).observation.tolist() == [0.0, 0.01]

    @pytest.mark.slow
    def test_continuous_actions_are_planned_with_memory(self, sandbox) -> None:
        made = environment("Pendulum-v1")
        task = Setting("Pendulum-v1", HIDDEN, 0, 30).task(made)
        icem = Planning("icem", {"budget": 600, "horizon": 12})
        [episode] = played(sandbox, SWING, task, icem, 1)
        assert episode.failure is None and episode.confirmed == episode.decisions
        assert episode.model_steps > 30 * 500

    @pytest.mark.slow
    @pytest.mark.parametrize("depth", [0, 1])
    def test_a_program_with_other_rewards_in_plans_is_rejected(self, sandbox, depth) -> None:
        task = Setting("CartPole-v1", HIDDEN, 0, 12).task(environment("CartPole-v1"))
        with pytest.raises(TamperingError, match="steps used in plans differently when repeated"):
            played(sandbox, PRAISING.replace("DEPTH", str(depth)), task, Planning("mcts", QUICK), 1)

    def test_states_after_different_actions_with_equal_observations_differ(self) -> None:
        model = in_this_process(POLE)
        seen = np.array([0.0, 0.01])
        model.stand(EpisodeHistory((seen,)))
        steps = []
        for action in (0, 1):
            model.stand(EpisodeHistory((seen,)))
            step = model.step(action)
            steps.append((step.observation, model.here()))
        (left, to_left), (right, to_right) = steps
        assert (left == right).all()
        model.stand(EpisodeHistory((seen, left), (1,), (1.0,)))
        assert not model.agree(to_left, model.here())
        assert model.agree(to_right, model.here())

    def test_a_longer_history_takes_one_more_step_of_the_program(self) -> None:
        model, seen = in_this_process(POLE), np.array([0.0, 0.01])
        history = EpisodeHistory((seen,))
        for number in range(20):
            model.stand(history)
            step = model.step(number % 2)
            assert model.counter[0] == 2 * number + 1
            history = history.after(number % 2, step.observation, 1.0)
        again = in_this_process(POLE)
        again.stand(history)
        assert again.counter[0] == 20
        model.stand(history)
        kept = [vars(each.here().state.environment) for each in (again, model)]
        assert repr(kept[0]) == repr(kept[1])

    def test_only_new_steps_of_a_history_are_sent(self) -> None:
        job = PlanningJob(program=POLE, observation_space=PLACES, action_space=PUSHES, planners=[])
        there, back = states_of(job), states_of(job)
        history, sizes = EpisodeHistory((np.zeros(2),)), []
        for number in range(1, 50):
            history = history.after(1, np.full(2, number / 10), 1.0)
            data = there.encode([7], [history])
            [read] = back.decode(data, 1)
            sizes.append(len(data))
            assert len(read.actions) == number and read.observations[-1][0] == number / 10
        assert len(set(sizes[1:])) == 1
        other = EpisodeHistory((np.ones(2),))
        assert back.decode(there.encode([7], [other]), 1)[0].observations[0][0] == 1


class TestExporting:
    def test_an_exported_program_with_memory_uses_its_own_predictions(self, tmp_path) -> None:
        start = Transition(np.array([0.0, 0.01]), 1, np.array([0.0, 0.01]), 1.0, False)
        rows = Dataset.of([start], observation_space=PLACES, action_space=PUSHES)
        code = """
env.reset(seed=0)
places = [env.step(1)[0][0] for _ in range(5)]
assert places[0] == 0 and np.all(np.diff(np.diff(places)) > 0), places
assert np.allclose(places[4], 0.02 * 0.02 * 9.75 * 10, atol=0.003), places
"""
        assert "has memory: it gets the initial observation" in exported(tmp_path, POLE, rows, code)

    def test_an_exported_program_with_outcomes_draws_them_by_the_seed(self, tmp_path) -> None:
        program = """
class Environment:
    def set_state(self, observation):
        self.place = observation
    def outcomes(self, action):
        return [(3, min(self.place + 1, 9), 1.0, False), (1, 0, 0.0, True)]
"""
        code = """
def episode(seed):
    env.reset(seed=seed)
    steps = 0
    while not env.step(0)[2]:
        steps += 1
    return steps
lengths = [episode(seed) for seed in range(400)]
assert lengths == [episode(seed) for seed in range(400)]
assert 2.4 < np.mean(lengths) < 3.6, np.mean(lengths)
"""
        row = Transition(0, 1, 1, 1.0, False)
        rows = Dataset.of([row], observation_space=SIDES, action_space=PUSHES)
        assert "are random; the seed determines them" in exported(tmp_path, program, rows, code)

    def test_an_exported_random_program_has_its_generator_in_the_constructor(
        self, tmp_path
    ) -> None:
        program = """
class Environment:
    def __init__(self):
        self.bias = self.rng.integers(3)
    def set_state(self, observation):
        self.place = observation
    def step(self, action):
        return int(self.rng.integers(10)), float(self.bias), False
"""
        code = """
def episode(seed):
    env.reset(seed=seed)
    return [env.step(0)[:2] for _ in range(9)]
first = [episode(seed) for seed in range(9)]
assert first == [episode(seed) for seed in range(9)]
assert len({str(each) for each in first}) == 9
"""
        row = Transition(0, 1, 1, 1.0, False)
        rows = Dataset.of([row], observation_space=SIDES, action_space=PUSHES)
        exported(tmp_path, program, rows, code)


def test_wrong_predictions_from_memory_are_not_chance_but_random_ones_are(sandbox) -> None:
    def step(action: int, reward: float) -> Transition:
        return Transition(0, action, 0, reward, False)

    seen = [step(0, 0.0), step(1, 1.0), step(1, 1.0), step(0, 0.0), step(0, 1.0)]
    one = Space("discrete", low=(0,), high=(1,))
    found = []
    for program in (ARMS, ARMS.replace("int(self.rng.integers(2))", "0")):
        comparing = Comparing(ProgramModel(program, sandbox), one, PUSHES)
        found.append(comparing.compare(comparing.rows(seen)))
    assert [(each.steps, each.wrong, each.drawn, each.chance) for each in found] == [
        (5, 1, 0, 0),
        (5, 2, 0, 0),
    ]
