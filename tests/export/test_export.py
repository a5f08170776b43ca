"""`cwm runs export`: an exported program runs, reads and installs without `cwm`."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import recordings
import rtfm_program
import worlds
from coding_problems import PROBLEMS
from cwm_benchmark.configuration import BenchmarkConfig, BenchmarkHeader, BenchmarkTerms
from cwm_benchmark.run import BenchmarkRun
from cwm_cli.commands.collect import collect
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.export import Export, export_of, publish
from cwm_cli.export.package import LETTERS, gather_world, make_names
from cwm_cli.export.templates import rendering
from cwm_cli.export.templates import values as template
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import GENERATE, Node, Record, Usage, Verdict
from folders import WORLD_MODELS
from random_spaces import SPACES, quickly, same
from shell import Shell
from worlds import LAKE

TAXI = (WORLD_MODELS / "taxi_map.py").read_text()
BLACKJACK = (WORLD_MODELS / "blackjack_random.py").read_text()
RTFM = rtfm_program.PROGRAM.replace("TOLD", repr((rtfm_program.MANUAL, rtfm_program.GOAL)), 1)

ALONE = """
import sys

class NoCwm:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cwm"):
            raise ModuleNotFoundError(f"there is no {name} here")

sys.meta_path.insert(0, NoCwm())
sys.path.insert(0, sys.argv[1])
import gymnasium
import numpy as np
env = gymnasium.make(sys.argv[2])
"""

AS_TRUE = """
true = gymnasium.make(NAME, **ARGUMENTS).unwrapped
assert env.observation_space == true.observation_space
assert env.action_space == true.action_space
ends = 0
env.action_space.seed(0)
for seed in range(4):
    seen, _ = env.reset(seed=seed)
    true.reset(seed=seed)
    for step in range(100):
        STAND  # where `env` is: over many steps the rounding of a program adds up
        action = env.action_space.sample()
        answer, expected = env.step(action), true.step(action)
        assert np.allclose(answer[0], expected[0], 1e-4, 1e-4), (step, answer, expected)
        assert np.isclose(answer[1], expected[1], 1e-4, 1e-4), (step, answer, expected)
        assert answer[2] == expected[2]
        assert np.asarray(answer[0]).dtype == env.observation_space.dtype
        assert type(answer[1]) is float and type(answer[2]) is bool
        seen = answer[0]
        if answer[2]:
            ends += 1
            break
assert ends >= ENDS
"""

VALID = """
for seed in range(3):
    (board, held), info = env.reset(seed=seed)
    over = False
    while not over:
        (row, column), = np.argwhere([[cell[0] == "you" for cell in line] for line in board])
        ahead = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
        free = [n for n, (y, x) in enumerate(ahead) if board[row + y][column + x][0] != "wall"]
        assert info["valid_actions"] == free
        assert np.flatnonzero(info["action_mask"]).tolist() == free
        assert (board, held) in env.observation_space
        action = env.action_space.sample(info["action_mask"])
        (board, held), reward, over, _, info = env.step(action)
    assert reward in (1.0, -1.0)
