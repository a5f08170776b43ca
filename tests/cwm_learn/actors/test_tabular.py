"""The tabular actor: search of a program, plans, exploration and questions."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectField, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning.program import Checks, Program
from cwm_cli.sandbox import Sandbox
from cwm_learn.actors.base import Knowledge, OpenQuestion, TargetedQuestion
from cwm_learn.actors.digits import digits_of
from cwm_learn.actors.tabular import TabularActor
from cwm_learn.imagination import SearchImagination
from cwm_learn.search.reachable import actions_of, enumerate_states

CELLS = space_of(gym.spaces.Discrete(24))
MOVES = space_of(gym.spaces.Discrete(4))

GRID = """
class Environment:
    def set_state(self, observation):
        self.cell = int(observation)
    def step(self, action):
        row, column = divmod(self.cell, 6)
        row = min(max(row + (0, 1, 0, -1)[action], 0), 3)
        column = min(max(column + (1, 0, -1, 0)[action], 0), 5)
        self.cell = 6 * row + column
        return self.cell, {reward}, {ended}
"""
PLAIN = GRID.format(reward="0.0", ended="False")
GOAL = GRID.format(reward="float(self.cell == 17)", ended="self.cell == 17")
COSTLY = GRID.format(reward="-1.0 - 9.0 * (self.cell == 2)", ended="self.cell == 5")


class LocalImagination:
    """Searches a program in this process."""

    def __init__(self, program: str, actions: Space) -> None:
        exec(program, names := {})
        checks = Checks(tuple, float, bool, lambda observation: observation)
        self.model = Program(names["Environment"](), checks, action_space=actions)

    def ask(self, name: str, arrays: Mapping[str, Any], **options: Any) -> dict[str, np.ndarray]:
        assert name == "reachable:enumerate_states"
        return enumerate_states(self.model, arrays, **options)


def tabular_actor(
    program: str, start: Any, *, space: Space = CELLS, actions: Space = MOVES, limit: int = 20
) -> TabularActor:
    """Return an actor with a program, a start and no recorded transitions."""
    known = Knowledge(space, actions, limit, starts=[start], program=program)
    known.imagination = LocalImagination(program, actions)  # type: ignore[assignment]
    return TabularActor(known)


def record(actor: TabularActor, *steps: tuple[Any, ...]) -> None:
    """Record transitions (observation, action, next observation, reward, terminated)."""
    for step in steps:
        actor.known.rows.append(Transition(*step))
        actor.observe(actor.known.rows[-1])


def play(actor: TabularActor, start: Any, aim: Any = "exploit", most: int = 20) -> list[Any]:
    """Follow the chosen actions in the program, and return the observations."""
    path = [start]
    for left in range(most, 0, -1):
        intent = actor.choose(path[-1], left, aim)
        step = intent and actor.predict(path[-1], intent.action)
        if intent is None or step is None:
            break
        path.append(step.observation)
        if step.terminated:
            break
    return path


def test_search_finds_all_reachable_states() -> None:
    arrays = {"observations": np.array([3])}
    found = enumerate_states(LocalImagination(GOAL, MOVES).model, arrays, space=CELLS.to_json())
    numbers = np.concatenate([arrays["observations"], found["observations"]])
    assert sorted(numbers.tolist()) == list(range(24))
    assert 17 not in numbers[found["expanded"]]
    below = found["expanded"].tolist().index(numbers.tolist().index(11))
    assert numbers[found["next_states"][below]].tolist() == [11, 17, 10, 5]
    assert found["rewards"][below].tolist() == [0, 1, 0, 0]
    assert found["terminated"][below].tolist() == [False, True, False, False]


def test_action_that_raises_has_no_prediction() -> None:
    actor = tabular_actor(
        PLAIN.replace("        row, col", "        1 / (action != 2)\n        row, col"), start=8
    )
    actor.rebuild()
    assert actor.predict(8, 2) is None
    step = actor.predict(8, 0)
    assert step is not None
    assert step.observation == 9


SWITCHES = """
class Environment:
    def set_state(self, observation):
        self.on = observation
    def step(self, action):
        self.on[action] = 1 - self.on[action]
        done = bool(self.on[3] and self.on[11])
        return self.on, float(done), done
