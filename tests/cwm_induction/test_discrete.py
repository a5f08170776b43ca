"""Programs induced for environments of few integers."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_induction import discrete
from cwm_induction.decision_list import RelationList
from cwm_induction.discrete.dynamics import FactorDynamics
from cwm_induction.discrete.features import CaseList, Sizes
from cwm_induction.discrete.moves import FactorMove
from cwm_induction.discrete.outcomes import Outcomes
from cwm_induction.discrete.program_text import DiscreteModel, write_program
from cwm_induction.discrete.transitions import Transitions


def collect(env: gym.Env[Any, Any], seed: int, *, train: int = 10, test: int = 10) -> Dataset:
    """Record random episodes of at most 100 steps."""
    rows = []
    for episode in range(train + test):
        env.action_space.seed(1000 * seed + episode)
        observation, _ = env.reset(seed=1000 * seed + episode)
        for _ in range(100):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            ends = bool(terminated), bool(truncated), episode, int(episode >= train)
            rows.append(Transition(observation, action, following, float(reward), *ends))
            observation = following
            if terminated or truncated:
                break
    spaces = space_of(env.observation_space), space_of(env.action_space)
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])


def induce(dataset: Dataset) -> str:
    """Induce from the part of the train rows that may be fitted to."""
    return discrete.induce(dataset.train[dataset.train.fitted])


def mistakes(program: str, dataset: Dataset) -> np.ndarray:
    """Mark the rows that a program gets wrong; the observation after the end does not count."""
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    model, wrong = namespace["Environment"](), []
    for row in dataset:
        model.set_state(row.observation)
        observation, reward, terminated = model.step(row.action)
        same = row.terminated or np.array_equal(observation, row.next_observation)
        wrong.append(not (same and np.isclose(reward, row.reward) and terminated == row.terminated))
    return np.array(wrong, dtype=bool)


def numbered(rows: Sequence[Transition], states: int, actions: int) -> Dataset:
    """Return transitions between numbered states."""
    spaces = (Space("discrete", low=(0,), high=(count - 1,)) for count in (states, actions))
    observations, choices = spaces
    return Dataset.of(rows, observation_space=observations, action_space=choices)


def situations(dataset: Dataset) -> list[tuple[Any, ...]]:
    return [(*np.ravel(row.observation), *np.ravel(row.action)) for row in dataset]


def unknowable(dataset: Dataset) -> set[Any]:
    """Return the places where an episode was seen to end in validation rows alone."""
    train = dataset.train
    places = train.columns["next_observations"], train.columns["terminations"]
    ends = [set(places[0][part & places[1]].tolist()) for part in (~train.fitted, train.fitted)]
    return ends[0] - ends[1]


class KeyAndDoor(gym.Env[np.ndarray, int]):
    """A key opens a door; the door ends the episode."""

    MAP: ClassVar = ["..#..", "..#.G", "K....", ".##D#", "....."]
    observation_space = gym.spaces.MultiDiscrete([5, 5, 2])
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.state = (4, int(self.np_random.integers(5)), 0)
        return np.array(self.state), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        row, column, key = self.state
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        there = min(max(row + down, 0), 4), min(max(column + right, 0), 4)
        what = self.MAP[there[0]][there[1]]
        if what == "#" or (what == "D" and not key):
            there = row, column
        found = what == "K" and not key
        self.state = (*there, int(key or found))
        reward = 1.0 if what == "G" else 0.1 if found else 0.0
        return np.array(self.state), reward, what == "G", False, {}


class Twisted(gym.Env[int, int]):
    """A grid whose cells have numbers in no order."""

    observation_space = gym.spaces.Discrete(25)
    action_space = gym.spaces.Discrete(4)
    numbers: ClassVar = np.random.default_rng(5).permutation(25).tolist()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, Any]:
        super().reset(seed=seed)
        self.cell = 0
        return self.numbers[self.cell], {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        row, column = divmod(self.cell, 5)
        down, right = ((0, 1), (1, 0), (0, -1), (-1, 0))[action]
        self.cell = min(max(row + down, 0), 4) * 5 + min(max(column + right, 0), 4)
        ends = self.cell == 24
        return self.numbers[self.cell], float(ends), ends, False, {}


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))]
)
def test_a_frozen_lake_is_exact_where_the_train_rows_went(seed: int) -> None:
    dataset = collect(gym.make("FrozenLake-v1", is_slippery=False), seed)
    known, never = set(situations(dataset.train)), unknowable(dataset)
    test = dataset.test
    asked = np.array([situation in known for situation in situations(test)])
    asked &= ~np.isin(test.columns["next_observations"], sorted(never))
    assert asked.any()
    assert not mistakes(induce(dataset), test)[asked].any()


def test_a_frozen_lake_reads_as_a_grid() -> None:
    program = induce(collect(gym.make("FrozenLake-v1", is_slippery=False), 0))
    assert "divmod(observation, 4)" in program
    assert "ROW_STEP = {1: 1, 3: -1}" in program
    assert "import" not in program


@pytest.mark.parametrize("name", ["8x8", "wide"])
def test_larger_lakes_are_exact_where_the_train_rows_went(name: str) -> None:
    wide = ["SFFFFHF", "FHFFFFF", "FFFHFFF", "FFFFFHF", "HFFHFFF", "FFFFFFG"]
    layout = {"map_name": "8x8"} if name == "8x8" else {"desc": wide}
    dataset = collect(gym.make("FrozenLake-v1", is_slippery=False, **layout), 0)
    known = set(situations(dataset.train))
    asked = np.array([situation in known for situation in situations(dataset.test)])
    assert not mistakes(induce(dataset), dataset.test)[asked].any()


@pytest.mark.slow
def test_a_cliff_is_one_rule_about_its_row() -> None:
    dataset = collect(gym.make("CliffWalking-v1"), 1)
    program = induce(dataset)
    assert mistakes(program, dataset.test).mean() < 0.01
    assert program.count("new_row == 3") == 2  # the fall and the goal
    assert "REMEMBERED" not in program


@pytest.mark.slow
def test_a_taxi_is_predicted_at_places_that_were_never_seen() -> None:
    dataset = collect(gym.make("Taxi-v4"), 2)
    known = set(situations(dataset.train))
    fresh = np.array([situation not in known for situation in situations(dataset.test)])
    assert fresh.sum() > 100
    assert mistakes(induce(dataset), dataset.test)[fresh].mean() < 0.02


def test_walls_a_key_and_a_door_are_found() -> None:
    dataset = collect(KeyAndDoor(), 0, train=40)
    program = induce(dataset)
    assert mistakes(program, dataset.test).mean() < 0.01
    assert "new_row, new_column = row, column" in program


def test_states_numbered_in_no_order_are_looked_up() -> None:
    dataset = collect(Twisted(), 0)
    fit = dataset.train[dataset.train.fitted]
    program = induce(dataset)
    assert "REMEMBERED" in program
    assert not mistakes(program, fit).any()


class World(gym.Env[Any, Any]):
    """An environment whose episodes start anywhere and whose rule is one function."""

    def __init__(self, sizes: list[int], actions: int | list[int], rule: Any, *walls: Any) -> None:
        self.observation_space = gym.spaces.MultiDiscrete(sizes)
        parted = isinstance(actions, list)
        spaces = gym.spaces
        self.action_space = spaces.MultiDiscrete(actions) if parted else spaces.Discrete(actions)
        self.sizes, self.rule, self.walls = sizes, rule, walls

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.state = [int(self.np_random.integers(size)) for size in self.sizes]
        if tuple(self.state) in self.walls:
            return self.reset()
        return np.array(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state, reward, ends = self.rule(self.state, action, self.np_random)
        return np.array(self.state), float(reward), ends, False, {}


def shop(state: list[int], action: int, _: Any) -> tuple[list[int], float, bool]:
    changes = [(1, 0), (5, 0), (-3, -1)][action]
    after = [value + change for value, change in zip(state, changes, strict=True)]
    refused = not (0 <= after[0] <= 12 and 0 <= after[1] <= 4)
    return (state if refused else after), 0.0, False


def lights(state: list[int], action: int, _: Any) -> tuple[list[int], float, bool]:
    after = [value ^ (abs(place - action) < 2) for place, value in enumerate(state)]
    return after, (sum(state) - sum(after)) / 6, not any(after)


def errands(state: list[int], action: int, _: Any) -> tuple[list[int], float, bool]:
    place, *letters = state
    if action == 2:
        letters[place] = 0
        return [place, *letters], state[1 + place] - 0.1 * sum(letters), False
    return [(place + (1, 4)[action]) % 5, *letters], -0.1 * sum(letters), False


WALLS = (2, 3), (4, 1), (0, 5)


def ice(state: list[int], action: int, _: Any) -> tuple[list[int], float, bool]:
    down, right = ((-1, 0), (0, 1), (1, 0), (0, -1))[action]
    row, column = state
    while 0 <= row + down < 6 and 0 <= column + right < 7:
        if (row + down, column + right) in WALLS:
            break
        row, column = row + down, column + right
    return [row, column], -0.1 * (abs(row - state[0]) + abs(column - state[1])), False


WORLDS = {
    "moves that are refused": (World([13, 5], 3, shop), "if outside"),
    "neighbours that flip": (World([2] * 6, 6, lights), "total"),
    "rewards for the target of a pointer": (World([5, *[2] * 5], 3, errands), ")[position]"),
    "slides": (World([6, 7], 4, ice, *WALLS), "while "),
}


@pytest.mark.slow
def test_laws_are_found() -> None:
    missed = []
    for name, (env, law) in WORLDS.items():
        dataset = collect(env, 0, train=40)
        program = induce(dataset)
        if law not in program or mistakes(program, dataset.test).mean() >= 0.02:
            missed.append(name)
    assert not missed


def delivery(state: list[int], action: int, _: Any) -> tuple[list[int], float, bool]:
    cells = [(0, 0), (0, 4), (4, 1), (3, 4)]
    row, column, parcel, goal = state
    down, right = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0), (0, 0))[action]
    row, column = min(max(row + down, 0), 4), min(max(column + right, 0), 4)
    if action == 4 and parcel < 4 and cells[parcel] == (row, column):
        return [row, column, 4, goal], -1, False
    if action == 5 and parcel == 4 and cells[goal] == (row, column):
        return [row, column, goal, goal], 20, True
    return [row, column, parcel, goal], -10 if action > 3 else -1, False


def test_an_item_is_delivered_to_a_place_where_only_its_pick_up_was_seen() -> None:
    cells = [(row, column) for row in range(5) for column in range(5)]
    taken = [([*cell, parcel, goal], 4) for cell in cells for parcel in range(3) for goal in (1, 3)]
    put = [([*cell, 4, goal], 5) for cell in cells for goal in (1, 2)]
    walk = [([*cell, 4, 2], action) for cell in cells for action in range(4)]
    seen = []
    for episode, (state, action) in enumerate([*taken, *put, *walk]):
        after, reward, ends = delivery(state, action, None)
        seen.append(
            Transition(np.array(state), action, np.array(after), reward, ends, False, episode)
        )
    spaces = gym.spaces.MultiDiscrete([5, 5, 5, 4]), gym.spaces.Discrete(6)
    fit = Dataset.of(seen, observation_space=space_of(spaces[0]), action_space=space_of(spaces[1]))
    program = discrete.induce(fit)
    exec(program, scope := {})
    model = scope["Environment"]()
    model.set_state(np.array([0, 0, 4, 0]))
    assert model.step(5)[1:] == (20.0, True)
    model.set_state(np.array([1, 1, 4, 3]))
    assert model.step(5)[1:] == (-10.0, False)


SPACES = {
    "tuple": gym.make("Blackjack-v1"),
    "noisy": gym.make("FrozenLake-v1", is_slippery=True),
    "matrix": gym.wrappers.TransformObservation(
        gym.make("FrozenLake-v1", is_slippery=False),
        lambda state: np.array([[state // 4 - 2, state % 4]]),
        gym.spaces.Box(-2, 3, (1, 2), np.int64),
    ),
    "vector of actions": gym.wrappers.TransformAction(
        gym.make("FrozenLake-v1", is_slippery=False),
        lambda action: 2 * action[0] + action[1],
        gym.spaces.MultiDiscrete([2, 2]),
    ),
    "bits": gym.wrappers.TransformObservation(
        gym.make("FrozenLake-v1", is_slippery=False),
        lambda state: np.array([int(bit) for bit in f"{state:04b}"], dtype=np.int8),
        gym.spaces.MultiBinary(4),
    ),
}


@pytest.mark.slow
def test_improved_programs_give_the_commonest_outcome_in_every_space() -> None:
    wrong = []
    for name, env in SPACES.items():
        dataset = collect(env, 0)
        assert discrete.supports(dataset)
        fit, program = dataset.train[dataset.train.fitted], induce(dataset)
        improved = discrete.improve(program, fit, mistakes(program, fit))
        outcomes: dict[Any, Counter[Any]] = {}
        for situation, row in zip(situations(fit), fit, strict=True):
            outcome = (*np.ravel(row.next_observation), row.reward, row.terminated)
            outcomes.setdefault(situation, Counter())[outcome] += 1
        rare = sum(seen.total() - max(seen.values()) for seen in outcomes.values())
        if mistakes(improved, fit).sum() > rare:
            wrong.append(name)
    assert not wrong


def test_a_long_observation_is_python_too() -> None:
    radices = (2,) * 9
    still = FactorMove(2, wraps=False, key=None, deltas=np.zeros((1, 1), dtype=np.int64))
    dynamics = FactorDynamics((radices,), Sizes(radices, 1), (still,) * 9, None, (), 0.0)
    nothing = CaseList((), RelationList((), 0), 0.0)
    seen = Transitions.of(numbered([Transition(300, 0, 300, 0.0, False)], 512, 1))
    outcomes = Outcomes(False, nothing, nothing, reward_first=False)
    program = write_program(DiscreteModel(seen.encoding, dynamics, outcomes, (0.0,)), seen)
    assert max(map(len, program.splitlines())) <= 100
    exec(program, scope := {})
    model = scope["Environment"]()
    model.set_state(301)
    assert model.step(0) == (301, 0.0, False)


@pytest.mark.slow
def test_the_text_depends_on_nothing_but_the_data(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    collect(KeyAndDoor(), 0).save(path)
    script = (
        "import sys, pathlib; from cwm_cli.data.dataset import Dataset;"
        "from cwm_induction import discrete; fit = Dataset.load(pathlib.Path(sys.argv[1]));"
        "print(discrete.induce(fit))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_spaces_of_real_numbers_are_not_supported() -> None:
    assert not discrete.supports(collect(gym.make("CartPole-v1"), 0, train=1, test=0))


@st.composite
def random_transitions(draw: st.DrawFn) -> Dataset:
    """Draw a deterministic world of few states and a walk through it."""
    states, actions = draw(st.integers(2, 12)), draw(st.integers(1, 3))
    outcome = st.tuples(st.integers(0, states - 1), st.sampled_from([0.0, 1.0]), st.booleans())
    world = draw(st.lists(outcome, min_size=states * actions, max_size=states * actions))
    walk = draw(st.lists(st.integers(0, states * actions - 1), min_size=1, max_size=40))
    rows = [Transition(pair // actions, pair % actions, *world[pair]) for pair in walk]
    return numbered(rows, states, actions)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(random_transitions())
def test_every_seen_transition_is_right_after_improving(fit: Dataset) -> None:
    program = discrete.induce(fit)
    improved = discrete.improve(program, fit, mistakes(program, fit))
    assert not mistakes(improved, fit).any()


def test_improving_twice_keeps_what_was_remembered_first() -> None:
    rows = [Transition(state, 0, 7 * state % 11, float(state % 3), False) for state in range(11)]
    fit = numbered(rows, 11, 1)
    program = discrete.induce(fit[np.arange(2)])
    wrong = mistakes(program, fit)
    first = wrong & (np.arange(11) < 6)
    twice = discrete.improve(discrete.improve(program, fit, first), fit, wrong & ~first)
    assert not mistakes(twice, fit).any()
    assert twice.count("REMEMBERED = ") == 1


class Heaps(gym.Env[np.ndarray, int]):
    """Beans are taken from heaps or put back; a heap refuses, and no beans left ends it."""

    observation_space = gym.spaces.MultiDiscrete([5, 5, 5])
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.heaps = self.np_random.integers(1, 3, size=3)
        return self.heaps.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        before = self.heaps.copy()
        heap, puts = divmod(action, 2)
        self.heaps[heap] = np.clip(before[heap] + (1 if puts else -1), 0, 4)
        ends = not self.heaps.any()
        refused = (before == self.heaps).all()
        reward = 8.0 if ends else -1.0 if refused else 2.0 if self.heaps.sum() >= 9 else 0.0
        return self.heaps.copy(), reward, ends, False, {}


def test_rewards_are_general_claims_about_several_factors() -> None:
    dataset = collect(Heaps(), 3)
    program = induce(dataset)
    assert "sum([" in program
    assert not mistakes(program, dataset.test).any()
