"""The backend `agent`: scripted agents work in their folder, and real processes end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from cwm_agent.backend import AgentBackend
from cwm_agent.folder import read_cost, read_program, write_rows
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox.linux import landlock_version
from cwm_cli.search.contracts import GENERATE, IMPROVE, Message, Move, Problem, Request, Verdict
from processes import wait_until
from recordings import FROZEN_LAKE, cartpole, problem, record
from shell import Shell

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

DIAL = """
import gymnasium as gym

class Dial(gym.Env):
    '''A dial with 12 positions. Each action turns it; the reward is 1 at one position.'''

    observation_space = gym.spaces.Discrete(12)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(12))
        return self.place, {}

    def step(self, action):
        self.place = (self.place + (1, 5, 10)[action]) % 12
        return self.place, float(self.place == 7), self.place == 3, False, {}
"""

STEPS = """
import json, pathlib, subprocess, sys

folder = pathlib.Path(sys.argv[1])
rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]

PROGRAM = '''
class Environment:
    def set_state(self, observation):
        self.place = observation

    def step(self, action):
        self.place = (self.place + TURNS[action]) % 12
        return self.place, float(self.place == GOAL), self.place == END
'''

def write(turns, goal, end):
    text = PROGRAM.replace("TURNS", str(turns)).replace("GOAL", str(goal))
    (folder / "program.py").write_text(text.replace("END", str(end)))

def check():
    found = subprocess.run([sys.executable, "check.py"], cwd=folder, capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr
"""

LEARNS = f"""{STEPS}
write([1, 1, 1], 0, 0)
code, out = check()
assert code == 1 and "rows are wrong" in out and "recorded" in out, out
turns = [0, 0, 0]
for row in rows:
    turns[row["action"]] = (row["next_observation"] - row["observation"]) % 12
goal = next(row["next_observation"] for row in rows if row["reward"])
end = next(row["next_observation"] for row in rows if row["terminated"])
write(turns, goal, end)
code, out = check()
assert code == 0 and "exact 1.0000" in out, out
(folder / "cost.json").write_text('{{"cost": 0.125}}')
"""


@pytest.fixture(scope="module")
def recorded_dial(tmp_path_factory) -> Path:
    """Record the transitions once for all tests."""
    shell = Shell(tmp_path_factory.mktemp("dial"), tmp_path_factory.mktemp("packages"))
    (shell.folder / "dial.py").write_text(DIAL)
    recording = ("--policy", "random", "--episodes", "20", "--max-steps", "40")
    done = shell.inside("collect", "--env", "dial.py", *recording, "--out", "dial.npz")
    assert done.returncode == 0, done.stderr
    return shell.folder


@pytest.fixture
def dial(cwm, recorded_dial):
    """Return a shell in a folder with links to the recorded files."""
    for name in ("dial.py", "dial.npz"):
        (cwm.folder / name).symlink_to(recorded_dial / name)
    return cwm


def synthesize(cwm, script: str, *more: str) -> tuple[str, ...]:
    (cwm.folder / "agent.py").write_text(script)
    return (
        *("synthesize", "--env", "dial.py", "--dataset", "dial.npz", "--start", "none"),
        *("--backend", "agent"),
        *("-o", f"command={sys.executable} agent.py {{folder}}", "--run", "run", *more),
    )


@pytest.mark.slow
def test_an_agent_reaches_an_exact_score(dial) -> None:
    found = dial.inside(*synthesize(dial, LEARNS, "--budget", "1", "--json"))
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    assert facts["solved"] and facts["test"]["exact"] == 1.0
    assert facts["cost"] == 0.125


@pytest.mark.slow
def test_a_crash_names_exit_code_and_last_lines(dial) -> None:
    script = "import sys\nprint('I give up', file=sys.stderr)\nsys.exit(7)\n"
    found = dial.inside(*synthesize(dial, script, "--budget", "1"))
    assert "Traceback" not in found.stderr
    [node] = SearchRun.load(dial.folder / "run").nodes()
    assert node.verdict.failure is not None
    message = node.verdict.failure.message
    assert "program.py" in message and "exit code 7: I give up" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "add -o command="),
        (("-o", "command=no-such-agent {folder}"), "'no-such-agent' of the agent does not exist"),
        (("-o", "command='open"), "open quote"),
        (("-o", "command=true", "--max-cost", "1"), "add -o cost=USD"),
        (("-o", "command=true", "-o", "backend.seconds=0"), "seconds is 0: it must be above 0"),
    ],
)
def test_mistakes_are_reported_in_one_line(dial, options, words) -> None:
    found = dial.inside("synthesize", "--env", "dial.py", "--backend", "agent", *options)
    assert found.returncode == 1
    assert words in found.stderr.splitlines()[-1]


# Single completions


@pytest.fixture(scope="module")
def lake(sandbox) -> WorldModelProblem:
    return problem(record("FrozenLake-v1", episodes=30, is_slippery=False), sandbox)


def ask(backend: AgentBackend, problem: Problem, move: Move | None = None):
    move = move or Move(GENERATE)
    return backend.complete(Request(problem.messages(move), 0, move, problem))


def scripted(tmp_path: Path, script: str, **options) -> AgentBackend:
    file = tmp_path / "agent.py"
    file.write_text(script)
    return AgentBackend(command=f"{sys.executable} {file} {{folder}}", **options)


def is_running(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


LINGERS = """
import os, pathlib, subprocess, sys, time

folder = pathlib.Path(sys.argv[1])
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep)
daemon = subprocess.Popen(sleep, start_new_session=True)
(folder / "pids").write_text(f"{os.getpid()} {child.pid} {daemon.pid}")
os.replace(folder / "pids", folder / "program.py")
time.sleep(600)
"""


@pytest.mark.slow
def test_the_time_limit_ends_all_descendants(tmp_path, lake) -> None:
    found = ask(scripted(tmp_path, LINGERS, seconds=2.0), lake)
    assert "the time limit of 2 s ended the agent" in found.lacking
    pids = [int(word) for word in found.text.split() if word.isdecimal()]
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(is_running, pids)))


def test_descendants_end_with_their_agent(tmp_path, lake) -> None:
    found = ask(scripted(tmp_path, LINGERS[: LINGERS.rfind("time.sleep")]), lake)
    assert found.lacking == ""
    pids = [int(word) for word in found.text.split() if word.isdecimal()]
    assert len(pids) == 3 and not any(map(is_running, pids))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_ends_its_agent_and_continues(dial, number) -> None:
    pids = dial.folder / "pids"
    waits = f"""{LEARNS}
