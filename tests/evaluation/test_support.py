"""Planning with a program from data, whose unsupported steps are doubted; reports of gaps."""

import ast
import builtins

import gymnasium as gym
import numpy as np
import pytest

import cwm_cli
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.evaluation.support import (
    ExtremeReturn,
    Support,
    add_doubt,
    doubting,
    extreme_return,
    find_support,
    survey,
)
from cwm_cli.export.package import build_package
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox import Sandbox
from cwm_cli.translation.instrumentation import LOOKUP, MAX_SITES, RECORDER, Recorder, instrument
from cwm_cli.worlds import ProgramModel
from cwm_cli.worlds.confined_trails import encode_events
from cwm_learn.actors.base import Knowledge
from object_worlds import SCHEMA, Corridor
from recordings import POINT, dataset
from worlds import CARTPOLE

CLIFF = """
class Environment:
    def set_state(self, observation):
        self.row, self.column = divmod(observation, 12)

    def step(self, action):
        row = min(max(self.row + {0: -1, 2: 1}.get(action, 0), 0), 3)
        column = min(max(self.column + {1: 1, 3: -1}.get(action, 0), 0), 11)
        reward = -1.0
        if row == 3 and 1 <= column <= KNOWN:
            reward, column = -100.0, 0
        self.row, self.column = row, column
        return 12 * row + column, reward, row == 3 and column == 11
"""
FLAT = CARTPOLE.replace("abs(x) > 2.4 or ", "")
"""CartPole without the rule that the episode ends at the ends of the track."""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def walk(name, paths, **arguments):
    """Record an episode for each list of actions; its last step is truncated."""
    env = gym.make(name, **arguments)
    rows = []
    for episode, path in enumerate(paths):
        seen, _ = env.reset(seed=episode)
        for place, action in enumerate(path, start=1):
            after, reward, ended, *_ = env.step(action)
            rows.append(Transition(seen, action, after, reward, ended, place == len(path), episode))
            seen = after
            if ended:
                break
    spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    return Dataset.of(
        rows,
        observation_space=spaces[0],
        action_space=spaces[1],
        metadata={"env": name, "env_args": arguments},
    )


def cliff_rows():
    """Record every move away from the cliff, the path along it to the goal, and three falls."""
    around = [0, *[1] * 11, *[3] * 11, 0, *[1, 1, 0, 2, 3, 1] * 9, *[3] * 11, 0, *[1] * 11]
    falls = [2, 0, *[1] * 2, 2, 0, *[1] * 3, 2, 1]
    goal = [0, *[1] * 11, 2]
    return walk("CliffWalking-v1", [around, [0, 1, *falls], goal, goal, goal])


def played(rows, program, env, tmp_path, doubt, **more):
    """Plan with a program that was induced from some rows."""
    return cwm_cli.plan(
        program=program,
        env=env,
        dataset=rows,
        options={"doubt": doubt},
        episodes=3,
        folder=tmp_path,
        **more,
    )


@pytest.mark.slow
def test_careful_plans_avoid_unrecorded_cells_that_the_program_is_wrong_about(tmp_path):
    wrong = CLIFF.replace("KNOWN", "3")
    careful = played(cliff_rows(), wrong, "CliffWalking-v1", tmp_path, "careful", max_steps=40)
    ignoring = played(cliff_rows(), wrong, "CliffWalking-v1", tmp_path, "ignore", max_steps=40)
    assert careful.returns == [-13.0] * 3 and careful.unsupported == 0
    assert ignoring.mean < -100 and ignoring.unsupported > 0.05
    assert careful.as_json()["doubt"] == "careful"
    assert careful.as_json()["unsupported"] == 0.0


@pytest.mark.slow
def test_curious_plans_try_unrecorded_steps(tmp_path):
    wrong = CLIFF.replace("KNOWN", "3")
    result = played(cliff_rows(), wrong, "CliffWalking-v1", tmp_path, "curious", max_steps=10)
    assert result.unsupported > 0.3


def test_a_careful_episode_ends_outside_the_recorded_range(sandbox):
    rng = np.random.default_rng(0)
    rows = walk("CartPole-v1", [rng.integers(0, 2, 60).tolist() for _ in range(6)])
    model = doubting(ProgramModel(FLAT, sandbox), rows, "careful")
    inside = {name: column[:1].copy() for name, column in rows.columns.items()}
    outside = inside | {"observations": np.array([[2.3, 0.0, 0.0, 0.0]], np.float32)}
    both = Dataset(
        {name: np.concatenate([inside[name], outside[name]]) for name in inside},
        rows.observation_space,
        rows.action_space,
    )
    ends = model.doubted.predict(both).columns["terminations"].tolist()
    assert ends == [False, True]
    assert model.plain.predict(both).columns["terminations"].tolist() == [False, False]
    assert not model.support.has_supported_action(outside["observations"][0], None)


