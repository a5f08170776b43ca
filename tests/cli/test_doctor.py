"""`cwm doctor`, and other commands on a machine with too little protection."""

import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import install_command
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox.protection import GAPS
from old_kernel import available, on_old_kernel
from recordings import COUNTER, MOVES
from shell import Shell

COUNTING = """
class Environment:
    def set_state(self, observation):
        self.count = observation
    def step(self, action):
        self.count += 1
        return self.count, 0.0, self.count >= 5
"""
LAME = """
import os, sys
if any("sandbox.worker" in word for word in sys.orig_argv):
    print("no worker today", file=sys.stderr, flush=True)
    os._exit(3)
"""
KEYS = {"OPENAI_API_KEY": "sk-do-not-show", "EMPTY_API_KEY": "", "CWM_MODEL": "openai/gpt-5"}
ON_COUNTER = ("--env", "FrozenLake-v1", "--dataset", "counter.npz")
COMMANDS = (
    ("synthesize", "--run", "here", *ON_COUNTER),
    ("evaluate", "right.py", *ON_COUNTER),
    ("plan", "--env", "FrozenLake-v1", "--program", "right.py"),
)


@pytest.fixture
def counting(cwm):
    """Recorded transitions of a counter, and a program that counts."""
    rows = [
        Transition(n, 0, n + 1, 0.0, n == 4, False, part, part) for part in (0, 1) for n in range(5)
    ]
    spaces = {"observation_space": COUNTER, "action_space": MOVES}
    Dataset.of(rows, **spaces).save(cwm.folder / "counter.npz")
    (cwm.folder / "right.py").write_text(COUNTING)
    return cwm


@pytest.fixture
def old(counting):
    """Run `cwm` on a kernel that has no filters of system calls and no Landlock."""

    return partial(run_on_old_kernel, counting)


