"""Errors of the operating system are reported in one line, and written files stay."""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from cwm_cli.commands.recording import record
from cwm_cli.registry import environment
from cwm_cli.runs.searches import JOURNAL, SearchRun
from published_buffer import published
from recordings import cartpole
from shell import Shell
from users import obstacle, run_as

SEARCH = (
    *("synthesize", "--env", "CartPole-v1", "--dataset", "cart.npz"),
    *("--backend", "replay", "--model", "answers", "--strategy", "zero-shot", "--budget", "6"),
)


@pytest.fixture
def shell(cwm):
    """A folder with transitions and with answers that are programs."""
    rows = record(environment("CartPole-v1"), episodes=2, test_episodes=0, policy="random")
    rows.save(cwm.folder / "cart.npz")
    (cwm.folder / "answers").mkdir()
    for number in range(6):
        program = cartpole(gravity=9.3 + 0.1 * number)
        (cwm.folder / "answers" / f"{number}.md").write_text(f"```python\n{program}```\n")
    return cwm


COMMANDS = {
    "synthesize": SEARCH,
    "continue": (*SEARCH, "--run", "run", "--budget", "5"),
    "benchmark": ("benchmark", "--env", "CliffWalking-v1", "--budget", "1"),
    "apps": ("apps", "--total", "1", "--solutions", "solutions.json"),
    "collect": ("collect", "--env", "CartPole-v1", "--policy", "random", "--episodes", "1"),
    "import": ("data", "import", "x.pkl", "--env", "CartPole-v1"),
    "plan": ("plan", "run", "--episodes", "1", "--max-steps", "2"),
    "export": ("runs", "export", "run"),
    "rm": ("runs", "rm", "run", "--yes"),
}

ALL_OF_THEM = """
import json, os, sys
from typer.testing import CliRunner
from cwm_cli.cli import command_line
os.chdir(sys.argv[1])
for name, words in json.loads(sys.argv[2]).items():
    done = CliRunner().invoke(command_line(), words)
    trace = "" if isinstance(done.exception, SystemExit) else repr(done.exception)
    print(json.dumps([name, done.exit_code, done.stderr, trace]), flush=True)
"""


@pytest.mark.slow
def test_a_folder_that_may_only_be_read_is_one_line_for_every_command(shell):
    if reason := obstacle("ordinary"):
        pytest.skip(reason)
    done = shell.inside(*SEARCH, "--run", "run", "--budget", "3")
    assert done.returncode == 0, done.stderr
    (shell.folder / "solutions.json").write_text('{"0": "print(1)"}')
    (shell.folder / "x.pkl").write_bytes(published(protocol=4))
    place = Path(tempfile.mkdtemp(prefix="cwm-read-only-"))
    try:
        shutil.copytree(shell.folder, place / "work", ignore=shutil.ignore_patterns("cache"))
        before = {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}
        for path in (place, *before):
            path.chmod(0o555 if path.is_dir() else 0o444)
        words = json.dumps(COMMANDS)
        done = run_as("ordinary", "-c", ALL_OF_THEM, str(place / "work"), words)
        assert done.returncode == 0, done.stderr
        for name, code, said, trace in map(json.loads, done.stdout.splitlines()):
            errors = [line for line in said.splitlines() if line.startswith("Error: ")]
            assert (code, trace, len(errors)) == (1, "", 1), (name, said, trace)
            assert "Traceback" not in said
            assert any(word in errors[0].lower() for word in ("permission", "read-only")), (
                name,
                errors,
            )
        assert len(done.stdout.splitlines()) == len(COMMANDS)
        assert before == {p: p.is_file() and p.read_bytes() for p in place.rglob("*")}
    finally:
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(place)


@pytest.mark.long
def test_a_search_whose_journal_finds_no_room_goes_on_where_it_was(shell):
    limit = (shell.folder / "cart.npz").stat().st_size + 3000
    done = subprocess.run(
        [sys.executable, "-m", "cwm_cli", *SEARCH, "--run", "run"],
        cwd=shell.folder,
        env=shell.variables() | {"PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut short
        capture_output=True,
        text=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "file too large" in error
    assert "the same command continues" in error
    before = (shell.folder / "run" / JOURNAL).read_bytes()
    kept = len(list(SearchRun.load(shell.folder / "run").nodes()))
    assert 1 <= kept < 6
    assert before.endswith(b"\n")
    done = shell(*SEARCH, "--run", "run")
    assert f"continues with {kept} nodes" in done.stderr
    assert (shell.folder / "run" / JOURNAL).read_bytes().startswith(before)
    assert len(list(SearchRun.load(shell.folder / "run").nodes())) == 6
    assert not list((shell.folder / "run").glob(".*.part"))


@pytest.mark.parametrize("words", [("plugins",), ("plugins", "--json"), ("runs", "list")])
def test_output_that_nobody_has_room_for_is_one_line(cwm: Shell, words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cwm_cli", *words],
            cwd=cwm.folder,
            env=cwm.variables(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: no space left on device: make room, then the same command continues"
    ]