def test_unsupported_steps_continue_at_the_worst_rate_if_no_episode_terminated(sandbox):
    space = Space("box", "float64", (1,), (-np.inf,), (np.inf,))
    support = Support(
        space,
        Space("discrete", low=(0,), high=(1,)),
        low=np.zeros(1),
        high=np.ones(1),
        action_low=np.zeros(1),
        action_high=np.ones(1),
    )
    moving = """
class Environment:
    def set_state(self, observation):
        self.x = observation[0]

    def step(self, action):
        self.x = self.x + 1
        return [self.x], 5.0, False
"""
    rows = dataset([([0.5], [1.5], 5, False), ([1.5], [2.5], 5, False)], space)
    for distance, doubted in ((7.0, -2.0), (9.0, -4.0)):  # at most the rate; order is kept
        text = add_doubt(moving, support, ExtremeReturn(-200.0, ends=False, distance=distance))
        answers = ProgramModel(text, sandbox).predict(rows).columns
        assert answers["rewards"].tolist() == [5.0, pytest.approx(doubted)]
        assert answers["next_observations"].ravel().tolist() == [1.5, 2.5]
        assert answers["terminations"].tolist() == [False, False]


ENDLESS_STEPS = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        return min(self.state + 1, 99), 0.0, False
"""


def test_rules_that_rows_contradict_are_unsupported_unless_chance_explains_it(sandbox):
    right = [(n, n + 1, 0, False) for n in range(10)]
    wrong = dataset([*right, (20, 30, 0, False)])
    cells = find_support(survey(ProgramModel(ENDLESS_STEPS, sandbox), wrong), wrong).cells
    assert not cells[20, 0] and cells[5, 0]
    assert not cells[40].any()  # the same rule, which failed there
    chance = dataset([*right, (20, 30, 0, False), (20, 21, 0, False)])
    cells = find_support(survey(ProgramModel(ENDLESS_STEPS, sandbox), chance), chance).cells
    assert cells[20, 0] and cells[40, 0]


def test_a_rule_needs_several_rows_and_a_key_one(sandbox):
    program = """
class Environment:
    BONUS = {3: 1.0}

    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        if self.state >= 50:
            return 0, self.BONUS.get(self.state, 0.0), False
        return min(self.state + 1, 99), 0.0, False
"""
    data = dataset([*[(n, n + 1, 0, False) for n in range(10)], (50, 0, 0, False)])
    cells = find_support(survey(ProgramModel(program, sandbox), data), data).cells
    assert cells[30, 0] and cells[50, 0]
    assert not cells[51, 0]  # only one row used this rule
    keyless = ProgramModel(program.replace("self.BONUS.get(self.state, 0.0)", "0.0"), sandbox)
    rows = [(n, n + 1, 0, False) for n in range(10)]
    for count in (2, 3):
        data = dataset([*rows, *[(50 + 2 * n, 0, 0, False) for n in range(count)]])
        assert find_support(survey(keyless, data), data).cells[60, 0] == (count == 3)
    more = dataset([*rows, *[(50 + 2 * n, 0, 0, False) for n in range(3)]])
    cells = find_support(survey(ProgramModel(program, sandbox), more), more).cells
    assert not cells[51, 0] and cells[50, 0]  # 51 was never looked up


@pytest.mark.parametrize("count", [4, 5])
def test_a_rule_needs_rows_from_a_twentieth_of_its_cells(sandbox, count):
    data = dataset([(n, n + 1, 0, False) for n in range(count)] * 3)
    cells = find_support(survey(ProgramModel(ENDLESS_STEPS, sandbox), data), data).cells
    assert cells[:count, 0].all()  # recorded
    assert cells[count:99, 0].all() == (count == 5)  # of 99 cells
    assert not cells[:, 1].any()  # the other action was never recorded


def test_the_worst_return_is_a_terminated_or_an_extrapolated_episode():
    falling = dataset([(n, n + 1, 1, n == 4) for n in range(5)])
    assert extreme_return(falling, best=False)[:2] == (1.0, True)
    assert extreme_return(falling, best=True).value == pytest.approx(sum(0.99**n for n in range(5)))
    cut = dataset([(n, n + 1, -1, False) for n in range(5)])
    worst = extreme_return(cut, best=False)
    assert worst.value == pytest.approx(-100) and not worst.ends
    # Of equal rewards the size is the distance, so that planners avoid unsupported steps.
    assert worst.reward_per_step == pytest.approx(-1) and worst.distance == 1
    free = dataset([(n, n + 1, 0, False) for n in range(5)])
    assert extreme_return(free, best=False).distance == 1
    mixed = dataset([(n, n + 1, -n, False) for n in range(5)])
    worst, best = (extreme_return(mixed, best=best) for best in (False, True))
    assert worst.distance == pytest.approx(-worst.reward_per_step)
    assert best.distance == pytest.approx(best.reward_per_step + 4)


def test_an_instrumented_program_returns_the_same_and_records_its_branches():
    text = """
