"""True environments as models: planners try actions in a copy of the environment itself."""

from cwm_cli.envs.simulators.attributes import Attributes
from cwm_cli.envs.simulators.layout import Findings
from cwm_cli.envs.simulators.opening import Opening, simulator
from cwm_cli.envs.simulators.remembering import Remembering
from cwm_cli.envs.simulators.simulator import Simulator

__all__ = ["Attributes", "Findings", "Opening", "Remembering", "Simulator", "simulator"]
