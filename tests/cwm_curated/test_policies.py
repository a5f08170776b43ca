"""Policies that plan in a copy of the environment, and the shipped datasets."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.commands.collect import default_dataset, shipped_name
from cwm_cli.commands.policies import DEAR, Stage
from cwm_cli.commands.recording import RecordingOptions, record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs import simulators
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_curated.aims import has_rare_outcomes
from cwm_curated.policies import EpisodePlan, planned_acts
from cwm_gymnasium import cwm_environments
from folders import ROOT

SHIPPED = ROOT / "data" / "cwm_data"

STREAM = '''
import gymnasium as gym

class Stream(gym.Env):
    """A stream of numbers whose state cannot be saved."""

    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stream = (number for number in range(1000))
        return next(self.stream), {}

    def step(self, action):
        return next(self.stream), float(action), False, False, {}

gym.register("Stream-v0", entry_point=Stream)
'''


def find(name: str) -> EnvironmentSpec:
    return cwm_environments()[name]()


def episodes(dataset: Dataset) -> list[list[Transition]]:
    """Return the transitions of each episode."""
    rows = list(dataset)
    numbers = sorted({row.episode for row in rows})
    return [[row for row in rows if row.episode == number] for number in numbers]


def returns(dataset: Dataset) -> list[float]:
    """Return the sum of the rewards of each episode."""
    return [sum(row.reward for row in rows) for rows in episodes(dataset)]


def content(dataset: Dataset, folder: Path) -> bytes:
    """Return the bytes of a dataset's file."""
    dataset.save(folder / "dataset.npz")
    return (folder / "dataset.npz").read_bytes()


def masked_taxi() -> EnvironmentSpec:
    """Return a taxi with valid actions: an action is valid if it changes the state."""

    def valid(env):
        return np.flatnonzero(env.action_mask(env.s))

    return replace(find("Taxi-v4"), valid_actions=valid)


TEN: RecordingOptions = {"episodes": 10, "test_episodes": 10}


@pytest.fixture(scope="module")
def blackjack() -> Dataset:
    """Return ten training and ten test episodes of Blackjack."""
    return record(find("Blackjack-v1"), **TEN)


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "streams.py").write_text(STREAM)
    monkeypatch.syspath_prepend(tmp_path)
    yield find("streams:Stream-v0")
    sys.modules.pop("streams", None)
    gym.registry.pop("Stream-v0", None)


@pytest.fixture
def slow_environment() -> EnvironmentSpec:
    """Return an environment whose steps take too much CPU time for planning."""
    spec = find("CartPole-v1")

    class Busy(gym.Wrapper):
        def step(self, action):
            end = time.process_time() + 2 * DEAR
            while time.process_time() < end:
                pass
            return super().step(action)

    return replace(spec, make=lambda **args: Busy(spec.make(**args)))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that replaces the shipped datasets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "shop" / "cwm_data"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "cwm_data", raising=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", "Pendulum-v1", "HalfCheetah-v5"])
def test_recorded_episodes_can_be_repeated_from_their_seeds(name: str) -> None:
    spec = find(name)
    dataset = record(spec, episodes=4, test_episodes=2, max_steps=8)
    seeds = dataset.metadata["reset_seeds"]
    assert len(set(seeds)) == 6
    for rows, seed in zip(episodes(dataset), seeds, strict=True):
        assert seed % 2 == rows[0].split
        twin = spec.make()
        observation, _ = twin.reset(seed=seed)
        for row in rows:
            assert np.array_equal(row.observation, observation)
            observation, reward, terminated, _, _ = twin.step(row.action)
            assert np.array_equal(row.next_observation, observation)
            assert (row.reward, row.terminated) == (reward, terminated)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_equal_arguments_give_equal_files(name: str, tmp_path: Path) -> None:
    first, again = (
        content(record(find(name), episodes=4, test_episodes=2, max_steps=5), tmp_path)
        for _ in range(2)
    )
    assert first == again


def test_episodes_do_not_depend_on_their_number() -> None:
    few = record(find("CartPole-v1"), episodes=2, test_episodes=3, max_steps=5)
    many = record(find("CartPole-v1"), episodes=4, test_episodes=3, max_steps=5)
    for split, shared in (("train", 2), ("test", 3)):
        left, right = (
            [
                [repr(row._replace(episode=0)) for row in rows]
                for rows in episodes(getattr(dataset, split))[:shared]
            ]
            for dataset in (few, many)
        )
        assert left == right


