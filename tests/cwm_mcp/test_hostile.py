"""A hostile agent gets no hidden row, no file and no larger budget, and the server stays alive."""

import asyncio
import json
import subprocess
import sys

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from mcp_agents import FIRST_GUESS, LIFT_DATA, agent

pytestmark = pytest.mark.slow

SECRET = "a-secret-that-no-tool-may-read"

RAISES = """
class Environment:
    def set_state(self, observation):
        self.floor, self.mark = observation

    def step(self, action):
        if float(self.mark) not in {known}:
            raise ValueError("row " + repr(float(self.mark)) + repr(self.floor))
        return [self.floor, self.mark], 0.0, False
"""
"""A program that writes each row that it does not know into an error."""

REMEMBERS = """
class Environment:
    seen = [0.5]

    def set_state(self, observation):
        self.floor, self.mark = observation

    def step(self, action):
        if float(self.mark) not in {known}:
            Environment.seen.append(float(self.mark))
            return [self.floor, self.mark], 0.0, False
        return [self.floor, Environment.seen[-1]], 0.0, False
"""
"""A program that predicts, for rows that it knows, values of the other rows."""

READS = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        raise ValueError({attempt})
"""

ATTEMPTS = (
    'open("{folder}/secret.txt").read()',
    '__import__("os").listdir("{folder}")',
    '__import__("subprocess").check_output(["cat", "{folder}/secret.txt"])',
    '__import__("numpy").load("{folder}/run/dataset.npz")["observations"].tolist()',
    '__import__("socket").create_connection(("127.0.0.1", 80))',
)


def marks(rows: Dataset) -> set[float]:
    return set(rows.columns["observations"][:, 1].tolist())


def hidden_marks(folder) -> set[float]:
    """Return the marks of the episodes that no tool may show: held-out and hidden train ones."""
    rows = Dataset.load(folder / "lift.npz")
    train = rows.train
    hidden = marks(rows.test) | marks(train[~train.fitted])
    assert len(hidden) > 5
    assert not hidden & marks(train[train.fitted])
    return hidden


def test_no_tool_shows_a_row_that_prompts_may_not_show(lift):
    hidden = hidden_marks(lift.folder)
    rows = Dataset.load(lift.folder / "lift.npz")
    known = marks(rows.train[rows.train.fitted])
    test_episodes = np.unique(rows.test.columns["episodes"]).tolist()
    train = rows.train
    hidden_episodes = np.unique(train.columns["episodes"][~train.fitted]).tolist()

    async def attack() -> list[str]:
        async with agent(lift, *LIFT_DATA) as tools:
            for template in (RAISES, REMEMBERS):
                program = template.format(known=known)
                result = await tools("submit", program=program)
                number = result["node"]["node"]
                await tools("check", program=program)
                await tools("submit", program=program + "\n# again", parent=number)
                await tools("submit", program=FIRST_GUESS, parent=number)
                page = await tools("evidence", kind="mistakes", node=number, limit=100)
                assert page["total"] > 0
                await tools.attempt("rollouts", node=number)
                await tools("rollouts", node=number + 2)
                await tools("compare", first=number, second=number + 2)
            assert "fails on a row that is not shown (step_error, line 7)" in tools.heard[0]
            for kind in ("steps", "ends", "rewards", "changes", "ranges"):
                offset = 0
                while (page := await tools("evidence", kind=kind, offset=offset, limit=100))[
                    "rows"
                ]:
                    offset += len(page["rows"])
            for episode in (*test_episodes, *hidden_episodes):
                assert "no shown episode" in await tools.refused("evidence", episode=episode)
            for row in [*np.flatnonzero(~train.fitted)[:3].tolist(), 10**6]:
                assert "no shown row" in await tools.refused("evidence", rows=[row])
            await tools("describe")
            return tools.heard

    heard = "\n".join(asyncio.run(attack()))
    shown = [mark for mark in known if repr(mark) in heard]
    assert len(shown) > 3
    assert not [mark for mark in hidden if repr(mark)[:12] in heard]


def test_programs_and_arguments_read_no_file(lift):
    (lift.folder / "secret.txt").write_text(f"{SECRET}\n")
    folder = str(lift.folder)

    async def attack() -> list[str]:
        async with agent(lift, *LIFT_DATA) as tools:
            for attempt in ATTEMPTS:
                program = READS.format(attempt=attempt.format(folder=folder))
                result = await tools("check", program=program)
                assert result["score"] == 0.0
                assert "Error" in result["diagnosis"]
            for path in (f"{folder}/secret.txt", "secret.txt", "file:///etc/passwd"):
                result = await tools("submit", program=path)
                assert result["node"]["failure"]
                error = await tools.refused("plan", node=result["node"]["node"])
                assert "fails: choose a node that runs" in error
                await tools.refused("evidence", kind=path)
            await tools("describe", path=f"{folder}/secret.txt", file="/etc/passwd")
            return tools.heard

    heard = "\n".join(asyncio.run(attack()))
    assert SECRET not in heard
    assert "root:" not in heard


def test_budgets_hold_against_parallel_calls_and_restarts(lift):
    arguments = (*LIFT_DATA, "--run", "run")
    limits = ("--budget", "3", "--plan-episodes", "2")

    async def called(tools, tool: str, requests: list[dict]) -> list[str]:
        calls = (tools.client.call_tool(tool, request) for request in requests)
        results = await asyncio.gather(*calls)
        return [each.content[0].text for each in results if each.is_error]

    async def attack() -> None:
        async with agent(lift, *arguments, *limits) as tools:
            programs = [{"program": f"{FIRST_GUESS}# {number}"} for number in range(7)]
            errors = await called(tools, "submit", programs)
            assert len(errors) == 4
            assert all("all 3 submissions are spent" in error for error in errors)
            errors = await called(tools, "plan", [{"node": 0, "max_steps": 5}] * 4)
            assert len(errors) == 2
            assert all("0 of 2 planned episodes are left" in error for error in errors)

    async def again() -> None:
        async with agent(lift, *arguments, *limits) as tools:
            about = await tools("describe")
            assert len(about["nodes"]) == 3
            assert about["submissions_left"] == about["planned_episodes_left"] == 0
            await tools.refused("submit", program=FIRST_GUESS)
            await tools.refused("plan")
            result = await tools("finish")
            assert result["completions"] == 3
            assert result["test"] is not None

    async def after() -> None:
        async with agent(lift, "--run", "run", "--budget", "9") as tools:
            assert "is finished" in await tools.refused("submit", program=FIRST_GUESS)
            assert (await tools("finish"))["completions"] == 3

    asyncio.run(attack())
    asyncio.run(again())
    asyncio.run(after())
    refused = lift("mcp", *arguments, "--seed", "1")
    assert refused.returncode == 1
    assert "was started with other settings, seed (0, not 1)" in refused.stderr


MALFORMED = [
    ("submit", {}),
    ("submit", {"program": 5}),
    ("submit", {"program": ""}),
    ("submit", {"program": "x = 1\n" * 100_000}),
    ("submit", {"program": "x", "parent": 7}),
    ("submit", {"program": "x", "parent": -1}),
    ("submit", {"program": "x", "contract": "none"}),
    ("check", {"program": ["x"]}),
    ("evidence", {"kind": "secrets"}),
    ("evidence", {"limit": 10**9}),
    ("evidence", {"offset": -1}),
    ("evidence", {"rows": ["a"]}),
    ("evidence", {"rows": [10**40]}),
    ("evidence", {"episode": 10**40}),
    ("evidence", {"kind": "changes", "component": 99}),
    ("evidence", {"kind": "mistakes"}),
    ("compare", {"first": 0, "second": 10**30}),
    ("calibrate", {"node": 0}),
    ("rollouts", {"node": 0}),
    ("rollouts", {"node": 0, "steps": 10**9}),
    ("plan", {}),
    ("plan", {"episodes": 1000}),
    ("finish", {}),
    ("run", {"command": "id"}),
]


def test_malformed_arguments_are_refused_and_cost_nothing(lift):
    async def attack() -> None:
        async with agent(lift, *LIFT_DATA) as tools:
            for tool, request in MALFORMED:
                error = await tools.refused(tool, **request)
                assert "Traceback" not in error
                assert len(error) < 2000, f"{tool} {request}"
            about = await tools("describe")
            assert about["nodes"] == []
            assert (about["submissions_left"], about["planned_episodes_left"]) == (20, 10)

    asyncio.run(attack())


def test_server_survives_lines_that_are_no_messages(lift):
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    lines = [
        "no json",
        "[1, 2",
        '{"jsonrpc": "2.0", "id": 1, "method": "nothing"}',
        "x" * 10**6,
        "\0\0",
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": hello}),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cwm_cli", "mcp", *LIFT_DATA],
        cwd=lift.folder,
        env=lift.variables(),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    (known,) = [reply for reply in replies if reply.get("id") == 2]
    assert known["result"]["serverInfo"]["name"] == "cwm"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
