"""`cwm benchmark` as a user meets it: many jobs, some that fail, killed, continued, compared."""

import csv
import json
import os
import re
import signal
import sys
import time
from io import StringIO

import psutil
import pytest
from rich.console import Console

from cwm_benchmark.benchmarking import BenchmarkWork
from cwm_benchmark.configuration import (
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTerms,
    Trial,
    slug,
)
from cwm_benchmark.folder import TaskRecord
from cwm_benchmark.results import PlayOutcome, TrialRow, groups_of, ratio_error, rows_of, side_of
from cwm_benchmark.run import BenchmarkRun, group_grids
from cwm_benchmark.standings import Standings, TrialStanding
from cwm_benchmark.view import benchmark_view
from cwm_benchmark.worker import TASKS, TaskWork, group_of
from cwm_cli.bench.executor import Command, LocalProcesses
from cwm_cli.cli.runs import report
from cwm_cli.commands.sides import Mean, relative_return
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score
from cwm_cli.registry import find
from cwm_cli.runs.report import Grid
from cwm_cli.runs.searches import JOURNAL, JournalTail
from cwm_cli.runs.store import BusyError
from cwm_cli.views.tables import GridTable, chunks
from processes import wait_until
from shell import Shell

MOODY = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path

from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend


@hookimpl
def cwm_backends():
    return {"moody": Moody}


@dataclass
class Moody(Backend):
    model: str = ""
    pause: float = 0.0

    def complete(self, request):
        from cwm_cli.search.contracts import Completion

        time.sleep(self.pause)
        with Path("asked.txt").open("a") as file:
            file.write(f"{self.model}\\n")
        if Path("broken").exists():
            if self.model == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.model == "raise":
                raise RuntimeError("a line\\nand boom")
        return Completion(PROGRAM.replace("NUMBER", str(request.seed)))

    def worst_cost(self, request):
        return 0.0


PROGRAM = '''```python
class Environment:
    def set_state(self, observation):
        self.cell = observation  # NUMBER

    def step(self, action):
        return self.cell, 0.0, False
```'''
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Recorded transitions, collected by the first test that needs them."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture
def shell(cwm, cache):
    cwm.environment |= cache
    return cwm


@pytest.fixture
def moody(shell):
    shell.install("moody", MOODY)
    return shell


CLIFF = ("--env", "CliffWalking-v1", "--env", "CarRacing-v3", "--budget", "1", "--workers", "2")
PLAYED = ("benchmark", *CLIFF, "--plan", "--episodes", "2", "--json")


together = pytest.mark.xdist_group("played")


@pytest.fixture(scope="module")
def played(tmp_path_factory, cache):
    """Run a benchmark with an environment that cannot be created; return its folder and output."""
    folder, packages = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("packages")
    shell = Shell(folder, packages, dict(cache))
    return shell, shell(*PLAYED)


@pytest.mark.long
@together
def test_failed_job_is_reported_and_left_out_while_other_jobs_continue(played):
    _, done = played
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    cliff, nope = facts["rows"]
    assert (cliff["state"], nope["state"]) == ("finished", "failed")
    assert nope["reason"].startswith("CarRacing-v3 ")
    assert nope["train"] is None
    assert cliff["completions"] == 1
    assert cliff["train"].keys() >= {"accuracy", "exact", "floor", "normalised", "paper"}
    (group,) = facts["groups"]
    assert (group["group"], group["jobs"], group["finished"]) == ("discrete", 1, 1)
    assert group["means"]["test_exact"]["mean"] == cliff["test"]["exact"]
    assert "1 of 2 jobs failed and are left out of the means:" in facts["notes"]


