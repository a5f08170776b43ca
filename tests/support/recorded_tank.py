"""Recorded transitions of a tank with a valve, without a simulator."""

from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_formats.recorded import RecordedColumn, RecordedTable

PROGRAM = """
import numpy as np


class Environment:
    def set_state(self, observation):
        self.level = float(observation[0])

    def step(self, action):
        self.level += 0.2 * action - 0.1 * max(self.level, 0.0) ** 0.5
        return np.array([self.level]), 0.0, False
"""

REMEMBERING = PROGRAM.replace("set_state", "reset").replace(
    "    def step",
    "    def correct(self, observation, reward):\n"
    "        assert reward == 0.0, reward\n"
    "        self.level = float(observation[0])\n\n    def step",
)
"""The same law in a program with memory, which checks the recorded reward."""


def next_level(level: float, valve: int) -> float:
    """Return the level after a step: the valve adds 0.2, and the drain depends on the level."""
    return level + 0.2 * valve - 0.1 * level**0.5


def recorded_tank(*, rewards: bool = False, episodes: int = 10, steps: int = 20) -> Dataset:
    """Return random episodes of the tank; the reward is the distance from level 1, or none."""
    rng = np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        level = float(rng.uniform(0.5, 2.0))
        for _ in range(steps):
            valve = int(rng.integers(2))
            after = next_level(level, valve)
            rows.append((level, valve, after, -abs(after - 1) if rewards else 0.0, episode))
            level = after
    before, valve, after, reward, episode = (np.array(column) for column in zip(*rows, strict=True))
    box = Space("box", "float64", (1,), (0.0,), (4.0,))
    switch = Space("discrete", low=(0,), high=(1,))
    table = RecordedTable(
        box,
        switch,
        (RecordedColumn("level (m)"),),
        (RecordedColumn("valve", ("closed", "open")),),
        source="tank.csv",
    )
    columns = {
        "observations": before[:, None],
        "actions": valve,
        "next_observations": after[:, None],
        "rewards": reward,
        "terminations": np.zeros(len(rows), np.bool_),
        "truncations": np.zeros(len(rows), np.bool_),
        "episodes": episode,
    }
    metadata = {"env": "data/tank", "env_args": table.as_arguments()}
    return Dataset(columns, box, switch, metadata).validate()
