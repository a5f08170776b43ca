"""Run folders of plans: finished episodes are neither lost nor played twice."""

import json
import os
import shutil
import signal
import time

import psutil
import pytest

from cwm_cli.commands.episodes import Episode
from cwm_cli.commands.plays import EpisodeKey, PlayConfig, PlayRun
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import load
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import PlannedWith
from worlds import CARTPOLE

CONFIG = PlayConfig(
    env="Made/Up-v0",
    versions={"cwm": "1"},
    program="abc",
    planner="auto",
    planners=[("mcts", {"simulations": 25, "exploration": 0.5})],
    limit=100,
    seed=4,
    limits={"cpu_seconds": 10.0},
)
REPORT = PlannedWith("mcts", ("scalar",), "no table")
KEYS = [EpisodeKey(side, number) for side in ("random", "model") for number in range(2)]


def episode(number: int, returned: float = 1.5) -> Episode:
    failure = Failure(kind="step_error", message="no\nluck", line=3)
    return Episode(number=number, returned=returned, length=9, failures=1, failure=failure)


def fill(folder, count=4) -> PlayRun:
    """Create a run with `count` finished episodes."""
    with PlayRun.open(folder, CONFIG) as run:
        for side, number in KEYS[:count]:
            run.add(side, [episode(number)], REPORT)
    return run


def test_run_returns_stored_episodes_and_other_settings_use_another_run(tmp_path) -> None:
    written = fill(tmp_path / "deep" / "plans")
    assert written.folder.name.startswith("Made-Up-v0-auto-4-")
    with PlayRun.open(tmp_path / "deep" / "plans", CONFIG) as run:
        assert run.known == written.known
        assert run.missing(KEYS) == []
        assert run.missing([*KEYS, EpisodeKey("oracle", 0)]) == [EpisodeKey("oracle", 0)]
        assert run.side("model", 2).episodes == [episode(0), episode(1)]
        assert run.side("model", 2).report == REPORT == run.planned_with("model")
        assert run.planned_with("oracle") is None
    summary = load(written.folder).summary()
    assert (summary.kind, summary.done) == ("plan", "4 episodes")
    assert summary.result == "random 1.5, model 1.5"
    changes = (
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
    )
    names = {CONFIG.model_copy(update=change).folder_name for change in ({}, *changes)}
    assert len(names) == len(changes) + 1
    assert CONFIG.folder_name in names


def test_complete_lines_survive_a_crash_at_any_byte(tmp_path) -> None:
    file = fill(tmp_path).journal
    content = file.read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == 10]
    cuts = {0, len(content), *(end + place for end in ends for place in (-40, -1, 0, 1))}
    for cut in sorted(cuts - {len(content) + 1}):
        file.write_bytes(content[:cut])
        with PlayRun.open(tmp_path, CONFIG) as run:
            assert len(run.known) == sum(end < cut for end in ends)
            run.add("oracle", [episode(7)], None)
        with PlayRun.open(tmp_path, CONFIG) as run:
            assert run.missing([EpisodeKey("oracle", 7)]) == []


def test_damaged_line_is_played_again_and_the_original_file_is_kept(tmp_path) -> None:
    file = fill(tmp_path).journal
    first, second, *_ = file.read_bytes().splitlines(keepends=True)
    content = first + b"{}\n" + second
    file.write_bytes(content)
    with PlayRun.open(tmp_path, CONFIG) as run:
        assert len(run.known) == 2
        assert "1 of the 3 lines" in run.repair_note
    assert file.read_bytes() == first + second
    assert file.with_name(f"{file.name}.damaged-1").read_bytes() == content


def test_folder_in_place_of_the_journal_is_reported_in_one_line(tmp_path) -> None:
    file = fill(tmp_path).journal
    file.unlink()
    file.mkdir()
    for _ in range(2):  # nothing stays locked
        with pytest.raises(CwmError, match="it is a folder") as caught:
            PlayRun.open(tmp_path, CONFIG).__enter__()
        assert len(str(caught.value).splitlines()) == 1


def test_forgotten_episodes_stay_on_disk_until_the_next_one_finishes(tmp_path) -> None:
    file = fill(tmp_path).journal
    content = file.read_bytes()
    with PlayRun.open(tmp_path, CONFIG) as run:
        run.forget(KEYS[1:])
        assert run.missing(KEYS) == KEYS[1:]
    assert file.read_bytes() == content
    with PlayRun.open(tmp_path, CONFIG) as run:
        run.forget(KEYS[1:])
        run.add("model", [episode(1, returned=8.0)], REPORT)
    with PlayRun.open(tmp_path, CONFIG) as run:
        assert list(run.known) == [KEYS[0], EpisodeKey("model", 1)]
        assert run.side("model", 2).returns == [8.0]
    with PlayRun.open(tmp_path, CONFIG, new=True) as run:
        assert run.missing(KEYS) == KEYS
        assert len(file.read_bytes().splitlines()) == 2
        run.add("random", [episode(0)], None)
        assert len(file.read_bytes().splitlines()) == 1


def test_locked_runs_and_read_only_folders_are_refused(tmp_path) -> None:
    fill(tmp_path)
    for replaced in (False, True):
        with PlayRun.open(tmp_path, CONFIG, new=replaced) as run:
            if replaced:
                run.add("random", [episode(0)], None)
            for new in (False, True):
                with pytest.raises(CwmError, match="another process is using"):
                    PlayRun.open(tmp_path, CONFIG, new=new).__enter__()
    with PlayRun.open(tmp_path, CONFIG):
        pass
    (tmp_path / "plans").write_text("in the way")
    with pytest.raises(CwmError, match="cannot write to"):
        PlayRun.open(tmp_path / "plans", CONFIG)


