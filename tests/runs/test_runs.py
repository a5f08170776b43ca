"""Run folders: nothing that was written is lost, nothing foreign is continued or removed."""

import dataclasses
import json
import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from pydantic import BaseModel

from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import UnreadableRun, compare, list_runs, load, run_folders
from cwm_cli.runs.searches import JOURNAL, SearchRun
from cwm_cli.runs.store import (
    DATASET,
    BusyError,
    RowsAdded,
    Run,
    RunHeader,
    differences,
    is_free,
    remove,
)
from cwm_cli.search.contracts import Problem, Record
from search_runs import CONFIG, FILES, HEADER, record, rows


@pytest.fixture
def run(tmp_path):
    run = SearchRun.start(tmp_path / "run", HEADER, FILES)
    with run:
        for number in range(3):
            run.learn(record(number))
    return run


def test_a_clock_that_is_damaged_or_missing_starts_at_zero(run):
    clock = run.folder / "clock.json"
    clock.write_text('{"seconds": 1000}')
    assert SearchRun.load(run.folder).elapsed == 1000
    for text in ("", "[]", '{"seconds": -1}', '{"seconds": "x"}', '{"seconds": NaN}'):
        clock.write_text(text)
        assert SearchRun.load(run.folder).elapsed == 0, text
    clock.unlink()
    assert SearchRun.load(run.folder).elapsed == 0


def test_a_run_reads_back_what_it_was_given(run):
    again = SearchRun.load(run.folder)
    assert again.config == CONFIG
    assert again.header.description == "It moves."
    assert again.dataset().digest == FILES[DATASET].digest
    assert [node.program for node in again.nodes()] == ["x = 0\n", "x = 1\n", "x = 2\n"]
    assert next(again.nodes()).usage.cost == 0.5
    lines = (run.folder / JOURNAL).read_text().splitlines()  # plain JSON for other tools
    assert [json.loads(line)["node"]["id"] for line in lines] == [0, 1, 2]
    assert np.all(["\x1b" not in line for line in lines])


def test_a_search_that_does_not_say_its_kind_is_a_search(run):
    file = run.folder / "run.json"
    header = json.loads(file.read_text())
    del header["kind"]
    file.write_text(json.dumps(header))
    assert load(run.folder).config == CONFIG


def test_a_journal_cut_at_any_byte_goes_on_from_its_last_whole_line(run):
    whole = (run.folder / JOURNAL).read_bytes()
    for cut in range(0, len(whole) + 1, 29):
        (run.folder / JOURNAL).write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert len(list(run.nodes())) == kept
        with run:
            for number in range(kept, 3):
                run.learn(record(number))
        assert (run.folder / JOURNAL).read_bytes() == whole


