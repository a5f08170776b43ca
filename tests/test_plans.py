"""The journal of `cwm plan`: nothing that was played is lost, or played twice."""

import json
import os
import shutil
import signal
import time

import psutil
import pytest

from cwm_cli.agents.episodes import Episode
from cwm_cli.agents.plans import Identity, Journal, Key
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Report
from cwm_cli.sandbox.failures import Failure
from worlds import CARTPOLE

IDENTITY = Identity(
    env="Made/Up-v0",
    versions={"cwm": "1"},
    program="abc",
    planner="auto",
    planners=[("mcts", {"simulations": 25, "exploration": 0.5})],
    limit=100,
    seed=4,
    limits={"cpu_seconds": 10.0},
)
REPORT = Report("mcts", ("scalar",), "no table")
ASKED = [Key(side, number) for side in ("random", "model") for number in range(2)]


def episode(number: int, returned: float = 1.5) -> Episode:
    failure = Failure(kind="step_error", message="no\nluck", line=3)
    return Episode(number=number, returned=returned, length=9, failures=1, failure=failure)


def fill(folder, count=4) -> Journal:
    """Write a journal and close it."""
    with Journal.open(folder, IDENTITY) as journal:
        for side, number in ASKED[:count]:
            journal.append(side, episode(number), REPORT)
    return journal


def test_a_journal_gives_back_what_it_was_given(tmp_path) -> None:
    written = fill(tmp_path / "deep" / "plans")
    assert written.file.name.startswith("Made-Up-v0-auto-4-")
    with Journal.open(tmp_path / "deep" / "plans", IDENTITY) as journal:
        assert journal.lines == written.lines
        assert journal.missing(ASKED) == []
        assert journal.missing([*ASKED, Key("oracle", 0)]) == [Key("oracle", 0)]
        assert journal.side("model", 2).episodes == [episode(0), episode(1)]
        assert journal.side("model", 2).report == REPORT == journal.report("model")
        assert journal.report("oracle") is None


@pytest.mark.parametrize(
    "change",
    [
        {"env": "Other-v0"},
        {"env_args": {"slippery": False}},
        {"versions": {"cwm": "2"}},
        {"program": "abd"},
        {"planner": "mcts"},
        {"planners": [("mcts", {"simulations": 26, "exploration": 0.5})]},
        {"limit": 99},
        {"seed": 5},
        {"tools": ["mujoco"]},
        {"limits": {"cpu_seconds": 11.0}},
    ],
)
def test_other_choices_have_another_journal(change) -> None:
    other = IDENTITY.model_copy(update=change)
    assert other.file_name != IDENTITY.file_name
    assert IDENTITY.model_copy().file_name == IDENTITY.file_name


def test_wherever_a_crash_cuts_the_file_whole_lines_remain(tmp_path) -> None:
    file = fill(tmp_path).file
    content = file.read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == 10]
    cuts = {0, len(content), *(end + place for end in ends for place in (-40, -1, 0, 1))}
    for cut in sorted(cuts - {len(content) + 1}):
        file.write_bytes(content[:cut])
        with Journal.open(tmp_path, IDENTITY) as journal:
            whole = sum(end < cut for end in ends)
            assert len(journal.lines) == max(0, whole - 1)
            journal.append("oracle", episode(7), None)
        with Journal.open(tmp_path, IDENTITY) as journal:
            assert journal.missing([Key("oracle", 7)]) == []


def test_a_file_that_was_meddled_with_is_refused_in_one_line(tmp_path) -> None:
    file = fill(tmp_path).file
    header, *lines = file.read_bytes().splitlines(keepends=True)
    for content, words in (
        (b"".join([header, lines[0], b"{}\n", lines[1]]), "line 3: Field required; restore it"),
        (header.replace(b"mcts", b"cem") + lines[0], "holds other choices"),
        (b"rubbish\n", "holds other choices"),
    ):
        file.write_bytes(content)
        with pytest.raises(CwmError, match=words) as caught:
            Journal.open(tmp_path, IDENTITY)
        assert len(str(caught.value).splitlines()) == 1
        assert file.read_bytes() == content
        with Journal.open(tmp_path, IDENTITY, new=True) as journal:
            assert journal.lines == {}


def test_what_is_forgotten_stays_in_the_file_until_something_is_played(tmp_path) -> None:
    file = fill(tmp_path).file
    content = file.read_bytes()
    with Journal.open(tmp_path, IDENTITY) as journal:
        journal.forget(ASKED[1:])
        assert journal.missing(ASKED) == ASKED[1:]
        assert file.read_bytes() == content
    assert file.read_bytes() == content
    with Journal.open(tmp_path, IDENTITY) as journal:
        journal.forget(ASKED[1:])
        journal.append("model", episode(1, returned=8.0), REPORT)
    with Journal.open(tmp_path, IDENTITY) as journal:
        assert list(journal.lines) == [ASKED[0], Key("model", 1)]
        assert journal.side("model", 2).returns == [8.0]
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_journal_replaces_the_old_one_when_something_is_played(tmp_path) -> None:
    file = fill(tmp_path).file
    content = file.read_bytes()
    with Journal.open(tmp_path, IDENTITY, new=True) as journal:
        assert journal.missing(ASKED) == ASKED
        assert file.read_bytes() == content
        journal.append("random", episode(0), None)
        assert len(file.read_bytes().splitlines()) == 2


