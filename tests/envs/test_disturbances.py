"""Hidden components and noise, which every environment supports."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.main import get_command

from cwm_cli.cli import command_line
from cwm_cli.cli.shared import parse_env_args
from cwm_cli.commands.collect import load_transitions
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.documented import documented_names
from cwm_cli.envs.simulators import Opening, Simulator
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.variants import with_disturbances
from cwm_cli.errors import CwmError
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.planner import Situation
from cwm_cli.registry import environment
from cwm_cli.worlds.environment import EnvironmentModel


def played(name: str, steps: int = 12, **env_args: Any) -> list[tuple[Any, ...]]:
    """Return the observations of an episode of random actions."""
    with closing(environment(name).make(**env_args)) as env:
        env.action_space.seed(0)
        answers = [(env.reset(seed=1)[0],)]
        for _ in range(steps):
            answers.append(env.step(env.action_space.sample())[:3])
    return answers


def seen(name: str, **env_args: Any) -> np.ndarray:
    return np.array([answer[0] for answer in played(name, **env_args)])


def names_of(name: str, **env_args: Any) -> tuple[str, ...]:
    spec = environment(name)
    with closing(spec.make(**env_args)) as env:
        return documented_names(spec.describe(env), space_of(env.observation_space))


def test_hidden_components_are_removed_from_observation_space_and_documentation() -> None:
    hidden = {
        ("CartPole-v1", "velocities"): [0, 2],
        ("CartPole-v1", "Pole Angle"): [0, 1, 3],
        ("CartPole-v1", "cart_velocity"): [0, 2, 3],
        ("Pendulum-v1", "velocities"): [0, 1],
        ("Pendulum-v1", "x = cos(theta)"): [1, 2],
        ("MountainCar-v0", "velocity"): [0],
        ("Acrobot-v1", "velocities"): [0, 1, 2, 3],
        ("Walker2d-v5", "velocities"): list(range(8)),
        ("InvertedDoublePendulum-v5", "velocities"): [0, 1, 2, 3, 4, 8],
        ("Acrobot-v1", "1"): [0, 2, 3, 4, 5],
    }
    for (name, part), kept in hidden.items():
        np.testing.assert_array_equal(seen(name, hide=[part]), seen(name)[:, kept], str(part))
        assert names_of(name, hide=[part]) == tuple(names_of(name)[n] for n in kept), (name, part)
        with closing(environment(name).make(hide=[part])) as env:
            assert env.observation_space.contains(env.reset(seed=0)[0])
            text = environment(name).describe(env)
            assert f"not observed: `{part}`" in text
            assert f"shape ({len(kept)},)" in text


def test_velocities_are_found_in_tables_and_lists_of_parts() -> None:
    for name, left in {"Ant-v5": 105 - 14, "Humanoid-v5": 348 - 23 - 78, "Swimmer-v5": 3}.items():
        assert seen(name, hide=["velocities"]).shape[1] == left
    assert seen("Ant-v5", hide=["cfrc_ext"]).shape[1] == 27


def test_parts_of_nested_observations_are_hidden_by_key_and_number() -> None:
    assert [answer[0] for answer in played("Blackjack-v1", 1, hide=[1])] == [
        (first, last) for first, _, last in (a[0] for a in played("Blackjack-v1", 1))
    ]
    grid = "MiniGrid-Empty-5x5-v0"
    assert played(grid, 1, hide=["objects"])[0][0].keys() == {"mission"}
    with closing(environment(grid).make(hide=["objects"])) as env:
        assert environment(grid).objects(env) is None
    with closing(environment(grid).make(hide=["mission"])) as env:
        assert environment(grid).objects(env) is not None


def test_noise_repeats_with_the_seed_of_the_environment() -> None:
    for name, noise in {
        "CartPole-v1": {"force_mag": 1.0},
        "Pendulum-v1": {"action": 0.3},
        "Acrobot-v1": {"velocities": 0.1, "LINK_MASS_1": 0.1},
        "HalfCheetah-v5": {"action": 0.1},
    }.items():
        noisy = seen(name, noise=noise)
        np.testing.assert_array_equal(noisy, seen(name, noise=noise))
        assert not np.array_equal(noisy[1:], seen(name)[1:]), name


def test_noise_has_its_standard_deviation_and_changes_only_named_components() -> None:
    exact = seen("CartPole-v1", steps=400)
    noisy = seen("CartPole-v1", steps=400, noise={"Pole Angle": 0.5})
    np.testing.assert_array_equal(noisy[:, [0, 1, 3]], exact[:, [0, 1, 3]])
    assert 0.45 < (noisy - exact)[:, 2].std() < 0.55
    with closing(environment("Pendulum-v1").make(noise={"0": 1})) as env:
        assert env.observation_space.low.tolist() == [-np.inf, -1.0, -8.0]
    with closing(environment("CartPole-v1").make(noise={"force_mag": 5})) as env:
        env.reset(seed=0)
        env.step(1)
        assert env.unwrapped.force_mag == 10.0


class Walk(gym.Env[Any, Any]):
    """A walk with steps of one length; its position is an attribute."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(1)
    length, place = 1.0, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place]), {}

    def step(self, action: int) -> Any:
        self.place += self.length
        return np.array([self.place]), 0.0, False, False, {}