"""


ENDLESS = """
class Environment:
    def set_state(self, observation):
        self.at = int(observation)
    def step(self, action):
        self.at += 1 + action
        return self.at, 0.0, False
"""


def test_table_excludes_states_out_of_bounds() -> None:
    actor = tabular_actor(ENDLESS, start=20)
    actor.rebuild()
    assert actor.predict(20, 2) == (23, 0.0, False, None)
    assert len(actor.table) == 4
    assert actor.predict(23, 0) is None


def test_width_limits_search_to_novel_states() -> None:
    space, actions = space_of(gym.spaces.MultiBinary(24)), space_of(gym.spaces.Discrete(24))
    arrays = {"observations": np.zeros((1, 24), np.int8)}
    sizes = {}
    for width in (1, 2):
        model = LocalImagination(SWITCHES, actions).model
        found = enumerate_states(model, arrays, space=space.to_json(), max_states=5000, width=width)
        sizes[width] = len(found["expanded"]), int(found["terminated"].sum())
    assert sizes[1][0] == 25
    assert 25 + 24 * 23 // 2 - 1 <= sizes[2][0] < 600
    assert sizes[2][1] >= 2


def test_search_supports_target_reward_and_partition() -> None:
    space, actions = space_of(gym.spaces.MultiBinary(24)), space_of(gym.spaces.Discrete(24))
    arrays = {"observations": np.zeros((1, 24), np.int8)}
    options = {"space": space.to_json(), "max_states": 5000}

    def count(**more: Any) -> int:
        model = LocalImagination(SWITCHES, actions).model
        return len(enumerate_states(model, arrays, **options, **more)["expanded"])

    assert count(width=1) == 25
    assert 25 + 15 <= count(width=1, partition=[3]) <= 2 * 25
    assert count(width=2, target_reward=1.0) < count(width=2) == count(width=2, target_reward=2.0)


FIELD = """
import numpy as np
class Environment:
    def set_state(self, observation):
        self.seen = observation
    def step(self, action):
        objects = self.seen["objects"].copy()
        way = ((1, 0), (0, 1), (-1, 0), (0, -1))[action]
        objects[0, 1:3] = np.clip(objects[0, 1:3] + way, 0, 59)
        self.seen = {"mission": "go", "objects": objects}
        done = bool(objects[0, 1] == 9 and objects[0, 2] == 9)
        return self.seen, float(done), done
"""


def test_partial_search_finds_rewarded_end_in_few_steps() -> None:
    schema = ObjectSchema(("nothing", "agent"), (ObjectField("x"), ObjectField("y")))
    box = gym.spaces.Box(0, 60, (2, 3), np.int64)
    space = space_of(gym.spaces.Dict(mission=gym.spaces.Text(4), objects=box))
    start = {"mission": "go", "objects": np.array([[1, 0, 0], [0, 0, 0]])}
    actor = tabular_actor(FIELD, start, space=space, limit=200)
    actor.known.schema = schema
    imagination = actor.known.imagination
    assert actor.promised_return(start, 200) == pytest.approx(1.0)
    full_search = imagination.model.counter[0]
    near = {"mission": "go", "objects": np.array([[1, 9, 8], [0, 0, 0]])}
    there = {"mission": "go", "objects": np.array([[1, 9, 9], [0, 0, 0]])}
    record(actor, (near, 1, there, 1.0, True))
    actor.rebuild()
    path = play(actor, start, most=200)
    assert len(path) == 19
    assert imagination.model.counter[0] - full_search < full_search / 4


HALL = """
class Environment:
    def set_state(self, observation):
        self.seen = observation
    def step(self, action):
        objects = self.seen["objects"].copy()
        agent, key, door = objects
        if action < 2:
            agent[1] = min(max(agent[1] + (-1, 1)[action], 0), door[1] - 1)
        elif action == 2 and agent[1] == key[1]:
            key[3] = 1
        if key[3]:
            key[1] = agent[1]
        self.seen = {"mission": "go", "objects": objects}
        return self.seen, 0.0, False
