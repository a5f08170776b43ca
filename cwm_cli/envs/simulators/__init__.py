"""Environments as models: planners try actions in a copy of the environment."""

from cwm_cli.envs.simulators.opening import Opening, simulator
from cwm_cli.envs.simulators.saving import Attributes, Findings, Values
from cwm_cli.envs.simulators.simulator import CachingSimulator, Simulator

__all__ = [
    "Attributes",
    "CachingSimulator",
    "Findings",
    "Opening",
    "Simulator",
    "Values",
    "simulator",
]