def side_of(run: PlayRun, side, *returns: float) -> None:
    run.add(side, [Episode(number=n, returned=r, length=9) for n, r in enumerate(returns)], None)


def test_report_compares_with_the_better_baseline_and_old_journals_with_random(tmp_path) -> None:
    with PlayRun.open(tmp_path, CONFIG) as run:
        for side, value in (("model", 5.0), ("oracle", 9.0), ("random", 1.0)):
            side_of(run, side, value, value)
    old = load(run.folder)
    assert old.report([old]).verdict.endswith("R = 0.500")  # (5 - 1) / (9 - 1)
    assert "0 equals random actions" in old.sections([old])[0].about
    with PlayRun.open(tmp_path, CONFIG) as run:
        side_of(run, "idle", 4.0, 4.0)
    new = load(run.folder)
    assert new.report([new]).verdict.endswith("random 1 ± 0 · R = 0.200")  # (5 - 4) / (9 - 4)
    assert "do nothing 4 ± 0" in new.report([new]).verdict
    assert "0 equals doing nothing" in new.sections([new])[0].about
    assert [row[0] for row in new.sections([new])[1].data["rows"]] == [
        "world model",
        "oracle",
        "do nothing",
        "random",
    ]


def bare(out: str) -> dict:
    """Return a result without times and random counts of confirmation."""
    facts = json.loads(out)
    times = ("decisions_per_second", "model_steps_per_second", "speeds")
    for name in (*times, "model_steps", "confirmed"):
        del facts[name]
    return facts


@pytest.fixture
def plan(cwm):
    """Return a function that runs a fast `cwm plan`."""
    (cwm.folder / "cartpole.py").write_text(CARTPOLE)
    effort = ("-o", "simulations=6", "-o", "rollout=20", "--max-steps", "40", "--json")
    command = ("plan", "--env", "CartPole-v1", "--program", "cartpole.py", *effort)
    cwm.command = command
    return lambda *arguments: cwm.inside(*command, *arguments)


def written(cwm) -> list[bytes]:
    return [
        line
        for file in cwm.folder.glob("runs/plans/*/journal.jsonl")
        for line in file.read_bytes().splitlines()
    ]


def wait_for(cwm, lines: int, process) -> list[psutil.Process]:
    """Wait for `lines` stored episodes; return the child processes of a process."""
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(written(cwm)) < lines and time.monotonic() < deadline:
        children = psutil.Process(process.pid).children(recursive=True) or children
        time.sleep(0.005)
    return children


def killed(cwm, *arguments: str, lines: int) -> None:
    """Start `cwm plan`, and kill it after `lines` of its 16 episodes are stored.

    On a busy machine it may finish before it can be killed; then it is started again.
    """
    for _ in range(5):
        process = cwm.start(*cwm.command, *arguments)
        children = wait_for(cwm, lines, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert psutil.wait_procs(children, timeout=20)[1] == []
        if len(written(cwm)) < 16:
            break
        shutil.rmtree(cwm.folder / "runs")
    assert lines <= len(written(cwm)) < 16, "it was killed too late"


@pytest.mark.parametrize(
    ("lines", "workers"),
    [
        pytest.param(9, "1", marks=pytest.mark.slow),
        pytest.param(13, "2", marks=pytest.mark.long),
    ],
)
def test_killed_plan_continues_to_the_same_result(plan, cwm, lines, workers) -> None:
    asked = ("--oracle", "--episodes", "4")
    killed(cwm, *asked, "--workers", workers, lines=lines)
    done = plan(*asked, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert " of 16 episodes were played" in done.stderr
    assert "Note: continuing runs/plans/CartPole-v1-auto-0-" in done.stderr
    (cwm.folder / "runs").rename(cwm.folder / "elsewhere")
    whole = plan(*asked)
    assert "continuing" not in whole.stderr
    assert bare(done.stdout) == bare(whole.stdout)


@pytest.mark.slow
def test_more_episodes_continue_equal_number_restarts_and_mistakes_keep_data(plan, cwm) -> None:
    few = plan("--episodes", "2")
    assert json.loads(few.stdout)["oracle"] is None
    assert len(written(cwm)) == 6
    more = plan("--episodes", "3", "--oracle")
    assert "6 of 12 episodes were played" in more.stderr
    assert bare(more.stdout)["returns"][:2] == bare(few.stdout)["returns"]
    again = plan("--episodes", "3", "--oracle")
    assert "continuing" not in again.stderr
    assert bare(again.stdout) == bare(more.stdout)
    before = written(cwm)
    assert len(before) == 12
    for mistake in (["-o", "simulations=0"], ["--tool", "nothing"], ["--planner", "none"]):
        assert plan("--new", *mistake).returncode == 1
        assert written(cwm) == before
    plan("--episodes", "1")
    assert len(written(cwm)) == 12, "the other episodes are kept"
    plan("--episodes", "1", "--new")
    assert len(written(cwm)) == 3


@pytest.mark.long
def test_running_plan_is_locked_and_reports_how_to_continue(plan, cwm) -> None:
    process = cwm.start(*cwm.command, "--episodes", "400")
    wait_for(cwm, 801, process)
    done = plan("--workers", "2")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    [folder] = cwm.folder.glob("runs/plans/*")
    words = f"interrupted after {len(written(cwm))} of 1200 episodes: the same command continues "
    assert err.splitlines()[-1] == words + str(folder.relative_to(cwm.folder))
    assert done.returncode == 1
    assert "another process is using runs/plans/CartPole" in done.stderr
    assert len(done.stderr.splitlines()) == 1
