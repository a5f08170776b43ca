"""Experiment trackers: the numbers that they receive, and failing trackers."""

import json
import sqlite3
import sys
from importlib.util import find_spec

import pytest

RECORDER = """
import json
from cwm_cli import hookimpl
from cwm_cli.commands.trackers import Tracker

class Recorder(Tracker):
    def write(self, *words):
        print("a tracker prints")
        with open("told.jsonl", "a") as file:
            print(json.dumps(words), file=file)
    def begin(self, project, name, config):
        self.write("begin", project, name, config)
    def log(self, numbers, step):
        self.write("log", step, numbers)
    def finish(self):
        self.write("finish")

class Failing(Recorder):
    def log(self, numbers, step):
        raise ConnectionError("the server is gone")

@hookimpl
def cwm_trackers():
    return {"recorder": Recorder, "failing": "recorder:Failing"}
"""
SEARCH = ("synthesize", "--env", "CartPole-v1", "--budget", "1", "--run", "runs/a", "--json")


@pytest.fixture
def shell(cwm):
    cwm.install("recorder", RECORDER)
    return cwm


def told(shell):
    """Return the calls of the tracker."""
    return [json.loads(line) for line in (shell.folder / "told.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_search_tells_its_choices_its_scores_and_what_it_spent(shell):
    done = shell(*SEARCH, "--track", "poles", "--tracker", "recorder")
    assert json.loads(done.stdout)["solved"]  # what the tracker printed is not there
    (_, project, name, config), *logs, end = told(shell)
    assert (project, name, end) == ("poles", "a", ["finish"])
    assert config["kind"] == "search" and config["env"] == "CartPole-v1" and config["seed"] == 0
    steps = [step for _, step, _ in logs]
    assert steps == sorted(steps) and len(logs) == len(steps) > 0
    last = logs[-1][2]
    assert last["best"] == last["score"] == 1.0 and last["completions"] == 1 and last["cost"] == 0
    assert last["seconds"] > 0


@pytest.mark.long
def test_a_tracker_that_fails_is_one_warning_and_the_run_goes_on(shell):
    done = shell(*SEARCH, "--track", "poles", "--tracker", "failing")
    assert done.returncode == 0 and json.loads(done.stdout)["solved"]
    warnings = [line for line in done.stderr.splitlines() if "tracker failed" in line]
    assert warnings == [
        "Warning: the tracker failed (ConnectionError: the server is gone): the run continues "
        "without it"
    ]


@pytest.mark.long
def test_training_learning_and_benchmarks_are_tracked_too(shell):
    commands = {
        "train": "--env CartPole-v1 --model dummy --agent random --steps 60",
        "learn": "--env FrozenLake-v1 --env-arg is_slippery=false --steps 60",
        "benchmark": "--env CartPole-v1 --budget 1",
    }
    wanted = {
        "train": {"epoch", "test/return"},
        "learn": {"return", "length", "program/unexplained"},
        "benchmark": {"jobs", "best", "cost"},
    }
    failed = {}
    for kind, words in commands.items():
        (shell.folder / "told.jsonl").unlink(missing_ok=True)
        done = shell(
            kind, *words.split(), "--run", f"runs/{kind}", "--track", "p", "--tracker", "recorder"
        )
        begun, *logs, end = told(shell)
        names = {name for _, _, numbers in logs for name in numbers}
        if begun[3]["kind"] != kind or end != ["finish"] or wanted[kind] - names:
            failed[kind] = (begun, names, done.stderr)
    assert not failed


@pytest.mark.slow
def test_what_cannot_be_tracked_is_refused_before_the_run_begins(shell):
    shell.environment = {"PYTHONSAFEPATH": "1"}
    refused = {
        ("--tracker", "recorder"): "needs a project: add --track PROJECT",
        ("--track", "p", "--tracker", "recordr"): "did you mean recorder?",
    }
    if find_spec("wandb") is None:
        refused["--track", "p", "--tracker", "wandb"] = "pip install wandb"
    for words, reason in refused.items():
        done = shell.inside(*SEARCH, *words)
        assert done.returncode == 1 and reason in done.stderr and done.stderr.count("\n") == 1
    assert not (shell.folder / "runs").exists()


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
@pytest.mark.slow
def test_trackio_keeps_the_numbers_on_this_machine(cwm):
    cwm.environment = {"TRACKIO_DIR": str(cwm.folder / "kept"), "PYTHONPATH": ":".join(sys.path)}
    done = cwm(*SEARCH, "--track", "poles", "--tracker", "trackio")
    assert json.loads(done.stdout)["solved"] and "tracker failed" not in done.stderr
    with sqlite3.connect(cwm.folder / "kept" / "poles.db") as database:
        rows = database.execute("select metrics from metrics").fetchall()
    assert json.loads(rows[-1][0])["best"] == 1.0
