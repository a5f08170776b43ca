"""The readable parts of runs of other versions are shown, the others reported."""

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


def test_header_contains_the_version(folder: Path) -> None:
    assert load(folder).header.versions["cwm"] == __version__


def test_unknown_settings_are_ignored_and_reported(folder: Path) -> None:
    rewritten(folder, lambda header: header["config"].update(dreams=["electric"]))
    run = load_readable(folder)
    assert isinstance(run, SearchRun) and run.config.seed == 3
    message = (
        f"{folder} was written by cwm 9.0, read by cwm {__version__}: unknown settings are ignored"
    )
    assert message in run.damage
    assert message in report_on([folder]).notes[-1]
    (listed,) = list_runs(folder.parent)
    assert (
        message in listed.as_json()["damage"] and listed.as_json()["environment"] == "CartPole-v1"
    )
    write_page([folder], folder / "report.html")
    assert "config.dreams is unknown in this version" in (folder / "report.html").read_text()
    with pytest.raises(CwmError, match="dreams is unknown in this version"):
        load(folder)  # a run continues only with complete choices


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(kind="dream"),
        lambda header: header["config"].pop("env"),
        lambda header: header["config"].update(seed={"of": "another kind"}, more=1),
        lambda header: header.update(description=["in", "parts"]),
    ],
)
def test_run_with_an_unreadable_header_is_shown(
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


def test_unreadable_run_of_this_version_is_an_error(folder: Path) -> None:
    rewritten(folder, lambda header: header["config"].pop("env"), version=__version__)
    with pytest.raises(CwmError, match="env is missing"):
        load_readable(folder)
    (folder / "run.json").write_text("[]")
    with pytest.raises(CwmError, match="cannot be read"):
        load_readable(folder)


def test_unknown_journal_lines_are_counted(folder: Path) -> None:
    (folder / "nodes.jsonl").write_text('{"kind":"dream"}\n')
    assert "1 of the 1 lines of" in load_readable(folder).damage
    (folder / "result.json").write_text('{"train": 3}')
    write_page([folder], folder / "report.html")
    assert "its scores are invalid" in (folder / "report.html").read_text()
