"""Tree search: rewards, budgets, and the published algorithm."""

from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning.mcts import (
    ActionValues,
    Mcts,
    PublishedTree,
    TreeNode,
    choose,
    mutate_plan,
    repeat_random_actions,
    select_ucb,
)
from cwm_cli.planning.model import Model, Step, close, countable, key, name
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.program import Checks, Program

TWO = space_of(spaces.Discrete(2))
PRESETS = pytest.mark.parametrize("preset", ["default", "paper"])


class World(Model):
    """A model defined by a function from a state and an action to a step."""

    deterministic = True
    state: Any = None

    def __init__(self, space: Space = TWO) -> None:
        self.action_space = space
        self.counter = [0]
        self.stood: list[Any] = []

    def answer(self, state: Any, action: int) -> Step:
        """Say what follows."""
        raise NotImplementedError

    def stand(self, state: Any) -> None:
        self.state = state
        self.stood.append(state)

    def here(self) -> Any:
        return self.state

    def step(self, action: int) -> Step:
        self.counter[0] += 1
        step = self.answer(self.state, action)
        self.state = step.observation
        return step


class Corridor(World):
    """Five steps to the right, and none to the left, pay 1; places are real or whole numbers."""

    def answer(self, state: Any, action: int) -> Step:
        place = state + (1 if action == self.action_space.high[0] else -1)
        ended = bool(place >= 5 or place <= -5)
        return Step(place, float(place >= 5), ended)


class Patience(World):
    """Action 1 pays 1 and ends the episode; action 0 pays 5 in the second step after it."""

    def answer(self, state: Any, action: int) -> Step:
        if state == 0 and action == 1:
            return Step(state + 10, 1.0, True)
        return Step(state + 1, 5.0 if state == 2 else 0.0, bool(state == 2))


class Pole(World):
    """Keep a falling stick near the middle."""

    def answer(self, state: Any, action: int) -> Step:
        place, speed = state
        speed = speed + (0.1 if action else -0.1) + 0.05 * place
        place = place + speed
        return Step(np.array([place, speed]), 1.0, bool(abs(place) > 1))


class Grid(World):
    """A walk on 7 x 7 fields to the far corner; whole numbers are states."""

    def answer(self, state: Any, action: int) -> Step:
        x, y = divmod(state, 7)
        x = min(max(x + (action == 0) - (action == 1), 0), 6)
        y = min(max(y + (action == 2) - (action == 3), 0), 6)
        return Step(x * 7 + y, -1.0, x * 7 + y == 48)


FOUR = space_of(spaces.Discrete(4))


def at(state: Any, *, horizon: int = 50, seed: int = 0, **rest: Any) -> Situation:
    return Situation(state, horizon, (seed,), **rest)


def chosen(planner: Mcts, world: World, state: Any, **rest: Any) -> int:
    [[action]] = planner.plan(world, [at(state, **rest)])
    return action


@PRESETS
@pytest.mark.parametrize("kind", [int, float])
def test_it_finds_the_only_reward(preset: Any, kind: type) -> None:
    planner = Mcts(preset=preset, simulations=200, temperature=0.0)
    for seed in range(5):
        assert chosen(planner, Corridor(), kind(2), seed=seed) == 1


@pytest.mark.parametrize("kind", [int, float])
def test_no_step_beyond_the_horizon_counts(kind: type) -> None:
    planner = Mcts(simulations=200, temperature=0.0)
    for horizon, action in ((1, 1), (2, 1), (3, 0), (50, 0)):
        assert chosen(planner, Patience(), kind(0), horizon=horizon) == action


def test_a_far_reward_counts_only_within_the_horizon() -> None:
    class Far(World):
        """The first action decides: 0 pays 1 immediately, 1 pays 9 after twelve steps."""

        def answer(self, state: Any, action: int) -> Step:
            way, steps = divmod(state, 100) if state else (1 + action, 0)
            paid = (9.0 if steps == 11 else 0.0) if way == 2 else float(steps == 0)
            return Step(way * 100 + steps + 1, paid, steps == 20)

    for kind in (int, float):
        for horizon, action in ((11, 0), (12, 1), (40, 1)):
            assert chosen(Mcts(), Far(), kind(0), horizon=horizon) == action