"""


def test_action_without_effect_is_tried_again_with_carried_object() -> None:
    held = ObjectField("held", ("no", "yes"))
    schema = ObjectSchema(
        ("nothing", "agent", "key", "door"), (ObjectField("x"), ObjectField("y"), held)
    )
    box = gym.spaces.Box(0, 9, (3, 4), np.int64)
    space = space_of(gym.spaces.Dict(mission=gym.spaces.Text(4), objects=box))
    observation = {"mission": "go", "objects": np.array([[1, 0, 0, 0], [2, 2, 0, 0], [3, 5, 0, 0]])}
    actor = tabular_actor(HALL, observation, space=space)
    actor.known.schema = schema
    tried = []
    at_door = {"mission": "go", "objects": np.array([[1, 4, 0, 0], [2, 2, 0, 0], [3, 5, 0, 0]])}
    for _ in range(10):
        record(actor, (at_door, 3, at_door, 0.0, False))
    while intent := actor.choose(observation, 20):
        step = actor.predict(observation, intent.action)
        assert step is not None
        tried.append((intent.action, *observation["objects"][:2, [1, 3]].ravel().tolist()))
        record(actor, (observation, intent.action, step.observation, 0.0, False))
        observation = step.observation
    assert (3, 4, 0, 4, 1) in tried  # at the door, with the key


@pytest.mark.parametrize("form", ["scalar", "auto"])
def test_actor_searches_program_in_sandbox(form: str, sandbox: Sandbox) -> None:
    rows = [Transition(n, a, min(n + 1, 23), 0.0, False) for n in range(3) for a in range(4)]
    data = Dataset.of(rows, observation_space=CELLS, action_space=MOVES)
    known = Knowledge(CELLS, MOVES, 20, starts=[0], program=GOAL)
    with SearchImagination(sandbox, GOAL, data, form=form) as known.imagination:
        actor = TabularActor(known)
        actor.rebuild()
        assert actor.promised_return(0, 20) == pytest.approx(1.0)
        assert len(actor.table) == 24
        assert len(play(actor, 0)) == 8


def test_actor_supports_dict_observations_with_text() -> None:
    space = space_of(
        gym.spaces.Dict({"at": gym.spaces.Discrete(3), "said": gym.spaces.Text(8)}), "observations"
    )
    program = """
class Environment:
    def set_state(self, observation):
        self.now = observation
    def step(self, action):
        at, said = self.now["at"], self.now["said"]
        self.now = {"at": min(at + action, 2), "said": "there" if at + action >= 2 else said}
        return self.now, float(self.now["said"] == "there"), False
