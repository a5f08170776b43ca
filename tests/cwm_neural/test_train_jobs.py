"""`cwm train --executor`: a training in a job, on this machine and on Slurm; a PBS script."""

import json
import os
import signal
import subprocess
import sys

import pytest

import slurm_cluster
from folders import ROOT, SUPPORT
from processes import wait_until
from training_runs import journal_lines
from worlds import CARTPOLE

PLUGIN = (SUPPORT / "linear_training.py").read_text()
SCHEDULE = ("every=40", "warm_up=40", "test_every=2", "tests=2", "max_steps=50")
OPTIONS = tuple(word for option in SCHEDULE for word in ("-o", option))
POLE = ("train", "--env", "CartPole-v1", "--model", "linear", *OPTIONS)

pytestmark = pytest.mark.slow


@pytest.fixture
def pole(cwm):
    cwm.install("linear_training", PLUGIN)
    return cwm


def test_job_gives_the_same_run_and_reports_its_epochs(pole) -> None:
    assert pole.inside(*POLE, "--steps", "120", "--run", "here").returncode == 0
    done = pole(*POLE, "--steps", "120", "--run", "job", "--executor", "local")
    assert done.returncode == 0, done.stderr
    assert journal_lines(pole.folder / "job") == journal_lines(pole.folder / "here")
    assert "epoch 3  step 120  " in done.stderr
    assert "Trained on 120 steps" in done.stdout
    assert "epoch 3  step 120  " in (pole.folder / "job" / "job.txt").read_text()


def test_agent_learns_in_a_program_and_on_rows_in_a_job(pole) -> None:
    rows = pole.inside("collect", "--env", "CartPole-v1", "--policy", "random", "--out", "d.npz")
    assert rows.returncode == 0, rows.stderr
    (pole.folder / "pole.py").write_text(CARTPOLE)
    command = ("train", "--env", "CartPole-v1", "--world", "pole.py", "--agent", "climbing")
    more = ("--dataset", "d.npz", *OPTIONS, "--steps", "80", "--run", "r", "--json")
    done = pole(*command, *more, "--executor", "local")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["steps"], found["parameters"]) == (80, {"policy": 4})
    again = pole(*command, *more)  # the same run in this process: it is finished
    assert json.loads(again.stdout)["tests"] == found["tests"]


def test_interrupted_job_ends_and_continues_by_the_same_command(pole) -> None:
    command = (*POLE, "-o", "patience=0.1", "--steps", "160", "--executor", "local")
    process = pole.start(*command)
    runs = pole.folder / "runs"
    assert wait_until(lambda: any(b'"epoch"' in f.read_bytes() for f in runs.glob("*/*.jsonl")), 60)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    [run] = runs.iterdir()
    assert f"interrupted: the same command continues runs/{run.name}" in errors
    done = pole(*command)
    assert done.returncode == 0, done.stderr
    assert list(runs.iterdir()) == [run]
    assert "continues after " in (run / "job.txt").read_text()
    assert journal_lines(run)[-1]["number"] == 4


def test_error_of_a_job_is_one_line(pole) -> None:
    rate = ("-o", "model.rate=1e9", "--steps", "80", "--run", "bad")
    failed = pole(*POLE, *rate, "--executor", "local")
    assert failed.returncode == 1
    assert "a smaller rate (-o model.rate=...)" in failed.stderr.splitlines()[-1]
    stored = pole.inside(*POLE, "--run", "memory://bad", "--executor", "local")
    assert stored.stderr == (
        "Error: memory://bad is no folder, which a job needs: choose another --run\n"
    )
    unknown = pole.inside(*POLE, "--executor", "lokal")
    assert unknown.stderr == "Error: unknown executor 'lokal': did you mean local?\n"
    option = pole.inside(*POLE, "-o", "executor.minutes=5")
    assert option.returncode == 1
    assert "executor.minutes" in option.stderr


def test_training_runs_as_a_slurm_job(pole) -> None:
    pytest.importorskip("submitit")
    cluster = pole.folder / "cluster"
    pole.environment.update(slurm_cluster.install(cluster))
    options = ("-o", "executor.poll_seconds=0.3", "-o", "executor.partition=gpu")
    done = pole(*POLE, "--steps", "80", "--run", "r", "--executor", "slurm", *options)
    assert done.returncode == 0, done.stderr
    [script] = (cluster / "jobs").glob("*.sh")
    assert "#SBATCH --partition=gpu\n" in script.read_text()
    assert set(slurm_cluster.states(cluster / "jobs").values()) <= {"RUNNING", "COMPLETED"}
    assert [each["kind"] for each in journal_lines(pole.folder / "r")].count("epoch") == 2
    assert not list((pole.folder / "r").glob("slurm-*"))


def test_pbs_script_trains_in_the_scratch_folder_and_continues(pole) -> None:
    """Run the script as PBS does: with its variables, and with a signal at the time limit."""
    scratch = pole.folder / "scratch"
    commands = pole.folder / "bin"
    commands.mkdir()
    cwm = commands / "cwm"
    cwm.write_text(f'#!/bin/sh\nexec {sys.executable} -m cwm_cli "$@"\n')
    cwm.chmod(0o755)
    slow = " ".join((*POLE[1:], "-o patience=0.1"))
    variables = pole.variables() | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PBS_O_WORKDIR": str(pole.folder),
        "SCRATCHDIR": str(scratch),
        "RUN": "pole",
        "ARGUMENTS": f"{slow} --steps 160",
    }
    script = ("bash", str(ROOT / "examples" / "pbs" / "train.sh"))
    journal, kept = scratch / "pole" / "journal.jsonl", pole.folder / "pole"
    scratch.mkdir()
    process = subprocess.Popen(script, env=variables, stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: journal.exists() and b'"epoch"' in journal.read_bytes(), 60)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode != 0
    epochs = [each for each in journal_lines(kept) if each["kind"] == "epoch"]
    assert 1 <= len(epochs) < 4
    assert not list(scratch.iterdir())
    kept.rename(pole.folder / ".pole.new")  # as if the job had ended while it saved the run
    (pole.folder / ".pole.part").mkdir()
    again = subprocess.run(script, env=variables, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0, again.stderr
    assert "pole continues after " in again.stderr
    assert journal_lines(kept)[-1]["number"] == 4
    assert not list(pole.folder.glob(".pole.*"))