import os, time
mark = pathlib.Path({str(pids)!r})
if not mark.exists():
    mark.write_text(str(os.getpid()))
    time.sleep(600)
"""
    arguments = synthesize(dial, waits, "--budget", "1", "-o", "hide=false", "--json")
    process = dial.start(*arguments)
    assert wait_until(lambda: pids.exists() and pids.read_text(), 200)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert wait_until(lambda: not is_running(int(pids.read_text())))
    again = dial.inside(*arguments)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["solved"]


LOOKS = """
import json, os, pathlib, sys

folder = pathlib.Path(sys.argv[1])
found = {"files": sorted(os.listdir(folder)), "here": os.getcwd(), "env": dict(os.environ)}
for name, place in json.loads(PLACES).items():
    try:
        text = pathlib.Path(place).read_bytes()
        found[name] = len(text)
    except OSError as error:
        found[name] = type(error).__name__
try:
    import gymnasium
    found["gymnasium"] = "imported"
except (ImportError, PermissionError):
    found["gymnasium"] = "refused"
rows = (folder / "rows.jsonl").read_text().splitlines()
found["rows"] = [json.loads(line) for line in rows]
(folder / "program.py").write_text(json.dumps(found))
"""


def looked(tmp_path, problem, move=None, **options) -> dict:
    """Return the files and variables that an agent finds."""
    secret = tmp_path / "secret.npz"
    secret.write_bytes(b"rows")
    places = json.dumps({"secret": str(secret), "own": f"/proc/{os.getpid()}/environ"})
    script = LOOKS.replace("PLACES", repr(places))
    found = ask(scripted(tmp_path, script, **options), problem, move)
    return json.loads(found.text.split("\n")[1])


def test_the_folder_has_the_shown_rows_only(tmp_path, lake) -> None:
    found = looked(tmp_path, lake)
    assert found["files"] == ["PROMPT.md", "check.py", "rows.jsonl"]
    shown = lake.dataset[lake.shown]
    assert 0 < len(shown) < len(lake.dataset)
    assert [row["episode"] for row in found["rows"]] == shown.columns["episodes"].tolist()
    hidden = set(lake.dataset.columns["episodes"][~lake.shown].tolist())
    assert not hidden & {row["episode"] for row in found["rows"]}


def test_the_program_to_change_is_in_the_folder(tmp_path, lake) -> None:
    found = looked(tmp_path, lake, Move(IMPROVE, 0, FROZEN_LAKE, lake.judge(FROZEN_LAKE)))
    assert found["files"] == ["PROMPT.md", "check.py", "program.py", "rows.jsonl"]


def test_the_agent_gets_clean_variables(tmp_path, lake, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "passed")
    found = looked(tmp_path, lake, pass_env="MY_KEY, NOT_SET")
    assert "OPENAI_API_KEY" not in found["env"]
    assert found["env"]["MY_KEY"] == "passed"
    assert found["env"]["HOME"] == found["here"] == found["env"]["TMPDIR"]


@needs_landlock
def test_other_files_are_hidden_from_the_agent(tmp_path, lake) -> None:
    found = looked(tmp_path, lake)
    assert found["secret"] == found["own"] == "PermissionError"
    assert found["gymnasium"] == "refused"
    assert looked(tmp_path, lake, hide=False)["secret"] == 4
    assert looked(tmp_path, lake, readable=str(tmp_path))["secret"] == 4


@pytest.mark.slow
def test_a_changed_checker_does_not_change_the_verdict(dial) -> None:
    script = f"""{STEPS}
