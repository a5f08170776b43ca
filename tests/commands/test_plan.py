"""`cwm plan` and `cwm.plan`: planned episodes in the true environment."""

import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest

import cwm_cli
from cwm_cli.commands.plan import DECISION, choose_planners
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.planning import find_planner
from worlds import CARTPOLE, COUNTER, PENDULUM

BROKEN = CARTPOLE.replace(
    "        x, v", "        assert self.state[0] > 0, 'left of the middle'\n        x, v"
)
ENVIRONMENTS = """
from cwm_cli import hookimpl

@hookimpl
def cwm_environments():
    return {"Endless-v0": endless, "Counter-v0": counter, "Sealed-v0": sealed}

def endless():
    import numpy as np
    from gymnasium import spaces
    return spec("Endless-v0", spaces.Dict({"push": spaces.Box(-np.inf, 1, (2,))}))

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
    """Return a function that runs `cwm plan` in a folder with program files."""
    for name, text in (("cartpole", CARTPOLE), ("pendulum", PENDULUM), ("counter", COUNTER)):
        (cwm.folder / f"{name}.py").write_text(text)
    cwm.install("counting_plugin", ENVIRONMENTS)
    return lambda *arguments: cwm.inside("plan", *arguments)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_programs_of_these_tests_match_gymnasium() -> None:
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
def test_planners_balance_cartpole_and_swing_up_the_pendulum(here) -> None:
    balanced = cwm_cli.plan(env="CartPole-v1", program=CARTPOLE, episodes=2, max_steps=60)
    assert (balanced.returns, balanced.side.cost.failures) == ([60.0, 60.0], 0)
    options = {"samples": 64, "elites": 6, "replan": 3}
    swung = cwm_cli.plan(
        env="Pendulum-v1", program=PENDULUM, planner="cem", options=options, episodes=2, seed=1
    )
    assert (swung.mean > -400, swung.side.cost.failures) == (True, 0)


def test_plan_json_shows_returns_far_above_random(plan, cwm) -> None:
    arguments = ("--env", "CartPole-v1", "--program", "cartpole.py", "--episodes", "3", "--json")
    options = ("-o", "simulations=12", "-o", "mcts.rollout=30", "--max-steps", "60")
    done = plan(*arguments, *options, "--oracle")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["returns"] == [float(length) for length in result["lengths"]]
    assert result["mean"] == sum(result["returns"]) / 3 > 1.5 * result["random"]["mean"]
    assert result["random"]["mean"] == sum(result["random_returns"]) / 3
    assert result["oracle"]["mean"] == sum(result["oracle_returns"]) / 3 > 50
    assert 0.8 < result["R"] < 1.2
    idle = result["idle"]["mean"]
    assert idle == sum(result["idle_returns"]) / 3
    assert result["baseline"] == ("idle" if idle > result["random"]["mean"] else "random")
    least = max(idle, result["random"]["mean"])
    gain = result["oracle"]["mean"] - least
    assert result["R"] == pytest.approx((result["mean"] - least) / gain)
    assert (result["failures"], result["failure"], result["render"]) == (0, None, None)
    assert (result["planner"], result["decisions"]) == ("mcts", sum(result["lengths"]))
    assert result["form"]
    assert result["model_steps"] > 12 * result["decisions"]
    assert result["model_steps_per_second"] > 12 * result["decisions_per_second"] > 12
    assert result["speeds"].keys() == {"model", "oracle"}
    lines = [json.loads(line) for line in (cwm.folder / result["journal"]).open()]
    assert [line["side"] for line in lines] == [
        side for side in ("random", "idle", "model", "oracle") for _ in range(3)
    ]
    assert "[3/3] world model #2: return" in done.stderr


@pytest.mark.slow
def test_library_result_equals_json_output(here, sandbox) -> None:
    how = {"options": ["simulations=4", "rollout=5"], "episodes": 2, "max_steps": 9}
    result = cwm_cli.plan(env="CartPole-v1", program=CARTPOLE, **how)
    assert result.oracle is result.R is None
    assert result.as_json() | {"speeds": 0} == result.as_json() | {
        "returns": result.returns,
        "mean": result.mean,
        "stderr": result.stderr,
        "random": result.random._asdict(),
        "oracle": None,
        "journal": str(result.journal),
        "speeds": 0,
    }
    assert result.journal.is_relative_to("runs/plans")


@pytest.mark.slow
def test_oracle_plans_do_not_depend_on_the_number_of_workers(here) -> None:
    def plan_in_environment(workers):
        return cwm_cli.plan(
            env="FrozenLake-v1",
            real_env=True,
            episodes=5,
            max_steps=9,
            options={"simulations": 5, "rollout": 5},
            workers=workers,
            new=True,
        )

    one, two = plan_in_environment(1), plan_in_environment(2)
    assert (one.returns, one.lengths) == (two.returns, two.lengths)
    assert one.as_json()["oracle_returns"] == one.returns
    assert (one.R, one.as_json()["speeds"].keys()) == (None, {"oracle"})


@pytest.mark.slow
def test_number_of_episodes_follows_from_their_length(here, monkeypatch) -> None:
    monkeypatch.setattr("cwm_cli.commands.sides.STEPS_OF_A_SIDE", 24)

    def played(**options):
        how = {"max_steps": 2, "options": ["simulations=2", "rollout=2"], **options}
        return cwm_cli.plan(env="CartPole-v1", program=CARTPOLE, **how)

    few = played(episodes=10)
    assert {len(side.episodes) for side in few.sides.values()} == {10}
    more = played(episodes=None)  # 12 episodes of 2 steps have 24 steps
    assert {len(side.episodes) for side in more.sides.values()} == {12}
    assert more.sides["random"].returns[:10] == few.sides["random"].returns
    assert len(played(episodes=None, seed=1).returns) == 12  # without stored episodes


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("class Environment:\n    def step(:\n", "line 2: invalid syntax"),
        ("state = 0\0", "source code string cannot contain null bytes"),
    ],
)
def test_program_that_is_not_python_is_refused_before_play(cwm, program: str, words: str) -> None:
    (cwm.folder / "broken.py").write_text(program)
    refused = cwm.inside("plan", "--env", "CartPole-v1", "--program", "broken.py")
    assert refused.returncode == 1
    assert "broken.py does not load: " in refused.stderr
    assert f"{words}: correct the program" in " ".join(refused.stderr.split())
    assert not refused.stdout


@pytest.mark.slow
def test_plan_prints_a_table(plan) -> None:
    done = plan(
        *("--env", "Pendulum-v1", "--program", "pendulum.py", "--planner", "cem", "--oracle"),
        *("--episodes", "2", "--max-steps", "10", "-o", "samples=20", "-o", "horizon=5"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["mean", "return", "length", "decisions/s", "model", "steps/s"] in lines
    for name in (["world", "model"], ["oracle"], ["do", "nothing"], ["random"]):
        [line] = [line for line in lines if line[: len(name)] == name]
        assert line[len(name) + 1 : len(name) + 4 : 2] == ["±", "10"]
    words = " ".join(done.stdout.split())
    assert re.search(r"Mean return -[\d.]+ ± [\d.]+ \(2 episodes\)", words)
    assert "normalised return R = " in words or "not clearly better than " in words
    assert any(line[:2] == ["Planner:", "cem,"] for line in lines)


@pytest.mark.slow
def test_program_failures_are_counted_and_printed(plan, cwm) -> None:
    (cwm.folder / "broken.py").write_text(BROKEN)
    arguments = ("--env", "CartPole-v1", "--program", "broken.py", "--episodes", "2", "--json")
    done = plan(*arguments, "--max-steps", "12", "-o", "simulations=4")
    result = json.loads(done.stdout)
    assert (result["oracle"], result["oracle_returns"], result["R"]) == (None, None, None)
    assert 0 < result["failures"] <= sum(result["lengths"])
    assert result["failure"]["kind"] == "step_error"
    assert "left of the middle" in done.stderr
    assert f"{result['failures']} of {result['decisions']} decisions failed" in done.stderr


def test_plan_uses_only_valid_actions_and_the_given_limit(plan) -> None:
    done = plan(
        *("--env", "Counter-v0", "--program", "counter.py", "--episodes", "1", "--json"),
        *("--max-steps", "5", "-o", "simulations=20", "-o", "rollout=2", "--oracle"),
    )
    result = json.loads(done.stdout)
    assert (result["returns"], result["lengths"], result["stderr"]) == ([2.0], [5], None)
    assert result["random_returns"] == result["oracle_returns"] == [2.0]
    assert (result["idle"], result["idle_returns"], result["baseline"]) == (None, None, "random")


@pytest.mark.slow
def test_no_oracle_without_saved_states(plan) -> None:
    arguments = ("--env", "Sealed-v0", "--max-steps", "5", "--episodes", "1", "--json")
    program = ("--program", "counter.py", "-o", "simulations=20", "-o", "rollout=2")
    done = plan(*arguments, *program, "--oracle")
    result = json.loads(done.stdout)
    assert (result["returns"], result["oracle"], result["R"]) == ([5.0], None, None)
    assert result["idle_returns"] == [5.0]  # action 1 in every step
    assert "Note: no oracle: Sealed-v0 cannot be saved and restored\n" in done.stderr
    real = plan(*arguments, "--real-env")
    assert (real.returncode, real.stdout) == (1, "")
    assert real.stderr.splitlines()[-1].startswith("Error: Sealed-v0 cannot be saved and restored")
    none = plan("--env", "Endless-v0", "--program", "counter.py")
    assert "planning needs finite bounds" in none.stderr
    assert "actions.push is Box(-inf, 1.0, (2,), float32)" in none.stderr


CARTS = ("--env", "CartPole-v1")
MISTAKES = [
    (CARTS, "choose one world model: a run, --program FILE"),
    ((*CARTS, "--program", "no.py"), "there is no no.py: give a .py file"),
    ((*CARTS, "--program", "."), ". cannot be read"),
    (("--program", "cartpole.py"), "--program needs an environment: add --env ID"),
    ((*CARTS, "--program", "cartpole.py", "--run", "x"), "choose one world model"),
    ((*CARTS, "--program", "cartpole.py", "--real-env"), "choose one world model"),
    (("--run", "x"), "x is not a run folder"),
    (("x",), "x is not a run folder"),
    (("x", "--run", "y"), "x and y are two runs"),
    (
        (*CARTS, "--program", "cartpole.py", "--planner", "cem"),
        "cem needs continuous actions within finite bounds: choose --planner mcts",
    ),
    ((*CARTS, "--program", "cartpole.py", "--planner", "mtcs"), "did you mean mcts?"),
    ((*CARTS, "--program", "cartpole.py", "-o", "simulation=2"), "did you mean simulations?"),
    ((*CARTS, "--program", "cartpole.py", "-o", "simulations=0"), "must be at least 1"),
    (
        (*CARTS, "--program", "cartpole.py", "-o", "simulations=few"),
        "invalid option simulations=few",
    ),
    (
        ("--program", "pendulum.py", "--env", "Pendulum-v1", "--planner", "mcts"),
        "mcts needs discrete actions: choose --planner ",
    ),
    (
        ("--env", "Pendulum-v1", "--real-env", "--planner", "cem", "-o", "preset=slow"),
        "invalid option preset=slow: it takes default or paper",
    ),
    ((*CARTS, "--real-env", "--render", "film.avi"), "film.avi is not a film: give a .gif or .mp4"),
    (
        (*CARTS, "--real-env", "--planner", "tabular", "--episodes", "1"),
        "states): choose --planner mcts",
    ),
]


def test_plan_reports_mistakes_in_one_line(plan, cwm) -> None:
    wrong = {}
    for arguments, words in MISTAKES:
        done = plan(*arguments)
        last = done.stderr.strip().splitlines()[-1]
        if done.returncode != 1 or words not in last or not last.startswith("Error: "):
            wrong[arguments] = done.stderr
    assert wrong == {}
    folders = {path.name for path in cwm.folder.glob("runs/plans/*")}
    assert all(name.startswith("CartPole-v1-tabular-0-") for name in folders)


GRID = Space("tuple", children=(Space("discrete", low=(0,), high=(8,)),))
POINT = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
COUNTS = Space("box", "int64", (2,), (0, 0), (np.inf, np.inf))
MOVES = Space("discrete", low=(0,), high=(3,))


def test_planners_are_chosen_by_spaces_and_options() -> None:
    wrong = {}
    for observations, name, options, expected in (
        (GRID, "auto", (), ["tabular", "mcts"]),
        (POINT, "auto", (), ["grid", "mcts"]),
        (POINT, "auto", ("budget=50",), ["mcts"]),
        (POINT, "auto", ("lookahead=5",), ["grid"]),
        (COUNTS, "auto", (), ["mcts"]),
        (POINT, "tabular", (), ["tabular"]),
        (GRID, "auto", ("simulations=50",), ["mcts"]),
        (GRID, "auto", ("states=50",), ["tabular"]),
        (GRID, "auto", ("states=50", "mcts.discount=0.5"), ["tabular", "mcts"]),
        (GRID, "auto", ("memory_mb=99",), ["tabular", "mcts"]),
    ):
        usual = {"memory_mb": 77, "cpu_seconds": 1.0}
        choice = choose_planners(name, options, (observations, MOVES), usual)
        found = [planner.name for planner in choice.planners]
        limits = (99 if "memory_mb=99" in options else 77, DECISION["cpu_seconds"])
        if (found, (choice.limits.memory_mb, choice.limits.cpu_seconds)) != (expected, limits):
            wrong[observations.kind, name, options] = choice
        for planner, settings, _ in choice.planners:
            find_planner(planner)(**settings)
    assert wrong == {}
    with pytest.raises(CwmError, match=r"write -o tabular\.discount= or -o mcts\.discount="):
        choose_planners("auto", ["discount=0.5"], (GRID, MOVES), {})


def test_next_planner_replaces_an_unsuited_one_with_a_note(here, monkeypatch) -> None:
    monkeypatch.setattr("cwm_cli.planning.tabular.MOST_DRAWN", 3)
    done = cwm_cli.plan(env="FrozenLake-v1", real_env=True, max_steps=5, episodes=1)
    assert done.side.report[0] == "mcts"
    assert done.as_json()["note"] == "not tabular: it reaches more than 3 states"


SLOW_CAR = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.place, self.speed = observation.tolist()

    def step(self, action):
        self.speed += 0.001 * (int(action) - 1) - 0.0025 * np.cos(3 * self.place)
        self.place = max(self.place + self.speed, -1.2)
        if abs(self.speed) > 0.011:
            self.place, self.speed = 0.5, 0.0
        return np.array([self.place, self.speed], np.float32), -1.0, self.place >= 0.5
"""


