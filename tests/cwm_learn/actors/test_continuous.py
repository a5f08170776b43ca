"""Acting with real-valued observations: plans, policies and open questions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.remote import OutOfTime
from cwm_learn.actors import continuous
from cwm_learn.actors.base import Knowledge
from cwm_learn.actors.continuous import ContinuousActor
from cwm_learn.imagination import SearchImagination

PENDULUM = """
import numpy as np


class Environment:
    def set_state(self, observation):
        self.observation = np.array(observation, dtype=float)

    def step(self, action):
        observation = self.observation
        angle = np.arctan2(observation[1], observation[0])
        speed = min(max(observation[2] + 0.15 * action[0] + 0.75 * np.sin(angle), -8.0), 8.0)
        after = angle + 0.05 * speed
        reward = -0.001 * action[0] ** 2 - angle**2 - 0.1 * observation[2] ** 2
        self.observation = np.array([np.cos(after), np.sin(after), speed])
        return self.observation.copy(), reward, False
"""

CAR = """
import numpy as np


class Environment:
    def set_state(self, observation):
        self.observation = np.array(observation, dtype=float)

    def step(self, action):
        place, speed = self.observation[0], self.observation[1]
        speed = speed + 0.001 * (action - 1) - 0.0025 * np.cos(3 * place)
        speed = min(max(speed, -0.07), 0.07)
        place = min(max(place + speed, -1.2), 0.6)
        if place <= -1.2 and speed < 0:
            speed = 0.0
        self.observation = np.array([place, speed])
        return self.observation.copy(), -1.0, bool(place >= 0.5)
"""

CART = """
import numpy as np

SPEED_LIMIT = 1.05  # wrong: the pole falls


class Environment:
    def set_state(self, observation):
        self.observation = np.array(observation, dtype=float)

    def step(self, action):
        x, x_dot, angle, angle_dot = self.observation
        sin, cos = np.sin(angle), np.cos(angle)
        pull = (20.0 * action - 10.0 + 0.05 * angle_dot**2 * sin) / 1.1
        turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = pull - 0.05 * turn * cos / 1.1
        x, angle = x + 0.02 * x_dot, angle + 0.02 * angle_dot
        x_dot, angle_dot = x_dot + 0.02 * push, angle_dot + 0.02 * turn
        self.observation = np.array([x, x_dot, angle, angle_dot])
        return self.observation.copy(), 1.0, bool(abs(x_dot) > SPEED_LIMIT)
