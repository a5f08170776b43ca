import os
import pty
import re
import select
import struct
import sys
import termios
import threading
import time
from fcntl import ioctl
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from cwm_apps.progress import (
    FAILED,
    JUDGING,
    SEARCHING,
    SKIPPED,
    SOLVED,
    UNSOLVED,
    CodingProgress,
    ProblemState,
)
from cwm_apps.report import coding_report
from cwm_apps.scoring import ProblemOutcome
from cwm_apps.view import CodingPicture, coding_view
from cwm_cli.views.tables import report_parts

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\b\u202eevil\u2028 日本語 👩 [/x]" * 20
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def terminal(width=80, height=24) -> Console:
    return Console(
        file=StringIO(), width=width, height=height, force_terminal=True, legacy_windows=False
    )


def searching(number, completions=3, **known) -> ProblemState:
    return ProblemState(number, "introductory", SEARCHING, completions, 20, **known)


def busy(problems=5000, over=120, working=8) -> CodingProgress:
    state = CodingProgress(f"cwm apps {HOSTILE}", problems)
    for number in range(over):
        ended = (SOLVED, UNSOLVED, SKIPPED, FAILED)[number % 4]
        state.record(ProblemState(number, "interview", ended, 4, 20, 0.5, 0.01))
    for number in range(over, over + working):
        state.record(searching(number, best=0.75, cost=0.25))
    return state


def picture_of(state, console) -> CodingPicture:
    picture = CodingPicture(console)
    picture.progress = state
    return picture


def drawn(state, width, height) -> list[str]:
    console = terminal(width, height)
    console.print(picture_of(state, console).pane)
    return ESCAPES.sub("", console.file.getvalue()).splitlines()


def printed(*problems, of=12) -> list[str]:
    state, console = CodingProgress("x", of), Console(file=StringIO(), width=40)
    view = coding_view(console, erase=False)
    view.begins(state)
    for problem in problems:
        state.record(problem)
        view.advanced(problem)
    view.ends()
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width, height", [(40, 10), (40, 24), (80, 24), (200, 60), (10, 2)])
@pytest.mark.parametrize("working", [0, 1, 8, 300])
def test_picture_fits_and_ends_with_progress_bar(width, height, working):
    lines = drawn(busy(working=working), width, height)
    assert len(lines) <= height - 1
    assert all(cell_len(line) <= width for line in lines)
    assert not set("".join(lines)) & set("\x1b\x07\r\u202e")
    assert "120/" in lines[-1]


def test_picture_shows_problems_in_flight_and_totals():
    lines = drawn(busy(working=2), 200, 24)
    assert lines[1].split() == ["0120", "3/20", "0.75", "searching", "introductory"]
    assert lines[-2] == ("30 solved · 2 in flight · $1.70 · 30 unsolved · 30 skipped · 30 failed")
    assert len(lines) == 5


def test_forty_columns_show_activity_and_totals():
    lines = drawn(busy(working=2), 40, 24)
    assert lines[1].startswith("0120    3/20  0.75  searching")
    assert lines[-2].startswith("30 solved · 2 in flight · $1.70")


def test_problems_without_room_are_counted():
    lines = drawn(busy(working=300), 80, 12)
    assert len(lines) == 11
    assert lines[-3] == "293 more in flight"


def test_problem_moves_from_in_flight_to_finished():
    state = CodingProgress("x", 2)
    state.record(searching(7))
    state.record(searching(7, completions=4))
    assert [line.completions for line in state.working()] == [4]
    state.record(ProblemState(7, "interview", JUDGING))
    assert [line.state for line in state.working()] == [JUDGING]
    state.record(ProblemState(7, "interview", SOLVED, 4, 20, 1.0, 0.5))
    assert (state.working(), state.counts().ended[SOLVED], state.counts().over) == ([], 1, 1)
    state.record(ProblemState(8, "interview", UNSOLVED, cost=None))
    assert state.counts().cost is None
    assert "cost unknown" in drawn(state, 80, 24)[-2]


