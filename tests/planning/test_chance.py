"""Planning where chance decides: expected values, shared draws, and what confirms them."""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from candidates import open_session
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Moment
from cwm_cli.planning.cem import Cem, Icem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.planner import Planner, Situation, Unsuited
from cwm_cli.planning.tabular import Tabular
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.confined import make_program
from cwm_cli.worlds.messages import PlanningJob
from cwm_cli.worlds.remote import TamperingError

Told = Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]

TELLS = """
TABLE = {table}

class Environment:
    def set_state(self, observation):
        self.state = observation

    def outcomes(self, action):
        return TABLE[self.state, action]
"""

DRAWS = """
TABLE = {table}

class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        told = TABLE[self.state, action]
        shares = [outcome[0] for outcome in told]
        _, self.state, reward, terminated = told[self.rng.choice(len(told), p=shares)]
        return self.state, reward, terminated
"""


def written(env: "gym.Env[Any, Any]", text: str) -> str:
    """Write the true probabilities of an environment into a program."""
    table = {
        (state, action): [(float(p), int(s), float(r), bool(ends)) for p, s, r, ends in told]
        for state, actions in env.unwrapped.P.items()  # type: ignore[attr-defined]
        for action, told in actions.items()
    }
    return text.format(table=table)


def model_of(text: str, spaces: tuple[Space, Space]) -> Any:
    """Return a program as a model, in this process."""
    names: dict[str, Any] = {}
    exec(text, names)
    names["Environment"].rng = np.random.default_rng(0)
    observations, actions = spaces
    job = PlanningJob(
        program=text,
        observation_space=observations,
        action_space=actions,
        columns={},
        planners=[],
    )
    return make_program(names["Environment"](), job, [0])


def spaces_of(env: "gym.Env[Any, Any]") -> tuple[Space, Space]:
    return space_of(env.observation_space), space_of(env.action_space, "actions")


def optimum(told: Told, horizon: int) -> np.ndarray:
    """Return the best expected returns, by steps to go and state, by plain value iteration."""
    count, actions = len(told), len(told[0])
    chances, rewards = np.zeros((count, actions, count)), np.zeros((count, actions))
    for state, by_action in told.items():
        for action, outcomes in by_action.items():
            for probability, following, reward, ends in outcomes:
                rewards[state, action] += probability * reward
                chances[state, action, following] += probability * (not ends)
    values = [np.zeros(count)]
    for _ in range(horizon):
        values.append((rewards + chances @ values[-1]).max(axis=1))
    return np.array(values)


def planned(told: Told, horizon: int, planner: Tabular, model: Any) -> np.ndarray:
    """Return the expected return of a planner under the true probabilities."""
    values = np.zeros((horizon + 1, len(told)))
    for left in range(1, horizon + 1):
        for state in told:
            [[action]] = planner.plan(model, [Situation(state, left, (0,))])
            values[left, state] = sum(
                p * (reward + (0.0 if ends else values[left - 1, following]))
                for p, following, reward, ends in told[state][action]
            )
    return values


@pytest.mark.parametrize(
    ("env_id", "env_args", "horizon"),
    [
        ("FrozenLake-v1", {}, 100),
        pytest.param("FrozenLake8x8-v1", {}, 200, marks=pytest.mark.slow),
        ("CliffWalkingSlippery-v1", {}, 60),
        pytest.param(
            "Taxi-v4", {"is_rainy": True, "fickle_passenger": True}, 30, marks=pytest.mark.slow
        ),
    ],
)
def test_plans_with_known_probabilities_are_optimal(
    env_id: str, env_args: dict[str, bool], horizon: int
) -> None:
    with gym.make(env_id, **env_args) as env:
        told: Told = env.unwrapped.P  # type: ignore[attr-defined]
        model = model_of(written(env, TELLS), spaces_of(env))
        returned = planned(told, horizon, Tabular(), model)
        start = env.unwrapped.initial_state_distrib  # type: ignore[attr-defined]
    best = optimum(told, horizon)[-1] @ start
    assert returned[-1] @ start >= best - 1e-3 * abs(best)
    assert model.counter[0] == len(told) * len(told[0])  # each action is asked for once


@pytest.mark.slow
def test_tabular_samples_a_model_without_probabilities() -> None:
    with gym.make("FrozenLake-v1") as env:
        told: Told = env.unwrapped.P  # type: ignore[attr-defined]
        model = model_of(written(env, DRAWS), spaces_of(env))
        returned = planned(told, 50, Tabular(), model)
        assert returned[-1, 0] >= 0.97 * optimum(told, 50)[-1, 0]
        other = model_of(written(env, DRAWS), spaces_of(env))
    for state in (14, 9, 0):  # for any order of states and earlier draws
        other.draw_from((state,))
        assert planned(told, 5, Tabular(), other).tolist() == returned[:6].tolist()


def test_tabular_refuses_a_model_that_samples_ever_new_states() -> None:
    text = DRAWS.replace("{table}", "{{}}").split("    def step")[0] + (
        "    def step(self, action):\n        return int(self.rng.integers(100000)), 0.0, False\n"
    )
    spaces = space_of(gym.spaces.Discrete(100_000)), space_of(gym.spaces.Discrete(2), "actions")
    model = model_of(text.format(), spaces)
    with pytest.raises(Unsuited, match="reaches more than 1000 states"):
        Tabular().plan(model, [Situation(0, 9, (0,))])
    assert model.counter[0] < 10_000


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    limits = Limits(wall_seconds=30, cpu_seconds=20, stall_seconds=1, sleep_seconds=1)
    with Sandbox(limits, workers=3) as opened:
        yield opened


