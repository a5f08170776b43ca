"""Coding problems as jobs in processes give the same results as one process, also after kills."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from coding_problems import (
    RIGHT,
    WRONG,
    about,
    block,
    mixed,
    nodes,
    rows,
    shell_arguments,
    total_cost,
)
from cwm_apps.choices import CodingAccess
from cwm_apps.jobs import SearchJobs
from cwm_apps.progress import FAILED, JUDGING, SEARCHING, SOLVED, WAITING
from cwm_apps.reading import read
from cwm_apps.runs import CodingConfig, CodingHeader, CodingRun, ProblemResult
from cwm_cli.bench.executor import BUSY, KILLED, Command, Ended, Executor
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.spending import read_spending
from openai_server import OUT_OF_QUOTA, OpenAIServer, answer, hang
from opened_files import opened
from processes import wait_until

pytestmark = pytest.mark.usefixtures("here")

TIMES = ("seconds", "created", "clock.json", "log.txt", "lock")


def files(run, name):
    """Return the files of all problems of a run, without times and its own name."""

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in TIMES}
        return [plain(each) for each in value] if isinstance(value, list) else value

    found = {}
    for file in sorted((run / "problems").rglob("*")):
        if file.is_file() and file.name not in TIMES:
            text = file.read_text().replace(f"{name}/", "")
            if file.suffix == ".jsonl":
                text = "\n".join(json.dumps(plain(json.loads(line))) for line in text.splitlines())
            if file.suffix == ".json":
                text = json.dumps(plain(json.loads(text)))
            found[str(file.relative_to(run))] = text
    return found


@pytest.mark.slow
def test_jobs_write_the_same_as_threads_except_times(work, here):
    with OpenAIServer(mixed) as server:
        whole = work(server, budget=2, total=2, run="threads").facts
        done = work(server, budget=2, total=2, run="jobs", workers=2)
    assert files(here / "jobs", "jobs") == files(here / "threads", "threads")
    assert rows(done.facts) == rows(whole)
    assert "10 searching" in done.said
    assert "10 solved" in done.said
    logs = {
        each: (here / each).read_text() for each in ("jobs/logs/0010.txt", "jobs/logs/0011.txt")
    }
    assert logs == dict.fromkeys(logs, "")


@dataclass
class AtOnce(Executor):
    """Does what jobs would do in no time; some are busy at first, some are killed."""

    run: CodingRun | None = None
    busy: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    lines: set[str] = field(default_factory=set)
    ended: list[Ended] = field(default_factory=list)

    def has_room(self) -> bool:
        return len(self.ended) < self.workers

    def start(self, command: Command) -> None:
        if command.name in self.busy:
            self.busy.remove(command.name)
            self.ended.append(Ended(command.name, f"{BUSY}: it has the lock"))
            return
        if command.name in self.killed:
            self.ended.append(Ended(command.name, f"{KILLED} SIGKILL"))
            return
        assert self.run is not None
        number = int(command.words[-1])
        problem = SearchRun.load(self.run.problem_folder(number))
        line = {"node": {"verdict": {"score": 1.0}, "usage": {"cost": 0.25}}}
        (problem.folder / "nodes.jsonl").write_text(json.dumps(line) + "\n")
        found = ProblemResult(
            id=number,
            difficulty="interview",
            passed=1,
            tests=1,
            public_passed=1,
            public_tests=1,
            completions=1,
            cost=0.25,
            run=problem.place,
            program="best.py",
            solved=True,
            given_up=False,
            digest=problem.config.dataset,
        )
        found.save(problem)
        self.ended.append(Ended(command.name))

    def wait(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.ended = []


def jobs_on(folder: Path, problems: int, **executor) -> SearchJobs:
    file = folder / "problems.jsonl"
    folder.mkdir(exist_ok=True)
    tests = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["1\n", "2\n"]})
    texts = ({"id": n, "question": "Echo.", "input_output": tests} for n in range(problems))
    file.write_text("".join(json.dumps(text) + "\n" for text in texts))
    config = CodingConfig(data="file problems.jsonl", strategy="zero-shot", backend="litellm")
    header = CodingHeader(config=config, problems=tuple(range(problems)), created="now")
    run = CodingRun.join(folder / "run", header)
    return SearchJobs(
        run=run,
        tasks=read(file),
        positions=range(problems),
        access=CodingAccess(budget=3, max_cost=1e6),
        executor=AtOnce(8, run=run, **executor),
    )


def test_cost_of_an_event_does_not_grow_with_number_of_problems(tmp_path):
    files = {}
    for problems in (20, 200):
        jobs = jobs_on(tmp_path / str(problems), problems)
        opened.update(counting=True, files=0)
        states = [(state.id, state.state) for state in jobs.work()]
        opened["counting"] = False
        assert sorted(states) == sorted((n, s) for n in range(problems) for s in (JUDGING, SOLVED))
        files[problems] = opened["files"] / problems
        opened.update(counting=True, files=0)
        again = [state.state for state in jobs.work()]
        opened["counting"] = False
        assert again == [SOLVED] * problems
        assert opened["files"] < 5 * problems + 40
    assert files[200] < 1.2 * files[20] < 60


@pytest.mark.slow
def test_job_of_a_locked_problem_waits_and_killed_job_fails(tmp_path):
    jobs = jobs_on(tmp_path, 4, busy={"0001"}, killed={"0002"})
    states = {}
    for state in jobs.work():
        states.setdefault(state.id, []).append(state.state)
    assert states == {
        0: [JUDGING, SOLVED],
        1: [SEARCHING, WAITING, JUDGING, SOLVED],
        2: [SEARCHING, FAILED],
        3: [JUDGING, SOLVED],
    }
    jobs = jobs_on(tmp_path, 4)
    assert [(state.id, state.state) for state in jobs.work()][-2:] == [(2, JUDGING), (2, SOLVED)]


def test_unusable_executors_are_rejected_in_one_line(work, here):
    with OpenAIServer([answer("")]) as server:
        for asked, words in (
            ({"executor": "loca"}, "unknown executor 'loca': did you mean local?"),
            ({"executor": "local", "options": {"executor.workrs": 2}}, "did you mean"),
            ({"workers": 1, "run": "memory://r"}, "exists in this process only"),
            *([] if find_spec("ray") else [({"executor": "ray", "run": "r"}, "[ray]")]),
        ):
            with pytest.raises(CwmError) as refused:
                work(server, **asked)
            assert words in str(refused.value), asked
            assert "\n" not in str(refused.value)
        assert server.requests == []
    assert not (here / "r").exists()


def journal_lines(folder: Path, problem: str = "*") -> int:
    files = folder.glob(f"problems/{problem}/nodes.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files)


def job_of(process, number: int):
    """Return the process of a problem, None if it does not run."""
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if child.cmdline()[-1:] == [str(number)]:
                return child
    return None


@pytest.mark.long
def test_killed_jobs_and_killed_command_continue_to_same_nodes(
    shell,
    work,
    data,
):
    def slowly_wrong(body):
        time.sleep(0.4)
        mark = sum(map(ord, json.dumps(body["messages"]) + str(body["seed"]))) % 997
        return block(f"# {mark}\n{WRONG}")

    with OpenAIServer(slowly_wrong) as server:
        options = ("--budget", "5", "--strategy", "zero-shot", "--workers", "2")
        uncut = nodes(work(server, budget=5, strategy="zero-shot", run="uncut").result.run)
        asked = len(server.requests)
        command = shell_arguments(server, data, *options)
        run = shell.folder / "r"
        process = shell.start(*command)
        for number, count in ((10, 1), (12, 2)):
            assert wait_until(lambda n=number, k=count: journal_lines(run, f"{n:04}") >= k, 90)
            if number == 10:
                job_of(process, 10).kill()
        assert process.poll() is None, process.communicate()
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=20)
        assert "0010 introductory: failed (its process was ended by SIGKILL)" in err
        assert wait_until(lambda: not any(map(runs, family)), 20)
        assert journal_lines(run) < asked
        resumed = shell(*command, "--json")
        assert resumed.returncode == 0, resumed.stderr
        assert nodes(run) == uncut
        assert json.loads(resumed.stdout)["completions"] == asked
        assert len(server.requests) <= 2 * asked + 3  # pending requests are sent again
        same = shell.inside(*shell_arguments(server, data, *options[:4], "--json"))
        assert json.loads(same.stdout)["rows"] == json.loads(resumed.stdout)["rows"]


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.long
def test_jobs_keep_one_limit_including_failed_answers_and_accept_a_higher_one(
    work,
):
    def first_too_late(body):
        name = about(body)
        is_late = name == "sum" and name not in seen
        seen.append(name)
        return hang if is_late else block(WRONG)

    seen, options = [], {"max_tokens": 100, "timeout": 5}
    limit = {"strategy": "zero-shot", "options": options}
    asked = {"run": "r", "workers": 3, "budget": 15, **limit}
    with OpenAIServer(first_too_late) as server:
        with pytest.raises(CwmError, match="the same command continues"):
            work(server, max_cost=0.001, **asked)
        state = read_spending(Path("r/spending.json"))
        assert state.spent > total_cost("r") + 1e-5  # an answer that failed may have been charged
        assert state.reserved == {}
        poor = work(server, max_cost=0.001, **asked)
        assert "stopped before --max-cost 0.001 was exceeded: the same command" in poor.said
        state = read_spending(Path("r/spending.json"))
        assert total_cost("r") < state.spent + state.lost <= 0.001
        stopped = {each["id"] for each in poor.facts["rows"]}
        assert poor.facts["unfinished"] and not stopped & set(poor.facts["unfinished"])
        threads = work(server, max_cost=0.001, parallel=2, **{**asked, "workers": None})
        assert "stopped before --max-cost" in threads.said
        assert total_cost("r") < state.spent <= 0.001
        rich = work(server, max_cost=0.1, **asked)
        assert rich.facts["unfinished"] == []
        assert {each["completions"] for each in rich.facts["rows"]} == {15}
        state = read_spending(Path("r/spending.json"))
        assert state.spent + state.lost <= 0.1


@pytest.mark.long
def test_error_in_a_job_ends_the_run_after_other_jobs(work, here):
    with OpenAIServer([OUT_OF_QUOTA]) as server:
        with pytest.raises(CwmError, match="quota") as failed:
            work(server, run="r", workers=2)
        assert len(server.requests) <= 2
    assert "the same command" not in str(failed.value)
    assert not (here / "r").exists()


@pytest.mark.long
@pytest.mark.parametrize("presses", [1, 2])
def test_first_ctrl_c_lets_jobs_finish_and_second_ends_them(
    shell,
    data,
    presses,
):
    go = threading.Event()

    def waiting(body):
        go.wait(60)
        return block(RIGHT[about(body)])

    with OpenAIServer(waiting) as server:
        process = shell.start(*shell_arguments(server, data, "--workers", "2"))
        assert wait_until(lambda: len(server.requests) == 2, 60), process.communicate()
        family = psutil.Process(process.pid).children(recursive=True)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        if presses == 1:
            assert process.poll() is None
        go.set()
        _, err = process.communicate(timeout=60)
        assert len(server.requests) == 2
    assert process.returncode == 130
    assert "stopping: waiting for 2 running jobs; press Ctrl-C again to end now" in err
    assert "interrupted: the same command continues the run r" in err
    finished = {each.parent.name for each in shell.folder.glob("r/problems/*/result.json")}
    assert finished == ({"0010", "0011"} if presses == 1 else set())
    assert not any(map(runs, family))


@pytest.mark.long
def test_jobs_of_a_run_at_a_url_use_their_own_copies(work, here):
    pytest.importorskip("fsspec")
    with OpenAIServer(mixed) as server:
        whole = work(server, budget=1, run="threads").facts
        asked = len(server.requests)
        done = work(server, budget=1, run="local://there/jobs", workers=2)
        assert len(server.requests) == 2 * asked
        again = work(server, budget=1, run="local://there/jobs", workers=2)
        more = work(server, budget=2, run="local://there/jobs", workers=2, max_cost=1.0)
        assert len(server.requests) == 2 * asked + 3
    assert rows(done.facts) == rows(whole) == rows(again.facts)
    assert [row["solved"] for row in more.facts["rows"]] == [True] * 4
    result = json.loads((here / "there/jobs/problems/0012/result.json").read_text())
    assert result["run"] == "local://there/jobs/problems/0012"
    assert "10 solved" in more.said
