"""Output of `cwm learn`: live view, lines, learning curve, and result."""

import csv
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from cwm_cli import learn, report
from cwm_cli.data.dataset import Transition
from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Step
from cwm_cli.search.contracts import GENERATE, Message, Move, Request
from cwm_cli.search.models import InFlight
from cwm_cli.views.curves import Axis, Chart, Series
from cwm_learn.actors.base import Intent, Knowledge
from cwm_learn.certificate import NEEDED, EpisodeRecord, Verification
from cwm_learn.curve import learning_chart, lowest_shown, save_curve
from cwm_learn.outcomes import MismatchEvent, StepEvent
from cwm_learn.questions import RecordedQuestion
from cwm_learn.records import ProgramRecord
from cwm_learn.runs import LearningResult
from cwm_learn.view import describe_mismatch, learning_report, learning_view
from cwm_litellm.backend import LiteLLM
from openai_server import OpenAIServer, answer
from processes import wait_until

HOSTILE = "\x1b[2J\x07\u202eevil\n 日本語 [/x]"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
RETURNS = [
    {"steps": 40, "return": -120.0, "aim": "explore"},
    {"steps": 60, "return": -13.0, "aim": "exploit"},
    {"steps": 80, "return": -12.5, "aim": "verify"},
]


def episode(steps: int, returned: float, aim: str, mismatched: int = 0) -> EpisodeRecord:
    return EpisodeRecord(
        number=steps,
        steps=steps,
        returned=returned,
        length=20,
        aims={aim: 20},
        promised=-13.0,
        mismatched=mismatched,
    )


def events():
    """Yield the events of a learner in order."""
    row = Transition(HOSTILE, 0, HOSTILE, -1.0, False)
    yield ProgramRecord(number=1, steps=10, rows=10, origin="induction", lines=38, unexplained=2)
    yield RecordedQuestion(source="gaps", text="a lesser question")
    yield RecordedQuestion(source="play", text=HOSTILE, weight=2.0)
    yield StepEvent(40, Intent(0, "explore", HOSTILE, None), row, None, False, 0.25)
    yield MismatchEvent(40, row, Step(HOSTILE, 0.0, False), ("reward",), False)
    yield episode(40, -120.0, "explore", 1)
    yield StepEvent(60, Intent(0, "exploit", "by the plan", -13.0), row, None, True, 0.75)
    yield episode(60, -13.0, "exploit")
    verification = Verification()
    verification.add(episode(60, -13.0, "exploit"))
    yield verification.certify()


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(
        file=StringIO(), force_terminal=True, width=width, height=height, legacy_windows=False
    )


def picture(console: Console) -> list[str]:
    """Return the lines of the last picture."""
    view = learning_view(console, steps=300)
    view.begins(object())
    for event in events():
        view.advanced(event)
    other = terminal(console.width, console.height)
    other.print(view.pane)
    view.ends()
    return ESCAPES.sub("", other.file.getvalue()).rstrip("\n").split("\n")


def test_picture_shows_the_state_of_learning() -> None:
    lines = picture(terminal())
    labelled = {line.split("  ")[0].strip(): line for line in lines}
    assert "3: 0 steps, return 0 so far; last -13, best -13" in labelled["episode"]
    assert labelled["aim"] == "aim       a new episode"
    assert "500.0 ms per step" in labelled["planning"]
    assert "step 40: reward -1.0, predicted 0.0 (1 so far)" in labelled["mismatch"]
    assert "program   1, 38 lines by induction, from 10 rows, 2 rows unexplained" in lines
    assert labelled["open"].startswith("open      2 questions; ")
    assert "evil" in labelled["open"]  # the question with the larger weight
    assert any("certified" in line for line in lines)
    assert " 60/300 steps · " in lines[-1]
    plot = [line for line in lines if "\u2502" in line]
    assert len(plot) > 5
    assert any(0x2800 < ord(mark) < 0x2900 for line in plot for mark in line)


@pytest.mark.parametrize(("width", "height"), [(200, 50), (40, 24), (12, 6), (80, 5), (80, 2)])
def test_picture_fits_any_terminal_with_any_texts(width, height) -> None:
    lines = picture(terminal(width, height))
    assert len(lines) <= max(height - 1, 1)
    assert all(cell_len(line) <= width for line in lines)
    assert not set("".join(lines)) & set("\x1b\x07\u202e")


def test_mismatch_names_the_component_with_the_largest_error() -> None:
    space, actions = (
        Space("box", "float64", (2,), (-9, -9), (9, 9)),
        Space("discrete", low=(0,), high=(1,)),
    )
    known = Knowledge(space, actions, 10, names=("position", "velocity"))
    row = Transition(np.zeros(2), 0, np.array([0.5, 1.23456]), 0.0, False)
    predicted = Step(np.array([0.5, 1.2]), 0.0, True)
    event = MismatchEvent(7, row, predicted, ("observation", "terminated"), False)
    words = "velocity 1.235, predicted 1.200; terminated False, predicted True"
    assert describe_mismatch(event, known) == words


