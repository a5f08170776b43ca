"""Programs as plain arithmetic: the same numbers, much faster, and the program where that fails."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.planning.batched import Transformed
from cwm_cli.planning.model import LARGEST, Unbatched
from cwm_cli.planning.program import Checks, Program
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.model import Traced
from cwm_cli.planning.traced.plain import plain
from cwm_cli.planning.traced.symbols import LANES
from cwm_cli.planning.traced.tracing import traced
from cwm_cli.planning.traced.verification import verified_traced
from cwm_cli.sandbox.answers import Complaint, parts, terminated_of

PAIR = Space("box", "float64", (2,), (-np.inf,) * 2, (np.inf,) * 2)
TWO = Space("discrete", low=(0,), high=(1,))
FIVE = Space("discrete", low=(-2,), high=(2,))
PUSH = Space("box", "float64", (2,), (-1.0,) * 2, (1.0,) * 2)
CELL = Space("discrete", low=(0,), high=(8,))


class Hill:
    """Each of these does the same with numbers and with arrays that have a lane axis."""

    SPACES = PAIR, TWO

    def __init__(self) -> None:
        self.position, self.speed = 0.0, 0.0

    def set_state(self, observation: Any) -> None:
        self.position, self.speed = observation

    def step(self, action: Any) -> Any:
        push = np.where(action == 0, -0.3, 0.3)
        speed = self.speed * 0.9 + push - 0.25 * np.cos(3 * self.position)
        self.speed = np.clip(speed, -0.7, 0.7)
        self.position = self.position + self.speed
        end = self.position > 1
        return np.stack([self.position, self.speed]), np.where(end, 10.0, -1.0), end


class Arm(Hill):
    """Actions are arrays, the angle wraps, arrays change in place, functions of all kinds."""

    SPACES = PAIR, PUSH

    def set_state(self, observation: Any) -> None:
        self.state = observation.copy()

    def step(self, action: Any) -> Any:
        force = np.clip(action, -0.5, 0.5)
        self.state = self.state + 0.1 * force * np.array([2.0, 3.0]).reshape(
            2, *[1] * (force.ndim - 1)
        )
        self.state[0] = np.mod(self.state[0] + np.pi, 2 * np.pi) - np.pi
        self.state[1] = np.sign(self.state[1]) * np.minimum(np.abs(self.state[1]), 3.0)
        size = np.linalg.norm(self.state, axis=0) + np.sum(np.square(action), axis=0)
        reward = -size - 0.1 * np.arctan2(self.state[0], 1 + self.state[1] ** 2) + np.exp(-size)
        return self.state.copy(), reward, size > 4.0


class Grid(Hill):
    """Whole numbers, actions from -2 on, and a counter that ends the episode."""

    SPACES = CELL, FIVE

    def __init__(self) -> None:
        self.cell, self.steps = 0, 0

    def set_state(self, observation: Any) -> None:
        self.cell, self.steps = observation, 0

    def step(self, action: Any) -> Any:
        self.steps = self.steps + 1
        self.cell = (self.cell + action) % 9
        row, column = self.cell // 3, self.cell % 3
        reward = np.where(row + column == 2, 5.0, np.where(row == 4 * action, -1.0, 0.5))
        return self.cell, reward, np.logical_or(self.steps >= 20, self.cell == 8)


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    np.add,
    np.subtract,
    np.multiply,
    np.minimum,
    np.maximum,
    np.arctan2,
    lambda x, y: np.remainder(x, np.abs(y) + 0.25),
    lambda x, y: np.floor_divide(x, -0.25 - np.abs(y)),
    lambda x, y: np.fmod(x, 3.0) / (1 + y * y),
    lambda x, y: np.where((x > y) & ~(y < 0), x, np.sign(y)),
    lambda x, y: np.clip(x, -1, 1) + np.floor(y) - np.rint(x) * np.trunc(y),
    lambda x, y: np.power(np.abs(x) + 0.1, np.clip(y, -2, 2)),
    lambda x, y: np.sqrt(x * x) + np.hypot(x, y) + np.sin(x) * np.cos(y),
    lambda x, y: np.logical_or(x > 0, y > 1).astype(float) - (x == y),
    lambda x, y: np.clip(x, -9, 9).astype(np.int64) % 3 + np.tanh(y),
]

PROGRAMS = [Hill, Arm, Grid]


def formula(seed: int) -> Any:
    """Return a program whose reward is a formula drawn at random."""

    def reward(values: list[Any]) -> Any:
        rng, values = np.random.default_rng(seed), list(values)
        for _ in range(12):
            one, other = (values[place] for place in rng.integers(len(values), size=2))
            values.append(OPERATIONS[rng.integers(len(OPERATIONS))](one, other))
        return values[-1] + 0.5 * values[-2]

    class Formula(Hill):
        def step(self, action: Any) -> Any:
            numbers = [self.position, self.speed, np.float64(0.5), np.float64(2.0), action]
            return np.stack([self.position, self.speed]), reward(numbers), self.speed > 9

    return Formula


def program(make: Any) -> Program:
    checks = Checks(parts, _reward, lambda end: terminated_of(np.bool_(end)), lambda value: value)
    return Program(make(), checks, action_space=make.SPACES[1])


def _reward(value: Any) -> float:
    if not abs(float(value)) < LARGEST:
        raise Complaint("no such reward")
    return float(value)


def traced_model(make: Any) -> Traced:
    return Traced(program(make), plain(traced(make, *make.SPACES)), make.SPACES[0])


def rows(make: Any, count: int = 60) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(3)
    observed, acting = make.SPACES
    observations = list(rng.uniform(-1, 1, (count, 2))) if observed is PAIR else [*range(8)] * 9
    if acting is PUSH:
        return observations[:count], list(rng.uniform(-1, 1, (count, 2)))
    low, high = int(acting.low[0]), int(acting.high[0])
    return observations[:count], rng.integers(low, high + 1, count).tolist()


@pytest.mark.parametrize("make", PROGRAMS)
def test_a_traced_program_takes_the_steps_of_the_program(make: Any) -> None:
    model, reference = traced_model(make), program(make)
    for observation, action in zip(*rows(make), strict=True):
        model.stand(observation)
        reference.stand(observation)
        here, there = model.step(action), reference.step(action)
        np.testing.assert_allclose(here.observation, there.observation, rtol=1e-12)
        assert here.reward == pytest.approx(there.reward, rel=1e-12)
        assert here.terminated is there.terminated
    assert model.redone == 0
    assert model.counter[0] == 60


@pytest.mark.parametrize("make", PROGRAMS)
def test_it_plays_as_the_program_does_and_counts_the_steps(make: Any) -> None:
    model, reference = traced_model(make), program(make)
    observations, actions = rows(make)
    for start, observation in enumerate(observations[:20]):
        plan = actions[start : start + 30]
        model.stand(observation)
        reference.stand(observation)
        expected = pytest.approx(reference.play(plan, 0.9), rel=1e-9)
        assert model.play(plan, 0.9) == expected
        assert model.play(iter(plan), 0.9) == expected  # it stands where it stood
        assert model.counter[0] == 2 * reference.counter[0]
    assert model.redone == 0


def test_a_state_holds_more_than_the_observation() -> None:
    model = traced_model(Grid)
    model.stand(0)
    for _ in range(19):
        assert not model.step(0).terminated
    here = model.here()
    assert model.step(0).terminated  # by the counter
    model.stand(here)
    assert model.step(1).terminated
    model.stand(0)
    assert not model.step(0).terminated


def test_attributes_that_no_step_needs_are_no_part_of_the_state() -> None:
    class Idle(Hill):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.done, self.last = 0, False, None

        def step(self, action: Any) -> Any:
            self.steps = self.steps + 1
            self.last = (action, action * 2)
            observation, reward, end = super().step(action)
            reward = np.where(self.done, 0.0, reward)  # nobody steps on from the end
            self.done = end
            return observation, reward, end

    assert len(traced(Idle, *Hill.SPACES).state) == len(traced(Hill, *Hill.SPACES).state) == 2


def test_where_arithmetic_fails_the_program_answers() -> None:
    class Root(Hill):
        def step(self, action: Any) -> Any:
            with np.errstate(all="ignore"):
                self.position = self.position - 0.25
                reward = np.nan_to_num(np.sqrt(self.position))
            return np.stack([self.position, self.speed]), reward, self.speed > 1

    model, reference = traced_model(Root), program(Root)
    model.stand(np.array([0.6, 0.0]))
    reference.stand(np.array([0.6, 0.0]))
    for _ in range(5):
        here, there = model.step(0), reference.step(0)
        assert here.reward == there.reward
        np.testing.assert_array_equal(here.observation, there.observation)
    model.stand(np.array([0.6, 0.0]))
    reference.stand(np.array([0.6, 0.0]))
    assert model.play([0] * 5) == reference.play([0] * 5)
    assert model.counter[0] == reference.counter[0] == 10
    assert model.redone > 0


@pytest.mark.parametrize("factor", [1e299, 1e308])
def test_what_a_program_fails_with_comes_from_the_program(factor: float) -> None:
    class Steep(Hill):
        def step(self, action: Any) -> Any:
            observation, reward, end = super().step(action)
            return observation, reward * factor * 1e3, end

    model = traced_model(Steep)
    model.stand(np.zeros(2))
    with np.errstate(all="ignore"), pytest.raises(Complaint, match="no such reward"):
        model.step(0)
    with np.errstate(all="ignore"), pytest.raises(Complaint, match="no such reward"):
        model.play([0])


def test_it_is_trusted_where_it_agrees_on_real_rows() -> None:
    for make in PROGRAMS:
        model = traced_model(make)
        assert verified_traced(model, program(make), *rows(make)) is model


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ((1e-4, 0.0, 0.0), "observations"),
        ((0.0, 1e-4, 0.0), "rewards"),
        ((0.0, 0.0, 1e-1), "ends of episodes"),
    ],
)
def test_it_is_refused_where_it_does_not(wrong: tuple[float, ...], reason: str) -> None:
    class Other(Hill):
        def step(self, action: Any) -> Any:
            observation, reward, _ = super().step(action)
            return observation + wrong[0], reward + wrong[1], self.position > 1 + wrong[2]

    with pytest.raises(Unbatched, match=reason):
        verified_traced(traced_model(Other), program(Hill), *rows(Hill, 500))


@pytest.mark.parametrize(
    "step",
    [
        lambda self, action: (np.stack([self.position, self.speed]), 1.0, bool(self.speed > 0)),
        lambda self, action: (np.stack([self.position]), 1.0, False),
        lambda self, action: (np.stack([self.position, self.speed]), 1.0, self.speed),
        lambda self, action: (np.stack([self.position, self.speed]), "1.0", False),
        lambda self, action: (np.stack([self.position, self.speed]), 1.0),
        lambda self, action: (np.sort(np.stack([self.position, self.speed])), 1.0, False),
    ],
)
def test_what_cannot_be_traced_is_refused(step: Callable[..., Any]) -> None:
    with pytest.raises(Unbatched):
        traced(type("Odd", (Hill,), {"step": step}), *Hill.SPACES)


def test_what_only_depends_on_the_action_is_a_table() -> None:
    graph = Graph(range(2, 5))
    squared = graph.apply("multiply", graph.action, graph.action, kind="i")
    assert (squared.operation, squared.values) == ("table", (4, 9, 16))
    assert graph.apply("greater", squared, graph.constant(3), kind="b") is graph.true


TEXT = """
import math

