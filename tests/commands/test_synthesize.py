"""`cwm synthesize` as a user meets it: real runs, killed runs, continued runs, refusals."""

import json
import signal
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import ProgramModel

TEACHER = '''
"""A backend with no network: programs of random quality, drawn from the request's seed."""
import random
import time
from dataclasses import dataclass, field
from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend

PROGRAM = """```python
import math

class Environment:
    TAU = {tau}

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        x, v, a, w = self.state
        {bug}
        self.state = [x + self.TAU * v, v, a + self.TAU * w, w]
        return self.state, 1.0, abs(self.state[2]) > {limit}
```"""

@hookimpl
def cwm_backends():
    return {"teacher": Teacher}

@dataclass(frozen=True)
class Teacher(Backend):
    model: str = ""
    delay: float = field(default=0.0, metadata={"identity": False})
    price: float = 0.01

    def complete(self, request):
        from cwm_cli.search.contracts import Completion, Usage
        time.sleep(self.delay)
        draw = random.Random(request.seed)
        bug = draw.choice(["pass", "pass", "undefined_name", "print('\\\\x1b[2J garbage')"])
        text = PROGRAM.format(tau=draw.choice([0.01, 0.02]), bug=bug, limit=draw.random())
        usage = Usage(prompt_tokens=100, completion_tokens=10, cost=self.price, seconds=self.delay)
        return Completion(text, usage)

    def worst_cost(self, request):
        return 2 * self.price
'''
FAST = ["--env", "CartPole-v1", "--backend", "teacher", "--budget"]


@pytest.fixture
def teacher(cwm):
    cwm.install("teacher_plugin", TEACHER)
    return cwm


def journal(shell, folder):
    """Read a journal without the times."""
    lines = (shell.folder / folder / "nodes.jsonl").read_text().splitlines()
    nodes = [json.loads(line) for line in lines]
    for node in nodes:
        node["node"]["usage"]["seconds"] = 0
    return nodes


def test_the_main_job_writes_an_exact_program_offline(cwm):
    answer = cwm("synthesize", "--env", "CartPole-v1", "--json")
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["solved"]
    assert result["train"]["accuracy"] == 1.0
    assert result["test"]["accuracy"] == 1.0
    assert result["cost"] == 0
    assert "induction" in answer.stderr
    assert "--model" in answer.stderr
    assert "class Environment" in (cwm.folder / result["program"]).read_text()


NOISE = """
import gymnasium
import numpy as np


class Noise(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 1), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 1), float(self.np_random.uniform()), False, False, {}


gymnasium.register("Noise-v0", entry_point=Noise, max_episode_steps=50)
"""


@pytest.mark.long
def test_where_data_tell_nothing_it_gives_up_and_advises_a_language_model(cwm):
    (cwm.folder / "noise.py").write_text(NOISE)
    env = ("--env", "noise:Noise-v0")
    cwm("collect", *env, "--policy", "random", "--max-steps", "20", "--out", "noise.npz")
    given = ("--dataset", "noise.npz", "--budget", "5", "--run", "noise")
    answer = cwm("synthesize", *env, *given)
    assert answer.returncode == 0, answer.stderr
    assert "gave up" in answer.stderr
    assert "\nadvice  a language model may find more" in answer.stdout
    assert answer.stdout.splitlines()[-1].startswith("learn   cwm learn --env noise:Noise-v0")
    assert len(journal(cwm, "noise")) == 1


@pytest.mark.slow
def test_a_run_killed_at_any_moment_goes_on_to_the_tree_of_an_uncut_run(teacher):
    teacher.inside("synthesize", *FAST, "12", "--run", "uncut")
    slow = ["synthesize", *FAST, "12", "--run", "cut", "-o", "delay=0.05"]
    for kept in (2, 5, 9):
        process = teacher.start(*slow)
        file = teacher.folder / "cut" / "nodes.jsonl"
        deadline = time.monotonic() + 60
        while not file.exists() or file.read_bytes().count(b"\n") < kept:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.communicate()
    answer = teacher.inside(*slow)
    assert "continues with" in answer.stderr
    assert len(journal(teacher, "uncut")) == 12
    assert journal(teacher, "cut") == journal(teacher, "uncut")
    best = [(teacher.folder / run / "best.py").read_text() for run in ("cut", "uncut")]
    assert best[0] == best[1]


@pytest.mark.slow
def test_a_crash_before_the_best_program_was_saved_is_made_good(teacher):
    arguments = ["synthesize", *FAST, "4", "--run", "r"]
    teacher.inside(*arguments)
    best = (teacher.folder / "r" / "best.py").read_text()
    (teacher.folder / "r" / "best.py").write_text("stale")
    assert teacher.inside(*arguments).returncode == 0
    assert (teacher.folder / "r" / "best.py").read_text() == best