"""
    actor = tabular_actor(
        program,
        space=space,
        actions=space_of(gym.spaces.Discrete(2)),
        start={"at": 0, "said": "go"},
    )
    actor.rebuild()
    assert TabularActor.supports(space, actor.known.action_space)
    assert actor.promised_return({"at": 0, "said": "go"}, 5) == pytest.approx(4.0)
    assert len(actor.table) == 3


def test_promised_return_is_that_of_the_shortest_path() -> None:
    actor = tabular_actor(COSTLY, start=0)
    record(actor, (0, 2, 0, -1.0, False), (0, 3, 0, -1.0, False))
    actor.rebuild()
    assert actor.promised_return(0, 20) == pytest.approx(-7.0)
    path = play(actor, 0)
    assert path[-1] == 5
    assert len(path) == 8
    assert 2 not in path
    assert actor.promised_return(0, 3) is None  # the end is too far


def test_recorded_path_wins_over_equal_path() -> None:
    actor = tabular_actor(GOAL, start=0)
    around = [0, 6, 12, 18, 19, 20, 21, 22, 23]
    moves = {6: 1, 1: 0}
    record(actor, *((a, moves[b - a], b, 0.0, False) for a, b in pairwise(around)))
    record(actor, (23, 3, 17, 1.0, True))
    actor.rebuild()
    assert play(actor, 0) == [*around, 17]


def test_recorded_transitions_override_program() -> None:
    actor = tabular_actor(GOAL, start=0)
    actor.rebuild()
    assert play(actor, 10) == [10, 11, 17] or play(actor, 10) == [10, 16, 17]
    record(actor, (16, 0, 16, 0.0, False), (11, 1, 11, 0.0, False))
    step = actor.predict(16, 0)
    assert step == (16, 0.0, False, None)
    assert actor.matches(step, actor.known.rows[0])
    assert not actor.matches(step, actor.known.rows[1])
    assert play(actor, 10)[-3:] == [22, 23, 17]


def test_new_start_is_searched_on_demand() -> None:
    split = PLAIN.replace("row = min", "row = row if row == 2 else min")
    actor = tabular_actor(split.replace("return", "row == 2 and 0\n        return"), start=12)
    actor.rebuild()
    actor.choose(12, 20)
    assert len(actor.table) == 6
    actor.choose(0, 20)
    assert len(actor.table) > 6


def test_exploration_tries_every_action_once() -> None:
    actor = tabular_actor(PLAIN, start=0)
    actor.rebuild()
    here, tried = 0, set()
    while True:
        intent = actor.choose(here, 20)
        if intent is None:
            break
        step = actor.predict(here, intent.action)
        assert step is not None
        tried.add((here, intent.action))
        record(actor, (here, intent.action, step.observation, 0.0, False))
        here = step.observation
    assert len(tried) == 24 * 4
    assert actor.is_settled


def test_exploration_prefers_new_rows_and_columns_of_grid() -> None:
    actor = tabular_actor(PLAIN, start=0)
    record(actor, *((c, a, c, 0.0, False) for c, a in ((0, 2), (0, 3))), (0, 0, 1, 0.0, False))
    record(actor, (1, 1, 7, 0.0, False), (7, 1, 13, 0.0, False), (13, 0, 14, 0.0, False))
    actor.rebuild()
    intent = actor.choose(14, 20)
    assert intent is not None
    assert intent.aim == "explore"
    assert "width 1" in intent.reason


def test_exploration_prefers_corners_of_grid() -> None:
    actor = tabular_actor(PLAIN, start=0)
    around = [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0, 6, 12, 18, 12, 6, 7]
    moves = {1: 0, -1: 2, 6: 1, -6: 3}
    record(actor, *((a, moves[b - a], b, 0.0, False) for a, b in pairwise(around)))
    record(actor, *((0, action, 0, 0.0, False) for action in (2, 3)))
    record(actor, *((cell, 3, cell, 0.0, False) for cell in range(6)))
    record(actor, *((cell, 2, cell, 0.0, False) for cell in (6, 12, 18)))
    actor.rebuild()
    actor.choose(7, 20)
    levels = [level for level in actor._novelty.levels() if level.unknown.any()]
    corner = next(level for level in levels if "extremes" in level.reason)
    numbers = np.unique(actor.table.next_states[corner.unknown])
    assert [actor.table.observation(n) for n in numbers.tolist()] == [23]


def test_exploration_tests_exceptions_at_corners_of_grid() -> None:
    """The program predicts that every cell above the lowest row leads to the start."""
    cliff = PLAIN.replace("self.cell = 6", "self.cell = 18 if row == 3 else 6")
    actor = tabular_actor(cliff, start=18)
    around = [18, 12, 6, 0, 1, 2, 3, 4, 5, 11, 17]
    moves = {-6: 3, 1: 0, 6: 1}
    record(actor, *((a, moves[b - a], b, 0.0, False) for a, b in pairwise(around)))
    actor.rebuild()
    actor.choose(17, 20)
    [corner] = [level for level in actor._novelty.levels() if "extremes" in level.reason]
    assert corner.unknown[actor.table.state_number(17), 1]
    assert not corner.unknown[actor.table.state_number(16), 1]


def test_digits_are_inferred_again_from_more_rows() -> None:
    actor = tabular_actor(PLAIN, start=0)
    record(actor, (0, 0, 1, 0.0, False), (1, 0, 2, 0.0, False))
    actor.rebuild()
    actor.choose(2, 20)
    assert actor._radices == (24,)
    walk = [2, 3, 9, 15, 21, 20, 14, 8, 7, 13, 19, 18, 12, 6, 0]
    moves = {1: 0, 6: 1, -1: 2, -6: 3}
    record(actor, *((a, moves[b - a], b, 0.0, False) for a, b in pairwise(walk)))
    record(actor, (0, 2, 0, 0.0, False), (6, 2, 6, 0.0, False), (21, 1, 21, 0.0, False))
    actor.choose(0, 20)
    assert actor._radices == (4, 6)


def test_exploration_tests_predicted_limit_of_factor() -> None:
    actor = tabular_actor(PLAIN.replace("0), 5)", "0), 3)"), start=0)
    walk = [0, 1, 2, 3, 9, 15, 14, 13, 7, 8, 2, 3]
    moves = {1: 0, 6: 1, -1: 2, -6: 3}
    record(actor, *((a, moves[b - a], b, 0.0, False) for a, b in pairwise(walk)))
    actor.rebuild()
    actor.choose(3, 20)
    level = next(each for each in actor._novelty.levels() if "unvisited" in each.reason)
    assert actor._radices == (4, 6)
    assert level.unknown[actor.table.state_number(3), 0]


CARRIER = """
class Environment:
    def set_state(self, observation):
        self.at, self.load = map(int, observation)
    def step(self, action):
        if action < 2:
            self.at = min(max(self.at + (1, -1)[action], 0), 9)
        elif self.at == 0:
            self.load = 0
        return (self.at, self.load), 0.0, False