def test_noise_on_an_attribute_ends_after_a_step_unless_the_step_sets_it() -> None:
    spec = with_disturbances(EnvironmentSpec("Walk", lambda **_: Walk(), lambda env: "", dict))
    for name, spread in {"length": 10, "place": 10}.items():
        with closing(spec.make(noise={name: 10})) as env:
            env.reset(seed=0)
            before = vars(env).keys()
            walked = [float(env.step(0)[0][0]) for _ in range(400)]
            assert vars(env).keys() == before
            assert env.unwrapped.length == 1.0
            assert np.diff(walked).std() == pytest.approx(spread, rel=0.1), name


@pytest.mark.parametrize(
    ("name", "env_args"),
    [
        ("CartPole-v1", {"hide": ["velocities"], "noise": {"force_mag": 1.0}}),
        ("Pendulum-v1", {"hide": ["velocities"], "shift": 2}),
        ("Hopper-v5", {"hide": ["velocities"], "noise": {"action": 0.1}}),
        ("Pendulum-v1", {"noise": {"observation": 0.1}}),
    ],
)
def test_oracle_sees_hidden_components_and_draws_its_own_noise(
    name: str, env_args: dict[str, Any]
) -> None:
    opening = Opening.of(environment(name), env_args)
    assert not opening.observed
    assert opening.deterministic == ("noise" not in env_args)
    model = opening.simulator(0)
    with closing(environment(name).make(**env_args)) as env:
        observation, _ = env.reset(seed=5)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(5)]
        state = model.state_of(env, observation)
        real = [env.step(action)[:2] for action in actions]
    assert isinstance(model, Simulator)
    model.stand(state)
    planned = [model.step(action) for action in actions]
    pairs = zip(planned, real, strict=True)
    same = [np.array_equal(step.observation, seen) for step, (seen, _) in pairs]
    assert all(same) if opening.deterministic else not any(same[2:])


class Heights(Walk):
    """A walk up or down with the previous height as reward."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([0.0, self.place]), {}

    def step(self, action: int) -> Any:
        before = self.place
        self.place += self.length if action else -self.length
        return np.array([0.0, self.place]), before, False, False, {}


def test_oracle_distinguishes_states_with_equal_observations() -> None:
    bare = EnvironmentSpec("Heights", lambda **_: Heights(), lambda env: "", lambda: {})
    model = EnvironmentModel(
        with_disturbances(bare), {"hide": ["1"], "noise": {"length": 0.2}}
    ).opening.simulator(0)
    situation = Situation(state=model.here(), horizon=6, seeds=(0,))
    assert Mcts(simulations=60, budget=300).plan(model, [situation]) == [[1]]


def test_observations_identify_states_unless_they_are_altered() -> None:
    spec = environment("CartPole-v1")
    for env_args, tells in {
        '{"hide": ["1"]}': False,
        '{"noise": {"1": 0.1}}': False,
        '{"noise": {"force_mag": 0.1}}': True,
    }.items():
        with closing(spec.make(**json.loads(env_args))) as env:
            observation, _ = env.reset(seed=0)
            assert spec.restore is not None
            assert spec.restore(env.unwrapped, observation) is tells, env_args


def test_invalid_names_and_deviations_are_errors_of_one_line(cwm) -> None:
    for (name, *words), message in {
        ("CartPole-v1", "--hide", "Pole Angel"): "did you mean Pole Angle?",
        (
            "CartPole-v1",
            "--hide",
            "velocity",
        ): "'velocity' is ambiguous in CartPole-v1: write 1 or 3",
        (
            "CartPole-v1",
            "--hide",
            "0",
            "--hide",
            "velocities",
            "--hide",
            "2",
        ): "hide fewer components",
        ("FrozenLake-v1", "--hide", "velocities"): "unknown observation component of FrozenLake-v1",
        ("CartPole-v1", "--noise", "force_mag"): "write --noise NAME=0.1",
        ("CartPole-v1", "--noise", "force_mag=nan"): "write --noise NAME=0.1",
        ("CartPole-v1", "--noise", "0=1", "--noise", "0=2"): "names '0' twice",
        ("CartPole-v1", "--noise", "force_mag=-1"): "a standard deviation must be finite",
        ("CartPole-v1", "--noise", "force_mug=1"): "did you mean force_mag?",
        ("CartPole-v1", "--noise", "action=1"): "the actions of CartPole-v1 are not real numbers",
        ("Taxi-v4", "--noise", "observation=1"): "the observations of Taxi-v4 are not real numbers",
        ("CartPole-v1", "--env-arg", "hide={}"): "is not a list of names",
        ("CartPole-v1", "--env-arg", "hide=[true]"): "is not a list of names",
        ("CartPole-v1", "--env-arg", "noise=[1]"): "is not a mapping: write --noise NAME=STD",
        ("CartPole-v1", "--env-arg", 'noise={"0": "1"}'): "invalid noise",
        ("CartPole-v1", "--hide", "1", "--env-arg", "hide=[2]"): "name one",
    }.items():
        given: dict[str, list[str]] = {"--env-arg": [], "--hide": [], "--noise": []}
        for option, value in zip(words[::2], words[1::2], strict=True):
            given[option].append(value)
        with pytest.raises(CwmError) as raised:
            env_args = parse_env_args(
                given["--env-arg"], hide=given["--hide"], noise=given["--noise"]
            )
            environment(name).make(**env_args)
        assert message in str(raised.value), words
        assert "\n" not in str(raised.value)
    result = cwm.inside("collect", "--env", "CartPole-v1", "--hide", "speed")
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)


def test_hidden_components_are_stored_with_the_dataset_and_used_later(cwm) -> None:
    few = ("--policy", "random", "--episodes", "2", "--test-episodes", "1", "--out", "r.npz")
    chosen = ("--hide", "velocities", "--noise", "force_mag=0.5")
    cwm.inside("collect", "--env", "CartPole-v1", *chosen, *few)
    rows = Dataset.load(cwm.folder / "r.npz")
    env_args = {"hide": ["velocities"], "noise": {"force_mag": 0.5}}
    assert rows.metadata["env_args"] == env_args
    assert rows.observation_space.shape == (2,)
    spec = environment("CartPole-v1")
    assert load_transitions(spec, env_args=env_args, dataset=rows)[0] is rows
    with pytest.raises(CwmError, match="was recorded with"):
        load_transitions(spec, env_args={"hide": ["0"]}, dataset=rows)


def options(command: Any, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield the options of a command and of its subcommands."""
    for each, below in getattr(command, "commands", {}).items():
        yield from options(below, f"{name} {each}".strip())
    yield name, {option for each in command.params for option in each.opts}


