"""Ceilings: scores of the true environment when it is restored from single observations."""

import gc
import weakref
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.evaluation import AccuracyMetric, PaperMetric
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import EnvironmentModel, ProgramModel
from cwm_gymnasium import cwm_environments
from cwm_gymnasium.restoring import restore
from folders import ROOT

FULLY_OBSERVED = [
    ("CliffWalking-v1", {}),
    ("Taxi-v4", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
    ("CartPole-v1", {}),
    ("MountainCar-v0", {}),
    ("MountainCarContinuous-v0", {}),
    ("Acrobot-v1", {}),
    ("Pendulum-v1", {}),
    ("Reacher-v5", {}),
    ("Pusher-v5", {}),
    ("InvertedPendulum-v5", {}),
    ("InvertedDoublePendulum-v5", {}),
    ("HalfCheetah-v5", {}),
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False}),
    ("Hopper-v4", {}),
    ("Swimmer-v5", {}),
]


def find(name):
    return cwm_environments()[name]()


def record_episodes(spec, episodes=2, max_steps=30, **env_args):
    lengths = {"episodes": episodes, "test_episodes": 0, "max_steps": max_steps}
    return record(spec, env_args=env_args, policy="random", **lengths)


def score(spec, data, seed=0, **env_args):
    """Return the ceiling on recorded transitions."""
    return AccuracyMetric.of(data).ceiling(EnvironmentModel(spec, env_args), data, seed=seed)


@pytest.mark.parametrize(("name", "env_args"), FULLY_OBSERVED)
def test_fully_observed_environment_predicts_all_rows(name, env_args):
    spec = find(name)
    reached = score(spec, record_episodes(spec, **env_args), **env_args)
    assert (reached.accuracy, reached.exact) == (1.0, 1.0)
    assert reached.floor < 0.8


class TestHiddenState:
    def test_clipped_speed_cannot_be_restored(self):
        spec = find("Walker2d-v5")
        data = record_episodes(spec, episodes=3)
        clipped = (np.abs(data.columns["observations"]) == 10).any(axis=1)
        assert score(spec, data[~clipped]).exact == 1.0
        assert score(spec, data[clipped]).exact < 0.2

    def test_reward_that_depends_on_the_previous_step_needs_its_controls(self):
        humanoid, ant = find("Humanoid-v5"), find("Ant-v5")
        lying = find("HumanoidStandup-v5")
        assert score(humanoid, record_episodes(humanoid)).reward > 0.95
        assert score(lying, record_episodes(lying, episodes=1)).exact > 0.95
        blind = score(ant, record_episodes(ant))
        assert blind.observation == 1.0
        assert blind.reward < 0.5

    def test_random_outcomes_depend_on_the_seed_only(self):
        spec = find("Blackjack-v1")
        data = record_episodes(spec, episodes=100)
        first, second = (score(spec, data, seed) for seed in (1, 2))
        assert first == score(spec, data, seed=1)
        assert first.accuracy != second.accuracy
        assert first.floor < first.accuracy < 1


class TestHands:
    @pytest.fixture
    def table(self):
        env = find("Blackjack-v1").make()
        env.reset(seed=0)
        return env.unwrapped

    @pytest.mark.parametrize("seen", [(4, 1, 0), (12, 10, 1), (21, 5, 1), (21, 5, 0), (5, 2, 0)])
    def test_dealt_hand_matches_the_observation(self, table, seen):
        assert restore(table, seen)
        assert table._get_obs() == seen

    def test_impossible_hand_is_rejected(self, table):
        assert not restore(table, (31, 5, 0))
        assert not restore(table, (4, 5, 1))

    def test_hidden_card_of_the_dealer_is_random(self, table):
        hidden = set()
        for seed in range(20):
            table.reset(seed=seed)
            restore(table, (15, 7, 0))
            hidden.add(table.dealer[1])
        assert len(hidden) > 3


class Track(gym.Env):
    """A walk on a line; with `secret`, the observation contains noise instead of the position."""

    observation_space = spaces.Dict(
        place=spaces.Box(-99, 99, (1,), np.float32), goal=spaces.Discrete(9)
    )
    action_space = spaces.Discrete(2, start=1)

    def __init__(self, secret=False):
        self.secret, self.spot, self.target, self.moves = secret, [0.0], 3, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.spot, self.target = [self.np_random.uniform(-1, 1)], int(self.np_random.integers(9))
        self.moves = 0
        return self.seen(), {}

    def seen(self):
        place = self.np_random.normal() if self.secret else self.spot[0]
        return {"place": np.array([place], np.float32), "goal": self.target}

    def step(self, action):
        self.spot = [self.spot[0] + 2 * action - 3]
        self.moves += 1
        return self.seen(), float(self.spot[0] > self.target), self.spot[0] < -5, False, {}


def track(**changes):
    """Return the specification that a plugin would provide for this environment."""
    spec = EnvironmentSpec(
        "Track-v0",
        make=lambda **env_args: gym.wrappers.TimeLimit(Track(**env_args), 40),
        describe=lambda env: "",
        versions=dict,
        restore=restore,
    )
    return replace(spec, **changes)