def test_concurrent_threads_lose_no_problem():
    state = CodingProgress("x", 4000)

    def work(first):
        for number in range(first, first + 1000):
            state.record(searching(number))
            state.record(ProblemState(number, "interview", SOLVED))

    threads = [threading.Thread(target=work, args=(1000 * part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (state.counts().ended[SOLVED], state.working()) == (4000, [])


def test_problems_finished_before_do_not_shorten_estimated_time():
    state = busy(problems=200, over=100, working=0)
    console = terminal(200)
    picture = picture_of(state, console)
    picture.began -= 60
    assert "left" not in str(picture.lines(200, 24)[-1])
    for number in range(100, 110):
        state.record(searching(number))
        state.record(ProblemState(number, "interview", SOLVED))
    assert str(picture.lines(200, 24)[-1]).endswith(" 110/200 · 1:00 · 9:00 left")


def test_plain_output_prints_a_line_per_finished_problem():
    assert printed(
        searching(7),
        ProblemState(7, "interview", SOLVED, 4, 20, 1.0, 0.02),
        ProblemState(8, "competition", UNSOLVED, 20, 20, 0.5, None),
        ProblemState(9, "interview", SKIPPED, reason="no\ntests"),
        ProblemState(4000, "x", SOLVED, 1, 20, 1.0),
    ) == [
        "[1/12] 0007 interview: solved after 4 completions, $0.02",
        "[2/12] 0008 competition: unsolved after 20 completions, best 0.50, cost unknown",
        "[3/12] 0009 interview: skipped (no tests)",
        "[4/12] 4000 x: solved after 1 completion",
    ]


def test_untrusted_text_cannot_control_the_terminal():
    (line,) = printed(ProblemState(9, HOSTILE, FAILED, reason=HOSTILE))
    assert line.startswith("[1/12] 0009 ")
    assert not set(line) & set("\x1b\x07\r\u202e")


def test_file_gets_lines_and_terminal_gets_picture():
    plain, screen = Console(file=StringIO()), terminal()
    for console in (plain, screen):
        view = coding_view(console, erase=False)
        view.begins(busy())
        view.ends()
    assert plain.file.getvalue() == ""
    assert "120/5000" in screen.file.getvalue()


def test_refresh_takes_less_than_5_percent_of_a_core():
    console = terminal(80, 24)
    picture = picture_of(busy(problems=5000, over=4000, working=1000), console)
    started = time.thread_time()
    for _ in range(40):
        console.print(picture.pane)
    assert (time.thread_time() - started) / 40 * 4 < 0.05


def test_report_fits_every_width():
    outcomes = [
        ProblemOutcome(
            id=number,
            difficulty=("interview", HOSTILE)[number % 2],
            passed=1,
            tests=2,
            public_passed=1,
            public_tests=1,
        )
        for number in range(4)
    ]
    report = coding_report(f"title {HOSTILE}", outcomes, skipped={3: HOSTILE}, is_published=True)
    for width in (40, 200):
        console = Console(file=StringIO(), width=width)
        for part in report_parts(report):
            console.print(part)
        text = console.file.getvalue()
        assert max(map(cell_len, text.splitlines())) <= width
        assert not set(text) & set("\x1b\x07\r\u202e")
        assert "0.500 [0.150, 0.850]" in text
        assert "0.283" in text


SCRIPT = """
import time
from rich.console import Console
from cwm_apps.progress import CodingProgress, ProblemState
from cwm_apps.view import coding_view

state, view = CodingProgress("problems", 60), coding_view(Console(stderr=True), erase=False)
view.begins(state)
for number in range(60):
    for step in range(3):
        event = ProblemState(number, "interview", "searching", step, 20, 0.5, 0.01)
        state.record(event)
        view.advanced(event)
        time.sleep(0.005)
    print("\x1b[2J\x07\u202e" + "garbage" * 30)
    event = ProblemState(number, "interview", "solved", 3, 20, 1.0, 0.01)
    state.record(event)
    view.advanced(event)
view.ends()
"""


def in_a_terminal(width: int, height: int) -> tuple[str, int]:
    """Run the script on a terminal; return its output and its exit status."""
    child, descriptor = pty.fork()
    if child == 0:
        time.sleep(0.1)  # until the terminal has its size
        command = [sys.executable, "-c", SCRIPT]
        os.execve(sys.executable, command, dict(os.environ))  # readline set COLUMNS behind it
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    output = b""
    while select.select([descriptor], [], [], 30)[0]:
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
    os.close(descriptor)
    return output.decode(), os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 200])
def test_real_terminal_keeps_last_picture_within_its_width(width):
    output, status = in_a_terminal(width, 24)
    assert status == 0
    assert "garbage" in output
    assert "searching" in output
    assert "\x1b[2J" not in output
    text = ESCAPES.sub("", output)
    assert not set(text) & set("\x1b\x07\u202e")
    lines = re.split(r"[\r\n]+", text.strip())
    assert [line for line in lines if cell_len(line) > width] == []
    assert lines[-2].startswith("60 solved · 0 in flight · $0.60")
    assert "60/60" in lines[-1]
