"""Runs on object stores: every event is stored once, also after kills and with parallel writers.

`local://` is a file system of fsspec: for a run an object store that processes share.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from counting_runs import Count, CountRun, begin, counted
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import write_object
from cwm_cli.runs.storage import BusyError, located, named, placed, storage_of, with_urls
from cwm_cli.runs.store import remove
from cwm_remote.claims import CLAIMS, LostClaimError
from cwm_remote.storage import ObjectStorage
from folders import ROOT, SUPPORT

if TYPE_CHECKING:
    from shell import Shell

pytest.importorskip("fsspec")


@contextmanager
def counting(url: str) -> Iterator[subprocess.Popen[str]]:
    words = f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
    words += f"from counting_runs import count_on\ncount_on({url!r})"
    process = subprocess.Popen([sys.executable, "-c", words], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def waited_for(parts: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a process has written `count` parts of its journal."""
    deadline = time.monotonic() + 60
    while not parts.is_dir() or len(list(parts.iterdir())) < count:
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it writes nothing"
        time.sleep(0.02)


def test_urls_and_paths_are_distinguished(tmp_path: Path) -> None:
    folder = located("memory://bucket//place/./run")
    assert named(folder / "best.py") == "memory://bucket/place/run/best.py"
    assert located(Path("memory://bucket/place/run")) == folder, "a path has one slash less"
    assert with_urls(f"no {folder}/x here") == "no memory://bucket/place/run/x here"
    assert located(f"file://{tmp_path}/run") == tmp_path / "run"
    assert located(str(tmp_path)) == tmp_path and named(tmp_path) == str(tmp_path)
    assert storage_of(tmp_path) is None and storage_of(Path("runs/one")) is None
    for wrong in ("memory://", "memory://a/../b"):
        with pytest.raises(CwmError, match="has no folder"):
            located(wrong)
    with pytest.raises(CwmError, match="nowhere://place/run cannot be used"):
        placed("nowhere://place/run")


def test_remote_run_has_the_same_files_as_a_local_run(tmp_path: Path) -> None:
    import fsspec

    system, url = fsspec.filesystem("memory"), "memory://kept/run"
    for place in (url, str(tmp_path / "run")):
        with begin(place) as run:
            for n in range(12):
                run.append(Count(n=n))
                run.log(f"line {n}")
            run.save_result({"best": 1})
    there = {path.removeprefix("/kept/run/") for path in system.find("/kept/run")}
    assert "journal.jsonl.parts/00000013-whole" in there, "many parts are finally merged into one"
    whole = system.cat_file("/kept/run/journal.jsonl.parts/00000013-whole")
    assert whole == (tmp_path / "run" / "journal.jsonl").read_bytes()
    assert json.loads(system.cat_file("/kept/run/result.json")) == {"best": 1}
    with begin(url) as run:
        assert run.is_continued and run.place == url
        run.append(Count(n=12), Count(n=13))
        with pytest.raises(BusyError, match=rf"using {url} \(process {os.getpid()} on"):
            ObjectStorage(run.folder, url).claim()
        run.rewrite([Count(n=n) for n in range(5)])
        (run.folder / "other.txt").write_text("other")
    assert counted(CountRun.load(placed(url))) == [0, 1, 2, 3, 4]
    assert system.cat_file("/kept/run/other.txt") == b"other"
    with pytest.raises(CwmError, match=f"{url} was started with other settings, start"):
        begin(url, start=1)
    with pytest.raises(RuntimeError), begin("memory://kept/bare"):
        raise RuntimeError  # before anything was found
    assert not system.find("/kept/bare")
    remove(placed(url))
    assert not system.find("/kept/run")


@pytest.mark.slow
def test_killed_process_loses_and_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url, parts = "local://store/run", tmp_path / "store" / "run" / "journal.jsonl.parts"
    with counting(url) as process:
        waited_for(parts, 20, process)
        with pytest.raises(BusyError, match=f"process {process.pid} on"), begin(url):
            raise AssertionError("two at once")
        process.send_signal(signal.SIGKILL)
        process.wait()
    written = sum(bool(part.stat().st_size) for part in parts.iterdir())
    with begin(url) as run:  # its process on this machine has ended, so there is no wait
        assert counted(run) == list(range(written))
        run.append(Count(n=written))
        assert not run.repair_note
    with counting(url) as process:  # with its own copy
        waited_for(parts, 5, process)
    with begin(url) as run:
        done = counted(run)
        assert len(done) > written and done == list(range(len(done)))