def test_every_command_with_an_environment_has_hide_and_noise() -> None:
    taking = {
        name: known for name, known in options(get_command(command_line())) if "--env" in known
    }
    assert len(taking) >= 9
    for name, known in taking.items():
        # imported data have their noise already
        recorded = {"--noise"} if name == "data import" else set()
        assert known >= {"--hide", "--noise"} - recorded, name


def test_restored_blackjack_hands_are_distributed_as_in_random_play() -> None:
    spec = environment("Blackjack-v1")
    with closing(spec.make()) as env, closing(spec.make()) as restored:
        rng, played = np.random.default_rng(0), []
        env.reset(seed=0)
        for _ in range(4000):
            hand: Any = env.unwrapped
            if (hand._get_obs()[0], hand._get_obs()[2]) == (21, 1):
                played.append(sorted(hand.player) == [1, 10])
            if env.step(int(rng.integers(2)))[2]:
                env.reset()
        restored.reset(seed=0)
        dealt, cards = [], []
        inner: Any = restored.unwrapped
        for _ in range(500):
            assert spec.restore is not None
            assert spec.restore(inner, (21, 6, 1))
            assert inner._get_obs() == (21, 6, 1)
            dealt.append(sorted(inner.player) == [1, 10])
            cards.append(inner.dealer[1])
    assert 0.5 < np.mean(played) < 1
    assert np.mean(dealt) == pytest.approx(np.mean(played), abs=0.1)
    assert np.mean(np.array(cards) == 10) == pytest.approx(4 / 13, abs=0.06)


@pytest.mark.slow
def test_restored_taxi_passengers_are_fickle_only_at_corners() -> None:
    spec = environment("Taxi-v4")
    with closing(spec.make(fickle_passenger=True)) as env:
        taxi: Any = env.unwrapped
        env.reset(seed=0)
        fickle: dict[bool, list[bool]] = {}
        for place in [(*corner, 4, to) for corner in taxi.locs for to in range(4)] + [(1, 1, 4, 1)]:
            for _ in range(100):
                assert spec.restore is not None
                assert spec.restore(taxi, taxi.encode(*place))
                fickle.setdefault(place[:2] in taxi.locs, []).append(bool(taxi.fickle_step))
    assert not any(fickle[False])  # elsewhere the change was observed
    assert 0 < np.mean(fickle[True]) < 0.2
    assert "`fickle_passenger=True`" in spec.describe(env)


def test_unknown_name_is_answered_with_a_range_and_twelve_names() -> None:
    with pytest.raises(CwmError) as raised:
        environment("HalfCheetah-v5").make(noise={"zzqqzz": 1.0})
    listed = str(raised.value).partition("choose ")[2].split(", ")
    assert listed[0] == "a number from 0 to 16"
    assert all(listed[1:13])
    assert listed[13:] == ["and so on"]