@PRESETS
def test_only_valid_actions_are_tried_anywhere(preset: Any) -> None:
    class Doors(World):
        """From an even place only 1 and 2 are valid, from an odd one only 0."""

        def answer(self, state: Any, action: int) -> Step:
            assert action in ((1, 2) if state % 2 == 0 else (0,)), "this is not valid"
            place = state + (2 if action == 2 else 1)
            return Step(place, float(action), False, (1, 2) if place % 2 == 0 else (0,))

    planner = Mcts(preset=preset, simulations=60, discount=0.5, temperature=0.0)
    for start in (0, 0.0):
        world = Doors(space_of(spaces.Discrete(3)))
        assert chosen(planner, world, start, valid=(1, 2)) == 2
        assert chosen(planner, world, start + 1, valid=(0,)) == 0
        assert world.counter[0] > 60


@PRESETS
def test_actions_of_equal_value_are_chosen_at_random(preset: Any) -> None:
    class Same(World):
        def answer(self, state: Any, action: int) -> Step:
            return Step(state, 0.0, True)

    planner = Mcts(preset=preset, simulations=25)
    actions = [chosen(planner, Same(), 0.0, seed=seed) for seed in range(40)]
    assert 8 < sum(actions) < 32


@PRESETS
def test_actions_are_numbered_as_their_space_numbers_them(preset: Any) -> None:
    class Best(World):
        def answer(self, state: Any, action: int) -> Step:
            assert -3 <= action <= -1
            return Step(state + 1, float(action == -2), state == 9)

    for start in (0, 0.0):
        world = Best(space_of(spaces.Discrete(3, start=-3)))
        planner = Mcts(preset=preset, simulations=90, temperature=0.0)
        assert chosen(planner, world, start) == -2


@PRESETS
def test_decisions_depend_on_the_seed(preset: Any) -> None:
    def decide(seed: int) -> list[int]:
        planner = Mcts(preset=preset, budget=100)
        return [chosen(planner, Pole(), np.zeros(2), seed=seed + number) for number in range(12)]

    assert decide(0) == decide(0) != decide(100)


def test_tried_actions_without_a_value_are_drawn_uniformly() -> None:
    node = TreeNode(None, range(2))
    node.tried = [1, 1]
    drawn = {select_ucb(node, 1.0, Random(seed)) for seed in range(20)}
    assert drawn == {0, 1}


def test_the_budget_ends_a_decision() -> None:
    for preset, budget, most in (("default", 300, 500), ("paper", 300, 400)):
        world = Pole()
        chosen(Mcts(preset=preset, simulations=10_000, budget=budget), world, np.zeros(2))
        assert budget <= world.counter[0] <= most


def test_the_action_is_drawn_by_a_softmax_or_is_the_best() -> None:
    tried = ActionValues([4, 5, 6], [3, 3, 0], [0.5, 0.5 + 0.01 * log(3), 9.0])
    numbers = (np.arange(1000) + 0.5) / 1000
    assert [choose(tried, 0.01, number) for number in numbers].count(5) == 750
    assert {choose(tried, 0.0, number) for number in numbers} == {5}


# The published search.


class Leaf(NamedTuple):
    """What the reference knows of a state."""

    state: Any
    terminated: bool
    totals: list[float]
    counts: list[int]
    children: list[dict[Any, Any]]
    visits: list[int]


def leaf(state: Any, actions: int, visits: int, terminated: bool = False) -> Leaf:
    empty: list[dict[Any, Any]] = [{} for _ in range(actions)]
    return Leaf(state, terminated, [0.0] * actions, [0] * actions, empty, [visits])


