"""Runs of WorldCoder's agent that are interrupted and continued, and their time limits."""

import time
from pathlib import Path
from typing import Any

import pytest

from cwm_cli import learn
from learning_runs import crash_after, journal_of, result_of
from openai_server import OpenAIServer

AGENT: dict[str, Any] = {
    "strategy": "worldcoder-agent",
    "options": {"strategy.pulls": 8, "strategy.plan_nodes": 600},
}
EMPTY: dict[str, Any] = {"env": "MiniGrid-Empty-5x5-v0", "steps": 24, "seed": 200, **AGENT}


def content(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the journal, and the result with all programs, without times and folders."""
    return journal_of(run), result_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("curriculum", [(), ("MiniGrid-Empty-6x6-v0",)])
def test_continued_run_is_equal_to_an_uninterrupted_one(
    tmp_path: Path, curriculum: tuple[str, ...]
) -> None:
    arguments = {**EMPTY, "curriculum": curriculum}
    if curriculum:
        arguments["options"] = {**AGENT["options"], "strategy.episodes": 1}
    learn(**arguments, run=tmp_path / "whole")
    count = len((tmp_path / "whole" / "journal.jsonl").read_text().splitlines())
    for lines in (count // 3, count // 4):
        assert crash_after(tmp_path / "r", lines, **arguments)
    done = learn(**arguments, run=tmp_path / "r")
    assert content(tmp_path / "r") == content(tmp_path / "whole")
    assert done.writing_seconds > 0 < done.planning_seconds
    assert done.writing_seconds + done.planning_seconds <= done.seconds


@pytest.mark.slow
def test_more_steps_continue_a_finished_run(tmp_path: Path) -> None:
    learn(**EMPTY, run=tmp_path / "whole")
    learn(**{**EMPTY, "steps": 15}, run=tmp_path / "r")
    learn(**EMPTY, run=tmp_path / "r")
    assert content(tmp_path / "r") == content(tmp_path / "whole")


@pytest.mark.slow
def test_interrupted_run_with_a_model_repeats_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    moves = (
        "def transition(state, action):\n    return state\n\n"
        "def reward_func(state, action, next_state):\n    return 0.0, False\n"
    )
    with OpenAIServer(lambda body: f"```python\n{moves}```") as server:
        arguments = {**EMPTY, "steps": 14, "model": "openai/x", "api_base": server.url}
        learn(**arguments, run=tmp_path / "whole")
        count = len(server.requests)
        assert crash_after(tmp_path / "r", 14, **arguments)
        learn(**arguments, run=tmp_path / "r")
        assert len(server.requests) == 2 * count > 0
    assert content(tmp_path / "r") == content(tmp_path / "whole")


@pytest.mark.slow
def test_time_limit_bounds_searches_and_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    household = {**AGENT, "env": "Household-Heat-v0", "seed": 200, "steps": 1000}
    assert learn(**household, seconds=5, run=tmp_path / "r").seconds < 15
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def answer_late(body: Any) -> str:
        time.sleep(20)
        return ""

    with OpenAIServer(answer_late) as server:
        model = {"model": "openai/x", "api_base": server.url}
        done = learn(**household, **model, seconds=4, run=tmp_path / "late")
    assert done.seconds < 12
    assert (done.stopped, done.completions) == ("seconds", 1)
