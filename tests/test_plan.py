"""`cwm plan` as a user meets it: episodes in the true environment, actions from a world model."""

import json
import signal
import time
from contextlib import suppress

import gymnasium as gym
import numpy as np
import psutil
import pytest

from candidates import open_session
from cwm_cli.agents.contests import Side
from cwm_cli.agents.episodes import play
from cwm_cli.agents.pilots import WorldModel
from cwm_cli.cli.planners import DECISION, choose
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.planning import find_planner
from cwm_cli.sandbox import Sandbox
from worlds import CARTPOLE, COUNTER, PENDULUM

BROKEN = CARTPOLE.replace(
    "        x, v", "        assert self.state[0] > 0, 'left of the middle'\n        x, v"
)
ENVIRONMENTS = """
from cwm_cli import hookimpl

@hookimpl
def cwm_environments():
    return {"Switches-v0": switches, "Counter-v0": counter, "Sealed-v0": sealed}

def switches():
    from gymnasium import spaces
    return spec("Switches-v0", spaces.MultiBinary(2))

def counter():
    from gymnasium import spaces
    return spec("Counter-v0", spaces.Discrete(2), valid=lambda env: [env.count % 2])

def sealed():
    from gymnasium import spaces
    return spec("Sealed-v0", spaces.Discrete(2), hidden=True)

def spec(name, actions, hidden=False, valid=None):
    import gymnasium as gym
    import numpy as np
    from cwm_cli.envs.spec import EnvironmentSpec

    class Counter(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        action_space = actions

        def reset(self, seed=None, options=None):
            self.count = 0
            self.steps = iter(range(1, 10**6)) if not hidden else (n for n in range(1, 10**6))
            return np.zeros(1, np.float32), {}

        def step(self, action):
            print("this is no result")
            self.count = next(self.steps)
            return np.array([self.count], np.float32), np.array([float(action)]), False, False, {}

    return EnvironmentSpec(name, Counter, lambda env: "a counter", lambda: {}, valid_actions=valid)
"""


@pytest.fixture
def plan(cwm):
    """Run `cwm plan` with program files at hand."""
    for name, text in (("cartpole", CARTPOLE), ("pendulum", PENDULUM), ("broken", BROKEN)):
        (cwm.folder / f"{name}.py").write_text(text)
    (cwm.folder / "counter.py").write_text(COUNTER)
    cwm.install("counting_plugin", ENVIRONMENTS)
    return lambda *arguments: cwm.inside("plan", *arguments)


def played(text: str, env: gym.Env, planner: str, **options: object) -> Side:
    """Play two episodes with a program."""
    spaces = (space_of(env.observation_space), space_of(env.action_space, "actions"))
    task = Task(lambda: env, seed=1, limit=step_limit(env))
    with (
        Sandbox() as sandbox,
        open_session(sandbox, text, spaces, planners=[(planner, options)]) as session,
    ):
        rounds = play(task, range(2), WorldModel(session))
        side = Side([played.episode for some in rounds for played in some.finished])
    assert side.cost.failures == 0
    return side


def test_the_exact_programs_of_these_tests_are_exact() -> None:
    for name, text in (("CartPole-v1", CARTPOLE), ("Pendulum-v1", PENDULUM)):
        names: dict = {}
        exec(text, names)
        world, env = names["Environment"](), gym.make(name)
        observation, _ = env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(10):
            action = env.action_space.sample()
            world.set_state(np.asarray(observation, dtype=float))
            predicted, reward, terminated = world.step(action)
            observation, true_reward, ended, _, _ = env.step(action)
            assert np.allclose(predicted, observation, atol=1e-5)
            assert (pytest.approx(true_reward, abs=1e-4), ended) == (reward, terminated)


@pytest.mark.slow
def test_the_tree_search_balances_the_pole() -> None:
    side = played(CARTPOLE, gym.make("CartPole-v1", max_episode_steps=60), "mcts")
    assert side.returns == [60.0, 60.0]


@pytest.mark.slow
def test_cem_swings_the_pendulum_up() -> None:
    side = played(PENDULUM, gym.make("Pendulum-v1"), "cem", samples=64, elites=6, replan=3)
    assert side.mean.mean > -400


