"""The files that a release depends on agree with each other and with their schemas."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.interpreters import SUPPORTED
from cwm_cli._version import __version__
from folders import ROOT

SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/[bf]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_for_github_and_citation_match_their_schemas(pattern: str) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    files = sorted(map(str, ROOT.glob(pattern)))
    assert files
    command = ("check_jsonschema", "--builtin-schema", SCHEMAS[pattern], *files)
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tag", "code"), [(f"v{__version__}", 0), (__version__, 1), ("v9.0.0", 1), ("", 1)]
)
def test_publishing_refuses_a_tag_that_differs_from_the_version(tag: str, code: int) -> None:
    steps = read_yaml(".github/workflows/publish.yml")["jobs"]["build"]["steps"]
    (script,) = (step["run"] for step in steps if "TAG" in step.get("env", {}))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "TAG": tag},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"tag it v{__version__}" in done.stdout) == bool(code)


def test_changelog_and_citation_name_the_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["version"] == __version__
    assert f"\n## [{__version__}] - {citation['date-released']}\n" in CHANGELOG


def test_every_section_of_the_changelog_has_its_link() -> None:
    sections = re.findall(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)
    assert sections[:2] == ["Unreleased", __version__]
    assert sections == re.findall(r"^\[(.+?)\]: https://", CHANGELOG, re.MULTILINE)


def test_classifiers_name_the_pythons_that_the_suite_runs_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = [text.removeprefix(prefix) for text in project["classifiers"] if prefix in text]
    assert tuple(named) == SUPPORTED
    assert project["requires-python"] == f">={SUPPORTED[0]}"