def test_rare_low_returns_do_not_flatten_the_curve() -> None:
    assert lowest_shown([-120.0, -13.0]) == -120.0
    assert lowest_shown([*range(20), -10_000.0]) > -50
    assert lowest_shown([-200.0] * 10 + [-100.0] * 10) == -200.0


def test_each_episode_is_a_plain_line_without_a_terminal() -> None:
    console = Console(file=StringIO(), width=40)
    view = learning_view(console, steps=300)
    view.begins(object())
    for event in events():
        view.advanced(event)
    view.ends()
    first, second, last = console.file.getvalue().splitlines()
    assert first.startswith("step 40  explore: return -120 (planned -13)  1 mismatch  program 1")
    assert second.startswith("step 60  exploit: return -13 (planned -13)  program 1, 38 lines")
    assert last.startswith("certified: no mismatch in 20 steps (1 episodes) of play")


def test_the_return_of_an_unfinished_episode_is_marked() -> None:
    console = Console(file=StringIO(), width=60)
    view = learning_view(console, steps=300)
    view.begins(object())
    for event in events():
        cut = isinstance(event, EpisodeRecord) and event.aim == "exploit"
        view.advanced(event.model_copy(update={"whole": False}) if cut else event)
    view.ends()
    assert "exploit: return -13 so far (planned -13)" in console.file.getvalue()


def test_views_name_the_model_during_a_request(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("cwm_cli.views.lines.QUIET_SECONDS", 0.01)
    in_flight, answered = InFlight(), Event()
    console, screen = Console(file=StringIO(), width=100), terminal()
    lines, picture = learning_view(console, steps=300), learning_view(terminal(), steps=300)

    def slow(handler) -> None:
        answered.wait(60)
        answer("a program")(handler)

    with OpenAIServer([slow]) as server, ThreadPoolExecutor() as pool:
        backend = in_flight.making(LiteLLM)(model="openai/x", api_base=server.url)
        request = Request((Message(role="user", content="?"),), 0, Move(GENERATE), None)
        completion = pool.submit(backend.complete, request)
        assert wait_until(lambda: in_flight.oldest)
        for view in (lines, picture):
            view.begins(SimpleNamespace(in_flight=in_flight))
        assert wait_until(lambda: "waiting" in console.file.getvalue())
        screen.print(picture.pane)
        answered.set()
        assert completion.result().text == "a program"
    for view in (lines, picture):
        assert view.waiting == ""
        view.ends()
    assert re.search(r"\[0/300\] waiting for openai/x for \d+ s", console.file.getvalue())
    assert re.search(r"model     waiting for openai/x for \d+ s", screen.file.getvalue())


def test_report_shows_certificate_and_open_questions() -> None:
    questions = [RecordedQuestion(source="gaps", text=f"question {n}", weight=n) for n in range(6)]
    questions.append(RecordedQuestion(source="gaps", text="known", state="answered", answer="yes"))
    result = LearningResult(
        run=Path("r"),
        program=Path("r/best.py"),
        steps=80,
        episodes=3,
        returns=RETURNS,
        certificate=None,
        questions=questions,
        completions=0,
        cost=0.0,
        seconds=4.0,
        stopped="steps",
        changed=60,
        refits=2,
        mismatches={},
        writing_seconds=1.0,
        planning_seconds=2.0,
    )
    console = Console(file=StringIO(), width=100)
    console.print(*learning_report(result, Path("r/curve.svg")), sep="\n")
    text = console.file.getvalue().splitlines()
    assert text[0] == f"Not certified: {NEEDED}."
    assert text[1] == "Mean return -12.75 (last 2 episodes of play)."
    assert "Stopped: step limit reached; repeat with more --steps to continue." in text
    covered = text.index("Not covered by the data:")
    assert text[covered + 1 : covered + 5] == [
        *("- question 5", "- question 4", "- question 3"),
        "  and 3 more: cwm runs show r",
    ]
    assert text[-1].split() == ["Next:", "cwm", "plan", "r"]
    assert "- known" not in text
    *_, last = learning_report(replace(result, has_simulator=False), Path("r/curve.svg"))
    assert str(last).split() == ["Next:", "cwm", "runs", "show", "r"]


def test_curve_is_saved_as_picture_and_data(tmp_path) -> None:
    files = save_curve("a<b", RETURNS, tmp_path)
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [float(row["return"]) for row in rows] == [-120.0, -13.0, -12.5]
    root = ElementTree.fromstring((tmp_path / "curve.svg").read_text())
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"a<b", "steps", "for the return", "to learn"} <= set(texts)
    marks = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (marks.count("polyline"), marks.count("circle")) == (1, 1)
    assert all(file.exists() for file in files)
    assert save_curve("nothing was played", [], tmp_path)


