"""A scripted agent writes a program with the tools of `cwm mcp` alone."""

import asyncio
import json

import pytest

from mcp_agents import FIRST_GUESS, LIFT_DATA, Agent, agent, server_process

LEARNED = """
STRIDES = {strides}
GOAL, GOAL_REWARD, USUAL_REWARD = {goal}, {goal_reward}, {usual}


class Environment:
    def set_state(self, observation):
        self.floor, self.mark = observation

    def step(self, action):
        stride = STRIDES[int(self.floor) % 2]
        self.floor = min(max(self.floor + (action - 1) * stride, 0), 20)
        ended = self.floor == GOAL
        return [self.floor, self.mark], GOAL_REWARD if ended else USUAL_REWARD, ended
"""


async def all_rows(tools: Agent, kind: str, **request) -> list[dict]:
    """Return all rows of a kind, page by page."""
    rows: list[dict] = []
    while True:
        page = await tools("evidence", kind=kind, offset=len(rows), limit=100, **request)
        rows += page["rows"]
        if len(rows) == page["total"]:
            return rows
        assert page["rows"]
        assert f"`offset` to {len(rows)}" in page["note"]


async def corrected(tools: Agent) -> str:
    """Return a program with the constants that the recorded rows show."""
    strides: dict[int, int] = {}
    for row in await all_rows(tools, "mistakes", node=0):
        before, after = row["observation"][0], row["recorded"]["next_observation"][0]
        assert row["predicted"] != row["recorded"]
        if 0 < after < 20 and row["action"] != 1:
            strides[int(before) % 2] = int(abs(after - before))
    (ranges, ends) = await tools("evidence", kind="ranges"), await all_rows(tools, "ends")
    strides.setdefault(1, 1)  # the first guess is right there
    goals = {row["recorded"]["next_observation"][0] for row in ends}
    rewards = {row["recorded"]["reward"] for row in ends}
    (goal,), (goal_reward,) = goals, rewards
    usual = next(iter(ranges["rewards"]))  # the most frequent one
    return LEARNED.format(strides=strides, goal=goal, goal_reward=goal_reward, usual=usual)


def shortened(program: str) -> str:
    """Return the learned program without a variable."""
    rule = "STRIDES[int(self.floor) % 2]"
    return program.replace(f"        stride = {rule}\n", "").replace("* stride", f"* {rule}")


async def begin(lift, arguments) -> str:
    """Submit a first guess, learn from its mistakes, and lose the server."""
    async with agent(lift, *arguments) as tools:
        about = await tools("describe")
        assert about["nodes"] == []
        assert about["submissions_left"] == 20
        assert about["hidden_rows"] > 0
        assert "class Environment" in about["task"]
        result = await tools("submit", program=FIRST_GUESS)
        assert 0 < result["node"]["score"] < 1
        assert result["is_best"]
        assert "transitions are wrong" in result["diagnosis"]
        program = await corrected(tools)
        server_process().kill()
    return program


async def end(lift, arguments, program: str) -> dict:
    """Continue the run, and finish it with the learned program."""
    async with agent(lift, *arguments) as tools:
        about = await tools("describe")
        assert [node["node"] for node in about["nodes"]] == [0]
        assert about["submissions_left"] == 19
        checked = await tools("check", program=program)
        assert (checked["score"], checked["diagnosis"]) == (1.0, "")
        result = await tools("submit", program=program, parent=0)
        assert result["node"]["parent"] == 0
        assert result["node"]["solved"]
        again = await tools("submit", program=f"{program}\n\nUNUSED = 1\n")
        assert (again["is_best"], again["submissions_left"]) == (False, 17)
        shorter = await tools("submit", program=shortened(program))
        assert shorter["is_best"]
        assert shorter["node"]["solved"]
        assert shorter["node"]["bits"] < result["node"]["bits"]
        compared = await tools("compare", first=0, second=1)
        assert compared["only_first_right"] == 0
        assert compared["only_second_right"] == len(await all_rows(tools, "mistakes", node=0))
        walked = await tools("rollouts", node=0, episodes=3, steps=5)
        assert any(each["first_wrong"] for each in walked["episodes"])
        walked = await tools("rollouts", node=1, episodes=3, steps=5)
        assert not any(each["first_wrong"] for each in walked["episodes"])
        assert set(walked["errors"].values()) == {0.0}
        played = await tools("plan", episodes=2, max_steps=40)
        assert played["returns"][0] > played["random_mean"]
        assert played["wrong"] == {}
        assert played["planned_episodes_left"] == 8
        return await tools("finish")


@pytest.mark.slow
def test_agent_solves_an_environment_with_tools_alone_also_after_kill_nine(lift):
    arguments = (*LIFT_DATA, "--run", "run")
    program = asyncio.run(begin(lift, arguments))
    result = asyncio.run(end(lift, arguments, program))
    assert result["solved"]
    assert result["test"]["accuracy"] == result["train"]["accuracy"] == 1.0
    assert result["cost"] is None
    saved = json.loads((lift.folder / "run" / "result.json").read_text())
    assert saved["completions"] == 4
    assert saved["size"]["bits"] < saved["original_size"]["bits"]
    assert "stride =" not in (lift.folder / "run" / "best.py").read_text()

    shown = lift.inside("runs", "show", "run")
    assert "lift:Lift" in shown.stdout
    assert "Solved" in lift.inside("runs", "report", "run").stdout
    planned = lift.inside("plan", "run", "--episodes", "1", "--max-steps", "20", "--json")
    assert json.loads(planned.stdout)["mismatches"]["wrong"] == 0
    evaluated = lift.inside("evaluate", "run", "--json")
    assert json.loads(evaluated.stdout)["test"]["accuracy"] == 1.0