"""

MANY = """
one, other = (
    gymnasium.make_vec(sys.argv[2], num_envs=3, vectorization_mode=mode, max_episode_steps=4)
    for mode in (None, "sync")
)
actions = [np.array([1, 2, 0])] * 9
answers = [(each.reset(seed=5), *map(each.step, actions)) for each in (one, other)]
assert len(answers[0][-1][4]["action_mask"]) == 3
assert repr(answers[0]) == repr(answers[1])
"""


def alone(facts, code):
    """Run code without `cwm`, with the exported environment as `env`."""
    arguments = [str(facts["folder"]), f"{facts['module']}:{facts['id']}"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def search(shell, env, program, *arguments):
    """Run `cwm synthesize` with a backend that proposes a given program."""
    (shell.folder / "program.py").write_text(program)
    proposing = ("--backend", "simulated", "-o", "backend.program=program.py", "-o", "errors=0")
    given = ("--env", env, *proposing, "--budget", "1", "--run", "run", *arguments)
    done = shell.inside("synthesize", *given)
    assert done.returncode == 0, done.stderr


def export(shell, folder="run", *arguments):
    """Export a folder, and return the JSON output."""
    done = shell.inside("runs", "export", folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    return facts | {"folder": shell.folder / facts["folder"], "said": done.stderr}


def refused(shell, *arguments):
    """Return the error message of an export."""
    done = shell.inside("runs", "export", *arguments)
    assert done.returncode == 1 and done.stdout == "", done.output
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def poles_shell(tmp_path_factory):
    """A shell with a run of CartPole."""
    folder = tmp_path_factory.mktemp("work")
    shell = Shell(folder, tmp_path_factory.mktemp("packages"))
    done = shell.inside("synthesize", "--env", "CartPole-v1", "--run", "run")
    assert done.returncode == 0, done.stderr
    return shell


@pytest.fixture(scope="module")
def poles_facts(poles_shell):
    return export(poles_shell)


MOVES = Space("discrete", low=(0,), high=(1,))
CONFIG = SearchConfig(env="Gone-v0", dataset="d", strategy="s", backend="b")
ROWS = Dataset.of([Transition(0, 1, 1, 1.0, False)], observation_space=MOVES, action_space=MOVES)


def run_of(folder, program, failure=None):
    """Create a run of an environment that is no longer installed."""
    header = SearchHeader(config=CONFIG, description="", versions={}, source="x", created="now")
    run = SearchRun.start(folder, header, {"dataset.npz": ROWS})
    node = Node(0, 0, -1, GENERATE, program, Verdict(0.5, failure=failure), "key", Usage())
    with run:
        run.learn(Record(node, program))
    run.write_best(node.program)
    return run


class TestActing:
    @pytest.mark.slow
    def test_export_agrees_with_the_true_environment_without_cwm(self, poles_facts):
        stand = "true.state = np.array(seen, np.float64)"
        code = AS_TRUE.replace("STAND", stand).replace("ENDS", "4")
        alone(poles_facts, code.replace("NAME, **ARGUMENTS", "'CartPole-v1'"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "program", "stand", "ends"),
        [
            ("FrozenLake-v1", LAKE, "true.s = int(seen)", 4),
            ("Taxi-v4", TAXI, "true.s = int(seen)", 0),
            (
                "Pendulum-v1",
                worlds.PENDULUM,
                "true.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]])",
                0,
            ),
        ],
    )
    def test_export_of_other_environments_agrees(self, cwm, name, program, stand, ends):
        arguments = {"is_slippery": False} if "Lake" in name else {}
        recordings.record(name, episodes=5, **arguments)[0].save(cwm.folder / "rows.npz")
        named = ("--env-arg", "is_slippery=false") if arguments else ()
        search(cwm, name, program, "--dataset", "rows.npz", *named)
        code = AS_TRUE.replace("NAME", repr(name)).replace("ARGUMENTS", repr(arguments))
        alone(export(cwm), code.replace("STAND", stand).replace("ENDS", str(ends)))

    @pytest.mark.slow
    def test_export_knows_valid_actions_and_texts_from_the_start(self, cwm):
        search(cwm, "RTFM-v0", RTFM)
        facts = export(cwm)
        assert facts["max_episode_steps"] is None
        alone(facts, VALID + MANY)

    @pytest.mark.long
    def test_random_numbers_depend_on_the_seed_only(self, cwm):
        search(cwm, "Blackjack-v1", BLACKJACK)
        code = """
import random
random.seed(1); np.random.seed(1)
before = random.random(), np.random.random()
random.seed(1); np.random.seed(1)
episodes = []
for seed in [*range(30), *range(30)]:
    seen, _ = env.reset(seed=seed)
    answers = [seen]
    over = False
    while not over:
        *answer, over, _, _ = env.step(1)
        answers.append(answer)
    episodes.append(repr(answers))
