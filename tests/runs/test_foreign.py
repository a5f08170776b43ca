"""Runs that another version wrote are shown as far as they can be read, and that is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cwm_cli._version import __version__
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import list_runs, load, load_readable, report_on
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.views.page import write_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = SearchConfig(env="CartPole-v1", dataset="0", strategy="s", backend="b", seed=3)
    header = SearchHeader(config=config, description="d", source="s")
    with SearchRun.start(tmp_path / "run", header) as run:
        run.write_best("class Environment: ...\n")
        run.save_result({"completions": 7})
    return run.folder


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], version: str = "9.0") -> None:
    header = json.loads((folder / "run.json").read_text())
    header["versions"]["cwm"] = version
    change(header)
    (folder / "run.json").write_text(json.dumps(header))


def test_a_run_says_which_version_wrote_it(folder: Path) -> None:
    assert load(folder).header.versions["cwm"] == __version__


def test_what_is_unknown_of_the_choices_is_left_out_and_said(folder: Path) -> None:
    rewritten(folder, lambda header: header["config"].update(dreams=["electric"]))
    run = load_readable(folder)
    assert isinstance(run, SearchRun) and run.config.seed == 3
    told = (
        f"{folder} was written by cwm 9.0, read by cwm {__version__}: unknown settings are ignored"
    )
    assert told in run.damage
    assert told in report_on([folder]).notes[-1]
    (listed,) = list_runs(folder.parent)
    assert told in listed.as_json()["damage"] and listed.as_json()["environment"] == "CartPole-v1"
    write_page([folder], folder / "report.html")
    assert "config.dreams is unknown in this version" in (folder / "report.html").read_text()
    with pytest.raises(CwmError, match="dreams is unknown in this version"):
        load(folder)  # nothing that depends on the choices goes on without them


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(kind="dream"),
        lambda header: header["config"].pop("env"),
        lambda header: header["config"].update(seed={"of": "another kind"}, more=1),
        lambda header: header.update(description=["in", "parts"]),
    ],
)
def test_a_header_that_cannot_be_read_is_shown_with_all_else(
    folder: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewritten(folder, change)
    (folder / "nodes.jsonl").write_text('{"kind":"dream"}\n{"kind":"dream"}\n')
    run = load_readable(folder)
    assert run.damage.startswith(f"{folder} was written by cwm 9.0, read by cwm {__version__}: ")
    kinds = {section.title: section for section in type(run).sections([run])}
    assert kinds["Program"].data["text"] == "class Environment: ...\n"
    assert kinds["Result"].data["rows"] == [["completions", 7]]
    assert ["strategy", "s"] in kinds["Choices"].data["rows"]
    assert run.summary().done == "2 lines"


def test_what_this_version_wrote_and_cannot_read_is_damaged(folder: Path) -> None:
    rewritten(folder, lambda header: header["config"].pop("env"), version=__version__)
    with pytest.raises(CwmError, match="env is missing"):
        load_readable(folder)
    (folder / "run.json").write_text("[]")
    with pytest.raises(CwmError, match="cannot be read"):
        load_readable(folder)


def test_unknown_lines_of_a_journal_are_counted_and_the_rest_is_shown(folder: Path) -> None:
    (folder / "nodes.jsonl").write_text('{"kind":"dream"}\n')
    assert "1 of the 1 lines of" in load_readable(folder).damage
    (folder / "result.json").write_text('{"train": 3}')
    write_page([folder], folder / "report.html")
    assert "its scores are invalid" in (folder / "report.html").read_text()
