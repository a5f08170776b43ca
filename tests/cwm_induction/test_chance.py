"""Programs induced for finite stochastic environments."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_induction import discrete
from cwm_induction.discrete.chance_tables import plain_shares

Outcomes = dict[Any, float]

State = list[int]


class Dice(gym.Env[Any, Any]):
    """A world of few numbers whose steps are drawn; episodes begin anywhere."""

    def __init__(
        self,
        sizes: Sequence[int],
        actions: int,
        step: Callable[[State, int, Any], tuple[State, float, bool]],
    ) -> None:
        self.observation_space = gym.spaces.MultiDiscrete(sizes)
        self.action_space = gym.spaces.Discrete(actions)
        self.stepped = step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.state = [int(self.np_random.integers(size)) for size in self.observation_space.nvec]
        return np.array(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state, reward, done = self.stepped(self.state, int(action), self.np_random)
        return np.array(self.state), reward, done, False, {}


def record(env: gym.Env[Any, Any], seed: int, rows: int) -> Dataset:
    """Record random episodes of at most 100 steps."""
    found: list[Transition] = []
    env.action_space.seed(seed)
    for episode in range(rows):
        observation, _ = env.reset(seed=10_000 * seed + episode)
        for _ in range(100):
            action = env.action_space.sample()
            after, reward, done, cut, _ = env.step(action)
            found.append(Transition(observation, action, after, float(reward), done, cut, episode))
            observation = after
            if done or cut:
                break
        if len(found) >= rows:
            break
    spaces = space_of(env.observation_space), space_of(env.action_space)
    return Dataset.of(found, observation_space=spaces[0], action_space=spaces[1])


def loaded(program: str) -> Any:
    exec(program, scope := {})
    model = scope["Environment"]()
    model.rng = np.random.default_rng(0)
    return model


def told(model: Any, observation: Any, action: int) -> Outcomes:
    """Return the outcomes of a program; the observation after an end does not count."""
    model.set_state(observation)
    found: Outcomes = defaultdict(float)
    for chance, after, reward, done in model.outcomes(action):
        found[None if done else tuple(np.ravel(after).tolist()), reward, done] += chance
    return dict(found)


def true(env: gym.Env[Any, Any], state: int, action: int) -> Outcomes:
    """Return what Gymnasium's own table says."""
    found: Outcomes = defaultdict(float)
    for chance, after, reward, done in env.unwrapped.P[state][action]:  # type: ignore[attr-defined]
        found[None if done else (int(after),), float(reward), bool(done)] += chance
    return dict(found)


def apart(one: Outcomes, other: Outcomes) -> float:
    """Return the total variation between two distributions."""
    return sum(abs(one.get(k, 0) - other.get(k, 0)) for k in {*one, *other}) / 2


def distances(program: str, env: gym.Env[Any, Any], rows: Dataset) -> list[float]:
    """Return the error of a program in each situation of some rows."""
    model = loaded(program)
    seen = {(int(row.observation), int(row.action)) for row in rows}
    return [apart(told(model, *pair), true(env, *pair)) for pair in sorted(seen)]


def test_slippery_ice_is_three_rules() -> None:
    env = gym.make("FrozenLake-v1")
    rows = record(env, 3, 3000)
    program = discrete.induce_chances(rows)
    assert "as intended 1/3, to either side 1/3 each" in " ".join(program.split())
    assert max(distances(program, env, rows)) < 1e-9


def test_a_step_draws_one_of_the_outcomes() -> None:
    model = loaded(discrete.induce_chances(record(gym.make("FrozenLake-v1"), 3, 3000)))
    counts: dict[int, int] = defaultdict(int)
    for _ in range(300):
        model.set_state(6)
        after, _, _ = model.step(1)
        assert model.observation() == after
        counts[after] += 1
    assert set(counts) == {5, 7, 10}
    assert min(counts.values()) > 60


@pytest.mark.slow
def test_rain_blows_to_either_side_unless_a_wall_is_ahead() -> None:
    env = gym.make("Taxi-v4", is_rainy=True)
    rows = record(env, 4, 5000)
    program = discrete.induce_chances(rows)
    words = " ".join(program.split())
    assert "as intended 4/5, to either side 1/10 each" in words
    assert "If the intended move is blocked, no other move is drawn" in words
    assert max(distances(program, env, rows)) < 0.01


