"""`cwm benchmark --rows`: jobs by number of train rows, their data, and their curves."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from cwm_benchmark.benchmarking import BenchmarkWork
from cwm_benchmark.configuration import (
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTask,
    BenchmarkTerms,
    sizes_of,
)
from cwm_benchmark.results import groups_by_size, groups_of, rows_of
from cwm_benchmark.run import BenchmarkRun, group_grids, job_grids, jobs_data
from cwm_benchmark.sizes import size_charts, size_grids
from cwm_benchmark.view import benchmark_view
from cwm_benchmark.worker import TASKS, TaskWork
from cwm_cli.bench.executor import LocalProcesses
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError

ENV = "CliffWalking-v1"


def header(**chosen):
    config = {"environments": (ENV,), "strategies": ("zero-shot",), "backend": "induction"}
    return BenchmarkHeader(
        config=BenchmarkConfig(**config | chosen), terms=BenchmarkTerms(budget=1)
    )


@pytest.mark.parametrize("rows", ["", "10,x", "10,,20", "0,10", "1.5", [10, 0]])
def test_invalid_sizes_are_rejected_in_one_line(rows):
    with pytest.raises(CwmError, match=r"invalid --rows .*: write numbers of at least 1"):
        sizes_of(rows)


def test_sizes_are_sorted_and_unique():
    assert sizes_of("300, 100,300") == (100, 300)
    assert sizes_of(()) == ()


def test_each_size_is_a_job_with_its_own_folder_and_belongs_to_the_identity():
    config = header(rows=(100, 300), seeds=2, models=("m",), baseline="induction").config
    assert [(t.model, t.train_rows, t.seed) for t in config.trials] == [
        ("m", 100, 0),
        ("m", 100, 1),
        ("m", 300, 0),
        ("m", 300, 1),
        ("induction", 100, 0),
        ("induction", 300, 0),
    ]
    assert len({trial.name for trial in config.trials}) == 6
    assert config.trials[0].name == f"{ENV}-zero-shot-m-100-rows-0"
    assert header().config.trials[0].name == f"{ENV}-zero-shot-0"
    assert config != config.model_copy(update={"rows": (100, 200)})


@pytest.mark.slow
def test_a_job_gets_the_first_train_rows_and_all_test_rows(tmp_path):
    with BenchmarkRun.begin(tmp_path / "run", header(rows=(30, 60))) as run:
        trials = run.config.trials
        for kind, name in [("prepare", ENV), *(("search", trial.name) for trial in trials)]:
            TASKS[kind](TaskWork(run, BenchmarkTask(kind, name), BenchmarkAccess()))
        every = Dataset.load(run.data_file(ENV))
        for trial in trials:
            own = Dataset.load(run.trial_folder(trial) / "dataset.npz")
            assert len(own.train) == trial.train_rows
            for name, column in own.columns.items():
                both = np.concatenate(
                    [every.train.columns[name][: len(own.train)], every.test.columns[name]]
                )
                assert np.array_equal(column, both), name
        jobs = rows_of(run)
        assert [job.train.transitions for job in jobs] == [30, 60]
        assert [job.train_rows for job in jobs] == [30, 60]
        assert jobs[0].test.transitions == jobs[1].test.transitions == len(every.test)
        assert not run.left()  # the same command has nothing left to do


@pytest.fixture
def made(tmp_path):
    """Return a benchmark of two sizes, two seeds and two strategies with made-up results."""
    made_up = header(rows=(10, 1000), seeds=2, strategies=("zero-shot", "gif-mcts"))
    run = BenchmarkRun.begin(tmp_path / "run", made_up)
    run.keep(BenchmarkTask("prepare", ENV), {"group": "discrete"})
    for trial in run.config.trials[:-1]:  # the last job is not finished
        value = {10: 0.25, 1000: 0.75}[trial.train_rows] + 0.25 * trial.seed
        flat = 0.5 if trial.strategy == "gif-mcts" else value
        names = ("accuracy", "observation", "reward", "terminated", "exact", "floor", "normalised")
        score = dict.fromkeys(names, flat) | {"transitions": 7}
        facts = {"solved": False, "completions": 1, "tokens": 0, "cost": 0.0}
        run.trial_folder(trial).mkdir()
        result = json.dumps(facts | {"train": score, "test": score})
        (run.trial_folder(trial) / "result.json").write_text(result)
    return run


def test_table_by_size_has_means_and_errors_over_seeds(made):
    [grid] = size_grids(groups_by_size(rows_of(made)))
    assert grid.heads == [
        *("environment", "strategy", "train rows", "seeds"),
        *("held-out accuracy", "exact rows"),
    ]
    assert grid.cells == [
        [ENV, "zero-shot", "10", "2", "0.375 ± 0.125", "0.375 ± 0.125"],
        [ENV, "zero-shot", "1,000", "2", "0.875 ± 0.125", "0.875 ± 0.125"],
        [ENV, "gif-mcts", "10", "2", "0.500 ± 0.000", "0.500 ± 0.000"],
        [ENV, "gif-mcts", "1,000", "1", "0.500", "0.500"],
    ]


def test_curves_by_size_have_a_line_per_strategy(made):
    [section] = size_charts(groups_by_size(rows_of(made)))
    [[title, kind, chart]] = section.data["sections"]  # nothing was played, so there is no R
    assert (title, kind, chart["x"], chart["log_x"]) == (ENV, "chart", "train rows", True)
    lines = {line["name"]: line for line in chart["series"]}
    assert lines["zero-shot"]["x"] == [10, 1000]
    assert lines["zero-shot"]["y"] == [0.375, 0.875]
    assert lines["zero-shot"]["low"] == [0.25, 0.75]
    assert lines["gif-mcts"]["y"] == [0.5, 0.5]


def test_report_keeps_sizes_apart_everywhere(made):
    rows = rows_of(made)
    heads = next(group_grids(groups_of(rows))).heads
    assert heads[1:3] == ["zero-shot, 10 rows", "zero-shot, 1,000 rows"]
    assert next(job_grids(rows)).heads[:4] == ["environment", "strategy", "train rows", "seed"]
    jobs = jobs_data(rows)
    assert "train rows" in [jobs["heads"][place] for place in jobs["groups"]]
    report = BenchmarkRun.report([made])
    assert [group["train_rows"] for group in report.facts["by_size"]] == [10, 1000, 10, 1000]
    assert any("first rows of one recording" in note for note in report.notes)


def test_live_table_has_a_column_for_sizes(made):
    console = Console(file=StringIO(), force_terminal=True, width=90, height=14)
    view = benchmark_view(console=console)
    view.begins(BenchmarkWork(made, BenchmarkAccess(), LocalProcesses()))
    view.ends()
    lines = console.file.getvalue().splitlines()
    assert any("strategy" in line and "train rows" in line for line in lines)
    assert any("zero-shot" in line and " 1000 " in line for line in lines)


def test_benchmark_without_sizes_has_no_table_by_size(tmp_path):
    run = BenchmarkRun.begin(tmp_path / "run", header())
    assert groups_by_size(rows_of(run)) == []
    report = BenchmarkRun.report([run])
    assert [grid.title for grid in report.grids] == ["jobs"]
