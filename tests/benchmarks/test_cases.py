"""Benchmarks that measure each case in a process, with a lock and a result file."""

import fcntl
import subprocess
import sys

import pytest

from benchmarks.cases import case_file, load_cases
from benchmarks.learning.__main__ import load_baselines, load_results
from benchmarks.learning.ours import Case
from processes import wait_until


def start(folder, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", *words, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.mark.long
def test_commands_that_share_a_folder_measure_each_case_once(tmp_path):
    command = ("benchmarks.theories", "door", "--case", "best-of: always", "--seeds", "1")
    words = ("door", "best-of: always", "100")
    file = case_file(tmp_path, words)
    file.parent.mkdir(parents=True)
    with file.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = [start(tmp_path, *command), start(tmp_path, *command)]
        log = tmp_path / "logs" / f"{file.stem}.txt"
        assert wait_until(
            lambda: log.exists() and "another process is using it" in log.read_text(), 60
        )
        assert load_cases(tmp_path) == {}
    outs = [finish(each) for each in waiting]
    found = load_cases(tmp_path)
    assert list(found) == [words]
    for out in outs:
        assert "door, best-of: always, seed 100 (" in out
        assert "best-of" in out.partition("rules read exactly")[2]
    again = finish(start(tmp_path, *command))
    assert "seed 100" not in again and "1 of 1" in again
    assert load_cases(tmp_path) == found

    missing = start(tmp_path, *command, "-o", "executor.nothing=1")
    assert "unknown option 'executor.nothing'" in missing.communicate(timeout=60)[1]


@pytest.mark.long
def test_learning_benchmark_measures_cases_with_the_named_executor(tmp_path):
    pytest.importorskip("submitit")
    here = ("--executor", "slurm", "-o", "executor.cluster=local", "--workers", "2")
    out = finish(start(tmp_path, "benchmarks.learning", "CliffWalking-v1", *here, "--seeds", "10"))
    assert "CliffWalking-v1 10: " in out and "1 of 1" in out
    ours = load_results(tmp_path)
    assert list(ours) == [Case("CliffWalking-v1", 10)]
    assert ours[Case("CliffWalking-v1", 10)]["returned"] == -13.0

    # A table needs no stable-baselines3.
    words = ("baseline", "FrozenLake 4x4, dry", "tabular Q", "77", "1.0")
    finish(start(tmp_path, "benchmarks.learning", "--one", *words))
    rows = [row for row in load_baselines(tmp_path) if row["seed"] == "77"]
    assert [(row["name"], row["algorithm"], row["best"]) for row in rows] == [
        ("FrozenLake 4x4, dry", "tabular Q", "1.0")
    ]