assert (random.random(), np.random.random()) == before
assert episodes[:30] == episodes[30:]
print(len(set(episodes)), episodes)
"""
        facts = export(cwm)
        first = alone(facts, code)
        assert int(first.split()[0]) > 15
        assert alone(facts, code) == first


@pytest.fixture
def env(poles_facts, monkeypatch):
    module, name = poles_facts["module"], poles_facts["id"]
    monkeypatch.syspath_prepend(poles_facts["folder"])
    with closing(gymnasium.make(f"{module}:{name}")) as env:
        yield env
    gymnasium.registry.pop(name)
    for part in [part for part in sys.modules if part.split(".")[0] == module]:
        del sys.modules[part]


class TestEnvironment:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*A Box observation space m:UserWarning")
    def test_environment_passes_the_gymnasium_checker(self, env):
        check_env(env.unwrapped)

    def test_reset_chooses_a_recorded_start(self, env, poles_shell):
        rows = list(SearchRun.load(poles_shell.folder / "run").dataset())
        starts = [rows[0], *(b for a, b in pairwise(rows) if a.episode != b.episode)]
        recorded = {start.observation.tobytes() for start in starts}
        drawn = {env.reset(seed=seed)[0].tobytes() for seed in range(300)}
        assert drawn == recorded

    def test_reset_accepts_an_observation(self, env):
        seen, _ = env.reset(options={"observation": [0.1, 0, 0.05, 0]})
        assert seen.dtype == np.float32 and seen.tolist() == np.float32([0.1, 0, 0.05, 0]).tolist()
        after, *_ = env.step(0)
        env.reset(seed=5)
        env.reset(options={"observation": seen})
        assert np.allclose(env.step(0)[0], after, 1e-6)

    def test_time_limit_is_that_of_the_environment(self, env):
        assert env.spec.max_episode_steps == 500

    def test_changing_an_observation_does_not_change_the_next_steps(self, env):
        expected = [env.reset(seed=0)[0], *(env.step(0)[0].copy() for _ in range(5))]
        seen = env.reset(seed=0)[0]
        for answer in expected[1:]:
            seen[:] = 7
            seen = env.step(0)[0]
            assert (seen == answer).all()

    def test_reset_refuses_an_observation_of_another_shape(self, env):
        with pytest.raises(ValueError, match="reshape"):
            env.reset(options={"observation": [1, 2, 3]})


STRAYING = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.seen = np.array(observation)

    def step(self, action):
        return self.seen + [0.5, 0.5] if action else np.full(2, np.nan), 1.0, False
"""


def build_package(folder, program, dataset, monkeypatch):
    """Export a run with a program, and make the package importable."""
    header = SearchHeader(
        config=CONFIG.model_copy(update={"env": dataset.metadata["env"]}),
        description="",
        versions={},
        source="x",
        created="now",
    )
    run = SearchRun.start(folder / "run", header, {"dataset.npz": dataset})
    node = Node(0, 0, -1, GENERATE, program, Verdict(0.5), "key", Usage())
    with run:
        run.learn(Record(node, program))
    run.write_best(program)
    publish(export_of(run.folder), folder / "export")
    names = make_names(dataset.metadata["env"])
    monkeypatch.syspath_prepend(folder / "export")
    return f"{names.module}:{names.id}"


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Create packages that can be imported until the end of the test."""
    made = []

    def make(program, dataset):
        made.append(build_package(tmp_path, program, dataset, monkeypatch))
        return made[-1]

    yield make
    for name in made:
        module, _, id = name.partition(":")
        gymnasium.registry.pop(id, None)
        for part in [part for part in sys.modules if part.split(".")[0] == module]:
            del sys.modules[part]


class TestBounds:
    ROWS = Dataset.of(
        [Transition(np.zeros(2, np.float32), 1, np.zeros(2, np.float32), 1.0, False)],
        observation_space=space_of(spaces.Box(-1, 1, (2,))),
        action_space=MOVES,
        metadata={"env": "Gone-v0"},
    )

    def test_observations_are_clipped_but_the_program_is_not(self, packaged):
        env = gymnasium.make(packaged(STRAYING, self.ROWS))
        seen, _ = env.reset(seed=0)
        for expected in (0.5, 1.0, 1.0, 1.0):
            seen, *_ = env.step(1)
            assert seen in env.observation_space and seen.tolist() == [expected] * 2
        assert env.unwrapped._observation.tolist() == [2.0, 2.0]

    def test_predictions_that_are_not_finite_raise(self, packaged):
        env = gymnasium.make(packaged(STRAYING, self.ROWS))
        env.reset(seed=0)
        with pytest.raises(
            ValueError, match="the program predicted an observation that is not finite"
        ):
            env.step(0)


ID = "cartpole_v1_world_model:WorldModel/CartPole-v1"


def played(env, steps=700):
    """Return all results of a vector environment for some actions."""
    with closing(env):
        env.action_space.seed(1)
        answers = [env.reset(seed=3)]
        for _ in range(steps):
            answers.append(env.step(env.action_space.sample()))
    return answers


def equal(one, other):
    """Return whether two results are equal, including infos."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    return np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


