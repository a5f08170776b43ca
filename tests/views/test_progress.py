"""The current work is always shown, and the clock of a continued run continues."""

import json
import os
import pty
import re
import select
import struct
import sys
import termios
import threading
from fcntl import ioctl
from io import StringIO

import pytest
from rich.console import Console

from cwm_cli.commands.episodes import Episode, PlanningCost
from cwm_cli.commands.sides import SIDES, Side
from cwm_cli.evaluation.metric import Score, WeighedPart
from cwm_cli.text import tokens
from cwm_cli.views import lines
from cwm_cli.views.lines import Pulse
from cwm_cli.views.planning import side_table
from cwm_cli.views.tables import score_table
from cwm_cli.views.terminal import spent_words
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


def test_no_number_is_broken_at_80_columns_whatever_is_compared():
    costs = PlanningCost(decisions=123_456, failures=0, model_steps=98_765_432_100, seconds=7.0)
    returns = (-123_456.789, -98.7654321)
    episodes = [
        Episode(number=n, returned=returned, length=98_765, cost=costs)
        for n, returned in enumerate(returns)
    ]
    sides = {name: Side(episodes) for name in SIDES}
    part = WeighedPart(right=0.12345, weight=0.33333)
    score = Score(
        accuracy=0.1234,
        observation=0.9876,
        reward=0.9765,
        terminated=0.9999,
        exact=0.5,
        floor=0.6,
        normalised=-12.345,
        transitions=1_234_567,
        weighed=dict.fromkeys(("observation", "reward", "terminated", "valid_actions"), part),
    )
    parts = ("train", "held-out", "of it not in train")
    for table in (side_table(sides), score_table(dict.fromkeys(parts, score))):
        console = Console(file=StringIO(), width=80)
        console.print(table)
        printed = console.file.getvalue()
        assert [cell for line in table.grid.cells for cell in line if cell not in printed] == []


@pytest.mark.slow
def test_folders_of_runs_are_printed_whole_on_a_terminal_of_80_columns(answers):
    folder = "a-folder-with-a-name-that-is-as-long-as-they-are-20261122-195241"
    assert answers.inside(*SEARCH, "--run", f"runs/{folder}", "--budget", "1").returncode == 0
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(answers.folder)
        os.execve(sys.executable, [sys.executable, "-m", "cwm_cli", "runs", "list"], os.environ)
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    output = b""
    while select.select([descriptor], [], [], 60)[0]:
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
    os.waitpid(child, 0)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output.decode()).splitlines()
    assert lines[0] == f"runs/{folder}"
    assert lines[1].startswith("  search  CartPole-v1 gif-mcts answers  1 completion  best ")


def test_tokens_are_written_alike_wherever_they_are():
    assert spent_words(1_234_567, None) == ["1,234,567 tokens", "cost unknown"]
    assert spent_words(0, 0.0) == []
    assert tokens(1_234_567) == "1,234,567"


@pytest.fixture
def answers(cwm):
    (cwm.folder / "answers").mkdir()
    for number, gravity in enumerate((5.0, 6.0, 9.8)):
        text = f"```python\n{cartpole(gravity=gravity)}```"
        (cwm.folder / "answers" / f"{number}.md").write_text(text)
    return cwm


SEARCH = ("synthesize", "--env", "CartPole-v1", "--backend", "replay", "--model", "answers")


@pytest.mark.long
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
    anew = answers.inside(*play, "2")  # all were played: they are played and timed again
    assert "16:4" not in anew.stderr


@pytest.mark.long
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