class TestDamagedJournals:
    """A line that cannot be used costs itself and what depends on it, and nobody overlooks it."""

    @pytest.fixture
    def tree(self, tmp_path):
        """Two children of the root, each with a line of three below it."""
        parents = [-1, -1, 0, 1, 2, 3, 4, 5]
        run = SearchRun.start(tmp_path / "tree", HEADER, FILES)
        with run:
            for number, parent in enumerate(parents):
                node = dataclasses.replace(record(number).node, parent=parent)
                run.learn(Record(node, "text"))
        return run

    def spoil(self, run, number, line=b'{"node": 3}'):
        lines = (run.folder / JOURNAL).read_bytes().splitlines()
        lines[number] = line
        (run.folder / JOURNAL).write_bytes(b"\n".join(lines) + b"\n")

    @pytest.mark.parametrize(
        "line", [b"", b"garbage", b'{"node": 3}', b"\xff" * 40, b"[" * 9000, b"\0", b"7"]
    )
    def test_the_lines_after_it_stay_but_for_those_that_grew_from_it(self, tree, line):
        self.spoil(tree, 3, line)
        kept = list(tree.nodes())
        assert [node.program for node in kept] == [f"x = {n}\n" for n in (0, 1, 2, 4, 6)]
        assert [(node.id, node.parent) for node in kept] == [
            (0, -1),
            (1, -1),
            (2, 0),
            (3, 2),
            (4, 3),
        ]
        (told,) = list_runs(tree.folder)
        assert told.completions == 5
        assert "3 of the 8 lines of " in told.damage
        assert "the first is line 4" in told.damage

    def test_a_copy_is_kept_before_anything_is_written(self, tree):
        self.spoil(tree, 3)
        damaged = (tree.folder / JOURNAL).read_bytes()
        assert list(tree.nodes())
        assert (tree.folder / JOURNAL).read_bytes() == damaged
        for number in (1, 2):
            with SearchRun.load(tree.folder) as opened:
                opened.learn(record(5))
            copy = tree.folder / f"{JOURNAL}.damaged-{number}"
            assert copy.read_bytes() == damaged
            assert f"kept as {copy}" in opened.repair_note
            with SearchRun.load(tree.folder) as again:
                assert not again.repair_note
            assert [node.id for node in again.nodes()] == [0, 1, 2, 3, 4, 5]
            (tree.folder / JOURNAL).write_bytes(damaged)

    @pytest.mark.parametrize("change", [{"id": 0}, {"parent": 99}, {"parent": 7}, {"step": -1}])
    def test_a_node_that_can_not_be_is_left_out(self, tree, change):
        lines = [json.loads(line) for line in (tree.folder / JOURNAL).read_text().splitlines()]
        lines[7]["node"] |= change
        (tree.folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert len(list(tree.nodes())) == 7
        assert tree.read_journal().left_out == [8]

    def test_what_a_crash_left_of_the_last_line_is_nothing_to_tell(self, tree):
        file = tree.folder / JOURNAL
        file.write_bytes(file.read_bytes()[:-5])
        assert tree.read_journal().damage == ""
        with tree:
            assert not tree.repair_note
        assert not list(tree.folder.glob("*.damaged-*"))

    def test_records_that_depend_on_none_are_all_kept(self, tmp_path):
        header = RunHeader(kind="tally", config=Tally(count=3))
        with TallyRun.begin(tmp_path / "t", header) as tally:
            for number in range(4):
                tally.append(Tally(count=number))
        file = tmp_path / "t" / "journal.jsonl"
        file.write_text(file.read_text().replace('{"count":1}', '{"count":"one"}'))
        assert [each.count for each in tally.records()] == [0, 2, 3]
        assert tally.read_journal().left_out == [2]

    def test_a_line_that_does_not_fit_on_the_disk_is_not_there_in_part(self, tree):
        before = (tree.folder / JOURNAL).read_bytes()
        code = FULL.format(path=sys.path, folder=str(tree.folder), size=len(before) + 100)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "File too large" in done.stdout, done.stderr
        assert (tree.folder / JOURNAL).read_bytes() == before


FULL = """
import resource, signal, sys
sys.dont_write_bytecode = True  # it would be cut short
sys.path[:0] = {path!r}
from pathlib import Path
from cwm_cli.runs.searches import SearchRun
from search_runs import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with SearchRun.load(Path({folder!r})) as run:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
    try:
        run.learn(record(8))
    except OSError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["lock", "log.txt", JOURNAL, ".best.py.part", ".result.json.part"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(run, name):
    (run.folder / name).unlink(missing_ok=True)
    os.mkfifo(run.folder / name)
    node = record(3).node
    try:
        with SearchRun.load(run.folder) as opened:
            opened.log("hello")
            opened.write_best(node.program)
            opened.save_result({})
            Problem().keep(run.folder, node)
    except CwmError as error:
        assert "it is a pipe" in str(error)
        assert not name.endswith(".part")
    remove(run.folder)


def test_two_processes_never_work_on_one_run(run):
    with run:
        with pytest.raises(BusyError, match="is using"), SearchRun.load(run.folder):
            pass
        with pytest.raises(BusyError, match="is using"):
            remove(run.folder.parent / "run")
    with SearchRun.load(run.folder) as free:
        free.learn(record(3))
    assert len(list(run.nodes())) == 4


WRITER = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from cwm_cli.runs.searches import SearchRun
from search_runs import FILES, HEADER, record, rows
run = SearchRun.start(Path({folder!r}), HEADER, FILES)
run.__enter__()
run.learn(record(0))
run.add_rows(rows(2))
os.kill(os.getpid(), 9)
"""


def test_what_is_written_survives_a_process_that_is_killed(tmp_path):
    code = WRITER.format(path=sys.path, folder=str(tmp_path / "run"))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    run = SearchRun.load(tmp_path / "run")
    assert len(list(run.nodes())) == 1
    assert len(run.dataset()) == 3
    with run:  # its lock went with it
        run.learn(record(1))


class TestGrowingDatasets:
    def test_the_journal_says_which_rows_came_when_and_the_identity_stays(self, run):
        with run:
            run.add_rows(rows(2, reward=2.0))
            run.learn(record(3))
            run.add_rows(rows(1, reward=3.0))
        again = SearchRun.load(run.folder)
        assert again.dataset().columns["rewards"].tolist() == [1.0, 2.0, 2.0, 3.0]
        told = [e.count if isinstance(e, RowsAdded) else e.node.id for e in again.events()]
        assert told == [0, 1, 2, 2, 3, 1]
        assert [node.id for node in again.nodes()] == [0, 1, 2, 3]
        assert Dataset.load(run.folder / DATASET).digest == FILES[DATASET].digest
        again.check(CONFIG)

    def test_rows_whose_line_was_never_written_do_not_count_and_come_again(self, run):
        with run:
            run.add_rows(rows(2))
        file = run.folder / JOURNAL
        file.write_bytes(file.read_bytes()[:-5])
        assert len(run.dataset()) == 1
        with run:
            run.add_rows(rows(3))
        assert len(run.dataset()) == 4

    def test_rows_that_were_changed_are_refused(self, run):
        with run:
            run.add_rows(rows(2))
        rows(2, reward=9.0).save(run.folder / "rows-1.npz")
        with pytest.raises(CwmError, match=r"rows-1\.npz was changed"):
            run.dataset()


class TestStarts:
    def test_one_that_was_cut_short_is_begun_again_but_nothing_foreign_is_touched(self, tmp_path):
        folder = tmp_path / "run"
        SearchRun.start(folder, HEADER, FILES)
        assert not is_free(folder, FILES)
        (folder / "run.json").rename(folder / ".run.json.part")
        assert is_free(folder, FILES)
        (folder / "thesis.tex").write_text("")
        with pytest.raises(CwmError, match="contains other files: choose another --run"):
            SearchRun.start(folder, HEADER, FILES)
        assert (folder / "thesis.tex").exists()

    def test_one_that_fails_leaves_no_folder(self, tmp_path):
        class Broken:
            def save(self, path):
                path.write_text("half")
                raise OSError("no space left")

        folder = tmp_path / "runs" / "one"
        with pytest.raises(OSError, match="no space"):
            SearchRun.start(folder, HEADER, {DATASET: Broken()})
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(CwmError, match="no key"), SearchRun.start(folder, HEADER, FILES) as run:
            run.log("begins")
            raise CwmError("no key")
        assert list(tmp_path.iterdir()) == []

    def test_one_in_which_something_was_found_stays(self, tmp_path):
        folder = tmp_path / "run"
        with pytest.raises(CwmError), SearchRun.start(folder, HEADER, FILES) as run:
            run.learn(record(0))
            raise CwmError("no money")
        assert len(list(SearchRun.load(folder).nodes())) == 1
        with pytest.raises(CwmError), SearchRun.load(folder):
            raise CwmError("again")
        assert folder.exists()

    def test_a_run_of_other_choices_is_refused_by_name_with_both_values(self, run):
        other = CONFIG.model_copy(update={"seed": 1, "options": {"strategy": {"c": 2, "d": 1}}})
        told = list(map(str, differences(CONFIG, other)))
        assert told == ["strategy.c (1, not 2)", "seed (0, not 1)", "strategy.d (none, not 1)"]
        assert differences(CONFIG, CONFIG) == []
        words = r"run was started with other settings, strategy.c \(1, not 2\), seed"
        with pytest.raises(CwmError, match=words):
            SearchRun.begin(run.folder, HEADER.model_copy(update={"config": other}), FILES)
        assert len(list(SearchRun.begin(run.folder, HEADER, FILES).nodes())) == 3


@pytest.mark.parametrize("content", ["", "{", '{"config": {}}', "\xff"])
def test_a_damaged_run_file_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    with pytest.raises(CwmError, match="cannot be read") as caught:
        SearchRun.load(tmp_path)
    assert "\n" not in str(caught.value)


class Tally(BaseModel):
    count: int


class TallyRun(Run[RunHeader[Tally], Tally]):
    kind = "tally"
    header_type = RunHeader[Tally]
    record_type = Tally
    patience: ClassVar[float] = 0.1


def test_what_was_typed_to_begin_a_run_is_not_what_is_typed_to_read_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/cwm", "count", "3"])
    header = RunHeader(kind="tally", config=Tally(count=3))
    assert header.command == ("count", "3")
    TallyRun.start(tmp_path / "t", header)
    monkeypatch.setattr("sys.argv", ["/usr/bin/cwm", "runs", "show"])
    assert TallyRun.load(tmp_path / "t").header.command == ("count", "3")
    file = tmp_path / "t" / "run.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({name: written[name] for name in ("kind", "config", "created")}))
    assert TallyRun.load(tmp_path / "t").header.command == ()


def test_a_kind_of_run_is_a_header_and_a_record(tmp_path):
    with TallyRun.begin(tmp_path / "t", RunHeader(kind="tally", config=Tally(count=3))) as tally:
        tally.append(Tally(count=1))
        tally.append(Tally(count=2))
        tally.rewrite([Tally(count=2)])
        tally.append(Tally(count=3))
        tally.save_result({"sum": 5})
    again = TallyRun.load(tmp_path / "t")
    assert [each.count for each in again.records()] == [2, 3]
    assert again.result() == {"sum": 5}
    assert TallyRun.report([again]).as_json()["sum"] == 5
    with pytest.raises(CwmError, match="is a run of kind 'tally', not 'search'"):
        SearchRun.load(tmp_path / "t")


class TestListing:
    def test_runs_are_found_anywhere_below_the_newest_first(self, tmp_path):
        for number, name in enumerate(("a", "deep/er/b", "a/jobs/c", "d")):
            SearchRun.start(tmp_path / name, HEADER, FILES) if name != "a/jobs/c" else None
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "run.json").touch()
            os.utime(tmp_path / name / "run.json", (number, number))
        (tmp_path / "d" / "run.json").write_text("{")
        os.utime(tmp_path / "d" / "run.json", (9, 9))
        folders = [str(folder.relative_to(tmp_path)) for folder in run_folders(tmp_path)]
        assert folders == ["d", "deep/er/b", "a"]
        assert [folder.name for folder in run_folders(tmp_path / "a")] == ["c", "a"]
        damaged, *others = list_runs(tmp_path)
        assert isinstance(damaged, UnreadableRun)
        assert "cannot be read" in damaged.reason
        assert [run.environment for run in others] == ["X-v0", "X-v0"]
        assert list(list_runs(tmp_path / "nowhere")) == []

    def test_a_run_of_an_unknown_kind_is_told(self, tmp_path):
        TallyRun.start(tmp_path / "t", RunHeader(kind="tally", config=Tally(count=3)))
        (told,) = list_runs(tmp_path)
        assert "unknown run kind 'tally'" in told.reason

    def test_two_runs_differ_in_settings_and_results(self, run, tmp_path):
        other = CONFIG.model_copy(update={"seed": 1})
        second = SearchRun.start(
            tmp_path / "two", HEADER.model_copy(update={"config": other}), FILES
        )
        run.save_result({"solved": False, "test": {"accuracy": 0.5}})
        second.save_result({"solved": True, "test": {"accuracy": 0.5}})
        found = compare(run.folder, second.folder).as_json()
        assert found["settings"] == {"seed": [0, 1]}
        assert found["results"] == {"solved": [False, True]}

    def test_what_is_removed_is_a_run_even_a_damaged_one(self, run, tmp_path):
        (run.folder / "run.json").write_text("{")
        remove(run.folder)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(CwmError, match="is not a run folder"):
            remove(tmp_path)