class TestVectorEnvironment:
    @pytest.mark.slow
    def test_vector_environment_equals_single_environments(self, env):
        del env
        ours = gymnasium.make_vec(ID, num_envs=3, max_episode_steps=20)
        assert type(ours.unwrapped).__name__ == "BatchedWorldModelEnv"
        assert ours.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
        answers = played(ours)
        for mode in ("sync", "async"):
            others = gymnasium.make_vec(
                ID, num_envs=3, vectorization_mode=mode, max_episode_steps=20
            )
            assert ours.observation_space == others.observation_space
            wrong = [
                number
                for number, pair in enumerate(zip(answers, played(others), strict=True))
                if not equal(*pair)
            ]
            assert wrong == [], mode
        ends = [answer[2] for answer in answers[1:]], [answer[3] for answer in answers[1:]]
        assert all(np.any(each) for each in ends)  # of both kinds

    def test_reset_mask_selects_environments(self, env):
        del env
        with closing(gymnasium.make_vec(ID, num_envs=3)) as both:
            both.reset(seed=0)
            before, *_ = both.step(np.array([0, 1, 0]))
            seen, _ = both.reset(options={"reset_mask": np.array([False, True, False])})
            assert (seen[[0, 2]] == before[[0, 2]]).all() and (seen[1] != before[1]).any()
            with pytest.raises(ValueError, match="2 seeds for 3 environments"):
                both.reset(seed=[1, 2])