def reference(world: World, state: Any, rng: np.random.Generator) -> Leaf:
    """Search as published: the model is stepped at every edge, and values are summed up."""
    actions, random = range(int(world.action_space.high[0]) + 1), Random(int(rng.integers(2**63)))
    root = leaf(state, len(actions), 1)
    for _ in range(25):
        node, path, new = root, [], False
        while not (new or node.terminated):
            bounds = [
                (node.totals[a] / node.counts[a] if node.counts[a] else 1.0)
                + sqrt(log(node.visits[0]) / (node.counts[a] + 1e-3))
                for a in actions
            ]
            best = [a for a in actions if bounds[a] == max(bounds)]
            action = random.choice(best) if len(best) > 1 else best[0]
            world.stand(node.state)
            observation, reward, terminated, _ = world.step(action)
            new = key(observation) not in node.children[action]
            if new:
                child = leaf(world.here(), len(actions), 0, terminated)
                node.children[action][key(observation)] = child
            path.append((node, action, reward))
            node = node.children[action][key(observation)]
        value = 0.0
        if not node.terminated:
            value = world.play(rng.integers(0, len(actions), 100).tolist(), 0.99)
        node.visits[0] += 1
        for parent, action, reward in reversed(path):
            value = reward + 0.99 * value
            parent.totals[action] += value
            parent.counts[action] += 1
            parent.visits[0] += 1
    return root


class Slippery(Grid):
    """The same, but a third of the steps go elsewhere."""

    deterministic = False
    rng = np.random.default_rng(0)

    def answer(self, state: Any, action: int) -> Step:
        slips = self.rng.random() < 1 / 3
        return super().answer(state, int(self.rng.integers(4)) if slips else action)


@pytest.mark.parametrize(
    ("world", "state"),
    [(Pole(), np.zeros(2)), (Corridor(), 0.0), (Grid(FOUR), 30), (Slippery(FOUR), 30)],
    ids=["pole", "corridor", "grid", "slippery"],
)
def test_the_published_search_is_the_published_one(world: World, state: Any) -> None:
    for seed in range(6):
        situation = at(state, horizon=500, seed=seed)
        Slippery.rng = np.random.default_rng(seed)
        found = PublishedTree(world, Mcts(preset="paper")).search(situation)
        Slippery.rng = np.random.default_rng(seed)
        root = reference(world, state, at(state, seed=seed).rng)
        assert found.tried == root.counts
        pairs = zip(root.totals, root.counts, strict=True)
        assert found.values == [total / count for total, count in pairs]


def test_the_published_search_knows_no_time_limit() -> None:
    planner = Mcts(preset="paper", simulations=200, temperature=0.0)
    assert [chosen(planner, Patience(), 0.0, horizon=horizon) for horizon in (1, 2, 3)] == [0] * 3


def test_an_action_whose_outcome_is_known_is_not_taken_again() -> None:
    class Door(World):
        def answer(self, state: Any, action: int) -> Step:
            return Step(state + 1 + action, 1.0, True)

    world = Door()
    chosen(Mcts(preset="paper"), world, 0.0)
    assert world.counter[0] == 2


def test_rollouts_end_where_the_episode_ends() -> None:
    class End(World):
        def answer(self, state: Any, action: int) -> Step:
            return Step(state + 1, 0.0, bool(state == 2))

    world = End()
    chosen(Mcts(preset="paper", simulations=2), world, 0.0)
    assert world.counter[0] == 2 * 3


class Counted:
    """A program that counts its steps since the last `set_state`."""

    stood = 0

    def set_state(self, observation: Any) -> None:
        self.place, self.steps = float(observation[0]), 0
        self.stood += 1

    def step(self, action: int) -> tuple[Any, float, bool]:
        self.steps += 1
        self.place += action
        return np.array([self.place]), float(self.steps), self.steps > 50


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_published_search_resets_a_program_before_every_step(deterministic: bool) -> None:
    program = Counted()
    checks = Checks(tuple, float, bool, np.array)
    model = Program(program, checks, action_space=TWO, deterministic=deterministic)
    planner = Mcts(preset="paper", simulations=9, rollout=7)
    planner.plan(model, [at(np.zeros(1))])
    assert program.stood == model.counter[0] >= 9 * 8
    Mcts(simulations=9, rollout=7).plan(model, [at(np.zeros(1))])
    assert program.stood < model.counter[0]


