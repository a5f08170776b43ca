"""Rows of played jobs: baselines, best known returns, and the number of episodes."""

import json

import pytest

from cwm_benchmark.configuration import BenchmarkConfig, BenchmarkHeader, BenchmarkTask
from cwm_benchmark.configuration import BenchmarkTerms as Terms
from cwm_benchmark.folder import AUTOMATIC
from cwm_benchmark.results import groups_of, rows_of
from cwm_benchmark.run import BenchmarkRun, group_grids, job_grids

ENV = "CartPole-v1"
TRIAL = f"{ENV}-gif-mcts-0"


def played(run, task, returns, random=1.0, idle=4.0, usual=None):
    """Store the outcome of a task as its process does."""
    count = len(returns)
    found = {
        "returns": returns,
        "random_returns": [random] * count,
        "idle_returns": None if idle is None else [idle] * count,
        "usual_episodes": usual,
        "planner": "mcts",
        "decisions": 9,
        "failures": 0,
        "program_digest": run.digest(run.config.trials[0]) if task.kind == "play" else "",
    }
    run.keep(task, found)


@pytest.fixture
def run_of(tmp_path):
    """Return a function that makes a benchmark with one searched job."""

    def make(terms: Terms, **config):
        settings = {"environments": (ENV,), "strategies": ("gif-mcts",), "backend": "b"}
        header = BenchmarkHeader(config=BenchmarkConfig(**settings | config), terms=terms)
        run = BenchmarkRun.begin(tmp_path / "run", header)
        run.keep(BenchmarkTask("prepare", ENV), {"group": "discrete"})
        folder = run.folder / TRIAL
        folder.mkdir()
        (folder / "best.py").write_text("program")
        score = {
            **dict.fromkeys(("accuracy", "observation", "reward", "terminated", "exact"), 1.0),
            **{"floor": 0.5, "normalised": 1.0, "transitions": 7},
        }
        facts = {"solved": True, "completions": 1, "program": "best.py", "train": score}
        (folder / "result.json").write_text(json.dumps(facts | {"tokens": 0}))
        return run

    return make


PLAY, ORACLE = BenchmarkTask("play", TRIAL), BenchmarkTask("oracle", ENV, AUTOMATIC)


def test_R_compares_with_the_better_baseline_and_also_with_random_actions(run_of):
    run = run_of(Terms(plan=True, episodes=2))
    played(run, PLAY, [5.0, 5.0])
    played(run, ORACLE, [9.0, 9.0])
    [row] = rows_of(run)
    play = row.play
    assert (play.baseline, play.R, play.R_random) == ("idle", 0.2, 0.5)
    assert (play.idle.mean, play.random.mean, play.R_stderr) == (4.0, 1.0, 0.0)
    assert play.best_known.value == 500.0
    groups = groups_of([row])
    means = groups[0].means
    assert (means["R"].mean, means["R_random"].mean) == (0.2, 0.5)
    cells = {line[0]: line[1] for line in next(group_grids(groups)).cells}
    assert cells["R against random actions"] == "0.500"
    *_, grid = job_grids([row])
    shown = dict(zip(grid.heads, grid.cells[0], strict=True))
    assert (shown["episodes"], shown["do nothing"], shown["best known"]) == ("2", "4 ± 0", "500")
    report = BenchmarkRun.report([run])
    assert report.facts["rows"][0]["play"]["baseline"] == "idle"
    assert any(note.startswith("- CartPole-v1: 500 (limit: ") for note in report.notes)


def test_shorter_episodes_have_no_best_known_return(run_of):
    run = run_of(Terms(plan=True, episodes=2), max_steps=100)
    played(run, PLAY, [5.0, 5.0])
    [row] = rows_of(run)
    assert row.play.best_known is None
    *_, grid = job_grids([row])
    assert grid.cells[0][grid.heads.index("best known")] == ""
    notes = BenchmarkRun.report([run]).notes
    assert any(note.startswith("No best known return for CartPole-v1: ") for note in notes)


def test_outcomes_of_earlier_versions_compare_with_random_actions(run_of):
    run = run_of(Terms(plan=True, episodes=2))
    for task, returns in ((PLAY, [5.0, 5.0]), (ORACLE, [9.0, 9.0])):
        played(run, task, returns)
        file = run.folder / "outcomes" / f"{task.key}.json"
        found = json.loads(file.read_text())
        del found["idle_returns"], found["usual_episodes"]
        file.write_text(json.dumps(found))
    [row] = rows_of(run)
    assert (row.play.idle, row.play.baseline, row.play.R) == (None, "random", 0.5)


def test_number_of_episodes_by_length_is_the_smaller_one_of_model_and_oracle(run_of):
    run = run_of(Terms(plan=True))
    assert run.header.terms.episodes is None
    played(run, PLAY, [5.0] * 30, usual=40)
    assert run.play_of(run.config.trials[0]) is None  # ten are missing
    played(run, PLAY, [5.0] * 20 + [7.0] * 20, usual=40)
    played(run, ORACLE, [9.0] * 20, usual=20)
    [row] = rows_of(run)
    assert (row.play.episodes, row.play.returns.mean, row.play.R) == (20, 5.0, 0.2)
    played(run, ORACLE, [9.0] * 20)  # fewer than ten episodes of a side: not known how many
    assert run.played(ORACLE) is None


def test_job_that_stopped_without_improvement_is_marked(run_of):
    run = run_of(Terms())
    file = run.folder / TRIAL / "result.json"
    facts = {"solved": False, "finished": True, "settled": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))
    [row] = rows_of(run)
    assert "1 stopped" in next(job_grids([row])).cells[0]
    assert run.summary().result == "0 solved, 1 stopped without improvement"
    assert any(note.startswith("`stopped`") for note in BenchmarkRun.report([run]).notes)
