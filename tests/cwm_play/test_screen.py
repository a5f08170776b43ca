"""The screen of `cwm play`: layout, pictures, keys, the report, and a real terminal."""

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

import numpy as np
import pytest
from rich.cells import cell_len
from rich.color import ColorType

from cwm_cli.data.dataset import Dataset
from cwm_play.keyboard import read_keys
from cwm_play.painting import Appearance, NamedComponent
from cwm_play.pictures import gauge, picture_lines, resize
from cwm_play.play import GameProgress
from cwm_play.scenes import ComponentRow, GameScene, Panel
from cwm_play.view import game_report, scene_lines

HOSTILE = "\x1b[2J\x07\u202eevil\n 日本語 [/x]"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
PICTURE = np.zeros((40, 60, 3), np.uint8)
PICTURE[:, 40:] = 255


def progress(picture: np.ndarray | None = PICTURE, text: str = "", rows: int = 3) -> GameProgress:
    appearance = Appearance(picture, text)
    component = NamedComponent(HOSTILE, -1.0, 1.0)
    return GameProgress(
        GameScene(
            title=HOSTILE,
            facts=["episode 1 · step 2"],
            panels=[
                Panel("world model", appearance, HOSTILE, True),
                Panel("environment", appearance),
            ],
            columns=["world model", "environment"],
            rows=[ComponentRow(component, (0.5, -0.25), True)] * rows,
            mark=HOSTILE,
            legend=["← left", "→ right"],
        ),
        is_recording=True,
    )


def test_scene_fits_any_terminal_and_escapes_control_characters() -> None:
    wrong = []
    for event in (progress(), progress(None, HOSTILE * 3), progress(None, "", rows=70)):
        for width, height in ((200, 60), (80, 24), (30, 8), (29, 24), (12, 5)):
            lines = scene_lines(event, width, height, in_colour=True)
            fits = len(lines) <= height and all(cell_len(line.plain) <= width for line in lines)
            if not fits or set("".join(line.plain for line in lines)) & set("\x1b\x07\u202e"):
                wrong.append((width, height))
    assert not wrong
    [small] = scene_lines(progress(), 29, 24, in_colour=True)
    assert small.plain == "29 x 24: make it 30 x 8, or q"


def test_panels_are_side_by_side_above_components_and_keys() -> None:
    lines = [line.plain for line in scene_lines(progress(), 80, 24, in_colour=True)]
    assert lines[0].endswith("● recording")
    assert cell_len(lines[2].partition("environment")[0]) == 40
    assert lines[3].count("▀") == 2 * 39
    assert lines[-1] == "← left   → right   q quit   . pause   , record   / header"
    [row] = [line for line in lines if "0.5" in line][:1]
    assert row.startswith("! ")
    assert "-0.25" in row


def test_pictures_use_half_blocks_or_letters_without_colours() -> None:
    [line] = picture_lines(PICTURE, 3, 1)
    assert line.plain == "▀▀▀"
    colours = [span.style.color for span in line.spans]
    assert {colour.type for colour in colours} == {ColorType.TRUECOLOR}
    assert [colour.triplet.red for colour in colours] == [0, 255]
    lines = picture_lines(PICTURE, 60, 20, in_colour=False)
    assert {line.plain for line in lines} == {" " * 40 + "@" * 20}


def test_resized_pictures_keep_proportions_and_brightness() -> None:
    small = resize(PICTURE, 12, 100)
    assert small.shape == (8, 12, 3)
    assert abs(small.mean() - PICTURE.mean()) < 1
    assert resize(PICTURE[:2, :2], 9, 7).shape == (6, 6, 3)
    assert gauge(0.0, -1.0, 1.0, 5) == "··█··"
    assert gauge(9.0, -1.0, 1.0, 5) == "····█"
    assert gauge(0.0, -np.inf, 1.0, 5) == ""


def test_keys_are_read_from_escape_sequences() -> None:
    assert list(read_keys("\x1b[A\x1bOB\x1b[5~a \r")) == [
        "up",
        "down",
        "pageup",
        "a",
        "space",
        "enter",
    ]
    assert list(read_keys("\x1b[1;5C\x1b[200~x\x01é")) == ["x", "é"]
    assert list(read_keys("\x1b")) == []


def test_report_leaves_out_columns_without_values() -> None:
    report = game_report([{"steps": 3, "failure": "", "parts": ()}, {"steps": 4, "failure": ""}])
    assert report.grid.heads == ["steps"]