def test_copying_of_an_environment_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[bool] = []
    original = simulators.is_exact

    def is_exact(*arguments: Any) -> bool:
        results.append(original(*arguments))
        return results[-1]

    monkeypatch.setattr(simulators, "is_exact", is_exact)
    dataset = record(find("Pendulum-v1"), policy="planner", max_steps=1, **TEN)
    assert len(dataset) == 20
    assert results == [True]


@pytest.mark.slow
def test_first_episode_is_random_and_efforts_increase(blackjack: Dataset) -> None:
    policies = blackjack.metadata["policies"]
    assert policies[:10] == policies[10:]
    assert policies[0] == "random"
    efforts = [int(name.split()[1]) for name in policies[:10] if name.startswith("reward")]
    assert efforts == sorted(set(efforts))
    assert len(efforts) >= 3


@pytest.mark.slow
def test_planned_episodes_reach_the_goal() -> None:
    cliff = record(find("CliffWalking-v1"), policy="planner", episodes=2, test_episodes=1)
    assert returns(cliff) == [-13.0] * 3
    assert cliff.metadata["policies"] == ["reward, 1000 steps"] * 3
    pendulum = [
        np.mean(returns(record(find("Pendulum-v1"), policy=policy, episodes=2, test_episodes=0)))
        for policy in ("planner", "random")
    ]
    assert pendulum[0] > pendulum[1] + 300


def test_shipped_datasets_contain_goals_and_both_limits_of_tracks() -> None:
    car, poles = (
        Dataset.load(SHIPPED / shipped_name(name)) for name in ("MountainCar-v0", "CartPole-v1")
    )
    for split in (car.train, car.test):
        assert any(row.terminated and row.next_observation[0] >= 0.5 for row in split)
        assert min(row.next_observation[0] for row in split) == np.float32(-1.2)
    for part in (poles.train[poles.train.fitted], poles.test):
        ends = [row.next_observation for row in part if row.terminated]
        assert min(end[0] for end in ends) < -2.4
        assert max(end[0] for end in ends) > 2.4
        assert any(abs(end[0]) > 2.4 and abs(end[2]) < np.radians(12) for end in ends)
    planned = [each != "random" for each in poles.metadata["policies"]]
    drawn = [rows for rows, policy in zip(episodes(poles), planned, strict=True) if not policy]
    assert all(abs(row.next_observation[0]) < 2 for rows in drawn for row in rows)


def test_shipped_cliff_dataset_has_every_action_in_every_state() -> None:
    cliff = Dataset.load(SHIPPED / shipped_name("CliffWalking-v1")).train
    tried = {(row.observation, row.action) for row in cliff[cliff.fitted]}
    assert len(tried) == 37 * 4


def test_coverage_tries_every_action_in_every_state_and_ends_last() -> None:
    spec = find("FrozenLake-v1")
    lake = record(spec, env_args={"is_slippery": False}, episodes=9, test_episodes=0)
    tried = {(row.observation, row.action) for row in lake[lake.fitted]}
    table = spec.make(is_slippery=False).unwrapped.P
    lasting = {
        (here, a)
        for here in {here for here, _ in tried}
        for a in range(4)
        if not table[here][a][0][3]
    }
    assert len(lasting) > 30
    assert lasting <= tried
    names = lake.metadata["policies"]
    covering = [
        rows for rows, name in zip(episodes(lake), names, strict=True) if name == "coverage"
    ]
    assert len(covering) == 5
    assert covering[0][-1].terminated


@pytest.mark.slow
def test_coverage_ends_episodes_although_every_end_was_tried() -> None:
    taxi = record(find("Taxi-v4"), episodes=9, test_episodes=0)
    names = taxi.metadata["policies"]
    ends = [
        rows[-1] for rows, name in zip(episodes(taxi), names, strict=True) if name == "coverage"
    ]
    assert len(ends) == 5
    assert all(row.terminated for row in ends)