def test_planning_is_far_better_than_chance_and_says_so_in_json(plan, cwm) -> None:
    arguments = ("--env", "CartPole-v1", "--program", "cartpole.py", "--episodes", "3", "--json")
    options = ("-o", "simulations=12", "-o", "mcts.rollout=30", "--max-steps", "60")
    done = plan(*arguments, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["returns"] == [float(length) for length in result["lengths"]]
    assert result["mean"] == sum(result["returns"]) / 3 > 1.5 * result["random"]["mean"]
    assert result["random"]["mean"] == sum(result["random_returns"]) / 3
    assert result["oracle"]["mean"] == sum(result["oracle_returns"]) / 3 > 50
    assert 0.8 < result["R"] < 1.2
    assert (result["failures"], result["failure"], result["render"]) == (0, None, None)
    assert (result["planner"], result["decisions"]) == ("mcts", sum(result["lengths"]))
    assert result["form"]
    assert result["model_steps"] > 12 * result["decisions"]
    assert result["model_steps_per_second"] > 12 * result["decisions_per_second"] > 12
    assert result["speeds"].keys() == {"model", "oracle"}
    lines = [json.loads(line) for line in (cwm.folder / result["journal"]).open()]
    assert [line["side"] for line in lines[1:]] == ["random"] * 3 + ["model"] * 3 + ["oracle"] * 3
    assert "[3/3] world model #2: return" in done.stderr


def test_the_oracle_plans_the_same_for_any_number_of_workers(plan, monkeypatch) -> None:
    arguments = ("--env", "FrozenLake-v1", "--real-env", "--episodes", "5", "--json")
    options = ("-o", "simulations=5", "-o", "rollout=5", "--max-steps", "9", "--new")
    results = [
        json.loads(plan(*arguments, *options, *effort).stdout)
        for effort in (("--lockstep", "1"), ("--workers", "3", "--lockstep", "2"))
    ]
    names = ("returns", "lengths", "random_returns", "oracle_returns", "decisions", "planner")
    for name in names:
        assert results[0][name] == results[1][name]
    assert results[0]["oracle_returns"] == results[0]["returns"]
    assert (results[0]["R"], results[0]["speeds"].keys()) == (None, {"oracle"})


def test_people_get_a_table(plan) -> None:
    done = plan(
        *("--env", "Pendulum-v1", "--program", "pendulum.py", "--planner", "cem"),
        *("--episodes", "2", "--max-steps", "10", "-o", "samples=20", "-o", "horizon=5"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["return", "length", "decisions/s", "model", "steps/s"] in lines
    for name in (["world", "model"], ["oracle"], ["random"]):
        [line] = [line for line in lines if line[: len(name)] == name]
        assert line[len(name) + 1 : len(name) + 4 : 2] == ["±", "10"]
    assert any(line[:1] == ["R"] for line in lines)
    assert any(line[:2] == ["planner", "cem,"] for line in lines)
    assert any(line[0] == "episodes" and line[1].endswith(".jsonl") for line in lines if line)


@pytest.mark.slow
def test_failures_of_the_program_are_counted_and_shown(plan) -> None:
    arguments = ("--env", "CartPole-v1", "--program", "broken.py", "--episodes", "2", "--json")
    done = plan(*arguments, "--max-steps", "30", "-o", "simulations=4", "--no-oracle")
    result = json.loads(done.stdout)
    assert (result["oracle"], result["oracle_returns"], result["R"]) == (None, None, None)
    assert 0 < result["failures"] <= sum(result["lengths"])
    assert result["failure"]["kind"] == "step_error"
    assert "left of the middle" in done.stderr
    assert f"failed in {result['failures']} of" in done.stderr


def test_only_allowed_actions_are_played_and_the_user_sets_the_limit(plan) -> None:
    done = plan(
        *("--env", "Counter-v0", "--program", "counter.py", "--episodes", "1", "--json"),
        *("--max-steps", "5", "-o", "simulations=20", "-o", "rollout=2"),
    )
    result = json.loads(done.stdout)
    assert (result["returns"], result["lengths"], result["stderr"]) == ([2.0], [5], None)
    assert result["random_returns"] == result["oracle_returns"] == [2.0]


def test_without_saved_states_there_is_no_oracle_and_a_note(plan) -> None:
    arguments = ("--env", "Sealed-v0", "--max-steps", "5", "--episodes", "1", "--json")
    done = plan(*arguments, "--program", "counter.py", "-o", "simulations=20", "-o", "rollout=2")
    result = json.loads(done.stdout)
    assert (result["returns"], result["oracle"], result["R"]) == ([5.0], None, None)
    assert "Note: no oracle: Sealed-v0 cannot be saved and restored\n" in done.stderr
    real = plan(*arguments, "--real-env")
    assert (real.returncode, real.stdout) == (1, "")
    assert real.stderr.splitlines()[-1].startswith("Error: Sealed-v0 cannot be saved and restored")


MISTAKES = [
    (["--program", "no.py"], "there is no no.py: name a .py file"),
    (["--program", "."], ". cannot be read"),
    ([], "name one world model: --program FILE, or --run DIR"),
    (["--program", "cartpole.py", "--run", "x"], "name one world model"),
    (["--program", "cartpole.py", "--real-env"], "name one world model"),
    (["--real-env", "--no-oracle"], "leave --no-oracle out"),
    (["--run", "x"], "x is no run"),
    (
        ["--program", "cartpole.py", "--planner", "cem"],
        "cem needs continuous actions within finite bounds: choose --planner mcts",
    ),
    (["--program", "cartpole.py", "--planner", "mtcs"], "did you mean mcts?"),
    (["--program", "cartpole.py", "-o", "simulation=2"], "did you mean simulations?"),
    (["--program", "cartpole.py", "-o", "simulations=0"], "must be at least 1"),
    (["--program", "cartpole.py", "-o", "simulations=few"], "simulations=few is refused"),
    (
        ["--program", "pendulum.py", "--env", "Pendulum-v1", "--planner", "mcts"],
        "mcts needs discrete actions: choose --planner ",
    ),
    (
        ["--env", "Pendulum-v1", "--real-env", "--planner", "cem", "-o", "preset=slow"],
        "preset=slow is refused: input should be '",
    ),
    (["--real-env", "--render", "film.avi"], "film.avi is no film: name a .gif or a .mp4 file"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes_are_named_in_one_line(plan, monkeypatch, tmp_path, arguments, words):
    from typer.testing import CliRunner

    from cwm_cli.cli import app

    monkeypatch.chdir(tmp_path / "work")
    env = [] if "--env" in arguments else ["--env", "CartPole-v1"]
    result = CliRunner().invoke(app, ["plan", *env, *arguments])
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "work" / "runs").exists()


GRID = Space("tuple", children=(Space("discrete", low=(0,), high=(8,)),))
POINT = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
COUNTS = Space("box", "int64", (2,), (0, 0), (np.inf, np.inf))
MOVES = Space("discrete", low=(0,), high=(3,))


@pytest.mark.parametrize(
    ("observations", "name", "options", "chosen"),
    [
        (GRID, "auto", [], ["tabular", "mcts"]),
        (POINT, "auto", [], ["mcts"]),
        (COUNTS, "auto", [], ["mcts"]),
        (POINT, "tabular", [], ["tabular"]),
        (GRID, "auto", ["simulations=50"], ["mcts"]),
        (GRID, "auto", ["states=50"], ["tabular"]),
        (GRID, "auto", ["states=50", "mcts.discount=0.5"], ["tabular", "mcts"]),
        (GRID, "auto", ["memory_mb=99"], ["tabular", "mcts"]),
    ],
)
def test_who_plans_follows_from_the_spaces_and_the_options(
    observations, name, options, chosen
) -> None:
    choice = choose(name, options, (observations, MOVES), {"memory_mb": 77, "cpu_seconds": 1.0})
    assert [planner.name for planner in choice.planners] == chosen
    assert choice.limits.memory_mb == (99 if "memory_mb=99" in options else 77)
    assert choice.limits.cpu_seconds == DECISION["cpu_seconds"]
    for planner, settings in choice.planners:
        assert find_planner(planner)(**settings)


def test_an_option_of_two_planners_is_asked_about() -> None:
    with pytest.raises(CwmError, match=r"write -o tabular\.discount= or -o mcts\.discount="):
        choose("auto", ["discount=0.5"], (GRID, MOVES), {})


def test_a_planner_that_cannot_plan_is_told_in_one_line(cwm, monkeypatch) -> None:
    from typer.testing import CliRunner

    from cwm_cli.cli import app

    monkeypatch.chdir(cwm.folder)
    arguments = ["plan", "--env", "FrozenLake-v1", "--real-env", "--max-steps", "5"]
    failed = CliRunner().invoke(app, [*arguments, "--planner", "tabular", "--episodes", "1"])
    words = "Error: tabular cannot plan here (it draws random numbers): choose --planner mcts"
    assert (failed.exit_code, failed.stderr.splitlines()[-1]) == (1, words)
    done = CliRunner().invoke(app, [*arguments, "--episodes", "1", "--json"])
    result = json.loads(done.stdout)
    assert (result["planner"], result["note"]) == ("mcts", "not tabular: it draws random numbers")


def test_actions_that_no_planner_serves_are_refused(plan) -> None:
    done = plan("--env", "Switches-v0", "--program", "counter.py")
    assert done.returncode == 1
    assert "no planner serves these actions: choose an environment with" in done.stderr
    assert "or discrete actions" in done.stderr


def test_a_run_is_planned_with_its_best_program(cwm) -> None:
    short = ("--episodes", "1", "--max-steps", "60", "--json", "--no-oracle")
    made = cwm.inside("synthesize", "--env", "CartPole-v1", "--run", "made")
    assert "cwm plan --env CartPole-v1 --run made" in made.stdout
    done = json.loads(cwm.inside("plan", "--env", "CartPole-v1", "--run", "made", *short).stdout)
    assert done["mean"] > 50
    assert done["journal"].startswith("made/plans/CartPole-v1-auto-0-")
    other = cwm.inside("plan", "--env", "Pendulum-v1", "--run", "made")
    assert (other.returncode, "name --env CartPole-v1" in other.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--program", "slow.py"), marks=pytest.mark.slow),
        ("--program", "slow.py", "--workers", "2"),
        pytest.param(("--real-env", "--workers", "2"), marks=pytest.mark.slow),
    ],
)
def test_an_interruption_leaves_nothing_running(cwm, arguments) -> None:
    (cwm.folder / "slow.py").write_text(
        CARTPOLE.replace("x, v, angle", "sum(range(9999))\n        x, v, angle", 1)
    )
    process = cwm.start("plan", "--env", "CartPole-v1", *arguments)
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while (text := "".join(process.stderr.readline())) and "[10/10] random" not in text:
        pass
    while len(family := watched.children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(family) >= 2, "workers, and processes for programs"
    for member in (process, *family):  # as a terminal does
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted after 10 of ")
    assert "the same command continues runs/plans/CartPole-v1-auto-0-" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=10)[1] == []