(folder / "check.py").write_text("print('exact 1.0000')")
(folder / "rows.jsonl").write_text("")
(folder / "PROMPT.md").unlink()
write([0, 0, 0], 0, 0)
"""
    found = dial.inside(*synthesize(dial, script, "--budget", "1", "-o", "refine=none", "--json"))
    facts = json.loads(found.stdout)
    assert not facts["solved"]
    assert facts["test"]["exact"] < 0.5


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "it is not there"),
        ("open('program.py', 'w')", "is empty"),
        ("import os\nos.symlink('/etc/passwd', 'program.py')", "is a link"),
        ("import os\nos.mkfifo('program.py')", "program.py: it is"),
        ("open('program.py', 'wb').write(b'x' * (1 << 21))", "bytes"),
        ("open('program.py', 'wb').write(b'\\xff\\xfe')", "UTF-8"),
    ],
)
def test_a_missing_program_has_a_reason(tmp_path, lake, script, words) -> None:
    found = ask(scripted(tmp_path, script), lake)
    assert found.text == ""
    assert words in found.lacking


def test_a_program_with_fences_is_read_whole(tmp_path, lake) -> None:
    program = FROZEN_LAKE.replace(
        "class Environment:", 'class Environment:\n    """\n```\nx\n```\n    """'
    )
    found = ask(scripted(tmp_path, f"open('program.py', 'w').write({program!r})"), lake)
    assert lake.read(found.text, Move(GENERATE)).strip() == program.strip()


def test_the_command_has_limits_and_the_model(tmp_path, lake) -> None:
    file = tmp_path / "agent.py"
    file.write_text("import sys\nopen('program.py', 'w').write(' '.join(sys.argv[1:]))")
    command = f"{sys.executable} {file} --time {{seconds}} --cost {{cost}} --model {{model}}"
    backend = AgentBackend(model="big", command=command, seconds=90.0, cost=2.0)
    assert "--time 90 --cost 2 --model big" in ask(backend, lake).text
    request = Request(lake.messages(Move(GENERATE)), 0, Move(GENERATE), lake, allowance=0.5)
    assert "--cost 0.5" in backend.complete(request).text
    assert backend.worst_cost(request) == 2.0


class Plain(Problem):
    """A problem without rows."""

    def messages(self, move):
        return (Message(role="user", content="Write a greeting."),)

    def judge(self, candidate):
        return Verdict(float("hello" in candidate))


def test_another_problem_has_a_folder_with_its_prompt_only(tmp_path) -> None:
    script = "import os\nnames = os.listdir('.')\nopen('program.py', 'w').write(str(names))"
    assert "['PROMPT.md']" in ask(scripted(tmp_path, script), Plain()).text


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ('{"cost": 1.5}', 1.5), ('{"cost": 0}', 0.0), ('{"cost": -1}', None), ("[]", None),
        ('{"cost": true}', None), ('{"cost": NaN}', None), ("{", None), ('{"cost": "1"}', None),
    ],
)  # fmt: skip
def test_costs_are_read_or_unknown(tmp_path, text, cost) -> None:
    (tmp_path / "cost.json").write_text(text)
    assert read_cost(tmp_path) == cost


def test_a_cost_without_a_file_is_unknown_and_an_unchanged_program_is_none(tmp_path) -> None:
    assert read_cost(tmp_path) is None
    (tmp_path / "program.py").write_text(FROZEN_LAKE + "\n")
    assert read_program(tmp_path, FROZEN_LAKE) == ("", "program.py is unchanged")
    assert read_program(tmp_path, "")[0] == FROZEN_LAKE + "\n"


# The checker


def run_checker(folder: Path, rows: Dataset, program: str) -> tuple[int, str]:
    write_rows(folder, rows)
    (folder / "program.py").write_text(program)
    found = subprocess.run(
        [sys.executable, "-I", "check.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout + found.stderr


def test_the_checker_agrees_with_the_verdict(tmp_path, sandbox) -> None:
    judged = problem(record("CartPole-v1", episodes=10), sandbox)
    for program in (cartpole(), cartpole(gravity=9.7)):
        code, out = run_checker(tmp_path, judged.dataset, program)
        exact = judged.judge(program).parts["exact"]
        assert f"exact {exact:.4f}" in out
        assert code == int(exact < 1)
    code, out = run_checker(tmp_path, judged.dataset, "class Environment: pass")
    assert code == 1 and "AttributeError" in out and "failed at row 1" in out


def test_folders_are_removed_or_kept(tmp_path, lake, monkeypatch) -> None:
    scratch, kept = tmp_path / "scratch", tmp_path / "kept"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    script = f"open('program.py', 'w').write({FROZEN_LAKE!r})"
    ask(scripted(tmp_path, script), lake)
    ask(scripted(tmp_path, script, keep=kept), lake)
    [folder] = kept.iterdir()
    assert (folder / "program.py").read_text() == FROZEN_LAKE
    assert list(scratch.glob("cwm-agent-*")) == []


def test_a_closed_quote_is_required() -> None:
    with pytest.raises(CwmError, match="open quote"):
        AgentBackend(command="'").ready()
