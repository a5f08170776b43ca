"""What people see while `cwm plan` plays."""

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from fcntl import ioctl
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from cwm_cli.commands.episodes import Episode, FinishedEpisode, PlanningCost, Progress, Underway
from cwm_cli.commands.plan import LeftOut, Playing, SideProgress
from cwm_cli.commands.plays import EpisodeKey, PlayConfig, PlayHeader, PlayRecord, PlayRun
from cwm_cli.commands.sides import Side
from cwm_cli.sandbox.failures import Failure
from cwm_cli.views.planning import plan_view, side_table
from cwm_cli.worlds.model import PlannedWith

HOSTILE = "\x1b[2J\x07\u202eevil\n 日本語 [/x]"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
REPORT = PlannedWith("mcts", ("scalar", "batched"), HOSTILE)
NOTHING = PlanningCost()
FAILURE = Failure(kind="step_error", message=HOSTILE)


def terminal(width=80, height=24) -> Console:
    return Console(
        file=StringIO(), force_terminal=True, width=width, height=height, legacy_windows=False
    )


def episode(number: int, returned: float) -> Episode:
    return Episode(
        number=number,
        returned=returned,
        length=7,
        decisions=7,
        model_steps=700,
        seconds=0.5,
        failures=2,
        failure=FAILURE,
    )


def finished(*returns: float, start=0) -> list[FinishedEpisode]:
    return [FinishedEpisode(episode(number, r), []) for number, r in enumerate(returns, start)]


def playing(*sides: str) -> Playing:
    """Three episodes of some sides; the model has played one before."""
    config = PlayConfig(env="a", planner="mcts", planners=[], limit=100, seed=0)
    run = PlayRun(Path("nowhere"), PlayHeader(config=config))
    if "model" in sides:
        record = PlayRecord(side="model", episode=episode(0, 4.0), report=REPORT)
        run.known = {EpisodeKey("model", 0): record}
    return Playing(HOSTILE, list(sides), sides[0], 3, 100, run)


def pictures(console: Console, *, erase: bool = False) -> list[list[str]]:
    """Follow a plan; return every displayed frame."""
    drawn = []
    view = plan_view(console, erase=erase)
    view.begins(playing("model", "oracle", "random"))

    def saw(side, worker, finished, underway, cost=NOTHING, report=REPORT):
        view.advanced(SideProgress(side, worker, Progress(finished, underway, cost, report)))

    cost = PlanningCost(1, 0, 200, 0.5)
    saw("model", 0, finished(6.0, start=1), [Underway(2, 31, 30.5)], cost)
    saw("model", 1, [], [Underway(4, 5, 5.0)], PlanningCost(1, 1, 100, 0.5))
    drawn.append(lines_of(view, console))
    saw("model", 0, finished(2.0, start=2), [])
    saw("model", 1, [], [])
    view.advanced(LeftOut("oracle"))
    saw("random", 0, finished(1.0, 2.0, 3.0), [], report=None)
    drawn.append(lines_of(view, console))
    view.ends()
    return drawn


def lines_of(view, console: Console) -> list[str]:
    other = terminal(console.width, console.height)
    other.print(view.pane)
    return ESCAPES.sub("", other.file.getvalue()).rstrip("\n").split("\n")


def test_a_line_per_side_tells_what_is_known_and_every_episode_in_flight_has_one() -> None:
    before, after = pictures(terminal())
    assert before[1].startswith(
        "world model  2/3  return 5 ± 1  6 decisions/s, 667 model steps/s  3 fai"
    )
    assert before[2:6] == [
        "oracle       0/3",
        "random       0/3",
        "  #2 step 31  return 30.5",
        "  #4 step 5  return 5",
    ]
    assert before[6].startswith("mcts, model as scalar and batched (")
    assert " 2/9 episodes · " in before[-1]
    assert [line[:5] for line in after[1:-1]] == ["world", "rando", "mcts,"]
    assert after[2] == "random       3/3  return 2 ± 0.577"
    assert " 6/6 episodes · " in after[-1]


@pytest.mark.parametrize(("width", "height"), [(200, 40), (40, 24), (12, 6), (80, 5), (80, 2)])
def test_a_picture_fits_any_terminal_whatever_texts_say(width, height) -> None:
    for lines in pictures(terminal(width, height)):
        assert len(lines) <= max(height - 1, 1)
        assert all(cell_len(line) <= width for line in lines)
        assert not set("".join(lines)) & set("\x1b\x07\u202e")
    assert "#2 step" in "".join(pictures(terminal())[0])