@pytest.mark.slow
def test_cliffs_lead_back_to_the_start_from_wherever_one_slips() -> None:
    env = gym.make("CliffWalking-v1", is_slippery=True)
    rows = record(env, 1, 4000)
    program = discrete.induce_chances(rows)
    assert "as intended 1/3, to either side 1/3 each" in " ".join(program.split())
    assert np.mean(distances(program, env, rows)) < 0.02


@pytest.mark.long
def test_cards_of_thirteen_kinds_are_drawn_and_an_ace_counts_twice() -> None:
    model = loaded(discrete.induce_chances(record(gym.make("Blackjack-v1"), 0, 5000)))
    hard = {((13 + card, 7, 0), 0.0, False): 1 / 13 for card in range(1, 9)}
    assert apart(told(model, (13, 7, 0), 1), {**hard, (None, -1.0, True): 5 / 13}) < 1e-9
    soft = {((15 + card, 7, 1), 0.0, False): 1 / 13 for card in range(1, 7)}
    soft |= {((5 + card, 7, 0), 0.0, False): 1 / 13 for card in range(7, 10)}
    assert apart(told(model, (15, 7, 1), 1), {**soft, ((15, 7, 0), 0.0, False): 4 / 13}) < 0.2
    assert {end for _, _, end in told(model, (18, 7, 0), 0)} == {True}


def test_customers_come_and_are_served_by_chance() -> None:
    def queue(state: State, action: int, rng: Any) -> tuple[State, float, bool]:
        waiting, open_counters = state
        open_counters = action
        come, served = rng.random() < 0.4, rng.random() < (0.25, 0.5)[action]
        waiting = min(max(waiting + int(come) - int(served), 0), 8)
        return [waiting, open_counters], -float(waiting), False

    model = loaded(discrete.induce_chances(record(Dice([9, 2], 2, queue), 0, 4000)))
    for action, served in ((0, 0.25), (1, 0.5)):
        found = told(model, np.array([4, 0]), action)
        up, down = 0.4 * (1 - served), 0.6 * served
        expected = {
            ((5, action), -5.0, False): up,
            ((3, action), -3.0, False): down,
            ((4, action), -4.0, False): 1 - up - down,
        }
        assert apart(found, expected) < 0.05


def test_a_card_is_drawn_whatever_lay_there() -> None:
    def higher(state: State, action: int, rng: Any) -> tuple[State, float, bool]:
        card = int(rng.integers(8))
        won = card > state[0] if action else card < state[0]
        return [card], float(won), False

    model = loaded(discrete.induce_chances(record(Dice([8], 2, higher), 0, 3000)))
    expected = {((card,), float(card > 2), False): 1 / 8 for card in range(8)}
    assert apart(told(model, np.array([2]), 1), expected) < 1e-9


def test_what_is_paid_can_be_drawn_where_nothing_moves() -> None:
    def arms(state: State, action: int, rng: Any) -> tuple[State, float, bool]:
        wins = rng.random() < ((0.2, 0.5), (0.9, 0.5))[state[0]][action]
        return [1 - state[0]], float(wins), False

    model = loaded(discrete.induce_chances(record(Dice([2], 2, arms), 0, 3000)))
    assert (
        apart(told(model, np.array([1]), 0), {((0,), 1.0, False): 0.9, ((0,), 0.0, False): 0.1})
        < 0.05
    )
    assert (
        apart(told(model, np.array([0]), 1), {((1,), 1.0, False): 0.5, ((1,), 0.0, False): 0.5})
        < 0.05
    )


def test_shares_are_the_plainest_fractions_that_counts_do_not_contradict() -> None:
    cases = {
        (334, 318, 341): "1/3 1/3 1/3",
        (818, 83, 99): "4/5 1/10 1/10",
        (705, 295): "7/10 3/10",
        (5000, 0): "1 0",
        (160, 155, 149, 610): "1/7 1/7 1/7 4/7",
    }
    found = {
        counts: " ".join(map(str, plain_shares(np.array(counts, dtype=float)))) for counts in cases
    }
    assert found == cases
