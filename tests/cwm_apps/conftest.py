"""Fixtures of the tests of coding problems: data, the command, and the Python functions."""

import json
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from coding_problems import PROBLEMS
from cwm_apps.solving import CodingResult, judge_solutions, solve
from cwm_cli.cli import command_line
from cwm_cli.runs.observer import Observer

SLOW_DOWN = {"backoff": 0.01, "retries": 0, "cpu_seconds": 0.5}
"""Options that keep tests fast."""


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    return file


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")
    monkeypatch.delenv("CWM_MODEL", raising=False)
    return tmp_path


@pytest.fixture
def command(data):
    """Run `cwm apps` in this process; return its result and its JSON output."""

    def invoke(*arguments, code=0):
        given = () if {"--data", "--judge-only"} & {*arguments} else ("--data", str(data))
        result = CliRunner().invoke(command_line(), ["apps", *given, *arguments, "--json"])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result, json.loads(result.stdout or "null")

    return invoke


class Said(Observer):
    """Records notes as lines."""

    def __init__(self):
        self.lines = []

    def note(self, words, kind="Note"):
        self.lines.append(f"{kind}: {words}")

    def advanced(self, event):
        self.lines.append(f"{event.id} {event.state} {event.reason}")

    def __contains__(self, words):
        return any(words in line for line in self.lines)


class Done(NamedTuple):
    """The JSON output, its result, and the notes."""

    facts: dict
    result: CodingResult
    said: Said


@pytest.fixture
def work(data):
    """Solve problems, or judge programs for them, by the functions."""

    def do(server=None, *, options=(), solutions=None, **asked):
        said, asked = Said(), {"data": str(data), **asked}
        if server is None:
            options = {"cpu_seconds": 0.5}
            result = judge_solutions(solutions, options=options, observer=said, **asked)
        else:
            model = {"model": "openai/gpt-4o-mini", "api_base": server.url}
            result = solve(options={**SLOW_DOWN, **dict(options)}, observer=said, **model | asked)
        return Done(result.as_json(), result, said)

    return do


@pytest.fixture
def shell(cwm):
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    return cwm