TABLE = {(1, 2): 5}
GRID = ["ab", "cd"]

def step(x, y):
    low = min(max(x, 0), 3)
    found = TABLE.get((x, y), 0) + (10 if 0 <= y < 2 and x in (1, 2) else 20)
    return low, found, GRID[x % 2][y % 2], not x or y
"""
    plain, instrumented = {}, {}
    exec(text, plain)
    recorder = Recorder()
    setattr(builtins, RECORDER, recorder)
    exec(compile(instrument(text).tree, "<instrumented>", "exec"), instrumented)
    trails = set()
    for x in range(-1, 5):
        for y in range(4):
            recorder.begin()
            assert instrumented["step"](x, y) == plain["step"](x, y)
            trails.add(tuple(event for event in recorder.events if not event & LOOKUP))
    assert len(trails) > 8
    delattr(builtins, RECORDER)


@pytest.mark.parametrize("text", ["x = 1\n", "from __future__ import annotations\nx = a[1:2]\n"])
def test_any_program_can_be_instrumented(text):
    assert ast.unparse(instrument(text).tree)


def test_sites_and_events_beyond_the_limits_are_not_recorded():
    text = "\n".join(f"found = 0 < {n} < 2" for n in range(MAX_SITES // 2 + 9))
    instrumented, names = instrument(text), {}
    assert len(instrumented.lines) <= MAX_SITES
    setattr(builtins, RECORDER, Recorder())
    exec(compile(instrumented.tree, "<instrumented>", "exec"), names)
    delattr(builtins, RECORDER)
    assert names["found"] is False
    full, crowded = encode_events(range(1, 49)), encode_events(range(1, 50))
    assert full[-1] == 48 and np.all(crowded == np.iinfo(np.uint64).max)


@pytest.mark.slow
def test_without_a_dataset_no_step_is_doubted_and_the_result_says_so(tmp_path):
    result = cwm_cli.plan(
        program=CARTPOLE, env="CartPole-v1", episodes=1, max_steps=3, folder=tmp_path
    )
    assert result.unsupported is None and "--dataset" in result.doubt


def test_support_of_observations_with_texts_is_unknown(sandbox):
    space = space_of(gym.spaces.Dict({"goal": gym.spaces.Text(9), "place": gym.spaces.Discrete(9)}))
    steps = [
        Transition(
            {"goal": "go", "place": n}, n % 2, {"goal": "go", "place": n + 1}, float(n), False
        )
        for n in range(8)
    ]
    rows = Dataset.of(steps, observation_space=space, action_space=space_of(gym.spaces.Discrete(2)))
    program = """
class Environment:
    def set_state(self, observation):
        self.goal, self.place = observation["goal"], observation["place"]

    def step(self, action):
        return {"goal": self.goal, "place": self.place + 1}, float(self.place), False
"""
    assert doubting(ProgramModel(program, sandbox), rows, "careful") is None


def test_unbounded_observations_are_supported_within_the_recorded_range(sandbox):
    still = (
        "class Environment:\n"
        "    def set_state(self, observation): self.here = observation\n"
        "    def step(self, action): return self.here, 0.0, False\n"
    )
    data = dataset([([0.0, n / 10], [0.0, n / 10], 0, False) for n in range(10)], POINT)
    support = find_support(survey(ProgramModel(still, sandbox), data), data)
    assert support.covers(np.array([0.0, 0.5]), 0) and not support.covers(np.array([1.0, 0.5]), 0)
    assert not support.covers(np.array([0.0, 0.5]), 1)  # an action that was not recorded


SLIDE = """
class Environment:
    def set_state(self, observation): self.here = observation
    def step(self, action):
        reward = self.here[1]
        {step}
        return self.here, reward, False
