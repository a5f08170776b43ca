"""Tree search finds what pays, counts what it should, and decides alike one by one or at once."""

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, log, sqrt
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import lockstep
from cwm_cli.planning.draws import DEPTHS, Draws, changed, numbers, persistent, pick
from cwm_cli.planning.mcts import EFFORTS, Mcts, choose
from cwm_cli.planning.model import Step, Unbatched, key
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.states import close, countable, name
from cwm_cli.planning.tree import Tree, Tried, optimistic

TWO = space_of(spaces.Discrete(2))
PRESETS = pytest.mark.parametrize("preset", ["default", "paper"])


class World:
    """A model made of a function from a state and an action to what follows."""

    deterministic = True
    batch: Any = None
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

    def play(self, actions: Iterable[int], discount: float = 1.0) -> float:
        total, factor = 0.0, 1.0
        for action in actions:
            _, reward, terminated, _ = self.step(action)
            total += factor * reward
            factor *= discount
            if terminated:
                break
        return total


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


class Lanes:
    """What batches have in common."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raise NotImplementedError

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.step(actions)[1:]

    def apart(self) -> Any:
        other = copy.copy(self)
        other.columns = [column[..., :0] for column in self.columns]
        return other

    def join(self, other: Any) -> None:
        pairs = zip(self.columns, other.columns, strict=True)
        self.columns = [np.concatenate(pair) for pair in pairs]


class Poles(Lanes):
    """Many of them at once."""

    def __init__(self, keeps: int | None = None) -> None:
        self.keeps = iter(range(1000) if keeps is None else range(keeps))
        self.columns = [np.empty(0), np.empty(0)]

    def stand(self, observations: np.ndarray) -> None:
        self.columns = list(observations)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places, speeds = self.columns
        speeds = speeds + np.where(actions, 0.1, -0.1) + 0.05 * places
        self.columns = [places + speeds, speeds]
        ended = np.abs(places + speeds) > 1
        return np.stack(self.columns), np.ones(len(speeds)), ended

    def keep(self, lanes: np.ndarray) -> None:
        if next(self.keeps, None) is None:
            raise Unbatched("enough")
        self.columns = [column[lanes] for column in self.columns]


class Grid(World):
    """A walk on 7 x 7 fields to the far corner; whole numbers are states."""

    def answer(self, state: Any, action: int) -> Step:
        x, y = divmod(state, 7)
        x = min(max(x + (action == 0) - (action == 1), 0), 6)
        y = min(max(y + (action == 2) - (action == 3), 0), 6)
        return Step(x * 7 + y, -1.0, x * 7 + y == 48)


class Grids(Lanes):
    """Many of them at once."""

    def __init__(self) -> None:
        self.columns = [np.empty(0, int)]

    def stand(self, observations: np.ndarray) -> None:
        self.columns = [observations]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y = np.divmod(self.columns[0], 7)
        x = np.clip(x + (actions == 0) - (actions == 1), 0, 6)
        y = np.clip(y + (actions == 2) - (actions == 3), 0, 6)
        self.columns = [x * 7 + y]
        return x * 7 + y, -np.ones(len(x)), x * 7 + y == 48

    def keep(self, lanes: np.ndarray) -> None:
        self.columns = [self.columns[0][lanes]]


FOUR = space_of(spaces.Discrete(4))


def at(state: Any, *, horizon: int = 50, seed: int = 0, **rest: Any) -> Situation:
    return Situation(state, horizon, (seed,), **rest)


def chosen(planner: Mcts, world: World, state: Any, **rest: Any) -> int:
    [[action]] = planner.plan(world, [at(state, **rest)])
    return action


@PRESETS
@pytest.mark.parametrize("kind", [int, float])
def test_it_walks_the_only_way_that_pays(preset: Any, kind: type) -> None:
    planner = Mcts(preset=preset, simulations=200, temperature=0.0)
    for seed in range(5):
        assert chosen(planner, Corridor(), kind(2), seed=seed) == 1


@PRESETS
@pytest.mark.parametrize("kind", [int, float])
def test_no_step_beyond_the_horizon_counts(preset: Any, kind: type) -> None:
    planner = Mcts(preset=preset, simulations=200, temperature=0.0)
    for horizon, action in ((1, 1), (2, 1), (3, 0), (50, 0)):
        assert chosen(planner, Patience(), kind(0), horizon=horizon) == action


def test_a_far_reward_counts_only_if_the_episode_can_last_so_long() -> None:
    class Far(World):
        """The first action decides: 0 pays 1 at once, 1 pays 9 after twelve steps."""

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
@pytest.mark.parametrize("start", [0, 0.0, np.zeros(2)], ids=["whole", "real", "array"])
def test_the_same_random_numbers_give_the_same_decisions(preset: Any, start: Any) -> None:
    def decide(seed: int) -> list[int]:
        world = Pole() if isinstance(start, np.ndarray) else Corridor()
        planner = Mcts(preset=preset, budget=100)
        return [chosen(planner, world, start, seed=seed + number) for number in range(12)]

    assert decide(0) == decide(0)
    assert decide(0) != decide(100)


def test_actions_that_a_walk_took_but_did_not_value_yet_are_drawn_alike() -> None:
    drawn = {optimistic([-inf, -inf], [1, 1], 1.0, Random(seed)) for seed in range(20)}
    assert drawn == {0, 1}


def test_the_presets_give_what_is_not_set() -> None:
    assert Mcts(preset="paper").effort == (25, None, 100, 1.0, 0.99, 0.01)
    assert Mcts(preset="paper", rollout=7).effort == (25, None, 7, 1.0, 0.99, 0.01)
    assert Mcts().effort == EFFORTS["default"]


@pytest.mark.parametrize(
    "options",
    [
        {"simulations": 0},
        {"budget": 0},
        {"rollout": -1},
        {"discount": 1.5},
        {"temperature": -0.1},
        {"exploration": float("nan")},
    ],
    ids=str,
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Mcts(**options)


def test_the_budget_ends_a_decision() -> None:
    for preset, budget, most in (("default", 300, 500), ("paper", 300, 400)):
        world = Pole()
        chosen(Mcts(preset=preset, simulations=10_000, budget=budget), world, np.zeros(2))
        assert budget <= world.counter[0] <= most


def test_the_action_is_drawn_by_a_softmax_or_is_the_best() -> None:
    tried = Tried([4, 5, 6], [3, 3, 0], [0.5, 0.5 + 0.01 * log(3), 9.0])
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


def reference(world: World, state: Any, draws: Draws, simulations: int = 25) -> Leaf:
    """Search as published: the model is stepped at every edge, and values are summed up."""
    actions = int(world.action_space.high[0]) + 1
    root = leaf(state, actions, 1)
    for number in range(simulations):
        rollout, ties = draws.row(number)
        node, path, new = root, [], False
        while not (new or node.terminated):
            bounds = [
                (node.totals[a] / node.counts[a] if node.counts[a] else 1.0)
                + sqrt(log(node.visits[0]) / (node.counts[a] + 1e-3))
                for a in range(actions)
            ]
            best = [a for a in range(actions) if bounds[a] > max(bounds) - 1e-12]
            action = best[pick(ties[len(path) % DEPTHS], len(best))]
            world.stand(node.state)
            observation, reward, terminated, _ = world.step(action)
            new = key(observation) not in node.children[action]
            if new:
                child = leaf(world.here(), actions, 0, terminated)
                node.children[action][key(observation)] = child
            path.append((node, action, reward))
            node = node.children[action][key(observation)]
        value = 0.0 if node.terminated else world.play(rollout[:100], 0.99)
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


def drawn(world: World, seed: int, *, steps: int = 100, simulations: int = 25) -> Draws:
    return Draws(seed, world.action_space, steps=steps, simulations=simulations)


@pytest.mark.parametrize(
    ("world", "state"),
    [(Pole(), np.zeros(2)), (Corridor(), 0.0), (Grid(FOUR), 30), (Slippery(FOUR), 30)],
    ids=["pole", "corridor", "grid", "slippery"],
)
def test_the_published_search_is_the_published_one(world: World, state: Any) -> None:
    effort = Mcts(preset="paper").effort
    for seed in range(6):
        Slippery.rng = np.random.default_rng(seed)
        tried = Tree(world, at(state, horizon=500), effort, drawn(world, seed)).search()
        Slippery.rng = np.random.default_rng(seed)
        root = reference(world, state, drawn(world, seed))
        assert list(tried.visits) == root.counts
        pairs = zip(root.totals, root.counts, strict=True)
        assert np.allclose(tried.values, [total / count for total, count in pairs])


def test_an_action_whose_outcome_is_known_is_not_taken_again() -> None:
    world = Patience()
    chosen(Mcts(preset="paper"), world, 0.0, horizon=1)
    assert world.counter[0] == 2


def test_rollouts_end_where_the_episode_ends() -> None:
    world = Corridor()
    chosen(Mcts(preset="paper", simulations=2), world, 4.0, horizon=2)
    assert world.counter[0] <= 3


def test_a_random_outcome_is_weighed_and_not_taken_for_granted() -> None:
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


# Many situations at once.


@pytest.mark.parametrize("horizon", [500, 7, 1])
@pytest.mark.parametrize("simulations", [25, 40])
@pytest.mark.parametrize("kind", ["arrays", "whole numbers"])
def test_side_by_side_trees_grow_as_they_do_alone(
    horizon: int, simulations: int, kind: str
) -> None:
    alone, batch = (Pole(), Poles()) if kind == "arrays" else (Grid(FOUR), Grids())
    count, effort = 70, Mcts(preset="paper", simulations=simulations).effort
    rng = np.random.default_rng(1)
    states = list(rng.uniform(-0.5, 0.5, (count, 2)))
    if kind == "whole numbers":
        states = rng.integers(48, size=count).tolist()
    situations = [
        at(state, horizon=horizon - index % 2 * (horizon > 1)) for index, state in enumerate(states)
    ]
    draws = [drawn(alone, index, simulations=simulations) for index in range(count)]
    together = type(alone)(alone.action_space)
    forest = lockstep.Forest(together, situations, effort, draws).search(batch)
    draws = [drawn(alone, index, simulations=simulations) for index in range(count)]
    for situation, each, tried in zip(situations, draws, forest, strict=True):
        one = Tree(alone, situation, effort, each).search()
        assert (list(one.actions), list(one.visits)) == (tried.actions, tried.visits)
        assert np.allclose(one.values, tried.values, rtol=1e-12, atol=0)
    assert together.counter == alone.counter


def poles(batch: Any, count: int = 80, **options: Any) -> tuple[list[list[int]], World]:
    """Decide for many poles."""
    world = Pole()
    world.batch = batch
    places = np.random.default_rng(2).uniform(-0.5, 0.5, (count, 2))
    situations = [at(place, seed=index) for index, place in enumerate(places)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "WORTHWHILE", 64)
        return Mcts(preset="paper", **options).plan(world, situations), world


def test_many_situations_are_decided_at_once_as_one_by_one() -> None:
    together, world = poles(Poles())
    assert not world.stood
    assert together == poles(None)[0]


@pytest.mark.parametrize("keeps", [0, 9, 40])
def test_a_batch_that_gives_up_changes_no_decision(keeps: int) -> None:
    actions, world = poles(Poles(keeps))
    assert world.stood
    assert actions == poles(None)[0]


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 20), ({"budget": 100}, 80)],
    ids=["few", "a budget"],
)
def test_a_batch_is_left_alone_where_it_does_not_serve(options: dict[str, int], count: int) -> None:
    actions, world = poles(Poles(0), count, **options)
    assert world.stood
    assert actions == poles(None, count, **options)[0]


# The default search: plans that are kept, and graphs of states that come again.


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


def test_what_a_plan_promised_is_kept_or_surpassed() -> None:
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
def test_a_state_in_which_nothing_was_tried_can_be_planned_from(budget: int) -> None:
    for seed in range(5):
        planner = Mcts(budget=budget, rollout=1 + seed)
        assert 1 < len(episode(planner, Pole(), np.array([0.1 * seed, 0.1]), 60)) <= 61


@pytest.mark.parametrize("drift", [1e-9, 1e-3])
def test_a_plan_is_tried_anew_where_the_state_is_not_the_predicted_one(drift: float) -> None:
    world = Pole()
    assert len(episode(Mcts(budget=300), world, np.array([0.3, 0.1]), 60, drift)) == 61


def test_what_was_found_is_used_again_only_where_the_state_agrees() -> None:
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


def test_a_far_goal_without_a_trace_is_found_by_repeating_actions() -> None:
    class Hill(World):
        """Only long runs to one side lead anywhere."""

        def answer(self, state: Any, action: int) -> Step:
            place = max(state + (0.1 if action else -0.1), 0.0)
            return Step(place, -1.0, bool(place >= 3.95))

    assert len(episode(Mcts(budget=2000), Hill(), 0.0, 100)) < 60
    assert len(episode(Mcts(preset="paper", budget=2000), Hill(), 0.0, 100)) == 101


def test_states_that_come_again_are_not_tried_again() -> None:
    world = Grid(FOUR)
    assert len(episode(Mcts(), world, 0, 50)) == 13
    assert world.counter[0] <= 48 * 4


def test_chances_are_learned_over_all_decisions() -> None:
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


def test_states_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(World):
        def answer(self, state: Any, action: int) -> Step:
            return Step(2 * state + action, 0.0, False)

    monkeypatch.setattr("cwm_cli.planning.graph.LARGEST", 500)
    memory, world, state = None, Counting(), 1
    for number in range(12):
        situation = at(state, seed=number, memory=memory)
        [[action]] = Mcts(budget=100).plan(world, [situation])
        memory, state = situation.memory, world.answer(state, action).observation
        assert len(memory.states) <= 500 + 2 * 100


# What they are made of.


@pytest.mark.parametrize("actions", [spaces.Discrete(2), spaces.Discrete(5, start=-2)])
def test_numbers_of_any_simulation_are_drawn_alike(actions: spaces.Discrete) -> None:
    space = space_of(actions)
    low, high = int(space.low[0]), int(space.high[0])
    draws = [drawn(World(space), seed, steps=9, simulations=70) for seed in (3, 2**64 - 1)]
    rows = [[each.row(number) for number in range(70)] for each in draws]
    seeds = np.array([each.seed for each in draws], np.uint64)
    for simulations in ([0, 0], [69, 4], [31, 32]):
        ties, taken = numbers(seeds, np.array(simulations), (low, high), 9)
        for row, simulation, tie, actions_taken in zip(rows, simulations, ties, taken, strict=True):
            assert list(row[simulation][0]) == actions_taken.tolist()
            assert list(row[simulation][1]) == tie.tolist()
    counts = np.bincount([action - low for row in rows for some, _ in row for action in some])
    assert abs(counts / 1260 - 1 / len(counts)).max() < 0.06  # four standard deviations
    assert rows[0][0] != rows[0][1] != rows[1][1]


def test_random_numbers_are_those_of_splitmix64() -> None:
    ties, _ = numbers(np.array([1234567], np.uint64), np.zeros(1, int), (0, 1), 0)
    outputs = np.ascontiguousarray(ties[0, :20]).view("<u8").tolist()
    assert outputs == [  # as published for this seed
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_picks_are_equally_likely() -> None:
    counts = np.bincount([pick(number, 3) for number in range(1 << 16)])
    assert counts.max() - counts.min() <= 1


def test_persistent_actions_are_repeated_for_shorter_or_longer() -> None:
    rows = persistent(np.random.default_rng(0), range(-1, 3), 200)
    switches = []
    for _ in range(200):
        row = next(rows)
        assert len(row) == 200 and set(row) <= {-1, 0, 1, 2}
        switches.append(sum(a != b for a, b in pairwise(row)))
    assert min(switches) < 10
    assert max(switches) > 120


def test_plans_are_changed_in_every_way() -> None:
    class Numbers:
        def __init__(self, values: Sequence[float]) -> None:
            self.random = iter(values).__next__

    plan, actions = [1, 2, 3, 4, 5], range(7, 10)
    two = [0.2, 0.9, 0.4]  # a mean of two, and then two steps
    assert changed(plan, actions, Numbers([*two, 0.3])) == []
    assert changed(plan, actions, Numbers([*two, 0.7, 0.0, 0.1])) == [7, 7, 3, 4, 5]
    assert changed(plan, actions, Numbers([*two, 0.7, 0.9, 0.4])) == [9, 9, 1, 2, 3, 4, 5]
    assert changed(plan, actions, Numbers([*two, 0.7, 0.0, 0.9])) == [3, 4, 5]


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
