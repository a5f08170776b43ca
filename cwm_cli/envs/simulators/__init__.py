"""True environments as models: planners try actions in a copy of the environment itself."""

from cwm_cli.envs.simulators.opening import Opening, simulator
from cwm_cli.envs.simulators.saving import Attributes, Findings, Values
from cwm_cli.envs.simulators.simulator import Remembering, Simulator

__all__ = ["Attributes", "Findings", "Opening", "Remembering", "Simulator", "Values", "simulator"]