class TestRendering:
    def test_true_environment_renders_predictions(self, env):
        assert env.metadata["render_modes"] == ["rgb_array", "human"]
        with closing(gymnasium.make(ID, render_mode="rgb_array")) as drawn:
            start, _ = drawn.reset(seed=2)
            pictures = [drawn.render(), *(drawn.step(1) and drawn.render() for _ in range(8))]
            true = gymnasium.make("CartPole-v1", render_mode="rgb_array")
            true.reset(seed=0)
            true.unwrapped.state = start.astype(float)
            expected = [true.render(), *(true.step(1) and true.render() for _ in range(8))]
        assert pictures[0].shape == (400, 600, 3)
        assert not np.array_equal(pictures[0], pictures[-1])
        apart = [np.abs(a.astype(int) - b).mean() for a, b in zip(pictures, expected, strict=True)]
        assert max(apart) < 0.1  # of 255

    def test_human_mode_renders_every_step(self, env, monkeypatch):
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        shown = gymnasium.make(ID, render_mode="human")
        with closing(shown):
            shown.reset(seed=0)
            shown.step(1)
            assert shown.unwrapped._renderer._env.screen is not None

    def test_missing_renderer_raises_with_an_install_command(self, env, monkeypatch):
        drawn = gymnasium.make(ID, render_mode="rgb_array")
        drawn.reset(seed=0)
        drawn.step(0)  # nothing but pictures needs it
        monkeypatch.delitem(gymnasium.registry, "CartPole-v1")
        words = "rendering needs CartPole-v1, which cannot be created .*: pip install .gymnasium"
        with pytest.raises(gymnasium.error.DependencyNotInstalled, match=words):
            drawn.render()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name",
        [
            "MountainCar-v0",
            "Acrobot-v1",
            "Pendulum-v1",
            "FrozenLake-v1",
            "Taxi-v4",
            "CliffWalking-v1",
            "InvertedDoublePendulum-v5",
            "Reacher-v5",
        ],
    )
    def test_rendering_equals_that_of_the_true_environment(self, name, monkeypatch):
        if name.endswith("v5"):
            pytest.importorskip("mujoco")
            monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))
        rows = recordings.record(name, episodes=1)[0]
        config = CONFIG.model_copy(update={"env": name})
        told = json.loads(json.dumps(gather_world(config, rows, "").data["rendering"]))
        assert told["modes"][:2] == ["rgb_array", "human"]
        true = gymnasium.make(name, render_mode="rgb_array")
        true.action_space.seed(0)
        true.reset(seed=7)
        drawn = rendering.renderer(told, "rgb_array")
        with closing(true), closing(drawn):
            for _ in range(8):
                seen, *_ = true.step(true.action_space.sample())
                pair = true.render(), drawn.render(seen)
                apart = np.abs(pair[0].astype(int) - pair[1]).max(axis=2) > 8
                assert apart.mean() < 0.01  # a taxi may look elsewhere, a torque is not seen

    def test_boards_are_rendered_as_text_without_a_renderer(self):
        board = Space("box", "int8", (2, 3), (0,) * 6, (40,) * 6)
        row = Transition(np.zeros((2, 3), np.int8), 0, np.zeros((2, 3), np.int8), 0.0, False)
        data = Dataset.of([row], observation_space=board, action_space=MOVES)
        told = gather_world(CONFIG, data, "").data["rendering"]
        assert told["modes"] == ["ansi"]
        shown = rendering.renderer(told, "ansi")
        assert shown.render(np.array([[0, 1, 9], [10, 35, 40]])) == ".19\nazz\n"
        with pytest.raises(ValueError, match="unknown render_mode 'rgb_array': choose 'ansi'"):
            rendering.renderer(told, "rgb_array")

    def test_objects_are_rendered_as_text(self, tmp_path):
        asked = {"episodes": 1, "test_episodes": 1, "policy": "random"}
        rows = collect("Sokoban-v0", out=tmp_path / "rows.npz", **asked).dataset
        told = gather_world(CONFIG, rows, "").data["rendering"]
        (*lines, end) = rendering.renderer(told, "ansi").render(rows.row(0).observation).split("\n")
        assert end == "" and {len(line) for line in lines} == {7} and len(lines) == 7
        assert sum(line.count("a") for line in lines) == 1  # the agent

    def test_other_observations_have_no_render_mode(self):
        assert gather_world(CONFIG, ROWS, "").data["rendering"]["modes"] == []


class TestTraining:
    def test_environment_passes_the_stable_baselines_checker(self, env):
        checker = pytest.importorskip("stable_baselines3.common.env_checker")
        checker.check_env(env.unwrapped)

    @pytest.mark.long
    def test_ppo_trained_in_the_export_balances_the_true_pole(self, env):
        stable = pytest.importorskip("stable_baselines3")
        agent = stable.PPO("MlpPolicy", gymnasium.make(ID), seed=1, device="cpu").learn(60_000)
        true, returns = gymnasium.make("CartPole-v1"), []
        for seed in range(20):
            seen, over, returned = true.reset(seed=seed)[0], False, 0.0
            while not over:
                action, _ = agent.predict(seen, deterministic=True)
                seen, reward, terminated, truncated, _ = true.step(int(action))
                returned, over = returned + reward, terminated or truncated
            returns.append(returned)
        assert np.mean(returns) > 450  # of 500; random actions return about 22