def decided(sandbox: Sandbox, text: str, planners: list[tuple[str, Any]]) -> tuple[int, Any, str]:
    """Play three episodes in FrozenLake; return how many decisions were confirmed, and how."""
    with gym.make("FrozenLake-v1") as env:
        confirmed = 0
        session = open_session(sandbox, text, spaces_of(env), planners=planners, seed=3)
        session._confirmer.share = 1.0
        try:
            for episode in range(3):
                state, _ = env.reset(seed=episode)
                for decision in range(6):
                    [plan] = session.plan([Moment(episode, decision, state, 100 - decision)])
                    assert plan.failure is None, plan.failure
                    state, _, ends, _, _ = env.step(plan.actions[0])
                    if ends:
                        break
                confirmed += session.confirm({episode: 1e9})[episode].decisions
            assert session.report is not None
            return confirmed, session.steps, session.report.planner
        finally:
            session.close()


@pytest.mark.parametrize(
    "text", [TELLS, pytest.param(DRAWS, marks=pytest.mark.slow)], ids=["told", "drawn"]
)
@pytest.mark.parametrize("planner", [("tabular", {"draws": 20}), ("mcts", {"budget": 60})])
def test_decisions_in_a_stochastic_model_are_confirmed(
    sandbox: Sandbox, text: str, planner: tuple[str, Any]
) -> None:
    with gym.make("FrozenLake-v1") as env:
        program = written(env, text)
    confirmed, steps, name = decided(sandbox, program, [planner])
    assert (name, confirmed >= 12, steps > 0) == (planner[0], True, True)


LIES = """
import sys

def asked_for():
    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if hasattr(found, "job"):
            return type(found).__name__
        frame = frame.f_back

class Liar(Environment):
    def __init__(self):
        self.lies = asked_for() in ("PlanningHandler", "SteppingHandler")

    def outcomes(self, action):
        told = super().outcomes(action)
        if self.lies and action == 1:
            told = [(0.8 if place else 0.2, *rest) for place, (_, *rest) in enumerate(told)]
        return told

Environment = Liar
"""


def test_probabilities_that_change_during_planning_are_detected(sandbox: Sandbox) -> None:
    with gym.make("FrozenLake-v1") as env:
        program = written(env, TELLS) + LIES
    with pytest.raises(TamperingError, match="steps used in plans differently when repeated"):
        decided(sandbox, program, [("tabular", {})])


def test_tree_search_requests_outcomes_once_and_finds_the_best_actions() -> None:
    with gym.make("FrozenLake-v1") as env:
        told: Told = env.unwrapped.P  # type: ignore[attr-defined]
        model = model_of(written(env, TELLS), spaces_of(env))
    values, memory = optimum(told, 40)[-2], None
    for number, state in enumerate([0, 4, 8, 9, 13, 14] * 2):
        model.draw_from((0, number))
        situation = Situation(state, 40, (0, number), memory)
        [[action]] = Mcts().plan(model, [situation])
        memory = situation.memory
        worth = {
            each: sum(p * (reward + values[to] * (not ends)) for p, to, reward, ends in outcomes)
            for each, outcomes in told[state].items()
        }
        assert worth[action] >= 0.97 * max(worth.values()), (state, action, worth)
    assert model.counter[0] <= 4 * len(told)


NOISY = """
class Environment:
    def set_state(self, observation):
        self.place = observation

    def step(self, action):
        off = float(action[0]) - 0.5
        return self.place, -off * off + 10.0 * self.rng.standard_normal(), False
"""

REALS = (
    space_of(gym.spaces.Box(-1, 1, (1,), np.float64)),
    space_of(gym.spaces.Box(-1, 1, (1,), np.float64), "actions"),
)


@pytest.mark.parametrize("planner", [Icem(), Icem(draws=3), Cem(horizon=5)])
def test_all_plans_share_their_random_numbers(planner: Planner) -> None:
    model = model_of(NOISY, REALS)
    model.draw_from((0,))
    [plan] = planner.plan(model, [Situation(np.zeros(1), 5, (0,))])
    assert abs(plan[0][0] - 0.5) < 0.3
    assert model.counter[0] <= max(2000, 4 * 1500)


def test_equal_keys_give_equal_returns() -> None:
    model = model_of(NOISY, REALS)
    plans = np.random.default_rng(0).uniform(-1, 1, (1, 4, 5, 1))
    found = []
    for order in ([0, 1, 2, 3], [3, 1, 2, 0]):
        model.draw_from((7, 1))
        found.append(model.returns([np.zeros(1)], plans[:, order], draws=3)[0][np.argsort(order)])
    assert found[0].tolist() == found[1].tolist()
    model.draw_from((7, 2))
    assert model.returns([np.zeros(1)], plans, draws=3)[0].tolist() != found[0].tolist()


def test_few_outcomes_are_drawn_if_states_never_recur() -> None:
    text = NOISY.replace("return self.place", "return self.place + self.rng.normal(size=1)")
    moves = space_of(gym.spaces.Discrete(2), "actions")
    model = model_of(text.replace("float(action[0])", "action"), (REALS[0], moves))
    situation = Situation(np.zeros(1), 30, (0,))
    Mcts(budget=600).plan(model, [situation])
    assert model.counter[0] < 600  # the rest were returned to