def test_random_outcomes_are_averaged() -> None:
    class Lottery(World):
        deterministic = False
        rng = np.random.default_rng(5)

        def answer(self, state: Any, action: int) -> Step:
            won = float(self.rng.random() < 0.25)
            return Step(won, won if action else 0.4, True)

    for preset in ("default", "paper"):
        planner, world = Mcts(preset=preset, simulations=100), Lottery()
        actions = [chosen(planner, world, 0.0, seed=seed) for seed in range(20)]
        assert actions.count(0) >= 18
        assert world.counter[0] == 20 * 100


# The default search: kept plans, and graphs of recurring states.


def episode(planner: Mcts, world: World, state: Any, steps: int, drift: float = 0.0) -> list[Any]:
    """Play in the model itself, or in one that differs a little; return where it went."""
    memory, states = None, [state]
    for number in range(steps):
        situation = at(states[-1], horizon=steps - number, seed=number, memory=memory)
        [[action]] = planner.plan(world, [situation])
        memory = situation.memory
        step = world.answer(states[-1], action)
        states.append(step.observation + drift)
        if step.terminated:
            break
    return states


def test_the_value_of_the_plan_never_decreases() -> None:
    world, memory, state, promises = Pole(), None, np.array([0.3, 0.1]), [-np.inf]
    for number in range(60):
        situation = at(state, horizon=60 - number, seed=number, memory=memory)
        [[action]] = Mcts(budget=60).plan(world, [situation])
        memory, step = situation.memory, world.answer(state, action)
        assert memory.root.value >= promises[-1] - 1e-9
        promises.append((memory.root.value - step.reward) / 0.99)
        state = step.observation
    assert promises[-1] == pytest.approx(0.0)


@pytest.mark.parametrize("budget", [1, 2, 5, 20])
def test_a_small_budget_still_gives_an_action(budget: int) -> None:
    for seed in range(5):
        planner = Mcts(budget=budget, rollout=1 + seed)
        assert 1 < len(episode(planner, Pole(), np.array([0.1 * seed, 0.1]), 60)) <= 61


@pytest.mark.parametrize("drift", [1e-9, 1e-3])
def test_the_plan_is_replayed_from_an_unexpected_state(drift: float) -> None:
    world = Pole()
    assert len(episode(Mcts(budget=300), world, np.array([0.3, 0.1]), 60, drift)) == 61


def test_the_tree_is_reused_only_if_the_state_agrees() -> None:
    planner, memories = Mcts(budget=200), []
    for state in (np.array([0.0, 0.1 + 1e-7]), np.array([0.0, 0.1 + 1e-2])):
        world, first = Pole(), at(np.array([-0.1, 0.005]))
        planner.plan(world, [first])
        before = first.memory.root
        children = [child for child in before.children if child]
        near = min(children, key=lambda child: abs(child.observation - state).max())
        second = at(near.observation + (state - [0.0, 0.1]), horizon=49, memory=first.memory)
        planner.plan(world, [second])
        memories.append(second.memory.root is near)
    assert memories == [True, False]


def test_repeated_actions_find_a_far_goal() -> None:
    class Hill(World):
        """Only long runs to one side lead anywhere."""

        def answer(self, state: Any, action: int) -> Step:
            place = max(state + (0.1 if action else -0.1), 0.0)
            return Step(place, -1.0, bool(place >= 3.95))

    assert len(episode(Mcts(budget=2000), Hill(), 0.0, 100)) < 60
    assert len(episode(Mcts(preset="paper", budget=2000), Hill(), 0.0, 100)) == 101