@pytest.mark.parametrize(
    ("counts", "is_rare"),
    [
        ({("goal", 1): 4}, True),
        ({("goal", 1): 5}, False),
        ({("goal", 1): 10, ("goal", 2): 9}, True),
        ({("goal", 1): 10, ("goal", 2): 10}, False),
        ({("goal", 1): 30, ("fall", 2): 4}, True),
    ],
)
def test_outcomes_are_rare_until_they_occurred_20_times_or_5_times_in_one_situation(
    counts: dict[tuple[str, int], int], is_rare: bool
) -> None:
    rewards = {"goal": 1.0, "fall": -1.0}
    rows = [
        Transition(place, 0, 0, reward=rewards[name], terminated=True)
        for (name, place), count in counts.items()
        for _ in range(count)
    ]
    assert has_rare_outcomes(rows) == is_rare
    assert not has_rare_outcomes([row._replace(observation=np.zeros(2)) for row in rows])


@pytest.mark.slow
def test_episodes_are_added_until_no_outcome_is_rare() -> None:
    corridor = find("FrozenLake-v1")
    lake = record(
        corridor, env_args={"is_slippery": False}, min_rows=1, min_test_rows=0, max_steps=30
    )
    train = lake.train[lake.train.fitted]
    goals = int((train.columns["rewards"] == 1).sum())
    assert goals >= 5
    assert len(returns(lake.train)) > 10
    few = record(
        corridor, env_args={"is_slippery": False}, episodes=10, test_episodes=0, max_steps=30
    )
    assert len(returns(few)) == 10


@pytest.mark.long
def test_limit_of_the_track_is_reached_without_a_fall() -> None:
    poles = record(find("CartPole-v1"), episodes=5, test_episodes=0, seed=3)
    alone = [rows[-1] for rows in episodes(poles)[2::2]]
    ends = [row.next_observation for row in alone if row.terminated]
    assert any(abs(end[0]) > 2.4 and abs(end[2]) < np.radians(12) for end in ends)


@pytest.mark.slow
def test_extremes_reach_both_bounds_of_the_speed() -> None:
    stage = Stage(find("Pendulum-v1"), {}, seed=1, max_steps=100)
    speeds = []
    for corner in (1, 0):
        with stage.anew() as own:
            copy = own.simulator
            assert copy
            words, act = planned_acts(own, EpisodePlan("extremes", corner=corner), copy, 5, [])
            assert words == "extremes, 100 steps"
            observation, _ = own.env.reset(seed=5)
            for step in range(own.max_steps):
                observation, *_ = own.env.step(act(observation, step))
                speeds.append(observation[2])
    assert min(speeds) == -8
    assert max(speeds) == 8


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "curated", "planner"])
def test_policies_take_only_valid_actions_and_record_the_next_valid_actions(policy: str) -> None:
    spec = masked_taxi()
    twin = spec.make().unwrapped
    dataset = record(spec, policy=policy, episodes=4, test_episodes=0, max_steps=25)
    assert dataset.has_valid_actions
    for rows in episodes(dataset):
        for row in rows:
            assert twin.action_mask(row.observation)[row.action]
            assert row.valid == tuple(np.flatnonzero(twin.action_mask(row.next_observation)))
    assert {row.reward for row in dataset} <= {-1.0, 20.0}
    if policy != "planner":
        assert len({row.action for row in dataset if row.episode == 0}) > 3