class TestSpaces:
    @quickly
    @given(SPACES, st.integers(0, 9))
    def test_spaces_and_values_survive_a_round_trip(self, space, seed):
        data = json.loads(json.dumps(space_of(space).to_json()))
        made = template.space_of(data, LETTERS)
        assert type(made) is type(space)
        assert space_of(made) == space_of(space)
        space.seed(seed)
        value = space.sample()
        assert (value in made) == (value in space)
        assert same(value, template.typed(made)(template.plain(made)(value)))

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Box(-1.5, np.inf, (2, 1), np.float64),
            spaces.Box(np.array([-1, 0.1], np.float32), np.array([1, np.inf], np.float32)),
            spaces.Box(0, 255, (3,), np.uint8),
            spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
            spaces.Discrete(3, start=-1),
            spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -3]]),
            spaces.MultiBinary(3),
            spaces.MultiBinary([2, 3]),
            spaces.Dict(b=spaces.Discrete(2), a=spaces.Tuple([spaces.Box(0, 1)])),
        ],
    )
    def test_spaces_equal_those_of_gymnasium(self, space):
        assert template.space_of(json.loads(json.dumps(space_of(space).to_json())), "") == space

    def test_characters_of_texts_come_from_the_dataset(self):
        text = Space("text", max_length=9)
        rows = [Transition("a b", 1, "héc", 1.0, False)]
        data = Dataset.of(rows, observation_space=text, action_space=MOVES)
        made = template.space_of(text.to_json(), gather_world(CONFIG, data, "").data["characters"])
        assert "cab h" in made and "" in made and "?" not in made

    def test_programs_receive_the_same_types_as_in_the_evaluation(self):
        space = spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.MultiBinary(2), spaces.Discrete(2)])
        real, whole, number = template.plain(space)(([1], [1, 0.0], np.array([1.0])))
        assert (real.dtype, whole.dtype, type(number)) == (np.float64, np.int64, int)
        with pytest.raises(FloatingPointError):
            template.plain(space)(([1], [1, np.nan], 1))


class TestPackage:
    def test_program_is_exported_byte_for_byte(self, poles_shell, poles_facts):
        best = (poles_shell.folder / "run" / "best.py").read_bytes()
        assert (poles_shell.folder / poles_facts["program"]).read_bytes() == best

    def test_export_keeps_line_ends_and_characters_of_the_program(self, tmp_path):
        run = run_of(tmp_path / "run", "# é\r\nx = 1\n")
        exported = export_of(run.folder).files["gone_v0_world_model/program.py"]
        assert exported == (run.folder / "best.py").read_bytes() == b"# \xc3\xa9\r\nx = 1\n"

    def test_export_refuses_a_program_that_is_no_node(self, cwm):
        run = run_of(cwm.folder / "run", "x = 1\n")
        (run.folder / "best.py").write_text("x = 2\n")
        assert "best.py matches no node of the run: continue the run" in refused(cwm, "run")

    def test_readme_describes_accuracy_and_origin(self, poles_shell, poles_facts):
        run = SearchRun.load(poles_shell.folder / "run")
        card = (poles_facts["folder"] / "README.md").read_text()
        for part, title in (("train", "train"), ("test", "held-out")):
            score = poles_facts[part]
            shares = [f"{score[name]:.3f}" for name in ("accuracy", "exact", "floor", "normalised")]
            assert f"| {title} | {' | '.join(shares)} | {score['transitions']:,} |" in card
        versions = [f"{name} {number}" for name, number in run.header.versions.items()]
        for word in (run.config.dataset, "gif-mcts", "induction", "CartPole-v1", *versions):
            assert word in card
        assert "**Read `program.py` before you run it.**" in card
        assert f"{poles_facts['module']}:{poles_facts['id']}" in card

    def test_command_prints_the_path_and_two_commands(self, poles_shell, poles_facts):
        said = poles_shell.inside("runs", "export", "run").stdout
        assert said.splitlines() == [
            "exported  run/export",
            "use       pip install run/export",
            f'use       env = gymnasium.make("{poles_facts["module"]}:{poles_facts["id"]}")',
        ]

    @pytest.mark.long
    def test_export_installs_and_older_gymnasium_versions_find_it(self, poles_shell, tmp_path):
        there, site = str(tmp_path / "there"), tmp_path / "site"
        facts = export(poles_shell, "run", "--out", there)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, there], check=True)
        code = """
from importlib.metadata import entry_points
(entry,) = entry_points(group="gymnasium.envs", name="WorldModel")
entry.load()()
assert gymnasium.make("WorldModel/CartPole-v1").reset(seed=0)[0].shape == (4,)
"""
        alone(facts | {"folder": site}, code)
        export(poles_shell, "run", "--out", there)  # over what installing has left there

    def test_allowed_modules_become_dependencies(self, tmp_path):
        run = run_of(tmp_path / "run", "x = 1\n")
        config = CONFIG.model_copy(update={"tools": ("mujoco", "json", "gone.part")})
        (run.folder / "run.json").write_text(
            run.header.model_copy(update={"config": config}).model_dump_json()
        )
        project = export_of(run.folder).files["pyproject.toml"].decode()
        assert 'dependencies = ["gymnasium>=0.29", "numpy", "gone", "mujoco"]' in project

    @pytest.mark.parametrize(
        ("environment", "id", "module"),
        [
            ("CartPole-v1", "WorldModel/CartPole-v1", "cartpole_v1_world_model"),
            ("ALE/Pong-v5", "WorldModel/ALE-Pong-v5", "ale_pong_v5_world_model"),
            ("my_package:MyEnv-v0", "WorldModel/MyEnv-v0", "myenv_v0_world_model"),
            ("2048-v0", "WorldModel/2048-v0", "environment_2048_v0_world_model"),
            ("a b.c/d!", "WorldModel/a-b.c-d", "a_b_c_d_world_model"),
            ("é", "WorldModel/Environment", "world_model"),
        ],
    )
    def test_names_are_valid(self, environment, id, module):
        assert make_names(environment) == (id, module)
        assert gymnasium.envs.registration.parse_env_id(id)
        assert module.isidentifier() and re.fullmatch("[a-z][a-z0-9_]*", module)