def run_on_old_kernel(shell, *arguments, **variables):
    done = subprocess.run(
        on_old_kernel([sys.executable, "-m", "cwm_cli", *arguments]),
        cwd=shell.folder,
        env=shell.variables() | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """The open gaps on that kernel."""
    folder = tmp_path_factory.mktemp("old")
    return json.loads(run_on_old_kernel(Shell(folder, folder), "doctor", "--json").stdout)["gaps"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What `cwm doctor` says where keys and a model are set."""
    folder = tmp_path_factory.mktemp("doctor")
    return Shell(folder, folder, KEYS)("doctor")


@pytest.fixture(scope="module")
def told_in_json(tmp_path_factory):
    """What `cwm doctor --json` says there."""
    folder = tmp_path_factory.mktemp("doctor")
    return Shell(folder, folder, KEYS)("doctor", "--json")


class TestDoctor:
    @available
    def test_a_protected_machine_has_nothing_open(self, told_in_json):
        done = told_in_json
        assert done.returncode == 0, done.stdout
        found = json.loads(done.stdout)
        assert found["gaps"] == {}
        assert found["protection"]["blocked"] == dict.fromkeys(GAPS, True)
        assert found["protection"]["accepted"] == []
        assert found["cores"] == len(os.sched_getaffinity(0))
        assert found["memory_mb"] > 100

    @available
    def test_people_read_each_attempt_and_each_guard_within_80_columns(self, told):
        done = told
        assert done.returncode == 0
        lines = [line.strip() for line in done.stdout.splitlines()]
        for name in GAPS:
            assert any(re.match(rf"{name} +blocked +\w", line) for line in lines), name
        assert any(re.fullmatch(r"seccomp +on", line) for line in lines)
        assert f"No gaps: all {len(GAPS)} attempts were blocked." in lines
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "\x1b" not in done.stdout

    def test_keys_are_named_and_never_shown(self, told, told_in_json):
        found = json.loads(told_in_json.stdout)
        assert "OPENAI_API_KEY" in found["keys"]
        assert "EMPTY_API_KEY" not in found["keys"]
        assert found["model"] == "openai/gpt-5"
        assert "OPENAI_API_KEY" in told.stdout
        assert "openai/gpt-5" in told.stdout
        assert "do-not-show" not in told.stdout + told_in_json.stdout

    def test_what_is_not_installed_comes_with_the_line_that_adds_it(self, told, told_in_json):
        found = json.loads(told_in_json.stdout)["extras"]
        assert found["llm"] == {"installed": True, "install": install_command("cwm-cli[llm]")}
        for name, extra in found.items():
            state = "installed" if extra["installed"] else f"missing: {extra['install']}"
            assert re.search(rf"{name} +{re.escape(state)}", told.stdout)

    def test_a_gap_that_nobody_knows_is_told(self, cwm):
        cwm.environment["CWM_ALLOW_GAP"] = "network networks"
        done = cwm.inside("doctor")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "Error: unknown gap 'networks': did you mean network?\n"

    def test_a_sandbox_that_does_not_start_is_told_in_one_line(self, cwm):
        (cwm.packages / "sitecustomize.py").write_text(LAME)
        done = cwm("doctor", "--json")
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        assert line.startswith("Error: the sandbox cannot start (a worker did not start: ")
        assert "no worker today" in line


@available
class TestOnAnOldKernel:
    def test_the_doctor_says_what_is_open_why_and_what_closes_it(self, old):
        done = old("doctor", COLUMNS="200")
        assert done.returncode == 1
        for name in ("network", "see-files"):
            assert re.search(rf"{name} +OPEN +{GAPS[name].danger}", done.stdout)
            assert GAPS[name].remedy in done.stdout
        assert re.search(r"seccomp +not here: .*filters no system calls", done.stdout)
        assert re.search(r"landlock +not here: .*no Landlock", done.stdout)
        assert re.search(r"Landlock +none", done.stdout)
        assert re.search(r"secrets +blocked", done.stdout)
        advice = " ".join(done.stdout.split())
        assert "Or run cwm in its container (docs/docker.md)." in advice
        assert "--allow-gap all (or CWM_ALLOW_GAP=all) accepts all gaps" in advice

    @pytest.mark.slow
    def test_the_doctor_tells_accepted_gaps_from_others(self, old):
        done = old("doctor", "--json", CWM_ALLOW_GAP="network secrets")
        found = json.loads(done.stdout)
        assert done.returncode == 1
        assert {"network", "see-files"} <= found["gaps"].keys() < GAPS.keys()
        assert found["gaps"]["network"] == GAPS["network"]._asdict()
        assert found["protection"]["accepted"] == ["network", "secrets"]
        told = old("doctor", CWM_ALLOW_GAP="network secrets").stdout
        assert re.search(r"network +accepted", told)
        assert re.search(r"see-files +OPEN", told)
        assert "--allow-gap all" in told

    @pytest.mark.slow
    def test_doctor_shows_the_open_gaps_as_accepted_by_all(self, old, gaps):
        done = old("doctor", CWM_ALLOW_GAP="all")
        assert done.returncode == 1
        for name in GAPS:
            state = "accepted" if name in gaps else "blocked"
            assert re.search(rf"{name} +{state}", done.stdout), name
        assert "OPEN" not in done.stdout
        assert "CWM_ALLOW_GAP accepts these gaps: generated programs run here." in done.stdout
        assert "--allow-gap" not in done.stdout

    @pytest.mark.slow
    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
    def test_generated_code_is_refused_before_anything_is_made(self, old, counting, command):
        before = sorted(counting.folder.iterdir())
        done = old(*command)
        assert (done.returncode, done.stdout) == (1, "")
        *notes, error = done.stderr.splitlines()
        assert error.startswith("Error: on this machine generated programs could ")
        assert GAPS["network"].danger in error
        assert "`cwm doctor`" in error
        assert "container (docs/docker.md)" in error
        assert error.endswith("--allow-gap all")
        assert error.count("--allow-gap") == 1
        assert all(note.startswith("Note: ") for note in notes)
        assert sorted(counting.folder.iterdir()) == before

    @pytest.mark.slow
    def test_one_accepted_gap_does_not_open_the_others(self, old):
        done = old("evaluate", "right.py", *ON_COUNTER, "--allow-gap", "network")
        assert done.returncode == 1
        assert GAPS["see-files"].danger in done.stderr
        assert GAPS["network"].danger not in done.stderr

    @pytest.mark.slow
    def test_accepted_gaps_are_named_once_and_the_command_does_its_work(self, old, gaps):
        flags = [word for name in gaps for word in ("--allow-gap", name)]
        done = old("evaluate", "right.py", *ON_COUNTER, "--json", *flags)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["test"]["accuracy"] == 1.0
        [warning] = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
        assert all(name in warning for name in gaps)

    @pytest.mark.slow
    def test_gaps_can_be_accepted_by_a_variable_and_are_kept_with_the_run(
        self, old, gaps, counting
    ):
        counting.environment["CWM_ALLOW_GAP"] = " ".join(gaps)
        arguments = ("synthesize", "--budget", "1", "--run", "here", *ON_COUNTER, "--json")
        done = old(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Warning: generated programs") == 1
        protection = SearchRun.load(counting.folder / "here").header.protection
        assert protection.gaps == list(gaps)
        assert protection.accepted == tuple(gaps)
        shown = counting.inside("runs", "show", "here").stdout
        [line] = [line for line in shown.splitlines() if line.startswith("protection")]
        assert line.split(maxsplit=1)[1] == f"open: {', '.join(gaps)}"
        played = old(
            "plan", "--env", "FrozenLake-v1", "--run", "here", "--episodes", "1", "--max-steps", "2"
        )
        assert played.returncode == 0, played.stderr
        assert "Warning: generated programs can read your files" in played.stderr

    @pytest.mark.slow
    def test_all_accepts_the_open_gaps_with_one_warning_that_names_them(self, old, gaps):
        done = old("evaluate", "right.py", *ON_COUNTER, "--json", "--allow-gap", "all")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["test"]["accuracy"] == 1.0
        [warning] = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
        assert GAPS["network"].danger in warning
        assert f"(open gaps: {', '.join(gaps)}; see `cwm doctor`)" in warning
        assert not {"secrets", "memory"} & {*gaps}, "the other guards close these"

    @pytest.mark.slow
    def test_a_run_records_the_names_of_the_gaps_that_all_has_accepted(self, old, gaps, counting):
        done = old(
            *("synthesize", "--budget", "1", "--run", "here", *ON_COUNTER), CWM_ALLOW_GAP="all"
        )
        assert done.returncode == 0, done.stderr
        protection = SearchRun.load(counting.folder / "here").header.protection
        assert protection.gaps == list(gaps)
        assert protection.accepted == tuple(gaps)
        assert '"all"' not in (counting.folder / "here" / "run.json").read_text()
        refused = old("plan", "here", "--episodes", "1")
        assert refused.returncode == 1, "a later command has to accept the gaps again"
        assert refused.stderr.endswith("--allow-gap all\n")

    @pytest.mark.long
    def test_a_run_that_goes_on_under_other_protection_says_so_in_its_log(
        self, old, gaps, counting
    ):
        arguments = ("synthesize", "--run", "here", *ON_COUNTER, "--budget")
        assert counting.inside(*arguments, "1").returncode == 0
        log = counting.folder / "here" / "log.txt"
        assert counting.inside(*arguments, "1").returncode == 0
        assert "protected" not in log.read_text()
        done = old(*arguments, "1", CWM_ALLOW_GAP=" ".join(gaps))
        assert done.returncode == 0, done.stderr
        assert f"protection changed since the run began: open: {', '.join(gaps)}" in log.read_text()
        assert SearchRun.load(counting.folder / "here").header.protection.gaps == []


@available
@pytest.mark.parametrize("gap", ["network", "all"])
def test_a_machine_with_nothing_open_says_nothing_of_accepted_gaps(counting, gap):
    done = counting.inside("evaluate", "right.py", *ON_COUNTER, "--allow-gap", gap)
    assert done.returncode == 0
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("command", ["synthesize", "evaluate", "plan"])
def test_a_gap_that_does_not_exist_is_refused(counting, command):
    program = {"synthesize": [], "evaluate": ["right.py"], "plan": ["--program", "right.py"]}[
        command
    ]
    data = ON_COUNTER if command != "plan" else ON_COUNTER[:2]
    done = counting.inside(command, *program, *data, "--allow-gap", "the-moon")
    assert done.returncode == 1
    assert "unknown gap 'the-moon': choose one of" in done.stderr
    assert "network" in done.stderr
    assert not (counting.folder / "here").exists()


@pytest.mark.slow
@available
def test_a_run_from_before_protection_was_recorded_is_shown_and_goes_on(counting):
    arguments = ("synthesize", "--run", "here", *ON_COUNTER, "--budget", "1")
    assert counting.inside(*arguments).returncode == 0
    file = counting.folder / "here" / "run.json"
    header = json.loads(file.read_text())
    assert header.pop("protection")["blocked"] == dict.fromkeys(GAPS, True)
    file.write_text(json.dumps(header))
    assert re.search(r"^protection +unknown$", counting.inside("runs", "show", "here").stdout, re.M)
    assert counting.inside(*arguments).returncode == 0
    assert "no gaps" in (counting.folder / "here" / "log.txt").read_text()


class Installed:
    """A distribution whose `direct_url.json` has the given content."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.origin and json.dumps(self.origin)


@pytest.mark.parametrize("is_editable", [True, False])
def test_an_extra_of_a_clone_is_installed_from_the_clone(monkeypatch, tmp_path, is_editable):
    clone = tmp_path / "my clone"
    clone.mkdir()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True} if is_editable else {}}
    found = [Installed(None), Installed(origin)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: found)
    flag = "-e " if is_editable else ""
    assert install_command.__wrapped__("cwm-cli[llm]") == f"pip install {flag}'{clone}[llm]'"
    clone.rmdir()
    assert install_command.__wrapped__("cwm-cli[llm]") == "pip install 'cwm-cli[llm]'"


def test_an_extra_is_installed_from_the_repository_or_the_index_of_cwm(monkeypatch):
    vcs = {"url": "https://host/cwm.git", "vcs_info": {"vcs": "git", "commit_id": "0"}}
    for origin, requirement in (
        (vcs, "cwm-cli[llm] @ git+https://host/cwm.git"),
        (None, "cwm-cli[llm]"),
    ):
        found = [Installed(origin)]
        monkeypatch.setattr("importlib.metadata.distributions", lambda name, f=found: f)
        assert install_command.__wrapped__("cwm-cli[llm]") == f"pip install '{requirement}'"
    assert install_command.__wrapped__("wandb") == "pip install wandb"
