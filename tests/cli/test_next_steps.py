"""`cwm` alone: the next sensible step in a folder, then the commands."""

import fcntl
import json
import os

import pytest


@pytest.fixture
def begun(cwm):
    """Write what `cwm alone` looks at of a run; return its folder."""

    def write(name: str, *, age: int, kind: str = "search", over: bool = False, typed=()):
        folder = cwm.folder / "runs" / name
        folder.mkdir(parents=True)
        header = {"kind": kind, "config": {"env": "CartPole-v1"}, "command": list(typed)}
        (folder / "run.json").write_text(json.dumps(header))
        os.utime(folder / "run.json", (10_000 - age, 10_000 - age))
        if over:
            (folder / "result.json").write_text("{}")
        return folder

    return write


def told(done):
    """Return the text before the usage."""
    return done.stdout.partition("Usage")[0]


def test_an_empty_folder_gets_the_first_command_and_how_to_name_a_model(cwm):
    done = cwm.inside()
    assert "cwm synthesize --env CartPole-v1" in told(done)
    assert ("models" in told(done)) == (not any(n.endswith("_API_KEY") for n in os.environ))
    assert done.returncode == 2 and "benchmark" in done.stdout


def test_a_model_or_a_key_needs_no_advice(cwm):
    for variables in ({"CWM_MODEL": "openai/gpt-5"}, {"OPENAI_API_KEY": "k"}):
        cwm.environment = variables
        assert "models" not in told(cwm.inside())


def test_a_finished_run_is_played_with_and_looked_at(cwm, begun):
    begun("old", age=9, over=True)
    begun("new one", age=1, over=True)
    words = told(cwm.inside())
    assert "cwm plan 'runs/new one'" in words and "cwm runs report 'runs/new one'" in words
    assert "old" not in words and "synthesize" not in words


HEATER = """
import gymnasium as gym
import numpy as np

class Heater(gym.Env):
    observation_space = gym.spaces.Box(0, 150, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)
"""


@pytest.mark.slow
def test_a_run_on_a_log_without_a_simulator_is_not_planned_with(cwm):
    (cwm.folder / "heater.py").write_text(HEATER)
    lines = ["observation_0,action,next_observation_0,reward,terminated,truncated,episode"]
    for episode in range(6):
        for step in range(10):
            warmth, action = 20 + 3 * episode + step, step % 3
            after = warmth + 2 * action - 1
            lines.append(f"{warmth},{action},{after},0.0,false,{str(step == 9).lower()},{episode}")
    (cwm.folder / "log.csv").write_text("\n".join(lines))
    assert cwm.inside("data", "import", "log.csv", "--env", "heater.py").returncode == 0
    done = cwm.inside("synthesize", "--env", "heater.py", "--dataset", "log.npz", "--budget", "1")
    run = done.stdout.partition("Program: ")[2].partition("/best.py")[0]
    assert f"Next:    cwm runs export {run}" in done.stdout
    assert cwm.inside("evaluate", run).returncode == 0
    words = told(cwm.inside())
    assert "cwm plan" not in words and "cwm runs report" in words
    assert "all recorded rewards are 0: define a reward" in cwm.inside("plan", run).stderr


DAMAGED_HEADERS = {
    "no kind": lambda file: file.write_text('{"config": {}}'),
    "no configuration": lambda file: file.write_text('{"kind": "search"}'),
    "too deep": lambda file: file.write_text("[" * 5000),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("damage", DAMAGED_HEADERS.values(), ids=DAMAGED_HEADERS)
def test_a_damaged_run_is_passed_over(cwm, begun, damage):
    damage(begun("damaged", age=1) / "run.json")
    begun("whole", age=9, over=True)
    assert "cwm plan runs/whole" in told(cwm.inside())


def test_a_lock_that_is_a_pipe_is_no_lock(cwm, begun):
    os.mkfifo(begun("a", age=1, typed=("synthesize", "--env", "CartPole-v1")) / "lock")
    assert "cwm synthesize --env CartPole-v1  (runs/a is unfinished)" in told(cwm.inside())


def test_an_unfinished_run_goes_on_by_what_was_typed(cwm, begun):
    begun("a", age=1, typed=("synthesize", "--env", "CartPole-v1", "-o", "a=b c"))
    assert "cwm synthesize --env CartPole-v1 -o 'a=b c'  (runs/a is unfinished)" in told(
        cwm.inside()
    )


def test_a_run_that_a_process_works_on_is_not_continued(cwm, begun):
    folder = begun("a", age=1, typed=("synthesize",))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = told(cwm.inside())
    assert "running" in words and "unfinished" not in words


def test_what_is_no_run_or_hostile_does_no_harm(cwm, begun):
    for name, text in {"list": "[]", "text": "no", "empty": "", "deep": "[" * 10_000}.items():
        (begun(name, age=3) / "run.json").write_text(text)
    header = begun("hostile", age=1, over=True) / "run.json"
    header.write_text(
        json.dumps({"kind": "search\x1b[2J", "config": {"env": "\x07"}, "command": 3})
    )
    (begun("numbers", age=2) / "run.json").write_text('{"kind": 1, "config": 3}')
    done = cwm.inside()
    assert done.returncode == 2
    assert "\x1b[2J" not in done.stdout and "\x07" not in done.stdout


@pytest.mark.slow
def test_a_run_knows_what_was_typed_to_begin_it(cwm):
    cwm("synthesize", "--env", "CartPole-v1", "--budget", "1", "--run", "runs/a", "--quiet")
    (cwm.folder / "runs" / "a" / "result.json").unlink()
    assert "cwm synthesize --env CartPole-v1 --budget 1 --run runs/a" in told(cwm())
