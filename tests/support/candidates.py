"""Candidate programs and datasets for tests of the sandbox."""

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.job import PredictionJob
from cwm_cli.worlds.messages import PlanningJob
from cwm_cli.worlds.model import Plan
from cwm_cli.worlds.program import ProgramSession

LIMITS = Limits(wall_seconds=30, cpu_seconds=1, stall_seconds=0.3, sleep_seconds=1, memory_mb=128)


def program(
    step: str = "return self.state, 1.0, False",
    *,
    set_state: str = "self.state = observation",
    init: str = "pass",
    top: str = "",
) -> str:
    """Write a program whose step begins in line 12 when `top` is one line."""
    return f"""{top}
import os, random, signal, sys, time
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        {set_state}

    def step(self, action):
        {step}
"""


def dataset_of(space: gym.Space, rows: int = 20) -> Dataset:
    """Record transitions that stay where they are, with actions of the same space."""
    space.seed(1)
    transitions = []
    for _ in range(rows):
        observation = space.sample()
        transitions.append(Transition(observation, space.sample(), observation, 1.0, False))
    described = space_of(space)
    return Dataset.of(transitions, observation_space=described, action_space=described)


BOX = dataset_of(spaces.Box(-1, 1, (4,)))


def predicting(text: str, dataset: Dataset) -> PredictionJob:
    """Return a job that asks for every row of a dataset, in its order."""
    return PredictionJob(
        program=text,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        columns=dict(dataset.select("observations", "actions")),
    )


def open_session(
    sandbox: Sandbox,
    text: str,
    spaces: tuple[Space, Space],
    rows: Columns | None = None,
    **how: Any,
) -> ProgramSession:
    """Return a session that plans with a program, to be closed."""
    about = {"observation_space": spaces[0], "action_space": spaces[1], "columns": rows or {}}
    return ProgramSession(sandbox, PlanningJob(program=text, **about, **how))


def plan_at(
    opened: ProgramSession, observation: object, number: int = 0, *, horizon: int = 9
) -> Plan:
    """Ask a session for the decision of a number in its only episode."""
    [plan] = opened.plan([Moment(0, number, observation, horizon)])
    return plan


STILL_ANSWER = """```python
class Environment:
    def set_state(self, observation):
        self.observation = observation
    def step(self, action):
        return self.observation, 0.0, False
```"""
"""An answer of a language model: a program that predicts no change."""