"""


def test_exploration_defers_uses_in_states_that_probably_prevent_the_effect() -> None:
    space = space_of(gym.spaces.MultiDiscrete([10, 2]))
    actions = space_of(gym.spaces.Discrete(3))
    actor = tabular_actor(CARRIER, np.array([0, 1]), space=space, actions=actions)
    places = [np.array([place, 0]) for place in range(9)]
    record(actor, (np.array([0, 1]), 2, places[0], 0.0, False))
    for here, after in pairwise(places):
        record(actor, (here, 2, here, 0.0, False), (here, 0, after, 0.0, False))
    actor.rebuild()
    actor.choose(np.array([0, 1]), 20)
    uses = [each for each in actor._novelty.levels() if "untried use" in each.reason]
    drop = np.any([level.unknown[:, 2] for level in uses], axis=0)
    assert drop[actor.table.state_number(np.array([9, 1]))]
    assert not drop[actor.table.state_number(np.array([9, 0]))]


def test_actor_is_not_settled_while_unvisited_state_could_pay_more() -> None:
    actor = tabular_actor(GOAL, start=16)
    record(actor, (16, 0, 17, 1.0, True))
    actor.rebuild()
    assert actor.is_settled  # no reward is better, and none is sooner
    far = tabular_actor(COSTLY, start=0)
    record(far, (0, 0, 1, -1.0, False), (1, 1, 7, -1.0, False))
    far.rebuild()
    assert not far.is_settled
    assert any("never visited" in question.text for question in far.questions())
    intent = far.choose(0, 20, "probe")
    assert intent is not None
    assert intent.aim == "probe"


def test_probe_answers_targeted_question() -> None:
    actor = tabular_actor(GOAL, start=0)
    actor.rebuild()
    asked = TargetedQuestion(OpenQuestion("is there a wall?", action=3), np.array([[2.0], [2.0]]))
    actor.known.targets.append(asked)
    for cell, action in ((0, 0), (1, 0), (2, 3)):
        assert actor.choose(cell, 20, "probe") == (action, "probe", "is there a wall?", None)
    assert not asked.is_answered(Transition(2, 0, 3, 0.0, False))
    assert asked.is_answered(Transition(2, 3, 2, 0.0, False))


@pytest.mark.slow
def test_probe_finds_disputed_state_after_table_was_rebuilt() -> None:
    """Two searches from remote states fill the table before the probe starts."""
    field = PLAIN.replace("6", "150").replace("0), 3)", "0), 149)").replace("0), 5)", "0), 149)")
    actor = tabular_actor(field, start=0, space=space_of(gym.spaces.Discrete(150 * 150)))
    actor.known.disputed += [(3, 1), (150 * 150 - 1, 0), (149, 0)]
    actor.rebuild()
    assert actor.choose(3, 20, "probe") == (1, "probe", "other programs disagree", None)


def test_questions_include_single_ends_and_untried_actions() -> None:
    actor = tabular_actor(GOAL, start=16)
    record(actor, (16, 0, 17, 1.0, True))
    actor.rebuild()
    asked = [question.text for question in actor.questions()]
    assert "the end of the episode by action 0 at 16 was seen once" in asked
    assert "action 3 was never tried" in asked


def test_actor_explores_after_repeated_wrong_rewards() -> None:
    actor = tabular_actor(GOAL.replace("== 17", "> 17"), start=0)
    actor.rebuild()
    for cell in (12, 13, 14):
        intent = actor.choose(cell, 20)
        assert intent is not None
        assert intent.aim == "exploit"
        record(actor, (cell, 1, cell + 6, 0.0, False))
    intent = actor.choose(15, 20)
    assert intent is not None
    assert intent.aim == "explore"
    play = actor.choose(15, 20, "exploit")
    assert play is not None
    assert play.aim == "exploit"


WEAR = """
class Environment:
    def set_state(self, observation):
        self.wear = observation
    def step(self, action):
        if action == 1:
            return max(self.wear - 1, 0), 0.0, False
        broken = self.wear == 2
        return self.wear + 1, -12.0 if broken else 3.0, broken
