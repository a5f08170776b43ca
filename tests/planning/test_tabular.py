"""Planning with a table of all states is exact, also for the last steps of an episode."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import tabular
from cwm_cli.planning.model import Model, Step
from cwm_cli.planning.planner import Situation, Unsuited
from cwm_cli.planning.tabular import OutcomeArrays, Tabular

FOUR = space_of(spaces.Discrete(4))
WALLS = {16, 17, 18, 19, 20, 30, 31, 32, 33}


class Maze(Model):
    """A walk on 7 x 7 fields, past walls, to the far corner; every step costs 1."""

    deterministic = True

    def __init__(self, space: Space = FOUR) -> None:
        self.action_space = space
        self.counter = [0]

    def stand(self, state: Any) -> None:
        self.state = state

    def here(self) -> Any:
        return self.state

    def step(self, action: int) -> Step:
        self.counter[0] += 1
        step = self.answer(self.state, action)
        self.state = step.observation
        return step

    def answer(self, state: Any, action: int) -> Step:
        x, y = divmod(state, 7)
        x = min(max(x + (action == 0) - (action == 1), 0), 6)
        y = min(max(y + (action == 2) - (action == 3), 0), 6)
        place = state if x * 7 + y in WALLS else x * 7 + y
        return Step(place, -1.0, place == 48)


def at(state: Any, *, horizon: int = 100, **rest: Any) -> Situation:
    return Situation(state, horizon, (0,), **rest)


def walk(planner: Tabular, world: Maze, state: Any, *, horizon: int = 100) -> list[Any]:
    """Play in the model itself; return the states."""
    states, terminated = [state], False
    while not terminated and len(states) <= horizon:
        [[action]] = planner.plan(world, [at(states[-1], horizon=horizon + 1 - len(states))])
        observation, _, terminated, _ = world.answer(states[-1], action)
        states.append(observation)
    return states


def distances(world: Maze) -> dict[int, int]:
    """Count the steps from every field to the end, by plain relaxation."""
    steps = dict.fromkeys(range(49), 99) | {48: 0}
    for _ in range(49):
        for state in set(range(48)) - WALLS:
            ways = [steps[world.answer(state, action).observation] for action in range(4)]
            steps[state] = min(steps[state], 1 + min(ways))
    return steps


def test_paths_are_shortest_and_each_action_is_tried_once() -> None:
    world, planner = Maze(), Tabular()
    for state, steps in distances(Maze()).items():
        if state != 48 and state not in WALLS:
            assert len(walk(planner, world, state)) == 1 + steps
    assert world.counter[0] == 4 * (48 - len(WALLS))


def test_the_table_is_shared_and_grows_with_new_states() -> None:
    class Islands(Maze):
        """Ten places each; from one island none leads to another."""

        def answer(self, state: Any, action: int) -> Step:
            place = state // 10 * 10 + (state + (1, -1, 2, -2)[action]) % 10
            return Step(place, float(place % 10 == 7), False)

    world, planner = Islands(), Tabular()
    assert planner.plan(world, [at(6), at(8), at(6)]) == [[0], [1], [0]]
    assert world.counter[0] == 40
    assert planner.plan(world, [at(26), at(8)]) == [[0], [1]]
    assert world.counter[0] == 80
    assert planner.plan(Islands(), [at(9)]) == [[3]]


@pytest.mark.parametrize("room", [tabular.MAX_VALUES, 60])
def test_no_step_beyond_the_horizon_counts(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Choice(Maze):
        """Action 0 pays 1 and ends; action 1 pays 5 at the end of a way of five more steps."""

        def answer(self, state: Any, action: int) -> Step:
            if state == 0 and action == 0:
                return Step(9, 1.0, True)
            return Step(state + 1, 5.0 if state == 5 else 0.0, state == 5)

    monkeypatch.setattr(tabular, "MAX_VALUES", room)
    planner, world = Tabular(), Choice(space_of(spaces.Discrete(2)))
    horizons = [50, 7, 6, 5, 2, 1]
    assert planner.plan(world, [at(0, horizon=each) for each in horizons]) == [
        [1], [1], [1], [0], [0], [0],
    ]  # fmt: skip


def test_values_depend_on_the_remaining_steps() -> None:
    class Loop(Maze):
        """Action 0 pays 1 for ever; action 1 pays 30 once."""

        def answer(self, state: Any, action: int) -> Step:
            return Step(state, 30.0 if action else 1.0, bool(action))

    world = Loop(space_of(spaces.Discrete(2)))
    situations = [at(0, horizon=horizon) for horizon in (1, 2, 2000)]
    assert Tabular().plan(world, situations) == [[1], [0], [0]]
    assert Tabular(discount=0.9).plan(world, situations) == [[1], [1], [1]]


def test_only_valid_actions_are_tried_and_chosen() -> None:
    class Doors(Maze):
        def answer(self, state: Any, action: int) -> Step:
            assert action in ((1, 2) if state % 2 == 0 else (0,)), "this is not valid"
            place = (state + action + 1) % 20
            return Step(place, float(action), False, (1, 2) if place % 2 == 0 else (0,))

    planner, world = Tabular(), Doors()
    assert planner.plan(world, [at(0, valid=(1, 2)), at(3, valid=(0,))]) == [[2], [0]]
    assert planner.plan(world, [at(0, valid=(1,))]) == [[1]]


def test_actions_of_equal_value_are_chosen_at_random() -> None:
    class Same(Maze):
        def answer(self, state: Any, action: int) -> Step:
            assert -2 <= action <= 1
            return Step(state, 0.0, True)

    world = Same(space_of(spaces.Discrete(4, start=-2)))
    actions = Tabular().plan(world, [Situation(0, 9, (seed,)) for seed in range(60)])
    assert {action for [action] in actions} == {-2, -1, 0, 1}


def endless(kind: type, factor: float) -> Maze:
    class Endless(Maze):
        def answer(self, state: Any, action: int) -> Step:
            return Step(kind(state * factor + action + 1), 0.0, False)

    return Endless()


@pytest.mark.parametrize(
    ("world", "state", "tried"),
    [(endless(int, 3), 1, 5000), (endless(float, 0.7), 0.1, 300)],
    ids=["whole numbers", "real numbers"],
)
def test_models_whose_states_never_end_are_refused(world: Maze, state: Any, tried: int) -> None:
    planner = Tabular(states=5000)
    for _ in range(2):
        with pytest.raises(Unsuited, match=r"^reaches more than \d+ states$"):
            planner.plan(world, [at(state)])
        assert world.counter[0] <= 4 * (tried + 1)


def test_recurring_real_valued_states_are_accepted() -> None:
    class Real(Maze):
        """The same maze with fields of a tenth, in arrays."""

        def answer(self, state: Any, action: int) -> Step:
            place, reward, terminated, _ = super().answer(round(state[0] * 10), action)
            return Step(np.array([place / 10]), reward, terminated)

    assert len(walk(Tabular(), Real(), np.array([0.0]))) == 1 + distances(Maze())[0]


def test_equal_planners_have_separate_tables() -> None:
    first, second = Tabular(), Tabular()
    first.plan(Maze(), [at(0)])
    assert first == second
    world = Maze()
    second.plan(world, [at(0)])
    assert world.counter[0] > 0


def test_probabilities_weigh_the_next_values() -> None:
    outcomes = OutcomeArrays.of(
        actions=[0, 2, 1],
        rewards=[1.0, 0.0, 3.0],
        outcomes=[1, 2, 1],
        following=[0, 0, 2, 0],
        shares=[1.0, 0.25, 0.75, 1.0],
    )
    values = np.array([0.0, 0.0, 8.0])
    assert outcomes.back_up(values, 0.5).tolist() == [1.0, 3.0, 3.0]
    assert outcomes.improve(values, 0.5).tolist() == [0.0, 3.0, 3.0]