def test_a_journal_without_an_episode_leaves_no_file(tmp_path) -> None:
    with Journal.open(tmp_path, IDENTITY) as journal:
        assert journal.file.exists()
    assert not journal.file.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_two_at_a_time_are_refused(tmp_path, replaced) -> None:
    fill(tmp_path)
    with Journal.open(tmp_path, IDENTITY, new=replaced) as journal:
        if replaced:
            journal.append("random", episode(0), None)
        for new in (False, True):
            with pytest.raises(CwmError, match="another process is playing"):
                Journal.open(tmp_path, IDENTITY, new=new)
    Journal.open(tmp_path, IDENTITY).__exit__()


def test_a_folder_that_cannot_be_written_is_told(tmp_path) -> None:
    (tmp_path / "plans").write_text("in the way")
    with pytest.raises(CwmError, match="cannot be written"):
        Journal.open(tmp_path / "plans", IDENTITY)


def bare(out: str) -> dict:
    """Return a result without times and the steps that a resumed model takes again."""
    facts = json.loads(out)
    for name in ("decisions_per_second", "model_steps_per_second", "speeds", "model_steps"):
        del facts[name]
    return facts


@pytest.fixture
def plan(cwm):
    """Run `cwm plan` with little effort."""
    (cwm.folder / "cartpole.py").write_text(CARTPOLE)
    effort = ("-o", "simulations=6", "-o", "rollout=20", "--max-steps", "40", "--lockstep", "2")
    command = ("plan", "--env", "CartPole-v1", "--program", "cartpole.py", *effort, "--json")
    cwm.command = command
    return lambda *arguments: cwm.inside(*command, "--episodes", "4", *arguments)


def killed(cwm, *arguments: str, lines: int) -> None:
    """Start `cwm plan`, and kill it when so many episodes are written down, before it is done.

    On a busy machine it may be done before it is looked at; then it is started anew.
    """
    for _ in range(5):
        killed_once(cwm, *arguments, lines=lines)
        if len(written(cwm)) < 13:
            break
        shutil.rmtree(cwm.folder / "runs")
    assert lines + 1 <= len(written(cwm)) < 13, "it was killed too late"


def killed_once(cwm, *arguments: str, lines: int) -> None:
    process = cwm.start(*cwm.command, *arguments)
    children = []
    deadline = time.monotonic() + 60
    while len(written(cwm)) < lines + 1 and time.monotonic() < deadline:
        children = psutil.Process(process.pid).children(recursive=True) or children
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []


def written(cwm) -> list[bytes]:
    return [
        line
        for file in cwm.folder.glob("runs/plans/*.jsonl")
        for line in file.read_bytes().splitlines()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "workers"), [(5, "1"), pytest.param(9, "2", marks=pytest.mark.slow)]
)
def test_a_killed_plan_continues_to_the_same_result(plan, cwm, lines, workers) -> None:
    killed(cwm, "--episodes", "4", "--workers", workers, lines=lines)
    done = plan("--workers", "2")
    assert done.returncode == 0, done.stderr
    assert " of 12 episodes were played" in done.stderr
    assert "Note: continuing runs/plans/CartPole-v1-auto-0-" in done.stderr
    (cwm.folder / "runs").rename(cwm.folder / "elsewhere")
    whole = plan()
    assert "continuing" not in whole.stderr
    assert bare(done.stdout) == bare(whole.stdout)


@pytest.mark.slow
def test_more_episodes_continue_and_as_many_are_played_anew(plan, cwm) -> None:
    few = plan("--no-oracle")
    assert json.loads(few.stdout)["oracle"] is None
    assert len(written(cwm)) == 1 + 8
    more = plan("--episodes", "5")
    assert "8 of 15 episodes were played" in more.stderr
    assert bare(more.stdout)["returns"][:4] == bare(few.stdout)["returns"]
    again = plan("--episodes", "5")
    assert "continuing" not in again.stderr
    assert bare(again.stdout) == bare(more.stdout)
    assert len(written(cwm)) == 1 + 15
    plan("--episodes", "2")
    assert len(written(cwm)) == 1 + 15, "the other episodes are kept"
    plan("--episodes", "2", "--new")
    assert len(written(cwm)) == 1 + 6


@pytest.mark.slow
def test_an_interrupted_plan_says_how_it_continues(plan, cwm) -> None:
    process = cwm.start(*cwm.command, "--episodes", "400")
    deadline = time.monotonic() + 60
    while len(written(cwm)) < 402 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    [file] = cwm.folder.glob("runs/plans/*.jsonl")
    count = len(written(cwm)) - 1
    words = f"interrupted after {count} of 1200 episodes: the same command continues "
    assert err.splitlines()[-1] == words + str(file.relative_to(cwm.folder))


@pytest.mark.slow
def test_bad_input_loses_nothing(plan, cwm) -> None:
    plan("--no-oracle")
    before = written(cwm)
    for mistake in (["-o", "simulations=0"], ["--tool", "nothing"], ["--planner", "none"]):
        assert plan("--no-oracle", "--new", *mistake).returncode == 1
        assert written(cwm) == before


@pytest.mark.slow
def test_a_second_command_for_the_same_episodes_is_refused(plan, cwm) -> None:
    process = cwm.start(*cwm.command, "--episodes", "400")
    deadline = time.monotonic() + 60
    while len(written(cwm)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    done = plan("--workers", "2")
    process.kill()
    process.communicate()
    assert done.returncode == 1
    assert "another process is playing for runs/plans/CartPole" in done.stderr
    assert len(done.stderr.splitlines()) == 1