def test_axes_have_round_marks_and_contain_all_values() -> None:
    wrong = {}
    for values in ([0.0], [-13.0, -120.0], [0.46, 500.0], [1e-6, 2e-6], [7.7, 7.7], [-1e6, 1e6]):
        axis = Axis.of(values)
        inside = all(0 <= axis.place(value) <= 1 for value in values)
        if not (inside and 2 <= len(axis.marks) <= 12 and len(set(axis.marks)) == len(axis.marks)):
            wrong[tuple(values)] = axis, axis.marks
    assert wrong == {}
    powers = Axis.of([25, 33_200], logarithmic=True)
    assert powers.marks == [10, 100, 1000, 10_000, 100_000]
    chart = Chart.of("t", "steps", "return", [Series("a", [25, 33_200], [0, 1])], logarithmic=True)
    assert "100,000" in chart.svg()


def test_terminal_plot_has_the_requested_size() -> None:
    for width, height in ((80, 12), (21, 3), (30, 5)):
        lines = learning_chart("", RETURNS).dots(width, height)
        assert len(lines) == height
        assert all(cell_len(line.plain) <= width for line in lines)


@pytest.mark.slow
def test_command_prints_result_and_next_command(cwm) -> None:
    lake = ("--env", "FrozenLake-v1", "--env-arg", "is_slippery=false")
    done = cwm("learn", *lake, "--steps", "120", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() >= {
        *("run", "program", "steps", "episodes", "returns", "certificate", "questions"),
        *("completions", "cost", "seconds", "curve"),
    }
    assert max(played["return"] for played in result["returns"]) == 1.0
    assert result["returns"][0].keys() == {"steps", "return", "aim"}
    folder = cwm.folder / result["run"]
    assert {"best.py", "curve.csv", "curve.svg"} <= {file.name for file in folder.iterdir()}
    assert re.search(rf"^Next: +cwm plan {result['run']}$", done.stderr, re.MULTILINE)
    assert re.search(r"^step \d+  \w+: return ", done.stderr, re.MULTILINE)


def test_invalid_arguments_are_errors_in_one_line(cwm) -> None:
    wrong = {}
    for arguments, words in (
        (("--env", "CartPol-v1"), "did you mean CartPole-v1?"),
        (
            ("--env", "CartPole-v1", "--stop", "soon"),
            "unknown --stop soon: choose certified, return=X or never",
        ),
        (("--env", "CartPole-v1", "--from", "nowhere.npz"), "there is no dataset nowhere.npz"),
    ):
        done = cwm.inside("learn", *arguments)
        last = done.stderr.strip().splitlines()[-1]
        if done.returncode != 1 or words not in last or not last.startswith("Error: "):
            wrong[arguments] = done.stderr
    assert wrong == {}


def test_recording_without_simulator_is_refused_before_a_run_begins(cwm) -> None:
    lines = ["level,valve", *(f"{2 + row % 7}.5,{row % 2}" for row in range(60))]
    (cwm.folder / "log.csv").write_text("\n".join(lines) + "\n")
    cwm.inside("data", "import", "log.csv", "--action", "valve", "--out", "log.npz")
    done = cwm.inside("learn", "--env", "data/log", "--from", "log.npz")
    assert done.returncode == 1
    assert "data/log has no simulator" in done.stderr
    assert not (cwm.folder / "runs").exists()


@pytest.mark.slow
def test_picture_stays_above_the_report_on_a_terminal(tmp_path) -> None:
    child, descriptor = pty.fork()
    if child == 0:
        time.sleep(0.1)  # until the terminal has its size
        os.chdir(tmp_path)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        lake = ["--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--steps", "40"]
        command = [sys.executable, "-m", "cwm_cli", "learn", *lake]
        os.execve(sys.executable, command, kept | {"TERM": "xterm-256color"})
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    output = b""
    while select.select([descriptor], [], [], 60)[0]:
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
    os.close(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = ESCAPES.sub("", output.decode())
    assert "FrozenLake-v1 · learning" in text
    assert text.rindex("40/40 steps") < text.index("Program: runs/") < text.rindex("Next:    cwm")


@pytest.mark.slow
def test_report_has_the_certificate_of_short_play(tmp_path: Path) -> None:
    result = learn("MountainCar-v0", steps=800, seed=1, run=tmp_path / "run")
    assert result.certificate is not None
    assert result.certificate.steps < 800
    found = report(tmp_path / "run")
    assert found.verdict.startswith("Certified: mean return")
    assert str(result.certificate) in found.notes
