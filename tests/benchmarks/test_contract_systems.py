"""The environments of `benchmarks.contracts` are of the kinds that their registry states."""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from scipy.spatial import cKDTree

from benchmarks.contracts import CHANCE, EXPECTED, PLAIN, SYSTEMS
from benchmarks.contracts.__main__ import Case, Outcome, main, report
from benchmarks.contracts.base import ContractSystem

NAMES = {
    kind: [name for name, system in SYSTEMS.items() if system.kind == kind] for kind in EXPECTED
}
HIDING = [*NAMES["memory"], *NAMES["delay"], *NAMES["hidden item"]]
DETERMINISTIC = [*NAMES["plain"], *HIDING]

SAME_OBSERVATION = 1e-3
"""Observations count as equal if no component differs by more than this share of its range."""

OTHER_OUTCOME = 20 * SAME_OBSERVATION
"""Outcomes count as different if they differ by more: a small input difference has less effect."""


class Row(NamedTuple):
    """A step: the whole state and the generator before it, and the outcome."""

    state: Mapping[str, Any]
    generator: np.random.Generator
    observation: Any
    action: Any
    next_observation: Any
    reward: float
    terminated: bool


def made(name: str) -> ContractSystem:
    env = gym.make(name).unwrapped
    assert isinstance(env, ContractSystem)
    return env


def state_of(env: ContractSystem) -> dict[str, Any]:
    return {name: getattr(env, name) for name in (*env.shown, *env.hidden)}


def episode(env: ContractSystem, seed: int, action_seed: int, steps: int) -> list[Row]:
    env.action_space.seed(action_seed)
    observation, _ = env.reset(seed=seed)
    rows = []
    for _ in range(steps):
        action = env.action_space.sample()
        state, generator = state_of(env), deepcopy(env.np_random)
        following, reward, terminated, _, _ = env.step(action)
        rows.append(Row(state, generator, observation, action, following, reward, terminated))
        if terminated:
            break
        observation = following
    return rows


def episodes(env: ContractSystem, seeds: int, steps: int) -> list[Row]:
    return [row for seed in range(seeds) for row in episode(env, seed, seed, steps)]


def stepped(env: ContractSystem, state: Mapping[str, Any], action: Any) -> tuple[Any, float, bool]:
    for name, value in state.items():
        setattr(env, name, value)
    return env.step(action)[:3]


def scale(env: ContractSystem) -> np.ndarray:
    space = env.observation_space
    if isinstance(space, gym.spaces.Box):
        return space.high - space.low
    sizes = space.nvec if isinstance(space, gym.spaces.MultiDiscrete) else np.array([space.n])
    return sizes - 1.0


def distance(env: ContractSystem, outcome: tuple[Any, ...], other: tuple[Any, ...]) -> float:
    """Return the largest difference, in shares of the range of an observation."""
    seen = np.max(np.abs(np.ravel(outcome[0]) - np.ravel(other[0])) / scale(env))
    return max(float(seen), abs(outcome[1] - other[1]), float(outcome[2] != other[2]))


def find_contradiction(env: ContractSystem) -> tuple[Row, Row] | None:
    """Find two histories with equal observations after which an action has two outcomes.

    Some histories share their start, so that they differ only in their actions.
    """
    rows = [
        row
        for seed in range(12)
        for action_seed in range(4)
        for row in episode(env, seed, action_seed, 30)
    ]
    points = np.array([np.ravel(row.observation) for row in rows]) / scale(env)
    pairs = cKDTree(points).query_pairs(SAME_OBSERVATION, p=np.inf, output_type="ndarray")
    apart = np.abs(points[pairs[:, 0]] - points[pairs[:, 1]]).max(axis=1)
    order = np.random.default_rng(0).permutation(len(pairs))
    for first, second in pairs[order[np.argsort(apart[order], kind="stable")]]:
        one, other = rows[first], rows[second]
        if env.hidden and all(one.state[key] == other.state[key] for key in env.hidden):
            continue
        outcomes = [stepped(env, row.state, one.action) for row in (one, other)]
        if distance(env, *outcomes) > OTHER_OUTCOME:
            return one, other
    return None


def test_registry_has_the_stated_number_of_systems_per_kind() -> None:
    assert Counter(system.kind for system in SYSTEMS.values()) == {
        "plain": 10,
        "chance": 8,
        "memory": 6,
        "delay": 8,
        "hidden item": 4,
    }
    assert all(SYSTEMS[name].expected == PLAIN for name in NAMES["plain"])
    assert all(SYSTEMS[name].expected == CHANCE for name in NAMES["chance"])
    assert all("memory" in SYSTEMS[name].expected for name in HIDING)


@pytest.mark.parametrize("name", SYSTEMS)
def test_observations_and_episode_lengths_keep_their_bounds(name: str) -> None:
    env = gym.make(name)
    env.action_space.seed(1)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        steps, ended = 0, False
        while not ended:
            assert env.observation_space.contains(observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps, ended = steps + 1, terminated or truncated
        assert env.observation_space.contains(observation)
        assert steps <= 200


@pytest.mark.parametrize("name", SYSTEMS)
def test_equal_seeds_and_actions_give_equal_rows(name: str) -> None:
    first, second = (episode(made(name), 5, 6, 60) for _ in range(2))
    assert [row.reward for row in first] == [row.reward for row in second]
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.next_observation, other.next_observation)


