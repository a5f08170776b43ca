"""The page of every kind of run opens in a browser without a complaint, wide and narrow."""

import pytest

from cwm_cli.registry import names
from cwm_cli.runs.listing import load
from openai_server import OpenAIServer

BEGUN = {
    "search": "synthesize --env CliffWalking-v1 --budget 1",
    "learn": "learn --env CliffWalking-v1 --steps 150",
    "theorize": "theorize --env Door-v0 --phases 2",
    "train": "train --env CartPole-v1 --model dummy --agent random --steps 150",
    "benchmark": "benchmark --env CliffWalking-v1 --strategy gif-mcts --strategy zero-shot "
    "--budget 1 --no-plan",
    "apps": "apps --total 1 --model openai/a --budget 2 --api-base",
}
"""What begins a run of each kind, as quickly as it can be had."""

KINDS = [*BEGUN, "plan"]


def test_no_kind_of_run_is_left_out():
    assert {*names("run kind")} <= {load_kind(kind) for kind in KINDS}


def load_kind(command: str) -> str:
    """Return the kind of run that a command makes."""
    return {"apps": "coding"}.get(command, command)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_run_opens_and_draws_every_section(kind, cwm, browser):
    folder = cwm.folder / "run"
    if kind == "plan":
        assert cwm(*BEGUN["search"].split(), "--run", "run").returncode == 0
        assert cwm("plan", "run", "--episodes", "2", "--max-steps", "20").returncode == 0
        folder = next((folder / "plans").iterdir())
    else:
        cwm.environment["OPENAI_API_KEY"] = "sk-a"
        with OpenAIServer(lambda body: "```python\nprint(1)\n```") as server:
            address = [server.url] if kind == "apps" else []
            done = cwm(*BEGUN[kind].split(), *address, "--run", "run")
        assert done.returncode == 0, done.stderr
    assert load(folder).kind == load_kind(kind)
    page = cwm.folder / "page.html"
    done = cwm("runs", "report", str(folder), "--html", str(page))
    assert done.returncode == 0, done.stderr
    for width in (1280, 390):
        browser.open(page, width=width, dark=width == 390)
        assert browser.heard() == []
        assert browser.requested() == []
        drawn = browser.run(
            "return [...document.querySelectorAll('section')].map("
            "s => [s.dataset.kind, s.querySelector('.body').childElementCount,"
            " s.querySelectorAll('pre.raw').length])"
        )
        assert drawn
        assert all(count and not raw for _, count, raw in drawn), drawn
        over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.run(over) == 0
