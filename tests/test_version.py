"""The version names the code that ran: a commit, or a hash of the installed files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cwm_cli
from cwm_cli._version import __version__, code_version
from cwm_cli.runs.listing import load
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun

CONFIG = SearchConfig(env="CartPole-v1", dataset="0", strategy="s", backend="b", seed=3)


class Project:
    """A git repository that may hold a package with nothing but the module `_version`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def add_package(self, place: str) -> Path:
        package = self.folder / place
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        shutil.copy(Path(cwm_cli.__file__).with_name("_version.py"), package)
        return package

    def commit(self, *files: str) -> str:
        self.git("add", *files)
        self.git("commit", "-q", "-m", "Add files")
        return self.git("rev-parse", "--short=7", "HEAD")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project")


def code_of(package: Path, **environment: str) -> str:
    """Return the code version of a package, from a process in another folder."""
    command = "from cwm_cli._version import code_version; print(code_version())"
    paths = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd="/",
        env={"PATH": os.environ["PATH"], **paths, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_code_version_is_the_commit_of_the_checkout(project: Project) -> None:
    package = project.add_package("cwm_cli")
    commit = project.commit("cwm_cli")
    assert code_of(package) == f"commit {commit}"
    (package / "__init__.py").write_text("changed = True\n")
    assert code_of(package) == f"commit {commit}+changes"


def test_code_version_ignores_the_repository_of_a_git_hook(project: Project) -> None:
    package = project.add_package("cwm_cli")
    commit = project.commit("cwm_cli")
    assert code_of(package, GIT_DIR="/nowhere/.git") == f"commit {commit}"


def test_package_in_an_environment_inside_another_repository_has_no_commit(
    project: Project,
) -> None:
    package = project.add_package(".venv/lib/site-packages/cwm_cli")
    (project.folder / ".gitignore").write_text(".venv/\n")
    project.commit(".gitignore")
    assert re.fullmatch(r"files [0-9a-f]{7}", code_of(package))


def test_code_version_without_git_is_a_hash_of_the_files(project: Project) -> None:
    package = project.add_package("cwm_cli")
    project.commit("cwm_cli")
    without_git = code_of(package, PATH="/nowhere")
    assert re.fullmatch(r"files [0-9a-f]{7}", without_git)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").touch()
    assert code_of(package, PATH="/nowhere") == without_git
    (package / "__init__.py").write_text("changed = True\n")
    assert code_of(package, PATH="/nowhere") != without_git


def test_version_option_prints_version_and_code(cwm) -> None:
    assert cwm("--version").stdout == f"cwm {__version__} ({code_version()})\n"


def test_run_records_the_code_that_started_it(cwm) -> None:
    header = SearchHeader(config=CONFIG, description="d", source="s")
    with SearchRun.start(cwm.folder / "run", header) as run:
        run.save_result({"completions": 7})
    assert load(run.folder).header.code == code_version()
    shown = cwm.inside("runs", "show", "run")
    assert f"{__version__} ({code_version()})" in shown.stdout


@pytest.mark.parametrize("code", [None, "commit 1234567"])
def test_run_of_other_code_is_continued_and_keeps_its_record(
    tmp_path: Path, code: str | None
) -> None:
    header = SearchHeader(config=CONFIG, description="d", source="s")
    with SearchRun.start(tmp_path / "run", header) as run:
        run.save_result({"completions": 7})
    file = run.folder / "run.json"
    written = json.loads(file.read_text()) | {"code": code}
    if code is None:
        del written["code"]
    file.write_text(json.dumps(written))
    with SearchRun.begin(run.folder, header) as again:
        assert again.is_continued
        assert again.header.code == (code or "")