"""


@pytest.mark.parametrize(
    ("step", "farthest"),
    [
        ("self.here = [self.here[0], self.here[1] + 0.1]", 1.3),  # one equation: half the range
        ("self.here = [self.here[0], self.here[1] + (0.1 if self.here[1] < 5 else 0.2)]", 1.3),
        ("self.here = [self.here[0], self.here[1] + (0.1 if self.here[1] < 1 else 0.2)]", 0.9),
        ("self.here = [self.here[0], self.here[1] + 0.2]", 0.9),
    ],
    ids=["equation", "same branch", "untested branch", "wrong"],
)
def test_confirmed_rules_are_supported_near_the_recorded_range(sandbox, step, farthest):
    rows = [([0.0, n / 10], [0.0, (n + 1) / 10], n / 10, False) for n in range(10)]
    data = dataset(rows, POINT)
    support = find_support(survey(ProgramModel(SLIDE.format(step=step), sandbox), data), data)
    assert support.covers(np.array([0.0, farthest]), 0)
    assert not support.covers(np.array([0.0, farthest + 0.1]), 0)
    assert not support.covers(np.array([0.0, 0.5]), 1)  # an action that was not recorded
    assert not support.covers(np.array([0.1, 0.5]), 0)  # a component that never changed


@pytest.mark.parametrize(
    ("rewards", "ends"), [([0.1] * 10, False), (np.arange(10) / 10, True)], ids=["equal", "ended"]
)
def test_support_ends_at_the_recorded_range_if_only_ends_matter_or_any_is_known(
    sandbox, rewards, ends
):
    data = dataset(
        [
            ([0.0, n / 10], [0.0, (n + 1) / 10], reward, ends and n == 9)
            for n, reward in enumerate(rewards)
        ],
        POINT,
    )
    ending = "self.here = [self.here[0], self.here[1] + 0.1]"
    model = ProgramModel(SLIDE.format(step=ending), sandbox)
    assert not find_support(survey(model, data), data).covers(np.array([0.0, 1.0]), 0)


def test_gaps_of_the_data_are_listed_by_importance():
    rows = walk("CartPole-v1", [[n % 2, *[1] * 20] for n in range(4)])
    found = find_gaps(rows, ("place", "speed", "angle", "spin"))
    assert "one cause" in found[0] and "other ways to end may exist" in found[0]
    assert found[1] == "Every reward seen was the same (1)."
    assert found[2].startswith("No row came near these bounds: place was") and len(found) <= 6
    one = Dataset(rows.columns | {"actions": np.zeros(len(rows), np.int64)}, *spaces_of(rows))
    assert "No row takes the action 1." in find_gaps(one)
    assert "when an episode ends is not known" in find_gaps(cliff_rows()[np.arange(5)])[0]
    assert find_gaps(rows[np.arange(0)]) == []


def test_gaps_of_object_data_name_missing_classes_and_no_components():
    env = Corridor(8)
    space, actions = space_of(env.observation_space), space_of(env.action_space)
    here, _ = env.reset(seed=0)
    rows = [
        Transition(here, action, here := env.step(action)[0], 0.0, n == 3)
        for n, action in enumerate([0, 0, 0, 2])
    ]
    about = {"objects": SCHEMA.to_json() | {"classes": [*SCHEMA.to_json()["classes"], "ball"]}}
    found = find_gaps(
        Dataset.of(rows, observation_space=space, action_space=actions, metadata=about)
    )
    assert "No row shows an object of class ball." in found
    assert not any("[" in each for each in found)
    assert "one terminal transition" in found[0]
    known = Knowledge(space, actions, 10, schema=SCHEMA)
    here["objects"][1, 6] = 1
    assert known.describe(here) == f"agent at {here['objects'][0, 1]}, 0 with key"


def spaces_of(rows):
    return rows.observation_space, rows.action_space


def test_gaps_name_lines_that_few_rows_executed(sandbox):
    rows, program = cliff_rows(), CLIFF.replace("KNOWN", "10")
    rows = rows[rows.columns["episodes"] < 3]  # with one goal
    text = " ".join(find_gaps(rows, model=ProgramModel(program, sandbox)))
    assert "Few rows support a rule:" in text
    assert f"line {len(program.splitlines())} (1 row)" in text
    assert "of 192 (observation, action) pairs were recorded" in text


@pytest.mark.slow
def test_a_search_reports_the_gaps_of_its_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = walk("CartPole-v1", [[n % 2, 1 - n % 2, *[1] * 12] for n in range(8)])
    found = cwm_cli.synthesize("CartPole-v1", dataset=rows, budget=1, run="poles")
    assert "other ways to end may exist" in found.gaps[0]
    assert found.as_json()["gaps"] == found.gaps
    docstring = " ".join(found.program.read_text().split())
    assert (
        "other ways to end may exist" in docstring and "Every reward seen was the same" in docstring
    )
    run = SearchRun.load(found.run)
    assert run.gaps() == list(found.gaps)
    assert set(found.gaps) <= set(SearchRun.report([run]).notes)
    card = build_package(run).files["README.md"].decode()
    assert "## Not covered by the data" in card and found.gaps[0] in card
