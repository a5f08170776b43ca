"""`cwm train` with a model that needs no torch: results, resuming, errors and views."""

import json
import os
import re
import signal
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import cwm_cli
from cwm_cli import CwmError
from cwm_cli._version import code_version
from cwm_neural.training.runs import TrainingResult, TrainRun
from cwm_neural.view import training_report, training_view
from folders import SUPPORT
from processes import wait_until
from training_runs import Crash, journal_lines

PLUGIN = (SUPPORT / "linear_training.py").read_text()
POLE = ("train", "--env", "CartPole-v1", "--model", "linear")
OPTIONS = ("every=40", "warm_up=40", "test_every=2", "tests=2", "max_steps=50")
SHORT = tuple(word for option in OPTIONS for word in ("-o", option))


@pytest.fixture
def pole(cwm):
    cwm.install("linear_training", PLUGIN)
    return cwm


def test_train_records_every_epoch_of_model_and_agent(pole) -> None:
    done = pole.inside(*POLE, *SHORT, "--steps", "200", "--run", "r", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["steps"], found["epochs"]) == (200, 5)
    assert found["parameters"] == {"linear": 24, "policy": 4}
    header = json.loads((pole.folder / "r" / "run.json").read_text())
    assert (header["versions"]["cwm"], header["code"]) == (cwm_cli.__version__, code_version())
    assert header["config"]["options"]["training"]["every"] == 40
    journal = journal_lines(pole.folder / "r")
    epochs = [each for each in journal if each["kind"] == "epoch"]
    assert [each["steps"] for each in epochs] == [40, 80, 120, 160, 200]
    assert epochs[-1]["losses"]["error"] < epochs[0]["losses"]["error"]
    assert "held_out" in epochs[-1]
    assert epochs[-1]["held_out"]["off"] < 0.1
    assert [each["epoch"] for each in found["tests"]] == [2, 4, 5]
    assert found["best"]["mean"] == max(each["mean"] for each in found["tests"])
    ended = [each for epoch in epochs for each in epoch["episodes"]]
    assert sum(each["length"] for each in ended) == ended[-1]["steps"]
    assert (pole.folder / "r" / "curve.svg").read_text().count("<svg") == 5
    assert "epoch 5  step 200  " in done.stderr
    checkpoints = {each.name for each in (pole.folder / "r" / "checkpoints").iterdir()}
    assert checkpoints == {"000005", f"{found['best']['epoch']:06}"}
    shown = pole.inside("runs", "show", "r").stdout
    for title in ("losses by epoch", "held out, by epoch", "test episodes"):
        assert title in shown
    (listed,) = json.loads(pole.inside("runs", "list", "r", "--json").stdout)["runs"]
    assert (listed["kind"], listed["done"]) == ("train", "200 steps")


@pytest.mark.slow
def test_killed_training_continues_to_the_same_result(pole) -> None:
    command = (*POLE, *SHORT, "--steps", "200")
    assert pole.inside(*command, "--run", "whole").returncode == 0
    slow = (*command, "-o", "patience=0.05", "--run", "killed")
    process, journal = pole.start(*slow), pole.folder / "killed" / "journal.jsonl"
    assert wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 4, 60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = pole.inside(*slow)
    assert done.returncode == 0, done.stderr
    assert "continues after " in done.stderr
    assert journal_lines(pole.folder / "killed") == journal_lines(pole.folder / "whole")


@pytest.fixture
def here(pole, monkeypatch):
    """Activate the plugin in this process; return the folder."""
    with pole._plugins_here(monkeypatch):
        yield pole.folder


TRAINED = {
    "env": "CartPole-v1",
    "model": "linear",
    "steps": 160,
    "options": OPTIONS,
}