@pytest.mark.slow
@together
def test_plays_are_compared_with_oracle_and_random_actions(played):
    shell, done = played
    facts = json.loads(done.stdout)
    play = facts["rows"][0]["play"]
    model, random, oracle = (play[side]["mean"] for side in ("returns", "random", "oracle"))
    assert oracle == -13.0
    assert play["baseline"] == "idle"
    idle = play["idle"]["mean"]
    assert play["R"] == pytest.approx((model - idle) / (oracle - idle))
    assert play["R_random"] == pytest.approx((model - random) / (oracle - random))
    assert play["best_known"]["value"] == oracle
    assert facts["groups"][0]["means"]["R"]["mean"] == play["R"]
    run = shell.folder / facts["rows"][0]["run"]
    assert len(list((run / "plans").glob("*/journal.jsonl"))) == 1


@pytest.mark.slow
@together
def test_report_command_prints_the_tables_of_the_benchmark(played, capsys):
    shell, done = played
    facts = json.loads(done.stdout)
    folder = shell.folder / facts["run"]
    report(folder=[folder], json=False)
    shown = capsys.readouterr().out
    assert "CliffWalking-v1" in shown
    assert done.stderr.endswith(shown)
    report(folder=[folder], json=True)
    assert json.loads(capsys.readouterr().out) == facts
    assert json.loads((folder / "result.json").read_text()) == facts
    lines = list(csv.DictReader(StringIO((folder / "table.csv").read_text())))
    assert [line["state"] for line in lines] == ["finished", "failed"]
    assert float(lines[0]["train.accuracy"]) == facts["rows"][0]["train"]["accuracy"]
    words = (folder / "table.md").read_text()
    assert "| CliffWalking-v1 | 1" in words
    assert "| GIF-MCTS, GPT-4 Turbo | 10 | 0.91 | 0.81 |" in words


@together
def test_report_of_a_single_run_shows_its_scores(played, capsys):
    shell, done = played
    row = json.loads(done.stdout)["rows"][0]
    report(folder=[shell.folder / row["run"]], json=False)
    shown = capsys.readouterr().out
    assert "CliffWalking-v1" in shown
    assert f"{row['test']['accuracy']:.3f}" in shown
    report(folder=[shell.folder / row["run"]], json=True)
    assert json.loads(capsys.readouterr().out)["test"] == row["test"]


@pytest.mark.slow
@together
def test_same_command_continues_and_repeats_nothing(played):
    shell, done = played
    facts = json.loads(done.stdout)
    folder = shell.folder / facts["run"]
    kept = list(folder.rglob("*.json*"))
    before = {file: file.stat().st_mtime_ns for file in kept if file.parent != folder}
    again = shell(*PLAYED)
    assert f"{folder} continues" in again.stderr
    assert json.loads(again.stdout) == facts
    assert {file: file.stat().st_mtime_ns for file in before} == before


def header_of(config, **terms):
    return BenchmarkHeader(config=config, terms=BenchmarkTerms(**terms), created="now")


SIMPLE = BenchmarkConfig(environments=("CliffWalking-v1",), strategies=("gif-mcts",), backend="b")


def test_folder_with_other_choices_or_in_use_or_with_other_files_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(BenchmarkRun, "patience", 0.1)
    run = BenchmarkRun.begin(tmp_path / "b", header_of(SIMPLE))
    other = SIMPLE.model_copy(update={"seeds": 2, "options": ("exploration=0.3",)})
    words = r"other settings, seeds \(1, not 2\), options \(none, not exploration=0.3\): repeat"
    with pytest.raises(CwmError, match=words):
        BenchmarkRun.begin(run.folder, header_of(other))
    again = BenchmarkRun.begin(run.folder, header_of(SIMPLE, budget=7))
    with again:
        again.update(header_of(SIMPLE, budget=7))
        with pytest.raises(BusyError, match="another process is using"), run:
            pass
    assert BenchmarkRun.load(run.folder).header.terms.budget == 7
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "letter.txt").touch()
    with pytest.raises(CwmError, match="contains other files: choose another --run"):
        BenchmarkRun.begin(tmp_path / "c", header_of(SIMPLE))