def test_the_command_lists_shows_compares_and_removes_runs(cwm, run):
    other = CONFIG.model_copy(update={"seed": 1})
    header = HEADER.model_copy(update={"config": other})
    with SearchRun.start(cwm.folder / "runs" / "two", header, FILES) as second:
        second.learn(record(0))
        second.save_result({"solved": False})
    (cwm.folder / "runs" / "bad").mkdir()
    (cwm.folder / "runs" / "bad" / "run.json").write_text("{")

    def told(*words):
        done = cwm.inside("runs", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = {found["run"]: found for found in told("list", "runs", str(run.folder))["runs"]}
    assert listed["runs/two"]["best"] == 0.0
    assert listed[str(run.folder)]["completions"] == 3
    assert "cannot be read" in listed["runs/bad"]["reason"]
    table = cwm.inside("runs", "list").stdout
    assert "X-v0" in table
    assert "runs/bad/run.json cannot be read" in table
    assert told("show", "runs/two")["header"]["config"]["seed"] == 1
    assert "0.000" in cwm.inside("runs", "show", "runs/two").stdout
    assert told("report", "runs/two")["solved"] is False
    assert told("diff", str(run.folder), "runs/two")["settings"] == {"seed": [0, 1]}
    assert "seed" in cwm.inside("runs", "diff", str(run.folder), "runs/two").stdout
    with second:
        refused = cwm.inside("runs", "rm", "runs/two", "--yes")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "another process is using runs/two" in refused.stderr
    assert told("rm", "-y", "runs/two", "runs/bad") == {"removed": ["runs/two", "runs/bad"]}
    assert list((cwm.folder / "runs").iterdir()) == []
    missing = cwm.inside("runs", "show", "nowhere")
    assert (
        missing.stderr
        == "Error: nowhere is not a run folder: `cwm runs list` lists the runs here\n"
    )