@pytest.mark.slow
def test_crash_after_any_line_or_checkpoint_changes_nothing(here, monkeypatch) -> None:
    whole, broken = here / "whole", here / "broken"
    cwm_cli.train(**TRAINED, run=whole)
    methods = {name: getattr(TrainRun, name) for name in ("append", "save_checkpoint")}

    def crash_after(method):
        def crashing(run, *arguments):
            method(run, *arguments)
            raise Crash

        return crashing

    for times in range(100):
        try:
            with monkeypatch.context() as patch:
                if len(journal_lines(whole)) * 2 > times:
                    name = "append" if times % 2 == 0 else "save_checkpoint"
                    patch.setattr(TrainRun, name, crash_after(methods[name]))
                cwm_cli.train(**TRAINED, run=broken)
            if times >= len(journal_lines(whole)) * 2:
                break
        except Crash:
            pass
    assert journal_lines(broken) == journal_lines(whole)
    files = {each.relative_to(whole) for each in whole.rglob("*.npz")}
    assert files == {each.relative_to(broken) for each in broken.rglob("*.npz")}
    assert len(files) == 5 + 2 * len([*(whole / "checkpoints").iterdir()])
    for file in files:
        assert (broken / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.slow
def test_more_steps_continue_a_finished_run(here) -> None:
    for steps in (80, 160):
        cwm_cli.train(**{**TRAINED, "steps": steps}, run=here / "parts")
    cwm_cli.train(**TRAINED, run=here / "whole")
    assert journal_lines(here / "parts") == journal_lines(here / "whole")


@pytest.mark.slow
def test_training_on_a_dataset_collects_no_rows(pole) -> None:
    recorded = pole.inside(
        "collect", "--env", "CartPole-v1", "--policy", "random", "--out", "d.npz"
    )
    assert recorded.returncode == 0, recorded.stderr
    command = (*POLE, "--dataset", "d.npz", *SHORT, "--run", "r", "--json")
    found = json.loads(pole.inside(*command, "--steps", "120").stdout)
    assert (found["epochs"], found["returns"]) == (3, [])
    kinds = [each["kind"] for each in journal_lines(pole.folder / "r")]
    assert "rows" not in kinds
    assert found["held_out"]["off"] < 0.1
    own = ("train", "--env", "CartPole-v1", "--agent", "copying", "--dataset", "d.npz", *SHORT)
    found = json.loads(pole.inside(*own, "--steps", "40", "--json").stdout)
    assert found["parameters"] == {"policy": 4}  # the agent needs no model


PROGRAM = """
class Environment:
    def __init__(self):
        self.state = None

    def set_state(self, observation):
        self.state = list(observation)

    def step(self, action):
        x, v, angle, turning = self.state
        push = 0.2 if action else -0.2
        after = [x + 0.02 * v, v + push, angle + 0.02 * turning, turning - 1.5 * push]
        return after, 1.0, abs(after[0]) > 2.4 or abs(after[2]) > 0.2095
"""


@pytest.mark.slow
def test_agent_learns_in_a_program(pole) -> None:
    (pole.folder / "pole.py").write_text(PROGRAM)
    command = ("train", "--env", "CartPole-v1", "--world", "pole.py", "--agent", "climbing")
    done = pole.inside(*command, *SHORT, "-o", "tries=6", "--steps", "80", "--run", "r", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parameters"] == {"policy": 4}
    assert found["best"]["mean"] > 1.5 * found["random"]["mean"]
    assert "protection" in pole.inside("runs", "show", "r").stdout
    watched = pole.inside("play", "r", "--max-steps", "50", "--json")
    assert watched.returncode == 0, watched.stderr
    played = json.loads(watched.stdout)
    assert (played["mode"], played["episodes"][0]["truly"]) == ("agent", None)
    assert played["episodes"][0]["returned"] > found["random"]["mean"]
    refused = pole.inside("play", "r", "--mode", "human")
    assert "needs a world model" in refused.stderr


@pytest.mark.filterwarnings("ignore:.*encountered in matmul:RuntimeWarning")
def test_diverged_training_stops_with_a_reason_and_is_not_repeated(pole) -> None:
    command = (*POLE, *SHORT, "-o", "rate=3", "--steps", "200")
    done = pole.inside(*command)
    assert done.returncode == 1
    shown = done.stderr.strip().splitlines()[-1]
    assert "at update " in shown
    assert ", by step " in shown
    assert "a smaller rate (-o model.rate=...)" in shown
    again = pole.inside(*command)
    assert again.returncode == 1
    assert again.stderr.strip().splitlines()[-1] == shown
    (run,) = (pole.folder / "runs").iterdir()
    assert [each["kind"] for each in journal_lines(run)].count("diverged") == 1


REFUSED = {
    "unknown model": (["--model", "linaer"], "did you mean linear?"),
    "unknown agent": (["--agent", "climbng"], "did you mean climbing?"),
    "no tokenizer": (["--tokenizer", "grid"], "this model has no tokenizer"),
    "unknown profile": (["--profile", "tiy"], "did you mean tiny?"),
    "no GPU": (["--device", "cuda"], "the device cuda is not available here"),
    "no such device": (["--device", "gpu"], "unknown device"),
    "no steps": (["--steps", "0"], "at least 1"),
    "unknown option": (["-o", "rat=1"], "did you mean rate?"),
    "no folder": (["--init", "model"], "write --init model=RUN"),
    "no such folder": (["--init", "model=none"], "there is no checkpoint none"),
    "no such part": (["--freeze", "camera"], "no separate part 'camera'"),
    "no such rows": (["--dataset", "none.npz"], "there is no dataset none.npz"),
    "rows of something else": (["--dataset", "lake.npz"], "contains transitions of FrozenLake-v1"),
    "few rows": (["--dataset", "few.npz"], "at least 32 are needed"),
    "rows without numbers": (
        ["--dataset", "nan.npz"],
        "nan is not a finite number (row 3, counted from 0, column rewards)",
    ),
    "fewer than no tests": (["-o", "training.tests=-1"], "invalid option tests=-1"),
    "no steps of an episode": (["-o", "training.max_steps=0"], "invalid option max_steps=0"),
    "two worlds": (["--world", "pole.py"], "leave out --model"),
}


@pytest.mark.slow
def test_invalid_choices_are_refused_in_one_line_without_a_run(pole) -> None:
    (pole.folder / "pole.py").write_text(PROGRAM)
    recorded = {"lake": ("FrozenLake-v1", 1), "few": ("CartPole-v1", 1), "many": ("CartPole-v1", 9)}
    for name, (env, episodes) in recorded.items():
        few = ("--episodes", str(episodes), "--test-episodes", "1", "--max-steps", "5")
        policy = ("--policy", "random", "--out", f"{name}.npz")
        assert pole.inside("collect", "--env", env, *few, *policy).returncode == 0
    with np.load(pole.folder / "many.npz") as many:
        columns = dict(many)
    columns["rewards"][3] = np.nan
    np.savez(pole.folder / "nan.npz", **columns)
    wrong = {}
    for name, (given, words) in REFUSED.items():
        done = pole.inside(*POLE, *given, "--run", "r")
        shown = done.stderr.strip().splitlines()
        expected = 1 if done.returncode == 1 else len(shown)  # usage errors have a box
        if done.returncode not in (1, 2) or words not in done.stderr or len(shown) != expected:
            wrong[name] = done.stderr
        if (pole.folder / "r").exists():
            wrong[name] = "it left a run"
    assert not wrong


def test_rows_of_a_damaged_line_are_not_overwritten(pole) -> None:
    folder = pole.folder / "r"
    assert pole.inside(*POLE, *SHORT, "--steps", "80", "--run", "r").returncode == 0
    rows = {path: path.read_bytes() for path in folder.glob("rows-*.npz")}
    journal = folder / "journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if '"kind":"rows"' not in line]
    journal.write_text("\n".join(["damaged", *kept]) + "\n")
    done = pole.inside(*POLE, *SHORT, "--steps", "120", "--run", "r")
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in rows} == rows
    added = [line["file"] for line in journal_lines(folder) if line["kind"] == "rows"]
    assert added == ["rows-3.npz"]


@pytest.mark.slow
def test_parts_are_initialised_from_another_run_and_frozen(here) -> None:
    first = cwm_cli.train(**TRAINED, run=here / "first")
    again = cwm_cli.train(
        **TRAINED, seed=1, init={"linear": first.run}, freeze=["linear"], run=here / "again"
    )
    kept = TrainRun.load(first.run)
    best = kept.restore()[0].model.weights
    np.testing.assert_array_equal(TrainRun.load(again.run).restore()[0].model.weights, best)
    last = kept.restore({"checkpoint.checkpoint": "last"})[0].model.weights
    assert np.isfinite(last).all()
    with pytest.raises(CwmError, match=r"started with other settings, .*seed"):
        cwm_cli.train(**TRAINED, seed=2, run=here / "first")


def test_missing_torch_names_the_extra(here, monkeypatch) -> None:
    from linear_training import LinearTrainer

    monkeypatch.setattr(LinearTrainer, "requires", ("no_such_torch",))
    monkeypatch.setattr(LinearTrainer, "extra", "cwm-cli[neural]")
    with pytest.raises(CwmError, match=r"needs no_such_torch: pip install .*\[neural\]"):
        cwm_cli.train(**TRAINED)
    assert "no_such_torch" not in sys.modules


ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
HOSTILE = "\x1b[2J\x07\u202eevil [/x] 日本語"


def test_live_view_fits_any_terminal(here) -> None:
    view = training_view(terminal(100, 40))
    cwm_cli.train(**TRAINED, run=here / "r", observer=view)
    shown = drawn(view, 110, 45)
    assert shown[0].startswith("CartPole-v1 · linear · climbing")
    assert sum("\u2502" in line for line in shown) > 5
    assert any("held-out  off " in line for line in shown)
    assert "160/160 steps" in shown[-1]
    view.epochs[-1] = view.epochs[-1].model_copy(update={"losses": {HOSTILE: 1.0}})
    view.work.doing = HOSTILE
    for width, height in [(200, 50), (40, 24), (12, 6), (80, 5), (80, 2)]:
        shown = drawn(view, width, height)
        assert len(shown) <= max(height - 1, 1)
        assert all(cell_len(line) <= width for line in shown)
        assert not set("".join(shown)) & set("\x1b\x07\u202e")


def drawn(view, width: int, height: int) -> list[str]:
    console = terminal(width, height)
    view.pane._console = console
    console.print(view.pane)
    return ESCAPES.sub("", console.file.getvalue()).rstrip("\n").split("\n")


def terminal(width: int, height: int) -> Console:
    return Console(
        file=StringIO(), force_terminal=True, width=width, height=height, legacy_windows=False
    )


@pytest.mark.parametrize(("has_simulator", "command"), [(True, "plan"), (False, "runs show")])
def test_report_suggests_plan_only_with_a_simulator(has_simulator, command) -> None:
    result = TrainingResult(Path("r"), [], [], None, 300, {}, 0.0, has_simulator=has_simulator)
    for curve in ([Path("r/curve.svg")], []):  # without epochs that learn, there are no curves
        *_, last = training_report(result, curve)
        assert str(last).split() == ["Next:", "cwm", *command.split(), "r"]
