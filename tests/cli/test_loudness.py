"""Amount and colours of output on stderr: --quiet, --verbose, and terminals of every kind."""

import json
import os
import pty
import re
import select
import subprocess
import sys

import pytest

COLOUR = re.compile(rb"\x1b\[[0-9;]*[34][0-7][0-9;]*m")
CURSOR = re.compile(rb"\x1b\[[0-9;?]*[A-HJKhl]")
COLLECT = (
    "collect",
    "--env",
    "CartPole-v1",
    "--out",
    "a.npz",
    "--episodes",
    "3",
    "--test-episodes",
    "1",
)


@pytest.fixture
def on_terminal(cwm):
    """Run `cwm` with a pseudo-terminal as stderr and stdout; return all that it wrote there."""

    def run(*arguments: str, **environment: str) -> bytes:
        ours, theirs = pty.openpty()
        variables = {"TERM": "xterm-256color"} | cwm.variables() | environment
        process = subprocess.Popen(
            [sys.executable, "-m", "cwm_cli", *arguments],
            cwd=cwm.folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        found = b""
        while True:
            ready, _, _ = select.select([ours], [], [], 120)
            try:
                piece = os.read(ours, 65536) if ready else b""
            except OSError:  # nobody writes any more
                break
            if not piece:
                break
            found += piece
        os.close(ours)
        process.wait()
        return found

    return run


@pytest.mark.long
def test_terminals_get_what_they_can_show(on_terminal):
    wanted = {  # name: variables, colours, cursor
        "usual": ({"TERM": "xterm-256color"}, True, True),
        "no colour": ({"NO_COLOR": "1"}, False, True),
        "dumb": ({"TERM": "dumb"}, False, False),
        "continuous integration": ({"CI": "true"}, None, False),
    }
    failed = {}
    for name, (variables, colours, cursor) in wanted.items():
        shown = on_terminal(*COLLECT, "--force", **variables)
        if b"recording CartPole-v1" not in shown or (CURSOR.search(shown) is None and cursor):
            failed[name] = shown
        if colours is not None and bool(COLOUR.search(shown)) != colours:
            failed[name, "colours"] = shown
        if not cursor and CURSOR.search(shown):
            failed[name, "cursor"] = shown
    assert not failed


@pytest.mark.slow
def test_errors_are_coloured_where_colours_are_wanted(on_terminal):
    failing = ("--config", "nowhere", "plugins")
    assert COLOUR.search(on_terminal(*failing))
    assert not COLOUR.search(on_terminal(*failing, NO_COLOR="1"))
    assert not COLOUR.search(on_terminal(*failing, TERM="dumb"))


@pytest.mark.slow
def test_colours_that_are_forced_into_a_pipe_move_no_cursor(cwm):
    cwm.environment = {"FORCE_COLOR": "1"}
    done = cwm(*COLLECT)
    assert "recording CartPole-v1" in done.stderr
    assert not CURSOR.search(done.stderr.encode())


@pytest.mark.slow
def test_quiet_leaves_results_and_errors_only(cwm):
    before, behind = (
        cwm.inside("--quiet", *COLLECT, "--json"),
        cwm.inside(*COLLECT, "--json", "--quiet"),
    )
    assert before.returncode == behind.returncode == 0
    assert before.stderr == behind.stderr == ""
    assert json.loads(before.stdout) == json.loads(behind.stdout)
    assert cwm.inside("--quiet", "plan", "nowhere").stderr.startswith("Error: ")


@pytest.mark.long
def test_verbose_says_what_is_done_and_when(cwm):
    done = cwm(*COLLECT, "--verbose")
    lines = [line for line in done.stderr.splitlines() if "cwm.plugins" in line]
    assert lines and all(re.match(r"\d\d:\d\d:\d\d cwm\.plugins: the ", line) for line in lines)
    assert "cwm.plugins" not in cwm.inside(*COLLECT, "--force").stderr


def test_quiet_and_verbose_together_are_refused(cwm):
    done = cwm.inside("plugins", "--quiet", "--verbose")
    assert done.returncode == 1 and "name one" in done.stderr


def test_what_follows_two_dashes_is_no_option_of_ours(cwm):
    done = cwm.inside("data", "show", "--", "--quiet")
    assert "--quiet" in done.stderr and done.returncode == 1