"""
"""Action 0 earns 3 and wears the machine, action 1 repairs it; the third wear breaks it."""


def test_actor_exploits_if_usual_reward_cannot_be_kept() -> None:
    space, actions = (space_of(gym.spaces.Discrete(n)) for n in (4, 2))
    actor = tabular_actor(WEAR, 0, space=space, actions=actions)
    record(actor, (0, 0, 1, 3.0, False), (1, 0, 2, 3.0, False), (2, 0, 3, -12.0, True))
    actor.rebuild()
    intent = actor.choose(0, 20)
    assert intent is not None
    assert intent.aim == "exploit"
    assert intent.promised_return == pytest.approx(33.0)
    better = *[(0, 0, 1, 3.0, False)] * 40, (2, 0, 3, -12.0, True)
    record(actor, *better)  # the mean return is 51
    intent = actor.choose(0, 20)
    assert intent is not None
    assert intent.aim == "explore"


def test_actor_keeps_usual_reward_when_nothing_is_unknown() -> None:
    program = """
class Environment:
    def set_state(self, observation):
        self.place = observation
    def step(self, action):
        return action, 1.0 - action, action == 1
"""
    actions = space_of(gym.spaces.Discrete(2))
    actor = tabular_actor(program, 0, space=actions, actions=actions)
    record(actor, (0, 0, 0, 1.0, False), (0, 0, 0, 1.0, False), (0, 1, 1, 0.0, True))
    actor.rebuild()
    for aim in (None, "exploit"):
        intent = actor.choose(0, 20, aim)
        assert intent == (0, "exploit", "the best action in the program", 20.0)


def test_actor_explores_if_all_plans_cost_more_than_a_good_end() -> None:
    costly = GRID.format(reward="-1.0 + 0.5 * (self.cell == 2)", ended="False")
    actor = tabular_actor(costly, start=0)
    record(actor, (0, 2, 0, -1.0, False), (0, 3, 0, -1.0, False))
    actor.rebuild()
    assert actor.promised_return(0, 7) == pytest.approx(-4.0)
    record(actor, (23, 0, 23, 10.0, True))  # too far for seven steps
    assert actor.promised_return(0, 7) is None
    intent = actor.choose(0, 7)
    assert intent is not None
    assert intent.aim == "explore"


PURSE = """
class Environment:
    def set_state(self, observation):
        self.coins = int(observation)
    def step(self, action):
        coins = self.coins
        if action == 0 and coins < 3:
            self.coins += 1
            return self.coins, -1.0, False
        if action == 1 and coins < 4:
            self.coins = 0
            return 0, float(coins), False
        if action == PURCHASE and coins == 3:
            self.coins = 4  # sold out
            return 4, 3.5, False
        return coins, 0.0, False
