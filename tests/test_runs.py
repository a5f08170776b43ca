"""Run folders: nothing that was written is lost, nothing foreign is continued."""

import json
import os

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.runs.store import JOURNAL, Header, Run, RunConfig, differences, is_free, runs_in
from cwm_cli.sandbox.failure import Failure
from cwm_cli.search.contracts import GENERATE, Node, Record, Usage, Verdict

CONFIG = RunConfig(
    env="X-v0", dataset="d", strategy="s", backend="b", options={"strategy": {"c": 1}}
)
HEADER = Header(config=CONFIG, description="It moves.", versions={}, source="x", created="now")
SPACE = Space("discrete", low=(0,), high=(1,))
DATASET = Dataset.of([Transition(0, 1, 1, 1.0, False)], observation_space=SPACE, action_space=SPACE)


def record(number):
    failure = Failure(kind="mismatch", message="wrong \x1b[31m here")
    node = Node(
        id=number,
        step=number,
        parent=number - 1,
        action=GENERATE,
        program=f"x = {number}\n",
        verdict=Verdict(score=number / 10, failure=failure),
        prompt="key",
        usage=Usage(cost=0.5),
    )
    return Record(node, f"```python\nx = {number}\n```")


@pytest.fixture
def run(tmp_path):
    run = Run.start(tmp_path / "run", HEADER, DATASET)
    with run:
        for number in range(3):
            run.append(record(number))
    return run


def test_a_run_reads_back_what_it_was_given(run):
    again = Run.load(run.folder)
    assert again.config == CONFIG
    assert again.header.description == "It moves."
    assert again.dataset().digest == DATASET.digest
    assert [node.program for node in again.nodes()] == ["x = 0\n", "x = 1\n", "x = 2\n"]
    assert next(again.nodes()).usage.cost == 0.5


def test_a_journal_cut_at_any_byte_goes_on_from_its_last_whole_line(run):
    whole = (run.folder / JOURNAL).read_bytes()
    for cut in range(0, len(whole) + 1, 7):
        (run.folder / JOURNAL).write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert len(list(run.nodes())) == kept
        with run:
            for number in range(kept, 3):
                run.append(record(number))
        assert (run.folder / JOURNAL).read_bytes() == whole


def test_a_broken_line_in_the_middle_is_refused_by_its_number(run):
    lines = (run.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    lines[1] = b'{"node": 3}\n'
    (run.folder / JOURNAL).write_bytes(b"".join(lines))
    with pytest.raises(CwmError, match=r"nodes\.jsonl, line 2: "):
        list(run.nodes())


def test_two_processes_never_work_on_one_run(run):
    with run, pytest.raises(CwmError, match="another process is working on"), Run.load(run.folder):
        pass
    with Run.load(run.folder) as free:
        free.append(record(3))
    assert len(list(run.nodes())) == 4


def test_what_is_written_survives_a_crash_of_the_process(tmp_path):
    folder = tmp_path / "run"
    run = Run.start(folder, HEADER, DATASET)
    child = os.fork()
    if child == 0:
        run.__enter__()
        run.append(record(0))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert len(list(Run.load(folder).nodes())) == 1


def test_a_start_that_was_cut_short_is_begun_again_but_nothing_foreign_is_touched(tmp_path):
    folder = tmp_path / "run"
    assert is_free(folder)
    Run.start(folder, HEADER, DATASET)
    assert not is_free(folder)
    (folder / "run.json").rename(folder / ".run.json.part")
    assert is_free(folder)
    (folder / "thesis.tex").write_text("")
    assert not is_free(folder)


def test_differences_name_every_setting_that_changed():
    other = CONFIG.model_copy(update={"seed": 1, "options": {"strategy": {"c": 2, "d": 1}}})
    assert differences(CONFIG, other) == ["seed", "strategy.c", "strategy.d"]
    assert differences(CONFIG, CONFIG) == []


@pytest.mark.parametrize("content", ["", "{", '{"config": {}}', "\xff"])
def test_a_damaged_run_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    with pytest.raises(CwmError, match="cannot be read") as caught:
        Run.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(CwmError, match="is no run"):
        Run.load(tmp_path)


def test_runs_are_listed_newest_first_without_the_damaged(tmp_path):
    for number, name in enumerate("abc"):
        Run.start(tmp_path / name, HEADER, DATASET)
        os.utime(tmp_path / name / "run.json", (number, number))
    (tmp_path / "b" / "run.json").write_text("{")
    assert [run.folder.name for run in runs_in(tmp_path)] == ["c", "a"]


def test_the_journal_is_plain_json_for_other_tools(run):
    lines = (run.folder / JOURNAL).read_text().splitlines()
    assert [json.loads(line)["node"]["id"] for line in lines] == [0, 1, 2]
    assert np.all(["\x1b" not in line for line in lines])
