"""Continuous actions are planned as published, or better at the same cost."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import atan2, cos, pi, sin
from typing import Any

import numpy as np
import pytest

from benchmarks import published
from cwm_cli.data.spaces import Space
from cwm_cli.planning.cem import Cem, Icem, coloured_noise, plan_in_groups
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.program import Checks, MemorylessModel, Program

PLANNERS = [Cem(horizon=6, iterations=3, samples=30, elites=4), Icem(budget=200, horizon=6)]


def box(low: Sequence[float], high: Sequence[float], *shape: int) -> Space:
    return Space("box", "float32", shape or (len(low),), tuple(low), tuple(high))


class Pendulum:
    """A pendulum that is to be swung up."""

    space = box([-2], [2])

    def set_state(self, observation: Any) -> None:
        self.angle = atan2(observation[1], observation[0])
        self.speed = float(observation[2])

    def step(self, action: Any) -> tuple[Any, float, bool]:
        torque = float(action[0])
        off = (self.angle + pi) % (2 * pi) - pi
        reward = -(off**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed = min(8.0, max(-8.0, self.speed + (15 * sin(self.angle) + 3 * torque) * 0.05))
        self.angle += self.speed * 0.05
        return np.array([cos(self.angle), sin(self.angle), self.speed]), reward, False


class Edge:
    """A walker on a plane whose episode ends, badly, where the plane does."""

    space = box([-1, 0], [1, 3])

    def set_state(self, observation: Any) -> None:
        self.place = np.array(observation[:2], float)

    def step(self, action: Any) -> tuple[Any, float, bool]:
        self.place = self.place + action * 0.3
        fell = bool(self.place.sum() > 2)
        return np.append(self.place, 0.0), float(self.place[1]) - 9.0 * fell, fell


class Target:
    """Every step pays more the nearer the action is to a target."""

    space = box([-1, -1, -1, -1], [1, 1, 1, 1], 2, 2)
    target = np.array([[0.3, -0.6], [0.0, 0.9]])

    def set_state(self, observation: Any) -> None:
        self.seen = observation

    def step(self, action: Any) -> tuple[Any, float, bool]:
        return np.zeros(3), -float(((action - self.target) ** 2).sum()), False


class Same(Target):
    """Nothing matters."""

    def step(self, action: Any) -> tuple[Any, float, bool]:
        return np.zeros(3), 1.0, False


class Asked(MemorylessModel):
    """A model reset before every step, which records the shapes of plans in the program."""

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        self._model.asked.append(plans.shape)  # type: ignore[attr-defined]
        return super().returns(states, plans)


class Recorded(Program):
    """A program that records the shapes of the plans."""

    def __init__(self, environment: Any) -> None:
        checks = Checks(tuple, float, bool, np.array)
        super().__init__(environment, checks, action_space=environment.space)
        self.asked: list[tuple[int, ...]] = []

    @cached_property
    def memoryless(self) -> Model:
        return Asked(self, self)

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        self.asked.append(plans.shape)
        return super().returns(states, plans)


class Pendulums(Model):
    """A batch of pendulums with different angles and speeds."""

    action_space = Pendulum.space
    deterministic = True

    def returns(self, states: Sequence[Any], plans: np.ndarray, draws: int = 0) -> np.ndarray:
        angles, speeds = np.repeat(np.array(states), plans.shape[1], axis=0).T
        total = np.zeros(len(angles))
        for torques in plans.reshape(len(angles), -1).T:
            angles, speeds, rewards = self.step(angles, speeds, torques)
            total += rewards
        return total.reshape(plans.shape[:2])

    @staticmethod
    def step(  # type: ignore[override]
        angles: Any, speeds: Any, torques: Any
    ) -> tuple[Any, Any, Any]:
        off = (angles + pi) % (2 * pi) - pi
        rewards = -(off**2 + 0.1 * speeds**2 + 0.001 * torques**2)
        speeds = np.clip(speeds + (15 * np.sin(angles) + 3 * torques) * 0.05, -8, 8)
        return angles + speeds * 0.05, speeds, rewards


def at(seed: int, horizon: int = 50) -> Situation:
    state = np.random.default_rng(seed).uniform(-1, 1, 3)
    return Situation(state, horizon, (1, seed))


@pytest.mark.parametrize("horizon", [1, 12])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("environment", [Pendulum, Edge, Target])
def test_a_plan_is_bit_for_bit_the_published_one(environment: Any, seed: int, horizon: int) -> None:
    planner = Cem(preset="paper", iterations=6, samples=40, elites=7)
    model = Recorded(environment())
    plan = planner.plan(model, [at(seed, horizon)])[0]
    space, slow, start = environment.space, environment(), at(seed)
    bounds = np.reshape(space.low, space.shape), np.reshape(space.high, space.shape)
    options = published.Entropy(min(100, horizon), 6, 40, 7)
    expected = published.cem(published.ResetProgram(slow, start.state), bounds, start.rng, options)
    assert np.array_equal(plan, expected.actions)
    assert model.counter[0] == expected.steps
    assert model.asked == [(1, 40, horizon, *space.shape)] * 6


class Momentum:
    """A slide that loses its speed in `set_state`, and counts these calls."""

    space = box([-1], [1])
    stood = 0

    def set_state(self, observation: Any) -> None:
        self.place, self.speed = float(observation[0]), 0.0
        self.stood += 1

    def step(self, action: Any) -> tuple[Any, float, bool]:
        self.speed += float(action[0])
        self.place += self.speed
        return np.array([self.place]), self.place, self.place > 9


def test_the_published_method_resets_a_program_before_every_step() -> None:
    for preset, anew in (("paper", True), ("default", False)):
        planner = Cem(preset=preset, iterations=2, samples=20, elites=4, horizon=8, replan=8)
        slide = Momentum()
        model = Recorded(slide)
        planner.plan(model, [at(0)])
        assert slide.stood == (model.counter[0] if anew else 2 * 20)


def test_published_plans_are_as_long_as_an_episode_and_played_to_its_end() -> None:
    model, situation = Recorded(Target()), at(0, 12)
    planner = Cem(preset="paper", iterations=1, samples=4, elites=2)
    assert len(planner.plan(model, [situation])[0]) == 12
    situation.horizon = 5
    assert len(planner.plan(model, [situation])[0]) == 5
    assert [shape[2] for shape in model.asked] == [12, 12]


def test_the_published_values_are_a_preset() -> None:
    paper = Cem(preset="paper")
    assert (paper.horizon, paper.iterations, paper.samples, paper.elites) == published.ENTROPY
    assert Cem(preset="paper", samples=200) == replace(paper, samples=200)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("environment", [Pendulum, Edge, Target])
def test_plans_do_not_depend_on_other_situations(planner: Any, environment: Any) -> None:
    horizons = (50, 3, 50, 1, 4)
    together = [at(seed, horizon) for seed, horizon in enumerate(horizons)]
    alone = [at(seed, horizon) for seed, horizon in enumerate(horizons)]
    for decision in range(3):
        model = Recorded(environment())
        plans = planner.plan(model, together)
        for situation, plan in zip(alone, plans, strict=True):
            assert np.array_equal(planner.plan(Recorded(environment()), [situation])[0], plan)
        if decision == 1:  # an episode that begins beside others that go on
            together[0].memory = alone[0].memory = None


@pytest.mark.parametrize("planner", PLANNERS)
def test_situations_are_planned_together(planner: Any) -> None:
    model = Recorded(Target())
    planner.plan(model, [at(seed) for seed in range(4)])
    assert [shape[0] for shape in model.asked] == [4] * 3


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("horizon", [1, 2, 9])
def test_no_plan_goes_beyond_the_horizon(planner: Any, horizon: int) -> None:
    model, situation = Recorded(Target()), at(0, horizon)
    for _ in range(2):
        plan = planner.plan(model, [situation])[0]
        assert 1 <= len(plan) <= horizon
    assert {shape[2] for shape in model.asked} == {min(6, horizon)}


@pytest.mark.parametrize("planner", PLANNERS)
def test_actions_have_the_shape_and_bounds_of_their_space(planner: Any) -> None:
    for environment in (Pendulum, Edge, Target):
        space = environment.space
        for action in planner.plan(Recorded(environment()), [at(0)])[0]:
            assert (action.shape, action.dtype) == (space.shape, float)
            assert np.all((action.ravel() >= space.low) & (action.ravel() <= space.high))


@pytest.mark.parametrize("planner", [Cem(iterations=8, samples=200), Icem()])
def test_the_optimum_of_a_quadratic_reward_is_found(planner: Any) -> None:
    situation = at(0, 3)
    for _ in range(8):
        plan = planner.plan(Recorded(Target()), [situation])[0]
    assert np.allclose(plan[0], Target.target, atol=0.08)


@pytest.mark.parametrize("planner", [Cem(horizon=2, iterations=12, elites=20), Icem(horizon=2)])
def test_an_optimum_beyond_the_bounds_is_found_at_the_bounds(planner: Any) -> None:
    class Far(Target):
        target = np.array([[5.0, -5.0], [-5.0, 5.0]])

    situation = at(0)
    for _ in range(8):
        plan = planner.plan(Recorded(Far()), [situation])[0]
    assert np.allclose(plan[0], np.sign(Far.target), atol=0.05)


@pytest.mark.parametrize("budget", [12, 100, 500, 777])
@pytest.mark.parametrize("horizon", [1, 7, 200])
@pytest.mark.parametrize("options", [{}, {"elites": 1.0, "kept": 1.0}, {"decay": 99.0}], ids=str)
def test_a_decision_uses_almost_its_whole_budget(
    budget: int, horizon: int, options: dict[str, float]
) -> None:
    planner, model, situation = Icem(budget=budget, **options), Recorded(Target()), at(0, horizon)
    for _ in range(3):
        before = model.counter[0]
        planner.plan(model, [situation])
        assert budget / 3 < model.counter[0] - before <= budget


def test_less_effort_breaks_ties_between_plans() -> None:
    situation, planner = at(0), Icem(budget=500)
    sizes = [np.abs(planner.plan(Recorded(Same()), [situation])[0]).mean() for _ in range(12)]
    assert sizes[0] < 0.3
    assert sizes[-1] < sizes[0] / 2


def test_a_decision_starts_from_the_plans_of_the_last_one() -> None:
    fresh, warm = at(3), at(3)
    planner, model = Icem(budget=600, horizon=10), Recorded(Target())
    for _ in range(12):
        fresh.memory = None
        cold, refined = (planner.plan(model, [each])[0][0] for each in (fresh, warm))
    off = [np.abs(action - Target.target).mean() for action in (cold, refined)]
    assert off[1] < off[0] / 2


def swung(planner: Any, steps: int = 120) -> np.ndarray:
    """Return the returns of some episodes of the pendulum."""
    model, count = Pendulums(), 6
    angles, speeds = np.linspace(2, 4, count), np.linspace(-1, 1, count)
    situations = [Situation(np.zeros(2), steps, (2, seed)) for seed in range(count)]
    total, queues = np.zeros(count), np.empty((count, 0, 1))
    for step in range(steps):
        if not queues.shape[1]:
            for index, situation in enumerate(situations):
                situation.state = np.array([angles[index], speeds[index]])
                situation.horizon = steps - step
            queues = np.array(planner.plan(model, situations))
        angles, speeds, rewards = model.step(angles, speeds, queues[:, 0, 0])
        total, queues = total + rewards, queues[:, 1:]
    return total


def test_the_pendulum_swings_up_where_the_published_method_fails_at_the_same_cost() -> None:
    budget = 500
    few = Cem(preset="paper", samples=budget // 20, elites=budget // 200)
    assert swung(Icem(budget=budget)).mean() > swung(few).mean() + 100


@pytest.mark.parametrize("length", [1, 2, 7, 30])
@pytest.mark.parametrize("colour", [0.0, 0.25, 1.0, 2.0])
def test_noise_of_any_colour_has_unit_variance(length: int, colour: float) -> None:
    noise = coloured_noise(np.random.default_rng(0), (4000, 3, length), colour)
    assert noise.shape == (4000, 3, length)
    assert np.allclose(noise.mean(axis=(0, 1)), 0, atol=0.05)
    assert np.allclose(noise.var(axis=(0, 1)), 1, atol=0.1)


def test_redder_noise_has_a_higher_autocorrelation() -> None:
    def likeness(colour: float) -> float:
        noise = coloured_noise(np.random.default_rng(0), (4000, 30), colour)
        return float((noise[:, 1:] * noise[:, :-1]).mean())

    white, *others = (likeness(colour) for colour in (0.0, 0.25, 1.0, 2.0))
    assert abs(white) < 0.02
    assert 0.05 < others[0] < others[1] < others[2] < 1


@pytest.mark.parametrize("most", [0, 1, 2])
def test_situations_with_equal_keys_are_planned_in_groups(most: int) -> None:
    situations = [Situation(number, 5, (number,)) for number in range(5)]
    groups: list[tuple[str, list[int]]] = []

    def search(key: str, group: list[Situation]) -> list[list[int]]:
        groups.append((key, [each.state for each in group]))
        return [[each.state] for each in group]

    assert plan_in_groups(situations, list("abaab"), most, search) == [[n] for n in range(5)]
    pairs = [("a", [0, 2]), ("a", [3]), ("b", [1, 4])]
    alone = [("a", [0]), ("a", [2]), ("a", [3]), ("b", [1]), ("b", [4])]
    assert groups == (pairs if most == 2 else alone)