@pytest.mark.parametrize("name", SYSTEMS)
def test_initial_states_are_random(name: str) -> None:
    env = made(name)
    assert len({tuple(episode(env, seed, 0, 1)[0].state.values()) for seed in range(20)}) > 2


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_undeclared_attribute_changes(name: str) -> None:
    env = made(name)
    env.reset(seed=0)
    declared = {*env.shown, *env.hidden, "_np_random", "_np_random_seed"}
    before = {key: value for key, value in vars(env).items() if key not in declared}
    states = [row.state for row in episodes(env, 5, 60)]
    after = {key: value for key, value in vars(env).items() if key not in declared}
    assert before.keys() == after.keys()
    assert all(after[key] is value for key, value in before.items())
    for state in states:
        hash(tuple(state.values()))  # immutable, so that a saved state cannot change
    for key in (*env.shown, *env.hidden):
        assert len({state[key] for state in states}) > 1, f"{key} never changes"


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_outcome_depends_on_state_and_action_only(name: str) -> None:
    rows, fresh = episodes(made(name), 5, 60), made(name)
    fresh.reset(seed=12345)
    generator = deepcopy(fresh.np_random.bit_generator.state)
    for row in rows:
        following, *rest = stepped(fresh, row.state, row.action)
        assert np.array_equal(following, row.next_observation)
        assert rest == [row.reward, row.terminated]
    assert fresh.np_random.bit_generator.state == generator, "a step drew a random number"


@pytest.mark.parametrize("name", NAMES["plain"])
def test_plain_system_continues_from_its_observation_alone(name: str) -> None:
    env = made(name)
    assert env.hidden == ()
    for row in episodes(env, 10, 60):
        fresh = type(env)()
        fresh.place(row.observation)
        outcome = fresh.step(row.action)[:3]
        assert distance(env, outcome, row[4:]) < 1e-5


@pytest.mark.parametrize("name", NAMES["chance"])
def test_chance_system_needs_its_observation_and_a_random_number(name: str) -> None:
    env = made(name)
    assert env.hidden == ()
    other_outcomes, drawn = 0, 0
    rows = episodes(env, 20, 60)
    for row in rows:
        fresh = type(env)()
        before = row.generator.bit_generator.state
        fresh.np_random = row.generator
        fresh.place(row.observation)
        outcome = fresh.step(row.action)[:3]
        assert distance(env, outcome, row[4:]) < 1e-5
        drawn += row.generator.bit_generator.state != before
        fresh.place(row.observation)
        other = fresh.step(row.action)[:3]  # with later random numbers
        other_outcomes += distance(env, outcome, other) > 1e-5
    assert drawn > 0.2 * len(rows)
    assert other_outcomes > 0.01 * len(rows)


@pytest.mark.parametrize("name", HIDING)
def test_hidden_state_decides_the_outcome_of_some_rows(name: str) -> None:
    env = made(name)
    rows = episodes(env, 12, 80)
    generator, changed = np.random.default_rng(0), 0
    for row in rows:
        other = rows[generator.integers(len(rows))].state
        swapped = {**row.state, **{key: other[key] for key in env.hidden}}
        changed += distance(env, stepped(env, swapped, row.action), row[4:]) > 1e-5
    assert changed >= 0.03 * len(rows)


@pytest.mark.parametrize("name", HIDING)
def test_two_histories_end_in_one_observation_with_different_outcomes(name: str) -> None:
    assert find_contradiction(made(name)) is not None


@pytest.mark.parametrize("name", ["Loom-v0", "Belfry-v0", "Belt-v0", "Courtyard-v0"])
def test_no_two_histories_of_a_plain_board_differ_in_their_outcome(name: str) -> None:
    assert find_contradiction(made(name)) is None


@pytest.mark.parametrize(
    ("wrong", "wrong_shipped", "code"), [(0, 0, 0), (1, 0, 0), (2, 0, 1), (0, 1, 1)]
)
def test_exit_code_allows_one_wrong_recording_in_thirty_and_no_wrong_dataset(
    wrong: int, wrong_shipped: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, shipped = Case("A", "plain", PLAIN, 0), Case("B", "shipped", PLAIN, None)
    outcomes = [Outcome(recorded, "memory" if n < wrong else "plain", 0.1, "") for n in range(30)]
    outcomes.append(Outcome(shipped, "chance" if wrong_shipped else "plain", 0.1, ""))
    assert report(outcomes) == code
    printed = capsys.readouterr().out
    assert printed == f"{30 - wrong} of 30 right; wrong on the shipped data: {wrong_shipped}\n"


def test_command_prints_a_line_per_recording(capsys: pytest.CaptureFixture[str]) -> None:
    main(["Shuttle-v0", "--rows", "80", "--seeds", "2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[1:3]] == [
        ["Shuttle-v0", "0", "memory", "memory"],
        ["Shuttle-v0", "1", "memory", "memory"],
    ]
    assert lines[-1][1:5] == ["of", "2", "right;", "wrong"]


def test_command_refuses_an_unknown_system(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["Klin-v0"])
    assert "unknown system Klin-v0; choose from Thermostat-v0" in capsys.readouterr().err
