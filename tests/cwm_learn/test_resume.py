"""Learning runs that are killed and continued, finished and repeated, or damaged."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from candidates import STILL_ANSWER
from cwm_cli import CwmError, learn
from cwm_cli.runs.searches import ANSWERS, RecordedAnswers
from cwm_cli.search.contracts import GENERATE, Backend, Completion, Message, Move, Request
from cwm_learn.runs import LearningResult, LearnRun
from learning_runs import crash_after, journal_of, result_of
from notes import Notes
from openai_server import OpenAIServer
from shell import Shell

LAKE: dict[str, Any] = {"env": "FrozenLake-v1", "env_args": {"is_slippery": False}, "steps": 60}


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LearningResult:
    return learn(**LAKE, run=tmp_path_factory.mktemp("whole") / "r")


@pytest.mark.slow
def test_crash_after_any_journal_line_changes_nothing(
    whole: LearningResult, tmp_path: Path
) -> None:
    crashes = 0
    while crash_after(tmp_path / "r", 3, **LAKE):
        crashes += 1
    assert crashes > 5
    assert journal_of(tmp_path / "r") == journal_of(whole.run)
    assert result_of(tmp_path / "r") == result_of(whole.run)
    assert any(result_of(whole.run)["mismatches"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"env": "FrozenLake-v1", "steps": 24},
        {"env": "CartPole-v1", "steps": 40},
        {"env": "MiniGrid-Empty-5x5-v0", "steps": 30},
    ],
    ids=lambda arguments: arguments["env"],
)
def test_crash_between_journal_lines_changes_nothing_in_other_environments(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    learn(**arguments, run=tmp_path / "whole")
    assert len([*(tmp_path / "whole" / "programs").iterdir()]) > 1
    count = len(journal_of(tmp_path / "whole"))
    for number in (count // 4, count // 3):
        assert crash_after(tmp_path / "r", number, **arguments)
    learn(**arguments, run=tmp_path / "r")
    assert journal_of(tmp_path / "r") == journal_of(tmp_path / "whole")
    assert result_of(tmp_path / "r") == result_of(tmp_path / "whole")


class Unrepeatable(gym.Env[int, int]):
    """An environment whose observations no seed repeats."""

    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return random.SystemRandom().randrange(1000), 0.0, False, False, {}


@pytest.mark.slow
def test_diverging_environment_loses_its_episode_but_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Unrepeatable-v0", entry_point=Unrepeatable, max_episode_steps=40)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    arguments, notes = {"env": "Unrepeatable-v0", "steps": 30}, Notes()
    assert crash_after(tmp_path / "r", 1, **arguments)
    before = LearnRun.load(tmp_path / "r").dataset()
    done = learn(**arguments, run=tmp_path / "r", observer=notes)
    rows = LearnRun.load(tmp_path / "r").dataset()
    assert (done.steps, len(rows)) == (30, 30)
    assert sum("did not repeat its observations" in words for words in notes.words) == 1
    for name, column in before.columns.items():
        assert np.array_equal(rows.columns[name][: len(before)], column)


@pytest.mark.slow
def test_killed_run_with_a_model_ends_the_same_and_repeats_no_request(
    cwm: Shell, tmp_path: Path
) -> None:
    cwm.environment["OPENAI_API_KEY"] = "none"
    rng = random.Random(0)
    with OpenAIServer(lambda body: STILL_ANSWER) as server:
        arguments = ["learn", "--env", "FrozenLake-v1", "--steps", "30", "--completions", "4"]
        arguments += ["--model", "openai/gpt-4o-mini", "--api-base", server.url, "--run"]
        assert cwm.inside(*arguments, "whole").returncode == 0
        count, journal = len(server.requests), journal_of(cwm.folder / "whole")
        assert count > 1
        server.requests.clear()
        answers = cwm.folder / "r" / ANSWERS
        for delivered in (1, 2):
            process = cwm.start(*arguments, "r")
            while not answers.exists() or answers.read_bytes().count(b"\n") < delivered:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        done = cwm.inside(*arguments, "r")
        assert done.returncode == 0, done.stderr
    assert count <= len(server.requests) <= count + 2  # at most one was in flight at each kill
    assert journal_of(cwm.folder / "r") == journal
    assert result_of(cwm.folder / "r") == result_of(cwm.folder / "whole")


ASKING = """
from contextlib import closing
from dataclasses import dataclass
from cwm_cli import hookimpl
from cwm_learn.strategy import LearningStrategy
from cwm_cli.data.dataset import Transition
from cwm_cli.search.contracts import GENERATE, Message, Move, Request

