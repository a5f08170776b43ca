"""World models, which predict the next observation, reward and end, for scores and plans.

`model` contains the base class `WorldModel`, its `Predictions`, and the planning session that it
opens. `program` runs a program in the sandbox, `contract` lists the methods that a program
defines, and `environment` uses the true environment as its own model. Plugins add further kinds
with the hook `cwm_world_models`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cwm_cli.worlds.contract import Contract
    from cwm_cli.worlds.environment import EnvironmentModel
    from cwm_cli.worlds.model import Planning, PlanningSession, Predictions, WorldModel
    from cwm_cli.worlds.program import ProgramModel

__all__ = [
    "CONTRACTS",
    "WORLD_MODELS",
    "Contract",
    "EnvironmentModel",
    "Planning",
    "PlanningSession",
    "Predictions",
    "ProgramModel",
    "WorldModel",
]

WORLD_MODELS: Mapping[str, str] = {
    "program": "cwm_cli.worlds.program:ProgramModel",
    "environment": "cwm_cli.worlds.environment:EnvironmentModel",
}
"""The addresses of world model classes, by kind."""

CONTRACTS: Mapping[str, str] = {
    "plain": "cwm_cli.worlds.contract:Contract",
    "chance": "cwm_cli.worlds.contract:ChanceContract",
    "memory": "cwm_cli.worlds.contract:MemoryContract",
    "game": "cwm_cli.worlds.contract:GameContract",
}
"""The addresses of contract classes, by name."""

_MODULES = {
    "Contract": "contract",
    "EnvironmentModel": "environment",
    "Planning": "model",
    "PlanningSession": "model",
    "Predictions": "model",
    "ProgramModel": "program",
    "WorldModel": "model",
}


def __getattr__(name: str) -> Any:
    """Import an exported class on its first use, so that unused kinds are never imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