class TestUnfinished:
    @pytest.mark.parametrize("result", [None, {"completions": 0, "train": None, "test": None}])
    def test_unfinished_run_exports_the_best_program_with_a_note(self, cwm, result):
        run = run_of(cwm.folder / "run", worlds.COUNTER)
        if result:  # of before the run was continued
            run.save_result(result)
        facts = export(cwm)
        assert "Note: the search has not finished" in facts["said"]
        assert not facts["finished"] and facts["train"] is None
        assert facts["max_episode_steps"] is None  # the environment is not there to be asked
        card = (facts["folder"] / "README.md").read_text()
        assert "had not finished at the time of export" in card and "0.500" in card
        assert alone(facts, "print(env.reset(seed=0)[0], env.step(1)[:2])") == "0 (1, 1.0)\n"

    def test_run_without_a_running_program_is_refused(self, cwm):
        run_of(cwm.folder / "empty", "")
        run_of(cwm.folder / "broken", "x", Failure(kind="load_error", message="NameError"))
        header = SearchHeader(config=CONFIG, description="", versions={}, source="x", created="now")
        SearchRun.start(cwm.folder / "started", header, {"dataset.npz": ROWS})
        for name in ("empty", "broken"):
            assert f"{name} has no program that runs yet: continue it" in refused(cwm, name)
        assert "started has no program yet: continue it first" in refused(cwm, "started")
        assert "nothing is not a run folder" in refused(cwm, "nothing")
        assert not list(cwm.folder.glob("*/export"))


