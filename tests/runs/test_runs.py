"""Run folders lose no record, and other folders are never continued or removed."""

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
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.listing import UnreadableRun, compare, list_runs, load, run_folders
from cwm_cli.runs.searches import JOURNAL, SearchRun
from cwm_cli.runs.store import (
    DATASET,
    BusyError,
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


def test_damaged_or_missing_clock_starts_at_zero(run):
    clock = run.folder / "clock.json"
    clock.write_text('{"seconds": 1000}')
    assert SearchRun.load(run.folder).elapsed == 1000
    for text in ("", "[]", '{"seconds": -1}', '{"seconds": "x"}', '{"seconds": NaN}'):
        clock.write_text(text)
        assert SearchRun.load(run.folder).elapsed == 0, text
    clock.unlink()
    assert SearchRun.load(run.folder).elapsed == 0


def test_run_is_unchanged_after_loading(run):
    again = SearchRun.load(run.folder)
    assert again.config == CONFIG
    assert again.header.description == "It moves."
    assert again.dataset().digest == FILES[DATASET].digest
    assert [node.program for node in again.nodes()] == ["x = 0\n", "x = 1\n", "x = 2\n"]
    assert next(again.nodes()).usage.cost == 0.5
    lines = (run.folder / JOURNAL).read_text().splitlines()  # plain JSON for other tools
    assert [json.loads(line)["node"]["id"] for line in lines] == [0, 1, 2]
    assert np.all(["\x1b" not in line for line in lines])


def test_header_without_a_kind_is_a_search(run):
    file = run.folder / "run.json"
    header = json.loads(file.read_text())
    del header["kind"]
    file.write_text(json.dumps(header))
    assert load(run.folder).config == CONFIG


def test_journal_cut_at_any_byte_continues_from_its_last_complete_line(run):
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
    """An unusable line is reported, and skipped with its dependent lines."""

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
    def test_only_the_line_and_its_descendants_are_skipped(self, tree, line):
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
        (summary,) = list_runs(tree.folder)
        assert summary.completions == 5
        assert "3 of the 8 lines of " in summary.damage
        assert "the first is line 4" in summary.damage

    def test_damaged_journal_is_copied_before_it_is_rewritten(self, tree):
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
    def test_impossible_node_is_skipped(self, tree, change):
        lines = [json.loads(line) for line in (tree.folder / JOURNAL).read_text().splitlines()]
        lines[7]["node"] |= change
        (tree.folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert len(list(tree.nodes())) == 7
        assert tree.read_journal().left_out == [8]

    def test_incomplete_last_line_is_not_reported(self, tree):
        file = tree.folder / JOURNAL
        file.write_bytes(file.read_bytes()[:-5])
        assert tree.read_journal().damage == ""
        with tree:
            assert not tree.repair_note
        assert not list(tree.folder.glob("*.damaged-*"))

    def test_independent_records_are_all_kept(self, tmp_path):
        header = RunHeader(kind="tally", config=Tally(count=3))
        with TallyRun.begin(tmp_path / "t", header) as tally:
            for number in range(4):
                tally.append(Tally(count=number))
        file = tmp_path / "t" / "journal.jsonl"
        file.write_text(file.read_text().replace('{"count":1}', '{"count":"one"}'))
        assert [each.count for each in tally.records()] == [0, 2, 3]
        assert tally.read_journal().left_out == [2]

    @pytest.mark.slow
    def test_line_is_not_written_in_part_if_the_disk_is_full(self, tree):
        before = (tree.folder / JOURNAL).read_bytes()
        code = FULL.format(path=sys.path, folder=str(tree.folder), size=len(before) + 100)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "File too large" in done.stdout, done.stderr
        assert (tree.folder / JOURNAL).read_bytes() == before


FULL = """
import resource, signal, sys
sys.dont_write_bytecode = True  # the limit would truncate the files
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
def test_pipe_in_place_of_a_file_does_not_block(run, name):
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


def test_only_one_process_can_write_to_a_run(run):
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


@pytest.mark.slow
def test_records_and_rows_survive_a_killed_process(tmp_path):
    code = WRITER.format(path=sys.path, folder=str(tmp_path / "run"))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    run = SearchRun.load(tmp_path / "run")
    assert len(list(run.nodes())) == 1
    assert len(run.dataset()) == 3
    with run:  # the kernel has released its lock
        run.learn(record(1))


class TestGrowingDatasets:
    def test_added_rows_are_in_the_journal_and_keep_the_identity(self, run):
        with run:
            run.add_rows(rows(2, reward=2.0))
            run.learn(record(3))
            run.add_rows(rows(1, reward=3.0))
        again = SearchRun.load(run.folder)
        assert again.dataset().columns["rewards"].tolist() == [1.0, 2.0, 2.0, 3.0]
        events = [e.count if isinstance(e, RowsAdded) else e.node.id for e in again.events()]
        assert events == [0, 1, 2, 2, 3, 1]
        assert [node.id for node in again.nodes()] == [0, 1, 2, 3]
        assert Dataset.load(run.folder / DATASET).digest == FILES[DATASET].digest
        again.check(CONFIG)

    def test_rows_without_a_journal_line_are_overwritten(self, run):
        with run:
            run.add_rows(rows(2))
        file = run.folder / JOURNAL
        file.write_bytes(file.read_bytes()[:-5])
        assert len(run.dataset()) == 1
        with run:
            run.add_rows(rows(3))
        assert len(run.dataset()) == 4

    def test_changed_rows_are_refused(self, run):
        with run:
            run.add_rows(rows(2))
        rows(2, reward=9.0).save(run.folder / "rows-1.npz")
        with pytest.raises(CwmError, match=r"rows-1\.npz was changed"):
            run.dataset()


class TestStarts:
    def test_interrupted_start_is_repeated_unless_other_files_exist(self, tmp_path):
        folder = tmp_path / "run"
        SearchRun.start(folder, HEADER, FILES)
        assert not is_free(folder, FILES)
        (folder / "run.json").rename(folder / ".run.json.part")
        assert is_free(folder, FILES)
        (folder / "thesis.tex").write_text("")
        with pytest.raises(CwmError, match="contains other files: choose another --run"):
            SearchRun.start(folder, HEADER, FILES)
        assert (folder / "thesis.tex").exists()

    def test_failing_start_leaves_no_folder(self, tmp_path):
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

    def test_failing_run_with_records_stays(self, tmp_path):
        folder = tmp_path / "run"
        with pytest.raises(CwmError), SearchRun.start(folder, HEADER, FILES) as run:
            run.learn(record(0))
            raise CwmError("no money")
        assert len(list(SearchRun.load(folder).nodes())) == 1
        with pytest.raises(CwmError), SearchRun.load(folder):
            raise CwmError("again")
        assert folder.exists()

    def test_run_with_other_choices_is_refused_with_both_values(self, run):
        other = CONFIG.model_copy(update={"seed": 1, "options": {"strategy": {"c": 2, "d": 1}}})
        texts = list(map(str, differences(CONFIG, other)))
        assert texts == ["strategy.c (1, not 2)", "seed (0, not 1)", "strategy.d (none, not 1)"]
        assert differences(CONFIG, CONFIG) == []
        words = r"run was started with other settings, strategy.c \(1, not 2\), seed"
        with pytest.raises(CwmError, match=words):
            SearchRun.begin(run.folder, HEADER.model_copy(update={"config": other}), FILES)
        assert len(list(SearchRun.begin(run.folder, HEADER, FILES).nodes())) == 3


@pytest.mark.parametrize("content", ["", "{", '{"config": {}}', "\xff"])
def test_damaged_header_is_refused_in_one_line(tmp_path, content):
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


def test_header_keeps_the_command_that_started_the_run(tmp_path, monkeypatch):
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


def test_kind_of_run_needs_a_header_and_a_record(tmp_path):
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
    def test_runs_are_found_below_a_folder_newest_first(self, tmp_path):
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

    def test_run_of_unknown_kind_is_listed_with_the_reason(self, tmp_path):
        TallyRun.start(tmp_path / "t", RunHeader(kind="tally", config=Tally(count=3)))
        (unreadable,) = list_runs(tmp_path)
        assert "unknown run kind 'tally'" in unreadable.reason

    def test_comparison_lists_settings_and_results(self, run, tmp_path):
        other = CONFIG.model_copy(update={"seed": 1})
        second = SearchRun.start(
            tmp_path / "two", HEADER.model_copy(update={"config": other}), FILES
        )
        run.save_result({"solved": False, "test": {"accuracy": 0.5}})
        second.save_result({"solved": True, "test": {"accuracy": 0.5}})
        found = compare(run.folder, second.folder).as_json()
        assert found["settings"] == {"seed": [0, 1]}
        assert found["results"] == {"solved": [False, True]}

    def test_remove_accepts_damaged_runs_and_only_runs(self, run, tmp_path):
        (run.folder / "run.json").write_text("{")
        remove(run.folder)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(CwmError, match="is not a run folder"):
            remove(tmp_path)


def test_command_lists_shows_compares_and_removes_runs(cwm, run):
    other = CONFIG.model_copy(update={"seed": 1})
    header = HEADER.model_copy(update={"config": other})
    with SearchRun.start(cwm.folder / "runs" / "two", header, FILES) as second:
        second.learn(record(0))
        second.save_result({"solved": False})
    (cwm.folder / "runs" / "bad").mkdir()
    (cwm.folder / "runs" / "bad" / "run.json").write_text("{")

    def output_of(*words):
        done = cwm.inside("runs", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = {found["run"]: found for found in output_of("list", "runs", str(run.folder))["runs"]}
    assert listed["runs/two"]["best"] == 0.0
    assert listed[str(run.folder)]["completions"] == 3
    assert "cannot be read" in listed["runs/bad"]["reason"]
    table = cwm.inside("runs", "list").stdout
    assert "X-v0" in table
    assert "runs/bad/run.json cannot be read" in table
    assert output_of("show", "runs/two")["header"]["config"]["seed"] == 1
    assert "0.000" in cwm.inside("runs", "show", "runs/two").stdout
    assert output_of("report", "runs/two")["solved"] is False
    assert output_of("diff", str(run.folder), "runs/two")["settings"] == {"seed": [0, 1]}
    assert "seed" in cwm.inside("runs", "diff", str(run.folder), "runs/two").stdout
    with second:
        refused = cwm.inside("runs", "rm", "runs/two", "--yes")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "another process is using runs/two" in refused.stderr
    assert output_of("rm", "-y", "runs/two", "runs/bad") == {"removed": ["runs/two", "runs/bad"]}
    assert list((cwm.folder / "runs").iterdir()) == []
    missing = cwm.inside("runs", "show", "nowhere")
    assert (
        missing.stderr
        == "Error: nowhere is not a run folder: `cwm runs list` lists the runs here\n"
    )
