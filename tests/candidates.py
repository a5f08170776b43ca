"""Candidate programs and datasets for tests of the sandbox."""

import gymnasium as gym
from gymnasium import spaces

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Limits, Plan, Session

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


def plan_at(opened: Session, observation: object, number: int = 0, *, horizon: int = 9) -> Plan:
    """Ask a session for the decision of a number in its only episode."""
    [plan] = opened.plan([Moment(0, number, observation, horizon)])
    return plan