"""


def test_actor_explores_while_the_best_plan_waits() -> None:
    space = space_of(gym.spaces.Discrete(5))
    actor = tabular_actor(PURSE.replace("PURCHASE", "None"), start=3, space=space)
    actor.rebuild()
    record(actor, (3, 2, 3, 0.0, False))
    waiting, last = actor.choose(3, 20), actor.choose(3, 1)
    assert waiting is not None
    assert last is not None
    assert (waiting.aim, last.aim, last.action) == ("explore", "exploit", 1)
    actor = tabular_actor(PURSE.replace("PURCHASE", "3"), start=0, space=space)
    actor.rebuild()
    record(actor, (0, 0, 1, -1.0, False), (1, 1, 0, 1.0, False))  # a cycle for nothing
    waiting, last = actor.choose(0, 20), actor.choose(0, 4)
    assert waiting is not None
    assert last is not None
    assert (waiting.aim, last.aim, last.action) == ("explore", "exploit", 0)
    assert 4 in play(actor, 0)


def test_misleading_program_is_replaced_by_recorded_transitions() -> None:
    actor = tabular_actor(GOAL, start=0)
    actor.known.unexplained_fraction = 0.6
    record(actor, (0, 0, 1, -1.0, False), (1, 1, 9, 1.0, True), (10, 0, 11, -1.0, False))
    actor.rebuild()
    assert play(actor, 0) == [0, 1, 9]
    assert actor.predict(10, 1) is None
    assert actor.choose(10, 20, "exploit") is None
    for expected in ("exploit", "explore"):  # every second episode explores first
        intent = actor.choose(0, 20)
        assert intent is not None
        assert intent.aim == expected
        actor.known.starts.append(0)


def test_random_rows_do_not_override_program() -> None:
    actor = tabular_actor(PLAIN, start=0)
    actor.known.random_rows.add(1)
    record(actor, (0, 0, 1, 0.0, False), (0, 0, 9, 0.0, False))
    actor.rebuild()
    step = actor.predict(0, 0)
    assert step is not None
    assert step.observation == 1


def random_walk(step: Callable[[int, int], int], size: int, actions: int) -> Iterator[list[int]]:
    """Yield transitions of a random walk, with resets to random states."""
    rng, state = np.random.default_rng(0), 0
    while True:
        action = int(rng.integers(actions))
        after = step(state, action)
        yield [state, action, after]
        state = after if rng.random() < 0.95 else int(rng.integers(size))


def test_digits_of_grid_and_ring() -> None:
    exec(PLAIN, names := {})
    program = names["Environment"]()

    def grid(state: int, action: int) -> int:
        program.set_state(state)
        return int(program.step(action)[0])

    def ring(state: int, action: int) -> int:
        return (state + (1, -1)[action]) % 24

    for step, actions, radices in ((grid, 4, (4, 6)), (ring, 2, (24,))):
        walk = random_walk(step, 24, actions)
        rows = np.array([next(walk) for _ in range(150)])
        assert digits_of(*rows.T, 24) == radices


def test_digits_of_grid_after_few_steps() -> None:
    """Walk in the lower left of a grid of 4 rows and 12 columns."""
    cells = np.array([36, 24, 25, 24, 12, 24, 25, 13, 12, 0, 1])
    action = np.array([{-12: 0, 1: 1, 12: 2, -1: 3}[change] for change in np.diff(cells).tolist()])
    assert digits_of(cells[:-1], action, cells[1:], 48) == (4, 12)


def test_actions_of_lists_all_combinations() -> None:
    assert actions_of(space_of(gym.spaces.Discrete(3, start=2), "actions")) == [2, 3, 4]
    found = actions_of(space_of(gym.spaces.MultiDiscrete([2, 3]), "actions"))
    assert [each.tolist() for each in found] == [[a, b] for a in range(2) for b in range(3)]