def test_known_steps_are_not_repeated() -> None:
    world = Grid(FOUR)
    assert len(episode(Mcts(), world, 0, 50)) == 13
    assert world.counter[0] <= 48 * 4


def test_outcome_frequencies_are_learned() -> None:
    class Ice(World):
        """Two ways to the goal: 0 gets there or breaks in, 1 takes longer."""

        deterministic = False
        rng = np.random.default_rng(3)

        def answer(self, state: Any, action: int) -> Step:
            if action == 0:
                won = bool(self.rng.random() < 0.6)
                return Step(9 if won else -1, float(won), True)
            moved = state + int(self.rng.random() < 0.5)
            return Step(moved, float(moved == 3), moved == 3)

    for seed in range(5):
        assert chosen(Mcts(budget=1000), Ice(), 0, seed=seed) == 1
        assert chosen(Mcts(budget=1000), Ice(), 0, seed=seed, horizon=1) == 0


def test_the_number_of_states_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(World):
        def answer(self, state: Any, action: int) -> Step:
            return Step(2 * state + action, 0.0, False)

    monkeypatch.setattr("cwm_cli.planning.mcts.MAX_STATES", 500)
    memory, world, state = None, Counting(), 1
    for number in range(12):
        situation = at(state, seed=number, memory=memory)
        [[action]] = Mcts(budget=100).plan(world, [situation])
        memory, state = situation.memory, world.answer(state, action).observation
        assert len(memory.states) <= 500 + 2 * 100


# Parts of the searches.


def test_rollouts_repeat_actions_for_different_lengths() -> None:
    rows = repeat_random_actions(np.random.default_rng(0), range(-1, 3), 200)
    switches = []
    for _ in range(200):
        row = next(rows)
        assert len(row) == 200 and set(row) <= {-1, 0, 1, 2}
        switches.append(sum(a != b for a, b in pairwise(row)))
    assert min(switches) < 10
    assert max(switches) > 120


def test_plans_are_mutated_in_every_way() -> None:
    class Numbers:
        def __init__(self, values: Sequence[float]) -> None:
            self.random = iter(values).__next__

    plan, actions = [1, 2, 3, 4, 5], range(7, 10)
    two = [0.2, 0.9, 0.4]  # a mean of two, and then two steps
    assert mutate_plan(plan, actions, Numbers([*two, 0.3])) == []
    assert mutate_plan(plan, actions, Numbers([*two, 0.7, 0.0, 0.1])) == [7, 7, 3, 4, 5]
    assert mutate_plan(plan, actions, Numbers([*two, 0.7, 0.9, 0.4])) == [9, 9, 1, 2, 3, 4, 5]
    assert mutate_plan(plan, actions, Numbers([*two, 0.7, 0.0, 0.9])) == [3, 4, 5]


def test_states_are_compared_in_every_form() -> None:
    here = {"place": np.array([1.0, 2.0]), "rest": (3, "x")}
    near = {"place": np.array([1.0, 2.0 + 1e-5]), "rest": (3, "x")}
    assert close(here, near)
    assert close(np.array([np.inf, np.nan]), np.array([np.inf, np.nan]))
    for far in (
        {"place": np.array([1.0, 2.001]), "rest": (3, "x")},
        {"place": np.array([1.0, np.inf]), "rest": (3, "x")},
        {"place": np.array([1.0]), "rest": (3, "x")},
        {"place": np.array([1.0, 2.0]), "rest": (4, "x")},
        {"place": np.array([1.0, 2.0])},
        np.array([1.0, 2.0]),
        None,
    ):
        assert not close(here, far)
    assert name((1, np.array([2]))) == name((1, np.array([2]))) != name((1, np.array([3])))
    assert name([1]) == name([1]) and name({1}) != name({1})
    assert countable((1, np.array([2]), {"a": "b"}))
    assert not countable((1, 2.0)) and not countable(np.array([2.0])) and not countable(None)