class TestAnyEnvironment:
    def test_observed_attributes_are_restored(self):
        data = record_episodes(track())
        assert score(track(), data).exact == 1.0

    def test_other_attributes_do_not_change(self):
        env = Track()
        env.reset(seed=0)
        restore(env, {"place": np.array([0.5]), "goal": 3})
        env.moves = 17
        assert restore(env, {"place": np.array([2.5]), "goal": 7})
        assert (env.spot, env.target, env.moves) == ([2.5], 7, 17)

    def test_invalid_observation_is_rejected(self):
        env = Track()
        env.reset(seed=0)
        assert not restore(env, np.zeros(5))
        assert not restore(env, {"place": np.array([np.nan]), "goal": 3})

    def test_hidden_state_has_no_ceiling(self):
        data = record_episodes(track(), secret=True)
        assert score(track(), data, secret=True) is None
        reached = AccuracyMetric.of(data).reach(EnvironmentModel(track(), {"secret": True}), data)
        assert (reached.unanswered, reached.score.accuracy) == (len(data), 0.0)

    def test_environment_without_restore_has_no_ceiling(self):
        data = record_episodes(track())
        assert score(track(restore=None), data) is None
        assert (
            AccuracyMetric.of(data).reach(
                EnvironmentModel(track()), data[np.zeros(len(data), bool)]
            )
            is None
        )

    def test_time_limit_does_not_affect_the_ceiling(self):
        data = record_episodes(track(), max_steps=40)
        assert data.columns["truncations"].any()
        assert score(track(make=lambda: gym.wrappers.TimeLimit(Track(), 1)), data).exact == 1.0

    def test_restored_environment_can_be_garbage_collected(self):
        env = Track()
        env.reset(seed=0)
        assert restore(env, env.seen())
        reference = weakref.ref(env)
        del env
        gc.collect()
        assert reference() is None


class TestRowsThatCannotBeRestored:
    @pytest.mark.parametrize("kind", [AccuracyMetric, PaperMetric])
    def test_unanswered_rows_count_as_wrong(self, kind):
        data = record_episodes(track())
        lost = data.columns["observations.place"].ravel() > 0
        assert 0 < lost.mean() < 1
        picky = track(restore=lambda env, seen: seen["place"] <= 0 and restore(env, seen))
        metric = kind.of(data)
        reached = metric.reach(EnvironmentModel(picky), data)
        parts = (reached.score.exact, reached.score.reward, reached.score.terminated)
        assert reached.unanswered == lost.sum()
        assert parts == pytest.approx(3 * (1 - lost.mean(),))
        weights = metric.weights(data)
        if kind is AccuracyMetric:
            share = weights[~lost].sum() / weights.sum()
            assert reached.score.value == pytest.approx(share)
        assert reached.score.value < metric.reach(EnvironmentModel(track()), data).score.value

    def test_mostly_unanswered_rows_give_no_ceiling(self):
        data = record_episodes(track())
        picky = track(restore=lambda env, seen: seen["place"] > 5 and restore(env, seen))
        assert score(picky, data) is None


def test_ceiling_uses_the_valid_actions_of_the_environment():
    def allowed(env):
        return (1, 2) if env.spot[0] < 0 else (1,)

    data = record_episodes(track())
    rows = [
        row._replace(valid=(1, 2) if row.next_observation["place"] < 0 else (1,)) for row in data
    ]
    with_valid = as_dataset(rows)
    assert score(track(valid_actions=allowed), with_valid).valid_actions == 1.0
    all_valid = np.mean([row.valid == (1, 2) for row in rows if not row.terminated])
    assert score(track(), with_valid).valid_actions == pytest.approx(all_valid)


def as_dataset(rows: list[Transition]) -> Dataset:
    observations, actions = (
        space_of(Track.observation_space),
        space_of(Track.action_space, "actions"),
    )
    return Dataset.of(rows, observation_space=observations, action_space=actions)


@pytest.mark.parametrize("name", ["Walker2d-v5", "Ant-v5"])
def test_environment_model_with_memory_predicts_hidden_state(name):
    data = Dataset.load(ROOT / "data" / "cwm_data" / f"{name}.npz")
    rows = data.test[np.arange(150)]
    metric = PaperMetric.of(data.train)
    without, with_memory = (
        metric.ceiling(EnvironmentModel(environment(name), remembers=remembers), rows).accuracy
        for remembers in (False, True)
    )
    assert without < 0.75
    assert with_memory > 0.995


@pytest.mark.slow
def test_programs_with_memory_predict_hidden_state():
    for name, file in {"Walker2d-v5": "walker2d", "Ant-v5": "ant"}.items():
        rows = Dataset.load(ROOT / "data" / "cwm_data" / f"{name}.npz").test
        text = (ROOT / "benchmarks" / "remembering" / f"{file}.py").read_text()
        with Sandbox(tools=("mujoco",)) as sandbox:
            found = ProgramModel(text, sandbox).predict(rows)
        assert found.failure is None, name
        exact = np.isclose(found.columns["rewards"], rows.columns["rewards"], 1e-6, 1e-6)
        later = np.diff(rows.columns["episodes"], prepend=-1) == 0
        assert exact[later].mean() > 0.99, name
        assert AccuracyMetric.of(rows).score(found, rows).accuracy > 0.999, name