def test_failure_is_reported_until_the_task_is_done(tmp_path):
    with BenchmarkRun.begin(tmp_path / "b", header_of(SIMPLE)) as run:
        run.append(TaskRecord(task="prepare-CliffWalking-v1", reason="no rocks"))
        run.append(TaskRecord(task="search-x"))
    assert run.failures() == {"prepare-CliffWalking-v1": "no rocks"}
    (row,) = rows_of(run)
    assert (row.state, row.reason) == ("failed", "no rocks")
    with run:
        run.append(TaskRecord(task="prepare-CliffWalking-v1"))
    assert run.failures() == {}
    assert run.summary().done == "0/1 jobs"


def test_ended_or_failed_process_gives_its_reason(tmp_path):
    executor, reasons = LocalProcesses(workers=2), {}
    for name, script in {"raised": "1 / 0", "killed": "import os; os.kill(os.getpid(), 9)"}.items():
        executor.start(Command(name, (sys.executable, "-c", script), tmp_path / "logs" / name))
    assert not executor.has_room()
    while len(reasons) < 2:
        reasons |= {ended.name: ended.reason for ended in executor.wait()}
    executor.close()
    assert reasons == {
        "raised": "ZeroDivisionError: division by zero",
        "killed": "its process was ended by SIGKILL",
    }


def test_choices_that_every_job_would_reject_are_rejected_first(shell):
    refused = shell.inside("benchmark", "--strategy", "gif-mtcs")
    assert refused.returncode == 1
    assert "did you mean gif-mcts?" in refused.stderr.splitlines()[-1]
    assert not (shell.folder / "runs").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"backend": "inductoin"}, "did you mean induction?"),
        ({"options": ("explorations=1",)}, "did you mean exploration?"),
        ({"options": ("exploration=much",)}, "invalid option exploration=much"),
        ({"temperature": 1.0}, "has no option --temperature: leave it out"),
    ],
)
def test_user_errors_are_reported_once_and_not_by_every_job(changed, words):
    asked = SIMPLE.model_copy(update={"backend": "induction", **changed})
    with pytest.raises(CwmError, match=words.replace("?", "[?]")):
        asked.check(BenchmarkAccess(), None)


@pytest.mark.long
def test_crashing_jobs_give_their_reason_and_are_retried(moody):
    models = ("fine", "crash", "raise")
    named = [word for model in models for word in ("--model", model)]
    command = ("benchmark", "--env", "FrozenLake-v1", "--backend", "moody", *named, "--json")
    command += ("--strategy", "zero-shot", "--budget", "1", "--workers", "2", "--run", "b")
    (moody.folder / "broken").touch()
    facts = json.loads(moody(*command).stdout)
    assert [row["reason"] for row in facts["rows"]] == [
        None,
        "its process was ended by SIGKILL",
        "and boom",
    ]
    assert [group["jobs"] - group["finished"] for group in facts["groups"]] == [0, 1, 1]
    (moody.folder / "broken").unlink()
    facts = json.loads(moody(*command).stdout)
    assert [row["state"] for row in facts["rows"]] == ["finished"] * 3
    asked = (moody.folder / "asked.txt").read_text().split()
    assert sorted(asked) == sorted([*models, "crash", "raise"])


