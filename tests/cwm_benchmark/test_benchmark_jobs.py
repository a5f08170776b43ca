"""The work of a benchmark per event does not grow with its jobs; repeated and postponed requests.

Files are counted as the interpreter opens them; the jobs run instantly in this process.
"""

import json

import pytest

from cwm_benchmark.configuration import (
    BenchmarkTask,
    Trial,
)
from cwm_benchmark.results import rows_of
from cwm_benchmark.standings import Running, TaskTimes, left_seconds
from cwm_cli.search.spending import read_spending
from instant_jobs import work_on
from opened_files import opened


def test_cost_of_an_event_does_not_grow_with_number_of_jobs(tmp_path):
    files = {}
    for seeds in (10, 100):
        work = work_on(tmp_path / str(seeds), seeds)
        events = 0
        with work.run:
            opened.update(counting=True, files=0)
            for _ in work.events():
                events += 1
            opened["counting"] = False
        assert events == 2 * (2 * seeds + 2)
        counts = work.counts()
        assert counts.states == {"finished": 2 * seeds}
        assert (counts.completions, counts.reused, counts.cost) == (2 * seeds, 2 * seeds, seeds / 2)
        assert len(work.shown(20)) == min(20, 2 * seeds)
        files[seeds] = opened["files"] / events
    assert files[100] < 1.2 * files[10] < 20


@pytest.mark.slow
def test_job_of_another_process_is_postponed_and_its_resources_are_in_its_row(tmp_path):
    trial = Trial("FrozenLake-v1", "gif-mcts", "", 0)
    key = BenchmarkTask("search", trial.name).key
    work = work_on(tmp_path / "b", 1, busy={key})
    with work.run:
        events = [event for event in work.events() if event.task.key == key]
    assert [(event.over, event.is_again) for event in events] == [
        (False, False),
        (False, True),
        (False, False),
        (True, False),
    ]
    states = [standing.state for event in events for standing in event.changed]
    assert states == ["searching", "waiting", "searching", "finished"]
    assert work.failed == {}
    row = rows_of(work.run)[1]
    assert (row.peak_memory, row.place) == (1 << 20, "node-7")
    assert row.cpu_seconds == 1.5
    assert work.standings()[1].place == "node-7"


def test_time_left_is_estimated_from_finished_and_running_tasks():
    times = TaskTimes()
    running = [Running("search", 10.0, left=10.0), Running("search", 20.0, left=20.0)]
    none = {"plays": 0, "environment_tasks": 0}
    assert left_seconds(times, [], searches=2.0, **none, workers=2) is None
    assert left_seconds(times, running, searches=2.0, **none, workers=2) == (60 + 10 + 10) / 2
    times.record("search", 12.0)
    times.record("search", 16.0)
    assert left_seconds(times, running, searches=2.0, **none, workers=2) == (28 + 4 + 20) / 2
    assert left_seconds(times, running[1:], searches=0.0, **none, workers=4) == 20.0
    times.record("play", 5.0)
    assert left_seconds(times, [], searches=1.0, plays=2, environment_tasks=3, workers=1) == 24.0


def test_cost_limit_counts_known_costs_even_if_one_cost_is_unknown(tmp_path):
    run = work_on(tmp_path, 1).run
    folder = run.trial_folder(run.config.trials[0])
    folder.mkdir()
    lines = [
        json.dumps({"node": {"verdict": {"score": 0.5}, "usage": {"cost": cost}}})
        for cost in (0.25, None, 0.5)
    ]
    (folder / "nodes.jsonl").write_text("\n".join(lines) + "\n")
    with run:
        terms = run.header.terms.model_copy(update={"max_cost": 1.0})
        run.update(run.header.model_copy(update={"terms": terms}))
        run.begin_spending()
    spending = read_spending(run.spending_file)
    assert spending is not None and spending.left == 0.25