def test_all_actions_are_recorded_as_valid_if_the_environment_returns_none() -> None:
    def valid(env):
        return [0, 1, 2, 3] if env.s // 100 % 2 else None

    spec = replace(find("Taxi-v4"), valid_actions=valid)
    rows = list(record(spec, policy="random", episodes=1, test_episodes=0))
    assert {row.valid for row in rows} == {(0, 1, 2, 3), (0, 1, 2, 3, 4, 5)}
    assert all(row.action < 4 for row in rows if row.observation // 100 % 2)
    never = replace(find("Taxi-v4"), valid_actions=lambda _: None)
    assert not record(never, policy="random", episodes=1).has_valid_actions


@pytest.mark.slow
def test_best_of_random_episodes_replaces_planning_without_copies(
    stream: EnvironmentSpec,
) -> None:
    dataset = record(stream, episodes=2, test_episodes=2, max_steps=30)
    assert dataset.metadata["policies"] == ["random", "reward, best of 5"] * 2
    note = dataset.metadata["note"]
    assert note.startswith(
        "the best of 5 random episodes replaces each planned episode of streams:Stream-v0"
    )
    assert note.endswith("its state cannot be saved and restored")
    drawn, best = returns(dataset)[::2], returns(dataset)[1::2]
    assert min(best) > max(drawn)
    assert "note" not in record(stream, policy="random", episodes=1, max_steps=5).metadata


def test_expensive_copies_disable_planning() -> None:
    options: dict[str, Any] = {"episodes": 2, "test_episodes": 0, "max_steps": 5}
    spec, counts = count_steps(find("CartPole-v1"))
    record(spec, policy="random", **options)
    drawn, counts[0] = counts[0], 0
    dear = record(spec, policy_options={"copies": "dear"}, **options)
    assert counts[0] <= 10 * drawn
    assert dear.metadata["copies"] == "dear"
    assert dear.metadata["policies"] == ["random", "reward, best of 5"]
    assert "its steps or copies are slow" in dear.metadata["note"]
    measured = record(spec, **options)
    cheap = record(spec, policy_options={"copies": "cheap"}, **options)
    assert measured.metadata["copies"] == "cheap"
    assert measured.metadata["policies"] == cheap.metadata["policies"]
    assert cheap.metadata["policies"][1] == "reward, 20 steps, 20% random"


def count_steps(spec: EnvironmentSpec) -> tuple[EnvironmentSpec, list[int]]:
    """Return an environment, and a list with the number of steps of all its instances."""
    counts = [0]

    class Counted(gym.Wrapper):
        def step(self, action):
            counts[0] += 1
            return super().step(action)

    return replace(spec, make=lambda **args: Counted(spec.make(**args))), counts


def test_slow_environment_is_not_checked_for_copies(
    slow_environment: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulators, "is_exact", lambda *_: pytest.fail("copies were checked"))
    dataset = record(slow_environment, episodes=2, test_episodes=0, max_steps=2)
    assert dataset.metadata["copies"] == "dear"
    assert dataset.metadata["policies"][1] == "reward, best of 5"


@pytest.mark.slow
def test_collect_reports_once_that_planning_is_impossible(cwm) -> None:
    (cwm.packages / "streams.py").write_text(STREAM)
    result = cwm("collect", "--env", "streams:Stream-v0", "--max-steps", "9", "--out", "s.npz")
    assert result.returncode == 0
    assert result.stderr.count("Note: ") == 1
    assert "its state cannot be saved and restored" in result.stderr
    assert "mean return" in result.stdout


@pytest.mark.slow
def test_shipped_dataset_is_used_for_its_own_options(
    shop: Path, tmp_path: Path, blackjack: Dataset
) -> None:
    spec = find("Blackjack-v1")
    shipped = shop / shipped_name(spec.id)
    blackjack.save(shipped)
    assert default_dataset(spec, **TEN) == (shipped, True)
    assert not (tmp_path / "cache").exists()
    for options in ({"data_seed": 1}, {"max_steps": 3}):
        assert (
            default_dataset(spec, **TEN, **options)[0].parent
            == tmp_path / "cache" / "cwm" / "datasets"
        )


def test_shipped_dataset_of_another_environment_version_is_not_used(shop: Path) -> None:
    spec = find("Blackjack-v1")
    few: RecordingOptions = {"episodes": 1, "test_episodes": 1}
    dataset = record(spec, **few)
    shipped = shop / shipped_name(spec.id)
    for package, is_used in (("numpy", True), ("gymnasium", False)):
        versions = dict(dataset.metadata["versions"]) | {package: "0.1"}
        metadata = dataset.metadata | {"versions": versions}
        replace(dataset, metadata=metadata).save(shipped)
        assert (default_dataset(spec, **few)[0] == shipped) is is_used
    shipped.write_bytes(b"spoilt")
    assert default_dataset(spec, **few)[0] != shipped


@pytest.mark.slow
def test_shipped_datasets_are_small_and_match_their_metadata() -> None:
    files = sorted(SHIPPED.glob("*.npz"))
    assert sum(file.stat().st_size for file in files) < 20e6
    assert len(files) > 10
    for file in files:
        dataset = Dataset.load(file)
        metadata = dataset.metadata
        assert file.name == shipped_name(metadata["env"])
        assert (metadata["policy"], metadata["seed"], metadata["env_args"]) == ("curated", 0, {})
        assert len(json.dumps(metadata["policies"])) > 2
        assert len(returns(dataset)) >= 20
        assert min(len(dataset.train), len(dataset.test)) >= 200