class Environment:
    HEIGHTS = [0.0, 0.5, 2.0]

    def __init__(self):
        self.state, self.last, self.trail = [0.0, 0.0], None, [0.0] * 3

    def set_state(self, observation):
        self.state, self.last = [float(observation[0]), float(observation[1])], None

    def turned(self, angle):
        while angle > math.pi:
            angle -= 2 * math.pi
        while angle < -math.pi:
            angle += 2 * math.pi
        return angle

    def step(self, action):
        if action not in (0, 1):
            raise ValueError("no such action")
        angle, speed = self.state
        speed += 0.4 if action == 1 else -0.4
        assert speed < 9, "too fast"
        for number in range(3):
            self.trail[number] = angle * number
            if abs(angle) > number + 1.5:
                break
        angle = self.turned(angle + speed)
        place = int(abs(angle)) % 3
        reward = self.HEIGHTS[place] - (0.0 if self.last is None else abs(speed - self.last))
        self.state, self.last = [angle, speed], speed
        return np.array([angle, speed]), reward + 0.1 * number, angle > 3.0
"""


def text_models(lanes: int = LANES) -> tuple[Traced, Program]:
    names: dict[str, Any] = {"np": np}
    exec(TEXT, names)
    batched = Transformed(TEXT, names["Environment"]())
    trace = traced(lambda: batched.make(lanes), PAIR, TWO)
    models = [
        Program(
            names["Environment"](),
            Checks(parts, float, bool, lambda value: value),
            action_space=TWO,
        )
        for _ in range(2)
    ]
    return Traced(models[0], plain(trace), PAIR), models[1]


@pytest.mark.parametrize("lanes", [1, LANES])
def test_texts_of_programs_are_traced(lanes: int) -> None:
    model, reference = text_models(lanes)
    assert verified_traced(model, reference, *rows(Hill, 200)) is model
    assert model.redone == 0


def test_what_a_program_raises_comes_from_the_program() -> None:
    model, _ = text_models()
    model.stand(np.array([0.0, 8.5]))
    assert model.step(0).observation[1] == pytest.approx(8.1)
    model.stand(np.array([0.0, 8.8]))
    with pytest.raises(AssertionError, match="too fast"):
        model.step(1)
    with pytest.raises(AssertionError, match="too fast"):
        model.play([1, 1])


def test_a_loop_that_goes_on_for_long_is_left_to_the_program() -> None:
    model, reference = text_models()
    for each in (model, reference):
        each.stand(np.array([200.0, 0.0]))
    assert model.step(1).observation == pytest.approx(reference.step(1).observation)
    assert model.redone == 1


@pytest.mark.parametrize("seed", range(60))
def test_expressions_compute_what_numpy_computes(seed: int) -> None:
    make = formula(seed)
    functions, compared = plain(traced(make, *make.SPACES)), 0
    for observation, action in zip(*rows(make), strict=True):
        model = make()
        model.set_state(observation)
        with np.errstate(all="ignore"):
            _, expected, _ = model.step(np.int64(action))
        with suppress(ArithmeticError, ValueError):
            state = functions.enter(observation.tolist())
            _, _, reward, _ = functions.step(state, action)
            assert reward == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
            compared += 1
    assert compared > 10
