"""What is being done is always said, and the clock goes on where a run does."""

import json
import re
import threading

import pytest

from cwm_cli.runs.searches import SearchRun
from cwm_cli.views import lines
from cwm_cli.views.lines import Pulse
from recordings import cartpole


def test_a_silence_is_broken_again_and_again_until_it_is_over(monkeypatch):
    monkeypatch.setattr(lines, "QUIET_SECONDS", 0.001)
    thrice, told = threading.Event(), []

    def say():
        told.append("at work")
        if len(told) == 3:
            thrice.set()

    pulse = Pulse(say)
    assert thrice.wait(30)
    pulse.stop()


def test_whoever_hears_something_waits_anew(monkeypatch):
    monkeypatch.setattr(lines, "QUIET_SECONDS", 3600)
    told = []
    pulse = Pulse(lambda: told.append("at work"))
    for _ in range(100):
        pulse.heard()
    pulse.stop()
    assert told == []


@pytest.fixture
def answers(cwm):
    (cwm.folder / "answers").mkdir()
    for number, gravity in enumerate((5.0, 6.0, 9.8)):
        text = f"```python\n{cartpole(gravity=gravity)}```"
        (cwm.folder / "answers" / f"{number}.md").write_text(text)
    return cwm


SEARCH = ("synthesize", "--env", "CartPole-v1", "--backend", "replay", "--model", "answers")


def test_the_clock_of_a_search_and_of_a_plan_counts_earlier_sessions(answers):
    first = answers.inside(*SEARCH, "--run", "r", "--budget", "1", "--json")
    seconds = json.loads(first.stdout)["seconds"]
    clock = answers.folder / "r" / "clock.json"
    assert 0 < json.loads(clock.read_text())["seconds"] <= seconds + 1
    clock.write_text('{"seconds": 1000}')  # as if there had been a long session
    again = answers.inside(*SEARCH, "--run", "r", "--budget", "2", "--json")
    assert json.loads(again.stdout)["seconds"] > 1000
    assert re.search(r"^\[2/2\] .*  16:4\d", again.stderr, re.MULTILINE)

    play = ("plan", "r", "--max-steps", "5", "--episodes")
    assert answers.inside(*play, "1").returncode == 0
    (clock,) = answers.folder.glob("r/plans/*/clock.json")
    clock.write_text('{"seconds": 1000}')
    again = answers.inside(*play, "2")
    assert re.search(r"^\[2/2\] world model .*  16:4\d", again.stderr, re.MULTILINE), again.stderr
    clock.write_text('{"seconds": 1000}')
    anew = answers.inside(*play, "2")  # all were played: they are played anew, and timed anew
    assert "16:4" not in anew.stderr


def test_a_clock_that_is_damaged_or_missing_begins_anew(answers):
    assert answers.inside(*SEARCH, "--run", "r", "--budget", "1").returncode == 0
    clock = answers.folder / "r" / "clock.json"
    for text in ("", "[]", '{"seconds": -1}', '{"seconds": "x"}', '{"seconds": NaN}', None):
        if text is None:
            clock.unlink()
        else:
            clock.write_text(text)
        assert SearchRun.load(answers.folder / "r").elapsed == 0


@pytest.mark.slow
def test_a_benchmark_says_in_a_pipe_what_it_does_when_the_last_job_is_over(cwm):
    words = ("benchmark", "--env", "Blackjack-v1", "--budget", "1", "--parallel", "1")
    done = cwm(*words, "--ceilings", "--run", "b")
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    finished = next(n for n, line in enumerate(said) if "gif-mcts-0: finished" in line)
    (begun, over) = (n for n, line in enumerate(said) if "the ceiling of Blackjack-v1" in line)
    assert finished < begun < over
    assert [": done" in said[n] for n in (begun, over)] == [False, True]
    assert any("transitions of Blackjack-v1" in line for line in said[:finished])
    assert json.loads((cwm.folder / "b" / "clock.json").read_text())["seconds"] > 0