def test_a_picture_is_erased_only_where_a_report_follows() -> None:
    for erase in (False, True):
        console = terminal()
        pictures(console, erase=erase)
        end = console.file.getvalue().rsplit("episodes", 1)[1]
        assert ("\x1b[2K" in end) == erase


def test_a_picture_stays_when_something_goes_wrong() -> None:
    console = terminal()
    view = plan_view(console, erase=True)
    view.begins(playing("random"))
    view.ends()
    assert "\x1b[2K" not in console.file.getvalue().rsplit("episodes", 1)[1]
    assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")


def test_without_a_terminal_every_episode_is_a_plain_line() -> None:
    console = Console(file=StringIO(), width=40)
    view = plan_view(console, erase=True)
    view.begins(playing("model", "random"))
    some = Progress(finished(6.0, 8.0, start=1), [], PlanningCost(), REPORT)
    view.advanced(SideProgress("model", 0, some))
    view.advanced(
        SideProgress("random", 0, Progress([], [Underway(0, 1, 1.0)], PlanningCost(), None))
    )
    view.ends()
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("[2/3] world model #1: return 6 (mean 5)  7 steps  0 s  2 failures: ")
    assert second.startswith("[3/3] world model #2: return 8 (mean 6)  7 steps")
    assert first.isprintable()


def test_an_episode_that_is_only_rechecked_shows_that() -> None:
    view = plan_view(terminal(), erase=False)
    view.begins(playing("random"))
    ended = Progress([], [Underway(0, 31, 30.5, rechecking=True)], PlanningCost(), None)
    view.advanced(SideProgress("random", 0, ended))
    assert "  #0 rechecking decisions  return 30.5" in lines_of(view, terminal())
    view.ends()


def test_what_is_left_is_estimated_from_the_episodes_so_far(monkeypatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("cwm_cli.views.planning.time.monotonic", lambda: clock[0])
    view = plan_view(Console(file=StringIO(), width=80), erase=False)
    view.begins(playing("random", "oracle"))
    times = [view.times]
    for seconds, finished_ones, underway in (
        (10, [], [Underway(0, 50, 1.0)]),  # half of the longest that there can be
        (20, finished(1.0), [Underway(1, 7, 1.0)]),  # as long as the finished one
        (20, finished(1.0, 1.0, start=1), []),
    ):
        clock[0] += seconds
        some = Progress(finished_ones, underway, PlanningCost(1, 0, 9, 10.0), None)
        view.advanced(SideProgress("random", 0, some))
        times.append(view.times)
    assert times == ["0 s", "10 s, over 50 s left", "30 s, over 15 s left", "50 s"]


def test_the_table_compares_the_sides() -> None:
    sides = {
        "model": Side([episode(0, 4.0), episode(1, 6.0)]),
        "random": Side([Episode(number=0, returned=1.25, length=3)]),
    }
    console = Console(file=StringIO(), width=80)
    console.print(side_table(sides))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["world", "model", "5", "±", "1", "7", "14", "1,400"] in rows
    assert ["random", "1.25", "3"] in rows


def in_a_terminal(folder, *arguments: str, interrupt: bool = False) -> tuple[str, int]:
    """Run `cwm plan` on a terminal of 60 columns and 24 rows; return its output."""
    child, descriptor = pty.fork()
    if child == 0:
        time.sleep(0.1)  # until the terminal has its size
        os.chdir(folder)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = [sys.executable, "-m", "cwm_cli", "plan", "--env", "CartPole-v1", "--real-env"]
        os.execve(sys.executable, [*command, *arguments], kept | {"TERM": "xterm-256color"})
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    output = b""
    while select.select([descriptor], [], [], 60)[0]:
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
        if interrupt and b"decisions/s" in output:
            os.kill(child, signal.SIGINT)
            interrupt = False
    os.close(descriptor)
    return output.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_on_a_real_terminal_the_report_takes_the_place_of_the_picture(tmp_path) -> None:
    options = ("-o", "simulations=5", "-o", "rollout=5", "--max-steps", "20", "--episodes", "2")
    output, status = in_a_terminal(tmp_path, *options)
    assert status == 0
    lines = re.split(r"[\r\n]+", ESCAPES.sub("", output))
    assert [line for line in lines if cell_len(line) > 60 and ".jsonl" not in line] == []
    assert "oracle       0/2" in output
    assert output.rindex("\x1b[2K") < output.index("Planner: mcts")


@pytest.mark.slow
def test_an_interruption_leaves_the_picture_and_says_how_to_continue(tmp_path) -> None:
    output, status = in_a_terminal(tmp_path, "--episodes", "3", interrupt=True)
    assert status == 130
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    text = ESCAPES.sub("", output)
    assert text.rindex("oracle       0/3") < text.rindex("interrupted after 6 of 9 episodes")