def test_claim_holds_for_its_lease_and_is_lost_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CWM_LEASE", "0.4")
    url, claims = "local://store/claimed", tmp_path / "store" / "claimed" / CLAIMS
    other = {"id": "other", "host": "elsewhere", "process": 7, "machine": "else", "begun": "1"}
    words = f"another process has taken {url} over"
    with pytest.raises(LostClaimError, match=words), begin(url) as run:
        run.append(Count(n=0))
        number = max(int(file.name) for file in claims.iterdir())
        write_object(claims / f"{number + 1:08}", {**other, "lease": 1000.0})
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            run.append(Count(n=1))
            time.sleep(0.05)
    kept = counted(run)  # the failed write left nothing
    with (
        pytest.raises(
            BusyError, match=r"process 7 on elsewhere; its lock expires at \d\d:\d\d:\d\d"
        ),
        begin(url),
    ):
        raise AssertionError("the claim of another machine holds")
    write_object(claims / f"{number + 1:08}", {**other, "lease": 0.5})
    time.sleep(0.6)
    with begin(url) as run:
        assert counted(run) == kept
    write_object(claims / f"{number + 3:08}", {**other, "lease": 1000.0, "released": True})
    with begin(url) as run:
        assert counted(run) == kept


def test_large_file_is_streamed_and_held_run_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cwm_remote.storage.LARGE", 1000)
    url, folder = "local://store/large", tmp_path / "store" / "large"
    content = bytes(range(250)) * 8
    with begin(url) as run:
        (run.folder / "large.npz").write_bytes(content)
        run.append(Count(n=0))
    copy = ObjectStorage(tmp_path / "copy", url)
    copy.bring()
    assert (copy.folder / "large.npz").read_bytes() == content
    assert not list(copy.folder.glob(".*")), "nothing that is partial"
    claim = {"id": "other", "host": "elsewhere", "process": 7, "machine": "else", "begun": "1"}
    write_object(folder / CLAIMS / "00000099", {**claim, "lease": 1000.0})
    with pytest.raises(BusyError, match="process 7 on elsewhere"):
        remove(placed(url))
    write_object(folder / CLAIMS / "00000099", {**claim, "lease": 1000.0, "released": True})
    remove(placed(url))
    assert not list(folder.rglob("*.npz"))


def test_missing_part_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url, folder = "local://store/damaged", tmp_path / "store" / "damaged"
    with begin(url) as run:
        for n in range(5):
            run.append(Count(n=n))
    (folder / "journal.jsonl.parts" / "00000003").unlink()
    (folder / "journal.jsonl.parts" / "00000004").write_bytes(b'{"n":')
    with begin(url) as run:
        words = f"2 of the 5 lines of {url}/journal.jsonl cannot be used (the first is line 3)"
        assert (
            words in run.repair_note and f"kept as {url}/journal.jsonl.damaged-1" in run.repair_note
        )
        assert counted(run) == [0, 1, 4]
    kept = (folder / "journal.jsonl.damaged-1").read_text()
    assert "part 00000003 of journal.jsonl is missing" in kept


def test_url_without_plugin_is_rejected_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cwm_remote.EveryScheme.__contains__", lambda *_: False)
    words = "unserved://place/run cannot be used (no installed plugin serves unserved://): see"
    with pytest.raises(CwmError, match=re.escape(words)):
        placed("unserved://place/run")


SHELF_PLUGIN = """
from cwm_cli import hookimpl

@hookimpl
def cwm_storages():
    return {"shelf": "shelf:Shelf"}
"""


@pytest.mark.slow
def test_third_party_plugin_stores_runs_at_its_own_urls(
    cwm: "Shell", monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "reference" / "plugins.md"
    documented = re.search(r"shelf\.py\n(.+?)```", page.read_text(), re.DOTALL)
    assert documented
    (cwm.packages / "shelf.py").write_text(documented[1])
    cwm.install("shelf_plugin", SHELF_PLUGIN)
    url, kept = "shelf://counts/one", cwm.folder / "shelf" / "counts" / "one"
    assert re.search(r"storage .* shelf_plugin 1.0 .* shelf ", cwm.inside("plugins").stdout)
    monkeypatch.chdir(cwm.folder)
    with cwm._plugins_here(monkeypatch):
        with begin(url) as run:
            run.append(Count(n=0))
            busy = cwm("runs", "rm", url, "--yes")  # another process
            assert f"another process is using {url}: wait for it" in busy.stderr
            assert busy.returncode == 1 and kept.exists()
        with begin(url) as run:
            assert run.is_continued and counted(run) == [0]
            run.append(Count(n=1))
        assert counted(CountRun.load(placed("shelf://counts") / "one")) == [0, 1]
    assert (kept / "journal.jsonl").read_text() == '{"n":0}\n{"n":1}\n'
    listed = cwm.inside("runs", "list", "shelf://counts")
    assert "unknown run kind 'count'" in listed.stdout, "the run is found"
    removed = cwm.inside("runs", "rm", url, "--yes")
    assert removed.returncode == 0 and not kept.exists(), removed.stderr