class Terminal:
    """`cwm play` on a pseudo-terminal; `screen` is the last content of its screen."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.child, self.descriptor = pty.fork()
        if self.child == 0:
            time.sleep(0.1)  # wait until the parent has set the size
            variables |= {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
            command = [sys.executable, "-m", "cwm_cli", "play", *arguments]
            os.execve(sys.executable, command, {"TERM": "xterm-256color"} | variables)
        self.before = termios.tcgetattr(self.descriptor)[3]
        self.output = ""
        self.resize(24, 80)

    def resize(self, height: int, width: int) -> None:
        ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, words: str) -> None:
        """Read output until the screen contains some words."""
        while words not in self.screen:
            assert select.select([self.descriptor], [], [], 60)[0], self.screen
            self.output += os.read(self.descriptor, 65536).decode(errors="replace")

    def while_shown(self, words: str) -> None:
        """Read output until a complete screen lacks some words."""
        while words in self.screen or "q quit" not in self.screen:
            assert select.select([self.descriptor], [], [], 60)[0], self.screen
            self.output += os.read(self.descriptor, 65536).decode(errors="replace")

    def press(self, keys: str, words: str) -> None:
        os.write(self.descriptor, keys.encode())
        self.until(words)

    @property
    def screen(self) -> str:
        return ESCAPES.sub("", self.output.rpartition("\x1b[H")[2])

    def end(self) -> int:
        """Read the remaining output, and return the exit code."""
        try:
            while select.select([self.descriptor], [], [], 60)[0]:
                self.output += os.read(self.descriptor, 65536).decode(errors="replace")
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


@pytest.mark.slow
def test_keys_play_on_a_real_terminal_and_ctrl_c_restores_it() -> None:
    terminal = Terminal("--env", "FrozenLake-v1", "--env-arg", "is_slippery=false")
    terminal.until("episode 1 · step 0")
    terminal.press("\x1b[B", "step 1 · Move down · return 0")
    assert "\x1b[?1049h" in terminal.output
    terminal.resize(10, 40)
    terminal.press("s\x1b[B", "step 2")
    assert max(map(len, terminal.screen.splitlines())) <= 40
    assert not termios.tcgetattr(terminal.descriptor)[3] & termios.ECHO
    os.kill(terminal.child, signal.SIGINT)
    time.sleep(0.05)
    terminal.until("interrupted")
    assert termios.tcgetattr(terminal.descriptor)[3] == terminal.before
    assert terminal.end() == 130
    assert terminal.output.rindex("\x1b[?1049l") > terminal.output.rindex("\x1b[?1049h")
    assert terminal.output.rindex("\x1b[?25h") > terminal.output.rindex("\x1b[?25l")


@pytest.mark.slow
def test_planner_plays_without_a_terminal_and_modes_with_keys_fail_on_one_line(cwm) -> None:
    options = ("-o", "simulations=5", "-o", "rollout=5", "--max-steps", "4")
    found = cwm.inside("play", "--env", "FrozenLake-v1", "--mode", "agent", *options, "--json")
    assert found.returncode == 0, found.stderr
    assert '"mode": "agent"' in found.stdout
    refused = cwm.inside("play", "--env", "FrozenLake-v1")
    assert refused.returncode == 1
    assert "--mode env needs keys: play in a terminal" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_player_keeps_episodes_and_hides_the_header_on_a_real_terminal(tmp_path) -> None:
    folder = tmp_path / "kept"
    film = tmp_path / "game.gif"
    terminal = Terminal(
        *("--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--record", str(film)),
        *("--save", str(folder)),
    )
    terminal.until("episode 1 · step 0")
    terminal.press("\x1b[C", "step 1 · Move right")
    os.write(terminal.descriptor, b"/")
    terminal.while_shown("episode 1")
    terminal.press("/", "episode 1 · step 1")
    terminal.press("\x1b[B", "keep this episode? y: yes, n: no")  # a hole
    terminal.press("\r", "keep this episode?")  # only y and n answer
    os.write(terminal.descriptor, b"y\r")
    terminal.until("episode 2 · step 0")
    terminal.press("\x1b[C\x1b[B", "keep this episode?")
    os.write(terminal.descriptor, b"n\r")
    terminal.until("episode 3 · step 0")
    os.write(terminal.descriptor, b"q")
    assert terminal.end() == 0
    assert sorted(file.name for file in folder.iterdir()) == [
        "episode-1.gif",
        "episode-1.gif.npz",
    ]
    kept = Dataset.load(folder / "episode-1.gif.npz")
    assert list(kept.columns["observations"]) == [0, 1]
    assert list(kept.columns["actions"]) == [2, 1]
    assert list(kept.columns["terminations"]) == [False, True]
    recorded = Dataset.load(tmp_path / "game.gif.npz")
    assert list(recorded.columns["episodes"]) == [0, 0, 1, 1]
    assert str(film) in terminal.output