class TestPlace:
    EXPORT = Export({"README.md": b"new\n", "x_world_model/program.py": b"x = 1\n"}, {}, {}, ())

    def test_earlier_export_is_replaced_completely(self, poles_shell, tmp_path):
        facts = export(poles_shell, "run", "--out", str(tmp_path / "there"))
        publish(self.EXPORT, facts["folder"])
        files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert files == {"README.md", "program.py"}

    @pytest.mark.parametrize("name", ["thesis.tex", "README.md", "notes/x"])
    def test_folder_with_other_files_is_refused_unchanged(self, poles_shell, tmp_path, name):
        there = tmp_path / "there"
        (there / name).parent.mkdir(parents=True)
        (there / name).write_text("mine")
        said = refused(poles_shell, "run", "--out", str(there))
        assert f"contains other files ({name.partition('/')[0]}): choose another" in said
        assert [path.name for path in tmp_path.iterdir()] == ["there"]
        assert (there / name).read_text() == "mine"

    @pytest.mark.slow
    def test_files_added_to_an_export_are_kept(self, poles_shell, tmp_path):
        there = str(tmp_path / "there")
        export(poles_shell, "run", "--out", there)
        (tmp_path / "there" / "agent.zip").write_text("mine")
        assert "contains other files (agent.zip)" in refused(poles_shell, "run", "--out", there)
        assert (tmp_path / "there" / "agent.zip").exists()

    @pytest.mark.slow
    def test_unwritable_place_is_refused(self, poles_shell, tmp_path):
        (tmp_path / "file").write_text("mine")
        assert "is a file" in refused(poles_shell, "run", "--out", str(tmp_path / "file"))
        said = refused(poles_shell, "run", "--out", str(tmp_path / "file" / "below"))
        assert "cannot write" in said and "choose another place with --out" in said

    def test_interrupted_export_leaves_no_files(self, tmp_path):
        class Interrupted(dict):
            def items(self):
                yield from list(super().items())[:1]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            publish(self.EXPORT._replace(files=Interrupted(self.EXPORT.files)), tmp_path / "there")
        assert list(tmp_path.iterdir()) == []

    def test_next_export_removes_the_files_of_a_killed_one(self, tmp_path):
        class Deadly(dict):
            def items(self):
                yield from list(super().items())[:1]
                os.kill(os.getpid(), 9)

        child = os.fork()
        if child == 0:
            publish(self.EXPORT._replace(files=Deadly(self.EXPORT.files)), tmp_path / "there")
        os.waitpid(child, 0)
        assert not (tmp_path / "there").exists()
        publish(self.EXPORT, tmp_path / "there")
        assert [path.name for path in tmp_path.iterdir()] == ["there"]

    def test_earlier_export_survives_a_failed_one(self, poles_shell, tmp_path):
        facts = export(poles_shell, "run", "--out", str(tmp_path / "there"))
        before = (facts["folder"] / "README.md").read_text()
        with pytest.raises(FileNotFoundError):
            publish(Export({}, {}, {}, ()), facts["folder"])
        assert (facts["folder"] / "README.md").read_text() == before
        assert [path.name for path in tmp_path.iterdir()] == ["there"]


ADDER = """
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend

@hookimpl
def cwm_backends():
    return {"adder": Adder}

@dataclass
class Adder(Backend):
    model: str = ""

    def complete(self, request):
        from cwm_cli.search.contracts import Completion
        return Completion("```python\\nprint(sum(map(int, input().split())))\\n```")
"""


class TestOthers:
    def test_benchmark_is_refused_and_one_of_its_runs_suggested(self, cwm):
        config = BenchmarkConfig(environments=("X-v0",), strategies=("s",), backend="b")
        header = BenchmarkHeader(config=config, terms=BenchmarkTerms())
        BenchmarkRun.start(cwm.folder / "many", header)
        assert refused(cwm, "many").endswith("many is a run of kind 'benchmark': export a search")
        run_of(cwm.folder / "many" / "one", "x = 1\n")
        assert refused(cwm, "many").endswith("export a search, such as many/one")

    @pytest.mark.slow
    def test_coding_programs_can_be_judged_without_cwm(self, cwm):
        cwm.install("adder_plugin", ADDER)
        data = cwm.folder / "some.jsonl"
        data.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS[:3]))
        asking = ("--data", "some.jsonl", "--backend", "adder", "--budget", "1")
        done = cwm.inside("apps", *asking, "--run", "r", "--json")
        assert done.returncode == 0, done.stderr
        facts = export(cwm, "r")
        assert (facts["problems"], facts["programs"], facts["solved"]) == (3, 3, 1)
        assert facts["finished"]
        judging = ("--data", "some.jsonl", "--solutions", facts["solutions"], "--run", "again")
        judged = json.loads(cwm.inside("apps", *judging, "--json").stdout)
        before = json.loads(done.stdout)
        for name in ("solved", "strict_accuracy", "test_case_average"):
            assert judged[name] == before[name]
        assert "r/problems/0010 is part of a larger run: export" in refused(cwm, "r/problems/0010")
        (cwm.folder / "r" / "problems" / "0011" / "result.json").unlink()
        assert "1 problems are not finished" in export(cwm, "r")["said"]
        nothing = refused(cwm, "again")
        assert "again has no program yet" in nothing