@pytest.mark.slow
def test_ctrl_c_keeps_the_run_and_says_how_to_go_on(teacher):
    process = teacher.start("synthesize", *FAST, "50", "--run", "r", "-o", "delay=0.05")
    file = teacher.folder / "r" / "nodes.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues the run r" in err
    assert "Traceback" not in err
    assert len(journal(teacher, "r")) >= 3


@pytest.mark.long
def test_without_a_run_folder_the_newest_unfinished_equal_run_goes_on(teacher):
    first = json.loads(teacher.inside("synthesize", *FAST, "3", "--json").stdout)["run"]
    longer = teacher.inside("synthesize", *FAST, "5", "--json")
    assert json.loads(longer.stdout)["run"] == first
    assert "continues with 3 nodes" in longer.stderr
    other = json.loads(teacher.inside("synthesize", *FAST, "3", "--seed", "1", "--json").stdout)[
        "run"
    ]
    assert other != first
    finished = json.loads(teacher.inside("synthesize", *FAST, "5", "--json").stdout)["run"]
    assert finished not in (first, other)
    fresh = json.loads(teacher.inside("synthesize", *FAST, "9", "--new", "--json").stdout)["run"]
    assert fresh not in (first, other, finished)


@pytest.mark.slow
def test_a_folder_of_other_settings_is_refused_and_left_alone(teacher):
    teacher.inside("synthesize", *FAST, "2", "--run", "r")
    before = journal(teacher, "r")
    env = ("--env", "CartPole-v1")
    teacher.inside("collect", *env, "--policy", "random", "--seed", "1", "--out", "other.npz")
    for change, name in (
        (["--seed", "1"], "seed"),
        (["-o", "exploration=0.5"], "strategy.exploration"),
        (["--strategy", "zero-shot"], "strategy"),
        (["--metric", "paper"], "metric"),
        (["--dataset", "other.npz"], "dataset"),
    ):
        refused = teacher.inside("synthesize", *FAST, "4", "--run", "r", *change)
        assert refused.returncode == 1
        assert f"r was started with other settings, {name}" in refused.stderr
    assert journal(teacher, "r") == before
    assert teacher.inside("synthesize", *FAST, "3", "--run", "r", "--parallel", "2").returncode == 0


@pytest.mark.slow
def test_parallel_completions_reach_the_budget_and_replay_to_the_same_tree(teacher):
    arguments = ["synthesize", *FAST, "12", "--run", "r", "--parallel", "3", "-o", "delay=0.02"]
    assert teacher.inside(*arguments, "--json").returncode == 0
    nodes = [line["node"] for line in journal(teacher, "r")]
    assert [node["id"] for node in nodes] == list(range(12))
    assert sorted(node["step"] for node in nodes) == list(range(12))
    shown = teacher.inside("runs", "show", "r")
    assert shown.returncode == 0
    assert "12" in shown.stdout


@pytest.mark.slow
def test_max_cost_stops_before_it_is_exceeded(teacher):
    answer = teacher.inside("synthesize", *FAST, "20", "--max-cost", "0.055", "--json")
    result = json.loads(answer.stdout)
    assert result["completions"] == 4
    assert result["cost"] == pytest.approx(0.04)
    assert "--max-cost" in answer.stderr


@pytest.mark.slow
def test_what_programs_print_reaches_neither_terminal_nor_json(teacher):
    answer = teacher("synthesize", *FAST, "10", "--json")
    assert json.loads(answer.stdout)["completions"] == 10
    assert "garbage" not in answer.stderr
    assert "\x1b" not in answer.stderr


