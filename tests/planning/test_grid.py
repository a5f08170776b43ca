"""The planner `grid`: coordinates, interpolation, values and the models that it refuses."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Unsuited
from cwm_cli.planning.grid import Coordinates, Lattice, StateGrid
from cwm_cli.planning.model import Model, Step, Unbatched
from cwm_cli.planning.planner import Situation

PUSHES = space_of(gym.spaces.Discrete(3))


class Cart(Model):
    """A cart with place and speed on a track; the episode ends at the place 1, far to the right."""

    deterministic = True
    action_space: Space = PUSHES

    def __init__(self) -> None:
        self.counter = [0]
        grid = np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-0.2, 0.2, 9))
        self.examples = np.stack([part.ravel() for part in grid], axis=1)

    def stand(self, state: Any) -> None:
        self.state = np.array(state, float)

    def here(self) -> Any:
        return self.state

    def step(self, action: Any) -> Step:
        self.counter[0] += 1
        speed = np.clip(self.state[1] + 0.02 * (float(np.ravel(action)[0]) - 1), -0.2, 0.2)
        place = max(self.state[0] + speed, -1.0)
        self.state = np.array([place, speed])
        return Step(self.state, -1.0, bool(place >= 1))


def steps_to_the_end(planner: StateGrid, start: list[float]) -> int:
    model, state = Cart(), np.array(start)
    for count in range(1, 200):
        [[action]] = planner.plan(model, [Situation(state, 200, (0,))])
        model.stand(state)
        step = model.step(action)
        if step.terminated:
            return count
        state = step.observation
    return 200


def test_grid_reaches_the_end_as_fast_as_constant_pushes() -> None:
    model = Cart()
    model.stand([-0.5, -0.2])
    fastest = next(count for count in range(1, 200) if model.step(2).terminated)
    assert steps_to_the_end(StateGrid(points=2000), [-0.5, -0.2]) == fastest


def test_lookahead_corrects_a_coarse_grid() -> None:
    coarse = {depth: StateGrid(points=25, lookahead=depth) for depth in (3, 400)}
    taken = {depth: steps_to_the_end(grid, [0.2, -0.1]) for depth, grid in coarse.items()}
    assert taken[400] <= taken[3]


def test_cosine_and_sine_become_one_periodic_coordinate() -> None:
    angles = np.linspace(-3, 3, 40)
    columns = [np.cos(angles), np.full(40, 7.0), angles**2, np.sin(angles)]
    examples = np.stack(columns, axis=1)
    coordinates = Coordinates(examples)
    assert coordinates.periodic.tolist() == [True, False]
    encoded = coordinates.encode(examples.T)
    assert encoded == pytest.approx(np.stack([angles, angles**2]))
    assert coordinates.decode(encoded) == pytest.approx(examples.T)


@pytest.mark.parametrize("count", [2, 5])
def test_interpolation_is_exact_for_multilinear_functions(count: int) -> None:
    rng = np.random.default_rng(0)
    coordinates = Coordinates(rng.uniform(-2, 3, (50, 3)))
    lattice = Lattice(coordinates, count)

    def function(x: np.ndarray) -> np.ndarray:
        return 1 + x[0] - 2 * x[1] + x[0] * x[1] * x[2]

    inside = rng.uniform(coordinates.low[:, None], coordinates.high[:, None], (3, 20))
    found = lattice.corners(inside).interpolate(function(lattice.points()))
    assert found == pytest.approx(function(inside))


def test_interpolation_continues_across_the_ends_of_an_angle() -> None:
    angles = np.linspace(-3, 3, 40)
    coordinates = Coordinates(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    lattice = Lattice(coordinates, 8)
    values = np.cos(lattice.points()[0])
    ends = lattice.corners(np.array([[np.pi - 1e-9, -np.pi + 1e-9]])).interpolate(values)
    assert ends == pytest.approx([-1, -1])


def test_states_outside_have_the_values_of_the_edge() -> None:
    lattice = Lattice(Coordinates(np.array([[0.0], [1.0]])), 3)
    found = lattice.corners(np.array([[-5.0, 9.0]])).interpolate(np.array([3.0, 4.0, 5.0]))
    assert found.tolist() == [3, 5]


REFUSED = {
    "has no recorded observations": {"examples": None},
    "draws random numbers": {"deterministic": False},
    "has states that observations do not show": {"hides": True},
    "has 2 components that vary, not 1 to 1": {},
    "has the same value in all states": {"step": lambda action: Step(np.zeros(2), 0.0, False)},
}


def test_values_that_differ_in_the_last_digits_are_refused_at_once() -> None:
    model = Cart()
    model.step = lambda action: Step(np.clip(model.state + 0.01, -1, 0.2), 0.1, False)
    with pytest.raises(Unsuited, match="has the same value in all states"):
        StateGrid(points=2000).plan(model, [Situation(np.zeros(2), 10, (0,))])


@pytest.mark.parametrize("words", REFUSED)
def test_unsuitable_model_is_refused_with_the_reason(words: str) -> None:
    model = Cart()
    for name, value in REFUSED[words].items():
        setattr(model, name, value)
    grid = StateGrid(components=1 if words.startswith("has 2 components") else 6)
    with pytest.raises(Unsuited, match=words):
        grid.plan(model, [Situation(np.zeros(2), 10, (0,))])


def test_equal_steps_of_continuous_actions_include_the_middle() -> None:
    model = Cart()
    model.action_space = space_of(gym.spaces.Box(0, 2, (1,)))
    [[action]] = StateGrid(points=500, actions=6).plan(model, [Situation(np.zeros(2), 10, (0,))])
    assert action.shape == (1,) and action[0] in (0.0, 0.5, 1.0, 1.5, 2.0)


@pytest.mark.parametrize(("horizon", "best"), [(1, 0), (2, 0), (4, 1), (100, 1), (10_000, 1)])
def test_decisions_depend_on_the_remaining_steps(horizon: int, best: int) -> None:
    class Savings(Cart):
        """Action 0 pays the first number as the reward, action 1 adds 1 to it, up to 1000."""

        def __init__(self) -> None:
            self.counter = [0]
            self.examples = np.arange(1001.0)[:, None]
            self.action_space = space_of(gym.spaces.Discrete(2))

        def step(self, action: Any) -> Step:
            before = self.state
            self.state = np.minimum(before + int(action), 1000.0)
            return Step(self.state, float(before[0]) * (1 - int(action)), False)

    [[action]] = StateGrid().plan(Savings(), [Situation(np.array([2.0]), horizon, (0,))])
    assert action == best


class CartBatch:
    """Many carts that move together; refuses if `refuses` is set."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.calls, self.refuses = 0, refuses

    def stand(self, observations: np.ndarray) -> None:
        self.states = observations

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.calls += 1
        if self.refuses:
            raise Unbatched("a row needs the interpreted program")
        speed = np.clip(self.states[1] + 0.02 * (actions - 1.0), -0.2, 0.2)
        place = np.maximum(self.states[0] + speed, -1.0)
        return np.stack([place, speed]), np.array(-1.0), place >= 1

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.step(actions)[1:]

    def keep(self, lanes: np.ndarray) -> None:
        self.states = self.states[:, lanes]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_batch_steps_all_states_together_unless_it_refuses(refuses: bool) -> None:
    alone, together = Cart(), Cart()
    together.batch = CartBatch(refuses=refuses)
    states = np.ascontiguousarray(alone.examples.T)
    for action in range(3):
        for one, other in zip(
            alone.step_all(states, np.array([action])),
            together.step_all(states, np.array([action])),
            strict=True,
        ):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype
    assert together.batch.calls == 3
    assert together.counter == alone.counter == [3 * states.shape[1]]


def test_equal_returns_have_one_decision_in_spite_of_the_last_digits() -> None:
    class Noisy(Cart):
        """A cart whose rewards depend on the action, by less than any decision may depend on."""

        def step(self, action: Any) -> Step:
            step = super().step(1)
            return step._replace(reward=step.reward + 1e-14 * int(action))

    planner, states = StateGrid(points=400), [np.array([-0.5, 0.05]), np.array([0.2, 0.1])]
    plans = planner.plan(Noisy(), [Situation(state, 50, (0,)) for state in states])
    assert plans == [[0], [0]]
