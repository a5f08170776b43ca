"""Tab completion in real shells."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

RUN = "runs/CartPole-v1-gif-mcts-0-20260101-120000"


def needs(shell: str) -> pytest.MarkDecorator:
    """Skip where a shell is not installed."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a run and a dataset; `cwm` and the cache of names are in it, too."""
    folder = tmp_path_factory.mktemp("home")
    script = folder / "bin" / "cwm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom cwm_cli.cli import main\nmain()\n")
    script.chmod(0o755)
    (folder / RUN).mkdir(parents=True)
    config = {"env": "CartPole-v1", "model": "openai/gpt-of-before"}
    (folder / RUN / "run.json").write_text(json.dumps({"kind": "search", "config": config}))
    (folder / "poles.npz").touch()
    return folder


@pytest.fixture
def variables(home):
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    found = os.environ | {"PATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    found.pop("CWM_MODEL", None)
    return found | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "TERM": "dumb"}


@pytest.fixture
def in_shell(home, variables):
    """Run a script in a shell; it writes nothing to stderr."""

    def run(shell: str, script: str) -> str:
        command = [shell, *(["--norc"] if shell == "bash" else []), "-c", script]
        done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout

    return run


BASH = """
eval "$(cwm --show-completion bash)"
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _cwm_completion cwm
    echo "${COMPREPLY[*]}"
}
"""
ASKED = {  # words as bash cuts them, and what it puts in the place of the last one
    "cwm synthesize --env CartPole-v": "CartPole-v0 CartPole-v1",
    "cwm synthesize --env = CartPole-v": "CartPole-v0 CartPole-v1",
    "cwm synthesize --strategy gif": "gif-mcts",
    "cwm learn --strategy wor": "worldcoder-agent",
    "cwm synthesize --allow-gap al": "all",
    "cwm plan --allow-gap net": "network",
    "cwm train --model ens": "ensemble",
    "cwm synthesize --model openai/": "openai/gpt-of-before",
    "cwm synthesize -o explor": "exploration= exploration=0.1",
    "cwm synthesize -o learning = t": "true",
    "cwm synthesize -o selection =": "gain mean",
    "cwm synthesize -o backend.learning = ''": "",
    "cwm plan ''": RUN,
    "cwm runs show runs/Cart": RUN,
    "cwm evaluate best.py --dataset po": "poles.npz",
}


@needs("bash")
def test_bash_completes(in_shell):
    asks = "\n".join(f"ask {words}" for words in ASKED)
    lines = in_shell("bash", BASH + asks).splitlines()
    found = dict(zip(ASKED, lines, strict=True))
    assert found == ASKED


@pytest.mark.long
@needs("fish")
def test_fish_completes_and_says_what_things_are(in_shell):
    script = "cwm --show-completion fish | source\n" + "\n".join(
        f'complete -C "{words}"; echo ---'
        for words in ("cwm synthesize --env CartPole-v", "cwm plan ", "cwm synthesize -o learning=")
    )
    environments, runs, values, _ = in_shell("fish", script).split("---\n")
    assert environments.splitlines() == ["CartPole-v0\tenvironment", "CartPole-v1\tenvironment"]
    assert runs == f"{RUN}\tsearch CartPole-v1, unfinished\n"
    assert [line.partition("\t")[0] for line in values.splitlines()] == [
        "learning=false",
        "learning=true",
    ]


@needs("zsh")
def test_zsh_completes_at_a_terminal(home, variables):
    ours, theirs = pty.openpty()
    script = "autoload -Uz compinit; compinit -u; eval $'\\n'\"$(cwm --show-completion zsh)\""
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=home, env=variables, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)

    def until(words: str, seconds: float = 120.0) -> str:
        text, end = "", time.monotonic() + seconds
        while words not in text and time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                text += os.read(ours, 65536).decode(errors="replace")
        return text

    try:
        os.write(ours, f"{script}; echo re''ady\n".encode())
        assert "ready" in until("ready")
        for typed, wanted in {
            "cwm learn --strategy worldcoder": "worldcoder-agent",
            "cwm runs show runs/Cart": RUN,
            "cwm synthesize -o exploration": "exploration=",
        }.items():
            os.write(ours, f"{typed}\t".encode())
            assert wanted in until(wanted)
            os.write(ours, b"\x15")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_what_is_slow_to_list_is_imported_once(home, variables):
    asked = variables | {
        "_CWM_COMPLETE": "complete_bash",
        "COMP_WORDS": "cwm\ncollect\n--env\nFrozen",
        "COMP_CWORD": "3",
        "XDG_CACHE_HOME": str(home / "another"),
    }
    command = [sys.executable, "-X", "importtime", str(home / "bin" / "cwm")]
    first, second = (
        subprocess.run(command, cwd=home, env=asked, capture_output=True, text=True)
        for _ in range(2)
    )
    assert "FrozenLake-v1" in first.stdout and first.stdout == second.stdout
    assert "gymnasium" in first.stderr and "gymnasium" not in second.stderr
    assert "numpy" not in second.stderr


def test_nothing_is_said_of_what_goes_wrong(cwm, home):
    cwm.install("broken", "raise RuntimeError('no')")
    cwm.install("lame", "def cwm_strategies():\n    raise RuntimeError('no')")
    (cwm.folder / "cache").write_text("where a folder should be")
    (cwm.folder / "cwm.toml").write_text("broken")
    (cwm.folder / "runs").write_text("no folder")
    for words in ("plan\n", "synthesize\n--strategy\n", "synthesize\n--env\nCartPole-v1"):
        asked = cwm.variables() | {
            "_CWM_COMPLETE": "complete_bash",
            "COMP_WORDS": f"cwm\n{words}",
            "COMP_CWORD": str(words.count("\n") + 1),
        }
        command = [sys.executable, str(home / "bin" / "cwm")]
        done = subprocess.run(command, cwd=cwm.folder, env=asked, capture_output=True, text=True)
        assert done.stderr == ""
        assert done.stdout.split() == (["CartPole-v1"] if "CartPole" in words else [])