@pytest.mark.slow
def test_planning_stops_if_a_program_that_fits_the_data_fails_in_play(here) -> None:
    shipped = Path(__file__).parents[2] / "data" / "cwm_data" / "MountainCar-v0.npz"
    rows = Dataset.load(shipped)
    slow = rows[np.abs(rows.columns["next_observations"][:, 1]) < 0.01]
    about = {"env": "MountainCar-v0", "program": SLOW_CAR, "dataset": slow, "episodes": 2}
    few = {"mcts.simulations": 20, "planning.doubt": "ignore"}
    done = cwm_cli.plan(**about, max_steps=80, options=few)
    assert re.match(
        r"planning ended after 0 of 2 episodes: \d+ of \d+ predictions in play were right, but "
        r"100 % of recorded rows: correct the program with `cwm learn --env MountainCar-v0 "
        r"--from \S+`, or add -o planning.stop=false to play on",
        done.stopped,
    )
    assert sorted(file.name for file in done.journal.parent.rglob("*.npz")) == ["0.npz", "1.npz"]
    played = cwm_cli.plan(**about, max_steps=80, options=few | {"planning.stop": False})
    assert (played.stopped, played.lengths) == ("", [80, 80])


@pytest.mark.slow
def test_run_is_planned_with_its_best_program_and_environment(cwm) -> None:
    made = cwm.inside("synthesize", "--env", "CartPole-v1", "--run", "made")
    assert "cwm plan made" in made.stdout
    short = ("--episodes", "1", "--max-steps", "60", "-o", "simulations=20", "--json")
    done = json.loads(cwm.inside("plan", "made", *short).stdout)
    assert done["mean"] > 50
    assert done["journal"].startswith("made/plans/CartPole-v1-auto-0-")
    again = json.loads(cwm.inside("plan", "--run", "made", "--env", "CartPole-v1", *short).stdout)
    assert again["returns"] == done["returns"]
    for other, words in (
        (
            ("--env", "Pendulum-v1"),
            "made is a run of CartPole-v1: use --env CartPole-v1, or leave out --env",
        ),
        (("--env-arg", "gravity=1"), "made was started with other environment arguments"),
    ):
        refused = cwm.inside("plan", "made", *other)
        assert (refused.returncode, words in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--program", "slow.py"), marks=pytest.mark.slow),
        ("--program", "slow.py", "--workers", "2"),
        pytest.param(("--real-env", "--workers", "2"), marks=pytest.mark.slow),
    ],
)
def test_interrupted_plan_leaves_no_process_running(cwm, arguments) -> None:
    (cwm.folder / "slow.py").write_text(
        CARTPOLE.replace("x, v, angle", "sum(range(9999))\n        x, v, angle", 1)
    )
    process = cwm.start("plan", "--env", "CartPole-v1", *arguments)
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while (text := "".join(process.stderr.readline())) and "[10/10] do nothing" not in text:
        pass
    while len(family := watched.children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(family) >= 2, "workers, and processes for programs"
    for member in (process, *family):  # as a terminal does
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted after 20 of ")
    assert "the same command continues runs/plans/CartPole-v1-auto-0-" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=10)[1] == []
