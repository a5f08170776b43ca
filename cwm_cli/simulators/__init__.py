"""True environments as models: planners try actions in a copy of the environment itself."""

from cwm_cli.simulators.attributes import Attributes
from cwm_cli.simulators.layout import Findings
from cwm_cli.simulators.opening import Opening, simulator
from cwm_cli.simulators.remembering import Remembering
from cwm_cli.simulators.simulator import Simulator

__all__ = ["Attributes", "Findings", "Opening", "Remembering", "Simulator", "simulator"]
