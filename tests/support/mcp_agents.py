"""A coding agent that works with `cwm mcp`, and an environment that is not part of the project."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
from mcp import Client, StdioServerParameters, stdio_client

from shell import Shell

LIFT = '''
import gymnasium as gym
import numpy as np


class Lift(gym.Env):
    """A lift with a mark that is different in every episode."""

    observation_space = gym.spaces.Box(
        np.array([0.0, 0.0]), np.array([20.0, 1.0]), dtype=np.float64
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.floor, self.mark = int(self.np_random.integers(15)), self.np_random.random()
        return np.array([self.floor, self.mark]), {}

    def step(self, action):
        stride = 3 if self.floor % 2 == 0 else 1
        self.floor = min(max(self.floor + (int(action) - 1) * stride, 0), 20)
        ended = self.floor == 18
        reward = 7.5 if ended else -0.25
        return np.array([self.floor, self.mark]), reward, ended, False, {}
'''

FIRST_GUESS = """
class Environment:
    def set_state(self, observation):
        self.floor, self.mark = observation

    def step(self, action):
        self.floor = min(max(self.floor + action - 1, 0), 20)
        return [self.floor, self.mark], 0.0, False
"""


LIFT_DATA = ("--env", "lift.py:Lift", "--dataset", "lift.npz")
"""Arguments that name the environment and its recorded transitions."""


def record_lift(shell: Shell) -> None:
    """Write the environment and recorded transitions into the folder of a shell."""
    (shell.folder / "lift.py").write_text(LIFT)
    recording = ("--policy", "random", "--episodes", "20", "--max-steps", "40")
    done = shell("collect", "--env", "lift.py:Lift", *recording, "--out", "lift.npz")
    assert done.returncode == 0, done.stderr


@dataclass
class Agent:
    """The tools of a server; `heard` collects every text that the server sent."""

    client: Client
    heard: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its structured content."""
        result = await self.client.call_tool(tool, arguments)
        text = self._text(result)
        assert not result.is_error, text
        assert result.structured_content is not None
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must fail, and return the error."""
        result = await self.client.call_tool(tool, arguments)
        text = self._text(result)
        assert result.is_error, text
        return text

    async def attempt(self, tool: str, **arguments: Any) -> None:
        """Call a tool that may fail."""
        self._text(await self.client.call_tool(tool, arguments))

    def _text(self, result: Any) -> str:
        text = "\n".join(part.text for part in result.content)
        self.heard += [text, repr(result.structured_content)]
        return text


@asynccontextmanager
async def agent(shell: Shell, *arguments: str) -> AsyncIterator[Agent]:
    """Start `cwm mcp` as MCP clients do, and connect to it."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "cwm_cli", "mcp", *arguments],
        env=shell.variables(),
        cwd=shell.folder,
    )
    async with Client(stdio_client(parameters)) as client:
        yield Agent(client)


def server_process() -> psutil.Process:
    """Return the process of the server that this process started last."""
    children = psutil.Process().children()
    (found,) = [child for child in children if "mcp" in child.cmdline()]
    return found