@pytest.mark.slow
def test_stopped_benchmark_leaves_no_process_and_continues(moody, capsys):
    arguments = ("--env", "CliffWalking-v1", "--backend", "moody", "--strategy", "zero-shot")
    arguments += ("--seeds", "2", "--budget", "5", "--workers", "2", "-o", "pause=0.3")
    err = stopped(moody, signal.SIGINT, arguments, lines=1)
    assert "stopping: waiting for 2 running jobs; press Ctrl-C again to end now" in err
    assert "interrupted: the same command continues" in err.splitlines()[-1]
    (journal,) = moody.folder.glob("runs/*/*-0/nodes.jsonl")
    folder, first = journal.parent.parent, journal.read_bytes()
    err = stopped(moody, signal.SIGKILL, arguments, lines=first.count(b"\n") + 1)
    assert f"{folder} continues" in err
    second = journal.read_bytes()
    assert second.startswith(first)
    assert second.count(b"\n") < 5, "it was stopped too late"
    report(folder=[folder], json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["state"] == "unfinished"
    assert found["rows"][0]["completions"] == second.count(b"\n")
    assert "2 of 2 jobs are not finished and are left out of the means." in found["notes"]

    facts = json.loads(moody("benchmark", *arguments, "--json").stdout)
    assert facts["run"] == str(folder)
    assert [row["completions"] for row in facts["rows"]] == [5, 5]
    assert journal.read_bytes().startswith(second[: second.rindex(b"\n") + 1])
    asked = (moody.folder / "asked.txt").read_text().count("\n")
    assert 10 <= asked <= 14, "completions in the journal were requested again"


def stopped(moody, how, arguments, *, lines):
    """Stop a benchmark when a job has `count` completions; return its output."""
    process = moody.start("benchmark", *arguments)

    def begun():
        journals = moody.folder.glob("runs/*/*-0/nodes.jsonl")
        return any(file.read_bytes().count(b"\n") >= lines for file in journals)

    assert wait_until(lambda: begun() or process.poll() is not None, 60)
    assert process.poll() is None, process.communicate()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    os.kill(process.pid, how)
    if how == signal.SIGINT:
        time.sleep(
            0.5
        )  # so that the two signals are not merged: the first one lets running jobs finish
        assert process.poll() is None
        os.kill(process.pid, how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert "Traceback" not in err
    assert wait_until(lambda: not any(child.is_running() for child in children)), children
    return err


@pytest.mark.long
def test_simulated_completions_break_an_induced_program_and_are_labelled(
    tmp_path, cache, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
    asked = SIMPLE.model_copy(update={"backend": "simulated", "options": ("errors=2",)})
    caveat = find("backend", "simulated").caveat
    header = header_of(asked, budget=2, ceilings=True).model_copy(update={"caveat": caveat})
    run = BenchmarkRun.begin(tmp_path / "s", header)
    done = []
    while tasks := run.left():
        done.append(tasks[0].kind)
        assert len(done) < 5
        TASKS[tasks[0].kind](TaskWork(run, tasks[0], BenchmarkAccess()))
    assert done == ["prepare", "write", "search", "ceiling"]

    (row,) = rows_of(run)
    induced = json.loads(read(run.folder / "programs" / "CliffWalking-v1", "result.json"))
    assert row.original.model_dump() == induced["train"]
    assert row.ceiling["test"].accuracy == 1.0
    options = json.loads(read(run.folder / row.job, "run.json"))["config"]["options"]
    assert options["backend"]["program"] == str(run.program_folder("CliffWalking-v1") / "best.py")
    BenchmarkRun.report([run]).save(run.folder)
    report(folder=[run.folder], json=False)
    for text in (
        capsys.readouterr().out,
        *(read(run.folder, name) for name in ("table.md", "table.csv", "result.json")),
    ):
        assert "simulated proposals, not a language model's" in text


def read(folder, name):
    return (folder / name).read_text()


HERE = """
import os
import sys

from cwm_cli import hookimpl
from cwm_cli.bench.executor import Ended, Executor


@hookimpl
def cwm_executors():
    return {"here": Here}


class Here(Executor):
    ended = ()

    def has_room(self):
        return not self.ended

    def start(self, command):
        from cwm_benchmark.worker import main

        os.environ |= command.environment
        before, sys.argv = sys.argv, list(command.words[2:])
        try:
            main()
            reason = None
        except SystemExit as end:
            reason = str(end.code).removeprefix("Error: ")
        finally:
            sys.argv = before
        self.ended = [Ended(command.name, reason)]

    def wait(self):
        ended, self.ended = self.ended, ()
        return ended
"""


def test_command_fails_if_no_job_has_a_result_with_every_executor(shell):
    shell.install("here", HERE)
    asked = ("benchmark", "--env", "CarRacing-v3", "--budget", "1", "--json")
    refused = shell.inside(*asked, "--executor", "there")
    assert "unknown executor 'there': did you mean here?" in refused.stderr
    assert list(shell.folder.iterdir()) == []
    done = shell.inside(*asked, "--executor", "here")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "Error: every job failed; the first: CarRacing-v3 "
    )
    facts = json.loads(done.stdout)
    assert facts["groups"] == []
    assert not (shell.folder / facts["run"] / "logs").exists()


def test_comparison_of_strategies_without_language_model_gets_a_note(shell):
    shell.install("here", HERE)
    asked = ("benchmark", "--env", "CarRacing-v3", "--budget", "1", "--executor", "here")
    words = "without a language model strategies do not differ"
    one = shell.inside(*asked)
    assert words not in one.stderr
    two = shell.inside(*asked, "--strategy", "gif-mcts", "--strategy", "worldcoder")
    [note] = [line for line in two.stderr.splitlines() if words in line]
    assert note.endswith("compare them with --model PROVIDER/NAME or --backend simulated")


@pytest.mark.slow
def test_jobs_without_running_program_are_reported_with_cause_and_remedy(
    tmp_path, cache, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
    program = tmp_path / "cliff.py"
    program.write_text(
        "class Environment:\n"
        "    def set_state(self, observation):\n"
        "        self.cell = observation\n\n"
        "    def step(self, action):\n"
        "        return self.cell, -1.0, False\n"
    )
    options = (f"program={program}", "errors=20", "crashes=1", "backend.fixes=0")
    asked = SIMPLE.model_copy(update={"backend": "simulated", "options": options})
    remedy = find("backend", "simulated").remedy
    header = header_of(asked, budget=2).model_copy(update={"remedy": remedy})
    run = BenchmarkRun.begin(tmp_path / "run", header)
    while tasks := run.left():
        TASKS[tasks[0].kind](TaskWork(run, tasks[0], BenchmarkAccess()))
    [row] = rows_of(run)
    assert row.train.accuracy == 0
    assert row.failure
    [note] = [note for note in BenchmarkRun.report([run]).notes if "No program runs" in note]
    assert note.startswith(f"No program runs in 1 of 1 jobs, which score 0 ({row.job}: ")
    assert note.endswith(f"{row.failure}): raise --budget, or {remedy}.")


def score(accuracy, floor=0.5):
    """Return a score with only some fields set."""
    return Score(
        accuracy=accuracy,
        observation=1.0,
        reward=1.0,
        terminated=1.0,
        exact=accuracy / 2,
        floor=floor,
        normalised=None if floor == 1 else (accuracy - floor) / (1 - floor),
        transitions=7,
        paper=accuracy / 4,
    )


def row(environment, seed, accuracy=None, R=None, **more):
    """Make up a job, failed if it has no accuracy."""
    mean = Mean(0.0, None)
    play = PlayOutcome(
        episodes=1, returns=mean, random=mean, R=R, planner="x", decisions=1, failures=0
    )
    return TrialRow(
        job=f"{environment}-{seed}",
        environment=environment,
        **{"group": "discrete", "strategy": "s", "model": "", **more},
        backend="b",
        seed=seed,
        run="r",
        state="failed" if accuracy is None else "finished",
        budget=2,
        completions=2,
        tokens=5,
        cost=0.5,
        seconds=1.5,
        test=None if accuracy is None else score(accuracy),
        play=None if accuracy is None else play,
    )


def test_means_are_over_environments_of_means_over_seeds():
    rows = [
        row("A", 0, 1.0, R=0.75),
        row("A", 1, 0.5, R=0.25),
        row("B", 0, 0.25),
        row("B", 1),
        row("C", 0),
    ]
    (group,) = groups_of(rows)
    assert (group.jobs, group.finished, group.failed) == (5, 3, 2)
    assert group.over == "2 environments x 1 to 2 seeds"
    accuracy = group.means["test_accuracy"]
    assert accuracy.mean == 0.5  # of 0.75 and 0.25
    assert accuracy.stderr == pytest.approx(0.25)
    assert (accuracy.environments, accuracy.values) == (2, 3)
    assert group.means["test_normalised"].mean == 0.0  # of 0.5 and -0.5
    assert group.means["test_paper"].mean == 0.125
    R = group.means["R"]
    assert (R.mean, R.stderr, R.environments, R.values) == (0.5, 0.25, 1, 2)
    assert group.means["train_accuracy"] is None
    assert (group.completions, group.tokens, group.cost, group.seconds) == (6, 15, 1.5, 4.5)
    grid = next(group_grids([group]))
    cells = {line[0]: line[1] for line in grid.cells}
    assert cells["held-out accuracy"] == "0.500 ± 0.250"
    assert cells["R"] == "0.500 ± 0.250 (2 jobs)"
    assert cells["jobs finished"] == "3 of 5"


def test_kinds_strategies_and_models_are_separate_groups_with_one_total():
    rows = [
        row("A", 0, 1.0),
        row("P", 0, 0.5, group="continuous"),
        row("A", 0, 0.25, strategy="t"),
        row("A", 0, 0.75, model="m"),
        row("N", 0, group=None),
    ]
    found = {(g.group, g.strategy, g.model): g.means["test_accuracy"].mean for g in groups_of(rows)}
    assert found == {
        ("discrete", "s", ""): 1.0,
        ("discrete", "t", ""): 0.25,
        ("discrete", "s", "m"): 0.75,
        ("continuous", "s", ""): 0.5,
        ("all", "s", ""): 0.75,
        ("all", "t", ""): 0.25,
        ("all", "s", "m"): 0.75,
    }


def test_unknown_cost_makes_sum_unknown():
    unknown = row("A", 1, 1.0).model_copy(update={"cost": None})
    (group,) = groups_of([row("A", 0, 1.0), unknown])
    assert group.cost is None
    assert group.tokens == 10


def test_error_of_R_is_that_of_a_ratio_over_paired_episodes():
    model, oracle, random = side_of([3.0, 5.0]), side_of([8.0, 10.0]), side_of([0.0, 2.0])
    R = relative_return(model, oracle, random)
    assert pytest.approx(3 / 8) == R
    assert ratio_error(R, model, oracle, random) == pytest.approx(0.0)  # all pairs agree
    uneven = side_of([2.0, 6.0])  # gains 2 and 4 of 8: errors -1/8 and 1/8
    assert ratio_error(R, uneven, oracle, random) == pytest.approx(1 / 8)


def test_options_go_to_the_strategies_that_have_them():
    chosen = BenchmarkConfig(
        environments=("CartPole-v1",),
        strategies=("gif-mcts", "zero-shot"),
        backend="induction",
        options=("exploration=0.2", "memory_mb=600"),
    )
    chosen.check(BenchmarkAccess(), None)
    assert chosen.options_of("gif-mcts") == ["exploration=0.2", "memory_mb=600"]
    assert chosen.options_of("zero-shot") == ["memory_mb=600"]
    with pytest.raises(CwmError, match="unknown option"):
        chosen.model_copy(update={"options": ("nothing=1",)}).check(BenchmarkAccess(), None)


def test_job_names_are_unique():
    chosen = BenchmarkConfig(
        environments=("a/b", "a:b"), strategies=("s", "t"), models=("m/1", "m-1"), backend="b"
    )
    names = [trial.name for trial in chosen.trials]
    assert len(set(names)) == len(names) == 8
    assert all("/" not in name and ":" not in name for name in names)
    assert slug("CartPole-v1") == "CartPole-v1"


def test_kind_of_environment_follows_from_its_spaces():
    real = Space("box", "float32", (1,), (-1.0,), (1.0,))
    whole = Space("discrete", low=(0,), high=(3,))
    board = Space("tuple", children=(Space("text", max_length=9), whole))
    assert group_of(real, whole) == "discrete"
    assert group_of(whole, real) == "continuous"
    assert group_of(board, whole) == "text"


def test_growing_journal_is_read_line_by_line(tmp_path):
    def line(score, cost):
        return json.dumps({"node": {"verdict": {"score": score}, "usage": {"cost": cost}}}) + "\n"

    tail = JournalTail(tmp_path)
    tail.read()
    assert (tail.completions, tail.best, tail.cost) == (0, None, 0.0)
    with (tmp_path / JOURNAL).open("a") as journal:
        for text, known in (
            (line(0.5, 1.0) + line(0.25, 0.5)[:9], (1, 0.5, 1.0)),
            (line(0.25, 0.5)[9:], (2, 0.5, 1.5)),
            ("rubbish\n" + line(0.75, None), (3, 0.75, None)),
        ):
            journal.write(text)
            journal.flush()
            tail.read()
            assert (tail.completions, tail.best, tail.cost) == known


def standing(number, state):
    return TrialStanding(Trial("E", "s", "", number), state, 1, 0.5, 0.0, None, None)


def test_small_screen_shows_running_and_failed_jobs():
    states = ["finished"] * 5 + ["searching", "failed", "playing"] + ["waiting"] * 5
    lines = [standing(number, state) for number, state in enumerate(states)]
    standings = Standings(budget=2)
    for number, line in enumerate(lines):
        assert standings.update(number, line._replace(state="waiting")) is None
        assert standings.update(number, line).state == "waiting"
    shown = standings.shown(5)
    assert [line.state for line in shown] == ["searching", "failed", "playing"] + ["waiting"] * 2
    assert standings.shown(13) == standings.listed() == lines
    assert [line.state for line in standings.shown(1)] == ["searching"]
    counts = standings.counts()
    assert (counts.jobs, counts.over, counts.completions) == (13, 6, 13)
    assert (counts.best, counts.to_search) == (0.5, 2.5)


def test_picture_fits_and_shows_the_state_of_every_job(tmp_path):
    asked = SIMPLE.model_copy(update={"seeds": 20, "environments": ("\x1b[2J", "Walker2d-v5")})
    with BenchmarkRun.begin(tmp_path / "\x1b[1mtitle", header_of(asked)) as run:
        work = BenchmarkWork(run, BenchmarkAccess(), LocalProcesses())
        first, second = asked.trials[0], asked.trials[20]
        work.failed["prepare-" + slug(first.environment)] = "no such\x07 thing"
        run.trial_folder(second).mkdir()
        settled = {"solved": True, "completions": 1, "program": "p"}
        (run.trial_folder(second) / "result.json").write_text(json.dumps(settled))
        work.rescan()
        console = Console(file=StringIO(), force_terminal=True, width=60, height=12)
        view = benchmark_view(console=console)
        view.begins(work)
        view.ends()
    drawn = ESCAPES.sub("", console.file.getvalue()).replace("\r", "")
    assert "\x07" not in drawn
    lines = drawn.split("[1mtitle\n")[-1].splitlines()[:10]
    assert all(len(line) <= 60 for line in lines)
    assert sum("failed  no such" in line for line in lines) == 7
    assert "19 waiting · 20 failed · 1 finished" in lines
    assert "21/40 jobs" in lines[-1]


ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def test_wide_table_is_split_into_tables_that_fit():
    heads = ["name", *(f"column {number}" for number in range(9))]
    grid = Grid("wide", heads, [["x", *(str(number) for number in range(9))]])
    assert [place for share in chunks(grid, 40) for place in share if place] == list(range(1, 10))
    for width in (30, 40, 80):
        console = Console(file=StringIO(), width=width)
        console.print(GridTable(grid))
        text = console.file.getvalue()
        assert all(head in text for head in heads)
        assert max(map(len, text.splitlines())) <= width
    assert grid.markdown().splitlines()[1].startswith("| --- | ---: |")