@dataclass
class Asking(LearningStrategy):
    def learn(self, session):
        question = (Message(role="user", content="Which action?"),)
        with closing(session.tasks[0].task.make()) as env:
            while not session.over:
                here, _ = env.reset(seed=session.seed)
                answer = session.complete(Request(question, 0, Move(GENERATE), None))
                action = int(answer.text)
                there, reward, terminated, truncated, _ = env.step(action)
                row = Transition(here, action, there, reward, terminated, truncated)
                session.stepped(row, aim="explore")
                session.ended(float(reward), aim="explore")

@hookimpl
def cwm_learning_strategies():
    return {"ask": Asking}
"""


@pytest.mark.slow
def test_interrupted_strategy_restarts_with_its_recorded_answers(cwm: Shell) -> None:
    cwm.install("asking", ASKING)
    cwm.environment["OPENAI_API_KEY"] = "none"
    with OpenAIServer(lambda body: str(len(server.requests) % 4)) as server:
        arguments = [
            "learn",
            "--env",
            "FrozenLake-v1",
            "--strategy",
            "ask",
            "--model",
            "openai/gpt-4o",
        ]
        arguments += ["--api-base", server.url, "--run", "r", "--steps"]
        write = LearnRun.append

        def failing(run: LearnRun, *records: Any) -> None:
            write(run, *records)
            if len(server.requests) == 3:
                raise CwmError("the disk is full")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LearnRun, "append", failing)
            assert "the disk is full" in cwm.inside(*arguments, "5").stderr
        done = cwm.inside(*arguments, "5")
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 5
        before = contents(cwm.folder / "r")
        assert "is finished" in cwm.inside(*arguments, "5").stderr
        after = contents(cwm.folder / "r")
    rows = LearnRun.load(cwm.folder / "r").dataset()
    assert rows.columns["actions"].tolist() == [1, 2, 3, 0, 1]
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_repeated_command_of_a_finished_run_changes_no_file(whole: LearningResult) -> None:
    before, notes = contents(whole.run), Notes()
    again = learn(**LAKE, run=whole.run, observer=notes)
    assert again == whole
    assert contents(whole.run) == before
    assert any(words.endswith("is finished") for words in notes.words)


@pytest.mark.slow
def test_more_steps_continue_a_finished_run(tmp_path: Path) -> None:
    first = learn(**LAKE | {"steps": 20}, run=tmp_path / "r")
    further = learn(**LAKE | {"steps": 40}, run=tmp_path / "r")
    assert (first.steps, further.steps) == (20, 40)
    assert further.episodes > first.episodes
    assert len(LearnRun.load(tmp_path / "r").dataset()) == 40
    before = contents(tmp_path / "r")
    assert learn(**LAKE | {"steps": 40}, run=tmp_path / "r").steps == 40
    assert contents(tmp_path / "r") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"rewards"', b'"rewardz"'),
        (b'"dtype":"<f8"', b'"dtype":"<q8"'),
        (b'"values":[0,', b'"values":[[0],'),
    ],
)
def test_steps_with_a_damaged_column_are_left_out(
    whole: LearningResult, cwm: Shell, before: bytes, after: bytes
) -> None:
    run = cwm.folder / "r"
    run.mkdir()
    for name, content in contents(whole.run).items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(content)
    journal = run / "journal.jsonl"
    damaged = journal.read_bytes().replace(before, after, 1)
    assert damaged != journal.read_bytes()
    journal.write_bytes(damaged)
    assert "1 of the" in LearnRun.load(run).damage
    assert len(LearnRun.load(run).dataset()) < 60
    shown = cwm.inside("runs", "show", "r")
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)
    done = cwm.inside(
        *("learn", "--env", "FrozenLake-v1", "--env-arg", "is_slippery=false"),
        *("--steps", "62", "--run", "r"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stderr.splitlines() if "cannot be used" in each]
    assert "1 of the" in line


class CountingBackend(Backend):
    count = 0

    def complete(self, request: Request) -> Completion:
        self.count += 1
        return Completion(f"answer {self.count}")


def test_recorded_answers_are_returned_once_and_survive_a_cut_line(tmp_path: Path) -> None:
    file, inner = tmp_path / ANSWERS, CountingBackend()
    request = Request((Message(role="user", content="?"),), 0, Move(GENERATE), None)
    assert RecordedAnswers(inner, file).complete(request).text == "answer 1"
    with file.open("ab") as stream:
        stream.write(b'{"request":"')  # a crash cuts the next answer short
    again = RecordedAnswers(inner, file)
    assert again.complete(request).text == "answer 1"
    assert again.complete(request._replace(step=1)).text == "answer 2"
    third = RecordedAnswers(inner, file)
    assert third.complete(request._replace(step=1)).text == "answer 2"
    assert inner.count == 2