"""


def knowledge_of(
    name: str, program: str, sandbox: Sandbox, *, steps: int = 60
) -> tuple[Knowledge, gym.Env[Any, Any]]:
    """Return the knowledge after random steps with a program, and the environment."""
    env = gym.make(name)
    limit = env.spec.max_episode_steps if env.spec and env.spec.max_episode_steps else 200
    known = Knowledge(
        space_of(env.observation_space), space_of(env.action_space, "actions"), min(limit, 1000)
    )
    env.action_space.seed(0)
    over, episode, observation = True, -1, None
    for _ in range(steps):
        if over:
            episode += 1
            observation, _ = env.reset(seed=episode)
            known.starts.append(observation)
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        known.rows.append(
            Transition(
                observation, action, after, float(reward), terminated, truncated, episode=episode
            )
        )
        observation, over = after, terminated or truncated
    known.program = program
    data = Dataset.of(
        known.rows, observation_space=known.observation_space, action_space=known.action_space
    )
    known.imagination = SearchImagination(sandbox, program, data)
    return known, env


def play_episode(actor: ContinuousActor, env: gym.Env[Any, Any], seed: int) -> tuple[float, float]:
    """Play an episode; return the predicted and the actual return."""
    observation, _ = env.reset(seed=seed)
    total, promised = 0.0, actor.promised_return(observation, actor.known.limit)
    for left in range(actor.known.limit, 0, -1):
        intent = actor.choose(observation, left, "exploit")
        assert intent is not None
        observation, reward, terminated, _, _ = env.step(intent.action)
        total += float(reward)
        if terminated:
            break
    assert promised is not None
    return promised, total


@pytest.mark.slow
def test_pendulum_swing_up_has_the_predicted_return(sandbox: Sandbox) -> None:
    known, env = knowledge_of("Pendulum-v1", PENDULUM, sandbox)
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        promised, total = play_episode(actor, env, seed=100)
        assert total == pytest.approx(promised, abs=0.5)
        assert total > -140  # -340 if the beam has only the cells with the highest returns
        assert actor.work < 6_000_000


@pytest.mark.slow
def test_search_ends_when_no_time_is_left(sandbox: Sandbox) -> None:
    known, _ = knowledge_of("Pendulum-v1", PENDULUM, sandbox)
    actor = ContinuousActor(known)
    known.imagination.seconds_left = lambda: 0.0
    with pytest.raises(OutOfTime):
        actor.choose(known.starts[0], 50)
    actor.rebuild()
    known.imagination.seconds_left = lambda: np.inf
    assert actor.choose(known.starts[0], 50) is not None


@pytest.mark.slow
def test_search_from_a_falling_pole_continues_with_the_policy(sandbox: Sandbox) -> None:
    program = CART.replace("abs(x_dot) > SPEED_LIMIT", "abs(angle) > np.radians(12)")
    known, _ = knowledge_of("CartPole-v1", program, sandbox, steps=30)
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        assert actor.promised_return(known.starts[0], 400) == 400
        work = actor.work
        assert actor.promised_return(np.array([0.0, -1.0, 0.1, 1.0]), 400) == 400
        assert actor.work - work < 450_000  # a search over the whole episode needs 0.8 million


@pytest.mark.slow
def test_continued_plan_corrects_deviations(sandbox: Sandbox) -> None:
    known, _ = knowledge_of("Pendulum-v1", PENDULUM, sandbox)
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        observation = np.array([np.cos(0.1), np.sin(0.1), 0.0])
        assert actor.choose(observation, 60, "exploit") is not None
        work = actor.work
        moved = observation - np.array([0.0, 0.0, 0.45])
        first = actor.choose(moved, 59, "exploit")
        assert 0 < actor.work - work < 400_000  # no new search
        within_tolerance = moved + np.array([0.0, 0.0, 0.01])
        second = actor.choose(within_tolerance, 59, "exploit")
        assert first is not None
        assert second is not None
        assert first.action != second.action


def test_regulator_balances_a_pole_without_optimisation(sandbox: Sandbox) -> None:
    program = CART.replace("20.0 * action - 10.0", "10.0 * action[0]")
    program = program.replace("abs(x_dot) > SPEED_LIMIT", "abs(angle) > 0.2")
    known, _ = knowledge_of("CartPole-v1", program, sandbox, steps=30)
    known.action_space = space_of(gym.spaces.Box(-1, 1, (1,), np.float32), "actions")
    for place, row in enumerate(known.rows):
        known.rows[place] = row._replace(action=np.array([2.0 * row.action - 1], np.float32))
    data = Dataset.of(
        known.rows, observation_space=known.observation_space, action_space=known.action_space
    )
    with SearchImagination(sandbox, program, data) as known.imagination:
        actor = ContinuousActor(known)
        assert actor.promised_return(known.starts[0], 400) == 400
        assert actor.work < 300_000  # optimised policies need 4 million


@pytest.mark.slow
def test_exploration_without_work_continues_plans_or_acts_randomly(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "SAVED_WORK", 200_000)
    known, _ = knowledge_of("MountainCar-v0", CAR, sandbox)
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        start = known.starts[0]
        aims = []
        for left in range(200, 140, -1):  # the state never follows the plan
            intent = actor.choose(start, left)
            assert intent is not None
            aims.append(intent.aim)
        assert set(aims) == {"explore"}
        assert actor.work < 1_500_000  # with a search per step: 6 million


def test_exploration_leaves_the_visited_range(sandbox: Sandbox) -> None:
    known, env = knowledge_of("MountainCar-v0", CAR, sandbox)
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        start, _ = env.reset(seed=5)
        assert (
            actor.promised_return(start, 200) is None
        )  # all rewards are equal and no end was recorded
        intent = actor.choose(start, 200)
        assert intent is not None
        assert intent.aim == "explore"
        farthest = max(float(row.next_observation[0]) for row in known.rows)
        for left in range(200, 0, -1):
            intent = actor.choose(start, left)
            if intent is None:
                break
            after, reward, terminated, _, _ = env.step(intent.action)
            row = Transition(start, intent.action, after, float(reward), terminated, False)
            predicted = actor.predict(start, intent.action)
            assert predicted is not None
            assert actor.matches(predicted, row)
            known.rows.append(row)
            start = after
            if terminated or after[0] > farthest + 0.2:
                break
        assert max(float(row.next_observation[0]) for row in known.rows) > farthest + 0.2


@pytest.mark.slow
def test_costly_play_looks_for_an_end_until_one_is_seen(sandbox: Sandbox) -> None:
    known, _ = knowledge_of("Pendulum-v1", PENDULUM, sandbox)
    known.limit = 40
    with known.imagination or pytest.fail():

        def aims_from_start() -> list[str]:
            """Return the aims of an episode that always stays at its start."""
            actor = ContinuousActor(known)
            actor.rebuild()
            intents = [actor.choose(known.starts[0], left) for left in range(40, 33, -1)]
            return [intent.aim for intent in intents if intent is not None]

        trips = continuous.MAX_END_TRIPS
        assert aims_from_start() == ["explore"] * trips + ["exploit"] * (7 - trips)
        known.rows.append(known.rows[-1]._replace(terminated=True))
        assert aims_from_start() == ["exploit"] * 7


def test_unknown_limits_and_unreached_bounds_are_questions() -> None:
    space = Space("box", "float64", (2,), (-1.0, -np.inf), (1.0, np.inf))
    known = Knowledge(space, Space("discrete", "int64", (), (0.0,), (1.0,)), 10)
    for place, terminated in ((0.1, False), (0.2, False), (0.25, True)):
        after = np.array([place, 0.0])
        known.rows.append(Transition(np.zeros(2), 1, after, 1.0, terminated))
    texts = [question.text for question in ContinuousActor(known).questions()]
    limit = "the limit of observation[0] is between 0.2 and 0.25; only one such end was seen"
    assert texts[0] == limit
    assert any("observation[0] came no nearer to its bound 1 than 0.25" in text for text in texts)
    known.names = "Cart Position", "Cart Velocity"
    asked = ContinuousActor(known).questions()
    assert asked[0].text.startswith("the limit of Cart Position is between 0.2 and 0.25")
    assert asked[0].region == "Cart Position from 0.2 to 0.25"


def test_wrong_cause_of_ends_is_probed_although_play_avoids_it(sandbox: Sandbox) -> None:
    known, env = knowledge_of("CartPole-v1", CART, sandbox, steps=30)
    known.limit = 30  # a short policy search
    actor = ContinuousActor(known)
    with known.imagination or pytest.fail():
        actor.rebuild()
        rows = known.rows
        fast = [abs(row.next_observation[1]) > 1.05 for row in rows]
        assert fast == [row.terminated for row in rows]  # the rows do not refute the program
        [asked, *_] = actor.questions()
        assert "several possible causes: high observation[1], low observation[2]" in asked.text
        observation, _ = env.reset(seed=100)
        for left in range(30, 0, -1):
            intent = actor.choose(observation, left)
            assert intent is not None
            predicted = actor.predict(observation, intent.action)
            after, reward, terminated, _, _ = env.step(intent.action)
            rows.append(Transition(observation, intent.action, after, float(reward), terminated))
            observation = after
            assert predicted is not None
            if not actor.matches(predicted, rows[-1]):
                break
        assert intent.aim == "probe"
        assert predicted.terminated != terminated


def test_continuous_actor_needs_real_observations_and_discrete_or_bounded_actions() -> None:
    real = Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0))
    unbounded = Space("box", "float32", (1,), (-np.inf,), (np.inf,))
    discrete = Space("discrete", "int64", (), (0.0,), (1.0,))
    assert ContinuousActor.supports(real, discrete)
    assert ContinuousActor.supports(real, real)
    assert not ContinuousActor.supports(real, unbounded)
    assert not ContinuousActor.supports(discrete, discrete)