@pytest.mark.long
def test_a_replayed_run_has_the_same_tree(teacher):
    teacher.inside("synthesize", *FAST, "8", "--run", "first")
    arguments = ["--env", "CartPole-v1", "--backend", "replay", "--model", "first"]
    answer = teacher.inside("synthesize", *arguments, "--budget", "8", "--run", "second", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["cost"] == 0
    first, second = journal(teacher, "first"), journal(teacher, "second")
    for line in first + second:
        line["node"]["usage"] = None
    assert first == second


@pytest.mark.slow
def test_a_dataset_brings_the_arguments_it_was_recorded_with(cwm):
    lake = ["--env", "FrozenLake-v1"]
    dry = ["--env-arg", "is_slippery=false", "--policy", "random"]
    cwm.inside("collect", *lake, *dry, "--out", "dry.npz")
    answer = cwm.inside("synthesize", *lake, "--dataset", "dry.npz", "--run", "r", "--json")
    assert json.loads(answer.stdout)["solved"]
    config = json.loads((cwm.folder / "r" / "run.json").read_text())["config"]
    assert config["env_args"] == {"is_slippery": False}
    wet = ["--env-arg", "is_slippery=true"]
    refused = cwm.inside("synthesize", *lake, "--dataset", "dry.npz", *wet)
    assert refused.returncode == 1
    assert "recorded with --env-arg {'is_slippery': False}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Cartpole-v1"], "did you mean CartPole-v1?"),
        ([], "name one environment"),
        (["--env", "CartPole-v1", "--idx", "3"], "name one environment"),
        (["--idx", "99"], "choose 0 to 18"),
        (["--env", "CartPole-v1", "--dataset", "none.npz"], "there is no dataset none.npz"),
        (["--env", "CartPole-v1", "--backend", "litellm"], "add --model PROVIDER/NAME"),
        (["--env", "CartPole-v1", "--temperature", "1"], "has no option --temperature"),
        (["--env", "CartPole-v1", "-o", "nonsense=1"], "unknown option 'nonsense'"),
        (["--env", "CartPole-v1", "--env-arg", "x"], "write --env-arg KEY=VALUE"),
        (["--env", "CartPole-v1", "--env-arg", "wings=2"], "wings"),
    ],
)
def test_a_mistake_is_answered_in_one_line(cwm, arguments, message):
    refused = cwm.inside("synthesize", *arguments)
    assert refused.returncode == 1
    errors = [line for line in refused.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not (cwm.folder / "runs").exists()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_the_dry_lake_is_exact_wherever_the_train_data_has_been(cwm, seed):
    lake = ["--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--data-seed", str(seed)]
    assert cwm("synthesize", *lake, "--run", "r").returncode == 0
    run = SearchRun.load(cwm.folder / "r")
    data = run.dataset()
    known = {(row.observation, row.action) for row in data.train}
    seen = np.array([(row.observation, row.action) in known for row in data.test])
    with Sandbox() as sandbox:
        metric = AccuracyMetric.of(data.train)
        found = evaluate(ProgramModel(run.best_program(), sandbox), data.test[seen], metric)
    assert seen.any()
    assert (found.rows == 1.0).all()


@pytest.mark.slow
def test_the_next_command_for_an_inexact_program_of_a_body_is_plan(cwm):
    pytest.importorskip("mujoco")
    env = "InvertedDoublePendulum-v5"
    data = str(files("data.cwm_data") / f"{env}.npz")
    answer = cwm.inside("synthesize", "--env", env, "--dataset", data, "--body", "env")
    assert "Not solved" in answer.stdout + answer.stderr
    assert "Next:    cwm plan" in answer.stdout + answer.stderr


WHEEL = """<mujoco>
  <worldbody><body><joint name="a" axis="0 0 1"/><geom size="0.1"/></body></worldbody>
  <actuator><motor joint="a"/></actuator>
</mujoco>"""


@pytest.mark.slow
def test_a_given_body_is_named_in_every_report(cwm):
    pytest.importorskip("mujoco")
    data = Path(str(files("data.cwm_data") / "InvertedPendulum-v5.npz"))
    words = ["synthesize", "--env", "InvertedPendulum-v5", "--dataset", str(data), "--run", "own"]
    answer = cwm.inside(*words, "--body", "env", "--json")
    assert answer.returncode == 0, answer.stderr
    origin = "the environment's own model (--body env)"
    result = json.loads(answer.stdout)
    assert result["solved"]
    assert result["body"] == origin
    assert f"Body:    {origin}" in answer.stderr
    folder = cwm.folder / "own"
    assert (folder / "best.py").read_text().startswith(f"# The body is {origin}.\n")
    assert json.loads((folder / "run.json").read_text())["body"] == origin
    assert f"body: {origin}" in cwm.inside("runs", "report", "own").stdout
    assert "<mujoco" in (folder / "body.xml").read_text()
    # another body is another search
    other = (folder / "body.xml").read_text().replace('gear="100', 'gear="90')
    (cwm.folder / "other.xml").write_text(other)
    answer = cwm.inside(*words, "--body", "other.xml")
    assert answer.returncode == 1
    assert "body" in answer.stderr


@pytest.mark.slow
def test_a_body_that_explains_no_transition_is_reported(cwm):
    pytest.importorskip("mujoco")
    data = Path(str(files("data.cwm_data") / "InvertedPendulum-v5.npz"))
    (cwm.folder / "wheel.xml").write_text(WHEEL)
    words = ["synthesize", "--env", "InvertedPendulum-v5", "--dataset", str(data)]
    answer = cwm.inside(*words, "--body", "wheel.xml", "--budget", "1")
    assert "the best program does not simulate the body" in answer.stderr
